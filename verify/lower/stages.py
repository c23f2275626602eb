"""What a compilation keeps: the text of each stage, for each kernel and architecture, and with what it was made."""

from __future__ import annotations

import errno
import gzip
import io
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, StringConstraints, ValidationError

from specs.errors import InputError
from specs.schema import Frozen

STAGES = ("ttir", "ttgir", "llir", "ptx", "sass")
TITLES = {"ttir": "TTIR", "ttgir": "TTGIR", "llir": "LLVM IR", "ptx": "PTX", "sass": "machine code"}
ENDING = ".lower.gz"
LARGEST = 256 << 20


_Arch = Annotated[str, StringConstraints(pattern=r"^sm_\d{2,3}$")]
_Version = Annotated[str, StringConstraints(pattern=r"^[\w.+-]{1,60}$")]
_Name = Annotated[str, StringConstraints(pattern=r"^\w{1,200}$")]
_File = Annotated[str, StringConstraints(pattern=r"^[\w .+-]{1,200}$")]


class Stages(Frozen):
    """The text of each stage for one architecture. ``sass`` is empty where no disassembler was at hand."""

    ttir: str
    ttgir: str
    llir: str
    ptx: str
    sass: str = ""


class Kernel(Frozen):
    """One kernel as it was compiled. ``stages`` by architecture, as "sm_90"."""

    name: _Name
    signature: dict[str, str]
    constexprs: dict[str, int | float | bool | str | None]
    num_warps: int = Field(ge=1, le=64)
    num_stages: int
    stages: dict[_Arch, Stages]


class Lowering(Frozen):
    """The kernels of one file, compiled by one Triton. ``tools`` are versions of ptxas by architecture."""

    schema_: Literal[1] = Field(1, alias="schema")
    file: _File
    sha256: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
    triton: _Version
    fp_fusion: bool
    tools: dict[_Arch, _Version]
    kernels: tuple[Kernel, ...]

    @property
    def archs(self) -> tuple[str, ...]:
        """The architectures, in the order asked for."""
        return tuple(self.kernels[0].stages)

    def coordinate(self) -> str:
        """What has to be said beside any result: compiler, fusion, ptxas."""
        tools = sorted(set(self.tools.values()))
        fusion = "on" if self.fp_fusion else "off"
        ptxas = f", ptxas {' and '.join(tools)}" if tools else ""
        return f"Triton {self.triton}, fp fusion {fusion}{ptxas}"


def write(lowering: Lowering, path: Path) -> None:
    """Keep a lowering as one compressed file, the same bytes for the same content."""
    text = lowering.model_dump_json(by_alias=True).encode()
    with path.open("wb") as file, gzip.GzipFile(fileobj=file, mode="wb", filename="", mtime=0) as out:
        out.write(text)


def contents(path: Path, most: int = LARGEST) -> bytes:
    """The bytes of a file that somebody named.

    Raises:
        OSError: it cannot be read, or is no regular file: a device has no end.
        InputError: it has more than ``most`` bytes.
    """
    if path.exists() and not path.is_file() and not path.is_dir():
        raise OSError(errno.EINVAL, "it is not a regular file")
    with path.open("rb") as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise InputError(f"is larger than {most >> 20} MiB", place=str(path), remedy="lower fewer kernels")
    return data


def load(path: Path | str) -> Lowering:
    """Read what `write` kept; nothing in it is executed.

    Raises:
        InputError: the file is missing, too large or no lowering.
    """
    place = Path(path)
    try:
        data = contents(place)
    except OSError as error:
        raise InputError(
            f"cannot be read: {error.strerror}", place=str(path), remedy="check the path"
        ) from None
    return _parsed(data, str(path))


def _parsed(data: bytes, place: str) -> Lowering:
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(data)) as file:
            text = file.read(LARGEST + 1)
    except (OSError, EOFError, ValueError):
        raise InputError(
            "is no kept lowering",
            place=place,
            remedy=f"make one with `ulpscope lower KERNEL.py --keep X{ENDING}`",
        ) from None
    if len(text) > LARGEST:
        raise InputError(f"is larger than {LARGEST >> 20} MiB", place=place, remedy="lower fewer kernels")
    try:
        found = Lowering.model_validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        raise InputError(
            f"{'.'.join(map(str, first['loc'])) or 'content'}: {first['msg']}",
            place=place,
            remedy="make it again with `ulpscope lower KERNEL.py --keep FILE`",
        ) from None
    if not found.kernels or any(tuple(k.stages) != found.archs or not k.stages for k in found.kernels):
        raise InputError("its kernels have no stages, or different ones", place=place, remedy="make it again")
    return found


def bundled(name: str) -> Lowering | None:
    """A lowering that comes with the package: the example by Triton 3.7.1, "attention@3.7.1", or 3.8.0."""
    stem = name.replace("@", "_")
    resource = files("verify.lower") / "data" / f"{stem}{ENDING}"
    return _parsed(resource.read_bytes(), name) if resource.is_file() else None


def bundled_names() -> list[str]:
    """The names that `bundled` knows."""
    folder = files("verify.lower") / "data"
    return sorted(
        f.name.removesuffix(ENDING).replace("_", "@") for f in folder.iterdir() if f.name.endswith(ENDING)
    )
