"""Who owns which token, by plain lists and slices, from the rules as ``docs/language.md`` states them.

`verify.partition` makes the same plan by array arithmetic for the emulator; `difference` holds the two against each
other. Only the integers of the rules come from the bound program.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import prod

import numpy as np
from numpy.typing import NDArray

from specs.context import Value
from specs.errors import SpecError, UnsupportedError
from specs.nodes import LevelRule, Node, Num
from specs.program import Program
from verify.partition import MAX_PADDED, Plan

Tokens = Sequence[int]
Index = tuple[int, ...]


def partition(program: Program, context: Mapping[str, Value]) -> Plan:
    """The partition of one sequence of ``context["kv_len"]`` tokens.

    Raises:
        SpecError: tokens are left that no piece owns. UnsupportedError: the plan would be too large.
    """
    whole = int(context["kv_len"])
    visited: dict[Index, Tokens] = {(): range(whole)}
    sizes: list[int] = []
    shells: list[list[Index]] = []
    for level in program.levels:
        cut: dict[Index, Tokens] = {}
        count = integer(level.rule.args[0], 1) if level.rule.keep_empty else 1
        for at, tokens in visited.items():
            parts = pieces(level.rule, tokens)
            if sum(map(len, parts)) != len(tokens):
                raise SpecError(
                    f"level '{level.name}' leaves tokens that no piece owns",
                    place=program.spec,
                    remedy="cut a whole that is at least as long as the sequence",
                )
            kept = {(*at, i): part for i, part in enumerate(parts) if level.rule.keep_empty or len(part)}
            count = max([1, count, *(index[-1] + 1 for index in kept)])
            cut |= kept
        visited = cut
        sizes.append(count)
        shells.append(list(cut))
    longest = max([1, *map(len, visited.values())])
    if prod(sizes) * longest > MAX_PADDED:
        raise UnsupportedError(
            f"the partition needs {prod(sizes) * longest} slots; the limit is {MAX_PADDED}",
            place=program.spec,
            remedy="use fewer or larger pieces, or a shorter sequence",
        )
    table = np.full((*sizes, longest), -1, dtype=np.int32)
    for at, tokens in visited.items():
        table[at][: len(tokens)] = tokens
    exists: dict[str, NDArray[np.bool_]] = {}
    for depth, (level, shell) in enumerate(zip(program.levels, shells, strict=True), start=1):
        exists[level.name] = np.zeros(sizes[:depth], dtype=np.bool_)
        for at in shell:
            exists[level.name][at] = True
    return Plan(program, dict(context), program.level_names, table, exists)


def pieces(rule: LevelRule, tokens: Tokens) -> list[Tokens]:
    """What one rule makes of the tokens of one parent, in visiting order, empty pieces included."""
    n, unit = integer(rule.args[0], 1), integer(rule.unit, 1)
    if rule.kind == "tiles":
        tiles = [tokens[at : at + n] for at in range(0, len(tokens), n)]
        return tiles[::-1] if rule.desc else tiles
    n = max(1, n)
    if rule.kind == "deal":
        units = [tokens[at : at + unit] for at in range(0, len(tokens), unit)]
        hands: list[list[int]] = [[] for _ in range(n)]
        for i, dealt in enumerate(units):
            hands[(i - integer(rule.skip, 0)) % n].extend(dealt)
        return list(hands)
    whole = len(tokens) if rule.of is None else integer(rule.of, 0)
    units_of_whole = -(-whole // unit)
    skip = min(integer(rule.skip, 0), units_of_whole)
    each = -(-(units_of_whole - skip) // n)
    edges = [0, *((skip + i * each) * unit for i in range(1, n + 1))]
    return [tokens[low:high] for low, high in pairwise(edges)]


def integer(node: Node | None, default: int) -> int:
    """The value of a bound integer of a rule."""
    if node is None:
        return default
    assert isinstance(node, Num), node
    return int(node.text)


def difference(mine: Plan, other: Plan) -> str:
    """Where two plans of one program differ first; empty where they are equal."""
    if mine.levels != other.levels:
        return f"levels {mine.levels} against {other.levels}"
    if mine.tokens.shape != other.tokens.shape:
        return f"a table of {mine.tokens.shape} against {other.tokens.shape}"
    for name in mine.levels:
        if not np.array_equal(mine.exists[name], other.exists[name]):
            return f"other pieces of '{name}' are visited"
    wrong = np.argwhere(mine.tokens != other.tokens)
    if len(wrong):
        at = tuple(int(i) for i in wrong[0])
        return f"token {int(mine.tokens[at])} against {int(other.tokens[at])} at {at}"
    return ""
