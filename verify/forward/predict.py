"""`predict`: the logits of one sequence of tokens through a model in a declared arithmetic, and a run folder of them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from specs.errors import InputError
from verify.forward.buckets import bucket
from verify.forward.config import PLAIN, Arithmetic
from verify.forward.weights import Model

Array = NDArray[Any]
Progress = Callable[[str, int, int], None]

#: Rows of logits that are computed at once.
ROWS = 512
#: The longest sequence.
MAX_TOKENS = 1 << 17
_STORED: dict[str, Any] = {"bf16": ml_dtypes.bfloat16, "f16": np.float16, "f32": np.float32}


@dataclass(frozen=True, eq=False)
class Prediction:
    """Logits of one sequence, computed when they are asked for.

    Attributes:
        ids: the tokens.
        vocab: columns.
        dtype: of the logits: bfloat16 or float32.
        sites: by layer: ``q [tokens, q_heads, head_dim]``, ``k, v [tokens, kv_heads, head_dim]``, ``out`` and ``lse
            [tokens, q_heads]`` where the attention has one.
        rows: computes the logits of some rows.
    """

    ids: Array
    vocab: int
    dtype: np.dtype[Any]
    sites: dict[int, dict[str, Array]]
    rows: Callable[[int, int], Array]

    def logits(self, start: int = 0, stop: int | None = None) -> Array:
        """Logits ``[stop - start, vocab]``; row i is what follows token i."""
        last = len(self.ids) if stop is None else stop
        parts = [self.rows(i, min(i + ROWS, last)) for i in range(start, last, ROWS)]
        return np.concatenate(parts) if parts else np.empty((0, self.vocab), self.dtype)


class Predictor:
    """A model in one arithmetic, laid out once for any number of sequences.

    Args:
        model: the weights.
        arithmetic: what is declared.

    Raises:
        SpecError, InputError, UnsupportedError: what is declared does not exist, or does not fit the model.
    """

    def __init__(self, model: Model, arithmetic: Arithmetic) -> None:
        self.model, self.arithmetic = model, arithmetic
        self._plain: Any = None
        self._staged: Any = None
        if arithmetic.all_plain:
            from verify.forward import plain

            self._plain = plain.prepare(model)
        else:
            from verify.forward.staged import Staged

            self._staged = Staged(arithmetic, model)

    def __call__(
        self, ids: Any, *, layers: Sequence[int] = (), progress: Progress | None = None
    ) -> Prediction:
        """The prediction for one sequence.

        Args:
            ids: token ids ``[tokens]``.
            layers: layers whose attention tensors are kept.
            progress: called with a stage, steps done, steps in all.

        Raises:
            InputError: ids that the model does not have, or too many. UnsupportedError: see `verify.emulate`.
        """
        tokens = check_ids(ids, self.model)
        wanted = check_layers(layers, self.model)
        if self._plain is not None:
            return self._in_plain(tokens, wanted)
        staged = self._staged
        words, sets, sites = staged.hidden(tokens, keep=wanted, progress=progress)
        from verify.forward.staged import RowSet, pad_rows

        size = min(ROWS, bucket(len(tokens)))

        def rows(start: int, stop: int) -> Array:
            part = pad_rows(words[start:stop], size)
            inside = [
                RowSet(max(r.first, start) - start, min(r.last, stop) - start, r.m)
                for r in sets
                if r.first < stop and r.last > start
            ]
            return staged.logits(part, inside)[: stop - start]

        dtype = np.dtype(_STORED[staged.stages.logits.base])
        return Prediction(tokens, self.model.architecture.vocab, dtype, sites, rows)

    def _in_plain(self, tokens: Array, wanted: tuple[int, ...]) -> Prediction:
        from verify.forward import plain

        x, found = plain.hidden(self._plain, tokens, keep=bool(wanted))
        sites = {i: {n: s[i] for n, s in found.items()} for i in wanted}

        def rows(start: int, stop: int) -> Array:
            return plain.logits(self._plain, x[start:stop])

        return Prediction(tokens, self.model.architecture.vocab, np.dtype(np.float32), sites, rows)


def check_ids(ids: Any, model: Model) -> Array:
    """Token ids of ``model`` as int64.

    Raises:
        InputError: none, too many, no integers, or one that the model does not have.
    """
    tokens = np.asarray(ids)
    if tokens.ndim != 1 or tokens.dtype.kind not in "iu" or not len(tokens):
        raise InputError(
            f"shape {tokens.shape}, dtype {tokens.dtype}", place="tokens", remedy="give a list of token ids"
        )
    a = model.architecture
    most = min(MAX_TOKENS, a.context or MAX_TOKENS)
    if len(tokens) > most:
        raise InputError(
            f"{len(tokens):,} tokens", place="tokens", remedy=f"{model.name} takes at most {most:,}"
        )
    tokens = tokens.astype(np.int64)
    bad = (tokens < 0) | (tokens >= a.vocab)
    if bad.any():
        where = int(np.argmax(bad))
        raise InputError(
            f"token {int(tokens[where])} at position {where}",
            place="tokens",
            remedy=f"{model.name} has the tokens 0 to {a.vocab - 1}",
        )
    return tokens


def check_layers(layers: Sequence[int], model: Model) -> tuple[int, ...]:
    """Numbers of layers, each once, ascending.

    Raises:
        InputError: the model has no such layer.
    """
    count = model.architecture.layers
    for i in layers:
        if not 0 <= i < count:
            raise InputError(
                f"no layer {i}", place="--layer", remedy=f"{model.name} has layers 0 to {count - 1}"
            )
    return tuple(sorted(set(layers)))


def arithmetic_sha256(arithmetic: Arithmetic) -> str:
    """What identifies an arithmetic: the hash of all it says but its name and notes."""
    said = arithmetic.model_dump(mode="json", by_alias=True, exclude={"name", "summary", "note"})
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()


def write_predictions(
    folder: Path,
    predictor: Predictor,
    sequences: Sequence[tuple[str, Any]],
    *,
    layers: Sequence[int] = (),
    progress: Progress | None = None,
) -> Any:
    """Predict each ``(name, ids)`` and write a run folder (see `verify.runs`); the run is called as the folder.

    Row i of a sequence stands at position i and is what follows token i; the last row's token is not known.

    Returns:
        the run, read again.

    Raises:
        InputError: the folder holds something, or as `Predictor`.
    """
    from verify.runs.folder import no_files, write_run

    arithmetic, model = predictor.arithmetic, predictor.model
    first = sequences[0][1] if sequences else []
    check_ids(first, model)
    kernel = arithmetic.attention.kernel
    name, _, platform = kernel.rpartition("@")
    declared = {
        "run_id": folder.resolve().name[:200] or "predicted",
        "coordinate": {
            "platform": None if kernel == PLAIN else platform,
            "engine": "ulpscope",
            "engine_version": _version(),
            "attention_backend": kernel if kernel == PLAIN else name,
            "dtype": _dtype_name(arithmetic),
            "batch_size": int(arithmetic.attention.context.get("batch", 1)),
            "flags": {
                "predicted": True,
                "arithmetic": arithmetic.name,
                "arithmetic_sha256": arithmetic_sha256(arithmetic),
                "gemm": arithmetic.gemm.kernel,
                "gemm_platform": arithmetic.gemm.platform,
                "norm": arithmetic.norm.kernel,
                "calls": None if kernel == PLAIN else arithmetic.attention.calls,
                "phase": None if kernel == PLAIN else _phase(arithmetic),
                "prompt": arithmetic.attention.prompt,
                "prompt_kernel": arithmetic.attention.prompt_kernel,
            },
        },
        "capture": {"value_kind": "raw_logits", "teacher_forced": True, "temperature": 1.0},
        "model": model.name,
        "model_sha256": model.sha256,
        "vocab_size": model.architecture.vocab,
    }

    def made() -> Any:
        for conversation, ids in sequences:
            yield _sequence(conversation, predictor(ids, layers=layers, progress=progress))

    return write_run(folder, no_files(declared), made(), form="safetensors")


def _sequence(conversation: str, p: Prediction) -> Any:
    from verify.runs.sequence import UNKNOWN, Attention, Full, Sequence

    count = len(p.ids)
    attention = tuple(Attention(layer=i, **sites) for i, sites in sorted(p.sites.items()))
    return Sequence(
        conversation=conversation,
        repeat=0,
        positions=np.arange(count, dtype=np.int64),
        tokens=np.append(p.ids[1:], np.int64(UNKNOWN)),
        prompt=p.ids[:1],
        full=Full(count, p.vocab, p.dtype, p.logits),
        attention=attention,
    )


def _phase(arithmetic: Arithmetic) -> str | None:
    """How the attention tensors of a layer are to be read: as one prefill, as decode steps, or, with a prompt, as both."""
    if arithmetic.attention.calls == "whole":
        return "prefill"
    return None if arithmetic.attention.prompt else "decode"


def _dtype_name(arithmetic: Arithmetic) -> str:
    return {"bf16": "bfloat16", "f16": "float16", "f32": "float32"}[arithmetic.numbers.activations]


def _version() -> str | None:
    try:
        return version("ulpscope")
    except PackageNotFoundError:
        return None
