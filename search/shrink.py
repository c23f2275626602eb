"""Smaller inputs that reach the same goal: fewest tokens of non-zero weight, then fewest tokens, then simplest values.

Tokens are left out by delta debugging (Zeller and Hildebrandt, IEEE TSE 28(2), 2002): pieces of the input are dropped,
first large ones, then small ones, as long as the goal is kept. A dropped token gets the lowest score and value 0, so
that the partition stays as it is; of an input around a captured one it goes back to what was captured. What takes part
in an answer is evaluated whole before it counts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from search.meter import OverBudgetError
from search.objective import integer_distances
from search.places import DOMAIN, F32, Tokens, filled, lengths, placements, signed
from search.simplify import simplified
from search.space import Inputs
from search.target import Measured, Target
from specs.errors import InputError, UlpscopeError

EVALUATIONS = 50_000
#: Factors on all values that are tried with every change: an output at the foot of a binade is worth most.
SCALES = 16
_SCALES = [1.0, *(2.0 ** (i / SCALES - 0.5) for i in range(1, SCALES))]
#: Where values cancel: by how much less of it is tried.
BALANCES = (1.0, 1.006, 1.02)
ROWS = 128
#: The most tokens of non-zero weight for which fewer tokens are looked for, and for which pairs are dropped.
FEW, PAIRS = 16, 24


@dataclass(frozen=True)
class Goal:
    """What must be kept.

    Attributes:
        integer: distance of the stored outputs of any two sides, at least.
        real: objective, at least.
    """

    integer: int | None = None
    real: float | None = None

    def __post_init__(self) -> None:
        if self.integer is None and self.real is None:
            raise InputError("nothing to keep", place="goal", remedy="give an integer or a real distance")

    def met(self, measured: Measured) -> NDArray[np.bool_]:
        """For each candidate whether it is feasible and meets the goal: bool ``[candidate]``."""
        ok = (measured.violation <= 0) & np.isfinite(measured.score)
        if self.real is not None:
            ok &= measured.score >= self.real
        if self.integer is not None:
            for distance in integer_distances(measured.outputs).values():
                ok &= distance >= max(0, self.integer)  # a mismatch of NaN or infinity is negative
        return ok


@dataclass(frozen=True)
class Stage:
    """One stage: its name, and what was left after it: tokens of non-zero weight, all tokens, the objective."""

    name: str
    support: int
    tokens: int
    score: float


@dataclass(frozen=True, eq=False)
class Shrunk:
    """A smaller input.

    Attributes:
        target: what it is an input of: shorter where tokens were deleted.
        inputs: one candidate with every token.
        measured: its evaluation, whole.
        goal: what was kept.
        support: its tokens of non-zero weight, ascending.
        stages: the first is the input as it was given.
        evaluations: candidates evaluated.
        exhausted: whether the budget ended it.
    """

    target: Target
    inputs: Inputs
    measured: Measured
    goal: Goal
    support: Tokens
    stages: tuple[Stage, ...]
    evaluations: int
    exhausted: bool


@dataclass(eq=False)
class _State:
    """An input that meets the goal, cut down to a domain of few tokens: the live ones, and others to fill it up."""

    target: Target
    goal: Goal
    rng: np.random.Generator
    whole: Inputs
    live: Tokens
    measured: Measured
    stages: list[Stage] = field(default_factory=list[Stage])

    #: Target, input and live tokens of ``measured``.
    known: tuple[Target, Inputs, Tokens] = field(init=False)
    # The domain.
    domain: Tokens = field(init=False)
    cut: Target = field(init=False)
    exhausted: bool = False

    def __post_init__(self) -> None:
        self.keep(self.measured)
        self.enter()

    def keep(self, measured: Measured) -> None:
        """The input was evaluated whole, and meets the goal."""
        self.measured = measured
        self.known = self.target, self.whole, self.live

    def note(self, name: str) -> None:
        self.stages.append(
            Stage(name, len(self.live), self.target.space.kv_len, float(self.measured.score[0]))
        )

    def enter(self) -> None:
        """Make the domain of the live tokens: a power of two of them, so that few shapes are compiled."""
        count = self.target.space.kv_len
        if self.target.space.base is not None or not self.target.compactable:
            self.domain, self.cut = np.arange(count), self.target
            return
        size = min(count, max(DOMAIN, 1 << (len(self.live) - 1).bit_length()))
        others = np.setdiff1d(np.arange(count), self.live)[: size - len(self.live)]
        self.domain = np.sort(np.concatenate([self.live, others]))
        self.cut = self.target.on(self.domain)

    @property
    def here(self) -> Inputs:
        """The input on the domain."""
        return Inputs(self.whole.scores[:, self.domain], self.whole.values[:, self.domain])

    @property
    def at(self) -> Tokens:
        """The live tokens within the domain."""
        return np.searchsorted(self.domain, self.live)

    def left(self) -> int:
        return int(min(self.target.meter.left, 1 << 62))

    def run(self, name: str, stage: Callable[[], None]) -> None:
        """One stage; where the budget ends it, what was last known to meet the goal is kept."""
        try:
            stage()
        except OverBudgetError:
            self.exhausted = True
            self.target, self.whole, self.live = self.known
            self.enter()
        self.note(name)

    def tell(self, candidates: Inputs) -> tuple[NDArray[np.bool_], NDArray[np.float64]]:
        """Whether candidates of the domain meet the goal, and their objectives."""
        met: list[NDArray[np.bool_]] = []
        score: list[NDArray[np.float64]] = []
        for begin in range(0, candidates.count, ROWS):
            rows = candidates.pick(slice(begin, begin + ROWS))
            done = 0
            if self.left() > 0:
                measured = self.cut.measure(rows)
                done = measured.inputs.count
                met.append(self.goal.met(measured))
                score.append(measured.score)
            if done < rows.count:
                self.exhausted = True
                rest = candidates.count - begin - done
                met.append(np.zeros(rest, np.bool_))
                score.append(np.full(rest, -math.inf))
                break
        return np.concatenate(met), np.concatenate(score)

    def accept(self, candidate: Inputs, live: Tokens) -> bool:
        """Take a candidate of the domain if it meets the goal whole."""
        scores, values = self.whole.scores.copy(), self.whole.values.copy()
        scores[:, self.domain], values[:, self.domain] = candidate.scores, candidate.values
        whole = Inputs(scores, values)
        measured = self.target.measure(whole)
        if not self.goal.met(measured)[0]:
            return False
        self.whole, self.live = whole, live
        self.keep(measured)
        if 2 * len(live) <= len(self.domain) > DOMAIN:
            self.enter()
        return True

    def neutral(self) -> Inputs:
        """What a dropped token gets, on the domain."""
        space = self.target.space
        if space.base is not None:
            return space.base
        floor = -np.inf if space.masks else -space.score_box
        shape = (1, len(self.domain), self.whole.dims)
        return Inputs(np.full(shape[:2], floor, np.float32), np.zeros(shape, np.float32))

    def without(self, drops: Sequence[Tokens]) -> tuple[Inputs, NDArray[np.int64]]:
        """For each set of live tokens (by number in ``live``) candidates without it, and which set each is without."""
        neutral, here, at = self.neutral(), self.here, self.at
        scores = np.repeat(here.scores, len(drops), axis=0)
        values = np.repeat(here.values, len(drops), axis=0)
        for row, drop in enumerate(drops):
            scores[row, at[drop]] = neutral.scores[0, at[drop]]
            values[row, at[drop]] = neutral.values[0, at[drop]]
        return self.tuned(scores, values)

    def tuned(self, scores: F32, values: F32) -> tuple[Inputs, NDArray[np.int64]]:
        """Candidates with other values of the same signs, and which each is of.

        All values are scaled: what an output is worth depends on where in its binade it lies. Where both signs occur,
        negative ones are scaled besides so that as much cancels as in the input, or a little less.
        """
        count = len(scores)
        if self.target.space.base is not None:
            return Inputs(scores, values), np.arange(count)
        positive, negative = signed(scores, values)
        p, m = signed(self.whole.scores, self.whole.values)
        mixed = (positive > 0) & (negative > 0) & (p > 0) & (m > 0)
        with np.errstate(divide="ignore", invalid="ignore"):
            balance = np.where(mixed, positive / negative / (p / m), 1.0)[:, None, :]
        tuned: list[F32] = []
        for less in BALANCES if mixed.any() else BALANCES[:1]:
            up = np.where(mixed & (p >= m), less, 1.0)[:, None, :]
            down = np.where(mixed & (p < m), less, 1.0)[:, None, :]
            v = np.where(values > 0, values * up, values * balance * down)
            over = np.abs(v).max(axis=(1, 2), keepdims=True) / (self.target.space.value_box / 2)
            v = v * 2.0 ** -np.ceil(np.log2(np.maximum(over, 1.0)))
            tuned += [self.target.stored(v * scale) for scale in _SCALES]
        return (
            Inputs(np.tile(scores, (len(tuned), 1)), np.concatenate(tuned)),
            np.tile(np.arange(count), len(tuned)),
        )

    @property
    def variants(self) -> int:
        """How many candidates `tuned` makes of one."""
        return (
            len(_SCALES)
            if (self.whole.values >= 0).all() or (self.whole.values <= 0).all()
            else 3 * len(_SCALES)
        )

    # -- fewest tokens of non-zero weight -------------------------------------------------------------------------

    def drop(self, drops: Sequence[Tokens]) -> bool:
        """Drop as many as possible of some sets of live tokens."""
        candidates, of = self.without(drops)
        met, score = self.tell(candidates)
        good = np.flatnonzero(met)
        if not len(good):
            return False
        # The sets that may go alone, best first, and then as many of them at once as may go together.
        value = {int(i): score[good[of[good] == i]].max() for i in np.unique(of[good])}
        order = sorted(value, key=lambda i: (-len(drops[i]), -value[i]))
        counts = sorted({*(1 << b for b in range(len(order).bit_length())), len(order)})
        unions = [np.unique(np.concatenate([drops[i] for i in order[:n]])) for n in counts if n <= len(order)]
        least = 1 if self.target.space.base is None else 0
        unions = [u for u in unions if len(u) <= len(self.live) - least]
        candidates, of = self.without(unions)
        met, score = self.tell(candidates)
        for which in sorted(np.flatnonzero(met), key=lambda i: (-len(unions[of[i]]), -score[i]))[:4]:
            if self.accept(candidates.pick([which]), np.delete(self.live, unions[of[which]])):
                return True
        return False

    def one_of_each(self) -> None:
        """Of live tokens that are alike, and lie in the same pieces, one."""
        if self.target.space.base is not None or len(self.live) <= FEW:
            return
        pieces = self.target.geometry.piece[:, self.live]
        values = self.whole.values[0, self.live].T
        alike = np.concatenate([self.whole.scores[:, self.live], values, pieces]).astype(np.float64)
        _, first = np.unique(alike, axis=1, return_index=True)
        if len(first) > FEW:
            return
        before, tokens = (self.whole, self.live), self.live[np.sort(first)]
        if self.settle(self.target, tokens, tokens):
            measured = self.target.measure(self.whole)
            if self.goal.met(measured)[0]:
                self.keep(measured)
                self.enter()
            else:
                self.whole, self.live = before

    def fewest_weights(self) -> None:
        """One of tokens that are alike, then delta debugging over the live tokens."""
        self.one_of_each()
        self.debug()

    def debug(self) -> None:
        """Delta debugging over the live tokens."""
        pieces = 2
        least = 1 if self.target.space.base is None else 0
        while len(self.live) > least and self.left() > 0:
            count = len(self.live)
            pieces = min(pieces, count)
            chunks = np.array_split(np.arange(count), pieces)
            most = max(1, self.left() // (2 * self.variants))
            if len(chunks) > most:
                chunks = [chunks[i] for i in self.rng.permutation(len(chunks))[:most]]
            keep = [np.setdiff1d(np.arange(count), c) for c in chunks] if pieces > 2 else []
            if self.drop([*chunks, *keep]):
                pieces = max(2, pieces // 2)
            elif pieces >= count:
                break
            else:
                pieces *= 2
        if 3 <= len(self.live) <= PAIRS and self.left() > 0:
            pairs = [np.array(p) for p in combinations(range(len(self.live)), 2)]
            if self.drop(pairs):
                self.debug()

    # -- fewest tokens --------------------------------------------------------------------------------------------

    def fewest_tokens(self) -> None:
        """The shortest sequence in which the live tokens, somewhere, meet the goal."""
        space = self.target.space
        if space.base is not None or len(self.live) > FEW:
            return
        states = [(self.target, self.whole, self.live)]
        last = len(self.live) - 1
        for length in lengths(max(DOMAIN, len(self.live)), space.kv_len):
            if self.left() <= 0 or self.fits(length):
                break
            last = length
        while self.target.space.kv_len - last > 1 and self.left() > 0:
            states.append((self.target, self.whole, self.live))
            middle = (self.target.space.kv_len + last) // 2
            if not self.fits(middle):
                last = middle
        self.exhausted |= self.left() <= 0
        states.append((self.target, self.whole, self.live))
        for self.target, self.whole, self.live in reversed(states):  # the shortest that meets the goal whole
            if self.target is states[0][0]:
                break
            measured = self.target.measure(self.whole)
            if self.goal.met(measured)[0]:
                self.keep(measured)
                break
        self.enter()

    def fits(self, length: int) -> bool:
        """Move to a sequence of that length, if that can be."""
        try:
            target = Target(
                self.target.sides, replace(self.target.space, kv_len=length), self.target.objective
            )
        except UlpscopeError:
            return False  # a side does not run at this length
        target.share(self.target)
        where = placements(self.target.geometry, self.live, target.geometry, self.rng)
        return any(self.settle(target, self.live, places) for places in where)

    def settle(self, target: Target, tokens: Tokens, places: Tokens) -> bool:
        """Move to an input of ``target`` with ``tokens`` at ``places`` and nothing else, if that meets the goal.

        What is evaluated are these tokens alone.
        """
        if self.left() <= 0:
            return False
        order = np.argsort(places)
        some = tokens[order]
        tuned, _ = self.tuned(self.whole.scores[:, some], self.whole.values[:, some])
        cut, candidates = filled(target, places[order], tuned)
        measured = cut.measure(candidates)
        met = self.goal.met(measured)
        if not met.any():
            return False
        best = int(np.where(met, measured.score, -math.inf).argmax())
        self.target, self.whole, self.live = target, cut.expand(candidates.pick([best])), places[order]
        return True


def shrink(
    target: Target,
    inputs: Inputs,
    *,
    keep: Goal | None = None,
    evaluations: int = EVALUATIONS,
    seed: int = 0,
) -> Shrunk:
    """Make an input smaller.

    Args:
        target: what it is an input of, not cut.
        inputs: one candidate with every token.
        keep: what must be kept; None: the integer distance that it has, or its objective where that is 0.
        evaluations: budget, at least 1.
        seed: seed of every random choice.

    Returns:
        the smallest input that was found; the input itself where there is no smaller one.

    Raises:
        InputError: the input does not meet the goal, or violates a constraint.
    """
    if inputs.count != 1:
        raise InputError(f"{inputs.count} candidates", place="inputs", remedy="give one")
    begin = target.evaluations
    with target.meter.within(begin + evaluations, None):
        return _shrunk(target, inputs, keep, seed, begin)


def _shrunk(target: Target, inputs: Inputs, keep: Goal | None, seed: int, begin: int) -> Shrunk:
    measured = target.measure(inputs)
    if keep is None:
        least = min(int(d[0]) for d in integer_distances(measured.outputs).values())
        keep = Goal(integer=least) if least > 0 else Goal(real=float(measured.score[0]))
    if not keep.met(measured)[0]:
        raise InputError(
            "the input violates a constraint or does not reach what is to be kept",
            place="goal",
            remedy="ask for less, or give another input",
        )
    rng = np.random.default_rng(np.random.SeedSequence(seed))
    state = _State(target, keep, rng, inputs, _support(target, inputs), measured)
    state.note("given")
    state.run("fewest tokens of non-zero weight", state.fewest_weights)
    state.run("fewest tokens", state.fewest_tokens)
    state.run("simplest values", lambda: _simplest(state))
    return Shrunk(
        target=state.target,
        inputs=state.whole,
        measured=state.measured,
        goal=keep,
        support=state.live,
        stages=tuple(state.stages),
        evaluations=target.evaluations - begin,
        exhausted=state.exhausted,
    )


def _support(target: Target, inputs: Inputs) -> Tokens:
    """The tokens that are not as a dropped one is."""
    space = target.space
    if space.base is not None:
        same = (inputs.scores == space.base.scores)[0] & (inputs.values == space.base.values)[0].all(axis=1)
        return np.flatnonzero(~same)
    floor = -np.inf if space.masks else -space.score_box
    return np.flatnonzero((inputs.scores[0] > floor) | (inputs.values[0] != 0).any(axis=1))


def _simplest(state: _State) -> None:
    """Take simpler numbers as long as the goal is kept."""
    while state.left() > 0 and len(state.live):
        at = state.at
        here = state.here
        candidates, gains = simplified(here.pick([0]), at, state.target.stored)
        if not candidates.count:
            return
        met, _ = state.tell(candidates)
        order = [int(i) for i in np.argsort(-gains, kind="stable") if met[i]]
        if not any(state.accept(candidates.pick([i]), state.live) for i in order[:4]):
            return
