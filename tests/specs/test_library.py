"""What ships: specs that load and type, platforms and models with the published figures, the workload."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import specs
from specs import (
    SpecError,
    UnsupportedError,
    load_model,
    load_platform,
    load_spec,
    load_workload,
    resolve_requested,
)
from specs.bind import bind
from specs.context import make_context
from specs.discover import every
from specs.requested import load_requested
from specs.schema import spec_json_schema

NAMES = [f.name for f in every() if f.kind == "library"]
WALKTHROUGHS = ["dense", "flash_attention_2", "tiled", "triton", "trtllm_gen", "xqa"]
KERNELS = [
    "flash_attn2.prefill",
    "flash_attn2.splitkv_decode",
    "flash_attn3.decode",
    "flashinfer.fa2_decode",
    "torch_cpu.sdpa_flash",
    "trtllm_gen.reduction",
    "vllm_triton.decode_2d",
    "vllm_triton.decode_3d",
    "vllm_triton.interpreter",
    "vllm_triton.interpreter_2d",
    "xqa.decode",
    "xqa.decode_fp8_sm90",
]


def test_the_library_is_complete() -> None:
    assert sorted([*KERNELS, *(f"walkthrough.{n}" for n in WALKTHROUGHS)]) == NAMES


@pytest.mark.parametrize("platform", [f.name for f in every("platform")])
@pytest.mark.parametrize("name", NAMES)
def test_every_spec_loads_and_types_on_every_platform(name: str, platform: str) -> None:
    gpu = load_platform(platform)
    for kv_len, q_len in ((1, 1), (4_097, 1), (300, 3)):
        shape = {"kv_len": kv_len, "q_len": q_len, "q_heads": 16, "kv_heads": 4, "head_dim": 128}
        context = make_context({**shape, **gpu.context})
        spec = load_spec(name)
        try:
            program = bind(spec, context)
        except UnsupportedError:  # the kernel says that it does not run here
            assert spec.file.requires
            continue
        assert program.sites["output"].type.kind == "float"


@pytest.mark.parametrize("name", NAMES)
def test_no_claim_above_the_evidence(name: str) -> None:
    file = load_spec(name).file
    assert file.status != "hardware", "a capture must be named first"
    assert (file.status == "walkthrough") == name.startswith("walkthrough.")
    assert file.status == "walkthrough" or file.sources


@pytest.mark.parametrize("name", [f"walkthrough.{n}" for n in WALKTHROUGHS])
def test_walkthroughs_share_their_words(name: str) -> None:
    """A difference line by line explains something only where the same thing has the same name."""
    sections = load_spec(name).sections
    assert sections["token"] == {"score": "select(visible, sum(q * k, seq()) * scale, -inf)"}
    assert {"output", "lse"} <= sections["row"].keys()
    assert "weight" in {site for section in sections.values() for site in section}


def test_published_figures_of_the_platforms() -> None:
    table = {
        #             SMs  capability  GB/s
        "h200": (132, 90, 4800),
        "b200": (148, 100, 8000),
        "sm120": (188, 120, 1792),
        "h100": (132, 90, 3350),
        "h100_pcie": (114, 90, 2000),
        "a100": (108, 80, 2039),
        "l40s": (142, 89, 864),
        "rtx4090": (128, 89, 1008),
        "rtx5090": (170, 120, 1792),
        "t4": (40, 75, 320),
        "v100": (80, 70, 900),
    }
    for name, (sms, capability, bandwidth) in table.items():
        platform = load_platform(name)
        assert (platform.sm_count, platform.compute_capability, platform.memory_bandwidth_gb_s) == (
            sms,
            capability,
            bandwidth,
        )
        assert all(r.where for r in platform.source)
        if capability < 80:
            continue  # no bf16
        dot = next(d for d in platform.dot_products if d.instruction == "mma" and "bf16" in d.inputs)
        # arXiv:2511.10909: Ampere and Ada fuse 8 products with 24 fraction bits, later ones 16 with 25
        assert (dot.fused_length, dot.fraction_bits) == ((8, 24) if capability < 90 else (16, 25))
        assert dot.exponent_floor == -(dot.fraction_bits + 108)
        assert dot.rounding == "rz"


@pytest.mark.parametrize(
    ("line", "where", "what"),
    [
        ("sm_count = 0", "5:1", "greater than or equal to 1"),
        ("sm_count = -4", "5:1", "greater than or equal to 1"),
        ('sm_count = "132"', "5:13", "valid integer"),
        ("sm_count = 132.5", "5:1", "valid integer"),
        ("sm_count = 99999999", "5:1", "less than or equal to"),
        ("sm_cuont = 132", "5:1", "unknown key 'sm_cuont'"),
    ],
)
def test_a_wrong_platform_is_refused(tmp_path: Path, line: str, where: str, what: str) -> None:
    text = (Path(specs.__file__).parent / "platforms" / "h200.toml").read_text()
    path = tmp_path / "mine.toml"
    path.write_text(re.sub(r"sm_count +=.*", line, text))
    with pytest.raises(SpecError) as caught:
        load_platform(path)
    assert str(caught.value).startswith(f"{path}:{where}: ")
    assert what in str(caught.value)


def test_a_platform_with_a_dotted_capability_is_told_the_two_digits(tmp_path: Path) -> None:
    text = (Path(specs.__file__).parent / "platforms" / "h200.toml").read_text()
    path = tmp_path / "mine.toml"
    path.write_text(re.sub(r"compute_capability +=.*", "compute_capability = 9", text))
    with pytest.raises(SpecError, match=r"90 for 9\.0"):
        load_platform(path)


def test_an_unknown_platform_suggests_one() -> None:
    with pytest.raises(SpecError, match=r"unknown platform 'h20O'\n  did you mean 'h200'\?"):
        load_platform("h20O")


def test_requested_backends() -> None:
    """FlashInfer is XQA on h200 and sm120 and TRT-LLM-gen on b200; the others run everywhere."""
    h200, b200, sm120 = (load_platform(n) for n in ("h200", "b200", "sm120"))
    assert resolve_requested("flashinfer", h200) == "walkthrough.xqa"
    assert resolve_requested("flashinfer", sm120) == "walkthrough.xqa"
    assert resolve_requested("flashinfer", b200) == "walkthrough.trtllm_gen"
    for found in every("platform"):
        platform = load_platform(found.name)
        for name in ("triton", "flash_attention_2", "dense", "tiled"):
            assert resolve_requested(name, platform) == f"walkthrough.{name}"
    with pytest.raises(UnsupportedError, match="FlashInfer on a100"):
        resolve_requested("flashinfer", load_platform("a100"))
    with pytest.raises(SpecError, match="did you mean 'flashinfer'"):
        resolve_requested("flash_infer", h200)
    for asked in load_requested().values():
        for spec in (asked.any, *asked.by_capability.values()):
            assert spec is None or spec in NAMES


def test_models() -> None:
    qwen = load_model("qwen")
    assert (qwen.q_heads, qwen.kv_heads, qwen.head_dim, qwen.scale) == (24, 4, 256, 2.0**-4)
    small = load_model("smollm2_135m")
    assert (small.q_heads, small.kv_heads, small.head_dim, small.scale) == (9, 3, 64, 2.0**-3)


def test_a_model_with_uneven_groups_is_refused(tmp_path: Path) -> None:
    text = (Path(specs.__file__).parent / "models" / "qwen.toml").read_text().replace("= 24", "= 25")
    (tmp_path / "m.toml").write_text(text)
    with pytest.raises(SpecError, match=r"m\.toml: .*q_heads = 25 is not a multiple of kv_heads = 4"):
        load_model(tmp_path / "m.toml")


WORKLOAD = """
SP01 M001 6335 108, M002 13319 118, M003 13765 185
SP03 M010 19873 331, M027 29634 389, M046 67144 505, M054 79488 627, M073 94146 225, M097 122863 698
SP04 M018 19548 145, M026 31058 376, M031 39292 202, M046 52085 130, M081 76659 342, M106 94962 340
SP06 M008 18829 389, M010 27525 936, M018 42192 347, M019 42769 270, M023 48626 1570
SP06 M042 73149 330, M050 83233 497
"""


def test_the_workload() -> None:
    workload = load_workload("agent_session")
    want: list[tuple[str, str, int, int]] = []
    for line in WORKLOAD.strip().splitlines():
        conversation, rest = line.split(" ", 1)
        for item in rest.split(", "):
            message, depth, tokens = item.split()
            want.append((conversation, message, int(depth), int(tokens)))
    assert [(r.conversation, r.message, r.depth, r.tokens) for r in workload.ranges] == want
    assert len(workload.ranges) == 22
    assert workload.tokens == 9_060
    assert {r.message: r.content for r in workload.ranges if r.conversation == "SP06"}[
        "M023"
    ] == "prose + a complete migration script"


def test_the_published_json_schema_is_fresh() -> None:
    path = Path(specs.__file__).parent / "spec.schema.json"
    assert json.loads(path.read_text()) == spec_json_schema(), (
        "run  ulpscope spec schema > specs/spec.schema.json"
    )


def test_the_json_schema_describes_the_file_as_it_stands() -> None:
    schema = spec_json_schema()
    assert schema["required"] == ["schema", "name", "status", "summary"]
    assert "sections" not in schema["properties"]
    assert {"token", "row", "levels", "variant", "source"} <= schema["properties"].keys()
    assert schema["additionalProperties"]["type"] == "object"
    assert schema["$defs"]["Variant"]["required"] == ["when"]
