"""The manifest of a run folder: where it was recorded, how, and the hash of every file. Schema 1.

Pydantic models, closed to unknown keys; a number that is not finite is an error.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints

from verify.capture.manifest import Part

MANIFEST = "manifest.json"

Word = Annotated[str, StringConstraints(max_length=200)]
Sha = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
Count = Annotated[int, Field(ge=1, le=1 << 31)]
Flag = bool | Annotated[int, Field(ge=-(1 << 48), le=1 << 48)] | float | Word | None
ValueKind = Literal["raw_logits", "raw_logprobs", "processed", "scores", "logits_slice"]


class Coordinate(Part):
    """Where a run was recorded: everything that may change its numbers. None is "not known".

    ``requested_backend`` is what the user asked the engine for, ``attention_backend`` what it resolved to. ``flags`` has
    what else is part of the coordinate (asking for log-probabilities may change the text).
    """

    gpu: Word | None = None
    platform: Word | None = None
    sm_count: Count | None = None
    provider: Word | None = None
    engine: Word | None = None
    engine_version: Word | None = None
    requested_backend: Word | None = None
    attention_backend: Word | None = None
    num_splits: Annotated[int, Field(ge=0, le=1 << 20)] | None = None
    dtype: Word | None = None
    kv_dtype: Word | None = None
    tensor_parallel: Count | None = None
    batch_size: Count | None = None
    cuda_graph: Word | bool | None = None
    cuda: Word | None = None
    driver: Word | None = None
    flags: dict[Word, Flag] = Field(default_factory=dict, max_length=200)

    def label(self) -> str:
        """A short name for tables: the parts that are known, most telling first."""
        parts = [self.gpu or self.platform, self.provider, self.attention_backend or self.requested_backend]
        engine = " ".join(p for p in (self.engine, self.engine_version) if p)
        parts += [engine or None, self.dtype, f"tp{self.tensor_parallel}" if self.tensor_parallel else None]
        parts += [f"bs{self.batch_size}" if self.batch_size else None]
        return " / ".join(p for p in parts if p) or "unnamed"


class Recording(Part):
    """How values were recorded.

    Attributes:
        value_kind: what a value is: a logit before or after the sampler's processors, a log-probability, one score of
            an example, or a slice of the logits (some columns of the vocabulary).
        decimals: number of printed decimals where values were printed; such values compare as equal to the printed
            digits, not as bits.
        temperature: what the logits were divided by; None is not known.
        greedy: whether the chosen token should be the most likely one.
        teacher_forced: whether the tokens were given; else the run was free, and is not comparable after a fork.
        clamp_floor: values at or below it stand for anything lower (-9999 in vLLM).
        lse_base: base of the logarithm of an ``lse``.
    """

    value_kind: ValueKind
    decimals: Annotated[int, Field(ge=0, le=17)] | None = None
    temperature: Annotated[float, Field(ge=0, le=1e6)] | None = None
    greedy: bool | None = None
    teacher_forced: bool | None = None
    clamp_floor: float | None = None
    lse_base: Literal["e", "2"] | None = None


class RunFile(Part):
    """One file of the folder; ``conversation`` and ``repeat`` where the file does not say them itself."""

    path: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.+/-]{0,199}$")]
    sha256: Sha
    conversation: Word | None = None
    repeat: Annotated[int, Field(ge=0, le=1 << 31)] = 0


class Manifest(Part):
    """A whole run. ``origin``: what it was made from (adapter, source file and its sha256), for people and provenance."""

    schema_: Annotated[Literal[1], Field(alias="schema")]
    kind: Literal["run"]
    run_id: Word
    coordinate: Coordinate
    capture: Recording
    model: Word | None = None
    model_sha256: Sha | None = None
    tokenizer_sha256: Sha | None = None
    vocab_size: Count | None = None
    files: Annotated[tuple[RunFile, ...], Field(max_length=100_000)]
    origin: dict[Word, Flag] = Field(default_factory=dict, max_length=200)

    def to_json(self) -> dict[str, Any]:
        """The manifest as JSON."""
        return self.model_dump(mode="json", by_alias=True)
