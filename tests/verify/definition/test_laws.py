"""Laws that hold for every backend: algebra, enclosures, error bounds, masks and merges."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from specs import load_platform, load_spec
from specs.errors import UnsupportedError
from verify.definition import RowInputs, ScalarArithmetic, Walker, evaluate
from verify.definition.balls import BallArithmetic, UndecidedError, enclose
from verify.definition.rational import Log, RationalArithmetic
from verify.exact import exact_attention, exact_lse
from verify.numerics.rounding import round_array
from verify.partition import Plan, plan

F32_BACKENDS = [f"walkthrough.{n}" for n in ("triton", "flash_attention_2", "xqa", "trtllm_gen")]
F64_BACKENDS = ["walkthrough.dense", "walkthrough.tiled"]
BACKENDS = [*F32_BACKENDS, *F64_BACKENDS, "vllm_triton.interpreter"]
Arrays = tuple[NDArray[np.float64], NDArray[np.float64]]


def planned(name: str, kv_len: int, **context: Any) -> Plan:
    """On few SMs, so that short sequences have several groups."""
    return plan(load_spec(name), load_platform("h200"), kv_len=kv_len, **{"head_dim": 64, **context})


def rounded(name: str, scores: NDArray[np.float64], v: NDArray[np.float64]) -> Arrays:
    program = planned(name, len(scores)).program
    return round_array(scores, program.compute), round_array(v, program.inputs["v"])


def random_row(seed: int, n: int, spread: float, dims: int = 2) -> Arrays:
    rng = np.random.default_rng(seed)
    return rng.normal(0.0, spread, n), rng.normal(0.0, 1.0, (n, dims))


def oracle(plan: Plan, scores: NDArray[np.float64], v: NDArray[np.float64], *sites: str) -> dict[str, Any]:
    inputs = RowInputs(v=v, feed={plan.program.score_site(): scores})
    return evaluate(plan.program, plan, inputs, sites, ScalarArithmetic())


rows = st.tuples(st.integers(0, 2**32 - 1), st.integers(1, 700), st.sampled_from([0.1, 1.0, 8.0, 40.0]))


# -- algebra ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", BACKENDS)
@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), n=st.integers(1, 600))
def test_without_roundings_every_backend_is_softmax_attention(name: str, seed: int, n: int) -> None:
    rng = np.random.default_rng(seed)
    weights = rng.integers(0, 9, n)  # e**score; 0 masks the token
    v = rng.integers(-4, 5, (n, 1)).astype(np.float64)
    plan = planned(name, n)
    scores = np.array([Log(Fraction(int(w))) for w in weights], dtype=object)
    inputs = RowInputs(v=v, feed={plan.program.score_site(): scores})
    output = Walker(plan.program, plan, inputs, RationalArithmetic()).value("output", {"dim": 0})
    total = int(weights.sum())
    assert output == (Fraction(int(weights @ v[:, 0].astype(np.int64)), total) if total else 0)


def test_the_algebra_refutes_the_declared_fault() -> None:
    program_options = {"rescale_previous_accumulator": False}
    plan = planned("walkthrough.tiled", 33, options=program_options)
    scores = np.array([Log(Fraction(1 + t)) for t in range(33)], dtype=object)
    inputs = RowInputs(v=np.arange(33.0)[:, None], feed={"score": scores})
    output = Walker(plan.program, plan, inputs, RationalArithmetic()).value("output", {"dim": 0})
    assert output != Fraction(sum((1 + t) * t for t in range(33)), sum(range(1, 34)))


def test_rationals_refuse_what_is_irrational() -> None:
    ops = RationalArithmetic().table
    for op, args in (
        ("exp", (Fraction(1),)),
        ("*", (Log(Fraction(2)), Fraction(2))),
        ("-", (Log(Fraction(0)), Log(Fraction(0)))),
    ):
        with pytest.raises(UnsupportedError):
            ops[op](*args)


# -- enclosures -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", BACKENDS)
@settings(max_examples=5, deadline=None)
@given(row=rows)
def test_the_enclosure_holds_the_exact_answer_and_the_oracle_is_near_it(
    name: str, row: tuple[int, int, float]
) -> None:
    scores, v = rounded(name, *random_row(*row))
    plan = planned(name, len(scores))
    inputs = RowInputs(v=v, feed={plan.program.score_site(): scores})
    balls = enclose(plan.program, plan, inputs, ["output", "lse"])
    exact = exact_attention(scores, v)
    for dim in range(2):
        ball = balls["output"].data[dim]
        assert ball.overlaps(exact.balls[dim])
        assert float(ball.rad()) < 1e-25
    assert balls["lse"].item().overlaps(exact_lse(scores).balls.item())

    # An envelope from the roundings alone: 2 for P and the output, 2 for a bf16 partial, n for the sums, and
    # for the logits the error of exp's argument, which a subtraction of size 2**8 at most carries.
    got = oracle(plan, scores, v, "output")["output"].data
    unit, half = 2.0**-plan.program.compute.p, 2.0**-9 if name not in F64_BACKENDS else 0.0
    spread = float(np.ptp(scores)) + 1.0
    bound = np.abs(v).max() * (4 * half + (3 * len(scores) + 8 * spread + 60) * unit)
    assert np.abs(got - exact.midpoint).max() <= bound


@pytest.mark.parametrize(
    ("name", "tolerance"), [("flash_attn2.splitkv_decode", 2e-7), ("vllm_triton.decode_3d", 1e-30)]
)
@pytest.mark.parametrize("kv_len", [70, 300])
def test_the_real_kernels_mean_attention_up_to_their_constants(
    name: str, tolerance: float, kv_len: int
) -> None:
    rng = np.random.default_rng(kv_len)
    splits = 0 if name.startswith("vllm") else 3
    plan = planned(name, kv_len, head_dim=128, q_heads=4, num_splits=splits)
    q, k, v = (
        round_array(rng.normal(size=s), plan.program.inputs["v"]) for s in (128, (kv_len, 128), (kv_len, 40))
    )
    visible = np.arange(kv_len) % 7 != 3
    inputs = RowInputs(q=q, k=k, v=v, visible=lambda t: bool(visible[t]), scalars={"scale": 0.125})
    dims = [0, 5, 39]
    got = enclose(plan.program, plan, inputs, ["output"], dims)["output"].data
    exact = exact_attention(np.where(visible, k @ q * 0.125, -np.inf), v[:, dims])
    for ball, want in zip(got, exact.balls, strict=True):
        # k @ q is off by some ulps of f64 times the condition of the sum.
        assert abs(float((ball - want).mid())) < max(tolerance, 1e-13)


def test_balls_say_when_they_cannot_decide() -> None:
    ops = BallArithmetic()
    third = ops.lift(1.0) / 3
    assert ops.compare("<")(third, ops.lift(0.5)) is True
    assert ops.compare("<=")(ops.lift(0.5), third) is False
    assert ops.compare("==")(third, third) is True
    with pytest.raises(UndecidedError, match="is undecided"):
        ops.compare("==")(third, ops.lift(1.0) / 3)
    with pytest.raises(UndecidedError, match="indeterminate"):
        ops.is_nan(ops.lift(1.0) / ops.lift(0.0))
    assert ops.table["log"](ops.lift(0.0)) == ops.lift(-math.inf)


def test_precision_grows_until_a_comparison_is_decided() -> None:
    # log(exp(x)) > x + 2**-300 needs 300 bits; log(exp(x)) == x is never decided.
    from specs import parse_spec

    text = """
schema = 1
name = "test.close"
status = "read"
summary = "a test"
[numbers]
compute = "f64"
inputs = { q = "f64", k = "f64", v = "f64" }
[row]
x = "sum(v, seq())"
output = "select(log(exp(x)) COMPARED, 1, 2)"
"""
    tiny = "+ 1e-90"
    for compared, want in ((f"> x {tiny}", 2.0), (f"< x {tiny}", 1.0)):
        p = plan(parse_spec(text.replace("COMPARED", compared)), load_platform("h200"), kv_len=1)
        got = enclose(p.program, p, RowInputs(v=np.array([[0.3]])), ["output"])
        assert got["output"].item() == want
    p = plan(parse_spec(text.replace("COMPARED", "== x")), load_platform("h200"), kv_len=1)
    with pytest.raises(UndecidedError, match=r"<text>:\d+:\d+: .* == .* is undecided at 4096 bits"):
        enclose(p.program, p, RowInputs(v=np.array([[0.3]])), ["output"])


# -- masks and merges -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", BACKENDS)
@settings(max_examples=4, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), n=st.integers(193, 255))
def test_masked_tokens_change_no_bit(name: str, seed: int, n: int) -> None:
    """Tokens n..255 absent, or masked: the partition of 256 tokens is the same one."""
    scores, v = rounded(name, *random_row(seed, 256, 2.0))
    holes = np.random.default_rng(seed).random(256) < 0.3
    scores = np.where(holes, -np.inf, scores)
    short = oracle(planned(name, n, kv_capacity=256), scores[:n], v[:n], "output", "lse")
    masked = np.where(np.arange(256) < n, scores, -np.inf)
    long = oracle(planned(name, 256, kv_capacity=256), masked, v, "output", "lse")
    other = oracle(
        planned(name, 256, kv_capacity=256),
        masked,
        np.where((masked > -np.inf)[:, None], v, 3.0),
        "output",
        "lse",
    )
    for site in ("output", "lse"):
        bits = [x[site].data.view(np.uint64).tolist() for x in (short, long, other)]
        assert bits[0] == bits[1] == bits[2]


@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize("n", [0, 1, 300])
def test_a_row_that_sees_nothing(name: str, n: int) -> None:
    got = oracle(planned(name, n), np.full(n, -np.inf), np.ones((n, 1)), "output", "lse")
    assert got["output"].tolist() == [0.0]
    assert got["lse"].item() == -math.inf


@pytest.mark.parametrize("name", F32_BACKENDS)
@settings(max_examples=10, deadline=None)
@given(row=st.tuples(st.integers(0, 2**32 - 1), st.integers(1, 16), st.sampled_from([0.1, 4.0])))
def test_with_one_group_the_merge_changes_nothing(name: str, row: tuple[int, int, float]) -> None:
    scores, v = rounded(name, *random_row(*row))
    plan = planned(name, len(scores))
    assert plan.count == 1
    site = "value" if name == "walkthrough.triton" else "partial"
    got = oracle(plan, scores, v, "output", "norm", site)
    alone = got[site].data[0]
    if name in ("walkthrough.triton", "walkthrough.trtllm_gen"):  # these divide once, at the end
        alone = (alone.astype(np.float32) / got["norm"].data[0].astype(np.float32)).astype(np.float64)
    assert got["output"].tolist() == round_array(alone, plan.program.inputs["v"]).tolist()


def test_subnormal_weights_count() -> None:
    # exp(-90) = 8.92 * 2**-133 is subnormal in f32 and 9 * 2**-133 in bf16.
    scores = np.append(np.full(15, -90.0), 0.0)
    v = np.append(np.full(15, 2.0**100), 0.0)[:, None]
    got = oracle(planned("walkthrough.triton", 16), scores, v, "weight", "value")
    assert got["weight"].data[0, 0] == round(math.exp(-90.0) * 2.0**149) * 2.0**-149 < 2.0**-126
    assert got["value"].data[0].tolist() == [15 * 9 * 2.0**-33]
