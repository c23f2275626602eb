"""GPUs and classes of CPU as data."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, Field, StringConstraints, ValidationInfo, model_validator

from specs.context import PlatformWord
from specs.discover import resolve
from specs.document import read_document, validate
from specs.dot_products import DotProduct
from specs.errors import SpecError
from specs.schema import Frozen, Line, RefusalError, SpecName

Positive = Annotated[int, Field(ge=1, le=1 << 16)]
File = TypeVar("File", bound="NamedFile")


class Reference(Frozen):
    """Where a figure was read."""

    what: Line
    where: Line


class NamedFile(Frozen):
    """A data file with a name: the head of platforms, models and workloads."""

    schema_version: Annotated[Literal[1], Field(alias="schema")]
    name: SpecName
    title: Line
    source: Annotated[tuple[Reference, ...], Field(strict=False, max_length=32)] = ()


def _capability(value: int, info: ValidationInfo) -> int:
    if info.data.get("kind") == "cpu" and value == 0:
        return value
    if not 50 <= value < 200:
        raise RefusalError(
            f"{value} is no compute capability", "major * 10 + minor: 90 for 9.0, 120 for 12.0"
        )
    return value


class Platform(NamedFile):
    """One GPU, or one class of CPU.

    Attributes:
        kind: ``gpu`` or ``cpu``.
        cpu_class: of a CPU, the word that kernels know it by: what its libraries choose their code by.
        sm_count: streaming multiprocessors that a kernel can use.
        compute_capability: major * 10 + minor, as 90 for 9.0.
        memory_bandwidth_gb_s: the vendor's figure, in 10**9 bytes per second.
        memory_gb: the vendor's capacity, in 10**9 bytes.
        dot_products: the arithmetic of ``mma`` trees, by instruction and input format.
        special_functions: the model of ``mufu.*``; ``mufu``: tables of the special-function unit.
    """

    kind: Literal["gpu", "cpu"] = "gpu"
    cpu_class: Annotated[str, StringConstraints(pattern=r"^[a-z0-9_]{1,40}$")] = "none"
    sm_count: Positive
    compute_capability: Annotated[int, AfterValidator(_capability)]
    memory_bandwidth_gb_s: Annotated[float, Field(gt=0, le=1e6, strict=False)]
    memory_gb: Annotated[float, Field(gt=0, le=1e5, strict=False)]
    dot_products: Annotated[
        tuple[DotProduct, ...], Field(alias="dot_product", strict=False, max_length=32)
    ] = ()
    special_functions: Literal["mufu", "none"] = "mufu"

    @model_validator(mode="before")
    @classmethod
    def _cpu(cls, data: Any) -> Any:
        """A CPU has no multiprocessors: formulas see one, of compute capability 0."""
        if not isinstance(data, dict) or data.get("kind") != "cpu":
            return data
        return {"sm_count": 1, "compute_capability": 0, "special_functions": "none", **data}

    @property
    def content_hash(self) -> str:
        """SHA-256 of everything that is declared, in hexadecimal."""
        return hashlib.sha256(self.model_dump_json().encode()).hexdigest()

    @property
    def context(self) -> dict[str, int | str]:
        """What formulas know of the platform: names of `specs.context.CONTEXT`."""
        return {
            "sm_count": self.sm_count,
            "compute_capability": self.compute_capability,
            "cpu": PlatformWord(self.cpu_class),
        }

    @property
    def capability(self) -> str:
        """The compute capability as NVIDIA writes it: ``9.0``."""
        return f"{self.compute_capability // 10}.{self.compute_capability % 10}"


def load_file(model: type[File], name_or_path: str | Path, what: str) -> File:
    """The platform, model or workload of a name or path.

    Raises:
        SpecError: with place, cause and remedy.
    """
    found = resolve(str(name_or_path), what)
    document = read_document(found.path)
    loaded = validate(model, document)
    if found.kind != "path" and loaded.name != found.name:
        raise SpecError(
            f"the file is called {found.name} but holds '{loaded.name}'",
            place=document.char(("name",)),
            remedy="file and name must agree",
        )
    return loaded


def load_platform(name_or_path: str | Path) -> Platform:
    """The platform of a name (``h200``) or a path.

    Raises:
        SpecError: unknown name, or a file that is not a platform (``sm_count = 0`` among them).
    """
    return load_file(Platform, name_or_path, "platform")
