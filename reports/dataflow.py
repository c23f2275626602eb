"""The dataflow of a spec, read off its parsed lines: who uses whom, and where a number changes its width.

Nothing here knows a kernel. A rounding is a `Cast` of the text: directly around a name it belongs to the edge,
around the whole line to the site, anywhere else to the inside of the site.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from reports.contract import Flow, FlowEdge, FlowNode, FlowSection
from specs.formats import Format
from specs.nodes import Cast, Last, LevelRule, Name, Node, Prev, Reduce, Tree

INPUTS = "inputs"


@dataclass(frozen=True, slots=True)
class FlowSource:
    """What a dataflow is made from, in the order of the file.

    ``sections``: site -> (text, parsed line) by section ("token", a level, "row"). ``levels``: the level rules,
    outermost first. ``states``: state -> the scope in which it lives. ``formats``: of every site and input.
    """

    sections: Mapping[str, Mapping[str, tuple[str, Node]]]
    levels: Mapping[str, tuple[str, LevelRule]]
    states: Mapping[str, str]
    formats: Mapping[str, Format]
    inputs: tuple[str, ...] = ("q", "k", "v")


@dataclass(frozen=True, slots=True)
class _Use:
    name: str
    cast: Format | None
    when: str


def build_flow(source: FlowSource) -> Flow:
    """The dataflow of one spec: sections from the inputs to the row, nodes, and one edge per distinct use."""
    sites = {s: section for section, lines in source.sections.items() for s in lines}
    used = {u.name for lines in source.sections.values() for _, n in lines.values() for u in _uses(n)}
    inputs = [i for i in source.inputs if i in used and i not in sites]
    nodes = [_input(i, source.formats[i]) for i in inputs]
    edges: list[FlowEdge] = []
    for section in order(source):
        for site, (text, node) in source.sections.get(section, {}).items():
            nodes.append(_site(site, section, text, node, source))
            edges.extend(_edges(site, node, source, sites, inputs))
    columns = [FlowSection(name=INPUTS), *(_section(s, source) for s in order(source))]
    filled = {n.section for n in nodes}
    return Flow(
        sections=tuple(c for c in columns if c.name in filled),
        nodes=tuple(nodes),
        edges=tuple(edges),
    )


def order(source: FlowSource) -> list[str]:
    """Sections from the token outwards to the row."""
    inner = [name for name, (_, rule) in source.levels.items() if rule.kind != "view"]
    return ["token", *reversed(inner), "row"]


def _section(name: str, source: FlowSource) -> FlowSection:
    return FlowSection(name=name, rule=source.levels[name][0] if name in source.levels else "")


def _input(name: str, form: Format) -> FlowNode:
    return FlowNode(id=name, section=INPUTS, kind="input", text="", format=form.name, bits=form.bits)


def _site(site: str, section: str, text: str, node: Node, source: FlowSource) -> FlowNode:
    form = source.formats[site]
    root = node.format.name if isinstance(node, Cast) and not isinstance(node.arg, Name) else None
    reductions = [n for n in node.walk() if isinstance(n, Reduce)]
    return FlowNode(
        id=site,
        section=section,
        kind="output" if section == "row" and site in ("output", "lse") else "site",
        text=text,
        format=form.name,
        bits=form.bits,
        rounds=() if root is None else (root,),
        inner=tuple(c.format.name for c in _inner_casts(node)),
        reduction=", ".join(_reduction(r) for r in reductions),
        carried=source.states.get(site),
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


def _edges(
    site: str, node: Node, source: FlowSource, sites: Mapping[str, str], inputs: list[str]
) -> Iterator[FlowEdge]:
    seen: set[_Use] = set()
    for use in _uses(node):
        if use in seen or (use.name not in sites and use.name not in inputs):
            continue
        seen.add(use)
        form = source.formats[use.name]
        narrowing = use.cast if use.cast is not None and not use.cast.holds(form) else None
        yield FlowEdge(
            source=use.name,
            target=site,
            format=form.name,
            bits=form.bits,
            cast=None if narrowing is None else narrowing.name,
            cast_bits=None if narrowing is None else narrowing.bits,
            when="prev" if use.when == "prev" else "last" if use.when == "last" else "now",
        )
