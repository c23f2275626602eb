"""Tables of what originals gave: the small copies in `tests/data`, whole ones where they are at hand."""

from __future__ import annotations

import csv
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

Row = dict[str, str]
DATA = Path(__file__).parent / "data"
#: Folder of the whole tables, beside the checkout.
ORACLE = Path(__file__).parents[2] / "shared" / "oracle"


def whole_or_small(whole: str, small: str) -> Path:
    """The whole file where it is at hand, else the small copy."""
    return ORACLE / whole if (ORACLE / whole).exists() else DATA / small


@dataclass(frozen=True)
class Table:
    """A check of each row of a small table and of the whole one, with the numbers of their rows."""

    small: str
    whole: str
    count: int
    all_rows: int
    check: Callable[[Row], None]

    def __str__(self) -> str:
        return self.whole

    def replay_small(self) -> None:
        """Every row of the copy."""
        assert _replay(DATA / self.small, self.check) == self.count

    def replay_whole(self) -> None:
        """Every row of the whole table; a skip where it is not at hand."""
        if not (ORACLE / self.whole).exists():
            pytest.skip(f"the whole table is not here: ../shared/oracle/{self.whole}")
        assert _replay(ORACLE / self.whole, self.check) == self.all_rows


def _replay(path: Path, check: Callable[[Row], None]) -> int:
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    for row in rows:
        try:
            check(row)
        except AssertionError as error:
            raise AssertionError(f"{row}: {error}") from None
    return len(rows)
