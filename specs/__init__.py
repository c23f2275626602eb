"""What a backend is: specs, platforms, models and workloads as declared data, read and checked."""

from specs.errors import FidelityError, InputError, Place, SpecError, UlpscopeError, UnsupportedError
from specs.loader import Spec, load_spec, parse_spec

__all__ = [
    "FidelityError",
    "InputError",
    "Place",
    "Spec",
    "SpecError",
    "UlpscopeError",
    "UnsupportedError",
    "load_spec",
    "parse_spec",
]
