"""Cases in a process of their own, inside a worker of a cluster.

Where a case would take a whole worker of the cluster with it, and with that worker other cases, it runs here: in a
child that lives from case to case, one for each thread, and that alone dies. Requests and replies are lines of JSON.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
import weakref
from contextlib import suppress

_HERE = threading.local()


def watch_parent(parent: int) -> None:
    """End this process when ``parent`` is gone: nobody wants its result any more."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1.0)
        os._exit(1)

    if os.name == "posix":
        threading.Thread(target=watch, daemon=True).start()


def call_in_child(payload: str) -> tuple[str | None, str]:
    """Run a case in the child of this thread, which is started if there is none.

    Returns:
        the text that `search.campaign.work.call` returned, and nothing; or None, and how the child died.
    """
    child: _Child | None = getattr(_HERE, "child", None)
    if child is None or child.process.poll() is not None:
        child = _HERE.child = _Child()
    reply = child.ask(payload.encode() + b"\n")
    if reply.endswith(b"\n"):
        return reply.decode(), ""
    del _HERE.child
    return None, describe_exit(child.process.wait())


class _Child:
    """A process that answers lines with lines. It ends with the last reference to this object."""

    def __init__(self) -> None:
        path = os.pathsep.join(entry for entry in sys.path if entry)
        # A thread of the cluster's worker is one place; XLA's CPU client reads NPROC.
        environment = {"NPROC": "1", **os.environ, "PYTHONPATH": path}
        self.process: subprocess.Popen[bytes] = subprocess.Popen(
            [sys.executable, "-m", __name__, str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
        )
        weakref.finalize(self, _end, self.process)

    def ask(self, line: bytes) -> bytes:
        """The reply to a line; without its line end if the process died."""
        into, out = self.process.stdin, self.process.stdout
        assert into is not None
        assert out is not None
        with suppress(OSError):  # it may be dead already
            into.write(line)
            into.flush()
            return out.readline()
        return b""


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with suppress(OSError):  # what the dead process has not read
                pipe.close()
    process.wait()


def describe_exit(code: int) -> str:
    """An exit code in words: ``SIGKILL``, ``exit code 7``."""
    try:
        return signal.Signals(-code).name if code < 0 else f"exit code {code}"
    except ValueError:
        return f"signal {-code}"


def main() -> None:
    """The child: a line in, a line out, until the parent closes the pipe."""
    from search.campaign.work import call

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    watch_parent(int(sys.argv[1]))
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a case prints is no reply
    for line in sys.stdin.buffer:
        replies.write(call(line.decode()).encode() + b"\n")
        replies.flush()


if __name__ == "__main__":
    main()
