"""What is wrong with a run's files: every problem with its file, field and row, so that all are told in one go."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from specs.errors import InputError

#: More problems than these of one kind of reading are counted and not kept.
MOST = 200


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong. ``row`` counts from 0 within the file's rows; None is the whole field."""

    file: str
    cause: str
    field: str = ""
    row: int | None = None
    remedy: str = ""

    @property
    def place(self) -> str:
        """File, field and row in words."""
        parts = [self.file] if self.file else []
        if self.field:
            parts.append(f"field '{self.field}'")
        if self.row is not None:
            parts.append(f"row {self.row}")
        return ": ".join(parts[:1]) + (": " + ", ".join(parts[1:]) if parts[1:] else "")

    def __str__(self) -> str:
        return f"{self.place}: {self.cause}" + (f" ({self.remedy})" if self.remedy else "")

    def to_json(self) -> dict[str, Any]:
        """The problem as JSON."""
        return {
            "file": self.file,
            "field": self.field or None,
            "row": self.row,
            "cause": self.cause,
            "remedy": self.remedy or None,
        }


@dataclass
class Problems:
    """Problems in the order in which they were found; warnings are things that are true but may be meant."""

    errors: list[Problem] = field(default_factory=list)
    warnings: list[Problem] = field(default_factory=list)
    more: int = 0

    def add(
        self, file: str, cause: str, field: str = "", row: int | None = None, *, remedy: str = ""
    ) -> None:
        """Note an error."""
        if len(self.errors) < MOST:
            self.errors.append(Problem(file, cause, field, row, remedy))
        else:
            self.more += 1

    def warn(self, file: str, cause: str, field: str = "", row: int | None = None) -> None:
        """Note a warning."""
        if len(self.warnings) < MOST:
            self.warnings.append(Problem(file, cause, field, row))

    @property
    def count(self) -> int:
        """How many errors there are."""
        return len(self.errors) + self.more

    def __iter__(self) -> Iterator[Problem]:
        return iter(self.errors)

    def stop(self, place: str) -> None:
        """Raise the first error, and say how many more there are.

        Raises:
            InputError: there is an error.
        """
        if not self.errors:
            return
        first = self.errors[0]
        more = (
            f" (and {self.count - 1} more: `ulpscope capture validate` names all)" if self.count > 1 else ""
        )
        remedy = first.remedy or "make the capture again, or correct it"
        raise InputError(f"{first.cause}{more}", place=f"{place}: {first.place}", remedy=remedy)
