"""The instructions of a lowering by line, for who explains a difference: from a kept lowering, or from what `lower` printed.

The JSON of ``ulpscope lower --format json`` holds all that is needed: with what the kernels were compiled, the lines that
were read for each architecture, and for each line its instructions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from specs.errors import InputError, did_you_mean
from verify.lower.sites import SiteInstructions
from verify.lower.stages import ENDING, Lowering, bundled, bundled_names, contents, load


@dataclass(frozen=True)
class Place:
    """Where the instructions of a line stand: the kernel, and whether its listing is SASS or PTX."""

    kernel: str
    source: str
    found: SiteInstructions


@dataclass(frozen=True)
class Behind:
    """One lowering for one architecture.

    Attributes:
        file: of the kernels. sha256: of that file. made: with what it was compiled, in words.
        arch: as ``sm_90``.
        lines: what the instructions compute, as lines of a spec, by name.
        places: instructions by line.
    """

    file: str
    sha256: str
    made: str
    arch: str
    lines: Mapping[str, str]
    places: Mapping[str, Place]


class _Some(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)


class _Reading(_Some):
    kernel: str
    arch: str
    source: str
    sites: tuple[SiteInstructions, ...]


class _Kernel(_Some):
    readings: tuple[_Reading, ...]


class _Answer(_Some):
    schema_: Literal[1] = Field(alias="schema")
    file: str
    sha256: str
    made: str
    archs: tuple[str, ...]
    lines: dict[str, dict[str, str]]
    kernels: tuple[_Kernel, ...]

    def behind(self, arch: str) -> Behind:
        readings = [r for k in self.kernels for r in k.readings if r.arch == arch]
        places = {s.site: Place(r.kernel, r.source, s) for r in readings for s in r.sites}
        return Behind(self.file, self.sha256, self.made, arch, self.lines[arch], places)


def behind(name: str, arch: str) -> Behind:
    """The instructions of a lowering for one architecture.

    Args:
        name: a kept lowering, ``attention@3.8.0`` or ``FILE.lower.gz``, or a file with the JSON that ``ulpscope lower
            --format json`` prints; ``:sm_90`` behind it is another architecture than ``arch``.
        arch: of the platform.

    Raises:
        InputError: there is no such file, it is no lowering, or it has no such architecture.
    """
    head, sign, tail = name.rpartition(":")
    if sign and tail.startswith("sm_"):
        name, arch = head, tail
    found = load(name) if name.endswith(ENDING) else bundled(name) or _printed(name)
    archs = found.archs
    if arch not in archs:
        raise InputError(
            f"has no {arch}",
            place=name,
            remedy=f"it has {', '.join(archs)}: write {name}:{archs[-1]} to take that one",
        )
    return found.behind(arch) if isinstance(found, _Answer) else _read(found, arch)


def _read(kept: Lowering, arch: str) -> Behind:
    from verify.lower.fragment import lines_of
    from verify.lower.read import read

    readings = [read(k, arch) for k in kept.kernels]
    places = {s.site: Place(r.kernel, r.source, s) for r in readings for s in r.sites}
    return Behind(kept.file, kept.sha256, kept.coordinate(), arch, lines_of(readings), places)


def _printed(name: str) -> _Answer:
    path = Path(name)
    try:
        return _Answer.model_validate_json(contents(path))
    except OSError as error:
        known = f"{did_you_mean(name, bundled_names())} Or give a file that `ulpscope lower` wrote"
        raise InputError(f"cannot be read: {error.strerror}", place=name, remedy=known) from None
    except ValidationError as error:
        first = error.errors()[0]
        raise InputError(
            f"{'.'.join(map(str, first['loc'])) or 'content'}: {first['msg']}",
            place=name,
            remedy="make it with `ulpscope lower KERNEL.py --format json > FILE.json`",
        ) from None
