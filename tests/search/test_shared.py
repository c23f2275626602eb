"""Lines that two platforms compute alike, and bounds that count the others alone."""

from fractions import Fraction

import numpy as np
import pytest

from search.bound import upper_bound
from search.shared import same_logits, shared_lines
from search.sides import load_side
from search.space import Inputs, Space
from search.target import Target

TRITON = ("vllm_triton.decode_3d@h200", "vllm_triton.decode_3d@b200")


def shape(head_dim: int) -> dict[str, int]:
    return {"q_heads": 24, "kv_heads": 4, "head_dim": head_dim, "kv_len": 256}


def unlike(cells: tuple[str, str], head_dim: int) -> set[str]:
    a, b = (load_side(c) for c in cells)
    p, q = (s.program(shape(head_dim)) for s in (a, b))
    return set(p.sites) - shared_lines(a, b, p, q, shape(head_dim))


def test_triton_differs_in_the_sum_of_segments_alone() -> None:
    assert unlike(TRITON, 128) == {"num", "exact", "output"}
    assert unlike(TRITON, 64) == set()


def test_flash_attention_differs_from_the_score_on() -> None:
    pair = ("flash_attn2.splitkv_decode@a100", "flash_attn2.splitkv_decode@h200")
    assert {"score", "m", "weight", "output"} <= unlike(pair, 64)
    assert not same_logits(*(load_side(c) for c in pair), shape(64))


def test_what_is_known_of_other_formats_does_not_matter() -> None:
    # The tensor cores of H200 and SM120 differ for fp8 alone.
    assert same_logits(load_side("xqa.decode@h200"), load_side("xqa.decode@sm120"), shape(64))


MERGES = (
    "select(total == 0, 0, sum(value * w, seq()) / total)",
    "select(total == 0, 0, sum(value * w, pairwise()) / total)",
)


@pytest.mark.parametrize("c", [1.0, 0.5])
def test_only_what_differs_counts_in_a_bound(c: float) -> None:
    sides = [load_side("walkthrough.triton@h200", {"exact": line}) for line in MERGES]
    found = upper_bound(*sides, context=shape(64), cancellation=Fraction(c))
    assert found.rigor == "rigorous"
    # Each term passes at most 16 roundings on one side and 4 on the other, a product and a quotient on both, and each of
    # them moves an output of up to 2 by half a unit of f32: 2**-16 places of bf16, at c = 1.
    assert 20 * 2.0**-17 / c < found.real < 3 * 24 * 2.0**-16 / c
    space = Space(kv_len=256, context=shape(64), cancellation=c)
    target = Target(sides, space).by_definition()
    rng = np.random.default_rng(0)
    scores, values = rng.normal(size=(6, 256)), rng.uniform(1, 2, size=(6, 256, 1))
    values *= np.where(rng.random(values.shape) < (0.2 if c < 1 else 0.0), -1, 1)
    measured = target.measure(Inputs(scores.astype(np.float32), target.stored(values)))
    assert (measured.violation <= 0).all()
    assert 0 < measured.score.max() <= found.real


@pytest.mark.slow
def test_the_bound_of_two_orders_of_sixteen_segments() -> None:
    """Half a minute: an instance of 16 segments."""
    a, b = (load_side(c) for c in TRITON)
    found = upper_bound(a, b, context=shape(128), cancellation=Fraction(1))
    assert found.rigor == "rigorous"
    assert found.integer == 1
    # Two of their roundings at least: each half a unit of f32 of a number below 2, in places of bf16.
    assert 2 * 2.0**-17 < found.real < 2e-3


def test_one_program_on_two_gpus() -> None:
    same = upper_bound(*(load_side(c) for c in TRITON), context=shape(64), cancellation=Fraction(1))
    assert (same.real, same.integer) == (0.0, 0)
