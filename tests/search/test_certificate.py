"""Certificates: values from outside, distances and constraints by hand, files from elsewhere."""

from __future__ import annotations

import copy
import json
import math
from dataclasses import replace
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

import search.exact.replay as replay_module
from search.certificate import Certificate, certify
from search.sides import Side, load_side
from specs import load_platform, parse_spec
from specs.errors import InputError, UnsupportedError
from tests.verify.small import HEADER
from verify import emulate
from verify.partition import Plan

TOKENS = 27_525
S = [0.5, 1.0, 0.75, -2.0, -1.25, -0.75, -0.5, -3.0, -0.25, -2.25, 0.75, 0.5]
V = [1.875, 3.5, -0.5, 6.0, 0.0, -1.0, 5.5, -0.5, -3.5, 0.5, 4.0, -2.5]
SHAPE: dict[str, Any] = {"q_heads": 24, "kv_heads": 4, "head_dim": 256}


def teaching() -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    t = np.arange(TOKENS)
    return (np.array(S)[t % 12] + ((t // 64) % 9) / 8).astype(np.float32), np.array(V, np.float32)[t % 12]


def word(x: float) -> str:
    return f"0x{int(np.float32(x).view(np.uint32)):08X}"


def sides(*cells: str) -> list[Side]:
    return [load_side(f"walkthrough.{cell}") for cell in cells]


#: Published with the teaching input: groups, the f32 result, the bf16 output.
CELLS = {
    "flash_attention_2@h200": (54, "0x1.52fc5ap+0", "0x3FA9"),
    "flash_attention_2@b200": (62, "0x1.5300fap+0", "0x3FAA"),
    "flash_attention_2@sm120": (87, "0x1.5302a8p+0", "0x3FAA"),
    "xqa@h200": (33, "0x1.52b064p+0", "0x3FA9"),
    "xqa@sm120": (47, "0x1.531154p+0", "0x3FAA"),
    "triton@h200": (16, "0x1.52fdd6p+0", "0x3FA9"),
    "triton@sm120": (16, "0x1.52fdd6p+0", "0x3FA9"),
    "trtllm_gen@b200": (216, "0x1.5359e6p+0", "0x3FAA"),
}
FOUR = ["flash_attention_2@h200", "flash_attention_2@b200", "xqa@h200", "trtllm_gen@b200"]


@pytest.fixture(scope="module")
def of_the_teaching_input() -> Certificate:
    scores, values = teaching()
    return certify(sides(*FOUR), SHAPE, scores=scores, values=values, cancellation=0.1)


def check_cells(found: Certificate, cells: list[str]) -> None:
    for side, cell in zip(found.sides, cells, strict=True):
        groups, f32, bf16 = CELLS[cell]
        assert side.method == "exact"
        assert side.groups == groups
        assert side.before == (word(float.fromhex(f32)),)
        assert side.output == (bf16,)
    assert found.errors == ()


@pytest.mark.slow
def test_the_teaching_input_on_the_other_cells() -> None:
    scores, values = teaching()
    rest = [cell for cell in CELLS if cell not in FOUR]
    check_cells(certify(sides(*rest), SHAPE, scores=scores, values=values), rest)


def test_the_teaching_input_on_four_cells(of_the_teaching_input: Certificate) -> None:
    found = of_the_teaching_input
    check_cells(found, FOUR)
    assert found.holds
    assert (found.kv_len, found.dims, found.kind) == (TOKENS, 1, "scores")


def test_its_distances_and_its_exact_answer(of_the_teaching_input: Certificate) -> None:
    found = of_the_teaching_input
    (answer,) = found.answers
    assert abs(float(answer.exact) - 1.325056137248) < 1e-12
    pair = next(d for d in found.distances if (d.a, d.b) == (0, 1))
    assert pair.integer_ulp == (1,)
    # bf16 values near 1.3 are 2**-7 apart.
    apart = Fraction(float.fromhex("0x1.5300fap+0")) - Fraction(float.fromhex("0x1.52fc5ap+0"))
    assert Fraction(str(pair.real_ulp[0])) == apart * 2**7
    assert len(found.distances) == 6
    error = found.sides[0].error_before[0]
    assert error is not None
    assert float(error) == pytest.approx((float.fromhex("0x1.52fc5ap+0") - 1.325056137248) * 2**7, abs=1e-9)
    stored = found.sides[0].error_output[0]
    assert stored is not None
    assert float(stored) == pytest.approx((1.3203125 - 1.325056137248) * 2**7, abs=1e-9)


def test_json_and_back(of_the_teaching_input: Certificate) -> None:
    data = of_the_teaching_input.to_json()
    text = json.dumps(data, allow_nan=False)
    assert Certificate.from_json(json.loads(text)) == of_the_teaching_input

    def floats(x: Any) -> bool:
        if isinstance(x, dict):
            return any(map(floats, x.values()))
        return any(map(floats, x)) if isinstance(x, list) else isinstance(x, float)

    assert not floats(data)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (["schema"], 2),
        (["unknown"], 1),
        (["kv_len"], "3"),
        (["sides", 0, "before", 0], "1.5"),
        (["sides", 0, "index", 0], "1/0"),
        (["sides", 0, "index", 0], "9" * 3000 + "/1"),
        (["answers", 0, "exact", "lower"], "1E+99999999"),
        (["answers", 0, "status"], "maybe"),
        (["sides", 0, "margins", "survives"], "some"),
        (["sides", 0, "label"], "x" * 10_000),
        (["distances", 0, "real_ulp", 0], 1.5),
    ],
)
def test_files_from_elsewhere(path: list[Any], value: Any) -> None:
    data = certify(sides("triton@h200", "xqa@h200"), {}, scores=[0.0], values=[1.0]).to_json()
    Certificate.from_json(copy.deepcopy(data))
    at: Any = data
    for step in path[:-1]:
        at = at[step]
    at[path[-1]] = value
    with pytest.raises(InputError, match="no certificate"):
        Certificate.from_json(data)


def test_what_is_no_record_at_all() -> None:
    for data in ({}, {"schema": 1}, {"x": object()}):
        with pytest.raises(InputError, match="no certificate"):
            Certificate.from_json(data)


def test_two_ulps_of_two_orders() -> None:
    """Three tokens by the closed form: a low pilot, a mass next to a midpoint of bf16, a high pilot.

    In one group of three the mass weighs (1 + u)(1 + eps) / 4 and rounds up to (1 + 2u) / 4; in a group of two it
    weighs twice that less 2 eps and rounds down to 1/2. So outputs differ by 2u of about 0.248, where bf16 values are
    2**-10 apart.
    """
    u, eps = 2.0**-8, 2.0**-18
    scores = np.array([-math.log(2 * (1 - 2 * eps)), math.log((1 + u) * (1 + eps) / 4), 0.0], np.float32)
    values = np.array([0.0, 1.734375, 0.0], np.float32)
    which = [load_side("walkthrough.triton@h200", {"segment": f"tiles({n})"}) for n in (3, 2)]
    found = certify(which, {}, scores=scores, values=values, cancellation=1)
    (pair,) = found.distances
    assert pair.integer == 2
    assert pair.real == pytest.approx(2 * u * 0.2477 * 2**10, abs=0.02)
    assert found.holds
    over = found.answers[0].over_magnitude
    assert over is not None
    assert over.bounds == (1, 1)
    # eps is 2**-18 of the weight, thus 2**6 ulps of f32 or fewer; the rounding of scores takes some.
    assert isinstance(found.survives_exp_error_ulps, int)
    assert 16 < found.survives_exp_error_ulps < 64
    outputs = [emulate(s.spec, s.platform, scores=scores, values=values[:, None]).output for s in which]
    assert certify(which, {}, scores=scores, values=values, cancellation=1, outputs=outputs) == found


def test_outputs_of_another_emulator_are_an_error() -> None:
    which = sides("triton@h200", "xqa@h200")
    right = np.array([1.0], ml_dtypes.bfloat16)
    given: dict[str, Any] = {"scores": [0.0, 0.0], "values": [1.0, 1.0]}
    assert certify(which, {}, **given, outputs=[right, right]).errors == ()
    wrong = certify(which, {}, **given, outputs=[right, np.array([1.0078125], ml_dtypes.bfloat16)])
    assert wrong.errors == ("walkthrough.xqa@h200: the emulator has 0x3F81 in column 0, the replay 0x3F80",)
    assert not wrong.holds
    lost = certify(which, {}, **given, outputs=[np.array([math.nan], ml_dtypes.bfloat16), right])
    assert lost.errors == ("walkthrough.triton@h200: the emulator has NaN in column 0",)
    for outputs in (
        [right],
        [right, np.array([1.0], np.float32)],
        [right, np.array([1, 1], ml_dtypes.bfloat16)],
    ):
        with pytest.raises(InputError, match="outputs"):
            certify(which, {}, **given, outputs=outputs)


def test_another_partition_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    right = replay_module.partition

    def other(*args: Any) -> Plan:
        plan = right(*args)
        return replace(plan, tokens=plan.tokens[..., ::-1].copy())

    monkeypatch.setattr(replay_module, "partition", other)
    found = certify(sides("triton@h200"), {}, scores=[0.0] * 40, values=[1.0] * 40)
    assert found.errors == ("walkthrough.triton@h200: token 15 against 0 at (0, 0)",)
    assert not found.holds


def test_boxes() -> None:
    found = certify(
        sides("triton@h200"), {}, scores=[20.0, -20.5, -math.inf], values=[7.0, -9.0, 0.0], value_box=9
    )
    assert (found.score_box.bound, found.score_box.largest) == ("20/1", "41/2")
    assert not found.score_box.holds
    assert found.value_box.holds
    assert not found.holds
    assert certify(sides("triton@h200"), {}, scores=[20.0], values=[8.0]).holds


def test_nan_has_no_distance() -> None:
    spec = HEADER + '[token]\nscore = "sum(q * k, seq()) * scale"\n[row]\nw = "score - score"\noutput = '
    always = Side(parse_spec(spec + '"bf16(sum(w / w * v, seq()))"'), load_platform("h200"))
    found = certify([always, always, *sides("triton@h200")], {}, scores=[0.0, 0.0], values=[1.0, 1.0])
    assert found.sides[0].output == ("0x7FC0",)
    assert found.sides[0].index == (None,)
    assert found.sides[0].error_output == (None,)
    assert [d.integer_ulp for d in found.distances] == [(0,), (None,), (None,)]
    assert [d.real_ulp for d in found.distances] == [(None,)] * 3
    assert found.distances[1].integer == 0


def test_columns_stand_for_themselves() -> None:
    found = certify(
        sides("flash_attention_2@h200", "xqa@h200"),
        {},
        scores=[0.0, 0.0],
        values=[[1.0, 3.0, 1.0], [1.0, 1.0, -1.0]],
    )
    assert found.dims == 3
    assert [s.output for s in found.sides] == [("0x3F80", "0x4000", "0x0000")] * 2
    assert [a.status for a in found.answers] == ["holds", "holds", "violated"]
    assert found.answers[1].over_largest is not None
    assert (
        found.answers[1].over_largest.bounds[0] <= Fraction(2, 3) <= found.answers[1].over_largest.bounds[1]
    )
    assert not found.holds


def test_q_k_and_v_through_hardware_specs() -> None:
    rng = np.random.default_rng(11)

    def draw(*shape: int) -> NDArray[Any]:
        return rng.standard_normal(shape).astype(ml_dtypes.bfloat16)

    q, k, v = draw(128), draw(200, 128), draw(200, 2)
    which = [load_side("flash_attn2.splitkv_decode@a100"), load_side("flash_attn2.splitkv_decode@h200")]
    context = {"q_heads": 4, "kv_heads": 1, "head_dim": 128}
    found = certify(which, context, q=q, k=k, v=v, cancellation=0, score_box=100)
    assert found.kind == "qkv"
    for side, certified in zip(which, found.sides, strict=True):
        assert certified.method == "oracle"
        assert {"mufu.ex2", "mufu.rcp"} <= set(certified.borrowed)
        heads = np.broadcast_to(q, (1, 4, 128))
        run = emulate(side.spec, side.platform, q=heads, k=k[:, None], v=v[:, None], backend="oracle")
        words = np.ascontiguousarray(run.output).view(np.uint16).reshape(4, 2)[0]
        assert certified.output == tuple(f"0x{int(w):04X}" for w in words)
    exact = np.float64(k.astype(np.float64)) @ q.astype(np.float64) / math.sqrt(128)
    weights = np.exp(exact - exact.max())
    want = weights @ v.astype(np.float64) / weights.sum()
    assert [float(a.exact) for a in found.answers] == pytest.approx(want.tolist(), abs=1e-13)
    assert float(Fraction(found.score_box.largest)) == pytest.approx(np.abs(exact).max())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"cancellation": -1}, "cancellation = -1"),
        ({"score_box": math.inf}, "score_box = inf"),
        ({"value_box": math.nan}, "value_box = nan"),
        ({"scores": None}, "give scores and values"),
    ],
)
def test_wrong_numbers(change: dict[str, Any], message: str) -> None:
    given: dict[str, Any] = {"scores": [0.0], "values": [1.0], **change}
    with pytest.raises(InputError, match=message):
        certify(sides("triton@h200"), {}, **given)


def test_refusals() -> None:
    with pytest.raises(InputError, match="no side"):
        certify([], {}, scores=[0.0], values=[1.0])
    with pytest.raises(UnsupportedError, match="scales the scores"):
        certify([load_side("flash_attn2.splitkv_decode@h200")], {"head_dim": 64}, scores=[0.0], values=[1.0])


def test_a_tenth_is_a_tenth() -> None:
    found = certify(sides("triton@h200"), {}, scores=[0.0], values=[1.0], cancellation=0.1)
    assert found.cancellation == "1/10"
