"""`torch_cpu.sdpa_flash` against PyTorch itself, live and bit by bit, and against a second program.

Three parties: PyTorch's kernel on this machine (`torch_live`), a NumPy program (`references.torch_cpu`), and the spec
through both walkers. Where the machine is not of the spec's class, the program stands in for the kernel.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import specs
from specs import load_platform, load_spec
from specs.bind import bind
from specs.context import make_context
from specs.errors import SpecError, UnsupportedError
from specs.loader import parse_spec
from tests.verify import torch_live
from tests.verify.references import torch_cpu as program
from tests.verify.references.floats import F32, Array
from tests.verify.references.judging import assert_same
from tests.verify.torch_live import Machine, Shape, machine, run
from verify.emulator import Run, start_run
from verify.judge import judge

SPEC, PLATFORM = "torch_cpu.sdpa_flash", "amd_avx512"
LENGTHS = (1, 15, 16, 17, 100, 255, 256, 257, 511, 512, 513, 700, 1024, 1100)

#: Each branch of the kernel: queries 1, 2, 3 and more, left-over keys, short last tiles, panels, columns before a
#: 16-byte boundary, short last tiles of queries, sharp weights, subnormal values.
DECODE = [Shape(q, n, d, heads=2) for q in (1, 2, 3) for n in LENGTHS for d in (64, 128)]
PREFILL = [
    *(Shape(q, n) for q in (4, 7) for n in (1, 2, 3, 5, 11, 12, 100, 193, 255, 385, 513, 515, 524, 700)),
    *(Shape(n, n, causal=True) for n in (4, 31, 33, 34, 35, 100, 200)),
    *(Shape(q, n) for q, n in ((33, 5), (34, 17), (35, 513), (65, 300), (193, 20), (194, 515))),
    *(Shape(q, 40, d) for q in (1, 2, 3, 4) for d in (8, 72, 80, 256, 400)),
    *(Shape(q, 110, 64, sharp=30.0) for q in (1, 2, 4)),
    *(Shape(q, 110, 64, spread=4, small=2.0**-132) for q in (1, 3, 4)),
]
#: What the scalar definition is compared in by default: one shape or two for each variant of the spec.
SAMPLE = [
    *(Shape(1, n, heads=2) for n in (1, 17, 100, 513)),
    *(Shape(2, n, heads=2) for n in (17, 100)),
    Shape(3, 255, heads=2),
    *(Shape(4, n) for n in (5, 12, 515)),
    *(Shape(7, n) for n in (255,)),
    *(Shape(q, n) for q, n in ((33, 5), (34, 17))),
    *(Shape(n, n, causal=True) for n in (35,)),
    *(Shape(q, 40, d) for q, d in ((2, 72), (4, 256))),
    Shape(1, 110, 64, sharp=30.0),
    Shape(3, 110, 64, spread=4, small=2.0**-132),
]
SLOW = [
    *(
        Shape(q, n, d, heads=2, seed=1)
        for q in (1, 2, 3, 4, 5, 8)
        for n in range(1, 530, 3)
        for d in (64, 128)
    ),
    *(Shape(n, n, 64, causal=True) for n in (200, 255, 512, 600, 769, 800, 1100)),
    *(
        Shape(q, n, 128)
        for q, n in ((200, 255), (200, 512), (200, 700), (800, 1024), (770, 1100), (64, 1536))
    ),
]


@lru_cache(maxsize=1)
def found_machine(folder: Path) -> Machine:
    return machine(folder)


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Machine:
    found = found_machine(tmp_path_factory.getbasetemp())
    if found.skip:
        pytest.skip(found.skip)
    return found


Results = dict[str, tuple[Array, Array]]


@pytest.fixture(scope="module")
def torch_results(here: Machine, tmp_path_factory: pytest.TempPathFactory) -> Results:
    return run(here, [*DECODE, *PREFILL], tmp_path_factory.mktemp("torch"))


def by_program(shape: Shape) -> tuple[Array, Array]:
    """Output and lse `[heads, n, ...]` of the second program."""
    q, k, v = (x.astype(F32) for x in shape.arrays())
    scale = shape.head_dim**-0.5
    each = [program.flash(q[h], k[h], v[h], scale, causal=shape.causal) for h in range(shape.heads)]
    return np.stack([o for o, _ in each]), np.stack([x for _, x in each])


def start(
    shape: Shape, backend: str, arrays: tuple[Array, Array, Array] | None = None, **context: Any
) -> Run:
    q, k, v = (np.moveaxis(x, 0, 1) for x in arrays or shape.arrays())
    given = {"q": q, "k": k, "v": v}
    return start_run(
        load_spec(SPEC), load_platform(PLATFORM), given, causal=shape.causal, context=context, backend=backend
    )


def taken(shape: Shape, threads: int) -> bool:
    """Whether the spec takes the shape with this number of threads."""
    try:
        bind(load_spec(SPEC), context_of(shape), {"threads": threads})
    except UnsupportedError:
        return False
    return True


def context_of(shape: Shape, **more: Any) -> dict[str, Any]:
    sizes = {"q_len": shape.queries, "kv_len": shape.keys, "head_dim": shape.head_dim, "causal": shape.causal}
    return make_context({**load_platform(PLATFORM).context, **sizes, **more})


def assert_sampled(shape: Shape, want: tuple[Array, Array], rows: int = 2) -> None:
    """The scalar definition in some rows and columns: the last query of two heads, and ``rows`` others."""
    begun = start(shape, "oracle")
    rng = np.random.default_rng(shape.keys)
    picked = sorted({shape.queries - 1, *rng.integers(0, shape.queries, rows).tolist()})
    dims = sorted({0, 1, 2, 3, shape.head_dim - 1})
    names = ["output", "lse"]
    pairs = [(h, r) for h in range(min(2, shape.heads)) for r in picked]
    found = judge(begun.program, begun.plan, begun.problem, begun.scalars, names, pairs, dims)
    what = f"{SPEC} {shape.name} rows {pairs}"
    assert_same(found["output"], [want[0][h, r, dims] for h, r in pairs], f"{what} output")
    assert_same(found["lse"], [want[1][pair] for pair in pairs], f"{what} lse")


# -- the kernel itself --------------------------------------------------------------------------------------


def test_the_second_program_is_the_kernel(torch_results: Results) -> None:
    for shape in (*DECODE, *PREFILL):
        output, lse = by_program(shape)
        assert_same(output, torch_results[shape.name][0], f"{shape.name} output")
        assert_same(lse, torch_results[shape.name][1], f"{shape.name} lse")


def test_the_spec_is_the_kernel(torch_results: Results) -> None:
    for shape in SAMPLE:
        assert_sampled(shape, torch_results[shape.name], rows=0)


def test_threads_change_no_bit_but_where_the_spec_says_so(
    here: Machine, torch_results: Results, tmp_path: Path
) -> None:
    """A second thread has a buffer of its own, aligned in another way: 2 and 3 queries see that, if any does."""
    shapes = [s for s in (*DECODE, *PREFILL) if s.keys < 600 and s.head_dim <= 64]
    two = run(here, shapes, tmp_path, threads=2)
    for shape in shapes:
        assert_same(two[shape.name][1], torch_results[shape.name][1], f"{shape.name} lse")
        if taken(shape, threads=2):
            assert_same(two[shape.name][0], torch_results[shape.name][0], f"{shape.name} output")


def test_grouped_heads_share_keys(here: Machine, torch_results: Results, tmp_path: Path) -> None:
    """Two query heads on one KV head are what two calls with one head each are."""
    shape = SAMPLE[2]
    q, k, v = shape.arrays()
    grouped = start(shape, "oracle", (q, k[:1], v[:1])).result()
    alone = start(shape, "oracle", (q[1:], k[:1], v[:1])).result()
    assert_same(grouped.output[:, 1:], alone.output, "second head")
    assert_same(np.moveaxis(grouped.output, 1, 0)[:1], torch_results[shape.name][0][:1], "first head")


@pytest.mark.slow
def test_many_shapes_of_the_kernel(here: Machine, tmp_path: Path) -> None:
    found = run(here, SLOW, tmp_path)
    for shape in SLOW:
        output, lse = by_program(shape)
        assert_same(output, found[shape.name][0], f"{shape.name} output")
        assert_same(lse, found[shape.name][1], f"{shape.name} lse")


@pytest.mark.slow
def test_the_spec_is_the_kernel_in_every_shape(here: Machine, torch_results: Results) -> None:
    for shape in (*DECODE, *PREFILL):
        assert_sampled(shape, torch_results[shape.name])


# -- without the kernel -------------------------------------------------------------------------------------


def test_the_spec_is_the_second_program() -> None:
    """On any machine with the C library of the class; with the kernel the other tests are stronger."""
    for shape in (Shape(1, 83, 16), Shape(3, 30, 16), Shape(5, 30, 16), Shape(33, 35, 8)):
        assert_sampled(replace(shape, seed=2), by_program(replace(shape, seed=2)), rows=1)


@pytest.mark.slow
def test_the_array_engine() -> None:
    shape = Shape(1, 17, 8)
    result, (output, lse) = start(shape, "engine").result(), by_program(shape)
    assert_same(np.moveaxis(result.output, 1, 0), output, "output")
    assert_same(np.moveaxis(result.lse, 1, 0), lse, "lse")


MUTANTS = [
    (Shape(5, 40, 16), "(bf16(weight), v, chunks", "(weight, v, chunks"),
    (
        Shape(5, 150, 16),
        "lanes(32, seq(), butterfly(16, 8, 4, 2, 1))",
        "lanes(16, seq(), butterfly(8, 4, 2, 1))",
    ),
    (Shape(5, 150, 16), "butterfly(16, 8, 4, 2, 1)", "butterfly(1, 2, 4, 8, 16)"),
    (Shape(5, 40, 16), "kv_len // 16 * 16", "kv_len // 8 * 8"),
    (Shape(5, 40, 16), "torch.fexp_u20", "exp"),
    (Shape(5, 40, 16), "product, -inf) * scale", "product, -inf) * (scale * 0.999)"),
    (Shape(5, 40, 256), "head_dim // 2, 192)", "192, 192)"),
    (Shape(5, 200, 16), "tail // 2, 192)", "192, 192)"),
    (Shape(5, 520, 16), "tiles(512)", "tiles(256)"),
    (Shape(5, 520, 16), "tail < 12", "tail < 8"),
    (Shape(5, 11, 16), "(8, seq(fma), butterfly(4, 2, 1))", "(4, seq(fma), butterfly(2, 1))"),
    (Shape(1, 22, 16), "lanes(4, seq(fma), butterfly(2, 1))", "lanes(4, seq(fma), butterfly(1, 2))"),
    (Shape(1, 22, 16), "chunks(4, butterfly(2, 1), seq())", "chunks(4, butterfly(1, 2), seq())"),
    (Shape(1, 23, 16), "seq(desc)", "seq()"),
    (Shape(3, 29, 16), "chunks(1, 1, 1, 1, 4, seq(fma), seq(), cycle)", "seq(fma)"),
    (Shape(3, 61, 16), "pos(dim) < loose", "pos(dim) < loose + 4"),
    (Shape(3, 31, 16), "fours < kv_len", "fours > kv_len"),
    (Shape(33, 35, 16), "few == 1", "few == 0"),
    (Shape(34, 35, 16), "few == 2 or", "few == 4 or"),
]


@pytest.mark.parametrize(("shape", "right", "wrong"), MUTANTS)
def test_a_wrong_line_shows_in_a_bit(shape: Shape, right: str, wrong: str) -> None:
    text = load_spec(SPEC).to_toml()
    assert right in text
    spec = parse_spec(text.replace(right, wrong))
    many = replace(shape, heads=4)
    q, k, v = (np.moveaxis(x, 0, 1) for x in many.arrays())
    given = {"q": q, "k": k, "v": v}
    begun = start_run(spec, load_platform(PLATFORM), given, backend="oracle")
    rows = [(h, r) for h in (1, 3) for r in sorted({0, shape.queries - 1})]
    found = judge(begun.program, begun.plan, begun.problem, begun.scalars, ["output", "lse"], rows)
    want = zip(("output", "lse"), by_program(many), strict=True)
    same = [(found[n].astype(F32) == [x[pair] for pair in rows]).all() for n, x in want]
    assert not all(same)


@pytest.mark.slow
def test_the_array_engine_in_many_shapes() -> None:
    for shape in (*DECODE, *PREFILL):
        result, (output, lse) = start(shape, "engine").result(), by_program(shape)
        assert_same(np.moveaxis(result.output, 1, 0), output, f"{shape.name} output")
        assert_same(np.moveaxis(result.lse, 1, 0), lse, f"{shape.name} lse")


@pytest.mark.parametrize(
    ("shape", "more", "options", "what"),
    [
        (Shape(1, 40, 60), {}, {}, "multiples of 8"),
        (Shape(4, 40, 1024), {}, {}, "multiples of 8 up to 512"),
        (Shape(1, 40), {"window": 16}, {}, "no sliding window"),
        (Shape(4, 40, causal=True), {}, {}, "at the first key"),
        (Shape(1, 40), {"torch_version": 21400}, {}, "PyTorch 2.13.0"),
        (Shape(1, 40), {"cpu": "intel_amx"}, {}, "amd_avx512"),
        (Shape(3, 512), {}, {"threads": 2}, "set_num_threads"),
        (Shape(1, 40), {}, {"threads": 0}, "a positive number"),
        (Shape(1, 40), {}, {"threads": -1}, "a positive number"),
        (Shape(1, 0), {}, {}, "at least one"),
    ],
)
def test_what_is_not_known_is_refused(
    shape: Shape, more: dict[str, Any], options: dict[str, Any], what: str
) -> None:
    with pytest.raises(UnsupportedError, match=what):
        bind(load_spec(SPEC), context_of(shape, **more), options)
    assert taken(Shape(2, 512), threads=2)


def test_a_gpu_is_refused() -> None:
    sizes = {"kv_len": 40, "head_dim": 64}
    with pytest.raises(UnsupportedError, match="--platform amd_avx512"):
        bind(load_spec(SPEC), make_context({**load_platform("h200").context, **sizes}))


def test_half_precision_is_refused() -> None:
    shape = Shape(1, 40, heads=1)
    q, k, v = (x.astype(np.float16) for x in shape.arrays())
    with pytest.raises(UnsupportedError, match="bf16"):
        start(shape, "oracle", (q, k, v))


def test_a_machine_of_another_class_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for vendor, flags in (("GenuineIntel", {"avx2"}), ("ARM", set[str]())):
        monkeypatch.setattr(torch_live, "cpu_class", lambda v=vendor, f=flags: (v, f))
        monkeypatch.setattr(torch_live, "installed", lambda: torch_live.VERSION)
        assert vendor in machine(tmp_path).skip
    monkeypatch.setattr(torch_live, "installed", lambda: "2.14.0")
    assert "2.14.0 is installed" in machine(tmp_path).skip
    monkeypatch.setattr(torch_live, "installed", lambda: None)
    assert torch_live.REMEDY in machine(tmp_path).skip


def test_a_cpu_is_a_platform() -> None:
    cpu = load_platform(PLATFORM)
    assert (cpu.kind, cpu.dot_products, cpu.special_functions) == ("cpu", (), "none")
    assert cpu.context == {"sm_count": 1, "compute_capability": 0, "cpu": PLATFORM}
    assert load_platform("h200").context["cpu"] == "none"


def test_a_gpu_still_needs_its_capability(tmp_path: Path) -> None:
    text = (Path(specs.__file__).parent / "platforms" / "amd_avx512.toml").read_text()
    mine = tmp_path / "mine.toml"
    mine.write_text(text.replace('kind      = "cpu"', 'kind      = "gpu"'))
    with pytest.raises(SpecError, match="'sm_count' is missing"):
        load_platform(mine)
