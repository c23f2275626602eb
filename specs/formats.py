"""Number formats as data. Names as in ml_dtypes, with suffixes ``.ftz``, ``.sat`` and ``.rz``, and ``real``.

A binary format is described by its precision ``p`` (significand bits with the hidden one), the exponent
``emin`` of its smallest normal number and ``emax`` of its largest binade (unbiased, significand in [1, 2)).
Every finite value is a multiple of ``2**(emin - p + 1)``. Sources: IEEE 754-2019 table 3.5 for f16, f32 and
f64; bfloat16 as f32 with an 8-bit significand; OCP 8-bit floating point 1.0 for e4m3 and e5m2; tf32 as the
19 high bits of f32.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from specs.errors import SpecError, did_you_mean


@dataclass(frozen=True, slots=True)
class Format:
    """A number format with its rounding modifiers.

    ``bits`` is the storage width (0 for ``real``); ``largest`` the largest finite value; ``inf`` whether
    infinities exist (e4m3fn has none: overflow gives NaN unless ``sat``). ``ftz``: subnormal operands and
    results become zero of the same sign. ``sat``: overflow gives the largest finite value. ``rz``: round
    toward zero instead of to nearest even.
    """

    base: str
    bits: int
    p: int
    emin: int
    emax: int
    largest: float
    inf: bool = True
    ftz: bool = False
    sat: bool = False
    rz: bool = False

    @property
    def name(self) -> str:
        """The full name, modifiers included: ``f32.ftz``."""
        return self.base + "".join(f".{m}" for m in ("ftz", "sat", "rz") if getattr(self, m))

    @property
    def is_real(self) -> bool:
        """Whether this is the exact real number line, on which nothing is rounded."""
        return self.base == "real"

    @property
    def quantum(self) -> int:
        """The exponent of the smallest positive subnormal: every finite value is a multiple of 2**quantum."""
        return self.emin - self.p + 1

    def holds(self, other: Format) -> bool:
        """Whether every finite value of ``other`` is a value of this format."""
        if self.is_real or other.is_real:
            return self.is_real
        return self.p >= other.p and self.quantum <= other.quantum and self.largest >= other.largest

    def __str__(self) -> str:
        return self.name


def _binary(base: str, bits: int, p: int, emin: int, emax: int) -> Format:
    return Format(base, bits, p, emin, emax, (2.0 - 2.0 ** (1 - p)) * 2.0**emax)


BASES: dict[str, Format] = {
    "f64": _binary("f64", 64, 53, -1022, 1023),
    "f32": _binary("f32", 32, 24, -126, 127),
    "tf32": _binary("tf32", 32, 11, -126, 127),
    "bf16": _binary("bf16", 16, 8, -126, 127),
    "f16": _binary("f16", 16, 11, -14, 15),
    "e5m2": _binary("e5m2", 8, 3, -14, 15),
    "e4m3fn": Format("e4m3fn", 8, 4, -6, 8, 448.0, inf=False),
    "real": Format("real", 0, 0, 0, 0, float("inf")),
}

MODIFIERS = ("ftz", "sat", "rz")


def parse_format(name: str) -> Format:
    """The format called ``name``, such as ``bf16`` or ``f32.ftz``.

    Raises:
        SpecError: the base or a modifier is unknown or repeated.
    """
    base, *modifiers = name.split(".")
    if base not in BASES:
        raise SpecError(f"unknown number format '{name}'", remedy=did_you_mean(base, BASES))
    seen: dict[str, bool] = {}
    for modifier in modifiers:
        if modifier not in MODIFIERS:
            raise SpecError(
                f"unknown modifier '.{modifier}' in '{name}'", remedy=did_you_mean(modifier, MODIFIERS)
            )
        if modifier in seen:
            raise SpecError(f"modifier '.{modifier}' appears twice in '{name}'", remedy="write it once")
        seen[modifier] = True
    return replace(BASES[base], **seen)


def is_format(name: str) -> bool:
    """Whether ``name`` is a format, modifiers included."""
    base, *modifiers = name.split(".")
    return base in BASES and all(m in MODIFIERS for m in modifiers) and len(set(modifiers)) == len(modifiers)


def split_format(name: str) -> tuple[str, str]:
    """The longest format in front of a dotted name, and the rest: ``f32.ftz`` and ``mufu.ex2``; else ``""``."""
    parts = name.split(".")
    for i in range(len(parts) - 1, 0, -1):
        if is_format(".".join(parts[:i])):
            return ".".join(parts[:i]), ".".join(parts[i:])
    return "", name
