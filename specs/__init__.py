"""What a backend is: specs, platforms, models and workloads as declared data, read and checked.

Names are imported when they are first used, so that ``ulpscope --help`` does not wait for the reader of files.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from specs.errors import FidelityError, InputError, Place, SpecError, UlpscopeError, UnsupportedError
    from specs.loader import Spec, load_spec, parse_spec
    from specs.models import ModelShape, load_model
    from specs.platforms import Platform, load_platform
    from specs.requested import load_requested, resolve_kernel, resolve_requested
    from specs.workloads import Workload, load_workload

_HOMES = {
    "FidelityError": "errors",
    "InputError": "errors",
    "ModelShape": "models",
    "Place": "errors",
    "Platform": "platforms",
    "Spec": "loader",
    "SpecError": "errors",
    "UlpscopeError": "errors",
    "UnsupportedError": "errors",
    "Workload": "workloads",
    "load_model": "models",
    "load_platform": "platforms",
    "load_requested": "requested",
    "load_spec": "loader",
    "load_workload": "workloads",
    "parse_spec": "loader",
    "resolve_kernel": "requested",
    "resolve_requested": "requested",
}

__all__ = [
    "FidelityError",
    "InputError",
    "ModelShape",
    "Place",
    "Platform",
    "Spec",
    "SpecError",
    "UlpscopeError",
    "UnsupportedError",
    "Workload",
    "load_model",
    "load_platform",
    "load_requested",
    "load_spec",
    "load_workload",
    "parse_spec",
    "resolve_kernel",
    "resolve_requested",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'specs' has no attribute {name!r}")
    import importlib

    value = getattr(importlib.import_module(f"specs.{_HOMES[name]}"), name)
    globals()[name] = value
    return value
