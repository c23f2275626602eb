"""How vLLM 0.33.0 compiles its kernels for one decode: bf16, 32 query heads on 8, head_dim 128, 16 segments."""

from verify.lower.request import Wanted

_POINTERS = {
    "output_ptr": "*bf16:16",
    "query_ptr": "*bf16:16",
    "key_cache_ptr": "*bf16:16",
    "value_cache_ptr": "*bf16:16",
    "block_tables_ptr": "*i32:16",
    "seq_lens_ptr": "*i32:16",
    "query_start_len_ptr": "*i32:16",
    "rswa_prefix_lens_ptr": "*i32:16",
    "segm_output_ptr": "*fp32:16",
    "segm_max_ptr": "*fp32:16",
    "segm_expsum_ptr": "*fp32:16",
}
_STRIDES = (
    "block_table_stride",
    "query_stride_0",
    "query_stride_1",
    "output_stride_0",
    "output_stride_1",
    "stride_k_cache_0",
    "stride_k_cache_1",
    "stride_k_cache_2",
    "stride_v_cache_0",
    "stride_v_cache_1",
    "stride_v_cache_2",
)
_ABSENT = (
    *("sink_ptr", "alibi_slopes_ptr", "qq_bias_ptr", "q_scale", "k_scale", "v_scale", "per_seq_causal_ptr"),
    *("mm_prefix_range_ptr", "k_scale_cache_ptr", "v_scale_cache_ptr"),
    *(
        "stride_ks_blk",
        "stride_ks_slot",
        "stride_ks_head",
        "stride_vs_blk",
        "stride_vs_slot",
        "stride_vs_head",
    ),
)
_OFF = (
    *("USE_ALIBI_SLOPES", "USE_ALIBI_SQRT", "USE_QQ_BIAS", "USE_SOFTCAP", "USE_SINKS", "USE_PER_SEQ_CAUSAL"),
    *("USE_MM_PREFIX", "USE_R_SWA", "USE_FP8", "USE_TD", "USE_TD_QO", "Q_IS_FP8", "MM_PREFIX_CLAMP_SW"),
)
_NUMBERS = {"FP8_MIN": -448.0, "FP8_MAX": 448.0}

ATTENTION = Wanted(
    "kernel_unified_attention",
    {
        **_POINTERS,
        **dict.fromkeys(_STRIDES, "i64:16"),
        **dict.fromkeys(("scale", "out_scale", "softcap"), "fp32"),
        "num_seqs": "i32",
    },
    {
        **dict.fromkeys(_ABSENT),
        **dict.fromkeys(_OFF, False),
        **_NUMBERS,
        **{
            "num_query_heads": 32,
            "num_queries_per_kv": 4,
            "qq_bias_stride_0": 0,
            "BLOCK_SIZE": 16,
            "TILE_SIZE": 16,
        },
        **{
            "HEAD_SIZE": 128,
            "HEAD_SIZE_PADDED": 128,
            "SLIDING_WINDOW": 0,
            "USE_CAUSAL": True,
            "MAX_MM_RANGES": 0,
        },
        **{"R_SWA_WINDOW": 0, "stride_k_cache_3": 1, "stride_v_cache_3": 1, "BLOCK_Q": 4, "BLOCK_M": 16},
        **{
            "NUM_SEGMENTS_PER_SEQ": 16,
            "IS_3D": True,
            "KV_QUANT_MODE": 0,
            "CHUNK_LOOKBACK": -1,
            "CHUNK_SIZE": -1,
        },
    },
)

REDUCE = Wanted(
    "reduce_segments",
    {
        **{n: t for n, t in _POINTERS.items() if n.startswith(("output", "segm", "seq_lens", "query_start"))},
        **dict.fromkeys(("output_stride_0", "output_stride_1", "block_table_stride"), "i64:16"),
        **{"num_seqs": "i32", "out_scale_inv": "fp32"},
    },
    {
        **_NUMBERS,
        **{"num_query_heads": 32, "TILE_SIZE": 16, "HEAD_SIZE": 128, "HEAD_SIZE_PADDED": 128, "BLOCK_Q": 4},
        **{"NUM_SEGMENTS_PER_SEQ": 16, "USE_FP8": False},
    },
)
KERNELS = [ATTENTION, REDUCE]
