"""A report on a capture of kernels as a self-contained HTML page and as Markdown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import jinja2
from markupsafe import Markup

from reports.html import policy
from reports.kernels import contract as c
from reports.markdown import code, escape
from reports.prove.sectioning import PROOF_FILTERS, SectionView
from reports.runs.marks import brief
from reports.runs.page import clean, clip
from reports.runs.wording import plain
from reports.templating import asset, environment


@dataclass(frozen=True)
class SiteSum:
    """One array over all calls of a kernel: of ``elements`` in ``cases`` calls, ``differing`` differ."""

    array: str
    site: str
    cases: int
    elements: int
    differing: int


def sites(records: Sequence[c.Record]) -> list[SiteSum]:
    """Every array of a kernel, in the order in which the kernel computes them."""
    found: dict[tuple[str, str], list[c.Site]] = {}
    for record in records:
        for site in record.sites:
            found.setdefault((site.array, site.site), []).append(site)
    return [
        SiteSum(a, s, len(rows), sum(x.elements for x in rows), sum(x.differing for x in rows))
        for (a, s), rows in found.items()
    ]


def refusals(records: Sequence[c.Record]) -> list[tuple[str, int]]:
    """Why calls were not compared, and how many for each reason."""
    return Counter(r.refused for r in records if r.refused).most_common()


def render(report: c.KernelsReport) -> str:
    """The page of ``report``."""
    script = asset("page.js")
    return (
        _environment(html=True)
        .get_template("kernels.html.j2")
        .render(
            report=report,
            proofs=SectionView.of(report.proofs),
            css=Markup(asset("page.css")),
            script=Markup(script),
            policy=policy(script),
        )
    )


def render_markdown(report: c.KernelsReport) -> str:
    """The Markdown of ``report``."""
    return (
        _environment(html=False)
        .get_template("kernels.md.j2")
        .render(report=report, proofs=SectionView.of(report.proofs))
    )


@cache
def _environment(*, html: bool) -> jinja2.Environment:
    own: dict[str, Callable[..., Any]] = {
        "sites": sites,
        "refusals": refusals,
        "brief": brief,
        "clip": clip,
        "md": _md,
        "code": _code,
    }
    return environment(html=html, filters={**PROOF_FILTERS, **own}, finalize=clean if html else None)


def _md(text: object) -> str:
    return escape(plain(str(text)))


def _code(text: object) -> str:
    return code(plain(str(text)))
