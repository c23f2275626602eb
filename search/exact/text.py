"""How exact numbers are written in a certificate, with bounds on what a file from elsewhere may hold."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Annotated, ClassVar

from pydantic import ConfigDict, StringConstraints

#: Digits of an interval's ends.
DIGITS = 25
#: ``"num/den"``. A rational of f64 has up to 650 digits.
Rational = Annotated[str, StringConstraints(pattern=r"^-?[0-9]{1,1500}/[1-9][0-9]{0,1499}$")]
#: Such as ``-1.25E-7``.
Digits = Annotated[str, StringConstraints(pattern=r"^-?[0-9]{1,60}(\.[0-9]{1,60})?(E[+-]?[0-9]{1,4})?$")]
#: A bit pattern.
Hex = Annotated[str, StringConstraints(pattern=r"^0x[0-9A-F]{1,16}$")]
#: A name, a label, a message.
Words = Annotated[str, StringConstraints(max_length=4000)]

CLOSED = ConfigDict(extra="forbid", strict=True)


@dataclass(frozen=True)
class Interval:
    """A real number between two decimals, both included.

    Attributes:
        lower, upper: decimals, rounded outward.
    """

    __pydantic_config__: ClassVar[ConfigDict] = CLOSED

    lower: Digits
    upper: Digits

    @property
    def bounds(self) -> tuple[Fraction, Fraction]:
        """Both ends as rationals."""
        return Fraction(self.lower), Fraction(self.upper)

    def __float__(self) -> float:
        low, high = self.bounds
        return float((low + high) / 2)


def rational(x: Fraction) -> str:
    """``"num/den"``."""
    return f"{x.numerator}/{x.denominator}"


def outward(low: Fraction, high: Fraction, digits: int = DIGITS) -> Interval:
    """Two rationals as decimals of about ``digits`` digits, rounded outward."""
    return Interval(_decimal(low, digits, False), _decimal(high, digits, True))


def _decimal(x: Fraction, digits: int, up: bool) -> str:
    if not x:
        return "0"
    size = x.numerator.bit_length() - x.denominator.bit_length()
    places = digits - size * 30103 // 100000
    scaled = x * Fraction(10) ** places
    whole = -(-scaled.numerator // scaled.denominator) if up else scaled.numerator // scaled.denominator
    while whole and whole % 10 == 0:
        whole, places = whole // 10, places - 1
    return str(Decimal((int(whole < 0), tuple(map(int, str(abs(whole)))), -places)))
