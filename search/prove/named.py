"""The walker of the definition for arithmetics of our own: they are told which line is compiled, and errors name it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from search.prove.spread import OpenError
from search.prove.values import BreaksError
from verify.definition import Walker


class Named(Walker):
    """Sets ``site`` of its arithmetic while a line is compiled, and of errors to the line in which they arise."""

    def read(self, site: str) -> Any:
        """As the walker's own."""
        if site in self._reads:
            return self._reads[site]
        arithmetic: Any = self.arithmetic
        before, arithmetic.site = arithmetic.site, site
        try:
            inner = super().read(site)
        finally:
            arithmetic.site = before

        def read(index: Any) -> Any:
            try:
                return inner(index)
            except (BreaksError, OpenError) as error:
                error.site = error.site or site
                raise

        self._reads[site] = self.shared(site, read)
        return self._reads[site]

    def shared(self, site: str, read: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """What is kept of a line: itself."""
        return read
