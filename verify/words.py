"""Numbers of things, in words."""

from __future__ import annotations


def plural(n: int, word: str) -> str:
    """``1 pair``, ``1,200 pairs``, ``2 classes``."""
    if n == 1:
        return f"1 {word}"
    return f"{n:,} {word}{'es' if word.endswith('s') else 's'}"
