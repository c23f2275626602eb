"""Questions in processes of their own, killed at their time limit: Z3 and SymPy look at the clock only now and then."""

from __future__ import annotations

import multiprocessing
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from queue import Empty, SimpleQueue
from typing import Any

from search.prove.about import asked
from search.prove.answer import Proof
from search.prove.work import Job, answer
from specs.errors import UlpscopeError

#: Seconds that a fresh process may take to start, besides its question's limit.
START = 20.0


@dataclass(frozen=True)
class Reply:
    """What became of a job: its proofs, or the error that it ended with."""

    job: Job
    proofs: tuple[Proof, ...]
    error: UlpscopeError | None = None


class Worker:
    """A process that answers one job after the other, and is started again where one had to be killed."""

    def __init__(self) -> None:
        self.process: BaseProcess | None = None
        self.pipe: Connection | None = None

    def ask(self, job: Job) -> Reply:
        """Answer a job within its limit.

        A job that takes longer is killed with its process, and so is one whose process dies: the answer is then a
        proof with the status ``unknown`` that says so.
        """
        began = time.perf_counter()
        try:
            if self.process is None or not self.process.is_alive():
                self._start()
            assert self.pipe is not None
            self.pipe.send(job)
            if not self.pipe.poll(job.seconds):
                self.close()
                return self._none(job, f"no answer within {job.seconds:g} s: killed", began)
            kind, value = self.pipe.recv()
        except (EOFError, OSError):
            self.close()
            return self._none(job, "its process died", began)
        if kind == "error":
            error, cause, place, remedy = value
            return Reply(job, (), error(cause, place=place, remedy=remedy))
        return Reply(job, tuple(value))

    def kill(self) -> None:
        """Kill the process from another thread: the one that asks finds it dead, and closes."""
        process = self.process
        if process is not None and process.pid is not None:
            process.kill()

    def close(self) -> None:
        """End the process. Only for the thread that asks."""
        if self.process is not None:
            self.process.kill()
            self.process.join()
        if self.pipe is not None:
            self.pipe.close()
        self.process = self.pipe = None

    def _start(self) -> None:
        self.close()
        spawn = multiprocessing.get_context("spawn")
        self.pipe, theirs = spawn.Pipe()
        self.process = spawn.Process(target=_serve, args=(theirs,), daemon=True)
        self.process.start()
        theirs.close()
        if self.pipe.poll(START):
            self.pipe.recv()  # it is ready: the limit is for the question

    @staticmethod
    def _none(job: Job, why: str, began: float) -> Reply:
        seconds = time.perf_counter() - began
        proof = Proof(job.subject, job.claim, "unknown", why, seconds=seconds)
        return Reply(job, tuple(asked(job.kind, job.about, [proof])))


def ask_all(
    jobs: Sequence[Job],
    workers: int,
    done: Callable[[Reply, int], None] = lambda reply, left: None,
    meanwhile: Callable[[], None] = lambda: None,
) -> list[Reply]:
    """Answer jobs in some processes; the replies come back in the order of the jobs.

    Args:
        jobs: the questions.
        workers: processes at a time.
        done: called after each reply with how many are left, in the thread of a worker.
        meanwhile: called once, in the thread of the caller.
    """
    queue: SimpleQueue[tuple[int, Job]] = SimpleQueue()
    for item in enumerate(jobs):
        queue.put(item)
    replies: dict[int, Reply] = {}
    each = [Worker() for _ in range(max(1, min(workers, len(jobs))))]

    def serve(worker: Worker, ended: threading.Event) -> None:
        try:
            while True:
                number, job = queue.get_nowait()
                replies[number] = worker.ask(job)
                done(replies[number], len(jobs) - len(replies))
        except Empty:
            pass
        finally:
            worker.close()
            ended.set()

    # Not join(): an interrupted one takes a thread for ended that still runs.
    ends = [threading.Event() for _ in each]
    threads = [
        threading.Thread(target=serve, args=pair, daemon=True) for pair in zip(each, ends, strict=True)
    ]
    for thread in threads:
        thread.start()
    try:
        meanwhile()
        for ended in ends:
            ended.wait()
    finally:
        with suppress(Empty):  # interrupted: nobody takes another question
            while True:
                queue.get_nowait()
        for worker, ended in zip(each, ends, strict=True):
            while not ended.wait(0.05):  # it may be about to start another process
                worker.kill()
    return [replies[i] for i in sorted(replies)]


def ask(job: Job) -> tuple[Proof, ...]:
    """Answer one job in a process of its own.

    Raises:
        UlpscopeError: what the question raises.
    """
    reply = ask_all([job], 1)[0]
    if reply.error is not None:
        raise reply.error
    return reply.proofs


def _serve(pipe: Connection) -> None:
    """The process: a job in, proofs out, until the other end is gone."""
    pipe.send("ready")
    while True:
        try:
            job: Any = pipe.recv()
        except (EOFError, KeyboardInterrupt):
            return
        try:
            pipe.send(("proofs", answer(job)))
        except UlpscopeError as error:
            pipe.send(("error", (type(error), error.cause, error.place, error.remedy)))
