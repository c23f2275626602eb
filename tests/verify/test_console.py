"""The last line of a command: once in a terminal, on stderr alone where the streams go apart."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

SAY = """
from verify.console import answering
with answering(False) as answer:
    answer.text("they differ")
    answer.close("they differ")
"""


def in_a_terminal() -> str:
    """What a terminal shows that is stdout and stderr of the command."""
    import pty

    leader, follower = pty.openpty()
    with subprocess.Popen([sys.executable, "-c", SAY], stdout=follower, stderr=follower) as command:
        os.close(follower)
        shown = b""
        while True:
            try:
                part = os.read(leader, 4096)
            except OSError:  # Linux: the other end is closed
                break
            if not part:
                break
            shown += part
        assert command.wait() == 0
    os.close(leader)
    return shown.decode().replace("\r\n", "\n")


@pytest.mark.skipif(sys.platform == "win32", reason="no pseudo-terminals")
def test_a_terminal_shows_the_verdict_once() -> None:
    first, last = in_a_terminal().strip().splitlines()
    assert first == "they differ"
    assert last.startswith("[")
    assert " s]  replay: ulpscope" in last


def test_each_stream_has_the_verdict_where_they_go_apart() -> None:
    done = subprocess.run([sys.executable, "-c", SAY], capture_output=True, text=True, check=True)
    assert done.stdout == "they differ\n"
    assert done.stderr.startswith("they differ  [")
