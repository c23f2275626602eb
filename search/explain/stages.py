"""Stages: what can be exchanged where single lines cannot, because the two sides keep other quantities under other names.

Every attention over groups has the same four: scores of tokens, the groups that own them, what becomes of a group, and the
merge of the groups. Between them values are handed over that both sides have, if not in the same form: a score, perhaps
not scaled yet; of a group its sum relative to some maximum, or the logarithm of its sum; its weighted values, or their mean.
Which form a side hands over is found on a sample, in real numbers. A hybrid is a spec again, in which the lines of one side
read values of the other; where the form differs one line converts it, in the compute format, and is shown.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from search.explain.flat import Flat, FlatLine, renamed, substituted, words_of
from search.explain.hybrid import Maker, Taken
from search.explain.legal import Legality, Progress
from search.explain.meaning import sample_of, sample_tokens
from search.explain.parts import (
    COMPUTE,
    CORES,
    INPUTS,
    MERGE,
    PARTITION,
    SCORES,
    SUMS,
    Change,
    Part,
    level_change,
    line_change,
    references,
)
from search.explain.reals import CLOSE, RealArithmetic
from specs.errors import UlpscopeError
from specs.loader import Spec
from specs.names import SCALARS
from specs.program import DIM, ROW, TOKEN
from verify.definition import Walker
from verify.emulator import Run
from verify.judge import row_inputs
from verify.partition import plan_program

_LAST = re.compile(r"last\(\s*(\w+)\s*\)")


@dataclass(frozen=True)
class Handed:
    """What one side hands over, as it writes it: names, or ``last(NAME)``.

    Attributes:
        score: of a token; ``factor``: what it has to be multiplied with to be the logit: 1 or the scale.
        level: the logarithm of the sum of a group; empty where ``top`` and ``norm`` are given instead: any number that
            the exponents are relative to, and the sum.
        mean: the weighted mean of a group's values; empty where their weighted sum ``value`` is given.
        owned: a condition that holds where the group owns tokens.
    """

    score: str
    scaled: bool
    level: str = ""
    top: str = ""
    norm: str = ""
    mean: str = ""
    value: str = ""
    owned: tuple[str, ...] = ()


def separated(
    judged: Legality, seed: int, orders: int, progress: Progress
) -> tuple[Legality, list[tuple[int, ...]], list[Taken]]:
    """As `Legality.separate`; where one part is left of several, stages are exchanged instead, if that is legal.

    Returns:
        what judges the hybrids from now on, the sampled orders, and the sets.

    Raises:
        UnsupportedError: a side itself cannot be evaluated by the definition.
    """
    parts = judged.maker.parts
    lines = judged.separate(seed, orders, progress)
    if len(judged.maker.parts) == len(parts) or not judged.same_function:
        return judged, *lines
    maker = stages(judged.maker, parts)
    if isinstance(maker, str):
        judged.joined.append(f"stages cannot be exchanged in place of lines: {maker}")
        return judged, *lines
    other = Legality(maker)
    drawn, sets = other.separate(seed, orders, progress)
    if len(other.maker.parts) <= len(judged.maker.parts):
        why = f" ({'; '.join(other.joined)})" if other.joined else ""
        judged.joined.append(f"stages in place of lines give no more parts{why}")
        return judged, *lines
    other.joined[:0] = [
        *judged.joined,
        "stages are exchanged in place of lines, over the values between them",
    ]
    other.joined += maker.conversions()
    return other, drawn, sets


def stages(maker: Maker, parts: Sequence[Part]) -> StageMaker | str:
    """What exchanges the stages of two sides, or why nothing can; ``parts``: as `search.explain.parts.find_parts`."""
    flats, runs = maker.flats, maker.runs
    outer = [next(iter(f.levels), "") for f in flats]
    if not all(outer):
        return "one of them has no groups"
    if outer[0] != outer[1]:
        free = outer[0] if outer[0] not in flats[1].names() else f"{outer[0]}_{outer[1]}"
        flats = renamed(flats[0], {outer[0]: free}), renamed(flats[1], {outer[1]: free})
        outer = [free, free]
    handed: list[Handed] = []
    for flat, run in zip(flats, runs, strict=True):
        found = _handed(flat, run, outer[0], sample_tokens(runs))
        if isinstance(found, str):
            return f"{flat.label}: {found}"
        handed.append(found)
    made = StageMaker(flats, runs, (), handed=(handed[0], handed[1]), outer=outer[0])
    return StageMaker(flats, runs, made.stage_parts(parts), handed=made.handed, outer=outer[0])


@dataclass(frozen=True)
class StageMaker(Maker):
    """Makes hybrids of stages."""

    handed: tuple[Handed, Handed] = field(kw_only=True)
    outer: str = field(kw_only=True)

    def stage_parts(self, whole: Sequence[Part]) -> tuple[Part, ...]:
        """The stages in which the sides differ, in the order of the dataflow; with those of ``whole`` that are no lines."""
        a, b = self.flats
        parts = [p for p in whole if p.atoms[0] in (INPUTS, COMPUTE, CORES)]
        if a.levels[self.outer] != b.levels[self.outer]:
            parts.append(Part(PARTITION, (PARTITION,), (level_change(a, b, self.outer),)))
        sections: dict[str, list[Change]] = {SCORES: [], SUMS: [], MERGE: []}
        inner = [n for n in dict.fromkeys((*a.levels, *b.levels)) if n != self.outer]
        sections[SUMS] += [level_change(a, b, n) for n in inner if a.levels.get(n) != b.levels.get(n)]
        for stage, names in zip(sections, zip(*(self._stages(i) for i in (0, 1)), strict=True), strict=True):
            for name in dict.fromkeys((*names[0], *names[1])):
                if name not in names[0] or name not in names[1] or a.lines[name] != b.lines[name]:
                    own = [f if name in n else None for f, n in zip(self.flats, names, strict=True)]
                    sections[stage].append(line_change(own[0], own[1], name))
        parts += [Part(stage, (stage,), tuple(changes)) for stage, changes in sections.items() if changes]
        return tuple(parts)

    def _stages(self, side: int) -> tuple[list[str], list[str], list[str]]:
        """Lines of a side by stage: what a score needs, what else a group needs, the merge."""
        flat = self.flats[side]
        merge = [n for n in _closure(flat, ["output"]) if n in flat.lines and flat.lines[n].section == ROW]
        score = set(_closure(flat, [self.handed[side].score])) & set(flat.lines)
        group = [
            n for n in flat.lines if n in _closure(flat, ["output"]) and n not in merge and n not in score
        ]
        return [n for n in flat.lines if n in score], group, [n for n in flat.lines if n in merge]

    def conversions(self) -> list[str]:
        """What is written otherwise to the stages of the other side, in either direction."""
        found: list[str] = []
        for x, y in ((0, 1), (1, 0)):
            mine, other = ("first", "second") if x == 0 else ("second", "first")
            given = _given(self.handed[x], self.handed[y])
            texts = [f"{old} = {_owns(new, self.outer)}" for old, new in given.items() if old != new]
            if texts:
                found.append(f"groups of the {mine} give the merge of the {other} {', '.join(texts)}")
            if self.handed[x].scaled != self.handed[y].scaled:
                text = self._score_text(x, y, self.handed[x].score)
                found.append(
                    f"scores of the {mine} give groups of the {other} {self.handed[y].score} = {text}"
                )
        return found

    def _score_text(self, x: int, y: int, name: str) -> str:
        if self.handed[x].scaled == self.handed[y].scaled:
            return name
        return f"{name} / scale" if self.handed[x].scaled else f"{name} * scale"

    def spec(self, taken: Taken) -> Spec:
        """The text of a hybrid, loaded.

        Raises:
            SpecError: it is no legal spec.
        """
        z, x, y = (self.side(stage, taken) for stage in (SCORES, SUMS, MERGE))
        tables = _Tables(self.flats[x])
        score = self.handed[x].score
        end = self.handed[x]
        ends = ["output"] if x == y else _inputs(end)
        names = _closure(self.flats[x], ends)
        if z != x:
            own = _closure(self.flats[x], [score])
            rest = {n for end in ends for n in _closure(self.flats[x], [end], without=score)}
            names = [n for n in names if n not in own or n in rest]
        tables.add(self.flats[x], [n for n in names if not (z != x and n == score)], {})
        if z != x:
            other = self.flats[z]
            wanted = _closure(other, [self.handed[z].score])
            newly = tables.renames(wanted, taken_too={score})
            tables.add(other, wanted, newly)
            source = newly.get(self.handed[z].score, self.handed[z].score)
            tables.put(score, FlatLine(TOKEN, self._score_text(z, x, source)))
        if x != y:
            self._hand_over(tables, x, y)
        flat = self.flats[x]
        levels = {self.outer: self.flats[self.side(PARTITION, taken)].levels[self.outer]}
        levels |= {n: rule for n, rule in flat.levels.items() if n != self.outer}
        return self.written(taken, levels, tables.views, tables.constants, tables.lines)

    def _hand_over(self, tables: _Tables, x: int, y: int) -> None:
        other, wants = self.flats[y], self.handed[y]
        given = _given(self.handed[x], wants)
        inputs = _inputs(wants)
        bare = {_LAST.sub(r"\1", text) for text in inputs}
        wanted = [n for n in _closure(other, ["output"], without=inputs) if n not in bare]
        newly = tables.renames([n for n in wanted if n != "output"])
        for old, new in given.items():
            if old == new:
                continue
            name = tables.free(_LAST.sub(r"\1", old))
            tables.put(name, FlatLine(self.outer, _owns(new, self.outer)))
            newly[old] = name
        tables.add(other, wanted, newly)


class _Tables:
    """Lines, views and constants of a hybrid as they come together."""

    def __init__(self, first: Flat) -> None:
        self.lines: dict[str, FlatLine] = {}
        self.views: dict[str, str] = {}
        self.constants: dict[str, str] = {}
        self._levels = set(first.levels)

    @property
    def names(self) -> set[str]:
        return {*self.lines, *self.views, *self.constants, *self._levels}

    def free(self, name: str) -> str:
        while name in self.names:
            name += "_"
        return name

    def renames(self, names: Sequence[str], taken_too: set[str] | None = None) -> dict[str, str]:
        """New names for those that are taken."""
        used = self.names | (taken_too or set())
        found: dict[str, str] = {}
        for name in names:
            new = name
            while new in used:
                new += "_"
            if new != name:
                found[name] = new
            used.add(new)
        return found

    def put(self, name: str, line: FlatLine) -> None:
        self.lines[name] = line

    def add(self, flat: Flat, names: Sequence[str], newly: Mapping[str, str]) -> None:
        def text(line: str) -> str:
            line = _LAST.sub(lambda m: newly.get(f"last({m[1]})", m[0]), line)
            return substituted(line, lambda word, keyword: newly.get(word, word))

        for name in names:
            new = newly.get(name, name)
            if name in flat.lines:
                line = flat.lines[name]
                state = None if line.state is None else (line.state[0], text(line.state[1]))
                self.lines[new] = FlatLine(line.section, text(line.text), state)
            elif name in flat.constants:
                self.constants[new] = text(flat.constants[name])
            elif name in flat.views:
                self.views[new] = text(flat.views[name])


def _closure(flat: Flat, start: Sequence[str], without: Any = ()) -> list[str]:
    """Lines, constants and views that some names depend on, in the order of the file; ``without``: not through these."""
    stop = {without} if isinstance(without, str) else {_LAST.sub(r"\1", w) for w in without}
    found: set[str] = set()
    todo = [_LAST.sub(r"\1", name) for name in start]
    while todo:
        name = todo.pop()
        if name not in found:
            found.add(name)
            todo += [] if name in stop else references(flat, name)
    order = [*flat.constants, *flat.views, *flat.lines]
    return [n for n in order if n in found]


def _inputs(handed: Handed) -> list[str]:
    texts = (handed.level, handed.top, handed.norm, handed.mean, handed.value, *handed.owned)
    return [text for text in texts if text]


def _given(x: Handed, y: Handed) -> dict[str, str]:
    """What the merge of ``y`` reads, in terms of what ``x`` hands over."""
    found = dict.fromkeys(y.owned, "owns")
    if y.level:
        found[y.level] = x.level or f"{x.top} + log({x.norm})"
    else:
        found[y.top], found[y.norm] = (x.level, "1") if x.level else (x.top, x.norm)
    if y.mean:
        found[y.mean] = x.mean or f"{x.value} / {x.norm}"
    else:
        whole = x.mean if x.level else f"{x.mean} * {x.norm}"
        found[y.value] = x.value or whole
    return found


def _owns(text: str, outer: str) -> str:
    return f"owns({outer})" if text == "owns" else text


# -- what a side hands over, found on a sample ---------------------------------------------------------------------------


def _handed(flat: Flat, run: Run, outer: str, tokens: int) -> Handed | str:
    """What a side hands over from stage to stage, or why that is not known."""
    program = run.program
    score = program.score_site()
    if not score or program.sites[score].section != TOKEN:
        return "it has no line for the score of a token"
    names = [n for n in _closure(flat, ["output"]) if n in flat.lines and flat.lines[n].section == ROW]
    read: dict[str, None] = {}
    for name in names:
        line = flat.lines[name]
        read |= dict.fromkeys(m[0] for m in _LAST.finditer(line.text))
        bare = _LAST.sub(" ", line.text)
        read |= dict.fromkeys(w for w in words_of(bare) if w in flat.lines and flat.lines[w].section != ROW)
    sample = _Sample(run, tokens)
    if sample.reason:
        return sample.reason
    levels, means, owned = list[str](), list[str](), list[str]()
    for text in read:
        site = program.sites[_LAST.sub(r"\1", text)]
        if site.type.axes - {program.level_names[0], DIM} and not text.startswith("last("):
            return f"its merge reads {text}, which has other axes than group and column"
        (owned if site.type.kind != "float" else means if DIM in site.type.axes else levels).append(text)
    values = {text: sample.of_groups(text) for text in (*levels, *means)}
    if any(x is None for x in values.values()) or len(means) != 1 or not 1 <= len(levels) <= 2:
        return f"its merge reads {', '.join(read)}, of which it is not known what they are"
    return _named(score, sample, levels, means[0], owned, values)


def _named(
    score: str,
    sample: _Sample,
    levels: Sequence[str],
    mean: str,
    owned: Sequence[str],
    values: Mapping[str, Any],
) -> Handed | str:
    logits = sample.scores(score)
    scaled = _same(logits, sample.logits)
    if not scaled and not _same(logits * sample.scale, sample.logits):
        return f"{score} is neither the logit nor the product before it is scaled"
    more: dict[str, str] = {}
    if len(levels) == 1 and _same(values[levels[0]], sample.sums):
        more["level"] = levels[0]
        norm = None
    else:
        pairs = [levels, levels[::-1]] if len(levels) == 2 else []
        with np.errstate(all="ignore"):
            fits = [p for p in pairs if _same(values[p[0]] + np.log(values[p[1]]), sample.sums)]
        if not fits:
            said = "neither the logarithm of a group's sum, nor that sum and what it is relative to"
            return f"its merge reads {', '.join(levels)}, {said}"
        more["top"], more["norm"] = fits[0]
        norm = values[fits[0][1]]
    if _same(values[mean], sample.means):
        more["mean"] = mean
    elif norm is not None and _same(values[mean], sample.means * norm):
        more["value"] = mean
    else:
        return f"its merge reads {mean}, neither the mean of a group's values nor their sum"
    return Handed(score, scaled, owned=tuple(owned), **more)


def _same(a: NDArray[np.float64], b: NDArray[np.float64]) -> bool:
    size = float(np.abs(b[np.isfinite(b)]).max(initial=0.0))
    with np.errstate(invalid="ignore"):
        return a.shape == b.shape and bool((np.abs(a - b) <= CLOSE * max(1e-3, size)).all())


class _Sample:
    """One side on a sample in real numbers, and what attention has there: logits; of each group the logarithm of its sum,
    and the mean of its values' first column.
    """

    def __init__(self, run: Run, tokens: int) -> None:
        self.reason = ""
        self.run = run
        self.scale = float(run.scalars.get("scale", 1.0))
        sample = sample_of(run.problem, tokens)
        scalars = {n: x for n, x in run.scalars.items() if n in SCALARS}
        try:
            self.plan = plan_program(run.program, {**run.plan.context, "kv_len": sample.kv_len})
            inputs = row_inputs(run.program, sample, scalars, 0, 0)
            self.walker = Walker(run.program, self.plan, inputs, RealArithmetic())
        except UlpscopeError as error:
            self.reason = error.cause
            return
        if sample.scores is not None:
            self.logits = sample.scores[0, 0].astype(np.float64)
        else:
            assert sample.q is not None
            assert sample.k is not None
            self.logits = (sample.k[:, 0] @ sample.q[0, 0]) * self.scale
        column = sample.v[:, 0, 0].astype(np.float64)
        self._owned = [(i, g.tokens) for i, g in enumerate(self.plan.groups) if len(g.tokens)]
        weights = [np.exp(self.logits[t] - self.logits.max()) for _, t in self._owned]
        self.sums = np.array([np.log(w.sum()) + self.logits.max() for w in weights])
        self.means = np.array(
            [w @ column[t] / w.sum() for w, (_, t) in zip(weights, self._owned, strict=True)]
        )

    def of_groups(self, text: str) -> NDArray[np.float64] | None:
        """What the merge reads of each group that owns tokens; its first column."""
        outer = self.run.program.level_names[0]
        last = _LAST.fullmatch(text)
        name = last[1] if last is not None else text
        site = self.run.program.sites[name]
        found: list[float] = []
        for i, _ in self._owned:
            where = {outer: i, **({DIM: 0} if DIM in site.type.axes else {})}
            try:
                with np.errstate(all="ignore"):
                    found.append(float(self._value(name, where, last is not None)))
            except (UlpscopeError, RecursionError):
                return None
        return np.array(found)

    def _value(self, name: str, where: dict[str, int], last: bool) -> Any:
        if not last:
            return self.walker.value(name, where)
        state = self.run.program.states[name]
        level, outer = state.levels[-1], where[self.run.program.level_names[0]]
        exists = self.plan.exists[level][outer]
        index = np.argwhere(exists)[-1].tolist()
        names = self.run.program.levels_to(level)[1:]
        return self.walker.value(name, {**where, **dict(zip(names, index, strict=True))})

    def scores(self, name: str) -> NDArray[np.float64]:
        """A line of tokens, by token."""
        program = self.run.program
        found = np.full(self.plan.kv_len, np.nan)
        for index in np.argwhere(self.plan.tokens >= 0).tolist():
            where = dict(zip((*program.level_names, TOKEN), index, strict=True))
            found[self.plan.tokens[tuple(index)]] = self.walker.value(name, where)
        return found
