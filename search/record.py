"""The JSON of a witness file: frozen models, closed to unknown keys, every size bounded. Schema 1.

The arrays lie in the safetensors file of the same name: ``scores`` and ``values``, where q and K are searched also
``q`` and ``k``, of a space around an input ``base_scores`` and ``base_values``, and ``projection``.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, StringConstraints

from search.bound import Bound
from search.certificate import Certificate
from search.exact.text import Hex, Words
from search.space import MAX_TOKENS
from specs.document import MAX_BYTES
from specs.platforms import Platform
from specs.schema import Frozen

#: Counts up when the meaning of a field changes.
SCHEMA = 1
MAX_SIDES = 16
MAX_DIMS = 4096
MAX_VOCABULARY = 1 << 18

Sha = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_.-]{0,119}$")]
Note = Annotated[str, StringConstraints(max_length=10_000)]
Value = bool | Annotated[int, Field(ge=-(1 << 53), le=1 << 53)] | float | Words
Count = Annotated[int, Field(ge=0, lt=1 << 63)]
Column = Annotated[int, Field(ge=1, le=MAX_DIMS)]


class Part(Frozen):
    """Base of every part: strict, closed, and without NaN or infinities."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class SideOf(Part):
    """One backend, whole: nothing else is needed to run it.

    Attributes:
        label: as `search.sides.Side.label`.
        spec: its canonical text, changed lines included. spec_sha256: of that text.
        platform: the whole platform.
        options, context: values of this side alone.
        changed: the lines that were changed, by name.
        format: of the output. site, before_format: the line that the last rounding takes in, and its format.
        output, before: by column, bit patterns of the stored output and of the value before its last rounding.
    """

    label: Words
    spec: Annotated[str, StringConstraints(max_length=MAX_BYTES)]
    spec_sha256: Sha
    platform: Platform
    options: Annotated[dict[Name, Value], Field(max_length=500)]
    context: Annotated[dict[Name, Value], Field(max_length=500)]
    changed: Annotated[dict[Name, Words], Field(max_length=500)]
    format: Name
    site: Name
    before_format: Name
    output: Annotated[tuple[Hex, ...], Field(min_length=1, max_length=MAX_DIMS)]
    before: Annotated[tuple[Hex, ...], Field(min_length=1, max_length=MAX_DIMS)]


class StatisticsOf(Part):
    """Bounds on moments: see `search.space.Statistics`."""

    score_std: float | None
    value_std: float | None
    value_mean: float | None


class SpaceOf(Part):
    """What was searched: see `search.space.Space`. ``base``: whether it lies around an input, which is in the file."""

    kind: Literal["scores", "qkv"]
    kv_len: Annotated[int, Field(ge=1, le=MAX_TOKENS)]
    context: Annotated[dict[Name, Value], Field(max_length=200)]
    dims: Column
    score_box: Annotated[float, Field(gt=0)]
    value_box: Annotated[float, Field(gt=0)]
    cancellation: Annotated[float, Field(ge=0, le=1)]
    masks: bool
    fixed: Annotated[tuple[Annotated[int, Field(ge=0, lt=MAX_TOKENS)], ...], Field(max_length=MAX_TOKENS)]
    base: bool
    edits: Count | None
    statistics: StatisticsOf | None
    carry: Annotated[int, Field(ge=-64, le=64)] | None = None


class ObjectiveOf(Part):
    """What was maximised: see `search.objective.Objective`. ``vocabulary``: rows of the projection, in the file."""

    metric: Literal["ulp", "f32", "flips", "kl"]
    single: Annotated[int, Field(ge=0, lt=MAX_SIDES)] | None
    vocabulary: Annotated[int, Field(ge=1, le=MAX_VOCABULARY)] | None


class DistanceOf(Part):
    """How far sides ``a`` and ``b`` are apart, in the column where that is farthest.

    Attributes:
        integer: values between the stored outputs; None where an infinity or NaN meets something else.
        real: places between the values before their last rounding; None where there is none.
    """

    a: Annotated[int, Field(ge=0, lt=MAX_SIDES)]
    b: Annotated[int, Field(ge=0, lt=MAX_SIDES)]
    integer: Count | None
    real: Annotated[float, Field(ge=0)] | None


class RatiosOf(Part):
    """How much one column cancels: the exact output against the weighted mean and the largest of the magnitudes."""

    over_mean: Annotated[float, Field(ge=0)] | None
    over_largest: Annotated[float, Field(ge=0)] | None


class BoundOf(Part):
    """The upper bound: see `search.bound.Bound`. ``real`` is None where it is infinite."""

    real: float | None
    first_order: float | None
    integer: int | None
    rigor: Literal["rigorous", "first order"]
    reason: Words

    @staticmethod
    def of(bound: Bound) -> BoundOf:
        """A bound as JSON has it."""
        return BoundOf(
            real=finite(bound.real),
            first_order=finite(bound.first_order),
            integer=bound.integer,
            rigor=bound.rigor,
            reason=bound.reason[:4000],
        )


class BudgetOf(Part):
    """What the search could spend."""

    evaluations: Count
    rlimit: Count
    seconds: float | None


class StepOf(Part):
    """One part of the search: the best objective after it, and candidates evaluated by it."""

    method: Words
    score: float | None
    evaluations: Count


class SearchOf(Part):
    """How the input was found. ``cut``: wall time ended it, so that another run may find another input."""

    method: Words
    seed: Count
    budget: BudgetOf | None
    steps: Annotated[tuple[StepOf, ...], Field(max_length=10_000)]
    evaluations: Count
    cut: bool
    command: Annotated[tuple[Words, ...], Field(max_length=1000)]


class ArraysOf(Part):
    """The file of arrays."""

    bytes: Count
    sha256: Sha


class Record(Part):
    """A witness, but for its arrays.

    Attributes:
        score: the objective; None where it cannot be measured.
        ratios: one for each column.
        no_bound, no_certificate: why there is none, where there is none.
        versions: of what results depend on.
    """

    schema_: Annotated[Literal[1], Field(alias="schema")]
    kind: Literal["witness"]
    sides: Annotated[tuple[SideOf, ...], Field(min_length=2, max_length=MAX_SIDES)]
    space: SpaceOf
    objective: ObjectiveOf
    score: float | None
    distances: Annotated[tuple[DistanceOf, ...], Field(min_length=1, max_length=MAX_SIDES * MAX_SIDES)]
    ratios: Annotated[tuple[RatiosOf, ...], Field(min_length=1, max_length=MAX_DIMS)]
    bound: BoundOf | None
    no_bound: Words
    certificate: Certificate | None
    no_certificate: Words
    search: SearchOf
    versions: Annotated[dict[Name, Words], Field(max_length=100)]
    note: Note
    arrays: ArraysOf

    @property
    def least_integer(self) -> int:
        """The smallest distance of stored outputs of any two sides."""
        return min(d.integer or 0 for d in self.distances)

    def to_json(self) -> dict[str, Any]:
        """Plain JSON."""
        return self.model_dump(mode="json", by_alias=True)


def json_schema() -> dict[str, Any]:
    """The JSON Schema of a witness's JSON file."""
    return Record.model_json_schema(by_alias=True)


def finite(x: float) -> float | None:
    """``x``, or None where it is an infinity or NaN."""
    return float(x) if x - x == 0 else None
