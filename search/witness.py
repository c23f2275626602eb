"""Witness files: an input on which backends part, with all that is needed to compute it again elsewhere.

``NAME.json`` holds specs, platforms, limits, outputs, the certificate and where it all came from (`search.record`);
``NAME.safetensors`` the input as bits. Reading trusts nothing: sizes are bounded before memory is taken, specs are
parsed from the text in the file, no path in it is followed, and nothing runs.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from itertools import combinations
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from search.bound import Bound
from search.certificate import Certificate, certify
from search.evaluate import Outputs, realised
from search.fields import distances, ratios, side_record, space_record
from search.objective import Objective
from search.packing import (
    AGAIN,
    MAX_ARRAYS,
    MAX_JSON,
    Arrays,
    arrays_of,
    pack,
    put,
    refuse_taken,
    unpack,
    validated,
)
from search.record import SCHEMA, BoundOf, Record, SearchOf, SideOf, finite
from search.run import Hit, Outcome
from search.sides import Side, before_rounding
from search.space import Inputs, Space, Statistics
from specs.errors import InputError, UlpscopeError, UnsupportedError
from specs.loader import parse_spec
from verify.numerics.rounding import storage_dtype

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*(\.[A-Za-z0-9_-]+)*")


@dataclass(frozen=True, eq=False)
class Witness:
    """A witness in memory.

    Attributes:
        record: all but the arrays.
        arrays: by name, as they are stored.
        place: what messages call it.
    """

    record: Record
    arrays: Arrays
    place: str = "witness"

    @cached_property
    def sides(self) -> tuple[Side, ...]:
        """The backends, from the texts in the file.

        Raises:
            InputError: a text is no resolved spec, not canonical, or not what its hash says.
        """
        return tuple(_side(s, f"{self.place}: sides.{i}") for i, s in enumerate(self.record.sides))

    @cached_property
    def inputs(self) -> Inputs:
        """The input: one candidate with every token."""
        return Inputs.one(self.arrays["scores"], self.arrays["values"].astype(np.float32))

    @cached_property
    def space(self) -> Space:
        """What was searched."""
        s = self.record.space
        base = None
        if s.base:
            base = Inputs.one(self.arrays["base_scores"], self.arrays["base_values"].astype(np.float32))
        return Space(
            kv_len=s.kv_len,
            kind=s.kind,
            context=dict(s.context),
            dims=s.dims,
            score_box=s.score_box,
            value_box=s.value_box,
            cancellation=s.cancellation,
            masks=s.masks,
            fixed=frozenset(s.fixed),
            base=base,
            edits=s.edits,
            statistics=None if s.statistics is None else Statistics(**s.statistics.model_dump()),
            carry=s.carry,
        )

    @cached_property
    def objective(self) -> Objective:
        """What was maximised."""
        o = self.record.objective
        return Objective(o.metric, self.arrays.get("projection"), o.single)


def witness_of(
    outcome: Outcome,
    hit: Hit,
    certificate: Certificate | None = None,
    *,
    command: Sequence[str] = (),
    note: str = "",
    no_certificate: str = "",
) -> Witness:
    """The witness of a search.

    Args:
        outcome: the search.
        hit: one of its inputs.
        certificate: what is established about it (see `certificate_of`); None: nothing.
        command: the command line, for people.
        note: likewise.
        no_certificate: why there is none.
    """
    budget = outcome.budget
    found = {
        "method": hit.method,
        "seed": outcome.seed,
        "budget": {"evaluations": budget.evaluations, "rlimit": budget.rlimit, "seconds": budget.seconds},
        "steps": [
            {"method": s.method, "score": finite(s.score), "evaluations": s.evaluations}
            for s in outcome.steps
        ],
        "evaluations": outcome.evaluations,
        "cut": outcome.cut,
        "command": list(command),
    }
    return make(
        outcome.sides,
        hit.space,
        outcome.objective,
        hit.inputs,
        hit.outputs,
        certificate=certificate,
        search=SearchOf.model_validate_json(json.dumps(found)),
        bound=None if outcome.bound is None else BoundOf.of(outcome.bound),
        no_bound=outcome.no_bound,
        no_certificate=no_certificate,
        note=note,
    )


def make(
    sides: Sequence[Side],
    space: Space,
    objective: Objective,
    inputs: Inputs,
    outputs: Sequence[Outputs],
    *,
    certificate: Certificate | None,
    search: SearchOf,
    bound: BoundOf | Bound | None = None,
    no_bound: str = "",
    no_certificate: str = "",
    note: str = "",
) -> Witness:
    """A witness of one input.

    Args:
        sides, space, objective: what was searched.
        inputs: one candidate with every token.
        outputs: by side, what the array engine computes for it.
        certificate, no_certificate: what is established, or why nothing is.
        search: how the input was found.
        bound, no_bound: the upper bound, or why there is none.
        note: for people.

    Raises:
        UnsupportedError: values of a format that files do not hold.
    """
    from search.campaign.work import versions

    if inputs.count != 1:
        raise InputError(f"{inputs.count} candidates", place="witness", remedy="give one")
    context = space.full_context()
    programs = [before_rounding(side.program(context)) for side in sides]
    arrays = arrays_of(programs[0][0].inputs, space, objective, inputs)
    data = pack(arrays)
    score = float(objective.score(outputs)[0])
    record = {
        "schema": SCHEMA,
        "kind": "witness",
        "sides": [
            side_record(side, program, site, fmt, out)
            for side, (program, site, fmt), out in zip(sides, programs, outputs, strict=True)
        ],
        "space": space_record(space),
        "objective": {
            "metric": objective.metric,
            "single": objective.single,
            "vocabulary": None if objective.projection is None else int(objective.projection.shape[0]),
        },
        "score": finite(score),
        "distances": distances(outputs),
        "ratios": ratios(inputs, certificate, space.first),
        "bound": None
        if bound is None
        else (BoundOf.of(bound) if isinstance(bound, Bound) else bound).model_dump(),
        "no_bound": no_bound[:4000],
        "certificate": None if certificate is None else certificate.to_json(),
        "no_certificate": no_certificate[:4000] if certificate is None else "",
        "search": search.model_dump(mode="json"),
        "versions": versions(),
        "note": note,
        "arrays": {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()},
    }
    return Witness(validated(json.dumps(record).encode(), "witness"), arrays)


def certificate_of(
    sides: Sequence[Side], space: Space, inputs: Inputs, outputs: Sequence[Outputs] | None = None
) -> Certificate:
    """The certificate of one input of a space.

    Args:
        sides: the backends.
        space: its constraints.
        inputs: one candidate with every token.
        outputs: by side, what the array engine stored; None: it is not compared.

    Raises:
        as `search.certificate.certify`.
    """
    given: dict[str, Any] = {"scores": inputs.scores[0], "values": inputs.values[0]}
    if space.kind == "qkv":
        formats = sides[0].program(space.full_context()).inputs
        q, k = realised(inputs.scores, depth(space), formats, space.carry)
        given = {"q": q, "k": k[0], "v": inputs.values[0]}
    return certify(
        sides,
        space.full_context(),
        **given,
        cancellation=space.exact_cancellation,
        # The doubles that they are, which the largest elements may be: a decimal for one can lie below it.
        score_box=Fraction(space.score_box),
        value_box=Fraction(space.value_box),
        outputs=None if outputs is None else [o.stored[0] for o in outputs],
    )


def certified(
    sides: Sequence[Side], space: Space, inputs: Inputs, outputs: Sequence[Outputs] | None = None
) -> tuple[Certificate | None, str]:
    """`certificate_of`, or nothing and why there is none."""
    try:
        return certificate_of(sides, space, inputs, outputs), ""
    except UnsupportedError as error:
        return None, error.cause


def depth(space: Space) -> int:
    """Elements of a head."""
    return int(space.context.get("head_dim", 1))


# -- writing --------------------------------------------------------------------------------------------------------


def to_bytes(witness: Witness, name: str) -> dict[str, bytes]:
    """The files of a witness, by name: the same bytes for the same witness on every machine."""
    if not _NAME.fullmatch(name) or len(name) > 80:
        raise InputError(
            f"a witness may not be called {name[:80]!r}",
            place="name",
            remedy="use letters, digits, dots, - and _, up to 80 of them",
        )
    text = json.dumps(witness.record.to_json(), indent=1, ensure_ascii=False, allow_nan=False)
    return {f"{name}.json": text.encode() + b"\n", f"{name}.safetensors": pack(witness.arrays)}


def write(witness: Witness, folder: str | Path, name: str, *, overwrite: bool = False) -> tuple[Path, Path]:
    """Write ``NAME.json`` and ``NAME.safetensors``; neither is ever seen half written.

    Args:
        witness: what to write.
        folder: made where it is missing.
        name: of the files, without suffix.
        overwrite: replace another witness of that name. The same witness is left as it is.

    Returns:
        the paths of the JSON and of the arrays.

    Raises:
        InputError: the name is taken or no name, or the folder cannot be written.
    """
    home = Path(folder)
    files = to_bytes(witness, name)
    paths = home / f"{name}.json", home / f"{name}.safetensors"
    try:
        home.mkdir(parents=True, exist_ok=True)
        if all(p.is_file() and p.read_bytes() == files[p.name] for p in paths):
            return paths
        taken = [p for p in paths if p.exists()]
        if taken and not overwrite:
            refuse_taken(taken[0])
        put(paths[1], files[paths[1].name], overwrite)
        try:
            put(
                paths[0], files[paths[0].name], overwrite
            )  # last: where the JSON stands, the arrays are complete
        except BaseException:
            if not taken:
                paths[1].unlink(missing_ok=True)
            raise
    except OSError as error:
        raise InputError(
            f"cannot be written: {error.strerror or error}",
            place=str(home / name),
            remedy="give another folder, or make room",
        ) from None
    return paths


# -- reading --------------------------------------------------------------------------------------------------------


def read(path: str | Path) -> Witness:
    """The witness in ``NAME.json`` and ``NAME.safetensors``; either of them, or ``NAME``, may be given.

    Raises:
        InputError: missing, too large, truncated, damaged, contradictory, or of another schema.
    """
    given = Path(path)
    stem = given.with_suffix("") if given.suffix in (".json", ".safetensors") else given
    files: dict[str, bytes] = {}
    for suffix, most in ((".json", MAX_JSON), (".safetensors", MAX_ARRAYS)):
        file = stem.parent / f"{stem.name}{suffix}"
        try:
            if not file.is_file():
                raise InputError(
                    "no such file",
                    place=str(file)[:400],
                    remedy="a witness is NAME.json with NAME.safetensors beside it",
                )
            size = file.stat().st_size
            if size > most:
                raise InputError(f"has {size:,} bytes", place=str(file), remedy=f"at most {most:,} are read")
            files[file.name] = file.read_bytes()
        except (OSError, ValueError) as error:
            cause = getattr(error, "strerror", None) or str(error)
            raise InputError(
                f"cannot be read: {cause}", place=str(file)[:400], remedy="check the path and its permissions"
            ) from None
    return from_bytes(files, stem.name, place=str(stem.parent / f"{stem.name}.json"))


def from_bytes(files: Mapping[str, bytes], name: str, *, place: str = "") -> Witness:
    """The witness of `to_bytes`.

    Raises:
        InputError: as `read`.
    """
    place = place or f"{name}.json"
    missing = [n for n in (f"{name}.json", f"{name}.safetensors") if n not in files]
    if missing:
        raise InputError("no such file", place=missing[0][:400], remedy=AGAIN)
    text, data = files[f"{name}.json"], files[f"{name}.safetensors"]
    if len(text) > MAX_JSON or len(data) > MAX_ARRAYS:
        raise InputError(
            f"has {len(text):,} and {len(data):,} bytes",
            place=place,
            remedy=f"at most {MAX_JSON:,} and {MAX_ARRAYS:,} are read",
        )
    record = validated(text, place)
    beside = f"{place.removesuffix('.json')}.safetensors"
    if len(data) != record.arrays.bytes or hashlib.sha256(data).hexdigest() != record.arrays.sha256:
        raise InputError("is not the file whose size and sha256 the JSON states", place=beside, remedy=AGAIN)
    witness = Witness(record, unpack(data, record, beside), place)
    _consistent(witness, beside)
    return witness


def _consistent(witness: Witness, beside: str) -> None:
    """What the models cannot see."""
    record, place = witness.record, witness.place

    def refuse(cause: str, where: str) -> NoReturn:
        raise InputError(cause, place=where, remedy=AGAIN)

    dims = record.space.dims
    for i, side in enumerate(record.sides):
        if len(side.output) != dims or len(side.before) != dims:
            refuse(f"outputs of {len(side.output)} columns where {dims} are searched", f"{place}: sides.{i}")
    pairs = [(d.a, d.b) for d in record.distances]
    if pairs != list(combinations(range(len(record.sides)), 2)):
        refuse("not one distance for each pair of sides", f"{place}: distances")
    if len(record.ratios) != dims:
        refuse(f"{len(record.ratios)} ratios of {dims} columns", f"{place}: ratios")
    for name in ("scores", "base_scores"):
        if name in witness.arrays and not (witness.arrays[name] < np.inf).all():
            refuse("a score is NaN or +inf", f"{beside}: array '{name}'")
    for name in witness.arrays.keys() - {"scores", "base_scores"}:
        if not np.isfinite(witness.arrays[name].astype(np.float64)).all():
            refuse("an element is not finite", f"{beside}: array '{name}'")
    try:
        _ = witness.space, witness.objective
        program = witness.sides[0].program(witness.space.full_context())
    except UlpscopeError as error:
        if str(error.place).startswith(place):
            raise
        raise InputError(f"{error.place}: {error.cause}", place=place, remedy=error.remedy) from None
    for name, fmt in (("values", "v"), ("base_values", "v"), ("q", "q"), ("k", "k")):
        array = witness.arrays.get(name)
        if array is not None and array.dtype != storage_dtype(program.inputs[fmt]):
            refuse(f"{array.dtype} where the spec takes {program.inputs[fmt]}", f"{beside}: array '{name}'")


def _side(side: SideOf, place: str) -> Side:
    import tomllib

    def refuse(cause: str, remedy: str = AGAIN) -> NoReturn:
        raise InputError(cause, place=f"{place}.spec", remedy=remedy)

    try:
        if "extends" in tomllib.loads(side.spec):  # parse_spec would look for it among files
            refuse("the spec extends another", "a witness holds resolved specs")
    except (ValueError, RecursionError):
        pass  # parse_spec says where
    try:
        spec = parse_spec(side.spec, f"{place}.spec")
    except UlpscopeError as error:
        raise InputError(error.cause, place=str(error.place or place), remedy=error.remedy) from None
    if spec.content_hash != side.spec_sha256 or spec.to_toml() != side.spec:
        refuse("is not the canonical text whose sha256 is stated")
    return Side(spec, side.platform, dict(side.options), dict(side.context), dict(side.changed))


def changed(witness: Witness, **fields: Any) -> Witness:
    """The witness with other fields of its record, such as ``note``."""
    return replace(witness, record=witness.record.model_copy(update=fields))


__all__ = [
    "Witness",
    "certificate_of",
    "certified",
    "from_bytes",
    "make",
    "read",
    "to_bytes",
    "witness_of",
    "write",
]
