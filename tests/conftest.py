"""What holds for every test: how Hypothesis runs; and a folder to run commands in."""

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# Time is not what these laws are about, and machines are shared. In CI the same examples run every time.
settings.register_profile(
    "ulpscope",
    deadline=None,
    derandomize=bool(os.environ.get("CI")),
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("ulpscope")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path
