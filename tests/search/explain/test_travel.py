"""Where bits part, and which values meet."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from search.explain.explain import evaluate, flat_pair, start
from search.explain.travel import OTHER, Travel, travel
from specs import load_spec, parse_spec
from specs.loader import Spec
from tests.search.explain.tiny import h200, mean, of_values
from verify.case import Case, random_case


def way(a: Spec, b: Spec, case: Case) -> Travel:
    runs = start(case, (a, h200()), (b, h200()), backend="oracle")
    evaluate(runs)
    return travel(*runs, flat_pair(runs))


def station(found: Travel, name: str) -> Any:
    return next(s for s in found.stations if s.name == name)


def test_the_first_site_is_the_line_that_was_changed() -> None:
    """1.0 + 1.0078125 halved is 1.00390625, which bf16 rounds to 1.0 (a tie, to even)."""
    found = way(mean("a"), mean("b", partial="bf16(value / norm)"), of_values(1.0, 1.0078125, 1.0, 1.0))
    assert [s.name for s in found.stations] == [
        "score", "top", "weight", "norm", "value", "partial", "most", "w", "total", "exact", "output",
    ]  # fmt: skip
    first = found.first
    assert first is not None
    assert first.name == "partial"
    assert (first.text_a, first.text_b) == ("value / norm", "bf16(value / norm)")
    assert first.differing == 1
    point = first.first
    assert point is not None
    assert dict(point.at) == {"row": 0, "dim": 0}
    assert (point.group_a, point.group_b, point.tokens) == (0, 0, (0, 1))
    assert (point.a, point.bits_a, point.format_a) == ("1.0039062", "0x3f808000", "f32")
    assert (point.b, point.bits_b, point.format_b) == ("1.0", "0x3f80", "bf16")
    assert first.max_abs == 0.00390625
    assert first.max_ulp is None
    exact = station(found, "exact")  # (2 * 1.00390625 + 2) / 4 and (2 + 2) / 4
    assert exact.worst.a == "1.0019531"
    assert exact.worst.b == "1.0"
    assert exact.max_ulp == 0x3F804000 - 0x3F800000
    assert found.same_partition
    assert found.output.differing == 0
    assert found.output.max_ulp == 0


def test_groups_meet_by_the_tokens_they_own() -> None:
    """Five tokens in pieces of 3 and 2, and in tiles of 3: the second tile owns what the second piece owns."""
    found = way(mean("a", level="pieces(2, unit=1)"), mean("b", level="tiles(3)"), of_values(1, 2, 3, 4, 5))
    assert found.same_partition
    assert station(found, "norm").compared == 2
    found = way(
        mean("a", level="pieces(2, unit=1)"), mean("b", level="pieces(5, unit=1)"), of_values(1, 2, 3, 4, 5)
    )
    assert found.groups == (2, 5)
    assert not found.same_partition
    assert found.first_group == (0, (0, 2, 3), (0, 0, 1))
    norm = station(found, "norm")
    assert (norm.compared, norm.only_a, norm.only_b) == (0, 2, 5)
    assert station(found, "weight").compared == 5


def test_dealt_groups_meet_whatever_their_number() -> None:
    """Pieces of the tokens 0-1, 2-3; dealt with units of two tokens to three groups: 0-1, 2-3, and no third."""
    found = way(
        mean("a", level="pieces(2, unit=1)"), mean("b", level="tiles(2, desc)"), of_values(1, 2, 3, 4)
    )
    assert station(found, "norm").compared == 2
    assert station(found, "value").differing == 0
    assert not found.same_partition


def test_values_that_are_other_quantities_are_said_to_be() -> None:
    """Weights relative to the maximum of another group differ in real numbers, too."""
    case = of_values(1, 2, 3, 4, scores=(0.0, 1.0, 2.0, 3.0))
    found = way(mean("a", level="pieces(2, unit=1)"), mean("b", level="pieces(4, unit=1)"), case)
    weight = station(found, "weight")
    assert OTHER in weight.note
    assert weight.other == "it reads top, whose groups own other tokens"
    assert (weight.compared, weight.only_a, weight.only_b, weight.differing) == (0, 4, 4, 0)
    assert (weight.max_ulp, weight.max_abs, weight.worst) == (None, 0.0, None)
    assert weight.first.ulp is None  # a pair of values is shown, and no distance
    assert (weight.first.a, weight.first.b) == ("0.36787945", "1.0")  # e^(0 - 1) of two tokens, e^0 of one
    assert OTHER not in station(found, "score").note
    assert OTHER not in station(found, "exact").note
    assert found.first is not None
    assert found.first.name == "weight"


def test_values_of_groups_that_are_other_quantities_are_said_to_be() -> None:
    """The same groups: a sum as it is, and one that the merge's weight is multiplied with; and a weight of another role."""
    a = mean("a", partial="value", w="exp(top - most)").to_toml().replace("/ total", "/ sum(w * norm, seq())")
    found = way(parse_spec(a), mean("b"), of_values(1, 2, 3, 5, scores=(0.0, 1.0, 2.0, 3.0)))
    assert station(found, "norm").compared == 2
    for name in ("partial", "w"):
        assert station(found, name).compared == 0
    assert station(found, "w").other == "only the second reads norm"
    assert station(found, "partial").other == "only the second reads norm"
    assert station(found, "total").other == "the output of the first does not depend on it"
    assert found.first is not None
    assert found.first.name == "partial"
    assert station(found, "exact").compared == 1


@pytest.mark.slow
def test_the_weights_of_two_merges_are_two_quantities() -> None:
    """XQA's `w` holds a group's sum, FlashAttention-2's is the share of a group; both are called `w`."""
    case = random_case(0, 600, q_heads=2, kv_heads=1, head_dim=64)
    found = way(load_spec("flash_attn2.splitkv_decode"), load_spec("xqa.decode"), case)
    assert station(found, "w").other == "the first reads level, lse, the second s0, best, most"
    assert station(found, "w").compared == 0
    assert (station(found, "partial").other, station(found, "partial").compared) == ("", 6 * 64)


def test_states_meet_where_they_have_seen_the_same_tokens() -> None:
    """An online softmax in tiles of 128 and of 256 tokens: after 256, 512 and 600 tokens both have a state."""
    from tests.search.explain.test_attribution import normal, with_line

    spec = load_spec("walkthrough.trtllm_gen")
    found = way(spec, with_line(spec, "tile", "tiles(256)"), normal(600, dim=1))
    den = station(found, "den")  # 128, 256, 384, 512, 600 against 256, 512, 600
    assert (den.compared, den.only_a, den.only_b) == (3, 2, 0)
    norm = station(found, "norm")  # the last tile: 512-599 on both sides
    assert (norm.compared, norm.only_a, norm.only_b) == (1, 4, 2)


def test_heads_and_columns_are_named() -> None:
    case = random_case(1, 40, q_heads=4, kv_heads=2, head_dim=8)
    found = way(load_spec("walkthrough.flash_attention_2"), load_spec("walkthrough.xqa"), case)
    first = found.first
    assert first is not None
    assert first.name == "weight"
    assert first.first is not None
    assert list(first.first.at) == ["head", "token"]
    assert list(found.output.worst.at if found.output.worst else {}) in (["head", "dim"], [])
    assert found.only_a == ("level",)


def test_nan_is_counted_and_never_a_distance() -> None:
    nan = mean("b", partial="select(pos(group) == 0, nan, value / norm)")
    found = way(mean("a"), nan, of_values(1, 2, 3, 4))
    partial = station(found, "partial")
    assert (partial.differing, partial.special, partial.max_abs) == (1, 1, 0.0)
    assert found.output.special == 1
    assert np.isfinite(found.output.max_abs)


@pytest.mark.slow
def test_a_real_kernel_against_its_walkthrough() -> None:
    case = random_case(0, 300, q_heads=8, kv_heads=2, head_dim=64)
    found = way(load_spec("walkthrough.flash_attention_2"), load_spec("flash_attn2.splitkv_decode"), case)
    assert OTHER in station(found, "score").note  # scaled, and not yet
    assert OTHER not in station(found, "exact").note
    assert found.output.compared == 8 * 64
