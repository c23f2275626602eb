"""Attention problems with their recorded results, out of a run folder or a capture of kernels."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specs.errors import InputError
from verify.capture.format import Capture
from verify.capture.inputs import load
from verify.case import Case
from verify.runs.run import Run
from verify.runs.sequence import Attention, Sequence

PHASES = ("decode", "prefill")
#: Flags of a coordinate that decide the partition.
PLANNED = ("kv_capacity", "page_size", "window")


@dataclass(frozen=True, eq=False)
class Observation:
    """One call of an attention kernel, as recorded.

    Attributes:
        name: where it stands, for people.
        phase: ``decode`` (one query) or ``prefill``.
        case: q, k, v, scale and mask.
        out: ``[q_len, q_heads, head_dim]`` in its stored dtype; each query row is a position.
        lse: ``[q_len, q_heads]``, or None.
        positions: ``[q_len]`` index of each row in the text.
        options: values of the spec's ``[options]`` that the capture says.
        layer: of the model, None where the capture does not say it.
    """

    name: str
    phase: str
    case: Case
    out: NDArray[Any]
    lse: NDArray[Any] | None
    positions: NDArray[np.int64]
    options: dict[str, Any]
    layer: int | None = None

    @property
    def rows(self) -> int:
        """Number of positions."""
        return len(self.positions)


def of_kernels(capture: Capture) -> list[Observation]:
    """Every record of a capture of kernels that holds an output."""
    found: list[Observation] = []
    for name, record in capture.manifest.records.items():
        out = capture.array(f"records/{name}/output") if "output" in record.arrays else None
        if out is None:
            continue
        given = load(capture, record.input)
        context: dict[str, Any] = {**given.context, **record.context}
        case = replace(given, context=context)
        lse = capture.array(f"records/{name}/lse") if "lse" in record.arrays else None
        rows = len(out)
        first = case.kv_len - rows
        found.append(
            Observation(
                name,
                "decode" if rows == 1 else "prefill",
                case,
                out,
                lse,
                np.arange(first, first + rows, dtype=np.int64),
                dict(record.options),
            )
        )
    return found


def of_run(run: Run, *, most: int | None = None) -> list[Observation]:
    """The attention tensors of a run, layer by layer.

    Where the recording says that it is of one phase (``coordinate.flags.phase``), rows are taken so; else as a prefill
    where they stand one after the other up to the last key, and as single decode steps where they do not.

    Args:
        most: at most this many rows of a layer that are decode steps, evenly spaced.

    Raises:
        InputError: no layer has q, k, v and out; a row stands behind the last key; shapes that do not belong together.
    """
    phase = run.manifest.coordinate.flags.get("phase")
    if phase is not None and phase not in PHASES:
        raise InputError(
            f"phase {phase!r} is not known",
            place=f"{run.place}: coordinate.flags.phase",
            remedy=f"say {' or '.join(PHASES)}, or leave it out",
        )
    flags = run.manifest.coordinate.flags
    said = {name: flags[name] for name in PLANNED if name in flags}
    said |= {"num_splits": run.manifest.coordinate.num_splits, "batch": run.manifest.coordinate.batch_size}
    context = {n: x for n, x in said.items() if isinstance(x, int) and not isinstance(x, bool)}
    found: list[Observation] = []
    for sequence in run.sequences:
        for layer in sequence.attention:
            if layer.q is None or layer.k is None or layer.v is None or layer.out is None:
                continue
            found.extend(_of_layer(run, sequence, layer, phase, most, context))
    if not found:
        raise InputError(
            "no layer with q, k, v and out",
            place=run.place,
            remedy="record attention tensors (attn.L<layer>.q, .k, .v, .out), or identify by predicted logits",
        )
    return found


def _of_layer(
    run: Run, sequence: Sequence, layer: Attention, phase: Any, most: int | None, context: dict[str, int]
) -> Iterator[Observation]:
    q, k, v, out = layer.q, layer.k, layer.v, layer.out
    assert q is not None
    assert k is not None
    assert v is not None
    assert out is not None
    # Queries of more or fewer positions than were recorded as rows are those of the last keys.
    last = np.arange(len(k) - len(q), len(k), dtype=np.int64)
    positions = sequence.positions if len(q) == sequence.rows else last
    place = f"{run.place}: {sequence.conversation}, layer {layer.layer}"
    if q.shape != out.shape or k.shape != v.shape or len(q) > len(k):
        raise InputError(
            f"q {q.shape}, out {out.shape}, k {k.shape} and v {v.shape}",
            place=place,
            remedy="q and out have one row for each position, k and v are of one shape, with a key for each query",
        )
    if len(positions) and int(positions.max()) >= len(k):
        raise InputError(
            f"a query at position {int(positions.max())}, but {len(k)} keys",
            place=place,
            remedy="record the keys of every position up to the last query",
        )
    title = f"{sequence.conversation} layer {layer.layer}"
    run_of_rows = len(q) > 1 and bool((np.diff(positions) == 1).all()) and int(positions[-1]) == len(k) - 1
    if phase == "prefill" or (phase is None and run_of_rows):
        if not run_of_rows:
            raise InputError(
                "a prefill whose queries are not the last ones, one after the other",
                place=place,
                remedy="record the rows in order up to the last key, or say phase = decode",
            )
        case = Case(title, {"q": q, "k": k, "v": v}, causal=True, context=context)
        yield Observation(title, "prefill", case, out, layer.lse, positions, {}, layer.layer)
        return
    chosen = range(len(q)) if most is None or most >= len(q) else np.linspace(0, len(q) - 1, most).astype(int)
    for i in chosen:
        end = int(positions[i]) + 1
        name = f"{title} position {end - 1}"
        case = Case(name, {"q": q[i], "k": k[:end], "v": v[:end]}, context=context)
        lse = None if layer.lse is None else layer.lse[i : i + 1]
        yield Observation(name, "decode", case, out[i : i + 1], lse, positions[i : i + 1], {}, layer.layer)
