"""A Ray cluster, or one that is started on this machine for the campaign (``ray://local``).

Cases are submitted a chunk at a time, as many as the cluster has CPUs, so that a hundred thousand of them do not
fill its queues. Each is a task of its own and runs in a child of Ray's worker (`search.campaign.engines.child`): a
case that kills its process costs the cluster nothing, and a worker or node that dies takes only its own cases with it.
"""

from __future__ import annotations

import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from typing import Any

from search.campaign.engines import Ended, EngineError, missing, same_versions
from search.campaign.engines.child import call_in_child
from search.campaign.work import versions

REFRESH = 5.0
#: Shared memory for results, bytes. Each of them is small.
STORE = 100 << 20


class RayEngine:
    """The workers of the cluster at ``HOST:PORT`` (its client port, 10001), or of a new one."""

    def __init__(self, address: str, workers: int | None = None) -> None:
        try:
            import ray
        except ImportError:
            raise missing("ray", "ray") from None
        self._ray: Any = ray
        self.label = f"ray://{address}"
        self._most = workers
        self._refs: dict[Any, str] = {}
        self._cpus, self._counted = 0, 0.0
        self._own = not ray.is_initialized()
        try:
            self._connect(address, workers)
            self._check_workers()
        except BaseException:
            self.close(at_once=True)
            raise
        self._call: Any = ray.remote(call_in_child).options(num_cpus=1, max_retries=0)

    def capacity(self) -> int:
        """See `Engine`: the CPUs of the cluster as it is now."""
        moment = time.monotonic()
        if moment - self._counted > REFRESH:
            with self._connected():
                self._cpus = int(self._ray.cluster_resources().get("CPU", 0))
            self._counted = moment
        there = max(1, self._cpus)
        return there if self._most is None else min(there, self._most)

    def submit(self, key: str, group: str, payload: str) -> None:
        """See `Engine`. Which worker it is, the cluster decides."""
        with self._connected():
            self._refs[self._call.remote(payload)] = key

    def wait(self, seconds: float) -> list[Ended]:
        """See `Engine`."""
        if not self._refs:
            time.sleep(seconds)
            return []
        refs = list(self._refs)
        with self._connected():  # which anything may find broken, the hash of a reference among them
            if not self._ray.wait(refs, num_returns=1, timeout=seconds)[0]:
                return []
            ready, _ = self._ray.wait(refs, num_returns=len(refs), timeout=0)
            return [self._end(ref) for ref in ready]

    def close(self, *, at_once: bool) -> None:
        """See `Engine`."""
        refs, self._refs = list(self._refs), {}
        with suppress(Exception):  # the cluster may be gone
            for ref in refs if at_once else ():
                self._ray.cancel(ref, force=True)
        if self._own:
            with suppress(Exception):
                self._ray.shutdown()

    def _connect(self, address: str, workers: int | None) -> None:
        if not self._own:
            return
        common: dict[str, Any] = {"configure_logging": False, "log_to_driver": False}
        try:
            if address == "local":
                self._ray.init(
                    address="local",
                    num_cpus=workers,
                    include_dashboard=False,
                    object_store_memory=STORE,
                    **common,
                )
            else:
                self._ray.init(address=self.label, **common)
        except Exception as error:  # Ray raises whatever its layers raise
            raise EngineError(
                f"no cluster answers: {_first_line(error)}",
                place=self.label,
                remedy="start one with `ray start --head`, and give the port of its client server",
            ) from None

    def _check_workers(self) -> None:
        try:
            theirs = self._ray.get(self._ray.remote(versions).options(num_cpus=1).remote(), timeout=60)
        except Exception as error:  # whatever goes wrong on a worker is raised here
            raise EngineError(
                f"a worker cannot import ulpscope, or none is free: {_first_line(error)}",
                place=self.label,
                remedy="install ulpscope on every node",
            ) from None
        same_versions(theirs, self.label)

    def _end(self, ref: Any) -> Ended:
        key = self._refs.pop(ref)
        errors = self._ray.exceptions
        try:
            reply, why = self._ray.get(ref)
            return Ended(key, reply, why)
        except (
            errors.WorkerCrashedError,
            errors.OutOfMemoryError,
            errors.NodeDiedError,
            errors.LocalRayletDiedError,
            errors.ObjectLostError,
        ) as error:
            return Ended(key, None, f"{type(error).__name__}: {_first_line(error)}")

    @contextmanager
    def _connected(self) -> Generator[None]:
        """Turn whatever Ray's layers raise into an `EngineError`."""
        try:
            yield
        except Exception as error:
            raise self._lost(error) from None

    def _lost(self, why: object) -> EngineError:
        return EngineError(
            f"the cluster is lost: {_first_line(why)}",
            place=self.label,
            remedy="see to its nodes, then resume the campaign",
        )


def _first_line(what: object) -> str:
    text = str(what) or type(what).__name__
    return text.splitlines()[0][:300]
