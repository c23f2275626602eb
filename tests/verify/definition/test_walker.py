"""Every construct of the language against expressions written by hand.

The arithmetic here has text for numbers, so that a value shows which operations made it, in which order. It
decides no comparison, which also shows what an arithmetic on symbols meets.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from specs.dot_products import DotProduct
from specs.errors import SpecError
from specs.formats import Format
from specs.nodes import Tree
from tests.verify.small import planned
from verify.definition import RowInputs, ScalarArithmetic, Walker
from verify.definition.arithmetic import Fold
from verify.definition.trees import Operations, build


class Text:
    """Numbers are text; no comparison is decided."""

    def number(self, x: Fraction, fmt: Format) -> str:
        return str(x)

    def special(self, x: float, fmt: Format) -> str:
        return str(x)

    def pattern(self, bits: int, fmt: Format) -> str:
        return f"{bits:#x}"

    def lift(self, x: float) -> str:
        return f"{x:g}"

    def operation(self, op: str, operands: Sequence[Format], fmt: Format) -> Callable[..., str]:
        if op in ("+", "-", "*", "/"):
            return lambda a, b: f"({a}{op}{b})"
        return lambda *xs: f"{op}({','.join(xs)})"

    def cast(self, source: Format, target: Format) -> Callable[[str], str]:
        return lambda x: f"{target}<{x}>"

    def compare(self, op: str) -> Callable[[str, str], str]:
        return lambda a, b: f"{a}{op}{b}"

    def is_nan(self, x: str) -> str:
        return f"isnan({x})"

    def fold(
        self, tree: Tree, kind: str, operands: Sequence[Format], fmt: Format, dots: Sequence[DotProduct]
    ) -> Fold:
        def exact(terms: Sequence[Any], pairs: bool, start: Any) -> str:
            return f"exact{terms}"

        steps = Operations(
            add=lambda a, b: f"({a}+{b})",
            mul=lambda a, b: f"{a}*{b}",
            fma=lambda a, b, c: f"[{a}*{b}+{c}]",
            exact=exact,
            zero="0",
        )
        return build(tree, steps, pairs=kind == "dot")

    def choose(self, condition: str, a: str, b: str) -> str:
        return f"({condition}?{a}:{b})"

    def logic(self, op: str, conditions: Sequence[str]) -> str:
        return f"{op}({','.join(conditions)})"


def walk(text: str, kv_len: int, inputs: RowInputs | None = None, arithmetic: Any = None) -> Walker:
    """A walker over a small spec; the value of token t is t in v, and its score is t."""
    plan = planned(text, kv_len)
    if inputs is None:
        v = np.arange(kv_len, dtype=np.float64)[:, None]
        feed = {"s": v[:, 0]} if "s" in plan.program.sites else {}
        inputs = RowInputs(v=v, feed=feed)
    return Walker(plan.program, plan, inputs, arithmetic or Text())


def value(text: str, kv_len: int, site: str, index: Mapping[str, int] | None = None) -> Any:
    return walk(text, kv_len).value(site, index)


TILED = """
[levels]
tile = "tiles(2)"
"""
ROW = """
[row]
output = "sum(v, seq())"
"""


# -- reductions and order ---------------------------------------------------------------------------------


def test_a_reduction_visits_existing_pieces_and_owned_tokens_in_order() -> None:
    text = '[levels]\ngroup = "deal(2, unit=2)"\ntile = "tiles(2, desc)"\n' + ROW
    # Group 0 owns 0 1 4 5, group 1 owns 2 3 6; tiles last to first, tokens within a tile in order.
    assert value(text, 7, "output", {"dim": 0}) == "(((((((0+4)+5)+0)+1)+6)+2)+3)"


def test_a_section_removes_the_axes_inside_it() -> None:
    text = TILED + '[tile]\npart = "sum(v, seq())"\n[row]\noutput = "sum(part, seq())"\n'
    walker = walk(text, 5)
    assert walker.value("part", {"tile": 1, "dim": 0}) == "((0+2)+3)"
    assert walker.value("part", {"tile": 2, "dim": 0}) == "(0+4)"
    assert walker.value("output", {"dim": 0}) == "(((0+((0+0)+1))+((0+2)+3))+(0+4))"


def test_depth_is_summed_in_order_and_scaled() -> None:
    text = '[token]\ns = "sum(q * k, seq()) * scale"\n' + ROW
    inputs = RowInputs(
        q=np.array([2.0, 3.0]),
        k=np.array([[5.0, 7.0], [11.0, 13.0]]),
        v=np.zeros((2, 1)),
        scalars={"scale": 0.5},
    )
    assert walk(text, 2, inputs).value("s", {"token": 1}) == "(((0+(2*11))+(3*13))*1/2)"


def test_start_and_first() -> None:
    text = (
        TILED
        + """
[tile]
begun = "sum(v, seq(), start=7)"
replaced = "sum(v, seq(), first=it * 9)"
paired = "sum(v, pairwise(), first=it * 9)"
fused = "dot(v, 3, seq(fma), start=7)"
[row]
output = "sum(begun, seq())"
"""
    )
    walker = walk(text, 4)
    at = {"tile": 1, "dim": 0}
    assert walker.value("begun", at) == "((7+2)+3)"
    assert walker.value("replaced", at) == "((2*9)+3)"
    assert walker.value("paired", at) == "((2*9)+3)"
    assert walker.value("fused", at) == "[3*3+[2*3+7]]"


def test_first_of_nothing_is_a_function_of_zero() -> None:
    text = (
        TILED
        + 'half = "view(2, pos(token) % 2)"\n[tile]\n'
        + (
            """
part = "sum(v, seq(), by=half, first=it + 9)"
[row]
output = "sum(sum(part, seq(), over=tile), seq())"
"""
        )
    )
    walker = walk(text, 3)
    assert walker.value("part", {"tile": 1, "half": 0, "dim": 0}) == "(2+9)"
    assert walker.value("part", {"tile": 1, "half": 1, "dim": 0}) == "(0+9)"


def test_a_format_rounds_each_addition_of_its_own_sum() -> None:
    formats: list[tuple[str, str]] = []

    class Formats(Text):
        def fold(
            self, tree: Tree, kind: str, operands: Sequence[Format], fmt: Format, dots: Sequence[DotProduct]
        ) -> Fold:
            formats.append((fmt.name, ",".join(f.name for f in operands)))
            return super().fold(tree, kind, operands, fmt, dots)

    text = '[row]\noutput = "bf16.sum(f16(v), seq()) + sum(v, seq())"\n'
    walk(text, 2, arithmetic=Formats()).value("output", {"dim": 0})
    assert formats == [("bf16", "f16"), ("f32", "bf16")]


def test_max_starts_at_minus_infinity() -> None:
    text = '[token]\ns = "sum(q * k, seq())"\n[row]\nmost = "max(s)"\noutput = "sum(v * most, seq())"\n'
    inputs = RowInputs(v=np.zeros((3, 1)), feed={"s": np.array([1.0, 5.0, 2.0])})
    assert walk(text, 3, inputs).value("most") == "max(max(max(-inf,1),5),2)"


@pytest.mark.parametrize("kv_len", [0])
def test_nothing_to_reduce(kv_len: int) -> None:
    text = (
        TILED
        + """
[token]
s = "0 * v"
[row]
most = "max(v)"
output = "sum(v, pairwise()) + sum(v, seq(), start=3)"
"""
    )
    walker = walk(text, kv_len, RowInputs(v=np.zeros((0, 1))))
    assert walker.value("most", {"dim": 0}) == "-inf"
    assert walker.value("output", {"dim": 0}) == "(0+3)"


# -- views, gathers, positions ----------------------------------------------------------------------------


def test_by_selects_a_colour_of_a_token() -> None:
    text = """
[levels]
tile = "tiles(4)"
lane = "view(2, pos(token) // 2)"
[tile]
part = "sum(v, seq(), by=lane)"
joined = "sum(part, butterfly(1))"
[row]
output = "sum(joined, seq())"
"""
    walker = walk(text, 7)
    assert walker.value("part", {"tile": 1, "lane": 0, "dim": 0}) == "((0+4)+5)"
    assert walker.value("part", {"tile": 1, "lane": 1, "dim": 0}) == "(0+6)"
    assert walker.value("joined", {"tile": 0, "dim": 0}) == "(((0+0)+1)+((0+2)+3))"


def test_by_selects_a_colour_of_a_level() -> None:
    text = """
[levels]
sub = "pieces(4, unit=1)"
taker = "view(2, pos(sub) % 2)"
[sub]
o = "sum(v, seq())"
[row]
num = "sum(o, seq(), by=taker)"
output = "sum(num, seq())"
"""
    walker = walk(text, 4)
    assert walker.value("num", {"taker": 1, "dim": 0}) == "((0+(0+1))+(0+3))"


LANES = '[levels]\nsub = "pieces(4, unit=1, empty=keep)"\n[sub]\no = "sum(v, seq())"\n[row]\n'


def test_gathers() -> None:
    text = LANES + (
        """
swapped = "o - shfl_xor(o, sub, 2)"
all = "butterfly(o, sub, 1, 2)"
output = "at(swapped, sub=1)"
"""
    )
    walker = walk(text, 4)
    lane = [f"(0+{i})" for i in range(4)]
    assert walker.value("swapped", {"sub": 3, "dim": 0}) == f"({lane[3]}-{lane[1]})"
    assert walker.value("output", {"dim": 0}) == f"({lane[1]}-{lane[3]})"
    # Every lane keeps its own value: its own sum stands on the left.
    assert walker.value("all", {"sub": 3, "dim": 0}) == f"(({lane[3]}+{lane[2]})+({lane[1]}+{lane[0]}))"


def test_a_column_is_mapped_to_a_lane() -> None:
    text = LANES.replace("sum(v, seq())", "sum(s, seq())").replace(
        "[sub]",
        """
[token]
s = "sum(q * k, seq())"
[sub]""",
    )
    text += 'output = "at(o, sub=pos(dim) // 2 % 4) + sum(v, seq())"\n'
    inputs = RowInputs(v=np.zeros((4, 8)), feed={"s": np.arange(4.0)})
    walker = walk(text, 4, inputs)
    assert [walker.value("output", {"dim": d})[:6] for d in (0, 3, 7)] == ["((0+0)", "((0+1)", "((0+3)"]


def test_a_gather_from_a_piece_that_does_not_exist_is_an_error() -> None:
    text = LANES.replace(", empty=keep", "") + 'output = "at(o, sub=3)"\n'
    with pytest.raises(
        SpecError, match=r"<text>:\d+:\d+: at\(sub=3\) reads where no value stands\n.*empty=keep"
    ):
        value(text, 3, "output", {"dim": 0})
    kept = LANES + 'output = "at(o, sub=3)"\n'
    assert value(kept, 3, "output", {"dim": 0}) == "0"


def test_owns_and_pos() -> None:
    text = LANES.replace("sum(v, seq())", "select(owns(sub), sum(v, seq()), select(pos(sub) % 2 == 1, 8, 9))")
    walker = walk(text + 'output = "sum(o, seq())"\n', 2)
    assert [walker.value("o", {"sub": i, "dim": 0}) for i in range(4)] == ["(0+0)", "(0+1)", "9", "8"]


def test_integer_sites() -> None:
    text = """
[levels]
outer = "pieces(2, unit=3)"
tile = "tiles(2)"
[tile]
n = "pos(outer) * 10 + pos(tile)"
o = "select(n // 10 == n % 10, sum(v, seq()), 0)"
[row]
output = "sum(o, seq())"
"""
    walker = walk(text, 6)
    assert walker.value("n", {"outer": 1, "tile": 1}) == 11
    assert walker.value("o", {"outer": 1, "tile": 1, "dim": 0}) == "(0+5)"
    assert walker.value("o", {"outer": 1, "tile": 0, "dim": 0}) == "0"


# -- state ------------------------------------------------------------------------------------------------

CARRY = """
[levels]
group = "deal(2, unit=2)"
tile = "tiles(1)"
[state.{scope}]
acc = "-1"
[tile]
acc = "prev(acc) + max(v)"
"""


def test_state_starts_afresh_in_its_scope() -> None:
    text = (
        CARRY.format(scope="group")
        + """
[row]
output = "sum(last(acc), seq())"
"""
    )
    walker = walk(text, 6)
    assert walker.value("acc", {"group": 0, "tile": 2, "dim": 0}) == (
        "(((neg(1)+max(-inf,0))+max(-inf,1))+max(-inf,4))"
    )
    assert walker.value("output", {"dim": 0}).count("neg(1)") == 2


def test_state_of_the_row_runs_over_all_levels() -> None:
    text = CARRY.format(scope="row") + '[row]\noutput = "last(acc)"\n'
    want = "neg(1)"
    for t in (0, 1, 4, 2, 3):
        want = f"({want}+max(-inf,{t}))"
    assert value(text, 5, "output", {"dim": 0}) == want


def test_last_without_a_step_is_the_start() -> None:
    text = (
        CARRY.format(scope="group").replace("unit=2", "unit=2, empty=keep")
        + """
[row]
output = "sum(last(acc), seq())"
"""
    )
    assert value(text, 2, "output", {"dim": 0}).endswith("+neg(1))")


def test_prev_along_a_level_is_a_delay_line() -> None:
    text = """
[levels]
tile = "tiles(4)"
x = "tiles(2)"
[state.row]
hint = "7"
[x]
hint = "prev(hint, tile) + max(v)"
[row]
output = "last(hint)"
"""
    walker = walk(text, 11)
    assert walker.value("hint", {"tile": 0, "x": 1, "dim": 0}) == "(7+max(max(-inf,2),3))"
    assert walker.value("hint", {"tile": 2, "x": 0, "dim": 0}) == (
        "(((7+max(max(-inf,0),1))+max(max(-inf,4),5))+max(max(-inf,8),9))"
    )
    assert walker.value("output", {"dim": 0}) == "(((7+max(max(-inf,2),3))+max(max(-inf,6),7))+max(-inf,10))"


def test_two_states_that_refer_to_each_other_need_no_deep_recursion() -> None:
    text = """
[levels]
tile = "tiles(1)"
[state.row]
a = "0"
b = "1"
[tile]
a = "prev(b) + max(v)"
b = "prev(a) + 1"
[row]
output = "last(a)"
"""
    v = np.ones((2001, 1))
    walker = walk(text, 2001, RowInputs(v=v), ScalarArithmetic())
    assert walker.value("output", {"dim": 0}) == 2002.0
    late = walk(text, 2001, RowInputs(v=v), ScalarArithmetic())
    assert late.value("b", {"tile": 2000, "dim": 0}) == 2001.0


# -- conditions, constants, feeds -------------------------------------------------------------------------


def test_select_evaluates_one_branch() -> None:
    text = """
[token]
s = "sum(q * k, seq())"
a = "s + 1"
b = "select(visible, a, -inf)"
[row]
output = "sum(v, seq())"
"""
    inputs = RowInputs(v=np.zeros((2, 1)), visible=lambda t: t == 1, feed={"s": np.array([3.0, 4.0])})
    walker = walk(text, 2, inputs)
    assert walker.value("b", {"token": 0}) == "neg(inf)"
    assert walker.memo("a")[1] == {}
    assert walker.value("b", {"token": 1}) == "(4+1)"
    assert list(walker.memo("a")[1].values()) == ["(4+1)"]


def test_conditions_that_no_one_decides() -> None:
    text = (
        TILED
        + """
[tile]
bad = "max(v) == 0 or isnan(max(v)) or owns(tile)"
odd = "not (max(v) > 1 and owns(tile))"
"""
        + ('o = "select(odd, 1, max(v))"\n[row]\nseen = "any(odd)"\noutput = "sum(o, seq())"\n')
    )
    walker = walk(text, 3)
    assert walker.value("bad", {"tile": 1, "dim": 0}) is True
    assert walker.value("odd", {"tile": 1, "dim": 0}) == "not(and(max(-inf,2)>1))"
    assert walker.value("o", {"tile": 1, "dim": 0}) == "(not(and(max(-inf,2)>1))?1:max(-inf,2))"
    assert walker.value("seen", {"dim": 0}).startswith("or(not(and(max(max(-inf,0),1)>1)),not(")


def test_constants_are_f64_and_rounded_where_they_enter() -> None:
    text = """
[constants]
wide = "1 / 3"
scaled = "f32(scale * 3)"
bit = "bits(0x3F800000)"
[row]
output = "sum(v * wide, seq()) + scaled * bit"
"""
    inputs = RowInputs(v=np.array([[1.0]]), scalars={"scale": 0.5})
    assert (
        walk(text, 1, inputs).value("output", {"dim": 0}) == "((0+(1*f32<(1/3)>))+(f32<(1/2*3)>*0x3f800000))"
    )
    got = walk(text, 1, inputs, ScalarArithmetic()).value("output", {"dim": 0})
    assert got == float(np.float32(np.float32(1 / 3) + np.float32(1.5)))


def test_decimals_round_in_the_format_of_their_section() -> None:
    text = '[constants]\nc = "0.1"\n[row]\nd = "0.1"\noutput = "sum(v * d, seq())"\n'
    walker = walk(text, 1, RowInputs(v=np.array([[1.0]])), ScalarArithmetic())
    assert walker.value("c") == 0.1
    assert walker.value("d") == float(np.float32(0.1))


def test_a_site_can_be_fed_at_every_kind_of_axis() -> None:
    text = """
[levels]
tile = "tiles(2, desc)"
[token]
s = "sum(q * k, seq())"
[tile]
top = "max(s)"
o = "sum(s * v, seq())"
[row]
output = "sum(o - top, seq())"
"""
    v = np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    feed = {"s": np.array([10.0, 20.0, 30.0]), "top": np.array([100.0, 200.0])}
    walker = walk(text, 3, RowInputs(v=v, feed=feed))
    # Tile 0 is the last one: token 2. A feed by token counts tokens, one by level counts pieces as visited.
    assert walker.value("o", {"tile": 0, "dim": 1}) == "(0+(30*6))"
    assert walker.value("top", {"tile": 0}) == "100"
    assert walker.value("output", {"dim": 0}) == "((0+((0+(30*5))-100))+(((0+(10*1))+(20*3))-200))"
