"""Campaigns for tests."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from search.campaign.plan import Campaign, parse_campaign
from search.campaign.reading import load

HEAD = 'schema = 1\nname = "small"\nkv_lens = [64]\n'
PAIR = '[[pair]]\nsides = ["walkthrough.xqa@h200", "walkthrough.triton@h200"]\n'


def campaign(seeds: Iterable[int], more: str = "") -> Campaign:
    """One pair, one length, several seeds."""
    return parse_campaign(f"{HEAD}seeds = {list(seeds)}\n{more}{PAIR}", "small.toml")


def results(folder: Path) -> list[dict[str, Any]]:
    """What must not depend on the engine, and the bytes of the files beside the database."""
    loaded = load(folder)
    files = {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.glob("witnesses/**/*")
        if path.is_file()
    }
    return [row.result() for row in loaded.cases] + [files]


def statuses(folder: Path) -> dict[int, str]:
    """The status of each case, by seed."""
    return {row.case.seed: row.status for row in load(folder).cases}
