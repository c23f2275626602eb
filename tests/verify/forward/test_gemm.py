"""Matrix products against the scalar definition of tensor cores, on numbers of every size."""

import ml_dtypes
import numpy as np
import pytest

from specs import load_platform
from specs.dot_products import DotProduct, find
from specs.errors import UnsupportedError
from specs.formats import BASES, Format
from verify.forward.gemm import Products, check_instruction, lay_out, merged, rows_of, width_for
from verify.numerics.operations import add
from verify.numerics.tensor_core import chained

BF16, F16, F32 = BASES["bf16"], BASES["f16"], BASES["f32"]


def dot_of(platform: str, fmt: Format, k: int) -> DotProduct:
    return find(load_platform(platform).dot_products, "mma", fmt, fmt, F32, k)


def words_of(rng: np.random.Generator, shape: tuple[int, int], fmt: Format) -> np.ndarray:
    """Rows of three kinds: near 1, any finite bits, subnormal; zeros of both signs among them."""
    own = ml_dtypes.bfloat16 if fmt is BF16 else np.float16
    top = np.uint16(0x7F80 if fmt is BF16 else 0x7C00)
    near = rng.standard_normal(shape).astype(own).view(np.uint16)
    bits = rng.integers(0, 1 << 16, shape).astype(np.uint16)
    bits = np.where((bits & top) == top, bits & ~top, bits)
    tiny = rng.integers(0, 1 << (fmt.p - 1), shape).astype(np.uint16) | (bits & np.uint16(0x8000))
    kind = np.arange(shape[0])[:, None] % 5
    out = np.where(kind < 3, near, np.where(kind == 3, bits, tiny)).astype(np.uint16)
    out[rng.random(shape) < 0.1] = 0
    out[rng.random(shape) < 0.05] = 0x8000
    return out


def values(words: np.ndarray, fmt: Format) -> list[float]:
    return [
        float(x) for x in words.view(ml_dtypes.bfloat16 if fmt is BF16 else np.float16).astype(np.float64)
    ]


def word(x: float) -> int:
    if np.isnan(x):
        return 0x7FFFFFFF  # the one NaN of a tensor core
    with np.errstate(over="ignore"):
        return int(np.float32(x).view(np.uint32))


@pytest.mark.parametrize(
    ("platform", "fmt", "k"), [("h200", BF16, 16), ("a100", BF16, 8), ("v100", F16, 4)], ids=str
)
def test_products_are_those_of_the_definition(platform, fmt, k):
    rng = np.random.default_rng(5)
    dot = dot_of(platform, fmt, k)
    x, w, small = words_of(rng, (6, 72), fmt), words_of(rng, (37, 72), fmt), words_of(rng, (20, 40), fmt)
    products = Products(lay_out({"small": small, "w": w}), dot, k, fmt, 32, "seq", 1)
    found = {n: np.asarray(products(x, n)) for n in ("w", "small")}
    split = np.asarray(products(x, "w", 2))
    assert products.slices("w", 2) == [(0, 4), (4, 5)]
    subnormal = 0
    for i in range(6):
        for name, matrix in (("w", w), ("small", small)):
            a = values(x[i, : matrix.shape[1]], fmt)
            for j, row in enumerate(matrix):
                b = values(row, fmt)
                whole = word(chained(dot, k, a, b, 0.0, fmt, fmt))
                assert found[name][i, j] == whole
                subnormal += 0 < whole & 0x7FFFFFFF < 0x800000
                if name == "w":
                    parts = [chained(dot, k, a[s], b[s], 0.0, fmt, fmt) for s in (slice(64), slice(64, None))]
                    assert split[i, j] == word(add(*parts, F32))
    if fmt is BF16:
        assert subnormal
        assert np.isinf(np.asarray(found["w"]).view(np.float32)).any()


def test_windows_are_columns_of_the_whole():
    rng = np.random.default_rng(6)
    w, x = words_of(rng, (300, 16), BF16), words_of(rng, (6, 16), BF16)
    matrices = lay_out({"w": w})
    assert (matrices.width, matrices.windows("w")) == (160, 2)
    products = Products(matrices, dot_of("h200", BF16, 16), 16, BF16, 16, "seq", matrices.windows("w"))
    whole = np.asarray(products(x, "w"))[:, :300]
    last = np.asarray(products(x, "w", windows=(1, 2)))
    width = matrices.width
    assert np.array_equal(last[:, : 300 - width], whole[:, width : 2 * width])
    with pytest.raises(ValueError, match="room for"):
        products(x, "w", windows=(0, 99))


def test_slices_are_added_in_f32():
    parts = [np.array([word(v)], np.uint32) for v in (1.0, 2.0**-24, 2.0**-24, 2.0**-140)]
    tiny = float(np.float32(2.0**-24) + np.float32(2.0**-140))
    assert tiny == 2.0**-24
    assert int(merged(parts, "seq")[0]) == word(1.0)  # each half of a last place is lost, to even
    assert int(merged(parts[1:], "seq")[0]) == word(2.0**-23)
    assert int(merged([parts[0], parts[0], parts[1], parts[1]], "pairwise")[0]) == word(2.0)
    assert int(merged([parts[1], parts[1], parts[0], parts[0]], "pairwise")[0]) == word(2.0)
    assert int(merged([parts[1], parts[1], parts[0]], "seq")[0]) == word(1.0 + 2.0**-23)
    assert int(merged([parts[3], parts[3]], "seq")[0]) == word(2.0**-139)


@pytest.mark.parametrize(
    ("sizes", "width"), [([960, 576, 3072, 49152], 192), ([37, 20], 64), ([256, 512], 256)]
)
def test_width_wastes_least(sizes, width):
    found = width_for(sizes)
    padded = [sum(-(-n // w) * w for n in sizes) for w in (found, width)]
    assert padded[0] <= padded[1]
    assert found % 16 == 0


@pytest.mark.parametrize(("count", "rows"), [(320, 160), (512, 128), (64, 64), (448, 112), (5, 5)])
def test_rows_of_a_block(count, rows):
    assert rows_of(count) == rows


def test_instructions_that_are_not_run_are_refused():
    with pytest.raises(UnsupportedError, match="32 terms"):
        check_instruction(dot_of("h200", BF16, 16), 32)
    fp8 = BASES["e4m3fn"]
    late = find(load_platform("h200").dot_products, "mma", fp8, fp8, F32, 16)
    with pytest.raises(UnsupportedError, match="matrix products by"):
        check_instruction(late, 16)
