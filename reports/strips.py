"""Who owns which tokens, as inline SVG: one strip per partition, shaded by group, and group 0 beneath it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from markupsafe import Markup, escape

from reports.contract import Ownership, TokenRun
from verify.words import plural

WIDTH, BAR, FIRST = 1000.0, 22.0, 7.0
SHADES = 4


@dataclass(frozen=True, slots=True)
class Strip:
    """One drawn partition: the cells that share it, its groups, and how tokens are visited."""

    cells: tuple[str, ...]
    rule: str
    groups: int
    span: tuple[int, int]
    visiting: str
    svg: Markup


def strips(every: tuple[Ownership, ...]) -> list[Strip]:
    """The partitions of a study; cells that divide alike share one strip."""
    alike: dict[tuple[object, ...], list[Ownership]] = defaultdict(list)
    for one in every:
        alike[one.kv_len, one.groups].append(one)
    return [_strip(same) for same in alike.values()]


def _strip(same: list[Ownership]) -> Strip:
    one = same[0]
    sizes = [sum(run.count for run in group) for group in one.groups] or [0]
    names = tuple(o.cell for o in same)
    span = (min(sizes), max(sizes))
    spanned = str(span[0]) if span[0] == span[1] else f"{span[0]} to {span[1]}"
    label = f"{', '.join(names)}: {plural(len(one.groups), 'group')} of {spanned} tokens"
    return Strip(names, one.rule, len(one.groups), span, visiting(one.groups), _draw(one, label))


def visiting(groups: tuple[tuple[TokenRun, ...], ...]) -> str:
    """How the tokens of a group are visited, in words."""
    backwards = any(b.start < a.start for group in groups for a, b in pairwise(group))
    scattered = any(
        b.start != a.start + a.count and a.start != b.start + b.count
        for group in groups
        for a, b in pairwise(group)
    )
    if scattered:
        return "scattered over the sequence"
    return "contiguous, last block first" if backwards else "contiguous, in order"


def _draw(one: Ownership, label: str) -> Markup:
    scale = WIDTH / max(1, one.kv_len)
    shades: list[list[str]] = [[] for _ in range(SHADES)]
    for index, group in enumerate(one.groups):
        shades[index % SHADES].extend(_rect(run, scale, 0.0, BAR) for run in _merged(group))
    first = [_rect(run, scale, BAR + 3, FIRST) for run in _merged(one.groups[0])] if one.groups else []
    bars = "".join(f'<path class="g{i}" d="{"".join(parts)}"/>' for i, parts in enumerate(shades) if parts)
    return Markup(
        f'<svg class="strip" viewBox="0 0 {WIDTH:.0f} {BAR + FIRST + 3:.0f}" preserveAspectRatio="none" '
        f'role="img" aria-label="{escape(label)}">{bars}<path class="first" d="{"".join(first)}"/></svg>'
    )


def _merged(group: tuple[TokenRun, ...]) -> Iterator[TokenRun]:
    """The tokens of a group as few runs as possible; the order of visiting is not drawn."""
    held: TokenRun | None = None
    for run in sorted(group, key=lambda r: r.start):
        if held is not None and held.start + held.count == run.start:
            held = TokenRun(start=held.start, count=held.count + run.count)
        else:
            if held is not None:
                yield held
            held = run
    if held is not None:
        yield held


def _rect(run: TokenRun, scale: float, top: float, height: float) -> str:
    width = max(0.4, run.count * scale)
    return f"M{run.start * scale:.2f} {top:g}h{width:.2f}v{height:g}h-{width:.2f}z"
