"""A policy: which differences fail, by coordinate. A TOML file of ordered rules, read without evaluating anything.

    [[rule]]
    match   = "H200*"
    fail_if = "top1_flips > 0.1% or max_abs > 0.5"

``match`` is a glob over the name of a run or its coordinate's label; the first rule that matches a coordinate is its rule,
and a coordinate without one is an error. A pair is judged by the rules of both of its coordinates, of the other one where
there is a reference. ``fail_if`` is one condition or a list of them; each is a case of its own. A condition is comparisons
``NAME OP NUMBER`` joined by ``and`` and ``or`` (``and`` binds closer), OP being > >= < <= == !=, NUMBER decimal or a
percentage; "never" accepts everything. What was not measured cannot pass: its case is an error.
"""

from __future__ import annotations

import hashlib
import operator
import re
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from reports.runs import contract as c
from reports.runs.numbers import known, measure, names, of_run
from specs.errors import InputError, did_you_mean

MAX_FILE, MAX_RULES, MAX_TEXT = 1 << 20, 1000, 1000
NEVER = "never"
_COMPARISON = re.compile(
    r"\s*([a-z][a-z0-9_.]{0,63})\s*(>=|<=|==|!=|>|<)\s*(-?\d{1,15}(?:\.\d{1,15})?(?:[eE][+-]?\d{1,3})?)\s*(%?)\s*"
)
_OPERATORS: dict[str, Callable[[float, float], bool]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
}


@dataclass(frozen=True)
class Comparison:
    """``name`` op ``limit``; a percentage is a share already."""

    name: str
    sign: str
    limit: float

    def holds(self, value: float) -> bool:
        """Whether it is true of ``value``."""
        return _OPERATORS[self.sign](value, self.limit)


@dataclass(frozen=True)
class Condition:
    """Alternatives of comparisons that hold together; none at all never holds."""

    text: str
    terms: tuple[tuple[Comparison, ...], ...]

    def judge(self, value: Callable[[str], float | None]) -> bool | None:
        """Whether it holds; None where that hangs on a number that was not measured."""
        unknown = False
        for term in self.terms:
            found = [None if (x := value(one.name)) is None else one.holds(x) for one in term]
            if all(found):
                return True
            unknown |= False not in found
        return None if unknown else False

    def names(self) -> tuple[str, ...]:
        """The numbers that it asks for."""
        return tuple(dict.fromkeys(one.name for term in self.terms for one in term))


@dataclass(frozen=True)
class Rule:
    """One rule of a policy."""

    match: str
    conditions: tuple[Condition, ...]

    def fits(self, name: str, label: str) -> bool:
        """Whether the glob fits the name of a run or its label."""
        return fnmatchcase(name, self.match) or fnmatchcase(label, self.match)


@dataclass(frozen=True)
class Policy:
    """The rules of a file, in order."""

    file: str
    sha256: str
    rules: tuple[Rule, ...]


def parse_condition(text: str, place: str) -> Condition:
    """A condition.

    Raises:
        InputError: it is not of the grammar, or names an unknown number.
    """
    if len(text) > MAX_TEXT:
        raise InputError("is too long", place=place, remedy=f"use at most {MAX_TEXT} characters a condition")
    if text.strip() == NEVER:
        return Condition(NEVER, ())
    terms: list[tuple[Comparison, ...]] = []
    for alternative in re.split(r"\bor\b", text):
        term: list[Comparison] = []
        for part in re.split(r"\band\b", alternative):
            found = _COMPARISON.fullmatch(part)
            if found is None:
                raise InputError(
                    f"'{part.strip()[:80]}' is no comparison",
                    place=place,
                    remedy='write NAME OP NUMBER, as in "top1_flips > 0.1%", joined by and / or; or "never"',
                )
            name, sign, number, percent = found.groups()
            if not known(name):
                raise InputError(
                    f"no number is called '{name}'", place=place, remedy=did_you_mean(name, tuple(names()))
                )
            term.append(Comparison(name, sign, float(number) / (100 if percent else 1)))
        terms.append(tuple(term))
    return Condition(" ".join(text.split()), tuple(terms))


def load_policy(path: Path) -> Policy:
    """The policy in a TOML file.

    Raises:
        InputError: it cannot be read, is not TOML, or something in it is wrong.
    """
    place = str(path)
    try:
        if path.stat().st_size > MAX_FILE:
            raise InputError("is too large", place=place, remedy=f"a policy has at most {MAX_FILE:,} bytes")
        raw = path.read_bytes()
        found = tomllib.loads(raw.decode("utf-8"))
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", place=place, remedy="check the path") from None
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as error:
        raise InputError(f"is no TOML: {error}", place=place, remedy="correct it there") from None
    _only(found, ("rule",), place)
    listed: Any = found.get("rule")
    if not isinstance(listed, list) or not listed or len(listed) > MAX_RULES:
        raise InputError(
            "has no rules" if not listed else "rule is not a list of at most 1,000 tables",
            place=place,
            remedy='write [[rule]] with match = "*" and fail_if = "top1_flips > 0.1%"',
        )
    rules = tuple(_rule(one, f"{place}: rule {i}") for i, one in enumerate(listed, 1))
    return Policy(path.name, hashlib.sha256(raw).hexdigest(), rules)


def _rule(one: Any, place: str) -> Rule:
    if not isinstance(one, dict):
        raise InputError("is no table", place=place, remedy="write [[rule]] before each rule")
    _only(one, ("match", "fail_if"), place)
    match, conditions = one.get("match"), one.get("fail_if")
    if not isinstance(match, str) or not match or len(match) > MAX_TEXT:
        raise InputError("match is missing or no text", place=place, remedy='give a glob: match = "H200*"')
    texts = [conditions] if isinstance(conditions, str) else conditions
    if not isinstance(texts, list) or not texts or not all(isinstance(t, str) for t in texts):
        raise InputError(
            "fail_if is missing or no text",
            place=place,
            remedy='give a condition, or a list: fail_if = "top1_flips > 0.1%"',
        )
    return Rule(match, tuple(parse_condition(text, f"{place}: fail_if") for text in texts))


def _only(table: dict[str, Any], allowed: tuple[str, ...], place: str) -> None:
    for key in table:
        if key not in allowed:
            raise InputError(f"unknown key '{key[:80]}'", place=place, remedy=did_you_mean(key, allowed))


def rules_of(report: c.DivergenceReport, policy: Policy) -> dict[str, Rule]:
    """The rule of each coordinate.

    Raises:
        InputError: a coordinate has none.
    """
    out: dict[str, Rule] = {}
    reference = report.provenance.settings.get("reference")
    for one in report.coordinates:
        rule = next((r for r in policy.rules if r.fits(one.name, one.label)), None)
        if rule is not None:
            out[one.name] = rule
        elif one.name != reference:
            raise InputError(
                f"no rule matches the coordinate '{one.name}' ({one.label})",
                place=policy.file,
                remedy='add a rule for it; match = "*" as the last one takes what is left',
            )
    return out


def judge(report: c.DivergenceReport, policy: Policy) -> c.PolicyResult:
    """Every pair that has conversations in common, under the rules of its coordinates.

    A condition on numbers of runs alone is judged once a coordinate. A coordinate that has no such pair is judged alone,
    where numbers of pairs are not measured.

    Raises:
        InputError: a coordinate has no rule.
    """
    rules = rules_of(report, policy)
    reference = report.provenance.settings.get("reference")
    cases: list[c.PolicyCase] = []
    for pair in report.pairs:
        cases += _of_pair(report, pair, rules, reference)
    paired = {name for pair in report.pairs for name in (pair.first, pair.second)}
    for run, rule in rules.items():
        if run != reference:
            mine = [x for x in rule.conditions if run not in paired or _alone(x)]
            cases += [_case(report, None, run, rule, condition) for condition in mine]
    outcomes = [case.outcome for case in cases]
    return c.PolicyResult(
        file=policy.file,
        sha256=policy.sha256,
        passed=outcomes.count("passed"),
        failed=outcomes.count("failed"),
        errors=outcomes.count("error"),
        cases=tuple(cases),
    )


def _alone(condition: Condition) -> bool:
    """Whether a condition asks for numbers of a run only."""
    return bool(condition.terms) and all(of_run(name) for name in condition.names())


def _of_pair(
    report: c.DivergenceReport, pair: c.Pair, rules: dict[str, Rule], reference: Any
) -> Iterator[c.PolicyCase]:
    told: set[tuple[str, str, str]] = set()
    for run in (pair.first, pair.second):
        rule = rules.get(run)
        if rule is None or run == reference:
            continue
        for condition in rule.conditions:
            key = (rule.match, condition.text, run if any(map(of_run, condition.names())) else "")
            if key not in told and not _alone(condition):
                told.add(key)
                yield _case(report, pair, run, rule, condition)


def _case(
    report: c.DivergenceReport, pair: c.Pair | None, run: str, rule: Rule, condition: Condition
) -> c.PolicyCase:
    measured = {name: measure(report, pair, run, name) for name in condition.names()}
    found = condition.judge(measured.get)
    shown = ", ".join(
        f"{n} = {'not measured' if x is None else format(x, '.6g')}" for n, x in measured.items()
    )
    if found is None:
        outcome, text = "error", f"cannot be judged: {shown}"
        if pair is None:
            text += "; it was compared with nothing"
    elif found:
        outcome, text = "failed", f"{condition.text}: {shown}"
    else:
        outcome, text = "passed", shown or "accepted as it is"
    return c.PolicyCase(
        first=run if pair is None else pair.first,
        second="" if pair is None else pair.second,
        matched=run,
        rule=rule.match,
        condition=condition.text,
        outcome=outcome,
        text=text,
        measured={name: _finite(x) for name, x in measured.items()},
    )


def _finite(x: float | None) -> Any:
    return x if x is None or abs(x) != float("inf") else "inf" if x > 0 else "-inf"
