"""`identify`: candidates ranked against a capture, with what would tell the ambiguous ones apart."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specs.errors import InputError
from verify.identify.candidates import Candidate, Class, Refused, bound
from verify.identify.likelihood import (
    BEYOND,
    DISTURBED,
    bin_of,
    log_likelihood,
    log_likelihood_of_none,
    pooled,
    positions_needed,
    posteriors,
)
from verify.identify.observations import Observation
from verify.identify.predict import First, Fit, apart, fits
from verify.numerics.ulp import format_of

#: Log-likelihood in nats by which the first must lead to be named: e**5 is about 150 to 1.
LEAD = 5.0
#: A captured output this many times farther from exact attention than any prediction was not made from these inputs.
FOREIGN = 8.0


@dataclass(frozen=True)
class Ranked:
    """One class of candidates in the ranking.

    Attributes:
        names: candidates that are the same program with the same partition here, so equal by proof.
        exact_share: share of captured numbers with the predicted bits; ``exact_positions`` of ``positions``.
        log_likelihood: in nats; ``posterior`` under equal priors, "none of the candidates" included.
        largest: largest ULP distance, None if NaN or infinity stood against a number somewhere.
        histogram: positions by largest distance: [low, high, count].
        first: the first number that differs.
    """

    names: tuple[str, ...]
    exact_share: float
    exact_positions: int
    positions: int
    log_likelihood: float
    posterior: float
    largest: int | None
    histogram: tuple[tuple[int, int, int], ...]
    first: First | None


@dataclass(frozen=True)
class Apart:
    """Two classes (numbers in the ranking): the share of positions in which their predictions differ, and how many
    positions of this kind tell them apart with an error of 1 % (None: they never differ here).
    """

    left: int
    right: int
    share: float
    needed: int | None
    confused: float


@dataclass(frozen=True)
class Identification:
    """What `identify` finds.

    Attributes:
        verdict: one sentence.
        kind: named | ambiguous | none.
        ranking: best first.
        none_log_likelihood, none_posterior: of "none of the candidates".
        e: share of positions taken to be disturbed, and where it comes from.
        confusion: every pair of classes.
        foreign: a sentence where the captured output is not a function of the captured inputs.
        refused: candidates that could not be tried.
        ambiguous: numbers of the classes that this capture does not tell apart from the first.
    """

    verdict: str
    kind: str
    ranking: tuple[Ranked, ...]
    none_log_likelihood: float
    none_posterior: float
    e: float
    e_source: str
    confusion: tuple[Apart, ...]
    foreign: str
    refused: tuple[Refused, ...]
    ambiguous: tuple[int, ...]

    def to_json(self) -> dict[str, Any]:
        """As JSON."""
        return asdict(self)


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
        InputError: ``e`` is no share, there are no observations, or every candidate is refused.
    """
    if e is not None and not 0.0 < e < 1.0:
        raise InputError(f"{e} is not between 0 and 1", place="e", remedy="give a share of positions")
    if not observations:
        raise InputError("nothing to compare", place="capture", remedy="give one with attention outputs")
    classes, refused = bound(given, observations)
    found, late = fits(classes, observations, progress)
    refused = [*refused, *late]
    if not found:
        why = f"{refused[0].name}: {refused[0].why}" if refused else "there are none"
        raise InputError(
            f"no candidate can be tried; {why}",
            place="candidates",
            remedy="name candidates that take these shapes and formats",
        )
    share = DISTURBED if e is None else e
    distinct = [f.distances for f in found]
    h = pooled(distinct)
    likelihoods = [log_likelihood(d, h, share) for d in distinct]
    order = sorted(range(len(found)), key=lambda i: (-found[i].exact / found[i].elements, -likelihoods[i]))
    none = log_likelihood_of_none(distinct[order[0]], h)
    chances = posteriors([*(likelihoods[i] for i in order), none])
    ranking = tuple(
        _ranked(found[i], likelihoods[i], chance) for i, chance in zip(order, chances, strict=False)
    )
    ordered = [found[i] for i in order]
    confusion = _confusion(ordered)
    alike = tuple(
        p.right
        for p in confusion
        if p.left == 0 and likelihoods[order[0]] - likelihoods[order[p.right]] < LEAD
    )
    foreign = _foreign(observations, ordered)
    kind, verdict = _verdict(ranking, likelihoods[order[0]], none, alike, foreign)
    source = "the usual 1e-3" if e is None else "repeats"
    return Identification(
        verdict, kind, ranking, none, chances[-1], share, source, confusion, foreign, tuple(refused), alike
    )


def _ranked(fit: Fit, likelihood: float, chance: float) -> Ranked:
    d = fit.distances
    bins, counts = np.unique(bin_of(d), return_counts=True)
    spans = [(0, 0), (1, 1), *((2 ** (k - 2) + 1, 2 ** (k - 1)) for k in range(2, 65)), (BEYOND, BEYOND)]
    return Ranked(
        names=tuple(m.name for m in fit.of.members),
        exact_share=fit.exact / fit.elements,
        exact_positions=int((d == 0).sum()),
        positions=len(d),
        log_likelihood=likelihood,
        posterior=chance,
        largest=None if (d == BEYOND).any() else int(d.max()),
        histogram=tuple((*spans[b], int(n)) for b, n in zip(bins, counts, strict=True)),
        first=fit.first,
    )


def _confusion(found: Sequence[Fit]) -> tuple[Apart, ...]:
    pairs: list[Apart] = []
    for i, left in enumerate(found):
        for j in range(i + 1, len(found)):
            differs = apart(left, found[j])
            share = float(differs.mean())
            pairs.append(Apart(i, j, share, positions_needed(share), float((1.0 - share) ** len(differs))))
    return tuple(pairs)


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
        captured = max(captured, float(np.abs(out - exact).max()))
        step = max(step, float(np.abs(exact).max()) * 2.0 ** -format_of(observations[i].out.dtype).p)
        for fit in found:
            predicted = max(predicted, float(np.abs(fit.outputs[i].astype(np.float64) - exact).max()))
    if not plain or captured <= FOREIGN * max(predicted, step):
        return ""
    return (
        f"the captured output lies up to {captured:.2g} from exact attention of the captured q, k and v, every candidate's "
        f"within {predicted:.2g}: it was not computed from these numbers (were they rounded when they were stored?)"
    )


def _verdict(
    ranking: Sequence[Ranked], first: float, none: float, alike: Sequence[int], foreign: str
) -> tuple[str, str]:
    best = ranking[0]
    name = " = ".join(best.names[:3]) + (f" and {len(best.names) - 3} more" if len(best.names) > 3 else "")
    share = f"{best.exact_positions:,} of {best.positions:,} positions bit-exact"
    if foreign:
        return "none", f"none of the candidates: {foreign}"
    if none >= first:
        return "none", f"none of the candidates; the nearest is {name}, with {share}"
    if first - none < LEAD:
        return (
            "ambiguous",
            f"{name} fits ({share}), but so few positions do not rule out that none of the candidates is right",
        )
    if alike:
        others = ", ".join(ranking[i].names[0] for i in alike[:4]) + (" ..." if len(alike) > 4 else "")
        return "ambiguous", f"{name} ({share}); this capture does not tell it from {others}"
    exactly = "bit-exact with" if best.exact_share == 1.0 else "closest to"
    return "named", f"{exactly} {name}: {share}"


def classes_of(given: Sequence[Candidate], observations: Sequence[Observation]) -> list[Class]:
    """The classes of candidates on these observations, without running them: which are equal by proof."""
    return bound(given, observations)[0]
