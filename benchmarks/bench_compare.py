"""How long it takes to compare runs with all metrics, against two baselines in the same process.

    python benchmarks/bench_compare.py two  [--rows N] [--repeats K] [--threads T] [--folder DIR]
    python benchmarks/bench_compare.py plain [--rows N] ...
    python benchmarks/bench_compare.py many [--rows N] ...
    python benchmarks/bench_compare.py memory [--rows N] [--vocab V]

``two``: two coordinates of 9,060 x 32,000 bf16 logits, against the largest |a - b| alone (memory-mapped, blocks of 64
rows, float32, warm cache). ``plain``: against a straightforward NumPy version of the same metrics, on fewer rows.
``many``: time by number of coordinates, 2 to 10. ``memory``: peak resident size of a process that compares two coordinates
of a large vocabulary and does nothing else. Sides alternate; medians of the repeats, with the extremes; wall and CPU.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from verify.metrics.compare import compare_runs
from verify.metrics.sweep import release
from verify.runs.manifest import Manifest
from verify.runs.run import Run
from verify.runs.sequence import Full, Sequence

BF16 = np.dtype(ml_dtypes.bfloat16)
CONVERSATIONS = 20


def write(path: Path, rows: int, vocab: int, seed: int) -> None:
    """Logits of one coordinate: the same numbers for every seed, with noise of its own, in bf16."""
    noise = np.random.default_rng(1000 + seed)
    with path.open("wb") as out:
        for start in range(0, rows, 64):
            count = min(64, rows - start)
            base = np.random.default_rng(start).standard_normal((count, vocab), np.float32) * 3
            base[:, 7] += 12  # one likely token
            out.write((base + noise.standard_normal(base.shape, np.float32) * 0.02).astype(BF16).tobytes())


def coordinate(path: Path, rows: int, vocab: int) -> tuple[Run, Any]:
    """A run that reads a mapped file, and the mapped file."""
    mapped = np.memmap(path, BF16, "r", shape=(rows, vocab))
    plain = np.asarray(mapped)
    manifest = Manifest.model_validate(
        {
            "schema": 1,
            "kind": "run",
            "run_id": path.stem,
            "coordinate": {"gpu": path.stem},
            "capture": {"value_kind": "raw_logits", "teacher_forced": True},
            "files": (),
        }
    )
    sequences: list[Sequence] = []
    edges = np.linspace(0, rows, min(rows, CONVERSATIONS) + 1).astype(int)
    for i, (low, high) in enumerate(pairwise(edges)):

        def read(start: int, stop: int, low: int = int(low)) -> Any:
            return plain[low + start : low + stop]

        n = int(high - low)
        full = Full(n, vocab, BF16, read, f"{path}:{low}")
        sequences.append(Sequence(f"c{i}", 0, np.arange(n), np.full(n, 7), full=full))
    return Run(path.stem, manifest, tuple(sequences), str(path), path.stem), plain


def largest(a: Any, b: Any) -> float:
    """The baseline: the largest |a - b|."""
    most = 0.0
    for i in range(0, len(a), 64):
        most = max(
            most, float(np.max(np.abs(a[i : i + 64].astype(np.float32) - b[i : i + 64].astype(np.float32))))
        )
    return most


def plain_metrics(a: Any, b: Any) -> dict[str, Any]:
    """The same metrics as one would write them in NumPy: whole blocks in float64, all |d| kept for the quantiles."""
    rows, vocab = a.shape
    kept = np.empty((rows, vocab), np.float32)
    sums: dict[str, list[Any]] = {}
    ulps, agree = np.zeros(1 << 16, np.int64), np.zeros(17, np.int64)
    for start in range(0, rows, 64):
        raw = a[start : start + 64], b[start : start + 64]
        x, y = (z.astype(np.float64) for z in raw)
        d = x - y
        size = np.abs(d)
        kept[start : start + 64] = size
        wa, wb = (z.view(np.uint16) for z in raw)
        places = [
            np.where(w >> 15, -(w & 0x7FFF).astype(np.int32), (w & 0x7FFF).astype(np.int32)) for w in (wa, wb)
        ]
        ulps += np.bincount(np.abs(places[0] - places[1]).ravel(), minlength=1 << 16)
        _, length = np.frexp((wa ^ wb).astype(np.float64))
        agree += np.bincount(16 - length.ravel(), minlength=17)
        logs = []
        for z in (x, y):
            shifted = z - z.max(axis=1, keepdims=True)
            logs.append(shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True)))
        la, lb = logs
        p, q = np.exp(la), np.exp(lb)
        middle = np.log((p + q) / 2)
        best = [np.argpartition(-z, 10, axis=1)[:, :10] for z in (x, y)]
        found = {
            "max": size.max(axis=1),
            "mean": size.mean(axis=1),
            "square": (d * d).mean(axis=1),
            "signed": d.mean(axis=1),
            "relative": (size / np.maximum(np.maximum(np.abs(x), np.abs(y)), 1e-3)).mean(axis=1),
            "cosine": (x * y).sum(axis=1) / np.sqrt((x * x).sum(axis=1) * (y * y).sum(axis=1)),
            "different": (wa != wb).sum(axis=1),
            "kl": (p * (la - lb)).sum(axis=1),
            "kl_reverse": (q * (lb - la)).sum(axis=1),
            "js": (p * (la - middle) + q * (lb - middle)).sum(axis=1) / 2,
            "tv": np.abs(p - q).sum(axis=1) / 2,
            "chi2": ((p - q) ** 2 / q).sum(axis=1),
            "rank": (y > np.take_along_axis(y, x.argmax(axis=1)[:, None], axis=1)).sum(axis=1),
            "same": x.argmax(axis=1) == y.argmax(axis=1),
            "overlap": [len(set(i) & set(j)) for i, j in zip(*(z.tolist() for z in best), strict=True)],
            "chosen": la[:, 7] - lb[:, 7],
        }
        for name, values in found.items():
            sums.setdefault(name, []).append(np.asarray(values))
    quantiles = np.quantile(kept, (0.5, 0.9, 0.95, 0.99, 0.999, 1.0))
    return {"quantiles": quantiles, "ulps": ulps, "agree": agree} | {
        k: np.concatenate(v) for k, v in sums.items()
    }


def measure(sides: dict[str, Callable[[], Any]], repeats: int) -> dict[str, list[tuple[float, float]]]:
    """(wall, CPU) seconds of each side, alternating, after one untimed call of each."""
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in sides}
    for turn in range(repeats + 1):
        for name, side in sides.items():
            wall, cpu = time.perf_counter(), time.process_time()
            side()
            if turn:
                times[name].append((time.perf_counter() - wall, time.process_time() - cpu))
    return times


def show(times: dict[str, list[tuple[float, float]]], elements: int) -> None:
    """Medians and extremes, and each side's ratio to the first, pair by pair of neighbouring runs."""
    first = next(iter(times))
    for name, found in times.items():
        walls, cpus = zip(*found, strict=True)
        line = f"{name:28} wall {statistics.median(walls):8.3f} s ({min(walls):.3f}-{max(walls):.3f})"
        line += f"  CPU {statistics.median(cpus):8.3f} s ({statistics.median(cpus) / elements * 1e9:.1f} ns an element)"
        if name != first:
            for k, what in ((0, "wall"), (1, "CPU")):
                ratios = [x[k] / y[k] for x, y in zip(found, times[first], strict=True)]
                line += (
                    f"  {what} ratio {statistics.median(ratios):.2f} ({min(ratios):.2f}-{max(ratios):.2f})"
                )
        print(line)


def coordinates(folder: Path, count: int, rows: int, vocab: int) -> Iterator[tuple[Run, Any]]:
    for i in range(count):
        path = folder / f"coordinate{i}_{rows}x{vocab}.bin"
        if not path.exists() or path.stat().st_size != rows * vocab * 2:
            write(path, rows, vocab, i)
        yield coordinate(path, rows, vocab)


def two(folder: Path, args: argparse.Namespace) -> None:
    rows, vocab = args.rows or 9060, args.vocab or 32000
    (run_a, a), (run_b, b) = coordinates(folder, 2, rows, vocab)
    sides = {
        "largest |a - b|": lambda: largest(a, b),
        "all metrics": lambda: compare_runs([run_a, run_b], threads=args.threads),
    }
    print(f"2 coordinates, {rows} x {vocab} bf16, {args.threads or 'all'} threads")
    show(measure(sides, args.repeats), rows * vocab)


def plain(folder: Path, args: argparse.Namespace) -> None:
    rows, vocab = args.rows or 512, args.vocab or 32000
    (run_a, a), (run_b, b) = coordinates(folder, 2, rows, vocab)
    sides = {
        "all metrics": lambda: compare_runs([run_a, run_b], threads=args.threads),
        "straightforward NumPy": lambda: plain_metrics(a, b),
    }
    print(f"2 coordinates, {rows} x {vocab} bf16, {args.threads or 'all'} threads")
    show(measure(sides, args.repeats), rows * vocab)
    found, other = compare_runs([run_a, run_b]).pairs[0], plain_metrics(a, b)
    assert found.values is not None
    assert found.distribution is not None
    assert found.distribution.kl.mean is not None
    assert np.isclose(found.distribution.kl.mean.value, other["kl"].mean(), rtol=1e-5)
    assert [v for _, v in found.values.quantiles] == other["quantiles"][:-1].tolist()
    assert found.values.agree == tuple(other["agree"].tolist())


def many(folder: Path, args: argparse.Namespace) -> None:
    rows, vocab = args.rows or 256, args.vocab or 32000
    runs = [run for run, _ in coordinates(folder, 10, rows, vocab)]
    print(f"{rows} x {vocab} bf16, {args.threads or 'all'} threads")
    points: list[tuple[int, int, float, float]] = []
    sides = {
        f"{n} coordinates": (lambda n=n: compare_runs(runs[:n], threads=args.threads))
        for n in (2, 4, 6, 8, 10)
    }
    for (name, found), n in zip(measure(sides, args.repeats).items(), (2, 4, 6, 8, 10), strict=True):
        wall, cpu = (statistics.median(z) for z in zip(*found, strict=True))
        pairs = n * (n - 1) // 2
        points.append((n, pairs, wall, cpu))
        print(
            f"{name:16} {pairs:3} pairs  wall {wall:7.3f} s  CPU {cpu:7.3f} s  CPU a pair {cpu / pairs * 1e3:7.1f} ms"
        )
    matrix = np.array([[n, p] for n, p, _, _ in points], float)
    cpu = np.array([c for _, _, _, c in points])
    each, pair = np.linalg.lstsq(matrix, cpu, rcond=None)[0]
    off = np.abs(matrix @ [each, pair] / cpu - 1).max()
    print(f"CPU = {each * 1e3:.0f} ms a coordinate + {pair * 1e3:.0f} ms a pair, within {off:.0%}")


def memory(folder: Path, args: argparse.Namespace) -> None:
    rows, vocab = args.rows or 9060, args.vocab or 248320
    (run_a, a), (run_b, b) = coordinates(folder, 2, rows, vocab)
    release(a)
    release(b)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.perf_counter()
    compare_runs([run_a, run_b], threads=args.threads)
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(
        f"{rows} x {vocab} bf16 ({2 * rows * vocab * 2 / 1e9:.1f} GB in two files): {time.perf_counter() - start:.0f} s, "
        f"peak {after / 1e3:.0f} MB, before {before / 1e3:.0f} MB"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["two", "plain", "many", "memory"])
    parser.add_argument("--rows", type=int)
    parser.add_argument("--vocab", type=int)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int)
    parser.add_argument(
        "--folder", type=Path, help="where the logits are kept; a temporary folder by default"
    )
    args = parser.parse_args()
    works = {"two": two, "plain": plain, "many": many, "memory": memory}
    if args.folder is not None:
        args.folder.mkdir(parents=True, exist_ok=True)
        works[args.what](args.folder, args)
        return
    with tempfile.TemporaryDirectory() as folder:
        works[args.what](Path(folder), args)


if __name__ == "__main__":
    main()
