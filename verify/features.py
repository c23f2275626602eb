"""What a problem has beyond q, k and v: sinks, ALiBi slopes, a cap on scores, scales of the KV cache.

Each is checked here, and refused where a spec has no line that uses it: nothing that was given is ignored.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specs.errors import InputError, UnsupportedError
from specs.formats import Format
from specs.program import Program
from verify.arguments import Problem, floats
from verify.numerics.rounding import round_array


@dataclass(frozen=True, eq=False)
class Features:
    """Arguments of `emulate`.

    Attributes:
        sinks: ``[q_heads]`` (``[rows]`` with ready scores): the logit of each head's sink, in the units of scaled
            scores; -inf: none. It adds ``exp(sink)`` to the sum of weights, and no value.
        alibi_slopes: ``[q_heads]``: the slope of each head; a scaled score gets ``slope * (key - query)``.
        softcap: scaled scores become ``softcap * tanh(score / softcap)``; None or 0: they stay.
        k_scale, v_scale: what the stored K and V are multiplied by.
    """

    sinks: Any = None
    alibi_slopes: Any = None
    softcap: Any = None
    k_scale: Any = 1.0
    v_scale: Any = 1.0

    def context(self) -> dict[str, int]:
        """The integers by which formulas see that something was given."""
        flags = {
            "has_sinks": self.sinks is not None,
            "has_alibi": self.alibi_slopes is not None,
            "has_softcap": not (self.softcap is None or (np.ndim(self.softcap) == 0 and self.softcap == 0)),
        }
        return {name: 1 for name, given in flags.items() if given}


NONE = Features()


def with_features(problem: Problem, features: Features, compute: Format) -> Problem:
    """``problem`` with ``features``, checked and, per head, rounded once to the compute format.

    Raises:
        InputError: a shape, dtype or value is wrong, or ready scores come with what belongs before the score.
    """
    softcap = 0.0 if features.softcap is None else features.softcap
    softcap = _positive("softcap", softcap, compute, zero=True)
    k_scale = _positive("k_scale", features.k_scale, compute)
    v_scale = _positive("v_scale", features.v_scale, compute)
    if problem.scores is not None and (features.alibi_slopes is not None or softcap or k_scale != 1.0):
        raise InputError(
            "ready scores are scaled, capped and biased already",
            place="argument scores",
            remedy="leave out softcap, alibi_slopes and k_scale, or give q, k and v",
        )
    per_row: dict[str, NDArray[np.float64]] = {}
    for name, argument, given in (
        ("sink", "sinks", features.sinks),
        ("slope", "alibi_slopes", features.alibi_slopes),
    ):
        if given is not None:
            per_row[name] = _by_row(argument, given, problem, compute)
    return replace(problem, per_row=per_row, softcap=softcap, k_scale=k_scale, v_scale=v_scale)


def scalars(problem: Problem) -> dict[str, float]:
    """The scalars of ``problem`` that are the same for every head."""
    return {"softcap": problem.softcap, "k_scale": problem.k_scale, "v_scale": problem.v_scale}


def check_used(program: Program, problem: Problem) -> None:
    """Refuse what ``problem`` has and no line of ``program`` uses, and what lines use and it does not have.

    Raises:
        UnsupportedError: something given would be ignored.
        InputError: a spec needs a sink or slope for each head, and none is given.
    """
    names = program.names()
    given: Mapping[str, tuple[bool, str]] = {
        "sink": ("sink" in problem.per_row, "sinks"),
        "slope": ("slope" in problem.per_row, "alibi_slopes"),
        "softcap": (problem.softcap != 0.0, "softcap"),
        "k_scale": (problem.k_scale != 1.0, "k_scale"),
        "v_scale": (problem.v_scale != 1.0, "v_scale"),
    }
    for name, (is_given, argument) in given.items():
        if is_given and name not in names:
            raise UnsupportedError(
                f"{program.spec} has no line that uses {name}",
                place=f"argument {argument}",
                remedy="leave it out, or use a spec of a kernel that takes it",
            )
        if not is_given and name in names and name in ("sink", "slope"):
            raise InputError(
                f"{program.spec} needs a {name} for each query head",
                place=f"argument {argument}",
                remedy=f"give {argument} [q_heads]",
            )
    masked = bool((problem.low > 0).any() or (problem.high < problem.kv_len).any())
    if masked and problem.scores is None and "visible" not in names:
        raise UnsupportedError(
            f"{program.spec} masks no token",
            place="argument causal",
            remedy="leave out causal and window, or use a spec of a kernel that masks",
        )


def _positive(name: str, value: Any, compute: Format, *, zero: bool = False) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    good = math.isfinite(number) and (number > 0 or (zero and number == 0))
    if not good or (not compute.is_real and number > compute.largest):
        raise InputError(
            f"{name} = {str(value)[:40]}", place=f"argument {name}", remedy="give a positive finite number"
        )
    return number


def _by_row(argument: str, given: Any, problem: Problem, compute: Format) -> NDArray[np.float64]:
    """``[q_heads]`` as ``[kv_head, row]``."""
    array = floats(argument, given, (1,)).astype(np.float64)
    group = problem.rows // problem.queries
    heads = problem.rows if problem.scores is not None else problem.heads * group
    if array.shape != (heads,):
        raise InputError(
            f"shape {array.shape} for {heads} {'rows' if problem.scores is not None else 'query heads'}",
            place=f"argument {argument}",
            remedy="give one number for each",
        )
    allowed = np.isfinite(array) | (np.isneginf(array) & (argument == "sinks"))
    if not allowed.all():
        at = int(np.argmin(allowed))
        raise InputError(
            f"{array[at]} at index {at}",
            place=f"argument {argument}",
            remedy="give finite numbers" + ("; -inf is no sink" if argument == "sinks" else ""),
        )
    stored = array if compute.is_real else round_array(array, compute)
    if not (np.isfinite(stored) | np.isneginf(array)).all():
        raise InputError(
            f"a number is past {compute}", place=f"argument {argument}", remedy="give smaller numbers"
        )
    if problem.scores is not None:
        return stored[None]
    return np.ascontiguousarray(np.tile(stored.reshape(problem.heads, group), problem.queries))
