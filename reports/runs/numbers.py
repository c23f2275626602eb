"""The numbers of a pair by name, as policies ask for them."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from reports.runs import contract as c
from reports.runs import measured as m
from reports.runs.wording import not_numerics
from verify.metrics.health import HEALTH_NAMES

Number = Callable[[c.Pair], "float | None"]


def _real(x: m.Real | None) -> float | None:
    return None if x is None else float(x)


def _flips(kind: str) -> Number:
    def share(pair: c.Pair) -> float | None:
        d = pair.decisions
        return getattr(d, kind) / d.n if d.n else None

    return share


def _values(name: str) -> Number:
    def value(pair: c.Pair) -> float | None:
        part = pair.values or pair.lists or pair.chosen
        return None if part is None else _real(getattr(part, name))

    return value


def _quantile(q: float) -> Number:
    def value(pair: c.Pair) -> float | None:
        part = pair.values or pair.lists or pair.chosen
        return None if part is None else next((_real(v) for k, v in part.quantiles if k == q), None)

    return value


def _spread(name: str, what: str, loose: str = "") -> Number:
    """A mean or a maximum over rows of distributions, or of what lists of likely tokens bound from below."""

    def value(pair: c.Pair) -> float | None:
        part: m.Spread | None = None
        if pair.distribution is not None:
            part = getattr(pair.distribution, name)
        elif pair.lists is not None and loose:
            part = getattr(pair.lists, loose)
        if part is None:
            return None
        return _real(part.maximum) if what == "max" else None if part.mean is None else _real(part.mean.value)

    return value


def _logprob(what: str) -> Number:
    def value(pair: c.Pair) -> float | None:
        part = None if pair.likelihood is None else pair.likelihood.absolute
        if part is None:
            return None
        return _real(part.maximum) if what == "max" else None if part.mean is None else _real(part.mean.value)

    return value


def _ulp(pair: c.Pair) -> float | None:
    return float(pair.values.ulp.max) if pair.values is not None and pair.values.ulp is not None else None


def _ratio(pair: c.Pair) -> float | None:
    part = None if pair.likelihood is None else pair.likelihood.ratio
    return None if part is None else _real(part.value)


def _cosine(pair: c.Pair) -> float | None:
    return None if pair.values is None else _real(pair.values.cosine)


def _different(pair: c.Pair) -> float | None:
    return None if pair.exact is None else 1 - pair.exact


def _forks(pair: c.Pair) -> float | None:
    return pair.texts.forked / pair.texts.pairs if pair.texts.pairs else None


#: Of a pair: name, what it is, how it is had. Shares are between 0 and 1; lists give bounds from below for kl, js and tv.
NUMBERS: dict[str, tuple[str, Number]] = {
    "top1_flips": ("share of rows whose best token differs", _flips("flips")),
    "real_flips": (
        "share of rows whose best token differs by more than the differences explain",
        _flips("real"),
    ),
    "max_abs": ("largest difference of a value", lambda p: _real(p.max_abs)),
    "mean_abs": ("mean absolute difference of values", _values("mean_abs")),
    "rms": ("root mean square difference of values", _values("rms")),
    "p50": ("median of |d|", _quantile(0.5)),
    "p99": ("99% quantile of |d|", _quantile(0.99)),
    "p99.9": ("99.9% quantile of |d|", _quantile(0.999)),
    "max_ulp": ("largest distance in the stored dtype", _ulp),
    "cosine": ("cosine of all values", _cosine),
    "different": ("share of elements that differ", _different),
    "kl_mean": ("mean KL divergence, nats", _spread("kl", "mean", "kl_low")),
    "kl_max": ("largest KL divergence, nats", _spread("kl", "max", "kl_low")),
    "js_mean": ("mean Jensen-Shannon divergence, nats", _spread("js", "mean", "js_low")),
    "tv_mean": ("mean total variation", _spread("tv", "mean", "tv_low")),
    "tv_max": ("largest total variation", _spread("tv", "max", "tv_low")),
    "logprob_mean": ("mean |d ln p| of the tokens that followed, nats", _logprob("mean")),
    "logprob_max": ("largest |d ln p| of a token that followed, nats", _logprob("max")),
    "ppl_ratio": ("ratio of the perplexities, second over first", _ratio),
    "forks": ("share of answers whose texts part", _forks),
    "refused": ("conversations that must not be compared", lambda p: float(len(p.coverage.refused))),
    "not_numerics": ("1 if no rounding makes the differences, else 0", lambda p: float(not_numerics(p))),
}
#: Of the coordinate that a rule was found by.
REPEATS = "repeats"
HEALTH = "health."


def known(name: str) -> bool:
    """Whether a policy may ask for that name."""
    if name.startswith(HEALTH):
        return name.removeprefix(HEALTH) in HEALTH_NAMES
    return name in NUMBERS or name == REPEATS


def names() -> Iterable[str]:
    """All names, for hints."""
    return (*NUMBERS, REPEATS, *(f"{HEALTH}{name}" for name in HEALTH_NAMES))


def of_run(name: str) -> bool:
    """Whether a name is a number of one run, not of a pair."""
    return name == REPEATS or name.startswith(HEALTH)


def measure(report: c.DivergenceReport, pair: c.Pair | None, run: str, name: str) -> float | None:
    """One number of a pair, or of the coordinate ``run`` in it; None where it was not measured.

    ``repeats``: most different results that one conversation had among its repeats; None without repeats.
    ``health.NAME``: a count of the health section, 0 where it is not listed.
    """
    if name == REPEATS:
        found = [
            r.levels[-1].modal.distinct
            for group in report.repeats
            if group.run == run
            for r in group.conversations
            if r.levels
        ]
        return float(max(found)) if found else None
    if name.startswith(HEALTH):
        counts = next((h.counts for h in report.health if h.run == run), {})
        return float(counts.get(name.removeprefix(HEALTH), 0))
    if pair is None or (not pair.coverage.rows and name != "refused"):
        return None
    return NUMBERS[name][1](pair)
