"""Each token is owned exactly once, whatever the shape: one lemma for each level, and what the lemma takes.

The lemmas (`search.prove.lemmas`) hold for all lengths and all whole arguments. What is left for a spec is that the
arguments of its levels have values for every shape in the domain: counts and units of at least 1, a whole that
covers the sequence, no division by zero, colours of views in range. That is asked of Z3, case by case. A model is no
verdict: the shape is given to the code that makes plans.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from search.prove.answer import Proof, Status
from search.prove.contracts import CONTRACTS, check
from search.prove.domain import Case, cases, in_words
from search.prove.formulas import Scalar, literal
from search.prove.lemmas import TEXT, prove_level
from search.prove.recheck import evaluated, real_rules, real_shapes
from search.prove.terms import Term, Terms, model_of
from specs.errors import UlpscopeError, UnsupportedError
from specs.loader import Spec
from specs.nodes import LevelRule, Node, Op, Pos
from specs.platforms import Platform
from specs.program import TOKEN

#: Z3's time for one case, in milliseconds; the process that asks is killed at the limit of the whole question.
MILLISECONDS = 4_000
#: Numbers of pieces that are tried as a limit.
COUNTS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 384, 512, 4096, 1 << 16)
CLAIM = "each token is owned exactly once, and the indices of groups are in range"


@dataclass
class _Found:
    """What the cases of a spec came to."""

    status: Status = "proved"
    reason: str = ""
    rules: set[str] = field(default_factory=set[str])
    kinds: set[str] = field(default_factory=set[str])
    most: int | None = 1
    reached: int = 0


def prove_partition(
    spec: Spec,
    platforms: Mapping[str, Platform],
    fixed: Mapping[str, Scalar] | None = None,
    *,
    milliseconds: int = MILLISECONDS,
    recheck: bool = True,
) -> Proof:
    """Prove that every plan of ``spec`` owns each token exactly once.

    Args:
        spec: a loaded spec.
        platforms: whose compute capabilities the proof covers; SM counts are unknown up to 512 in any case.
        fixed: names of the context or options that have one value.
        milliseconds: Z3's time for one case.
        recheck: also compute plans of sample shapes with the code that makes plans.

    Raises:
        UnsupportedError: the formulas fall into too many cases.
    """
    began, given = time.perf_counter(), dict(fixed or {})
    every = cases(spec, platforms, given)
    if not every:
        reason = "no shape of the domain meets the spec's requirements"
        return Proof(spec.name, CLAIM, "refused", reason, seconds=time.perf_counter() - began)
    found = _Found()
    if not spec.levels:
        found.reason = "no levels: the row owns every token"
    for case in every:
        if spec.levels:
            _case(spec, platforms, case, given, milliseconds, found)
        if found.status != "proved":
            break
    for kind in sorted(found.kinds):
        answer = prove_level(kind)
        if answer != "unsat":
            found.status, found.reason = "unknown", f"Z3 says {answer} to the lemma of {kind}()"
    return _written(spec, platforms, given, every, found, began, recheck)


def _written(
    spec: Spec,
    platforms: Mapping[str, Platform],
    fixed: Mapping[str, Scalar],
    every: Sequence[Case],
    found: _Found,
    began: float,
    recheck: bool,
) -> Proof:
    assumptions = [f"the domain: {in_words(fixed)}; query heads are a multiple of KV heads"]
    for name in sorted(found.rules):
        checked = check(name, sorted({p.sm_count for p in platforms.values()}))
        if checked.broken:
            found.status, found.reason = "refuted", f"{name}() breaks its contract: {checked.broken}"
        how = "checked exhaustively" if checked.exhaustive else "only tested, not proved,"
        rest = (
            ""
            if checked.exhaustive
            else "; where it fails, the code refuses the shape and misplaces no token"
        )
        words = f"{how} over {checked.words} ({checked.count:,} call{'s' * (checked.count != 1)}){rest}"
        assumptions.append(f"{name}(): {CONTRACTS[name].text}: {words}")
    if spec.file.requires:
        many = len(spec.file.requires)
        assumptions.append(f"the spec takes the shape: its {many} requirement{'s' * (many != 1)} hold")
    words = ""
    if recheck and found.status == "proved":
        shapes, broken = real_shapes(spec, platforms, fixed)
        rules, wrong = real_rules(found.kinds)
        words = f"{shapes} whole plans, and {rules:,} small cuts of every size by the code that makes plans"
        if not shapes:
            found.status, found.reason = (
                "refused",
                "none of the sample shapes is taken on any of these platforms",
            )
        if broken or wrong:
            found.status, found.reason = "refuted", broken or wrong
    reason = found.reason
    if found.status == "proved" and spec.levels and not found.reached:
        found.status, reason = "refused", "no shape of the domain meets the spec's requirements"
    if found.status == "proved" and not reason:
        lemmas = "; ".join(TEXT[k] for k in sorted(found.kinds))
        limit = f"at most {found.most} pieces; " if found.most else ""
        many = f"{found.reached} case{'s' * (found.reached != 1)}"
        reason = f"Z3, {many} of the spec's formulas, over all integers: {limit}{lemmas}"
    details: dict[str, Any] = {
        "cases": found.reached,
        "most_pieces": found.most,
        "rules": sorted(found.rules),
        "requirements": [r.message for r in spec.file.requires],
    }
    seconds = time.perf_counter() - began
    return Proof(spec.name, CLAIM, found.status, reason, tuple(assumptions), words, details, seconds)


def _case(
    spec: Spec,
    platforms: Mapping[str, Platform],
    case: Case,
    fixed: Mapping[str, Scalar],
    milliseconds: int,
    found: _Found,
) -> None:
    """One case: a query for everything that its levels need."""
    import z3

    terms = Terms(case.let)
    try:
        assumed = [terms.condition(n) for n in case.assumed]
        kv_len = terms.unknown("kv_len")
        for name in ("max_kv_len", "kv_capacity"):
            terms.facts.append(terms.unknown(name).z3 >= kv_len.z3)
        _heads(terms)
        terms.needs.clear()  # what requirements need, they get: they are evaluated first, and refuse
        goals: list[tuple[str, Any]] = []
        for name, rule in case.levels:
            goals += _level(terms, name, rule, kv_len, found)
        first = case.levels[0][1]
        outer = terms.integer(first.args[0]) if first.kind in ("pieces", "deal") else None
        goals += terms.needs
        for name, rule in case.levels:
            if rule.kind == "view":
                goals += _view(case, terms, name, rule, kv_len)
    except UnsupportedError as error:
        found.status, found.reason = "not decided", error.cause
        return
    found.rules |= terms.rules
    solver = z3.Solver()
    solver.set("timeout", milliseconds)
    # An empty sequence may have counts of 0: nothing is cut.
    solver.add(*terms.facts, *assumed, kv_len.z3 >= 1)
    if not _has_shape(solver, terms):
        return  # requirements and variants leave no shape
    found.reached += 1
    if outer is not None:
        _count(solver, outer, found)
    solver.add(z3.Or([z3.Not(goal) for _, goal in goals]))
    answer = str(solver.check())
    if answer == "unsat":
        return
    if answer != "sat":
        found.status, found.reason = (
            "unknown",
            f"Z3 gives no answer within {milliseconds} ms: {_example(case)}",
        )
        return
    shape = model_of(solver, terms)
    wrong = [text for text, goal in goals if not z3.is_true(solver.model().eval(goal, model_completion=True))]
    what = f"{'; '.join(dict.fromkeys(wrong)) or 'a level'} at {_shown({**shape, **case.example})}"
    said = evaluated(spec, platforms, {**case.example, **fixed}, shape)
    if said:
        found.status, found.reason = "refuted", f"{what}: {said}"
    else:
        found.status, found.reason = "not decided", f"Z3 finds {what}, where the code makes a plan"


def _level(terms: Terms, name: str, rule: LevelRule, kv_len: Term, found: _Found) -> list[tuple[str, Any]]:
    """What a level's arguments must satisfy."""
    if rule.kind == "view":
        return []
    found.kinds.add(rule.kind)
    number = terms.integer(rule.args[0])
    goals: list[tuple[str, Any]] = []
    needed = [(number, 1, f"{rule.kind}(n) with n below 1")]
    if rule.unit is not None:
        needed.append((terms.integer(rule.unit), 1, "a unit below 1"))
    if rule.skip is not None:
        needed.append((terms.integer(rule.skip), 0, "a negative skip"))
    for term, least, text in needed:
        if term.range[0] < least:  # else interval arithmetic settles it
            goals.append((f"level {name}: {text}", term.z3 >= least))
    if rule.of is not None:
        goals.append((f"level {name}: tokens past the whole", terms.integer(rule.of).z3 >= kv_len.z3))
    return goals


def _has_shape(solver: Any, terms: Terms) -> bool:
    """Whether any shape is left; an ordinary one is tried first."""
    usual = {
        "batch": 1,
        "kv_heads": 1,
        "q_heads": 8,
        "q_len": 1,
        "window": 0,
        "page_size": 16,
        "num_splits": 0,
    }
    solver.push()
    solver.add(*(x == usual[name] for name, x in terms.unknowns.items() if name in usual))
    known = str(solver.check()) == "sat"
    solver.pop()
    return known or str(solver.check()) != "unsat"


def _count(solver: Any, outer: Term, found: _Found) -> None:
    """Raise the number of pieces that the outermost level has at most, until Z3 finds no more."""
    while found.most is not None and outer.range[1] > found.most:
        solver.push()
        solver.add(outer.z3 > found.most)
        answer = str(solver.check())
        more = int(solver.model().eval(outer.z3).as_long()) if answer == "sat" else 0
        solver.pop()
        if answer == "unsat":
            return
        known = [n for n in COUNTS if n >= more]
        found.most = known[0] if answer == "sat" and known else None


def _view(case: Case, terms: Terms, name: str, rule: LevelRule, kv_len: Term) -> list[tuple[str, Any]]:
    """Colours of a view are in range, at every position of its axis."""
    import z3

    axis = next((x.axis for x in rule.args[1].walk() if isinstance(x, Pos)), "")
    size = terms.integer(rule.args[0])
    room = _positions(case, axis)
    if room is None:  # an axis of colours: another view
        return []
    limit = terms.integer(room)
    at = z3.Int(f"position!{name}")
    terms.facts += [at >= 0, at < limit.z3]
    if axis == TOKEN:
        terms.facts.append(at < kv_len.z3)
    inner = terms.at(Term(at, (0, max(0, limit.range[1] - 1))))
    colour = inner.integer(rule.args[1])
    terms.facts += inner.facts
    return [
        (f"view {name}: a colour out of range", z3.And(colour.z3 >= 0, colour.z3 < size.z3)),
        *inner.needs,
    ]


def _positions(case: Case, axis: str) -> Node | None:
    """How many positions an axis has."""
    rules = dict(case.levels)
    if axis == TOKEN:
        inner = [r for r in rules.values() if r.kind != "view"]
        if not inner:
            return None
        last = inner[-1]
        return last.args[0] if last.kind == "tiles" else literal(1 << 20)
    if axis not in rules:
        return literal(1 << 16)
    rule = rules[axis]
    if rule.kind == "tiles":
        return literal(1 << 20)
    return Op("max", (literal(1), rule.args[0]))


def _heads(terms: Terms) -> None:
    if {"q_heads", "kv_heads"} & set(terms.unknowns):
        terms.group()


def _example(case: Case) -> str:
    return _shown(case.example) or "its only case"


def _shown(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{n} = {v}" for n, v in values.items())


def describes(error: UlpscopeError) -> str:
    """An error as part of a sentence."""
    return f"{error.cause}; {error.remedy}" if error.remedy else error.cause
