"""The special functions in the engine: against recorded hashes and counts, and bit for bit against the scalar ones."""

import ctypes
import functools
import hashlib
import platform
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from specs.errors import UnsupportedError
from specs.formats import BASES, parse_format
from verify.engine import special
from verify.engine.primitives import F32, F64, ZERO, F32Exact, x64
from verify.numerics import mufu
from verify.numerics.special import SPECIAL

SINGLE = BASES["f32"]
WHOLE = Path(__file__).parents[4] / "shared" / "oracle" / "mufu_model.npz"
TABLE = np.load(WHOLE if WHOLE.exists() else Path(__file__).parents[2] / "data" / "mufu_small.npz")
CARRIERS = {"fast": F32, "exact": F32Exact}
FORMATS = {n: ("f32",) if n.startswith(("torch.", "glibc.")) else ("f32", "f32.ftz") for n in SPECIAL}
CASES = [(n, f) for n, formats in FORMATS.items() for f in formats]


@functools.cache
def compiled(carrier, name, fmt, each=False):
    """A jitted function of operand words to result words and the flag, one for all or one for each element."""

    def one(zero, *words):
        ops = CARRIERS[carrier](zero)
        operands = [ops.decode(w, SINGLE) for w in words]
        return ops.encode(ops.special(name, *operands, fmt=parse_format(fmt))), ops.risk()

    return jax.jit(jax.vmap(one, in_axes=(None, 0, 0)[: 2 + (name == "div.full")]) if each else one)


def run(carrier, name, fmt, *words, each=False):
    with x64():
        result, risk = compiled(carrier, name, fmt, each)(ZERO, *words)
        return np.asarray(result), np.asarray(risk)


def nan(words):
    return (words & 0x7FFFFFFF) > 0x7F800000


def differ(a, b):
    return np.flatnonzero((a != b) & ~(nan(a) & nan(b)))


# -- the unit ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("carrier", CARRIERS)
@pytest.mark.parametrize("name", ["ex2", "rcp", "rsq", "lg2"])
def test_every_word_of_the_table(carrier, name):
    result, risk = run(carrier, f"mufu.{name}", "f32.ftz", TABLE[f"{name}_in"])
    assert differ(result, TABLE[f"{name}_out"]).size == 0
    assert not risk


HASHES = {
    ("ex2", 0x3F800000): "cce5df10202dbfcde720ca547d147edb3e2a406a5fed189323f419177a72a1a5",
    ("ex2", 0xBF800000): "503d2238b9f4c00e8686f80a703dd13d365554f2887c7279a7b438f642aceab3",
    ("rcp", 0x3F800000): "c408381446132e07fa5581e930dc33fb790bea7ec4276ef3621e322df2492a55",
    ("rsq", 0x3F800000): "c733e1437c713cd7e87f4c7e52e9aab270b2107f274cda35309dc8586ad6ec22",
    ("rsq", 0x40000000): "fd7b866f4085a9e88ef6abdd9ba2726eb26708fb17d173619dac4405acb06bc0",
    ("lg2", 0x3F800000): "7fd9be9a924e40a0ee18ba20e7f5158135112947597c8dd86131d3d4d8f9dbfa",
    ("lg2", 0x40000000): "b3e28f2ca8595aa7f02dfd6b91c130e699c7606af5e111fa8176bf0cf43e669c",
    ("lg2", 0x3F000000): "883e42d8f751983063b4c93a966fba006f08c1e111d90fe20e0fee3dd67ddd22",
}
"""SHA-256 of the little-endian words of the results, over all significands of the binade that starts here."""


@functools.cache
def binade(name, start):
    words = np.arange(1 << 23, dtype=np.uint32) | np.uint32(start)
    result, risk = run("fast", f"mufu.{name}", "f32.ftz", words)
    assert not risk
    return result


@pytest.mark.parametrize(("name", "start"), HASHES)
def test_hashes_of_whole_binades(name, start):
    assert hashlib.sha256(binade(name, start).astype("<u4").tobytes()).hexdigest() == HASHES[name, start]


@pytest.mark.parametrize(
    ("name", "start", "counts"),
    [
        ("rcp", 0x3F800000, (7280086, 1108522, 0)),
        ("rsq", 0x3F800000, (6505163, 1883437, 8)),
        ("rsq", 0x40000000, (6637923, 1750685, 0)),
    ],
)
def test_errors_are_as_many_as_on_hardware(name, start, counts):
    """Units from the correctly rounded result, over a binade: as logged on an A100, an L40S and an H100."""
    x = (np.arange(1 << 23, dtype=np.uint32) | np.uint32(start)).view(np.float32).astype(np.float64)
    right = (1.0 / (x if name == "rcp" else np.sqrt(x))).astype(np.float32).view(np.int32)
    off = np.abs(binade(name, start).view(np.int32) - right)
    assert tuple(np.bincount(off, minlength=3)) == counts


# -- engine and scalar ------------------------------------------------------------------------------------

EDGES = [0, 1, 0x7FFFFF, 0x800000, 0x3F800000, 0x7F7FFFFF, 0x7F800000, 0x7FC00000, 0x7E800000, 0x7E800001]
EDGES += [
    0x42FC0000,
    0x42FC0001,
    0x42FE0000,
    0x42FDFFFF,
    0x43000000,
    0x42B17218,
    0x42B17219,
    0x42AEAC50,
    0x42AEAC51,
]
EDGES += [
    0x43160000,
    0x43170000,
    0x43170001,
    0x42CFF1B4,
    0x42CE8ECF,
    0x4A800000,
    0x4B400000,
    0x3F2AAAAB,
    0x3F330000,
]
EDGES = np.array([*EDGES, *(w | 0x80000000 for w in EDGES)], np.uint32)


def sample(seed, count=700):
    """Any bits, numbers around zero, logits below zero, and the edges."""
    rng = np.random.default_rng(seed)
    spread = rng.choice([1.0, 30.0, 130.0], count)
    numbers = [rng.standard_normal(count) * spread, -np.abs(rng.standard_normal(count)) * spread]
    words = [np.array(x, np.float32).view(np.uint32) for x in numbers]
    return np.concatenate([rng.integers(0, 1 << 32, count, dtype=np.uint32), *words, EDGES])


def operands(name, seed):
    if name != "div.full":
        return (sample(seed),)
    a, b = sample(seed), sample(seed + 1)
    np.random.default_rng(seed).shuffle(b)
    pairs = [(x, y) for x in EDGES[::3] for y in EDGES[::2]]
    return tuple(
        np.concatenate([z, np.array(e, np.uint32)])
        for z, e in zip((a, b), zip(*pairs, strict=True), strict=True)
    )


@functools.cache
def scalar(name, fmt, seed=11):
    """Operands that the scalar function takes, its results, and operands that it refuses."""
    taken, results, refused = [], [], []
    for words in zip(*operands(name, seed), strict=True):
        try:
            result = SPECIAL[name](*(mufu.from_word(int(w)) for w in words), parse_format(fmt))
        except UnsupportedError:
            refused.append(words)
        else:
            taken.append(words)
            results.append(mufu.to_word(result))
    return np.array(taken, np.uint32).T, np.array(results, np.uint32), np.array(refused, np.uint32).T


@pytest.mark.parametrize(("name", "fmt"), CASES)
def test_the_exact_carrier_is_the_scalar_function(name, fmt):
    words, expected, refused = scalar(name, fmt)
    result, risk = run("exact", name, fmt, *words)
    wrong = differ(result, expected)
    assert wrong.size == 0, (wrong.size, words[:, wrong[0]], result[wrong[0]], expected[wrong[0]])
    assert not risk
    if refused.size and not fmt.endswith("ftz"):
        assert run("exact", name, fmt, *refused, each=True)[1].all()


@pytest.mark.parametrize(("name", "fmt"), CASES)
def test_the_fast_carrier_is_right_or_flagged(name, fmt):
    words, expected, _ = scalar(name, fmt)
    result, risk = run("fast", name, fmt, *words, each=True)
    wrong = np.setdiff1d(differ(result, expected), np.flatnonzero(risk))
    assert wrong.size == 0, (wrong.size, words[:, wrong[0]], result[wrong[0]], expected[wrong[0]])
    numbers = np.concatenate([words, expected[None]])
    subnormal = (((numbers & 0x7FFFFFFF) - 1) < 0x7FFFFF).any(axis=0)
    sensible = (
        words[0] < 0x43000000 if name == "fa4.exp2" else np.True_
    )  # its kernel gives it nothing above 127
    assert (risk & ~subnormal & (sensible | (words[0] >= 1 << 31))).mean() < 0.02, (
        "flags without a subnormal number"
    )


@pytest.mark.parametrize("name", ["mufu.ex2", "cuda.logf", "glibc.expf"])
def test_in_loops_and_across_shapes(name):
    """Fused with other operations, in a scan and in two dimensions, the bits stay."""
    words = np.abs(np.random.default_rng(3).standard_normal(256) * 8 + 20).astype(np.float32).view(np.uint32)
    expected, _ = run("fast", name, "f32", words)

    @jax.jit
    def loops(zero, words):
        ops = F32(zero)
        table = ops.decode(words, SINGLE).reshape(16, 16)

        def step(total, row):
            y = ops.special(name, row)
            return ops.add(total, ops.mul(y, 3.0)), ops.encode(y)

        total, rows = ops.scan(step, jnp.zeros(16, jnp.float32), table)
        whole = ops.encode(ops.special(name, table))
        mapped = lax.map(lambda x: ops.encode(ops.special(name, x)), table[:2])
        return total, rows, whole, mapped, ops.encode(ops.special(name, table[3, 5]))

    with x64():
        total, rows, whole, mapped, element = (np.asarray(x) for x in loops(ZERO, words))
    assert (rows.ravel() == expected).all()
    assert (whole.ravel() == expected).all()
    assert (mapped.ravel() == expected[:32]).all()
    assert element == expected[53]
    with np.errstate(over="ignore"):
        sums = np.zeros(16, np.float32)
        for row in expected.view(np.float32).reshape(16, 16):
            sums = sums + row * np.float32(3)
    assert (total.view(np.uint32) == sums.view(np.uint32)).all()


# -- glibc itself -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["expf", "logf"])
def test_glibc(name):
    flags = Path("/proc/cpuinfo")
    fused = flags.exists() and " fma " in flags.read_text()
    found, version = platform.libc_ver()
    known = found == "glibc" and (2, 28) <= tuple(map(int, version.split(".")[:2])) < (2, 41)
    if not (fused and known and platform.machine() == "x86_64"):
        pytest.skip(
            f"needs glibc 2.28 to 2.40 on x86-64 with FMA, found {found} {version}, {platform.machine()}"
        )
    function = getattr(ctypes.CDLL("libm.so.6"), name)
    function.restype, function.argtypes = ctypes.c_float, [ctypes.c_float]
    rng = np.random.default_rng(13)
    numbers = rng.uniform(-105, 90, 100000).astype(np.float32)
    x = np.concatenate([rng.integers(0, 1 << 32, 50000, dtype=np.uint32).view(np.float32), numbers])
    with np.errstate(all="ignore"):
        expected = np.fromiter(map(function, x.tolist()), np.float64, len(x)).astype(np.float32)
    result, _ = run("exact", f"glibc.{name}", "f32", x.view(np.uint32))
    assert differ(result, expected.view(np.uint32)).size == 0


# -- refusals ---------------------------------------------------------------------------------------------


def call(carrier, name, fmt, value=1.0):
    return jax.jit(lambda zero: carrier(zero).special(name, value, fmt=parse_format(fmt)))(ZERO)


@pytest.mark.parametrize(
    ("carrier", "name", "fmt", "cause"),
    [
        (F64, "mufu.ex2", "f32", "computes in f32, not in f64"),
        (F32, "tanh.approx", "f32", r"tanh\.approx\(\) is not evaluated"),
        (F32, "mufu.rcp", "bf16", r"mufu\.rcp in bf16"),
        (F32Exact, "glibc.expf", "f32.ftz", "does not flush"),
    ],
)
def test_refusals(carrier, name, fmt, cause):
    with x64(), pytest.raises(UnsupportedError, match=cause):
        call(carrier, name, fmt)


def test_both_walkers_know_the_same_functions():
    assert special.FUNCTIONS.keys() == SPECIAL.keys()
