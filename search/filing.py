"""What commands of a search say and file: witnesses, scripts, and their words."""

from __future__ import annotations

import hashlib
import math
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specs.errors import InputError, UlpscopeError
from verify.console import Answer

if TYPE_CHECKING:
    from search.run import Hit, Outcome


#: What a search files: the input with the largest objective, and the one with the largest distance of stored outputs.
NAMES = ("witness", "stored")


def file_outcome(
    answer: Answer,
    outcome: Outcome,
    folder: Path | None,
    emit: str | None,
    fail: bool,
    method: str = "search",
) -> None:
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
    home = folder or _folder(outcome, method)
    verdict = ""
    for name, hit in zip(NAMES, (outcome.best, outcome.stored), strict=True):
        if hit is None:
            for suffix in (".json", ".safetensors"):  # of this command, before
                (home / f"{name}{suffix}").unlink(missing_ok=True)
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
    if outcome.objective.metric == "flips" and hit.score <= 0:
        words += ": no token flips"
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


def _folder(outcome: Outcome, method: str) -> Path:
    """``runs/ID``: the same search has the same folder, another one another."""
    from search.fields import space_record

    space, objective = outcome.space, outcome.objective
    arrays = [objective.projection]
    arrays += [] if space.base is None else [space.base.scores, space.base.values]
    said = repr(
        (
            [(s.label, s.spec.content_hash, s.platform) for s in outcome.sides],
            space_record(space),
            objective.metric,
            objective.single,
            [None if a is None else hashlib.sha256(a.tobytes()).hexdigest() for a in arrays],
            method,
            outcome.seed,
            outcome.budget,
        )
    )
    return Path("runs") / f"search-{hashlib.sha256(said.encode()).hexdigest()[:12]}"


def check_folder(folder: Path | None) -> None:
    """Refuse a folder that cannot be written, or that holds the witness of another command, before any work.

    Raises:
        InputError: with the folder as its place.
    """
    if folder is None:
        return
    near = next(p for p in (folder, *folder.absolute().parents) if p.exists())
    if not near.is_dir() or not os.access(near, os.W_OK):
        raise InputError("cannot be written", place=str(folder), remedy="give another folder with --out")
    for name in NAMES:
        if not (folder / f"{name}.json").exists():
            continue
        from search.witness import read

        try:
            command = list(read(folder / f"{name}.json").record.search.command)
        except UlpscopeError:
            command = None
        if command != sys.argv[1:]:
            raise InputError(
                f"holds another {name}.json", place=str(folder), remedy="give another folder with --out"
            )


def _emit(witness: Any, home: Path, name: str, language: str) -> str:
    from search.emit import emit

    path = home / f"{name}_{language}.py"
    text = emit(witness, language, name=name)
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise InputError(
            f"cannot be written: {error.strerror or error}", place=str(path), remedy="give another folder"
        ) from None
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
