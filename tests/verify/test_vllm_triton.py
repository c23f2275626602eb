"""vLLM's Triton kernels: the interpreter's results, the trees of reduce_segments, tiles, segments and versions."""

from __future__ import annotations

import hashlib
import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from specs import UnsupportedError, load_platform, load_spec
from verify import emulate
from verify.definition import RowInputs, ScalarArithmetic, evaluate
from verify.partition import Plan, plan
from verify.resultview import faults

BF16 = ml_dtypes.bfloat16
HERE = Path(__file__).parents[1] / "data"
FULL = Path(__file__).parents[2].parent / "shared" / "oracle"
STEM = "vllm_triton" if (FULL / "vllm_triton.npz").exists() else "vllm_triton_small"
CASES: list[dict[str, Any]] = json.loads(
    ((FULL if STEM == "vllm_triton" else HERE) / f"{STEM}.json").read_text()
)

# -- the interpreter's results ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def recorded() -> Any:
    with np.load((FULL if STEM == "vllm_triton" else HERE) / f"{STEM}.npz") as file:
        yield dict(file)


@pytest.mark.parametrize(
    "case",
    [pytest.param(c, id=c["key"], marks=[pytest.mark.slow] if c["n"] > 2000 else []) for c in CASES],
)
def test_one_head_of_every_recorded_case(case: dict[str, Any], recorded: dict[str, NDArray[Any]]) -> None:
    """Segment maxima and sums and six columns, of a head that differs from case to case."""
    rng = np.random.default_rng(case["seed"])
    heads, kv_heads, n, d = case["hq"], case["hkv"], case["n"], case["d"]
    q = (rng.standard_normal((heads, d)).astype(np.float32) * np.float32(case["qscale"])).astype(BF16)
    k, v = (rng.standard_normal((n, kv_heads, d)).astype(np.float32).astype(BF16) for _ in "kv")
    words = b"".join(x.view(np.uint16).tobytes() for x in (q, k, v))
    assert hashlib.sha256(words).hexdigest()[:16] == case["in_sha"]
    head = case["seed"] % heads
    group = head // (heads // kv_heads)
    columns = np.sort(np.random.default_rng(case["seed"] + 1).permutation(d)[:6])
    inputs = RowInputs(
        q=q[head].astype(np.float64),
        k=k[:, group].astype(np.float64),
        v=v[:, group, columns].astype(np.float64),
        scalars={"scale": case["scale"]},
    )
    for spec, key in (("vllm_triton.interpreter", "out"), ("vllm_triton.interpreter_2d", "out2d")):
        p = plan(
            load_spec(spec), load_platform("h200"), kv_len=n, q_heads=heads, kv_heads=kv_heads, head_dim=d
        )
        sites = ["output", "top", "norm"] if key == "out" else ["output"]
        got = evaluate(p.program, p, inputs, sites, ScalarArithmetic())
        words = got["output"].data.astype(BF16).view(np.uint16)
        np.testing.assert_array_equal(words, recorded[f"{case['key']}/{key}"][head, columns])
        for site, stored in zip(sites[1:], ("segm_max", "segm_expsum"), strict=False):
            want = recorded[f"{case['key']}/{stored}"][head]
            np.testing.assert_array_equal(got[site].data.astype(np.float32), want[: len(got[site])])
            assert np.isnan(want[len(got[site]) :]).all()


# -- trees of reduce_segments, written down from the compiled kernels -------------------------------------


def f32(x: Fraction) -> Fraction:
    """The nearest f32, ties to even."""
    if not x:
        return x
    e = abs(x.numerator).bit_length() - x.denominator.bit_length()
    while Fraction(2) ** (e + 1) <= abs(x):
        e += 1
    while Fraction(2) ** e > abs(x):
        e -= 1
    ulp = Fraction(2) ** max(e - 23, -149)
    return round(x / ulp) * ulp


Pair = tuple[Fraction, Fraction]


def fma(pair: Pair, c: Fraction) -> Fraction:
    return f32(pair[0] * pair[1] + c)


def add(a: Fraction, b: Fraction) -> Fraction:
    return f32(a + b)


def mul(pair: Pair) -> Fraction:
    return f32(pair[0] * pair[1])


def thread(rows: list[Pair], triton: int, sm: int, padded: int, column: int) -> Fraction:
    """What one thread adds: the rows (segments) that it holds, in order."""
    if triton == 308:
        packed = sm == 100 and padded > 64
        level = [
            add(mul(a), mul(b)) if packed else fma(a, mul(b))
            for a, b in zip(rows[::2], rows[1::2], strict=True)
        ]
        while len(level) > 1:
            level = [add(a, b) for a, b in zip(level[::2], level[1::2], strict=True)]
        return level[0]
    plain = range(0)
    if sm == 100 and padded > 64 and column % 4 == 0:
        plain = range(2, 4) if padded == 128 else range(3, 7)
    total = fma(rows[0], mul(rows[1]))
    for i in range(2, len(rows)):
        total = add(total, mul(rows[i])) if i in plain else fma(rows[i], total)
    return total


def numerator(pairs: list[Pair], triton: int, sm: int, padded: int, column: int) -> Fraction:
    holders = {64: 8, 128: 4, 256: 2}[padded]
    sums = [thread(pairs[t::holders], triton, sm, padded, column) for t in range(holders)]
    if padded == 64:  # lane bit 4 is the lowest bit of the row
        sums = [add(sums[2 * w], sums[2 * w + 1]) for w in range(4)]
    return add(*sums) if padded == 256 else add(add(sums[0], sums[2]), add(sums[1], sums[3]))


def denominator(pairs: list[Pair], column: int, upper: bool) -> Fraction:
    """``pairs`` of (sum, scale) of 16 segments, seen from a column; of 64, from the lanes whose store stays."""
    if len(pairs) == 16:
        return half(pairs, 8, bool(column // 4 & 8))
    return add(half(pairs[:32], 16, upper), half(pairs[32:], 16, upper))


def half(pairs: list[Pair], stride: int, upper: bool) -> Fraction:
    own = range(stride, 2 * stride) if upper else range(stride)
    level = [fma(pairs[i], mul(pairs[i ^ stride])) for i in own]
    while len(level) > 1:
        n = len(level) // 2
        level = [add(level[i], level[i + n]) for i in range(n)]
    return level[0]


GPUS = [("a100", 80), ("h200", 90), ("b200", 100), ("sm120", 120)]
TREES = [(*gpu, triton, d) for gpu in GPUS for triton in (307, 308) for d in (64, 128, 256)]


@pytest.mark.parametrize(
    ("gpu", "sm", "triton", "head_dim", "vllm"),
    [
        *(pytest.param(*tree, 3300, marks=() if tree[-1] == 128 else pytest.mark.slow) for tree in TREES),
        ("b200", 100, 307, 96, 3300),
        ("b200", 90, 307, 128, 3100),
    ],
)
def test_trees_of_reduce_segments(gpu: str, sm: int, triton: int, head_dim: int, vllm: int) -> None:
    """``sm``: as which architecture the kernel is compiled; vLLM's older source has no odd columns on sm_100."""
    wide = sm == 120
    rng = np.random.default_rng(head_dim + sm + triton)
    n = 1024 if wide else 251
    values = rng.normal(0, 1, (n, 3)).astype(BF16)
    columns = (0, 33, 2) if wide else (0, 33, 34)
    v = np.zeros((n, 35), BF16)
    v[:, list(columns)] = values
    run = emulate(
        load_spec("vllm_triton.decode_3d"),
        load_platform(gpu),
        scores=rng.normal(0, 2, (1, n)).astype(np.float32),
        values=v if not wide else v[:, :34],
        context={
            "head_dim": head_dim,
            "q_heads": 8,
            "kv_heads": 2,
            "triton_version": triton,
            "vllm_version": vllm,
        },
        options={"last_writer": 2 if wide and triton == 308 else 0},
        backend="oracle",
    )
    trace = run.trace
    scale, norm, acc = trace["w"][0], trace["norm"][0], trace["acc"][0][:, -1]
    assert len(scale) == (64 if wide else 16)
    padded = 1 << (head_dim - 1).bit_length()
    den: list[Pair] = [(Fraction(float(a)), Fraction(float(b))) for a, b in zip(norm, scale, strict=True)]
    for c in columns:
        num = [(s, Fraction(float(x))) for (_, s), x in zip(den, acc[:, c], strict=True)]
        assert Fraction(float(trace["num"][0][c])) == numerator(num, triton, sm, padded, c), c
        got = trace["total"][0][c] if trace["total"][0].ndim else trace["total"][0]
        assert Fraction(float(got)) == denominator(den, c, wide and triton == 308), c


def test_the_two_denominators_differ() -> None:
    """28 of 297 rows of another set; here enough seeds to see it, or the column map would not be tested."""
    spec, rng = load_spec("vllm_triton.decode_3d"), np.random.default_rng(0)
    run = emulate(
        spec,
        load_platform("h200"),
        scores=rng.normal(0, 2, (12, 200)).astype(np.float32),
        values=np.ones((200, 33)),
        context={"head_dim": 128},
        backend="oracle",
    )
    total = run.trace["total"]
    assert (total[:, :1] == total[:, :32]).all()
    assert 0 < (total[:, 0] != total[:, 32]).sum() < 12


# -- tiles, segments, 2D or 3D ----------------------------------------------------------------------------


def made(gpu: str = "h200", spec: str = "vllm_triton.decode_3d", options: Any = None, **context: Any) -> Plan:
    given = {"kv_len": 1000, "q_heads": 32, "kv_heads": 8, "head_dim": 128, **context}
    return plan(load_spec(spec), load_platform(gpu), options=options, **given)


@pytest.mark.parametrize("n", [1, 15, 16, 17, 255, 256, 257, 1000, 27_525])
def test_segments_of_one_sequence(n: int) -> None:
    """tiles_per_segment = ceil(seq_len / (16 * 16)); segments past the end are not written."""
    p = made(kv_len=n)
    tiles = -(-n // 256)
    width = tiles * 16
    assert p.count == 16
    for g in p.groups:
        assert g.tokens.tolist() == list(range(min(n, g.index * width), min(n, (g.index + 1) * width)))


def test_segments_on_sm120() -> None:
    """64 where num_seqs <= (SMs - 1) // (16 * kv_heads): with 188 SMs and 8 heads, one sequence."""

    def segments(gpu: str = "sm120", **context: Any) -> Any:
        return made(gpu, options={"last_writer": 1}, **context).program.integers["segs"]

    assert segments() == 64
    assert segments(batch=2) == 16
    assert segments("h200") == segments("b200") == 16
    assert segments(vllm_version=3100) == 16
    assert segments(kv_heads=1, q_heads=8, batch=11) == 64
    assert segments(kv_heads=1, q_heads=8, batch=12) == 16
    assert segments("rtx5090", kv_heads=5, q_heads=5, batch=2) == 64  # 169 // 80
    assert segments("rtx5090", kv_heads=5, q_heads=5, batch=3) == 16


def test_tiles() -> None:
    def tile(spec: str, gpu: str = "h200", **context: Any) -> Any:
        return made(gpu, spec, **context).program.integers["tile_tokens"]

    three, two = "vllm_triton.decode_3d", "vllm_triton.decode_2d"
    assert tile(three) == 16
    assert tile(three, window=1024) == tile(three, window=1024, head_dim=256) == 32
    assert tile(three, window=1024, head_dim=64) == tile(three, window=4096) == 16
    assert tile(three, window=1024, vllm_version=1200) == 16
    assert tile(two) == tile(two, q_len=200, causal=1) == 32
    prefill: dict[str, Any] = {"q_len": 200, "causal": 1, "head_dim": 256}
    assert tile(two, "b200", **prefill) == 128
    assert (
        tile(two, **prefill)
        == tile(two, "b200", **prefill, vllm_version=2301)
        == tile(two, "b200", head_dim=256)
    )


@pytest.mark.parametrize(
    ("context", "fits"),
    [
        ({"batch": 16}, True),  # 128 // 8 heads
        ({"batch": 17}, False),
        ({"batch": 17, "options": {"seq_threshold_3d": 24}}, True),  # the CUDA graph's size nearest to 16
        ({"q_len": 8, "causal": 1}, True),
        ({"q_len": 9, "causal": 1}, False),
        ({"q_len": 2}, False),  # not causal
        ({"q_len": 2, "causal": 1, "vllm_version": 3100}, False),
        ({"q_len": 8, "causal": 1, "batch": 8}, True),  # 4 query tokens a block: 8 * 2 blocks
        ({"q_len": 8, "causal": 1, "batch": 9}, False),
        ({"batch": 12, "vllm_version": 1200}, True),  # (12 // 4 + 12) * 8 <= 128
        ({"batch": 13, "vllm_version": 1200}, True),
        ({"batch": 14, "vllm_version": 1200}, False),
    ],
)
def test_the_choice_between_2d_and_3d(context: dict[str, Any], fits: bool) -> None:
    if fits:
        assert made(**context).count == 16
        return
    with pytest.raises(UnsupportedError, match=r"(?s)fits = 0.*vllm_triton\.decode_2d"):
        made(**context)
    assert made(spec="vllm_triton.decode_2d", **context).count > 0


def test_the_tuned_prefill_is_2d() -> None:
    with pytest.raises(UnsupportedError, match="tuned kernel"):
        made("b200", q_len=2, causal=1, head_dim=256)
    assert made("h200", q_len=2, causal=1, head_dim=256).count == 16


@pytest.mark.parametrize(
    ("context", "what"),
    [
        ({"vllm_version": 902}, r"0\.11\.0"),
        ({"triton_version": 306}, "were not compiled"),
        ({"q_heads": 24, "kv_heads": 1}, "16 query heads"),
        ({"head_dim": 32}, "64 to 256"),
        ({"head_dim": 72}, "in steps of 16"),
        ({"has_softcap": 1, "vllm_version": 3000}, r"from vLLM 0\.31\.0"),
    ],
)
@pytest.mark.parametrize("spec", ["vllm_triton.decode_3d", "vllm_triton.decode_2d"])
def test_refusals(spec: str, context: dict[str, Any], what: str) -> None:
    with pytest.raises(UnsupportedError, match=what):
        made(spec=spec, **context)


def test_64_segments_under_triton_3_8_ask_who_writes_last() -> None:
    with pytest.raises(UnsupportedError, match="last_writer = 1 or 2"):
        made("sm120")
    assert made("sm120", triton_version=307).count == 64
    assert made("sm120", options={"last_writer": 2}).count == 64


# -- versions, guards -------------------------------------------------------------------------------------


def faded(version: int, tokens: int = 600, **context: Any) -> Any:
    """All live scores are -110, in a window of 32 tokens."""
    return emulate(
        load_spec("vllm_triton.decode_3d"),
        load_platform("h200"),
        scores=np.full((1, tokens), -110, np.float32),
        values=np.ones((tokens, 1)),
        context={"head_dim": 128, "window": 32, "vllm_version": version, "triton_version": 307, **context},
        backend="oracle",
    )


def test_the_zeros_of_vllm_0_13() -> None:
    """A segment outside the window stores M = 0, and exp(-110 - 0) is 0: the kernel's own fault until 0.13.0."""
    assert faded(1300).output.item() == 0
    assert faded(1300).trace["top"][0].max() == 0
    for version in (1401, 3300):
        assert faded(version).output.item() == 1


def test_the_floor_of_the_maximum_before_0_33() -> None:
    """In 2D the tiles that a block of query tokens visits for its first token set the maximum to 0 for the last."""

    def run(version: int, spec: str = "vllm_triton.decode_2d") -> Any:
        scores = np.full((2, 97), -110, np.float32)
        context = {"head_dim": 128, "q_heads": 8, "q_len": 2, "window": 33, "vllm_version": version}
        return emulate(
            load_spec(spec),
            load_platform("h200"),
            scores=scores,
            values=np.ones((97, 1)),
            causal=True,
            context=context,
            backend="oracle",
        ).output[:, 0]

    # the first query token (95) sees keys 63 to 95, the second 64 to 96: tile [32, 64) is visited for the first only
    old, new = run(3100), run(3300)
    assert new.astype(float).tolist() == [1, 1]
    assert old[0] == 1
    assert np.isnan(old[1].astype(float))


def test_a_row_that_sees_nothing() -> None:
    """3D guards the division, 2D does not."""
    masked: dict[str, Any] = {"scores": np.full((1, 40), -np.inf, np.float32), "values": np.ones((40, 1))}
    shared: dict[str, Any] = {"context": {"head_dim": 128}, "backend": "oracle"}
    gpu = load_platform("h200")
    assert emulate(load_spec("vllm_triton.decode_3d"), gpu, **masked, **shared).output.item() == 0
    assert np.isnan(float(emulate(load_spec("vllm_triton.decode_2d"), gpu, **masked, **shared).output.item()))


def test_sinks_count_once() -> None:
    """One sink of the height of the only score: half of the weight, in 3D and in 2D."""
    q, k = np.zeros((1, 64)), np.zeros((1, 1, 64))
    for spec in ("vllm_triton.decode_3d", "vllm_triton.decode_2d"):
        r = emulate(
            load_spec(spec),
            load_platform("h200"),
            q=q,
            k=k,
            v=np.ones((1, 1, 64)),
            scale=1.0,
            sinks=np.zeros(1, np.float32),
            backend="oracle",
        )
        assert (r.output.astype(float) == 0.5).all()


def test_the_zeros_of_old_versions_are_said_to_be_the_kernels_own() -> None:
    """Every logit at -512, a window of 3 tokens: segments outside it store a maximum of 0 before 0.33.0."""
    bf16 = ml_dtypes.bfloat16
    q, k, v = np.full((1, 4, 64), 8, bf16), np.full((200, 2, 64), -8, bf16), np.ones((200, 2, 64), bf16)
    loaded = load_spec("vllm_triton.decode_3d")
    for version, output in ((1300, 0.0), (3300, 1.0)):
        context = {"vllm_version": version, "window": 3}
        result = emulate(loaded, load_platform("h200"), q=q, k=k, v=v, context=context, backend="oracle")
        assert (result.output.astype(np.float32) == output).all()
        assert bool(faults(result, loaded)) == (output == 0)
