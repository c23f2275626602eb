"""Layouts by their definition, and composed trees against shuffles that are simulated lane by lane."""

from __future__ import annotations

import re
from functools import reduce

import pytest

from tests.verify.definition.test_trees import TEXT, tree
from verify.definition.trees import build
from verify.lower.brackets import compose
from verify.lower.layout import Spread, definitions, spread
from verify.lower.trees import Found

MMA = "#ttg.nvidia_mma<{versionMajor = 2, versionMinor = 0, warpsPerCTA = [1, 4], instrShape = [16, 8]}>"
ROWS = (
    "#ttg.blocked<{sizePerThread = [1, 4], threadsPerWarp = [1, 32], warpsPerCTA = [4, 1], order = [1, 0]}>"
)


def place(where: Spread, register: int, lane: int, warp: int) -> int:
    """The place along the axis of one register."""
    total = 0
    for number, strides in ((register, where.registers), (lane, where.lanes), (warp, where.warps)):
        for bit, stride in enumerate(strides):
            total ^= stride if number >> bit & 1 else 0
    return total


def test_columns_of_mma_accumulators() -> None:
    """PTX, m16n8k16: c0 and c1 lie at column 2 * (lane % 4) and the next; warps take eight columns each."""
    where = spread(MMA, (16, 16), 1, {})
    assert where is not None
    for lane in range(32):
        for warp in range(4):
            for register in range(2):
                column = 2 * (lane % 4) + register + 8 * (warp % 2)  # 16 columns: two warps are copies
                assert place(where, register, lane, warp) == column
    assert (where.terms, where.masks) == (2, frozenset({1, 2}))


def test_rows_of_mma_accumulators() -> None:
    """c0 and c1 lie in row lane // 4, c2 and c3 eight below."""
    where = spread(MMA, (16, 16), 0, {})
    assert where is not None
    assert [place(where, 0, lane, 3) for lane in range(32)] == [lane // 4 for lane in range(32)]
    assert sorted(s for s in where.registers if s) == [8]


def test_blocked_slices_and_linear_layouts() -> None:
    """Rows: warp + 4 * register // 4. A slice keeps the other axis. A linear layout says its strides itself."""
    where = spread(ROWS, (16, 128), 0, {})
    assert where is not None
    assert (where.terms, where.masks, where.warps) == (4, frozenset(), (1, 2))
    along = spread(f"#ttg.slice<{{dim = 0, parent = {ROWS}}}>", (128,), 0, {})
    assert along is not None
    assert along.lanes == (4, 8, 16, 32, 64)
    named = spread("#b", (16, 128), 0, {"#b": ROWS})
    assert named == where
    linear = "#ttg.linear<{register = [[0, 1], [8, 0]], lane = [[1, 0], [0, 2]], warp = [[2, 0], [4, 0]], block = []}>"
    assert spread(linear, (16, 4), 0, {}) == Spread((0, 8), (1, 0), (2, 4))
    assert spread("#ttg.swizzled_shared<{}>", (16,), 0, {}) is None
    assert definitions(f"#b = {ROWS}\n#loc = loc(unknown)\n") == {"#b": ROWS}


@pytest.mark.parametrize(
    ("where", "lanes", "warps", "expected"),
    [
        (
            Spread((1,), (2, 4, 0), (8, 0)),
            (2, 1),
            (1,),
            "chunks(8, chunks(2, seq(), butterfly(2, 1)), butterfly())",
        ),
        (Spread((0, 4, 8), (0, 0), (1, 2)), (), (2, 1), "lanes(4, seq(), butterfly())"),
        (Spread((), (1, 2, 4, 8), ()), (8, 4, 2, 1), (), "butterfly(8, 4, 2, 1)"),
        (Spread((), (1, 2, 4, 8), ()), (1, 2, 4, 8), (), "butterfly(1, 2, 4, 8)"),
        (Spread((8,), (1,), (2, 4)), (1,), (2, 1), "lanes(8, seq(), butterfly(1, 4, 2))"),
        (Spread((), (4,), (1, 2)), (1,), (2, 1), "lanes(4, butterfly(1), butterfly())"),
        (Spread((1, 4), (2,), ()), (1,), (), None),
        (Spread((1,), (2,), ()), (2,), (), None),
    ],
)
def test_composed_trees_do_what_the_shuffles_do(
    where: Spread, lanes: tuple[int, ...], warps: tuple[int, ...], expected: str | None
) -> None:
    """The tree, evaluated by the language's own definition, and the shuffles, simulated, bracket alike."""
    terms = where.terms
    thread = reduce(lambda a, b: ("+", a, b), range(1, terms), 0) if terms > 1 else 0
    found = Found("sum", thread, terms, "none", lanes, False, warps)
    text, why = compose(found, where)
    assert text == expected
    if expected is None:
        assert why
        return
    size = 1 << sum(1 for part in (where.registers, where.lanes, where.warps) for s in part if s)
    held: dict[tuple[int, int], str] = {}
    for lane in range(32):
        for warp in range(4):
            mine = sorted({place(where, r, lane, warp) for r in range(1 << len(where.registers))})
            own = [m for m in mine if place(where, 0, lane, warp) ^ m in {0, *_spans(where.registers)}]
            held[lane, warp] = reduce(lambda a, b: f"({a}+{b})", [f"x{m}" for m in own])
    for mask in lanes:
        held = {(a, b): f"({held[a, b]}+{held[a ^ mask, b]})" for a, b in held}
    for mask in warps:
        held = {(a, b): f"({held[a, b]}+{held[a, b ^ mask]})" for a, b in held}
    wanted = build(tree(expected), TEXT, pairs=False)([f"x{i}" for i in range(size)], None)
    assert held[0, 0] == re.sub(r"\(0\+(x\d+)\)", r"\1", wanted)  # seq() begins at +0


def _spans(strides: tuple[int, ...]) -> set[int]:
    out = {0}
    for s in strides:
        out |= {o ^ s for o in out}
    return out
