"""Workloads as data: which positions of which conversations are decoded."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field

from specs.platforms import NamedFile, load_file
from specs.schema import Frozen, Line


class Range(Frozen):
    """One message that is decoded token by token.

    Attributes:
        depth: tokens in the KV cache where the message begins.
        tokens: how many tokens the message has.
        content: what it consists of, in words.
    """

    conversation: Line
    message: Line
    depth: Annotated[int, Field(ge=0, le=1 << 24)]
    tokens: Annotated[int, Field(ge=1, le=1 << 24)]
    content: Line


class Workload(NamedFile):
    """Ranges of positions, in the order of the file."""

    ranges: Annotated[tuple[Range, ...], Field(alias="range", strict=False, min_length=1, max_length=10_000)]

    @property
    def tokens(self) -> int:
        """Decoded tokens of all ranges together."""
        return sum(r.tokens for r in self.ranges)


def load_workload(name_or_path: str | Path) -> Workload:
    """The workload of a name (``agent_session``) or a path.

    Raises:
        SpecError: unknown name, or a file that is not a workload.
    """
    return load_file(Workload, name_or_path, "workload")
