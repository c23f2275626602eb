"""The prediction section for a terminal."""

from __future__ import annotations

from collections.abc import Iterator

from reports.formatting import count, percent
from reports.runs import measured as m
from reports.runs import prediction as c
from reports.runs.text import ROWS, brief, estimate, more, real, table
from verify.words import plural

#: How a prediction was found, in words.
HOW = {"named": "as named", "coordinate": "same kernel", "best": "nearest", "none": "-"}


def prediction_lines(section: c.Prediction | None) -> Iterator[str]:
    """The lines of the section; none without one."""
    if section is None:
        return
    yield f"prediction: {section.headline}"
    yield from _coordinates(section)
    yield from _differences(section)
    for run in section.attention:
        yield from _attention(run)
    yield from (f"  {note.kind}: {note.text}" for note in section.notes)


def equal_share(fit: c.Fit) -> str:
    """How many values have the predicted bits, or digits."""
    if fit.identical:
        return f"all {count(fit.elements)}"
    return percent(fit.equal / fit.elements) if fit.elements else "-"


def _coordinates(section: c.Prediction) -> Iterator[str]:
    if not section.coordinates:
        return
    rows = [("coordinate", "predicted by", "found", "equal", "RMS", "outcome")]
    for x in section.coordinates[:ROWS]:
        fit = x.fits[0] if x.fits else None
        rows.append(
            (
                brief(x.run),
                "-" if x.predicted is None else brief(x.predicted),
                HOW[x.how],
                "-" if fit is None else equal_share(fit),
                "-" if fit is None else real(fit.rms),
                x.outcome,
            )
        )
    yield from table(rows)
    yield from more(len(section.coordinates))
    yield from (f"  {brief(x.run)}: {x.reason}" for x in section.coordinates[:ROWS])


def flips_text(flips: c.Flips) -> str:
    """Flips of best tokens: predicted and happened, missed, predicted in vain."""
    return f"{count(flips.both)} hit, {count(flips.missed)} missed, {count(flips.idle)} idle"


def share_text(one: m.Interval) -> str:
    """A share in percent."""
    return "-" if one.value is None else percent(float(one.value))


def _differences(section: c.Prediction) -> Iterator[str]:
    found = section.differences
    if not found:
        return
    yield "  predicted differences against real ones"
    rows = [("first", "second", "correlation", "slope", "signs", "RMS p/r", "best token", "outcome")]
    rows += [
        (
            brief(d.first),
            brief(d.second),
            estimate(d.correlation),
            estimate(d.slope),
            share_text(d.signs),
            real(d.rms_ratio.value),
            flips_text(d.flips),
            d.outcome,
        )
        for d in found[:ROWS]
    ]
    yield from table(rows)
    yield from more(len(found))


def _attention(run: c.AttentionRun) -> Iterator[str]:
    yield f"  attention of {brief(run.run)}, {plural(len(run.layers), 'layer')}: {run.verdict}"
    rows = [("candidate", "exact", "positions", "largest ULP", "first difference")]
    rows += [
        (
            brief(" = ".join(f.names)),
            percent(f.share),
            f"{count(f.exact_positions)} of {count(f.positions)}",
            largest_ulp(f),
            "-" if f.first is None else place_text(f.first),
        )
        for f in run.fits[:ROWS]
    ]
    yield from table(rows)
    yield from more(len(run.fits))
    if run.refused:
        yield f"  {plural(len(run.refused), 'candidate')} could not be tried; {run.refused[0][0]}: {run.refused[0][1]}"


def largest_ulp(fit: c.AttentionFit) -> str:
    """The bin of the largest ULP distance, or that NaN or infinity stood against a number."""
    if fit.beyond:
        return "NaN or inf"
    last = fit.histogram[-1] if fit.histogram else None
    if last is None:
        return "-"
    return count(last.high) if last.low == last.high else f"{count(last.low)} to {count(last.high)}"


def place_text(at: c.AttentionPlace) -> str:
    """Where the first number differs, and both with their bits."""
    parts = (("layer", at.layer), ("position", at.position), ("head", at.head), ("dim", at.dim))
    where = ", ".join(f"{name} {n}" for name, n in parts if n is not None)
    return f"{at.site}, {where}: {at.captured}, predicted {at.predicted}"
