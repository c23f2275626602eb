"""Leaving tokens of weight zero out changes no bit, where every sum is in sequence."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from search.compact import Geometry, compact, compactable
from search.sides import load_side
from specs.formats import parse_format
from verify.definition import RowInputs, ScalarArithmetic, Walker
from verify.numerics.rounding import round_array

SHAPE = {"q_heads": 4, "kv_heads": 1, "head_dim": 64}
CELLS = (
    ("walkthrough.flash_attention_2@h200", {"split": "tiles(70)", "block": "tiles(32, desc)"}),
    ("walkthrough.xqa@h200", {"group": "deal(3, unit=16)"}),
    ("walkthrough.triton@h200", {"segment": "tiles(12)"}),
    ("walkthrough.trtllm_gen@b200", {"tile": "tiles(16)"}),
)


@pytest.mark.parametrize(("cell", "lines"), CELLS, ids=[c for c, _ in CELLS])
@settings(max_examples=15)
@given(data=st.data())
def test_the_same_bits(cell: str, lines: dict[str, str], data: st.DataObject) -> None:
    side = load_side(cell, lines)
    length = data.draw(st.integers(1, 150))
    support = np.array(sorted(data.draw(st.sets(st.integers(0, length - 1), min_size=1, max_size=12))))
    rng = np.random.default_rng(data.draw(st.integers(0, 1 << 32)))
    scores = rng.normal(size=len(support)).astype(np.float32).astype(np.float64) * 4
    values = round_array(rng.normal(size=(len(support), 1)), parse_format("bf16"))
    whole = np.full(length, -np.inf)
    whole[support] = scores
    padded = np.zeros((length, 1))
    padded[support] = values
    program, plan = side.program({"kv_len": length, **SHAPE}), side.plan({"kv_len": length, **SHAPE})
    assert compactable(program)

    def output(used, s, v):
        row = RowInputs(v=v, scalars={"scale": 1.0}, query=len(s) - 1, feed={"score": s})
        return Walker(program, used, row, ScalarArithmetic()).value("exact", {"dim": 0})

    assert output(compact(plan, support), scores, values) == output(plan, whole, padded)


def test_a_small_plan_by_hand() -> None:
    plan = load_side("walkthrough.xqa@h200", {"group": "deal(2, unit=2)"}).plan({"kv_len": 9})
    assert plan.tokens.tolist() == [[0, 1, 4, 5, 8], [2, 3, 6, 7, -1]]
    cut = compact(plan, np.array([1, 3, 7, 8]))
    assert cut.tokens.tolist() == [[0, 3], [1, 2]]
    assert cut.exists["group"].tolist() == [True, True]
    one = compact(plan, np.array([6]))
    assert one.tokens.tolist() == [[0]]


def test_geometry() -> None:
    plans = [
        load_side("walkthrough.xqa@h200", {"group": rule}).plan({"kv_len": 5})
        for rule in ("deal(2, unit=2)", "tiles(3)")
    ]
    found = Geometry.of(plans)
    assert found.piece.tolist() == [[0, 0, 1, 1, 0], [0, 0, 0, 1, 1]]
    assert found.rank.tolist() == [[0, 1, 0, 1, 2], [0, 1, 2, 0, 1]]


@pytest.mark.parametrize(
    "cell", ["flash_attn2.splitkv_decode@h200", "vllm_triton.decode_3d@h200", "xqa.decode@h200"]
)
def test_kernels_whose_sums_depend_on_positions_are_left_whole(cell: str) -> None:
    assert not compactable(
        load_side(cell).program({"kv_len": 4096, "q_heads": 24, "kv_heads": 4, "head_dim": 128})
    )
