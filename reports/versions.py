"""Versions of what figures depend on."""

from __future__ import annotations

import platform as machine
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version


def versions(packages: Sequence[str], extras: Sequence[str] = ()) -> dict[str, str]:
    """Of Python, the machine, ``packages``, and those of ``extras`` that are installed."""
    found = {"python": machine.python_version(), "machine": f"{machine.system()} {machine.machine()}"}
    for package in (*packages, *extras):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            if package not in extras:
                found[package] = "from source"
    return found
