"""Adversarial search: what it finds, how near the bound, how fast; and other methods on the same objective.

    python benchmarks/bench_search.py                  the table of pairs
    python benchmarks/bench_search.py --heads [--full] methods against each other (--full: 5 seeds, 1e5 evaluations or 60 s)
    python benchmarks/bench_search.py --kernels        the real kernels' specs

Everything runs in this process, on the cores it is given. `seconds` is one whole call of `search`, with its bound and
whatever is compiled on the way; the preflight and the import of JAX are outside. Each search is certified afterwards.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import statistics
import time
from fractions import Fraction
from pathlib import Path
from typing import Any

from search.baselines import METHODS
from search.objective import Objective
from search.run import Budget, Outcome, search, search_by
from search.sides import Side, load_side
from search.space import Space
from specs.errors import UlpscopeError

SHAPE = {"q_heads": 24, "kv_heads": 4, "head_dim": 256}
FA2, XQA, TRITON, TRT = (f"walkthrough.{n}" for n in ("flash_attention_2", "xqa", "triton", "trtllm_gen"))
LONG = 27_525


def tiles(name: str, n: int) -> dict[str, str]:
    """Contiguous groups of n tokens, in ascending order."""
    level = {FA2: "split", XQA: "group", TRITON: "segment"}[name]
    return {level: f"tiles({n})"} | ({"block": "tiles(512)"} if name == FA2 else {})


def pair(a: tuple[str, str, dict[str, str]], b: tuple[str, str, dict[str, str]]) -> list[Side]:
    """Two sides from name, platform and lines."""
    return [load_side(f"{name}@{platform}", lines) for name, platform, lines in (a, b)]


#: title, sides, tokens, real ULP wanted at c = 1, .5, .1, seconds
ROWS: list[tuple[str, Any, int, tuple[float | None, ...], float]] = [
    ("FA2 groups of 20 against 12", lambda: pair((FA2, "h200", tiles(FA2, 20)), (FA2, "h200", tiles(FA2, 12))), 64, (1.98, 3.92, 19.0), 2),
    ("FA2 groups of 512 against 448", lambda: pair((FA2, "h200", tiles(FA2, 512)), (FA2, "h200", tiles(FA2, 448))), LONG, (1.985, 3.91, 18.4), 10),
    ("FA2 H200 against B200", lambda: pair((FA2, "h200", {}), (FA2, "b200", {})), LONG, (1.985, 3.91, 18.4), 10),
    ("XQA groups of 20 against Triton of 12", lambda: pair((XQA, "h200", tiles(XQA, 20)), (TRITON, "h200", tiles(TRITON, 12))), 64, (3.7, 6.2, 25.7), 60),
    ("XQA against Triton on H200", lambda: pair((XQA, "h200", {}), (TRITON, "h200", {})), LONG, (3.0, 5.0, 18.0), 60),
    ("TRT-LLM-gen B200 against FA2 H200", lambda: pair((TRT, "b200", {}), (FA2, "h200", {})), LONG, (115.8, None, None), 10),
    ("the same, numerator carried in bf16", lambda: pair((TRT, "b200", {"num": "bf16(prev(num) * a + partial * b)"}), (FA2, "h200", {})), LONG, (115.8, None, None), 10),
    ("FA2 on H200, B200 and SM120, pairwise", lambda: [load_side(f"{FA2}@{p}") for p in ("h200", "b200", "sm120")], LONG, (None, 1.0, None), 60),
]  # fmt: skip
#: For bit-precise SMT, which takes a handful of tokens.
TINY = ("Triton groups of 3 against 2", lambda: pair((TRITON, "h200", tiles(TRITON, 3)), (TRITON, "h200", tiles(TRITON, 2))), 3, (1.0,))  # fmt: skip
#: title, sides, head_dim, tokens
KERNELS: list[tuple[str, str, str, int, int]] = [
    ("FlashAttention-2 on A100 against H200", "flash_attn2.splitkv_decode@a100", "flash_attn2.splitkv_decode@h200", 64, 4096),
    ("XQA on H200 against SM120", "xqa.decode@h200", "xqa.decode@sm120", 64, 4096),
    ("XQA on H200 against SM120", "xqa.decode@h200", "xqa.decode@sm120", 128, 4096),
    ("XQA on H200 against SM120", "xqa.decode@h200", "xqa.decode@sm120", 64, LONG),
    ("vLLM's Triton on H200 against B200", "vllm_triton.decode_3d@h200", "vllm_triton.decode_3d@b200", 64, 4096),
    ("vLLM's Triton on H200 against B200", "vllm_triton.decode_3d@h200", "vllm_triton.decode_3d@b200", 128, 4096),
]  # fmt: skip


def said(outcome: Outcome, seconds: float) -> dict[str, Any]:
    """A search as JSON, certified."""
    from search.witness import certified

    best, bound = outcome.best, outcome.bound
    out: dict[str, Any] = {"status": outcome.status, "seconds": seconds, "evaluations": outcome.evaluations}
    if bound is not None:
        out |= {"bound": bound.real, "rigor": bound.rigor}
    if best is not None:
        begin = time.perf_counter()
        certificate, why = certified(outcome.sides, best.space, best.inputs, best.outputs)
        out |= {
            "real": best.score,
            "integer": best.least_integer,
            "method": best.method,
            "certified": certificate is not None and certificate.holds,
            "why": why,
            "survives": None if certificate is None else certificate.survives_exp_error_ulps,
            "certificate_seconds": time.perf_counter() - begin,
        }
        if outcome.stored is not None:
            out["stored_integer"] = outcome.stored.least_integer
    return out


def table(evaluations: int) -> list[dict[str, Any]]:
    """Each pair at each c."""
    print(
        f"{'pair':<40}{'c':>5}{'real':>9}{'wanted':>8}{'bound':>9}{'share':>7}{'met':>5}{'ULP':>5}{'s':>7}{'limit':>7}  certified (s)  method"
    )
    rows: list[dict[str, Any]] = []
    for title, sides, tokens, wanted, limit in ROWS:
        for c, want in zip((1.0, 0.5, 0.1), wanted, strict=True):
            made = sides()
            space = Space(kv_len=tokens, context=SHAPE, cancellation=c)
            begin = time.perf_counter()
            outcome = search(made, space, budget=Budget(evaluations=evaluations))
            row: dict[str, Any] = {
                "pair": title,
                "tokens": tokens,
                "c": c,
                "wanted": want,
                "limit_seconds": limit,
            }
            row |= said(outcome, time.perf_counter() - begin)
            row["met"] = None if want is None else bool(row.get("certified")) and row["real"] >= want
            row["in_time"] = row["seconds"] <= limit
            rows.append(row)
            bound = row.get("bound") or float("nan")
            share = f"{100 * row.get('real', 0) / bound:.1f}%" if math.isfinite(bound) else "-"
            met = "-" if row["met"] is None else ("yes" if row["met"] else "no")
            integer = max(row.get("integer", 0), row.get("stored_integer", 0))
            print(
                f"{title:<40}{c:>5}{row.get('real', 0):>9.4f}{want or '-':>8}{bound:>9.4f}"
                f"{share:>7}{met:>5}{integer:>5}{row['seconds']:>7.1f}{limit:>7}"
                f"  {row.get('certified')} ({row.get('certificate_seconds', 0):.1f})  {row.get('method')}",
                flush=True,
            )
    return rows


def impossible_and_shrink() -> dict[str, Any]:
    """For the closed form's scores at 27,525 tokens: 3 ULP are impossible at c = 1. And shrinking its witness."""
    from search.run import Budget
    from search.seeds.construct import construct
    from search.seeds.values import impossible
    from search.seeds.weights import classes_of
    from search.shrink import shrink
    from search.target import Target

    sides = pair((FA2, "h200", tiles(FA2, 512)), (FA2, "h200", tiles(FA2, 448)))
    target = Target(sides, Space(kv_len=LONG, context=SHAPE, cancellation=1.0))
    seed = construct(target.by_definition(), 0, eps=2.0**-20, most=3)[0]
    classes, _ = classes_of(seed.target, seed.inputs, (0, 1))
    tau = Fraction(1200, 1 << 24)
    begin = time.perf_counter()
    verdict = impossible(classes, 3, cancellation=Fraction(1), tau_a=tau, tau_b=tau)
    seconds = time.perf_counter() - begin
    print(
        f"3 ULP at c = 1 for the scores of the closed form: {verdict.status} by {verdict.by}, {seconds:.2f} s (limit 0.2)"
    )
    outcome = search(sides, target.space, budget=Budget(evaluations=20_000))
    assert outcome.best is not None
    shrink(target, outcome.best.inputs, evaluations=2000, seed=0)  # compiles
    begin = time.perf_counter()
    small = shrink(target, outcome.best.inputs, evaluations=2000, seed=0)
    shrunk = time.perf_counter() - begin
    first = next(s for s in small.stages if s.name != "given")
    print(
        f"shrunk: {small.stages[0].support} -> {first.support} tokens of weight above zero, {shrunk:.2f} s for all stages (once compiled)"
    )
    return {
        "impossible": verdict.status,
        "impossible_seconds": seconds,
        "support": first.support,
        "shrink_seconds": shrunk,
    }


def machine() -> str:
    """The processor's model and the number of cores this process may use: budgets of wall time depend on them."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        model = next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        model = platform.processor() or platform.machine()
    return f"{model}, {cores} core{'' if cores == 1 else 's'}"


def heads(full: bool, keep: Path | None) -> list[dict[str, Any]]:
    """Methods on the same pairs, boxes, constraints and budgets; one seed after the other, each run kept at once.

    Runs that ``keep`` holds already are not repeated: a full comparison takes hours and can be interrupted.
    """
    evaluations, wall, seeds = (100_000, 60.0, 5) if full else (20_000, 5.0, 1)
    compared = [(*row[:3], (1.0, 0.5, 0.1)) for row in (ROWS[0], ROWS[3], ROWS[2])]
    rows: list[dict[str, Any]] = []
    if keep is not None and keep.exists():
        rows = json.loads(keep.read_text(encoding="utf-8")).get("heads", [])
    done = {(row["pair"], row["c"], row["method"], row["seed"]) for row in rows}
    for seed in range(seeds):
        for title, sides, tokens, bounds in [*compared, TINY]:
            for c in bounds:
                for method in ("search", *METHODS):
                    if (title, c, method, seed) in done:
                        continue
                    row: dict[str, Any] = {"pair": title, "c": c, "method": method, "seed": seed}
                    space = Space(kv_len=tokens, context=SHAPE, cancellation=c)
                    begin = time.perf_counter()
                    try:
                        budget = Budget(evaluations, seconds=wall)
                        outcome = search_by(method, sides(), space, seed=seed, budget=budget)
                    except UlpscopeError as error:
                        row["refused"] = error.cause
                    else:
                        row["real"] = outcome.best.score if outcome.best else 0.0
                        row["integer"] = outcome.best.least_integer if outcome.best else None
                        row["evaluations"] = outcome.evaluations
                        row["cut_by_wall_time"] = outcome.cut
                    row["seconds"] = time.perf_counter() - begin
                    row["machine"] = machine()
                    rows.append(row)
                    print(json.dumps(row), flush=True)
                    if keep is not None:
                        keep.write_text(json.dumps({"heads": rows}, indent=1), encoding="utf-8")
    heads_table(rows)
    return rows


def heads_table(rows: list[dict[str, Any]]) -> None:
    """Median, and least and greatest in brackets, of the seeds; seconds; and which were ended by wall time."""
    print(
        "\nreal ULP: median [least .. greatest] over the seeds, number of seeds, median evaluations and seconds"
    )
    print("* wall time ended some of the runs before their evaluations were spent")
    for key in dict.fromkeys((row["pair"], row["c"]) for row in rows):
        print(f"\n{key[0]}, c = {key[1]}")
        for method in ("search", *METHODS):
            of = [r for r in rows if (r["pair"], r["c"], r["method"]) == (*key, method)]
            real = [r["real"] for r in of if "real" in r]
            if not real:
                print(f"  {method:<12} refused: {of[0]['refused'] if of else 'not run'}")
                continue
            evaluations = statistics.median(r["evaluations"] for r in of if "real" in r)
            seconds = statistics.median(r["seconds"] for r in of if "real" in r)
            cut = "*" if any(r.get("cut_by_wall_time") for r in of) else " "
            print(
                f"  {method:<12}{statistics.median(real):>9.3f} [{min(real):.3f} .. {max(real):.3f}]"
                f"{len(real):>3}{evaluations:>10.0f}{seconds:>7.1f} s{cut}"
            )


def kernels(evaluations: int, seconds: float) -> list[dict[str, Any]]:
    """The real kernels' specs, over q, k and v."""
    print(
        f"\n{'pair':<40}{'dim':>4}{'tokens':>7}{'c':>5}{'real':>10}{'bound':>10}{'ULP':>4}{'at most':>8}{'exp':>4}{'s':>7}{'CPU s':>7}"
        "  rigor, method, certified"
    )
    rows: list[dict[str, Any]] = []
    for title, a, b, depth, tokens in KERNELS:
        for c in (1.0, 0.5):
            shape = {"q_heads": 24, "kv_heads": 4, "head_dim": depth}
            space = Space(kv_len=tokens, kind="qkv", context=shape, cancellation=c)
            begin, spent = time.perf_counter(), time.process_time()
            outcome = search(
                [load_side(a), load_side(b)], space, Objective(), budget=Budget(evaluations, seconds=seconds)
            )
            taken, spent = time.perf_counter() - begin, time.process_time() - spent
            row = {"pair": title, "head_dim": depth, "tokens": tokens, "c": c, **said(outcome, taken)}
            row["cpu_seconds"] = spent
            rows.append(row)
            bound = float("nan") if row.get("bound") is None else row["bound"]
            integer = max(row.get("integer", 0), row.get("stored_integer", 0))
            most = "-" if outcome.bound is None or outcome.bound.integer is None else outcome.bound.integer
            survives = row.get("survives")
            print(
                f"{title:<40}{depth:>4}{tokens:>7}{c:>5}{row.get('real', 0):>10.3g}{bound:>10.3g}{integer:>4}{most:>8}"
                f"{'-' if survives is None else survives:>4}{taken:>7.1f}{spent:>7.1f}"
                f"  {row.get('rigor')}, {row.get('method', row['status'])}, {row.get('certified')} {row.get('why') or ''}",
                flush=True,
            )
    return rows


def main() -> None:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--heads", action="store_true", help="methods against each other")
    parser.add_argument("--kernels", action="store_true", help="the real kernels")
    parser.add_argument("--full", action="store_true", help="5 seeds, 1e5 evaluations or 60 s")
    parser.add_argument("--evaluations", type=int, default=50_000)
    parser.add_argument("--seconds", type=float, default=300.0, help="wall time of each search of --kernels")
    parser.add_argument("--json", type=Path, help="write the results here, too")
    given = parser.parse_args()
    from verify.preflight import ensure_faithful

    ensure_faithful("f32")
    results: dict[str, Any] = {}
    if given.heads:
        results["heads"] = heads(given.full, given.json)
    elif given.kernels:
        results["kernels"] = kernels(given.evaluations, given.seconds)
    else:
        results["table"] = table(given.evaluations)
        results["proofs"] = impossible_and_shrink()
    if given.json is not None:
        given.json.write_text(json.dumps(results, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
