"""Attribution: tiny cases computed by hand in rationals, and laws that hold for any pair."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from search.explain.attribution import Attributed
from search.explain.explain import Explanation, explain
from specs import load_platform, load_spec
from specs.errors import InputError, UnsupportedError
from specs.loader import Spec
from specs.schema import SpecFile
from tests.search.explain.tiny import bf16, f32, h200, index, mean, of_values
from verify.case import Case
from verify.numerics.ulp import ordered

ORACLE: Any = {"backend": "oracle", "ranked": False}
#: Values whose pairwise means do not fit bf16.
FOUR = (1.0, 1.0078125, 1.5, 2.015625)


def run(a: Spec, b: Spec, case: Case, **more: Any) -> Explanation:
    return explain(case, (a, h200()), (b, h200()), **ORACLE, **more)


def the_element(found: Explanation) -> Attributed:
    assert found.attribution is not None
    return found.attribution.elements[0]


def shares(found: Explanation) -> dict[str, Fraction]:
    assert found.attribution is not None
    return dict(zip((p.name for p in found.attribution.parts), the_element(found).phi, strict=True))


def by_hand(pieces: int, narrow: bool) -> Fraction:
    """The value before the last rounding: weights are 1, sums are exact, one quotient is rounded to f32."""
    values = [Fraction(v) for v in FOUR]
    size = -(-len(values) // pieces)
    groups = [values[i : i + size] for i in range(0, len(values), size)]
    partial = [f32(sum(g, Fraction(0)) / len(g)) for g in groups]
    partial = [bf16(p) for p in partial] if narrow else partial
    products = [f32(len(g) * p) for g, p in zip(groups, partial, strict=True)]
    total = Fraction(0)
    for p in products:
        total = f32(total + p)
    return f32(total / len(values))


def test_one_part_by_hand() -> None:
    found = run(mean("a"), mean("b", partial="bf16(value / norm)"), of_values(*FOUR))
    expected = index(by_hand(2, True)) - index(by_hand(2, False))
    assert expected != 0
    assert shares(found) == {"partials and merge": expected}


def test_two_parts_by_hand() -> None:
    """Partition and format of partial results: all four hybrids in rationals, then Shapley's formula."""
    b = mean("b", level="pieces(4, unit=1)", partial="bf16(value / norm)")
    found = run(mean("a"), b, of_values(*FOUR))
    at = {(p, n): index(by_hand(4 if p else 2, n)) for p in (False, True) for n in (False, True)}
    v = {key: x - at[False, False] for key, x in at.items()}
    half = Fraction(1, 2)
    partition = half * v[True, False] + half * (v[True, True] - v[False, True])
    merge = half * v[False, True] + half * (v[True, True] - v[True, False])
    assert shares(found) == {"partition": partition, "partials and merge": merge}
    assert partition != 0
    assert merge != 0
    one = the_element(found)
    assert one.total == v[True, True]
    stored = [bf16(by_hand(2, False)), bf16(by_hand(4, True))]
    assert one.stored == (float(stored[0]), float(stored[1]))
    assert one.ulp == index(stored[1]) - index(stored[0])
    assert one.rounding == one.ulp - one.total


@settings(max_examples=8, deadline=None)
@given(
    st.lists(st.integers(-255, 255), min_size=4, max_size=4),
    st.lists(st.integers(-16, 16), min_size=4, max_size=4),
)
def test_shares_add_up_and_swapping_negates(values: list[int], scores: list[int]) -> None:
    a = mean("a")
    b = mean("b", level="pieces(3, unit=1)", partial="bf16(value / norm)", tree="seq(desc)")
    case = of_values(*(v / 64 for v in values), scores=tuple(s / 8 for s in scores))
    there, back = run(a, b, case, at={"row": 0, "dim": 0}), run(b, a, case, at={"row": 0, "dim": 0})
    assert sum(shares(there).values()) == the_element(there).total
    assert {n: -x for n, x in shares(there).items()} == shares(back)
    assert the_element(there).rounding == -the_element(back).rounding


LIBRARY = ("flash_attention_2", "triton", "xqa", "trtllm_gen")


def normal(kv_len: int, dim: int = 4, seed: int = 0) -> Case:
    rng = np.random.default_rng(seed)
    scores = rng.standard_normal((1, kv_len)).astype(np.float32) * 2
    return Case("normal", {"scores": scores, "values": rng.standard_normal((kv_len, dim)).astype(np.float32)})


@pytest.mark.parametrize(
    ("name", "line", "text", "part"),
    [
        ("flash_attention_2", "w", "exp(level - most_safe) * 1.0000001192092896", "partials and merge"),
        ("xqa", "weight", "f16(exp(score - safe))", "weights and sums"),
        ("triton", "norm", "sum(weight, pairwise())", "weights and sums"),
        ("trtllm_gen", "num", "fma(prev(num), a, partial * b)", "partials and merge"),
        ("trtllm_gen", "tile", "tiles(64)", "partition"),
    ],
)
def test_a_planted_change_of_one_line_gets_everything(name: str, line: str, text: str, part: str) -> None:
    spec = load_spec(f"walkthrough.{name}")
    changed = with_line(spec, line, text)
    case = normal(300)
    found = run(spec, changed, case)
    before = [
        c.emulate(s, h200(), backend="oracle").trace["exact"] for c, s in ((case, spec), (case, changed))
    ]
    at = the_element(found).element.at
    places = [int(ordered(x[at["row"], at["dim"]])) for x in before]
    assert shares(found) == {part: Fraction(places[1] - places[0], 65536)}
    assert found.attribution is not None
    assert [c.name for c in found.attribution.parts[0].changes] == [line]


def with_line(spec: Spec, line: str, text: str) -> Spec:
    from specs import parse_spec
    from specs.writer import to_toml

    file: SpecFile = spec.file
    if line in file.levels:
        file = file.model_copy(update={"levels": {**file.levels, line: text}})
    else:
        section = next(s for s, table in file.sections.items() if line in table)
        sections = {**file.sections, section: {**file.sections[section], line: text}}
        file = file.model_copy(update={"sections": sections})
    return parse_spec(to_toml(file.model_copy(update={"name": "test.planted"})))


@pytest.mark.parametrize("pair", [(a, b) for i, a in enumerate(LIBRARY) for b in LIBRARY[:i]])
def test_every_pair_of_walkthroughs(pair: tuple[str, str]) -> None:
    """The sides come out of the hybrids bit for bit, and the real meaning of every hybrid is theirs."""
    a, b = (load_spec(f"walkthrough.{n}") for n in pair)
    case = normal(600, dim=2)
    found = run(a, b, case)
    assert found.attribution is not None
    assert found.attribution.same_function
    assert not found.attribution.joined
    assert found.attribution.parts[0].name == "partition"
    assert found.attribution.hybrids == 2 ** len(found.attribution.parts)
    one = the_element(found)
    at = (one.element.at["row"], one.element.at["dim"])
    for spec, stored, before in ((a, one.stored[0], one.before[0]), (b, one.stored[1], one.before[1])):
        result = case.emulate(spec, h200(), backend="oracle")
        assert float(result.output[at]) == stored
        assert float(result.trace["exact"][at]) == before
    assert sum(one.phi) == one.total


def test_another_platform_is_another_partition() -> None:
    """132 SMs and 148, 16 sequences times heads: 8 groups and 9."""
    spec = load_spec("walkthrough.xqa")
    case = Case(
        "wide",
        dict(normal(2560, dim=1).arrays),
        context={"batch": 4, "q_heads": 4, "kv_heads": 4, "head_dim": 8},
    )
    cells = ((spec, load_platform("h200")), (spec, load_platform("b200")))
    found = explain(case, *cells, attributed=False, **ORACLE)
    assert found.travel.groups == (132 // 16, 148 // 16)
    assert [name for name, _ in found.changes] == ["partition"]
    assert not found.same_program


def test_lines_alone() -> None:
    """With ``fine``, lines are joined only as far as their real meaning needs it."""
    a, b = load_spec("walkthrough.triton"), load_spec("walkthrough.xqa")
    found = run(a, b, normal(300, dim=1), fine=True)
    assert found.attribution is not None
    parts = [p.name for p in found.attribution.parts]
    assert "partition" in parts
    assert "line weight" in parts
    assert "line value" in parts
    assert "lines w, total, exact" in parts
    assert any("another function of real numbers" in why for why in found.attribution.joined)


def test_more_than_six_parts_are_sampled() -> None:
    a = many_lines()
    b = many_lines("1.0000001192092896")
    found = run(a, b, of_values(*FOUR), fine=True, orders=8, seed=3)
    assert found.attribution is not None
    assert len(found.attribution.parts) == 8
    assert found.attribution.orders == 8
    one = the_element(found)
    assert one.errors is not None
    assert sum(one.phi) == one.total
    again = run(a, b, of_values(*FOUR), fine=True, orders=8, seed=3)
    assert the_element(again).phi == one.phi


def many_lines(factor: str = "1.0") -> Spec:
    """Eight lines, each a product with a factor."""
    from specs import parse_spec

    lines = "\n".join(f'x{i} = "x{i - 1} * {factor}"' for i in range(1, 9))
    text = mean("many").to_toml().replace('"bf16(exact)"', '"bf16(x8)"')
    return parse_spec(text + f'x0 = "exact"\n{lines}\n')


# -- what is refused, or said instead ------------------------------------------------------------------------------------


def test_equal_specs_are_one_program() -> None:
    found = run(mean("a"), mean("b"), of_values(*FOUR))
    assert found.same_program
    assert found.attribution is None
    assert not found.changes


def test_different_output_formats_are_refused() -> None:
    with pytest.raises(UnsupportedError, match=r"test\.a stores bf16, test\.b f16"):
        run(mean("a"), mean("b", output="f16(exact)"), of_values(*FOUR))


def test_an_element_that_is_not_there_or_has_no_place() -> None:
    a, b = mean("a"), mean("b", partial="bf16(value / norm)")
    with pytest.raises(InputError, match="dim 7 of 1"):
        run(a, b, of_values(*FOUR), at={"dim": 7})
    with pytest.raises(InputError, match="no axis 'head'"):
        run(a, b, of_values(*FOUR), at={"head": 0})
    nan = mean("b", partial="bf16(value / (norm - norm)) * 0")
    found = run(a, nan, of_values(*FOUR))
    assert found.attribution is None
    assert "no output is finite" in found.reason
    with pytest.raises(InputError, match="the output at row 0, dim 0 is nan"):
        run(a, nan, of_values(*FOUR), at={"row": 0, "dim": 0})


def test_sides_that_mean_something_else_are_said_to() -> None:
    found = run(mean("a"), mean("b", partial="value / norm * 1.5"), of_values(*FOUR))
    assert found.attribution is not None
    assert not found.attribution.same_function
    assert sum(the_element(found).phi) == the_element(found).total


def test_query_tokens_and_heads_are_found_in_the_output() -> None:
    """Three causal queries of four heads: the element that is attributed is the one that the output stores there."""
    rng = np.random.default_rng(11)
    arrays = {
        "q": rng.standard_normal((3, 4, 8)).astype(np.float32),
        "k": rng.standard_normal((40, 2, 8)).astype(np.float32),
        "v": rng.standard_normal((40, 2, 8)).astype(np.float32),
    }
    case = Case("queries", arrays, causal=True)
    a, b = load_spec("walkthrough.triton"), load_spec("walkthrough.xqa")
    found = run(a, b, case, at={"query": 1, "head": 3, "dim": 5})
    one = the_element(found)
    outputs = [case.emulate(s, h200(), backend="oracle").output[1, 3, 5] for s in (a, b)]
    assert one.stored == (float(outputs[0]), float(outputs[1]))
    assert one.element.at == {"query": 1, "head": 3, "dim": 5}
    rest = run(a, b, case, at={"head": 2})
    assert the_element(rest).element.at["head"] == 2


@pytest.mark.slow
def test_scores_of_the_array_engine_give_the_same_attribution() -> None:
    """Long enough that scores are not computed by the definition: both sides' own, and those of hybrids."""
    from specs import parse_spec
    from verify.case import random_case

    a = load_spec("walkthrough.flash_attention_2")
    text = a.to_toml().replace("sum(q * k, seq()) * scale", "sum(q * k, pairwise()) * scale")
    text = text.replace('compute = "f32"', 'compute = "f32.ftz"').replace(
        "value / norm)", "bf16(value / norm))"
    )
    b = parse_spec(text.replace("walkthrough.flash_attention_2", "test.other"))
    case = random_case(2, 2100, q_heads=2, kv_heads=1, head_dim=64)
    at = {"head": 1, "dim": 3}
    cells = ((a, h200()), (b, h200()))
    fast = explain(case, *cells, at=at, ranked=False)
    slow = explain(case, *cells, at=at, ranked=False, backend="oracle")
    assert fast.attribution is not None
    assert [p.name for p in fast.attribution.parts] == ["compute format", "scores", "partials and merge"]
    assert the_element(fast).table == the_element(slow).table
    assert fast.travel == slow.travel


def test_hybrids_are_the_specs_that_one_would_write() -> None:
    """FlashAttention-2 with Triton's segments, and Triton's merge over FlashAttention-2's splits: edited by hand."""
    from specs import parse_spec

    fa2, triton = load_spec("walkthrough.flash_attention_2"), load_spec("walkthrough.triton")
    text = fa2.to_toml()
    blocks = 'split = "pieces(splits, unit=64)"\nblock = "tiles(64, desc)"\n'
    assert blocks in text
    name = ("walkthrough.flash_attention_2", "test.segments")
    segments = parse_spec(text.replace(blocks, 'split = "pieces(16, unit=16)"\n').replace(*name))
    merge = triton.to_toml().replace('segment = "pieces(16, unit=16)"', blocks)
    merge = merge.replace("[segment]", "[split]").replace("walkthrough.triton", "test.merge")
    lets = text[text.index("[let]") : text.index("[levels]")]
    over_splits = parse_spec(merge.replace("[levels]", f"{lets}[levels]"))
    case = normal(500, dim=2)
    found = run(fa2, triton, case)
    one = the_element(found)
    at = (one.element.at["row"], one.element.at["dim"])

    def place(spec: Spec) -> Fraction:
        exact = case.emulate(spec, h200(), backend="oracle").trace["exact"]
        return Fraction(int(ordered(exact[at])), 65536)

    assert (
        [p.name for p in found.attribution.parts] == ["partition", "partials and merge"]
        if found.attribution
        else 0
    )
    base = place(fa2)
    assert dict(one.table) == {
        frozenset(): Fraction(0),
        frozenset({0}): place(segments) - base,
        frozenset({1}): place(over_splits) - base,
        frozenset({0, 1}): place(triton) - base,
    }


def test_several_elements_come_in_the_order_of_their_difference() -> None:
    a, b = load_spec("walkthrough.triton"), load_spec("walkthrough.xqa")
    case = normal(300, dim=4)
    found = run(a, b, case, count=3)
    assert found.attribution is not None
    gaps = [abs(e.before[1] - e.before[0]) for e in found.attribution.elements]
    exact = [case.emulate(s, h200(), backend="oracle").trace["exact"].astype(np.float64) for s in (a, b)]
    assert gaps == sorted(np.abs(exact[1] - exact[0]).ravel().tolist(), reverse=True)[:3]
