"""A run that was read: its manifest and its sequences."""

from __future__ import annotations

from dataclasses import dataclass

from verify.runs.manifest import Manifest
from verify.runs.sequence import Sequence


@dataclass(frozen=True)
class Run:
    """One run at one coordinate.

    Attributes:
        name: how tables call it; distinct within one comparison.
        manifest: coordinate and recording.
        sequences: in the order in which they were answered.
        place: the folder or file it came from.
        sha256: of all its files together (their hashes in the order of the manifest): equal hashes are one capture.
    """

    name: str
    manifest: Manifest
    sequences: tuple[Sequence, ...]
    place: str
    sha256: str
