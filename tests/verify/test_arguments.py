"""What `emulate` takes, and what it says to the rest: place, cause and remedy, never another exception."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specs import load_platform, load_spec
from specs.errors import InputError, UlpscopeError
from specs.formats import BASES, parse_format
from verify import emulate
from verify.arguments import from_qkv, from_scores, rounded

BF16 = ml_dtypes.bfloat16
INPUTS = dict.fromkeys("qkv", BASES["bf16"])
NAN, INF = float("nan"), float("inf")


def f32(*shape: int) -> np.ndarray[Any, Any]:
    return np.ones(shape, np.float32)


def at(array: np.ndarray[Any, Any], index: tuple[int, ...], value: float) -> np.ndarray[Any, Any]:
    array = array.copy()
    array[index] = value
    return array


Q, K, V = f32(4, 8), f32(20, 2, 8), f32(20, 2, 8)
QKV = {"q": Q, "k": K, "v": V}
READY = {"scores": f32(3, 20), "values": f32(20, 2)}

REFUSED: list[tuple[dict[str, Any], str]] = [
    ({}, "arguments: q is not given"),
    ({"q": Q, "k": K}, "arguments: v is not given"),
    ({"scores": f32(3, 20)}, "arguments: give scores and values"),
    ({**READY, "q": Q}, "arguments: give scores and values, or q, k and v"),
    ({**QKV, "q": Q.astype(np.int32)}, "argument q: dtype int32 is not a floating-point dtype"),
    (
        {**QKV, "k": K.astype(ml_dtypes.float8_e4m3fnuz)},
        "argument k: the 8-bit format float8_e4m3fnuz is not supported\n"
        "  of 8-bit formats, float8_e4m3fn and float8_e5m2 are",
    ),
    ({**QKV, "v": V.astype(ml_dtypes.float8_e3m4)}, "argument v: the 8-bit format float8_e3m4 is not"),
    (
        {**QKV, "q": Q.astype(ml_dtypes.float4_e2m1fn)},
        "argument q: the format float4_e2m1fn is not supported",
    ),
    ({**QKV, "k": K.astype(np.complex64)}, "argument k: dtype complex64 is not"),
    ({**QKV, "v": V.astype(object)}, "argument v: dtype object is not"),
    ({**QKV, "v": V.astype(str)}, "argument v: dtype "),
    ({**QKV, "q": f32(8)}, "argument q: shape (8,) has 1 dimensions, not 2 or 3"),
    ({**QKV, "k": f32(20, 8)}, "argument k: shape (20, 8) has 2 dimensions, not 3"),
    ({**QKV, "k": f32(20, 2, 7)}, "argument k: q has head_dim 8, k has 7"),
    ({**QKV, "v": f32(19, 2, 8)}, "argument v: k is (20, 2, 8), v is (19, 2, 8)"),
    ({**QKV, "v": f32(20, 1, 8)}, "argument v: k is (20, 2, 8), v is (20, 1, 8)"),
    ({**QKV, "q": f32(5, 8)}, "argument q: 5 query heads are not a multiple of 2 KV heads"),
    ({**QKV, "q": f32(0, 8)}, "argument q: q (1, 0, 8), "),
    ({**QKV, "q": f32(4, 0), "k": f32(20, 2, 0)}, "argument q: q (1, 4, 0), "),
    ({**QKV, "k": f32(20, 0, 8), "v": f32(20, 0, 8)}, "argument q: "),
    ({**QKV, "v": f32(20, 2, 0)}, "argument q: "),
    ({**QKV, "q": f32(30, 4, 8), "causal": True}, "argument causal: 30 queries but 20 tokens"),
    ({**QKV, "q": at(Q, (1, 3), NAN)}, "argument q: nan at index (1, 3)"),
    ({**QKV, "k": at(K, (7, 0, 1), INF)}, "argument k: inf at index (7, 0, 1)"),
    ({**QKV, "v": at(V, (19, 1, 0), -INF)}, "argument v: -inf at index (19, 1, 0)"),
    ({**QKV, "v": at(V, (0, 1, 0), 3.4e38)}, "argument v (after rounding on entry): inf at index (0, 1, 0)"),
    ({**QKV, "scale": NAN}, "argument scale: scale = nan"),
    ({**QKV, "scale": INF}, "argument scale: scale = inf"),
    ({"scores": f32(3, 19), "values": f32(20, 2)}, "argument values: scores have 19 tokens, values have 20"),
    ({"scores": f32(0, 20), "values": f32(20, 2)}, "argument scores: "),
    ({"scores": f32(3, 20), "values": f32(20, 0)}, "argument scores: "),
    ({"scores": f32(1, 3, 20), "values": f32(20, 2)}, "argument scores: shape (1, 3, 20) has 3 dimensions"),
    ({**READY, "scores": at(f32(3, 20), (2, 4), NAN)}, "argument scores: nan at index (2, 4)"),
    ({**READY, "scores": at(f32(3, 20), (0, 0), INF)}, "argument scores: inf at index (0, 0)"),
    (
        {**READY, "scores": np.full((3, 20), 0.1)},
        "argument scores: scores of dtype float64 are no values of f32",
    ),
    ({**READY, "values": at(f32(20, 2), (5, 1), -INF)}, "argument values: -inf at index (5, 1)"),
    ({**QKV, "kv_capacity": 19}, "walkthrough.triton on h200: kv_capacity = 19 is less than kv_len = 20"),
    ({**QKV, "batch": 0}, "walkthrough.triton on h200: batch = 0 is out of range"),
    (
        {**QKV, "context": {"head_dmi": 8}},
        "walkthrough.triton on h200: unknown name 'head_dmi'\n  did you mean 'head_dim'?",
    ),
    (
        {**QKV, "context": {"sm_count": 0}},
        "walkthrough.triton on h200: sm_count = 0 is out of range 1..65536",
    ),
    ({**QKV, "context": {"kv_len": 21}}, "argument context: context says kv_len = 21, the arrays say 20"),
    ({**QKV, "context": {"q_heads": 2}}, "argument context: context says q_heads = 2, the arrays say 4"),
    ({**QKV, "context": {"head_dim": 16}}, "argument context: context says head_dim = 16, the arrays say 8"),
    (
        {**READY, "context": {"kv_len": 10**9}},
        "walkthrough.triton on h200: kv_len = 1000000000 is out of range",
    ),
    ({**READY, "context": {"q_heads": 24, "kv_heads": 5}}, "walkthrough.triton on h200: q_heads = 24 is not"),
    ({**QKV, "backend": "oracel"}, "argument backend: unknown backend 'oracel'\n  did you mean 'oracle'?"),
    ({**QKV, "options": {"subtract_max": True}}, "walkthrough.triton has no option 'subtract_max'"),
    ({**READY, "kv_lens": [20]}, "argument kv_lens: ragged batches take q, k and v"),
    (
        {"q": f32(1, 4, 8), "k": K[None], "v": V[None], "kv_lens": [21]},
        "argument kv_lens: length 21 of sequence 0",
    ),
    (
        {"q": f32(1, 4, 8), "k": K[None], "v": V[None], "kv_lens": [-1]},
        "argument kv_lens: length -1 of sequence 0",
    ),
    (
        {"q": f32(1, 4, 8), "k": K[None], "v": V[None], "kv_lens": [3, 4]},
        "argument kv_lens: 2 lengths for batches",
    ),
    ({"q": f32(1, 4, 8), "k": K[None], "v": V[None], "kv_lens": []}, "argument kv_lens: 0 lengths"),
]


@pytest.mark.parametrize(("given", "message"), REFUSED, ids=[m.split("\n")[0] for _, m in REFUSED])
def test_what_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(UlpscopeError) as caught:
        emulate(load_spec("walkthrough.triton"), load_platform("h200"), **{"backend": "oracle", **given})
    assert str(caught.value).startswith(message)
    assert caught.value.remedy, "what to do"


# -- any arguments ----------------------------------------------------------------------------------------

DTYPES = st.sampled_from(["f4", "f8", "f2", "i4", "u1", "c8", "?", "O", "U3", "bf16"])
SMALL = st.integers(0, 5)
ARRAYS = st.one_of(
    st.none(),
    st.integers(-3, 3),
    st.text(max_size=3),
    st.floats(),
    st.lists(st.one_of(st.floats(), st.lists(st.floats(), max_size=2)), max_size=3),
    st.builds(
        lambda shape, dtype, x: np.full(shape, x).astype(BF16 if dtype == "bf16" else dtype),
        st.lists(SMALL, max_size=4),
        DTYPES,
        st.sampled_from([0.0, 1.0, -2.5]),
    ),
    st.builds(lambda shape, x: np.full(shape, x), st.lists(SMALL, min_size=2, max_size=3), st.floats()),
)
ODD = st.one_of(
    st.none(), st.booleans(), st.integers(-2, 70_000), st.floats(), st.text(max_size=4), st.just([1])
)
CONTEXTS = st.dictionaries(
    st.sampled_from(
        ["batch", "q_heads", "kv_heads", "head_dim", "kv_len", "window", "fork", "num_splits", "nope"]
    ),
    ODD,
    max_size=3,
)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@settings(max_examples=200)
@given(
    arrays=st.fixed_dictionaries({}, optional=dict.fromkeys(("q", "k", "v", "scores", "values"), ARRAYS)),
    rest=st.fixed_dictionaries(
        {},
        optional={
            "scale": ODD,
            "causal": ODD,
            "batch": ODD,
            "kv_capacity": ODD,
            "kv_lens": st.one_of(ODD, st.lists(st.integers(-1, 6), max_size=3)),
            "context": st.one_of(ODD, CONTEXTS),
            "options": st.one_of(ODD, st.dictionaries(st.text(max_size=3), ODD, max_size=1)),
            "backend": ODD,
        },
    ),
)
def test_any_arguments_give_an_answer_or_a_message(arrays: dict[str, Any], rest: dict[str, Any]) -> None:
    result: Any = None
    try:
        result = emulate(
            load_spec("walkthrough.triton"), load_platform("h200"), **arrays, **{"backend": "oracle", **rest}
        )
    except UlpscopeError as error:
        caught = error
    if result is None:
        assert caught.cause
        assert caught.place
    for one in result if isinstance(result, list) else [result] if result is not None else []:
        assert one.output.dtype == BF16


# -- what is taken ----------------------------------------------------------------------------------------


def test_rows_that_share_a_kv_head_lie_together() -> None:
    """q [query, head] as [kv_head, (query, head of the group)], and back."""
    q = np.arange(2 * 6 * 1, dtype=np.float32).reshape(2, 6, 1)
    p = from_qkv(q, f32(5, 3, 1), f32(5, 3, 1), INPUTS, None, True, 0)
    assert (p.heads, p.rows, p.queries, p.kv_len) == (3, 4, 2, 5)
    assert p.q is not None
    assert p.q[1, :, 0].astype(int).tolist() == [2, 3, 8, 9]
    assert p.high.tolist() == [4, 4, 5, 5]
    assert np.array_equal(p.outward(p.q), q.astype(BF16))


@pytest.mark.parametrize(
    ("causal", "window", "low", "high"),
    [(False, 0, [0, 0, 0], [7, 7, 7]), (True, 0, [0, 0, 0], [5, 6, 7]), (True, 3, [2, 3, 4], [5, 6, 7])],
)
def test_what_each_query_sees(causal: bool, window: int, low: list[int], high: list[int]) -> None:
    p = from_qkv(f32(3, 1, 2), f32(7, 1, 2), f32(7, 1, 2), INPUTS, None, causal, window)
    assert (p.low.tolist(), p.high.tolist()) == (low, high)


def test_formats_on_entry() -> None:
    """Rounded once, from the given format; 16-bit queries and keys stay as they are, values do not."""
    third = np.float32(1 / 3)
    p = from_qkv(
        np.full((1, 2), third),
        np.full((3, 1, 2), 1 / 3),
        np.full((3, 1, 2), np.float16(1 / 3)),
        INPUTS,
        1.0,
        False,
        0,
    )
    assert p.formats == INPUTS
    assert p.q is not None
    assert p.q.dtype == p.v.dtype == BF16
    assert float(p.q[0, 0, 0]) == float(p.v[0, 0, 0]) == 0.333984375
    half = np.full((1, 2), third, np.float16)
    p = from_qkv(half, np.full((3, 1, 2), third, BF16), np.ones((3, 1, 2)), INPUTS, 1.0, False, 0)
    assert p.formats == {"q": BASES["f16"], "k": BASES["bf16"], "v": BASES["bf16"]}
    assert p.q is not None
    assert p.q.dtype == np.float16
    ready = from_scores(np.zeros(4, np.float16), np.zeros(4, BF16), INPUTS, BASES["f32"], False, 0)
    assert ready.scores is not None
    assert ready.scores.shape == (1, 1, 4)
    assert ready.scores.dtype == np.float32


@pytest.mark.parametrize("dtype", [np.float64, np.float32, BF16])
def test_modifiers_of_input_formats_count(dtype: Any) -> None:
    """1 + 1/128 + 1/256 is a tie of bf16; 2**-130 is a bf16 subnormal."""
    x = np.array([1 + 3 / 256, 2.0**-130, -(2.0**-130)]).astype(dtype)
    tie = 1.015625 if dtype is not BF16 else float(x[0])
    assert rounded(x, parse_format("bf16")).tolist() == [tie, 2.0**-130, -(2.0**-130)]
    flushed = rounded(x, parse_format("bf16.ftz")).tolist()
    assert flushed == [tie, 0.0, 0.0]
    assert np.signbit(flushed).tolist() == [False, False, True]
    down = 1.0078125 if dtype is not BF16 else float(x[0])
    assert rounded(x, parse_format("bf16.rz")).tolist()[0] == down


def test_values_past_the_format_are_refused_on_entry() -> None:
    with pytest.raises(InputError, match=r"argument q \(after rounding on entry\): inf at index \(0, 0, 0\)"):
        from_qkv(np.full((1, 2), 3.4e38), f32(3, 1, 2), f32(3, 1, 2), INPUTS, 1.0, False, 0)
