"""Risk flags: traced booleans that say "a subnormal number may have been flushed", collected across loops."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax


class RiskLog:
    """Collects flags of the operations of one trace, and carries them out of loops.

    A flag belongs to the trace in which it was made: one made inside the body of a loop must leave through
    the carry of that loop. `scan`, `fori_loop`, `vmap` and `cond` do that; `scope` is for loops of your own::

        def body(state, x):
            total, flag = state
            with carrier.scope():
                total = carrier.add(total, x)
                flag = flag | carrier.take_risk()
            return (total, flag), None
        (total, flag), _ = lax.scan(body, (init, jnp.array(False)), xs)
        carrier.note(flag)
    """

    def __init__(self) -> None:
        self._flags: list[Array] = []

    def note(self, flag: Array) -> None:
        """Add a flag: a boolean array of any shape, made in the current trace; true anywhere counts."""
        # A maximum of bytes takes half the time of a logical or.
        self._flags.append(flag if flag.ndim == 0 else jnp.max(flag.astype(jnp.int8), initial=0) > 0)

    def risk(self) -> Array:
        """Whether any operation noted so far may have met a subnormal number: a traced bool scalar."""
        total = jnp.zeros((), jnp.bool_)
        for flag in self._flags:
            total = total | flag
        self._flags = [total] if self._flags else []
        return total

    def take_risk(self) -> Array:
        """Like `risk`, and forget it."""
        total = self.risk()
        self._flags = []
        return total

    @contextmanager
    def scope(self) -> Generator[None]:
        """A fresh, empty log inside; the outer log comes back after. Take the flag out before the end."""
        outer, self._flags = self._flags, []
        try:
            yield
        finally:
            self._flags = outer

    def scan(
        self,
        body: Callable[[Any, Any], tuple[Any, Any]],
        init: Any,
        xs: Any = None,
        length: int | None = None,
        *,
        reverse: bool = False,
        unroll: int = 1,
    ) -> tuple[Any, Any]:
        """`jax.lax.scan` whose body may use this carrier; flags raised inside reach this log."""

        def step(carry: Any, x: Any) -> tuple[Any, Any]:
            state, flag = carry
            with self.scope():
                state, y = body(state, x)
                flag = flag | self.take_risk()
            return (state, flag), y

        start = (init, jnp.zeros((), jnp.bool_))
        (state, flag), ys = lax.scan(step, start, xs, length, reverse=reverse, unroll=unroll)
        self.note(flag)
        return state, ys

    def fori_loop(
        self,
        lower: Any,
        upper: Any,
        body: Callable[[Any, Any], Any],
        init: Any,
        *,
        unroll: int | None = None,
    ) -> Any:
        """`jax.lax.fori_loop` whose body may use this carrier; flags raised inside reach this log."""

        def step(i: Any, carry: Any) -> Any:
            state, flag = carry
            with self.scope():
                state = body(i, state)
                flag = flag | self.take_risk()
            return state, flag

        start = (init, jnp.zeros((), jnp.bool_))
        state, flag = lax.fori_loop(lower, upper, step, start, unroll=unroll)
        self.note(flag)
        return state

    def vmap(self, fun: Callable[..., Any], in_axes: Any = 0, out_axes: Any = 0) -> Callable[..., Any]:
        """`jax.vmap` of a function that uses this carrier; flags raised inside reach this log."""

        def inner(*args: Any) -> tuple[Any, Array]:
            with self.scope():
                return fun(*args), self.take_risk()

        def outer(*args: Any) -> Any:
            result, flags = jax.vmap(inner, in_axes=in_axes, out_axes=(out_axes, 0))(*args)
            self.note(flags)
            return result

        return outer

    def cond(
        self, pred: Any, true_fun: Callable[..., Any], false_fun: Callable[..., Any], *operands: Any
    ) -> Any:
        """`jax.lax.cond` whose branches may use this carrier; flags of the branch taken reach this log."""

        def logged(fun: Callable[..., Any]) -> Callable[..., tuple[Any, Array]]:
            def branch(*args: Any) -> tuple[Any, Array]:
                with self.scope():
                    return fun(*args), self.take_risk()

            return branch

        result, flag = lax.cond(pred, logged(true_fun), logged(false_fun), *operands)
        self.note(flag)
        return result
