"""Campaign files: which pairs, lengths, constraints, methods and seeds; and the cases that they make."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations, product
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn

from pydantic import AfterValidator, Field, StringConstraints, model_validator

from search.campaign.case import (
    LETTERS,
    MAX_SIDES,
    OF_LOGITS,
    SINGLED,
    BaseOf,
    Budget,
    Case,
    CaseSide,
    Cell,
    FileOf,
    Length,
    Method,
    Objective,
    Seed,
    Setting,
    SettingName,
    Share,
    SpaceOf,
    Value,
    content_of,
)
from specs.document import Document, parse_document, read_document, validate
from specs.errors import InputError, SpecError, UlpscopeError, did_you_mean
from specs.schema import Frozen, Line, RefusalError, SpecName

MAX_CASES = 100_000
MAX_LIST = 1_000
#: c, where a file says nothing.
CANCELLATION = 0.5


def _some(values: tuple[Any, ...]) -> tuple[Any, ...]:
    if not values:
        raise RefusalError("an empty list", "give at least one, or leave the line out")
    return values


Many = Field(strict=False, max_length=MAX_LIST)
Some = AfterValidator(_some)


PathText = Annotated[str, StringConstraints(min_length=1, max_length=1_000, pattern=r"^[^\x00-\x1f\x7f]*$")]


class BaseIn(Frozen):
    """An input to start from: ``scores`` and ``values`` of a file; at most so many edits; tokens that stay."""

    file: PathText
    edits: Annotated[int, Field(ge=1, le=1 << 40)] | None = None
    fixed: Annotated[str, StringConstraints(max_length=20_000)] = ""


class Lists(Frozen):
    """What a file says for all pairs, and a pair for itself.

    ``projection`` is a file with W [vocabulary, dim], for the objectives flips and kl. Paths are those of a command in
    the same folder.
    """

    kv_lens: Annotated[tuple[Length, ...], Many, Some] | None = None
    cancellation: Annotated[tuple[Share, ...], Many, Some] | None = None
    objectives: Annotated[tuple[Objective, ...], Many, Some] | None = None
    methods: Annotated[tuple[Method, ...], Many, Some] | None = None
    seeds: Annotated[tuple[Seed, ...], Many, Some] | None = None
    budget: Budget | None = None
    space: SpaceOf | None = None
    context: Annotated[dict[SettingName, Value], Field(max_length=100)] | None = None
    projection: PathText | None = None
    base: BaseIn | None = None


class Pair(Lists):
    """Two or more sides that are compared.

    Attributes:
        sides: ``SPEC@PLATFORM``; or specs alone, with ``platforms``.
        platforms: each spec without a platform of its own runs on each of these, all sides on the same one. A
            single spec is compared with itself on each two of them.
        set: by ``a.NAME``, ``b.NAME``, ...: another text for a line, an option or a context value of that side.
    """

    sides: Annotated[tuple[Cell, ...], Field(strict=False, max_length=MAX_SIDES), Some]
    platforms: Annotated[tuple[Cell, ...], Field(strict=False, max_length=100)] = ()
    set: Annotated[dict[SettingName, Setting], Field(max_length=100, default_factory=dict)]

    @model_validator(mode="after")
    def _sides(self) -> Pair:
        bare = [side for side in self.sides if "@" not in side]
        if bare and not self.platforms:
            raise RefusalError(
                f"'{bare[0]}' names no platform", "write SPEC@PLATFORM, or add platforms = [...]"
            )
        if self.platforms and not bare:
            raise RefusalError("platforms are given, but every side has its own", "leave one of both out")
        if len(self.sides) == 1 and len(self.platforms) < 2:
            raise RefusalError("one side has nothing to differ from", "give two sides or two platforms")
        letters = LETTERS[: self.count]
        for name in self.set:
            head, dot, rest = name.partition(".")
            if not dot or not rest or head not in letters or len(head) != 1:
                raise RefusalError(
                    f"set: '{name}' names no side",
                    f"begin it with one of {', '.join(letters)} and a dot; what holds for all sides goes to [context]",
                )
        return self

    @property
    def count(self) -> int:
        """How many sides a case has."""
        return max(2, len(self.sides))

    def combinations(self) -> Iterator[tuple[str, ...]]:
        """The cells of each combination of sides and platforms, in the order of the file."""
        if not self.platforms:
            yield self.sides
        elif len(self.sides) == 1:
            yield from (
                (f"{self.sides[0]}@{p}", f"{self.sides[0]}@{q}") for p, q in combinations(self.platforms, 2)
            )
        else:
            for platform in self.platforms:
                yield tuple(side if "@" in side else f"{side}@{platform}" for side in self.sides)

    def settings(self, side: int) -> dict[str, str]:
        """What ``set`` says of one side, by name."""
        head = f"{LETTERS[side]}."
        return {name.removeprefix(head): text for name, text in self.set.items() if name.startswith(head)}


class CampaignFile(Lists):
    """A campaign file. Every list has a default, but for the lengths."""

    schema_version: Annotated[Literal[1], Field(alias="schema")]
    name: SpecName
    title: Line = ""
    pairs: Annotated[tuple[Pair, ...], Field(alias="pair", strict=False, max_length=MAX_LIST), Some]


@dataclass(frozen=True)
class Campaign:
    """A campaign file that was read, with the places in it."""

    file: CampaignFile
    document: Document

    @property
    def text(self) -> str:
        """The file itself."""
        return self.document.positions.source

    @property
    def name(self) -> str:
        """The name in the file."""
        return self.file.name

    @cached_property
    def cases(self) -> tuple[Case, ...]:
        """See `expand`."""
        return expand(self)


def read_campaign(path: str | Path) -> Campaign:
    """The campaign in a TOML file.

    Raises:
        SpecError: with the place in the file, the cause and a remedy.
    """
    return _checked(read_document(Path(path)))


def parse_campaign(text: str, name: str = "campaign") -> Campaign:
    """The campaign in a TOML text called ``name``.

    Raises:
        SpecError: as `read_campaign`.
    """
    return _checked(parse_document(text, name))


def _checked(document: Document) -> Campaign:
    file = validate(CampaignFile, document)
    _known_context(document, (), file)
    _single_sides(document, (), file, max((pair.count for pair in file.pairs), default=0))
    for number, pair in enumerate(file.pairs):
        where = ("pair", number)
        if (pair.kv_lens or file.kv_lens) is None:
            raise SpecError(
                f"pair {number + 1} has no lengths",
                place=document.key(where),
                remedy="add  kv_lens = [...]  to it or to the top of the file",
            )
        _known_context(document, where, pair)
        _known_space(document, where, file, pair)
        _single_sides(document, where, pair, pair.count)
        if pair.objectives is None:
            _single_sides(document, (), file, pair.count)
    return Campaign(file, document)


def _known_space(document: Document, where: tuple[Any, ...], file: CampaignFile, pair: Pair) -> None:
    """Whether the search has what the context of a pair asks for."""
    from search.limits import check_context

    context = {**(file.context or {}), **(pair.context or {})}
    try:
        for kv_len in pair.kv_lens or file.kv_lens or ():
            check_context(context, kv_len)
    except InputError as error:
        place = (*where, "context") if pair.context else ("context",) if file.context else where
        raise SpecError(error.cause, place=document.key(place), remedy=error.remedy) from None


def _known_context(document: Document, where: tuple[Any, ...], lists: Lists) -> None:
    from specs.context import CONTEXT, OF_PLATFORM

    known = [name for name in CONTEXT if name not in (*OF_PLATFORM, "kv_len")]
    for name in lists.context or {}:
        if name not in known:
            why = "is fixed by the platform" if name in OF_PLATFORM else "is nothing that formulas see"
            raise SpecError(
                f"'{name}' {'stands in kv_lens' if name == 'kv_len' else why}",
                place=document.key((*where, "context", name)),
                remedy=did_you_mean(name, known),
            )


def _single_sides(document: Document, where: tuple[Any, ...], lists: Lists, sides: int) -> None:
    for index, objective in enumerate(lists.objectives or ()):
        _, sign, side = objective.partition(SINGLED)
        if sign and LETTERS.index(side) >= sides:
            raise SpecError(
                f"'{objective}', but there are {sides} sides",
                place=document.char((*where, "objectives", index)),
                remedy=f"single out one of {', '.join(LETTERS[:sides])}",
            )


def expand(campaign: Campaign) -> tuple[Case, ...]:
    """The cases of a file, in its order; what is written twice is one case.

    Raises:
        SpecError: more than `MAX_CASES`; a side that cannot be loaded, or not bound in its context.
    """
    file, document = campaign.file, campaign.document
    total = sum(
        sum(1 for _ in pair.combinations()) * math.prod(len(values) for values in _lists(file, pair))
        for pair in file.pairs
    )
    if total > MAX_CASES:
        raise SpecError(
            f"{total:,} cases", place=document.name, remedy=f"give at most {MAX_CASES:,}, in several files"
        )
    found: dict[str, Case] = {}
    for number, pair in enumerate(file.pairs):
        projection, base = _files(document, file, number)
        for cells in pair.combinations():
            sides = _sides(document, file, number, cells)
            for kv_len, share, objective, method, seed in product(*_lists(file, pair)):
                case = Case(
                    sides=sides,
                    kv_len=kv_len,
                    cancellation=share,
                    objective=objective,
                    method=method,
                    seed=seed,
                    budget=pair.budget or file.budget or Budget(),
                    space=pair.space or file.space or SpaceOf(),
                    context={**(file.context or {}), **(pair.context or {})},
                    projection=projection if objective.partition(SINGLED)[0] in OF_LOGITS else None,
                    base=base,
                )
                found.setdefault(case.id, case)
    return tuple(found.values())


def _lists(file: CampaignFile, pair: Pair) -> tuple[tuple[Any, ...], ...]:
    """Lengths, c, objectives, methods and seeds of one pair."""
    return (
        pair.kv_lens or file.kv_lens or (),
        pair.cancellation or file.cancellation or (CANCELLATION,),
        pair.objectives or file.objectives or ("ulp",),
        pair.methods or file.methods or ("search",),
        pair.seeds or file.seeds or (0,),
    )


def _files(document: Document, file: CampaignFile, number: int) -> tuple[FileOf | None, BaseOf | None]:
    """The files that the cases of a pair read, with their hashes; read once, so that mistakes show before any work."""
    pair = file.pairs[number]
    space = pair.space or file.space or SpaceOf()
    objectives = pair.objectives or file.objectives or ("ulp",)
    needed = [o for o in objectives if o.partition(SINGLED)[0] in OF_LOGITS]
    where = ("pair", number) if pair.projection or pair.base else ()
    projection, base = None, None

    def refuse(key: str, cause: str, remedy: str) -> NoReturn:
        owner = ("pair", number) if getattr(pair, key) is not None else ()
        raise SpecError(cause, place=document.key((*owner, key)), remedy=remedy)

    given, start = pair.projection or file.projection, pair.base or file.base
    if needed and given is None:
        raise SpecError(
            f"the objective {needed[0]} needs a projection",
            place=document.key(where),
            remedy='add  projection = "W.safetensors", a file with one array [vocabulary, dim]',
        )
    if pair.projection is not None and not needed:
        refuse(
            "projection", "no objective of this pair takes a projection", f"ask for {' or '.join(OF_LOGITS)}"
        )
    if start is None and not needed:
        return None, None
    from search.files import digest, read_base, read_projection, token_numbers

    if given is not None and needed:
        try:
            columns = read_projection(given).shape[1]
            projection = FileOf(path=given, sha256=digest(given))
        except InputError as error:
            refuse("projection", f"{error.place}: {error.cause}", error.remedy)
        if columns != space.dims:
            refuse("projection", f"{given} has {columns} columns, the space {space.dims}", "set space.dims")
    if start is not None:
        try:
            found = read_base(start.file)
            token_numbers(start.fixed, "fixed")
            made = FileOf(path=start.file, sha256=digest(start.file))
        except InputError as error:
            refuse("base", f"{error.place}: {error.cause}", error.remedy)
        lengths = pair.kv_lens or file.kv_lens or ()
        if set(lengths) != {found.kv_len} or space.dims != found.dims:
            refuse(
                "base",
                f"{start.file} has {found.kv_len} tokens and {found.dims} columns",
                f"write kv_lens = [{found.kv_len}] and space = {{ dims = {found.dims} }}",
            )
        base = BaseOf(file=made, edits=start.edits, fixed=start.fixed)
    return projection, base


def _sides(
    document: Document, file: CampaignFile, number: int, cells: tuple[str, ...]
) -> tuple[CaseSide, ...]:
    """The sides of one combination, loaded and bound once at each length, so that mistakes show before any work."""
    from search.sides import before_rounding, load_side

    pair = file.pairs[number]
    context = {**(file.context or {}), **(pair.context or {})}
    made: list[CaseSide] = []
    stored: dict[str, str] = {}
    for index, cell in enumerate(cells):
        path = ("pair", number, "sides", min(index, len(pair.sides) - 1))
        settings = pair.settings(index)
        try:
            side = load_side(cell, settings)
            for kv_len in pair.kv_lens or file.kv_lens or ():
                program = side.program({**context, "kv_len": kv_len})
                stored.setdefault(str(before_rounding(program)[2]), cell)
        except UlpscopeError as error:
            where = f" ({error.place})" if error.place else ""
            raise SpecError(
                f"side {LETTERS[index]}, {cell}{where}: {error.cause}",
                place=document.char(path),
                remedy=error.remedy,
            ) from None
        made.append(CaseSide(cell=cell, set=settings, content=content_of(side)))
    if len(stored) > 1:
        raise SpecError(
            f"outputs are stored in {' and in '.join(f'{fmt} by {cell}' for fmt, cell in stored.items())}",
            place=document.char(("pair", number, "sides", 0)),
            remedy="a distance is counted in one format: compare variants that store the same",
        )
    return tuple(made)
