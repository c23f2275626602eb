"""The parts between matrix products and attention, in declared arithmetic: norms, rotation, activation, additions.

Each is one compiled function of stored words, on the guarded operations of the engine (`verify.engine.primitives`): fast
in f32; where a subnormal number may have been flushed, again with the exact carrier. Rows are independent.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from specs.errors import UnsupportedError
from specs.formats import BASES, Format
from verify.engine.primitives import F32, ZERO, Carrier, F32Exact, exact_product, x64
from verify.engine.room import make_room
from verify.engine.trees import Folder, Terms
from verify.forward import rotary
from verify.forward.architecture import Architecture
from verify.forward.config import Arithmetic, parse_tree

Body = Callable[..., tuple[Array, ...]]
_CARRIERS: tuple[type[Carrier], ...] = (F32, F32Exact)
_F32 = BASES["f32"]


@dataclass(frozen=True)
class Stage:
    """A compiled function ``(words, ...) -> words``; see `Stages`."""

    name: str
    body: Body

    def __call__(self, *arguments: Any) -> tuple[Array, ...]:
        """Run it.

        Raises:
            UnsupportedError: operands for which the arithmetic of the hardware is not known.
        """
        make_room()
        with x64():
            for number in range(len(_CARRIERS)):
                results, risk = _compiled(self, number)(ZERO, *arguments)
                if not bool(risk):
                    return results
        raise UnsupportedError(
            f"the {self.name} meets operands for which nothing says what the hardware gives",
            place="forward",
            remedy="a negative or infinite sum of squares; check the weights",
        )


@lru_cache(maxsize=128)
def _compiled(stage: Stage, carrier: int) -> Any:
    def run(zero: Array, *arguments: Array) -> tuple[tuple[Array, ...], Array]:
        ops = _CARRIERS[carrier](zero)
        results = stage.body(ops, *arguments)
        return results, ops.risk()

    return jax.jit(run)


class Stages:
    """The stages of one arithmetic and one architecture. Words are those of `act`, but for the residual stream's.

    Args:
        arithmetic: what is declared.
        a: the model.
    """

    def __init__(self, arithmetic: Arithmetic, a: Architecture) -> None:
        self.arithmetic, self.a = arithmetic, a
        numbers = arithmetic.numbers
        self.act = BASES[numbers.activations]
        self.residual = BASES[numbers.residual or numbers.activations]
        self.logits = BASES[numbers.logits or numbers.activations]
        self.first = Stage("first norm", self._first)
        self.add_norm = Stage("norm after an addition", self._add_norm)
        self.heads = Stage("rotation", self._heads)
        self.swiglu = Stage("activation", self._swiglu)

    # -- bodies -------------------------------------------------------------------------------------------

    def _first(self, ops: Carrier, embedded: Array, weight: Array) -> tuple[Array, ...]:
        """The embedding (words of `act`) enters the residual stream and is normalised: ``(stream, normalised)``."""
        x = ops.cast(ops.decode(embedded, self.act), self.residual)
        tree = self.arithmetic.norm.tree_alone or self.arithmetic.norm.tree
        return ops.encode(x, self.residual), self._norm(ops, x, self.residual, weight, tree)

    def _add_norm(self, ops: Carrier, stream: Array, product: Array, weight: Array) -> tuple[Array, ...]:
        """A product (bits of f32) is added to the stream, which is normalised: ``(stream, normalised)``."""
        x = self._added(ops, stream, product)
        tree = self.arithmetic.norm.tree
        return ops.encode(x, self.residual), self._norm(ops, x, self.residual, weight, tree)

    def _added(self, ops: Carrier, stream: Array, product: Array) -> Array:
        own = self._received(ops, product[:, : stream.shape[1]])
        return ops.add(own, ops.decode(stream, self.residual), self.residual)

    def _received(self, ops: Carrier, product: Array) -> Array:
        """What a product gives: its f32 result rounded once to the activations."""
        return ops.cast(ops.decode(product, _F32), self.act)

    def _norm(self, ops: Carrier, x: Array, source: Format, weight: Array, tree: str) -> Array:
        """Words of `act`: RMSNorm over the last axis of ``x``, values of ``source``."""
        norm = self.arithmetic.norm
        count = x.shape[-1]
        total = self._squares(ops, x, source, tree)[..., None]
        if norm.mean == "div":
            mean = ops.div(total, ops.constant(float(count)))
        else:
            mean = ops.mul(total, ops.constant(float(np.float32(1) / np.float32(count))))
        shifted = ops.add(mean, ops.constant(self.a.eps))
        y = ops.mul(x, self._root(ops, shifted))
        w = ops.decode(weight, self.act)
        if norm.before_weight:
            y = ops.mul(ops.cast(y, self.act), w, self.act)
            return ops.encode(y, self.act)
        return ops.encode(ops.mul(y, w), self.act)

    def _squares(self, ops: Carrier, x: Array, source: Format, tree: str) -> Array:
        exact = exact_product(source, source, _F32)
        folder = Folder(ops, _F32, _F32, exact, check=True)
        terms = jnp.moveaxis(x, -1, 0)
        if self.arithmetic.norm.kernel == "plain":
            tree = "lanes(32, seq(), butterfly(16, 8, 4, 2, 1))"
        return folder.fold(parse_tree(tree), Terms((terms, terms)), None, terms.shape[1:])

    def _root(self, ops: Carrier, x: Array) -> Array:
        match self.arithmetic.norm.root:
            case "mufu.rsq":
                return ops.special("mufu.rsq", x)
            case "sqrt":
                return ops.rcp(ops.sqrt(x))
            case _:
                wide = x.astype(jnp.float64)
                return ops.narrowed(1.0 / jnp.sqrt(wide), _F32)

    def _heads(
        self, ops: Carrier, product: Array, cos: Array, sin: Array, *norms: Array
    ) -> tuple[Array, ...]:
        """The product of q, k and v side by side: ``q [rows, q_heads, head_dim]`` and k, v, rotated, words of `act`."""
        a = self.a
        rows = product.shape[0]
        parts: list[Array] = []
        start = 0
        for heads in (a.q_heads, a.kv_heads, a.kv_heads):
            stop = start + heads * a.head_dim
            own = self._received(ops, product[:, start:stop])
            parts.append(own.reshape(rows, heads, a.head_dim))
            start = stop
        q, k, v = parts
        if a.qk_norm:
            tree = self.arithmetic.norm.tree_alone or self.arithmetic.norm.tree
            q, k = (
                ops.decode(self._norm(ops, x, self.act, w, tree), self.act)
                for x, w in zip((q, k), norms, strict=True)
            )
        cos, sin = (self._table(ops, t)[:, None, :] for t in (cos, sin))
        q, k = (self._rotated(ops, x, cos, sin) for x in (q, k))
        return q, k, ops.encode(v, self.act)

    def _table(self, ops: Carrier, words: Array) -> Array:
        x = ops.decode(words, _F32)
        return x if self.arithmetic.rope.table == "f32" else ops.cast(x, self.act)

    def _rotated(self, ops: Carrier, x: Array, cos: Array, sin: Array) -> Array:
        rope = self.arithmetic.rope
        fmt = _F32 if rope.compute == "f32" else self.act
        first, second = rotary.split(x, self.a.pairs)
        if rope.fused and fmt == _F32:
            one = ops.fma(first, cos, ops.neg(ops.mul(second, sin)))
            two = ops.fma(second, cos, ops.mul(first, sin))
        else:
            one = ops.sub(ops.mul(first, cos, fmt), ops.mul(second, sin, fmt), fmt)
            two = ops.add(ops.mul(second, cos, fmt), ops.mul(first, sin, fmt), fmt)
        return rotary.joined(ops.encode(one, self.act), ops.encode(two, self.act), self.a.pairs)

    def _swiglu(self, ops: Carrier, product: Array) -> tuple[Array, ...]:
        """The product of gate and up side by side: words of `act`."""
        mlp, size = self.arithmetic.mlp, self.a.intermediate
        gate = self._received(ops, product[:, :size])
        up = self._received(ops, product[:, size : 2 * size])
        negative = ops.neg(gate)
        grown = ops.exp(negative) if mlp.exp == "exp" else ops.special(mlp.exp, negative)
        below = ops.add(grown, ops.constant(1.0))
        silu = ops.div(gate, below) if mlp.divide == "div" else ops.special("div.full", gate, below)
        if mlp.round_gate:
            return (ops.encode(ops.mul(ops.cast(silu, self.act), up, self.act), self.act),)
        return (ops.encode(ops.mul(silu, up), self.act),)


def weight_words(values: NDArray[Any], fmt: Format) -> NDArray[Any]:
    """Words of finite f32 weights, each rounded once to ``fmt`` (f32, bf16 or f16) to nearest even.

    Raises:
        UnsupportedError: another format.
    """
    own = np.ascontiguousarray(values, np.float32)
    bits = own.view(np.uint32)
    if fmt.base == "f32":
        return bits
    if fmt.base == "bf16":  # half of the last place kept, less one where the last bit is even
        odd = (bits >> np.uint32(16)) & np.uint32(1)
        return ((bits + (np.uint32(0x7FFF) + odd)) >> np.uint32(16)).astype(np.uint16)
    if fmt.base == "f16":
        with np.errstate(over="ignore"):
            return own.astype(np.float16).view(np.uint16)
    raise UnsupportedError(f"weights in {fmt.name}", remedy="f32, bf16 and f16 are modelled")


@partial(jax.jit, static_argnums=1)
def rounded(product: Array, fmt: Format) -> Array:
    """Bits of f32 rounded once to words of ``fmt`` (f32 or bf16) to nearest even; subnormals kept, in integers.

    Raises:
        UnsupportedError: another format.
    """
    if fmt.base == "f32":
        return product
    if fmt.base != "bf16":
        raise UnsupportedError(f"logits in {fmt.name}", remedy="bf16 and f32 are modelled")
    size = product & np.uint32(0x7FFFFFFF)
    odd = (size >> np.uint32(16)) & np.uint32(1)
    up = (size + np.uint32(0x7FFF) + odd) >> np.uint32(16)
    up = jnp.where(size > np.uint32(0x7F800000), np.uint32(0x7FC0), up)
    return (up | ((product >> np.uint32(16)) & np.uint32(0x8000))).astype(jnp.uint16)


def values_of(words: Array, fmt: Format) -> NDArray[np.float32]:
    """f32 values of words of f32, bf16 or f16."""
    own = np.asarray(words)
    if fmt.base == "bf16":
        return (own.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return own.view(np.float32) if fmt.base == "f32" else own.view(np.float16).astype(np.float32)
