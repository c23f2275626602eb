"""A report as one self-contained HTML page: a pure function of the contract that loads nothing from outside.

Everything that comes from a report is escaped by jinja2, inside figures by plotly's rules. A content security
policy admits only the scripts of the page itself, by their hash, and no connection at all.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from reports import figures, flowchart, plane, strips
from reports.campaign_view import Campaign
from reports.contract import Distances, GeometryView, Reading, Report, Study
from reports.palette import Palette
from reports.prove.sectioning import PROOF_FILTERS, SectionView
from reports.templating import asset, environment
from specs.errors import FidelityError


@dataclass(frozen=True, slots=True)
class StudyView:
    """What the template needs beside a study: drawn figures and a few counts."""

    palette: Palette
    readings: tuple[Reading, ...]
    outputs: int
    kv_len: int
    strips: list[strips.Strip]
    planes: list[Markup]
    plots: Mapping[str, list[str]]

    @property
    def many(self) -> bool:
        """Whether a cell has more than one output."""
        return self.outputs > 1

    @staticmethod
    def specials(d: Distances) -> bool:
        """Whether any pair has a NaN or infinity mismatch."""
        return any(any(row) for row in d.special)

    @staticmethod
    def proportional(view: GeometryView) -> bool:
        """Whether the 3-D view shows all axes at one scale."""
        return figures.proportional(view)

    def spec_of(self, backend: str) -> str:
        """The one spec that ``backend`` runs on every platform; empty if there are several."""
        names = {c.spec for c in self.palette.cells.values() if c.backend == backend}
        return names.pop() if len(names) == 1 else ""

    def marker(self, platform: str) -> Markup:
        """The marker of a platform, for a legend."""
        return plane.legend_marker(self.palette.symbol(platform))

    @staticmethod
    def shade(d: Distances, i: int, j: int) -> float:
        """Heat of one cell, 0.06 to 1: the logarithm of its maximum, from the smallest non-zero to the largest.

        Where all distances are equal none of them stands out, and where only NaN or infinity differ, all is hot.
        """
        here, present = d.maximum[i][j], [x for row in d.maximum for x in row if x]
        if not here:
            return 1.0 if d.special[i][j] else 0.06
        low, high = min(present), max(present)
        return 0.3 if low == high else 0.06 + 0.94 * math.log(here / low) / math.log(high / low)


def render(report: Report) -> str:
    """The page of ``report``; under 6 MB, of which 4.8 MB are plotly.js."""
    drawn: dict[str, figures.Figure] = {}
    views = [_view(study, drawn) for study in report.studies]
    if report.depth:
        drawn["fig-depth"] = figures.depth(report.depth)
    if report.splits:
        drawn["fig-splits"] = figures.splits(report.splits)
    if report.traffic:
        drawn["fig-traffic"] = figures.traffic(report.traffic)
    campaign = Campaign(report.campaign) if report.campaign else None
    for number, group in campaign.drawn() if campaign else []:
        drawn[f"fig-campaign-{number}"] = figures.campaign(group)
    plotly, script = plotly_js(), asset("page.js")
    return (
        _environment()
        .get_template("report.html.j2")
        .render(
            report=report,
            views=views,
            campaign=campaign,
            proofs=SectionView.of(report.proofs),
            flows=[flowchart.draw(s.flow, f"Dataflow of {s.name}") for s in report.specs],
            figures={name: script_json(figure) for name, figure in drawn.items()},
            css=Markup(asset("page.css")),
            plotly=Markup(plotly),
            script=Markup(script),
            policy=policy(plotly, script),
        )
    )


def _view(study: Study, drawn: dict[str, figures.Figure]) -> StudyView:
    palette = Palette.of(study)
    plots: dict[str, list[str]] = {"region": [], "histogram": []}
    for i, view in enumerate(study.geometry):
        plots["region"].append(f"fig-{study.id}-region-{i}")
        drawn[plots["region"][-1]] = figures.region(view, palette)
    for i, data in enumerate(study.histograms):
        plots["histogram"].append(f"fig-{study.id}-histogram-{i}")
        drawn[plots["histogram"][-1]] = figures.histogram(data, palette)
    computed = [c for c in study.cells if c.status == "computed"]
    return StudyView(
        palette=palette,
        readings=computed[0].readings if computed else (),
        outputs=max((c.outputs for c in computed), default=0),
        kv_len=max((o.kv_len for o in study.ownership), default=0),
        strips=strips.strips(study.ownership),
        planes=[plane.draw(view, palette) for view in study.geometry],
        plots=plots,
    )


def script_json(value: Any) -> Markup:
    """JSON that cannot end the script element around it."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return Markup(text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e"))


def policy(*scripts: str) -> str:
    """A content security policy under which only these inline scripts run and nothing is fetched."""
    hashes = " ".join(f"'sha256-{_digest(s)}'" for s in scripts)
    return (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )


def _digest(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


@cache
def plotly_js() -> str:
    """The plotly.js bundle that the plotly package ships."""
    # Found without importing plotly, which takes longer than drawing the page.
    spec = find_spec("plotly")
    places = spec.submodule_search_locations if spec else None
    if not places:
        raise FidelityError("plotly is not installed", remedy="pip install plotly, and make the report again")
    return (Path(places[0]) / "package_data" / "plotly.min.js").read_text("utf-8")


@cache
def _environment() -> jinja2.Environment:
    return environment(html=True, filters=PROOF_FILTERS)
