"""What changed between two reports, for a terminal and as Markdown."""

from __future__ import annotations

from collections.abc import Iterator

from reports.formatting import count
from reports.markdown import escape
from reports.runs.difference import Change, Difference
from reports.runs.marks import brief
from reports.runs.text import more
from reports.runs.wording import cut, plain
from verify.words import plural

#: Lines of each part and numbers on a line, in text; rows of a table. The JSON has all.
SHOWN, FEW, ROWS = 12, 4, 100
TITLES = {
    "identity": "who is the same",
    "pairs": "pairs",
    "repeats": "repeats",
    "policy": "policy",
    "prediction": "prediction",
    "health": "health",
    "runs": "runs",
    "geometry": "geometry",
    "settings": "settings and versions",
}


def lines(found: Difference) -> Iterator[str]:
    """The lines: the verdict, both headlines, then the changes by part, the worse first."""
    yield plain(found.verdict)
    yield plain(f"  old: {found.old.headline}")
    yield plain(f"  new: {found.new.headline}")
    for part, title in TITLES.items():
        changes = [x for x in found.changes if x.part == part]
        if changes:
            yield f"{title}{_told(changes)}"
            grouped = _together(changes)
            yield from (cut(f"  {tone:<7} {text}".rstrip()) for tone, text in grouped[:SHOWN])
            yield from more(len(grouped), SHOWN)


def _together(changes: list[Change]) -> list[tuple[str, str]]:
    """One line for all numbers of a pair that went the same way."""
    groups: dict[tuple[str, str], list[Change]] = {}
    for x in changes:
        groups.setdefault((_tone(x), x.who), []).append(x)
    out: list[tuple[str, str]] = []
    for (tone, who), listed in groups.items():
        told = [f"{f'{x.what} ' if x.what else ''}{_brief(x.old)} -> {_brief(x.new)}" for x in listed]
        rest = len(told) - FEW
        text = ", ".join(told[:FEW]) + (f" and {plural(rest, 'more number')}" if rest > 0 else "")
        out.append((tone, f"{who}: {text}"))
    return out


def _tone(x: Change) -> str:
    return "" if x.tone == "changed" else x.tone


def _who(x: Change) -> str:
    return f"{x.who}, {x.what}" if x.what and x.what != x.who else x.who


def _brief(text: str) -> str:
    return brief(text, 100) or "none"


def _told(changes: list[Change]) -> str:
    worse = sum(x.tone == "worse" for x in changes)
    return f", {count(worse)} for the worse" if worse else ""


def markdown(found: Difference) -> str:
    """The same as Markdown, a table for each part."""

    def md(text: str) -> str:
        return escape(plain(text))

    out = [
        "# What changed",
        "",
        f"**{md(found.verdict)}**",
        "",
        f"- old, {md(found.old.place)}, {md(found.old.started)}: {md(found.old.headline)}",
        f"- new, {md(found.new.place)}, {md(found.new.started)}: {md(found.new.headline)}",
        "",
    ]
    for part, title in TITLES.items():
        changes = [x for x in found.changes if x.part == part]
        if not changes:
            continue
        out += [f"## {title[:1].upper()}{title[1:]}", "", "| | what | old | new |", "|---|---|---|---|"]
        out += [
            f"| {_tone(x)} | {md(_who(x))} | {md(x.old or 'none')} | {md(x.new)} |" for x in changes[:ROWS]
        ]
        left = len(changes) - ROWS
        out += ["", *([f"{count(left)} more in `diff.json`.", ""] if left > 0 else [])]
    return "\n".join(out).rstrip() + "\n"
