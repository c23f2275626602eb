"""What a report says of real captures, with counts and maxima taken from the files by other means."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from itertools import groupby
from pathlib import Path

import numpy as np
import pytest

from reports.contract_base import to_json
from reports.runs.build import compare, named
from reports.runs.contract import from_text
from reports.runs.markdown import render_markdown
from reports.runs.page import LIMIT, render
from reports.runs.text import lines
from verify.runs.load import load_runs

DATA = Path(__file__).parents[4] / "shared" / "data"


def file(name: str) -> Path:
    path = DATA / name
    if not path.exists():
        pytest.skip(f"the real capture is not here: ../shared/data/{name}")
    return path


def records(name: str) -> list[dict]:
    return [json.loads(line) for line in file(name).read_text().splitlines() if line.strip()]


def report(*names: str, keep=None, **options):
    runs = named([(name, load_runs(file(name))) for name in names])
    found, _ = compare([r for r in runs if keep is None or r.name in keep], draws=50, **options)
    assert from_text(to_json(found)) == found
    assert render_markdown(found)
    assert len(render(found).encode()) < LIMIT
    first, *_ = lines(found)
    assert first == found.verdict.headline
    return found


def in_order(values: list) -> str:
    """The order of equal values as letters with run lengths: the first is A."""
    seen = [next(i for i, v in enumerate(values) if v == x) for x in values]
    letters = {first: "A" if n == 0 else chr(97 + n) for n, first in enumerate(sorted(set(seen)))}
    spans = ((letters[k], len(list(g))) for k, g in groupby(seen))
    return " ".join(name + (f"*{n}" if n > 1 else "") for name, n in spans)


@pytest.mark.parametrize("device", ["rtx4090", "metal"])
def test_the_first_of_the_repeats_differs(device):
    name = f"real/ollama/{device}_repeats.jsonl"
    values = [[t[1] for t in r["logprob_margins"]["tokens"]] for r in records(name)]
    below = sum(t[1] < t[2] for r in records(name) for t in r["logprob_margins"]["tokens"])
    most = np.abs(np.array(values[0]) - np.array(values[1])).max()
    n = len(values)
    assert in_order(values) == f"A b*{n - 1}"
    found = report(name)
    assert found.verdict.diverges
    said = (
        f"the first of {n} repeats differs and the other {n - 1} agree (A b*{n - 1}), by at most {most:.3g}"
    )
    assert said in found.verdict.headline
    assert found.verdict.headline.endswith("though all texts are the same.")
    assert any(f"{below} chosen tokens are not the most likely one" in p for p in found.verdict.points)
    (told,) = [line for line in lines(found) if "first request differs" in line]
    assert any(f"  {below} chosen_not_best" in line for line in lines(found))
    assert told.endswith(f"A b*{n - 1}  first request differs, at most {most:.3g} apart")


def test_two_devices_with_repeats():
    names = [f"real/ollama/{d}_repeats.jsonl" for d in ("rtx4090", "metal")]
    a, b = ([(t[0], t[1]) for t in records(n)[0]["logprob_margins"]["tokens"]] for n in names)
    fork = next(i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x[0] != y[0])
    first = next(i for i in range(fork) if a[i][1] != b[i][1])
    found = report(*names)
    (pair,) = found.pairs
    assert set(pair.texts.first) == {fork}
    assert any(f"the earliest after {fork} common rows" in p for p in found.verdict.points)
    assert (pair.first_difference.position, pair.first_difference.a, pair.first_difference.b) == (
        first,
        a[first][1],
        b[first][1],
    )
    assert pair.coverage.after_fork == len(records(names[1])) * (min(len(a), len(b)) - fork - 1)


def test_concurrent_replicas():
    name = "real/tgi/replicas.jsonl"
    groups = defaultdict(dict)
    for r in records(name):
        groups[r["commit"], r["snapshot"]][r["replica"]] = [x[1] for x in [*r["prefill"], *r["tokens"]]]
    several = {k: [v[i] for i in sorted(v)] for k, v in groups.items() if len(v) > 1}
    patterns = {k: in_order(v) for k, v in several.items()}
    found = report(name, reference=next(iter(several))[0])
    seen = {
        (group.run, r.conversation): r.level("values").pattern
        for group in found.repeats
        for r in group.conversations
    }
    assert seen == patterns
    kinds = Counter(
        "identical"
        if " " not in p
        else "first request differs"
        if len(p.split()) == 2 and p.startswith("A b*")
        else "distinct"
        for p in patterns.values()
    )
    assert set(kinds) == {"identical", "first request differs", "distinct"}
    told = ", ".join(f"{n} {kind}" for kind, n in kinds.most_common())
    said = f"{len(several)} conversations were asked more than once: {told}."
    assert said in found.verdict.points


def test_versions_whose_prompts_differ_are_not_compared():
    name = "real/tgi/replicas.jsonl"
    prompts = defaultdict(dict)
    for r in records(name):
        prompts[r["snapshot"]][r["commit"]] = [x[0] for x in r["prefill"]]
    other = [
        (snapshot, a, b)
        for snapshot, by in prompts.items()
        for i, a in enumerate(by)
        for b in list(by)[i + 1 :]
        if by[a] and by[b] and by[a] != by[b]
    ]
    assert other
    for snapshot, a, b in other:
        found = report(name, keep=(a, b))
        (pair,) = found.pairs
        assert (snapshot, "prompts differ") in pair.coverage.refused
        assert any(p.startswith("Not compared, as prompts differ: ") for p in found.verdict.points)
        if not pair.coverage.rows:
            assert found.verdict.headline.startswith("Nothing can be compared")
            assert "(prompts differ)" in found.verdict.headline
            assert (pair.identical, pair.max_abs) == (False, None)


def test_devices_equal_to_the_printed_digits_and_one_that_is_off():
    name = "real/transformers/llama2_7b_logits_by_device.json"
    data = json.loads(file(name).read_text())
    parts = ("mean_over_vocab", "logits_0_0_0to15")
    bf16 = [data["bf16"][part] for part in parts]
    assert all(p["xpu:3"] == p["cuda:8"] for p in bf16)
    most = max(abs(x - y) for p in bf16 for x, y in zip(p["cuda:7"], p["cuda:8"], strict=True))
    found = report(name)
    names = {
        (r.coordinate["dtype"], r.coordinate["gpu"]): r.name for r in found.coordinates if "Llama" in r.name
    }
    same = next(k for k in found.identity if names["bf16", "xpu:3"] in k.runs)
    assert same.runs == (names["bf16", "xpu:3"], names["bf16", "cuda:8"])
    assert same.exactness == "printed digits"
    assert f"{same.runs[0]} and {same.runs[1]} are equal to the printed digits" in found.verdict.headline
    assert "bit-identical" not in found.verdict.headline

    def pair(a, b):
        return next(p for p in found.pairs if {p.first, p.second} == {a, b})

    assert pair(names["bf16", "cuda:7"], names["bf16", "cuda:8"]).max_abs == pytest.approx(
        most
    )  # of printed decimals
    off = found.verdict.not_numerics
    assert {x for two in off for x in two} == {
        f"{d} / ibm/PowerMoE-3b" for d in ("xpu:3", "cuda:7", "cuda:8")
    }
    assert (
        "cuda:7 / ibm/PowerMoE-3b is off by more than rounding makes against 2 others"
        in found.verdict.headline
    )
    means = next(v for k, v in data["other"].items() if "PowerMoE" in k)
    assert means["xpu:3"] == means["cuda:8"]
    assert np.corrcoef(means["cuda:7"], means["cuda:8"])[0, 1] < 0
    models = Counter(r.model for r in found.coordinates)
    across = (sum(models.values()) ** 2 - sum(n * n for n in models.values())) // 2
    assert any(p.startswith(f"{across} pairs of runs of different models") for p in found.verdict.points)
    (region,) = [g for g in found.geometry if g.subset == "all"]
    assert same.runs in region.points
    assert sum(map(len, region.points)) == 7


def test_scores_of_two_cpus_and_a_gpu():
    names = [f"real/conformal/scores_{n}.npz" for n in ("A_desktop_cpu", "B_desktop_gpu", "C_laptop_cpu")]
    found = report(*names)
    with np.load(file(names[0])) as a, np.load(file(names[2])) as c:
        cal = a["scores_cal__fp32"] != c["scores_cal__fp32"]
        size = np.abs(a["scores_cal__fp32"] - c["scores_cal__fp32"]).max()
        assert (a["scores_te__fp32"] == c["scores_te__fp32"]).all()
        total = cal.size + a["scores_te__fp32"].size
    pair = next(p for p in found.pairs if {p.first[7], p.second[7]} == {"A", "C"})
    assert pair.equal_in == ("scores_te",)
    assert (pair.chosen.different, pair.max_abs, pair.identical) == (cal.sum(), size, False)
    said = f"{cal.sum()} of {total:,} values differ, none in scores_te."
    assert any(
        p.startswith(f"{pair.first} and {pair.second}") and p.endswith(said) for p in found.verdict.points
    )
    (region,) = found.geometry
    assert region.metric == "row_max"
    assert [len(p) for p in region.points] == [1] * 4


def test_where_the_runs_of_96_and_320_tokens_part():
    names = [f"smollm2/smollm2_T320_top50_T{n}run.npz" for n in (320, 96)]
    with np.load(file(names[0])) as x, np.load(file(names[1])) as y:
        n = len(y["topk_ids"])
        unequal = (x["topk_ids"][:n] != y["topk_ids"]) | (x["topk_logits"][:n] != y["topk_logits"])
        same_best = (x["topk_ids"][:n, 0] == y["topk_ids"][:, 0]).all()
    position = int(np.flatnonzero(unequal.any(axis=1))[0])
    found = report(*names)
    assert same_best
    assert f"no best token changes on {n} rows" in found.verdict.headline
    assert any(f"part first in text at position {position}:" in p for p in found.verdict.points)
    deep = found.pairs[0].depth
    assert [b.metrics["max_abs"].maximum > 0 for b in deep] == [b.high >= position for b in deep]


def test_the_stored_output_is_not_that_of_the_stored_inputs():
    """The layer was computed in float32; what is stored of q, k and v was rounded to float16."""
    name = "smollm2/smollm2_T320_attn_fp16in.npz"
    with np.load(file(name)) as z:
        q, k, v, out = (z[f"layer15.{x}"].astype(np.float64) for x in ("q", "k", "v", "out"))
    scores = np.einsum("hid,hjd->hij", q, np.repeat(k, 3, axis=0)) / 8
    weights = np.where(
        np.tril(np.ones((320, 320), bool)), np.exp(scores - scores.max(axis=2, keepdims=True)), 0
    )
    exact = np.einsum("hij,hjd->hid", weights, np.repeat(v, 3, axis=0)) / weights.sum(axis=2, keepdims=True)
    off = np.abs(out - exact)
    head, row, column = (int(i) for i in np.unravel_index(off.argmax(), off.shape))
    found = report(name)
    said = next(p for p in found.verdict.points if "was not computed from these numbers" in p)
    assert f"up to {off.max():.2g} from exact attention" in said
    assert f"(row {row}, head {head}, column {column})" in said
    assert said.endswith("were they rounded when they were stored?")
