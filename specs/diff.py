"""Two specs side by side, line by line: the explanation of why their results differ.

Lines are matched by the role of their section and by their name: token with token, row with row, and levels
in the order of nesting, so paired that as many sites as possible meet. The names of levels play no part.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any, Literal

from specs.errors import Place, SpecError
from specs.grammar import parse_expr, parse_level
from specs.loader import Spec
from specs.nodes import Node
from specs.schema import Lines
from specs.writer import value

Change = Literal["same", "changed", "only_a", "only_b"]
Tables = dict[str, dict[str, str]]


@dataclass(frozen=True, slots=True)
class DiffLine:
    """One line of the difference.

    Attributes:
        role: where the line belongs, in words that both specs share: ``token``, ``level 1`` (the innermost
            pair of levels), ``row``, ``numbers``, ``let``, ...
        site: the name of the line.
        change: ``same`` means the same expression, whatever the spaces.
        a: its text in the first spec, or None.
        b: its text in the second spec, or None.
        section_a: the section in the first spec, such as the level's own name.
        section_b: the section in the second spec.
    """

    role: str
    site: str
    change: Change
    a: str | None
    b: str | None
    section_a: str | None = None
    section_b: str | None = None


@dataclass(frozen=True, slots=True)
class SpecDiff:
    """The difference of spec ``a`` and spec ``b``, in reading order."""

    a: str
    b: str
    lines: tuple[DiffLine, ...]

    @property
    def same(self) -> bool:
        """Whether every line is the same."""
        return all(line.change == "same" for line in self.lines)

    def counts(self) -> dict[Change, int]:
        """How many lines are same, changed, only in a, only in b."""
        found = Counter(line.change for line in self.lines)
        kinds: tuple[Change, ...] = ("same", "changed", "only_a", "only_b")
        return {kind: found[kind] for kind in kinds}

    def to_json(self) -> dict[str, Any]:
        """The difference as JSON."""
        return {
            "schema": 1,
            "a": self.a,
            "b": self.b,
            "same": self.same,
            "counts": self.counts(),
            "lines": [asdict(line) for line in self.lines],
        }

    def to_text(self, *, unchanged: bool = False) -> str:
        """The difference as text: ``-`` lines of a, ``+`` lines of b; ``unchanged`` adds the common ones."""
        out = [f"- {self.a}", f"+ {self.b}"]
        width = max((len(line.site) for line in self.lines), default=0)
        shown = [line for line in self.lines if unchanged or line.change != "same"]
        role = None
        for line in shown:
            if line.role != role:
                role = line.role
                out.append(f"[{_title(line)}]")
            if line.change == "same":
                out.append(f"  {line.site:<{width}} = {line.a}")
            else:
                out += [
                    f"{s} {line.site:<{width}} = {t}"
                    for s, t in (("-", line.a), ("+", line.b))
                    if t is not None
                ]
        counts = self.counts()
        out.append(
            f"{counts['changed']} changed, {counts['only_a']} only in {self.a}, "
            f"{counts['only_b']} only in {self.b}, {counts['same']} the same"
        )
        return "\n".join(out)


def _title(line: DiffLine) -> str:
    names = [s for s in (line.section_a, line.section_b) if s is not None]
    if not names or names[0] in ("token", "row"):
        return line.role
    return f"{line.role}: {' / '.join(dict.fromkeys(names))}"


def diff(a: Spec, b: Spec) -> SpecDiff:
    """The difference of two specs, before any variant is applied; variants are matched by their condition."""
    lines = [*_pairs("numbers", _numbers(a), _numbers(b)), *_pairs("options", _options(a), _options(b))]
    lines += _pairs("require", _requires(a), _requires(b))
    lines += _pairs("assumed", _assumed(a), _assumed(b))
    lines += _pairs("faults", a.file.faults, b.file.faults)
    lines += _tables(a.file, b.file, a.levels, b.levels, a.sections, b.sections, "")
    theirs = {v.when: v for v in b.file.variants}
    for variant in a.file.variants:
        lines += _variant(variant, theirs.pop(variant.when, None), variant.when, a, b)
    for when, variant in theirs.items():
        lines += _variant(None, variant, when, a, b)
    return SpecDiff(a.name, b.name, tuple(lines))


def _variant(va: Lines | None, vb: Lines | None, when: str, a: Spec, b: Spec) -> Iterator[DiffLine]:
    la, lb = va or Lines(), vb or Lines()
    prefix = f"variant {when}: "
    yield from _pairs(prefix.rstrip(": "), _dropped(la), _dropped(lb))
    levels = ({**a.levels, **la.levels}, {**b.levels, **lb.levels})
    yield from _tables(la, lb, *levels, a.sections, b.sections, prefix)


def _tables(
    la: Lines,
    lb: Lines,
    levels_a: dict[str, str],
    levels_b: dict[str, str],
    sa: Tables,
    sb: Tables,
    prefix: str,
) -> Iterator[DiffLine]:
    """The lines of all tables. ``sa`` and ``sb``, the sections of the whole specs, decide the pairing."""
    yield from _pairs(f"{prefix}let", la.let, lb.let)
    yield from _pairs(f"{prefix}constants", la.constants, lb.constants)
    pairs = _match(_nesting(levels_a), _nesting(levels_b), sa, sb)
    roles = [(f"level {len(pairs) - n}", x, y) for n, (x, y) in enumerate(pairs)]
    for role, x, y in roles:
        yield from _pairs(f"{prefix}{role}", _rule(la, x), _rule(lb, y), x, y)
    yield from _pairs(f"{prefix}views", _views(la), _views(lb))
    states = [(f"state of {role}", x, y) for role, x, y in [*roles, ("row", "row", "row")]]
    for role, x, y in states:
        yield from _pairs(f"{prefix}{role}", la.state.get(x or "", {}), lb.state.get(y or "", {}), x, y)
    for role, x, y in [("token", "token", "token"), *reversed(roles), ("row", "row", "row")]:
        yield from _pairs(f"{prefix}{role}", la.sections.get(x or "", {}), lb.sections.get(y or "", {}), x, y)


def _is_view(rule: str) -> bool:
    return rule.lstrip().startswith("view")


def _nesting(levels: dict[str, str]) -> list[str]:
    return [name for name, rule in levels.items() if not _is_view(rule)]


def _views(lines: Lines) -> dict[str, str]:
    return {name: rule for name, rule in lines.levels.items() if _is_view(rule)}


def _dropped(lines: Lines) -> dict[str, str]:
    return {"drop": ", ".join(lines.drop)} if lines.drop else {}


def _rule(lines: Lines, level: str | None) -> dict[str, str]:
    return {"tokens": lines.levels[level]} if level is not None and level in lines.levels else {}


def paired_levels(a: Spec, b: Spec) -> list[tuple[str | None, str | None]]:
    """The nesting levels of two specs, outermost first, paired as `diff` pairs them."""
    return _match(_nesting(a.levels), _nesting(b.levels), a.sections, b.sections)


def _match(a: list[str], b: list[str], sa: Tables, sb: Tables) -> list[tuple[str | None, str | None]]:
    """Levels paired in order so that most sites meet; pairing at all counts less."""

    @cache
    def best(i: int, j: int) -> tuple[int, tuple[tuple[str | None, str | None], ...]]:
        if i == len(a) or j == len(b):
            return 0, (*((x, None) for x in a[i:]), *((None, y) for y in b[j:]))
        shared = len(sa.get(a[i], {}).keys() & sb.get(b[j], {}).keys())
        one, rest = best(i + 1, j + 1)
        options = [
            (1 + 100 * shared + one, ((a[i], b[j]), *rest)),
            (best(i + 1, j)[0], ((a[i], None), *best(i + 1, j)[1])),
            (best(i, j + 1)[0], ((None, b[j]), *best(i, j + 1)[1])),
        ]
        return max(options, key=lambda option: option[0])

    return list(best(0, 0)[1])


def _pairs(
    role: str,
    a: dict[str, str],
    b: dict[str, str],
    section_a: str | None = None,
    section_b: str | None = None,
) -> Iterator[DiffLine]:
    """Lines of one table: in the order of ``a``; those only in ``b`` stand where they do there."""
    order = list(a)
    at = 0
    for name in b:
        if name in a:
            at = order.index(name) + 1
        else:
            order.insert(at, name)
            at += 1
    for name in order:
        x, y = a.get(name), b.get(name)
        change: Change = (
            "only_b" if x is None else "only_a" if y is None else "same" if _equal(x, y) else "changed"
        )
        yield DiffLine(role, name, change, x, y, section_a, section_b)


def _equal(x: str, y: str) -> bool:
    return x == y or (_parsed(x) is not None and _parsed(x) == _parsed(y))


def _parsed(text: str) -> Node | None:
    for parse in (parse_expr, parse_level):
        try:
            return parse(text, Place("<diff>"))
        except SpecError:
            continue
    return None


def _numbers(spec: Spec) -> dict[str, str]:
    taken = {f"accepts {k}": ", ".join(v) for k, v in spec.numbers.accepts.model_dump().items() if v}
    return {"compute": spec.numbers.compute, **spec.numbers.inputs.model_dump(exclude_none=True), **taken}


def _requires(spec: Spec) -> dict[str, str]:
    return {r.that: r.message for r in spec.file.requires}


def _assumed(spec: Spec) -> dict[str, str]:
    found = spec.file.assumed
    return {} if found is None else dict.fromkeys(found.lines, found.why)


def _options(spec: Spec) -> dict[str, str]:
    return {name: value(v) for name, v in spec.file.options.items()}
