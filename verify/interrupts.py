"""Ctrl-C that is neither lost nor fatal.

Libraries drop exceptions that arise in their callbacks, so it is remembered and pressed again until it is obeyed. Where
an exception would crash the process, in the initialisation of an extension module or in a callback of the garbage
collector, it is put off.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import NoReturn

#: The exit code of a command that Ctrl-C ended.
INTERRUPTED = 130

#: Seconds after which it is pressed again: where it was raised, and where it was put off.
AGAIN, SOON = 2.0, 0.05

_PENDING = threading.Event()


@contextmanager
def remembered() -> Generator[None]:
    """Raise Ctrl-C again and again, or by `check`, until `settle` says that it has been obeyed.

    In the main thread alone, and where nobody else has taken Ctrl-C over.
    """
    main = threading.current_thread() is threading.main_thread()
    if not main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    settle()
    signal.signal(signal.SIGINT, _pressed)
    try:
        yield
    finally:
        settle()
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _pressed(_: int, frame: FrameType | None) -> None:
    _PENDING.set()
    fragile = _fragile(frame)
    timer = threading.Timer(SOON if fragile else AGAIN, _press_again)
    timer.daemon = True
    timer.start()
    if not fragile:
        raise KeyboardInterrupt


def _fragile(frame: FrameType | None) -> bool:
    """Whether something is being imported, or JAX collects garbage."""
    while frame is not None:
        name = frame.f_globals.get("__name__", "")
        if name == "importlib._bootstrap" or frame.f_code.co_name == "_xla_gc_callback":
            return True
        frame = frame.f_back
    return False


def _press_again() -> None:
    main = threading.main_thread().ident
    if _PENDING.is_set() and main is not None:
        signal.pthread_kill(main, signal.SIGINT)  # unlike _thread.interrupt_main(), it also ends a sleep


def check() -> None:
    """Stop here if Ctrl-C was pressed and nothing has come of it.

    Raises:
        KeyboardInterrupt: it was.
    """
    if _PENDING.is_set() and threading.current_thread() is threading.main_thread():
        settle()
        raise KeyboardInterrupt


def settle() -> None:
    """Ctrl-C was obeyed."""
    _PENDING.clear()


def leave(code: int) -> NoReturn:
    """End the process at once: threads of XLA that still run crash an interpreter that tears itself down."""
    if "multiprocessing" in sys.modules:
        import multiprocessing

        for child in multiprocessing.active_children():
            child.kill()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):  # a pipe whose reader is gone
            stream.flush()
    os._exit(code)
