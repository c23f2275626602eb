"""The probes of the preflight: programs of guarded primitives beside what NumPy and exact rounding say.

A probe is the name of a trap, inputs on which it shows, a program over the carriers, and what it must give.
All programs of a set run in one jitted function, so that the compiler sees them as it sees an emulation:
fused, in loops, and over arrays of several sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from numpy.typing import NDArray

from specs.formats import BASES, parse_format
from verify.engine import probe_inputs
from verify.engine.carriers import Carrier
from verify.engine.primitives import F32, F64, ZERO, F32Exact, x64
from verify.engine.probe_inputs import Inputs
from verify.numerics import elementary, operations
from verify.numerics.rounding import round_array

Traced = Mapping[str, Array]
Outputs = dict[str, NDArray[Any]]

SIZES = (1, 33)

_F32, _F64, _BF16 = BASES["f32"], BASES["f64"], BASES["bf16"]
_CASTS = ("bf16", "bf16.rz", "tf32", "f16", "f16.ftz", "e5m2", "e4m3fn", "e4m3fn.sat")
_C1, _C2 = np.float32(1.1), np.float32(2.3)


@dataclass(frozen=True)
class Carriers:
    """The classes of carriers that a run of the probes tests."""

    fast: type[F32] = F32
    exact: type[F32Exact] = F32Exact
    double: type[F64] = F64


@dataclass(frozen=True)
class Probe:
    """One probe.

    Attributes:
        name: the trap.
        inputs: makes the named input arrays from a generator.
        program: ``program(carriers, zero, inputs) -> outputs``, traced.
        expected: ``expected(inputs) -> outputs``, NumPy: the same names, shapes and dtypes. Floats are
            compared by their bits, NaN with NaN.
        compute: the compute format whose emulation needs this probe.
    """

    name: str
    inputs: Callable[[np.random.Generator], Inputs]
    program: Callable[[Carriers, Array, Traced], dict[str, Array]]
    expected: Callable[[Inputs], Outputs]
    compute: str = "f32"


# -- programs and what they must give ---------------------------------------------------------------------


def _contraction(k: Carriers, zero: Array, x: Traced) -> dict[str, Array]:
    f = k.fast(zero)
    out = {
        "add": f.add(f.mul(x["a"], x["b"]), x["c"]),
        "sub": f.sub(x["c"], f.mul(x["a"], x["b"])),
    }
    for n in SIZES:
        a, b, c = (x[i][:n] for i in "abc")
        out[f"add {n}"] = f.add(c, f.mul(a, b))
    return out


def _contraction_expected(x: Inputs) -> Outputs:
    product = x["a"] * x["b"]
    out = {"add": product + x["c"], "sub": x["c"] - product}
    return out | {f"add {n}": (product + x["c"])[:n] for n in SIZES}


def _recurrence(f: Carrier, state: Array, a: Array, b: Array, d: Array) -> Array:
    return f.div(f.add(f.mul(state, a), f.mul(b, d)), d)


def _loops(k: Carriers, zero: Array, x: Traced) -> dict[str, Array]:
    f = k.fast(zero)

    def body(state: Array, row: tuple[Array, ...]) -> tuple[Array, None]:
        return _recurrence(f, state, *row), None

    def at(i: Array, state: Array) -> Array:
        return _recurrence(f, state, *(lax.dynamic_index_in_dim(x[n], i, keepdims=False) for n in "abd"))

    rows = (x["a"], x["b"], x["d"])
    return {
        "scan": f.scan(body, x["a"][0], rows)[0],
        "fori_loop": f.fori_loop(0, probe_inputs.STEPS, at, x["a"][0]),
    }


def _loops_expected(x: Inputs) -> Outputs:
    state = x["a"][0]
    for a, b, d in zip(x["a"], x["b"], x["d"], strict=True):
        state = (state * a + b * d) / d
    return {"scan": state, "fori_loop": state}


def _division(k: Carriers, zero: Array, x: Traced) -> dict[str, Array]:
    f = k.fast(zero)
    return {
        "by row": f.div(x["A"], x["row"]),
        "by scalar": f.div(x["A"], x["one"]),
        "by constant": f.div(x["A"], 3.0),
    }


def _division_chain(k: Carriers, zero: Array, x: Traced) -> dict[str, Array]:
    f = k.fast(zero)
    return {"a/b/c": f.div(f.div(x["A"], x["B"]), x["C"])}


def _constants(k: Carriers, zero: Array, x: Traced) -> dict[str, Array]:
    f = k.fast(zero)
    return {
        "(a*c1)*c2": f.mul(f.mul(x["a"], _C1), _C2),
        "(a+c1)+c2": f.add(f.add(x["a"], _C1), _C2),
    }


def _distribution(k: Carriers, zero: Array, x: Traced) -> dict[str, Array]:
    f = k.fast(zero)
    s = x["s"][0]
    return {"a*s+b*s": f.add(f.mul(x["a"], s), f.mul(x["b"], s))}


def _plus_zero(k: Carriers, zero: Array, x: Traced) -> dict[str, Array]:
    return {"x+0": k.fast(zero).add(x["x"], 0.0)}


def _chain(k: Carriers, zero: Array, x: Traced) -> dict[str, Array]:
    f = k.fast(zero)

    def narrow(y: Array) -> Array:
        return f.cast(y, _BF16)

    a, b, c = (narrow(x[n]) for n in "abc")
    error = narrow(f.sub(narrow(f.add(a, b)), a))
    return {"fma": narrow(f.add(narrow(f.mul(a, b)), c)), "error": narrow(f.sub(b, error))}


def _chain_expected(x: Inputs) -> Outputs:
    def narrow(y: NDArray[Any]) -> NDArray[Any]:
        return round_array(y.astype(np.float64), _BF16).astype(np.float32)

    a, b, c = (narrow(x[n]) for n in "abc")
    error = narrow(narrow(a + b) - a)
    return {"fma": narrow(narrow(a * b) + c), "error": narrow(b - error)}


def _cast(k: Carriers, zero: Array, x: Traced) -> dict[str, Array]:
    f = k.fast(zero)
    return {name: f.cast(x["x"], parse_format(name)) for name in _CASTS}


def _cast_expected(x: Inputs) -> Outputs:
    wide = x["x"].astype(np.float64)
    return {name: round_array(wide, parse_format(name)).astype(np.float32) for name in _CASTS}


def _function(k: Carriers, zero: Array, x: Traced) -> dict[str, Array]:
    f = k.fast(zero)
    return {"exp": f.exp(x["exp"]), "exp2": f.exp2(x["exp2"]), "log": f.log(x["log"])}


def _function_expected(x: Inputs) -> Outputs:
    return {
        "exp": elementary.exp_f32(x["exp"]),
        "exp2": elementary.exp2_f32(x["exp2"]),
        "log": elementary.log_f32(x["log"]),
    }


def _sum(k: Carriers, zero: Array, x: Traced) -> dict[str, Array]:
    f = k.fast(zero)
    total, _ = f.scan(lambda t, row: (f.add(t, row), None), jnp.zeros_like(x["x"][0]), x["x"])
    return {"sum": total}


def _fma(k: Carriers, zero: Array, x: Traced) -> dict[str, Array]:
    return {"fma": k.fast(zero).fma(x["a"], x["b"], x["c"])}


def _fma_expected(x: Inputs) -> Outputs:
    rows = zip(x["a"].tolist(), x["b"].tolist(), x["c"].tolist(), strict=True)
    return {"fma": np.array([operations.fma(a, b, c, _F32) for a, b, c in rows], np.float32)}


def _edge(f: Carrier, x: Traced) -> dict[str, Array]:
    """Operations whose operands or results are subnormal, as stored words."""
    p, q, r, s, score = (f.decode(x[n], _F32) for n in ("p", "q", "r", "s", "score"))
    values = {
        "add": f.add(p, q),
        "mul": f.mul(r, s),
        "div": f.div(p, r),
        "max": f.maximum(p, q),
        "exp": f.exp(score),
        "f16": f.cast(p, BASES["f16"]),
        "bf16": f.cast(p, _BF16),
    }
    words = f.encode(jnp.stack(list(values.values())))
    return {n: words[i] for i, n in enumerate(values)} | {"less": f.compare("<", p, q)}


def _edge_expected(x: Inputs) -> Outputs:
    p, q, r, s, score = (x[n].view(np.float32) for n in ("p", "q", "r", "s", "score"))
    # NumPy does not say which of +0 and -0 is the larger; IEEE 754-2019 does.
    top = np.where((p == 0) & (q == 0), p + q, np.maximum(p, q))
    with np.errstate(under="ignore"):
        values = {"add": p + q, "mul": r * s, "div": p / r, "max": top, "exp": elementary.exp_f32(score)}
        values |= {n: round_array(p.astype(np.float64), BASES[n]).astype(np.float32) for n in ("f16", "bf16")}
    return {n: v.view(np.uint32) for n, v in values.items()} | {"less": p < q}


def _subnormal(k: Carriers, zero: Array, x: Traced) -> dict[str, Array]:
    return _edge(k.exact(zero), x)


def _risk(k: Carriers, zero: Array, x: Traced) -> dict[str, Array]:
    """Whether each element, computed alone in the fast carrier, is right or flagged, which must always hold.

    ``calm`` is the flag of ordinary numbers: it must stay down.
    """

    def alone(words: dict[str, Array]) -> tuple[dict[str, Array], Array]:
        f = k.fast(zero)
        return _edge(f, words), f.risk()

    right = {n.removeprefix("right "): v for n, v in x.items() if n.startswith("right ")}
    got, flag = jax.vmap(alone)({n: x[n] for n in ("p", "q", "r", "s", "score")})
    out = {n: flag | (got[n] == want) for n, want in right.items()}
    f = k.fast(zero)
    one = f.decode(x["calm"], _F32)
    f.exp(f.div(f.mul(f.add(one, one), one), one))
    return out | {"calm": f.risk()}


def _risk_inputs(rng: np.random.Generator) -> Inputs:
    made = probe_inputs.near_subnormal(rng)
    calm = (1 + rng.random(500)).astype(np.float32).view(np.uint32)
    return {**made, **{f"right {n}": v for n, v in _edge_expected(made).items()}, "calm": calm}


def _risk_expected(x: Inputs) -> Outputs:
    right = {n.removeprefix("right "): np.ones(v.shape, bool) for n, v in x.items() if n.startswith("right ")}
    return right | {"calm": np.array(False)}


def _double(k: Carriers, zero: Array, x: Traced) -> dict[str, Array]:
    f = k.double(zero)
    return {
        "a*b+c": f.add(f.mul(x["a"], x["b"]), x["c"]),
        "by scalar": f.div(x["a"], x["b"][0]),
        "to bf16": f.cast(x["a"], _BF16),
    }


def _double_function(k: Carriers, zero: Array, x: Traced) -> dict[str, Array]:
    f = k.double(zero)
    return {"exp": f.exp(x["exp"]), "log": f.log(x["log"])}


def _double_function_expected(x: Inputs) -> Outputs:
    return {
        "exp": np.array([elementary.exp(v, _F64) for v in x["exp"].tolist()]),
        "log": np.array([elementary.log(v, _F64) for v in x["log"].tolist()]),
    }


PROBES: tuple[Probe, ...] = (
    Probe("contraction", probe_inputs.normals("a", "b", "c"), _contraction, _contraction_expected),
    Probe("contraction and division in loops", probe_inputs.steps, _loops, _loops_expected),
    Probe(
        "division by a broadcast value",
        probe_inputs.divisors,
        _division,
        lambda x: {
            "by row": x["A"] / x["row"],
            "by scalar": x["A"] / x["one"],
            "by constant": x["A"] / np.float32(3),
        },
    ),
    Probe(
        "chained division",
        probe_inputs.divisors,
        _division_chain,
        lambda x: {"a/b/c": x["A"] / x["B"] / x["C"]},
    ),
    Probe(
        "chained constants",
        probe_inputs.normals("a"),
        _constants,
        lambda x: {"(a*c1)*c2": x["a"] * _C1 * _C2, "(a+c1)+c2": x["a"] + _C1 + _C2},
    ),
    Probe(
        "common factor",
        probe_inputs.normals("a", "b", "s"),
        _distribution,
        lambda x: {"a*s+b*s": x["a"] * x["s"][0] + x["b"] * x["s"][0]},
    ),
    Probe("adding zero", probe_inputs.zeros, _plus_zero, lambda x: {"x+0": x["x"] + np.float32(0)}),
    Probe("skipped roundings", probe_inputs.normals("a", "b", "c"), _chain, _chain_expected),
    Probe("casts to narrow formats", probe_inputs.casts, _cast, _cast_expected),
    Probe("exp, exp2 and log", probe_inputs.functions, _function, _function_expected),
    Probe("order of sums", probe_inputs.sums, _sum, lambda x: {"sum": np.add.accumulate(x["x"], axis=0)[-1]}),
    Probe("fused multiply-add", probe_inputs.fused, _fma, _fma_expected),
    Probe("subnormal numbers", probe_inputs.near_subnormal, _subnormal, _edge_expected),
    Probe("risk flag", _risk_inputs, _risk, _risk_expected),
    Probe(
        "f64 arithmetic",
        probe_inputs.doubles,
        _double,
        lambda x: {
            "a*b+c": x["a"] * x["b"] + x["c"],
            "by scalar": x["a"] / x["b"][0],
            "to bf16": round_array(x["a"], _BF16),
        },
        compute="f64",
    ),
    Probe(
        "f64 exp and log",
        probe_inputs.double_functions,
        _double_function,
        _double_function_expected,
        compute="f64",
    ),
)


def _loops_unjitted(k: Carriers, x: Inputs) -> Outputs:
    """The loops of the probe of that name, outside of any jitted function: XLA compiles their bodies, too."""

    def body(carry: tuple[Array, Array], row: tuple[Array, ...]) -> tuple[tuple[Array, Array], None]:
        state, zero = carry
        return (_recurrence(k.fast(zero), state, *row), zero), None

    with x64():
        rows = tuple(jnp.asarray(x[n]) for n in "abd")
        (state, _), _ = lax.scan(body, (rows[0][0], jnp.asarray(ZERO)), rows)
        return {"scan": np.asarray(state)}


UNJITTED: dict[str, Callable[[Carriers, Inputs], Outputs]] = {
    "contraction and division in loops": _loops_unjitted
}
"""Probe to the same program run eagerly, for the full set."""
