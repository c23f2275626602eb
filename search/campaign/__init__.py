"""Campaigns: many searches, resumable, on this machine or on a cluster; one database each.

Names are imported when they are first used, so that ``ulpscope --help`` waits for none of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from search.campaign.case import Case
    from search.campaign.plan import Campaign, expand, parse_campaign, read_campaign
    from search.campaign.reading import CaseRow, Loaded, Summary, load
    from search.campaign.runner import resume, start, status

_HOMES = {
    "Campaign": "plan",
    "Case": "case",
    "CaseRow": "reading",
    "Loaded": "reading",
    "Summary": "reading",
    "expand": "plan",
    "load": "reading",
    "parse_campaign": "plan",
    "read_campaign": "plan",
    "resume": "runner",
    "start": "runner",
    "status": "runner",
}

__all__ = [
    "Campaign",
    "Case",
    "CaseRow",
    "Loaded",
    "Summary",
    "expand",
    "load",
    "parse_campaign",
    "read_campaign",
    "resume",
    "start",
    "status",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
