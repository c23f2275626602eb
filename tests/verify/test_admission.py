"""What a run refuses of its spec: functions of another machine, colours outside a view."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from specs import load_platform, parse_spec
from specs.errors import SpecError, UnsupportedError
from specs.functions import FUNCTIONS
from verify import emulate

TEXT = """schema = 1
name = "test.admission"
status = "read"
summary = "a test"
[numbers]
compute = "f32"
inputs = { q = "bf16", k = "bf16", v = "bf16" }
[levels]
block = "tiles(4)"
lane = "view(4, INDEX)"
[block]
part = "sum(v, seq(), by=lane)"
[row]
whole = "sum(part, seq(), over=(block))"
output = "LINE"
[token]
score = "sum(q * k, seq())"
"""
SPECIAL = [name for name, f in FUNCTIONS.items() if f.unit]


def run(line: str, index: str = "pos(token)", platform: str = "h200", backend: str = "oracle") -> Any:
    spec = parse_spec(TEXT.replace("INDEX", index).replace("LINE", line), "my.toml")
    scores, values = np.zeros((1, 10), np.float32), np.ones((10, 1))
    return emulate(spec, load_platform(platform), scores=scores, values=values, backend=backend).output


def test_functions_of_machines_are_all_said_to_be() -> None:
    assert {n for n in FUNCTIONS if "." in n} == {*SPECIAL}
    assert {n for n in SPECIAL if FUNCTIONS[n].unit == "cpu"} == {
        "torch.fexp_u20",
        "glibc.expf",
        "glibc.logf",
    }


@pytest.mark.parametrize("backend", ["oracle", "engine"])
@pytest.mark.parametrize("name", SPECIAL)
def test_functions_of_the_other_machine_are_refused(name: str, backend: str) -> None:
    unit, platform, kind = (
        ("GPU", "amd_avx512", "CPU") if FUNCTIONS[name].unit == "gpu" else ("CPU", "h200", "GPU")
    )
    call = f"{name}(sum(whole, seq()){', 1' * (FUNCTIONS[name].low - 1)})"
    cause = (
        rf"my\.toml:15:11: {name}\(\) is a function of a {unit}; {platform} is a {kind}\n.* has: exp, log, "
    )
    with pytest.raises(UnsupportedError, match=cause):
        run(call, platform=platform, backend=backend)


def test_functions_of_this_machine_are_taken() -> None:
    assert run("mufu.rcp(sum(whole, seq()))").shape == (1, 1)
    assert run("glibc.expf(sum(whole, seq()))", platform="amd_avx512").shape == (1, 1)


@pytest.mark.parametrize("backend", ["oracle", "engine"])
@pytest.mark.parametrize(
    ("index", "position", "colour"),
    [
        ("pos(token) - 3", 0, -3),
        ("pos(token) * 2", 2, 4),
        ("select(pos(token) == 1, 7, pos(token))", 1, 7),
        ("max(pos(token), 0 - 1) ^ 4", 0, 4),
    ],
)
def test_colours_outside_a_view_are_refused(index: str, position: int, colour: int, backend: str) -> None:
    cause = (
        rf"my\.toml:10:\d+: view 'lane' gives position {position} of 'token' the colour {colour}; "
        "it has the colours 0 to 3"
    )
    with pytest.raises(SpecError, match=cause):
        run("sum(whole, seq())", index, backend=backend)


def test_positions_that_only_padding_has_may_have_any_colour() -> None:
    """A tile holds four tokens; 4, 5, ... have colours that the view lacks, and no token. All ten terms count."""
    for backend in ("oracle", "engine"):
        assert run("sum(whole, seq())", "3 - pos(token)", backend=backend).item() == 10.0
