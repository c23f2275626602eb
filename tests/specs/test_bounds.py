"""Integers without a meaning where they stand are refused when a spec is bound."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specs import parse_spec
from specs.bind import bind
from specs.context import make_context
from specs.errors import SpecError
from specs.program import Program

TEXT = """schema = 1
name = "test.bounds"
status = "read"
summary = "a test"
[numbers]
compute = "f32"
inputs = { q = "bf16", k = "bf16", v = "bf16" }
[let]
T = "kv_len // 2"
[levels]
block = "tiles(64)"
lane = "view(SIZE, INDEX)"
[token]
score = "dot(q, k, TREE)"
[block]
part = "LINE"
[row]
output = "sum(part, seq())"
"""


def bound(
    tree: str = "seq()",
    line: str = "sum(v, seq())",
    size: str = "4",
    index: str = "pos(token) % 4",
    n: int = 8,
) -> Program:
    text = TEXT.replace("TREE", tree).replace("LINE", line).replace("SIZE", size).replace("INDEX", index)
    return bind(
        parse_spec(text, "my.toml"), make_context({"sm_count": 4, "compute_capability": 90, "kv_len": n})
    )


def tree(kind: str, size: str) -> str:
    inner = {
        "lanes": ", seq(fma), butterfly()",
        "chunks": ", seq(fma), seq()",
        "whole": ", seq(fma), seq(fma)",
    }
    return f"{kind}({size}{inner.get(kind, '')})"


@pytest.mark.parametrize("kind", ["lanes", "chunks", "whole", "butterfly", "mma"])
@pytest.mark.parametrize(
    ("size", "shown"),
    [
        ("0 - 5", "-5"),
        ("-5", "-5"),
        ("0", "0"),
        ("65537", "65537"),
        ("9" * 20, "9" * 20),
        ("query_index", "an expression that is no integer of the shape"),
        ("T - 4", "0"),
    ],
)
def test_sizes_of_trees_are_from_1_to_65536(kind: str, size: str, shown: str) -> None:
    with pytest.raises(
        SpecError, match=rf"my\.toml:14:20: {kind}\(\) with {shown}; a whole number from 1 to 65536"
    ):
        bound(tree(kind, size))


@given(st.sampled_from(["lanes", "chunks", "whole", "mma"]), st.integers(1, 65536))
def test_every_size_from_1_to_65536_is_taken(kind: str, size: int) -> None:
    assert bound(tree(kind, str(size))).sites["score"]


def test_a_size_may_be_an_integer_of_the_shape() -> None:
    assert bound(tree("lanes", "T")).sites["score"] == bound(tree("lanes", "4")).sites["score"]


@given(st.lists(st.integers(1, 300), min_size=1, max_size=8))
def test_strides_of_a_butterfly_are_powers_of_two_and_none_repeats(strides: list[int]) -> None:
    text = f"butterfly({', '.join(map(str, strides))})"
    if all(s in {1, 2, 4, 8, 16, 32, 64, 128, 256} for s in strides) and len({*strides}) == len(strides):
        assert bound(text).sites["score"]
    else:
        with pytest.raises(SpecError, match=r"my\.toml:14:20: butterfly\(\) with the stride \d+"):
            bound(text)


@pytest.mark.parametrize("op", ["//", "%"])
def test_divisors_are_known_and_not_zero(op: str) -> None:
    zero = "(pos(token) - pos(token))"
    with pytest.raises(SpecError, match=rf"my\.toml:12:\d+: the divisor of {op} is not known"):
        bound(index=f"pos(token) {op} {zero}")
    with pytest.raises(SpecError, match=rf"my\.toml:16:\d+: the divisor of {op} is not known"):
        bound(line=f"sum(v * f32(key_index {op} {zero}), seq())")
    with pytest.raises(SpecError, match=rf"my\.toml:16:\d+: division by zero in {op}"):
        bound(line=f"sum(v * f32(key_index {op} (T - 4)), seq())")
    assert bound(line=f"sum(v * f32(key_index {op} T), seq())").sites["part"]


def test_a_view_has_a_colour() -> None:
    with pytest.raises(SpecError, match=r"my\.toml:12:\d+: view 'lane' has 0 colours; at least 1 is needed"):
        bound(size="T - 4")
    with pytest.raises(SpecError, match="view 'lane' has -1 colours"):
        bound(size="T - 5")


def test_over_row_joins_rows_and_leaves_no_axis_of_its_section() -> None:
    with pytest.raises(
        SpecError, match=r"my\.toml:16:\d+: over=row leaves the axes .*'token'.* inside \[block\]"
    ):
        bound(line="v * sum(score, seq(), over=row)")
