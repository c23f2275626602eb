"""The TRT-LLM-gen reducer on given partial results, against the recurrence written out in NumPy; the assumed body."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from specs import load_platform, load_spec
from specs.errors import InputError, SpecError, UnsupportedError
from specs.loader import parse_spec
from tests.verify.bits32 import F32, ex2, fma, rcp
from verify import emulate
from verify.fed import merge

CONTEXT: dict[str, Any] = {"kv_len": 128 * 5 - 3, "q_heads": 3, "head_dim": 64, "sm_count": 148}
SCALE = 0.125


def partials(seed: int, rows: int = 3, ctas: int = 2, dim: int = 4) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    return {
        "top": rng.standard_normal((rows, ctas)).astype(F32) * F32(8),
        "norm": (rng.random((rows, ctas)) * 100 + 1).astype(F32),
        "partial": rng.standard_normal((rows, ctas, dim)).astype(ml_dtypes.bfloat16),
    }


def reduced(top: Any, norm: Any, partial: Any, sink: float | None) -> Any:
    """fmhaReductionKernel by hand: one row, blocks in order."""
    k = F32(SCALE * 1.4426950408889634)
    m, s, o = F32(-3.4028234663852886e38), F32(0), np.zeros(partial.shape[-1], F32)
    with np.errstate(over="ignore"):
        for c in range(len(top)):
            new = max(m, top[c])
            e0, e1 = (ex2(F32(F32(x - new) * k)) for x in (m, top[c]))
            s = fma(s, e0, F32(norm[c] * e1))
            o = fma(partial[c].astype(F32), e1, (o * e0).astype(F32))
            m = new
    if sink is not None:
        shift = F32(np.float64(sink) * 1.4426950408889634 - np.float64(F32(m * k)))
        s = F32(s + ex2(shift))
    return (o * rcp(s)).astype(F32).astype(ml_dtypes.bfloat16)


@pytest.mark.parametrize("with_sinks", [False, True])
def test_the_reducer_on_given_partials(with_sinks: bool) -> None:
    """Five and eleven partial results, one of them far above the others."""
    spec, b200 = load_spec("trtllm_gen.reduction"), load_platform("b200")
    for seed, ctas in ((1, 5), (2, 11)):
        context = {**CONTEXT, "kv_len": 128 * 2 * ctas * 2, "max_kv_len": 512 * ctas}
        given = partials(seed, ctas=ctas)
        given["top"][0, ctas // 2] += F32(200)
        sinks = [0.5, -3.25, 7.0] if with_sinks else None
        got = merge(spec, b200, given, scale=SCALE, sinks=sinks, context=context)["output"]
        for row in range(3):
            sink = None if sinks is None else sinks[row]
            want = reduced(given["top"][row], given["norm"][row], given["partial"][row], sink)
            assert got[row].tobytes() == want.tobytes()


def test_what_does_not_fit_is_refused() -> None:
    spec, b200 = load_spec("trtllm_gen.reduction"), load_platform("b200")
    good = partials(1, ctas=2)

    def run(given: dict[str, Any], **more: Any) -> Any:
        return merge(spec, b200, given, scale=SCALE, context={**CONTEXT, **more})

    assert run(good)["output"].shape == (3, 4)
    for given, cause in (
        ({}, "no partial"),
        ({**good, "top": good["top"][:2]}, r"\[2, 3\] rows"),
        ({**good, "output": good["norm"]}, "partial 'output': no such site of a level"),
        ({**good, "topp": good["top"]}, "did you mean 'top'"),
        ({**good, "top": good["top"][:, :1]}, r"feed 'top': shape \(1,\) where \(2,\) is needed"),
        ({**good, "partial": good["norm"]}, "2 dimensions, not 3"),
    ):
        with pytest.raises(InputError, match=cause):
            run(given)
    with pytest.raises(UnsupportedError, match=r"compute_capability = 90\n  TRT-LLM-gen kernels exist for"):
        merge(spec, load_platform("h200"), good, scale=SCALE, context=CONTEXT)
    with pytest.raises(UnsupportedError, match=r"walkthrough.triton has no line that uses sink"):
        merge(load_spec("walkthrough.triton"), b200, good, scale=SCALE, sinks=[0.0] * 3, context=CONTEXT)


def test_the_body_is_assumed_and_says_so() -> None:
    spec = load_spec("trtllm_gen.reduction")
    assert spec.assumption.startswith(
        "trtllm_gen.reduction: score, top, safe, weight, norm, partial are assumed, not"
    )
    assert "closed binary" in spec.assumption
    assert load_spec("xqa.decode").assumption == ""
    again = parse_spec(spec.to_toml())
    assert again == spec
    assert again.assumption == spec.assumption
    with pytest.raises(SpecError, match=r"assumed: no line 'topp'\n  did you mean 'top'"):
        parse_spec(spec.to_toml().replace('"top", "safe"', '"topp", "safe"'))


def test_through_the_assumed_body() -> None:
    rng = np.random.default_rng(4)
    q = rng.standard_normal((1, 16), dtype=F32)
    k, v = (rng.standard_normal((700, 1, 16), dtype=F32) for _ in range(2))
    context = {"sm_count": 3, "max_kv_len": 2_000}
    result = emulate(
        load_spec("trtllm_gen.reduction"),
        load_platform("b200"),
        q=q,
        k=k,
        v=v,
        context=context,
        backend="oracle",
    )
    assert result.plan.count == 3
    s = k[:, 0].astype(np.float64) @ q[0] / 4
    p = np.exp(s - s.max())
    assert np.allclose(result.output[0].astype(np.float64), p @ v[:, 0] / p.sum(), atol=2e-3)
