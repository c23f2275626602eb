"""Stages: two specs that keep the same attention under other names and in another form, exchanged and computed by hand."""

from __future__ import annotations

from fractions import Fraction

import pytest

from search.explain.attribution import legality
from search.explain.explain import Explanation, explain, flat_pair, start
from search.explain.stages import separated, stages
from specs import load_spec, parse_spec
from specs.loader import Spec
from tests.search.explain.tiny import bf16, f32, h200, index, of_values
from verify.case import Case, random_case

#: Normalised partial results with the logarithm of their sum; nothing but `score`, `partial` and `output` is called alike.
MEANS = """
schema = 1
name = "test.means"
status = "walkthrough"
summary = "means, merged by the logarithms of their sums"
[numbers]
compute = "f32"
inputs = { q = "bf16", k = "bf16", v = "bf16" }
[levels]
group = "pieces(2, unit=1)"
[token]
score = "select(visible, sum(q * k, seq()) * scale, -inf)"
[group]
top = "max(score)"
weight = "exp(score - top)"
norm = "sum(weight, seq())"
partial = "sum(weight * v, seq()) / norm"
level = "top + log(norm)"
[row]
most = "max(level)"
w = "exp(level - most)"
output = "bf16(sum(w * partial, seq()) / sum(w, seq()))"
"""
#: The online form: a running maximum, sum and weighted sum in tiles; the merge reads them as they are.
SUMS = """
schema = 1
name = "test.sums"
status = "walkthrough"
summary = "running sums of tiles, in bf16, merged as they are"
[numbers]
compute = "f32"
inputs = { q = "bf16", k = "bf16", v = "bf16" }
[levels]
part = "pieces(4, unit=1)"
tile = "tiles(1)"
[state.part]
m = "-inf"
s = "0"
acc = "0"
[token]
score = "select(visible, sum(q * k, seq()) * scale, -inf)"
[tile]
m = "max(prev(m), max(score))"
alpha = "exp(prev(m) - m)"
p = "exp(score - m)"
s = "fma(prev(s), alpha, sum(p, seq()))"
acc = "fma(prev(acc), alpha, sum(p * v, seq()))"
[part]
best = "last(m)"
norm = "last(s)"
value = "bf16(last(acc))"
[row]
most = "max(best)"
w = "exp(best - most)"
output = "bf16(sum(w * value, seq()) / sum(w * norm, seq()))"
"""
VALUES = (1.0, 1.0078125, 1.5, 2.015625, 1.25, 1.2578125, 3.0, 1.75)


def two(a: str = MEANS, b: str = SUMS) -> tuple[Spec, Spec]:
    return parse_spec(a), parse_spec(b)


def run(pair: tuple[Spec, Spec], case: Case) -> Explanation:
    a, b = pair
    return explain(case, (a, h200()), (b, h200()), backend="oracle", ranked=False)


def by_hand(pieces: int, rounded: bool) -> Fraction:
    """Every score is 0: sums of values are exact in f32; groups of equal size have equal weights in either merge."""
    values = [Fraction(v) for v in VALUES]
    size = len(values) // pieces
    groups = [values[i : i + size] for i in range(0, len(values), size)]
    if rounded:  # sums to bf16, merged as they are: 4 sums of 2 over 8, or 2 sums of 4 over 8
        return f32(sum((bf16(sum(g, Fraction(0))) for g in groups), Fraction(0)) / len(values))
    means = [f32(sum(g, Fraction(0)) / size) for g in groups]
    return f32(sum(means, Fraction(0)) / pieces)


def test_stages_by_hand() -> None:
    """Means are exact here, so that only the sums in bf16 and the groups whose sums they are tell the hybrids apart."""
    found = run(two(), of_values(*VALUES))
    assert found.attribution is not None
    assert [p.name for p in found.attribution.parts] == [
        "partition",
        "weights and sums",
        "partials and merge",
    ]
    one = found.attribution.elements[0]
    table = {frozenset(): by_hand(2, False), frozenset({0, 1, 2}): by_hand(4, True)}
    table[frozenset({0})] = by_hand(4, False)
    # Sums of the second in bf16; the merge of the first divides each by its norm: mean = value / norm.
    table[frozenset({1})], table[frozenset({0, 1})] = means_of_sums(2), means_of_sums(4)
    # The first's exact means; the merge of the second weighs them by the exponential of their level, 1 each.
    table[frozenset({2})], table[frozenset({0, 2})] = by_hand(2, False), by_hand(4, False)
    table[frozenset({1, 2})] = by_hand(2, True)
    assert {s: index(x) - index(table[frozenset()]) for s, x in table.items()} == dict(one.table)
    assert sum(one.phi) == one.total != 0
    assert any("value / norm" in text for text in found.attribution.joined)


def means_of_sums(pieces: int) -> Fraction:
    size = len(VALUES) // pieces
    sums = [bf16(sum(map(Fraction, VALUES[i : i + size]), Fraction(0))) for i in range(0, len(VALUES), size)]
    return f32(sum((f32(s / size) for s in sums), Fraction(0)) / pieces)


def test_the_lines_alone_cannot_be_exchanged() -> None:
    """What the stages replace: no line of the running sums has a place in the other spec."""
    a, b = two()
    runs = start(of_values(*VALUES), (a, h200()), (b, h200()), backend="oracle")
    judged = legality(flat_pair(runs), runs)
    assert judged is not None
    judged.separate(0, 8, lambda *_: None)
    assert [p.name for p in judged.maker.parts] == ["partition + partials and merge"]
    assert "unknown section [tile]" in judged.joined[0]


def test_a_score_that_is_not_scaled_yet_is_handed_over() -> None:
    """0.5 times the product of q and k, at once or with the exponent: powers of two, so that no bit changes."""
    late = SUMS.replace("sum(q * k, seq()) * scale", "sum(q * k, seq())")
    late = late.replace("(prev(m) - m)", "((prev(m) - m) * scale)").replace(
        "(score - m)", "((score - m) * scale)"
    )
    late = late.replace('best = "last(m)"', 'best = "last(m) * scale"')
    case = random_case(5, 8, q_heads=1, kv_heads=1, head_dim=4)
    found = run(two(b=late), case)
    assert found.attribution is not None
    names = [p.name for p in found.attribution.parts]
    assert names == ["partition", "scores", "weights and sums", "partials and merge"]
    one = found.attribution.elements[0]
    assert one.phi[1] == 0
    assert one.table == {s: one.table[s - {1}] for s in one.table}
    text = " ".join(found.attribution.joined)
    assert "score = score * scale" in text
    assert "score = score / scale" in text


def test_a_merge_that_is_a_fold_over_groups_says_so() -> None:
    """Its lines are of the level that it folds, so that no stage ends where the groups do."""
    fold = SUMS.replace('part = "pieces(4, unit=1)"\ntile = "tiles(1)"', 'part = "tiles(2)"').replace(
        "[state.part]", "[state.row]"
    )
    fold = fold.replace("[tile]", "[part]", 1)
    head = fold[: fold.index("[part]\nbest")]
    fold = head + '[row]\noutput = "bf16(last(acc) / last(s))"\n'
    a, b = two(b=fold)
    runs = start(of_values(*VALUES), (a, h200()), (b, h200()), backend="oracle")
    judged = legality(flat_pair(runs), runs)
    assert judged is not None
    why = stages(judged.maker, judged.maker.parts)
    assert isinstance(why, str)
    assert why.startswith(
        "test.sums on h200: its merge reads last(s), neither the logarithm of a group's sum"
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "pair", [("flash_attn2.splitkv_decode", "xqa.decode"), ("xqa.decode", "vllm_triton.decode_3d")]
)
def test_real_kernels_have_more_than_one_part(pair: tuple[str, str]) -> None:
    """FlashAttention-2 keeps unscaled scores and logarithms of sums, XQA scaled ones and sums; Triton needs 16 groups."""
    a, b = (load_spec(name) for name in pair)
    case = random_case(0, 600, q_heads=2, kv_heads=1, head_dim=64)
    runs = start(case, (a, h200()), (b, h200()), backend="oracle")
    judged = legality(flat_pair(runs), runs)
    assert judged is not None
    judged, _, sets = separated(judged, 0, 8, lambda *_: None)
    names = [p.name for p in judged.maker.parts]
    if "vllm_triton.decode_3d" in pair:
        assert names == ["compute format", "partition + partials and merge", "scores", "weights and sums"]
        assert any(
            "at(segment=8) reads where no value stands" in text or "8" in text for text in judged.joined
        )
    else:
        assert names == ["partition", "scores", "weights and sums", "partials and merge"]
        text = " ".join(judged.joined)
        assert "best = level, s0 = 1" in text
        assert "level = best + log(s0)" in text
    assert len(sets) == 16
