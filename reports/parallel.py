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


def by_spec(targets: Sequence[Target], work: Callable[[list[Target]], list[T]]) -> list[T]:
    """The results of ``work``, in the order of ``targets``.

    Args:
        targets: cells.
        work: makes one result for each of several cells of one spec.

    Raises:
        the first exception, in the order of the specs.
    """
    groups: dict[str, list[int]] = {}
    for i, target in enumerate(targets):
        groups.setdefault(target.spec.content_hash, []).append(i)
    found: dict[int, T] = {}
    with ThreadPoolExecutor(max_workers=min(len(groups) or 1, os.cpu_count() or 1)) as pool:
        futures = {pool.submit(work, [targets[i] for i in group]): group for group in groups.values()}
        try:
            for future, group in futures.items():
                found.update(zip(group, future.result(), strict=True))
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return [found[i] for i in range(len(targets))]
