"""Choices that a token's or a column's number decides, and what lines below the score use."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from search.lines import upstream
from search.prove.recheck import placed
from specs.errors import Place, SpecError, UnsupportedError
from specs.integers import evaluate
from specs.nodes import Name, Node, Op, Pos, Select
from specs.program import DIM, TOKEN, Program


def below_score(program: Program) -> list[str]:
    """The lines below the score that the output depends on."""
    return [n for n in upstream(program) if n != program.score_site()]


def mentions(program: Program, name: str) -> bool:
    """Whether any line, or the start of a state, uses a name."""
    lines = [s.expr for s in program.sites.values()] + [s.start for s in program.states.values()]
    return any(isinstance(n, Name) and n.id == name for line in lines for n in line.walk())


def uses(program: Program, name: str) -> bool:
    """Whether a line below the score uses a scalar."""
    todo, seen = below_score(program), set[str]()
    while todo:
        site = todo.pop()
        if site in seen or site not in program.sites or site == program.score_site():
            continue
        seen.add(site)
        for n in program.sites[site].expr.walk():
            if isinstance(n, Name):
                if n.id == name:
                    return True
                todo.append(n.id)
    return False


def columns_of(program: Program, head_dim: int) -> list[int]:
    """One column of v for each way in which lines ask for its number; column 0 where none does."""
    asked: list[Node] = []
    for name in below_score(program):
        asked += _of_column(program.sites[name].expr)
    seen: dict[tuple[int, ...], int] = {}
    for d in range(head_dim):
        try:
            seen.setdefault(tuple(int(evaluate(placed(n, d), {}, Place(""))) for n in asked), d)
        except (SpecError, TypeError):
            return list(range(head_dim))
    return list(seen.values())


def _of_column(n: Node) -> list[Node]:
    """The largest integer expressions that ask for the number of a column."""
    if isinstance(n, Pos) and n.axis == DIM:
        return [n]
    below = [x for child in n.children() for x in _of_column(child)]
    return [n] if below and _whole(n) else below


def versions_of(program: Program) -> list[Program]:
    """The program; or twice, with the first and with the second branch of each choice by a token's position.

    Raises:
        UnsupportedError: a line asks for a token's position in a way that a small instance does not cover.
    """
    indices = [v.index for v in program.views.values()]
    for name in below_score(program):
        site = program.sites[name]
        inside = [x for n in site.expr.walk() if _open(n, program) for x in n.walk()]
        for asked in _of_token(site.expr):
            if asked not in indices and asked not in inside:
                raise UnsupportedError(
                    f"line '{name}' asks for the position of a token in its tile",
                    place=str(site.place),
                    remedy="only views and choices may",
                )
    if not chosen_lines(program):
        return [program]
    return [_forced(program, first) for first in (True, False)]


def chosen_lines(program: Program) -> list[str]:
    """The lines that choose by a token's position."""
    return [n for n in below_score(program) if any(_open(x, program) for x in program.sites[n].expr.walk())]


def _open(n: Node, program: Program) -> bool:
    """Whether a choice depends on where a token is: an instance of a few tokens sees one branch alone."""
    return isinstance(n, Select) and _by_position(n.cond, program, frozenset())


def _by_position(n: Node, program: Program, above: frozenset[str]) -> bool:
    views = any(isinstance(x, Pos) and x.axis in program.views for x in n.walk())
    for x in n.walk():
        if isinstance(x, Name) and x.id in ("key_index", "query_index"):
            return True
        if (
            isinstance(x, Pos) and x.axis == TOKEN and not views
        ):  # with a view it asks for a colour: all are there
            return True
        if isinstance(x, Name) and x.id in program.sites and x.id not in above:
            site = program.sites[x.id]
            if site.type.kind != "float" and _by_position(site.expr, program, above | {x.id}):
                return True
    return False


def _of_token(n: Node) -> list[Node]:
    """The largest integer expressions that ask for a token's position."""
    if isinstance(n, Pos) and n.axis == TOKEN:
        return [n]
    below = [x for child in n.children() for x in _of_token(child)]
    return [n] if below and _whole(n) else below


def _whole(n: Node) -> bool:
    return isinstance(n, Op) and n.op in ("+", "-", "*", "//", "%", "^") and n.format is None


def _forced(program: Program, first: bool) -> Program:
    types = dict(program.types)

    def forced(n: Node) -> Node:
        if _open(n, program):
            assert isinstance(n, Select)
            return forced(n.a if first else n.b)
        changes: dict[str, Any] = {}
        for f in n.__dataclass_fields__:
            value: Any = getattr(n, f)
            if isinstance(value, Node):
                changes[f] = forced(value)
            elif isinstance(value, tuple) and value and isinstance(value[0], Node):
                changes[f] = tuple(forced(x) for x in value)  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
        made = replace(n, **changes) if changes else n
        if n in types:
            types.setdefault(made, types[n])
        return made

    sites = {n: replace(s, expr=forced(s.expr)) for n, s in program.sites.items()}
    return replace(program, sites=sites, types=types)
