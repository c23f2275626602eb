"""`torch_cpu.sdpa_flash` against PyTorch itself, live and bit by bit, and against a second program.

Three parties: PyTorch's kernel on this machine (`torch_live`), a NumPy program (`references.torch_cpu`), and the spec
through both walkers. Where the machine is not of the spec's class, the program stands in for the kernel.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from specs import load_platform, load_spec
from specs.errors import UnsupportedError
from tests.verify.references import torch_cpu as program
from tests.verify.references.floats import F32, Array
from tests.verify.references.judging import assert_same
from tests.verify.torch_live import Machine, Shape, machine, run
from verify.emulator import Run, start_run
from verify.judge import judge

SPEC, PLATFORM = "torch_cpu.sdpa_flash", "amd_avx512"
LENGTHS = (1, 15, 16, 17, 100, 255, 256, 257, 511, 512, 513, 700, 1024, 1100)

#: Each branch of the kernel: queries 1, 2, 3 and more, left-over keys, short last tiles, panels, columns before a
#: 16-byte boundary, short last tiles of queries.
DECODE = [Shape(q, n, d, heads=3) for q in (1, 2, 3) for n in LENGTHS for d in (64, 128)]
PREFILL = [
    *(Shape(q, n, 64) for q in (4, 7) for n in (1, 2, 3, 5, 11, 12, 100, 193, 255, 385, 513, 515, 524, 700)),
    *(Shape(n, n, 64, causal=True) for n in (4, 31, 33, 34, 35, 100, 200)),
    *(Shape(q, n, 64) for q, n in ((33, 5), (34, 17), (35, 513), (65, 300), (193, 20), (194, 515))),
    *(Shape(q, 40, d) for q in (1, 2, 3, 4) for d in (8, 72, 80, 256, 400)),
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
def the_machine(folder: Path) -> Machine:
    return machine(folder)


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Machine:
    found = the_machine(tmp_path_factory.getbasetemp())
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


def assert_sampled(shape: Shape, want: tuple[Array, Array], rows: int = 2) -> None:
    """The scalar definition in some rows and columns, the first and the last query of a head among them."""
    begun = start(shape, "oracle")
    rng = np.random.default_rng(shape.keys)
    picked = sorted({0, shape.queries - 1, *rng.integers(0, shape.queries, rows).tolist()})[: rows + 1]
    dims = sorted({0, 1, 2, 3, shape.head_dim - 1})
    head = shape.keys % shape.heads
    names = ["output", "lse"]
    found = judge(
        begun.program, begun.plan, begun.problem, begun.scalars, names, [(head, r) for r in picked], dims
    )
    what = f"{SPEC} {shape.name} rows {picked}"
    assert_same(found["output"], want[0][head][picked][:, dims], f"{what} output")
    assert_same(found["lse"], want[1][head][picked], f"{what} lse")


# -- the kernel itself --------------------------------------------------------------------------------------


def test_the_second_program_is_the_kernel(torch_results: Results) -> None:
    for shape in (*DECODE, *PREFILL):
        output, lse = by_program(shape)
        assert_same(output, torch_results[shape.name][0], f"{shape.name} output")
        assert_same(lse, torch_results[shape.name][1], f"{shape.name} lse")


def test_the_spec_is_the_kernel(torch_results: Results) -> None:
    """A sample for the default run; all shapes are compared by the slow tests."""
    for shape in (*DECODE[::5], *PREFILL[::5]):
        assert_sampled(shape, torch_results[shape.name], rows=1)


def test_threads_change_no_bit_but_where_the_spec_says_so(
    here: Machine, torch_results: Results, tmp_path: Path
) -> None:
    """Two threads have two buffers, the second of which is aligned in another way."""
    shapes = [s for s in (*DECODE, *PREFILL) if s.keys < 600]
    two = run(here, shapes, tmp_path, threads=2)
    for shape in shapes:
        aligned = shape.queries not in (2, 3) or shape.queries * (min(shape.keys, 512) + 2) % 4 == 0
        if aligned:
            assert_same(two[shape.name][0], torch_results[shape.name][0], f"{shape.name} output")
        assert_same(two[shape.name][1], torch_results[shape.name][1], f"{shape.name} lse")
        try:
            start(shape, "oracle")
            emulated = True
        except UnsupportedError:
            emulated = False
        assert emulated


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
