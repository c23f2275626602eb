"""Laws of the array engine, for every spec that it evaluates: it is the oracle, bit for bit, on every site.

What the definition itself obeys (exact attention, masks, merges) is in definition/test_laws.py.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specs import Spec, load_spec
from specs.bind import bind
from specs.context import make_context
from specs.discover import every
from specs.errors import UnsupportedError
from tests.verify.laws import (
    BF16,
    NUMBERS,
    SCORES,
    Array,
    assert_engine_is_oracle,
    assert_same_bits,
    engine,
    gpu,
    problem,
    roomy,
    some_numbers,
    some_scores,
)
from verify import emulate
from verify.emulator import Run
from verify.engine.layout import prepare, shape_of
from verify.judge import judge
from verify.partition import plan_program

ENGINE = [f"walkthrough.{n}" for n in ("dense", "flash_attention_2", "tiled", "triton", "trtllm_gen", "xqa")]
SMS = (1, 2, 5, 132)
CAPACITY = 1024
#: Around every boundary of a tile, segment or split of some spec.
LENGTHS = (
    0,
    1,
    2,
    15,
    16,
    17,
    33,
    63,
    64,
    65,
    127,
    128,
    129,
    192,
    193,
    255,
    256,
    257,
    511,
    512,
    513,
    576,
    769,
    1000,
    1024,
)


def by_default(*quick: str) -> list[Any]:
    """All specs as parameters, those that are not ``quick`` on demand."""
    return [pytest.param(n, marks=() if n.partition(".")[2] in quick else pytest.mark.slow) for n in ENGINE]


def examples(few: int) -> int:
    """How many examples: few by default, ``ULPSCOPE_EXAMPLES`` times as many for a long run."""
    return few * int(os.environ.get("ULPSCOPE_EXAMPLES", "1"))


def wide(spec: Spec) -> bool:
    return spec.numbers.compute == "f64"


@lru_cache
def table(name: str) -> tuple[int, ...]:
    """A table shape that fits the plans of all `LENGTHS` on all `SMS`."""
    shapes: list[tuple[int, ...]] = []
    for sms in SMS:
        for kv_len in LENGTHS:
            context = make_context(
                {"kv_len": kv_len, "sm_count": sms, "compute_capability": 90, "head_dim": 4}
            )
            shapes.append(shape_of(plan_program(bind(load_spec(name), context), context)))
    return tuple(max(s[i] for s in shapes) for i in range(len(shapes[0])))


def test_every_walkthrough_is_here() -> None:
    """The kernels are in `test_kernels`."""
    library = {f.name for f in every() if f.kind == "library"}
    assert {n for n in library if n.startswith("walkthrough.")} == set(ENGINE)


# -- the engine is the oracle -----------------------------------------------------------------------------


def scored(spec: Spec, kv_len: int, kinds: list[str], numbers: str, seed: int) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    scores = np.stack([some_scores(kind, rng, kv_len, wide(spec)) for kind in kinds])
    return {"scores": scores, "values": some_numbers(numbers, rng, (kv_len, 2), wide(spec))}


def check_scores(
    name: str,
    sms: int,
    kv_len: int,
    kinds: list[str],
    numbers: str,
    seed: int,
    rows: Sequence[int] = (0, 1, 2),
) -> None:
    spec = load_spec(name)
    run = engine(spec, gpu(sms), problem(spec, **scored(spec, kv_len, kinds, numbers, seed)))
    assert_engine_is_oracle(roomy(run, CAPACITY, table(name)), [(0, row) for row in rows], [seed % 2])


@pytest.mark.parametrize("name", by_default("tiled", "triton", "trtllm_gen"))
def test_ready_scores(name: str) -> None:
    """Every boundary, then anything: all sites, three rows of mixed kinds, one compiled function.

    At a boundary the oracle judges one of the three rows, in turn; all of them in what follows. On demand for the
    others: `test_queries_and_keys` has every site of theirs, from queries and keys.
    """
    for i, kv_len in enumerate(LENGTHS):
        check_scores(name, 2, kv_len, ["usual", "holes", "groups"], "usual", kv_len, rows=[i % 3])

    @settings(max_examples=examples(6))
    @given(
        sms=st.sampled_from(SMS),
        kv_len=st.sampled_from(LENGTHS),
        kinds=st.lists(st.sampled_from(SCORES), min_size=3, max_size=3),
        numbers=st.sampled_from(NUMBERS),
        seed=st.integers(0, 2**32 - 1),
    )
    def law(sms: int, kv_len: int, kinds: list[str], numbers: str, seed: int) -> None:
        check_scores(name, sms, kv_len, kinds, numbers, seed)

    law()


def assert_far_apart(run: Run) -> None:
    """The one refusal that is right: in f64, scores so far apart that exp of their difference may be subnormal."""
    assert run.program.compute.name == "f64"
    everyone = [(h, r) for h in range(run.problem.heads) for r in range(run.problem.rows)]
    scores = judge(run.program, run.plan, run.problem, run.scalars, ["score"], everyone)["score"]
    seen = np.where(np.isfinite(scores), scores, np.nan).reshape(len(everyone), -1)
    assert np.nanmax(np.nanmax(seen, axis=-1) - np.nanmin(seen, axis=-1)) > 600


@pytest.mark.parametrize("name", by_default("dense", "flash_attention_2", "xqa"))
@pytest.mark.parametrize(
    "dtypes",
    [(BF16, BF16, np.float32), pytest.param((np.float16,), marks=pytest.mark.slow)],
    ids=["bf16", "f16"],
)
def test_queries_and_keys(name: str, dtypes: tuple[Any, ...]) -> None:
    """Two KV heads with two query heads each, two causal queries; f32 inputs are rounded on entry.

    f16 inputs are other compiled functions, tested on demand; bf16 stands for them.
    On demand for the others: by default `test_ready_scores` compares every other site of theirs, and
    `test_what_must_not_matter_does_not` the outputs of ``triton`` with the oracle from queries and keys; the scores of
    ``tiled`` are those of ``dense``, and those of ``trtllm_gen`` those of ``triton``.
    """
    spec = load_spec(name)

    @settings(max_examples=examples(6))
    @given(
        dtype=st.sampled_from(dtypes),
        kv_len=st.sampled_from((2, 3, 16, 17, 64, 65, 100, 130, 257)),
        numbers=st.tuples(st.sampled_from(NUMBERS), st.sampled_from(NUMBERS), st.sampled_from(NUMBERS)),
        scale=st.sampled_from((None, 0.125, 0.3, -1.0, 0.0)),
        seed=st.integers(0, 2**32 - 1),
    )
    def law(dtype: Any, kv_len: int, numbers: tuple[str, str, str], scale: float | None, seed: int) -> None:
        rng = np.random.default_rng(seed)
        shapes = ((2, 4, 5), (kv_len, 2, 5), (kv_len, 2, 3))
        q, k, v = (some_numbers(n, rng, s, wide(spec)) for n, s in zip(numbers, shapes, strict=True))
        most = 3e38 if dtype is not np.float16 else 65504.0
        q, k, v = (np.clip(x, -most, most).astype(dtype) for x in (q, k, v))
        run = engine(spec, gpu(2), problem(spec, q=q, k=k, v=v, scale=scale, causal=True), causal=1)
        picks = rng.integers(0, (2, 4), (2, 2))
        pairs = [(int(h), int(r)) for h, r in picks]
        try:
            assert_engine_is_oracle(roomy(run, 512, table(name)), pairs, [int(rng.integers(3))])
        except UnsupportedError:
            assert_far_apart(run)

    law()


# -- what must not matter ---------------------------------------------------------------------------------


def answers(run: Run) -> tuple[Array, Array]:
    """Output and lse, compiled without the other sites, as `emulate` does."""
    run.evaluate(["output", "lse"])
    return run.known["output"], run.known["lse"]


def queried(spec: Spec, kv_len: int, seed: int) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    shapes = ((2, 4, 5), (kv_len, 2, 5), (kv_len, 2, 3))
    q, k, v = (some_numbers("usual", rng, s, wide(spec)).astype(np.float32) for s in shapes)
    return {"q": q, "k": k, "v": v, "causal": True}


@pytest.mark.parametrize("name", by_default("triton"))
def test_what_must_not_matter_does_not(name: str) -> None:
    """What lies past the last token, what a query may not see, the other head, the other queries.

    By default one that merges groups; the others on demand: layout and masks are the engine's and know no spec, and
    `test_queries_and_keys` judges causal rows of one with a loop.

    In a sweep, keys and values of later tokens lie past the last one: keys of any kind, values that are finite.
    """
    spec = load_spec(name)

    def run(arrays: dict[str, Any]) -> Run:
        return roomy(engine(spec, gpu(2), problem(spec, **arrays), causal=1), 512, table(name))

    for kv_len in (3, 64, 100, 257, 512):
        arrays = queried(spec, kv_len, kv_len)
        first = run(arrays)
        want = answers(first)

        stale = run(arrays)
        given = stale.problem
        extra = 512 - kv_len
        k, v = (
            np.concatenate([x, np.full((extra, *x.shape[1:]), fill, x.dtype)])
            for x, fill in ((given.k, np.nan), (given.v, -3.0e38))
        )
        assert stale.kv is not None
        stale.kv = replace(prepare(k, v, given.formats, 512), ranges=stale.kv.ranges)

        unseen = {
            n: x.copy() for n, x in arrays.items() if n != "causal"
        }  # by the first query: the last token
        unseen["k"][-1], unseen["v"][-1] = 3.0, -1e4
        beside = {n: x.copy() for n, x in arrays.items() if n != "causal"}  # of head 0 and query 1
        beside["k"][:, 1], beside["v"][:, 1], beside["q"][0], beside["q"][:, 2:] = 3, 4, 5, 6
        others = [
            answers(stale),
            answers(run({**unseen, "causal": True})),
            answers(run({**beside, "causal": True})),
        ]
        for i, site in enumerate(("output", "lse")):
            assert_same_bits(others[0][i], want[i], f"{name} {site} with padding")
            assert_same_bits(others[1][i][:, :2], want[i][:, :2], f"{name} {site} of the first query")
            assert_same_bits(others[2][i][0, 2:], want[i][0, 2:], f"{name} {site} of head 0, query 1")
        if kv_len in (64, 257):
            oracle = judge(
                first.program, first.plan, first.problem, first.scalars, ["output", "lse"], [(1, 3)], [2]
            )
            assert_same_bits(want[0][1:, 3, 2:], oracle["output"], "output")
            assert_same_bits(want[1][1:, 3], oracle["lse"], "lse")


@pytest.mark.parametrize("name", by_default("triton"))
def test_a_ragged_batch_is_its_sequences(name: str) -> None:
    """Three compiled functions for each spec; what makes sequences of a batch knows no spec."""
    spec = load_spec(name)
    lengths = (200, 1, 90, 0)
    rng = np.random.default_rng(11)
    shapes = ((4, 4, 5), (4, 200, 2, 5), (4, 200, 2, 3))
    q, k, v = (some_numbers("usual", rng, s, wide(spec)).astype(np.float32) for s in shapes)
    batch = emulate(spec, gpu(5), q=q, k=k, v=v, kv_lens=lengths)
    assert [r.plan.kv_len for r in batch] == list(lengths)
    assert [r.empty_rows for r in batch] == [0, 0, 0, 4]
    context = {"batch": 4, "max_kv_len": 200, "kv_capacity": 200}
    for i, n in enumerate(lengths):
        alone = emulate(spec, gpu(5), q=q[i], k=k[i, :n], v=v[i, :n], context=context)
        assert_same_bits(batch[i].output, alone.output, f"{name} sequence {i}")
        assert_same_bits(batch[i].lse, alone.lse, f"{name} lse {i}")
        assert batch[i].plan.tokens.tolist() == alone.plan.tokens.tolist()


@pytest.mark.slow
@pytest.mark.parametrize("name", ENGINE)
def test_rows_and_heads_alone_and_in_other_rooms(name: str) -> None:
    """Other shapes are other compiled functions; none of them may give other bits."""
    spec = load_spec(name)
    arrays = scored(spec, 130, ["usual", "far", "holes", "nothing", "ties"], "usual", 5)
    together = answers(roomy(engine(spec, gpu(2), problem(spec, **arrays)), 512, table(name)))
    for room in (512, 1024, 4096):
        for row in range(5):
            one = problem(spec, scores=arrays["scores"][row : row + 1], values=arrays["values"])
            alone = answers(roomy(engine(spec, gpu(2), one), room, table(name)))
            for a, b in zip(together, alone, strict=True):
                assert_same_bits(b[0, 0], a[0, row], f"{name} row {row}")
    whole = queried(spec, 130, 1)
    both = answers(engine(spec, gpu(2), problem(spec, **whole), causal=1))
    context = {"q_heads": 4, "kv_heads": 2, "causal": 1}
    for head in range(2):
        part = {
            "q": whole["q"][:, 2 * head : 2 * head + 2],
            **{n: whole[n][:, head : head + 1] for n in "kv"},
        }
        alone = answers(engine(spec, gpu(2), problem(spec, **part, causal=True), **context))
        for a, b in zip(both, alone, strict=True):
            assert_same_bits(b[0], a[head], f"{name} head {head}")


@pytest.mark.slow
@pytest.mark.parametrize("name", ENGINE)
def test_a_site_is_the_same_whatever_is_evaluated_with_it(name: str) -> None:
    spec = load_spec(name)
    arrays = scored(spec, 100, ["usual", "deep", "holes"], "usual", 3)
    result = emulate(spec, gpu(2), **arrays)
    whole = engine(spec, gpu(2), problem(spec, **arrays))
    whole.evaluate(whole.site_names())
    for site in result.trace:
        assert_same_bits(result.trace[site], whole.outward(site), site)


def test_f64_that_would_be_subnormal_is_refused() -> None:
    """The engine has no exact path in f64: it says so instead of being wrong. The oracle answers."""
    spec = load_spec("walkthrough.dense")
    arrays = {"scores": np.array([[0.0, -720.0]]), "values": np.array([[0.0], [1.0]])}
    with pytest.raises(UnsupportedError, match=r"subnormal f64"):
        emulate(spec, gpu(2), **arrays)
    want = emulate(spec, gpu(2), backend="oracle", **arrays)
    assert 0 < float(want.output[0, 0]) < 2.0**-1022
