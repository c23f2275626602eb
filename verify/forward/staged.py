"""The forward in declared arithmetic: stored words from kernel to kernel, one layer after another.

Every kernel is compiled once and serves all layers and every length of its bucket; there is a Python loop over layers
and none over tokens. Products run over all rows, attention over groups of rows that share a partition.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from jax import Array, lax
from numpy.typing import NDArray

from specs import load_platform
from specs.dot_products import find
from specs.errors import InputError, Place, SpecError
from specs.formats import BASES, Format
from specs.integers import evaluate
from verify.forward import gemm, plain, rotary
from verify.forward.architecture import Architecture
from verify.forward.attention import Backend, bind_steps, bind_whole
from verify.forward.buckets import bucket
from verify.forward.config import PLAIN, Arithmetic
from verify.forward.stages import Stages, rounded, values_of, weight_words
from verify.forward.weights import Model

Progress = Callable[[str, int, int], None]
_STORED: dict[str, Any] = {"bf16": ml_dtypes.bfloat16, "f16": np.float16, "f32": np.float32}
_JOINED = {"qkv": ("q", "k", "v"), "o": ("o",), "up": ("gate", "up"), "down": ("down",)}
_LARGEST = 512  # rows of one call of a product


@dataclass(frozen=True)
class RowSet:
    """Rows whose products are of calls of ``m`` rows: the prompt, or steps."""

    first: int
    last: int
    m: int


class Staged:
    """One arithmetic and one model, laid out and ready.

    Args:
        arithmetic: what is declared.
        model: the weights.

    Raises:
        SpecError, UnsupportedError: a platform or an instruction that is not known.
    """

    def __init__(self, arithmetic: Arithmetic, model: Model) -> None:
        self.arithmetic, self.model, self.a = arithmetic, model, model.architecture
        self.stages = stages_of(arithmetic, self.a)
        act = self.stages.act
        self.embedding = weight_words(model.embedding, act)
        self.norms = {
            n: jnp.asarray(weight_words(x, act)) for n, x in model.layers.items() if n.endswith("norm")
        }
        self.norm = jnp.asarray(weight_words(model.norm, act))
        self.products = self._products() if arithmetic.gemm.kernel == "mma" else None
        self.plain = self._plain_matrices() if self.products is None else {}
        self.splits: dict[tuple[str, int], int] = {}

    # -- products -----------------------------------------------------------------------------------------

    def _matrices(self) -> Iterator[tuple[str, NDArray[np.float32]]]:
        for i in range(self.a.layers):
            for name, parts in _JOINED.items():
                yield f"{name}.{i}", np.concatenate([self.model.layers[p][i] for p in parts])
        yield "head", self.model.head

    def _products(self) -> gemm.Products:
        part, act = self.arithmetic.gemm, self.stages.act
        assert part.platform is not None
        platform = load_platform(part.platform)
        dot = find(
            platform.dot_products, part.instruction, act, act, BASES["f32"], part.k, place=part.platform
        )
        gemm.check_instruction(dot, part.k)
        matrices = gemm.lay_out({n: weight_words(w, act) for n, w in self._matrices()})
        windows = max(matrices.windows(name) for name in matrices.shape if name != "head")
        return gemm.Products(matrices, dot, part.k, act, part.unit, part.merge, windows)

    def _plain_matrices(self) -> dict[str, Array]:
        act = self.stages.act
        return {
            n: jnp.asarray(np.ascontiguousarray(values_of(jnp.asarray(weight_words(w, act)), act).T))
            for n, w in self._matrices()
        }

    def _splits(self, name: str, m: int) -> int:
        """The slices of one product of ``m`` rows."""
        assert self.products is not None
        assert self.arithmetic.gemm.platform is not None
        kind = name.partition(".")[0]
        if (kind, m) not in self.splits:
            n, k = self.products.matrices.shape[name]
            platform = load_platform(self.arithmetic.gemm.platform)
            batch = int(self.arithmetic.attention.context.get("batch", 1))
            known = {**platform.context, "m": m, "n": n, "k": k, "batch": batch}
            value = evaluate(self.arithmetic.gemm.formula(), known, Place("gemm.splits"))
            if not isinstance(value, int) or not 1 <= value <= 1024:
                raise SpecError(
                    f"splits = {value} for m = {m}, n = {n}, k = {k}",
                    place="gemm.splits",
                    remedy="a whole number from 1 to 1024",
                )
            self.splits[kind, m] = int(value)
        return self.splits[kind, m]

    def product(self, words: Array, name: str, rows: list[RowSet]) -> Array:
        """Bits of f32 of ``words [rows, terms] @ w.T``, rows of each set as its calls compute them."""
        if self.products is None:
            return _plain_product(words, self.plain[name], self.stages.act)
        by_splits: dict[int, list[RowSet]] = {}
        for r in rows:
            by_splits.setdefault(self._splits(name, r.m), []).append(r)
        if len(by_splits) == 1:
            return self._chunks(words, name, next(iter(by_splits)))
        parts: list[Array] = []
        for splits, sets in sorted(by_splits.items(), key=lambda item: item[1][0].first):
            first, last = sets[0].first, sets[-1].last
            own = pad_rows(words[first:last], bucket(last - first))
            parts.append(self._chunks(own, name, splits)[: last - first])
        return pad_rows(jnp.concatenate(parts), words.shape[0])

    def _chunks(self, words: Array, name: str, splits: int) -> Array:
        """A product, so many rows at a time that one compiled program serves long sequences, too."""
        assert self.products is not None
        if words.shape[0] <= _LARGEST:
            return self.products(words, name, splits)
        parts: list[Array] = []
        for start in range(0, words.shape[0], _LARGEST):
            part = words[start : start + _LARGEST]
            parts.append(self.products(pad_rows(part, _LARGEST), name, splits)[: part.shape[0]])
        return jnp.concatenate(parts)

    def logits(self, words: Array, rows: list[RowSet]) -> NDArray[Any]:
        """Logits ``[rows, vocab]`` in the format of the head, of rows of `hidden` (few at a time: all are held)."""
        fmt = self.stages.logits
        if self.products is None:
            own = rounded(self.product(words, "head", rows), fmt)
            return np.asarray(own).view(_STORED[fmt.base])
        products, vocab = self.products, self.a.vocab
        width, count = products.matrices.width, products.matrices.windows("head")
        out = np.empty((words.shape[0], vocab), _word(fmt))
        for r in rows:
            splits = self._splits("head", r.m)
            for low in range(0, count, products.windows):
                high = min(low + products.windows, count)
                last = min(high * width, vocab)
                part = rounded(products(words, "head", splits, (low, high)), fmt)
                own = np.asarray(part)[r.first : r.last, : last - low * width]
                out[r.first : r.last, low * width : last] = own
        return out.view(_STORED[fmt.base])

    # -- the forward --------------------------------------------------------------------------------------

    def bind(self, count: int) -> list[tuple[int, int, Backend | None]]:
        """Who answers which positions of a sequence of ``count`` tokens: ``(first, last, backend)``; None: plain."""
        part = self.arithmetic.attention
        dtype = np.dtype(_STORED[self.stages.act.base])
        if part.kernel == PLAIN:
            return [(0, count, None)]
        if part.calls == "whole":
            return [(0, count, bind_whole(part, self.a, part.kernel, count, dtype))]
        out: list[tuple[int, int, Backend | None]] = []
        prompt = min(part.prompt, count)
        if prompt:
            assert part.prompt_kernel is not None
            out.append((0, prompt, bind_whole(part, self.a, part.prompt_kernel, prompt, dtype)))
        if prompt < count:
            out.append((prompt, count, bind_steps(part, self.a, part.kernel, prompt, count, dtype)))
        return out

    def row_sets(self, count: int) -> list[RowSet]:
        """Which rows are products of one call."""
        part = self.arithmetic.attention
        batch = int(part.context.get("batch", 1))
        if part.calls == "whole" or part.kernel == PLAIN:
            return [RowSet(0, count, count)]
        prompt = min(part.prompt, count)
        sets = [RowSet(0, prompt, prompt)] if prompt else []
        return sets + ([RowSet(prompt, count, batch)] if prompt < count else [])

    def hidden(
        self,
        ids: NDArray[Any],
        *,
        keep: tuple[int, ...] = (),
        progress: Progress | None = None,
    ) -> tuple[Array, list[RowSet], dict[int, dict[str, NDArray[Any]]]]:
        """What the head takes, as words ``[bucket, hidden]``.

        Args:
            ids: token ids ``[tokens]``.
            keep: layers whose q, k, v, out and lse are wanted.
            progress: called with a stage, steps done and steps in all.

        Returns:
            the words (rows past the tokens mean nothing), the rows of each call, and by layer the sites.

        Raises:
            InputError: a weight or activation becomes infinite. UnsupportedError: see `verify.emulate`.
        """
        count, size = len(ids), bucket(len(ids))
        stages, act = self.stages, self.stages.act
        backends, rows = self.bind(count), self.row_sets(count)
        padded = np.zeros(size, np.int64)
        padded[:count] = ids
        cos, sin = (
            jnp.asarray(t.view(np.uint32)) for t in rotary.tables(self.a, size, self.arithmetic.rope.angles)
        )
        sites: dict[int, dict[str, NDArray[Any]]] = {}
        stream, h = stages.first(jnp.asarray(self.embedding[padded]), self.norms["attn_norm"][0])
        for i in range(self.a.layers):
            if progress is not None:
                progress("layers", i, self.a.layers)
            norms = [self.norms[n][i] for n in ("q_norm", "k_norm")] if self.a.qk_norm else []
            heads = stages.heads(self._checked(self.product(h, f"qkv.{i}", rows), i), cos, sin, *norms)
            q, k, v = (np.asarray(x).view(_STORED[act.base])[:count] for x in heads)
            out, lse = attend(backends, q, k, v)
            if i in keep:
                sites[i] = {"q": q, "k": k, "v": v, "out": out} | ({} if lse is None else {"lse": lse})
            flat = np.zeros((size, self.a.q_heads * self.a.head_dim), _word(act))
            flat[:count] = weight_words(out.astype(np.float32).reshape(count, -1), act)
            back = self._checked(self.product(jnp.asarray(flat), f"o.{i}", rows), i)
            stream, h = stages.add_norm(stream, back, self.norms["mlp_norm"][i])
            (h,) = stages.swiglu(self._checked(self.product(h, f"up.{i}", rows), i))
            back = self._checked(self.product(h, f"down.{i}", rows), i)
            last = i + 1 == self.a.layers
            stream, h = stages.add_norm(stream, back, self.norm if last else self.norms["attn_norm"][i + 1])
        if progress is not None:
            progress("layers", self.a.layers, self.a.layers)
        return h, rows, sites

    def _checked(self, product: Array, layer: int) -> Array:
        """A product, whose live columns must round to finite activations: the next product takes no others."""
        if not bool(_finite(product, self.stages.act)):
            raise InputError(
                f"a product of layer {layer} is infinite or NaN in {self.stages.act.name}",
                place="forward",
                remedy="the weights do not fit the format of the activations; try bf16, or check the file",
            )
        return product


@jax.jit
def _all_below(product: Array, limit: Array) -> Array:
    return jnp.all((product & np.uint32(0x7FFFFFFF)) < limit)


def _finite(product: Array, act: Format) -> Array:
    """Whether every number rounds to a finite one of ``act``."""
    if act.base == "f16":
        limit = np.float32(65520.0).view(np.uint32)
    else:
        limit = np.uint32(0x7F7F8000 if act.base == "bf16" else 0x7F800000)
    return _all_below(product, limit)


def pad_rows(words: Array, count: int) -> Array:
    """``words`` with zero rows up to ``count`` rows."""
    return jnp.pad(words, ((0, count - words.shape[0]), (0, 0)))


def _word(fmt: Format) -> np.dtype[Any]:
    return np.dtype(f"u{fmt.bits // 8}")


def attend(
    backends: list[tuple[int, int, Backend | None]], q: NDArray[Any], k: NDArray[Any], v: NDArray[Any]
) -> tuple[NDArray[Any], NDArray[Any] | None]:
    """Attention of one layer: output ``[tokens, q_heads, head_dim]`` and lse ``[tokens, q_heads]`` where all have one."""
    outs: list[NDArray[Any]] = []
    lses: list[NDArray[Any] | None] = []
    for first, last, backend in backends:
        if backend is None:
            out, lse = _plain_attention(*(jnp.asarray(x.astype(np.float32)) for x in (q, k, v)))
            outs.append(np.asarray(out))
            lses.append(np.asarray(lse))
        else:
            out, lse = backend.attend(q[first:last], k[:last], v[:last])
            outs.append(out)
            lses.append(lse)
    if len(outs) > 1:
        outs = [x.astype(np.float32) for x in outs]
    known = [x for x in lses if x is not None]
    lse = np.concatenate([x.astype(np.float32) for x in known]) if len(known) == len(lses) else None
    return np.concatenate(outs), lse


_plain_attention = jax.jit(plain.attention)


@jax.jit
def _multiply(x: Array, w: Array) -> Array:
    return lax.bitcast_convert_type(x @ w, jnp.uint32)


def _plain_product(words: Array, w: Array, act: Format) -> Array:
    return _multiply(jnp.asarray(values_of(words, act)), w)


@lru_cache(maxsize=32)
def _stages(text: str, a: Architecture) -> Stages:
    return Stages(Arithmetic.model_validate(json.loads(text)), a)


def stages_of(arithmetic: Arithmetic, a: Architecture) -> Stages:
    """The stages, shared by all arithmetics that agree on them: compiled once."""
    own: Mapping[str, Any] = arithmetic.model_dump(mode="json", by_alias=True)
    parts = {n: own[n] for n in ("schema", "numbers", "norm", "rope", "mlp")}
    return _stages(json.dumps({**parts, "name": "stages"}, sort_keys=True), a)
