"""What a backend computes, and whether that is right: plans, emulation, exact answers, ULP distances.

Names are imported when they are first used, so that ``import verify`` costs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from verify.emulator import Result, emulate
    from verify.numerics.ulp import ulp_distance, ulp_summary
    from verify.partition import Plan, plan, plan_ragged

_HOMES = {
    "Plan": "verify.partition",
    "Result": "verify.emulator",
    "emulate": "verify.emulator",
    "plan": "verify.partition",
    "plan_ragged": "verify.partition",
    "ulp_distance": "verify.numerics.ulp",
    "ulp_summary": "verify.numerics.ulp",
}

__all__ = ["Plan", "Result", "emulate", "plan", "plan_ragged", "ulp_distance", "ulp_summary"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'verify' has no attribute {name!r}")
    import importlib
    import sys

    value = getattr(importlib.import_module(_HOMES[name]), name)
    setattr(sys.modules[__name__], name, value)
    return value
