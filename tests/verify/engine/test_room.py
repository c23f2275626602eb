"""Compiled programs are dropped before a process has no room for more."""

from __future__ import annotations

import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specs import load_platform, load_spec
from verify import emulate
from verify.engine import room


@pytest.fixture(autouse=True)
def now(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "PAUSE", 0.0)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux counts mappings so")
def test_the_count_is_that_of_the_process() -> None:
    found = room.mappings()
    assert found is not None
    with open("/proc/self/maps") as lines:
        assert abs(len(lines.readlines()) - found[0]) < 50
    assert found[0] < found[1]
    assert not room.make_room()  # a test process is far from full


def test_a_full_process_drops_its_programs_and_gives_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    traces = []

    @jax.jit
    def double(x: jax.Array) -> jax.Array:
        traces.append(1)
        return 2 * x

    double(jnp.ones(3))
    spec, platform = load_spec("walkthrough.triton"), load_platform("h200")
    rng = np.random.default_rng(0)
    scores = rng.standard_normal((1, 40)).astype(np.float32)
    values = rng.standard_normal((40, 2)).astype(np.float32)
    before = emulate(spec, platform, scores=scores, values=values)
    monkeypatch.setattr(room, "mappings", lambda: (70, 100))
    after = emulate(spec, platform, scores=scores, values=values)
    assert before.output.tobytes() == after.output.tobytes()
    double(jnp.ones(3))
    assert len(traces) == 2


def test_it_counts_at_intervals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "mappings", lambda: (70, 100))
    assert room.make_room()
    monkeypatch.setattr(room, "PAUSE", 3600.0)
    assert not room.make_room()


def test_a_system_that_does_not_say(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "mappings", lambda: None)
    assert not room.make_room()
