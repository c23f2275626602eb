"""Run folders made by hand, with the libraries that users have, not with the writer under test."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file

REAL = Path(__file__).parents[4] / "shared" / "data" / "real"
SMOLLM2 = REAL.parent / "smollm2"


def manifest(folder: Path, paths: list[str], **fields: Any) -> None:
    """Write manifest.json for files that are there; ``fields`` go over the defaults, ``capture`` into its table."""
    entries = [
        {
            "path": p,
            "sha256": hashlib.sha256((folder / p).read_bytes()).hexdigest(),
            "conversation": Path(p).stem,
        }
        for p in paths
    ]
    capture = {"value_kind": "raw_logits", **fields.pop("capture", {})}
    whole = {"schema": 1, "kind": "run", "run_id": "r", "coordinate": {"gpu": "H200"}, "capture": capture}
    (folder / "manifest.json").write_text(json.dumps({**whole, "files": entries, **fields}))


def arrays(rows: int = 5, vocab: int = 7, seed: int = 0) -> dict[str, NDArray[Any]]:
    """A whole text with logits for every token."""
    rng = np.random.default_rng(seed)
    return {
        "input_ids": rng.integers(0, vocab, rows).astype(np.int32),
        "positions": np.arange(rows, dtype=np.int32),
        "logits": rng.standard_normal((rows, vocab)).astype(np.float32),
    }


def tensors(
    folder: Path, found: Mapping[str, NDArray[Any]], name: str = "a.safetensors", **fields: Any
) -> Path:
    """A folder with one safetensors file, and its manifest."""
    folder.mkdir(parents=True, exist_ok=True)
    save_file({k: np.ascontiguousarray(v) for k, v in found.items()}, folder / name)
    manifest(folder, [name], **fields)
    return folder


def lines(folder: Path, rows: list[Any], **fields: Any) -> Path:
    """A folder with one file of JSON lines, and its manifest."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "a.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    capture = {"value_kind": "raw_logprobs", **fields.pop("capture", {})}
    manifest(folder, ["a.jsonl"], capture=capture, **fields)
    return folder
