"""Processes of this machine, by loky."""

from __future__ import annotations

import os
import queue
import signal
import warnings
from typing import Any

from search.campaign.engines import LOCAL, Ended
from search.campaign.engines.child import watch_parent
from search.campaign.work import call

# joblib.Parallel and a loky pool of several workers both end as a whole when one worker dies: `Parallel` raises
# TerminatedWorkerError and drops every result that it has not yielded, and the pool kills its other workers and does
# not say which of the cases under way was to blame. So there is one loky executor of one worker for each place: a
# dead worker takes its own case with it and nothing else, and nobody has to guess. loky (as joblib ships it) and not
# concurrent.futures, because it starts workers without forking this process, which may hold threads of JAX.


class LocalEngine:
    """One process for each worker, started when it is first needed and again after it died."""

    def __init__(self, workers: int | None) -> None:
        self.label = LOCAL
        self.workers = workers or _cpus()
        self._threads = max(1, _cpus() // self.workers)
        self._ended: queue.SimpleQueue[tuple[int, str, Any]] = queue.SimpleQueue()
        self._pools: list[Any] = [None] * self.workers
        self._free = list(range(self.workers))
        self._groups = [""] * self.workers  # what each of them was last at

    def capacity(self) -> int:
        """See `Engine`."""
        return self.workers

    def submit(self, key: str, group: str, payload: str) -> None:
        """See `Engine`."""
        place = next((place for place in self._free if self._groups[place] == group), self._free[0])
        self._free.remove(place)
        self._groups[place] = group
        if self._pools[place] is None:
            self._pools[place] = self._pool()
        future = self._pools[place].submit(call, payload)
        future.add_done_callback(lambda done: self._ended.put((place, key, done)))

    def wait(self, seconds: float) -> list[Ended]:
        """See `Engine`."""
        found: list[Ended] = []
        try:
            item = self._ended.get(timeout=seconds)
            while True:
                found.append(self._end(*item))
                item = self._ended.get_nowait()
        except queue.Empty:
            return found

    def close(self, *, at_once: bool) -> None:
        """See `Engine`."""
        for pool in self._pools:
            if pool is not None:
                pool.shutdown(wait=True, kill_workers=at_once)
        self._pools = [None] * self.workers

    def _end(self, place: int, key: str, future: Any) -> Ended:
        self._free.append(place)
        error = future.exception()
        if error is None:
            return Ended(key, future.result())
        pool, self._pools[place] = self._pools[place], None
        pool.shutdown(wait=True, kill_workers=True)
        return Ended(key, None, _how(error))

    def _pool(self) -> Any:
        from joblib.externals.loky import ProcessPoolExecutor

        # A worker whose memory has grown is replaced after a case; loky warns of it, and nothing is lost.
        warnings.filterwarnings(
            "ignore", "A worker stopped while some jobs were given to the executor", UserWarning
        )
        return ProcessPoolExecutor(
            max_workers=1, initializer=_begin_worker, initargs=(os.getpid(),), env=_threads(self._threads)
        )


def _begin_worker(parent: int) -> None:
    """In a new worker: Ctrl-C is the coordinator's to handle, its stdout too; without a coordinator there is no work."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.dup2(2, 1)
    watch_parent(parent)


def _threads(count: int) -> dict[str, str]:
    """Variables that keep libraries from using every CPU in each worker. XLA's CPU client reads NPROC."""
    names = ("NPROC", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    return {name: os.environ.get(name, str(count)) for name in names}


def _how(error: BaseException) -> str:
    """The last signal or exit code that loky reports, else its message."""
    text = str(error)
    _, found, codes = text.partition("exit codes of the workers are {")
    return f"exit code {codes.partition('}')[0]}" if found else text.splitlines()[0][:300]


def _cpus() -> int:
    from joblib import cpu_count

    return int(cpu_count())
