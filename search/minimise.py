"""From a witness to a smaller one: shrunk, certified again, and filed with where it came from."""

from __future__ import annotations

from collections.abc import Sequence

from search.record import SearchOf
from search.shrink import EVALUATIONS, Goal, Shrunk, shrink
from search.target import Target
from search.witness import Witness, certified, make


def minimise(
    witness: Witness,
    *,
    keep: Goal | None = None,
    evaluations: int = EVALUATIONS,
    seed: int = 0,
    command: Sequence[str] = (),
) -> tuple[Witness, Shrunk]:
    """The smallest witness of the same sides that keeps a goal.

    Args:
        witness: what to shrink.
        keep: what must be kept; None: the integer distance that it has.
        evaluations: budget.
        seed: seed of every random choice.
        command: the command line, for people.

    Raises:
        InputError: the witness does not reach what is to be kept on this machine.
        UnsupportedError, SpecError, FidelityError: its sides do not run here.
    """
    record = witness.record
    target = Target(witness.sides, witness.space, witness.objective)
    shrunk = shrink(target, witness.inputs, keep=keep, evaluations=evaluations, seed=seed)
    space, outputs = shrunk.target.space, shrunk.measured.outputs
    certificate, why = certified(witness.sides, space, shrunk.inputs, outputs)
    same = space.kv_len == witness.space.kv_len
    search = record.search.model_dump(mode="json") | {
        "method": f"shrink of {record.search.method}"[:4000],
        "seed": seed,
        "budget": {"evaluations": evaluations, "rlimit": 0, "seconds": None},
        "steps": [
            {"method": f"{s.name}: {s.support} of {s.tokens}", "score": s.score, "evaluations": 0}
            for s in shrunk.stages
        ],
        "evaluations": shrunk.evaluations,
        "cut": False,
        "command": list(command) or list(record.search.command),
    }
    small = make(
        witness.sides,
        space,
        witness.objective,
        shrunk.inputs,
        outputs,
        certificate=certificate,
        search=SearchOf.model_validate(search, strict=False),
        bound=record.bound if same else None,
        no_bound=record.no_bound if same else "tokens were deleted: the bound was of another partition",
        no_certificate=why,
        note=record.note,
    )
    return small, shrunk
