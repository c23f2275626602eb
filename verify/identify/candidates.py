"""What could have made a capture: specs on platforms, and which of them are one and the same program on it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import numpy as np

from specs import Platform, Spec, load_platform, load_spec
from specs.discover import every
from specs.errors import InputError, Place, SpecError, UlpscopeError
from specs.nodes import Op, Tree
from verify.backends import load_backend
from verify.emulator import Run
from verify.engine.special import FUNCTIONS
from verify.identify.observations import Observation
from verify.identify.ranking import Refused

#: Products of q and k of all calls of one shape up to which the scalar definition is quicker than a compilation.
ORACLE_UP_TO = 1 << 20
#: Fields that name things or say where they stand, and change no bit; the partition and what the machine adds to the
#: program are looked at apart.
_APART = frozenset({"place", "spec", "types", "integers", "rule", "dot_products"})


@dataclass(frozen=True, eq=False)
class Candidate:
    """One spec on one platform; ``name`` is ``SPEC@PLATFORM``, ``context`` has versions and the like."""

    name: str
    spec: Spec
    platform: Platform
    context: dict[str, int | str]


@dataclass(frozen=True, eq=False)
class Class:
    """Candidates that are the same program with the same partition on every observation: equal by proof.

    ``runs`` are bound, one for each observation.
    """

    members: tuple[Candidate, ...]
    runs: tuple[Run, ...]

    @property
    def name(self) -> str:
        """The name of its first member."""
        return self.members[0].name


def candidates(
    names: Sequence[str] = (), *, walkthrough: bool = False, context: dict[str, int | str] | None = None
) -> list[Candidate]:
    """The candidates called ``names``: ``SPEC@PLATFORM``, a spec (then on every platform), or ``@PLATFORM``.

    Without names: every spec of a real kernel on every platform of its kind; with ``walkthrough`` the teaching specs, too.

    Raises:
        InputError: nothing is left. SpecError: a name that is not known.
    """
    found: dict[str, Candidate] = {}
    for name in names or ("",):
        spec_name, _, platform_name = name.partition("@")
        platforms = (
            [load_platform(platform_name)]
            if platform_name
            else [load_platform(p.name) for p in every("platform")]
        )
        for platform in platforms:
            for spec in _specs(spec_name, platform, walkthrough):
                key = f"{spec.name}@{platform.name}"
                found.setdefault(key, Candidate(key, spec, platform, dict(context or {})))
    if not found:
        raise InputError("no candidates", place="candidates", remedy="name specs and platforms that exist")
    return list(found.values())


def _specs(name: str, platform: Platform, walkthrough: bool) -> list[Spec]:
    if name:
        return [load_backend(name, platform)]
    specs = [load_spec(found.name) for found in every()]
    return [s for s in specs if walkthrough or s.file.status != "walkthrough"]


def bound(
    given: Iterable[Candidate], observations: Sequence[Observation]
) -> tuple[list[Class], list[Refused]]:
    """Bind each candidate to every observation, and put those that are one program into one class.

    A candidate that refuses one observation is refused: ranking compares like with like.
    """
    classes: dict[str, tuple[list[Candidate], tuple[Run, ...]]] = {}
    refused: list[Refused] = []
    walkers = _walkers(observations)
    for candidate in given:
        try:
            runs = tuple(_start(candidate, o, w) for o, w in zip(observations, walkers, strict=True))
        except UlpscopeError as error:
            if isinstance(error, SpecError) and candidate.context:
                raise
            refused.append(Refused(candidate.name, error.cause))
            continue
        key = hashlib.sha256("\n".join(fingerprint(run) for run in runs).encode()).hexdigest()
        classes.setdefault(key, ([], runs))[0].append(candidate)
    return [Class(tuple(members), runs) for members, runs in classes.values()], refused


def _walkers(observations: Sequence[Observation]) -> list[str]:
    """Which walker predicts each observation: the oracle where all calls of its shape together are small."""
    shapes = [(*(o.case.arrays[n].shape[-2:] for n in ("q", "k", "v")), o.rows) for o in observations]
    work: dict[Any, int] = {}
    for shape, o in zip(shapes, observations, strict=True):
        work[shape] = work.get(shape, 0) + o.case.arrays["q"].size * o.case.kv_len
    return ["oracle" if work[shape] <= ORACLE_UP_TO else "engine" for shape in shapes]


def _start(candidate: Candidate, observation: Observation, walker: str) -> Run:
    case = observation.case
    known = {o: v for o, v in observation.options.items() if o in candidate.spec.file.options}
    from verify.emulator import start_run

    return start_run(
        candidate.spec,
        candidate.platform,
        case.arrays,
        scale=case.scale,
        causal=case.causal,
        features=case.features,
        context={**case.context, **candidate.context},
        options=known,
        backend=walker,
    )


def fingerprint(run: Run) -> str:
    """sha256 of everything that decides the bits of a run: the bound program, the partition, and the scalars.

    Two runs of one input with equal fingerprints are the same function of it. Names of specs and places in files are
    left out, names of sites are not: a spec that only renames its lines counts as another program.
    """
    digest = hashlib.sha256()
    nodes = [n for site in run.program.sites.values() for n in site.expr.walk()]
    digest.update(repr(_plain(run.program)).encode())
    if any(isinstance(n, Tree) and n.kind == "mma" for n in nodes):
        digest.update(repr(_plain(run.program.dot_products)).encode())
    if any(isinstance(n, Op) and n.op in FUNCTIONS for n in nodes):
        digest.update(repr(run.platform.special_functions).encode())
    digest.update(repr(sorted(run.scalars.items())).encode())
    for array in (run.plan.tokens, *(run.plan.exists[n] for n in run.plan.levels)):
        data = np.ascontiguousarray(array)
        digest.update(f"{data.dtype}{data.shape}".encode())
        digest.update(data.tobytes())
    return digest.hexdigest()


def _plain(value: Any) -> Any:
    """A value as nested tuples, without names of specs and places."""
    if isinstance(value, Place):
        return None
    if is_dataclass(value) and not isinstance(value, type):
        parts = [(f.name, _plain(getattr(value, f.name))) for f in fields(value) if f.name not in _APART]
        return (type(value).__name__, *parts)
    if isinstance(value, dict):
        return tuple((str(k), _plain(v)) for k, v in value.items())
    if isinstance(value, frozenset | set):
        return tuple(sorted(str(v) for v in value))
    if isinstance(value, tuple | list):
        return tuple(_plain(v) for v in value)
    return value
