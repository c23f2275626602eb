"""Which parts can be exchanged on their own: parts are joined until every hybrid that is needed is legal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations

import numpy as np

from search.explain.hybrid import Hybrid, Maker, Taken, merged
from search.explain.meaning import sample_of, sample_tokens
from search.explain.pool import Pool
from search.explain.quick import QuickArithmetic
from search.explain.reals import CLOSE, RealArithmetic
from search.explain.shapley import EXACT, every_set, sampled_orders, sets_of
from specs.errors import UlpscopeError, UnsupportedError
from verify.arguments import Problem
from verify.partition import plan_program

#: Tokens of the sample on which hybrids are evaluated once, with their roundings.
FEW = 20
Progress = Callable[[str, int, int], None]


@dataclass
class Legality:
    """Judges hybrids.

    Attributes:
        maker: makes them.
        same_function: whether both sides are one function of real numbers on the sample; if not, meanings are not
            compared.
        joined: which parts were joined, and why.
        unchecked: why meanings are not known; empty if they are.
    """

    maker: Maker
    same_function: bool = True
    joined: list[str] = field(default_factory=list[str])
    unchecked: str = ""
    _known: dict[frozenset[str], Hybrid | str] = field(default_factory=dict[frozenset[str], Hybrid | str])

    def __post_init__(self) -> None:
        self._pool, self._scalars = Pool(RealArithmetic()), Pool(QuickArithmetic())
        self._few: Problem | None = None
        self._sample: Problem | None = None
        self._truth: list[float] = []
        everything = frozenset(range(len(self.maker.parts)))
        ends = [self.maker.make(s) for s in (frozenset[int](), everything)]
        try:
            meanings = [self._meaning(end) for end in ends]
        except UlpscopeError as error:
            self.same_function, self.unchecked = False, error.cause
            return
        self._truth += meanings[0]
        self.same_function = _close(*meanings)

    def judge(self, taken: Taken) -> Hybrid | str:
        """The hybrid, or why it is not legal."""
        atoms = frozenset(a for i in taken for a in self.maker.parts[i].atoms)
        if atoms not in self._known:
            self._known[atoms] = self._judge(taken)
        found = self._known[atoms]
        return replace(found, taken=taken) if isinstance(found, Hybrid) else found

    def hybrid(self, taken: Taken) -> Hybrid:
        """A hybrid that is known to be legal."""
        found = self.judge(taken)
        assert isinstance(found, Hybrid), found
        return found

    def _judge(self, taken: Taken) -> Hybrid | str:
        try:
            found = self.maker.make(taken)
            self._values(found)
            if self.same_function and not _close(self._meaning(found), self._truth):
                return "it is another function of real numbers"
        except UlpscopeError as error:
            return error.cause
        except RecursionError:
            return "its lines refer to each other in a circle"
        return found

    def separate(
        self, seed: int, orders: int, progress: Progress
    ) -> tuple[list[tuple[int, ...]], list[Taken]]:
        """Join parts until every hybrid that is evaluated is legal.

        Args:
            seed, orders: of sampled orders, where there are more than `EXACT` parts.
            progress: told how many hybrids were judged.

        Returns:
            the sampled orders (none: all sets are evaluated), and the sets.

        Raises:
            UnsupportedError: a side itself cannot be evaluated by the definition.
        """
        while True:
            n = len(self.maker.parts)
            drawn = [] if n <= EXACT else sampled_orders(n, orders, seed)
            sets = sets_of(drawn) if drawn else every_set(n)
            found: list[tuple[Taken, str]] = []
            for done, s in enumerate(sets):
                progress("hybrids checked", done, len(sets))
                reason = self.judge(s)
                if isinstance(reason, str):
                    found.append((s, reason))
                    if n > EXACT:
                        break
            if not found:
                return drawn, sets
            lost = next((why for s, why in found if len(s) in (0, n)), None)
            if lost is not None:
                raise UnsupportedError(
                    f"a side cannot be evaluated by the definition: {lost}",
                    place="explain",
                    remedy="use --no-attribution",
                )
            i, j = _to_join(n, [s for s, _ in found])
            why = next(r for s, r in found if (i in s) != (j in s))
            names = [self.maker.parts[k].name for k in sorted((i, j))]
            self.joined.append(f"'{names[0]}' and '{names[1]}' go together: {why}")
            self.maker = replace(self.maker, parts=merged(self.maker.parts, i, j))

    def _values(self, hybrid: Hybrid) -> None:
        """Evaluate a hybrid on a few tokens: its platform may lack an instruction, a format a function.

        Raises:
            UnsupportedError: something has no value.
        """
        if self._few is None:
            self._few = sample_of(hybrid.problem, min(hybrid.problem.kv_len, FEW))
        self._on(hybrid, self._few, self._scalars)

    def _meaning(self, hybrid: Hybrid) -> list[float]:
        """The output of a hybrid on a small sample, in real numbers."""
        return self._on(hybrid, self._problem(hybrid), self._pool)

    def _on(self, hybrid: Hybrid, sample: Problem, pool: Pool) -> list[float]:
        plan = plan_program(hybrid.program, {**hybrid.plan.context, "kv_len": sample.kv_len})
        small = replace(hybrid, plan=plan, problem=sample, memory={})
        with np.errstate(all="ignore"):
            return pool.values(small, (0, 0), _columns(sample), (hybrid.site,))[hybrid.site]

    def _problem(self, hybrid: Hybrid) -> Problem:
        if self._sample is None:
            self._sample = sample_of(hybrid.problem, sample_tokens(self.maker.runs))
        return self._sample


def _columns(problem: Problem) -> list[int]:
    return sorted({0, min(5, problem.v.shape[-1] - 1)})


def _close(a: Sequence[float], b: Sequence[float]) -> bool:
    size = max(map(abs, b), default=0.0)
    return all(
        abs(x - y) <= CLOSE * max(1e-3, size) or (x != x and y != y) for x, y in zip(a, b, strict=True)
    )


def _to_join(n: int, illegal: Sequence[Taken]) -> tuple[int, int]:
    """The two parts that most of the illegal sets tell apart; neighbours first, those next to the output before others."""

    def rank(pair: tuple[int, int]) -> tuple[int, int, int]:
        i, j = pair
        return sum((i in s) != (j in s) for s in illegal), -abs(i - j), i

    return max(combinations(range(n), 2), key=rank)
