"""Tiles and the plan of FlashInfer's native decode on tensor cores.

Source: flashinfer-ai/flashinfer fb28d724, include/flashinfer/attention/scheduler.cuh and prefill.cuh, utils.cuh.
"""

from __future__ import annotations

from collections import Counter

from specs.rules.registry import partition_rule

#: Shared memory of one SM and the most that one block may ask for, in bytes, by compute capability.
_SMALL, _MIDDLE, _LARGE = (102_400, 101_376), (167_936, 166_912), (233_472, 232_448)
_SHARED = {
    **dict.fromkeys((80, 87), _MIDDLE),
    **dict.fromkeys((86, 89, 120, 121), _SMALL),
    **dict.fromkeys((90, 100, 103, 110), _LARGE),
}


def _shared(capability: int) -> tuple[int, int]:
    if capability not in _SHARED:
        raise ValueError(f"the shared memory of compute capability {capability} is not known")
    return _SHARED[capability]


@partition_rule
def longest(kv_lens: tuple[int, ...]) -> int:
    """The largest length of the batch.

    Raises:
        ValueError: no lengths.
    """
    if not kv_lens:
        raise ValueError("the lengths of the batch are not given: kv_lens")
    return max(kv_lens)


@partition_rule
def flashinfer_query_tile(packed_rows: int, head_dim: int, kv_bytes: int, capability: int) -> int:
    """Packed query rows of one tile (``FA2DetermineCtaTileQ``): 16, 64 or 128 for head_dim up to 256.

    Args:
        packed_rows: query tokens times query heads of one KV head, averaged over the batch.
        kv_bytes: bytes of an element of K and V.

    Raises:
        ValueError: ``packed_rows`` is less than 1, head_dim is no multiple of 16 in 64..256, or an unknown GPU.
    """
    if packed_rows < 1 or kv_bytes not in (1, 2) or head_dim % 16 or not 64 <= head_dim <= 256:
        raise ValueError("rows of at least 1, head_dim a multiple of 16 in 64..256, elements of 1 or 2 bytes")
    if packed_rows > 64 and head_dim < 256:
        return 128
    if packed_rows > 16:
        return 64
    one_step = 16 * head_dim * 2 + 2 * head_dim * 16 * 4 * kv_bytes
    return 64 if one_step > _shared(capability)[1] else 16


@partition_rule
def flashinfer_kv_tile(head_dim: int, kv_bytes: int, query_tile: int, capability: int) -> int:
    """Tokens of one tile (``CTA_TILE_KV``), as many as let two blocks share the memory of an SM.

    Args:
        query_tile: 16 (four warps share the tokens), 64 or 128 (four warps share the rows).

    Raises:
        ValueError: a tile or head_dim that the kernel does not have, or an unknown GPU.

    Queries are 16-bit; there is no rotary embedding in the kernel.
    """
    if (
        query_tile not in (16, 64, 128)
        or kv_bytes not in (1, 2)
        or head_dim % 16
        or not 64 <= head_dim <= 256
    ):
        raise ValueError("a query tile of 16, 64 or 128, head_dim a multiple of 16 in 64..256, 1 or 2 bytes")
    per_sm, per_block = _shared(capability)
    warps = 4 if query_tile == 16 else 1
    repacked = kv_bytes == 1 and head_dim != 64 and query_tile > 16
    step = (2 * head_dim * kv_bytes + (head_dim * 2 if repacked else 0)) * 16 * warps
    fixed = query_tile * head_dim * 2
    fewest = 2 if kv_bytes == 1 and query_tile > 16 else 1
    blocks = 2 if per_sm >= 2 * (fixed + fewest * step) else 1
    room = (min(per_sm // blocks, per_block) - fixed) // step
    most = min(room, 4 if query_tile == 128 else 8)
    if most < fewest:
        raise ValueError("not even the smallest tile fits the shared memory")
    return 16 * warps * (1 << (most.bit_length() - 1))


@partition_rule
def flashinfer_kv_chunk(
    kv_lens: tuple[int, ...], q_tiles: int, page_size: int, window_pages: int, most: int
) -> int:
    """Tokens of one chunk (``PrefillBinarySearchKVChunkSize``): the smallest chunk with which the batch fits the GPU.

    Args:
        kv_lens: length of each sequence of the batch.
        q_tiles: query tiles of each sequence.
        page_size: tokens of a page; chunks are whole pages and hold at least 128 tokens.
        window_pages: pages that a sliding window can touch; 0: no window.
        most: work items that fit: two blocks an SM over the KV heads.

    Raises:
        ValueError: no lengths, or an argument less than 1.
    """
    if not kv_lens:
        raise ValueError("the lengths of the batch are not given: kv_lens")
    if min(q_tiles, page_size) < 1 or min(window_pages, most) < 0:
        raise ValueError("tiles and page size must be at least 1")
    pages = Counter(max(1, -(-n // page_size)) for n in kv_lens)
    if window_pages:
        pages = Counter(min(n, window_pages) for n in pages.elements())
    low, high = max(128 // page_size, 1), max(pages)
    while low < high:
        middle = (low + high) // 2
        if q_tiles * sum(count * -(-n // middle) for n, count in pages.items()) > most:
            low = middle + 1
        else:
            high = middle
    return low * page_size
