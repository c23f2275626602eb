"""`identify`: candidates ranked against captured attention."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from specs.errors import InputError
from verify.identify.candidates import Candidate, bound
from verify.identify.observations import Observation
from verify.identify.predict import Fit, apart, fits
from verify.identify.ranking import (
    Identification,
    Judged,
    Refused,
    check_share,
    nothing_fits,
    rank,
)
from verify.numerics.ulp import format_of
from verify.words import plural

#: A captured output this many times farther from exact attention than any prediction was not made from these inputs.
FOREIGN = 8.0


def identify(
    observations: Sequence[Observation],
    given: Sequence[Candidate],
    *,
    e: float | None = None,
    progress: Callable[[str, int, int], None] | None = None,
) -> Identification:
    """Rank candidates against what was recorded.

    Args:
        observations: attention problems with their outputs.
        given: candidates; those that are one program here are computed once and shown as one.
        e: share of positions that repeats of the capture disagree in; None: 1e-3.
        progress: as in `verify.identify.predict.fits`.

    Raises:
        InputError: ``e`` is no share, there are no observations, or no candidate takes these shapes.
    """
    check_share(e)
    tried, refused = tried_on(observations, given, progress=progress)
    return judged_fits(tried, refused, observations, e=e)


def tried_on(
    observations: Sequence[Observation],
    given: Sequence[Candidate],
    *,
    progress: Callable[[str, int, int], None] | None = None,
) -> tuple[list[Fit], list[Refused]]:
    """Every class of candidates on every observation, and the candidates that could not be tried.

    Raises:
        InputError: there are no observations.
    """
    if not observations:
        raise InputError("nothing to compare", place="capture", remedy="give one with attention outputs")
    classes, refused = bound(given, observations)
    tried, late = fits(classes, observations, progress)
    return tried, [*refused, *late]


def judged_fits(
    tried: Sequence[Fit],
    refused: Sequence[Refused],
    observations: Sequence[Observation],
    *,
    e: float | None = None,
) -> Identification:
    """What `identify` finds, of what `tried_on` gave."""
    found = [f for f in tried if not f.refused]
    foreign = _foreign(observations, tried)
    size = max((o.out.dtype.itemsize for o in observations), default=0)
    narrow = [f for f in tried if f.refused and f.outputs[0].dtype.itemsize <= size]
    if not found and (foreign or narrow):
        return nothing_fits(foreign or _unwritten(narrow), refused)
    judged = [
        Judged(tuple(m.name for m in f.of.members), f.elements, f.exact, f.distances, f.first) for f in found
    ]
    return rank(
        judged,
        lambda i, j: apart(found[i], found[j]),
        e=e,
        foreign=foreign,
        refused=refused,
    )


def _unwritten(tried: Sequence[Fit]) -> str:
    """That no candidate can have written the captured numbers, which hold more digits than its output does."""
    first = tried[0]
    others = sum(len(f.of.members) for f in tried) - 1
    more = f", as {plural(others, 'other')}" if others else ""
    return f"{first.of.members[0].name} {first.refused}{more}: a kernel of another output format, or of none, made them"


def exact_outputs(observation: Observation) -> NDArray[np.float64]:
    """Softmax attention of the recorded inputs in f64, ``[q_len, q_heads, head_dim]``: the real-number answer to 1e-13
    or so, which is far more than stored outputs need.
    """
    case = observation.case
    q, k, v = (np.asarray(case.arrays[n], np.float64) for n in ("q", "k", "v"))
    q = q if q.ndim == 3 else q[None]
    n, heads, dim = q.shape
    group = heads // k.shape[1]
    scale = dim**-0.5 if case.scale is None else case.scale
    out = np.empty((n, heads, v.shape[-1]))
    for head in range(heads):
        s = q[:, head] @ k[:, head // group].T * scale
        if case.causal:
            seen = np.arange(len(k))[None] <= (len(k) - n + np.arange(n))[:, None]
            s = np.where(seen, s, -np.inf)
        w = np.exp(s - s.max(axis=1, keepdims=True))
        out[:, head] = (w / w.sum(axis=1, keepdims=True)) @ v[:, head // group]
    return out


def _farthest(x: NDArray[np.float64], exact: NDArray[np.float64]) -> float:
    """The largest distance; what a kernel makes of an overflow or of an empty row is no distance."""
    return float(np.abs(x - exact)[np.isfinite(x)].max(initial=0.0))


def _foreign(observations: Sequence[Observation], found: Sequence[Fit]) -> str:
    """Whether the captured outputs lie where no arithmetic on the captured inputs could put them."""
    plain = [
        i
        for i, o in enumerate(observations)
        if o.case.kv_len and not o.case.features.context() and "window" not in o.case.context
    ]
    captured = predicted = step = 0.0
    for i in plain:
        exact = exact_outputs(observations[i])
        out = observations[i].out.astype(np.float64)
        captured = max(captured, _farthest(out, exact))
        step = max(step, float(np.abs(exact).max()) * 2.0 ** -format_of(observations[i].out.dtype).p)
        for fit in found:
            predicted = max(predicted, _farthest(fit.outputs[i].astype(np.float64), exact))
    if not plain or captured <= FOREIGN * max(predicted, step):
        return ""
    own = f", every candidate's within {predicted:.2g}" if found else ""
    return (
        f"the captured output lies up to {captured:.2g} from exact attention of the captured q, k and v{own}: it was not "
        "computed from these numbers (were they rounded when they were stored?)"
    )
