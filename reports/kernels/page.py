"""A report on a capture of kernels as a self-contained HTML page and as Markdown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

import jinja2
from markupsafe import Markup

from reports.formatting import FILTERS
from reports.html import policy
from reports.kernels import contract as c
from reports.markdown import code, escape
from reports.prove.sectioning import PROOF_FILTERS, SectionView
from reports.runs.marks import brief
from reports.runs.page import clean, clip
from reports.runs.wording import plain


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
    script = _asset("page.js")
    return (
        _environment(html=True)
        .get_template("kernels.html.j2")
        .render(
            report=report,
            proofs=SectionView.of(report.proofs),
            css=Markup(_asset("page.css")),
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


def _asset(name: str) -> str:
    return (files("reports") / "templates" / name).read_text("utf-8")


@cache
def _environment(*, html: bool) -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(_asset),
        autoescape=html,
        undefined=jinja2.StrictUndefined,
        finalize=clean,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=not html,
    )
    if not html:
        # Markdown has its own escaping, and its own line ends.
        environment.finalize = None
    own: dict[str, Callable[..., Any]] = {
        "sites": sites,
        "refusals": refusals,
        "brief": brief,
        "clip": clip,
        "md": _md,
        "code": _code,
    }
    environment.filters.update({**FILTERS, **PROOF_FILTERS, **own})
    return environment


def _md(text: object) -> str:
    return escape(plain(str(text)))


def _code(text: object) -> str:
    return code(plain(str(text)))
