"""What is computed: a backend on a platform."""

from __future__ import annotations

from dataclasses import dataclass

from specs import Platform, Spec


@dataclass(frozen=True, slots=True)
class Target:
    """One cell to compute. ``requested`` is the name that was asked for, where a spec was found by it."""

    backend: str
    spec: Spec
    platform: Platform
    platform_title: str
    requested: str | None = None

    @property
    def name(self) -> str:
        """What tables and figures call the cell."""
        return f"{self.backend} · {self.platform_title}"
