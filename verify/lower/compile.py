"""Compile a kernel's file in a process of its own. Importing the file executes it; only the command `lower` does so."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from specs.errors import FidelityError, InputError
from verify.lower.request import Wanted
from verify.lower.stages import Lowering

SECONDS = 600


def need_triton() -> None:
    """Raise FidelityError where Triton is not installed."""
    if find_spec("triton") is None:
        raise FidelityError(
            "Triton is not installed, so nothing can be compiled here",
            place="lower",
            remedy="pip install 'ulpscope[triton]' (Linux; no GPU is needed), "
            "or read what is kept: ulpscope lower attention@3.8.0",
        )


def compiled(
    path: Path, kernels: Sequence[Wanted], archs: Sequence[str], *, fp_fusion: bool = True
) -> Lowering:
    """Compile ``kernels`` of the file for each of ``archs``. The file is executed, with this user's rights.

    Raises:
        FidelityError: Triton is not installed.
        InputError: the file does not run, Triton does not compile it, or it takes more than `SECONDS`.
    """
    need_triton()
    with tempfile.TemporaryDirectory(prefix="ulpscope-lower-") as folder:
        out = Path(folder) / "answer.json"
        request = {
            "path": str(path.resolve()),
            "kernels": [asdict(k) for k in kernels],
            "archs": list(archs),
            "fp_fusion": fp_fusion,
            "out": str(out),
        }
        # Variables of Triton change what it makes; a cache may hold what another version made.
        environment = {k: v for k, v in os.environ.items() if not k.startswith(("TRITON_", "LLVM_", "MLIR_"))}
        home = str(Path(__file__).resolve().parents[2])
        before = os.environ.get("PYTHONPATH")
        environment |= {
            "TRITON_CACHE_DIR": str(Path(folder) / "cache"),
            "PYTHONPATH": home if not before else f"{home}{os.pathsep}{before}",
        }
        try:
            done = subprocess.run(
                [sys.executable, "-P", "-m", "verify.lower.worker"],
                input=json.dumps(request),
                capture_output=True,
                text=True,
                env=environment,
                timeout=SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise InputError(
                f"not compiled within {SECONDS} s",
                place=str(path),
                remedy="lower one kernel, for fewer architectures",
            ) from None
        answer: dict[str, Any] = json.loads(out.read_text()) if out.is_file() else {}
    if "lowering" not in answer:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise InputError(
            str(answer.get("refused", f"the compiling process ended with {done.returncode}: {last}")),
            place=str(path),
            remedy="correct the kernel, its --signature and its --constexpr values",
        )
    return Lowering.model_validate_json(json.dumps(answer["lowering"]))
