"""From a spec and a context to a program: variants, integers, options, folding."""

from __future__ import annotations

import time
from typing import Any

import pytest

from specs import load_spec, parse_spec
from specs.bind import bind
from specs.context import CONTEXT, make_context
from specs.errors import InputError, SpecError
from specs.formats import BASES
from specs.nodes import Num
from specs.program import Program

HEADER = """schema = 1
name = "test.small"
status = "read"
summary = "a test"
[numbers]
compute = "f32"
inputs = { q = "bf16", k = "bf16", v = "bf16" }
"""
ROW = '[row]\noutput = "sum(v, seq())"\n'


def bound(body: str, options: dict[str, Any] | None = None, **context: Any) -> Program:
    values = make_context({"kv_len": 20, "sm_count": 4, "compute_capability": 90, **context})
    return bind(parse_spec(HEADER + body), values, options)


# -- integers ---------------------------------------------------------------------------------------------


def test_let_is_read_in_any_order_and_only_where_it_is_used() -> None:
    p = bound('[let]\na = "b * 2"\nb = "kv_len // 3"\n[levels]\ng = "tiles(a)"\n' + ROW)
    assert p.integers["a"] == 12
    assert p.levels[0].rule.args == (Num("12"),)


@pytest.mark.parametrize(
    ("let", "cause"),
    [
        ('a = "a + 1"', "<text>:9:6: 'a' depends on itself"),
        ('a = "b"\nb = "c"\nc = "a"', "depends on itself"),
        ('a = "nope"', "<text>:9:6: unknown name 'nope'"),
        ('a = "kv_length"', "did you mean 'kv_len'"),
        ('a = "1.5"', "<text>:9:6: 1.5 is not an integer"),
    ],
)
def test_let_that_is_refused(let: str, cause: str) -> None:
    with pytest.raises(SpecError, match=cause):
        bound(f'[let]\n{let}\n[levels]\ng = "tiles(a)"\n{ROW}')


def test_a_let_that_doubles_itself_forty_times_is_read_once() -> None:
    """Each line uses the next one twice: 2**40 readings if nothing were kept."""
    lines = [f'a{i} = "a{i + 1} ^ a{i + 1} + 1 - 1"' for i in range(40)] + ['a40 = "1"']
    before = time.perf_counter()
    assert bound("[let]\n" + "\n".join(lines) + "\n" + ROW).integers["a39"] == 0
    assert time.perf_counter() - before < 5


@pytest.mark.parametrize("table", ["let", "row"])
def test_a_chain_too_long_to_follow_is_refused(table: str) -> None:
    lines = "\n".join(f'a{i} = "a{i + 1} + 1"' for i in range(450)) + '\na450 = "1"\n'
    body = f"[let]\n{lines}[row]\n" if table == "let" else f"[row]\n{lines}"
    with pytest.raises(SpecError, match="refer to each other too deeply"):
        bound(body + 'output = "sum(v, seq()) * a0"\n')


def test_integers_past_the_bound_are_told_their_line() -> None:
    nines = "9" * 40
    with pytest.raises(SpecError, match=r"<text>:9:6: integer of \d+ bits"):
        bound(f'[row]\nx = "{nines} * {nines}"\noutput = "sum(v, seq())"\n')


# -- options ----------------------------------------------------------------------------------------------

OPTIONS = """
[options]
on = true
width = 4
factor = 0.5
[levels]
g = "tiles(width)"
[row]
x = "select(on, 1.5, 2.5)"
output = "sum(v, seq()) * factor"
"""


def test_options_choose_and_fold() -> None:
    p = bound(OPTIONS)
    assert p.sites["x"].expr == Num("1.5")
    q = bound(OPTIONS, {"on": False, "width": 8, "factor": 0.25})
    assert q.sites["x"].expr == Num("2.5")
    assert q.levels[0].rule.args == (Num("8"),)
    assert (q.integers["on"], q.integers["width"], q.integers["factor"]) == (False, 8, 0.25)


@pytest.mark.parametrize(
    ("given", "cause"),
    [
        ({"no": True}, "no option 'no'\n.*on"),
        ({"on": 1}, "on = 1 is not a bool"),
        ({"width": 4.0}, "width = 4.0 is not a int"),
        ({"width": 0}, r"tiles\(\) with 0"),
    ],
)
def test_options_that_are_refused(given: dict[str, Any], cause: str) -> None:
    with pytest.raises(SpecError, match=cause):
        bound(OPTIONS, given)


# -- variants ---------------------------------------------------------------------------------------------

VARIANTS = """
[let]
n = "1"
[levels]
g = "tiles(n * 4)"
[g]
x = "sum(v, seq())"
y = "x * 2"
[row]
output = "sum(x, seq())"
[[variant]]
when = "kv_len > 100"
drop = ["y"]
[variant.let]
n = "3"
[variant.g]
x = "max(v)"
z = "x + 1"
[[variant]]
when = "n == 3"
[variant.row]
output = "sum(x, pairwise())"
"""


def test_variants_apply_in_the_order_of_the_file() -> None:
    """The second sees the integers of the first."""
    short, long = bound(VARIANTS), bound(VARIANTS, kv_len=101)
    assert list(short.sites) == ["x", "y", "output"]
    assert list(long.sites) == ["x", "z", "output"]
    assert short.levels[0].rule.args == (Num("4"),)
    assert long.levels[0].rule.args == (Num("12"),)
    assert "pairwise" in str(long.sites["output"].expr)
    assert "pairwise" not in str(short.sites["output"].expr)


def test_platforms_choose_variants_of_the_library() -> None:
    spec = load_spec("vllm_triton.decode_3d")

    def tree(capability: int, version: int = 308) -> str:
        context = {"kv_len": 300, "sm_count": 132, "compute_capability": capability, "head_dim": 128}
        full = make_context({**context, "triton_version": version})
        return str(bind(spec, full, {"last_writer": 1}).sites["num"].expr)

    assert len({tree(90), tree(100), tree(90, 307)}) == 3
    assert tree(90) == tree(120)


# -- formats, levels, views -------------------------------------------------------------------------------


def test_formats_in_which_inputs_come_replace_those_of_the_spec() -> None:
    spec = parse_spec(HEADER + '[token]\nscore = "sum(q * k, seq())"\n' + ROW)
    context = make_context({"kv_len": 20, "sm_count": 4, "compute_capability": 90})
    p = bind(spec, context, None, {"q": BASES["f16"]})
    assert [str(p.inputs[n]) for n in "qkv"] == ["f16", "bf16", "bf16"]


@pytest.mark.parametrize(
    ("levels", "cause"),
    [
        ('g = "view(4, 3)"', "must colour one axis"),
        ('t = "tiles(4)"\ng = "view(4, pos(t) + pos(token))"', "must colour one axis"),
        ('g = "view(1099511627776, pos(token))"', "1099511627776 colours; the limit is 4096"),
        ('g = "view(fork, pos(token))"', "dao colours"),
    ],
)
def test_views_that_are_refused(levels: str, cause: str) -> None:
    with pytest.raises(SpecError, match=cause):
        bound(f"[levels]\n{levels}\n{ROW}")


def test_without_tokens_a_formula_may_be_zero() -> None:
    body = '[levels]\ng = "pieces(ceildiv(kv_len, 4), unit=4)"\n' + ROW
    assert bound(body, kv_len=0).levels[0].rule.args == (Num("0"),)
    assert bound(body, kv_len=9).levels[0].rule.args == (Num("3"),)


# -- context ----------------------------------------------------------------------------------------------


def test_the_context_has_every_name_and_defaults_from_others() -> None:
    context = make_context(
        {"kv_len": 50, "sm_count": 4, "compute_capability": 90, "q_heads": 6, "kv_heads": 3}
    )
    assert context.keys() == CONTEXT.keys()
    assert (context["max_kv_len"], context["kv_capacity"], context["fork"]) == (50, 50, "dao")
    for name, variable in CONTEXT.items():
        assert variable.doc, name


def test_a_required_name_says_what_it_is() -> None:
    with pytest.raises(
        InputError, match=r"sm_count is not given\n  give sm_count: streaming multiprocessors"
    ):
        make_context({"kv_len": 1})
