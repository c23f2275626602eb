"""Other methods on the same objective, so that a claim about the search is a head-to-head.

Every method takes a target, a seed and a budget, and gives the best feasible candidate that it evaluated.
"""

from __future__ import annotations

from collections.abc import Callable

from search.baselines.guided import guided
from search.baselines.numeric import condition, evolution, sep_cma
from search.baselines.sampling import sample
from search.baselines.solver import bit_precise
from search.evolve import Found

Method = Callable[..., Found]

METHODS: dict[str, Method] = {
    "random": sample,
    "bgrt": guided,
    "cma": sep_cma,
    "condition": condition,
    "evolution": evolution,
    "smt": bit_precise,
}
