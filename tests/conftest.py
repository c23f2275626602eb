"""What holds for every test: how Hypothesis runs; what XLA has compiled; and a folder to run commands in."""

import os
import time
from pathlib import Path
from typing import Any

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


_KEPT = 7 * 24 * 3600  # seconds


def pytest_configure(config: pytest.Config) -> None:
    """Let all workers, commands that tests start, and later runs share what XLA has compiled.

    JAX keeps machine code under a hash of the program, the compiler's options and its version, so that nothing stale
    is used. Half of a first run is compilation. The folder goes with ``.pytest_cache``; a folder that is named
    already is left alone, and an entry that cannot be read is compiled again.
    """
    if config.pluginmanager.has_plugin("cacheprovider") and "JAX_COMPILATION_CACHE_DIR" not in os.environ:
        folder = config.cache.mkdir("xla")  # pyright: ignore[reportOptionalMemberAccess]
        for old in folder.iterdir():
            if time.time() - old.stat().st_mtime > _KEPT:
                old.unlink(missing_ok=True)
        os.environ["JAX_COMPILATION_CACHE_DIR"] = str(folder)
        os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0.2"
        os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "-1"
    config.addinivalue_line("filterwarnings", "ignore:Error (reading|writing) persistent compilation cache")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Give a worker whole files, in their order: what a file's tests share, programs above all, is then made once."""
    from xdist.scheduler import LoadFileScheduling

    config.option.loadscopereorder = False
    return LoadFileScheduling(config, log)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path
