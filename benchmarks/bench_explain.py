"""How long an explanation takes on 27,525 tokens, 24 heads, walkthrough fidelity.

    python benchmarks/bench_explain.py [--repeats K] [--real]

``where``: two walkthroughs, without attribution: both emulations with their traces, compiled in this process, and the
comparison. Budget 5 s. ``parts``: attribution of one output element over six parts, all 64 hybrids, two of whose scores no
side has. Budget 30 s, the emulation of both sides not counted. ``--real``: a pair of shipped kernels, whose functions take
longer to compile; no budget. Wall and CPU seconds; the input is drawn before, the preflight has run.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import jax

from search.explain.attribution import attribute, legality
from search.explain.explain import Cell, choose_elements, evaluate, explain, flat_pair, start
from specs import load_platform, load_spec, parse_spec
from verify.case import random_case
from verify.engine.compile import compiled
from verify.preflight import ensure_faithful

BUDGET = {"where": 5.0, "parts": 30.0}
#: Six lines of FlashAttention-2's walkthrough, written otherwise.
SIX = {
    'compute = "f32"': 'compute = "f32.ftz"',
    "pieces(splits, unit=64)": "pieces(16, unit=64)",
    "sum(q * k, seq()) * scale": "sum(q * k, pairwise()) * scale",
    "exp(score - safe)": "f16(exp(score - safe))",
    "sum(bf16(weight) * v, seq())": "sum(bf16(weight) * v, lanes(4, seq(), butterfly()))",
    "select(norm == 0, 0, value / norm)": "bf16(select(norm == 0, 0, value / norm))",
}


def timed(what: Callable[[], Any]) -> tuple[float, float, Any]:
    """Wall seconds, CPU seconds, and what came back."""
    wall, cpu = time.perf_counter(), time.process_time()
    found = what()
    return time.perf_counter() - wall, time.process_time() - cpu, found


def forget() -> None:
    """Forget what was compiled."""
    compiled.cache_clear()
    jax.clear_caches()


def report(name: str, walls: list[float], cpus: list[float]) -> None:
    """One line."""
    wall, budget = statistics.median(walls), BUDGET.get(name)
    held = "" if budget is None else f", budget {budget:.0f} s: {'held' if wall <= budget else 'MISSED'}"
    print(f"{name:<6} wall {wall:.1f} s (least {min(walls):.1f}), CPU {statistics.median(cpus):.1f} s{held}")


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--real", action="store_true")
    asked = parser.parse_args()
    case, platform = random_case(0, 27525), load_platform("h200")
    spec = load_spec("walkthrough.flash_attention_2")
    ensure_faithful("f32")

    def cell(name: str) -> Cell:
        return load_spec(name), platform

    walls, cpus = [], []
    for _ in range(asked.repeats):
        forget()
        pair = ((spec, platform), cell("walkthrough.triton"))
        wall, cpu, _ = timed(lambda pair=pair: explain(case, *pair, attributed=False))
        walls.append(wall)
        cpus.append(cpu)
    report("where", walls, cpus)

    text = spec.to_toml()
    for old, new in SIX.items():
        assert old in text, old
        text = text.replace(old, new)
    other = parse_spec(text.replace("walkthrough.flash_attention_2", "bench.six"))
    walls, cpus = [], []
    for _ in range(asked.repeats):
        forget()
        runs = start(case, (spec, platform), (other, platform))
        flats = flat_pair(runs)
        evaluate(runs)
        elements, _ = choose_elements(runs, {})

        def attributed(runs: Any = runs, flats: Any = flats, elements: Any = elements) -> Any:
            judged = legality(flats, runs, fine=True)
            assert judged is not None
            return attribute(judged, elements, seed=0, progress=lambda *_: None)

        wall, cpu, found = timed(attributed)
        assert (len(found.parts), found.hybrids) == (6, 64), [p.name for p in found.parts]
        walls.append(wall)
        cpus.append(cpu)
    report("parts", walls, cpus)
    if asked.real:
        forget()
        pair = (cell("vllm_triton.decode_3d"), cell("xqa.decode"))
        shaped = random_case(0, 27525, q_heads=32, kv_heads=8, head_dim=128)
        wall, cpu, _ = timed(lambda: explain(shaped, *pair))
        report("real", [wall], [cpu])


if __name__ == "__main__":
    main()
