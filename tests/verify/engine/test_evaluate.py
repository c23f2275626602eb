"""The array walker against the oracle on small specs: the constructs that the library does not use, one by one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from specs import Spec, load_platform, parse_spec
from specs.errors import SpecError, UnsupportedError
from tests.verify.laws import assert_engine_is_oracle, engine, gpu, problem
from tests.verify.small import HEADER

SCORE = '[token]\nscore = "select(visible, sum(q * k, seq()) * scale, -inf)"\n'
PAIR = [(0, 0), (1, 1)]


def spec(body: str, compute: str = "f32") -> Spec:
    return parse_spec(HEADER.replace('"f32"', f'"{compute}"') + body)


def check(
    body: str, kv_len: int, compute: str = "f32", *, spread: int = 0, sms: int = 2, depth: int = 5
) -> None:
    """Two KV heads with one causal query of two heads each; every site, all bits."""
    s = spec(body, compute)
    rng = np.random.default_rng(kv_len)

    def numbers(*shape: int) -> np.ndarray[Any, Any]:
        return rng.normal(0, 1, shape) * 2.0 ** rng.integers(-spread, spread + 1, shape)

    arrays = {"q": numbers(4, depth), "k": numbers(kv_len, 2, depth), "v": numbers(kv_len, 2, 3)}
    assert_engine_is_oracle(engine(s, gpu(sms), problem(s, **arrays, scale=0.7)), PAIR)


SCORE_ONLY = SCORE + '[row]\noutput = "sum(score * v, seq())"\n'
SOFTMAX = """
[GROUP]
top    = "max(score)"
weight = "exp(score - top)"
norm   = "sum(weight, seq())"
value  = "sum(bf16(weight) * v, seq())"
[row]
most   = "max(top)"
w      = "exp(top - most)"
total  = "sum(norm * w, seq())"
output = "bf16(sum(value * w, seq()) / total)"
lse    = "most + log(total)"
"""


@pytest.mark.parametrize(
    "levels",
    [
        'g = "deal(3, unit=1)"',  # single tokens: no two neighbours in a group
        pytest.param('g = "deal(3, unit=5)"', marks=pytest.mark.slow),
        pytest.param('g = "pieces(4, unit=7)"', marks=pytest.mark.slow),
        pytest.param('g = "pieces(4, unit=7, of=70)"', marks=pytest.mark.slow),
        pytest.param('g = "tiles(11, desc)"', marks=pytest.mark.slow),
        pytest.param('g = "pieces(2, unit=20)"\nt = "tiles(8, desc)"', marks=pytest.mark.slow),
        'g = "deal(2, unit=8)"\nt = "deal(2, unit=3)"\nu = "tiles(2)"',
        pytest.param('g = "tiles(1)"', marks=pytest.mark.slow),
    ],
)
def test_any_partition(levels: str) -> None:
    """On demand: rules that others here or flash_attention_2 in the laws (``desc``) have, with other numbers or inside
    another level.
    """
    check(f"[levels]\n{levels}\n{SCORE}{SOFTMAX.replace('GROUP', 'g')}", 53)


@pytest.mark.slow
def test_any_partition_in_f64() -> None:
    check(
        f'[levels]\ng = "deal(2, unit=8)"\nt = "deal(2, unit=3)"\n{SCORE}{SOFTMAX.replace("GROUP", "g")}',
        53,
        "f64",
    )


def test_pieces_that_are_kept_without_tokens() -> None:
    """An empty piece that is kept has a maximum of nothing and sums of nothing."""
    body = SOFTMAX.replace("GROUP", "g").replace(
        "exp(score - top)", "exp(score - select(top == -inf, 0, top))"
    )
    check(f'[levels]\ng = "pieces(5, unit=16, empty=keep)"\n{SCORE}{body}', 37)


CARRIED = """
[levels]
split = "pieces(3, unit=12)"
tile  = "tiles(4)"
[state.split]
m   = "-inf"
l   = "0"
acc = "0"
[token]
score = "select(visible, sum(q * k, seq()) * scale, -inf)"
[tile]
m      = "max(prev(m), max(score))"
weight = "exp(score - m)"
alpha  = "exp(prev(m) - m)"
l      = "LINE_L"
acc    = "LINE_ACC"
[split]
partial = "last(acc) / last(l)"
level   = "last(m) + log(last(l))"
[row]
most   = "max(level)"
w      = "exp(level - most)"
total  = "sum(w, seq())"
output = "f16(dot(w, partial, seq(fma)) / total)"
lse    = "most + log(total)"
"""


@pytest.mark.parametrize(
    ("compute", "l_line", "acc_line"),
    [
        pytest.param(
            "f32",
            "prev(l) * alpha + sum(weight, seq())",
            "prev(acc) * alpha + sum(weight * v, seq())",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "f32",
            "fma(prev(l), alpha, sum(weight, seq()))",
            "fma(prev(acc), alpha, dot(weight, v, seq(fma)))",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "f32",
            "sum(weight, seq(), start=prev(l) * alpha)",
            "dot(bf16(weight), v, seq(fma), start=prev(acc) * alpha)",
            marks=pytest.mark.slow,
        ),
        (
            "f32",
            "sum(f16(weight), seq(), start=prev(l) * alpha)",
            "sum(f16(weight) * v, seq(), start=prev(acc) * alpha)",
        ),
    ],
)
def test_state_of_a_split(compute: str, l_line: str, acc_line: str) -> None:
    """On demand: the plain lines, which `test_what_no_state_reaches_and_what_it_does` has, too, other starts, and
    fused ones: `test_operations` and `test_sums_in_a_narrow_format` fuse.
    """
    check(CARRIED.replace("LINE_L", l_line).replace("LINE_ACC", acc_line), 71, compute)


OPERATIONS = [
    "exp2(score)",
    "rcp(score)",
    "sqrt(abs(score))",
    "min(score, 0.25, -score)",
    "max(score, -0.1)",
    "fma(score, score, -score)",
    "f16(score) - bf16(score)",
    "bf16.add(score, 0.1)",
    "f16.mul(score, score)",
    "f16.fma(score, score, score)",
    "e4m3fn(score) + e5m2(score)",
    "bf16.rz(score)",
    "e4m3fn.sat(score * 1000)",
    "select(score < 0 and not isnan(score) or score >= 1, score, 1)",
    "(score * 3.1) * 0.3 + (score + 0.1) - 0.1",
    "score / 3 / scale",
    "score / score",
    "log(abs(score)) * bits(PATTERN)",
]


@pytest.mark.parametrize(
    ("compute", "pattern"),
    [("f32", "0x3FB8AA3B"), pytest.param("f64", "0x3FF71547652B82FE", marks=pytest.mark.slow)],
)
@pytest.mark.parametrize("spread", [2, 40])
def test_operations(compute: str, pattern: str, spread: int) -> None:
    """One site for each; where f32 products are subnormal, on the exact path.

    On demand in f64, whose operations `test_primitives` and `test_primitives_functions` judge one by one, and whose
    programs are those of dense and tiled in the laws.
    """
    body = '[levels]\ng = "tiles(16)"\n[token]\nscore = "sum(q * k, seq()) * scale"\n'
    body += "".join(f'x{i} = "{line}"\n' for i, line in enumerate(OPERATIONS)).replace("PATTERN", pattern)
    check(body + '[row]\noutput = "sum(x0 * v, seq())"\n', 40, compute, spread=spread)


def test_sums_in_a_narrow_format() -> None:
    body = (
        '[levels]\ng = "tiles(16)"\n[token]\nscore = "sum(q * k, seq()) * scale"\n'
        '[g]\npart = "bf16.sum(bf16(score), seq())"\nvalue = "bf16.sum(bf16(score) * v, seq())"\n'
        'fused = "bf16.dot(bf16(score), v, seq(fma))"\n'
        '[row]\noutput = "bf16.sum(value * part + fused, seq())"\n'
    )
    check(body, 40)


def test_a_sum_of_one_term_starts_at_plus_zero() -> None:
    """0 + -0 is +0, also where the compiler knows that there is one term only."""
    body = (
        '[levels]\ng = "tiles(64)"\n[token]\nscore = "sum(q * k, seq()) * scale"\n'
        '[g]\nnegative = "-(max(score) - max(score))"\npart = "sum(1 * v, seq())"\n'
        '[row]\ntotal = "sum(negative, seq())"\nproduct = "sum(negative * part, seq())"\n'
        'fused = "dot(negative, 1, seq(fma))"\noutput = "1 / total + 1 / product + 1 / fused"\n'
    )
    check(body, 1)
    check(body, 1, "f64")


@pytest.mark.parametrize("line", ["sum(bf16(score), seq(), start=F)", "sum(bf16(score) * v, seq(), start=F)"])
def test_a_start_finer_than_the_terms(line: str) -> None:
    """1.0000001 x 2**-110 less 2**-110 is subnormal, though no term and no start is."""
    body = (
        '[levels]\ng = "tiles(8)"\n[token]\nscore = "select(visible, sum(q * k, seq()), -inf)"\n'
        f'[g]\npart = "{line.replace("F", repr(float.fromhex("0x1.000002p-110")))}"\n'
        '[row]\noutput = "sum(part, seq()) + sum(0 * v, seq())"\n'
    )
    s = spec(body)
    scores = np.array([[-(2.0**-110)] + [0.0] * 7], np.float32)
    run = engine(s, gpu(2), problem(s, scores=scores, values=np.ones((8, 1))))
    assert_engine_is_oracle(run, [(0, 0)])
    assert run.exact_path
    assert float(run.outward("part").ravel()[0]) == 2.0**-133


@pytest.mark.parametrize("heads", [1, 4])
def test_minus_zeros_of_sixteen_elements_sum_to_plus_zero(heads: int) -> None:
    """One step of the score kernel, in its single and its parallel form."""
    s = spec('[token]\nscore = "sum(q * k, seq())"\n[row]\noutput = "max(score) + sum(0 * v, seq())"\n')
    arrays = {
        "q": np.full((6 * heads, 16), -0.0),
        "k": np.ones((8, heads, 16)),
        "v": np.ones((8, heads, 1)),
    }
    run = engine(s, gpu(2), problem(s, **arrays, scale=1.0))
    assert not np.signbit(run.outward("score").astype(np.float64)).any()


@pytest.mark.parametrize("depth", [*(pytest.param(n, marks=pytest.mark.slow) for n in (1, 16)), 33])
def test_scores_of_any_depth(depth: int) -> None:
    """33 elements are two steps and a rest; a rest alone is what most tests here have, with 4 or 5."""
    lines = (
        "sum(q * k, seq())",
        "dot(q, k, seq(fma))",
        "dot(f32(q) * 1.1, k, seq(fma))",
        "sum((q * 1.1) * k, seq())",
    )
    body = '[levels]\ng = "tiles(16)"\n[token]\n' + "".join(
        f'x{i} = "{line}"\n' for i, line in enumerate(lines)
    )
    check(body + '[row]\noutput = "max(x0) + sum(1 * v, seq())"\n', 20, depth=depth, spread=20)


def test_what_no_state_reaches_and_what_it_does() -> None:
    """Sites of the fold's section that do not depend on prev are evaluated outside of it; readers outside get all."""
    body = CARRIED.replace("LINE_L", "prev(l) * alpha + sum(weight, seq())").replace(
        "LINE_ACC", "prev(acc) * alpha + sum(weight * v, seq())"
    )
    body = body.replace(
        "[split]\n",
        'static = "max(score) * 2"\ndynamic = "m - static"\n[split]\nseen = "sum(dynamic, seq())"\n',
    )
    check(body, 71)


def test_a_state_whose_start_its_line_cannot_hold() -> None:
    """0.1 is no bf16: products of the state with v are not exact, though every later state is a bf16."""
    body = (
        '[levels]\ntile = "tiles(4)"\n[state.row]\na = "0.1"\n[token]\nscore = "sum(q * k, seq()) * scale"\n'
        '[tile]\na = "bf16(prev(a) * 0.5 + sum(bf16(score), seq()))"\nx = "sum(prev(a) * v, seq())"\n'
        'y = "sum(prev(a) * bf16(score), seq())"\n[row]\nz = "sum(last(a) * v, seq())"\n'
        'output = "sum(x, seq()) + z + sum(y, seq())"\n'
    )
    for kv_len in (0, 3, 30):
        check(body, kv_len)


TWO_LOOPS = """
[levels]
split = "pieces(3, unit=12)"
tile  = "tiles(4)"
[state.row]
g = "0"
h = "1"
[state.split]
a = "0"
[token]
score = "select(visible, sum(q * k, seq()) * scale, -inf)"
[tile]
g = "prev(g) * 0.5 + sum(bf16(score), seq()) + a"
h = "prev(h) * 0.25 + g"
a = "prev(a) * 0.5 + max(score)"
[row]
output = "(last(g) + last(h)) * sum(1 * v, seq())"
"""


def test_a_loop_that_needs_the_result_of_another() -> None:
    check(TWO_LOOPS.replace("select(visible, sum(q * k, seq()) * scale, -inf)", "sum(q * k, seq())"), 71)


def test_loops_that_need_each_other_are_refused() -> None:
    s = spec(TWO_LOOPS.replace("prev(a) * 0.5", "prev(a) * prev(h)"))
    arrays = {"q": np.zeros((2, 4)), "k": np.zeros((8, 2, 4)), "v": np.zeros((8, 2, 3))}
    with pytest.raises(
        UnsupportedError, match=r"<text>:14:6: the states a, g, h depend on each other across scopes"
    ):
        engine(s, gpu(2), problem(s, **arrays))


@pytest.mark.parametrize("small", ["q", "k", "v"])
def test_a_subnormal_factor_times_a_large_one(small: str) -> None:
    """2**-130 is a bf16 subnormal, 2**-130 * 2**120 is not: the factor must not be flushed."""
    s = spec('[token]\nscore = "sum(q * k, seq())"\n[row]\noutput = "sum(bf16(score) * v, seq())"\n')
    large = 2.0**60 if small == "v" else 2.0**120
    arrays: dict[str, Any] = {
        "q": np.full((2, 4), large),
        "k": np.full((8, 2, 4), large),
        "v": np.ones((8, 2, 3)),
    }
    arrays[small] = np.full(arrays[small].shape, 2.0**-130)
    run = engine(s, gpu(2), problem(s, **arrays))
    assert_engine_is_oracle(run, [(0, 0), (1, 0)])
    assert float(run.outward("output")[0, 0]) != 0
    assert run.exact_path


REFUSED = {
    '[token]\nscore = "sum(q * k, seq())"\n[row]\nx = "tanh.approx(max(score))"\n': (
        r"tanh\.approx\(\)",
        r"<text>:12:6",
    ),
    '[token]\nscore = "sum(q * k, seq())"\n[row]\nx = "sum(score, any())"\n': (
        r"tree any\(\)",
        r"<text>:12:6",
    ),
    '[token]\nscore = "sum(q * k, seq())"\n[row]\nx = "at(score, token=0)"\n': (
        r"at\(\) along tokens",
        r"<text>:12:6",
    ),
    '[row]\nx = "max(v)"\n': ("v outside a sum", r"<text>:10:10"),
    '[token]\nscore = "sum(q * k, seq())"\nx = "1 + f32.rz.exp(score)"\n': (
        r"exp\(\) rounded toward zero, in f32\.rz",
        r"<text>:11:10",
    ),
    '[token]\nscore = "sum(q * k, seq())"\nx = "log2(score)"\n': (r"log2\(\)", r"<text>:11:6"),
    '[token]\nscore = "sum(q * k, seq())"\n[row]\nx = "sum(bf16(score * v), seq())"\n': (
        r"a sum of an expression of both v and score",
        r"<text>:12:6",
    ),
    '[token]\nscore = "sum(q * k, seq())"\n[row]\nx = "sum(v * score + v, seq())"\n': (
        r"a sum of an expression of both v and score",
        r"<text>:12:6",
    ),
    '[token]\nscore = "sum(q * k, seq())"\n[row]\nx = "sum(score * (v - max(score)), seq())"\n': (
        r"a sum of an expression of v and of another reduction",
        r"<text>:12:6",
    ),
}


@pytest.mark.parametrize("body", REFUSED)
def test_what_is_not_evaluated_is_refused_with_its_place(body: str) -> None:
    cause, place = REFUSED[body]
    row = "" if "[row]" in body else "[row]\n"
    s = spec(body + row + 'output = "sum(1 * v, seq())"\n')
    arrays = {"q": np.zeros((2, 4)), "k": np.zeros((8, 2, 4)), "v": np.zeros((8, 2, 3))}
    with pytest.raises(UnsupportedError, match=rf"{place}: .*{cause}.*\n.*oracle"):
        engine(s, gpu(2), problem(s, **arrays))


@pytest.mark.parametrize("name", ["q", "k", "v"])
def test_an_input_wider_than_the_compute_format_is_refused(name: str) -> None:
    s = parse_spec(HEADER.replace(f'{name} = "bf16"', f'{name} = "f64"') + SCORE_ONLY)
    arrays = {"q": np.zeros((2, 4)), "k": np.zeros((8, 2, 4)), "v": np.zeros((8, 2, 3))}
    with pytest.raises(
        UnsupportedError, match=rf"numbers\.inputs: {name} comes in f64, which f32 does not hold"
    ):
        engine(s, gpu(2), problem(s, **arrays))


def test_a_compute_format_that_flushes() -> None:
    """2**-120 / 2**10 is subnormal and becomes zero; without .ftz it stays."""
    arrays = {"q": np.zeros((2, 4)), "k": np.zeros((8, 2, 4)), "v": np.full((8, 2, 3), 2.0**-120)}
    for compute, want in (("f32.ftz", 0.0), ("f32", 2.0**-127)):
        s = spec('[row]\nsmall = "sum(1 * v, seq()) * 0.0009765625"\noutput = "small"\n', compute)
        run = engine(s, gpu(2), problem(s, **arrays))
        assert_engine_is_oracle(run, [(0, 0)])
        assert float(run.outward("small")[0, 0]) == want


@pytest.mark.parametrize("compute", ["f64.ftz", "bf16"])
def test_a_compute_format_without_a_carrier_is_refused(compute: str) -> None:
    s = spec('[row]\noutput = "sum(1 * v, seq())"\n', compute)
    arrays = {"q": np.zeros((2, 4)), "k": np.zeros((8, 2, 4)), "v": np.zeros((8, 2, 3))}
    with pytest.raises(UnsupportedError, match=rf"numbers\.compute: .*{compute}"):
        engine(s, gpu(2), problem(s, **arrays))


VIEWS = """
[levels]
g = "tiles(4)"
c = "view(2, pos(token) % 2)"
[state.row]
l = "0"
[g]
odd = "sum(score, seq(), by=c, first=it * 2)"
l = "sum(odd, seq()) + prev(l) * 0.5"
total = "sum(v, pairwise())"
mine = "select(owns(g) and pos(g) > 0, at(odd, c=1), 0)"
[row]
output = "last(l) + at(mine, g=1) + at(total, g=pos(dim) % 2)"
"""


def test_views_gathers_and_positions() -> None:
    s = spec('[token]\nscore = "sum(q * k, seq())"\n' + VIEWS)
    rng = np.random.default_rng(8)
    arrays = {
        "q": rng.normal(size=(2, 4)),
        "k": rng.normal(size=(11, 2, 4)),
        "v": rng.normal(size=(11, 2, 3)),
    }
    assert_engine_is_oracle(engine(s, gpu(2), problem(s, **arrays)), [(0, 0), (1, 0)])


RAGGED = """
[levels]
g = "pieces(3, unit=5)"
t = "tiles(4)"
c = "view(2, pos(token) % 2)"
[token]
score = "sum(q * k, seq())"
[g]
pair = "sum(score, pairwise())"
lane = "sum(score, lanes(3, seq(), butterfly(2, 1)), by=c)"
head = "sum(score, seq(), by=c, first=it * 3)"
row4 = "dot(score, v, chunks(4, seq(fma), seq()))"
[row]
both = "sum(lane + head, seq(), over=(g, c))"
output = "sum(row4, pairwise()) + sum(pair, seq()) + both"
"""


def test_terms_of_ragged_tiles_close_up() -> None:
    """Pieces of 5 tokens in tiles of 4: the terms of a tree are those that are there, not the slots."""
    s = spec(RAGGED)
    rng = np.random.default_rng(9)
    arrays = {
        "q": rng.normal(size=(2, 4)),
        "k": rng.normal(size=(13, 2, 4)),
        "v": rng.normal(size=(13, 2, 3)),
    }
    assert_engine_is_oracle(engine(s, gpu(2), problem(s, **arrays)), [(0, 0), (1, 0)])


@pytest.mark.parametrize("lane", ["7", "0 - 1", "pos(dim) + 2"])
def test_a_gather_past_the_end_is_refused(lane: str) -> None:
    body = VIEWS.replace("at(odd, c=1), 0)", "at(odd, c=0), 0)").replace(
        "at(mine, g=1)", f"at(at(odd, g=0), c={lane})"
    )
    s = spec('[token]\nscore = "sum(q * k, seq())"\n' + body)
    arrays = {"q": np.ones((2, 4)), "k": np.ones((11, 2, 4)), "v": np.ones((11, 2, 3))}
    run = engine(s, gpu(2), problem(s, **arrays))
    with pytest.raises(SpecError, match=r"at\(c=.* reads where no value stands\n.*0 to 1"):
        run.evaluate(["output"])


HOLES = """
[levels]
g = "deal(5, unit=4, skip=3)"
[token]
score = "sum(q * k, seq())"
[g]
part = "sum(score * v, seq())"
[row]
output = "sum(part, chunks(2, seq(), butterfly())) + sum(part, pairwise())"
"""


@pytest.mark.parametrize("kv_len", [15, *(pytest.param(n, marks=pytest.mark.slow) for n in (18, 20, 27))])
def test_pieces_that_own_nothing_leave_no_gap(kv_len: int) -> None:
    """Units are dealt from the fourth piece on, so that with few of them the first pieces may be missing."""
    s = spec(HOLES)
    rng = np.random.default_rng(kv_len)
    arrays = {"q": rng.normal(size=(2, 4)), "k": rng.normal(size=(kv_len, 2, 4))}
    arrays["v"] = rng.normal(size=(kv_len, 2, 3))
    assert_engine_is_oracle(engine(s, gpu(2), problem(s, **arrays)), [(0, 0), (1, 0)])


def test_a_tensor_core_that_the_platform_lacks_is_refused_at_its_line() -> None:
    s = spec('[token]\nscore = "dot(q, k, mma(16))"\n[row]\noutput = "sum(score * v, seq())"\n')
    arrays = {"q": np.zeros((2, 16)), "k": np.zeros((8, 2, 16)), "v": np.zeros((8, 2, 3))}
    with pytest.raises(UnsupportedError, match=r"<text>:10:10: no dot product mma of bf16"):
        engine(s, load_platform("t4"), problem(s, **arrays))


def test_an_exact_sum_inside_another_tree_is_refused_at_its_line() -> None:
    s = spec(
        '[token]\nscore = "sum(q * k, seq())"\n[row]\noutput = "sum(score * v, chunks(4, exact(), seq()))"\n'
    )
    arrays = {"q": np.zeros((2, 4)), "k": np.zeros((8, 2, 4)), "v": np.zeros((8, 2, 3))}
    with pytest.raises(UnsupportedError, match=r"<text>:12:11: output: the tree exact\(\) inside another"):
        engine(s, gpu(2), problem(s, **arrays))
