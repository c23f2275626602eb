"""Nothing of the emulator takes part in a replay, neither by import nor at run time."""

from __future__ import annotations

import ast
import sys
from pathlib import Path
from typing import Any

import numpy as np

from search.certificate import certify
from search.sides import load_side

ROOT = Path(__file__).parents[3]
#: The generic walker and its arithmetics, the record of a partition, and the check for functions of another machine.
SHARED = {"verify.definition", "verify.partition", "verify.admission"}


def test_imports() -> None:
    files = [*(ROOT / "search" / "exact").glob("*.py"), ROOT / "search" / "certificate.py"]
    assert len(files) > 10
    for file in files:
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and str(node.module).startswith("verify"):
                assert ".".join(str(node.module).split(".")[:2]) in SHARED, (file.name, node.module)
                assert "plan" not in {alias.name for alias in node.names}
            assert not (isinstance(node, ast.Import) and any(a.name.startswith("verify") for a in node.names))


def test_what_runs() -> None:
    """Of the emulator's numbers only the check that an input is a value of its format runs."""
    scores, values = np.array([0.5, -1.25, 0.0, -np.inf]), np.array([1.5, -2.0, 3.0, 4.0])
    sides = [load_side(f"walkthrough.{n}@h200") for n in ("flash_attention_2", "tiled")]
    seen: set[tuple[str, str]] = set()

    def note(frame: Any, event: str, argument: Any) -> None:
        path = Path(frame.f_code.co_filename)
        if event == "call" and path.is_relative_to(ROOT / "verify"):
            seen.add((str(path.relative_to(ROOT / "verify")), frame.f_code.co_qualname))

    sys.setprofile(note)
    try:
        certify(sides, {}, scores=scores, values=values)
    finally:
        sys.setprofile(None)
    files = {file for file, _ in seen}
    assert "definition/walker.py" in files
    assert not any(file.startswith("engine") or file == "emulator.py" for file in files)
    assert "definition/scalar.py" not in files
    assert "definition/trees.py" not in files
    numbers = {name for file, name in seen if file.startswith("numerics")}
    assert numbers <= {
        "round_array",
        "require_storable",
        "_carrier",
        "_word",
        "_overflow",
        "_round_normal",
        "_round_tiny",
    }
