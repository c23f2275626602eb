"""What is taken for granted of a rule (a loop, or a table) in a proof, and the check of it over a grid.

A contract bounds a rule's result by its arguments. `check` computes the rule everywhere on the grid that the platforms
of the library allow, for kv_len to 2**20, batch to 4,096 and 256 heads; where lengths of a whole batch are an argument
there is no such grid, and the contract is only tested.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specs.rules import call_rule

MAX_KV = 1 << 20
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True)
class Contract:
    """Bounds on the result of a rule.

    Attributes:
        least: no result is below.
        most: from upper bounds of the arguments, an upper bound of the result.
        facts: terms of Z3 that hold of a result and its arguments (None for a list).
        from_one: the arguments that must be at least 1 for the rule to have an answer, by number.
        text: the contract in words.
    """

    least: int
    most: Callable[[Sequence[Any]], int]
    facts: Callable[[Any, Sequence[Any]], list[Any]]
    from_one: tuple[int, ...]
    text: str


def _capped(place: int) -> Callable[[Any, Sequence[Any]], list[Any]]:
    def facts(x: Any, a: Sequence[Any]) -> list[Any]:
        import z3

        return [z3.Or(x <= a[place], x == 1)]

    return facts


def _tile(x: Any, a: Sequence[Any]) -> list[Any]:
    import z3

    return [z3.Implies(a[2] == 16, x % 64 == 0), x % 16 == 0]


def _chunk(x: Any, a: Sequence[Any]) -> list[Any]:
    return [x >= a[2]]


CONTRACTS: dict[str, Contract] = {
    "fa2_num_splits": Contract(
        1, lambda a: max(1, min(a[3], a[1])), _capped(3), (0, 1, 3), "1 <= splits <= the limit (128)"
    ),
    "fa3_num_splits": Contract(
        1, lambda a: max(1, a[6]), _capped(6), (0, 1, 3, 6), "1 <= splits <= the limit (128)"
    ),
    "fa3_varlen_splits": Contract(
        1, lambda a: max(1, a[6]), _capped(6), (2, 3, 4, 5, 6), "1 <= splits <= the host's bound"
    ),
    "flashinfer_query_tile": Contract(
        16, lambda a: 128, lambda x, a: [_among(x, (16, 64, 128))], (0,), "a tile of 16, 64 or 128 rows"
    ),
    "flashinfer_kv_tile": Contract(
        16, lambda a: 512, _tile, (), "whole warps of 16 tokens: 4 warps where a tile has 16 rows, else 1"
    ),
    "flashinfer_kv_chunk": Contract(1, lambda a: 1 << 24, _chunk, (1, 2), "a chunk of at least one page"),
    "longest": Contract(0, lambda a: MAX_KV, lambda x, a: [], (), "a length of the batch, at most 2^20"),
    "fa3_block_m": Contract(64, lambda a: 192, lambda x, a: [], (), "64 to 192 rows"),
    "fa3_block_n": Contract(64, lambda a: 256, lambda x, a: [], (), "64 to 256 tokens"),
}


def _among(x: Any, values: Sequence[int]) -> Any:
    import z3

    return z3.Or([x == v for v in values])


@dataclass(frozen=True)
class Checked:
    """Where a contract was checked.

    Attributes:
        exhaustive: whether the grid is all that the platforms allow.
        count: how many arguments.
        words: over what, and how.
        broken: arguments and result that break it; empty where none do.
    """

    exhaustive: bool
    count: int
    words: str
    broken: str = ""


def check(name: str, sm_counts: Sequence[int]) -> Checked:
    """Compute a rule over its grid and compare it with its contract.

    Args:
        name: of a rule with a contract.
        sm_counts: those of the platforms.
    """
    return _check(name, tuple(sm_counts))


@cache
def _check(name: str, sm_counts: tuple[int, ...]) -> Checked:
    checks: dict[str, Callable[[Sequence[int]], Checked]] = {
        "fa2_num_splits": _fa2,
        "fa3_num_splits": _fa3,
        "fa3_varlen_splits": _varlen,
        "flashinfer_query_tile": _query_tile,
        "flashinfer_kv_tile": _kv_tile,
        "flashinfer_kv_chunk": _kv_chunk,
        "longest": _longest,
        "fa3_block_m": lambda s: _blocks("fa3_block_m", 64, 192),
        "fa3_block_n": lambda s: _blocks("fa3_block_n", 64, 256),
    }
    return checks[name](sm_counts)


def fa2_many(workers: int, slots: int, blocks: Ints, most: int, fresh: Bools | None = None) -> Ints:
    """``fa2_num_splits`` for many counts of blocks at once, in f32 as the rule: int64 ``[blocks]``.

    A form of its own, held against `specs.rules.fa2_num_splits` by `check` and by the tests. ``fresh``: what `_fresh`
    says of these blocks, where it is known.
    """
    one = np.float32
    if one(workers) >= one(0.8) * one(slots):
        return np.ones_like(blocks)
    top = min(most, slots)
    allowed = (_fresh(blocks, most) if fresh is None else fresh)[:, :top]
    return _first_good(_efficiency(workers, slots, top), allowed)


def fa3_many(workers: int, sms: int, blocks: Ints, most: int) -> Ints:
    """``fa3_num_splits`` likewise, for a sequence whose keys and values of one head fit the L2 cache."""
    one = np.float32
    if one(workers) >= one(0.8) * one(sms):
        return np.ones_like(blocks)
    top = min(most, sms)
    found = _first_good(_efficiency(workers, sms, top), np.arange(1, top + 1) <= blocks[:, None])
    return np.where(blocks <= 4, 1, found)


def _efficiency(workers: int, slots: int, top: int) -> NDArray[np.float64]:
    waves = (np.float32(workers) * np.arange(1, top + 1).astype(np.float32)) / np.float32(slots)
    return (waves / np.ceil(waves)).astype(np.float64)


def _first_good(efficiency: NDArray[np.float64], allowed: Bools) -> Ints:
    """The first split count that reaches 85% of the best one, of those that are allowed; 1 where none is."""
    order = np.argsort(-efficiency, kind="stable")
    best = efficiency[order[allowed[:, order].argmax(axis=1)]]
    good = allowed & (efficiency >= 0.85 * best[:, None])
    return np.where(good.any(axis=1), good.argmax(axis=1) + 1, 1)


def _fresh(blocks: Ints, most: int) -> Bools:
    """Which split counts FlashAttention-2 tries: those that change the length of a split."""
    splits = np.arange(1, most + 1)
    each = -(-blocks[:, None] // splits)
    fresh = np.ones(each.shape, np.bool_)
    fresh[:, 1:] = each[:, 1:] != each[:, :-1]
    return fresh & (splits <= blocks[:, None])


def _fa2(sm_counts: Sequence[int]) -> Checked:
    most, narrowest = 128, 64
    # Past 128 * 127 blocks every split count changes the length of a split, so those are alike.
    blocks = np.arange(0, min(-(-MAX_KV // narrowest), most * (most - 1)) + 1)
    fresh = _fresh(blocks, most)
    _, first = np.unique(np.packbits(fresh, axis=1), axis=0, return_index=True)
    blocks, fresh = blocks[np.sort(first)], fresh[np.sort(first)]

    def many(workers: int, sms: int) -> Ints:
        return fa2_many(workers, 2 * sms, blocks, most, fresh)

    def rule(workers: int, sms: int, count: int) -> int:
        return call_rule("fa2_num_splits", (workers, 2 * sms, count, most))

    return _grid("fa2_num_splits", [(s, 2 * s) for s in sm_counts], blocks, many, rule)


def _fa3(sm_counts: Sequence[int]) -> Checked:
    blocks = np.arange(0, 130)  # past the limit of 128 splits blocks do not matter

    def many(workers: int, sms: int) -> Ints:
        return fa3_many(workers, sms, blocks, 128)

    def rule(workers: int, sms: int, count: int) -> int:
        return call_rule("fa3_num_splits", (workers, sms, count, 1, 1 << 20, 0, 128))

    return _grid("fa3_num_splits", [(s, s) for s in sm_counts], blocks, many, rule)


def _grid(
    name: str,
    machines: Sequence[tuple[int, int]],
    blocks: Ints,
    many: Callable[[int, int], Ints],
    rule: Callable[[int, int, int], int],
) -> Checked:
    """Every count of workers below the one from which the rule says 1, on machines of so many SMs and slots."""
    count = 0
    limit = np.maximum(1, np.minimum(128, blocks))
    for sms, slots in machines:
        for workers in range(1, -(-slots * 4 // 5) + 2):
            found = many(workers, sms)
            count += len(blocks)
            bad = np.flatnonzero((found < 1) | (found > limit))
            if bad.size:
                return Checked(True, count, "", f"{workers} workers, {sms} SMs, {int(blocks[bad[0]])} blocks")
            at = (workers * 7919) % len(blocks)
            if rule(workers, sms, int(blocks[at])) != found[at]:
                where = f"{workers} workers, {sms} SMs, {int(blocks[at])} blocks"
                return Checked(True, count, "", f"{where}: the two forms of {name} differ")
    more, broken = _on_any_gpu(name, slots_per_sm=machines[0][1] // machines[0][0], rule=rule)
    count += more
    if broken:
        return Checked(True, count, "", broken)
    counts = ", ".join(str(sms) for sms, _ in machines)
    words = (
        f"every count of workers (1 split from 80% of the slots on) and of blocks for kv_len to 2^20 on {counts} SMs, "
        "blocks that allow the same splits once; by a vectorised form, held against the rule once for each count of "
        "workers. For any other SM count the loop says it (1, or a count that it tried, and it tries none above the "
        f"limit, the slots or the blocks), read from the code and tested by {more:,} calls on 1 to 512 SMs"
    )
    return Checked(True, count, words)


def _on_any_gpu(name: str, slots_per_sm: int, rule: Callable[[int, int, int], int]) -> tuple[int, str]:
    """The rule itself on every SM count: workers up to where it no longer splits, and blocks of any length."""
    rng, count = np.random.default_rng(7), 0
    for sms in range(1, 513):
        slots = slots_per_sm * sms
        edge = max(1, slots * 4 // 5)
        for workers in (1, max(1, edge - 1), edge, int(rng.integers(1, edge + 1))):
            blocks = int(2 ** rng.uniform(0, 14))
            found, most = rule(workers, sms, blocks), max(1, min(128, slots, blocks))
            count += 1
            if not 1 <= found <= most:
                return count, f"{workers} workers, {sms} SMs, {blocks} blocks: {found}, for {name}"
    return count, ""


def _varlen(sm_counts: Sequence[int]) -> Checked:
    rng, count = np.random.default_rng(5), 0
    for _ in range(400):
        lens = tuple(int(x) for x in rng.integers(0, MAX_KV, rng.integers(1, 65)))
        sms, bound = int(rng.choice(list(sm_counts))), int(rng.integers(1, 257))
        found = call_rule("fa3_varlen_splits", (lens, lens[0], int(rng.integers(1, 257)), 1, 128, sms, bound))
        count += 1
        if not 1 <= found <= max(1, bound):
            return Checked(False, count, "", f"bound {bound}: {found}")
    return Checked(False, count, "random batches")


def _query_tile(sm_counts: Sequence[int]) -> Checked:
    grid = [
        (rows, dim, size, cc)
        for rows in range(1, 257)
        for dim in range(64, 257, 16)
        for size in (1, 2)
        for cc in (80, 86, 89, 90, 100, 120)
    ]
    bad = next((g for g in grid if call_rule("flashinfer_query_tile", g) not in (16, 64, 128)), None)
    return Checked(True, len(grid), "1 to 256 rows, every head_dim, element size and GPU", str(bad or ""))


def _kv_tile(sm_counts: Sequence[int]) -> Checked:
    from specs.errors import SpecError

    count, refused = 0, 0
    for dim in range(64, 257, 16):
        for size in (1, 2):
            for rows in (16, 64, 128):
                for cc in (80, 86, 89, 90, 100, 120):
                    try:
                        found = call_rule("flashinfer_kv_tile", (dim, size, rows, cc))
                    except SpecError:
                        refused += 1
                        continue
                    count += 1
                    if not (16 <= found <= 512 and found % (64 if rows == 16 else 16) == 0):
                        return Checked(True, count, "", f"head_dim {dim}, {rows} rows, sm_{cc}: {found}")
    return Checked(True, count, f"every head_dim, element size, query tile and GPU; {refused} have no tile")


def _kv_chunk(sm_counts: Sequence[int]) -> Checked:
    rng, count = np.random.default_rng(6), 0
    for _ in range(400):
        lens = tuple(int(x) for x in rng.integers(1, MAX_KV, rng.integers(1, 65)))
        page = int(rng.choice([1, 16, 64, 256]))
        found = call_rule(
            "flashinfer_kv_chunk", (lens, int(rng.integers(1, 5)), page, 0, int(rng.integers(0, 1024)))
        )
        count += 1
        if found < page:
            return Checked(False, count, "", f"pages of {page}: {found}")
    return Checked(False, count, "random batches")


def _longest(sm_counts: Sequence[int]) -> Checked:
    return Checked(
        False,
        1,
        "one batch: it is max() of the lengths",
        "" if call_rule("longest", ((3, 7),)) == 7 else "3, 7",
    )


def _blocks(name: str, low: int, high: int) -> Checked:
    from itertools import product

    dims = (64, 96, 128, 192, 256)
    grid = [
        (d, d, c, w, e, v, p, s, o, f)
        for d in dims
        for c, w, e, v, p, s, o, f in product((0, 1), (0, 1), (1, 2), *[(0, 1)] * 5)
    ]
    bad = next((g for g in grid if not low <= call_rule(name, g) <= high), None)
    return Checked(True, len(grid), "every head_dim and every flag", str(bad or ""))
