"""The forward error of one side: a walk of the definition over its real plan, with numbers known up to factors.

Nothing is sampled and nothing continued from a small instance: every operation of the plan is walked once, and what it may
do to its operands is bounded (`search.prove.spreads`). The output is::

    sum_t p_t v_t f_t / sum_t p_t g_t,    f_t in [down, up],  g_t in [normal_down, normal_up]

for every score in the box and all values, plus what numbers lose that become subnormal.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np

from search.lines import upstream
from search.prove.choices import columns_of, uses
from search.prove.named import Named
from search.prove.spread import DOWN, UP, Const, Log, Mass, OpenError, Table, times, widened
from search.prove.spreads import Spreads
from search.sides import Side, before_rounding
from specs.errors import SpecError, UnsupportedError
from specs.names import HEAD_SCALARS, SCALARS
from specs.nodes import Last, Name, Node, Pos, Prev
from specs.program import DIM, Program
from verify.definition.inputs import RowInputs
from verify.definition.layout import getter
from verify.partition import Plan

#: The double that stands for the softmax scale: no spec writes it.
_SCALE = 1.0 + 2.0**-37
#: The most tokens that are walked.
MAX_TOKENS = 1 << 16


@dataclass(frozen=True)
class Forward:
    """What roundings may do to the output.

    Attributes:
        up, down: the largest and the smallest factor of a token in the numerator.
        normal_up, normal_down: in the normaliser.
        lost: what the output may be off besides, as a number.
    """

    up: Fraction
    down: Fraction
    normal_up: Fraction
    normal_down: Fraction
    lost: Fraction

    def join(self, other: Forward) -> Forward:
        """What holds for both."""
        return Forward(
            max(self.up, other.up),
            min(self.down, other.down),
            max(self.normal_up, other.normal_up),
            min(self.normal_down, other.normal_down),
            max(self.lost, other.lost),
        )


class _Columns(Named):
    """Columns of v are alike, unless a line asks for their number: one is computed."""

    def __init__(self, program: Program, plan: Plan, inputs: RowInputs, arithmetic: Spreads) -> None:
        super().__init__(program, plan, inputs, arithmetic)
        self._alike = _columns_alike(program)

    def shared(self, site: str, read: Callable[[Any], Any]) -> Callable[[Any], Any]:
        axes = self.program.sites[site].type.axes
        if DIM not in axes or site not in self._alike:
            return read
        key, known = getter(self.layout.slots(axes - {DIM})), dict[Any, Any]()

        def once(index: Any) -> Any:
            k = key(index)
            if k not in known:
                known[k] = read(index)
            return known[k]

        return once


def _columns_alike(program: Program) -> frozenset[str]:
    """The lines that neither ask for the number of a column nor read one that does."""
    asks = {
        n
        for n, line in upstream(program).items()
        if any(isinstance(x, Pos) and x.axis == DIM for x in line.walk())
    }
    reads = {n: _read_by(line) | _read_by_state(program, n) for n, line in upstream(program).items()}
    while more := {n for n, of in reads.items() if n not in asks and of & asks}:
        asks |= more
    return frozenset(reads) - asks


def _read_by(line: Node) -> set[str]:
    return {x.id for x in line.walk() if isinstance(x, Name)} | {
        x.state for x in line.walk() if isinstance(x, Prev | Last)
    }


def _read_by_state(program: Program, name: str) -> set[str]:
    return _read_by(program.states[name].start) if name in program.states else set()


def forward(
    side: Side, context: Mapping[str, Any], box: float, exact: frozenset[str] = frozenset()
) -> Forward:
    """The factors of one side.

    Args:
        side: spec and platform.
        context: as for `Side.program`; at least ``kv_len``.
        box: bound on the magnitude of scores, scaled, as natural logarithms.
        exact: lines whose roundings are left out.

    Raises:
        UnsupportedError: the error of a line is not bounded; the cause says which, and why.
    """
    program, output, _ = before_rounding(side.program(context))
    plan = side.plan(context)
    if not 1 <= plan.kv_len <= MAX_TOKENS:
        raise UnsupportedError(
            f"{plan.kv_len} tokens", place="prove bound", remedy=f"at most {MAX_TOKENS} are walked"
        )
    return of_program(program, plan, output, box, exact)


def of_program(
    program: Program, plan: Plan, output: str, box: float, exact: frozenset[str] = frozenset()
) -> Forward:
    """As `forward`, of a program and its plan."""
    n = plan.kv_len
    table = Table(box, n)
    spreads = Spreads(table, _SCALE, exact)
    unit = Const(Fraction(1), -1) if uses(program, "scale") else Const(Fraction(1))
    feed = np.empty(n, dtype=object)
    feed[:] = [Log(unit, ((t, 1),)) for t in range(n)]
    columns = columns_of(program, int(plan.context["head_dim"]))
    scalars = dict.fromkeys(SCALARS, 1.0) | {"softcap": 0.0, "scale": _SCALE}
    scalars |= {name: float("-inf") if name == "sink" else 0.0 for name in HEAD_SCALARS}
    shape = n, max(columns) + 1
    row = RowInputs(v=np.ones(shape), scalars=scalars, feed={program.score_site(): feed})
    walker = _Columns(program, plan, row, spreads)
    # Numbers that stand for tokens, which the format of v need not hold.
    walker.inputs = replace(row, v=np.broadcast_to(np.arange(1.0, n + 1)[:, None], shape))
    axes = program.sites[output].type.axes
    found: list[Forward] = []
    for d in columns if DIM in axes else [0]:
        try:
            found.append(_read(walker.value(output, dict.fromkeys(axes, d)), table))
        except OpenError as error:
            where = f"line '{error.site or output}': " if error.site or output else ""
            raise UnsupportedError(
                f"{where}{error.cause}", place=str(error.place or ""), remedy=error.remedy
            ) from None
        except SpecError as error:
            raise UnsupportedError(error.cause, place=str(error.place or ""), remedy=error.remedy) from None
    total = found[0]
    for other in found[1:]:
        total = total.join(other)
    return total


def _read(x: Any, table: Table) -> Forward:
    """The output as a sum of values over a sum of weights."""
    if not isinstance(x, Mass) or not x.values:
        raise OpenError("an output that is no weighted mean of values", remedy="see the algebra of the spec")
    if x.tokens != table.every:
        missing = table.every & ~x.tokens
        token = (missing & -missing).bit_length() - 1
        raise OpenError(f"an output without token {token}", remedy="see the partition of the spec")
    below = [s for s, n in x.mono if n == -1 and isinstance(table.of(s), Mass)]
    for s in below:
        m = table.of(s)
        assert isinstance(m, Mass)
        rest = table.near(times(times(x.mono, ((s, -1),), -1), m.mono, -1))
        if m.tokens != table.every or rest is None:
            continue
        a, b = widened(*table.range_of(x), *rest)
        c, d = table.range_of(m)
        return Forward(
            Fraction((1 + b) * UP),
            Fraction((1 - a) * DOWN),
            Fraction((1 + d) * UP),
            Fraction((1 - c) * DOWN),
            Fraction(x.lost),
        )
    raise OpenError(
        "an output that is not divided by the sum of all weights", remedy="see the algebra of the spec"
    )
