"""llama.cpp: the file that ``llama-perplexity --kl-divergence-base`` writes.

Eight bytes ``_logits_``; int32 n_ctx, n_vocab, n_chunk; int32 tokens of all chunks; then for each chunk ``n_ctx - 1 -
n_ctx / 2`` rows of ``2 * ((n_vocab + 1) / 2) + 4`` uint16: float32 scale and least log-probability, then a code for each
token. A log-probability is ``scale * code + least``; row j of a chunk predicts token ``n_ctx / 2 + j + 1``. What lies more
than 16 below the row's largest logit is clamped to that, so code 0 means "this or less". Codes are rounded to the nearest:
a value is off by up to half a scale. (tools/perplexity/perplexity.cpp of ggml-org/llama.cpp.)
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from verify.runs.adapters.base import Draft, Options, wrong
from verify.runs.rows import Piece, sequence
from verify.runs.sequence import Full, Sequence

MAGIC = b"_logits_"
_HEAD = struct.Struct("<8s3i")
MAX_CHUNKS = 1 << 20


def read(file: Path, options: Options) -> list[Draft]:
    """The run in a .kld file: one conversation for each chunk of the text.

    Raises:
        InputError: no such file, or one that is cut short.
    """
    try:
        size = file.stat().st_size
        with file.open("rb") as stream:
            head = stream.read(_HEAD.size)
            if head[:8] == MAGIC and len(head) < _HEAD.size:
                wrong(str(file), f"ends within its header, after {len(head)} bytes", "copy all of it")
            if head[:8] != MAGIC:
                wrong(str(file), "is no .kld file: it does not begin with '_logits_'")
            _, context, vocab, chunks = _HEAD.unpack(head)
            if not (4 <= context <= 1 << 24 and 1 <= vocab <= 1 << 24 and 1 <= chunks <= MAX_CHUNKS):
                wrong(
                    str(file), f"claims a context of {context}, a vocabulary of {vocab} and {chunks} chunks"
                )
            width = 2 * ((vocab + 1) // 2) + 4
            rows = context - 1 - context // 2
            begin = _HEAD.size + 4 * context * chunks
            need = begin + chunks * rows * width * 2
            if size < need:
                have = max(0, size - begin) // (rows * width * 2)
                wrong(
                    str(file),
                    f"has {size:,} bytes, its header needs {need:,}: {have} of {chunks} chunks are whole",
                    "copy all of it, or make it again",
                )
            if size > need:
                wrong(
                    str(file),
                    f"has {size:,} bytes, its header needs {need:,}: something else stands behind its last chunk",
                    "copy it again, or make it again",
                )
            tokens = np.frombuffer(stream.read(4 * context * chunks), "<i4").astype(np.int64)
    except OSError as error:
        wrong(str(file), f"cannot be read: {error.strerror}", "check the path")
    if ((tokens < 0) | (tokens >= vocab)).any():
        wrong(str(file), f"has a token outside its vocabulary of {vocab:,}", "copy all of it")
    sequences: list[Sequence] = []
    bound = 0.0
    name = options.conversation or "chunk"
    for index in range(chunks):
        text = tokens[index * context : (index + 1) * context]
        first = context // 2
        positions = np.arange(first, first + rows, dtype=np.int64)
        full, scale = _rows(file, begin + index * rows * width * 2, rows, vocab, width, index)
        bound = max(bound, scale / 2)
        sequences.append(
            sequence(
                f"{name}-{index:05d}",
                0,
                [Piece(positions, text[first + 1 :])],
                prompt=text,
                full=full,
                counts={"quantised_values": rows * vocab},
                labels={
                    "quantisation_bound": f"{scale / 2:.9g}",
                    "clamp": "code 0: 16 below the row's largest",
                },
            )
        )
    capture = {"value_kind": "raw_logprobs", "teacher_forced": True, "temperature": 1.0}
    flags = {"quantisation_bound": bound}
    draft = Draft(sequences, {"engine": "llama.cpp", "flags": flags}, capture, vocab_size=vocab)
    return [draft]


def _rows(file: Path, begin: int, rows: int, vocab: int, width: int, index: int) -> tuple[Full, float]:
    """The rows of a chunk, decoded when they are read, and their largest scale."""

    def codes(start: int, stop: int) -> NDArray[Any]:
        stop = min(stop, rows)
        return np.memmap(file, "<u2", "r", begin + start * width * 2, (max(0, stop - start), width))

    def read(start: int, stop: int) -> NDArray[Any]:
        if start >= min(stop, rows):
            return np.zeros((0, vocab), np.float32)
        raw = codes(start, stop)
        head = np.ascontiguousarray(raw[:, :4]).view("<f4")
        return head[:, :1] * raw[:, 4 : 4 + vocab].astype(np.float32) + head[:, 1:2]

    scales = np.ascontiguousarray(codes(0, rows)[:, :2]).view("<f4")
    if not (np.isfinite(scales).all() and (scales >= 0).all()):
        wrong(f"{file}: chunk {index}", "has a scale that is negative or not finite", "make the file again")
    return Full(rows, vocab, np.dtype(np.float32), read, f"{file.name}:{index}"), float(scales.max(initial=0))
