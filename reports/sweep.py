"""The full sweep: every position of a workload through pairs of cells, one line of JSON a position.

The first line says what was asked; a sweep that was interrupted goes on after its last whole line, and refuses
to go on where anything that decides the numbers has changed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reports.depth import DIM, ROWS, SPREAD, Measured, Position, default_pairs, measure, positions
from reports.target import Target
from specs.errors import InputError
from specs.workloads import Workload

SCHEMA_ID = "ulpscope.sweep/1"


@dataclass
class Tally:
    """One pair over the positions so far."""

    left: str
    right: str
    positions: int = 0
    parting: int = 0
    outputs: int = 0
    changed: float = 0.0
    ulp_max: int = 0

    def add(self, point: dict[str, Any]) -> None:
        """Count one position."""
        self.positions += 1
        self.parting += point["changed"] > 0
        self.outputs += point["n"]
        self.changed += point["changed"] * point["n"]
        self.ulp_max = max(self.ulp_max, point["ulp_max"])

    def to_json(self) -> dict[str, Any]:
        """The tally with the share of outputs changed."""
        return {
            "left": self.left,
            "right": self.right,
            "positions": self.positions,
            "positions_that_part": self.parting,
            "outputs": self.outputs,
            "changed_share": self.changed / self.outputs if self.outputs else 0.0,
            "ulp_max": self.ulp_max,
        }


def sweep(
    workload: Workload,
    targets: Sequence[Target],
    seed: int,
    context: dict[str, int],
    file: Path,
    *,
    stride: int = 1,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[Tally]:
    """Compute every ``stride``-th position that ``file`` does not have yet, and tally all of them.

    Each finished position is on disk before the next begins, so an interrupt loses nothing.

    Raises:
        InputError: the stride is not positive, or ``file`` holds another sweep.
    """
    if stride < 1:
        raise InputError(f"stride {stride}", place="--stride", remedy="give 1 or more")
    wanted = positions(workload)[::stride]
    pairs = default_pairs(targets)
    header = _header(workload, pairs, seed, context)
    done = _resume(file, header)
    tallies = [Tally(a.name, b.name) for a, b in pairs]
    for points in done.values():
        _count(tallies, points)
    left = [p for p in wanted if (p.range, p.kv_len) not in done]
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a", encoding="utf-8") as out:
        if not done and file.stat().st_size == 0:
            _write(out, header)
        progress(len(done), len(wanted))
        for found in measure(left, pairs, seed, context) if left else ():
            points = [m.point.model_dump(include={"n", "ulp_max", "ulp_mean", "changed"}) for m in found]
            _write(out, _line(found[0].position, points))
            _count(tallies, points)
            done[found[0].position.range, found[0].position.kv_len] = points
            progress(len(done), len(wanted))
    return tallies


def _header(
    workload: Workload, pairs: Sequence[tuple[Target, Target]], seed: int, context: dict[str, int]
) -> dict[str, Any]:
    return {
        "schema_id": SCHEMA_ID,
        "workload": workload.name,
        "seed": seed,
        "context": context,
        "input": {"rows": ROWS, "dim": DIM, "deviation": SPREAD},
        "pairs": [[a.name, b.name] for a, b in pairs],
        "specs": {t.name: t.spec.content_hash for pair in pairs for t in pair},
    }


def _line(position: Position, points: list[dict[str, Any]]) -> dict[str, Any]:
    return {"range": position.range, "kv_len": position.kv_len, "pairs": points}


def _write(out: Any, data: dict[str, Any]) -> None:
    out.write(json.dumps(data, separators=(",", ":"), allow_nan=False) + "\n")
    out.flush()
    os.fsync(out.fileno())


def _count(tallies: list[Tally], points: list[dict[str, Any]]) -> None:
    for tally, point in zip(tallies, points, strict=True):
        tally.add(point)


def _resume(file: Path, header: dict[str, Any]) -> dict[tuple[str, int], list[dict[str, Any]]]:
    """Positions that ``file`` has; a line cut short at its end is removed."""
    if not file.exists() or not file.stat().st_size:
        return {}
    text = file.read_bytes()
    whole = text[: text.rfind(b"\n") + 1]
    try:
        first, *rest = [json.loads(line) for line in whole.splitlines()]
    except ValueError:
        first, rest = None, []
    if first != header:
        raise InputError(
            "holds another sweep: its seed, specs, pairs or workload differ",
            place=str(file),
            remedy="choose another folder with -o, or repeat the command that made it",
        )
    if len(whole) < len(text):
        with file.open("r+b") as out:
            out.truncate(len(whole))
    return {(line["range"], line["kv_len"]): line["pairs"] for line in rest}


__all__ = ["Measured", "Tally", "sweep"]
