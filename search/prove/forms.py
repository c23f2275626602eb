"""How the tokens of a term count: what makes a sum over more tokens, or one more step, of the same form."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

from search.prove.values import ZERO, Value

SINK = "e^sink"


def signature(term: Value) -> Any:
    """How the tokens of a term count: the factors of e^s and of e^s v that all of them share; None if they share none.

    A sum of terms of one signature over more tokens, or pieces, is the same with more tokens.
    """
    above, below = term.terms()
    counted: dict[tuple[str, Any], dict[str, Fraction]] = {}
    for mono, c in above.items():
        tokens = [(s, n) for s, n in mono if s[0] in "E" and s != SINK]
        values = [(s, n) for s, n in mono if s[0] == "v"]
        rest = tuple((s, n) for s, n in mono if s[0] not in "Ev" or s == SINK)
        if len(tokens) != 1 or tokens[0][1] != 1 or SINK in mono_symbols(mono):
            return None
        kind = "L"
        if values:
            if values != [("v" + tokens[0][0][1:], 1)]:
                return None
            kind = "N"
        counted.setdefault((kind, rest), {})[tokens[0][0]] = c
    if any(len(set(tokens.values())) > 1 for tokens in counted.values()):
        return None
    if len({frozenset(tokens) for tokens in counted.values()}) > 1:
        return None
    shape = tuple(
        sorted((kind, rest, next(iter(tokens.values()))) for (kind, rest), tokens in counted.items())
    )
    return shape, below


def mono_symbols(mono: Any) -> set[str]:
    """The symbols of a monomial."""
    return {s for s, _ in mono}


def form_of(value: Value) -> Any:
    """The signature of a state, a sink in it counting as one more token that has no value."""
    if not value.coefficient:
        return ((), ())
    return signature(_without_sink(value))


def _without_sink(value: Value) -> Value:
    if SINK not in value.symbols():
        return value
    above, below = value.terms()
    total = ZERO
    for mono, c in above.items():
        if SINK not in mono_symbols(mono):
            total = total + Value(c, mono)
    return total * Value(Fraction(1), (), below)


def same_form(a: Any, b: Any, pairs: Sequence[tuple[Value, Value]]) -> bool:
    """Whether two signatures are one, with the maxima of the first step replaced by those of the second."""
    if a == b or a == ((), ()):
        return True
    named = [(x.mono[0][0], y.mono[0][0]) for x, y in pairs if len(x.mono) == 1 and len(y.mono) == 1]
    return any(_renamed(a, {x: y}) == b for x, y in named) or _renamed(a, dict(named)) == b


def _renamed(x: Any, names: Mapping[str, str]) -> Any:
    if isinstance(x, str):
        return names.get(x, x)
    if not isinstance(x, tuple):
        return x
    parts: list[Any] = [_renamed(y, names) for y in x]  # pyright: ignore[reportUnknownVariableType]
    is_mono = all(isinstance(y, tuple) and len(y) == 2 and isinstance(y[1], int) for y in parts)  # pyright: ignore[reportUnknownArgumentType]
    return tuple(sorted(parts, key=repr)) if is_mono else tuple(parts)
