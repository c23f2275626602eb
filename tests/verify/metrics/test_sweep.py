"""Passes over full rows, against straightforward float64 of whole arrays."""

import mmap

import ml_dtypes
import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.verify.metrics.made import BF16, divergences, full, logits, noisy
from verify.metrics.distribution import DISTRIBUTION_FIELDS
from verify.metrics.sweep import QUANTILES, Column, Segment, Sweep, release, sweep
from verify.numerics.ulp import ulp_summary

DTYPES = [BF16, np.dtype(np.float16), np.dtype(np.float32), np.dtype(np.float64)]


def swept(a, b, *, tokens=None, columns=None, **options):
    columns = columns or (Column(), Column())
    rows = len(a)
    at = np.arange(rows)
    held = np.zeros(rows, np.int64) if tokens is None else np.asarray(tokens)
    segment = Segment(0, rows, (full(a), full(b)), (at, at), (held, held))
    mask = np.ones(rows, bool)
    return sweep(columns, [segment], [(0, 1, mask)], a.shape[1], **options)


def difference(a, b):
    """As documented: in float32, or float64 where that is stored."""
    kind = np.float64 if a.dtype == np.float64 else np.float32
    return np.abs(a.astype(kind) - b.astype(kind))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("vocab", [1, 7, 700, 5003])
def test_values(dtype, vocab):
    x = logits(6, vocab)
    a, b = x.astype(dtype), noisy(x, 1).astype(dtype)
    pair = swept(a, b, threads=2).pairs[0]
    d = difference(a, b).astype(np.float64)
    f = pair.fields
    assert f["max_abs"] == pytest.approx(d.max(axis=1), rel=0)
    assert f["sum_abs"] == pytest.approx(d.sum(axis=1), rel=1e-12)
    assert f["sum_squares"] == pytest.approx((d * d).sum(axis=1), rel=1e-6)
    signed = (a.astype(np.float64) - b.astype(np.float64)).sum(axis=1)
    assert f["sum"] == pytest.approx(signed, abs=1e-6 * d.sum(axis=1).max())
    floor = np.maximum(np.maximum(np.abs(a.astype(np.float64)), np.abs(b.astype(np.float64))), 1e-3)
    assert f["max_relative"] == pytest.approx((d / floor).max(axis=1), rel=1e-6)
    assert f["sum_relative"] == pytest.approx((d / floor).sum(axis=1), rel=1e-6)
    found = pair.state.differences.quantiles(QUANTILES)
    assert found == pytest.approx(np.quantile(d.ravel(), QUANTILES), rel=1e-14)
    ulp = ulp_summary(a, b)
    assert f["different"].sum() == ulp.n - ulp.equal + ulp.zero_sign
    assert f["max_ulp"].max() == ulp.max
    if dtype.itemsize == 2:
        counts = pair.state.ulps
        assert counts.sum() == ulp.compared
        assert np.arange(counts.size) @ counts / ulp.n == pytest.approx(ulp.mean)
        for b_ in ulp.histogram:
            assert counts[b_.low : b_.high + 1].sum() == b_.count
    else:
        assert [int(c) for c in np.trim_zeros(pair.state.ulps, "b")] == [b_.count for b_ in ulp.histogram]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_leading_bits_that_agree(dtype):
    x = logits(3, 300)
    a, b = x.astype(dtype), noisy(x, 1).astype(dtype)
    width = dtype.itemsize * 8
    words = [z.view(f"u{dtype.itemsize}").ravel().tolist() for z in (a, b)]
    expected = np.bincount(
        [width - (i ^ j).bit_length() for i, j in zip(*words, strict=True)], minlength=width + 1
    )
    assert swept(a, b).pairs[0].state.agree().tolist() == expected.tolist()


@pytest.mark.parametrize("dtype", DTYPES[:2], ids=str)
@pytest.mark.parametrize("steps", [3, 2000])
def test_sixteen_bits_near_and_far(dtype, steps):
    """Patterns of every exponent, moved by a few or many places, with zeros of both signs: counted in plain NumPy."""
    rng = np.random.default_rng(steps)
    top = {BF16: 0x7F80, np.dtype(np.float16): 0x7C00}[dtype]
    places = rng.integers(1 - top, top, (6, 1501))
    other = np.clip(places + rng.integers(-steps, steps + 1, places.shape), 1 - top, top - 1)
    words = [np.where(p < 0, 0x8000 - p, p).astype(np.uint16) for p in (places, other)]
    words[0][2, :4], words[1][2, :4] = (0, 0x8000, 0x8000, 5), (0x8000, 0, 0x8000, 0x8003)
    a, b = (w.view(dtype) for w in words)
    places[2, :4], other[2, :4] = (0, 0, 0, 5), (0, 0, 0, -3)
    pair = swept(a, b, columns=(Column(softmax=False),) * 2, threads=1, best=2).pairs[0]
    distance = np.abs(places - other)
    assert pair.state.ulps.tolist() == np.bincount(distance.ravel(), minlength=1 << 16).tolist()
    assert pair.fields["max_ulp"].tolist() == distance.max(axis=1).tolist()
    assert pair.fields["zero_sign"].tolist() == [0, 0, 2, 0, 0, 0]
    xor = (words[0] ^ words[1]).ravel().tolist()
    assert (
        pair.state.agree().tolist() == np.bincount([16 - x.bit_length() for x in xor], minlength=17).tolist()
    )
    d = difference(a, b).ravel()
    ranks = np.linspace(0, d.size - 1, 101).astype(
        int
    )  # as quantiles, so that no two order statistics are mixed
    found = pair.state.differences.quantiles([r / (d.size - 1) for r in ranks.tolist()])
    assert found == pytest.approx(np.sort(d)[ranks].tolist(), rel=1e-12, abs=0)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("noise", [0.02, 0.3, 3.0])
def test_distributions(dtype, noise):
    x = logits(5, 900)
    a, b = x.astype(dtype), noisy(x, 1, noise).astype(dtype)
    fields = swept(a, b).pairs[0].fields
    for name, expected in divergences(a, b).items():
        tolerance = {2: 2e-6, 4: 1e-6, 8: 4e-8}[dtype.itemsize]
        assert fields[name] == pytest.approx(expected, rel=tolerance * (10 if name == "tv" else 1)), name


def test_close_distributions_against_fifty_digits():
    """float32 runs that differ by rounding only: the textbook sum of float64 terms would lose all digits."""
    x = logits(1, 40)
    b = np.nextafter(x, np.float32(100))
    fields = swept(x, b).pairs[0].fields
    with mpmath.workdps(50):
        rows = [[mpmath.mpf(float(v)) for v in z[0]] for z in (x, b)]
        sums = [mpmath.fsum(mpmath.exp(v) for v in row) for row in rows]
        p, q = ([mpmath.exp(v) / s for v in row] for row, s in zip(rows, sums, strict=True))
        kl = mpmath.fsum(i * mpmath.log(i / j) for i, j in zip(p, q, strict=True))
        js = mpmath.fsum(
            (i * mpmath.log(2 * i / (i + j)) + j * mpmath.log(2 * j / (i + j))) / 2
            for i, j in zip(p, q, strict=True)
        )
        assert fields["kl"][0] == pytest.approx(float(kl), rel=1e-6)
        assert fields["js"][0] == pytest.approx(float(js), rel=1e-6)


@settings(max_examples=25)
@given(seed=st.integers(0, 10**6), noise=st.sampled_from([0.0, 1e-3, 0.1, 2.0, 30.0]))
def test_laws_of_distances(seed, noise):
    x = logits(3, 64, seed)
    a, b = x.astype(BF16), noisy(x, seed + 1, noise).astype(BF16)
    there, back = swept(a, b, threads=1).pairs[0].fields, swept(b, a, threads=1).pairs[0].fields
    assert there["kl"] == pytest.approx(back["kl_reverse"], rel=1e-4, abs=1e-12)
    assert there["js"] == pytest.approx(back["js"], rel=1e-4, abs=1e-12)
    assert (there["kl"] >= 0).all()
    assert (there["js"] <= np.log(2) + 1e-9).all()
    assert (there["tv"] <= 1 + 1e-6).all()
    assert (there["tv"] ** 2 <= there["kl"] / 2 + 1e-7).all()  # Pinsker
    assert (there["js"] <= there["tv"] * np.log(2) + 1e-7).all()


def test_equal_bits_are_no_distance():
    a = logits(4, 2000).astype(BF16)
    pair = swept(a, a.copy()).pairs[0]
    for name in (*DISTRIBUTION_FIELDS, "different", "max_abs", "sum_squares", "max_ulp"):
        assert (pair.fields[name] == 0).all()
    assert pair.state.agree()[16] == a.size
    assert pair.state.differences.quantiles([0.5, 1.0]) == (0, 0)


def test_threads_and_group_sizes_give_the_same_bits():
    x = logits(40, 3001)
    a, b = x.astype(BF16), noisy(x, 1).astype(BF16)
    one, many = swept(a, b, threads=1), swept(a, b, threads=4)
    for name, values in one.pairs[0].fields.items():
        np.testing.assert_array_equal(values, many.pairs[0].fields[name])
    assert (one.pairs[0].state.ulps == many.pairs[0].state.ulps).all()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("vocab", [5, 5003])
def test_sides(dtype, vocab):
    x = np.round(logits(6, vocab), 1).astype(dtype)  # with ties
    tokens = np.arange(6) % vocab
    side = swept(x, x, tokens=tokens, best=5).sides[0]
    wide = x.astype(np.float64)
    assert side.fields["lse"] == pytest.approx(np.log(np.exp(wide).sum(axis=1)), rel=3e-7)
    order = np.lexsort((np.broadcast_to(np.arange(vocab), wide.shape), -wide), axis=1)[:, :5]
    assert side.best.tolist() == order.tolist()
    assert side.fields["second"].tolist() == np.sort(wide, axis=1)[:, -2].tolist()
    chosen = wide[np.arange(6), tokens]
    assert side.fields["chosen"].tolist() == chosen.tolist()
    assert side.fields["chosen_rank"].tolist() == (wide > chosen[:, None]).sum(axis=1).tolist()


def test_special_values_are_counted_apart():
    """NaN, infinities and clamped values in otherwise equal rows of four elements each."""
    inf, nan = np.inf, np.nan
    a = np.array(
        [[1, nan, nan, 2], [1, inf, -inf, 2], [1, -9999, -20.25, 2], [1, 2, 3, 4]], np.float32
    ).astype(BF16)
    b = np.array([[1, nan, 3, 2.5], [1, inf, 3, 2], [1, -20.25, -20.25, 2], [1, 2, 3, 4]], np.float32).astype(
        BF16
    )
    result = swept(a, b, columns=(Column(floor=-9000), Column(floor=-9000)))
    f = result.pairs[0].fields
    assert f["nan_both"].tolist() == [1, 0, 0, 0]
    assert f["nan_mismatch"].tolist() == [1, 0, 0, 0]
    assert f["inf_both"].tolist() == [0, 1, 0, 0]
    assert f["inf_mismatch"].tolist() == [0, 1, 0, 0]
    assert f["clamped"].tolist() == [0, 0, 1, 0]
    assert f["n"].tolist() == [2, 2, 3, 4]
    assert f["sum_abs"].tolist() == [0.5, 0, 0, 0]
    assert f["max_abs"].tolist() == [0.5, 0, 0, 0]
    assert np.isnan(f["kl"]).tolist() == [True, True, False, False]  # NaN and +inf leave no distribution
    assert result.sides[0].fields["nan"].tolist() == [2, 0, 0, 0]
    assert result.sides[0].fields["clamped"].tolist() == [0, 0, 1, 0]
    assert result.sides[0].fields["negative_infinity"].tolist() == [0, 1, 0, 0]
    assert result.pairs[0].state.differences.n == 11


def test_impossible_tokens_keep_the_rest():
    """-infinity on both sides is a token that neither run allows; on one side its probability is told."""
    a = np.array([[0.0, 1.0, -np.inf, 2.0], [0.0, 1.0, -np.inf, 2.0]], np.float32)
    b = np.array([[0.0, 1.5, -np.inf, 2.0], [0.0, 1.0, -1.0, 2.0]], np.float32)
    pair = swept(a, b).pairs[0]
    keep = [0, 1, 3]
    assert pair.fields["kl"][0] == pytest.approx(divergences(a[:1, keep], b[:1, keep])["kl"][0], rel=1e-12)
    lost = np.exp(-1.0) / np.exp(b[1].astype(np.float64)).sum()
    assert pair.lost == pytest.approx([0, lost], rel=1e-6)


def test_subnormal_values_and_differences():
    """Differences below the smallest normal float32 are not flushed, and count in the quantiles."""
    a = np.array([[2.0**-133, 2.0**-130, 0.0, 1.0]], np.float32).astype(BF16)
    b = np.array([[2.0**-132, 2.0**-130, -0.0, 1.0]], np.float32).astype(BF16)
    result = swept(a, b)
    f = result.pairs[0].fields
    assert f["max_abs"][0] == 2.0**-133
    assert f["different"][0] == 2
    assert f["zero_sign"][0] == 1
    assert f["max_ulp"][0] == 1
    assert result.sides[0].fields["subnormal"][0] == 2


def test_ulp_at_the_ends():
    """Largest finite against infinity is a mismatch, not one ULP; across zero there is no jump (known fault)."""
    top = ml_dtypes.finfo(BF16).max
    a = np.array([[top, 0.21875, -0.0]], np.float32).astype(BF16)
    b = np.array([[np.inf, -0.21875, 0.0]], np.float32).astype(BF16)
    f = swept(a, b).pairs[0].fields
    assert f["inf_mismatch"][0] == 1
    assert f["max_ulp"][0] == 2 * int(np.array([0.21875], np.float32).astype(BF16).view(np.uint16)[0])


def test_wide_f16_values_have_finite_spread():
    """Statistics in float16 overflow: 3,200 values up to 51 (known fault)."""
    x = np.linspace(-51, 51, 3200).astype(np.float16)[None]
    f = swept(x, -x).pairs[0].fields
    assert f["sum_squares"][0] == pytest.approx(((2 * x.astype(np.float64)) ** 2).sum(), rel=1e-6)
    assert f["a_squares"][0] == pytest.approx((x.astype(np.float64) ** 2).sum(), rel=1e-6)


def test_columns_behind_the_common_ones_are_not_read():
    a = logits(3, 50)
    b = np.concatenate([a[:, :40], np.full((3, 24), 1e30, np.float32)], axis=1)
    at = np.arange(3)
    held = np.zeros(3, np.int64)
    segment = Segment(0, 3, (full(a), full(b)), (at, at), (held, held))
    pair = sweep([Column(), Column()], [segment], [(0, 1, np.ones(3, bool))], 40).pairs[0]
    assert pair.fields["n"].tolist() == [40, 40, 40]
    assert pair.fields["max_abs"].tolist() == [0, 0, 0]


def test_missing_rows_and_masks():
    a, b = logits(4, 30), logits(4, 30, seed=1)
    b = np.concatenate([a[:2] + 1, b[2:]])
    held = np.zeros(5, np.int64)
    rows_a, rows_b = np.array([0, 1, -1, 2, 3]), np.array([0, -1, 1, 2, 3])
    segment = Segment(0, 5, (full(a), full(b)), (rows_a, rows_b), (held, held))
    mask = np.array([True, True, True, True, False])
    result = sweep([Column(), Column()], [segment], [(0, 1, mask)], 30)
    assert np.isnan(result.pairs[0].fields["n"]).tolist() == [False, True, True, False, True]
    assert np.isnan(result.sides[1].fields["lse"]).tolist() == [False, True, False, False, False]
    assert result.pairs[0].fields["max_abs"][0] == pytest.approx(1)


def test_ranks_of_the_others_best_token():
    a = np.array([[5, 4, 3, 2, 1]], np.float32)
    b = np.array([[2, 4, 3, 5, 1]], np.float32)
    f = swept(a, b, tokens=[2]).pairs[0].fields
    assert f["a_best_in_b"][0] == 3  # three values exceed b's value of token 0
    assert f["b_best_in_a"][0] == 3
    assert (f["a_chosen_in_b"][0], f["b_chosen_in_a"][0]) == (3, 3)


def test_pages_of_mapped_files_are_let_go(tmp_path):
    path = tmp_path / "x.bin"
    np.arange(8192, dtype=np.float32).tofile(path)
    mapped = np.memmap(path, np.float32, "r", shape=(8, 1024))
    release(mapped[2:4])
    assert mapped[3, 5] == 3 * 1024 + 5
    own = np.zeros(4)
    release(own)
    assert isinstance(mapped._mmap, mmap.mmap)


def test_groups_cover_every_row_once():
    x = logits(10, 50_000).astype(BF16)
    at = np.arange(10)
    segment = Segment(0, 10, (full(x),), (at,), (at,))
    made = Sweep([Column()], [segment], [], 50_000)
    assert [r for _, low, high in made.groups() for r in range(low, high)] == list(range(10))
