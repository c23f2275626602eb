"""How long proofs take, each as a command in a fresh process, against their budgets.

Prints wall and CPU seconds. Run:  python benchmarks/bench_prove.py
"""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
import time
from pathlib import Path

COMMANDS: list[tuple[tuple[str, ...], float]] = [
    (("equal", "flash_attn2.splitkv_decode", "--platforms", "h200,h100"), 1.0),
    (("equal", "--platforms", "h200,b200", "--dot", "bf16"), 2.0),
    (("partition", "walkthrough.xqa"), 5.0),
    (("partition", "walkthrough.flash_attention_2@h200", "walkthrough.flash_attention_2@b200"), 5.0),
    (("algebra", "xqa.decode"), 15.0),
    (("library", "--workers", "2"), 60.0),
]


def measure(command: list[str]) -> tuple[float, float]:
    """Wall and CPU seconds of one run."""
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wall, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> int:
    """Measure, print, and return 1 if a command is over its budget."""
    ulpscope = shutil.which("ulpscope", path=str(Path(sys.executable).parent)) or shutil.which("ulpscope")
    if ulpscope is None:
        print("ulpscope is not installed in this environment", file=sys.stderr)
        return 2
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, Python {sys.version.split()[0]}; seconds")
    print(f"{'command':<96}{'wall':>8}{'CPU':>8}{'budget':>8}")
    over = False
    for arguments, budget in COMMANDS:
        wall, cpu = measure([ulpscope, "prove", *arguments])
        over |= wall > budget
        print(f"{' '.join(('ulpscope', 'prove', *arguments)):<96}{wall:8.2f}{cpu:8.2f}{budget:8.1f}")
    return int(over)


if __name__ == "__main__":
    sys.exit(main())
