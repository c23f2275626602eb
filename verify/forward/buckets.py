"""Lengths that programs are compiled for: eight for each power of two, so that padding costs an eighth at most."""

from __future__ import annotations

SMALLEST = 64


def bucket(length: int) -> int:
    """The compiled length that serves ``length`` rows."""
    step = max(SMALLEST, (1 << max(0, length - 1).bit_length()) // 8)
    return -(-max(length, 1) // step) * step
