"""Proofs as one self-contained HTML page, and as Markdown: pure functions of the contract."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import jinja2
from markupsafe import Markup

from reports.html import policy
from reports.markdown import code, escape
from reports.prove import contract as c
from reports.prove import view
from reports.prove.sectioning import PROOF_FILTERS
from reports.templating import asset, environment

#: Bytes of a page at most: where it is larger, fewer claims of each status are shown.
LIMIT = 2_000_000
_MOST = (1000, 300, 100, 30, 8, 2, 0)


def render(report: c.Proofs) -> str:
    """The page of proofs, under 2 MB."""
    context = _context(report)
    page = ""
    for most in _MOST:
        page = _page(context, most)
        if len(page.encode()) < LIMIT:
            break
    return page


def _page(context: Mapping[str, Any], most: int) -> str:
    script = asset("page.js")
    return (
        _environment(html=True)
        .get_template("proofs.html.j2")
        .render(
            **context,
            most=most,
            css=Markup(asset("page.css")),
            script=Markup(script),
            policy=policy(script),
        )
    )


def render_markdown(report: c.Proofs) -> str:
    """The Markdown of proofs."""
    return _environment(html=False).get_template("proofs.md.j2").render(**_context(report))


def _context(report: c.Proofs) -> dict[str, Any]:
    claims = view.shown(report.claims)
    columns = list(dict.fromkeys(name for row in report.specs or () for name in row.proofs))
    numbered = iter(claims)
    table: list[tuple[str, list[view.Shown | None]]] = []
    for row in report.specs or ():
        held = {name: next(numbered) for name in row.proofs}
        table.append((row.spec, [held.get(name) for name in columns]))
    status = dict(view.by_status(claims))
    return {
        "report": report,
        "headline": view.headline(report.claims),
        "all": claims,
        "open": [x for x in claims if x.proof.status not in (*view.SETTLED, "refused")],
        "refuted": status.get("refuted", []),
        "grids": status.get("exhaustive", []),
        "proved": status.get("proved", []),
        "refused": status.get("refused", []),
        "leaning": sum(x.leans for x in claims),
        "shared": view.shared(claims),
        "columns": columns,
        "table": table,
        "hashes": list(
            {(s.spec, s.sha256): None for x in claims for s in x.proof.about if s.spec and s.sha256}
        ),
    }


@cache
def _environment(*, html: bool) -> jinja2.Environment:
    return environment(html=html, filters={**PROOF_FILTERS, "md": escape, "code": code})
