"""The sentences of a divergence report: first who is equal, how far the others are, and whether it changes tokens."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence

from reports.formatting import count, percent, short
from reports.runs import contract as c
from reports.runs import measured as m
from reports.runs.prediction import Prediction
from reports.runs.steps import sentences
from verify.words import plural

WORDS = {
    "bits": "bit-identical",
    "values": "equal in every recorded value",
    "printed digits": "equal to the printed digits",
}
_SHOWN = 4
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")
_HASH = re.compile(r"\b([0-9a-f]{12})[0-9a-f]{20,52}\b")


def verdict(
    coordinates: Sequence[c.Coordinate],
    identity: Sequence[c.IdentityClass],
    pairs: Sequence[c.Pair],
    repeats: Sequence[c.RepeatedRun],
    findings: Sequence[m.Finding],
    health: Sequence[m.RunHealth],
    unrelated: int,
) -> c.Verdict:
    """What a reader wants to know first; the rest as points."""
    compared = [p for p in pairs if p.coverage.rows and not foreign(p)]
    off = [p for p in compared if not_numerics(p)]
    near = [p for p in compared if not not_numerics(p)]
    others = sum(foreign(p) for p in pairs)
    unequal = [r for group in repeats for r in group.conversations if r.finding != "identical"]
    parts: list[str] = []
    points: list[str] = []
    if len(coordinates) == 1:
        parts.append(_alone(coordinates[0], repeats))
    elif not compared:
        parts.append("Nothing can be compared: no two runs have a row in common" + _why(pairs, findings))
    else:
        parts += _same(coordinates, identity, pairs)
        if off:
            parts.append(_off(off))
        parts += _apart(near, whole=not parts)
        parts.append(_tokens(near or compared, why=bool(near)))
    head = "; ".join(x for x in parts if x)
    points += [f"{p.first} and {p.second}: {f.text}." for p in off[:_SHOWN] for f in _errors(p)[:1]]
    points += _repeats(repeats) if len(coordinates) > 1 else []
    points += _noise(repeats, near)
    points += _health(health)
    points += [_stopped(f.text) for f in findings if f.severity != "note"][:_SHOWN]
    points += [f"{f.text}." for f in findings if f.code in ("reference", "coarse")]
    points += _refused(pairs)
    points += _forks(compared)
    points += _first(near)
    points += sentences(near)
    points += _tensors(near)
    points += _warnings(compared)
    points += _captures(pairs)
    if others:
        points.append(
            f"{plural(others, 'pair')} of runs of different models: set apart, as they have to differ."
        )
    if unrelated:
        points.append(f"{plural(unrelated, 'pair')} of runs without a conversation in common.")
    return c.Verdict(
        headline=_sentence(head),
        diverges=any(not p.identical for p in compared) or bool(unequal),
        not_numerics=tuple((p.first, p.second) for p in off),
        points=tuple(cut(point) for point in points),
    )


def with_prediction(report: c.DivergenceReport, section: Prediction) -> c.DivergenceReport:
    """The report with a prediction section, of which the verdict has a point."""
    point = cut(f"Prediction: {section.headline}.")
    told = report.verdict.model_copy(update={"points": (point, *report.verdict.points)})
    return report.model_copy(update={"verdict": told, "prediction": section})


def _stopped(text: str) -> str:
    return text if text.endswith("?") else f"{text.rstrip('.')}."


def _sentence(text: str) -> str:
    """With a full stop, and a capital unless it begins with a name."""
    return cut(capital(text)) + "."


def capital(text: str) -> str:
    """A statement of the verdict with a capital, unless it begins with a name."""
    begins = text.split(" ", 1)[0] in ("all", "the", "texts", "no", "best")
    return text[:1].upper() + text[1:] if begins else text


def cut(text: str) -> str:
    """Hashes as names are cut to twelve digits; the text is `plain`."""
    return plain(_HASH.sub(r"\1", text))


def plain(text: str) -> str:
    """``text`` on one line, without what moves a terminal's cursor or turns the direction of writing."""
    return _CONTROL.sub("\ufffd", text)


def equality(k: c.IdentityClass) -> str:
    """In which sense the runs of a class are equal."""
    coarse = "" if k.decimals is None else f" of the coarsest, {plural(k.decimals, 'decimal')}"
    return WORDS[k.exactness] + coarse


def not_numerics(pair: c.Pair) -> bool:
    """Whether a pair differs by more than rounding makes."""
    return bool(_errors(pair))


def foreign(pair: c.Pair) -> bool:
    """Whether a pair differs so and its models are not the same, by name or hash."""
    return not_numerics(pair) and any(f.code in ("model_name", "model") for f in pair.findings)


def _errors(pair: c.Pair) -> list[m.Finding]:
    return [f for f in pair.findings if f.severity == "error" and f.text.startswith("not numerics")]


def listed(names: Sequence[str], shown: int = _SHOWN) -> str:
    """Names as a list: ``a, b and c``; of many the first and how many more."""
    if len(names) > shown + 1:
        return f"{', '.join(names[:shown])} and {len(names) - shown} more"
    return " and ".join(x for x in (", ".join(names[:-1]), names[-1]) if x)


def _why(pairs: Sequence[c.Pair], findings: Sequence[m.Finding]) -> str:
    reasons = Counter(reason for p in pairs for _, reason in p.coverage.refused)
    if reasons:
        return f" that may be compared ({', '.join(sorted(reasons))})"
    return f" ({findings[0].text})" if findings else ""


def _same(
    coordinates: Sequence[c.Coordinate], identity: Sequence[c.IdentityClass], pairs: Sequence[c.Pair]
) -> list[str]:
    several = [k for k in identity if len(k.runs) > 1]
    one = {frozenset((p.first, p.second)) for p in pairs if p.coverage.same_capture}
    out: list[str] = []
    for k in several[:2]:
        who = f"all {len(k.runs)} runs" if len(k.runs) == len(coordinates) > 2 else listed(k.runs)
        on = (
            f" on the {plural(k.rows, 'row')} that {'was' if k.rows == 1 else 'were'} compared"
            if k.partial
            else ""
        )
        narrow = [
            p.coverage.columns for p in pairs if {p.first, p.second} <= set(k.runs) and p.coverage.columns
        ]
        if any(len(set(columns)) > 1 for columns in narrow):
            on += f" in the first {count(min(columns[0] for columns in narrow))} columns"
        same = frozenset(k.runs[:2]) in one
        out.append(f"{who} are {equality(k)}{on}" + (": they are one capture" if same else ""))
    if len(several) > 2:
        runs = sum(len(k.runs) for k in several[2:])
        classes = len(several) - 2
        out.append(f"{runs:,} more runs are equal in {classes} class{'es' * (classes != 1)}")
    return out


def _off(off: Sequence[c.Pair]) -> str:
    times = Counter(name for p in off for name in (p.first, p.second))
    name, n = times.most_common(1)[0]
    if n == len(off) and n > 1:
        return f"{name} is off by more than rounding makes against {n} others: not numerics"
    if len(off) == 1:
        return f"{off[0].first} and {off[0].second} differ by more than rounding makes: not numerics"
    return f"{len(off)} pairs differ by more than rounding makes: not numerics"


def size(pair: c.Pair) -> str:
    """How far apart a pair is, in words."""
    odd = _odd(pair)
    if not pair.max_abs:
        return listed(odd) if odd else "what has no distance (NaN, infinities, missing tokens)"
    text = "at most " + short(float(pair.max_abs))
    part = pair.values or pair.lists
    if part is not None and part.rms is not None and pair.max_abs == part.max_abs:
        text += f" (RMS {short(float(part.rms))})"
    return text + (f", and {listed(odd)}" if odd else "")


def _odd(pair: c.Pair) -> list[str]:
    """Differences that have no size, in words."""
    known = (pair.values, None if pair.max_abs else pair.chosen)
    parts = [part for part in known if part is not None]
    missing = "NaN" if pair.values is not None else "missing"
    found: list[str] = []
    for name, one, many in (
        ("nan_mismatch", f"value that is {missing}", f"values that are {missing}"),
        ("inf_mismatch", "value that is infinite", "values that are infinite"),
        ("clamp_mismatch", "value that is clamped", "values that are clamped"),
    ):
        n = sum(int(getattr(part, name)) for part in parts)
        if n:
            found.append(f"{count(n)} {one if n == 1 else many} in one alone")
    n = sum(part.impossible_mismatch for part in parts)
    if n:
        found.append(f"{plural(n, 'value')} above 0, where log-probabilities cannot be")
    zeros = sum(part.zero_sign for part in parts)
    if not found and not pair.max_abs and zeros:
        found.append(f"the sign of {plural(zeros, 'zero')} alone")
    lse = pair.lists.lse_max if pair.lists is not None else None
    if lse:
        found.append(f"their log-sum-exps, by at most {short(float(lse))}")
    tensors = sum(_tensor_differs(tensor) for _, tensor in pair.attention)
    if tensors:
        found.append(f"{plural(tensors, 'attention tensor')}{'' if found or pair.max_abs else ' alone'}")
    return found


def _tensor_differs(t: m.Tensor) -> bool:
    return bool(t.max_abs or t.nan_mismatch or t.inf_mismatch or (t.finding and t.finding.code == "shape"))


def far(pair: c.Pair) -> float:
    """For sorting: pairs whose distance is not known come last."""
    return -1.0 if pair.max_abs is None else float(pair.max_abs)


def _apart(pairs: Sequence[c.Pair], *, whole: bool) -> list[str]:
    different = [p for p in pairs if not p.identical]
    if not different:
        return []
    worst = max(different, key=far)
    if len(different) == 1:
        return [f"{worst.first} and {worst.second} differ by {size(worst)}"]
    who = f"all {len(pairs)} pairs" if whole and len(different) == len(pairs) else f"{len(different)} pairs"
    return [f"{who} differ, farthest {worst.first} and {worst.second}: {size(worst)}"]


def _tokens(pairs: Sequence[c.Pair], *, why: bool = True) -> str:
    """Whether best tokens change. ``why``: split flips by what explains them; of what is no numerics nothing does."""
    known = [p for p in pairs if p.decisions.n]
    if not known:
        forked = [p for p in pairs if p.texts.forked]
        if forked:
            where = "" if len(pairs) == 1 else f" in {len(forked)} of {len(pairs)} pairs"
            return f"texts part{where}; best tokens were not recorded"
        return "best tokens were not recorded"
    worst = max(known, key=lambda p: p.decisions.flips / p.decisions.n)
    d = worst.decisions
    if not d.flips:
        return f"no best token changes on {plural(max(p.decisions.n for p in known), 'row')}"
    where = "" if len(pairs) == 1 else f" ({worst.first} and {worst.second})"
    most = "" if len(pairs) == 1 else "up to "
    share = worst.intervals.get("flip")
    told = (
        "" if share is None or share.value is None else f", {percent(float(share.value))}{spread_text(share)}"
    )
    return f"the best token changes on {most}{count(d.flips)} of {plural(d.n, 'row')}{where}{told}" + (
        f": {split(d)}" if why else ""
    )


def spread_text(one: m.Interval) -> str:
    """The uncertainty of a share: its interval, or the range of single conversations where they are few."""
    if one.low is None or one.high is None or one.low == one.high:
        return ""
    low, high = percent(float(one.low)), percent(float(one.high))
    if one.kind == "bootstrap":
        return f" (95% interval {low} to {high})"
    return f" ({low} to {high} in single conversations)"


def split(d: m.Decisions) -> str:
    """Flips by kind."""
    kinds = (
        (d.ties, "at ties"),
        (d.within, "within what the differences explain"),
        (d.real, "real"),
        (d.unsplit, "of unknown margin"),
    )
    return ", ".join(f"{count(n)} {what}" for n, what in kinds if n) or "none"


def _alone(run: c.Coordinate, repeats: Sequence[c.RepeatedRun]) -> str:
    found = [r for group in repeats for r in group.conversations]
    if not found:
        return (
            f"{run.name} is one run without repeats: {plural(run.rows, 'row')}, nothing to compare them with"
        )
    if len(found) == 1:
        return f"{run.name}: {repeat_text(found[0])}"
    equal = sum(r.finding == "identical" for r in found)
    gives = "gives" if equal == 1 else "give"
    return f"{run.name}: of {len(found)} conversations with repeats {equal} {gives} the same bytes each time"


def repeat_text(r: m.Repeated) -> str:
    """The repeats of one conversation in words, with the order as a pattern."""
    values = r.level("values") or (r.levels[-1] if r.levels else None)
    pattern = f" ({values.pattern})" if values is not None else ""
    most = f", by at most {short(float(r.max_difference))}" if r.max_difference else ""
    texts = r.level("text") or r.level("ids")
    also = "" if texts is None or texts.modal.distinct > 1 else ", though all texts are the same"
    if r.finding == "identical":
        return f"all {r.n} repeats are identical{pattern}"
    if r.finding == "first request differs":
        return f"the first of {r.n} repeats differs and the other {r.n - 1} agree{pattern}{most}{also}"
    if r.finding == "race or bug":
        return f"{r.n} repeats are far apart{pattern}{most}: a race or a bug"
    distinct = values.modal.distinct if values is not None else 0
    return f"{r.n} repeats give {distinct} different results{pattern}{most}{also}"


def _repeats(repeats: Sequence[c.RepeatedRun]) -> Iterator[str]:
    found = [(group.run, r) for group in repeats for r in group.conversations]
    if not found:
        return
    if len(found) <= _SHOWN:
        yield from (f"{run}, {r.conversation}: {repeat_text(r)}." for run, r in found)
        return
    kinds = Counter(r.finding for _, r in found)
    told = ", ".join(f"{n} {kind}" for kind, n in kinds.most_common())
    yield f"{len(found)} conversations were asked more than once: {told}."


def _noise(repeats: Sequence[c.RepeatedRun], pairs: Sequence[c.Pair]) -> Iterator[str]:
    """How pairs of runs compare with repeats within a run."""
    found = [float(r.max_difference) for group in repeats for r in group.conversations if r.max_difference]
    known = [p for p in pairs if p.max_abs is not None]
    if found and known:
        inside = sum(far(p) <= max(found) for p in known)
        yield (
            f"Repeats within a run differ by up to {short(max(found))}: {count(inside)} of {plural(len(known), 'pair')} of "
            "runs are no farther apart."
        )


def _refused(pairs: Sequence[c.Pair]) -> Iterator[str]:
    reasons: Counter[str] = Counter()
    runs: Counter[str] = Counter()
    for p in pairs:
        for reason, n in Counter(reason for _, reason in p.coverage.refused).items():
            reasons[reason] += n
            runs[reason] += 1
    for reason, n in reasons.most_common():
        yield f"Not compared, as {reason}: {plural(n, 'conversation')} in {plural(runs[reason], 'pair')}."


def _forks(pairs: Sequence[c.Pair]) -> Iterator[str]:
    forked = [p for p in pairs if p.texts.forked]
    if forked:
        lost = sum(p.coverage.after_fork for p in forked)
        first = min(f for p in forked for f in p.texts.first if f is not None)
        yield (
            f"Texts part in {count(sum(p.texts.forked for p in forked))} of "
            f"{plural(sum(p.texts.pairs for p in pairs), 'pair')} of answers, the earliest after "
            f"{plural(first, 'common row')}; {plural(lost, 'row')} after that are not comparable."
        )


def _first(pairs: Sequence[c.Pair]) -> Iterator[str]:
    """Where the farthest and the closest pair part, and how much of them is equal."""
    different = sorted((p for p in pairs if not p.identical), key=far, reverse=True)
    for i, p in enumerate((different[0], different[-1]) if len(different) > 1 else different):
        f = p.first_difference
        where = ""
        if f is not None:
            element = "" if f.element is None else f", token {f.element}"
            where = f" part first in {f.conversation} at position {count(f.position)}{element}: "
            where += f"{number(f.a)} and {number(f.b)};"
        least = f" differ by {size(p)};" if i else ""
        yield f"{p.first} and {p.second}{where}{least}{_equal(p)}".rstrip(";") + "."


def _equal(p: c.Pair) -> str:
    """How many values differ, and the conversations in which none does."""
    parts = [part for part in (p.values, p.chosen) if part is not None]
    out = ""
    if parts:
        what = (
            "values" if p.values is not None or p.likelihood is None else "values of the tokens that followed"
        )
        n, different = sum(part.n for part in parts), sum(part.different for part in parts)
        out = f" {count(different)} of {count(n)} {what} differ" if n else ""
    if p.equal_in:
        out += f"{',' if out else ''} none in {listed(p.equal_in)}"
    return out


def _health(health: Sequence[m.RunHealth]) -> Iterator[str]:
    """What is odd in a run and changes what its numbers mean: the gravest first."""
    found = [(h.run, f) for h in health for f in h.findings if f.severity != "note"]
    found.sort(key=lambda x: x[1].severity != "error")
    yield from (f"{run}: {_stopped(f.text)}" for run, f in found[:_SHOWN])
    if len(found) > _SHOWN:
        more = len(found) - _SHOWN
        yield f"{plural(more, 'more finding')} on single runs {'is' if more == 1 else 'are'} in the health section."


def number(x: m.Real | None) -> str:
    """A value with all its digits."""
    return "NaN" if x is None else x if isinstance(x, str) else repr(x)


def _all_tensors(n: int) -> str:
    return "the only attention tensor is" if n == 1 else f"all {n} attention tensors are"


def _tensors(pairs: Sequence[c.Pair]) -> Iterator[str]:
    """The first attention tensor that differs, of the first pairs that have some."""
    for p in [p for p in pairs if p.attention][:2]:
        off = next((x for x in p.attention if _tensor_differs(x[1])), None)
        who = f"{p.first} and {p.second}"
        if off is None:
            yield f"{who}: {_all_tensors(len(p.attention))} equal."
        else:
            t = off[1]
            most = "" if t.max_abs is None else f", by at most {short(float(t.max_abs))}"
            cause = "" if t.finding is None else f"; {t.finding.text}"
            yield f"{who}: attention differs first in layer {t.layer}, {t.tensor}, of {off[0]}{most}{cause}."


#: Warnings of a pair that change what its numbers mean.
_TOLD = ("quantised", "padding", "value_kind", "tokenizer", "vocab_size", "scale", "offset", "gross_rows")


def _warnings(pairs: Sequence[c.Pair]) -> Iterator[str]:
    """What is to be known of pairs whose numbers stand: each kind once, with the first pair and how many others."""
    found: dict[str, list[tuple[c.Pair, m.Finding]]] = {}
    for p in pairs:
        for f in p.findings:
            if f.code in _TOLD and f.severity == "warning":
                found.setdefault(f.code, []).append((p, f))
    for several in found.values():
        p, f = several[0]
        others = f" (so {plural(len(several) - 1, 'other pair')})" if len(several) > 1 else ""
        yield f"{p.first} and {p.second}: {f.text}{others}."


def _captures(pairs: Sequence[c.Pair]) -> Iterator[str]:
    same = [p for p in pairs if p.coverage.same_capture]
    for p in same[:_SHOWN]:
        yield f"{p.first} and {p.second} look like the same capture: {p.coverage.same_capture}."
    if len(same) > _SHOWN:
        yield f"{plural(len(same) - _SHOWN, 'more pair')} of runs look like the same capture."
