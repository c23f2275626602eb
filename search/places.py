"""Where tokens go when a sequence gets shorter, and how a handful of them is evaluated alone."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from search.compact import Geometry
from search.space import Inputs
from search.target import Target

Tokens = NDArray[np.int64]
F32 = NDArray[np.float32]
#: Placements that are tried for one length, and draws among which they are looked for.
PLACEMENTS, DRAWS = 24, 200
#: Draws without any placement after which there is none.
BARREN = 50
#: Up to so many places all pairs of the first two tokens are looked at first.
SEEN = 512
#: Tokens of the smallest domain.
DOMAIN = 8


def signed(scores: F32, values: F32) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The weighted sums of positive and of negative values: float64 ``[candidate, dim]``."""
    s = scores.astype(np.float64)
    w = np.exp(s - np.where(np.isneginf(s), -1e300, s).max(axis=1, keepdims=True))[:, None, :]
    v = values.astype(np.float64)
    return (w @ np.maximum(v, 0))[:, 0], (w @ np.maximum(-v, 0))[:, 0]


def filled(target: Target, places: Tokens, inputs: Inputs) -> tuple[Target, Inputs]:
    """A target of some tokens, filled up to a power of two of them."""
    count = target.space.kv_len
    size = min(count, max(DOMAIN, 1 << (len(places) - 1).bit_length()))
    others = np.setdiff1d(np.arange(count), places)[: size - len(places)]
    domain = np.sort(np.concatenate([places, others]))
    at = np.searchsorted(domain, places)
    cut = target.on(domain)
    floor = -np.inf if target.space.masks else -target.space.score_box
    scores = np.full((inputs.count, len(domain)), floor, np.float32)
    values = np.zeros((inputs.count, len(domain), inputs.dims), np.float32)
    scores[:, at], values[:, at] = inputs.scores, inputs.values
    return cut, Inputs(scores, values)


def lengths(least: int, most: int) -> list[int]:
    """Lengths to try, ascending, by a third each."""
    found: list[int] = []
    length = max(1, least)
    while length < most:
        found.append(length)
        length = max(length + 1, length * 4 // 3)
    return found


def placements(old: Geometry, live: Tokens, new: Geometry, rng: np.random.Generator) -> list[Tokens]:
    """Places for tokens in another partition: those that share a piece on a side do so again, in the same order."""
    count, length = len(live), new.piece.shape[1]
    cells = np.concatenate([new.piece, np.minimum(new.rank, 1)])
    _, first = np.unique(cells, axis=1, return_index=True)
    _, last = np.unique(cells[:, ::-1], axis=1, return_index=True)
    known = np.unique(np.concatenate([first, length - 1 - last, np.arange(min(length, 2 * DOMAIN))]))
    known = known if len(known) >= count else np.arange(length)
    piece, rank = new.piece[:, known], new.rank[:, known]
    alike = old.piece[:, live, None] == old.piece[:, None, live]
    after = old.rank[:, live, None] > old.rank[:, None, live]
    memory: dict[tuple[int, int, int], NDArray[np.bool_]] = {}

    def beside(i: int, j: int, there: int) -> NDArray[np.bool_]:
        """Places of token i, if token j is at ``there``."""
        if (i, j, there) not in memory:
            same = piece == piece[:, there, None]
            order = ~same | ((rank > rank[:, there, None]) == after[:, i, j, None])
            ok = ((same == alike[:, i, j, None]) & order).all(axis=0)
            ok[there] = False
            memory[i, j, there] = ok
        return memory[i, j, there]

    # Most lengths that are too short have no place for the first two.
    few = count > 1 and len(known) <= SEEN
    if few and not any(beside(1, 0, there).any() for there in range(len(known))):
        return []
    found: dict[tuple[int, ...], Tokens] = {}
    for draw in range(DRAWS):
        if draw == BARREN and not found:
            break
        places: list[int] = []
        for i in range(count):
            ok = np.ones(len(known), np.bool_)
            for j, there in enumerate(places):
                ok = ok & beside(i, j, there)
            choices = np.flatnonzero(ok)
            if not len(choices):
                break
            places.append(int(choices[rng.integers(len(choices))]))
        else:
            found.setdefault(tuple(places), known[places].astype(np.int64))
            if len(found) == PLACEMENTS:
                break
    return list(found.values())
