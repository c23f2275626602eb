"""Commands run in this process: their exit code is checked, a traceback is a failure."""

from __future__ import annotations

import typer
from typer.testing import CliRunner


def invoke(app: typer.Typer, *args: str, code: int = 0) -> tuple[str, str]:
    """Stdout and stderr of ``app`` with ``args``, which must end with ``code``."""
    result = CliRunner().invoke(app, list(args))
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    assert result.exit_code == code, (result.stdout, result.stderr)
    assert "Traceback" not in result.output
    return result.stdout, result.stderr
