"""How figures are written for people, on the page and in Markdown alike."""

from __future__ import annotations

import math
from collections.abc import Callable

from verify.words import plural


def count(value: int) -> str:
    """An integer with thousands separated: ``27,525``."""
    return f"{value:,}"


def short(value: float) -> str:
    """Three significant digits, or all digits of a whole part that has more: ``0.0123``, ``12,431``."""
    if value == 0:
        return "0"
    size = abs(value)
    if size >= 1e7 or size < 1e-4:
        return f"{value:.2e}"
    decimals = max(0, 2 - math.floor(math.log10(size)))
    text = f"{value:,.{decimals}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def percent(share: float) -> str:
    """A share in percent; what is not all or nothing never reads 0% or 100%."""
    if 0 < share < 0.0005:
        return "<0.1%"
    if 0.9995 <= share < 1:
        return ">99.9%"
    return f"{100 * share:.1f}".removesuffix(".0") + "%"


def mb(size: int) -> str:
    """Bytes in MB of 10**6 bytes."""
    return f"{size / 1e6:,.2f}"


def span(pair: tuple[int, int] | None) -> str:
    """The smallest and the largest size, once if they agree."""
    if pair is None:
        return "–"
    return count(pair[0]) if pair[0] == pair[1] else f"{count(pair[0])}–{count(pair[1])}"


FILTERS: dict[str, Callable[..., str]] = {
    "count": count,
    "plural": plural,
    "short": short,
    "percent": percent,
    "mb": mb,
    "span": span,
}
