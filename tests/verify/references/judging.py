"""One spec on one problem, compared bit for bit with what a second program gives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from specs import Platform, load_platform, load_spec
from specs.errors import UnsupportedError
from verify.emulator import Run, start_run
from verify.features import Features
from verify.judge import judge

from .dots import AMPERE, HOPPER, Core
from .floats import F32, Array

STORED = {"bf16": ml_dtypes.bfloat16, "f16": np.float16, "e4m3": ml_dtypes.float8_e4m3fn}
SAMPLED_ROWS, SAMPLED_DIMS = 3, 4


def core_of(platform: Platform) -> Core:
    """Of 16-bit inputs, mma.sync and wgmma alike."""
    return AMPERE if platform.compute_capability < 90 else HOPPER


@dataclass(frozen=True)
class Case:
    """What `emulate` is given: q [q_heads, d], k, v [n, kv_heads, d] of `fmt` (k and v of `kv_fmt`)."""

    spec: str
    platform: str
    q: Array
    k: Array
    v: Array
    fmt: str = "bf16"
    kv_fmt: str = ""
    causal: bool = False
    context: Mapping[str, Any] = field(default_factory=dict[str, Any])
    features: Mapping[str, Any] = field(default_factory=dict[str, Any])
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])

    @property
    def device(self) -> Platform:
        """The platform."""
        return load_platform(self.platform)

    def start(self, backend: str) -> Run:
        """The bound run; a skip where the array engine says that it lacks a construct of the spec."""
        kv = STORED[self.kv_fmt or self.fmt]
        arrays = {"q": self.q.astype(STORED[self.fmt]), "k": self.k.astype(kv), "v": self.v.astype(kv)}
        try:
            return start_run(
                load_spec(self.spec),
                self.device,
                arrays,
                causal=self.causal,
                features=Features(**self.features),
                context=self.context,
                options=self.options,
                backend=backend,
            )
        except UnsupportedError as error:
            if backend == "engine":
                pytest.skip(f"engine: {error}")
            raise


def assert_same(got: Any, want: Any, what: str) -> None:
    """Equal numbers bit for bit; NaN where the other has NaN."""
    a, b = np.asarray(got).astype(F32), np.asarray(want, F32)
    assert a.shape == b.shape, f"{what}: shape {a.shape} and not {b.shape}"
    wrong = np.argwhere((a.view(np.uint32) != b.view(np.uint32)) & ~(np.isnan(a) & np.isnan(b)))
    if len(wrong):
        at = tuple(int(i) for i in wrong[0])
        raise AssertionError(
            f"{what}: {len(wrong)} of {a.size} differ, first at {at}: {a[at]!r}, program {b[at]!r}"
        )


def compare(case: Case, backend: str, run: Run, want: Mapping[str, Array], what: str) -> None:
    """Sites of `run` against `want`, each [q_heads, ...] or [q_len, q_heads, ...].

    The engine is compared whole; the scalar definition in some rows, and in some columns of the output.
    """
    if backend == "engine":
        run.result()
        for name, expected in want.items():
            assert_same(run.outward(name), expected, f"{what} {name}")
        return
    rng = np.random.default_rng(len(case.k))
    heads, rows = run.problem.heads, run.problem.rows
    picked = rng.permutation(heads * rows)[:SAMPLED_ROWS]
    d = case.v.shape[-1]
    dims = sorted({0, d - 1, *rng.integers(0, d, SAMPLED_DIMS - 2).tolist()})
    pairs = [divmod(int(i), rows) for i in picked]
    found = judge(run.program, run.plan, run.problem, run.scalars, list(want), pairs, dims)
    for name, expected in want.items():
        if case.q.ndim == 3:  # [q_len, q_heads, ...] -> [kv_head, q_len, group, ...]
            rest = expected.shape[2:]
            expected = expected.reshape(run.problem.queries, heads, -1, *rest).swapaxes(0, 1)
            expected = expected.reshape(heads * rows, *rest)
        expected = expected[picked]
        if "dim" in run.program.sites[name].type.axes:
            expected = expected[..., dims]
        assert_same(found[name], expected, f"{what} {name}")
