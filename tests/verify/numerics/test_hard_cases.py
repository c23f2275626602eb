import importlib.util
import sys
from pathlib import Path

import flint
import numpy as np
import pytest

from specs.formats import BASES
from verify.numerics.elementary import exp, exp2, exp2_f32, exp_f32, log, log_f32
from verify.numerics.hard_cases import TABLES, hard_cases

ARRAYS = {"exp": exp_f32, "exp2": exp2_f32, "log": log_f32}
SCALARS = {"exp": exp, "exp2": exp2, "log": log}
BALLS = {"exp": lambda x: x.exp(), "exp2": lambda x: flint.arb(2) ** x, "log": lambda x: x.log()}

# Inputs on which float64 rounded to float32 is known to be wrong; MPFR gave these.
KNOWN = {
    "exp": [],
    "exp2": [0x3B429D37, 0xBCF3A937],
    "log": [0x3C413D3A, 0x41178FEB, 0x4C5D65A5, 0x65D890D3, 0x6F31A8EC],
}


@pytest.mark.parametrize("name", list(TABLES))
def test_table_is_right_at_200_bits(name):
    """Each result is the closest float32: an enclosure lies between the midpoints to its neighbours."""
    for x, y in zip(*hard_cases(name), strict=True):
        around = [float(np.nextafter(y, np.float32(s))) for s in (-np.inf, np.inf)]
        with flint.ctx.workprec(200):
            value = BALLS[name](flint.arb(float(x)))
            low, high = ((flint.arb(n) + flint.arb(float(y))) / 2 for n in around)
            assert low < value < high


@pytest.mark.parametrize("name", list(TABLES))
def test_library_is_right_on_the_table(name):
    x, expected = hard_cases(name)
    assert ARRAYS[name](x).view(np.uint32).tolist() == expected.view(np.uint32).tolist()
    assert [SCALARS[name](float(v), BASES["f32"]) for v in x] == expected.astype(np.float64).tolist()


@pytest.mark.parametrize("name", list(TABLES))
def test_table_holds_what_probes_need(name):
    inputs = [x for x, _ in TABLES[name]]
    assert len(set(inputs)) == len(inputs) >= 50
    assert set(KNOWN[name]) <= set(inputs[:50])
    _, expected = hard_cases(name)
    subnormal = (expected != 0) & (np.abs(expected) < 2.0**-126)
    assert subnormal.sum() == (0 if name == "log" else 16)


def _sweeper():
    path = Path(__file__).parents[3] / "benchmarks" / "hard_cases.py"
    spec = importlib.util.spec_from_file_location("hard_cases_sweep", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "inputs"), [("exp", 545_357_826), ("exp2", 555_089_921), ("log", 0x7F7FFFFF)]
)
def test_every_float32_input(name, inputs):
    """All inputs with non-trivial results; those within 64 f64 ulps of a midpoint decided at 256 bits."""
    module = _sweeper()
    found = module.sweep(module.FUNCTIONS[name])
    assert found.inputs == inputs
    assert len(found.candidates) > 100
    assert found.array_wrong == []
    assert found.worst_wide < 4
    assert [(c.x, c.expected) for c in found.candidates[:50]] == list(TABLES[name][:50])
