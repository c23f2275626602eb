"""What a user calls a backend: something to ask for (``flashinfer``), the name of a spec, or a path."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specs import Platform, Spec, load_requested, load_spec, resolve_requested
from specs.discover import every, is_path
from specs.errors import SpecError, did_you_mean
from specs.requested import ENGINE


def load_backend(name: str, platform: Platform, context: Mapping[str, Any] | None = None) -> Spec:
    """The spec that ``name`` means on ``platform``. What users ask for goes before a spec of the same name.

    Args:
        context: what decides between kernels: see `specs.requested.resolve_requested`.

    Raises:
        SpecError: unknown, with the closest of both kinds of names; or a spec that cannot be loaded.
        UnsupportedError: it runs on this platform with a kernel that no spec describes.
    """
    requested = load_requested()
    if name.removeprefix(ENGINE) in requested:
        return load_spec(resolve_requested(name, platform, context))
    if name and "\0" not in name and not is_path(name):
        known = {found.name for found in every()}
        if name not in known:
            raise SpecError(f"unknown spec '{name}'", remedy=did_you_mean(name, {*known, *requested}))
    return load_spec(name)
