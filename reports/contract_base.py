"""What every part of the contract is made of: frozen models, bounded numbers, notes."""

from __future__ import annotations

import json
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

Count = Annotated[int, Field(ge=0)]
Share = Annotated[float, Field(ge=0.0, le=1.0)]
Bits = Annotated[str, Field(pattern=r"^0x[0-9a-f]+$")]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class Frozen(BaseModel):
    """Base of every model: frozen, closed to unknown keys, finite numbers only."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


def to_json(report: Frozen) -> str:
    """A report as JSON text, keys in the order of its contract."""
    return json.dumps(
        report.model_dump(mode="json"), ensure_ascii=False, allow_nan=False, separators=(",", ":")
    )


def absent(value: object) -> bool:
    """Whether a part is not there: JSON then has no such key (``exclude_if``)."""
    return value is None


class Number(Frozen):
    """One number of the arithmetic: ``text`` decimal, ``hexfloat`` as C prints it, ``bits`` of ``format``."""

    text: str
    hexfloat: str
    bits: Bits
    format: str


class Note(Frozen):
    """A sentence for the reader; ``kind`` "limit" says what the figures cannot tell."""

    kind: Literal["information", "limit", "warning"]
    text: str
