"""Results as JSON: dataclasses become objects, NaN null, infinities the texts "inf" and "-inf"."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from math import isfinite, isnan
from typing import Any

import numpy as np


def to_json(value: Any) -> Any:
    """Any result of this package as JSON values. Fields of dataclasses with ``json=False`` in their metadata are left out.

    Raises:
        TypeError: a value of another kind.
    """
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if isfinite(value) else None if isnan(value) else "inf" if value > 0 else "-inf"
    if isinstance(value, np.generic):
        return to_json(value.item())
    if isinstance(value, np.ndarray):
        return [to_json(x) for x in value.tolist()]
    if is_dataclass(value) and not isinstance(value, type):
        kept = (f for f in fields(value) if f.metadata.get("json", True))
        return {f.name: to_json(getattr(value, f.name)) for f in kept}
    if isinstance(value, Mapping):
        return {str(k): to_json(v) for k, v in value.items()}
    if isinstance(value, tuple | list):
        return [to_json(v) for v in value]
    raise TypeError(f"{type(value).__name__} has no JSON form")
