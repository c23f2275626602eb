"""Answers that came in pieces, as servers stream them, against the same answer whole."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from specs.errors import InputError
from tests.verify.runs.test_adapters import lists, only
from verify.runs.load import load_runs


def token(text: str, value: float, *top: tuple[str, float]) -> dict[str, Any]:
    return {"token": text, "logprob": value, "top_logprobs": [{"token": t, "logprob": v} for t, v in top]}


def chat(content: Any, finish: str | None = None, index: int = 0, name: str = "c1") -> dict[str, Any]:
    choice = {"index": index, "delta": {"content": "x"}, "finish_reason": finish}
    choice["logprobs"] = None if content is None else {"content": content}
    return {"id": name, "object": "chat.completion.chunk", "model": "m", "choices": [choice]}


CHAT = [
    chat(None),
    chat([token("Hi", -0.5, ("Hi", -0.5))]),
    chat([token("!", -1.0, ("?", -0.25))]),
    chat(None, "stop"),
]


def stream(file: Path, pieces: list[Any], end: str = "data: [DONE]\n\n") -> Path:
    file.write_text(": ping\n\n" + "".join(f"data: {json.dumps(p)}\n\n" for p in pieces) + end)
    return file


def told(file: Path) -> list[tuple[Any, ...]]:
    (run,) = load_runs(file)
    return [(*lists(s), s.finish, s.texts) for s in run.sequences]


@pytest.mark.parametrize("form", ["events", "lines", "list", "cut"])
def test_chat_in_pieces(tmp_path: Path, form: str) -> None:
    pieces = CHAT if form != "cut" else CHAT[:-1]
    file = tmp_path / "a.jsonl"
    if form in ("events", "cut"):
        stream(file, pieces, "" if form == "cut" else "data: [DONE]\n\n")
    else:
        file.write_text(json.dumps(CHAT) if form == "list" else "".join(json.dumps(p) + "\n" for p in CHAT))
    finish = None if form == "cut" else "stop"
    assert told(file) == [([0, 1], [-1, -1], [-0.5, -1.0], finish, ("Hi", "!"))]
    top = only(file).top
    assert top is not None
    assert top.values.tolist() == [[-0.5], [-0.25]]


def test_several_choices_and_answers_in_one_stream(tmp_path: Path) -> None:
    pieces = [
        chat([token(t, -1.0)], index=i, name=n)
        for t, i, n in (("a", 0, "x"), ("b", 1, "x"), ("c", 0, "y"), ("d", 0, "x"))
    ]
    assert [x[-1] for x in told(stream(tmp_path / "a.sse", pieces))] == [("a", "d"), ("b",), ("c",)]


def test_completions_in_pieces(tmp_path: Path) -> None:
    pieces = [
        {
            "id": "1",
            "object": "text_completion",
            "system_fingerprint": "vllm-1",
            "choices": [
                {
                    "index": 0,
                    "text": t,
                    "token_ids": [i],
                    "prompt_token_ids": [9, 8] if i == 5 else None,
                    "logprobs": {
                        "tokens": [t],
                        "token_logprobs": [v],
                        "top_logprobs": [{t: v}],
                        "text_offset": [0],
                    },
                }
            ],
        }
        for i, t, v in ((5, "a", -0.5), (6, "b", -9999.0))
    ]
    assert told(stream(tmp_path / "a.sse", pieces))[0][:3] == ([1, 2], [5, 6], [-0.5, -9999.0])


def test_tgi_in_pieces(tmp_path: Path) -> None:
    """One token a piece; the last has the text and the details, which repeat no token."""
    pieces: list[Any] = [
        {
            "index": 1,
            "token": {"id": 3, "text": " b", "logprob": -0.5, "special": False},
            "generated_text": None,
            "details": None,
        },
        {
            "index": 2,
            "token": {"id": 4, "text": " c", "logprob": None, "special": False},
            "top_tokens": [{"id": 9, "text": "d", "logprob": -0.25, "special": False}],
            "generated_text": " b c",
            "details": {"finish_reason": "length", "generated_tokens": 2, "seed": None},
        },
    ]
    first, second = told(stream(tmp_path / "a.sse", pieces + pieces[:1], ""))
    assert (first[:2], first[3]) == (([0, 1], [3, 4]), "length")
    assert second[:3] == ([0], [3], [-0.5])


@pytest.mark.parametrize("grown", [True, False])
def test_sglang_in_pieces(tmp_path: Path, grown: bool) -> None:
    """Lists come whole in each piece, or only what is new."""

    def piece(n: int) -> dict[str, Any]:
        rows = [[-0.5 - i, i + 5, None] for i in range(0 if grown else n - 1, n)]
        return {
            "text": "x",
            "meta_info": {
                "id": "r",
                "prompt_tokens": 2,
                "output_token_logprobs": rows,
                "output_top_logprobs": [[r] for r in rows],
            },
        }

    file = stream(tmp_path / "a.sse", [piece(1), piece(2), piece(3)])
    assert told(file)[0][:3] == ([1, 2, 3], [5, 6, 7], [-0.5, -1.5, -2.5])


def test_ollama_and_llama_cpp_in_pieces(tmp_path: Path) -> None:
    lines = [
        {"model": "m", "response": "a", "done": False, "logprobs": [token("a", -0.5)]},
        {"model": "m", "response": "b", "done": True, "done_reason": "stop", "logprobs": [token("b", -0.25)]},
    ]
    file = tmp_path / "o.jsonl"
    file.write_text("".join(json.dumps(x) + "\n" for x in lines + lines))
    assert [(x[2], x[3]) for x in told(file)] == [([-0.5, -0.25], "stop")] * 2
    entry = {"id": 5, "token": " a", "logprob": -0.5, "top_logprobs": []}
    pieces = [
        {"content": " a", "stop": False, "completion_probabilities": [entry]},
        {"content": "", "stop": True},
    ]
    assert told(stream(tmp_path / "l.sse", pieces))[0][:3] == ([0], [5], [-0.5])


def test_what_is_no_piece_is_refused_with_its_line(tmp_path: Path) -> None:
    file = stream(
        tmp_path / "a.sse", [CHAT[1], {"id": "c1", "choices": 3, "object": "chat.completion.chunk"}]
    )
    with pytest.raises(InputError, match=r"a\.sse: line 5: is no piece of an answer"):
        load_runs(file)
    cut = tmp_path / "b.sse"
    cut.write_text('data: {"id": ')
    with pytest.raises(InputError, match=r"b\.sse: line 1: is no JSON"):
        load_runs(cut)


def test_probabilities_behind_the_sampler_are_no_log_probabilities(tmp_path: Path) -> None:
    """llama.cpp's server of old, or with post_sampling_probs: nothing is taken for a value that it is not."""
    for entry in (
        {"content": "x", "probs": [{"tok_str": "x", "prob": 0.5}]},
        {"id": 5, "token": "x", "prob": 0.5, "top_probs": []},
    ):
        file = tmp_path / "a.json"
        file.write_text(json.dumps({"content": "x", "stop": True, "completion_probabilities": [entry]}))
        with pytest.raises(InputError, match="probabilities after the sampler"):
            load_runs(file)


def test_an_answer_without_a_token_is_none(tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    file.write_text(json.dumps({"choices": [{"index": 0, "logprobs": {"content": []}}]}))
    with pytest.raises(InputError, match="no answer with log-probabilities"):
        load_runs(file)
