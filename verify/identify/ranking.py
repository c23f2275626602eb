"""Candidates ranked by the distances of their predictions, whatever was predicted: the verdict and what it rests on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specs.errors import InputError
from verify.identify.likelihood import (
    BEYOND,
    DISTURBED,
    Distances,
    bin_of,
    log_likelihood,
    log_likelihood_of_none,
    pooled,
    positions_needed,
    posteriors,
)
from verify.words import plural

#: Log-likelihood in nats by which the first must lead to be named: e**5 is about 150 to 1.
LEAD = 5.0
#: Candidates in the confusion matrix; resamples of positions, and their seed.
MATRIX, DRAWS, SEED = 24, 1000, 20240229
#: Reasons that an error gives why candidates cannot be tried.
REASONS = 4


@dataclass(frozen=True)
class First:
    """The first element that differs: where it stands, and both values with their bits; ``layer`` where it has one."""

    observation: str
    site: str
    index: dict[str, int]
    captured: str
    predicted: str
    layer: int | None = None

    def __str__(self) -> str:
        where = ", ".join(f"{axis} {i}" for axis, i in self.index.items())
        return f"{self.site} of {self.observation}, {where}: captured {self.captured}, predicted {self.predicted}"


@dataclass(frozen=True)
class Refused:
    """A candidate that cannot have made the capture, or is not described for it, and why."""

    name: str
    why: str


@dataclass(frozen=True, eq=False)
class Judged:
    """One class of candidates against the capture.

    Attributes:
        names: of the candidates that are one program here.
        elements, exact: how many numbers were compared, and how many have equal bits (NaN payloads aside).
        distances: ``[positions]``, see `verify.identify.likelihood`.
        first: the first number that differs, None if all agree.
    """

    names: tuple[str, ...]
    elements: int
    exact: int
    distances: Distances
    first: First | None


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
class Confusion:
    """What a ranking would say of positions like these if one of the candidates were the truth.

    Attributes:
        names: of the first classes of the ranking, at most `MATRIX`, in its order; rows and columns of the matrices.
        exact: ``[truth][candidate]`` the share of positions at which the candidate's prediction has the truth's bits.
        ranked: ``[truth][candidate]`` the chance that the candidate is ranked first, by resampling as many positions as the
            capture has; candidates without a difference share the place.
    """

    names: tuple[str, ...]
    exact: tuple[tuple[float, ...], ...]
    ranked: tuple[tuple[float, ...], ...]


@dataclass(frozen=True)
class Identification:
    """What `identify` finds.

    Attributes:
        verdict: one sentence.
        kind: named | consistent | ambiguous | none.
        ranking: best first.
        none_log_likelihood, none_posterior: of "none of the candidates".
        e: share of positions taken to be disturbed, and where it comes from.
        confusion: every pair of classes; ``matrix``: the confusion matrix of the leading ones.
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
    matrix: Confusion = Confusion((), (), ())

    def to_json(self) -> dict[str, Any]:
        """As JSON."""
        return asdict(self)


def check_share(e: float | None) -> float:
    """The share of disturbed positions: ``e``, or the usual one.

    Raises:
        InputError: it is no share.
    """
    if e is None:
        return DISTURBED
    if not 0.0 < e < 1.0:
        raise InputError(f"{e} is not between 0 and 1", place="e", remedy="give a share of positions")
    return e


def nothing_fits(why: str, refused: Sequence[Refused]) -> Identification:
    """The answer where no candidate could be compared and it is known why none can be right."""
    verdict = f"none of the candidates: {why}"
    return Identification(
        verdict, "none", (), 0.0, 1.0, DISTURBED, "the usual 1e-3", (), why, tuple(refused), ()
    )


def rank(
    judged: Sequence[Judged],
    apart: Callable[[int, int], NDArray[np.bool_]],
    *,
    e: float | None = None,
    foreign: str = "",
    refused: Sequence[Refused] = (),
    consistent: bool = False,
) -> Identification:
    """Rank candidates: by share of exact numbers, then by log-likelihood.

    Args:
        judged: distinct candidates.
        apart: by two indices into ``judged``: ``[positions]``, whether the two predictions differ.
        e: share of positions that repeats of the capture disagree in; None: the usual 1e-3.
        foreign: why no candidate can be right, if that is known.
        refused: candidates that could not be tried.
        consistent: whether the prediction leaves something out, so that a fit is "consistent with" and names nothing.

    Raises:
        InputError: every candidate was refused, or ``e`` is no share.
    """
    share = check_share(e)
    if not judged:
        reasons = dict.fromkeys(r.why for r in refused)
        named = [f"{next(r.name for r in refused if r.why == why)}: {why}" for why in list(reasons)[:REASONS]]
        why = "; ".join(named) if named else "there are none"
        if len(reasons) > REASONS:
            why += f"; and {plural(len(reasons) - REASONS, 'more reason')}"
        raise InputError(
            f"no candidate can be tried; {why}",
            place="candidates",
            remedy="name specs and platforms that take these shapes and formats with -c, or none, so that all are tried",
        )
    h = pooled([j.distances for j in judged])
    found = [log_likelihood(j.distances, h, share) for j in judged]
    order = sorted(range(len(judged)), key=lambda i: (-judged[i].exact / judged[i].elements, -found[i]))
    none = log_likelihood_of_none(judged[order[0]].distances, h)
    chances = posteriors([*(found[i] for i in order), none])
    ranking = tuple(_ranked(judged[i], found[i], p) for i, p in zip(order, chances, strict=False))
    differ: dict[tuple[int, int], NDArray[np.bool_]] = {}
    confusion = _confusion(order, apart, differ)
    alike = tuple(
        p.right for p in confusion if p.left == 0 and found[order[0]] - found[order[p.right]] < LEAD
    )
    kind, verdict = _verdict(ranking, found[order[0]], none, alike, foreign, consistent)
    source = "the usual 1e-3" if e is None else "given, or from repeats"
    return Identification(
        verdict,
        kind,
        ranking,
        none,
        chances[-1],
        share,
        source,
        confusion,
        foreign,
        tuple(refused),
        alike,
        confusion_matrix([r.names[0] for r in ranking[:MATRIX]], differ, ranking[0].positions),
    )


def spans() -> list[tuple[int, int]]:
    """The distances that each bin of `bin_of` holds, from and to; `BEYOND` twice for the last."""
    return [(0, 0), (1, 1), *((2 ** (k - 2) + 1, 2 ** (k - 1)) for k in range(2, 65)), (BEYOND, BEYOND)]


def _ranked(fit: Judged, likelihood: float, chance: float) -> Ranked:
    d = fit.distances
    bins, counts = np.unique(bin_of(d), return_counts=True)
    edges = spans()
    return Ranked(
        names=fit.names,
        exact_share=fit.exact / fit.elements,
        exact_positions=int((d == 0).sum()),
        positions=len(d),
        log_likelihood=likelihood,
        posterior=chance,
        largest=None if (d == BEYOND).any() else int(d.max()),
        histogram=tuple((*edges[b], int(n)) for b, n in zip(bins, counts, strict=True)),
        first=fit.first,
    )


def confusion_matrix(
    names: Sequence[str], differ: Mapping[tuple[int, int], NDArray[np.bool_]], positions: int
) -> Confusion:
    """The confusion matrix of candidates.

    Args:
        names: of the candidates.
        differ: by two numbers, smaller first: ``[positions]``, whether their predictions differ.
        positions: how many are drawn with replacement, `DRAWS` times from `SEED`.
    """
    k = len(names)
    drawn = np.random.default_rng(SEED).multinomial(positions, np.full(positions, 1 / positions), size=DRAWS)
    exact, ranked = np.ones((k, k)), np.zeros((k, k))
    for truth in range(k):
        apart = np.zeros((positions, k), np.bool_)
        for other in range(k):
            if other != truth:
                apart[:, other] = differ[min(truth, other), max(truth, other)]
        exact[truth] = 1.0 - apart.mean(axis=0)
        tied = drawn @ apart.astype(np.int64) == 0
        ranked[truth] = (tied / tied.sum(axis=1, keepdims=True)).mean(axis=0)
    rows = [tuple(tuple(float(x) for x in row) for row in matrix) for matrix in (exact, ranked)]
    return Confusion(tuple(names), rows[0], rows[1])


def _confusion(
    order: Sequence[int],
    apart: Callable[[int, int], NDArray[np.bool_]],
    kept: dict[tuple[int, int], NDArray[np.bool_]],
) -> tuple[Apart, ...]:
    """Every pair of classes; those of the leading ones are kept."""
    pairs: list[Apart] = []
    for i in range(len(order)):
        for j in range(i + 1, len(order)):
            differs = apart(order[i], order[j])
            if j < MATRIX:
                kept[i, j] = differs
            share = float(differs.mean())
            pairs.append(Apart(i, j, share, positions_needed(share), float((1.0 - share) ** len(differs))))
    return tuple(pairs)


def _verdict(
    ranking: Sequence[Ranked],
    first: float,
    none: float,
    alike: Sequence[int],
    foreign: str,
    consistent: bool,
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
    if consistent:
        return "consistent", f"consistent with {name}: {share}"
    exactly = "bit-exact with" if best.exact_share == 1.0 else "closest to"
    return "named", f"{exactly} {name}: {share}"
