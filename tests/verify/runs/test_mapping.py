"""Mappings: paths, what they refuse, and small files of every form against rows worked out by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specs.errors import InputError, SpecError
from tests.verify.runs.test_adapters import JUNK, places, put, written
from verify.runs.load import load_runs
from verify.runs.mapping import load_mapping, shipped
from verify.runs.paths import MISSING, find, matches, parse_path
from verify.runs.run import Run
from verify.runs.sequence import UNKNOWN

HEAD = 'schema = 1\nname = "mine"\ntitle = "t"\nform = "json"\n'
KIND = '[run.capture]\nvalue_kind = { value = "raw_logprobs" }\n'

VALUE = {"a": {"b.c": [10, 11, 12]}, "t": [[1, -0.5, "x"], [2, None, "y"]], "d": {"p q": 1}, "n": None}
PATHS: list[tuple[str, Any]] = [
    ("@", VALUE),
    ('a."b.c"[1]', 11),
    ('"a"."b.c"[-1]', 12),
    ('a."b.c"[1:]', [11, 12]),
    ('a."b.c"[0:2]', [10, 11]),
    ("t[*][0]", [1, 2]),
    ("t[*][2]", ["x", "y"]),
    ("t[*]", VALUE["t"]),
    ("d.p q", 1),
    ("$.d.p q", 1),
    ("d.{what}", 1),
    ("n", None),
    ("t[7]", MISSING),
    ("t[*][7]", MISSING),
    ("x.y", MISSING),
    ("t.x", MISSING),
    ("d.p q.z", MISSING),
]


@pytest.mark.parametrize(("text", "want"), PATHS)
def test_paths(text: str, want: Any) -> None:
    found = find(parse_path(text), VALUE, VALUE, {"what": "p q"})
    assert found is want if want is MISSING else found == want


@pytest.mark.parametrize(
    "text", ["a b[", "a..b", "[x]", "a[1", "a[*", 'a."b', "__import__('os')", "a[1]b", "x" * 500]
)
def test_no_paths(text: str) -> None:
    if text == "__import__('os')":
        assert find(parse_path(text), {}, {}, {}) is MISSING  # a name like any other
        return
    with pytest.raises(SpecError):
        parse_path(text)


def test_captures() -> None:
    value = {"s_cal__fp32": 1, "s_te__fp16": 2, "s_x__fp32": 3, "other": {"A mean": {"g": 4}}}
    found = [(v, c) for v, c in matches(parse_path("s_{part:cal|te}__{kind}"), value)]
    assert found == [(1, {"part": "cal", "kind": "fp32"}), (2, {"part": "te", "kind": "fp16"})]
    assert [c for _, c in matches(parse_path("other.{m} mean.{g}"), value)] == [{"m": "A", "g": "g"}]
    assert [v for v, _ in matches(parse_path("[*].a"), [{"a": 1}, {"b": 2}, {"a": 3}])] == [1, 3]


def mapped(folder: Path, mapping: str, value: Any, name: str = "a.json") -> tuple[Run, ...]:
    (folder / "m.toml").write_text(mapping)
    file = folder / name
    if name.endswith(".npz"):
        np.savez(file, **value)
    else:
        written(folder, value, name)
    return load_runs(file, mapping=folder / "m.toml")


def test_a_mapping_of_ones_own(tmp_path: Path) -> None:
    """Nested answers with ids, several devices in one file, top entries by ragged rows, words for infinities."""
    mapping = (
        HEAD
        + '[[run]]\neach = "results.{gpu}[*]"\nmodel = "$.model"\nvocab_size = { value = 50 }\n'
        + '[run.sequence]\nconversation = { join = ["q", "kind"] }\nprompt = "prompt"\ntokens = "out[*].id"\n'
        + 'chosen = "out[*].lp"\ntop_ids = "out[*].top[*].id"\ntop_values = "out[*].top[*].lp"\n'
        + '[run.coordinate]\ngpu = { text = "{gpu}", map = { h = "H200" } }\n"flags.mode" = "kind"\n'
        + '[run.labels]\nfile = { text = "{file}" }\n'
        + KIND
    )
    row = {"id": 3, "lp": -0.5, "top": [{"id": 3, "lp": -0.5}, {"id": 4, "lp": "-inf"}]}
    answer = {"q": 7, "kind": "x", "prompt": [1, 2], "out": [row, {"id": 9, "lp": None, "top": []}]}
    value = {"model": "m", "results": {"h": [answer, answer], "b": [answer]}}
    first, second = mapped(tmp_path, mapping, value)
    assert (first.name, second.name) == ("H200", "b")
    assert first.sha256 != second.sha256
    assert first.manifest.model == "m"
    assert first.manifest.coordinate.flags == {"mode": "x"}
    assert [(s.conversation, s.repeat) for s in first.sequences] == [("7/x", 0), ("7/x", 1)]
    one = first.sequences[0]
    assert one.positions.tolist() == [1, 2]
    assert one.tokens.tolist() == [3, 9]
    assert one.top is not None
    assert one.top.ids.tolist() == [[3, 4], [UNKNOWN, UNKNOWN]]
    assert one.top.values[0].tolist() == [-0.5, -np.inf]
    assert one.counts == {"null_values": 1, "neg_inf_values": 1}
    assert one.labels["file"] == "a"


def test_positions_that_repeat_or_go_back(tmp_path: Path) -> None:
    mapping = (
        HEAD
        + '[[run]]\n[run.sequence]\nconversation = { value = "c" }\ntokens = "t"\nchosen = "v"\npositions = "p"\n'
        + KIND
    )
    value = {"t": [1, 2, 3, 4], "v": [-1, -2, -3, -4], "p": [5, 9, 5, 7]}
    (run,) = mapped(tmp_path, mapping, value)
    (one,) = run.sequences
    assert one.positions.tolist() == [5, 7, 9]
    assert one.tokens.tolist() == [1, 4, 2]
    assert one.chosen is not None
    assert one.chosen.tolist() == [-1, -4, -2]
    assert one.counts == {"duplicate_positions": 1, "unsorted_positions": 1, "missing_positions": 2}


def test_npz_with_a_whole_text(tmp_path: Path) -> None:
    mapping = (
        HEAD.replace("json", "npz")
        + '[[run]]\n[run.sequence]\ntext = "ids"\nlogits = "last"\nalign = "end"\n'
        + '[[run.attention]]\nlayer = 2\naxes = "nhd"\nq = "q"\nlse = "l"\n'
        + '[run.capture]\nvalue_kind = { value = "raw_logits" }\nlse_base = { value = "e" }\n'
    )
    rng = np.random.default_rng(0)
    value = {
        "ids": np.array([5, 6, 7, 8]),
        "last": rng.standard_normal((2, 9)).astype(np.float32),
        "q": rng.standard_normal((4, 3, 8)).astype(np.float16),
        "l": rng.standard_normal((4, 3)).astype(np.float32),
    }
    (run,) = mapped(tmp_path, mapping, value, "a.npz")
    (one,) = run.sequences
    assert one.positions.tolist() == [2, 3]
    assert one.tokens.tolist() == [8, UNKNOWN]
    assert one.full is not None
    np.testing.assert_array_equal(one.full.read(0, 2), value["last"])
    (layer,) = one.attention
    assert layer.q is not None
    np.testing.assert_array_equal(layer.q, value["q"])


BAD: list[tuple[str, Any, str]] = [
    ('tokens = "t[*][0]"\nchosen = "t[*][9]"', VALUE, "no record of 1 has 't[*][9]'"),
    ('tokens = "t[*][2]"', VALUE, "entry 0 is x, no token id"),
    ('chosen = "t[*][2]"', VALUE, "'chosen' entry 0 is 'x', no number"),
    ('chosen = "d"', VALUE, "'chosen' is no list"),
    ('texts = "t[*][2]"\nconversation = "t"', VALUE, "'conversation' is no single value"),
    ('top_values = { columns = ["t[*][0]", "d"] }', VALUE, "'top_values'"),
    ('conversation = { value = "c" }', VALUE, "has neither tokens nor values"),
]


@pytest.mark.parametrize("case", range(len(BAD)))
def test_what_does_not_fit_is_named(tmp_path: Path, case: int) -> None:
    body, value, message = BAD[case]
    with pytest.raises(InputError) as error:
        mapped(tmp_path, f"{HEAD}[[run]]\n[run.sequence]\n{body}\n{KIND}", value)
    assert message in str(error.value)


FILES: list[tuple[str, str]] = [
    (HEAD + '[[run]]\n[run.sequence]\ntoken = "t"\n' + KIND, "did you mean 'tokens'?"),
    (HEAD + '[[run]]\n[run.sequence]\ntokens = "t["\n' + KIND, "sequence.tokens: 't[' is no path"),
    (HEAD + '[[run]]\n[run.sequence]\ntokens = "{x}"\n' + KIND, "nothing captures 'x'"),
    (HEAD + '[[run]]\n[run.sequence]\ntokens = "t"\n', "'value_kind' is missing"),
    (
        HEAD + '[[run]]\n[run.sequence]\ntokens = "t"\n[run.coordinate]\ngpus = "a"\n' + KIND,
        "did you mean 'gpu'?",
    ),
    (HEAD.replace('"json"', '"xml"') + '[[run]]\n[run.sequence]\ntokens = "t"\n' + KIND, "form"),
    (HEAD, "'run' is missing"),
]


@pytest.mark.parametrize("case", range(len(FILES)))
def test_bad_mappings_are_refused(tmp_path: Path, case: int) -> None:
    text, message = FILES[case]
    (tmp_path / "m.toml").write_text(text)
    with pytest.raises(SpecError) as error:
        load_mapping(tmp_path / "m.toml")
    assert message in str(error.value)
    assert "m.toml" in str(error.value)


def test_an_empty_match_asks_for_the_right_mapping(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is 'mine' the mapping for this file"):
        mapped(tmp_path, HEAD + '[[run]]\neach = "x[*]"\n[run.sequence]\ntokens = "t"\n' + KIND, {"y": 1})


def test_the_shipped_ones_are_mappings() -> None:
    for name in shipped():
        assert load_mapping(name).name == name
    with pytest.raises(SpecError, match="did you mean 'tgi_replicas'"):
        load_mapping("tgi_replica")


def replica(
    snapshot: str, commit: str, number: int, values: list[Any], prefill: bool = True
) -> dict[str, Any]:
    return {
        "snapshot": snapshot,
        "commit": commit,
        "date": "2024-01-01",
        "subject": "s",
        "replica": number,
        "n_replicas": 2,
        "seed": None,
        "finish_reason": "length",
        "prefill": [[1, None, "a"], [2, -3.0, "b"]] if prefill else [],
        "tokens": [[3 + i, v, "c"] for i, v in enumerate(values)],
        "top_tokens": None,
    }


def test_replicas_and_versions(tmp_path: Path) -> None:
    """A small file with the faults of the real one: nulls, exact zeros, and an answer whose prompt is not known."""
    rows = [
        replica("t", "v1", 0, [-0.5, 0.0]),
        replica("t", "v1", 1, [-0.5, None]),
        replica("t", "v2", 0, [-0.5, -0.25], prefill=False),
    ]
    old, new = load_runs(written(tmp_path, rows, "a.jsonl"))
    assert old.manifest.coordinate.engine_version == "v1"
    first, second = old.sequences
    assert (first.conversation, first.repeat, second.repeat) == ("t", 0, 1)
    assert first.positions.tolist() == [0, 1, 2]
    assert first.tokens.tolist() == [2, 3, 4]
    assert first.chosen is not None
    assert first.chosen.tolist() == [-3.0, -0.5, 0.0]
    assert first.counts == {"exact_zero_logprobs": 1}
    assert second.counts == {"null_values": 1}
    assert first.labels["answer_row"] == "1"
    (later,) = new.sequences
    assert later.positions.tolist() == [0, 1]
    assert later.prompt is None
    assert later.labels["positions"] == "from the first answered token"


def test_repeats_with_margins(tmp_path: Path) -> None:
    rows = [
        {
            "cell": "c",
            "repeat": i,
            "request_sha256": "r",
            "text_sha256": "t",
            "stop_reason": "stop",
            "logprob_margins": {"tokens": [["a", 0, 0, -27.5], ["b", -2.0, -1.5, -2.0]]},
        }
        for i in range(2)
    ]
    (run,) = load_runs(written(tmp_path, rows, "rtx4090_repeats.jsonl"))
    assert run.manifest.coordinate.gpu == "RTX 4090"
    one = run.sequences[1]
    assert one.repeat == 1
    assert one.texts == ("a", "b")
    assert one.top is not None
    assert one.top.values.tolist() == [[0, -27.5], [-1.5, -2.0]]
    assert (one.top.ids == UNKNOWN).all()


def test_scores_by_dtype_and_printed_logits(tmp_path: Path) -> None:
    np.savez(
        tmp_path / "a.npz",
        scores_cal__fp32=np.array([0.5, 0.25]),
        scores_te__fp32=np.array([0.125]),
        argmax_te__fp32=np.array([3]),
        scores_te__fp16=np.array([0.25]),
        argmax_te__fp16=np.array([4]),
        __label=np.array(["lab"]),
        __device=np.array(["cuda"]),
        __artifact_sha256=np.array(["ab"]),
    )
    runs = {r.name: r for r in load_runs(tmp_path / "a.npz")}
    assert sorted(runs) == ["fp16", "fp32"]
    cal, te = runs["fp32"].sequences
    assert (cal.conversation, te.conversation) == ("scores_cal", "scores_te")
    assert te.tokens.tolist() == [3]
    assert runs["fp16"].manifest.capture.value_kind == "scores"
    assert runs["fp16"].manifest.coordinate.platform == "lab"
    printed = {
        "model": "m",
        "input_ids": [1, 2],
        "bf16": {"mean_over_vocab": {"x": [-6.5, -4.25]}, "logits_0_0_0to15": {"x": [1.5, 2.5]}},
        "other": {"big mean": {"x": [1.0]}},
    }
    (tmp_path / "b.json").write_text(json.dumps(printed))
    first, other = load_runs(tmp_path / "b.json")
    mean, part = first.sequences
    assert first.manifest.capture.decimals == 4
    assert mean.chosen is not None
    assert mean.chosen.tolist() == [-6.5, -4.25]
    assert part.full is not None
    assert part.full.read(0, 1).tolist() == [[1.5, 2.5]]
    assert other.manifest.model == "big"


@settings(max_examples=80)
@given(st.data())
def test_one_odd_value_anywhere_is_read_or_refused_with_a_message(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    rows = {
        "tgi_replicas": replica("t", "v1", 0, [-0.5, 0.0]),
        "ollama_repeats": {"cell": "c", "repeat": 0, "logprob_margins": {"tokens": [["a", 0, 0, -1.5]]}},
        "transformers_devices": {
            "model": "m",
            "input_ids": [1, 2],
            "bf16": {"mean_over_vocab": {"x": [1.5, 2.5]}},
        },
    }
    name = data.draw(st.sampled_from(sorted(rows)))
    value = put(rows[name], data.draw(st.sampled_from(places(rows[name]))), data.draw(JUNK))
    folder = tmp_path_factory.mktemp("j")
    try:
        runs = load_runs(written(folder, [value], "a.jsonl"), mapping=name)
    except InputError:
        return
    for one in runs[0].sequences:
        assert one.rows == len(one.tokens)
        assert one.chosen is None or len(one.chosen) == one.rows
        assert (np.diff(one.positions) > 0).all()
