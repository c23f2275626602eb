"""Roundings of sums whose bracketing a small instance does not show: coloured by a view, in chunks or in lanes.

With fewer tokens than colours nothing is added at all, and with fewer than a chunk holds there is one chunk. Whatever the
bracketing, a term passes at most as many additions as there are terms: that is what is counted instead.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from search.lines import upstream
from search.sensitivity import Counts, Grown
from specs.nodes import Reduce, Tree
from specs.program import Program


def with_brackets(found: tuple[Grown, ...], program: Program, sizes: Mapping[str, int]) -> tuple[Grown, ...]:
    """``found``, with the additions of such sums counted so: of the kinds that their line is known to have, else of all.

    Args:
        found: roundings as small instances show them.
        program: a bound program.
        sizes: pieces of each level in the one around it, and tokens of the innermost, of the plan.
    """
    out = list(found)
    views = {v.name: v.size for v in program.views.values()}
    for name, line in upstream(program).items():
        for n in line.walk():
            if not isinstance(n, Reduce) or n.kind not in ("sum", "dot") or not hides(n):
                continue
            fmt = n.format or program.compute
            same = [g for g in out if g.site == name and g.format == fmt and not g.logit]
            folds = [g for g in same if g.operation == "fold"]
            known = folds or same
            kinds = [any(g.counts.all[i] for g in known) or not known for i in range(4)]
            out = [g for g in out if g not in folds]
            over = [sizes.get(axis, views.get(axis, prod(sizes.values()))) for axis in n.over or ()]
            steps = program.states[name].levels if name in program.states else ()
            again = prod(sizes[level] for level in steps if level not in (n.over or ()))
            terms = (prod(over) + (n.start is not None)) * again  # a carried sum goes on in every later step
            counts = Counts(*(terms * kind for kind in kinds))
            out.append(Grown(name, "fold", fmt, False, 1, False, counts, {}))
    return tuple(out)


def hides(n: Reduce) -> bool:
    """Whether a small instance may hold too few terms to show the bracketing of a sum."""
    trees = [t for t in (n.tree.walk() if n.tree is not None else ()) if isinstance(t, Tree)]
    return n.by is not None or any(t.kind in ("chunks", "lanes") for t in trees)
