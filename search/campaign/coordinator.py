"""The loop that hands out cases and saves what comes back. It alone writes the database.

As many cases run at once as the engine holds. Most of a first case is compiling the programs of its sides, so cases with
the same ones follow each other, where they can in the same worker, and different workers begin with different ones. No
result depends on it.

A case whose worker died waits until nothing else is left, and then runs alone, with the whole machine to itself; if its
worker dies again, it is recorded as crashed.
"""

from __future__ import annotations

import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from search.campaign.database import Database, Todo
from search.campaign.engines import Ended, Engine
from search.campaign.work import payload, read_reply

#: Seconds between looks at the keyboard.
TICK = 0.2


@dataclass(frozen=True)
class Progress:
    """How far a run is.

    Attributes:
        done: cases of the campaign that are settled, whatever way.
        total: cases of the campaign.
        best_ulp: the largest ULP so far. None: no witness yet.
        per_second: cases settled a second, since this run began.
        seconds_left: at that rate. None: not known yet.
        crashed, failed, timeout: how many of ``done`` ended so.
        running: cases under way.
    """

    done: int
    total: int
    best_ulp: float | None
    per_second: float
    seconds_left: float | None
    crashed: int
    failed: int
    timeout: int
    running: int

    def __str__(self) -> str:
        best = "no witness yet" if self.best_ulp is None else f"best {self.best_ulp:.4g} ULP"
        left = "" if self.seconds_left is None else f", {_span(self.seconds_left)} left"
        names = ("crashed", "failed", "timeout")
        bad = "".join(f", {getattr(self, name)} {name}" for name in names if getattr(self, name))
        return f"{self.done} of {self.total} cases, {best}, {self.per_second:.3g} cases/s{left}{bad}"


class Interrupts:
    """Ctrl-C, counted: once: finish what runs; twice: stop now. Only in the main thread; a third time raises."""

    def __init__(self, notice: Callable[[str], None]) -> None:
        self.count = 0
        self._notice = notice

    def add(self) -> None:
        """Count one, as a press of Ctrl-C does."""
        self.count += 1
        if self.count == 1:
            self._notice("stopping when the cases under way are done; Ctrl-C again stops now")
        elif self.count > 2:
            raise KeyboardInterrupt

    @contextmanager
    def caught(self) -> Generator[None]:
        """Take Ctrl-C over."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = signal.signal(signal.SIGINT, lambda *_: self.add())
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)


class Coordinator:
    """One run of a campaign.

    Args:
        database: in which `Database.begin_run` was called.
        engine: where cases run.
        work: the work function, ``module:function``.
        todo: the cases to run.
        kill_after: seconds that a case may take. None: any.
        progress: called now and then, in this thread.
        interrupts: how often Ctrl-C was pressed.
    """

    def __init__(
        self,
        database: Database,
        engine: Engine,
        work: str,
        todo: list[Todo],
        *,
        kill_after: float | None,
        progress: Callable[[Progress], None],
        interrupts: Interrupts,
    ) -> None:
        self.database, self.engine, self.work, self.kill_after = database, engine, work, kill_after
        self.progress, self.interrupts = progress, interrupts
        self.fresh: dict[str, deque[Todo]] = {}
        for task in todo:
            if not task.deaths:
                self.fresh.setdefault(task.group, deque()).append(task)
        self.suspects = deque(task for task in todo if task.deaths)
        self.running: dict[str, tuple[Todo, bool, float]] = {}
        self.counts = database.counts()
        for task in todo:  # those that are run again count as pending
            self.counts["pending"] += task.status != "pending"
            self.counts[task.status] -= task.status != "pending"
        self.best = database.best()
        self.settled = 0
        self.last: str | None = None  # the group of the case that ended last
        self.began = time.monotonic()

    def run(self) -> bool:
        """Run until nothing is left, or until Ctrl-C.

        Returns:
            whether cases are left because of Ctrl-C.

        Raises:
            EngineError: the engine is lost. StorageError: the database cannot be written.
        """
        while self.interrupts.count < 2:
            if not self.interrupts.count:
                self._hand_out()
            if not self.running:
                break
            for ended in self.engine.wait(TICK):
                self._settle(ended)
            self.progress(self.state())
        return bool(self.interrupts.count and (self.running or self.fresh or self.suspects))

    def state(self) -> Progress:
        """How far it is."""
        rate = self.settled / max(time.monotonic() - self.began, 1e-9)
        left = sum(map(len, self.fresh.values())) + len(self.suspects) + len(self.running)
        total = sum(self.counts.values())
        return Progress(
            done=total - self.counts["pending"],
            total=total,
            best_ulp=self.best,
            per_second=rate,
            seconds_left=left / rate if self.settled else None,
            crashed=self.counts["crashed"],
            failed=self.counts["failed"],
            timeout=self.counts["timeout"],
            running=len(self.running),
        )

    def _hand_out(self) -> None:
        while self.fresh and len(self.running) < self.engine.capacity():
            self._submit(self._next(), alone=False)
        if self.suspects and not self.fresh and not self.running:
            self._submit(self.suspects.popleft(), alone=True)

    def _next(self) -> Todo:
        """A case of the group that a worker has just finished one of; else of a group that nobody is at; else any."""
        busy = {task.group for task, _, _ in self.running.values()}
        last = self.last if self.last in self.fresh else None
        group = last or next((group for group in self.fresh if group not in busy), next(iter(self.fresh)))
        self.last = None
        queue = self.fresh[group]
        task = queue.popleft()
        if not queue:
            del self.fresh[group]
        return task

    def _submit(self, task: Todo, *, alone: bool) -> None:
        self.running[task.id] = task, alone, time.monotonic()
        self.engine.submit(task.id, task.group, payload(self.work, task.text, self.kill_after))

    def _settle(self, ended: Ended) -> None:
        task, alone, began = self.running.pop(ended.key)
        self.last = task.group
        seconds = time.monotonic() - began
        if ended.reply is None:
            self._died(task, alone, seconds, ended.why)
            return
        reply = read_reply(ended.reply)
        self.database.record(
            task.id,
            reply.ended,
            reply.ended,
            seconds=reply.seconds,
            alone=alone,
            message=reply.message,
            outcome=reply.outcome,
            files=reply.files,
        )
        if reply.outcome is not None and reply.outcome.best_ulp is not None:
            self.best = max(reply.outcome.best_ulp, self.best if self.best is not None else float("-inf"))
        self._count(reply.ended)

    def _died(self, task: Todo, alone: bool, seconds: float, why: str) -> None:
        # Out of time in a library, where no exception reaches it: the worker ends itself (`work._Watch`).
        hung = alone and self.kill_after is not None and seconds > self.kill_after
        message = f"the worker died: {why}"
        if not alone:
            self.database.record(task.id, "pending", "died", seconds=seconds, message=message)
            self.suspects.append(replace(task, deaths=task.deaths + 1))
            return
        status = "timeout" if hung else "crashed"
        self.database.record(task.id, status, "died", seconds=seconds, alone=True, message=message)
        self._count(status)

    def _count(self, status: str) -> None:
        self.counts[status] += 1  # pyright: ignore[reportArgumentType]
        self.counts["pending"] -= 1
        self.settled += 1


def _span(seconds: float) -> str:
    whole = round(seconds)
    hours, minutes = divmod(whole // 60, 60)
    return (
        f"{hours} h {minutes} min" if hours else f"{minutes} min {whole % 60} s" if minutes else f"{whole} s"
    )
