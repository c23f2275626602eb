"""Ctrl-C that is not lost: libraries drop exceptions that arise in their callbacks, so that it is remembered, too."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager, suppress
from typing import NoReturn

#: The exit code of a command that Ctrl-C ended.
INTERRUPTED = 130

_PENDING = threading.Event()


@contextmanager
def remembered() -> Generator[None]:
    """Remember Ctrl-C besides raising it, until `check` raises it again or `settle` says that it has been obeyed.

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
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _pressed(*_: object) -> NoReturn:
    _PENDING.set()
    raise KeyboardInterrupt


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
