"""Sides: what a cell and its settings give, and where the last rounding is."""

import pytest

from search.sides import BEFORE, before_rounding, load_side, with_lines
from specs import load_spec
from specs.errors import InputError, SpecError, UlpscopeError

SHAPE = {"q_heads": 24, "kv_heads": 4, "head_dim": 256}
FA2 = "walkthrough.flash_attention_2"


def test_settings_go_where_they_belong() -> None:
    side = load_side(f"{FA2}@h200", {"split": "tiles(20)", "block": "tiles(64)", "batch": "2"})
    assert side.label == f"{FA2}[split=tiles(20), block=tiles(64), batch=2]@h200"
    plan = side.plan({"kv_len": 64, **SHAPE})
    assert [g.tokens.tolist() for g in plan.groups] == [
        list(range(20)),
        list(range(20, 40)),
        list(range(40, 60)),
        list(range(60, 64)),
    ]
    assert plan.context["batch"] == 2
    assert load_side("walkthrough.tiled@h200", {"rescale_previous_accumulator": "false"}).options == {
        "rescale_previous_accumulator": False
    }


def test_a_line_can_be_dropped() -> None:
    side = load_side(f"{FA2}@h200", {"block": "", "split": "tiles(3)"})
    assert side.plan({"kv_len": 7}).levels == ("split",)


@pytest.mark.parametrize(
    ("cell", "settings", "message"),
    [
        (FA2, {}, "is not SPEC@PLATFORM"),
        (f"{FA2}@", {}, "is not SPEC@PLATFORM"),
        (f"{FA2}x@h200", {}, "did you mean 'walkthrough.flash_attention_2'"),
        (f"{FA2}@h20", {}, "unknown platform"),
        (f"{FA2}@h200", {"spilt": "tiles(20)"}, "did you mean 'split'"),
        (f"{FA2}@h200", {"sm_count": "7"}, "fixed by the platform"),
        (f"{FA2}@h200", {"split": "tiles("}, "with split = 'tiles('"),
        (f"{FA2}@h200", {"weight": "__import__('os')"}, "with weight ="),
    ],
)
def test_mistakes(cell: str, settings: dict[str, str], message: str) -> None:
    with pytest.raises(UlpscopeError) as error:
        load_side(cell, settings)
    assert message in str(error.value)


def test_a_line_that_a_variant_writes_is_not_changed_in_silence() -> None:
    spec = load_spec("flash_attn2.splitkv_decode")
    assert any("output" in table for v in spec.file.variants for table in v.sections.values())
    with pytest.raises(InputError, match="writes 'output', too"):
        with_lines(spec, {"output": "bf16(0)"})
    with pytest.raises(SpecError):
        with_lines(load_spec(FA2), {"output": "bf16(nothing)"})


@pytest.mark.parametrize(
    ("cell", "site", "fmt"),
    [
        (f"{FA2}@h200", "exact", "bf16"),
        ("walkthrough.dense@h200", "output", "f64"),
        ("trtllm_gen.reduction@b200", BEFORE, "bf16"),
    ],
)
def test_what_the_last_rounding_takes_in(cell: str, site: str, fmt: str) -> None:
    program, name, output = before_rounding(load_side(cell).program({"kv_len": 64, **SHAPE, "head_dim": 64}))
    assert (name, str(output)) == (site, fmt)
    assert name in program.sites
