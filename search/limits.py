"""What a context may not ask of a search. No arrays are imported here: campaign files are checked with it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specs.errors import InputError


def check_context(context: Mapping[str, Any], kv_len: int) -> None:
    """Refuse what a search does not give a kernel.

    Args:
        context: what formulas see besides the platform.
        kv_len: tokens.

    Raises:
        InputError: sinks, ALiBi slopes, a softcap, a window that is no number of tokens, or another length.
    """
    for name in ("has_sinks", "has_alibi", "has_softcap"):
        if context.get(name):
            raise InputError(
                f"{name} = {context[name]}: no search gives a kernel sinks, ALiBi slopes or a softcap",
                place="context",
                remedy="leave it out",
            )
    if context.get("kv_len", kv_len) != kv_len:
        raise InputError(
            f"kv_len = {context['kv_len']} in the context of {kv_len} tokens",
            place="context",
            remedy="leave it out",
        )
    window = context.get("window") or 0
    if not isinstance(window, int) or window < 0:
        raise InputError(
            f"window = {str(window)[:40]}", place="context", remedy="give a number of tokens, or 0 for none"
        )
