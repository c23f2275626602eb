"""Axes, kinds and formats: what is inferred from the text of a line, and what is refused where."""

from __future__ import annotations

from typing import Any

import pytest

from specs import parse_spec
from specs.bind import bind
from specs.context import make_context
from specs.errors import SpecError
from specs.nodes import Last, Prev, Reduce
from specs.program import Program

HEADER = """schema = 1
name = "test.small"
status = "read"
summary = "a test"
[numbers]
compute = "f32"
inputs = { q = "bf16", k = "f16", v = "e4m3fn" }
"""
LEVELS = '[levels]\nsplit = "pieces(3, unit=8)"\ntile = "tiles(4)"\nlane = "view(2, pos(token) % 2)"\n'
OUTPUT = '[row]\noutput = "sum(v, seq())"\n'


def program(body: str, **context: Any) -> Program:
    values = make_context({"kv_len": 20, "sm_count": 4, "compute_capability": 90, **context})
    return bind(parse_spec(HEADER + body), values)


def typed(section: str, line: str, before: str = "") -> tuple[str, list[str], str | None]:
    """Kind, axes in canonical order and format of ``line`` in ``section``."""
    p = program(f'{LEVELS}{before}[{section}]\nx = "{line}"\n{OUTPUT if section != "row" else ""}' + (
        'output = "sum(v, seq())"\n' if section == "row" else ""
    ))  # fmt: skip
    kind = p.sites["x"].type
    return kind.kind, [a for a in p.axes if a in kind.axes], str(kind.format) if kind.format else None


ALL = ["split", "tile", "token"]


@pytest.mark.parametrize(
    ("section", "line", "want"),
    [
        ("token", "sum(q * k, seq())", ("float", ALL, "f32")),
        ("token", "select(visible, sum(q * k, seq()) * scale, -inf)", ("float", ALL, "f32")),
        ("token", "v", ("float", [*ALL, "dim"], "e4m3fn")),
        ("token", "visible", ("bool", ALL, None)),
        ("tile", "sum(v, seq())", ("float", ["split", "tile", "dim"], "f32")),
        ("tile", "max(v)", ("float", ["split", "tile", "dim"], "e4m3fn")),
        ("tile", "bf16.sum(v, seq())", ("float", ["split", "tile", "dim"], "bf16")),
        ("tile", "sum(v, seq(), by=lane)", ("float", ["split", "tile", "lane", "dim"], "f32")),
        ("tile", "sum(sum(v, seq(), by=lane), seq(), over=lane)", ("float", ["split", "tile", "dim"], "f32")),
        ("tile", "bf16(sum(v, seq()))", ("float", ["split", "tile", "dim"], "bf16")),
        ("tile", "max(bf16(sum(v, seq())), 0)", ("float", ["split", "tile", "dim"], "f32")),
        ("tile", "-bf16(sum(v, seq()))", ("float", ["split", "tile", "dim"], "bf16")),
        ("tile", "select(pos(tile) == 0, bf16(max(v)), 0)", ("float", ["split", "tile", "dim"], "bf16")),
        (
            "tile",
            "select(pos(tile) == 0, bf16(max(v)), f16(max(v)))",
            ("float", ["split", "tile", "dim"], "f32"),
        ),
        ("tile", "select(pos(tile) == 0, bf16(max(v)), 0.5)", ("float", ["split", "tile", "dim"], "f32")),
        ("tile", "f16.mul(max(v), 2)", ("float", ["split", "tile", "dim"], "f16")),
        ("tile", "isnan(max(v))", ("bool", ["split", "tile", "dim"], None)),
        ("tile", "pos(split) * 2 + pos(tile) % 2", ("int", ["split", "tile"], None)),
        ("tile", "owns(split) and pos(tile) == 0", ("bool", ["split", "tile"], None)),
        ("split", "sum(v, seq())", ("float", ["split", "dim"], "f32")),
        ("split", "any(max(v) > 0, over=(tile,))", None),
        ("row", "sum(v, seq())", ("float", ["dim"], "f32")),
        ("row", "3", ("float", [], "f32")),
        ("row", "bits(0x3F800000)", ("float", [], "f32")),
        ("row", "at(sum(v, seq(), over=(tile, token)), split=0)", ("float", ["dim"], "f32")),
        ("row", "at(sum(v, seq(), over=(tile, token)), split=pos(dim) % 3)", ("float", ["dim"], "f32")),
    ],
)
def test_types(section: str, line: str, want: tuple[str, list[str], str | None] | None) -> None:
    if want is None:  # the inner reduction leaves nothing for the outer one
        with pytest.raises(SpecError):
            typed(section, line)
    else:
        assert typed(section, line) == want


def test_a_reduction_is_told_what_it_removes() -> None:
    p = program(f'{LEVELS}[split]\nx = "sum(v, seq())"\n[row]\noutput = "sum(x, seq())"\n')
    node = p.sites["x"].expr
    assert isinstance(node, Reduce)
    assert node.over == ("tile", "token")
    outer = p.sites["output"].expr
    assert isinstance(outer, Reduce)
    assert outer.over == ("split",)


STATE = """
[state.split]
m   = "-inf"
acc = "START"
[tile]
m   = "max(prev(m), max(v))"
acc = "LINE"
[split]
x   = "last(acc) * 1"
[row]
output = "max(last(m))"
"""


@pytest.mark.parametrize(
    ("start", "line", "fmt", "axes"),
    [
        ("0", "bf16(prev(acc) + sum(v, seq()))", "bf16", ["split", "dim"]),
        (
            "0.1",
            "bf16(prev(acc) + sum(v, seq()))",
            "f32",
            ["split", "dim"],
        ),  # a start that bf16 does not hold
        ("1", "f16(prev(acc) * 2)", "f16", ["split"]),
        ("0", "prev(acc) + sum(v, seq(), by=lane)", "f32", ["split", "lane", "dim"]),
        ("0", "prev(acc) + 1", "f32", ["split"]),
        ("-inf", "max(prev(acc), bf16(sum(v, seq())))", "f32", ["split", "dim"]),
    ],
)
def test_states_have_the_axes_and_formats_of_their_line_and_start(
    start: str, line: str, fmt: str, axes: list[str]
) -> None:
    """Whatever the order of the lines: prev and last have one type."""
    for flip in (False, True):
        text = STATE.replace("START", start).replace("LINE", line)
        reader = 'seen = "prev(acc) * 1"\n'
        text = (
            text.replace("[tile]\n", "[tile]\n" + reader)
            if flip
            else text.replace("[split]\nx", reader + "[split]\nx")
        )
        p = program(LEVELS + text.replace("max(last(m))", "sum(v, seq())"))
        found = {type(n): t for n, t in p.types.items() if isinstance(n, Prev | Last) and n.state == "acc"}
        assert {str(t.format) for t in found.values()} == {fmt}
        assert [a for a in p.axes if a in found[Last].axes] == axes
        assert found[Prev].axes == found[Last].axes | {"tile"}
        assert p.states["acc"].levels == ("tile",)


def test_a_constant_is_computed_in_f64_and_read_in_the_compute_format() -> None:
    p = program(
        '[constants]\nc = "f64(scale) * 1.4426950408889634"\nd = "f16(c)"\n[row]\noutput = "sum(v, seq()) * c * d"\n'
    )
    assert str(p.sites["c"].type.format) == "f64"
    assert str(p.sites["d"].type.format) == "f16"
    names = {n.id: t for n, t in p.types.items() if type(n).__name__ == "Name" and n.id in "cd"}  # pyright: ignore[reportAttributeAccessIssue]
    assert str(names["d"].format) == "f16"


TILES = '[levels]\ng = "tiles(4)"\n[g]\n'
REFUSED = [
    ("[row]\noutput = \"sum(v, seq()) + nope\"\n", 9, 27, "unknown name 'nope'"),
    ("[row]\noutput = \"v\"\n", 9, 11, "has the axes"),
    ("[levels]\ng = \"tiles(4)\"\n[g]\noutput = \"sum(v, seq())\"\n", 0, 0, "has no site 'output'"),
    ("[row]\noutput = \"sum(v, seq())\"\nlse = \"max(v)\"\n", 10, 8, "lse has the axes"),
    ("[row]\nx = \"y\"\ny = \"x\"\noutput = \"sum(v, seq())\"\n", 9, 6, r"'x' depends on itself \(x -> y -> x\)"),
    ("[row]\nx = \"max(3)\"\noutput = \"sum(v, seq())\"\n", 9, 6, "nothing to reduce"),
    ("[row]\nx = \"sum(v, seq(), over=tokn)\"\noutput = \"sum(v, seq())\"\n", 9, 6, "unknown axis 'tokn'"),
    ("[row]\nx = \"sum(v, seq(), by=lane)\"\noutput = \"sum(v, seq())\"\n", 9, 6, "unknown view 'lane'"),
    ("[row]\nx = \"not 3\"\noutput = \"sum(v, seq())\"\n", 9, None, "a int where a condition is needed"),
    ("[row]\nx = \"select(3, 1, 2)\"\noutput = \"sum(v, seq())\"\n", 9, None, "where a condition is needed"),
    ("[row]\nx = \"exp(1 < 2.5)\"\noutput = \"sum(v, seq())\"\n", 9, None, "a bool where a number is needed"),
    ("[row]\nx = \"max(v) // 2\"\noutput = \"sum(v, seq())\"\n", 9, 6, "'//' is for integers"),
    ("[row]\nx = \"fa2_num_splits(max(v), 1, 1, 1)\"\noutput = \"sum(v, seq())\"\n", 9, 6, "returns an integer"),
    (TILES + "x = \"pos(g) + max(v)\"\n[row]\noutput = \"sum(v, seq())\"\n", 11, 6, "an? int where a number is needed"),
    (TILES + "x = \"pos(g) < max(v)\"\n[row]\noutput = \"sum(v, seq())\"\n", 11, 6, "an integer next to a float"),
    ("[row]\nx = \"pos(g)\"\noutput = \"sum(v, seq())\"\n", 9, 6, "unknown axis 'g'"),
    ("[row]\nx = \"owns(g)\"\noutput = \"sum(v, seq())\"\n", 9, 6, "unknown level 'g'"),
    ("[row]\nx = \"at(max(v), token=0)\"\noutput = \"sum(v, seq())\"\n", 9, 6, "the value has no axis 'token'"),
    ("[row]\nx = \"prev(m)\"\noutput = \"sum(v, seq())\"\n", 9, 6, "unknown state 'm'"),
    ("[row]\nx = \"it\"\noutput = \"sum(v, seq())\"\n", 9, 6, "unknown name 'it'"),
    ("[row]\nx = \"'word'\"\noutput = \"sum(v, seq())\"\n", 9, 6, "'x' is a word"),
]  # fmt: skip


@pytest.mark.parametrize(("body", "line", "column", "cause"), REFUSED, ids=[r[3][:40] for r in REFUSED])
def test_what_is_refused_and_where(body: str, line: int, column: int | None, cause: str) -> None:
    with pytest.raises(SpecError, match=cause) as caught:
        program(body)
    where = f"<text>:{line}:{column or ''}" if line else "<text>"
    assert str(caught.value).startswith(where)
    assert caught.value.remedy


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        (("last(acc) * 1", "prev(acc)"), r"prev\(acc\) outside the fold of acc\n.*last\(acc\)"),
        (("LINE", "last(acc)"), r"last\(acc\) inside the fold of acc\n.*prev\(acc\)"),
        (("last(acc) * 1", "acc"), r"state 'acc' is read outside the level that updates it\n.*last\(acc\)"),
        (("LINE", "prev(acc, split)"), "acc is not folded over 'split'"),
        (
            ("[state.split]", "[state.tile]"),
            r"state 'm' of \[tile\] is updated in \[tile\], which is not inside it",
        ),
        (("[state.split]", "[state.slpit]"), r"slpit.*\n.*split"),
        (('acc = "LINE"', 'cca = "1"'), "acc"),
    ],
)
def test_states_that_are_refused(change: tuple[str, str], cause: str) -> None:
    text = STATE.replace(*change).replace("START", "0").replace("LINE", "prev(acc) + 1")
    with pytest.raises(SpecError, match=cause):
        program(LEVELS + text.replace("max(last(m))", "sum(v, seq())"))
