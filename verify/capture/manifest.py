"""The manifest of a capture: what ran, on what, with which inputs, and the hash of everything.

Pydantic models, closed to unknown keys; a number that is not finite is an error. Schema 1.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, StringConstraints

from specs.schema import Frozen

MANIFEST = "manifest.json"
ARRAYS = "arrays.safetensors"

Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.+-]{0,119}$")]
Text = Annotated[str, StringConstraints(max_length=2000)]
Sha = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
Count = Annotated[int, Field(ge=0, le=1 << 48)]
Size = Annotated[int, Field(ge=0, le=1 << 32)]
Dtype = Literal["F64", "F32", "F16", "BF16", "F8_E4M3", "F8_E5M2", "U64", "U32", "U16", "U8", "I64", "I32"]
Scalar = bool | Annotated[int, Field(ge=-(1 << 48), le=1 << 48)] | float | Text | None


class Part(Frozen):
    """Base of every part of a manifest."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, allow_inf_nan=False, populate_by_name=False
    )


class ArrayInfo(Part):
    """One array: how it is stored, and the sha256 of its bytes in C order."""

    dtype: Dtype
    shape: Annotated[tuple[Size, ...], Field(max_length=8)]
    sha256: Sha


class Recipe(Part):
    """An input that `verify.capture.inputs.make` can make again; see there for the kinds."""

    kind: Literal["random", "sharp", "spread", "cancel", "rising", "low", "tiny", "teaching"]
    seed: Annotated[int, Field(ge=0, le=1 << 32)]
    q_len: Annotated[int, Field(ge=1, le=1 << 16)]
    kv_len: Annotated[int, Field(ge=0, le=1 << 24)]
    q_heads: Annotated[int, Field(ge=1, le=1 << 10)]
    kv_heads: Annotated[int, Field(ge=1, le=1 << 10)]
    head_dim: Annotated[int, Field(ge=1, le=1 << 10)]
    dtype: Literal["bf16", "f16"]


class InputInfo(Part):
    """One input: ``q [q_len, q_heads, head_dim]``, ``k, v [kv_len, kv_heads, head_dim]``, scale and mask.

    ``recipe`` says how it is made again; ``embedded`` whether its arrays lie in the file. One of them at least.
    """

    recipe: Recipe | None = None
    embedded: bool
    origin: Text = ""
    scale: float
    causal: bool = False
    arrays: Annotated[dict[Name, ArrayInfo], Field(max_length=8)]


class Library(Part):
    """What a kernel came from. ``commit`` where the library says it."""

    name: Name
    version: Name
    commit: Text | None = None
    more: dict[Name, Text] = Field(default_factory=dict)


class Record(Part):
    """One call of one kernel on one input.

    Attributes:
        kernel: a name of `verify.capture.kernels.KERNELS`.
        context: integers and words of `specs.context.CONTEXT` that the arrays do not say.
        options: values for the spec's ``[options]``.
        call: what the library's function was given besides the arrays, for people.
        repeats: how often it ran; ``repeatable``: whether all of them gave the same bytes.
        arrays: what came back, in the layouts of `verify.capture.kernels`.
    """

    kernel: Name
    input: Name
    context: dict[Name, int | Text] = Field(default_factory=dict)
    options: dict[Name, bool | int | float] = Field(default_factory=dict)
    call: dict[Name, Scalar] = Field(default_factory=dict)
    repeats: Annotated[int, Field(ge=1, le=1000)] = 1
    repeatable: bool = True
    arrays: Annotated[dict[Name, ArrayInfo], Field(max_length=32)]


class Probe(Part):
    """One sweep of a function unit or an instruction: see `verify.capture.producers.probes`."""

    kernel: Name
    what: Name
    call: dict[Name, Scalar] = Field(default_factory=dict)
    arrays: Annotated[dict[Name, ArrayInfo], Field(max_length=32)]


class Machine(Part):
    """Where the kernels ran. Of a GPU: its name, SMs, capability and driver; of a CPU: the class of its code."""

    system: Text
    python: Text
    cpu: Text
    cpu_class: Name
    gpu: Text | None = None
    sm_count: Annotated[int, Field(ge=1, le=1 << 16)] | None = None
    compute_capability: Annotated[int, Field(ge=10, le=1000)] | None = None
    driver: Text | None = None
    cuda: Text | None = None
    environment: dict[Name, Text] = Field(default_factory=dict)


class File(Part):
    """The file of arrays beside the manifest."""

    name: Literal["arrays.safetensors"]
    bytes: Count
    sha256: Sha


class Manifest(Part):
    """A whole capture. ``skipped``: kernels that were asked for and could not run, with the reason."""

    schema_: Annotated[Literal[1], Field(alias="schema")]
    kind: Literal["kernels"]
    made: Text
    tool: Text
    quick: bool
    machine: Machine
    libraries: dict[Name, Library]
    skipped: dict[Name, Text] = Field(default_factory=dict)
    inputs: Annotated[dict[Name, InputInfo], Field(max_length=10_000)]
    records: Annotated[dict[Name, Record], Field(max_length=10_000)]
    probes: Annotated[dict[Name, Probe], Field(max_length=1_000)] = Field(default_factory=dict)
    file: File

    def stored(self) -> dict[str, ArrayInfo]:
        """Every array that must lie in the file, by its key there: ``records/ID/NAME`` and so on."""
        found = {
            f"inputs/{name}/{key}": info
            for name, given in self.inputs.items()
            if given.embedded
            for key, info in given.arrays.items()
        }
        for title, parts in (("records", self.records), ("probes", self.probes)):
            found |= {
                f"{title}/{n}/{key}": info for n, part in parts.items() for key, info in part.arrays.items()
            }
        return found

    def to_json(self) -> dict[str, Any]:
        """The manifest as JSON."""
        return self.model_dump(mode="json", by_alias=True)
