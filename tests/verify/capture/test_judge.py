"""The emulators against captures: exact ones, one flipped bit, other versions, machines and shapes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from specs.errors import InputError
from tests.verify.capture.making import H200, SMALL, edit, flip, predict, write
from verify.capture import judge as module
from verify.capture.format import packaged, read_capture
from verify.capture.hints import hint
from verify.capture.inputs import recipe
from verify.capture.judge import KernelResult, judge

BEGIN, RUNS = module.begin, dict[Any, Any]()
LONG = recipe("random", 66, q_heads=2, kv_heads=1, head_dim=256)


@pytest.fixture(autouse=True)
def _once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same prediction is computed once for all tests of this module."""

    def begin(case: Any, record: Any, spec: Any, platform: Any) -> Any:
        key = (
            json.dumps(case.hashes()),
            record.model_dump_json(exclude={"arrays"}),
            spec.name,
            platform.name,
        )
        if key not in RUNS:
            RUNS[key] = BEGIN(case, record, spec, platform)
        return RUNS[key]

    monkeypatch.setattr(module, "begin", begin)


@pytest.fixture(scope="module")
def split() -> Mapping[str, Any]:
    """FlashAttention-2's arrays for 66 tokens in two splits, and an empty one, as the emulator gives them."""
    return predict("flash_attn", LONG, _context())


def _context() -> dict[str, Any]:
    return {"fork": "dao", "page_size": 256, "kv_capacity": 256, "num_splits": 3}


def _write(folder: Path, arrays: Mapping[str, Any], **more: Any) -> KernelResult:
    write(folder, "flash_attn", arrays, r=LONG, context=_context(), **more)
    (result,) = judge(read_capture(folder))
    return result


def test_every_site_is_compared(split: Mapping[str, Any], tmp_path: Path) -> None:
    assert split["oaccum"].shape == (1, 2, 3, 256)
    assert split["lseaccum"].shape == (1, 2, 3)
    result = _write(tmp_path / "c", split)
    assert result.exact
    assert [s.array for s in result.records[0].sites] == ["lseaccum", "oaccum", "lse", "output"]
    assert result.verdict() == (
        "bit-exact with flash_attn2.splitkv_decode on h200: 1 case, 4 arrays, 2,056 numbers"
    )


@pytest.mark.parametrize(
    ("array", "at", "site", "index"),
    [
        ("oaccum", (0, 1, 1, 170), "partial", {"row": 0, "head": 1, "split": 1, "dim": 170}),
        ("lseaccum", (0, 1, 2), "level", {"row": 0, "head": 1, "split": 2}),
        ("lse", (0, 1), "lse", {"row": 0, "head": 1}),
        ("output", (0, 0, 63), "output", {"row": 0, "head": 0, "dim": 63}),
    ],
)
def test_one_flipped_bit_is_found(
    split: Mapping[str, Any], tmp_path: Path, array: str, at: Any, site: str, index: dict[str, int]
) -> None:
    wrong = flip(split[array], at)
    result = _write(tmp_path / "c", {**split, array: wrong})
    assert not result.exact
    (record,) = result.records
    assert [s.array for s in record.sites if s.differing] == [array]
    first = record.first
    assert first is not None
    assert (first.site, first.index) == (site, index)
    bits = f"u{wrong.dtype.itemsize}"
    assert int(first.captured_bits, 16) == int(wrong.view(bits)[at])
    assert int(first.predicted_bits, 16) == int(split[array].view(bits)[at])
    assert f"unexplained from one, site {site}, row 0" in result.verdict()


def test_the_first_site_in_the_dataflow_is_named(split: Mapping[str, Any], tmp_path: Path) -> None:
    wrong = {"oaccum": flip(split["oaccum"], (0, 1, 2, 5)), "output": flip(split["output"], (0, 0, 0))}
    result = _write(tmp_path / "c", {**split, **wrong})
    assert "site partial, row 0, head 1, split 2, dim 5" in result.verdict()


def test_nan_is_no_number_and_zeros_have_signs(split: Mapping[str, Any], tmp_path: Path) -> None:
    def words(output: Any, value: int) -> Any:
        out = output.copy()
        out.view(np.uint16)[0, 0, 0] = value
        return out

    result = _write(tmp_path / "a", {**split, "output": words(split["output"], 0x7FC1)})
    assert result.records[0].sites[-1].differing == 1
    assert result.records[0].first is not None
    assert result.records[0].first.captured == "nan"
    empty = (0, 1, 2, 5)
    assert split["oaccum"].view(np.uint32)[empty] == 0
    result = _write(tmp_path / "b", {**split, "oaccum": flip(split["oaccum"], empty, 31)})
    assert [s.differing for s in result.records[0].sites] == [0, 1, 0, 0]


def test_a_kernel_that_is_not_repeatable_is_not_exact(split: Mapping[str, Any], tmp_path: Path) -> None:
    result = _write(tmp_path / "c", split, repeatable=False)
    assert not result.exact
    assert "not repeatable" in result.verdict()


@pytest.mark.parametrize(
    ("library", "said"),
    [
        (
            ("flash-attn", "2.8.3"),
            "flash-attn 2.8.3, but flash_attn2.splitkv_decode describes flash-attn 2.8.4",
        ),
        (("flash-attn", "2.9.0"), "flash-attn 2.9.0"),
        (("other", "2.8.4"), "captured from other 2.8.4"),
        (("flash-attn", "unknown"), "flash-attn unknown"),
    ],
)
def test_another_version_is_refused(
    split: Mapping[str, Any], tmp_path: Path, library: tuple[str, str], said: str
) -> None:
    with pytest.raises(InputError) as error:
        _write(tmp_path / "c", split, library=library)
    assert said in error.value.cause
    assert "another version is another kernel" in error.value.remedy


def test_a_post_release_is_the_release(split: Mapping[str, Any], tmp_path: Path) -> None:
    assert _write(tmp_path / "c", split, library=("flash-attn", "2.8.4.post1")).exact


def test_the_platform_is_the_machine(split: Mapping[str, Any], tmp_path: Path) -> None:
    assert _write(tmp_path / "a", split, machine={**H200, "gpu": "NVIDIA H200 141GB HBM3"}).platform == "h200"
    assert _write(tmp_path / "b", split, machine={**H200, "gpu": "NVIDIA H100 80GB HBM3"}).platform == "h100"
    write(
        tmp_path / "d",
        "flash_attn",
        split,
        r=LONG,
        context=_context(),
        machine={**H200, "gpu": "NVIDIA GH200"},
    )
    (unnamed,) = judge(read_capture(tmp_path / "d"))
    assert "h100 and h200 both describe NVIDIA GH200 (132 SMs" in unnamed.warnings[0]
    with pytest.raises(InputError, match=r"133 SMs.*which no platform describes"):
        _write(tmp_path / "c", split, machine={**H200, "sm_count": 133})
    (result,) = judge(read_capture(tmp_path / "c"), platform="h200")
    assert result.exact
    assert result.warnings == ("captured on NVIDIA H200 (133 SMs, compute capability 90), compared as h200",)


def test_wrong_shapes_and_arrays(split: Mapping[str, Any], tmp_path: Path) -> None:
    cut = {**split, "oaccum": np.ascontiguousarray(split["oaccum"][:, :, :2])}
    with pytest.raises(InputError, match=r"is float32 \[1, 2, 2, 256\], site partial"):
        _write(tmp_path / "a", cut)
    with pytest.raises(InputError, match="is float16"):
        _write(tmp_path / "b", {**split, "output": split["output"].astype(np.float16)})
    with pytest.raises(InputError, match="array 'mystery' is none"):
        _write(tmp_path / "c", {**split, "mystery": split["lse"]})
    with pytest.raises(InputError, match="holds no output"):
        _write(tmp_path / "d", {"lse": split["lse"]})
    write(tmp_path / "e", "flash_attn", split, r=LONG, context={"pages": 3})
    with pytest.raises(InputError, match=r"record 'one'.*unknown name 'pages'"):
        judge(read_capture(tmp_path / "e"))


def test_unknown_kernels(split: Mapping[str, Any], tmp_path: Path) -> None:
    write(tmp_path / "c", "flash_attn", split, r=LONG)
    edit(tmp_path / "c", lambda m: m["records"]["one"].update(kernel="flash_atn"))
    with pytest.raises(InputError, match=r"kernel 'flash_atn' is not known\n.*flash_attn"):
        judge(read_capture(tmp_path / "c"))


def test_a_shape_that_the_spec_does_not_describe_is_counted(tmp_path: Path) -> None:
    r = SMALL.model_copy(update={"head_dim": 48})
    arrays = {"output": np.zeros((1, 4, 48), ml_dtypes.bfloat16)}
    write(tmp_path / "c", "vllm_triton", arrays, r=r)
    (result,) = judge(read_capture(tmp_path / "c"))
    assert not result.exact
    assert "head_dim 64 to 256 in steps of 16" in result.records[0].refused
    assert result.verdict().startswith("not compared with vllm_triton.decode_3d on h200")


def test_another_spec_can_be_asked_for(split: Mapping[str, Any], tmp_path: Path) -> None:
    write(tmp_path / "c", "flash_attn", {"output": split["output"]}, r=LONG)
    (result,) = judge(read_capture(tmp_path / "c"), spec="walkthrough.triton")
    assert result.spec == "walkthrough.triton"
    assert not result.exact
    with pytest.raises(InputError, match="holds no 'xqa'"):
        judge(read_capture(tmp_path / "c"), kernels="xqa")


def test_a_state_is_what_its_last_tile_left(tmp_path: Path) -> None:
    """Triton's segment buffers: 40 tokens are three tiles of 16 on three segments; the other 13 stay unwritten."""
    r = SMALL.model_copy(update={"kv_len": 40})
    arrays = predict("vllm_triton", r, {})
    assert arrays["segm_max"].shape == (1, 4, 16)
    assert np.isnan(arrays["segm_max"]).sum() == 4 * 13
    assert np.isnan(arrays["segm_output"]).any(axis=-1).sum() == 4 * 13
    odd = flip(arrays["segm_max"], (0, 0, 15), 5)  # another NaN is no difference
    assert np.isnan(odd[0, 0, 15])
    write(tmp_path / "c", "vllm_triton", {**arrays, "segm_max": odd}, r=r)
    (result,) = judge(read_capture(tmp_path / "c"))
    assert result.exact
    edit(tmp_path / "c", lambda m: m["libraries"]["vllm_triton"].update(version="0.34.0"))
    with pytest.raises(InputError, match=r"describes vllm 0.11.0 to 0.33.0"):
        judge(read_capture(tmp_path / "c"))


def test_the_packaged_capture_is_exact() -> None:
    """Recorded from PyTorch itself: evidence that stays where PyTorch is not installed."""
    (result,) = judge(read_capture(packaged()["torch_cpu_2.13.0"].name))
    assert result.exact
    assert result.platform == "amd_avx512"
    assert len(result.records) == 7
    assert result.version == "torch 2.13.0+cpu (cf30153c4c13)"


def test_the_packaged_capture_of_the_interpreter_is_exact() -> None:
    """vLLM's kernel text in Triton's interpreter, its segment buffers among the arrays."""
    (result,) = judge(read_capture("vllm_triton_interpreter_0.33.0"))
    assert result.exact
    assert result.platform == "any platform"
    assert {s.array for r in result.records for s in r.sites} == {
        "segm_max",
        "segm_expsum",
        "segm_output",
        "output",
    }
    assert sum(s.elements for r in result.records for s in r.sites) == 26_880


def test_what_is_no_arithmetic_is_said() -> None:
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((1, 6, 32)).astype(np.float32)
    assert "permuted" in hint(np.ascontiguousarray(rows[:, ::-1]), rows, "output")
    lse = rng.uniform(1, 9, (1, 6)).astype(np.float32)
    assert "looks like base 2" in hint((lse / np.log(2)).astype(np.float32), lse, "lse")
    assert "looks like base e" in hint((lse * np.log(2)).astype(np.float32), lse, "lse")
    assert "nothing was written" in hint(np.full_like(rows, np.nan), rows, "oaccum")
    assert "not numerics" in hint(rng.standard_normal(rows.shape).astype(np.float32), rows, "output")
    assert hint(np.nextafter(rows, np.float32(9)), rows, "output") == ""
