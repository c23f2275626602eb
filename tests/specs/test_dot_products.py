"""Dot products as data: what each platform lists, what is found, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

import specs
from specs import load_platform
from specs.discover import every
from specs.dot_products import DotProduct, find
from specs.errors import SpecError, UnsupportedError
from specs.formats import BASES
from specs.grammar import parse_expr
from specs.nodes import Num, Reduce

PLATFORMS = [f.name for f in every("platform")]
F8, TWO_BYTES = ("e4m3fn", "e5m2"), ("bf16", "f16")

# (L, F, floor, rounding): MMA-Sim 2.1.1, mmasim/nv_ptx/sim.py, by architecture.
TABLE: dict[str, dict[tuple[str, str, str], tuple[int, int, int, str]]] = {
    "v100": {("mma", "f16", "f32"): (4, 23, -131, "rz"), ("mma", "f16", "f16"): (4, 23, -19, "rne")},
    "t4": {("mma", "f16", "f32"): (8, 24, -132, "rz"), ("mma", "f16", "f16"): (8, 24, -20, "rne")},
    "a100": {
        ("mma", "bf16", "f32"): (8, 24, -132, "rz"),
        ("mma", "f16", "f32"): (8, 24, -132, "rz"),
        ("mma", "f16", "f16"): (8, 24, -20, "rne"),
        ("mma", "tf32", "f32"): (4, 24, -132, "rz"),
    },
}
TABLE["l40s"] = TABLE["rtx4090"] = TABLE["a100"] | {
    ("mma", x, out): (16, 13, floor, rounding)
    for x in F8
    for out, floor, rounding in (("f32", -132, "rz13"), ("f16", -20, "rne"))
}
_LATER = {
    ("mma", "bf16", "f32"): (16, 25, -133, "rz"),
    ("mma", "f16", "f32"): (16, 25, -133, "rz"),
    ("mma", "f16", "f16"): (16, 25, -21, "rne"),
    ("mma", "tf32", "f32"): (8, 25, -133, "rz"),
}
_COMPILED = {("mma", x, "f32"): (16, 25, -133, "rz") for x in F8}
_WARPGROUP = {("wgmma", *key[1:]): numbers for key, numbers in _LATER.items()} | {
    ("wgmma", x, out): (32, 13, floor, rounding)
    for x in F8
    for out, floor, rounding in (("f32", -133, "rz13"), ("f16", -21, "rne"))
}
_FIFTH = {("tcgen05", *key[1:]): numbers for key, numbers in _LATER.items()} | {
    ("tcgen05", x, out): (32, 25, floor, rounding)
    for x in F8
    for out, floor, rounding in (("f32", -133, "rz"), ("f16", -21, "rne"))
}
_NATIVE = {
    ("mma", x, out): (32, 25, floor, rounding)
    for x in F8
    for out, floor, rounding in (("f32", -133, "rz"), ("f16", -21, "rne"))
}
TABLE["h100"] = TABLE["h100_pcie"] = TABLE["h200"] = _LATER | _COMPILED | _WARPGROUP
TABLE["b200"] = _LATER | _COMPILED | _FIFTH
TABLE["sm120"] = TABLE["rtx5090"] = _LATER | _NATIVE


@pytest.mark.parametrize("platform", PLATFORMS)
def test_every_entry_is_that_of_the_table_and_nothing_else_is_there(platform: str) -> None:
    listed = {
        (d.instruction, name, d.output): (d.fused_length, d.fraction_bits, d.exponent_floor, d.rounding)
        for d in reversed(load_platform(platform).dot_products)
        for name in d.inputs
    }
    assert listed == TABLE.get(platform, {})  # a CPU has none


@pytest.mark.parametrize("platform", PLATFORMS)
def test_lengths_are_those_of_the_ptx_instructions(platform: str) -> None:
    for dot in load_platform(platform).dot_products:
        width = {"tf32": 4, "e4m3fn": 1, "e5m2": 1}.get(dot.inputs[0], 2)
        if platform == "v100":
            assert dot.lengths == (4,)
        elif platform == "t4":
            assert dot.lengths == ((4,) if dot.fraction_bits == 23 else (8,))
        else:
            assert dot.lengths == ((16 // width, 32 // width) if dot.instruction == "mma" else (32 // width,))


def test_only_the_compiled_fp8_instruction_is_late() -> None:
    late = {
        (platform, d.instruction, d.inputs, d.output, d.split, d.converted, d.evidence)
        for platform in PLATFORMS
        for d in load_platform(platform).dot_products
        if d.addition == "late" or d.split == "pairs" or d.converted
    }
    assert late == {
        (p, "mma", F8, "f32", "pairs", "f16", "replayed" if p == "b200" else "derived")
        for p in ("h100", "h100_pcie", "h200", "b200")
    }


@pytest.mark.parametrize("platform", PLATFORMS)
def test_evidence_has_a_source(platform: str) -> None:
    loaded = load_platform(platform)
    told = " ".join(r.where for r in loaded.source if r.what.startswith("dot product"))
    assert ("recorded words" in told) == bool(loaded.dot_products)
    if any(d.evidence == "paper" for d in loaded.dot_products):
        assert "arXiv:2511.10909" in told
    assert {d.evidence for d in loaded.dot_products} <= {"replayed", "derived", "paper"}
    if platform in ("t4", "sm120", "rtx5090"):
        assert {d.evidence for d in loaded.dot_products} == {"paper"}


@pytest.mark.parametrize(
    ("platform", "instruction", "a", "b", "output", "k", "said"),
    [
        ("v100", "mma", "bf16", "bf16", "f32", None, "no dot product mma of bf16 and bf16 to f32"),
        ("t4", "mma", "tf32", "tf32", "f32", None, "no dot product mma of tf32"),
        (
            "t4",
            "mma",
            "f16",
            "f16",
            "f32",
            16,
            "no dot product mma of f16 and f16 to f32 in instructions of 16 terms",
        ),
        ("a100", "mma", "e4m3fn", "e4m3fn", "f32", None, "no dot product mma of e4m3fn"),
        (
            "a100",
            "wgmma",
            "bf16",
            "bf16",
            "f32",
            16,
            "no dot product wgmma of bf16 and bf16 to f32 in instructions of 16",
        ),
        ("h200", "tcgen05", "bf16", "bf16", "f32", None, "no dot product tcgen05"),
        ("b200", "wgmma", "bf16", "bf16", "f32", None, "no dot product wgmma"),
        ("h200", "mma", "bf16", "bf16", "f16", None, "no dot product mma of bf16 and bf16 to f16"),
        ("h200", "mma", "bf16", "f16", "f32", None, "no dot product mma of bf16 and f16"),
        ("h200", "mma", "e4m3fn", "e5m2", "f32", None, "no dot product mma of e4m3fn and e5m2"),
        ("h200", "mma", "f32", "f32", "f32", None, "no dot product mma of f32"),
        (
            "h200",
            "wgmma",
            "bf16",
            "bf16",
            "f32",
            8,
            "no dot product wgmma of bf16 and bf16 to f32 in instructions of 8",
        ),
        (
            "b200",
            "mma",
            "e5m2",
            "e5m2",
            "f16",
            32,
            "no dot product mma of e5m2 and e5m2 to f16 in instructions of 32",
        ),
    ],
)
def test_what_a_platform_does_not_have_is_refused(
    platform: str, instruction: str, a: str, b: str, output: str, k: int | None, said: str
) -> None:
    dots = load_platform(platform).dot_products
    with pytest.raises(UnsupportedError, match=said) as caught:
        find(dots, instruction, BASES[a], BASES[b], BASES[output], k, place="spec.toml:7:3")
    assert str(caught.value).startswith("spec.toml:7:3: ")
    assert f"described: {dots[0].instruction}(" in str(caught.value)


def test_the_length_chooses_between_entries() -> None:
    t4, f16, f32 = load_platform("t4").dot_products, BASES["f16"], BASES["f32"]
    assert find(t4, "mma", f16, f16, f32, 8).fraction_bits == 24
    assert find(t4, "mma", f16, f16, f32, 4).fraction_bits == 23  # as on Volta
    assert find(t4, "mma", f16, f16, f32) is t4[0]
    with pytest.raises(UnsupportedError, match="described: none"):
        find((), "mma", f16, f16, f32)


def test_blocks_of_an_instruction() -> None:
    b200 = load_platform("b200").dot_products
    e4m3, f32, bf16 = BASES["e4m3fn"], BASES["f32"], BASES["bf16"]
    pairs = find(b200, "mma", e4m3, e4m3, f32, 32).blocks(32)
    assert [len(x) for x in pairs] == [16, 16]
    assert pairs[0][:6] == (0, 1, 4, 5, 8, 9)
    assert pairs[1][:6] == (2, 3, 6, 7, 10, 11)
    assert find(b200, "mma", e4m3, e4m3, f32, 16).blocks(16) == (
        (0, 1, 4, 5, 8, 9, 12, 13),
        (2, 3, 6, 7, 10, 11, 14, 15),
    )
    assert find(b200, "mma", bf16, bf16, f32, 16).blocks(16) == (tuple(range(16)),)
    ampere = load_platform("a100").dot_products[0]
    assert ampere.blocks(16) == (tuple(range(8)), tuple(range(8, 16)))
    assert ampere.blocks(4) == ((0, 1, 2, 3),)


PLAIN = {
    "instruction": "mma",
    "inputs": ["bf16"],
    "output": "f32",
    "fused_length": 16,
    "fraction_bits": 25,
    "exponent_floor": -133,
    "rounding": "rz",
    "evidence": "paper",
}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"rounding": "rne"}, "rounding rne to f32 is no known arithmetic"),
        ({"output": "f16"}, "rounding rz to f16 is no known arithmetic"),
        ({"split": "pairs", "lengths": [16, 18]}, "pairs need lengths that are multiples of 4"),
        ({"converted": "f16"}, "not every input converts exactly to f16"),
        ({"lengths": [16, 8]}, "lengths are not ascending"),
        ({"lengths": [8, 8]}, "lengths are not ascending"),
        ({"fused_length": 0}, "greater than or equal to 1"),
        ({"inputs": ["f32"]}, "Input should be"),
        ({"instruction": "hmma"}, "Input should be"),
        ({"sticky": True}, "Extra inputs"),
    ],
)
def test_a_wrong_entry_is_refused(change: dict[str, object], said: str) -> None:
    assert DotProduct.model_validate(PLAIN).addition == "early"
    with pytest.raises(ValidationError, match=said):
        DotProduct.model_validate(PLAIN | change)


def test_a_wrong_entry_of_a_file_is_refused_with_its_line(tmp_path: Path) -> None:
    text = (Path(specs.__file__).parent / "platforms" / "h200.toml").read_text()
    path = tmp_path / "mine.toml"
    path.write_text(text.replace('rounding       = "rne"', 'rounding       = "rz"', 1))
    with pytest.raises(SpecError, match=r"mine\.toml:\d+:.*rounding rz to f16 is no known arithmetic"):
        load_platform(path)


# -- the language -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "flags", "k"),
    [("mma(16)", (), "16"), ("mma(16, wgmma)", ("wgmma",), "16"), ("mma(32, tcgen05)", ("tcgen05",), "32")],
)
def test_a_tree_names_its_instruction(text: str, flags: tuple[str, ...], k: str) -> None:
    node = parse_expr(f"f16.dot(a, b, {text}, start=c)")
    assert isinstance(node, Reduce)
    assert node.tree is not None
    assert (node.tree.kind, node.tree.flags) == ("mma", flags)
    assert node.tree.ints == (Num(k),)
    assert node.format is not None
    assert node.format.base == "f16"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("dot(a, b, mma(16, wgmma, tcgen05))", "an mma tree is one instruction"),
        ("dot(a, b, mma(16, wgmma, wgmma))", "'wgmma' twice"),
        ("dot(a, b, mma(16, hgmma))", r"mma\(\) takes 1 integer"),
        ("dot(a, b, mma(wgmma))", r"mma\(\) takes 1 integer"),
        ("dot(a, b, seq(wgmma))", r"seq\(\) takes 0 integer"),
    ],
)
def test_wrong_instructions_are_refused(text: str, said: str) -> None:
    with pytest.raises(SpecError, match=said):
        parse_expr(text)
