"""The scalar oracle against values from outside: the teaching input, vLLM's kernel, dense against tiled."""

from __future__ import annotations

import hashlib
import json
import random
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from specs import load_platform, load_spec
from verify.definition import RowInputs, ScalarArithmetic, evaluate
from verify.definition.balls import enclose
from verify.partition import plan

DATA = Path(__file__).parents[2] / "data"
TOKENS = 27_525
S = [0.5, 1.0, 0.75, -2.0, -1.25, -0.75, -0.5, -3.0, -0.25, -2.25, 0.75, 0.5]
V = [1.875, 3.5, -0.5, 6.0, 0.0, -1.0, 5.5, -0.5, -3.5, 0.5, 4.0, -2.5]


def teaching() -> RowInputs:
    t = np.arange(TOKENS)
    scores = np.array(S)[t % 12] + ((t // 64) % 9) / 8
    return RowInputs(v=np.array(V)[t % 12][:, None], feed={"score": scores})


@pytest.mark.parametrize(
    ("backend", "platform", "groups", "f32", "bf16"),
    [
        ("flash_attention_2", "h200", 54, "0x1.52fc5ap+0", 1.3203125),
        ("flash_attention_2", "b200", 62, "0x1.5300fap+0", 1.328125),
        ("flash_attention_2", "sm120", 87, "0x1.5302a8p+0", 1.328125),
        ("xqa", "h200", 33, "0x1.52b064p+0", 1.3203125),
        ("xqa", "sm120", 47, "0x1.531154p+0", 1.328125),
        ("triton", "h200", 16, "0x1.52fdd6p+0", 1.3203125),
        ("triton", "b200", 16, "0x1.52fdd6p+0", 1.3203125),
        ("triton", "sm120", 16, "0x1.52fdd6p+0", 1.3203125),
        ("trtllm_gen", "b200", 216, "0x1.5359e6p+0", 1.328125),
    ],
)
def test_the_teaching_input(backend: str, platform: str, groups: int, f32: str, bf16: float) -> None:
    p = plan(
        load_spec(f"walkthrough.{backend}"),
        load_platform(platform),
        kv_len=TOKENS,
        q_heads=24,
        kv_heads=4,
        head_dim=256,
    )
    got = evaluate(p.program, p, teaching(), ["exact", "output"], ScalarArithmetic())
    assert p.count == groups
    assert got["exact"].item() == float.fromhex(f32)
    assert got["output"].item() == bf16


def test_the_local_maxima_of_the_first_groups_of_flash_attention_2() -> None:
    spec = load_spec("walkthrough.flash_attention_2")
    tops: list[float] = []
    for name in ("h200", "b200", "sm120"):
        p = plan(spec, load_platform(name), kv_len=TOKENS, q_heads=24, kv_heads=4, head_dim=256)
        tops.append(float(evaluate(p.program, p, teaching(), ["top"], ScalarArithmetic())["top"][0]))
    assert tops == [1.875, 1.75, 1.5]


def test_the_real_answer_of_the_teaching_input() -> None:
    p = plan(load_spec("walkthrough.trtllm_gen"), load_platform("b200"), kv_len=TOKENS)
    ball = enclose(p.program, p, teaching(), ["output"])["output"].item()
    assert abs(float(ball.mid()) - 1.325056137248) < 1e-12
    assert float(ball.rad()) < 1e-30


CASES = json.loads((DATA / "vllm_triton_small.json").read_text())


@pytest.mark.parametrize("case", CASES, ids=[c["key"] for c in CASES])
def test_vllm_in_tritons_interpreter(case: dict[str, Any]) -> None:
    bf16 = ml_dtypes.bfloat16
    rng = np.random.default_rng(case["seed"])
    heads, kv_heads, n, d = case["hq"], case["hkv"], case["n"], case["d"]
    q = (rng.standard_normal((heads, d)).astype(np.float32) * np.float32(case["qscale"])).astype(bf16)
    k, v = (rng.standard_normal((n, kv_heads, d)).astype(np.float32).astype(bf16) for _ in "kv")
    bits = b"".join(x.view(np.uint16).tobytes() for x in (q, k, v))
    assert hashlib.sha256(bits).hexdigest()[:16] == case["in_sha"]
    p = plan(
        load_spec("vllm_triton.interpreter"),
        load_platform("h200"),
        kv_len=n,
        q_heads=heads,
        kv_heads=kv_heads,
        head_dim=d,
    )
    head = heads - 1
    columns = slice(None) if n < 100 else slice(0, 8)
    inputs = RowInputs(
        q=q[head].astype(np.float64),
        k=k[:, -1].astype(np.float64),
        v=v[:, -1, columns].astype(np.float64),
        scalars={"scale": case["scale"]},
    )
    got = evaluate(p.program, p, inputs, ["output", "top", "norm"], ScalarArithmetic())
    with np.load(DATA / "vllm_triton_small.npz") as want:
        output = got["output"].data.astype(bf16).view(np.uint16)
        np.testing.assert_array_equal(output, want[f"{case['key']}/out"][head, columns])
        for site, key in (("top", "segm_max"), ("norm", "segm_expsum")):
            stored = want[f"{case['key']}/{key}"][head]
            written = len(got[site])
            np.testing.assert_array_equal(got[site].data.astype(np.float32), stored[:written])
            assert np.isnan(stored[written:]).all()


@pytest.fixture(scope="module")
def dense_and_tiled() -> tuple[NDArray[Any], ...]:
    """[64, 16] outputs of dense, tiled and tiled with its declared fault, of the first and the last rows."""
    draw = random.Random(42)
    q, k, v = (np.array([[draw.uniform(-0.8, 0.8) for _ in range(16)] for _ in range(64)]) for _ in range(3))

    def rows(name: str, numbers: list[int], **options: bool) -> NDArray[np.float64]:
        p = plan(
            load_spec(name),
            load_platform("h200"),
            kv_len=64,
            q_len=64,
            head_dim=16,
            causal=1,
            options=options,
        )
        out = [
            evaluate(
                p.program,
                p,
                RowInputs(q=q[i], k=k, v=v, visible=lambda t, i=i: t <= i, scalars={"scale": 0.25}),
                ["output"],
                ScalarArithmetic(),
            )["output"].data
            for i in numbers
        ]
        return np.array(out)

    everything = list(range(64))
    return (
        rows("walkthrough.dense", everything),
        rows("walkthrough.tiled", everything),
        rows("walkthrough.tiled", everything, rescale_previous_accumulator=False),
    )


def test_tiled_is_dense_to_the_last_place(dense_and_tiled: tuple[NDArray[Any], ...]) -> None:
    dense, tiled, faulty = dense_and_tiled
    assert f"{np.abs(tiled - dense).max():.3e}" == "1.110e-16"
    assert f"{np.abs(faulty - dense).max():.4f}" == "0.0521"
    assert [f"{x:.6f}" for x in tiled[0, :4]] == ["-0.267257", "0.731232", "-0.775466", "0.699456"]
    assert [f"{x:.6f}" for x in tiled[63, :4]] == ["0.017991", "-0.007947", "0.059253", "0.070964"]
