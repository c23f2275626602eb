"""How long commands take that a person waits for, each in a fresh process, against their budgets.

Prints wall and CPU seconds (median and best of several runs). Run:  python benchmarks/bench_startup.py
With --report as an argument also the main job, `ulpscope report`, and the size of its page.
"""

from __future__ import annotations

import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

RUNS = 7
COMMANDS: list[tuple[tuple[str, ...], float]] = [
    (("--help",), 0.3),
    (("spec", "check", "walkthrough.flash_attention_2"), 0.5),
]
REPORT: tuple[tuple[str, ...], float] = (("report",), 60.0)
PAGE_MB = 6.0


def measure(command: list[str], folder: str) -> tuple[float, float]:
    """Wall and CPU seconds of one run."""
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wall, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> int:
    """Measure, print, and return 1 if a median is over its budget."""
    ulpscope = shutil.which("ulpscope", path=str(Path(sys.executable).parent)) or shutil.which("ulpscope")
    if ulpscope is None:
        print("ulpscope is not installed in this environment", file=sys.stderr)
        return 2
    plan = [(*c, RUNS) for c in COMMANDS] + ([(*REPORT, 1)] if "--report" in sys.argv[1:] else [])
    over = False
    print(f"{os.cpu_count()} cores, Python {sys.version.split()[0]}; seconds")
    print(f"{'command':<52}{'wall':>8}{'best':>8}{'CPU':>8}{'budget':>8}")
    with tempfile.TemporaryDirectory() as folder:
        for arguments, budget, runs in plan:
            command = [ulpscope, *arguments]
            if runs > 1:
                measure(command, folder)
            walls, cpus = zip(*(measure(command, folder) for _ in range(runs)), strict=True)
            wall = statistics.median(walls)
            over |= wall > budget
            name = " ".join(("ulpscope", *arguments))
            print(f"{name:<52}{wall:8.2f}{min(walls):8.2f}{statistics.median(cpus):8.2f}{budget:8.1f}")
        for page in Path(folder).rglob("*.html"):
            size = page.stat().st_size / 1e6
            over |= size > PAGE_MB
            print(f"{page.name:<52}{size:8.2f} MB{PAGE_MB:21.1f}")
    return int(over)


if __name__ == "__main__":
    raise SystemExit(main())
