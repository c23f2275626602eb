"""A divergence report as Markdown: for a review, an archive, or the summary of a CI job."""

from __future__ import annotations

from functools import cache

import jinja2

from reports.markdown import code, escape
from reports.prove.sectioning import PROOF_FILTERS, SectionView
from reports.runs import contract as c
from reports.runs import text
from reports.runs.text_prediction import HOW, equal_share, largest_ulp, place_text, share_text
from reports.runs.wording import far, foreign, not_numerics, plain, repeat_text, split
from reports.templating import environment

#: Estimates that are shown with their uncertainty; the JSON has more.
ESTIMATES = {
    "flip": "share of flips",
    "abs_logprob": "mean |d ln p|, nats",
    "kl": "mean KL, nats",
    "tv": "mean total variation",
    "mean_abs": "mean |d|",
    "max_abs": "mean over rows of the largest |d|",
}
#: Rows of a table; the JSON has all.
ROWS = 60


def render_markdown(report: c.DivergenceReport) -> str:
    """The Markdown of ``report``."""
    pairs = sorted(report.pairs, key=lambda p: (foreign(p), -far(p)))
    deep = next((p for p in pairs if _deep(p)), None)
    return (
        _environment()
        .get_template("runs.md.j2")
        .render(
            report=report,
            pairs=pairs,
            deep=deep,
            estimates={
                n: title for n, title in ESTIMATES.items() if any(n in p.intervals for p in pairs[:ROWS])
            },
            metric=None if deep is None else _metric(deep),
            health={h.run: h for h in report.health},
            findings=[(p, f) for p in pairs if not foreign(p) for f in p.findings if f.severity != "note"],
            repeats=[(group.run, r) for group in report.repeats for r in group.conversations],
            rows=ROWS,
            proofs=SectionView.of(report.proofs),
        )
    )


def _deep(pair: c.Pair) -> bool:
    """Whether a pair says something by depth."""
    bins = pair.depth or ()
    return len(bins) > 1 and bool(_metric(pair)) and not not_numerics(pair) and not pair.identical


def _metric(pair: c.Pair) -> str:
    """The metric that a table by depth shows."""
    assert pair.depth
    names = pair.depth[0].metrics
    return next((n for n in ("abs_logprob", "mean_abs", "max_abs") if n in names), next(iter(names), ""))


@cache
def _environment() -> jinja2.Environment:
    # Markdown has its own escaping: every value in the template goes through md or code.
    return environment(
        html=False,
        filters={
            **PROOF_FILTERS,
            "md": lambda text: escape(plain(str(text))),
            "code": lambda text: code(plain(str(text))),
            "real": text.real,
            "estimate": text.estimate,
            "counts": text.counts,
            "exact": text.exact,
            "centre": text.centre_text,
            "where": text.where,
            "repeat": repeat_text,
            "split": split,
            "found_by": HOW.__getitem__,
            "equal_share": equal_share,
            "share": share_text,
            "largest_ulp": largest_ulp,
            "place": place_text,
        },
    )
