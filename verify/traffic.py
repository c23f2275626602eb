"""HBM traffic of attention algorithms, counted and not measured.

Every figure here is a **logical access count**: the bytes that an algorithm names when each of its loads and
stores goes to memory once. It is not measured traffic: caches, coalescing, prefetch, padding and replays on
real hardware add to it or take from it. The counts follow the published algorithms (dense: materialised
scores and probabilities; tiled: FlashAttention's online softmax, whose score tiles stay on chip; backward
with recomputation: FlashAttention-2's loop over KV blocks with dQ accumulated in f32). 1 MB is 10**6 bytes.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace

from specs.context import MAX_TOKENS
from specs.errors import InputError

F32_BYTES = 4
MEGABYTE = 10**6

#: The largest of each size of a `Layer`.
LIMITS = {
    "tokens": MAX_TOKENS,
    "q_heads": 1 << 16,
    "kv_heads": 1 << 16,
    "head_dim": 1 << 16,
    "element_bytes": 8,
    "batch": 1 << 20,
    "q_block": MAX_TOKENS,
    "kv_block": MAX_TOKENS,
}


@dataclass(frozen=True, slots=True)
class Layer:
    """The shape of one attention layer and the block sizes of a tiled algorithm.

    ``tokens`` is the length of the sequence (queries and keys alike), ``element_bytes`` the width of one
    element of q, k, v, the output and a materialised matrix. Defaults are the issue's: 32 heads of 128, 2
    bytes, 128 x 128 blocks, causal.

    Raises:
        InputError: a number is not positive or above `LIMITS`, or ``q_heads`` is no multiple of ``kv_heads``.
    """

    tokens: int
    q_heads: int = 32
    kv_heads: int = 32
    head_dim: int = 128
    element_bytes: int = 2
    batch: int = 1
    q_block: int = 128
    kv_block: int = 128
    causal: bool = True

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if name != "causal" and value < 1:
                raise InputError(f"{name} is {value}", place=name, remedy=f"give a {name} of at least 1")
            if name != "causal" and value > LIMITS[name]:
                raise InputError(
                    f"{name} is {value}", place=name, remedy=f"give a {name} of at most {LIMITS[name]}"
                )
        if self.q_heads % self.kv_heads:
            raise InputError(
                f"{self.q_heads} query heads do not divide over {self.kv_heads} KV heads",
                place="q_heads, kv_heads",
                remedy="give a number of query heads that is a multiple of the KV heads",
            )

    @property
    def q_bytes(self) -> int:
        """Bytes of q, and of the output."""
        return self.batch * self.tokens * self.q_heads * self.head_dim * self.element_bytes

    @property
    def kv_bytes(self) -> int:
        """Bytes of k and v together."""
        return 2 * self.batch * self.tokens * self.kv_heads * self.head_dim * self.element_bytes

    @property
    def matrix_bytes(self) -> int:
        """Bytes of one materialised tokens x tokens matrix over all heads."""
        return self.batch * self.q_heads * self.tokens * self.tokens * self.element_bytes

    @property
    def row_bytes(self) -> int:
        """Bytes of one f32 number per query row and head (a log-sum-exp, a row sum)."""
        return self.batch * self.q_heads * self.tokens * F32_BYTES


@dataclass(frozen=True, slots=True)
class Traffic:
    """A count of logical accesses: ``parts`` are (what, bytes), read or written."""

    algorithm: str
    parts: tuple[tuple[str, int], ...]

    @property
    def total(self) -> int:
        """All bytes together."""
        return sum(size for _, size in self.parts)

    @property
    def megabytes(self) -> float:
        """All bytes together, in MB of 10**6 bytes."""
        return self.total / MEGABYTE

    def part(self, name: str) -> int:
        """The bytes of the part called ``name``; KeyError if there is none."""
        return dict(self.parts)[name]

    def seconds(self, bytes_per_second: float) -> float:
        """The time these bytes take at a memory bandwidth, in seconds: a lower bound, if the count held.

        Raises:
            InputError: the bandwidth is not positive.
        """
        if not bytes_per_second > 0:
            raise InputError(
                f"memory bandwidth is {bytes_per_second}",
                place="bandwidth",
                remedy="give the platform a memory bandwidth above 0",
            )
        return self.total / bytes_per_second


def dense(layer: Layer) -> Traffic:
    """Dense forward: q, k, v and the output once, four passes over the matrix.

    The four passes: scores written, scores read by the softmax, probabilities written, probabilities read.
    """
    m = layer.matrix_bytes
    return Traffic(
        "dense",
        (
            ("q, k, v, output", 2 * layer.q_bytes + layer.kv_bytes),
            ("matrix", 4 * m),
        ),
    )


def visible_rows(layer: Layer) -> int:
    """Key rows that the tiled forward reads for one head: per query block min(tokens, end of the block)."""
    whole, rest = divmod(layer.tokens, layer.q_block)
    if not layer.causal:
        return layer.tokens * (whole + bool(rest))
    return layer.q_block * whole * (whole + 1) // 2 + (layer.tokens if rest else 0)


def floor_sum(count: int, divisor: int, step: int, offset: int) -> int:
    """The sum of ``(step * i + offset) // divisor`` over i = 0 .. count - 1, in logarithmic time.

    All arguments are at least 0 and ``divisor`` is positive. Whole parts of step and offset are summed in
    closed form; what is left counts lattice points below a line, and reflecting it swaps step and divisor.
    """
    total = 0
    while count > 0:
        whole, step = divmod(step, divisor)
        total += whole * count * (count - 1) // 2
        whole, offset = divmod(offset, divisor)
        total += whole * count
        # Below the line lie ``rows`` lattice rows; summed from the other side, the offset becomes ``rest``.
        count, rest = divmod(step * count + offset, divisor)
        step, divisor, offset = divisor, step, rest
    return total


def tiled(layer: Layer) -> Traffic:
    """Tiled forward: q and the output once, key and value rows once per query block that sees them.

    A causal query block that begins at ``start`` reads ``min(tokens, start + q_block)`` rows. Query heads
    that share a KV head read it each for itself, as separate thread blocks do.
    """
    row = 2 * layer.batch * layer.q_heads * layer.head_dim * layer.element_bytes
    return Traffic(
        "tiled",
        (("q, output", 2 * layer.q_bytes), ("k, v rows per query block", visible_rows(layer) * row)),
    )


def dense_backward(layer: Layer) -> Traffic:
    """Dense backward with the probabilities kept from the forward pass.

    Seven passes over the matrix: P read for dV; dP = dO V^T written; P and dP read and dS written for
    dS = P (dP - rowsum(P dP)); dS read twice, for dQ and dK.
    """
    return Traffic(
        "dense backward",
        (
            ("q, k, v, output gradient", 2 * layer.q_bytes + layer.kv_bytes),
            ("dq, dk, dv", layer.q_bytes + layer.kv_bytes),
            ("matrix", 7 * layer.matrix_bytes),
        ),
    )


def tiled_backward(layer: Layer) -> Traffic:
    """Tiled backward with recomputation: no matrix is stored; scores come again from q, k and the lse.

    Preprocessing reads the output and its gradient and writes one f32 row sum. Then each KV block reads its
    k and v once and, for every query block that sees it, q, the output gradient, the lse and the row sum, and
    reads and writes the f32 accumulator of dq. At the end dk and dv are written, and dq is converted.
    """
    seen = _queries_seen(layer)
    per_row = layer.batch * layer.q_heads
    vector = per_row * layer.head_dim
    gradient_rows = layer.q_heads // layer.kv_heads
    return Traffic(
        "tiled backward, recomputing",
        (
            ("preprocess: output, its gradient, row sum", 2 * layer.q_bytes + layer.row_bytes),
            ("k, v per query head", layer.kv_bytes * gradient_rows),
            ("q, output gradient per KV block", seen * 2 * vector * layer.element_bytes),
            ("lse, row sum per KV block", seen * 2 * per_row * F32_BYTES),
            ("dq accumulator in f32, read and written", seen * 2 * vector * F32_BYTES),
            ("dk, dv", layer.kv_bytes * gradient_rows),
            ("dq converted", layer.tokens * vector * (F32_BYTES + layer.element_bytes)),
        ),
    )


def _queries_seen(layer: Layer) -> int:
    """Query rows that each KV block meets, over all KV blocks: those from its own query block on."""
    blocks = -(-layer.tokens // layer.kv_block)
    skipped = floor_sum(blocks, layer.q_block, layer.kv_block, 0) if layer.causal else 0
    return blocks * layer.tokens - skipped * layer.q_block


@dataclass(frozen=True, slots=True)
class PartialField:
    """A number, or a vector of head_dim numbers, that a group hands to the merge; ``bits`` of its format."""

    name: str
    bits: int
    vector: bool


def partial_bytes(fields: tuple[PartialField, ...], head_dim: int) -> int:
    """Bytes of one group's partial for one query row."""
    return sum(f.bits * (head_dim if f.vector else 1) for f in fields) // 8


def split_decode(layer: Layer, groups: int, fields: tuple[PartialField, ...]) -> Traffic:
    """Split-KV decode of one token: k and v read once, one partial per group written and read back.

    ``groups`` is the plan's group count for a row and ``fields`` what a partial holds in the spec's formats.
    With one group there is no merge and no partial goes to memory. ``layer.tokens`` is the KV length; q and
    the output have one row.

    Raises:
        InputError: ``groups`` is not positive.
    """
    if groups < 1:
        raise InputError(f"{groups} groups", place="groups", remedy="a decode has at least one group")
    row = replace(layer, tokens=1)
    rows = layer.batch * layer.q_heads
    partial = 0 if groups == 1 else groups * rows * partial_bytes(fields, layer.head_dim)
    return Traffic(
        "split-KV decode",
        (
            ("q, output", 2 * row.q_bytes),
            ("k, v once", layer.kv_bytes),
            ("partials written", partial),
            ("partials read back", partial),
        ),
    )


@dataclass(frozen=True, slots=True)
class TileCount:
    """What one head stores (elements of scores and probabilities) and the tiles it computes."""

    dense_elements: int
    tiled_elements: int
    tile_elements: int
    tiles_visited: int


def tile_count(layer: Layer) -> TileCount:
    """Elements that the dense algorithm stores for one head against none in the tiled one, and its tiles.

    Causal dense attention stores the scores and the probabilities at or below the diagonal. The tiled
    algorithm keeps one score tile on chip and skips tiles that lie wholly above the diagonal.
    """
    n = layer.tokens
    stored = n * (n + 1) // 2 if layer.causal else n * n
    whole, rest = divmod(n, layer.q_block)
    across = -(-n // layer.kv_block)
    if layer.causal:
        below = floor_sum(whole, layer.kv_block, layer.q_block, layer.q_block + layer.kv_block - 1)
        visited = below + (across if rest else 0)
    else:
        visited = across * (whole + bool(rest))
    return TileCount(2 * stored, 0, layer.q_block * layer.kv_block, visited)
