"""Which predicted run stands for which real coordinate, and predicted values as the capture holds its own.

A prediction has every logit. A capture may have log-probabilities of the likeliest tokens: the prediction is then reduced
to those before the two are compared.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specs import Platform, load_platform
from specs.context import CONTEXT
from specs.discover import every
from specs.errors import UlpscopeError
from specs.requested import load_requested, resolve_kernel
from verify.metrics.align import align_runs, by_conversation
from verify.metrics.plan import TILE
from verify.runs.manifest import Coordinate
from verify.runs.run import Run
from verify.runs.sequence import Full, Ints, Top
from verify.runs.sequence import Sequence as Recorded

Array = NDArray[Any]
Floats = NDArray[np.float64]

#: What vLLM calls its attention backends, and what they are called in ``specs/requested.toml``.
ENGINE_NAMES = {"flash_attn": "flash_attn", "triton_attn": "triton", "flashinfer": "flashinfer"}
_SPLIT = re.compile(r"[^a-z0-9]+")


@dataclass(frozen=True)
class Kernel:
    """What computes attention at a coordinate: the names of a spec and a platform, None where not known."""

    spec: str | None
    platform: str | None

    @property
    def known(self) -> bool:
        """Whether both are."""
        return self.spec is not None and self.platform is not None


def kernel_of(run: Run) -> Kernel:
    """The spec and platform of a run's coordinate: as it says, or what its GPU, engine and backend resolve to."""
    c = run.manifest.coordinate
    platform = platform_of(c)
    if platform is None:
        return Kernel(None, None)
    specs = {found.name for found in every()}
    for name in (c.attention_backend, c.requested_backend):
        if name in specs:
            return Kernel(name, platform.name)
        found = _resolved(name, platform, c)
        if found is not None:
            return Kernel(found, platform.name)
    return Kernel(None, platform.name)


def platform_of(coordinate: Coordinate) -> Platform | None:
    """The platform that a coordinate names, or whose words its GPU's name consists of; None if that is not one."""
    known = [load_platform(p.name) for p in every("platform")]
    for p in known:
        if coordinate.platform == p.name:
            return p
    words = set(_SPLIT.split((coordinate.gpu or coordinate.platform or "").lower())) - {"", "nvidia"}
    if not words:
        return None
    if coordinate.sm_count is not None:
        known = [p for p in known if p.sm_count == coordinate.sm_count]
    for fits in (lambda p: words <= set(_SPLIT.split(p.title.lower())), lambda p: p.name in words):
        found = [p for p in known if fits(p)]
        if len(found) == 1:
            return found[0]
    return None


def _resolved(name: str | None, platform: Platform, c: Coordinate) -> str | None:
    """The spec of the kernel that vLLM runs for a name; None where that is not known."""
    asked = ENGINE_NAMES.get((name or "").lower(), (name or "").lower())
    if asked not in load_requested() or (c.engine or "").lower() != "vllm":
        return None
    # The shape stands in no coordinate: heads of 128 elements, unless its flags say otherwise.
    flags = {n: x for n, x in c.flags.items() if n in CONTEXT and isinstance(x, int)}
    context: dict[str, Any] = {"fork": "vllm", "head_dim": 128, **flags}
    version = re.match(r"v?(\d+)\.(\d+)\.(\d+)", c.engine_version or "")
    if version is not None:
        major, minor, patch = (int(x) for x in version.groups())
        context["vllm_version"] = 10_000 * major + 100 * minor + patch
    if c.batch_size is not None:
        context["batch"] = c.batch_size
    try:
        return resolve_kernel(asked, platform, context)
    except UlpscopeError:  # not described, or flags that no formula takes
        return None


def candidates_by_coordinate(real: Run, predicted: Sequence[Run]) -> tuple[int, ...]:
    """Numbers of the predicted runs whose attention kernel and platform are those of a real coordinate."""
    own = kernel_of(real)
    if not own.known:
        return ()
    splits = real.manifest.coordinate.num_splits
    return tuple(
        i
        for i, run in enumerate(predicted)
        if kernel_of(run) == own and run.manifest.coordinate.num_splits in (None, splits)
    )


def renamed(predicted: Run, reals: Sequence[Run]) -> Run:
    """A predicted run whose conversations are called as the real ones of the same text, where no name is common."""
    names = {s.conversation for run in reals for s in run.sequences}
    if any(s.conversation in names for s in predicted.sequences):
        return predicted
    texts = {s.conversation: t for run in reals for s in run.sequences if (t := _text(s)) is not None}
    found: list[Recorded] = []
    for s in predicted.sequences:
        own = _text(s)
        same = [name for name, t in texts.items() if own is not None and _starts(own, t)]
        found.append(replace(s, conversation=same[0]) if len(same) == 1 else s)
    distinct = {s.conversation for s in found}
    return replace(predicted, sequences=tuple(found)) if len(distinct) == len(found) else predicted


def _text(s: Recorded) -> Ints | None:
    """All tokens of a sequence from the first on, as far as they are known without a gap; None without a prompt."""
    if s.prompt is None or not s.rows or len(s.prompt) != int(s.positions[0]) + 1:
        return None
    stop = s.rows
    gaps = np.flatnonzero((np.diff(s.positions) != 1) | (s.tokens[:-1] < 0))
    if gaps.size:
        stop = int(gaps[0]) + 1
    tokens = s.tokens[:stop]
    return np.concatenate([s.prompt, tokens[tokens >= 0]])


def _starts(a: Ints, b: Ints) -> bool:
    n = min(len(a), len(b))
    return n > 1 and bool((a[:n] == b[:n]).all())


def seen_as(predicted: Run, real: Run) -> Run:
    """A predicted run with values of the kind, and at the tokens, that a real run holds.

    Logits become log-probabilities (in float64, rounded once to float32) where the capture has those; where it has lists of
    likely tokens, or one value a row, the prediction is reduced to them. What is the same kind already stays as it is.
    """
    kinds = predicted.manifest.capture.value_kind, real.manifest.capture.value_kind
    logs = kinds == ("raw_logits", "raw_logprobs")
    if not logs and kinds[0] != kinds[1]:
        return predicted
    others = by_conversation(real.sequences)
    found: list[Recorded] = []
    for name, group in by_conversation(predicted.sequences).items():
        for mine, other in zip(group, others.get(name, []), strict=False):
            found.append(_seen(mine, other, logs))
    manifest = predicted.manifest
    if logs:
        manifest = manifest.model_copy(
            update={"capture": manifest.capture.model_copy(update={"value_kind": "raw_logprobs"})}
        )
    return replace(predicted, manifest=manifest, sequences=tuple(found))


def _seen(mine: Recorded, other: Recorded, logs: bool) -> Recorded:
    full = mine.full
    if full is None:
        return mine
    read = _normalised(full) if logs else full
    if other.full is not None:
        return replace(mine, full=read)
    shared, at, theirs = np.intersect1d(mine.positions, other.positions, return_indices=True)
    ids = None if other.top is None else other.top.ids[theirs]
    tokens = other.tokens[theirs]
    values = np.full((len(shared), 0 if ids is None else ids.shape[1]), np.nan)
    chosen = np.full(len(shared), np.nan)
    for low in range(0, len(shared), TILE):
        part = slice(low, min(low + TILE, len(shared)))
        rows = at[part]
        block = read.read(int(rows[0]), int(rows[-1]) + 1)[rows - rows[0]].astype(np.float64)
        chosen[part] = _taken(block, tokens[part][:, None])[:, 0]
        if ids is not None:
            values[part] = _taken(block, ids[part])
    return replace(
        mine,
        positions=shared.astype(np.int64),
        tokens=mine.tokens[at],
        full=None,
        top=None if ids is None else Top(ids, values),
        chosen=chosen,
        texts=None,
        ranges=None,
        depths=None,
        attention=(),
    )


def equal_in_lists(real: Run, view: Run) -> tuple[int, int]:
    """Values of likely tokens in comparable rows of a real run and of a prediction seen as it: how many, and how many equal.

    Printed values are equal where the prediction is, in as many decimals; clamped ones and those that the prediction cannot
    have are left out.
    """
    capture = real.manifest.capture
    pairs = {s.conversation: s for s in view.sequences if s.repeat == _first(view, s.conversation)}
    total = equal = 0
    for aligned in align_runs(real, view).sequences:
        mine = next(
            s
            for s in real.sequences
            if (s.conversation, s.repeat) == (aligned.conversation, aligned.repeat_a)
        )
        other = pairs.get(aligned.conversation)
        if aligned.ordinal or other is None or mine.top is None or other.top is None:
            continue
        use = aligned.comparable
        a, b = mine.top.values[aligned.rows_a[use]], other.top.values[aligned.rows_b[use]]
        with np.errstate(invalid="ignore"):
            there = np.isfinite(a) & np.isfinite(b)
            if capture.clamp_floor is not None:
                there &= a > capture.clamp_floor
            b = b if capture.decimals is None else np.round(b, capture.decimals)
            a = a if capture.decimals is None else np.round(a, capture.decimals)
            total, equal = total + int(there.sum()), equal + int((there & (a == b)).sum())
    return total, equal


def _first(run: Run, conversation: str) -> int:
    return min(s.repeat for s in run.sequences if s.conversation == conversation)


def _taken(block: Floats, ids: Ints) -> Floats:
    """Values at ``ids [rows, k]``; NaN where an id is unknown or outside the vocabulary."""
    inside = (ids >= 0) & (ids < block.shape[1])
    return np.where(inside, np.take_along_axis(block, np.where(inside, ids, 0), axis=1), np.nan)


def _normalised(full: Full) -> Full:
    """Log-probabilities of logits: less their log-sum-exp, in float64, rounded once to float32."""

    def read(start: int, stop: int) -> Array:
        x = full.read(start, stop).astype(np.float64)
        with np.errstate(invalid="ignore"):  # a row with NaN or +infinity has no log-probabilities
            top = x.max(axis=1, keepdims=True)
            lse = top + np.log(np.exp(x - top).sum(axis=1, keepdims=True))
            return (x - lse).astype(np.float32)

    return Full(full.rows, full.vocab, np.dtype(np.float32), read, "")
