"""What is true of real captures, by counts and maxima taken from the files themselves."""

import json
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest

from verify.metrics.compare import compare_runs
from verify.runs.load import load_runs, unique

DATA = Path(__file__).parents[4] / "shared" / "data"


def file(name: str) -> Path:
    path = DATA / name
    if not path.exists():
        pytest.skip(f"the real capture is not here: ../shared/data/{name}")
    return path


def lines(name: str) -> list[dict]:
    return [json.loads(line) for line in file(name).read_text().splitlines() if line.strip()]


@pytest.mark.parametrize("device", ["rtx4090", "metal"])
def test_the_first_of_the_repeats_differs_and_the_rest_agree(device):
    records = lines(f"real/ollama/{device}_repeats.jsonl")
    found = compare_runs(load_runs(file(f"real/ollama/{device}_repeats.jsonl")))
    repeats = found.repeats[0][1][0]
    values = [[t[1] for t in r["logprob_margins"]["tokens"]] for r in records]
    assert values[0] != values[1]
    assert all(v == values[1] for v in values[2:])
    assert repeats.finding == "first request differs"
    assert repeats.level("values").pattern == f"A b*{len(records) - 1}"
    assert repeats.level("text").distinct == len({r["text"] for r in records}) == 1
    assert repeats.max_difference == pytest.approx(np.abs(np.subtract(values[0], values[1])).max())
    below = sum(t[1] < t[2] for r in records for t in r["logprob_margins"]["tokens"])
    assert found.health[0].counts["chosen_not_best"] == below > 0


def test_concurrent_replicas():
    groups = defaultdict(dict)
    for r in lines("real/tgi/replicas.jsonl"):
        groups[r["commit"], r["snapshot"]][r["replica"]] = [x[1] for x in [*r["prefill"], *r["tokens"]]]
    several = {k: [v[i] for i in sorted(v)] for k, v in groups.items() if len(v) > 1}
    found = compare_runs(
        load_runs(file("real/tgi/replicas.jsonl")), reference="0b95693fb8b9640283a0fcf40ac4dd2ab15187eb"
    )
    seen = {(run, x.conversation): x for run, group in found.repeats for x in group}
    assert len(seen) == len(several)
    for key, values in several.items():
        distinct = [values.index(v) for v in values]
        numbers = {first: i for i, first in enumerate(dict.fromkeys(distinct))}
        assert seen[key].level("values").classes == tuple(numbers[d] for d in distinct), key


def test_versions_with_other_prompts_are_not_compared():
    records = lines("real/tgi/replicas.jsonl")
    prompts = {(r["commit"], r["snapshot"]): [x[0] for x in r["prefill"]] for r in records}
    runs = load_runs(file("real/tgi/replicas.jsonl"))
    found = compare_runs(runs, draws=2)
    refused = {
        (p.first, p.second, n)
        for p in found.pairs
        for n, why in p.coverage.refused
        if why == "prompts differ"
    }
    expected = {
        (a.name, b.name, snapshot)
        for i, a in enumerate(runs)
        for b in runs[i + 1 :]
        for commit, snapshot in prompts
        if commit == a.name and prompts.get((b.name, snapshot)) not in (None, prompts[commit, snapshot])
        if prompts[commit, snapshot] and prompts[b.name, snapshot]
    }
    assert refused == expected != set()


def test_scores_of_three_devices():
    paths = [file(f"real/conformal/scores_{n}.npz") for n in ("A_desktop_cpu", "C_laptop_cpu")]
    runs = unique([run for path in paths for run in load_runs(path)])
    pair = compare_runs(runs).pairs[0]
    with np.load(paths[0]) as x, np.load(paths[1]) as y:
        cal = np.abs(x["scores_cal__fp32"] - y["scores_cal__fp32"])
        assert (x["scores_te__fp32"] == y["scores_te__fp32"]).all()
        assert pair.chosen.n == cal.size + x["scores_te__fp32"].size
    assert pair.chosen.different == np.count_nonzero(cal) > 0
    assert pair.chosen.max_abs == cal.max()
    assert (pair.first_difference.conversation, pair.first_difference.position) == (
        "scores_cal",
        np.flatnonzero(cal)[0],
    )


def test_devices_that_agree_to_the_printed_digits_and_one_that_is_off():
    runs = load_runs(file("real/transformers/llama2_7b_logits_by_device.json"))
    names = {run.name: run for run in runs}
    found = compare_runs(runs, draws=2)

    def pair(model: str, one: str, two: str):
        a, b = (next(n for n in names if model in n and device in n) for device in (one, two))
        return found.pair(a, b)

    same = pair("bf16", "xpu:3", "cuda:8")
    assert (same.identical, same.values.exactness, same.values.decimals) == (True, "printed digits", 4)
    other = pair("bf16", "cuda:7", "cuda:8")
    assert (other.values.different, other.chosen.different, other.identical) == (8, 8, False)
    off = pair("PowerMoE", "cuda:7", "cuda:8")
    assert any("not numerics" in f.text for f in off.findings)
    assert not any("not numerics" in f.text for f in [*same.findings, *other.findings])


def test_where_the_runs_of_96_and_320_tokens_part():
    paths = [file(f"smollm2/smollm2_T320_top50_T{n}run.npz") for n in (320, 96)]
    runs = unique([run for path in paths for run in load_runs(path)])
    pair = compare_runs(runs).pairs[0]
    with np.load(paths[0]) as x, np.load(paths[1]) as y:
        n = len(y["topk_logits"])
        unequal = (x["topk_ids"][:n] != y["topk_ids"]) | (x["topk_logits"][:n] != y["topk_logits"])
        rows = np.flatnonzero(unequal.any(axis=1))
        most = 0.0
        for i in range(n):
            _, p, q = np.intersect1d(x["topk_ids"][i], y["topk_ids"][i], return_indices=True)
            d = x["topk_logits"][i][p].astype(np.float64) - y["topk_logits"][i][q]
            most = max(most, float(np.abs(d).max()))
    assert pair.first_difference.position == rows[0]
    assert (pair.coverage.rows, pair.lists.max_abs) == (n, most)
    assert pair.decisions.flips == 0
