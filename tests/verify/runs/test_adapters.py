"""Engines' answers, written out by hand as each engine gives them, against rows worked out by hand."""

from __future__ import annotations

import base64
import json
import struct
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file

from specs.errors import InputError
from verify.runs.adapters.base import Options
from verify.runs.adapters.vllm import dump
from verify.runs.load import load_runs
from verify.runs.run import Run
from verify.runs.sequence import UNKNOWN, Sequence


def written(folder: Path, value: Any, name: str = "a.json") -> Path:
    file = folder / name
    file.write_text(
        json.dumps(value) if name.endswith(".json") else "".join(json.dumps(v) + "\n" for v in value)
    )
    return file


def one_run(file: Path, adapter: str | None = None, **more: Any) -> Run:
    (run,) = load_runs(file, adapter=adapter, **more)
    return run


def only(file: Path, adapter: str | None = None) -> Sequence:
    (found,) = one_run(file, adapter).sequences
    return found


def refusal(file: Path, adapter: str | None = None) -> str:
    with pytest.raises(InputError) as error:
        load_runs(file, adapter=adapter)
    return str(error.value)


def lists(found: Sequence) -> tuple[list[int], list[int], list[Any]]:
    assert found.chosen is not None
    return found.positions.tolist(), found.tokens.tolist(), found.chosen.tolist()


def entry(value: Any, rank: int = 1) -> dict[str, Any]:
    return {"logprob": value, "rank": rank, "decoded_token": "x"}


OFFLINE = {
    "request_id": "0",
    "prompt_token_ids": [10, 11, 12],
    "prompt_logprobs": [
        None,
        {"11": entry(-3.5, 7), "4": entry(-0.5)},
        {"12": entry(-0.25), "9": entry(-2.5, 2)},
    ],
    "outputs": [
        {
            "index": 0,
            "token_ids": [20, 21],
            "logprobs": [
                {"20": entry(-0.125), "5": entry(-4.0, 2)},
                {"5": entry(-0.75), "21": entry(-9999.0, 3)},
            ],
            "finish_reason": "length",
        }
    ],
}


def test_vllm_offline(tmp_path: Path) -> None:
    """Entry i of prompt_logprobs is what position i - 1 predicted; a chosen token outside the top is no top entry."""
    run = one_run(written(tmp_path, [OFFLINE]))
    (found,) = run.sequences
    assert lists(found) == ([0, 1, 2, 3], [11, 12, 20, 21], [-3.5, -0.25, -0.125, -9999.0])
    assert found.top is not None
    assert found.top.ids.tolist() == [[4, UNKNOWN], [12, 9], [20, 5], [5, UNKNOWN]]
    np.testing.assert_array_equal(
        found.top.values, [[-0.5, np.nan], [-0.25, -2.5], [-0.125, -4.0], [-0.75, np.nan]]
    )
    assert found.prompt is not None
    assert found.prompt.tolist() == [10]
    assert found.labels["answer_row"] == "2"
    assert found.counts == {"clamped_values": 1}
    assert found.finish == "length"
    assert run.manifest.capture.clamp_floor == -9999.0
    assert run.manifest.coordinate.engine == "vllm"
    assert run.manifest.origin["adapter"] == "vllm"


def test_the_least_likely_of_the_top_is_one_of_them(tmp_path: Path) -> None:
    """A chosen token of rank k in a row of k entries is no extra entry."""
    row = {"20": entry(-2.0, 2), "5": entry(-0.5)}
    value = {"prompt_token_ids": [1], "outputs": [{"token_ids": [20], "logprobs": [row]}]}
    found = only(written(tmp_path, value))
    assert found.top is not None
    assert found.top.ids.tolist() == [[5, 20]]


def test_vllm_offline_objects_and_the_flat_form(tmp_path: Path) -> None:
    def named(row: Any) -> Any:
        return None if row is None else {int(k): SimpleNamespace(**v) for k, v in row.items()}

    (choice,) = OFFLINE["outputs"]
    output = SimpleNamespace(
        prompt_token_ids=OFFLINE["prompt_token_ids"],
        prompt_logprobs=[named(r) for r in OFFLINE["prompt_logprobs"]],
        outputs=[
            SimpleNamespace(
                token_ids=choice["token_ids"],
                logprobs=[named(r) for r in choice["logprobs"]],
                finish_reason="length",
            )
        ],
    )
    flat = {
        "start_indices": [0, 2],
        "end_indices": [2, 4],
        "token_ids": [20, 5, 21, 5],
        "logprobs": [-0.125, -4.0, -9999.0, -0.75],
        "ranks": [1, 2, 3, 1],
    }
    same = {**OFFLINE, "outputs": [{**choice, "logprobs": flat}]}
    want = only(written(tmp_path, OFFLINE))
    for value in (dump([output]), same):
        found = only(written(tmp_path, value, "b.json"))
        assert lists(found) == lists(want)
        assert found.top is not None
        assert want.top is not None
        np.testing.assert_array_equal(found.top.ids, want.top.ids)
        np.testing.assert_array_equal(found.top.values, want.top.values)


def completion(**more: Any) -> dict[str, Any]:
    logprobs = {
        "tokens": [" a", " b", " c"],
        "token_logprobs": [-0.5, -2.0, -0.25],
        "top_logprobs": [{" a": -0.5, " x": -1.5}, {" x": -0.5, " y": -1.0, " b": -2.0}, None],
        "text_offset": [0, 2, 4],
    }
    choice = {"index": 0, "text": " a b c", "logprobs": logprobs, "finish_reason": "stop", **more}
    return {"object": "text_completion", "model": "m", "choices": [choice]}


def test_completions_of_texts(tmp_path: Path) -> None:
    """Texts stand for tokens; of three top entries among rows of two, the last is the chosen one: it is no top entry."""
    run = one_run(written(tmp_path, completion()))
    (found,) = run.sequences
    assert run.manifest.origin["adapter"] == "openai"
    assert run.manifest.model == "m"
    assert lists(found) == ([0, 1, 2], [UNKNOWN] * 3, [-0.5, -2.0, -0.25])
    assert found.texts == (" a", " b", " c")
    assert found.top is not None
    assert found.top.texts == ((" a", " x"), (" x", " y"), ())
    assert found.counts == {"text_only_rows": 3}
    assert found.labels["positions"] == "from the first answered token"


def test_equal_texts_make_rows_shorter(tmp_path: Path) -> None:
    """One row of five has lost an entry to an equal text: the others keep their third, though it is the chosen one."""
    rows = [{" x": -0.5, " y": -1.0, " b": -2.0}] * 4 + [{" x": -0.5, " b": -1.0}]
    value = completion()
    value["choices"][0]["logprobs"] |= {
        "tokens": [" b"] * 5,
        "token_logprobs": [-2.0] * 4 + [-1.0],
        "top_logprobs": rows,
    }
    found = only(written(tmp_path, value))
    assert found.top is not None
    assert found.top.texts == ((" x", " y", " b"),) * 4 + ((" x", " b"),)


def test_completions_with_ids(tmp_path: Path) -> None:
    more = {"token_ids": [7, 8, 9], "prompt_token_ids": [1, 2]}
    run = one_run(written(tmp_path, {**completion(**more), "system_fingerprint": "vllm-0.30.0-tp2-abc"}))
    (found,) = run.sequences
    assert lists(found)[:2] == ([1, 2, 3], [7, 8, 9])
    assert found.prompt is not None
    assert found.prompt.tolist() == [1, 2]
    assert run.manifest.coordinate.flags == {"system_fingerprint": "vllm-0.30.0-tp2-abc"}
    fewer = only(written(tmp_path, completion(**{**more, "token_ids": [7, 8]})))
    assert fewer.tokens.tolist() == [7, 8, UNKNOWN]
    assert fewer.counts["length_mismatches"] == 1


def test_completions_with_ids_for_texts(tmp_path: Path) -> None:
    value = completion()
    given = value["choices"][0]["logprobs"]
    given["tokens"] = ["token_id:7", "token_id:8", "token_id:9"]
    given["top_logprobs"] = [
        {"token_id:7": -0.5, "token_id:1": -1.5},
        {"token_id:1": -0.5, "token_id:2": -1.0, "token_id:8": -2.0},
        {"token_id:9": -0.25, "token_id:1": -3},
    ]
    found = only(written(tmp_path, value), "vllm")
    assert found.tokens.tolist() == [7, 8, 9]
    assert found.top is not None
    assert found.top.ids.tolist() == [[7, 1], [1, 2], [9, 1]]
    assert found.top.texts is None
    given["tokens"][1] = "token_id:8,token_id:5"
    assert only(written(tmp_path, value), "vllm").tokens.tolist() == [7, UNKNOWN, 9]


def test_an_echoed_prompt(tmp_path: Path) -> None:
    """Nothing predicts the first token of a text: its null is no missing value, and the next stands at position 0."""
    value = completion()
    value["choices"][0]["logprobs"]["token_logprobs"][0] = None
    value["choices"][0]["logprobs"]["top_logprobs"] = None
    found = only(written(tmp_path, value), "openai")
    assert lists(found)[0] == [0, 1]
    assert lists(found)[2] == [-2.0, -0.25]
    assert "null_values" not in found.counts


def test_packed(tmp_path: Path) -> None:
    ids = np.array([[7, 1], [8, 2], [9, 3]], "<i4")
    values = np.array([[-0.5, -1.5], [-0.1, -np.inf], [-0.25, -9999.0]], "<f4")
    packed = {
        "shape": [3, 2],
        "token_ids_dtype": "<i4",
        "logprobs_dtype": "<f4",
        "token_ids_b64": base64.b64encode(ids.tobytes()).decode(),
        "logprobs_b64": base64.b64encode(values.tobytes()).decode(),
    }
    value = completion()
    value["choices"][0]["logprobs"] |= {
        "tokens": ["token_id:7", "token_id:8", "token_id:9"],
        "top_logprobs": [],
        "packed_top_logprobs": packed,
    }
    found = only(written(tmp_path, value), "vllm")
    assert found.top is not None
    assert found.top.ids.tolist() == ids.tolist()
    np.testing.assert_array_equal(found.top.values, values.astype(np.float64))
    assert found.counts == {
        "neg_inf_values": 1,
        "clamped_values": 1,
        "text_only_rows": 0,
    } or found.counts == {
        "neg_inf_values": 1,
        "clamped_values": 1,
    }
    for broken, message in (
        ({"shape": [4, 2]}, "24 bytes for 4 x 2"),
        ({"shape": [1 << 40, 2]}, "shape"),
        ({"token_ids_b64": "?"}, "no base64"),
        ({"logprobs_dtype": "O"}, "dtypes"),
    ):
        value["choices"][0]["logprobs"]["packed_top_logprobs"] = {**packed, **broken}
        assert message in refusal(written(tmp_path, value), "vllm")


def test_chat(tmp_path: Path) -> None:
    """Parts of a character are told apart by their bytes; equal texts in one row are counted."""
    part, other = {"token": "\ufffd", "bytes": [0xE2, 0x80]}, {"token": "\ufffd", "bytes": [0xE2]}
    first = [{**part, "logprob": -0.5}, {**other, "logprob": -1.0}]
    second = [
        {"token": " a", "bytes": [32, 97], "logprob": -0.25},
        {"token": " a", "bytes": None, "logprob": -1},
    ]
    content = [{**first[0], "top_logprobs": first}, {**second[0], "top_logprobs": second}]
    answer = {
        "model": "m",
        "choices": [{"message": {}, "logprobs": {"content": content}, "finish_reason": "stop"}],
    }
    request = {"custom_id": "q1", "response": {"body": answer}, "request": {"temperature": 0}}
    found = one_run(written(tmp_path, [request, request], "a.jsonl"))
    assert [(s.conversation, s.repeat) for s in found.sequences] == [("q1", 0), ("q1", 1)]
    one = found.sequences[0]
    assert one.texts == (repr(b"\xe2\x80"), " a")
    assert one.top is not None
    assert one.top.texts == ((repr(b"\xe2\x80"), repr(b"\xe2")), (" a", " a"))
    assert one.counts == {"text_only_rows": 2, "text_collisions": 1}


@pytest.mark.parametrize("floor", [-9999.0, -100.0])
def test_clamps_are_known_by_their_value(tmp_path: Path, floor: float) -> None:
    """mlx and OpenAI print -100, vLLM -9999: kept as they are, and said to stand for anything lower."""
    content = [
        {"token": "a", "logprob": -0.5},
        {"token": "b", "logprob": floor},
        {"token": "c", "logprob": 0.6997},
    ]
    run = one_run(written(tmp_path, {"choices": [{"logprobs": {"content": content}}]}), "openai")
    assert run.manifest.capture.clamp_floor == floor
    (found,) = run.sequences
    assert found.chosen is not None
    assert found.chosen.tolist() == [-0.5, floor, 0.6997]
    assert found.counts == {"clamped_values": 1, "positive_logprobs": 1, "text_only_rows": 3}
    content[1]["logprob"] = floor - 1
    lower = one_run(written(tmp_path, {"choices": [{"logprobs": {"content": content}}]}), "openai")
    assert lower.manifest.capture.clamp_floor == (-9999.0 if floor == -9999.0 else None)


def test_ollama_and_llama_server(tmp_path: Path) -> None:
    row = {"token": "a", "logprob": -0.5, "bytes": [97], "top_logprobs": [{"token": "a", "logprob": -0.5}]}
    assert only(written(tmp_path, {"model": "m", "response": "a", "logprobs": [row]})).texts == ("a",)
    server = {
        "content": "a",
        "completion_probabilities": [{"id": 5, **row, "top_logprobs": [{"id": 6, **row}]}],
    }
    found = only(written(tmp_path, server))
    assert found.tokens.tolist() == [5]
    assert found.top is not None
    assert found.top.ids.tolist() == [[6]]


SGLANG = {
    "text": "x",
    "meta_info": {
        "prompt_tokens": 3,
        "input_token_logprobs": [[None, 10, None], [-3.5, 11, None], [-0.25, 12, None]],
        "input_top_logprobs": [
            None,
            [[-0.5, 4, None], [-0.75, 5, None]],
            [[-0.25, 12, None], [-2.5, 9, None]],
        ],
        "output_token_logprobs": [[-0.125, 20, "a"], [-0.5, 21, "b"]],
        "output_top_logprobs": [[[-0.125, 20, "a"], [-4.0, 5, "c"]], [[-0.5, 21, "b"], [None, 6, "d"]]],
        "finish_reason": {"type": "length", "length": 2},
    },
}


def test_sglang(tmp_path: Path) -> None:
    found = only(written(tmp_path, SGLANG))
    assert lists(found) == ([0, 1, 2, 3], [11, 12, 20, 21], [-3.5, -0.25, -0.125, -0.5])
    assert found.prompt is not None
    assert found.prompt.tolist() == [10]
    assert found.top is not None
    assert found.top.ids.tolist() == [[4, 5], [12, 9], [20, 5], [21, 6]]
    assert found.labels["answer_row"] == "2"
    assert found.counts == {"null_values": 1, "text_only_rows": 0} or found.counts == {"null_values": 1}
    assert found.finish == "length"


def test_sglang_from_the_middle_of_its_prompt(tmp_path: Path) -> None:
    """With logprob_start_len the first entry has no value and the ones behind keep their places."""
    meta = {**SGLANG["meta_info"], "prompt_tokens": 9}
    found = only(written(tmp_path, {**SGLANG, "meta_info": meta}))
    assert found.positions.tolist() == [6, 7, 8, 9]
    assert found.prompt is None
    asked = {"response": {**SGLANG, "meta_info": meta}, "request": {"input_ids": [*range(6), 10, 11, 12]}}
    named = only(written(tmp_path, asked))
    assert named.prompt is not None
    assert named.prompt.tolist() == [*range(6), 10]
    warm = {**asked, "request": {**asked["request"], "sampling_params": {"temperature": 0.7}}}
    assert one_run(written(tmp_path, warm)).manifest.capture.value_kind == "processed"


def test_sglang_wrong(tmp_path: Path) -> None:
    for key, value, message in (
        ("output_token_logprobs", [[-1.0]], "output_token_logprobs has an entry"),
        ("output_token_logprobs", [["x", 1, None], [-1, 2, None]], "entry 0 is 'x'"),
        ("output_token_logprobs", [[-1.0, "a", None]], "entry 0 is a, no token id"),
        ("input_token_logprobs", [[-1.0, 1, None]] * 4, "has 4 entries, prompt_tokens is 3"),
    ):
        assert message in refusal(
            written(tmp_path, {"meta_info": {**SGLANG["meta_info"], key: value}}), "sglang"
        )


def test_tgi(tmp_path: Path) -> None:
    def token(i: int, value: Any) -> dict[str, Any]:
        return {"id": i, "text": f"t{i}", "logprob": value, "special": False}

    details = {
        "finish_reason": "length",
        "prefill": [token(10, None), token(11, -3.5)],
        "tokens": [token(20, -0.5), token(21, None)],
        "top_tokens": [[token(20, -0.5), token(3, -1.5)], [token(3, -0.5), token(4, -1.0)]],
    }
    found = only(written(tmp_path, {"generated_text": "", "details": details}))
    assert found.positions.tolist() == [0, 1, 2]
    assert found.tokens.tolist() == [11, 20, 21]
    assert found.chosen is not None
    np.testing.assert_array_equal(found.chosen, [-3.5, -0.5, np.nan])
    assert found.top is not None
    assert found.top.ids.tolist() == [[UNKNOWN, UNKNOWN], [20, 3], [3, 4]]
    assert found.texts == ("t11", "t20", "t21")
    assert found.counts == {"null_values": 1}
    later = only(written(tmp_path, {"details": {**details, "prefill": []}}))
    assert later.positions.tolist() == [0, 1]
    assert later.labels["positions"] == "from the first answered token"


def test_difr(tmp_path: Path) -> None:
    samples = [{"prompt_token_ids": [1, 2], "outputs": [{"token_ids": [3, 4, 5]}]}] * 2
    run = one_run(
        written(tmp_path, {"config": {"model": "m", "provider": "p", "temperature": 0.0}, "samples": samples})
    )
    assert [s.repeat for s in run.sequences] == [0, 1]
    assert run.sequences[0].conversation == run.sequences[1].conversation
    assert run.sequences[0].positions.tolist() == [1, 2, 3]
    assert run.sequences[0].chosen is None
    assert (run.manifest.coordinate.provider, run.manifest.capture.greedy, run.manifest.model) == (
        "p",
        True,
        "m",
    )


def test_transformers_generate(tmp_path: Path) -> None:
    """[B, new, V], [new, B, V] and one array a token give the same rows; padding on the left is no text."""
    rng = np.random.default_rng(0)
    logits = rng.standard_normal((2, 3, 7)).astype(np.float32)
    ids = rng.integers(0, 7, (2, 5))
    mask = np.array([[1, 1], [0, 1]])
    shapes: dict[str, Any] = {
        "a": {"logits": logits},
        "b": {"logits": np.ascontiguousarray(logits.transpose(1, 0, 2))},
        "c": {f"logits.{i}": np.ascontiguousarray(logits[:, i]) for i in range(3)},
    }
    for name, found in shapes.items():
        save_file({"sequences": ids, "attention_mask": mask, **found}, tmp_path / f"{name}.safetensors")
        run = one_run(tmp_path / f"{name}.safetensors")
        assert run.manifest.vocab_size == 7
        first, second = run.sequences
        assert first.positions.tolist() == [1, 2, 3]
        assert second.positions.tolist() == [0, 1, 2]
        assert first.tokens.tolist() == ids[0, 2:].tolist()
        assert second.prompt is not None
        assert second.prompt.tolist() == [ids[1, 1]]
        for b, one in enumerate((first, second)):
            assert one.full is not None
            np.testing.assert_array_equal(one.full.read(0, 3), logits[b])
            np.testing.assert_array_equal(one.full.read(1, 2), logits[b, 1:2])


def test_transformers_forward_scores_and_bf16(tmp_path: Path) -> None:
    logits = np.random.default_rng(0).standard_normal((1, 4, 7)).astype(ml_dtypes.bfloat16)
    ids = np.array([[1, 2, 3, 4]])
    np.savez(
        tmp_path / "a.npz", input_ids=ids, logits=logits.view(np.uint16), logits_dtype=np.array("bfloat16")
    )
    found = only(tmp_path / "a.npz")
    assert found.tokens.tolist() == [2, 3, 4, UNKNOWN]
    assert found.full is not None
    assert found.full.read(0, 4).tobytes() == logits.tobytes()
    scores = np.full((2, 1, 7), -np.inf, np.float32)
    np.savez(tmp_path / "b.npz", sequences=ids, scores=scores)
    assert one_run(tmp_path / "b.npz").manifest.capture.value_kind == "processed"
    np.savez(tmp_path / "c.npz", sequences=np.zeros((3, 9), int), logits=np.zeros((3, 3, 7), np.float32))
    assert "which axis is the batch" in refusal(tmp_path / "c.npz")
    np.savez(tmp_path / "d.npz", input_ids=ids, logits=np.zeros((1, 3, 7), np.float32))
    assert "has 3 rows for 4 tokens" in refusal(tmp_path / "d.npz")


def test_tensorrt_llm(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    context, new = (
        rng.standard_normal((3, 5)).astype(np.float32),
        rng.standard_normal((1, 2, 5)).astype(np.float32),
    )
    base = {"prompt_token_ids": np.array([1, 2, 3]), "output_token_ids": np.array([4, 0])}
    save_file({**base, "context_logits": context, "generation_logits": new}, tmp_path / "a.safetensors")
    found = only(tmp_path / "a.safetensors")
    assert found.positions.tolist() == [0, 1, 2, 3]
    assert found.tokens.tolist() == [2, 3, 4, 0]
    assert found.full is not None
    np.testing.assert_array_equal(found.full.read(0, 4), np.concatenate([context[:2], new[0]]))
    np.testing.assert_array_equal(found.full.read(1, 3), np.concatenate([context[1:2], new[0, :1]]))
    save_file({**base, "context_logits": context}, tmp_path / "b.safetensors")
    assert only(tmp_path / "b.safetensors").tokens.tolist() == [2, 3, 4]
    suffix = {**base, "context_logits": context[1:], "generation_logits": new}
    save_file(suffix, tmp_path / "c.safetensors")
    assert "has 2 rows for a prompt of 3 tokens" in refusal(tmp_path / "c.safetensors")
    save_file({**suffix, "context_positions": np.array([1, 2])}, tmp_path / "d.safetensors")
    assert only(tmp_path / "d.safetensors").positions.tolist() == [1, 2, 3]


def kld(path: Path, logits: np.ndarray[Any, Any], tokens: list[int], context: int) -> Path:
    """A .kld file by the arithmetic of llama.cpp's perplexity tool, in float32."""
    vocab = logits.shape[1]
    rows = context - 1 - context // 2
    out = b"_logits_" + struct.pack("<3i", context, vocab, len(tokens) // context)
    out += np.array(tokens, "<i4").tobytes()
    for row in logits:
        largest = row.max()
        least = np.float32(max(row.min(), largest - np.float32(16)))
        lse = np.float32(np.log(np.exp((row - largest).astype(np.float64)).sum()))
        scale = np.float32((largest - least) / np.float32(65535))
        codes = np.where(row > least, np.rint((row - least) / scale), 0).astype("<u2")
        out += struct.pack("<2f", scale, least - largest - lse) + codes.tobytes() + b"\0\0" * (vocab % 2)
    assert len(logits) == rows * (len(tokens) // context)
    path.write_bytes(out)
    return path


@pytest.mark.parametrize("vocab", [7, 8])
def test_llama_cpp(tmp_path: Path, vocab: int) -> None:
    """Log-probabilities to half a step of the quantisation; what lies 16 below the largest comes back as that."""
    rng = np.random.default_rng(0)
    logits = (rng.standard_normal((6, vocab)) * 4).astype(np.float32)
    logits[0, 3] = logits[0].max() - 40
    tokens = rng.integers(0, vocab, 16).tolist()
    run = one_run(kld(tmp_path / "a.kld", logits, tokens, 8))
    assert run.manifest.vocab_size == vocab
    first, second = run.sequences
    assert first.positions.tolist() == [4, 5, 6]
    assert first.tokens.tolist() == tokens[5:8]
    assert second.tokens.tolist() == tokens[13:16]
    wide = logits.astype(np.float64)
    exact = wide - np.log(np.exp(wide).sum(axis=1, keepdims=True))
    for one, rows in ((first, exact[:3]), (second, exact[3:])):
        assert one.full is not None
        read = one.full.read(0, 3)
        kept = rows >= rows.max(axis=1, keepdims=True) - 16
        bound = float(one.labels["quantisation_bound"])
        assert 0 < bound <= 16 / 65535 / 2 * 1.001
        assert np.abs(read - rows)[kept].max() <= bound + 1e-5
        assert one.counts == {"quantised_values": 3 * vocab}
        np.testing.assert_array_equal(one.full.read(1, 2), read[1:2])
    assert first.full is not None
    assert first.full.read(0, 1)[0, 3] == pytest.approx(exact[0].max() - 16, abs=1e-4)
    whole = (tmp_path / "a.kld").read_bytes()
    (tmp_path / "b.kld").write_bytes(whole[:-10])
    assert "1 of 2 chunks are whole" in refusal(tmp_path / "b.kld")
    (tmp_path / "b.kld").write_bytes(whole + b"xx")
    assert "behind its last chunk" in refusal(tmp_path / "b.kld")
    (tmp_path / "c.kld").write_bytes(whole[:12] + struct.pack("<i", -5) + whole[16:])
    assert "a vocabulary of -5" in refusal(tmp_path / "c.kld")


def test_what_the_user_says_goes_first(tmp_path: Path) -> None:
    from verify.runs.load import parse_settings

    said = parse_settings(
        ["gpu=4090", "batch_size=8", "capture.temperature=0.5", "flags.x=true", "model=m", "engine=e"]
    )
    (run,) = load_runs(written(tmp_path, OFFLINE), settings=said)
    where = run.manifest.coordinate
    assert (where.gpu, where.batch_size, where.engine, where.flags) == ("4090", 8, "e", {"x": True})
    assert (run.manifest.capture.temperature, run.manifest.model) == (0.5, "m")
    for word, message in (
        ("gpus=1", "did you mean 'gpu'?"),
        ("gpu", "no NAME=VALUE"),
        ("capture.value=1", "did you mean 'capture.value_kind'?"),
    ):
        with pytest.raises(InputError) as error:
            parse_settings([word])
        assert message in str(error.value)
    with pytest.raises(InputError, match="batch_size"):
        load_runs(written(tmp_path, OFFLINE), settings=parse_settings(["batch_size=many"]))


def test_repeats_of_one_conversation_by_word(tmp_path: Path) -> None:
    (run,) = load_runs(written(tmp_path, [completion()] * 3, "a.jsonl"), options=Options("mine"))
    assert [(s.conversation, s.repeat) for s in run.sequences] == [("mine", 0), ("mine", 1), ("mine", 2)]
    (run,) = load_runs(written(tmp_path, [completion()] * 2, "a.jsonl"))
    assert [s.conversation for s in run.sequences] == ["answer-00000", "answer-00001"]


JUNK = st.sampled_from(
    [
        None,
        True,
        -1,
        0,
        3,
        1.5,
        10**30,
        float("nan"),
        "",
        "x",
        "12",
        "-inf",
        [],
        {},
        [None],
        [[]],
        [[1]],
        {"1": 2},
        [1, "a"],
    ]
)


def tgi_answer() -> dict[str, Any]:
    token = {"id": 1, "text": "a", "logprob": -0.5, "special": False}
    return {
        "details": {
            "prefill": [token, token],
            "tokens": [token],
            "top_tokens": [[token]],
            "finish_reason": "x",
        }
    }


def chat_answer() -> dict[str, Any]:
    token = {"token": "a", "bytes": [97], "logprob": -0.5}
    return {
        "choices": [{"logprobs": {"content": [{**token, "top_logprobs": [token]}]}, "finish_reason": "x"}]
    }


def packed_answer() -> dict[str, Any]:
    value = completion()
    text = base64.b64encode(b"abcd" * 3).decode()
    packed = {"shape": [3, 1], "token_ids_b64": text, "logprobs_b64": text}
    value["choices"][0]["logprobs"]["packed_top_logprobs"] = packed
    return value


WHOLE = {
    "vllm": [OFFLINE, completion(token_ids=[1, 2, 3], prompt_token_ids=[4]), packed_answer()],
    "sglang": [SGLANG],
    "tgi": [tgi_answer()],
    "openai": [chat_answer(), completion()],
    "difr": [{"config": {"model": "m", "temperature": 0}, "samples": [OFFLINE]}],
}


def places(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place in a JSON value."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [at, *(p for k, v in inner for p in places(v, (*at, k)))]


def put(value: Any, at: tuple[Any, ...], new: Any) -> Any:
    """A copy of ``value`` with ``new`` at a place."""
    if not at:
        return new
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[at[0]] = put(value[at[0]], at[1:], new)
    return copy


@settings(max_examples=120)
@given(st.data())
def test_one_odd_value_anywhere_is_read_or_refused_with_a_message(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    adapter = data.draw(st.sampled_from(sorted(WHOLE)))
    value = data.draw(st.sampled_from(WHOLE[adapter]))
    changed = put(value, data.draw(st.sampled_from(places(value))), data.draw(JUNK))
    folder = tmp_path_factory.mktemp("j")
    try:
        runs = load_runs(written(folder, changed), adapter=adapter)
    except InputError:
        return
    for one in runs[0].sequences:
        assert one.rows == len(one.tokens) == len(one.positions)
        assert one.chosen is None or len(one.chosen) == one.rows
        assert one.top is None or one.top.values.shape == one.top.ids.shape
        assert one.top is None or len(one.top.values) == one.rows
        assert (np.diff(one.positions) > 0).all()
