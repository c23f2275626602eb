"""A few tokens of the real partition: against the definition on the whole sequence, and what they find."""

import numpy as np
import pytest

from search.objective import Objective, integer_distances
from search.seeds.places import beginning, joint_cells, layouts, places, straddling
from search.seeds.sparse import Sparse
from search.sides import load_side
from search.space import Space
from search.target import Target

XQA = ("xqa.decode@h200", "xqa.decode@sm120")
TRITON = ("vllm_triton.decode_3d@h200", "vllm_triton.decode_3d@b200")


def target(cells: tuple[str, str], kv_len: int, head_dim: int, c: float = 1.0, **more: object) -> Target:
    shape = {"q_heads": 24, "kv_heads": 4, "head_dim": head_dim}
    space = Space(kv_len=kv_len, kind="qkv", context=shape, cancellation=c, **more)
    return Target([load_side(c) for c in cells], space, Objective())


def test_cells_of_xqa() -> None:
    # 256 tokens a CTA: X tiles of 64, and on SM120 halves of 32 tokens of V.
    cell, piece = joint_cells(target(XQA, 512, 64))
    assert cell.tolist() == [t // 32 for t in range(512)]
    assert piece.tolist() == [t // 256 for t in range(512)]
    assert layouts(target(XQA, 512, 64), [(1, 3, 2)])[0].tolist() == [0, 1, 32, 33, 64, 65]


@pytest.mark.parametrize(("cells", "kv_len", "head_dim"), [(XQA, 320, 64), (TRITON, 256, 128)])
def test_a_few_tokens_give_the_bits_of_the_whole_sequence(
    cells: tuple[str, str], kv_len: int, head_dim: int
) -> None:
    whole = target(cells, kv_len, head_dim)
    cut = Sparse(whole, layouts(whole, [(4, 4, 1)])[0])
    measured = cut.measure(beginning(cut, np.random.default_rng(0), 8))
    exact = whole.by_definition().measure(cut.expand(measured.inputs.pick([3])))
    for few, all_ in zip(measured.outputs, exact.outputs, strict=True):
        assert few.before[3] == all_.before[0]
        assert few.stored[3] == all_.stored[0]


def test_products_that_cancel_are_seen() -> None:
    pair = ("flash_attn2.splitkv_decode@a100", "flash_attn2.splitkv_decode@h200")
    whole = target(pair, 256, 64, carry=12)
    cut = Sparse(whole, np.array([5, 70, 200]))
    measured = cut.measure(beginning(cut, np.random.default_rng(1), 4))
    assert (measured.outputs[0].before != measured.outputs[1].before).any()
    exact = whole.by_definition().measure(cut.expand(measured.inputs.pick([0])))
    assert [o.before[0, 0] for o in measured.outputs] == [o.before[0, 0] for o in exact.outputs]


def test_inner_pieces_part_xqa_on_two_gpus() -> None:
    whole = target(XQA, 512, 64)
    found = places(whole, 0, evaluations=4000)[0]
    assert len(found.template.tokens) <= 64
    exact = whole.by_definition().measure(found.target.expand(found.inputs))
    assert exact.violation[0] <= 0
    assert exact.score[0] >= 2.0


def test_a_boundary_is_moved_between_outputs_that_hardly_differ() -> None:
    whole = target(TRITON, 256, 128)
    found = places(whole, 0, evaluations=2000)
    assert 0 < found[0].score < 1e-3
    again = straddling(whole, found[0], 2000)
    exact = whole.by_definition().measure(again[0].target.expand(again[0].inputs))
    assert integer_distances(exact.outputs)[0, 1].tolist() == [1]
