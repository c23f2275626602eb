"""The dataflow of a spec, read off its parsed lines: who uses whom, and where a number changes its width.

Nothing here knows a kernel. A rounding is a `Cast` of the text: directly around a name it belongs to the
edge, around the whole line to the site, anywhere else to the inside of the site.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from reports.contract import Flow, FlowEdge, FlowNode, FlowSection
from specs.bind import bind
from specs.context import make_context
from specs.formats import Format
from specs.loader import Spec
from specs.nodes import Cast, Last, Name, Node, Prev, Reduce, Tree
from specs.platforms import Platform
from specs.program import CONSTANTS, ROW, TOKEN, Program, Site, Type

INPUTS = "inputs"


@dataclass(frozen=True, slots=True)
class _Use:
    name: str
    cast: Format | None
    when: str


def flow_of(spec: Spec, platform: Platform, context: Mapping[str, int]) -> Flow:
    """The dataflow of ``spec`` as it is bound on ``platform`` for a shape (variants resolved).

    Raises:
        InputError, SpecError: as `specs.bind.bind`.
    """
    given = {**platform.context, **context}
    return build_flow(bind(spec, make_context(given)), _texts(spec), spec.levels)


def _texts(spec: Spec) -> dict[str, str]:
    """The text of each line as the file has it."""
    return {name: text for lines in spec.sections.values() for name, text in lines.items()}


def build_flow(program: Program, texts: Mapping[str, str], rules: Mapping[str, str]) -> Flow:
    """The dataflow of a typed program: sections from the inputs to the row, nodes, one edge per distinct use.

    Args:
        program: a bound spec.
        texts: the text of each site, for the reader; sites without one show none.
        rules: the text of each level's rule.
    """
    used = {use.name for site in program.sites.values() for use in _uses(site.expr)}
    inputs = [name for name in program.inputs if name in used]
    nodes = [_input(name, program.inputs[name]) for name in inputs]
    edges: list[FlowEdge] = []
    for section in order(program):
        for site in program.sites.values():
            if site.section == section:
                nodes.append(_site(site, program, texts.get(site.name, "")))
                edges.extend(_edges(site, program))
    filled = {n.section for n in nodes}
    return Flow(sections=tuple(_columns(program, rules, filled)), nodes=tuple(nodes), edges=tuple(edges))


def order(program: Program) -> list[str]:
    """Sections from the constants over the token and the levels, innermost first, to the row."""
    return [CONSTANTS, TOKEN, *reversed(program.level_names), ROW]


def _columns(program: Program, rules: Mapping[str, str], filled: set[str]) -> Iterator[FlowSection]:
    """Sections that have nodes; a level without lines of its own lends its rule to the next one outwards."""
    if INPUTS in filled:
        yield FlowSection(name=INPUTS)
    waiting: list[str] = []
    for name in order(program):
        if name in program.level_names:
            waiting.insert(0, f"{name} = {rules.get(name, '')}")
        if name in filled:
            yield FlowSection(name=name, rule="; ".join(waiting))
            waiting = []


def _input(name: str, form: Format) -> FlowNode:
    return FlowNode(id=name, section=INPUTS, kind="input", text="", format=form.name, bits=form.bits)


def _width(kind: Type) -> tuple[str, int]:
    return (kind.kind, 0) if kind.format is None else (kind.format.name, kind.format.bits)


def _site(site: Site, program: Program, text: str) -> FlowNode:
    node = site.expr
    form, bits = _width(site.type)
    root = (
        node.format.name if isinstance(node, Cast) and not isinstance(node.arg, Name | Prev | Last) else None
    )
    state = program.states.get(site.name)
    return FlowNode(
        id=site.name,
        section=site.section,
        kind="output" if site.section == ROW and site.name in ("output", "lse") else "site",
        text=text,
        format=form,
        bits=bits,
        rounds=() if root is None else (root,),
        inner=tuple(c.format.name for c in _inner_casts(node)),
        reduction=", ".join(_reduction(r) for r in node.walk() if isinstance(r, Reduce)),
        carried=None if state is None else state.scope,
    )


def _reduction(node: Reduce) -> str:
    return node.kind if node.tree is None else f"{node.kind} {tree_text(node.tree)}"


def tree_text(tree: Tree) -> str:
    """A short form of a reduction tree: its kind, with the kinds inside."""
    return f"{tree.kind}({', '.join(tree_text(t) for t in tree.inner)})"


def _inner_casts(node: Node) -> Iterator[Cast]:
    """Casts around an expression that is neither the whole line nor one name."""
    for child in node.walk():
        if isinstance(child, Cast) and child is not node and not isinstance(child.arg, Name | Prev | Last):
            yield child


def _uses(node: Node, cast: Format | None = None) -> Iterator[_Use]:
    """Every name, previous and last state that a line reads, with the cast directly around it."""
    match node:
        case Name(id=name):
            yield _Use(name, cast, "now")
        case Prev(state=state):
            yield _Use(state, cast, "prev")
        case Last(state=state):
            yield _Use(state, cast, "last")
        case Cast(format=form, arg=arg):
            yield from _uses(arg, form)
        case _:
            for child in node.children():
                yield from _uses(child)


def _edges(site: Site, program: Program) -> Iterator[FlowEdge]:
    seen: set[_Use] = set()
    for use in _uses(site.expr):
        if use in seen or (use.name not in program.sites and use.name not in program.inputs):
            continue
        seen.add(use)
        source = program.sites[use.name].type if use.name in program.sites else None
        given = program.inputs[use.name] if source is None else source.format
        form, bits = _width(Type("float", frozenset(), given) if source is None else source)
        narrowing = (
            use.cast if use.cast is not None and given is not None and not use.cast.holds(given) else None
        )
        yield FlowEdge(
            source=use.name,
            target=site.name,
            format=form,
            bits=bits,
            cast=None if narrowing is None else narrowing.name,
            cast_bits=None if narrowing is None else narrowing.bits,
            when="prev" if use.when == "prev" else "last" if use.when == "last" else "now",
        )
