"""Which instructions realise which line: from the graph of the instructions to the names that a fragment gives its lines.

A line has several instructions, and each of them comes as often as a thread has values of the line. Where it cannot be told
which of several instructions belong to a line, all of them are listed, and it is said that they are candidates.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from specs.schema import Frozen
from verify.lower.flow import Flow, Node, origins, through
from verify.lower.trees import Found

_TEXT = re.compile(r"^\s*(?:/\*[0-9a-f]+\*/)?\s*(?P<text>(?:@!?%?U?[Pp]\w*\s+)?(?P<op>[A-Za-z][\w.:]*)[^;]*)")
#: The line of a fragment that a reduction of each role becomes.
LINES = {
    "score_max": "m",
    "tile_sum": "l",
    "merge_max": "most",
    "weights": "total",
    "denominator": "total",
    "numerator": "num",
}
#: Lines of the first, contracted step of a denominator, and of the steps after it.
FIRST, AFTER = "d", "den"


class Instruction(Frozen):
    """Instructions of one kind that do one thing for a line.

    Attributes:
        part: what they do for the line, as "in a thread", "across lanes", "exponential".
        opcode: as the listing writes it, as ``MUFU.EX2``. ``lines`` are those of the listing where they stand, from 1.
        text: the first of them, in whole.
    """

    part: str
    opcode: str
    lines: tuple[int, ...]
    text: str


class SiteInstructions(Frozen):
    """What realises one line. ``undecided``: why these are candidates only; empty if they are the line's own."""

    site: str
    instructions: tuple[Instruction, ...]
    undecided: str = ""


class _Lines:
    """Nodes by line, and by what they do for it."""

    def __init__(self, flow: Flow) -> None:
        self.flow = flow
        self.parts: dict[str, dict[str, list[Node]]] = {}
        self.undecided: dict[str, str] = {}

    def add(self, site: str, part: str, *nodes: Node) -> None:
        self.parts.setdefault(site, {}).setdefault(part, []).extend(nodes)

    def readers(self, node: Node, *ops: str) -> list[Node]:
        """Nodes of some operations that read ``node``, past signs."""
        return [n for n in self.flow.nodes if n.op in ops and any(through(a) is node for a in n.args)]


def sited(
    flow: Flow, listing: str, reductions: Sequence[tuple[str, Sequence[Found], str]]
) -> tuple[SiteInstructions, ...]:
    """The lines of a kernel that could be followed.

    Args:
        flow: the data flow of the listing.
        listing: the text that ``flow`` is of.
        reductions: the role of each reduction of the source, those of the instructions that fit it, and why none of them
            was chosen; empty if one was.
    """
    lines = _Lines(flow)
    for role, fits, why in reductions:
        if role in LINES:
            _reduction(lines, LINES[role], fits, why)
    _exponentials(lines)
    _products(lines)
    _divisions(lines)
    texts = listing.splitlines()
    return tuple(
        SiteInstructions(
            site=site,
            instructions=tuple(sorted(_listed(parts, texts), key=lambda i: i.lines)),
            undecided=lines.undecided.get(site, ""),
        )
        for site, parts in lines.parts.items()
    )


def _listed(parts: dict[str, list[Node]], texts: Sequence[str]) -> Iterator[Instruction]:
    for part, nodes in parts.items():
        by_opcode: dict[str, dict[int, str]] = {}
        for number in sorted({n.line for n in nodes if n.line}):
            m = _TEXT.match(texts[number - 1])
            if m is not None:
                text = re.sub(r"\s+", " ", m["text"].replace(".reuse", "")).strip()
                by_opcode.setdefault(m["op"], {})[number] = text
        for opcode, found in by_opcode.items():
            yield Instruction(part=part, opcode=opcode, lines=tuple(found), text=found[min(found)])


def _reduction(lines: _Lines, site: str, fits: Sequence[Found], why: str) -> None:
    if why:
        lines.undecided[site] = why
        lines.parts.setdefault(site, {})
    for one in fits:
        steps = one.contracted and not why
        for part, node in one.parts:
            lines.add((AFTER if part.startswith("across") else FIRST) if steps else site, part, node)
        if not steps:
            _joined(lines, site, [node for _, node in one.parts], one.kind)


def _joined(lines: _Lines, site: str, own: Sequence[Node], kind: str) -> None:
    """What takes the result into a running value."""
    known = {id(n) for n in own}
    last = {
        id(n) for n in own if not any(id(r) in known for r in lines.readers(n, "shfl", "add", "fma", "max"))
    }
    for node in lines.flow.nodes:
        if id(node) in known:
            continue
        if kind == "sum" and node.op == "fma" and id(node.args[2]) in last:
            lines.add(site, "into the running value", node)
        elif kind == "sum" and node.op == "add" and any(id(a) in last for a in node.args):
            products = [a for a in node.args if a.op == "mul"]
            if products:
                lines.add(site, "into the running value", *products, node)
        elif kind == "max" and node.op in ("max", "max3") and any(id(a) in last for a in node.args):
            lines.add(site, "into the running value", node)


def _exponentials(lines: _Lines) -> None:
    """``ex2`` of scores that are summed are the weights of a tile; of loaded maxima those of a merge; what multiplies a
    running value rescales it. Others, as of a softcap, belong to no line here.
    """
    matrix = any(n.op == "mma" for n in lines.flow.nodes)
    for node in lines.flow.nodes:
        if node.op != "ex2":
            continue
        made = {o.op for o in origins(node)}
        if "mma" in made:
            site = "weight" if _summed(lines, node) else ""
        elif matrix:
            site = (
                "alpha" if any(n.args[0] is not n.args[1] for n in _uses(lines, node, "mul", "fma")) else ""
            )
        else:
            site = "w" if "load" in made else ""
        if not site:
            continue
        inner = node.args[0]
        if inner.op == "cond":
            lines.add(site, "guard for small results", inner.args[0])
            inner = inner.args[1]
        lines.add(site, "argument", *_argument(inner))
        lines.add(site, "exponential", node)
        squares = [n for n in lines.readers(node, "mul") if n.args[0] is n.args[1]]
        lines.add(site, "guard for small results", *squares)


def _uses(lines: _Lines, node: Node, *ops: str) -> list[Node]:
    """What reads an exponential, or its square under a guard."""
    squares = [n for n in lines.readers(node, "mul") if n.args[0] is n.args[1]]
    values = [node, *squares]
    values += [c for value in values for c in lines.readers(value, "cond")]
    return [n for value in values for n in lines.readers(value, *ops) if n not in squares]


def _summed(lines: _Lines, node: Node) -> bool:
    uses = _uses(lines, node, "add", "pack", "shfl")
    return any(n.op != "add" or all(a.op != "const" for a in n.args) for n in uses)


def _argument(node: Node) -> Iterator[Node]:
    """The product with log2(e) and the difference that it is of, or one fma."""
    node = through(node)
    if node.op == "mul":
        yield from (n for a in node.args if through(a).op == "add" for n in [through(a)])
    if node.op in ("mul", "fma", "add"):
        yield node


def _products(lines: _Lines) -> None:
    """Tensor-core chains: those whose result is scaled and compared are scores, those with weights are the values'."""
    flow = lines.flow
    scored = {
        o.number for n in flow.nodes if n.op == "ex2" for o in origins(n) if o.op == "mma"
    }  # the last instruction of each chain
    for node in flow.nodes:
        if node.op != "mma":
            continue
        first = node
        while first.args[0].op == "mma":
            first = first.args[0]
        if node.number in scored:
            chain = node
            while chain.op == "mma":
                lines.add("product", "tensor cores", chain)
                chain = chain.args[0]
            scales = lines.readers(node, "mul", "fma")
            lines.add("product", "scale", *scales)
            for scale in scales:
                lines.add("score", "mask", *lines.readers(scale, "select"))
        elif first.args[0].op == "mul":
            lines.add("acc", "rescaling", first.args[0])
            lines.add("acc", "tensor cores", node)
    if "acc" in lines.parts:
        weights = [n for n in flow.nodes if n.op == "pack" and any(_exponential(a) for a in n.args)]
        if weights:
            lines.add("acc", "conversion of weights", *weights)


def _exponential(node: Node) -> bool:
    """Whether a value is an exponential, perhaps squared under a guard."""
    if node.op == "cond":
        return any(_exponential(a) for a in node.args)
    return node.op == "ex2" or (
        node.op == "mul" and node.args[0] is node.args[1] and node.args[0].op == "ex2"
    )


def _divisions(lines: _Lines) -> None:
    """The reciprocal of the denominator, the products with it, and the conversion of what comes out."""
    quotients: list[Node] = [n for n in lines.flow.nodes if n.op == "div"]
    lines_of = [(n, "quotient") for n in quotients]
    for node in lines.flow.nodes:
        if node.op != "rcp":
            continue
        lines_of += [(n, "guard for large and small divisors") for n in _guards(node.args[0])]
        lines_of.append((node, "reciprocal"))
        for product in lines.readers(node, "mul"):
            other = (
                next(a for a in product.args if a is not node)
                if product.args[0] is not product.args[1]
                else node
            )
            lines_of += [(n, "guard for large and small divisors") for n in _guards(other)]
            lines_of.append((product, "product"))
            quotients.append(product)
    for node, part in lines_of:
        lines.add("exact", part, node)
    for node in quotients:
        lines.add("output", "conversion", *lines.readers(node, "pack"))


def _guards(node: Node) -> Iterator[Node]:
    """The products that scale a value under a condition."""
    while node.op == "cond":
        yield node.args[0]
        node = node.args[1]
