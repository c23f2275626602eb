"""Room for compiled programs: a process may hold only so many mappings of memory, and every compiled part takes some.

Linux allows 65,530 (``vm.max_map_count``). Two kernels' programs took 800 and 730 of them (jaxlib 0.10.2), so that some
90 kernels end a process: LLVM finds no room for code and aborts. Long before that, compiled programs are dropped;
those that are needed again are compiled again.
"""

from __future__ import annotations

import time
from pathlib import Path

import jax

#: Share of the allowed mappings from which programs are dropped. The next program must fit into the rest.
FULL = 0.6
#: Seconds between two counts: in less nothing is compiled that fills the rest.
PAUSE = 0.25

_MAPS, _LIMIT = Path("/proc/self/maps"), Path("/proc/sys/vm/max_map_count")
_counted = 0.0


def mappings() -> tuple[int, int] | None:
    """(mappings of this process, mappings allowed); None where the system does not say."""
    try:
        with _MAPS.open("rb") as lines:
            return sum(1 for _ in lines), int(_LIMIT.read_text())
    except (OSError, ValueError):
        return None


def make_room() -> bool:
    """Drop all compiled programs if they leave little room. Call it before something may be compiled.

    Returns:
        Whether they were dropped.
    """
    global _counted
    now = time.monotonic()
    if now - _counted < PAUSE:
        return False
    _counted = now
    found = mappings()
    if found is None or found[0] < FULL * found[1]:
        return False
    jax.clear_caches()
    return True
