"""Without its roundings a spec is softmax attention: proved by its structure, for any number of tokens and pieces.

A small instance is walked whose tokens, values and maxima are free symbols (`search.prove.realm`). Each token stands for
any number of tokens, each step for any step:

1. Every sum over tokens or pieces adds like terms: each token counts with e^s, or e^s v, times a factor that all share.
   So the sum over more of them is of the same form.
2. A state after one more step has the form that it had before, with the sums over all tokens so far and the maximum so
   far: induction from the first step.
3. The output is the sum of e^s v over all tokens, divided by the sum of e^s: every factor cancels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from search.prove.choices import below_score, chosen_lines, columns_of, uses, versions_of
from search.prove.forms import SINK, form_of, same_form, signature, tokens_of
from search.prove.named import Named
from search.prove.realm import Decision, ForkError, Realm
from search.prove.values import ONE, SCALE, ZERO, BreaksError, Log, Value, symbol, unit
from search.samples import colours, instance, slots
from specs.errors import InputError, SpecError, UnsupportedError
from specs.names import HEAD_SCALARS, SCALARS
from specs.nodes import At, Cmp, Node, Num, Op, Pos, Reduce
from specs.program import DEPTH, TOKEN, Program
from verify.definition import Walker
from verify.definition.inputs import RowInputs
from verify.partition import Plan

MAX_TOKENS = 128
MAX_PATHS = 64
MAX_COLOURS = 8
#: Doubles that stand for scalars; sums of powers of two that no spec writes.
_SCALE, _SINK = 1.0 + 2.0**-37, 3.0 + 2.0**-39


@dataclass(frozen=True)
class Broken:
    """A step that breaks: the line, what is wrong, and the whole output where there is one.

    ``sure``: no comparison was open on the way, so that the output is this one for every input.
    """

    site: str
    what: str
    fault: bool
    output: Value | None = None
    maxima: Mapping[str, frozenset[Any]] = field(default_factory=dict[str, frozenset[Any]])
    sure: bool = True


@dataclass(frozen=True)
class Shape:
    """An instance: pieces of each level and tokens of each innermost piece; which axes are taken whole."""

    sizes: tuple[int, ...]
    whole: frozenset[str]
    places: tuple[int, ...]


def shape_of(program: Program, plan: Plan) -> Shape:
    """The instance of a program: two pieces of a level, all of a level whose pieces are read by number, every colour."""
    axes = (*program.level_names, TOKEN)
    actual = dict(zip(axes, plan.tokens.shape, strict=True))
    whole = {axis for axis in program.level_names if _by_number(program, axis)}
    # Two maxima that a fold carries are the same after its first step: the step after that tells them apart.
    twice = {a for a in program.level_names if sum(_carried(program, n, a) for n in program.states) > 1}
    sizes = [int(actual[a]) if a in whole else min(int(actual[a]), 3 if a in twice else 2) for a in axes]
    for i, axis in enumerate(axes[:-1]):
        known = [v.size for v in program.views.values() if v.axis == axis and v.size <= MAX_COLOURS]
        sizes[i] = max([sizes[i], *(min(int(actual[axis]), k) for k in known)])
    places = slots(program, int(actual[TOKEN]))
    kinds = len(set(colours(program, int(actual[TOKEN]))))
    sizes[-1] = min(int(actual[TOKEN]), max(2, kinds) if kinds <= MAX_COLOURS else 2)
    if np.prod(sizes) > MAX_TOKENS:
        sizes[-1] = max(1, min(kinds, int(actual[TOKEN])))
    if np.prod(sizes) > MAX_TOKENS:
        raise UnsupportedError(
            f"{program.spec} needs an instance of {int(np.prod(sizes))} tokens",
            place="prove algebra",
            remedy=f"at most {MAX_TOKENS} are walked: choose a shape with fewer pieces",
        )
    return Shape(tuple(sizes), frozenset(whole), tuple(sorted(places[: sizes[-1]])))


def _carried(program: Program, name: str, axis: str) -> bool:
    """Whether a state is a maximum that is carried along an axis: it starts from minus infinity or what stands for it."""
    state = program.states[name]
    start = state.start
    low = isinstance(start, Op) and start.op == "neg" and not isinstance(start.args[0], Op)
    return axis in state.levels and low


def _by_number(program: Program, axis: str) -> bool:
    """Whether lines read pieces of an axis by number, so that no two stand for many."""
    for site in below_score(program):
        for n in program.sites[site].expr.walk():
            if isinstance(n, At) and any(a == axis for a, _ in n.moves):
                return True
            if isinstance(n, Pos) and n.axis == axis and not _only_first(program.sites[site].expr, axis):
                return True
    return False


def _only_first(expr: Node, axis: str) -> bool:
    """Whether an axis is only asked for its first piece: ``pos(axis) == 0``."""
    asked = sum(isinstance(n, Pos) and n.axis == axis for n in expr.walk())
    first = sum(
        isinstance(n, Cmp) and n.op == "==" and n.left == Pos(axis) and n.right == Num("0")
        for n in expr.walk()
    )
    return asked == first


def prove_program(program: Program, plan: Plan, sink: bool) -> tuple[Broken | None, dict[str, Any]]:
    """Prove one bound program, on every path that data can take.

    Returns:
        the step that breaks, or None; and what is worth telling.
    """
    versions = versions_of(program)
    told = _nothing_told()
    told["chosen"] = chosen_lines(program)
    seen: list[dict[Any, Any]] = []
    for version in versions:
        shape = shape_of(version, plan)
        told["tokens"] = int(np.prod(shape.sizes))
        seen.append({})
        todo: list[tuple[Decision, ...]] = [()]
        while todo:
            path = todo.pop()
            if told["paths"] >= MAX_PATHS:
                return Broken("", f"more than {MAX_PATHS} ways through its comparisons", False), told
            try:
                broken, values = _walk(version, shape, path, sink, int(plan.context["head_dim"]), told)
            except ForkError as fork:
                todo += [(*path, Decision(fork.key, holds)) for holds in (True, False)]
                continue
            told["paths"] += 1
            if broken is not None:
                return replace(broken, sure=not path and len(versions) == 1), told
            seen[-1][path] = values
    if len(seen) > 1 and seen[0] != seen[1]:
        name = next((n for path, v in seen[0].items() for n in v if seen[1].get(path, {}).get(n) != v[n]), "")
        return Broken(name, "the branches of a choice by position mean different numbers", False), told
    return None, told


def _walk(
    program: Program,
    shape: Shape,
    path: Sequence[Decision],
    sink: bool,
    head_dim: int,
    told: dict[str, Any],
    masked: frozenset[int] = frozenset(),
) -> tuple[Broken | None, dict[str, Any]]:
    plan = instance(program, shape.sizes, shape.places)
    count = int(np.prod(shape.sizes))
    base = unit(-1, 0) if uses(program, "scale") else ONE
    scores = [Log(ZERO if t in masked else symbol(f"E{t}"), base) for t in range(count)]
    feed = np.empty(count, dtype=object)
    feed[:] = scores
    half = 1 << max(0, program.inputs["v"].p - 1)
    names = [float((half + i % half) << (i // half)) / half for i in range(count)]
    leaves = {x: symbol(f"v{t}") for t, x in enumerate(names)}
    scalars = dict.fromkeys(SCALARS, 1.0) | {"softcap": 0.0, "scale": _SCALE}
    scalars |= {name: float("-inf") if name == "sink" else 0.0 for name in HEAD_SCALARS}
    if sink:
        scalars["sink"] = _SINK
    realm = Realm(leaves, {_SCALE: symbol(SCALE), _SINK: Log(symbol(SINK))}, path)
    columns = [0] if masked else columns_of(program, head_dim)
    row = RowInputs(
        v=np.repeat(np.array(names)[:, None], 1 + max(columns), axis=1),
        scalars=scalars,
        feed={program.score_site(): feed},
    )
    walker = Named(program, plan, row, realm)
    axes = program.sites["output"].type.axes
    try:
        outputs = [walker.value("output", dict.fromkeys(axes, d)) for d in columns]
    except BreaksError as error:
        return Broken(error.site, error.cause, True), {}
    finally:
        told["floors"] |= realm.floors
        told["approximate"] |= realm.approximate
    if not all(isinstance(x, Value) for x in outputs):
        return Broken("output", "the output is a logarithm", True), {}
    broken = None if masked else _sums(program, shape, realm) or _states(program, shape, walker, realm)
    wanted = _attention([t for t in range(count) if t not in masked], sink)
    output = next((x for x in outputs if x != wanted), outputs[0])
    if broken is None and output != wanted:
        broken = Broken("output", _off(output, wanted), True)
    if broken is not None:
        return replace(broken, output=output, maxima=dict(realm.maxima)), {}
    if not masked:
        told["sympy"] = told.get("sympy", 0) + _by_sympy(output, wanted)
    return None, {n: dict(walker.memo(n)[1]) for n in told["chosen"]}


def blind_piece(program: Program, plan: Plan, sink: bool) -> bool:
    """Whether a piece whose tokens are all masked changes nothing: the last one of the instance, outermost or innermost."""
    for version in versions_of(program):
        shape = shape_of(version, plan)
        count = int(np.prod(shape.sizes))
        for part in {count // shape.sizes[0], shape.sizes[-1]}:
            if part == count:
                continue
            masked = frozenset(range(count - part, count))
            todo: list[tuple[Decision, ...]] = [()]
            for path in todo:
                try:
                    broken, _ = _walk(
                        version, shape, path, sink, int(plan.context["head_dim"]), _nothing_told(), masked
                    )
                except ForkError as fork:
                    todo += [(*path, Decision(fork.key, holds)) for holds in (True, False)]
                    if len(todo) > MAX_PATHS:
                        return False
                    continue
                except UnsupportedError:
                    return False
                if broken is not None:
                    return False
    return True


def _nothing_told() -> dict[str, Any]:
    return {"paths": 0, "floors": set[float](), "approximate": False, "chosen": []}


def _attention(tokens: Sequence[int], sink: bool) -> Value:
    above = below = ZERO
    for t in tokens:
        above, below = above + symbol(f"E{t}") * symbol(f"v{t}"), below + symbol(f"E{t}")
    return above / (below + symbol(SINK) if sink else below)


def _by_sympy(output: Value, wanted: Value) -> int:
    """1 if SymPy, too, says that the difference is 0; where the sums are long, at a rational point."""
    import sympy

    difference = output.sympy() - wanted.sympy()
    if len(output.symbols()) <= 12:
        ok = sympy.cancel(sympy.together(difference)) == 0
    else:
        symbols = sorted(output.symbols() | wanted.symbols())
        point = {s: sympy.Rational(i + 2, 2 * i + 3) for i, s in enumerate(symbols)}
        ok = difference.subs({x: point[x.name] for x in difference.free_symbols}) == 0
    if not ok:
        raise AssertionError("SymPy disagrees about the output: report it")
    return 1


def _sums(program: Program, shape: Shape, realm: Realm) -> Broken | None:
    """The first sum over generic tokens or pieces whose terms are not alike."""
    for found in realm.sums:
        removed = {
            a for n in program.sites[found.site].expr.walk() if isinstance(n, Reduce) for a in n.over or ()
        }
        generic = removed - shape.whole - set(program.views) - {DEPTH}
        live = [t for t in found.terms if t.coefficient]
        if not generic or not live:
            continue
        signatures = [signature(t) for t in live]
        if any(s is None for s in signatures):
            bad = live[signatures.index(None)]
            return Broken(found.site, f"a term is no sum of e^s or e^s v alone: {_short(bad)}", True)
        if len(set(signatures)) > 1:
            return Broken(found.site, "its terms count with different factors", True)
        seen: set[str] = set()
        for term in live if found.start is None else (found.start, *live):
            mine = tokens_of(term) if term.coefficient else set[str]()
            if seen & mine:
                what = "the sink" if SINK in seen & mine else "a token"
                return Broken(found.site, f"{what} is in more than one of its terms", True)
            seen |= mine
    return None


def _states(program: Program, shape: Shape, walker: Walker, realm: Realm) -> Broken | None:
    """The first state that has another form after one more step."""
    logs = [n for n in program.states if n in below_score(program) and _is_log(program, walker, n)]
    for name, state in program.states.items():
        if name not in below_score(program) or (name in logs and _is_maximum(walker, program, name)):
            continue
        fold = [a for a in state.levels if shape.sizes[program.level_names.index(a)] > 1]
        for axis in fold:
            if axis in shape.whole:
                continue
            for step in range(shape.sizes[program.level_names.index(axis)] - 1):
                if broken := _one_more(program, walker, name, axis, step, logs):
                    return broken
    return None


def _one_more(
    program: Program, walker: Walker, name: str, axis: str, step: int, logs: Sequence[str]
) -> Broken | None:
    """Whether a state keeps its form from one step to the next."""
    steps = (step, step + 1)
    found: list[Value | Log] = [walker.value(name, _first(program, name) | {axis: i}) for i in steps]
    if len({isinstance(x, Log) for x in found}) > 1:
        return Broken(name, "a state is now a number, now a logarithm", False)
    values = [x.value if isinstance(x, Log) else x for x in found]  # a running log-sum-exp is its sum
    forms = [form_of(v) for v in values]
    if any(f is None for f in forms):
        return Broken(name, _uneven(axis, values[1], forms), True)
    peers = [
        [walker.value(m, _first(program, m) | {axis: i}) for i in steps]
        for m in logs
        if axis in program.states[m].levels
    ]
    pairs = [(p[0].value, p[1].value) for p in peers if all(isinstance(x, Log) for x in p)]
    if not same_form(forms[0], forms[1], pairs):
        return Broken(name, f"after one more {axis} it has another form: {_short(values[1])}", False)
    return None


def _is_maximum(walker: Walker, program: Program, name: str) -> bool:
    """Whether a state is what is subtracted: a maximum, a free symbol here."""
    found = walker.value(name, _first(program, name))
    return (
        isinstance(found, Log) and not found.value.factors and all(s[0] == "X" for s, _ in found.value.mono)
    )


def _is_log(program: Program, walker: Walker, name: str) -> bool:
    try:
        return isinstance(walker.value(name, _first(program, name)), Log)
    except (InputError, SpecError):
        return False


def _first(program: Program, name: str) -> dict[str, int]:
    return dict.fromkeys(program.sites[name].type.axes, 0)


def _uneven(axis: str, value: Value, forms: Sequence[Any]) -> str:
    if forms[1] is None and forms[0] is not None:
        return f"after one more {axis} the earlier tokens no longer count as the new ones do: {_short(value)}"
    return f"it is no sum of e^s or e^s v: {_short(value)}"


def _short(value: Value) -> str:
    text = str(value.sympy())
    return text if len(text) < 160 else text[:157] + "..."


def _off(output: Value, wanted: Value) -> str:
    ratio = output / wanted
    if len(str(ratio.sympy())) < 200:
        return f"the output is attention times {_short(ratio)}"
    return f"the output is {_short(output)}"
