"""Special functions in specs: the engine's bits are the oracle's, both forms can be named, and refusals."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from specs import Spec, load_platform, parse_spec
from specs.errors import SpecError, UnsupportedError
from specs.functions import FUNCTIONS
from specs.grammar import parse_expr
from specs.nodes import Name, Op
from tests.verify.laws import assert_engine_is_oracle, engine, gpu, problem
from tests.verify.small import HEADER
from verify.definition.balls import BallArithmetic
from verify.definition.rational import Log, RationalArithmetic
from verify.emulator import Run
from verify.judge import judge
from verify.numerics.special import REFUSED, SPECIAL

BODY = """
[token]
score = "select(visible, sum(q * k, seq()) * scale, -inf)"
[levels]
g = "tiles(4)"
[g]
m = "max(score)"
p = "SCORE(score - select(m == -inf, 0, m))"
s = "sum(p, seq())"
pv = "sum(p * v, seq())"
COLUMN
[row]
output = "div.full(sum(pv, seq()), sum(s, seq()))"
"""
CPU = load_platform("amd_avx512")
#: Lines on the largest score of each tile (positive and negative numbers) and on the positive sum of weights.
LINES = dict.fromkeys(SPECIAL, "m") | dict.fromkeys(("mufu.rsq", "mufu.lg2", "cuda.logf", "glibc.logf"), "s")


def spec(score: str, lines: str) -> Spec:
    return parse_spec(HEADER + BODY.replace("SCORE", score).replace("COLUMN", lines))


def cpu_spec(score: str, lines: str) -> Spec:
    """As `spec`, without the division of GPUs."""
    body = BODY.replace("div.full(sum(pv, seq()), sum(s, seq()))", "sum(pv, seq()) / sum(s, seq())")
    return parse_spec(HEADER + body.replace("SCORE", score).replace("COLUMN", lines))


def problem_of(s: Spec, spread: float = 1.0) -> Any:
    rng = np.random.default_rng(1)
    arrays = {
        "q": rng.normal(0, spread, (4, 5)),
        "k": rng.normal(0, 1, (10, 2, 5)),
        "v": rng.normal(0, 1, (10, 2, 3)),
    }
    return problem(s, **arrays, scale=0.7)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("unit", "score", "spread"),
    [
        ("gpu", "triton.exp", 1.0),
        ("gpu", "f32.ftz.mufu.ex2", 40.0),
        ("gpu", "mufu.ex2", 40.0),
        ("cpu", "torch.fexp_u20", 1.0),
        ("cpu", "glibc.expf", 40.0),
    ],
)
def test_every_function_in_a_spec(unit: str, score: str, spread: float) -> None:
    """With wide scores results become subnormal: the exact carrier runs."""
    lines = "\n".join(
        f'x{i} = "{name}({x}, s)"' if name == "div.full" else f'x{i} = "{name}({x})"'
        for i, (name, x) in enumerate(LINES.items())
        if FUNCTIONS[name].unit == unit
    )
    if unit == "gpu":
        lines += '\ny0 = "f32.ftz.mufu.rcp(m)"\ny1 = "f32.ftz.div.full(m, s)"\ny2 = "f32.ftz.cuda.expf(m)"'
        check(spec(score, lines), spread)
    else:
        run = engine(cpu_spec(score, lines), CPU, problem_of(cpu_spec(score, lines), spread))
        assert_engine_is_oracle(run, [(0, 0), (1, 1)])


@pytest.mark.slow
def test_functions_in_a_spec() -> None:
    """As above, with fewer functions, which compile in less time."""
    check(spec("mufu.ex2", 'x = "f32.ftz.mufu.ex2(m)"'), 40.0)


def check(s: Spec, spread: float) -> None:
    run = engine(s, gpu(2), problem_of(s, spread))
    assert_engine_is_oracle(run, [(0, 0), (1, 1)])
    assert run.exact_path == (spread > 1)


def test_what_the_hardware_gives_for_negative_numbers_is_not_known() -> None:
    s = parse_spec(HEADER + '[row]\noutput = "mufu.rsq(sum(1 * v, seq()))"\n')
    run = engine(s, gpu(2), problem(s, q=np.ones((2, 4)), k=np.ones((8, 2, 4)), v=-np.ones((8, 2, 3))))
    with pytest.raises(UnsupportedError, match=r"a function of the hardware is not known"):
        run.evaluate(["output"])
    with pytest.raises(UnsupportedError, match=r"mufu\.rsq of -8\.0: .*not known"):
        judge(run.program, run.plan, run.problem, run.scalars, ["output"], [(0, 0)])


def test_tanh_approx_is_refused_by_both() -> None:
    s = spec("exp", 'x = "tanh.approx(m)"')
    with pytest.raises(UnsupportedError, match=r"tanh\.approx"):
        engine(s, gpu(2), problem_of(s)).evaluate(["x"])
    run = Run.start(s, gpu(2), problem_of(s), {}, {}, "oracle")
    with pytest.raises(UnsupportedError, match=r"tanh\.approx"):
        run.evaluate(["x"])


def test_formats_that_a_function_does_not_have_are_refused_with_the_place() -> None:
    s = parse_spec(HEADER.replace('"f32"', '"f64"') + '[row]\noutput = "mufu.ex2(sum(1 * v, seq()))"\n')
    arrays = {"q": np.ones((2, 4)), "k": np.ones((8, 2, 4)), "v": np.ones((8, 2, 3))}
    with pytest.raises(
        UnsupportedError, match=r"<text>:10:11: output: mufu\.ex2 in f64: the function exists in f32"
    ):
        engine(s, gpu(2), problem(s, **arrays))
    run = Run.start(s, gpu(2), problem(s, **arrays), {}, {}, "oracle")
    with pytest.raises(UnsupportedError, match=r"<text>:10:11: mufu\.ex2 in f64: the function exists in f32"):
        run.evaluate(["output"])


# -- language ---------------------------------------------------------------------------------------------


def test_a_function_may_name_the_form_that_flushes() -> None:
    node = parse_expr("f32.ftz.mufu.ex2(x)")
    assert isinstance(node, Op)
    assert (node.op, str(node.format)) == ("mufu.ex2", "f32.ftz")
    assert isinstance(node.args[0], Name)
    with pytest.raises(SpecError, match="takes 2 argument"):
        parse_expr("f32.ftz.div.full(a)")
    with pytest.raises(SpecError, match=r"'glibc\.expf' cannot name its format"):
        parse_expr("f32.ftz.glibc.expf(x)")


def test_every_special_function_has_a_real_meaning() -> None:
    balls, rational = BallArithmetic(), RationalArithmetic()
    assert {*SPECIAL, *REFUSED} <= balls.table.keys()
    for name in SPECIAL:
        if FUNCTIONS[name].real == "exp(a)":
            assert rational.table[name](Log(Fraction(7))) == 7, name
