"""Tensor-core blocks on arrays of words: all expected words, and bit for bit the scalar definition."""

from __future__ import annotations

from functools import cache, lru_cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from jax import lax

from specs import load_platform
from specs.discover import every
from specs.dot_products import DotProduct, find
from specs.errors import UnsupportedError
from specs.formats import BASES, Format
from tests.verify.dots import RECORDED, Case, Words, model_cases, model_path, recorded_cases, scalar_words
from verify.engine import tensor_core
from verify.engine.tensor_core import Operand

BATCH = 2048
BF16, F16, F32 = (BASES[n] for n in ("bf16", "f16", "f32"))
HOPPER = find(load_platform("h200").dot_products, "mma", BF16, BF16, F32, 16)
AMPERE = find(load_platform("a100").dot_products, "mma", BF16, BF16, F32, 16)


def arithmetic(dot: DotProduct) -> DotProduct:
    """The same numbers whatever the instruction and the evidence: one compilation for all."""
    bare = {"instruction": "mma", "lengths": (), "evidence": "paper", "inputs": dot.inputs[:1]}
    return dot.model_copy(update=bare)


def distinct() -> list[tuple[DotProduct, Format, int]]:
    """Every arithmetic of the platforms on the first of its formats, in the longest instruction."""
    found: dict[Any, tuple[DotProduct, Format, int]] = {}
    for platform in every("platform"):
        for dot in load_platform(platform.name).dot_products:
            own = arithmetic(dot)
            found.setdefault((own, dot.lengths[-1]), (own, BASES[dot.inputs[0]], dot.lengths[-1]))
    return list(found.values())


@cache
def batched(dot: DotProduct, fmt: Format, k: int) -> Any:
    """Words [BATCH, k], [BATCH, k], [BATCH] to words [BATCH]."""

    def run(a: Any, b: Any, c: Any) -> Any:
        return tensor_core.instruction_any(dot, list(a.T), list(b.T), c, fmt, fmt)

    return jax.jit(run)


def array_words(case: Case) -> Words:
    """The array version on a case of any size, in batches of one size."""
    own = arithmetic(case.dot.model_copy(update={"inputs": (case.fmt.base,)}))
    run, n = batched(own, case.fmt, case.k), len(case.c)
    whole = -(-n // BATCH) * BATCH
    a, b, c = (
        np.concatenate([x, np.zeros((whole - n, *x.shape[1:]), x.dtype)]) for x in (case.a, case.b, case.c)
    )
    parts = [
        np.asarray(run(a[i : i + BATCH], b[i : i + BATCH], c[i : i + BATCH])) for i in range(0, whole, BATCH)
    ]
    return np.concatenate(parts)[:n]


def test_the_model_on_all_classes_of_inputs() -> None:
    total = 0
    for case in model_cases(model_path()):
        assert np.array_equal(array_words(case), case.d), case.key
        total += len(case.d)
    assert total in (137_472, 22 * 11 * 16)


@pytest.mark.skipif(not RECORDED.exists(), reason="the recorded words are not here: ../shared/oracle")
def test_the_words_that_gpus_gave() -> None:
    cases = recorded_cases()
    assert sum(len(c.d) for c in cases) == 16 * 1250
    for case in cases:
        assert np.array_equal(array_words(case), case.d), case.key


# -- against the scalar definition ------------------------------------------------------------------------

KINDS = ("any bits", "near one", "wide", "subnormal", "cancelling", "huge", "great accumulator", "sparse")


def draw(kind: str, seed: int, dot: DotProduct, fmt: Format, k: int, n: int) -> Case:
    """Words of one class of inputs."""
    rng = np.random.default_rng(seed)
    word = np.dtype(f"u{fmt.bits // 8}")
    out = BASES[dot.output]
    c_word = np.dtype(f"u{out.bits // 8}")
    spread = {"near one": 2, "wide": fmt.emax, "subnormal": 1, "huge": 3, "great accumulator": 4}.get(
        kind, 12
    )
    middle = {"subnormal": fmt.emin, "huge": fmt.emax - 3}.get(kind, 0)

    def normal(shape: tuple[int, ...], f: Format, dtype: np.dtype[Any], centre: int, width: int) -> Words:
        exponent = np.clip(rng.integers(centre - width, centre + width + 1, shape), f.emin - 1, f.emax - 1)
        code = ((exponent - f.emin + 1) << (f.p - 1)) | rng.integers(0, 1 << (f.p - 1), shape)
        low = rng.integers(0, 1 << 13, shape) if f.base == "tf32" else 0
        bits = 19 if f.base == "tf32" else f.bits
        signed = code | (rng.integers(0, 2, shape) << (bits - 1))
        return ((signed << (f.bits - bits)) | low).astype(dtype)

    if kind == "any bits":
        a, b = (rng.integers(0, 1 << fmt.bits, (n, k), np.uint64).astype(word) for _ in range(2))
        c = rng.integers(0, 1 << out.bits, n, np.uint64).astype(c_word)
        return Case(kind, dot, k, fmt, a, b, c, c)
    a, b = (normal((n, k), fmt, word, middle, spread) for _ in range(2))
    centre = 2 * middle if kind in ("subnormal", "huge") else 12 if kind == "great accumulator" else 0
    c = normal((n,), out, c_word, int(np.clip(centre, out.emin, out.emax)), 6)
    if kind == "cancelling":
        half = k // 2
        a[:, half : 2 * half], b[:, half : 2 * half] = a[:, :half], b[:, :half]
        a[:, half : 2 * half] ^= word.type(1 << (fmt.bits - 1))
        flip = rng.integers(0, k, n)
        b[np.arange(n), flip] ^= word.type(1 << (13 if fmt.base == "tf32" else 0))
        c[::2] = 0
    if kind == "sparse":
        a[rng.random((n, k)) < 0.8] = 0
        b[rng.random((n, k)) < 0.3] = word.type(1 << (fmt.bits - 1))
        c[rng.random(n) < 0.5] = c_word.type(1 << (out.bits - 1))
    return Case(kind, dot, k, fmt, a, b, c, c)


@pytest.mark.parametrize(
    ("dot", "fmt", "k"), [pytest.param(*d, id=f"{d[1]}-{d[0].output}-{i}") for i, d in enumerate(distinct())]
)
def test_every_arithmetic_of_the_platforms(dot: DotProduct, fmt: Format, k: int) -> None:
    cases = [draw(kind, 11 + i, dot, fmt, k, BATCH // len(KINDS)) for i, kind in enumerate(KINDS)]
    joined = [np.concatenate([getattr(c, x) for c in cases]) for x in ("a", "b", "c", "d")]
    case = Case("all classes", dot, k, fmt, *joined)
    found, expected = array_words(case), scalar_words(case)
    wrong = np.flatnonzero(found != expected)
    assert not wrong.size, (
        cases[wrong[0] // (BATCH // len(KINDS))].key,
        hex(found[wrong[0]]),
        hex(expected[wrong[0]]),
    )


@settings(max_examples=25)
@given(st.sampled_from(KINDS), st.integers(0, 2**32), st.sampled_from([HOPPER, AMPERE]))
@example("cancelling", 0, HOPPER)
def test_random_inputs(kind: str, seed: int, dot: DotProduct) -> None:
    case = draw(kind, seed, dot, BF16, 16, 128)
    assert np.array_equal(array_words(case), scalar_words(case))


words16 = st.one_of(
    st.integers(0, 0xFFFF),
    st.sampled_from(
        [0, 0x8000, 1, 0x8001, 0x7F, 0x80, 0x3F80, 0xBF80, 0x7F7F, 0xFF7F, 0x7F80, 0xFF80, 0x7FC0, 0xFFFF]
    ),
)
words32 = st.one_of(
    st.integers(0, 0xFFFFFFFF),
    st.sampled_from(
        [0, 1 << 31, 1, 0x7FFFFF, 0x800000, 0x3F800000, 0x7F7FFFFF, 0x7F800000, 0xFF800000, 0x7FC00000]
    ),
)


@given(
    st.lists(st.tuples(words16, words16), min_size=16, max_size=16),
    words32,
    st.sampled_from([HOPPER, AMPERE]),
)
def test_chosen_words(pairs: list[tuple[int, int]], c: int, dot: DotProduct) -> None:
    ab = np.array(pairs, np.uint16).T
    start = np.array([c], np.uint32)
    case = Case("chosen", dot, 16, BF16, ab[:1], ab[1:], start, start)
    assert np.array_equal(array_words(case), scalar_words(case))


def test_finite_operands_need_no_classes() -> None:
    for dot in (HOPPER, AMPERE):
        case = draw("wide", 5, dot, BF16, 16, 512)
        left, right = (tensor_core.decode(jnp.asarray(x.T), BF16) for x in (case.a, case.b))
        a, b = ([Operand(x.significand[i], x.exponent[i]) for i in range(16)] for x in (left, right))
        run = jax.jit(partial(tensor_core.instruction, dot))
        c = case.c.copy()
        c[:4] = [0x7F800000, 0xFF800000, 0x7FC00001, 0xFFFFFFFF]
        whole = Case("", dot, 16, BF16, case.a, case.b, c, c)
        assert np.array_equal(np.asarray(run(a, b, c)), scalar_words(whole))


def test_blocks_under_scan_jit_and_broadcasting() -> None:
    rng = np.random.default_rng(3)
    a = rng.standard_normal((5, 16, 3, 1, 1)).astype(np.float32).view(np.uint32) >> 16
    b = rng.standard_normal((5, 16, 1, 4, 7)).astype(np.float32).view(np.uint32) >> 16
    a, b = a.astype(np.uint16), b.astype(np.uint16)

    def step(acc: Any, xs: Any) -> Any:
        left, right = (tensor_core.decode(x, BF16) for x in xs)
        rows = [Operand(left.significand[i], left.exponent[i]) for i in range(16)]
        columns = [Operand(right.significand[i], right.exponent[i]) for i in range(16)]
        return tensor_core.fused(HOPPER, rows, columns, acc), None

    found = np.asarray(
        jax.jit(lambda a, b: lax.scan(step, jnp.zeros((3, 4, 7), jnp.uint32), (a, b))[0])(a, b)
    )
    full = (3, 4, 7)
    flat = [np.moveaxis(np.broadcast_to(x, (5, 16, *full)), (0, 1), (3, 4)).reshape(-1, 80) for x in (a, b)]
    zero = np.zeros(flat[0].shape[0], np.uint32)
    assert np.array_equal(found.reshape(-1), scalar_words(Case("", HOPPER, 16, BF16, *flat, zero, zero)))


@pytest.mark.parametrize(("fmt", "real"), [(F32, np.float32), (F16, np.float16)])
@given(seed=st.integers(0, 2**32))
@settings(max_examples=20)
def test_the_late_addition_is_that_of_ieee(fmt: Format, real: Any, seed: int) -> None:
    rng = np.random.default_rng(seed)
    word = np.dtype(f"u{fmt.bits // 8}")
    x, y = (rng.integers(0, 1 << fmt.bits, 512, np.uint64).astype(word) for _ in range(2))
    close = rng.random(512) < 0.5
    y[close] = x[close] ^ (rng.integers(0, 64, 512).astype(word) | word.type(1 << (fmt.bits - 1)))[close]
    with np.errstate(all="ignore"):
        expected = x.view(real) + y.view(real)
    nan = word.type((1 << (fmt.bits - 1)) - 1)
    expected = np.where(np.isnan(expected), nan, expected.view(word))
    assert np.array_equal(np.asarray(_add(fmt)(x, y)), expected)


@lru_cache(maxsize=2)
def _add(fmt: Format) -> Any:
    return jax.jit(partial(tensor_core.add, fmt=fmt))


def test_what_does_not_fit_is_refused() -> None:
    two = tensor_core.decode(np.array([0x4000], np.uint16), BF16)
    acc = jnp.zeros(1, jnp.uint32)
    with pytest.raises(ValueError, match="17 and 17 operands; a block takes 1 to 16"):
        tensor_core.fused(HOPPER, [two] * 17, [two] * 17, acc)
    with pytest.raises(ValueError, match="2 and 1 operands"):
        tensor_core.fused(HOPPER, [two] * 2, [two], acc)
    long = HOPPER.model_copy(update={"fused_length": 64})
    with pytest.raises(
        UnsupportedError, match="64 products of bf16/f16 with 25 fraction bits overflow 32 bits"
    ):
        tensor_core.fused(long, [two] * 64, [two] * 64, acc)
    with pytest.raises(TypeError, match="accumulators in f32 come as u4, not as uint16"):
        tensor_core.fused(HOPPER, [two], [two], acc.astype(jnp.uint16))
    with pytest.raises(TypeError, match="words of bf16 come as u2"):
        tensor_core.decode(np.array([1], np.uint8), BF16)
    with pytest.raises(UnsupportedError, match="do not take f32 factors"):
        tensor_core.decode(np.array([1], np.uint32), F32)
