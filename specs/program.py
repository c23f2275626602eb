"""The typed dataflow that both walkers read: what `bind` makes of a spec, a platform and a shape."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from specs.dot_products import DotProduct
from specs.errors import Place
from specs.formats import Format
from specs.nodes import LevelRule, Name, Node, Reduce

#: The axis of tokens within the innermost level, of the elements that q and k share, and of output columns.
TOKEN, DEPTH, DIM = "token", "depth", "dim"
ROW = "row"
CONSTANTS = "constants"


@dataclass(frozen=True, slots=True)
class Type:
    """What an expression is: its kind (``float``, ``int``, ``bool``), its axes and, for floats, its format."""

    kind: str
    axes: frozenset[str]
    format: Format | None = None


@dataclass(frozen=True, slots=True)
class Level:
    """One nesting level; the integers of its rule are literals by now."""

    name: str
    rule: LevelRule


@dataclass(frozen=True, slots=True)
class View:
    """A colouring of one axis with ``size`` colours; ``index`` gives the colour of each position."""

    name: str
    size: int
    axis: str
    index: Node
    place: Place | None = None


@dataclass(frozen=True, slots=True)
class Site:
    """One line of a spec: a named value. In ``expr`` every reduction names the axes that it removes."""

    name: str
    section: str
    expr: Node
    type: Type
    place: Place


@dataclass(frozen=True, slots=True)
class State:
    """A carried value: starts afresh in each ``scope``, is updated by the site of its name in ``section``.

    ``levels`` are the levels it is folded over, outermost first.
    """

    name: str
    scope: str
    start: Node
    section: str
    levels: tuple[str, ...]
    place: Place


@dataclass(frozen=True)
class Program:
    """A spec bound to a context: every name is a site, a state, an input or gone.

    Attributes:
        spec: name of the spec.
        compute: the format in which operations round unless they say otherwise.
        inputs: formats of ``q``, ``k`` and ``v``.
        levels: nesting levels, outermost first.
        views: colourings.
        states: carried values by name.
        sites: values by name, in the order of the file, constants first.
        integers: values of ``[let]`` and of options, for display.
        types: the type of every node below every site.
        dot_products: the platform's tensor-core arithmetic, for ``mma`` trees.
    """

    spec: str
    compute: Format
    inputs: Mapping[str, Format]
    levels: tuple[Level, ...]
    views: Mapping[str, View]
    states: Mapping[str, State]
    sites: Mapping[str, Site]
    integers: Mapping[str, int | bool | float | str] = field(
        default_factory=dict[str, int | bool | float | str]
    )
    types: Mapping[Node, Type] = field(default_factory=dict[Node, Type], repr=False)
    dot_products: tuple[DotProduct, ...] = ()

    @property
    def level_names(self) -> tuple[str, ...]:
        """Names of the nesting levels, outermost first."""
        return tuple(level.name for level in self.levels)

    @property
    def axes(self) -> tuple[str, ...]:
        """Every axis in canonical order: levels, token, views, depth, dim."""
        return (*self.level_names, TOKEN, *self.views, DEPTH, DIM)

    def levels_to(self, section: str) -> tuple[str, ...]:
        """The levels that enclose a value of ``section``, outermost first, its own included."""
        names = self.level_names
        if section == TOKEN:
            return names
        return names[: names.index(section) + 1] if section in names else ()

    def inside(self, section: str) -> frozenset[str]:
        """The axes that a reduction in ``section`` removes."""
        return inside(self.level_names, section)

    @property
    def couples_rows(self) -> bool:
        """Whether some reduction runs over the rows of a KV head (``over=row``)."""
        nodes = (n for site in self.sites.values() for n in site.expr.walk())
        return any(isinstance(n, Reduce) and ROW in (n.over or ()) for n in nodes)

    def names(self) -> frozenset[str]:
        """Every name that a line or the start of a state mentions."""
        lines = [*(site.expr for site in self.sites.values()), *(s.start for s in self.states.values())]
        return frozenset(n.id for line in lines for n in line.walk() if isinstance(n, Name))

    def score_site(self) -> str:
        """The site that holds the (scaled, masked) score of a token: what ``scores=`` feeds."""
        for name in ("score", "s"):
            if name in self.sites and self.sites[name].section == TOKEN:
                return name
        return ""


def inside(levels: tuple[str, ...], section: str) -> frozenset[str]:
    """The axes inside ``section``: deeper levels, tokens and the elements of a dot product."""
    if section == TOKEN:
        return frozenset({DEPTH})
    start = levels.index(section) + 1 if section in levels else 0
    return frozenset({*levels[start:], TOKEN, DEPTH})
