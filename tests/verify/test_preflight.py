"""The preflight passes here, and each probe fails with a carrier that falls into its trap."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from specs.errors import FidelityError
from verify import preflight as module
from verify.engine.guards import Guards
from verify.engine.primitives import F32, F64, F32Exact
from verify.engine.probes import PROBES, Carriers
from verify.preflight import ensure_faithful, preflight

NAMES = [p.name for p in PROBES]


class Open(Guards):
    """Guards that guard nothing."""

    def seal(self, x):
        return x

    def divisor(self, a, b):
        return b


class Unguarded(F32):
    """Plain jax.numpy: no guards or checks, fma rounded twice, XLA's functions, sums backwards."""

    def _make_guards(self, zero):
        return Open(zero)

    def note(self, flag):
        pass

    def fma(self, a, b, c, fmt=None, *, check=True):
        x, y, z = (self.lift(v).astype(jnp.float64) for v in (a, b, c))
        return (x * y + z).astype(jnp.float32)

    def exp(self, a, fmt=None, *, check=True):
        return jnp.exp(self.lift(a))

    def exp2(self, a, fmt=None, *, check=True):
        return jnp.exp2(self.lift(a))

    def log(self, a, fmt=None):
        return jnp.log(self.lift(a))

    def cast(self, x, fmt, *, check=True):
        exponent = (fmt.emax - fmt.emin + 2).bit_length() - 1
        return lax.reduce_precision(self.lift(x), exponent, fmt.p - 1)

    def scan(self, body, init, xs=None, length=None, *, reverse=False, unroll=1):
        return super().scan(body, init, xs, length, reverse=not reverse, unroll=unroll)


class Skipping(Unguarded):
    """Excess precision: roundings to bf16 between operations are skipped."""

    def cast(self, x, fmt, *, check=True):
        return self.lift(x) if fmt.base == "bf16" else super().cast(x, fmt)


class Flushing(F32Exact):
    """f32 with subnormals flushed to zero."""

    def _rounded(self, wide, fmt):
        return super()._rounded(wide, dataclasses.replace(fmt, ftz=True))


class UnguardedDouble(F64):
    def _make_guards(self, zero):
        return Open(zero)

    def exp(self, a, fmt=None, *, check=True):
        return jnp.exp(self.lift(a))

    def log(self, a, fmt=None):
        return jnp.log(self.lift(a))


@pytest.fixture(scope="module")
def honest():
    return preflight(quick=True)


@pytest.fixture(scope="module")
def naive():
    return preflight(carriers=Carriers(Unguarded, Flushing, UnguardedDouble))


@pytest.fixture(scope="module")
def skipping():
    return preflight(compute="f32", carriers=Carriers(Skipping))


def test_this_machine_is_faithful(honest):
    assert [p.name for p in honest.probes] == NAMES
    assert honest.ok, [p.detail for p in honest.probes if not p.ok]
    assert all(p.remedy == "" and "bit for bit" in p.detail for p in honest.probes)
    assert jax.__version__ in honest.versions


@pytest.mark.parametrize("name", [n for n in NAMES if n != "skipped roundings"])
def test_each_probe_can_fail(naive, name):
    (result,) = (p for p in naive.probes if p.name == name)
    assert not result.ok
    assert "results are wrong" in result.detail
    assert "oracle" in result.remedy


def test_skipped_roundings_are_found(skipping):
    (result,) = (p for p in skipping.probes if p.name == "skipped roundings")
    assert not result.ok


def test_the_detail_shows_bits(naive):
    contraction = naive.probes[0]
    assert contraction.name == "contraction"
    assert contraction.detail.count("(0x") == 2


@pytest.mark.slow
def test_the_full_set_compiles_probes_alone_and_loops_unjitted():
    """By default the quick set in f32, and in f64 before every run of `emulate` that computes in f64."""
    report = preflight(quick=False, compute="f64")
    assert report.ok
    (double, functions) = report.probes
    assert double.detail == "120066 results, bit for bit"
    assert functions.ok


@pytest.mark.slow
def test_the_full_set_holds():
    report = preflight(quick=False)
    assert report.ok, [p.detail for p in report.probes if not p.ok]


@pytest.mark.slow
def test_the_full_set_finds_contraction_outside_of_jit():
    report = preflight(quick=False, compute="f32", carriers=Carriers(Unguarded))
    assert not report.ok


def test_ensure_faithful_passes_and_is_cached(monkeypatch, honest):
    calls = []

    def counted(**arguments):
        calls.append(arguments)
        return honest

    module._quick.cache_clear()
    monkeypatch.setattr(module, "preflight", counted)
    ensure_faithful()
    ensure_faithful("f32")
    ensure_faithful("f64")
    module._quick.cache_clear()
    assert calls == [{"compute": "f32"}, {"compute": "f64"}]


def test_ensure_faithful_refuses_with_the_remedy(monkeypatch, naive):
    module._quick.cache_clear()
    monkeypatch.setattr(module, "preflight", lambda **_: naive)
    with pytest.raises(FidelityError, match="contraction") as caught:
        ensure_faithful()
    module._quick.cache_clear()
    assert caught.value.exit_code == 3
    assert "xla_cpu_max_isa" in caught.value.remedy
    assert "more probes fail" in caught.value.cause


def test_probe_inputs_show_the_trap_without_jax():
    """What a probe expects differs from what its trap gives, in NumPy."""
    rng = np.random.default_rng(0)
    (contraction,) = (p for p in PROBES if p.name == "contraction")
    x = contraction.inputs(rng)
    fused = (x["a"].astype(np.float64) * x["b"] + x["c"]).astype(np.float32)
    assert np.mean(fused != contraction.expected(x)["add"]) > 0.2
