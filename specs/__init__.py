"""What a backend is: specs, platforms, models and workloads as declared data, read and checked."""

from specs.errors import FidelityError, InputError, Place, SpecError, UlpscopeError, UnsupportedError
from specs.loader import Spec, load_spec, parse_spec
from specs.models import ModelShape, load_model
from specs.platforms import Platform, load_platform, load_requested, resolve_requested
from specs.workloads import Workload, load_workload

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
    "resolve_requested",
]
