"""Which colour and which symbol a cell has in every figure: by backend and by platform, never by position."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from reports.contract import Cell, Study

COLOURS = 8
SYMBOLS = ("circle", "square", "diamond", "cross", "x")


class Marks(Protocol):
    """What a figure asks: the colour index and the marker of what is called ``name``."""

    def colour(self, name: str, /) -> int:
        """An index below `COLOURS`."""
        ...

    def symbol(self, name: str, /) -> str:
        """One of `SYMBOLS`."""
        ...


@dataclass(frozen=True, slots=True)
class Palette:
    """Colour indices of backends and symbol names of platforms, in the order in which a study names them."""

    backends: tuple[str, ...]
    platforms: tuple[str, ...]
    cells: dict[str, Cell]

    @classmethod
    def of(cls, study: Study) -> Palette:
        """The palette of a study."""
        backends = tuple(dict.fromkeys(c.backend for c in study.cells))
        platforms = tuple(dict.fromkeys(c.platform for c in study.cells))
        return cls(backends, platforms, {c.name: c for c in study.cells})

    def colour(self, name: str) -> int:
        """The colour index of a cell or backend called ``name``."""
        backend = self.cells[name].backend if name in self.cells else name
        return self.backends.index(backend) % COLOURS if backend in self.backends else COLOURS - 1

    def symbol(self, name: str) -> str:
        """The marker of a cell or platform called ``name``."""
        platform = self.cells[name].platform if name in self.cells else name
        index = self.platforms.index(platform) if platform in self.platforms else 0
        return SYMBOLS[index % len(SYMBOLS)]
