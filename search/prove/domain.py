"""The shapes that a proof is about, and the cases that its formulas fall into.

Lengths, batch, heads and SM counts stay unknown integers. What has few values (the GPU, head_dim, versions, flags,
options) is put in, one value after the other, and values that leave the same formulas are one case.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import count
from typing import Any

from search.prove.formulas import Lets, Scalar, names_of, value_of
from specs.context import CONTEXT, INPUT_FORMATS
from specs.errors import UnsupportedError
from specs.grammar import parse_expr, parse_level
from specs.loader import Spec
from specs.nodes import Cmp, LevelRule, Logic, Name, Node
from specs.platforms import Platform

MAX_CASES = 4096
#: Unknown integers and their ranges.
RANGES: dict[str, tuple[int, int]] = {
    "kv_len": (0, 1 << 20),
    "max_kv_len": (0, 1 << 20),
    "kv_capacity": (0, 1 << 20),
    "batch": (1, 4096),
    "kv_heads": (1, 256),
    "q_heads": (1, 256),
    "sm_count": (1, 512),
    "q_len": (1, 1 << 20),
    "num_splits": (0, 1 << 16),
    "window": (0, 1 << 20),
    "page_size": (1, 4096),
}
_FLAGS = ("causal", "cuda_graph", "batch_invariant", "has_sinks", "has_alibi", "has_softcap")
_VERSIONS = ("triton_version", "vllm_version", "flashinfer_version", "torch_version")


def in_words(fixed: Mapping[str, Scalar]) -> str:
    """The domain, for people."""
    text = "kv_len to 2^20, batch to 4,096, heads to 256, 1 to 512 SMs"
    return text + "".join(f", {n} = {v}" for n, v in fixed.items())


@dataclass(frozen=True)
class Case:
    """What is left of a spec's integers where everything that has few values is known.

    Attributes:
        example: the values that were put in; others may give the same case.
        let: undecided lines of ``[let]`` that are needed, by name.
        levels: levels and their folded rules, views among them.
        assumed: conditions that hold in this case: requirements of the spec, and which variants apply.
    """

    example: Mapping[str, Scalar]
    let: Mapping[str, Node]
    levels: tuple[tuple[str, LevelRule], ...]
    assumed: tuple[Node, ...]


def relevant(spec: Spec) -> set[str]:
    """Every name that the levels of a spec may depend on."""
    tables = [spec.file, *spec.file.variants]
    texts = [text for t in tables for text in t.levels.values()]
    # A variant that changes levels or what they need depends on its condition.
    found: set[str] = set()
    todo = {n for text in texts for n in names_of(text)}
    while todo:
        found |= todo
        grown: set[str] = set()
        for t in tables:
            for name in found & set(t.let):
                grown |= names_of(t.let[name])
        for v in spec.file.variants:
            if v.levels or set(v.let) & found or set(v.drop) & (found | set(spec.levels)):
                grown |= names_of(v.when)
        todo = grown - found
    return found


def cases(spec: Spec, platforms: Mapping[str, Platform], fixed: Mapping[str, Scalar]) -> list[Case]:
    """The cases of a spec over some platforms.

    Args:
        spec: a loaded spec.
        platforms: their compute capabilities, and classes of CPU, are what is put in.
        fixed: values of names of the context or of options, which then have no others.

    Raises:
        UnsupportedError: more than `MAX_CASES`.
    """
    needed = relevant(spec) | set(fixed)
    choices = _choices(spec, needed, platforms, fixed)
    states: dict[Any, Case] = {}
    # One name after the other: values that leave the same formulas are told apart no longer.
    partial: list[dict[str, Scalar]] = [{}]
    for group in choices:
        seen: dict[Any, dict[str, Scalar]] = {}
        for known in partial:
            for values in group:
                both = {**known, **values}
                if _refused(spec, needed, both):
                    continue
                seen.setdefault(_formulas(spec, needed, both), both)
        partial = list(seen.values())
        if len(partial) > MAX_CASES:
            raise UnsupportedError(
                f"the levels of {spec.name} fall into more than {MAX_CASES} cases",
                place="prove partition",
                remedy="fix some names: --set head_dim=128",
            )
    for known in partial:
        for case in _branches(spec, needed, known):
            key = (case.levels, tuple(case.let.items()), case.assumed)
            states.setdefault(key, case)
    return list(states.values())


def _choices(
    spec: Spec, needed: set[str], platforms: Mapping[str, Platform], fixed: Mapping[str, Scalar]
) -> list[list[dict[str, Scalar]]]:
    defaults = {n: v.default for n, v in CONTEXT.items()}
    out: list[list[dict[str, Scalar]]] = []
    if needed & {"compute_capability", "cpu"}:
        machines = {(p.compute_capability, p.cpu_class) for p in platforms.values()}
        out.append([{"compute_capability": c, "cpu": w} for c, w in sorted(machines)])
    for name in sorted(needed - {"compute_capability", "cpu"}):
        values: list[Scalar]
        if name in fixed:
            values = [fixed[name]]
        elif name in spec.file.options:
            values = [False, True] if isinstance(spec.file.options[name], bool) else [spec.file.options[name]]
        elif name == "head_dim":
            values = list(range(8, 257, 8))
        elif name in _FLAGS:
            values = [0, 1]
        elif name in _VERSIONS:
            values = _thresholds(spec, name)
        elif name == "fork":
            values = ["dao", "vllm"]
        elif name in INPUT_FORMATS:
            values = _formats(spec, name)
        elif name in CONTEXT and name not in RANGES and isinstance(defaults[name], int):
            values = [defaults[name] or 0]
        else:
            continue
        out.append([{name: v} for v in values])
    return out


def _texts(spec: Spec) -> Iterator[str]:
    for table in (spec.file, *spec.file.variants):
        yield from table.let.values()
    yield from (v.when for v in spec.file.variants)
    yield from (r.that for r in spec.file.requires)


def _formats(spec: Spec, name: str) -> list[Scalar]:
    letter = name[0]
    given = [spec.numbers.input_format(letter).base, *getattr(spec.numbers.accepts, letter)]
    return list(dict.fromkeys(given))


def _thresholds(spec: Spec, name: str) -> list[Scalar]:
    """Values of a version on both sides of every number that it is compared with, and the default."""
    found = {int(CONTEXT[name].default or 0)}
    for text in _texts(spec):
        for n in parse_expr(text).walk():
            if isinstance(n, Cmp) and name in names_in(n):
                for side in (n.left, n.right):
                    value = value_of(side)
                    if isinstance(value, int):
                        found |= {value - 1, value, value + 1}
    return sorted(v for v in found if v >= 0)


def names_in(n: Node) -> set[str]:
    """The names below a node."""
    return {x.id for x in n.walk() if isinstance(x, Name)}


def _refused(spec: Spec, needed: set[str], known: Mapping[str, Scalar]) -> bool:
    """Whether a requirement fails already, whatever the other names are; lines of [let] that variants change are open."""
    changed = {n for v in spec.file.variants for n in (*v.let, *v.drop)}
    lets = Lets(spec.file.let, known)
    for i in _requires(spec, needed):
        text = spec.file.requires[i].that
        if (
            not names_of(text) & set(spec.file.let) & changed
            and value_of(lets.fold(parse_expr(text))) is False
        ):
            return True
    return False


def _formulas(spec: Spec, needed: set[str], known: Mapping[str, Scalar]) -> Any:
    """Everything that the levels may depend on, folded: equal for values that make no difference."""
    lets = Lets({n: t for n, t in spec.file.let.items() if n in needed}, known)
    out: list[Any] = [(n, lets.node(n)) for n in lets.texts]
    out += [(n, lets.level(parse_level(t))) for n, t in spec.levels.items()]
    out += [lets.fold(parse_expr(spec.file.requires[i].that)) for i in _requires(spec, needed)]
    for number, v in enumerate(spec.file.variants):
        if not (set(v.let) & needed or v.levels or v.drop):
            continue
        when = lets.fold(parse_expr(v.when))
        if value_of(when) is not False:
            inner = Lets({**lets.texts, **{n: t for n, t in v.let.items() if n in needed}}, known)
            out.append((number, when, tuple((n, inner.node(n)) for n in v.let if n in needed)))
            out += [(number, n, inner.level(parse_level(t))) for n, t in v.levels.items()]
    return tuple(out)


def _requires(spec: Spec, needed: set[str]) -> list[int]:
    """The requirements that speak of nothing but what the levels depend on and of unknown integers."""
    found: list[int] = []
    for i, require in enumerate(spec.file.requires):
        names, todo = set[str](), names_of(require.that)
        while todo:
            names |= todo
            todo = {m for n in todo if n in spec.file.let for m in names_of(spec.file.let[n])} - names
        if names - set(spec.file.let) <= needed | set(RANGES):
            found.append(i)
    return found


def _branches(spec: Spec, needed: set[str], known: Mapping[str, Scalar]) -> Iterator[Case]:
    """The cases of one choice: two for every variant whose condition an unknown integer decides."""
    numbers = count()
    todo: list[tuple[int, Spec, tuple[Node, ...]]] = [(0, spec, ())]
    while todo:
        number, current, path = todo.pop()
        if next(numbers) > MAX_CASES:
            raise UnsupportedError(
                f"the variants of {spec.name} branch too often",
                place="prove partition",
                remedy="fix some names: --set window=0",
            )
        if number < len(spec.file.variants):
            v = spec.file.variants[number]
            if not (v.levels or set(v.let) & needed or set(v.drop) & (needed | set(spec.levels))):
                todo.append((number + 1, current, path))
                continue
            when = Lets(current.file.let, known).fold(parse_expr(v.when))
            if value_of(when) is not False:
                more = path if value_of(when) is True else (*path, when)
                todo.append((number + 1, current.with_variant(number), more))
            if value_of(when) is not True:
                more = path if value_of(when) is False else (*path, Logic("not", (when,)))
                todo.append((number + 1, current, more))
            continue
        lets = Lets(current.file.let, known)
        requires = [lets.fold(parse_expr(spec.file.requires[i].that)) for i in _requires(spec, needed)]
        if any(value_of(r) is False for r in requires):
            continue
        levels = tuple((n, lets.level(parse_level(t))) for n, t in current.levels.items())
        assumed = (*path, *(r for r in requires if value_of(r) is None))
        reached = lets.reached([rule for _, rule in levels] + list(assumed))
        yield Case(dict(known), dict(sorted(reached.items())), levels, assumed)
