"""Ctrl-C: remembered where a library drops it, and an end without tearing anything down."""

import os
import signal
import subprocess
import sys

import pytest

from verify.interrupts import check, remembered, settle


def press() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def test_what_was_dropped_is_raised_again():
    with remembered():
        with pytest.raises(KeyboardInterrupt):
            press()
        with pytest.raises(KeyboardInterrupt):  # nobody said that it was obeyed
            check()
        check()
        with pytest.raises(KeyboardInterrupt):
            press()
        settle()
        check()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_handler_of_somebody_else_stays():
    seen: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: seen.append(number))
    try:
        with remembered():
            press()
        assert seen == [signal.SIGINT]
        check()
    finally:
        signal.signal(signal.SIGINT, before)


def test_leaving_writes_what_was_said_and_waits_for_nobody():
    code = (
        "import threading, time, multiprocessing, sys\n"
        "from verify.interrupts import leave\n"
        "threading.Thread(target=time.sleep, args=(60,)).start()\n"
        "print('said', end='')\n"
        "sys.stderr.write('warned')\n"
        "leave(130)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stdout, done.stderr) == (130, "said", "warned")
