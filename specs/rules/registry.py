"""The registry of partition rules: who may be called from a formula, and with what."""

from __future__ import annotations

import inspect
from collections.abc import Callable

from specs.errors import SpecError

Rule = Callable[..., int]
Argument = int | tuple[int, ...]
_RULES: dict[str, tuple[Rule, tuple[bool, ...]]] = {}
MAX_STEPS = 1 << 16


def partition_rule(function: Rule) -> Rule:
    """Register ``function(...) -> int`` as a rule under its own name.

    Its arguments are integers, or the lengths of a batch where the annotation is ``tuple[int, ...]``.

    Raises:
        ValueError: the name is taken by another function.
    """
    name = function.__name__
    if name in _RULES and _RULES[name][0] is not function:
        raise ValueError(f"a partition rule called {name!r} exists already")
    parameters = inspect.signature(function).parameters.values()
    _RULES[name] = (function, tuple("tuple" in str(p.annotation) for p in parameters))
    return function


def rule_names() -> tuple[str, ...]:
    """The names of all registered rules."""
    return tuple(_RULES)


def call_rule(name: str, args: tuple[Argument, ...]) -> int:
    """Apply rule ``name``.

    Raises:
        SpecError: unknown rule, arguments of the wrong number or kind, or for which the rule has no answer.
    """
    if name not in _RULES:
        raise SpecError(f"unknown partition rule '{name}'", remedy=f"known rules: {', '.join(_RULES)}")
    function, lists = _RULES[name]
    if len(args) != len(lists):
        raise SpecError(
            f"{name}() takes {len(lists)} arguments, got {len(args)}", remedy="see its documentation"
        )
    for place, (arg, is_list) in enumerate(zip(args, lists, strict=True), start=1):
        if isinstance(arg, tuple) != is_list:
            wanted = "the lengths of the batch, kv_lens" if is_list else "an integer"
            raise SpecError(f"argument {place} of {name}() is {wanted}", remedy="see its documentation")
    try:
        return int(function(*args))
    except (ArithmeticError, ValueError) as error:
        given = ", ".join("kv_lens" if isinstance(a, tuple) else str(a) for a in args)
        raise SpecError(
            f"{name}({given}) has no answer: {error}", remedy="guard its arguments, as in max(1, ...)"
        ) from None
