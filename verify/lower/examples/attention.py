"""A small split-KV decode attention in Triton, to lower: one kernel for the splits, one that merges them.

Written for this package. `LOWER` says with which types and constants ``ulpscope lower`` compiles each kernel.
"""

# pyright: basic, reportMissingImports=false
import triton
import triton.language as tl

LOWER = {
    "attend": {
        "signature": {
            "Q": "*bf16:16",
            "K": "*bf16:16",
            "V": "*bf16:16",
            "PART": "*fp32:16",
            "MAX": "*fp32:16",
            "SUM": "*fp32:16",
            "scale": "fp32",
            "length": "i32",
            "span": "i32:16",
        },
        "constexprs": {"ROWS": 16, "TILE": 16, "DIM": 64},
        "num_warps": 4,
    },
    "merge": {
        "signature": {"PART": "*fp32:16", "MAX": "*fp32:16", "SUM": "*fp32:16", "OUT": "*bf16:16"},
        "constexprs": {"SPLITS": 16, "DIM": 128},
        "num_warps": 4,
    },
}


@triton.jit
def attend(
    Q, K, V, PART, MAX, SUM, scale, length, span, ROWS: tl.constexpr, TILE: tl.constexpr, DIM: tl.constexpr
):
    """One split: `span` keys from `split * span` on, by tiles of TILE; partial output, maximum and sum."""
    split = tl.program_id(0)
    rows = tl.arange(0, ROWS)
    dims = tl.arange(0, DIM)
    keys = tl.arange(0, TILE)
    q = tl.load(Q + rows[:, None] * DIM + dims[None, :])
    top = tl.full([ROWS], float("-inf"), tl.float32)
    norm = tl.full([ROWS], 0.0, tl.float32)
    part = tl.zeros([ROWS, DIM], tl.float32)
    first = split * span
    for start in range(first, tl.minimum(first + span, length), TILE):
        at = start + keys
        k = tl.load(K + at[None, :] * DIM + dims[:, None], mask=at[None, :] < length, other=0.0)
        v = tl.load(V + at[:, None] * DIM + dims[None, :], mask=at[:, None] < length, other=0.0)
        score = tl.where(at[None, :] < length, scale * tl.dot(q, k), float("-inf"))
        best = tl.maximum(top, tl.max(score, 1))
        weight = tl.exp(score - best[:, None])
        decay = tl.exp(top - best)
        norm = norm * decay + tl.sum(weight, 1)
        part = tl.dot(weight.to(tl.bfloat16), v, part * decay[:, None])
        top = best
    out = (split * ROWS + rows) * DIM
    tl.store(PART + out[:, None] + dims[None, :], part)
    tl.store(MAX + split * ROWS + rows, top)
    tl.store(SUM + split * ROWS + rows, norm)


@triton.jit
def merge(PART, MAX, SUM, OUT, SPLITS: tl.constexpr, DIM: tl.constexpr):
    """One query head: the splits' partial outputs, weighted and divided."""
    row = tl.program_id(0)
    rows = tl.num_programs(0)
    splits = tl.arange(0, SPLITS)
    dims = tl.arange(0, DIM)
    top = tl.load(MAX + splits * rows + row)
    norm = tl.load(SUM + splits * rows + row)
    w = tl.exp(top - tl.max(top, 0))
    total = tl.sum(norm * w, 0)
    part = tl.load(PART + (splits[:, None] * rows + row) * DIM + dims[None, :])
    value = tl.sum(part * w[:, None], 0)
    tl.store(OUT + row * DIM + dims, (value / total).to(tl.bfloat16))
