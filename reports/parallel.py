"""Cells side by side: one thread for each spec, because most of a first run is compiling, outside of Python.

Cells of one spec stay in one thread, so that what the first of them compiles serves the others. Results do not
depend on the number of threads.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from reports.target import Target

T = TypeVar("T")


def by_spec(targets: Sequence[Target], work: Callable[[Target], T]) -> list[T]:
    """``work`` of each target, in the order of ``targets``. The first exception of the order is raised."""
    groups: dict[str, list[int]] = {}
    for i, target in enumerate(targets):
        groups.setdefault(target.spec.content_hash, []).append(i)

    def one(indices: list[int]) -> list[tuple[int, T]]:
        return [(i, work(targets[i])) for i in indices]

    found: dict[int, T] = {}
    with ThreadPoolExecutor(max_workers=min(len(groups) or 1, os.cpu_count() or 1)) as pool:
        futures = [pool.submit(one, indices) for indices in groups.values()]
        try:
            for future in futures:
                found.update(future.result())
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return [found[i] for i in range(len(targets))]
