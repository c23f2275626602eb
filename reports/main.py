"""The entry point of the ``ulpscope`` command: Ctrl-C is listened to before anything else is imported."""

from __future__ import annotations

import sys

from verify.interrupts import INTERRUPTED, check, leave, remembered


def main() -> None:
    """Run ``ulpscope``. Ctrl-C ends with exit code 130, also while modules are imported, some of which would drop it."""
    try:
        with remembered():
            from reports.cli import app

            check()
            app()
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        leave(INTERRUPTED)
    except SystemExit as end:
        if end.code == INTERRUPTED:
            leave(INTERRUPTED)
        raise


if __name__ == "__main__":
    main()
