"""One search of a campaign, as plain data with an identity of its own: the SHA-256 of its canonical JSON.

A case holds the hash of every spec and platform in it, so that a changed spec is another case and a finished one is
never mistaken for it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, Field, StringConstraints, ValidationError

from specs.errors import InputError, did_you_mean
from specs.schema import Frozen, RefusalError

if TYPE_CHECKING:
    from search.objective import Objective as SearchObjective
    from search.sides import Side
    from search.space import Space
    from specs.platforms import Platform

METHODS = ("search", "random", "bgrt", "cma", "condition", "evolution", "smt")
METRICS = ("ulp", "f32", "flips", "kl")
#: What a distance is counted in.
UNITS = {"ulp": "ULP", "f32": "ULP of the float32 result", "flips": "of logit margin", "kl": "nats"}
#: Those that need a projection to logits.
OF_LOGITS = ("flips", "kl")
#: Between a metric and the side that an objective singles out.
SINGLED = ":single="
MAX_TOKENS = 1 << 20
MAX_SIDES = 8
LETTERS = "abcdefgh"

Cell = Annotated[str, StringConstraints(min_length=1, max_length=400, pattern=r"^[^\x00-\x1f\x7f]*$")]
Setting = Annotated[str, StringConstraints(max_length=2_000)]
SettingName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_.]{0,79}$")]
Value = Annotated[int, Field(ge=-(1 << 40), le=1 << 40)] | Annotated[str, StringConstraints(max_length=80)]


def _unsigned(x: float) -> float:
    return x + 0.0  # -0.0 and 0.0 are one case


def _word(known: tuple[str, ...]) -> Callable[[str], str]:
    def check(word: str) -> str:
        if word not in known:
            raise RefusalError(f"'{word[:40]}' is not known", did_you_mean(word, known))
        return word

    return check


def _objective(text: str) -> str:
    metric, sign, side = text.partition(SINGLED)
    if metric not in METRICS or (sign and (len(side) != 1 or side not in LETTERS)):
        known = [*METRICS, *(f"{m}{SINGLED}a" for m in METRICS)]
        raise RefusalError(f"'{text[:40]}' is no objective", did_you_mean(text, known))
    return text


Length = Annotated[int, Field(ge=1, le=MAX_TOKENS)]
Share = Annotated[float, Field(ge=0, le=1), AfterValidator(_unsigned)]
Seed = Annotated[int, Field(ge=0, lt=1 << 63)]
Method = Annotated[str, AfterValidator(_word(METHODS))]
Objective = Annotated[str, AfterValidator(_objective)]
Above0 = Annotated[float, Field(gt=0, le=1e30, allow_inf_nan=False)]


class Budget(Frozen):
    """What one case may spend. Only the first two are the same on every machine.

    Attributes:
        evaluations: candidates that are evaluated.
        rlimit: resource units of the solver, over all of its queries.
        seconds: wall time; a case that it cuts is marked. None: no limit.
    """

    evaluations: Annotated[int, Field(ge=1, le=10**12)] = 100_000
    rlimit: Annotated[int, Field(ge=1, le=10**12)] = 20_000_000
    seconds: Annotated[float, Field(gt=0, le=1e7)] | None = None


class Statistics(Frozen):
    """Bounds on moments: see `search.space.Statistics`."""

    score_std: Above0 | None = None
    value_std: Above0 | None = None
    value_mean: Annotated[float, Field(ge=0, le=1e30)] | None = None


class SpaceOf(Frozen):
    """What `search.space.Space` takes besides length, context and cancellation."""

    kind: Literal["scores", "qkv"] = "scores"
    dims: Annotated[int, Field(ge=1, le=4096)] = 1
    score_box: Above0 = 20.0
    value_box: Above0 = 8.0
    masks: bool = False
    statistics: Statistics | None = None


_HASH = StringConstraints(pattern=r"^[0-9a-f]{64}$")


class CaseSide(Frozen):
    """One side of a case: what `search.sides.load_side` takes, and the hash of what it gave."""

    cell: Cell
    set: Annotated[dict[SettingName, Setting], Field(max_length=100)]
    content: Annotated[str, _HASH]


class FileOf(Frozen):
    """A file that a case reads: its path, as the campaign file has it, and what it must hold."""

    path: Annotated[str, StringConstraints(min_length=1, max_length=1_000, pattern=r"^[^\x00-\x1f\x7f]*$")]
    sha256: Annotated[str, _HASH]

    def check(self) -> str:
        """The path, if the file still holds what it held when the case was made.

        Raises:
            InputError: it does not, or cannot be read.
        """
        from search.files import digest

        if digest(self.path) != self.sha256:
            raise InputError(
                "is not the file that it was when the campaign was made",
                place=self.path,
                remedy="put it back, or start the campaign from its file again: a changed file makes new cases",
            )
        return self.path


class BaseOf(Frozen):
    """An input that a search starts from: see `search.space.Space`. ``fixed``: tokens, such as ``0-15,40``."""

    file: FileOf
    edits: Annotated[int, Field(ge=1, le=1 << 40)] | None = None
    fixed: Annotated[str, StringConstraints(max_length=20_000)] = ""


class Case(Frozen):
    """One search, as plain data; the fields mean what they mean in a campaign file (`search.campaign.plan`).

    ``projection`` and ``base`` are left out of the JSON where there are none.
    """

    sides: Annotated[tuple[CaseSide, ...], Field(strict=False, min_length=2, max_length=MAX_SIDES)]
    kv_len: Length
    cancellation: Share
    objective: Objective
    method: Method
    seed: Seed
    budget: Budget
    space: SpaceOf
    context: Annotated[dict[SettingName, Value], Field(max_length=100)]
    projection: FileOf | None = None
    base: BaseOf | None = None

    def to_json(self) -> dict[str, Any]:
        """The case as JSON values."""
        fields = self.model_dump(mode="json")
        return {name: x for name, x in fields.items() if x is not None or name not in ("projection", "base")}

    @cached_property
    def text(self) -> str:
        """Canonical JSON."""
        return canonical(self.to_json())

    @cached_property
    def id(self) -> str:
        """SHA-256 of `text`, in hexadecimal."""
        return hashlib.sha256(self.text.encode()).hexdigest()

    @property
    def metric(self) -> str:
        """One of `METRICS`."""
        return self.objective.partition(SINGLED)[0]

    @property
    def single(self) -> int | None:
        """The side that is to be singled out, from 0; None: the sides are to be pairwise apart."""
        _, sign, side = self.objective.partition(SINGLED)
        return LETTERS.index(side) if sign else None

    @property
    def label(self) -> str:
        """One line for people."""
        sides = " / ".join(_shown(side) for side in self.sides)
        base = "" if self.base is None else f"edits of {self.base.file.path}, "
        return (
            f"{sides}, {self.kv_len} tokens, {base}c = {self.cancellation:g}, {self.objective}, "
            f"{self.method}, seed {self.seed}"
        )

    @staticmethod
    def from_json(value: Mapping[str, Any], place: str = "case") -> Case:
        """A case from JSON values that may come from anywhere.

        Raises:
            InputError: they are not a case.
        """
        try:
            return Case.model_validate(value)
        except (ValidationError, RecursionError) as error:
            raise InputError(
                f"not a case: {str(error)[:300]}", place=place, remedy="make it with a campaign file"
            ) from None

    @staticmethod
    def from_text(text: str, place: str = "case") -> Case:
        """A case from JSON text that may come from anywhere.

        Raises:
            InputError: it is not a case.
        """
        try:
            value = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise InputError(
                f"no JSON: {str(error)[:300]}", place=place, remedy="the database is damaged"
            ) from None
        return Case.from_json(value, place)

    @property
    def group(self) -> str:
        """What cases share that have the same programs to compile."""
        shared = self.to_json()
        return canonical([shared.get(name) for name in ("sides", "kv_len", "context", "space", "base")])

    def make_space(self) -> Space:
        """The inputs that the case searches.

        Raises:
            InputError: the input that it starts from cannot be read, is another than it was, or does not fit.
        """
        from search.files import read_base, token_numbers
        from search.space import Space, Statistics

        given = self.space.model_dump()
        statistics = given.pop("statistics")
        base = self.base
        if base is not None:
            given["base"] = read_base(base.file.check())
            given |= {"edits": base.edits, "fixed": token_numbers(base.fixed, "base.fixed")}
        return Space(
            kv_len=self.kv_len,
            context=dict(self.context),
            cancellation=self.cancellation,
            statistics=None if statistics is None else Statistics(**statistics),
            **given,
        )

    def make_objective(self) -> SearchObjective:
        """What the case maximises.

        Raises:
            InputError: its projection cannot be read, is another than it was, or it has none and needs one.
        """
        from search.files import read_projection
        from search.objective import Objective

        metric: Any = self.metric
        matrix = None if self.projection is None else read_projection(self.projection.check())
        return Objective(metric, matrix, self.single)

    def load_sides(self) -> tuple[Side, ...]:
        """The sides, checked to be what they were when the case was made.

        Raises:
            InputError: a spec or platform has changed since. SpecError: it is not there.
        """
        from search.sides import load_side

        loaded = tuple(load_side(side.cell, side.set) for side in self.sides)
        for side, found in zip(self.sides, loaded, strict=True):
            if content_of(found) != side.content:
                raise InputError(
                    f"{found.label} is not what it was when the campaign was made",
                    place=side.cell,
                    remedy="start the campaign from its file again: a changed spec makes new cases",
                )
        return loaded


def canonical(value: Any) -> str:
    """JSON with sorted keys, no spaces and no NaN: equal values give equal text.

    Raises:
        ValueError, TypeError: ``value`` is not JSON.
    """
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def content_of(side: Side) -> str:
    """SHA-256 of the spec, changed lines included, and of the platform, in hexadecimal."""
    return content_hash(side.spec.content_hash, side.platform)


def content_hash(spec: str, platform: Platform) -> str:
    """`content_of` a side, from the hash of its spec and its platform."""
    text = canonical(platform.model_dump(mode="json"))
    return hashlib.sha256(f"{spec}\n{text}".encode()).hexdigest()


def _shown(side: CaseSide) -> str:
    name, _, platform = side.cell.rpartition("@")
    changes = ", ".join(f"{n}={t}" for n, t in side.set.items())
    return f"{name}[{changes}]@{platform}" if changes else side.cell
