"""What may be searched: inputs in their stored formats, and the limits that hold for them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from search.limits import check_context
from specs.errors import InputError

Kind = Literal["scores", "qkv"]
F32 = NDArray[np.float32]
#: |out| is at least this part of the weighted mean of |v|, unless a user says otherwise.
CANCELLATION = 0.5
SCORE_BOX = 20.0
VALUE_BOX = 8.0
MAX_TOKENS = 1 << 20


@dataclass(frozen=True)
class Statistics:
    """Bounds that keep an input realistic, each a mean and a standard deviation that it must come near.

    Attributes:
        score_std: largest standard deviation of the scores of a candidate; None: any.
        value_std: likewise of the values that are not 0.
        value_mean: largest |mean| of the values.
    """

    score_std: float | None = None
    value_std: float | None = None
    value_mean: float | None = None

    def __post_init__(self) -> None:
        for name in ("score_std", "value_std", "value_mean"):
            x = getattr(self, name)
            if x is not None and not (math.isfinite(x) and x >= 0):
                raise InputError(f"{name} = {x}", place=name, remedy="give a finite number of at least 0")

    def hold(self, inputs: Inputs) -> NDArray[np.bool_]:
        """For each candidate whether all of them hold: bool ``[candidate]``."""
        ok = np.ones(inputs.count, dtype=np.bool_)
        live = np.where(np.isneginf(inputs.scores), np.nan, inputs.scores).astype(np.float64)
        if self.score_std is not None:
            ok &= np.nanstd(live, axis=1) <= self.score_std
        if self.value_std is not None:
            ok &= inputs.values.astype(np.float64).std(axis=(1, 2)) <= self.value_std
        if self.value_mean is not None:
            ok &= np.abs(inputs.values.astype(np.float64).mean(axis=(1, 2))) <= self.value_mean
        return ok


@dataclass(frozen=True)
class Space:
    """The inputs of a search, and what every answer must satisfy.

    Attributes:
        kv_len: tokens. Those before the ``window`` of the context are in the input, and no side sees them.
        kind: ``scores`` (ready scores and values) or ``qkv`` (q, k and v in the input formats, at the shape of
            the context).
        context: what formulas see besides the platform: see `specs.context.CONTEXT`.
        dims: columns of V that are searched.
        score_box, value_box: bounds on \\|s\\| and \\|v\\|.
        cancellation: c: the exact output is at least c times the weighted mean of \\|v\\|. 0: no bound.
        masks: whether tokens may be masked (a score of -inf).
        fixed: tokens whose score and values stay as they are in ``base``.
        base: an input that candidates start from: with ``edits``, they differ from it in at most that many elements.
        edits: most elements that may differ from ``base``; None: any number.
        statistics: bounds on moments.
        carry: with ``qkv``: every row of K also holds 2**carry and -2**carry, where q is 1. They cancel exactly; what
            a tensor core loses while it carries the one differs from architecture to architecture. None: no such pair.
    """

    kv_len: int
    kind: Kind = "scores"
    context: Mapping[str, Any] = field(default_factory=dict[str, Any])
    dims: int = 1
    score_box: float = SCORE_BOX
    value_box: float = VALUE_BOX
    cancellation: float = CANCELLATION
    masks: bool = False
    fixed: frozenset[int] = frozenset()
    base: Inputs | None = None
    edits: int | None = None
    statistics: Statistics | None = None
    carry: int | None = None

    def __post_init__(self) -> None:
        if self.carry is not None and (self.kind != "qkv" or not -64 <= self.carry <= 64):
            raise InputError(
                f"carry = {self.carry} in a space of {self.kind}",
                place="carry",
                remedy="give -64 to 64, with q, k and v",
            )
        self._whole("kv_len", self.kv_len, 1, MAX_TOKENS)
        self._whole("dims", self.dims, 1, 4096)
        for name in ("score_box", "value_box"):
            if not (math.isfinite(getattr(self, name)) and getattr(self, name) > 0):
                raise InputError(
                    f"{name} = {getattr(self, name)}", place=name, remedy="give a finite number above 0"
                )
        if not 0 <= self.cancellation <= 1:
            raise InputError(
                f"c = {self.cancellation} is not between 0 and 1",
                place="cancellation",
                remedy="1 allows no cancellation at all, 0 any",
            )
        check_context(self.context, self.kv_len)
        if any(not 0 <= t < self.kv_len for t in self.fixed):
            raise InputError(
                f"a fixed token is not in 0..{self.kv_len - 1}", place="fixed", remedy="number tokens from 0"
            )
        if (self.fixed or self.edits is not None) and self.base is None:
            raise InputError(
                "tokens are fixed, or edits bounded, but no input is given to start from",
                place="base",
                remedy="give the captured input",
            )
        if self.base is not None and (self.base.kv_len, self.base.dims) != (self.kv_len, self.dims):
            raise InputError(
                f"the base has {self.base.kv_len} tokens and {self.base.dims} columns",
                place="base",
                remedy=f"the space has {self.kv_len} and {self.dims}",
            )
        if self.base is not None:
            self._readable(self.base)

    def _readable(self, base: Inputs) -> None:
        if base.count != 1:
            raise InputError(f"{base.count} inputs to start from", place="base", remedy="give one")
        if not (np.isfinite(base.values).all() and (base.scores < np.inf).all()):
            raise InputError(
                "the base has a score of NaN or +inf, or a value that is not finite",
                place="base",
                remedy="give finite numbers; a score of -inf masks a token",
            )
        if np.isneginf(base.scores).any() and not self.masks:
            raise InputError(
                "the base masks tokens, which this space does not allow",
                place="base",
                remedy="allow masks (--masks)",
            )

    @staticmethod
    def _whole(name: str, value: int, low: int, high: int) -> None:
        if not low <= value <= high:
            raise InputError(
                f"{name} = {value} is not in {low}..{high}", place=name, remedy="give a size in that range"
            )

    @property
    def exact_cancellation(self) -> Fraction:
        """C as the decimal that was meant: 0.1 is a tenth."""
        return Fraction(repr(self.cancellation))

    @property
    def first(self) -> int:
        """The first token that the window of the context shows."""
        window = int(self.context.get("window") or 0)
        return max(0, self.kv_len - window) if window else 0

    def full_context(self) -> dict[str, Any]:
        """The context, with the length."""
        return {**self.context, "kv_len": self.kv_len}


@dataclass(frozen=True, eq=False)
class Inputs:
    """A batch of candidates.

    Attributes:
        scores: float32 ``[candidate, token]``: scaled scores, -inf masks.
        values: float32 ``[candidate, token, dim]``, values of the format of V.
    """

    scores: F32
    values: F32

    def __post_init__(self) -> None:
        if self.scores.ndim != 2 or self.values.ndim != 3 or self.scores.shape != self.values.shape[:2]:
            raise InputError(
                f"scores of shape {self.scores.shape} and values of shape {self.values.shape}",
                place="inputs",
                remedy="give scores [candidate, token] and values [candidate, token, dim]",
            )

    @property
    def count(self) -> int:
        """Candidates."""
        return int(self.scores.shape[0])

    @property
    def kv_len(self) -> int:
        """Tokens."""
        return int(self.scores.shape[1])

    @property
    def dims(self) -> int:
        """Columns of V."""
        return int(self.values.shape[2])

    def pick(self, which: Any) -> Inputs:
        """Some of the candidates, in the order of ``which``."""
        return Inputs(self.scores[which], self.values[which])

    @staticmethod
    def one(scores: Any, values: Any) -> Inputs:
        """One candidate from ``[token]`` and ``[token]`` or ``[token, dim]``."""
        s, v = np.asarray(scores, np.float32), np.asarray(values, np.float32)
        return Inputs(s[None], v.reshape(1, s.shape[0], -1))

    @staticmethod
    def join(parts: list[Inputs]) -> Inputs:
        """Batches one after the other."""
        return Inputs(np.concatenate([p.scores for p in parts]), np.concatenate([p.values for p in parts]))
