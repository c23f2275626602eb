"""The sentences of a report: verdicts that say first what a reader wants to know."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from reports.contract import Cell, Distances, Study, Verdict
from reports.formatting import count, percent

WORDS = (
    "no",
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
    "ten",
    "eleven",
    "twelve",
)


def spelled(n: int) -> str:
    """A small number in words."""
    return WORDS[n] if n < len(WORDS) else count(n)


def plural(n: int, word: str) -> str:
    """``one cell``, ``nine cells``."""
    return f"{spelled(n)} {word}" if n == 1 else f"{spelled(n)} {word}s"


def classes(table: Distances) -> list[list[str]]:
    """Cells in classes of equal bits, in the order of the table."""
    out: list[list[int]] = []
    for i in range(len(table.cells)):
        home = next((c for c in out if all(_same(table, i, j) for j in c)), None)
        if home is None:
            out.append([i])
        else:
            home.append(i)
    return [[table.cells[i] for i in c] for c in out]


def _same(table: Distances, i: int, j: int) -> bool:
    return table.changed[i][j] == 0 and table.special[i][j] == 0


def study_verdict(cells: Sequence[Cell], tables: Sequence[Distances]) -> Verdict:
    """What one input shows: how many different results, which cells agree, and how far the others are."""
    done = [c for c in cells if c.status == "computed"]
    if not tables:
        return Verdict(
            headline=f"{plural(len(done), 'cell').capitalize()} computed; formats differ", diverges=False
        )
    last = tables[-1]
    groups = classes(last)
    what = "result" if last.outputs == 1 else "output tensor"
    if len(groups) == 1:
        head = f"All {plural(len(done), 'cell')} give the same {last.format} bits"
    else:
        different = plural(len(groups), f"different {last.format} {what}")
        head = f"{different[:1].upper()}{different[1:]} from {plural(len(done), 'cell')}"
    points = [*_worst(last)]
    if len(tables) > 1:
        wide = classes(tables[0])
        points.append(
            f"Before the last rounding, in {tables[0].format}: {plural(len(wide), f'different {what}')}."
        )
        points += _worst(tables[0])
    agreeing = [g for g in groups if len(g) > 1]
    points += [f"Bit-identical in {last.format}: {' = '.join(g)}." for g in agreeing[:4]]
    points += _accuracy(done)
    return Verdict(headline=head + ".", diverges=len(groups) > 1, points=tuple(points))


def _worst(table: Distances) -> list[str]:
    """The pair that is farthest apart by changed outputs, or by ULP where each cell has one output."""
    n = len(table.cells)
    pairs = [(i, j) for i in range(n) for j in range(i)]
    if not pairs:
        return []
    if table.outputs == 1:
        i, j = max(pairs, key=lambda p: table.maximum[p[0]][p[1]])
        far = table.maximum[i][j]
        return (
            [f"Farthest apart in {table.format}: {table.cells[j]} and {table.cells[i]}, {count(far)} ULP."]
            if far
            else []
        )
    i, j = max(pairs, key=lambda p: table.changed[p[0]][p[1]])
    if not table.changed[i][j]:
        return []
    return [
        f"Most outputs changed in {table.format}: {percent(table.changed[i][j])} of {count(table.outputs)} "
        f"between {table.cells[j]} and {table.cells[i]}, at most {count(table.maximum[i][j])} ULP."
    ]


def _accuracy(done: Sequence[Cell]) -> list[str]:
    """Which cells come closest to the exact answer in the widest format; ties are called ties."""
    by: dict[float, list[str]] = defaultdict(list)
    for c in done:
        if c.readings:
            by[c.readings[0].ulp_mean].append(c.name)
    if len(by) < 2:
        return []
    best = by[min(by)]
    tie = " (a tie of equal errors)" if len(best) > 1 else ""
    return [f"Closest to the exact answer before the last rounding, on this input: {', '.join(best)}{tie}."]


def report_verdict(studies: Sequence[Study]) -> Verdict:
    """The first sentence of the page, and one line for each input."""
    parting = [s for s in studies if s.verdict.diverges]
    cells = max((sum(c.status == "computed" for c in s.cells) for s in studies), default=0)
    if not parting:
        head = f"No divergence: {plural(cells, 'cell')}, the same output bits on every input"
    elif len(parting) == len(studies):
        head = "The backends diverge: same attention, different output bits"
    else:
        head = f"The backends diverge on {spelled(len(parting))} of {plural(len(studies), 'input')}"
    points = tuple(
        f"{s.input.title}: {s.verdict.headline[:1].lower()}{s.verdict.headline[1:]}" for s in studies
    )
    return Verdict(headline=head, diverges=bool(parting), points=points)
