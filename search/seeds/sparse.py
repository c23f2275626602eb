"""A target on a few tokens of the real partition: all others stand where they stood, but with nothing in them.

Unlike `search.compact` every piece keeps its place, so that it serves specs whose lines depend on positions. Candidates
are evaluated by the definition over arrays (`search.seeds.batch`): nothing is compiled. What the missing tokens, of the
lowest score and value 0, add to sums is left out, so what is found must be evaluated whole before it counts.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from search.evaluate import Evaluator, Outputs, realised, values_of
from search.objective import violation
from search.samples import row_inputs
from search.seeds.batch import BatchArithmetic
from search.space import Inputs
from search.target import Measured, Target
from specs.errors import SpecError, UnsupportedError
from specs.nodes import Name
from verify.definition import RowInputs, Walker
from verify.numerics.rounding import storage_dtype, store
from verify.partition import Plan

#: What is won before the output is rounded counts so much, as a hint where the output is a sum of narrow numbers.
HINT = 1e-3
LIMIT = 100.0
_INDICES = ("key_index", "query_index")
#: Elements of q and k that are walked: the others are 0, see `search.evaluate.realised`.
DEEP = 32


class Sparse(Target):
    """A target on ``tokens`` alone, in their places.

    Args:
        target: the whole target.
        tokens: int64, ascending.

    Raises:
        UnsupportedError: a side cannot be evaluated so: lines depend on token numbers, scores are scaled twice, or a
            construct has no array form.
    """

    def __init__(self, target: Target, tokens: NDArray[np.int64]) -> None:
        self.__dict__.update(copy.copy(target).__dict__)
        self.support = tokens
        self.scalar = True  # whole inputs are evaluated by the definition, too
        self.compactable = False
        self.walks = tuple(_Walk(e, tokens) for e in target.evaluators)

    def measure(self, inputs: Inputs) -> Measured:
        """Evaluate a batch of the tokens on every side."""
        inputs = inputs.pick(slice(0, self.meter.granted(inputs.count)))
        with np.errstate(all="ignore"):
            found = [w.run(inputs) for w in self.walks]
        outputs = tuple(o for o, _ in found)
        self.meter.spent += inputs.count  # not noted as the best: it is not evaluated whole
        score = self.objective.score(outputs)
        if any(e.site == "output" for e in self.evaluators):
            score = score + HINT * np.minimum(self.objective.score([o for _, o in found]), LIMIT)
        return Measured(inputs, score, violation(inputs, self.space), outputs)


class _Walk:
    """One side of a `Sparse` target."""

    def __init__(self, evaluator: Evaluator, tokens: NDArray[np.int64]) -> None:
        self.evaluator = evaluator
        self.program = program = evaluator.program
        _check(evaluator)
        whole = _kept(evaluator.plan, tokens)
        self.plans = [_trimmed(whole, outermost=True), _trimmed(whole, outermost=False), whole]
        self.scalars = {n: x for n, x in evaluator.scalars.items() if n not in program.sites}

    def run(self, inputs: Inputs) -> tuple[Outputs, Outputs]:
        """The outputs of a batch, and the same with nothing rounded to a narrow format in the line ``output``.

        Raises:
            UnsupportedError: a construct has no array form.
        """
        while True:
            try:
                return self._run(inputs, self.plans[0])
            except SpecError:  # a line reads a piece that was cut off
                if len(self.plans) == 1:
                    raise
                self.plans.pop(0)

    def _run(self, inputs: Inputs, plan: Plan) -> tuple[Outputs, Outputs]:
        e, program, n = self.evaluator, self.program, inputs.kv_len
        row, names = row_inputs(program, list(inputs.scores.T.astype(np.float64)), 1 + n * (1 + DEEP))
        names = names[1:]  # the first is 1, which stands in q
        arrays: dict[float, NDArray[np.float64]] = {}
        given: dict[str, Any] = {"feed": row.feed}
        if e.space.kind == "qkv":
            given = self._products(inputs, names[n:], arrays)
        before, stored, smooth = (np.empty((inputs.count, inputs.dims)) for _ in range(3))
        for d in range(inputs.dims):
            arrays |= {name: inputs.values[:, t, d].astype(np.float64) for t, name in enumerate(names[:n])}
            values = np.zeros((n, d + 1))
            values[:, d] = names[:n]
            fed = RowInputs(v=values, scalars=self.scalars, query=n - 1, **given)
            walker = _Walker(program, plan, fed, BatchArithmetic(arrays))
            before[:, d] = walker.value(e.site, {"dim": d})
            stored[:, d] = walker.value("output", {"dim": d})
            smooth[:, d] = walker.smooth(d) if e.site == "output" else before[:, d]
        words = store(stored, e.format).view(storage_dtype(e.format))
        return Outputs(before, words, e.format), Outputs(smooth, words, e.format)

    def _products(
        self, inputs: Inputs, names: Sequence[float], arrays: dict[float, NDArray[np.float64]]
    ) -> dict[str, Any]:
        """Q and K as far as they are not zero; elements of K by name."""
        e, formats = self.evaluator, self.program.inputs
        depth = int(e.space.context.get("head_dim", 1))
        q, k = realised(inputs.scores, depth, formats, e.space.carry)
        query, keys = (values_of(x[..., :DEEP], formats[name]) for x, name in ((q, "q"), (k, "k")))
        coded = np.zeros(keys.shape[1:])
        for t, d in np.argwhere((keys != 0).any(axis=0)).tolist():
            coded[t, d] = names[t * DEEP + d]
            arrays[coded[t, d]] = keys[:, t, d]
        return {"q": query, "k": coded}


class _Walker(Walker):
    def smooth(self, column: int) -> Any:
        """A column of the output, with nothing rounded to a narrow format in its own line."""
        del self._reads["output"]
        self.arithmetic.wide = self.program.compute  # pyright: ignore[reportAttributeAccessIssue]
        return self.value("output", {"dim": column})


def _check(evaluator: Evaluator) -> None:
    """Check that nothing depends on the numbers of tokens.

    Raises:
        UnsupportedError: something does.
    """
    program = evaluator.program
    if not program.score_site() or any(
        isinstance(n, Name) and n.id in _INDICES for site in program.sites.values() for n in site.expr.walk()
    ):
        raise UnsupportedError(
            f"{program.spec} depends on the numbers of tokens",
            place="sparse",
            remedy="search it over every token",
        )


def _kept(plan: Plan, tokens: NDArray[np.int64]) -> Plan:
    number = np.full(plan.kv_len + 1, -1, dtype=np.int32)
    number[tokens] = np.arange(len(tokens), dtype=np.int32)
    return Plan(
        plan.program, {**plan.context, "kv_len": len(tokens)}, plan.levels, number[plan.tokens], plan.exists
    )


def _trimmed(plan: Plan, *, outermost: bool) -> Plan:
    """Without the last pieces of each level, and the last places for tokens, that hold nothing anywhere."""
    live = plan.tokens >= 0
    sizes: list[int] = []
    for axis in range(live.ndim):
        used = np.flatnonzero(live.any(axis=tuple(i for i in range(live.ndim) if i != axis)))
        whole = axis == 0 and not outermost and live.ndim > 1
        sizes.append(live.shape[axis] if whole else int(used.max()) + 1)
    cut = tuple(slice(0, n) for n in sizes)
    exists = {name: plan.exists[name][cut[: i + 1]] for i, name in enumerate(plan.levels)}
    return Plan(plan.program, plan.context, plan.levels, np.ascontiguousarray(plan.tokens[cut]), exists)
