"""Instructions by line. Expected ones were read by hand from the listings of the example, operand by operand."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path

import pytest

from specs.errors import InputError
from tests.verify.lower.test_compile import ARCHS, EXAMPLE, compiled_by, interpreters
from tests.verify.lower.test_trees import changed, kept, kernel, reading
from verify.lower.behind import Behind, behind
from verify.lower.converge import converge
from verify.lower.read import Reading, read
from verify.lower.sites import SiteInstructions
from verify.lower.view import lowering_json

#: What `ulpscope lower attention --arch sm_90,sm_100 --format json` prints with Triton 3.8.0.
RECORDED = Path(__file__).parent / "attention_3.8.0.json"


def site(found: Reading, name: str) -> SiteInstructions:
    (one,) = (s for s in found.sites if s.site == name)
    return one


def listed(found: Reading, name: str) -> list[tuple[str, str, int]]:
    """(part, opcode, how many) of one line."""
    return [(i.part, i.opcode, len(i.lines)) for i in site(found, name).instructions]


def test_lines_of_a_tile() -> None:
    """attend, sm_90: four HMMA for 64 elements; two rows of two columns a thread; two warps share the keys."""
    found = reading("3.8.0", "attend", "sm_90")
    assert listed(found, "product") == [("tensor cores", "HMMA.16816.F32.BF16", 4), ("scale", "FMUL", 4)]
    assert listed(found, "score") == [("mask", "FSEL", 4)]
    assert listed(found, "m") == [
        ("in a thread", "FMNMX", 2),
        ("across lanes", "SHFL.BFLY", 4),
        ("across lanes", "FMNMX", 4),
        ("across warps", "LDS.64", 1),
        ("across warps", "SHFL.BFLY", 2),
        ("across warps", "FMNMX", 2),
        ("into the running value", "FMNMX", 2),
    ]
    assert listed(found, "weight") == [
        ("argument", "FADD", 4),
        ("argument", "FMUL", 4),
        ("guard for small results", "FMUL", 8),  # times 0.5 before, squared after
        ("exponential", "MUFU.EX2", 4),
    ]
    assert listed(found, "alpha")[-1] == ("exponential", "MUFU.EX2", 2)
    assert listed(found, "l") == [
        ("in a thread", "FADD", 2),
        ("across lanes", "SHFL.BFLY", 4),
        ("across lanes", "FADD", 4),
        ("across warps", "LDS.64", 1),
        ("across warps", "SHFL.BFLY", 2),
        ("across warps", "FADD", 2),
        ("into the running value", "FFMA", 2),
    ]
    assert listed(found, "acc") == [
        ("conversion of weights", "F2FP.BF16.F32.PACK_AB", 2),
        ("rescaling", "FMUL", 8),
        ("tensor cores", "HMMA.16816.F32.BF16", 2),
    ]


def test_lines_of_a_merge() -> None:
    found = reading("3.8.0", "merge", "sm_90")
    assert listed(found, "most") == [("across lanes", "SHFL.BFLY", 4), ("across lanes", "FMNMX", 4)]
    assert listed(found, "d") == [
        ("partner's product", "FMUL", 1),
        ("partner's product", "SHFL.BFLY", 1),
        ("own product, fused", "FFMA", 1),
    ]
    assert listed(found, "den") == [("across lanes", "SHFL.BFLY", 3), ("across lanes", "FADD", 3)]
    assert listed(found, "num")[:3] == [
        ("products", "FMUL", 8),
        ("in a thread", "FFMA", 8),
        ("in a thread", "FADD", 4),
    ]
    assert ("reciprocal", "MUFU.RCP", 1) in listed(found, "exact")
    assert ("product", "FMUL", 4) in listed(found, "exact")
    assert listed(found, "output") == [("conversion", "F2FP.BF16.F32.PACK_AB", 2)]
    assert "total" not in {s.site for s in found.sites}  # each lane takes its own denominator: no instruction


def test_blackwell_rounds_the_products_and_adds_two_at_a_time() -> None:
    found = reading("3.8.0", "merge", "sm_100")
    assert listed(found, "num")[:2] == [("products", "FMUL", 16), ("in a thread", "FADD2", 6)]
    assert ("argument", "FADD2", 2) in listed(found, "w")


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("name", ["attend", "merge"])
@pytest.mark.parametrize("version", ["3.7.1", "3.8.0"])
def test_every_line_of_the_listing_is_the_one_that_is_named(version: str, name: str, arch: str) -> None:
    """Each number is that of a line with this opcode; no tensor-core or MUFU instruction is left without a line."""
    listing = kernel(version, name).stages[arch].sass.splitlines()
    found = reading(version, name, arch)
    seen: dict[int, str] = {}
    for one in found.sites:
        assert not one.undecided
        for instruction in one.instructions:
            for number in instruction.lines:
                assert re.search(rf"\s{re.escape(instruction.opcode)}\s", listing[number - 1])
                assert seen.setdefault(number, one.site) == one.site  # of one line only
    for number, text in enumerate(listing, 1):
        if re.search(r"\s(HMMA|MUFU|F2FP)\.", text):
            assert number in seen, text


def test_ptx_names_them_too() -> None:
    whole = kernel("3.8.0", "merge")
    bare = whole.stages["sm_90"].model_copy(update={"sass": ""})
    found = read(whole.model_copy(update={"stages": {"sm_90": bare}}), "sm_90")
    assert found.source == "PTX"
    assert ("own product, fused", "fma.rn.f32", 1) in listed(found, "d")
    assert ("quotient", "div.full.f32", 4) in listed(found, "exact")


def test_what_cannot_be_told_apart_is_a_candidate() -> None:
    """Another mask in the shuffles of the sum: no reduction fits its layout, and no instruction is named for the line."""
    listing = kernel("3.7.1", "merge").stages["sm_90"].sass
    found = changed("3.7.1", "merge", "sm_90", listing, listing.replace(", 0x8, 0x1f", ", R9, 0x1f"))
    total = site(found, "total")
    assert total.undecided == "no reduction of the instructions fits its layout"
    assert total.instructions == ()


def recorded(arch: str) -> Behind:
    return behind(str(RECORDED), arch)


def test_the_recorded_answer_is_of_the_example_and_says_what_the_kept_one_does() -> None:
    told = json.loads(RECORDED.read_text())
    assert told["sha256"] == hashlib.sha256(EXAMPLE.read_bytes()).hexdigest()
    assert (told["triton"], told["ptxas"]["sm_90"]) == ("3.8.0", "12.9.86")
    for arch in ("sm_90", "sm_100"):
        assert recorded(arch) == behind("attention@3.8.0", arch) == behind(f"attention@3.8.0:{arch}", "sm_75")
    assert recorded("sm_90").lines["num"] == "dot(w, last(acc), lanes(4, pairwise(fma), butterfly()))"
    assert recorded("sm_100").lines["num"] == "sum(w * last(acc), lanes(4, pairwise(), butterfly()))"


@pytest.mark.slow
@pytest.mark.parametrize("python", interpreters() or [""])
def test_the_recorded_answer_is_made_again(python: str, tmp_path: Path) -> None:
    """By Triton 3.8.0; with another version at hand its lowering is compared with the kept one, see test_compile."""
    if not python:
        pytest.skip("ULPSCOPE_TRITON names no interpreter")
    found = compiled_by(python, EXAMPLE, "example_wanted", tmp_path / "a.lower.gz")
    if found.triton != "3.8.0":
        pytest.skip(f"Triton {found.triton}")
    archs = ("sm_90", "sm_100")
    small = tuple(k.model_copy(update={"stages": {a: k.stages[a] for a in archs}}) for k in found.kernels)
    tools = {a: found.tools[a] for a in found.tools}
    found = found.model_copy(update={"kernels": small, "tools": tools})
    made = lowering_json(found, [converge(k) for k in small], [read(k, a) for k in small for a in archs])
    assert json.loads(json.dumps(made)) == json.loads(RECORDED.read_text())


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("attention@3.8.1", "did you mean 'attention@3.8.0'?"),
        ("missing.json", "cannot be read: No such file"),
        ("attention@3.8.0:sm_80", "it has sm_90, sm_100, sm_120"),
    ],
)
def test_refusals(name: str, part: str) -> None:
    with pytest.raises(InputError) as error:
        behind(name, "sm_90")
    assert part in str(error.value)


def test_other_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    for text in ("", "[]", '{"schema": 2}', json.dumps({**json.loads(RECORDED.read_text()), "lines": 3})):
        path.write_text(text)
        with pytest.raises(InputError, match=r"ulpscope lower KERNEL\.py --format json"):
            behind(str(path), "sm_90")


def test_a_kept_file_is_read(tmp_path: Path) -> None:
    from verify.lower.stages import write

    path = tmp_path / "mine.lower.gz"
    write(kept("3.7.1"), path)
    assert behind(str(path), "sm_120") == behind("attention@3.7.1", "sm_120")
