"""A Dask cluster, by futures of ``distributed``. (joblib's Dask backend waits for ever for a case that kills its worker.)

A case runs in a child of the cluster's worker (`search.campaign.engines.child`), so that one that kills its process costs
the cluster nothing. Without that the scheduler hands it to the next worker at once, and a worker that dies while it starts
takes its nanny with it: measured, two such cases leave a cluster of two workers with none.

When a worker itself dies, or its machine, the scheduler runs its cases again elsewhere; after as many deaths as its
``distributed.scheduler.allowed-failures`` says it gives up with KilledWorker. Results that were only in the memory of a dead
worker are computed again by the scheduler, unasked.
"""

from __future__ import annotations

import logging
import queue
import time
from typing import Any

from search.campaign.engines import Ended, EngineError, missing, same_versions
from search.campaign.engines.child import call_in_child
from search.campaign.work import versions

#: Seconds to wait for a scheduler that does not answer, and for a first worker to come.
CONNECT = 10.0
PATIENCE = 60.0
#: Seconds for which the number of threads in the cluster is taken as known.
REFRESH = 2.0


class DaskEngine:
    """The workers of the scheduler at ``HOST:PORT``."""

    def __init__(
        self,
        address: str,
        workers: int | None = None,
        *,
        connect: float = CONNECT,
        patience: float = PATIENCE,
    ) -> None:
        try:
            from distributed import Client
        except ImportError:
            raise missing("distributed", "dask") from None
        self.label = f"dask://{address}"
        # What it has to say of a lost scheduler, `EngineError` says without a traceback.
        self._log = logging.getLogger("distributed.client")
        self._level = self._log.level
        self._log.setLevel(logging.CRITICAL)
        self._most = workers
        self._connect, self._patience = connect, patience
        try:
            self._client: Any = Client(f"tcp://{address}", timeout=connect, set_as_default=False)
        except (OSError, TimeoutError, ValueError) as error:
            self._log.setLevel(self._level)
            raise EngineError(
                f"no scheduler answers: {error}",
                place=self.label,
                remedy="start one with `dask scheduler`, and workers with `dask worker HOST:PORT`",
            ) from None
        self._ended: queue.SimpleQueue[tuple[str, tuple[str | None, str], BaseException | None]] = (
            queue.SimpleQueue()
        )
        self._futures: dict[str, Any] = {}
        self._count = 0
        self._threads, self._counted = 0, 0.0
        self._alone_since: float | None = None  # when the last worker was found gone
        try:
            self._check_workers()
        except BaseException:
            self.close(at_once=True)
            raise

    def capacity(self) -> int:
        """See `Engine`: the threads of all workers that are there now."""
        moment = time.monotonic()
        if moment - self._counted > REFRESH:
            self._threads = sum(self._ask(self._client.nthreads).values())
            self._counted = moment
            if self._threads:
                self._alone_since = None
            elif self._alone_since is None:
                self._alone_since = moment
        there = max(1, self._threads)
        return there if self._most is None else min(there, self._most)

    def submit(self, key: str, group: str, payload: str) -> None:
        """See `Engine`. Which worker it is, the cluster decides."""
        self._count += 1
        future = self._client.submit(
            call_in_child,
            payload,
            key=f"ulpscope-{id(self):x}-{self._count}-{key[:16]}",
            pure=False,
            retries=0,
        )
        self._futures[key] = future
        future.add_done_callback(lambda done: self._ended.put((key, *_outcome(done))))

    def wait(self, seconds: float) -> list[Ended]:
        """See `Engine`."""
        from distributed import KilledWorker

        found: list[Ended] = []
        try:
            item = self._ended.get(timeout=seconds)
            while True:
                key, (reply, why), error = item
                self._futures.pop(key).release()
                if isinstance(error, KilledWorker):
                    found.append(Ended(key, None, _first_line(error)))
                elif error is not None:
                    raise self._lost(error)
                else:
                    found.append(Ended(key, reply, why))
                item = self._ended.get_nowait()
        except queue.Empty:
            pass
        if self._client.status != "running":
            raise self._lost(f"the connection is {self._client.status}")
        self.capacity()
        since = self._alone_since
        if self._futures and since is not None and time.monotonic() - since > self._patience:
            raise self._lost(f"no worker for {self._patience:g} s")
        return found

    def close(self, *, at_once: bool) -> None:
        """See `Engine`. What already runs in the cluster cannot be stopped from here; nobody waits for it."""
        if self._futures and at_once and self._client.status == "running":
            self._client.cancel(list(self._futures.values()), force=True)
        self._futures.clear()
        self._client.close(timeout=self._connect)
        self._log.setLevel(self._level)

    def _check_workers(self) -> None:
        deadline = time.monotonic() + min(self._connect, self._patience)
        while not self._ask(self._client.nthreads):
            if time.monotonic() > deadline:
                raise self._lost("no worker")
            time.sleep(0.1)
        try:
            found: dict[str, Any] = self._client.run(versions)
        except Exception as error:  # whatever goes wrong on a worker is raised here
            raise self._lost(f"a worker cannot import ulpscope: {_first_line(error)}") from None
        for worker, theirs in found.items():
            same_versions(theirs, f"{self.label}: {worker}")

    def _ask(self, question: Any) -> Any:
        try:
            return question()
        except (OSError, TimeoutError, RuntimeError, AttributeError) as error:
            raise self._lost(error) from None

    def _lost(self, why: object) -> EngineError:
        return EngineError(
            f"the cluster is lost: {_first_line(why)}",
            place=self.label,
            remedy="see to its scheduler and workers, then resume the campaign",
        )


def _outcome(future: Any) -> tuple[tuple[str | None, str], BaseException | None]:
    """In the thread of callbacks: fetch what a future holds."""
    try:
        return future.result(), None
    except BaseException as error:
        return (None, ""), error


def _first_line(what: object) -> str:
    text = str(what) or type(what).__name__
    return text.splitlines()[0][:300]
