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
    """Lengths to try, ascending: all short ones, then by a fifth each."""
    found: list[int] = []
    length = max(1, least)
    while length < most:
        found.append(length)
        length = max(length + 1, length * 6 // 5)
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
    found: dict[tuple[int, ...], Tokens] = {}
    for _ in range(DRAWS):
        places: list[int] = []
        for i in range(count):
            ok = np.ones(len(known), np.bool_)
            for j, there in enumerate(places):
                ok[there] = False
                same = piece == piece[:, there, None]
                ok &= (same == alike[:, i, j, None]).all(axis=0)
                ok &= (~same | ((rank > rank[:, there, None]) == after[:, i, j, None])).all(axis=0)
            choices = np.flatnonzero(ok)
            if not len(choices):
                break
            places.append(int(rng.choice(choices)))
        else:
            found.setdefault(tuple(places), known[places].astype(np.int64))
            if len(found) == PLACEMENTS:
                break
    return list(found.values())
