"""Exact sums, rounded once: an expansion of three doubles that says when three were not enough."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from specs.formats import Format
from verify.engine.exact import to_odd, two_sum
from verify.engine.primitives import F32, F64, Carrier
from verify.engine.trees import Terms

Array = jax.Array


@dataclass(frozen=True)
class ExactSum:
    """Sums values, or products, of f32 and narrower formats exactly and rounds once to ``fmt``.

    A product of two f32 values is exact in f64. Where three doubles do not hold the sum, or cancellation reaches what
    they do not hold, the risk flag rises in every carrier.
    """

    ops: Carrier
    fmt: Format

    def total(self, terms: Terms, start: Array | None, shape: tuple[int, ...]) -> Array:
        """The sum of ``terms`` and ``start``, of ``shape``."""
        ops = self.ops
        assert not isinstance(ops, F64), "check_supported lets no exact() of f64 through"
        zero = ops.guards.seal(jnp.zeros(shape, jnp.float64))
        high = zero if start is None else jnp.broadcast_to(start.astype(jnp.float64), shape)
        begin = (high, zero, zero, jnp.zeros((), jnp.bool_))

        def body(carry: tuple[Array, ...], xs: tuple[Array, ...]) -> tuple[tuple[Array, ...], None]:
            s0, s1, s2, bad = carry
            parts = [x.astype(jnp.float64) for x in xs[: len(terms.parts)]]
            term = parts[0] if len(parts) == 1 else parts[0] * parts[1]
            if terms.alive is not None:
                term = jnp.where(xs[-1], term, 0.0)
            s0, e0 = two_sum(s0, term)
            s1, e1 = two_sum(s1, jnp.where(jnp.isfinite(s0), e0, 0.0))
            s2, e2 = two_sum(s2, e1)
            return (s0, s1, s2, bad | jnp.any(e2 != 0)), None

        leaves = terms.parts if terms.alive is None else (*terms.parts, terms.alive)
        (s0, s1, s2, bad), _ = jax.lax.scan(body, begin, leaves)
        ops.note(bad)
        tail, rest = two_sum(s1, s2)
        value, error = two_sum(s0, tail)
        # Renormalise: what remains below ``value`` is ``error + rest``.
        low, lost = two_sum(error, rest)
        value, below = two_sum(value, low)
        below = to_odd(*two_sum(below, lost))
        ops.note(jnp.any((lost != 0) & (jnp.abs(value) < jnp.abs(s0) * 2.0**-20)))
        odd = jnp.where(jnp.isfinite(s0), to_odd(value, below), s0)
        result = ops.narrowed(odd, self.fmt)
        if isinstance(ops, F32):
            ops.note((jnp.abs(result) < 2.0**-126) & (odd != 0))
        return result
