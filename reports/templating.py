"""Templates of pages and Markdown, and what they are filled with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.resources import files
from typing import Any

import jinja2

from reports.formatting import FILTERS


def asset(name: str) -> str:
    """The text of a file in ``templates``."""
    return (files("reports") / "templates" / name).read_text("utf-8")


def environment(
    *,
    html: bool,
    filters: Mapping[str, Callable[..., Any]],
    finalize: Callable[[Any], Any] | None = None,
) -> jinja2.Environment:
    """Where templates are rendered: a name that is not given is an error, a block leaves no line behind.

    Args:
        html: whether everything is escaped; Markdown has its own escaping, and keeps the last line end.
        filters: besides `reports.formatting.FILTERS`.
        finalize: what every value goes through.
    """
    made = jinja2.Environment(
        loader=jinja2.FunctionLoader(asset),
        autoescape=html,
        undefined=jinja2.StrictUndefined,
        finalize=finalize,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=not html,
    )
    made.filters.update({**FILTERS, **filters})
    return made
