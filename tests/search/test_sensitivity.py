"""First-order effects of roundings: known truths, finite differences, and every spec of the library."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import sympy

from search.samples import Arrays, instance, walk
from search.sensitivity import Counts, Sensitivities, grown, sensitivities
from search.sides import before_rounding, load_side
from search.tape import Node
from specs.errors import InputError, UnsupportedError

CONTEXT = {"kv_len": 27525, "head_dim": 128}
OUT = sympy.Symbol("out", real=True)
P, V = (sympy.symbols(f"{name}0:6", real=True) for name in "pv")


def of(name: str, settings: dict[str, str] | None = None, **kwargs: Any) -> Sensitivities:
    return sensitivities(load_side(name, settings), CONTEXT, **kwargs)


def expressions(found: Sensitivities, site: str, fmt: str) -> list[sympy.Expr]:
    return [sympy.expand(found.expression(e)) for e in found.of(site, fmt).effects]


@pytest.mark.parametrize("name", ["flash_attention_2", "triton"])
def test_a_rounded_weight_counts_p_v(name: str) -> None:
    found = of(f"walkthrough.{name}@h200")
    assert found.proved
    assert found.factors
    # The last token of each group has the maximum: its weight is 1.
    assert expressions(found, "value", "bf16") == [P[0] * V[0], P[2] * V[2]]
    (site,) = found.narrow()
    assert (site.kappa_direct, site.kappa_out) == (1, 0)


def test_a_weight_that_the_normaliser_shares_counts_p_v_minus_out() -> None:
    found = of("walkthrough.xqa@h200")
    assert found.proved
    assert expressions(found, "weight", "bf16") == [sympy.expand(P[t] * (V[t] - OUT)) for t in (0, 2)]
    assert expressions(found, "partial", "bf16") == [P[0] * V[0] + P[1] * V[1], P[2] * V[2] + P[3] * V[3]]
    weight, partial = found.narrow()
    assert (weight.kappa_direct, weight.kappa_out) == (1, 1)
    assert (partial.kappa_direct, partial.kappa_out) == (1, 0)


def test_a_sum_of_weights_counts_minus_its_share_of_the_output() -> None:
    for name in ("flash_attention_2", "triton", "trtllm_gen"):
        found = of(f"walkthrough.{name}@h200")
        assert expressions(found, "norm", "f32") == [
            sympy.expand(-OUT * (P[0] + P[1])),
            sympy.expand(-OUT * (P[2] + P[3])),
        ]


def test_a_numerator_kept_in_bf16_counts_its_prefixes() -> None:
    """A spec that is in no library: the running numerator of trtllm_gen rounded at every step."""
    cell, line = "walkthrough.trtllm_gen@b200", {"num": "bf16(prev(num) * a + partial * b)"}
    found = of(cell, line, sizes={"tile": 3})
    terms = [P[t] * V[t] for t in range(6)]
    first, second, third = expressions(found, "num", "bf16")
    assert first == terms[0] + terms[1]
    assert second == sum(terms[:4])
    assert third == sympy.expand(OUT * sum(P))
    assert found.of("num", "bf16").kappa_direct == 2
    side = load_side(cell, line)
    (num,) = [g for g in grown(side, CONTEXT)[0] if g.site == "num" and g.format.p == 8]
    assert num.growth["tile"].direct == 1
    assert num.growth["token"] == Counts(0, 0, 0, 0)
    assert num.counts.direct == 215  # of 216 tiles, all but the last step, which is a rounding of the output
    plain = [g for g in grown(load_side(cell), CONTEXT)[0] if g.format.p == 8]
    assert {(g.site, g.counts.direct, g.counts.through) for g in plain} == {("partial", 1, 0)}


def test_the_roundings_of_sums_grow_with_the_sizes_of_the_plan() -> None:
    """256 tokens in a split of 4 blocks, 108 splits: one addition less than terms, as 0 + x is exact."""
    side = load_side("walkthrough.flash_attention_2@h200")
    assert side.plan(CONTEXT).tokens.shape == (108, 4, 64)
    counts = {(g.site, g.operation): g.counts for g in grown(side, CONTEXT)[0]}
    assert counts["norm", "fold"] == Counts(0, 0, 0, 255)
    assert counts["value", "fold"].direct == 255
    assert counts["total", "fold"].normal == 107


@pytest.mark.parametrize("name", ["flash_attention_2", "triton", "xqa", "trtllm_gen", "dense", "tiled"])
def test_effects_are_finite_differences(name: str) -> None:
    """Each rounding, moved alone, moves the output by what the effect says, with p and v of the samples."""
    side = load_side(f"walkthrough.{name}@h200")
    program, output, _ = before_rounding(side.program(CONTEXT))
    found = sensitivities(side, CONTEXT)
    n, rng = found.tokens, np.random.default_rng(5)
    scores, values = np.sort(rng.normal(size=n)), rng.normal(size=n)
    plan = instance(program, found.sizes)

    def run(shifts: list[float]) -> tuple[list[Any], float]:
        from fractions import Fraction

        leaves = [Node(np.array([[s]]), scale=Fraction(1)) for s in scores]
        with np.errstate(all="ignore"):
            tape, node = walk(
                program, plan, output, Arrays(), leaves, [Node(np.array([[v]])) for v in values], shifts
            )
        return [e.event for e in tape.events], float(node.value[0, 0])

    events, out = run([0.0] * 1000)
    weights = np.exp(scores) / np.exp(scores).sum()
    assert out == pytest.approx(weights @ values, rel=1e-12)
    queue = {s.key: list(s.effects) for s in found.sites}
    for i, e in enumerate(events):
        effect = queue[e.site, e.part, e.operation, e.format, e.logit, e.ulps].pop(0)
        moved = run([0.0] * i + [1e-6] + [0.0] * len(events))[1]
        first = (np.array(effect.direct) * weights) @ values + out * (np.array(effect.through) @ weights)
        assert (moved - out) / 1e-6 == pytest.approx(first, abs=1e-5)
    assert not any(queue.values())


@pytest.mark.parametrize(
    ("cell", "narrow"),
    [
        ("flash_attn2.prefill@h200", {"acc": (1, 0)}),
        ("vllm_triton.decode_2d@h200", {"acc": (1, 0)}),
        ("trtllm_gen.reduction@b200", {"partial": (1, 0)}),
        ("torch_cpu.sdpa_flash@amd_avx512", {"value": (1, 0)}),
        (
            "xqa.decode@sm120",
            {"weight": (1, 1), "og": (1, 0), "output": (1, 0), "y": (3, 0), "partial": (1, 0)},
        ),
    ],
)
def test_kernels_of_the_library(cell: str, narrow: dict[str, tuple[int, int]]) -> None:
    """One rounded weight each; XQA rounds it for both sums, and twice again where it is rescaled.

    Two halves of a tile are added in bf16 on SM120: one addition, which two tokens of one half do not show.
    """
    found, _ = grown(load_side(cell), CONTEXT)
    rounded = {g.site: (g.counts.direct, g.counts.through) for g in reversed(found) if g.format.p < 24}
    assert rounded == narrow


def test_order_and_sizes_are_checked() -> None:
    with pytest.raises(InputError, match="each token once"):
        of("walkthrough.triton@h200", order=[0, 1, 2, 2])
    with pytest.raises(InputError, match="no axis"):
        of("walkthrough.triton@h200", sizes={"split": 2})
    with pytest.raises(UnsupportedError, match="at most"):
        of("walkthrough.triton@h200", sizes={"token": 1000})
    with pytest.raises(InputError, match="nothing is rounded"):
        of("walkthrough.triton@h200").of("lse")


def test_what_has_no_derivative_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="derivative of sqrt"):
        of("walkthrough.triton@h200", {"w": "sqrt(exp(top - most_safe))"})
    with pytest.raises(UnsupportedError, match="no weighted mean"):
        of("walkthrough.triton@h200", {"exact": "sum(value * w, seq())"})


def test_another_function_than_attention_has_no_sensitivities() -> None:
    """Groups added as if they had one maximum, and a merge in another base: weighted means, but of other weights."""
    for line, text in (("w", "exp(top - top)"), ("w", "exp2(top - most_safe)")):
        with pytest.raises(UnsupportedError, match="weighs tokens otherwise"):
            of("walkthrough.triton@h200", {line: text})


def test_what_is_not_a_number_is_no_weighted_mean() -> None:
    with pytest.raises(UnsupportedError, match="no weighted mean"):
        of("walkthrough.triton@h200", {"w": "exp(-inf - (-inf))"})
