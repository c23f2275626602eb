"""Everything up to the call of the GPU: fakes of the libraries hand out what the emulator gives, on a CPU.

Each fake checks what it is called with (paging, lengths, scales), answers in the library's own layout with unusual
strides, and the capture that comes of it must compare as bit-exact with the spec. What PyTorch itself does (its
dispatcher, its allocations inside C++) is the real thing.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from specs.errors import FidelityError, InputError
from tests.verify.capture.making import H200, MACHINE, predict
from verify.capture import run as running
from verify.capture.inputs import make, recipe
from verify.capture.judge import judge
from verify.capture.kernels import KERNELS, NAMES
from verify.capture.machine import number
from verify.capture.manifest import Machine, Recipe
from verify.capture.producers import base, flashinfer, vllm_triton
from verify.capture.run import availability, capture_kernels, chosen

torch = pytest.importorskip(
    "torch", reason="pip install 'ulpscope[torch]' brings PyTorch, whose tensors these tests use"
)

Array = np.ndarray[Any, Any]
WIDE = recipe("random", 66, q_heads=2, kv_heads=1, head_dim=256)
GROUPED = recipe("random", 40, q_heads=4, kv_heads=2, head_dim=64)


@pytest.fixture(autouse=True)
def _cpu_for_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "device", lambda: "cpu")
    monkeypatch.setattr(base, "gpu_missing", lambda: None)
    monkeypatch.setattr(base, "capability", lambda: (9, 0))
    monkeypatch.setattr(base, "sm_count", lambda: 132)
    monkeypatch.setattr(running, "this_machine", lambda: Machine.model_validate({**MACHINE, **H200}))


def install(monkeypatch: pytest.MonkeyPatch, name: str, **members: Any) -> None:
    """A module of a library, and its parents, as fakes."""
    parts = name.split(".")
    for i in range(1, len(parts) + 1):
        whole = ".".join(parts[:i])
        if whole not in sys.modules or i == len(parts):
            monkeypatch.setitem(sys.modules, whole, ModuleType(whole))
    vars(sys.modules[name]).update(members)


def one_case(monkeypatch: pytest.MonkeyPatch, kernel: str, r: Recipe) -> None:
    def cases(quick: bool) -> Iterator[tuple[Recipe, bool]]:
        yield r, False

    monkeypatch.setitem(KERNELS, kernel, replace(KERNELS[kernel], cases=cases))


def gathered(cache: Any, table: Any, length: int) -> Array:
    """The tokens that a block table leads to, as bits."""
    pages = [cache[int(p)] for p in table[0]]
    return torch.cat(pages)[:length].contiguous().view(torch.int16).numpy()


def bits(array: Array) -> Array:
    return array.view(np.int16)


def strided(array: Array, dtype: Any = None) -> Any:
    """A tensor of the array's bits whose rows are not next to each other in memory."""
    t = base.to_torch(array, "cpu") if dtype is None else torch.from_numpy(array.copy()).to(dtype)
    wide = torch.zeros((*t.shape[:-1], t.shape[-1] + 3), dtype=t.dtype)
    wide[..., : t.shape[-1]] = t
    return wide[..., : t.shape[-1]]


def exact(folder: Path, kernel: str) -> Mapping[str, tuple[int, ...]]:
    """Capture one kernel and compare; the shapes of the arrays."""
    capture = capture_kernels(folder, [kernel])
    (result,) = judge(capture)
    assert result.exact, result.verdict()
    assert all(not r.unmatched for r in result.records)
    (record,) = capture.manifest.records.values()
    assert record.repeatable
    assert record.repeats == 2
    return {name: info.shape for name, info in record.arrays.items()}


# -- FlashAttention -----------------------------------------------------------------------------------------


def test_flash_attn_with_its_partial_results(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Grouped heads are swapped: the partial results lie as [split, batch, kv_head, query head of the group, depth]."""
    context = {"fork": "dao", "page_size": 256, "kv_capacity": 256, "num_splits": 0}
    want, given = predict("flash_attn", WIDE, context, {"kvcache": True}), make(WIDE)
    splits = want["oaccum"].shape[2]
    assert splits > 1

    def flash_attn_with_kvcache(q: Any, k_cache: Any, v_cache: Any, **options: Any) -> Any:
        assert q.shape == (1, 1, 2, 256)
        assert options["cache_seqlens"].tolist() == [66]
        assert k_cache.shape == (1, 256, 1, 256)
        assert (options["softmax_scale"], options["causal"], options["num_splits"]) == (1 / 16, False, 0)
        for cache, name in ((k_cache, "k"), (v_cache, "v")):
            assert (gathered(cache, options["block_table"], 66) == bits(given[name])).all()
        levels = torch.empty((splits, 1, 1, 2), dtype=torch.float32)
        outs = torch.empty((splits, 1, 1, 2, 256), dtype=torch.float32)
        for s in range(splits):
            for head in range(2):
                levels[s, 0, 0, head] = float(want["lseaccum"][0, head, s])
                outs[s, 0, 0, head] = torch.from_numpy(want["oaccum"][0, head, s].copy())
        return strided(want["output"][None]), strided(want["lse"].T[None].copy())

    install(monkeypatch, "flash_attn", flash_attn_with_kvcache=flash_attn_with_kvcache, __version__="2.8.4")
    one_case(monkeypatch, "flash_attn", WIDE)
    shapes = exact(tmp_path / "c", "flash_attn")
    assert shapes == {
        "oaccum": (1, 2, splits, 256),
        "lseaccum": (1, 2, splits),
        "lse": (1, 2),
        "output": (1, 2, 256),
    }


def test_the_fork_of_vllm_runs_below_the_dispatcher(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Its kernel is an operator of its own namespace: allocations inside it are seen all the same."""
    context = {"fork": "vllm", "page_size": 16, "kv_capacity": 80, "num_splits": 0}
    want, given = predict("vllm_flash_attn", WIDE, context), make(WIDE)
    splits = want["oaccum"].shape[2]
    library = torch.library.Library("ulpscope_test_fa2", "FRAGMENT")
    library.define("varlen_fwd(Tensor q, int splits) -> Tensor")

    def kernel(q: Any, splits: int) -> Any:
        levels = q.new_empty((splits, 1, 1, 2), dtype=torch.float32)
        levels.copy_(torch.from_numpy(want["lseaccum"].transpose(2, 0, 1)[:, :, None].copy()))
        outs = q.new_empty((splits, 1, 1, 2, 256), dtype=torch.float32)
        outs.copy_(torch.from_numpy(want["oaccum"].transpose(2, 0, 1, 3)[:, :, None].copy()))
        return q.clone()

    library.impl("varlen_fwd", kernel, "CPU")

    def flash_attn_varlen_func(q: Any, k: Any, v: Any, **options: Any) -> Any:
        assert options["cu_seqlens_q"].tolist() == [0, 1]
        assert options["seqused_k"].tolist() == [66]
        assert (options["max_seqlen_q"], options["max_seqlen_k"], options["fa_version"]) == (1, 66, 2)
        assert (gathered(k, options["block_table"], 66) == bits(given["k"])).all()
        torch.ops.ulpscope_test_fa2.varlen_fwd(q, splits)
        return strided(want["output"]), strided(want["lse"].T.copy())

    install(monkeypatch, "vllm", __version__="0.33.0")
    install(monkeypatch, "vllm.vllm_flash_attn", flash_attn_varlen_func=flash_attn_varlen_func)
    one_case(monkeypatch, "vllm_flash_attn", WIDE)
    assert exact(tmp_path / "c", "vllm_flash_attn")["oaccum"] == (1, 2, splits, 256)


def test_allocations_inside_a_compiled_kernel_are_seen() -> None:
    """PyTorch's own CPU kernel, called as an operator of a library is: its output, and buffers of f32, are made in C++."""
    from verify.capture.producers.allocations import Allocations

    q, k, v = (torch.ones(1, 2, n, 64, dtype=torch.bfloat16) for n in (4, 40, 40))
    kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default._op_dk
    with Allocations() as made:
        output, lse = kernel(torch._C.DispatchKey.CPU, q, k, v, 0.0, False)
    assert any(t.data_ptr() == output.data_ptr() for t in made.tensors)
    assert len(made.tensors) > 2
    assert all(isinstance(t, torch.Tensor) for t in made.tensors)
    assert lse.shape == (1, 2, 4)


# -- Triton -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kernel", ["vllm_triton", "vllm_triton_2d"])
def test_triton_with_its_segments(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kernel: str) -> None:
    context = {"page_size": 16, "kv_capacity": 48, "vllm_version": 3300, "triton_version": 308}
    context |= {"batch_invariant": 1} if kernel == "vllm_triton_2d" else {}
    want, given = predict(kernel, GROUPED, context), make(GROUPED)

    def unified_attention(
        q: Any,
        k: Any,
        v: Any,
        out: Any,
        cu_seqlens_q: Any,
        max_seqlen_q: int,
        seqused_k: Any,
        max_seqlen_k: int,
        softmax_scale: float,
        causal: bool,
        window_size: Any,
        block_table: Any,
        softcap: float,
        q_descale: Any,
        k_descale: Any,
        v_descale: Any,
        seq_threshold_3D: Any = None,
        num_par_softmax_segments: Any = None,
        softmax_segm_output: Any = None,
        softmax_segm_max: Any = None,
        softmax_segm_expsum: Any = None,
    ) -> None:
        assert (gathered(k, block_table, 40) == bits(given["k"])).all()
        assert (gathered(v, block_table, 40) == bits(given["v"])).all()
        assert (q.view(torch.int16).numpy() == bits(given["q"])).all()
        assert (softmax_scale, causal, window_size, softcap) == (0.125, True, (-1, -1), 0.0)
        out.copy_(base.to_torch(want["output"], "cpu"))
        if kernel == "vllm_triton_2d":
            assert softmax_segm_max is None
            return
        assert (seq_threshold_3D, num_par_softmax_segments) == (64, 16)
        for segment in range(3):  # 40 tokens in tiles of 16: segments 3 to 15 write nothing
            softmax_segm_max[:, :, segment] = torch.from_numpy(want["segm_max"][:, :, segment].copy())
            softmax_segm_expsum[:, :, segment] = torch.from_numpy(want["segm_expsum"][:, :, segment].copy())
            softmax_segm_output[:, :, segment] = torch.from_numpy(want["segm_output"][:, :, segment].copy())

    home = "vllm.v1.attention.ops.triton_unified_attention"
    install(monkeypatch, "triton", __version__="3.8.0")
    install(monkeypatch, "vllm", __version__="0.33.0")
    install(monkeypatch, home, unified_attention=unified_attention)
    one_case(monkeypatch, kernel, GROUPED)
    shapes = exact(tmp_path / "c", kernel)
    if kernel == "vllm_triton":
        assert shapes["segm_output"] == (1, 4, 16, 64)


# -- FlashInfer ---------------------------------------------------------------------------------------------


def write_scratch(data: Any, want: Mapping[str, Array], kv_heads: int, subs: int) -> None:
    """XQA's scratch, element by element as the kernel's structures have it (mha.cu, SMemWarpRowMax and ScratchBuf)."""
    heads, depth = want["partial"].shape[1], want["partial"].shape[3]
    group, slices = heads // kv_heads, depth // 64
    floats = 32 * -(-group // 32)
    stats = data.view(np.float32)
    block = slices * group * 128
    begin = 2 * kv_heads * subs * floats * 4
    begin = (begin + block - 1) // block * block
    for head in range(heads):
        kv, r = divmod(head, group)
        for sub in range(subs):
            buffer = subs * kv + sub
            at = 32 * (r // 32) + 4 * (r % 8) + r // 8 % 4
            stats[buffer * floats + at] = want["row_max"][0, head, sub]
            stats[(kv_heads * subs + buffer) * floats + at] = want["row_sum"][0, head, sub]
            for column in range(0, depth, 8):
                piece, grain = divmod(column // 8, 8)
                place = begin + buffer * block + ((piece * group + r) * 8 + (grain ^ r % 8)) * 16
                data[place : place + 16] = want["partial"][0, head, sub, column : column + 8].view(np.uint8)


@pytest.mark.parametrize("heads", [(12, 1, 128), (40, 1, 64), (6, 2, 64), (4, 4, 256)])
def test_the_layout_of_xqa_scratch(heads: tuple[int, int, int]) -> None:
    """Groups of 1 to 40 query heads, one to four slices of the head."""
    q_heads, kv_heads, depth = heads
    r = recipe("random", 1, q_heads=q_heads, kv_heads=kv_heads, head_dim=depth)
    given, rng, subs = make(r), np.random.default_rng(0), 3
    want = {
        "row_max": rng.standard_normal((1, q_heads, subs)).astype(np.float32),
        "row_sum": rng.standard_normal((1, q_heads, subs)).astype(np.float32),
        "partial": rng.standard_normal((1, q_heads, subs, depth)).astype(given["q"].dtype),
    }
    call = base.Call(given["q"], given["k"], given["v"], 1.0)
    data = np.zeros(flashinfer.scratch_bytes(subs, call), np.uint8)
    write_scratch(data, want, kv_heads, subs)
    found = flashinfer.xqa_scratch(data, subs, call)
    for name, array in want.items():
        assert found[name].tobytes() == array.tobytes(), name


def test_xqa_counts_sub_sequences_by_capacity() -> None:
    assert flashinfer.sub_sequences(132, 4, 131_072) == 33
    assert flashinfer.sub_sequences(188, 4, 131_072) == 47
    assert flashinfer.sub_sequences(132, 4, 600) == 3
    assert flashinfer.sub_sequences(8, 16, 600) == 1


def test_xqa_with_its_scratch(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    r = recipe("random", 260, q_heads=2, kv_heads=1, head_dim=64)
    context = {"page_size": 64, "kv_capacity": 320, "flashinfer_version": 702}
    want = predict("xqa", r, context)
    assert want["partial"].shape == (1, 2, 2, 64)

    def xqa_batch_decode_with_kv_cache(**given: Any) -> Any:
        assert given["seq_lens"].dtype == torch.uint32
        assert given["seq_lens"].view(torch.int32).tolist() == [260]
        assert (given["max_seq_len"], given["bmm1_scale"], given["bmm2_scale"]) == (320, 0.125, 1.0)
        assert not given["workspace_buffer"].any()
        assert (gathered(given["kv_cache"][0], given["block_tables"], 260) == bits(make(r)["k"])).all()
        write_scratch(given["workspace_buffer"].numpy()[8 << 20 :], want, 1, 2)
        return base.to_torch(want["output"], "cpu")

    install(monkeypatch, "flashinfer", __version__="0.7.2.post1")
    install(monkeypatch, "flashinfer.decode", xqa_batch_decode_with_kv_cache=xqa_batch_decode_with_kv_cache)
    one_case(monkeypatch, "xqa", r)
    assert set(exact(tmp_path / "c", "xqa")) == {"row_max", "row_sum", "partial", "output"}


def test_flashinfer_fa2_is_planned_and_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    context = {"page_size": 16, "kv_capacity": 48, "flashinfer_version": 702}
    want = predict("flashinfer_fa2", GROUPED, context)

    class Wrapper:
        def __init__(self, workspace: Any, layout: str, *, use_tensor_cores: bool, backend: str) -> None:
            assert (layout, use_tensor_cores, backend) == ("NHD", True, "fa2")

        def plan(self, indptr: Any, indices: Any, last: Any, *sizes: int, **more: Any) -> None:
            assert (indptr.tolist(), indices.tolist(), last.tolist()) == ([0, 3], [2, 1, 0], [8])
            assert sizes == (4, 2, 64, 16)
            assert more["sm_scale"] == 0.125
            assert more["q_data_type"] == more["kv_data_type"] == torch.bfloat16

        def run(self, q: Any, cache: Any, *, return_lse: bool) -> Any:
            assert return_lse
            assert q.shape == (1, 4, 64)
            return strided(want["output"]), strided(want["lse"])

    install(monkeypatch, "flashinfer", __version__="0.7.2.post1", BatchDecodeWithPagedKVCacheWrapper=Wrapper)
    one_case(monkeypatch, "flashinfer_fa2", GROUPED)
    assert set(exact(tmp_path / "c", "flashinfer_fa2")) == {"lse", "output"}


# -- what cannot run ----------------------------------------------------------------------------------------


def test_where_nothing_can_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(base, "gpu_missing", lambda: "no CUDA GPU is visible to PyTorch")
    found = availability(NAMES)
    assert set(found) == set(NAMES)
    assert found["mufu"] == "no CUDA GPU is visible to PyTorch"
    with pytest.raises(FidelityError) as error:
        capture_kernels(tmp_path / "c", ["mufu", "mma"])
    assert error.value.exit_code == 3
    assert "mufu: no CUDA GPU is visible" in error.value.remedy
    assert not (tmp_path / "c").exists()


def test_missing_libraries_are_named() -> None:
    found = availability(["flash_attn", "vllm_triton", "xqa"])
    for kernel, module in (("flash_attn", "flash_attn"), ("vllm_triton", "vllm"), ("xqa", "flashinfer")):
        if find_spec(module) is None:
            assert found[kernel] == f"{module} is not installed"


def test_a_kernel_that_gives_other_bytes_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)

    def flash_attn_func(q: Any, k: Any, v: Any, **more: Any) -> Any:
        noise = torch.from_numpy(rng.standard_normal(q.shape)).to(q.dtype)
        return noise, torch.zeros(1, q.shape[2], q.shape[1]), None

    install(monkeypatch, "flash_attn", flash_attn_func=flash_attn_func, __version__="2.8.4")
    one_case(monkeypatch, "flash_attn_prefill", GROUPED)
    capture = capture_kernels(tmp_path / "c", ["flash_attn_prefill"])
    assert [r.repeatable for r in capture.manifest.records.values()] == [False]


def test_names_of_kernels() -> None:
    assert chosen(None) == NAMES
    assert chosen("xqa, mufu,xqa") == ("xqa", "mufu")
    for text, word in (("xqb", "xqa"), ("", "give some of")):
        with pytest.raises(InputError, match=word):
            chosen(text)


def test_bits_survive_the_way_through_tensors() -> None:
    words = np.arange(1 << 16, dtype=np.uint16)
    for kind in (make(GROUPED)["q"].dtype, np.dtype(np.float16)):
        array = words.view(kind).reshape(256, 256)
        assert base.to_numpy(base.to_torch(array, "cpu")).tobytes() == array.tobytes()
        assert (
            base.to_numpy(base.to_torch(array, "cpu").T).tobytes() == np.ascontiguousarray(array.T).tobytes()
        )


@pytest.mark.parametrize(
    ("text", "numbers"),
    [("0.7.2.post1", (0, 7, 2)), ("2.13.0+cpu", (2, 13, 0)), ("3.8", (3, 8, 0)), ("unknown", (0, 0, 0))],
)
def test_versions_are_numbers(text: str, numbers: tuple[int, ...]) -> None:
    assert number(text) == numbers


def test_segments_of_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    """64 on SM 12.0 from 0.33.0 on, while one program for each of 16 segments leaves SMs idle."""
    for version, capability, sms, kv_heads, count in (
        ("0.33.0", (12, 0), 188, 4, 64),
        ("0.33.0", (12, 0), 188, 16, 16),
        ("0.33.0", (9, 0), 132, 4, 16),
        ("0.32.1", (12, 0), 188, 4, 16),
    ):
        install(monkeypatch, "vllm", __version__=version)
        monkeypatch.setattr(base, "capability", lambda found=capability: found)
        monkeypatch.setattr(base, "sm_count", lambda found=sms: found)
        assert vllm_triton.segments(kv_heads) == count
