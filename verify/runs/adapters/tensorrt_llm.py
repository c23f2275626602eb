"""TensorRT-LLM: logits of the context and of the generation in npz or safetensors.

``context_logits [prompt, V]`` and ``generation_logits [new, V]`` (or ``[1, new, V]``).

With them ``prompt_token_ids`` (or ``input_ids``) and ``output_token_ids`` (or ``token_ids``). Row i of the context
predicts token i + 1; its last row is what the first generated token was taken from, which generation_logits hold too.
When blocks of the KV cache are reused, the engine gives context rows of the suffix alone: they are taken only where
``context_positions`` says which they are.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from verify.runs.adapters.base import Draft, Options, name_of, wrong
from verify.runs.adapters.stored import checked, first_of, flattened, integers, joined, rows_of
from verify.runs.rows import Conversations, Piece, sequence
from verify.runs.sequence import UNKNOWN, Full, Ints
from verify.runs.tensors import Stored, Tensors, open_tensors


def read(file: Path, options: Options) -> list[Draft]:
    """The run in a file of arrays.

    Raises:
        InputError: the arrays do not fit together, or rows of the context are missing and nothing says which.
    """
    tensors = open_tensors(file)
    try:
        prompt = integers(tensors, "prompt_token_ids", "input_ids")
        answer = integers(tensors, "output_token_ids", "token_ids")
        said = integers(tensors, "context_positions", "positions")
        context, generated = _array(tensors, "context_logits"), _array(tensors, "generation_logits")
    except ValueError as error:
        wrong(str(file), str(error))
    if prompt is None or prompt.ndim != 1 or not len(prompt):
        wrong(f"{file}: array 'prompt_token_ids'", "is missing, or is no list of ids")
    if context is None and generated is None:
        wrong(str(file), "has neither 'context_logits' nor 'generation_logits'")
    pieces: list[Piece] = []
    fulls: list[Full] = []
    answer = np.zeros(0, np.int64) if answer is None else answer.reshape(-1)
    text = np.concatenate([prompt, answer])
    if context is not None:
        positions = _context_positions(file, context, len(prompt), said)
        whole = generated is None or not generated.shape[0]
        kept = len(positions) if whole or positions[-1] != len(prompt) - 1 else len(positions) - 1
        if kept:
            pieces.append(Piece(positions[:kept], _following(text, positions[:kept])))
            fulls.append(rows_of(context, rows=kept))
    answer_row = sum(len(p.positions) for p in pieces)
    if generated is not None and generated.shape[0]:
        if context is not None and context.shape[1] != generated.shape[1]:
            wrong(
                f"{file}: array 'generation_logits'",
                f"has {generated.shape[1]:,} columns, 'context_logits' {context.shape[1]:,}",
            )
        if len(answer) and len(answer) != generated.shape[0]:
            wrong(
                f"{file}: array 'generation_logits'",
                f"has {generated.shape[0]:,} rows for {len(answer):,} generated tokens",
            )
        positions = np.arange(len(prompt) - 1, len(prompt) - 1 + generated.shape[0], dtype=np.int64)
        pieces.append(Piece(positions, _following(text, positions)))
        fulls.append(rows_of(generated))
    if not fulls:
        wrong(str(file), "has no row of logits")
    if len({f.dtype for f in fulls}) > 1:
        wrong(
            str(file),
            "has context and generation logits of two dtypes",
            "give them as they came, in one dtype",
        )
    name, repeat = name_of({}, prompt, options, Conversations(), 0)
    found = sequence(
        name, repeat, pieces, prompt=prompt, full=joined(fulls), labels={"answer_row": str(answer_row)}
    )
    return [
        Draft([found], {"engine": "tensorrt_llm"}, {"value_kind": "raw_logits"}, vocab_size=fulls[0].vocab)
    ]


def _array(tensors: Tensors, name: str) -> Stored | None:
    stored = checked(first_of(tensors, name))
    if stored is None:
        return None
    if len(stored.shape) == 3 and stored.shape[0] == 1:
        stored = flattened(stored)
    if len(stored.shape) != 2:
        raise ValueError(
            f"array '{name}' has shape {list(stored.shape)}: give [tokens, vocabulary], of one beam"
        )
    return stored


def _context_positions(file: Path, context: Stored, prompt: int, said: Ints | None) -> Ints:
    rows = context.shape[0]
    if said is None:
        if rows == prompt:
            return np.arange(rows, dtype=np.int64)
        wrong(
            f"{file}: array 'context_logits'",
            f"has {rows:,} rows for a prompt of {prompt:,} tokens: which they are is not known",
            "turn the reuse of KV blocks off, or give 'context_positions'",
        )
    if said.shape != (rows,) or rows == 0 or (np.diff(said) <= 0).any() or said[0] < 0 or said[-1] >= prompt:
        wrong(
            f"{file}: array 'context_positions'",
            f"is no ascending list of {rows:,} positions in a prompt of {prompt:,} tokens",
        )
    return said


def _following(text: Ints, positions: Ints) -> Ints:
    out = np.full(len(positions), UNKNOWN, np.int64)
    inside = positions + 1 < len(text)
    out[inside] = text[positions[inside] + 1]
    return out
