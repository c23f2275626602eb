"""What runs in a worker: one case, behind a wall that lets nothing out but JSON.

A work function takes a case as JSON values and returns a mapping with the keys of `Outcome`, and with ``files``:
bytes by name, which the coordinator writes, so that workers on other machines need no shared folder. It is named
``module:function``, by the caller alone: neither a campaign file nor a database ever chooses what runs.
"""

from __future__ import annotations

import base64
import binascii
import ctypes
import importlib
import json
import os
import re
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, cast

from pydantic import Field, StringConstraints, ValidationError

from search.campaign.case import Case, canonical
from specs.errors import InputError, UlpscopeError
from specs.schema import Frozen

#: The work function of `ulpscope campaign`.
WORK = "search.campaign.work:run_case"
#: The most that the files of one case, and the JSON of its details, may take.
MAX_FILE_BYTES = 64 << 20
MAX_DETAILS = 1 << 20
MAX_FILES = 64
MAX_MESSAGE = 2_000

_WORK_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*:[A-Za-z_][A-Za-z0-9_]*")
_FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*(\.[A-Za-z0-9_-]+)*")

FileName = Annotated[str, StringConstraints(pattern=rf"^{_FILE_NAME.pattern}$", max_length=100)]
Finite = Annotated[float, Field(allow_inf_nan=False)]


class Outcome(Frozen):
    """What a case found. Nothing in it depends on the machine or on the load, but for a cut by wall time.

    Attributes:
        found: ``witness``: inputs that keep the constraints; ``nothing``: none within the budget; ``infeasible``: a
            proof that there are none; ``identical``: a proof that the sides agree on all of them.
        best_ulp: the objective at the best of them, real ULP of its metric. None: none found.
        integer_ulp: the certified distance of the stored outputs. None: none found.
        bound_ulp: a proved upper bound of ``best_ulp``. None: none known.
        evaluations: candidates that were evaluated.
        cut_by_wall_time: wall time ended the search, so that another run may find another result.
        witness: which of the files is the witness.
        details: JSON values for reports.
    """

    found: Literal["witness", "nothing", "infeasible", "identical"]
    best_ulp: Finite | None = None
    integer_ulp: Annotated[int, Field(ge=0, lt=1 << 63)] | None = None
    bound_ulp: Finite | None = None
    evaluations: Annotated[int, Field(ge=0, lt=1 << 63)] = 0
    cut_by_wall_time: bool = False
    witness: FileName | None = None
    details: dict[str, Any] = Field(default_factory=dict[str, Any])


@dataclass(frozen=True)
class Reply:
    """What came back from a worker.

    Attributes:
        ended: ``done``, ``failed`` (an exception, or no `Outcome`) or ``timeout``.
        seconds: wall time in the work function.
        outcome: if it is done.
        files: bytes by name.
        message: why it failed.
    """

    ended: Literal["done", "failed", "timeout"]
    seconds: float
    outcome: Outcome | None = None
    files: Mapping[str, bytes] = field(default_factory=dict[str, bytes])
    message: str = ""


class OverTimeError(BaseException):
    """Raised inside a work function that runs longer than it may. No `Exception`, so that searches do not catch it."""


def run_case(case: Mapping[str, Any]) -> Mapping[str, Any]:
    """The work function of a campaign: one search.

    Args:
        case: JSON values of a `Case`.

    Returns:
        the keys of `Outcome`, and ``files``.

    Raises:
        UlpscopeError: the case cannot be searched.
    """
    from search.cases import search_case

    return search_case(Case.from_json(case).to_json())


def payload(work: str, case_text: str, kill_after: float | None) -> str:
    """What is sent to a worker: JSON text for `call`."""
    return canonical({"work": work, "case": json.loads(case_text), "kill_after": kill_after})


def resolve(work: str) -> Callable[[Mapping[str, Any]], Mapping[str, Any]]:
    """The function that ``module:function`` names.

    Raises:
        InputError: there is none.
    """
    cause = "is not MODULE:FUNCTION"
    if _WORK_NAME.fullmatch(work):
        module, _, name = work.partition(":")
        try:
            found: Any = getattr(importlib.import_module(module), name)
            if callable(found):
                return cast(Callable[[Mapping[str, Any]], Mapping[str, Any]], found)
            cause = "is no function"
        except (ImportError, AttributeError) as error:
            cause = f"cannot be imported: {error}"
    raise InputError(
        f"the work function '{work[:100]}' {cause}",
        place="work",
        remedy="name one that every worker can import",
    )


def versions() -> dict[str, str]:
    """Versions that results depend on, in this process; the engines compare those of workers with the coordinator's."""
    import platform
    from importlib.metadata import PackageNotFoundError, version

    found = {"python": platform.python_version()}
    for name in ("ulpscope", "jax", "jaxlib", "numpy", "z3-solver"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    return found


def call(text: str) -> str:
    """Run one case in this process. Whatever it does short of killing the process, a reply comes back.

    Args:
        text: from `payload`.

    Returns:
        JSON text for `read_reply`.
    """
    task = json.loads(text)
    began = time.perf_counter()
    try:
        with _Watch(task["kill_after"]) as watch:
            answer = dict(resolve(task["work"])(task["case"]))
            watch.finish()
        files = {name: base64.b64encode(data).decode() for name, data in answer.pop("files", {}).items()}
        body: dict[str, Any] = {"ended": "done", "outcome": answer, "files": files}
        seconds = time.perf_counter() - began
        return canonical({**body, "seconds": seconds})
    except OverTimeError:
        body = {"ended": "timeout", "message": f"stopped after {task['kill_after']:g} s"}
    except UlpscopeError as error:
        body = {"ended": "failed", "message": str(error)[:MAX_MESSAGE]}
    except (Exception, SystemExit) as error:
        body = {"ended": "failed", "message": _message(error)}
    return canonical({**body, "seconds": time.perf_counter() - began})


def read_reply(text: str) -> Reply:
    """A reply as data; what is no reply is a failed case."""
    try:
        raw: dict[str, Any] = json.loads(text)
        ended, seconds = raw["ended"], float(raw["seconds"])
        if ended != "done":
            return Reply("timeout" if ended == "timeout" else "failed", seconds, message=str(raw["message"]))
        outcome = Outcome.model_validate(raw["outcome"])
        files = _files(raw["files"])
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        return Reply(
            "failed", _seconds(text), message=f"the work function returned no outcome: {_short(error)}"
        )
    problem = _problem(outcome, files)
    if problem:
        return Reply("failed", seconds, message=f"the work function returned {problem}")
    return Reply("done", seconds, outcome, files)


def _files(encoded: Mapping[str, str]) -> dict[str, bytes]:
    if len(encoded) > MAX_FILES or sum(len(data) for data in encoded.values()) > MAX_FILE_BYTES * 4 // 3 + 4:
        raise ValueError(f"more than {MAX_FILES} files or {MAX_FILE_BYTES:,} bytes")
    for name in encoded:
        if len(name) > 100 or not _FILE_NAME.fullmatch(name):
            raise ValueError(f"a file may not be called {name[:100]!r}")
    try:
        return {name: base64.b64decode(data, validate=True) for name, data in encoded.items()}
    except binascii.Error as error:
        raise ValueError(str(error)) from None


def _problem(outcome: Outcome, files: Mapping[str, bytes]) -> str:
    """What is contradictory, or nothing."""
    if outcome.witness is not None and outcome.witness not in files:
        return f"'{outcome.witness}' as its witness, which is none of its files"
    if (outcome.best_ulp is not None) != (outcome.found == "witness"):
        return f"found = {outcome.found} with best_ulp = {outcome.best_ulp}"
    if len(canonical(outcome.details)) > MAX_DETAILS:
        return f"details of more than {MAX_DETAILS:,} bytes"
    return ""


def _seconds(text: str) -> float:
    try:
        return float(json.loads(text)["seconds"])
    except (ValueError, TypeError, KeyError, RecursionError):
        return 0.0


def _short(error: Exception) -> str:
    if isinstance(error, ValidationError):
        first = error.errors()[0]
        return f"{'.'.join(str(part) for part in first['loc'])}: {first['msg']}"
    return f"{type(error).__name__}: {error}"[:300]


def _message(error: BaseException) -> str:
    """An exception in one line, with where it was raised."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({os.path.basename(frames[-1].filename)}:{frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {error}{where}"[:MAX_MESSAGE]


class _Watch:
    """Ends a work function after a time: by an exception, and if that does not help by ending the process.

    An exception reaches Python code only. What hangs in a library gets a quarter of the time more, and 5 s.
    """

    def __init__(self, seconds: float | None) -> None:
        self.seconds = seconds
        self.lock = threading.Lock()
        self.over = False
        self.timers: list[threading.Timer] = []

    def __enter__(self) -> _Watch:
        if self.seconds is not None:
            thread = threading.get_ident()
            self.timers = [
                threading.Timer(self.seconds, self._stop, (thread,)),
                threading.Timer(self.seconds * 1.25 + 5, os._exit, (1,)),
            ]
            for timer in self.timers:
                timer.daemon = True
                timer.start()
        return self

    def finish(self) -> None:
        """Call it while an exception is still caught: after it none comes."""
        with self.lock:
            self.over = True
        time.perf_counter()  # an exception that is on its way arrives at a call

    def _stop(self, thread: int) -> None:
        with self.lock:
            if not self.over:
                ctypes.pythonapi.PyThreadState_SetAsyncExc(
                    ctypes.c_ulong(thread), ctypes.py_object(OverTimeError)
                )

    def __exit__(self, *_: object) -> None:
        with self.lock:
            self.over = True
        for timer in self.timers:
            timer.cancel()
