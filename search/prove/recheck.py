"""The proofs of partitions against the code that makes plans: small cuts of every size, and whole plans."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cache
from itertools import product
from typing import Any

import numpy as np

from specs.context import CONTEXT
from specs.errors import InputError, Place, SpecError, UnsupportedError
from specs.formats import parse_format
from specs.integers import evaluate
from specs.loader import Spec
from specs.nodes import LevelRule, Node, Num, Op, Pos
from specs.platforms import Platform
from specs.program import TOKEN
from verify.partition import Plan, plan_program
from verify.partition import plan as make_plan

#: Lengths of small cuts, and their other arguments, each taken with each.
LENGTHS, COUNTS, UNITS, SKIPS = range(1, 12), range(1, 5), range(1, 4), range(0, 3)
#: Lengths of whole plans: around the sizes of tiles and pages, and a long one.
SHAPES = (1, 2, 15, 16, 17, 63, 64, 65, 127, 129, 255, 256, 257, 511, 513, 1023, 4097)


def owned_once(plan: Plan) -> str:
    """Nothing if the plan owns each token of 0..kv_len-1 exactly once, else what is wrong."""
    live = plan.tokens[plan.tokens >= 0]
    counts = np.bincount(live.ravel(), minlength=plan.kv_len)
    if counts.shape[0] != plan.kv_len:
        return f"token {int(live.max())} is owned, of {plan.kv_len}"
    bad = np.flatnonzero(counts != 1)
    return f"token {int(bad[0])} is owned {int(counts[bad[0]])} times" if bad.size else ""


def real_rules(kinds: Iterable[str]) -> tuple[int, str]:
    """Cut sequences of every small length by the code, and compare each token's owner with the lemma's formula.

    Returns:
        how many cuts, and what is wrong, or nothing.
    """
    found = [_real_rule(kind) for kind in kinds]
    return sum(count for count, _ in found), next((wrong for _, wrong in found if wrong), "")


@cache
def _real_rule(kind: str) -> tuple[int, str]:
    units, skips = ((1,), (0,)) if kind == "tiles" else (UNITS, SKIPS)
    count = 0
    for length, n, unit, skip in product(LENGTHS, COUNTS, units, skips):
        count += 1
        if wrong := _cut(kind, length, n, unit, skip):
            return count, wrong
    return count, ""


def _cut(kind: str, length: int, n: int, unit: int, skip: int) -> str:
    number = Num(str(n))
    extra: dict[str, Any] = {} if kind == "tiles" else {"unit": Num(str(unit)), "skip": Num(str(skip))}
    rule = LevelRule(kind, (number,), keep_empty=kind != "tiles", **extra)
    plan = plan_program(_bare(rule), {"kv_len": length})
    where = f"{kind}({n}, unit={unit}, skip={skip}) of {length} tokens"
    if wrong := owned_once(plan):
        return f"{where}: {wrong}"
    for piece, tokens in enumerate(plan.tokens):
        for t in tokens[tokens >= 0].tolist():
            if _owner(kind, t, length, n, unit, skip) != piece:
                return f"{where}: token {t} belongs to piece {piece}, not as the lemma says"
    return ""


def _owner(kind: str, t: int, length: int, n: int, unit: int, skip: int) -> int:
    """The owner as the lemmas have it."""
    if kind == "tiles":
        return t // n
    if kind == "deal":
        return (t // unit - skip) % n
    units = -(-length // unit)
    skip = min(skip, units)
    width, j = -(-(units - skip) // n), t // unit
    return 0 if j < skip + width else (j - skip) // width


def _bare(rule: LevelRule) -> Any:
    """A program of one level and no lines."""
    from specs.program import Level, Program

    f32 = parse_format("f32")
    return Program("cut", f32, dict.fromkeys("qkv", f32), (Level("piece", rule),), {}, {}, {})


def real_shapes(spec: Spec, platforms: Mapping[str, Platform], fixed: Mapping[str, Any]) -> tuple[int, str]:
    """Whole plans of sample shapes on every platform that the spec takes.

    Returns:
        how many plans, and what is wrong, or nothing.
    """
    count = 0
    heads = ({"q_heads": 24, "kv_heads": 4, "head_dim": 128}, {"q_heads": 8, "kv_heads": 8, "head_dim": 64})
    for platform in platforms.values():
        for i, n in enumerate(SHAPES):
            shape = {**heads[i % 2], "batch": 1 + 3 * (i % 3), "kv_len": n, "kv_capacity": n + 77 * (i % 2)}
            said, plan = _planned(spec, platform, {**shape, **fixed})
            if plan is None:
                if said:
                    return count, said
                break  # refused: this platform, or such heads
            count += 1
            if wrong := owned_once(plan):
                return count, f"{spec.name}@{platform.name}, {n} tokens: {wrong}"
    return count, ""


def _planned(spec: Spec, platform: Platform, shape: Mapping[str, Any]) -> tuple[str, Plan | None]:
    options = {n: v for n, v in shape.items() if n in spec.file.options}
    context = {n: v for n, v in shape.items() if n in CONTEXT and n not in platform.context}
    try:
        return "", make_plan(spec, platform, options=options, **context)
    except UnsupportedError:
        return "", None
    except (SpecError, InputError) as error:
        return f"{spec.name}@{platform.name}: {error.cause}", None


def evaluated(
    spec: Spec, platforms: Mapping[str, Platform], example: Mapping[str, Any], shape: Mapping[str, int]
) -> str:
    """What the code says of a shape that Z3 found: what is wrong with its plan, or nothing."""
    wanted = example.get("compute_capability")
    chosen = [p for p in platforms.values() if wanted in (None, p.compute_capability)]
    platform = chosen[0].model_copy(update={"sm_count": shape.get("sm_count", chosen[0].sm_count)})
    said, plan = _planned(spec, platform, {**example, **shape})
    if plan is None:
        return said
    return owned_once(plan) or _colours(plan)


def _colours(plan: Plan) -> str:
    """Nothing if every position that the plan has is coloured in range, else which is not."""
    sizes = dict(zip((*plan.levels, TOKEN), plan.tokens.shape, strict=True))
    for view in plan.program.views.values():
        for position in range(min(sizes.get(view.axis, 1), 1 << 12)):
            colour = evaluate(placed(view.index, position), {}, Place(""))
            if not 0 <= int(colour) < view.size:
                return f"view {view.name} gives position {position} the colour {colour}, of {view.size}"
    return ""


def placed(n: Node, position: int) -> Node:
    """An integer expression at a position: of its only axis."""
    if isinstance(n, Pos):
        return Num(str(position))
    return replace(n, args=tuple(placed(a, position) for a in n.args)) if isinstance(n, Op) else n
