"""Partitions of the real kernels as their specs state them in ``[let]``, against tables from the originals."""

from __future__ import annotations

from typing import Any

import pytest

from specs import SpecError, UnsupportedError, load_spec
from specs.bind import bind, integers
from specs.context import make_context
from specs.formats import parse_format
from tests.tables import Row, Table

SPECS = {
    name: load_spec(name)
    for name in (
        "xqa.decode",
        "xqa.decode_fp8_sm90",
        "trtllm_gen.reduction",
        "flashinfer.fa2_decode",
        "flash_attn3.decode",
    )
}
GPU = {"sm_count": 132, "compute_capability": 90, "head_dim": 128}


def lets(name: str, **context: Any) -> dict[str, Any]:
    return integers(SPECS[name], make_context({**GPU, **context}))


def check_xqa(row: Row) -> None:
    heads, capacity = int(row["kv_heads"]), int(row["max_seq_len_capacity"])
    shape = {
        "sm_count": int(row["sm_count"]),
        "batch": int(row["batch"]),
        "kv_heads": heads,
        "q_heads": heads,
    }
    found = lets("xqa.decode", kv_len=capacity, **shape)
    assert found["nsub"] == int(row["mha_cu_grid_x"])
    assert found["tiles"] == int(row["mha_cu_tiles256_total"])
    assert -(-found["tiles"] // found["nsub"]) == int(row["mha_cu_max_tiles_per_subseq"])
    found = lets("xqa.decode_fp8_sm90", kv_len=capacity, **shape)
    assert found["bound"] == int(row["sm90_fp8_grid_y"])
    assert found["nsub"] == int(row["sm90_fp8_effective_if_seq_eq_cap"])


MODES = {"disabled": "Disabled(persistent)", "cga": "CgaSmemReduction", "gmem": "GmemReduction(in-kernel)"}


def check_trtllm(row: Row) -> None:
    heads = int(row["kv_heads"])
    shape = {
        "sm_count": int(row["sm_count"]),
        "compute_capability": 100,
        "batch": int(row["batch"]),
        "kv_heads": heads,
        "q_heads": heads * int(row["q_per_kv"]),
        "kv_len": int(row["max_seq_len_kv"]),
    }
    assert row["step_kv"] == "256", "the option's default"
    old = lets("trtllm_gen.reduction", flashinfer_version=618, **shape)
    assert old["ctas"] == int(row["v0618_ctas_per_seq"])
    assert MODES[old["mode"]] == row["v0618_mode"]
    new = lets("trtllm_gen.reduction", flashinfer_version=702, **shape)
    assert new["ctas"] == int(row["v072_ctas_per_seq"])
    assert MODES[new["mode"]] == row["v072_mode"]
    assert (new["total"], new["cluster"]) == (int(row["v072_total_ctas"]), int(row["v072_cluster_x"]))


def check_layout(row: Row) -> None:
    """Tiles, groups and who owns what: all but the warps of a group, which change no bit."""
    capability, dim = int(row["arch"].removeprefix("sm").split("/")[0]), int(row["head_dim"])
    if dim == 512 or row["kv"] == "nvfp4" or row["kernel"] != "mha.cu":
        return  # not described; the spec refuses
    kv = "e4m3fn" if row["kv"] == "fp8" else "bf16"
    context = make_context(
        {"kv_len": 9_999, "sm_count": 132, "compute_capability": capability, "head_dim": dim, "q_heads": 8}
    )
    spec = SPECS["xqa.decode"]
    formats = {"q": parse_format("bf16"), "k": parse_format(kv), "v": parse_format(kv)}
    program = bind(spec, context, formats=formats)
    found = program.integers
    groups, halves, owners = (int(found[n]) for n in ("G", "VH", "GX"))
    assert groups == int(row["gemm1_warp_groups"])
    assert spec.levels["sub"].startswith("deal(nsub, unit=256"), row["cta_tile_tokens"]
    assert spec.levels["x"] == "tiles(64)", row["x_tile_tokens"]
    assert found["VT"] == int(row["v_tile_tokens"])
    slices = 64 // int(row["v_tile_tokens"])
    tiles = ";".join(
        f"g{g}:" + "/".join(str(x) for x in range(4) if x % owners == g // halves) for g in range(groups)
    )
    assert tiles == row["x_tiles_per_group"]
    own_slices = ";".join(
        f"g{g}:" + "/".join(str(s) for s in range(slices) if s % min(slices, groups) == g % halves)
        for g in range(groups)
    )
    assert own_slices == row["v_slice_in_x_tile"]
    assert str(owners > 1) == row["groups_have_separate_max_sum"]
    hinted = "/".join(str(w) for w in range(4) if w // (4 // groups) // halves == w % owners)
    assert hinted == row["gemm0_warps_receiving_rowmax_hint"]


def check_flashinfer(row: Row) -> None:
    heads, length, page = int(row["kv_heads"]), int(row["seq_len"]), int(row["page_size"])
    found = lets(
        "flashinfer.fa2_decode",
        sm_count=int(row["sm_count"]),
        batch=int(row["batch"]),
        kv_heads=heads,
        q_heads=heads,
        kv_len=length,
        page_size=page,
        cuda_graph=int(row["cuda_graph"]),
    )
    assert found["found"] == int(row["kv_chunk_tokens"])
    assert int(found["split"]) == int(row["split_kv"])
    assert found["parts"] == int(row["chunks_per_request"])


TABLES = [
    Table("xqa_subseq_small.csv", "xqa_subseq.csv", 200, 3_000, check_xqa),
    Table("xqa_cta_layout.csv", "xqa_cta_layout.csv", 40, 40, check_layout),
    Table("flashinfer_decode_plan_small.csv", "flashinfer_decode_plan.csv", 200, 3_000, check_flashinfer),
    Table("trtllm_gen_ctas_small.csv", "trtllm_gen_ctas.csv", 200, 3_000, check_trtllm),
]


@pytest.mark.parametrize("table", TABLES, ids=str)
def test_specs_cut_as_the_originals(table: Table) -> None:
    table.replay_small()


@pytest.mark.slow
@pytest.mark.parametrize("table", TABLES, ids=str)
def test_specs_on_the_whole_tables(table: Table) -> None:
    """By default the small tables, a sample of their rows: `test_specs_cut_as_the_originals`."""
    table.replay_whole()


SPOTS = (78, 108, 114, 132, 142, 148, 152, 170, 188)


def test_published_counts_of_one_sequence() -> None:
    """Batch 1, four KV heads, room for 131,072 tokens: one count for each number of SMs."""
    shape: dict[str, Any] = {"kv_len": 131_072, "q_heads": 4, "kv_heads": 4}
    mha = [lets("xqa.decode", **shape, sm_count=n)["nsub"] for n in SPOTS]
    assert mha == [19, 27, 28, 33, 35, 37, 38, 42, 47]
    fp8 = [lets("xqa.decode_fp8_sm90", **shape, sm_count=n)["nsub"] for n in SPOTS]
    assert fp8 == [15, 20, 21, 25, 27, 28, 29, 32, 35]


def test_trtllm_gen_counts_differ_by_version() -> None:
    shape: dict[str, Any] = {"q_heads": 32, "kv_heads": 4, "sm_count": 148, "compute_capability": 100}
    for tokens, old, new in (
        (4_096, 8, 8),
        (8_192, 16, 16),
        (16_384, 32, 16),
        (65_536, 37, 16),
        (131_072, 37, 37),
    ):
        for version, count in ((618, old), (702, new)):
            found = lets("trtllm_gen.reduction", kv_len=tokens, flashinfer_version=version, **shape)
            assert found["ctas"] == count
    graph = lets("trtllm_gen.reduction", kv_len=4_096, kv_capacity=131_072, cuda_graph=1, **shape)
    assert graph["ctas"] == 37, "a captured graph keeps the count of the longest sequence"


def test_a_batch_invariant_plan_has_one_chunk() -> None:
    shape: dict[str, Any] = {"kv_len": 10_000, "q_heads": 8, "kv_heads": 8}
    assert lets("flashinfer.fa2_decode", **shape)["parts"] == 33
    assert lets("flashinfer.fa2_decode", **shape, batch_invariant=1)["parts"] == 1
    assert lets("flashinfer.fa2_decode", **shape, batch_invariant=1, cuda_graph=1)["parts"] == 1


def test_the_merge_kernel_has_as_many_lanes_as_fit_a_block() -> None:
    """128 threads, eight 16-bit values each."""
    for dim, lanes in ((64, 16), (128, 8), (256, 4)):
        assert lets("flashinfer.fa2_decode", kv_len=10_000, head_dim=dim)["lanes"] == lanes


def test_flash_attention_3_splits_by_the_whole_batch() -> None:
    """Blocks of 128 tokens; by hand from the heuristic (0.85 of the best fill at 29 of 33 splits) and the scheduler."""
    shape: dict[str, Any] = {"q_heads": 16, "kv_heads": 4}
    one = lets("flash_attn3.decode", kv_len=8_192, **shape)
    assert (one["BM"], one["BN"], one["bound"], one["splits"]) == (128, 128, 29, 22)
    lengths = [8_192] * 5 + [2_048]
    counts = [
        lets("flash_attn3.decode", kv_lens=lengths, kv_len=n, **shape)["splits"] for n in (8_192, 2_048)
    ]
    assert counts == [6, 2]
    dense = lets("flash_attn3.decode", kv_lens=lengths, kv_len=8_192, batch_invariant=1, **shape)
    assert dense["splits"] == 1
    graph = lets("flash_attn3.decode", kv_len=8_192, cuda_graph=1, **shape)
    assert (graph["bound"], graph["splits"]) == (32, 22), "a captured graph bounds the splits by 32"
    fork = lets("flash_attn3.decode", kv_len=8_192, fork="vllm", **shape)
    assert (fork["BM"], fork["BN"]) == (64, 128)
    wide = lets("flash_attn3.decode", kv_len=27_525, q_heads=24, kv_heads=4, head_dim=256)
    assert (wide["BN"], wide["bound"]) == (80, 29), "345 blocks in 29 splits of 12"


def test_windows_skip_whole_tiles() -> None:
    found = lets("xqa.decode", kv_len=10_000, window=1_000)
    assert (found["skip"], found["tiles"]) == (35, 5), "9,000 tokens are not seen: 35 tiles of 256"
    found = lets("xqa.decode_fp8_sm90", kv_len=10_000, window=1_000)
    assert (found["skip"], found["tiles"], found["nsub"]) == (140, 17, 17)
    wide = lets("trtllm_gen.reduction", kv_len=10_000, window=1_000, compute_capability=100)
    assert wide["reach"] == 1_255


def test_an_empty_sequence_has_a_partition() -> None:
    found = lets("xqa.decode", kv_len=0)
    assert (found["tiles"], found["nsub"]) == (0, 1), "no tile, and one block that has nothing to do"


@pytest.mark.parametrize(
    ("name", "context", "cause"),
    [
        ("xqa.decode", {"q_len": 2}, "q_len = 2\n  one query token"),
        ("xqa.decode", {"head_dim": 512}, "head_dim = 512\n  head_dim 64, 128 and 256"),
        ("xqa.decode", {"q_heads": 65}, "q_heads = 65.*\n  the queries of one KV head fill at most 16 KiB"),
        (
            "xqa.decode",
            {"compute_capability": 75},
            "compute_capability = 75\n  the kernel is built for Ampere",
        ),
        ("xqa.decode_fp8_sm90", {"compute_capability": 120}, "built for Hopper alone"),
        ("xqa.decode_fp8_sm90", {"kv_len": 0}, "an empty sequence leaves the output unwritten"),
        (
            "flashinfer.fa2_decode",
            {"window": 50},
            "window = 50, kv_len = 100\n  sliding windows are not described",
        ),
        ("flashinfer.fa2_decode", {"compute_capability": 75}, "the kernel takes bf16 on Ampere and later"),
        ("flashinfer.fa2_decode", {"head_dim": 96}, "head_dim 64, 128 and 256 are described"),
        (
            "trtllm_gen.reduction",
            {"compute_capability": 100, "kv_len": 0},
            "kv_len = 0\n  what becomes of an empty sequence is not described",
        ),
        ("trtllm_gen.reduction", {}, "compute_capability = 90\n  TRT-LLM-gen kernels exist for"),
    ],
)
def test_what_a_kernel_does_not_take_is_refused(name: str, context: dict[str, Any], cause: str) -> None:
    with pytest.raises(UnsupportedError, match=cause) as caught:
        lets(name, **{"kv_len": 100, **context})
    assert not isinstance(caught.value, SpecError)
