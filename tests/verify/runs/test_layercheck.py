"""Whether a stored output is that of the stored inputs: kernels may round as they like, inputs may not be rounded after."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from verify.metrics.health import run_health
from verify.runs.layercheck import check_out
from verify.runs.sequence import Attention

BF16 = np.dtype(ml_dtypes.bfloat16)


def inputs(dtype: Any, seed: int = 0, spread: float = 3.0) -> tuple[Any, Any, Any]:
    """q [5, 4, 16], k and v [40, 2, 16]."""
    rng = np.random.default_rng(seed)
    q, k, v = (rng.standard_normal(shape) for shape in ((5, 4, 16), (40, 2, 16), (40, 2, 16)))
    return (q * spread).astype(dtype), (k * spread).astype(dtype), v.astype(dtype)


def straight(q: Any, k: Any, v: Any, causal: bool, dtype: Any) -> Any:
    """One query at a time, one head at a time, every step rounded to ``dtype``."""
    out = np.zeros((*q.shape[:2], v.shape[2]), dtype)
    for i in range(len(q)):
        seen = len(k) - len(q) + i + 1 if causal else len(k)
        for h in range(q.shape[1]):
            own = h // (q.shape[1] // k.shape[1])
            scores = np.array([(q[i, h] * k[j, own]).sum(dtype=dtype) for j in range(seen)], dtype) / dtype(4)
            weights = np.exp(scores - scores.max()).astype(dtype)
            for j in range(seen):
                out[i, h] += weights[j] * v[j, own]
            out[i, h] /= weights.sum(dtype=dtype)
    return out


def exact(q: Any, k: Any, v: Any) -> Any:
    """Causal attention in float64, all heads at once."""
    q, k, v = (x.astype(np.float64) for x in (q, np.repeat(k, 2, axis=1), np.repeat(v, 2, axis=1)))
    scores = np.einsum("ihd,jhd->hij", q, k) / 4
    scores = np.where(np.arange(40) <= np.arange(35, 40)[:, None], scores, -np.inf)
    weights = np.exp(scores - scores.max(axis=2, keepdims=True))
    return np.einsum("hij,jhd->ihd", weights / weights.sum(axis=2, keepdims=True), v)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("seed", range(3))
def test_a_kernel_in_float32(causal: bool, seed: int) -> None:
    q, k, v = inputs(np.float32, seed)
    found = check_out(Attention(0, q, k, v, straight(q, k, v, causal, np.float32)))
    assert found is not None
    assert found.causal == causal
    assert found.computed_from_them
    assert found.distance < 1e-5


@pytest.mark.parametrize("dtype", [np.float16, BF16])
def test_inputs_that_were_rounded_for_storing(dtype: Any) -> None:
    """float32 tensors that a capture keeps in 16 bits, beside the float32 output."""
    q, k, v = inputs(np.float32)
    out = straight(q, k, v, True, np.float32)
    q, k, v = q.astype(dtype), k.astype(dtype), v.astype(dtype)
    layer = Attention(7, q, k, v, out)
    found = check_out(layer)
    assert found is not None
    assert not found.computed_from_them
    off = np.abs(out - exact(q, k, v))
    assert found.distance == pytest.approx(off.max(), rel=1e-9)  # both in float64, in another order
    assert found.at == tuple(int(i) for i in np.unravel_index(off.argmax(), off.shape))
    text = found.text(layer)
    assert "layer 7" in text
    assert text.endswith("softcap or sinks?")


@pytest.mark.parametrize("dtype", [np.float16, BF16])
@pytest.mark.parametrize("spread", [0.5, 3.0])
def test_a_kernel_in_sixteen_bits(dtype: Any, spread: float) -> None:
    """Weights and output rounded to the inputs' format, as tensor-core kernels do."""
    q, k, v = inputs(dtype, spread=spread)
    scores = np.einsum("ihd,jhd->hij", q.astype(np.float32), np.repeat(k, 2, axis=1).astype(np.float32)) / 4
    scores = np.where(np.arange(40) <= np.arange(35, 40)[:, None], scores, -np.inf)
    weights = np.exp(scores - scores.max(axis=2, keepdims=True)).astype(dtype).astype(np.float32)
    out = np.einsum("hij,jhd->ihd", weights, np.repeat(v, 2, axis=1).astype(np.float32))
    out = (out / weights.sum(axis=2).T[:, :, None]).astype(dtype)
    found = check_out(Attention(0, q, k, v, out))
    assert found is not None
    assert found.computed_from_them
    off = np.abs(out.astype(np.float64) - exact(q, k, v))
    assert found.distance == pytest.approx(off.max(), rel=1e-9) != 0
    other = check_out(Attention(0, q, k, v[::-1].copy(), out))
    assert other is not None
    assert not other.computed_from_them


def test_what_cannot_be_checked() -> None:
    q, k, v = inputs(np.float32)
    out = np.zeros((5, 4, 16), np.float32)
    assert check_out(Attention(0, q, k, v)) is None
    assert check_out(Attention(0, q, k, None, out)) is None
    assert check_out(Attention(0, q, k[:3], v[:3], out)) is None
    assert check_out(Attention(0, q, k, v, out[:4])) is None
    assert check_out(Attention(0, q, k, v, np.full_like(out, np.nan))) is None


def test_the_health_of_a_run_says_so() -> None:
    from tests.verify.metrics import made

    q, k, v = inputs(np.float32)
    out = straight(q, k, v, True, np.float32)
    half = np.float16
    rounded = [Attention(n, q.astype(half), k.astype(half), v.astype(half), out) for n in (1, 2)]
    layers = (Attention(0, q, k, v, out), *rounded)
    found = run_health(made.run("r", made.sequence(values=np.zeros((2, 3), np.float32), attention=layers)))
    one = next(f for f in found.findings if f.code == "attention_output")
    assert (one.severity, one.count) == ("warning", 2)
    assert one.text.endswith("; 1 more layer likewise")
    good = run_health(made.run("r", made.sequence(values=np.zeros((2, 3), np.float32), attention=layers[:1])))
    assert [f.severity for f in good.findings if f.code == "attention_output"] == ["note"]
