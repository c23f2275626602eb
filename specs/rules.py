"""Named partition rules: heuristics of real kernels that are loops, not formulas.

A rule is a pure function of integers that returns a positive integer. It is registered under its own name
and called from any integer formula of a spec. Rules are ordinary Python of this package or of an installed
extension; a spec file can name a rule, never define one.
"""

from __future__ import annotations

import inspect
import math
import struct
from collections.abc import Callable

from specs.errors import SpecError

Rule = Callable[..., int]
_RULES: dict[str, tuple[Rule, int]] = {}
MAX_STEPS = 1 << 16


def partition_rule(function: Rule) -> Rule:
    """Register ``function(int, ...) -> int`` as a rule under its own name.

    Raises:
        ValueError: the name is taken by another function.
    """
    name = function.__name__
    if name in _RULES and _RULES[name][0] is not function:
        raise ValueError(f"a partition rule called {name!r} exists already")
    _RULES[name] = (function, len(inspect.signature(function).parameters))
    return function


def rule_names() -> tuple[str, ...]:
    """The names of all registered rules."""
    return tuple(_RULES)


def call_rule(name: str, args: tuple[int, ...]) -> int:
    """Apply rule ``name``.

    Raises:
        SpecError: unknown rule, wrong number of arguments, or arguments for which the rule has no answer.
    """
    if name not in _RULES:
        raise SpecError(f"unknown partition rule '{name}'", remedy=f"known rules: {', '.join(_RULES)}")
    function, arity = _RULES[name]
    if len(args) != arity:
        raise SpecError(f"{name}() takes {arity} arguments, got {len(args)}", remedy="see its documentation")
    try:
        return int(function(*args))
    except (ArithmeticError, ValueError) as error:
        given = ", ".join(map(str, args))
        raise SpecError(
            f"{name}({given}) has no answer: {error}", remedy="guard its arguments, as in max(1, ...)"
        ) from None


def _f32(x: float) -> float:
    return struct.unpack("<f", struct.pack("<f", x))[0]


@partition_rule
def fa2_num_splits(workers: int, slots: int, blocks: int, most: int) -> int:
    """FlashAttention-2's ``num_splits_heuristic``.

    Args:
        workers: batch * heads * query blocks.
        slots: twice the number of SMs.
        blocks: key/value blocks of the sequence.
        most: upper limit of the split count (128 in the library).

    Raises:
        ValueError: an argument but ``blocks`` is less than 1, or the rule would try more than `MAX_STEPS` counts.

    Efficiencies are f32 values, compared in double. Source: Dao-AILab/flash-attention
    0251105a, csrc/flash_attn/flash_api.cpp, ``num_splits_heuristic``.
    """
    if min(workers, slots, most) < 1 or blocks < 0:
        raise ValueError("workers, slots and the limit must be at least 1")
    if _f32(workers) >= _f32(_f32(0.8) * _f32(slots)):
        return 1
    most = min(most, slots, blocks)
    if most > MAX_STEPS:
        raise ValueError(f"more than {MAX_STEPS} split counts to try")
    efficiency: dict[int, float] = {}
    for splits in range(1, most + 1):
        if splits > 1 and -(-blocks // splits) == -(-blocks // (splits - 1)):
            continue
        waves = _f32(_f32(workers * splits) / _f32(slots))
        efficiency[splits] = _f32(waves / math.ceil(waves))
    best = max(efficiency.values(), default=0.0)
    return next((s for s, e in efficiency.items() if e >= 0.85 * best), 1)
