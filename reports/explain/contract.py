"""The contract of an explanation: everything that its pages show, with a published JSON Schema.

Shares of a difference are rationals, kept as ``"num/den"`` beside a float, so that a reader can check that they add up.
``ulpscope explain --schema`` prints the schema.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from reports.contract_base import Bits, Count, Frozen, Note, Sha256

SCHEMA_ID = "ulpscope.explain/1"
Ratio = Annotated[str, Field(pattern=r"^-?[0-9]+/[0-9]+$")]
Size = Annotated[float, Field(ge=0.0)]


class Verdict(Frozen):
    """The first thing to read. ``diverges``: whether any stored output differs."""

    headline: str
    diverges: bool
    points: tuple[str, ...] = ()


class Provenance(Frozen):
    """How the explanation came about."""

    command: str
    seed: int
    started: str
    seconds: Size
    versions: dict[str, str]


class SideInfo(Frozen):
    """One side. ``groups``: of the outermost level; ``before``: the line that the last rounding takes in."""

    label: str
    spec: str
    spec_sha256: Sha256
    platform: str
    groups: Count
    format: str
    before: str


class Point(Frozen):
    """One place where the sides differ. ``at``: the number of the value along each of its axes.

    ``group_a``, ``group_b``: the outermost group that owns the value; ``tokens``: the first and last token of its piece.
    """

    at: dict[str, Count]
    group_a: int | None
    group_b: int | None
    tokens: tuple[Count, Count] | None
    a: str
    b: str
    bits_a: Bits
    bits_b: Bits
    format_a: str
    format_b: str
    ulp: Count | None


class Station(Frozen):
    """One site on the way from the first difference to the stored output: see `search.explain.travel.Station`."""

    name: str
    text_a: str
    text_b: str
    place_a: str
    place_b: str
    compared: Count
    only_a: Count
    only_b: Count
    differing: Count
    max_ulp: Count | None
    max_abs: Size
    special: Count
    first: Point | None
    worst: Point | None
    note: str
    other: str = ""


class Travel(Frozen):
    """The sites that both sides have, in the order of the dataflow; ``first``: the number of the first where they part."""

    stations: tuple[Station, ...]
    first: Count | None
    only_a: tuple[str, ...]
    only_b: tuple[str, ...]
    same_partition: bool
    partition: str


class InstructionInfo(Frozen):
    """Instructions of one kind that do one thing for a line, at ``lines`` of the listing; ``text``: the first of them."""

    part: str
    opcode: str
    lines: tuple[Count, ...]
    text: str


class RealisedInfo(Frozen):
    """What realises a line of a side: see `search.explain.instructions.Realised`."""

    side: Literal[0, 1]
    site: str
    text: str
    lowered: str
    kernel: str
    source: str
    instructions: tuple[InstructionInfo, ...]
    undecided: str
    file: str
    sha256: Sha256
    made: str
    arch: str


class Change(Frozen):
    """One line that differs; None: the side does not have it."""

    name: str
    a: str | None
    b: str | None
    place_a: str = ""
    place_b: str = ""


class PartInfo(Frozen):
    """A part of the difference: what is exchanged as a whole."""

    name: str
    changes: tuple[Change, ...]


class Contribution(Frozen):
    """What a part accounts for, in ULP of the output: ``exact`` and as a float; ``error``: standard error if sampled.

    ``alone``: the difference if it alone is taken from the second side; ``last``: what is missing if it alone is not.
    ``bound_a``, ``bound_b``: first-order bound of the roundings of its lines, relative to the weighted mean of \\|v\\|.
    """

    part: str
    ulp: float
    exact: Ratio
    error: Size | None
    alone: float | None
    last: float | None
    bound_a: Size | None
    bound_b: Size | None


class ElementInfo(Frozen):
    """The attribution of one output element.

    ``total`` is the distance before the last rounding, the sum of all contributions; ``rounding`` is what the last
    rounding adds; ``ulp``, the distance of the stored outputs, is their sum.
    """

    at: dict[str, Count]
    before_a: str
    before_b: str
    stored_a: str
    stored_b: str
    bits_a: Bits
    bits_b: Bits
    total: float
    total_exact: Ratio
    rounding: float
    rounding_exact: Ratio
    ulp: int
    contributions: tuple[Contribution, ...]


class RankInfo(Frozen):
    """A line whose roundings can move the output: see `search.explain.ranks.Rank`."""

    line: str
    format: str
    roundings: Count
    bound: Size
    part: str


class RankingInfo(Frozen):
    """Lines of one side, the most sensitive first. ``proved``: whether SymPy confirms the coefficients."""

    side: str
    ranks: tuple[RankInfo, ...]
    proved: bool | None
    reason: str


class AttributionInfo(Frozen):
    """The attribution of one input. ``hybrids`` were evaluated; ``orders`` were sampled, 0 where all sets were."""

    elements: tuple[ElementInfo, ...]
    hybrids: Count
    orders: Count
    joined: tuple[str, ...]
    format: str
    rankings: tuple[RankingInfo, ...]


class ShareInfo(Frozen):
    """A share of outputs that change, with its interval over inputs; ``part`` is empty for all parts together."""

    part: str
    share: float
    exact: Ratio
    low: float
    high: float
    error: Size | None


class EnsembleInfo(Frozen):
    """Shares over many inputs. ``sampled`` outputs of each were attributed; ``whole``: share of all that differ."""

    inputs: Count
    sampled: Count
    skipped: Count
    changed: ShareInfo
    shares: tuple[ShareInfo, ...]
    whole: Annotated[float, Field(ge=0.0, le=1.0)]
    interval: Literal["bootstrap", "range"]
    hybrids: Count
    orders: Count
    joined: tuple[str, ...]


class Explanation(Frozen):
    """Why two specs differ on one input, or on many."""

    schema_id: Literal["ulpscope.explain/1"] = SCHEMA_ID
    title: str
    verdict: Verdict
    provenance: Provenance
    input: str
    sides: tuple[SideInfo, SideInfo]
    parts: tuple[PartInfo, ...]
    travel: Travel | None
    realised: tuple[RealisedInfo, ...] = ()
    attribution: AttributionInfo | None
    ensemble: EnsembleInfo | None
    notes: tuple[Note, ...] = ()


def json_schema() -> dict[str, Any]:
    """The JSON Schema of an explanation."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **Explanation.model_json_schema(mode="serialization"),
    }
