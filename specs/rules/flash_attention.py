"""Split counts and tiles of FlashAttention 2 and 3.

Sources: Dao-AILab/flash-attention 0251105a (``dao``) and vllm-project/flash-attention 617264c1 (``vllm``).
"""

from __future__ import annotations

import math
import struct
from functools import wraps

from specs.rules.registry import MAX_STEPS, Rule, partition_rule

_L2 = 50 * 1024 * 1024
_ONE_CTA = 992
_TILE = tuple[int, int, bool, bool]


def _f32(x: float) -> float:
    """``x`` rounded to f32; one operation on such values in f64, rounded again, is the operation in f32."""
    return struct.unpack("<f", struct.pack("<f", x))[0]


def _efficiency(workers: int, splits: int, slots: int) -> float:
    waves = _f32(_f32(workers * splits) / _f32(slots))
    return _f32(waves / math.ceil(waves))


def _crowded(workers: int, slots: int) -> bool:
    """Whether the workers fill 80% of the slots, in f32."""
    return _f32(workers) >= _f32(_f32(0.8) * _f32(slots))


def _bounded(most: int, *counts: int) -> int:
    most = min(most, *counts)
    if most > MAX_STEPS:
        raise ValueError(f"more than {MAX_STEPS} split counts to try")
    return most


@partition_rule
def fa2_num_splits(workers: int, slots: int, blocks: int, most: int) -> int:
    """FlashAttention-2's ``num_splits_heuristic``.

    Args:
        workers: batch * heads * query blocks.
        slots: twice the number of SMs.
        blocks: key/value blocks of the sequence.
        most: upper limit of the split count (128 in the library).

    Raises:
        ValueError: an argument but ``blocks`` is less than 1, or the rule would try more than `MAX_STEPS` counts.

    Efficiencies are f32 values, compared in double. Source: csrc/flash_attn/flash_api.cpp, in both forks.
    """
    if min(workers, slots, most) < 1 or blocks < 0:
        raise ValueError("workers, slots and the limit must be at least 1")
    if _crowded(workers, slots):
        return 1
    efficiency: dict[int, float] = {}
    for splits in range(1, _bounded(most, slots, blocks) + 1):
        if splits > 1 and -(-blocks // splits) == -(-blocks // (splits - 1)):
            continue
        efficiency[splits] = _efficiency(workers, splits, slots)
    best = max(efficiency.values(), default=0.0)
    return next((s for s, e in efficiency.items() if e >= 0.85 * best), 1)


@partition_rule
def fa3_num_splits(
    workers: int, sms: int, blocks: int, row_blocks: int, kv_head_bytes: int, masked: int, most: int
) -> int:
    """FlashAttention-3's ``num_splits_heuristic``: all counts are eligible, so empty splits happen.

    Args:
        workers: batch (1 with a varlen scheduler) * KV heads * row blocks.
        sms: streaming multiprocessors, not doubled.
        blocks: key/value blocks of the sequence.
        row_blocks: blocks of query rows.
        kv_head_bytes: bytes of the keys and values of one head.
        masked: 1 with a causal mask or a window.
        most: upper limit (128 in the library).

    Raises:
        ValueError: an argument that must be at least 1 is less, or more than `MAX_STEPS` counts would be tried.

    Source: hopper/heuristics.h, in both forks.
    """
    if min(workers, sms, row_blocks, most) < 1 or min(blocks, kv_head_bytes) < 0:
        raise ValueError("workers, SMs, row blocks and the limit must be at least 1")
    if _crowded(workers, sms):
        large = kv_head_bytes > _L2 and row_blocks >= 2 * sms and not masked
        return min(-(-kv_head_bytes // _L2), most) if large else 1
    if blocks <= 4:
        return 1
    counts = range(1, _bounded(most, sms, blocks) + 1)
    efficiency = [_efficiency(workers, splits, sms) for splits in counts]
    best = max(efficiency)
    return next((s for s, e in zip(counts, efficiency, strict=True) if e >= 0.85 * best), 1)


@partition_rule
def fa3_varlen_splits(
    kv_lens: tuple[int, ...], kv_len: int, kv_heads: int, row_blocks: int, block: int, sms: int, bound: int
) -> int:
    """Splits of one sequence that FlashAttention-3's varlen scheduler chooses on the device.

    They depend on the whole batch: each SM should get the same number of blocks, with a margin of a tenth.

    Args:
        kv_lens: length of each sequence of the batch.
        kv_len: length of this sequence.
        kv_heads: KV heads (the kernel packs query heads).
        row_blocks: blocks of query rows of each sequence.
        block: tokens of one key/value block.
        sms: streaming multiprocessors.
        bound: the split count of the host, an upper bound.

    Raises:
        ValueError: no lengths, or an argument less than 1.

    The division by the SMs is f32, here correctly rounded; the kernel is built with fast-math division, which can
    differ in the last bit. Source: hopper/flash_prepare_scheduler.cu, in both forks.
    """
    if min(kv_heads, row_blocks, block, sms, bound) < 1 or kv_len < 0:
        raise ValueError("heads, blocks, SMs and the bound must be at least 1")
    if not kv_lens:
        raise ValueError("the lengths of the batch are not given: kv_lens")
    if bound == 1 or len(kv_lens) > _ONE_CTA:
        return 1
    total = sum(row_blocks * -(-n // block) for n in kv_lens)
    share = _f32(_f32(_f32(_f32(total) * _f32(1.1)) * _f32(kv_heads)) / _f32(sms))
    per_sm, blocks = math.ceil(share), -(-kv_len // block)
    return max(1, min(-(-blocks // per_sm), bound)) if per_sm else 1


def _tile(
    head_dim: int,
    head_dim_v: int,
    causal: int,
    local: int,
    element_bytes: int,
    v_colmajor: int,
    paged: int,
    softcap: int,
    one_warp_group: int,
    vllm: int,
) -> _TILE:
    """``tile_size_fwd_sm90``: rows, tokens, P from registers, softmax overlapped with the next QK."""
    if not 1 <= head_dim <= 256 or not 1 <= head_dim_v <= 512 or element_bytes not in (1, 2):
        raise ValueError("head_dim up to 256, head_dim_v up to 512, elements of 1 or 2 bytes")
    masked, gathered = bool(causal or local), bool(local or paged)
    if element_bytes == 1:
        return _tile_fp8(head_dim, bool(local), v_colmajor, paged, softcap, one_warp_group, vllm)
    if head_dim <= 64:
        if head_dim_v > 256:
            return 64, 64, False, False
        if head_dim_v > 192:
            return 128, 96, True, False
        if vllm and one_warp_group:
            return 64, 192, True, True
        if vllm:
            return 192, 128 if causal else 160 if gathered else 192, masked, not local
        narrow = masked or bool(paged)
        return 192, 128 if narrow else 192, narrow, True
    if head_dim <= 96:
        return 192, 128 if gathered else 144, False, True
    if head_dim <= 128:
        narrow = masked or bool(paged)
        if vllm and one_warp_group:
            return 64, 128 if narrow else 176, True, True
        return 128, 128 if narrow else 160 if vllm else 176, True, True
    if head_dim <= 192:
        return 128, 96 if gathered else 128 if head_dim_v <= 128 else 96 if vllm else 112, True, True
    return 128, 64 if local else 80, True, True


def _tile_fp8(
    head_dim: int, local: bool, v_colmajor: int, paged: int, softcap: int, one_warp_group: int, vllm: int
) -> _TILE:
    if vllm and one_warp_group:
        return 64, 128 if head_dim <= 96 else 96, True, True
    if vllm:
        sizes = ((64, 192, 128), (96, 128, 128), (128, 128, 192), (192, 128, 96))
        for limit, rows, tokens in sizes:
            if head_dim <= limit:
                return rows, tokens, True, True
    elif head_dim <= 64:
        return 192, 160, True, True
    elif head_dim <= 96:
        return 192, 128, True, True
    elif head_dim <= 128:
        return 128, 160 if paged else 192 if v_colmajor or (softcap and local) else 224, True, True
    elif head_dim <= 192:
        return 128, 128 if (paged or softcap) and local else 160, True, True
    return 128, 64 if local else 128, True, not paged


def _part(name: str, index: int, what: str) -> Rule:
    """The rule called ``name``: entry ``index`` of `_tile`, with the arguments of `_tile`."""

    @wraps(_tile)
    def part(*shape: int) -> int:
        return int(_tile(*shape)[index])

    part.__name__ = part.__qualname__ = name
    part.__doc__ = f"""{what} of FlashAttention-3 on Hopper.

    Args:
        head_dim, head_dim_v: as rounded up by the kernel; local: 1 with a window; paged: 1 for pages without TMA.
        one_warp_group, vllm: 1 for the fork's decode tile, and for the fork.

    Raises:
        ValueError: a size that the kernel does not take.

    Source: hopper/tile_size.h of each fork.
    """
    return partition_rule(part)


fa3_block_m = _part("fa3_block_m", 0, "Query rows of one tile")
fa3_block_n = _part("fa3_block_n", 1, "Tokens of one tile")
fa3_pv_from_registers = _part(
    "fa3_pv_from_registers", 2, "1 where the weights of PV stay in registers: a tile"
)
fa3_overlaps = _part("fa3_overlaps", 3, "1 where PV of a tile runs after the softmax of the next one: a tile")
