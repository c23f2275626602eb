"""Colours and markers of runs, and the linked triangles that they form: the backends of one GPU, one backend on all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from reports.contract import CentreView, GeometryView
from reports.palette import COLOURS, SYMBOLS
from reports.runs import contract as c
from reports.runs.wording import cut

_LABEL, _HINT = 26, 80
#: What tells runs apart, the first that do give colours and markers: (title, keys of a coordinate).
_ASPECTS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("backend", ("attention_backend", "requested_backend")),
    ("GPU", ("gpu", "platform")),
    ("dtype", ("dtype",)),
    ("engine version", ("engine_version",)),
    ("provider", ("provider",)),
    ("batch size", ("batch_size",)),
)


def brief(name: str, most: int = 44) -> str:
    """A name that fits: hashes are cut to twelve digits, and of what is still long the middle is left out."""
    text = cut(name)
    if len(text) <= most:
        return text
    head = most * 3 // 5
    return f"{text[:head]}…{text[head + 1 - most :]}"


def value(run: c.Coordinate, keys: Sequence[str]) -> str:
    """The first of ``keys`` that a coordinate has, as text; "" if none."""
    return next((str(run.coordinate[k]) for k in keys if run.coordinate.get(k) not in (None, "")), "")


@dataclass(frozen=True)
class RunMarks:
    """Colour and marker of each point by its label; what they stand for is in ``colours`` and ``symbols``."""

    colour_title: str
    symbol_title: str
    colours: tuple[str, ...]
    symbols: tuple[str, ...]
    of: Mapping[str, tuple[str, str]]

    def colour(self, name: str, /) -> int:
        """The index of a point's or a value's colour."""
        key = self.of[name][0] if name in self.of else name
        return self.colours.index(key) % COLOURS if key in self.colours else COLOURS - 1

    def symbol(self, name: str, /) -> str:
        """The marker of a point or a value."""
        key = self.of[name][1] if name in self.of else name
        return SYMBOLS[self.symbols.index(key) % len(SYMBOLS)] if key in self.symbols else SYMBOLS[0]


def marks(points: Sequence[tuple[str, ...]], runs: Mapping[str, c.Coordinate]) -> RunMarks:
    """The marks of points, by the first run of each."""
    first = [runs[names[0]] for names in points if names[0] in runs]
    found = [
        (title, keys, tuple(dict.fromkeys(value(r, keys) for r in first)))
        for title, keys in _ASPECTS
        if len({value(r, keys) for r in first}) > 1
    ]
    labels = short_labels([names[0] for names in points])
    if not found:
        return RunMarks("", "", tuple(labels), (), {x: (x, "") for x in labels})
    (title, keys, colours), *rest = found
    other = rest[0] if rest else ("", (), ())
    of = {
        label: (value(runs[names[0]], keys), value(runs[names[0]], other[1]))
        for label, names in zip(labels, points, strict=True)
        if names[0] in runs
    }
    return RunMarks(title, other[0], colours, other[2], of)


def short_labels(names: Sequence[str], most: int = _LABEL) -> list[str]:
    """Names without the words that all begin and end with, as long as they stay different and are not empty.

    Args:
        names: the names; ``most``: characters of a label.
    """
    words = [name.split(" ") for name in names]
    least = min((len(w) for w in words), default=0)
    head = 0
    while len(names) > 1 and head < least - 1 and len({w[head] for w in words}) == 1:
        head += 1
    tail = 0
    while len(names) > 1 and tail < least - head - 1 and len({w[-1 - tail] for w in words}) == 1:
        tail += 1
    # Separators between words are no names.
    texts = [
        " ".join(w[head : len(w) - tail]).strip(" /|,-:") or name
        for w, name in zip(words, names, strict=True)
    ]
    out = [brief(text, most) for text in texts]
    return out if len(set(out)) == len(out) else [brief(f"{i}: {t}", most) for i, t in enumerate(out, 1)]


@dataclass(frozen=True)
class Group:
    """Points that share a GPU (``kind`` "gpu") or a backend: a triangle where they are three."""

    kind: str
    name: str
    corners: tuple[int, ...]


def groups(region: c.Region) -> list[Group]:
    """The linked triangles of a region: every GPU and every backend that three or more points share.

    Three points that share nothing are a triangle of no name.
    """
    out: dict[str, set[int]] = {}
    for t in region.triangles:
        if t.shared:
            out.setdefault(t.shared, set()).update(t.corners)
    if not out and len(region.points) == 3:
        return [Group("gpu", "", (0, 1, 2))]
    found = [
        Group(shared.partition(" ")[0], shared.partition(" ")[2], tuple(sorted(corners)))
        for shared, corners in out.items()
    ]
    return sorted(found, key=lambda g: (g.kind != "gpu", g.corners))


def view(region: c.Region, title: str) -> GeometryView:
    """A region as the figures of a study take it, points called by their labels, without triangles and links."""
    labels = short_labels([names[0] for names in region.points])
    return GeometryView(
        metric=title,
        points=tuple(
            (label, *(brief(n, _HINT) for n in names[1:]))
            for label, names in zip(labels, region.points, strict=True)
        ),
        coordinates=region.coordinates,
        eigenvalues=region.eigenvalues,
        euclidean=region.euclidean,
        negative_share=region.negative_share,
        shown_2d=region.shown_2d,
        shown_3d=region.shown_3d,
        centres=tuple(
            CentreView(kind=x.kind, ranking=(), margin=x.margin, at=x.at, radius=x.radius)
            for x in region.centres
        ),
        hull=region.hull,
    )
