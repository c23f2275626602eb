"""How fast the files of engines become runs, in MB of JSON a second, against the goal of 50; and memory of full logits.

Files of about SIZE MB (default 40) are made with a seed, as each engine writes them, and read three times: the best
counts, in wall and in CPU seconds (which agree on a machine that does nothing else); `parse` is orjson alone. With --logits GB as arguments also a run folder of that many GB of bf16 logits is written, read and validated in
a process of its own, whose peak memory is printed. Run:  python benchmarks/bench_adapters.py [SIZE]
"""

from __future__ import annotations

import base64
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

GOAL = 50.0
TOP = 20
ROWS = 200
PROMPT = 64


def values(rng: random.Random, n: int) -> list[float]:
    """Log-probabilities as float32 prints them."""
    return [float(np.float32(-rng.expovariate(0.3))) for _ in range(n)]


def entry(rng: random.Random) -> dict[str, object]:
    return {"logprob": values(rng, 1)[0], "rank": rng.randrange(1, TOP + 1), "decoded_token": " word"}


def vllm_offline(rng: random.Random) -> object:
    ids = [rng.randrange(150_000) for _ in range(ROWS)]
    rows = [{str(t): entry(rng) for t in {i, *(rng.randrange(150_000) for _ in range(TOP - 1))}} for i in ids]
    out = {"index": 0, "token_ids": ids, "logprobs": rows, "finish_reason": "length"}
    return {
        "request_id": "0",
        "prompt_token_ids": [rng.randrange(150_000) for _ in range(PROMPT)],
        "outputs": [out],
    }


def vllm_completions(rng: random.Random) -> object:
    tokens = [f"token_id:{rng.randrange(150_000)}" for _ in range(ROWS)]
    rows = [
        dict(zip((f"token_id:{rng.randrange(150_000)}" for _ in range(TOP)), values(rng, TOP), strict=True))
        for _ in tokens
    ]
    logprobs = {"tokens": tokens, "token_logprobs": values(rng, ROWS), "top_logprobs": rows}
    choice = {"index": 0, "text": "", "logprobs": logprobs, "finish_reason": "length"}
    return {"object": "text_completion", "model": "m", "choices": [choice]}


def vllm_packed(rng: random.Random) -> object:
    ids = np.array([rng.randrange(150_000) for _ in range(ROWS * 64)], "<i4")
    packed = {
        "shape": [ROWS, 64],
        "token_ids_dtype": "<i4",
        "logprobs_dtype": "<f4",
        "token_ids_b64": base64.b64encode(ids.tobytes()).decode(),
        "logprobs_b64": base64.b64encode(np.array(values(rng, ROWS * 64), "<f4").tobytes()).decode(),
    }
    tokens = [f"token_id:{rng.randrange(150_000)}" for _ in range(ROWS)]
    logprobs = {"tokens": tokens, "token_logprobs": values(rng, ROWS), "packed_top_logprobs": packed}
    return {"object": "text_completion", "choices": [{"index": 0, "logprobs": logprobs}]}


def chat(rng: random.Random) -> object:
    def one() -> dict[str, object]:
        return {"token": " word", "logprob": values(rng, 1)[0], "bytes": list(b" word")}

    content = [{**one(), "top_logprobs": [one() for _ in range(TOP)]} for _ in range(ROWS)]
    return {"model": "m", "choices": [{"logprobs": {"content": content}, "finish_reason": "stop"}]}


def sglang(rng: random.Random) -> object:
    def rows(n: int) -> list[list[object]]:
        return [[v, rng.randrange(150_000), None] for v in values(rng, n)]

    meta = {
        "prompt_tokens": PROMPT,
        "input_token_logprobs": [[None, 1, None], *rows(PROMPT - 1)],
        "input_top_logprobs": [None, *(rows(TOP) for _ in range(PROMPT - 1))],
        "output_token_logprobs": rows(ROWS),
        "output_top_logprobs": [rows(TOP) for _ in range(ROWS)],
        "finish_reason": {"type": "length"},
    }
    return {"text": "", "meta_info": meta}


def tgi(rng: random.Random) -> object:
    def one() -> dict[str, object]:
        return {
            "id": rng.randrange(150_000),
            "text": " word",
            "logprob": values(rng, 1)[0],
            "special": False,
        }

    tokens, tops = [one() for _ in range(ROWS)], [[one() for _ in range(5)] for _ in range(ROWS)]
    prefill = [{"id": 1, "text": "a", "logprob": None}, *[one() for _ in range(PROMPT - 1)]]
    return {"generated_text": "", "details": {"prefill": prefill, "tokens": tokens, "top_tokens": tops}}


def lines(rng: random.Random) -> object:
    """This project's own JSON lines."""
    return {
        "id": str(rng.random()),
        "prompt_token_ids": [rng.randrange(150_000) for _ in range(PROMPT)],
        "token_ids": [rng.randrange(150_000) for _ in range(ROWS)],
        "logprobs": values(rng, ROWS),
        "top": [[[rng.randrange(150_000), v] for v in values(rng, TOP)] for _ in range(ROWS)],
    }


def replicas(rng: random.Random) -> object:
    """What the shipped mapping tgi_replicas reads."""
    tokens = [[rng.randrange(150_000), v, " word"] for v in values(rng, ROWS)]
    return {
        "snapshot": str(rng.random()),
        "commit": "c",
        "replica": 0,
        "n_replicas": 1,
        "date": "d",
        "finish_reason": "length",
        "prefill": [[1, None, "a"], *tokens[: PROMPT - 1]],
        "tokens": tokens,
    }


FORMATS: dict[str, tuple[Callable[[random.Random], object], str | None, str | None]] = {
    "vllm offline": (vllm_offline, "vllm", None),
    "vllm completions": (vllm_completions, "vllm", None),
    "vllm packed": (vllm_packed, "vllm", None),
    "openai chat": (chat, "openai", None),
    "sglang": (sglang, "sglang", None),
    "tgi": (tgi, "tgi", None),
    "mapping": (replicas, None, "tgi_replicas"),
}


def write(file: Path, make: Callable[[random.Random], object], size: int) -> None:
    """Lines of answers until the file has ``size`` bytes; a few are made, and written again and again."""
    rng = random.Random(1)
    made = [json.dumps(make(rng), separators=(",", ":")) for _ in range(8)]
    with file.open("w") as stream:
        while stream.tell() < size:
            for line in made:
                stream.write(line + "\n")


def best(run: Callable[[], object], times: int = 3) -> tuple[float, float]:
    """Wall and CPU seconds, each of the fastest of some runs."""
    walls: list[float] = []
    cpus: list[float] = []
    for _ in range(times):
        start, cpu = time.perf_counter(), time.process_time()
        run()
        walls.append(time.perf_counter() - start)
        cpus.append(time.process_time() - cpu)
    return min(walls), min(cpus)


def parsed(file: Path) -> None:
    """Every line parsed, and nothing else."""
    import orjson

    from verify.runs.jsonio import unswept

    with file.open("rb") as stream, unswept():
        for line in stream:
            orjson.loads(line)


Measured = tuple[str, float, tuple[float, float], float]


def adapters(size: int, folder: Path) -> Iterator[Measured]:
    """Name, MB, wall and CPU seconds, and CPU seconds of the parser alone, of every format."""
    from verify.runs.folder import file_sha, inspect_run
    from verify.runs.load import load_runs

    for name, (make, adapter, mapping) in FORMATS.items():
        file = folder / f"{name.replace(' ', '_')}.jsonl"
        write(file, make, size)
        seconds = best(lambda f=file, a=adapter, m=mapping: load_runs(f, adapter=a, mapping=m))
        yield name, file.stat().st_size / 1e6, seconds, best(lambda f=file: parsed(f))[1]
        file.unlink()
    own = folder / "own"
    own.mkdir()
    rng = random.Random(1)
    with (own / "sequences.jsonl").open("w") as stream:
        line = lines(rng)
        assert isinstance(line, dict)
        for i in range(10**9):
            stream.write(json.dumps({**line, "id": str(i)}, separators=(",", ":")) + "\n")
            if stream.tell() > size:
                break
    entry = {"path": "sequences.jsonl", "sha256": file_sha(own / "sequences.jsonl")}
    manifest = {"schema": 1, "kind": "run", "run_id": "own", "coordinate": {}, "files": [entry]}
    (own / "manifest.json").write_text(json.dumps({**manifest, "capture": {"value_kind": "raw_logprobs"}}))
    assert inspect_run(own).run is not None
    file = own / "sequences.jsonl"
    yield (
        "own JSON lines",
        file.stat().st_size / 1e6,
        best(lambda: inspect_run(own)),
        best(lambda: parsed(file))[1],
    )


WRITE = """
import sys, numpy as np, ml_dtypes
from pathlib import Path
from verify.runs.folder import no_files, write_run
from verify.runs.sequence import Full, Sequence
rows, vocab = int(sys.argv[2]), 248320
block = np.random.default_rng(1).standard_normal((64, vocab), np.float32).astype(ml_dtypes.bfloat16)
def read(start, stop):
    return np.concatenate([block] * (-(-(stop - start) // 64)))[: stop - start]
full = Full(rows, vocab, block.dtype, read)
ids = np.arange(rows, dtype=np.int64) % vocab
one = Sequence("c", 0, np.arange(rows, dtype=np.int64), ids, ids[:1], full=full)
write_run(Path(sys.argv[1]), no_files({"run_id": "r", "coordinate": {}, "capture": {"value_kind": "raw_logits"},
                                      "vocab_size": vocab}), [one])
"""
CHECK = """
import sys
from verify.runs.validate import validate
(found,) = validate(sys.argv[1])
assert found.ok, found.problems.errors
"""


def logits(gigabytes: float, folder: Path) -> None:
    """Write, then read and validate, a run folder; print seconds and peak memory of each process."""
    rows = int(gigabytes * 1e9 / (248_320 * 2))
    for what, script, more in (("write", WRITE, [str(rows)]), ("read and validate", CHECK, [])):
        start = time.perf_counter()
        process = subprocess.Popen([sys.executable, "-c", script, str(folder / "big"), *more])
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - start
        print(
            f"{what:<20}{gigabytes:8.1f} GB{seconds:9.1f} s{usage.ru_maxrss / 1e6:8.2f} GB at most, status {status}"
        )


def main() -> int:
    """Measure, print, and return 1 if a format is below the goal."""
    arguments = sys.argv[1:]
    gigabytes = 0.0
    if "--logits" in arguments:
        at = arguments.index("--logits")
        gigabytes = float(arguments[at + 1])
        del arguments[at : at + 2]
    size = int(float(arguments[0]) * 1e6) if arguments else 40_000_000
    low = False
    with tempfile.TemporaryDirectory() as name:
        print(
            f"{'format':<20}{'MB':>8}{'wall s':>9}{'MB/s':>8}{'CPU s':>9}{'MB/s':>8}{'parse':>8}   goal {GOAL:.0f}"
        )
        for label, megabytes, (wall, cpu), parse in adapters(size, Path(name)):
            rates = [megabytes / s for s in (wall, cpu, parse)]
            low |= rates[0] < GOAL
            mark = "" if rates[0] >= GOAL else "   below"
            print(
                f"{label:<20}{megabytes:8.1f}{wall:9.2f}{rates[0]:8.0f}{cpu:9.2f}{rates[1]:8.0f}{rates[2]:8.0f}{mark}"
            )
        if gigabytes:
            logits(gigabytes, Path(name))
    print(f"peak memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6:.2f} GB")
    return int(low)


if __name__ == "__main__":
    raise SystemExit(main())
