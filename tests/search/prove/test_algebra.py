"""Algebra: specs that are attention are proved, planted faults fail with their line and a rational counterexample."""

from fractions import Fraction

import pytest

from search.prove.algebra import prove_algebra
from search.prove.forms import signature
from search.prove.values import BreaksError, Log, number, symbol
from search.sides import Side, load_side
from specs import load_platform, parse_spec
from specs.errors import SpecError

SHAPE = {"q_heads": 8, "kv_heads": 2, "head_dim": 128, "kv_len": 1 << 18}
HEAD = """
schema = 1
name = "mine.kernel"
status = "walkthrough"
summary = "planted"
[numbers]
compute = "f32"
inputs = { q = "bf16", k = "bf16", v = "bf16" }
[levels]
split = "pieces(4, unit=64)"
[token]
score = "select(visible, sum(q * k, seq()) * scale, -inf)"
[split]
top     = "max(score)"
weight  = "exp(score - top)"
norm    = "sum(weight, seq())"
value   = "sum(bf16(weight) * v, seq())"
"""
NATURAL = (
    HEAD
    + """
partial = "value / norm"
level   = "top + log(norm)"
[row]
most   = "max(level)"
w      = "exp(level - most)"
output = "sum(w * partial, seq()) / sum(w, seq())"
"""
)
BINARY = NATURAL.replace("top + log(norm)", "top * 1.44269504 + log2(norm)")
TWICE = """
schema = 1
name = "mine.sinks"
status = "walkthrough"
summary = "planted"
[numbers]
compute = "f32"
inputs = { q = "bf16", k = "bf16", v = "bf16" }
[levels]
split = "pieces(4, unit=64)"
[token]
score = "select(visible, sum(q * k, seq()) * scale, -inf)"
[split]
top    = "max(score)"
weight = "exp(score - top)"
norm   = "sum(weight, seq()) + exp(sink - top)"
value  = "sum(weight * v, seq())"
[row]
most   = "max(top)"
w      = "exp(top - most)"
output = "sum(value * w, seq()) / sum(norm * w, seq())"
"""


def prove(text: str, platform: str = "h200", **context: int):
    side = Side(parse_spec(text, "kernel.toml"), load_platform(platform))
    return prove_algebra([side], [{**SHAPE, **context}])


@pytest.mark.parametrize(
    "cell",
    [
        "walkthrough.flash_attention_2@h200",
        "walkthrough.trtllm_gen@b200",
        "flash_attn2.splitkv_decode@h200",
        "trtllm_gen.reduction@b200",
        "torch_cpu.sdpa_flash@amd_avx512",
        "xqa.decode_fp8_sm90@h200",
        "vllm_triton.decode_3d@h200",
    ],
)
def test_the_library_is_attention(cell):
    found = prove_algebra([load_side(cell)], [SHAPE])
    assert found.status == "proved", found.reason
    assert "ball arithmetic" in found.rechecked
    assert found.rechecked.endswith("to 1 of 1 programs")


@pytest.mark.slow
@pytest.mark.parametrize("cell", ["xqa.decode@h200", "xqa.decode@sm120", "flashinfer.fa2_decode@h200"])
@pytest.mark.parametrize("head_dim", [64, 128, 256])
def test_kernels_of_many_groups_are_attention(cell, head_dim):
    found = prove_algebra([load_side(cell)], [{**SHAPE, "head_dim": head_dim}])
    assert found.status == "proved", found.reason


def test_no_rescale_of_the_previous_accumulator():
    side = load_side("walkthrough.tiled@h200", {"rescale_previous_accumulator": "false"})
    found = prove_algebra([side], [SHAPE])
    assert found.status == "refuted"
    assert found.reason.startswith("line 'acc': after one more tile")
    example = found.details["counterexample"]
    # By hand: weights 2/3, 4/3 in one tile and 2, 8/3 in the next; values 0, 3, 2, 1. The first tile counts relative to
    # its own maximum 4/3, the second to 8/3: (4/3 * 3) / (4/3) + (2 * 2 + 8/3) / (8/3), over the sum (20/3) / (8/3).
    wrong = (3 + (4 + Fraction(8, 3)) / Fraction(8, 3)) / (Fraction(20, 3) / Fraction(8, 3))
    assert Fraction(example["spec"]) == wrong
    assert Fraction(example["attention"]) == Fraction(4 + 4 + Fraction(8, 3)) / Fraction(20, 3)


def test_a_base_2_logarithm_that_is_merged_as_a_natural_one():
    assert prove(NATURAL).status == "proved"
    found = prove(BINARY)
    assert found.status == "refuted"
    assert found.details["line"] == "w"
    assert "base e to the power of a logarithm in base 2" in found.reason
    kept = prove(BINARY.replace("exp(level - most)", "exp2(level - most)"))
    assert kept.status == "proved"
    assert any("log2(e)" in a for a in kept.assumptions)


def test_a_maximum_that_is_left_in_base_2():
    """The running level is in base 2, the maximum that is subtracted is not."""
    found = prove(NATURAL.replace("top + log(norm)", "top + log2(norm)"))
    assert found.status == "refuted"
    assert found.details["line"] == "level"


def test_a_sink_that_is_counted_once_for_each_split():
    found = prove(TWICE, has_sinks=1)
    assert found.status == "refuted"
    assert "sink" in found.reason
    once = TWICE.replace(' + exp(sink - top)"', '"').replace(
        "sum(norm * w, seq())", "(sum(norm * w, seq()) + exp(sink - most))"
    )
    assert prove(once, has_sinks=1).status == "proved"


def test_maxima_that_are_not_subtracted_alike():
    found = prove(
        HEAD.replace("[split]", '[split]\nother = "max(score) * 0"', 1).replace(
            'value   = "sum(bf16(weight) * v, seq())"', 'value   = "sum(exp(score - other) * v, seq())"'
        )
        + """
[row]
most   = "max(top)"
w      = "exp(top - most)"
output = "sum(value * w, seq()) / sum(norm * w, seq())"
"""
    )
    assert found.status == "refuted"
    assert found.details["line"] in ("output", "value")


def test_a_merge_that_forgets_a_group_weight():
    found = prove(NATURAL.replace("sum(w * partial, seq()) / sum(w, seq())", "sum(partial, seq()) / 4"))
    assert found.status == "refuted"
    assert found.details["line"] == "output"


def test_a_fault_in_the_branch_that_a_small_instance_never_takes():
    """Tokens from 1,000 on have another weight: an instance of a few tokens never sees one."""
    late = NATURAL.replace(
        'weight  = "exp(score - top)"', 'weight  = "select(key_index < 1000, exp(score - top), exp(score))"'
    )
    found = prove(late)
    assert found.status != "proved"
    same = NATURAL.replace(
        'weight  = "exp(score - top)"',
        'weight  = "select(key_index < 1000, exp(score - top), cuda.expf(score - top))"',
    )
    assert prove(same).status == "proved"


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("output", "select(sum(w, seq()) < 0.000001, 0, sum(w * partial, seq()) / sum(w, seq()))"),
        ("weight", "select(key_index < kv_len, exp(score - top), 0)"),
    ],
)
def test_a_guard_that_is_never_taken_refutes_nothing(line: str, text: str):
    """Both are attention: one of the weights is e^0, and every token lies before kv_len."""
    old = {
        "weight": "exp(score - top)",
        "output": "sum(w * partial, seq()) / sum(w, seq())",
    }[line]
    found = prove(NATURAL.replace(f'"{old}"', f'"{text}"'))
    assert found.status == "not decided"
    assert "none of the inputs tried" in found.reason
    assert "counterexample" not in found.details


def test_a_maximum_that_is_compared_with_a_number():
    """Weights of a group whose maximum is 3 are not rescaled: no crash, and no proof."""
    found = prove(NATURAL.replace('"exp(score - top)"', '"exp(score - select(top == 3, 0, top))"'))
    assert found.status == "not decided"


RUNNING = """
schema = 1
name = "mine.running"
status = "walkthrough"
summary = "the larger one by a choice"
[numbers]
compute = "f32"
inputs = { q = "bf16", k = "bf16", v = "bf16" }
[levels]
split = "pieces(3, unit=64)"
tile = "tiles(16)"
[state.split]
m = "-inf"
other = "-inf"
den = "0"
num = "0"
[token]
score = "select(visible, sum(q * k, seq()) * scale, -inf)"
[tile]
top    = "max(score)"
m      = "select(prev(m) > top, prev(m), top)"
other  = "select(prev(m) > top, prev(m), top)"
weight = "exp(score - m)"
a      = "exp(prev(m) - m)"
den    = "prev(den) * a + sum(weight, seq())"
num    = "prev(num) * a + sum(weight * v, seq())"
[split]
level = "last(other)"
[row]
most   = "max(level)"
w      = "exp(level - most)"
output = "sum(last(num) * w, seq()) / sum(last(den) * w, seq())"
"""


def test_two_choices_between_the_same_numbers():
    """Larger and smaller of two maxima are two numbers: a merge by the smaller one is wrong."""
    assert prove(RUNNING).status == "proved"
    smaller = 'other  = "select(prev(m) > top, '
    assert prove(RUNNING.replace(smaller, smaller.replace(">", "<"))).status == "refuted"


def test_what_is_not_checked_is_assumed():
    """Scores and the scale of V enter as they are: a wrong line of scores is no fault that algebra finds."""
    assert any("line 'score'" in a for a in prove(NATURAL).assumptions)
    found = prove(
        NATURAL.replace('"sum(bf16(weight) * v, seq())"', '"sum(bf16(weight) * v, seq()) * v_scale"')
    )
    assert found.status == "proved"
    assert "scales of K and V are 1" in found.assumptions


def test_choices_that_hide_behind_a_name_or_a_place_in_a_tile():
    line = 'weight  = "exp(score - top)"'
    token = 'score = "select(visible, sum(q * k, seq()) * scale, -inf)"'
    named = NATURAL.replace(token, token + '\nnear = "key_index < 1000"').replace(
        line, 'weight  = "select(near, exp(score - top), exp(score))"'
    )
    assert prove(named).status != "proved"
    placed = NATURAL.replace(line, 'weight  = "select(pos(token) < 48, exp(score - top), exp(score))"')
    assert prove(placed).status != "proved"
    counted = NATURAL.replace(line, 'weight  = "exp(score - top) * f32(1 + pos(token) // 48)"')
    assert prove(counted).status == "not decided"


def test_a_sum_that_is_right_for_two_pieces_alone():
    """Every piece holds the whole answer; half their sum is attention for two pieces, and for no other number."""
    text = NATURAL.replace(
        'output = "sum(w * partial, seq()) / sum(w, seq())"',
        'whole  = "sum(w * partial, seq()) / sum(w, seq())"\noutput = "sum(select(w > 0, whole, whole), seq()) / 2"',
    )
    assert prove(text).status != "proved"


def test_a_running_log_sum_exp():
    """A state that is a logarithm of a sum, not a maximum: kept right, and with the old part counted twice."""
    text = """
schema = 1
name = "mine.lse"
status = "walkthrough"
summary = "one running log-sum-exp"
[numbers]
compute = "f32"
inputs = { q = "bf16", k = "bf16", v = "bf16" }
[levels]
tile = "tiles(32)"
[state.row]
L = "-inf"
o = "0"
[token]
score = "select(visible, sum(q * k, seq()) * scale, -inf)"
[tile]
top    = "max(score)"
weight = "exp(score - top)"
mine   = "top + log(sum(weight, seq()))"
most   = "max(prev(L), mine)"
L      = "most + log(exp(prev(L) - most) + exp(mine - most))"
o      = "prev(o) * exp(prev(L) - L) + sum(weight * v, seq()) * exp(top - L)"
[row]
output = "last(o)"
"""
    assert prove(text).status == "proved"
    assert (
        prove(text.replace("log(exp(prev(L) - most) +", "log(2 * exp(prev(L) - most) +")).status == "refuted"
    )


def test_a_fault_in_a_later_column():
    """Columns from 64 on are divided by twice the sum."""
    late = NATURAL.replace(
        "sum(w * partial, seq()) / sum(w, seq())",
        "sum(w * partial, seq()) / select(pos(dim) // 64 == 0, sum(w, seq()), sum(w, seq()) * 2)",
    )
    assert prove(late).status != "proved"


def test_what_has_no_algebra_is_not_decided():
    found = prove(NATURAL.replace("exp(score - top)", "exp(min(score - top, 3))"))
    assert found.status == "not decided"
    assert "kernel.toml:" in found.reason


def test_values_are_exact():
    x, y, v = symbol("E1"), symbol("E2"), symbol("v1")
    assert (x + y) * (x + y).inverse() == number(1)
    assert (x * v + y * v) / (x + y) == v
    assert ((x + y) / (x * x)).at({"E1": Fraction(1, 2), "E2": Fraction(3)}) == 14
    assert (x - x) == number(0)
    with pytest.raises(BreaksError, match="division by zero"):
        number(0).inverse()
    assert Log(x) != Log(x, symbol("scale"))
    assert signature(x * v + symbol("E2") * symbol("v2")) == signature(symbol("E3") * symbol("v3"))
    assert signature(x + symbol("E2") * symbol("v2")) is None


@pytest.mark.parametrize(
    ("cell", "line", "text"),
    [
        ("walkthrough.trtllm_gen@b200", "den", "prev(den) + norm * b"),
        ("walkthrough.trtllm_gen@b200", "b", "exp(top - top)"),
        ("vllm_triton.interpreter@h200", "l", "prev(l) + sum(weight, seq())"),
        ("vllm_triton.interpreter@h200", "w", "select(valid, exp2(top - most), 0)"),
        ("walkthrough.xqa@h200", "w", "exp(top - most_safe)"),
        ("walkthrough.flash_attention_2@h200", "level", "top"),
        ("walkthrough.triton@h200", "exact", "sum(value * w, seq()) / (total + 1)"),
        ("walkthrough.dense@h200", "output", "sum(prob * v, seq()) * 1.0000001"),
    ],
)
def test_a_changed_line_is_caught(cell, line, text):
    found = prove_algebra([load_side(cell, {line: text})], [SHAPE])
    assert found.status == "refuted"
    assert "attention" in found.reason


def test_what_is_subtracted_does_not_matter():
    """Twice the maximum overflows sooner, and is attention all the same; a step that asks for tile 7 is not covered."""
    found = prove_algebra([load_side("walkthrough.triton@h200", {"top": "max(score) * 2"})], [SHAPE])
    assert found.status == "proved"
    seventh = {"l": "select(pos(tile) == 7, prev(l), prev(l) * alpha) + sum(weight, seq())"}
    found = prove_algebra([load_side("walkthrough.tiled@h200", seventh)], [SHAPE])
    assert found.status == "not decided"


@pytest.mark.parametrize(
    ("line", "wrong", "cause"),
    [
        ('"top + log(norm)"', '"level + 1"', "'level' depends on itself"),
        ('"pieces(4, unit=64)"', '"pieces(4, unit=0)"', r"pieces\(\) with 0"),
    ],
)
def test_a_wrong_spec_is_a_mistake_and_no_answer(line: str, wrong: str, cause: str) -> None:
    with pytest.raises(SpecError, match=cause):
        prove(NATURAL.replace(line, wrong))
