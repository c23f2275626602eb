"""Sides taken apart and put together: the same typed program; hybrids that are no spec are refused."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from search.explain.attribution import legality
from search.explain.explain import flat_pair, start
from search.explain.flat import substituted, words_of
from search.explain.hybrid import Maker
from search.explain.legal import Legality
from search.explain.meaning import sample_tokens
from search.explain.pool import Pool
from search.explain.quick import QuickArithmetic
from search.explain.reals import RealArithmetic
from specs import load_platform, load_spec
from specs.discover import every
from specs.errors import UlpscopeError
from specs.formats import BASES, parse_format
from specs.loader import parse_spec
from tests.search.explain.tiny import h200, mean, of_values
from verify.case import Case, random_case
from verify.definition import ScalarArithmetic

CPU = ("torch_cpu.sdpa_flash",)
LIBRARY = sorted(f.name for f in every() if f.kind == "library")


@pytest.mark.parametrize("name", LIBRARY)
def test_a_side_taken_apart_is_itself(name: str) -> None:
    """The hybrid that takes nothing from the other side gives the bits of the oracle, for every spec of the library."""
    platform = load_platform("amd_avx512" if name in CPU else "b200" if "trtllm" in name else "h200")
    case = random_case(3, 40, q_heads=2, kv_heads=1, head_dim=64)
    try:
        runs = start(case, (load_spec(name), platform), (load_spec(name), platform), backend="oracle")
    except UlpscopeError as error:
        pytest.skip(f"not for this shape: {error.cause}")
    hybrid = Maker(flat_pair(runs), runs, ()).make(frozenset())
    assert parse_spec(hybrid.spec.to_toml()) == hybrid.spec
    found = Pool(ScalarArithmetic()).values(hybrid, (0, 1), [0, 5], ("output",))["output"]
    output = runs[0].outward("output").astype(np.float64)
    assert found == [output[1, 0], output[1, 5]]


def test_names_are_replaced_and_calls_are_not() -> None:
    text = "group_sum(x, over=(group, half)) + f32.ftz.mufu.ex2(group) == at(y, group=pos(group)) * 1e5"
    changed = substituted(text, lambda word, keyword: {"group": "split"}.get(word, word))
    assert (
        changed
        == "group_sum(x, over=(split, half)) + f32.ftz.mufu.ex2(split) == at(y, split=pos(split)) * 1e5"
    )
    assert list(words_of("a.b(x) + 'word' + 0x3F317218 + pos(token)")) == ["x", "token"]


def test_a_merge_that_reads_other_partial_results_is_another_function() -> None:
    """Sums merged as if they were means, or the other way round: a legal text, and not attention."""
    a = load_spec("walkthrough.triton")  # unnormalised: sum(value * w) / sum(norm * w)
    b = load_spec("walkthrough.xqa")  # normalised: sum(norm * w' * partial) / sum(norm * w')
    case = random_case(0, 300, q_heads=1, kv_heads=1, head_dim=8)
    runs = start(case, (a, h200()), (b, h200()), backend="oracle")
    judged = legality(flat_pair(runs), runs, fine=True)
    assert judged is not None
    names = [p.name for p in judged.maker.parts]
    assert judged.judge(frozenset([names.index("line w")])) == "it is another function of real numbers"
    assert judged.judge(frozenset([names.index("line exact")])) == "it is another function of real numbers"
    whole = frozenset(names.index(f"line {n}") for n in ("w", "total", "exact"))
    assert not isinstance(judged.judge(whole), str)


def test_levels_that_lines_need_stay_with_their_partition() -> None:
    """A line of a level that the other side does not have is refused by the checker of specs, and joined."""
    a = mean("a")
    text = mean("b", level="pieces(2, unit=1)").to_toml()
    text = text.replace('group = "pieces(2, unit=1)"', 'group = "pieces(2, unit=1)"\ninner = "tiles(1)"')
    text = re.sub("norm +=.*", 'norm = "sum(part, seq())"', text)
    b = parse_spec(text + '[inner]\npart = "sum(weight, seq())"\n')
    runs = start(of_values(1, 2, 3, 4), (a, h200()), (b, h200()), backend="oracle")
    judged = legality(flat_pair(runs), runs)
    assert judged is not None
    assert [p.name for p in judged.maker.parts] == ["partition", "partials and merge"]
    judged.separate(0, 8, lambda *_: None)
    assert [p.name for p in judged.maker.parts] == ["partition + partials and merge"]
    assert "unknown section [inner]" in judged.joined[0]


def test_compute_and_tensor_cores_are_parts() -> None:
    """FlashAttention-2 on another generation: as many SMs, other tensor cores."""
    spec = load_spec("flash_attn2.splitkv_decode")
    case = random_case(0, 40, q_heads=8, kv_heads=2, head_dim=64)
    runs = start(case, (spec, load_platform("a100")), (spec, load_platform("h200")), backend="oracle")
    judged = legality(flat_pair(runs), runs)
    assert judged is not None
    assert [p.name for p in judged.maker.parts] == ["tensor cores"]
    other = parse_spec(mean("b").to_toml().replace('compute = "f32"', 'compute = "f32.ftz"'))
    runs = start(of_values(1, 2), (mean("a"), h200()), (other, h200()), backend="oracle")
    judged = legality(flat_pair(runs), runs)
    assert isinstance(judged, Legality)
    assert [p.name for p in judged.maker.parts] == ["compute format"]


def test_constants_and_views_of_one_name_are_told_apart() -> None:
    def spec(name: str, c: str) -> str:
        text = mean(name).to_toml().replace('"exp(score - top)"', '"exp((score - top) * c) * 1.0"')
        return text + f'[constants]\nc = "{c}"\n'

    a, b = parse_spec(spec("a", "1.0")), parse_spec(spec("b", "1.0000001192092896"))
    runs = start(of_values(1, 2, scores=(0.0, 1.0)), (a, h200()), (b, h200()), backend="oracle")
    left, right = flat_pair(runs)
    assert left.lines["weight"].text == "exp((score - top) * c) * 1.0"
    assert right.lines["weight"].text == "exp((score - top) * c_b) * 1.0"
    judged = legality((left, right), runs)
    assert judged is not None
    assert [c.name for c in judged.maker.parts[0].changes] == ["weight"]


def test_real_arithmetic_rounds_nothing() -> None:
    reals = RealArithmetic()
    f32 = BASES["f32"]
    assert reals.operation("+", [f32, f32], f32)(1.0, 2.0**-40) == 1.0 + 2.0**-40
    assert reals.cast(f32, BASES["bf16"])(1.001) == 1.001
    assert reals.operation("mufu.ex2", [f32], f32)(0.5) == pytest.approx(2.0**0.5, rel=1e-15)
    assert reals.operation("/", [f32, f32], f32)(1.0, 0.0) == float("inf")


def test_a_sample_has_more_than_one_group() -> None:
    """Of 1,024 tokens a group, as FlashAttention-2 cuts 27,525: with one group every merge means the same."""
    runs = start(
        Case("long", {"scores": np.zeros((1, 3000), np.float32), "values": np.ones((3000, 1), np.float32)}),
        (mean("a", level="pieces(3, unit=1, of=3072)"), h200()),
        (mean("b", level="tiles(300)"), h200()),
        backend="oracle",
    )
    assert sample_tokens(runs) == 1200
    judged = legality(flat_pair(runs), runs, fine=True)
    assert judged is not None
    broken = mean("b", level="tiles(300)", w="norm * norm * exp(top - most)")
    runs = start(
        Case("long", {"scores": np.zeros((1, 3000), np.float32), "values": np.arange(3000.0)[:, None]}),
        (mean("a", level="pieces(3, unit=1, of=3072)"), h200()),
        (broken, h200()),
        backend="oracle",
    )
    judged = legality(flat_pair(runs), runs)
    assert judged is not None
    assert not judged.same_function


NEAR = (
    st.floats(width=32, allow_nan=True)
    | st.floats(-(2.0**-120), 2.0**-120, width=32)
    | st.sampled_from([0.0, -0.0])
)


@settings(max_examples=150, deadline=None)
@given(NEAR, NEAR, st.sampled_from(["+", "-", "*", "/", "exp"]))
def test_the_quick_arithmetic_is_the_oracles(a: float, b: float, op: str) -> None:
    fmt = parse_format("f32.ftz")
    formats = [BASES["f32"]] * (1 if op == "exp" else 2)
    results = [
        arithmetic.operation(op, formats, fmt)(*([a] if op == "exp" else [a, b]))
        for arithmetic in (QuickArithmetic(), ScalarArithmetic())
    ]
    assert [np.float64(x).view(np.int64) for x in results if x == x] in (
        [],
        [np.float64(results[1]).view(np.int64)] * 2,
    )
