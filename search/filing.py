"""What commands of a search say and file: witnesses, scripts, and their words."""

from __future__ import annotations

import hashlib
import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from verify.console import Answer

if TYPE_CHECKING:
    from search.run import Hit, Outcome


def file_outcome(answer: Answer, outcome: Outcome, folder: Path | None, emit: str | None, fail: bool) -> None:
    """File what was found, and say it."""
    from search.witness import certified, witness_of, write

    data: dict[str, Any] = {
        "schema": 1,
        "status": outcome.status,
        "reason": outcome.reason,
        "sides": [side.label for side in outcome.sides],
        "kv_len": outcome.space.kv_len,
        "cancellation": outcome.space.cancellation,
        "seed": outcome.seed,
        "evaluations": outcome.evaluations,
        "cut_by_wall_time": outcome.cut,
        "bound": None,
        "witnesses": [],
    }
    bound = outcome.bound
    if bound is not None and math.isfinite(bound.real):
        data["bound"] = {"real_ulp": bound.real, "integer_ulp": bound.integer, "rigor": bound.rigor}
    if outcome.best is None:
        answer.data(data)
        answer.text(f"{outcome.status}: {outcome.reason}")
        answer.close(f"{outcome.status}: {outcome.reason}")
        return
    home = folder or _folder(outcome)
    verdict = ""
    for name, hit in (("witness", outcome.best), ("stored", outcome.stored)):
        if hit is None:
            continue
        # Filed before it is certified, which takes longest: an interruption loses nothing.
        first = witness_of(outcome, hit, None, command=sys.argv[1:], no_certificate="interrupted")
        write(first, home, name, overwrite=True)
        certificate, why = certified(outcome.sides, hit.space, hit.inputs, hit.outputs)
        made = witness_of(outcome, hit, certificate, command=sys.argv[1:], no_certificate=why)
        paths = write(made, home, name, overwrite=True)
        files = [str(p) for p in paths]
        if emit is not None:
            files.append(_emit(made, home, name, emit))
        survives = None if certificate is None else certificate.survives_exp_error_ulps
        data["witnesses"].append(
            {
                "objective": hit.score,
                "integer_ulp": {f"{i},{j}": d for (i, j), d in hit.integer.items()},
                "method": hit.method,
                "certified": certificate is not None and certificate.holds,
                "survives_exp_error_ulps": survives,
                "files": files,
            }
        )
        lines, words = _said(outcome, hit, certificate, why)
        verdict = verdict or words
        for text in (*lines, *(f"  {f}" for f in files)):
            answer.text(text)
    answer.data(data)
    answer.close(verdict, diverged=fail and outcome.best.least_integer != 0)


def _said(outcome: Outcome, hit: Hit, certificate: Any, why: str) -> tuple[list[str], str]:
    """A witness in words."""
    labels = [side.label for side in outcome.sides]
    unit = {"ulp": "ULP before rounding", "f32": "f32 ULP", "flips": "margin", "kl": "nats"}
    words = f"{hit.score:.4f} {unit[outcome.objective.metric]}, {hit.least_integer} ULP stored"
    lines = [f"{' / '.join(labels)}: {words}"]
    bound = outcome.bound
    if bound is not None and math.isfinite(bound.real):
        share = f", {100 * hit.score / bound.real:.1f} % reached" if bound.real else ""
        lines.append(f"  bound: {bound.real:.4f} ({bound.rigor}){share}")
    elif outcome.no_bound:
        lines.append(f"  no bound: {outcome.no_bound}")
    for (i, j), distance in hit.integer.items():
        if len(labels) > 2:
            lines.append(f"  {labels[i]} and {labels[j]}: {distance} ULP stored")
    for side, found in zip(labels, hit.outputs, strict=True):
        lines.append(f"  {side}: {float(found.stored[0].ravel()[0]):.8g}")
    if certificate is None:
        lines.append(f"  not certified: {why}")
    else:
        state = "certified" if certificate.holds else "NOT certified: see the certificate"
        lines.append(f"  {state}; {_survives(certificate.survives_exp_error_ulps)}")
    if outcome.cut:
        lines.append("  wall time ended the search: another run may find another result")
    return lines, words


def _survives(ulps: int | str) -> str:
    """Whether another exponential would round as this one does."""
    match ulps:
        case "any":
            return "no narrow rounding depends on exp"
        case "unknown":
            return "whether it survives another exp is not known"
        case _:
            return f"survives an error of exp of {ulps} f32 ULP"


def _folder(outcome: Outcome) -> Path:
    """``runs/ID``: the same command has the same folder."""
    said = repr(
        (
            [(s.label, s.spec.content_hash) for s in outcome.sides],
            outcome.space.full_context(),
            outcome.space.cancellation,
            outcome.space.kind,
            outcome.objective.metric,
            outcome.objective.single,
            outcome.seed,
            outcome.budget,
        )
    )
    return Path("runs") / f"search-{hashlib.sha256(said.encode()).hexdigest()[:12]}"


def _emit(witness: Any, home: Path, name: str, language: str) -> str:
    from search.emit import emit

    path = home / f"{name}_{language}.py"
    path.write_text(emit(witness, language, name=name), encoding="utf-8")
    return str(path)


def minimise(
    answer: Answer, path: str, folder: Path | None, evaluations: int, seed: int, emit: str | None
) -> None:
    """Shrink a witness and file the result beside it, or in ``folder``."""
    from search.minimise import minimise as smaller
    from search.witness import read, write

    witness = read(path)
    made, shrunk = smaller(witness, evaluations=evaluations, seed=seed, command=sys.argv[1:])
    home = folder or Path(path).parent
    name = f"{Path(path).stem}.min"
    files = [str(p) for p in write(made, home, name, overwrite=True)]
    if emit is not None:
        files.append(_emit(made, home, name, emit))
    stages = [
        {"stage": s.name, "support": s.support, "tokens": s.tokens, "objective": s.score}
        for s in shrunk.stages
    ]
    answer.data({"schema": 1, "files": files, "stages": stages, "evaluations": shrunk.evaluations})
    for stage in shrunk.stages:
        answer.text(f"  {stage.name}: {stage.support} of {stage.tokens} tokens count, {stage.score:.4f}")
    for text in files:
        answer.text(f"  {text}")
    last = shrunk.stages[-1]
    answer.close(f"{last.support} of {last.tokens} tokens count")
