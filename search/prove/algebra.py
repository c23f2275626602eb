"""The claim that a spec is softmax attention without its roundings, over all programs that it is in some shapes.

How one program is proved: `search.prove.induction`. What refutes it: `search.prove.counterexample`.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from search.prove.answer import WEAKEST, Proof
from search.prove.choices import mentions, uses
from search.prove.counterexample import show
from search.prove.induction import blind_piece, prove_program
from search.sides import Side
from specs.errors import InputError, SpecError, UnsupportedError
from specs.program import Program
from verify.partition import Plan

CLAIM = "without roundings it is softmax attention, for all inputs and every partition"
SEES = "scores are finite, and every piece sees a token"
SCORES = (
    "each token's score is what line '{}' makes of q, k, the scale and the mask: that line is taken as it is"
)
UNSCALED = "scales of K and V are 1"
BLIND = "scores are finite or masked; that a piece without a visible token changes nothing: the last piece of the instance"
BESIDE = "the claim is about the output: 'lse' beside it is not part of it"


def prove_algebra(sides: Sequence[Side], contexts: Sequence[Mapping[str, Any]]) -> Proof:
    """Prove that a spec is softmax attention: every program that it is on some sides in some contexts.

    Args:
        sides: the spec on platforms.
        contexts: shapes. Those that a side does not take are left out, as are those that give a program again.

    Returns:
        one proof; of a program that fails, if any does.

    Raises:
        SpecError: the spec is wrong in every context.
    """
    began = time.perf_counter()
    proofs: list[Proof] = []
    done: set[Any] = set()
    refused, wrong = "", None
    for side in sides:
        for context in contexts:
            try:
                program, plan = side.program(context), side.plan(context)
            except SpecError as error:
                wrong = wrong or error
                continue
            except (UnsupportedError, InputError) as error:
                refused = refused or error.cause
                continue
            sink = bool(context.get("has_sinks"))
            key = (tuple((n, s.section, s.expr) for n, s in program.sites.items()), program.level_names, sink)
            if key in done or (sink and not mentions(program, "sink")):
                continue  # a kernel that has no sinks refuses them
            done.add(key)
            where = f"{side.platform.name}, {', '.join(f'{n} = {v}' for n, v in context.items())}"
            proofs.append(_one(side, program, plan, sink, where))
    name = sides[0].spec.name
    if not proofs and wrong is not None:
        raise wrong
    if not proofs:
        return Proof(name, CLAIM, "refused", refused, seconds=time.perf_counter() - began)
    proofs.sort(key=lambda p: WEAKEST.index(p.status))
    worst, seconds = proofs[0], time.perf_counter() - began
    if worst.status != "proved":
        return replace(worst, seconds=seconds)
    assumptions = dict.fromkeys(a for p in proofs for a in p.assumptions if not a.startswith("the lines"))
    shapes = "; ".join(p.details["where"] for p in proofs)
    many = f"{len(proofs)} program{'s' * (len(proofs) != 1)}"
    ways = sum(p.details["paths"] for p in proofs)
    tokens = max(p.details["tokens"] for p in proofs)
    through = f"{ways} way{'s' * (ways != 1)} through comparisons"
    steps = "sums of like terms, one more step, the merges and the division"
    reason = f"{many}, each by its structure: {steps}; {through}, up to {tokens} generic tokens"
    again = f"SymPy: {sum(p.details['sympy'] for p in proofs)} outputs equal; {_worst_check(proofs)}"
    first = (f"the lines that hold at: {shapes}",)
    return Proof(
        name, CLAIM, "proved", reason, (*first, *assumptions), again, {"programs": len(proofs)}, seconds
    )


def _worst_check(proofs: Sequence[Proof]) -> str:
    """What ball arithmetic says of the programs, in words."""
    agree = [p for p in proofs if p.details["balls"]]
    return f"ball arithmetic with real exponentials agrees on rational inputs to {len(agree)} of {len(proofs)} programs"


def _one(side: Side, program: Program, plan: Plan, sink: bool, where: str) -> Proof:
    """The proof of one program."""
    claim = CLAIM + (" and a sink" if sink else "")
    assumptions = [f"the lines that hold at {where}", SEES]
    if not program.score_site():
        reason = "it has no line 'score' that a token's scaled and masked score could be fed to"
        return Proof(side.spec.name, claim, "not decided", reason, tuple(assumptions))
    assumptions.append(SCORES.format(program.score_site()))
    if uses(program, "k_scale") or uses(program, "v_scale"):
        assumptions.append(UNSCALED)
    if "lse" in program.sites:
        assumptions.append(BESIDE)
    try:
        broken, told = prove_program(program, plan, sink)
    except UnsupportedError as error:
        reason = f"{f'{error.place}: ' if error.place else ''}{error.cause}"
        return Proof(side.spec.name, claim, "not decided", reason, tuple(assumptions))
    if told["approximate"]:
        assumptions.append("constants within 2^-21 of log2(e) and ln(2) stand for these")
    if told["floors"]:
        floors = ", ".join(f"{x:g}" for x in sorted(told["floors"]))
        assumptions.append(f"{floors} stand for minus infinity: scores lie above")
    if broken is None:
        if blind_piece(program, plan, sink):
            assumptions[1] = BLIND
        example = show(program, plan, sink)
        if example.differs:
            raise AssertionError(f"ball arithmetic disagrees with a proof: {example.words}: report it")
        details = {n: told[n] for n in ("paths", "tokens", "sympy")} | {
            "where": where,
            "balls": example.agrees,
        }
        return Proof(side.spec.name, claim, "proved", "", tuple(assumptions), "", details)
    line = f"line '{broken.site}'" if broken.site in program.sites else broken.site
    example = show(program, plan, sink, broken.output, broken.maxima, broken.sure)
    reason = f"{line}: {broken.what}" if line else broken.what
    details: dict[str, Any] = {"line": broken.site}
    if not example.differs:
        if not broken.sure:
            reason += "; on a way through its choices that none of the inputs tried takes"
        return Proof(side.spec.name, claim, "not decided", reason, tuple(assumptions), "", details)
    details["counterexample"] = example.details
    reason += f"; {example.words}"
    return Proof(side.spec.name, claim, "refuted", reason, tuple(assumptions), example.again, details)
