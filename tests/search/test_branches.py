"""Which conditions may hide roundings from a small instance."""

import pytest

from search.branches import open_choice
from search.lines import upstream
from search.sides import Side
from specs import load_platform, load_spec
from specs.loader import parse_spec

SHAPE = {"kv_len": 64, "q_heads": 2, "kv_heads": 1, "head_dim": 16}
TEXT = """
schema = 1
name = "mine"
status = "walkthrough"
summary = "one pass"
[numbers]
compute = "f32"
inputs = {{ q = "bf16", k = "bf16", v = "bf16" }}
[levels]
tile = "tiles(16)"
[state.row]
m = "-inf"
den = "0"
num = "0"
[token]
score = "select(visible, sum(q * k, seq()) * scale, -inf)"
[tile]
top = "max(score)"
m = "max(prev(m), top)"
safe = "select(m == -inf, 0, m)"
weight = "exp(score - safe)"
used = "{used}"
a = "exp(prev(m) - safe)"
den = "prev(den) * a + sum(weight, seq())"
num = "prev(num) * a + sum(used * v, seq())"
[row]
output = "bf16(select(last(den) == 0 or isnan(last(den)), 0, last(num) / last(den)))"
"""


def choice(used: str) -> str:
    side = Side(parse_spec(TEXT.format(used=used)), load_platform("h200"))
    program = side.program(SHAPE)
    return open_choice(program, upstream(program))


@pytest.mark.parametrize(
    "used",
    [
        "select(pos(token) >= 8, bf16(weight), weight)",
        "select(pos(tile) == 0, weight, bf16(weight))",
        "select(key_index >= 5, bf16(weight), weight)",
        "select(score < 5, bf16(weight), weight)",
        "select(weight == 0, 0, bf16(weight))",
        "select(visible and score - m < -4, bf16(weight), weight)",
        "min(bf16(weight), weight)",
        "max(weight, bf16(weight))",
    ],
)
def test_a_choice_by_position_or_by_data_is_open(used):
    assert choice(used) == "used"


@pytest.mark.parametrize(
    "used",
    ["bf16(weight)", "select(score == -inf, 0, bf16(weight))", "select(isnan(weight), 0, bf16(weight))"],
)
def test_guards_are_not(used):
    assert choice(used) == ""


@pytest.mark.parametrize("name", ["dense", "flash_attention_2", "tiled", "triton", "trtllm_gen", "xqa"])
def test_the_teaching_specs_choose_nothing(name):
    side = Side(load_spec(f"walkthrough.{name}"), load_platform("h200"))
    program = side.program(SHAPE | {"kv_len": 4096})
    assert open_choice(program, upstream(program)) == ""
