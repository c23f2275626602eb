"""A report as Markdown: the verdict and the tables, for a terminal, a review or an archive."""

from __future__ import annotations

import re
from functools import cache

import jinja2

from reports.campaign_view import Campaign
from reports.contract import Report
from reports.prove.sectioning import PROOF_FILTERS, SectionView
from reports.strips import strips
from reports.templating import environment

_SPECIAL = re.compile(r"([\\`*_{}\[\]<>#|~!])")


def escape(text: object) -> str:
    """``text`` as plain Markdown text on one line: nothing in it is markup, HTML included."""
    return _SPECIAL.sub(r"\\\1", " ".join(str(text).split()))


def code(text: object) -> str:
    """``text`` as code on one line, in a fence longer than any run of backticks in it, pipes escaped."""
    line = " ".join(str(text).split())
    if not line:
        return ""
    longest = max((len(run) for run in re.findall(r"`+", line)), default=0)
    fence = "`" * (longest + 1)
    pad = " " if line.startswith("`") or line.endswith("`") else ""
    return f"{fence}{pad}{line}{pad}{fence}".replace("|", "\\|")


def render_markdown(report: Report) -> str:
    """The Markdown of ``report``."""
    partitions = [strips(study.ownership) for study in report.studies]
    campaign = Campaign(report.campaign) if report.campaign else None
    template = _environment().get_template("report.md.j2")
    proofs = SectionView.of(report.proofs)
    return template.render(report=report, partitions=partitions, c=campaign, proofs=proofs)


@cache
def _environment() -> jinja2.Environment:
    # Markdown has its own escaping: every value in the template goes through md or code.
    return environment(html=False, filters={**PROOF_FILTERS, "md": escape, "code": code})
