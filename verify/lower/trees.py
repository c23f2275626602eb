"""Reductions found in a data flow: who adds whom, in a thread, across lanes, across warps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from verify.lower.flow import Flow, Node, Store, Words, origins, through

#: A bracket: the number of a term; ("+", a, b), each rounded; ("fma", term, rest), the term's product fused; ("*", term).
Tree = int | tuple[Any, ...]


@dataclass(frozen=True)
class Found:
    """One reduction as the instructions have it. ``terms`` is None where the order of terms could not be read.

    Attributes:
        kind: "sum", "max" or "min".
        tree: brackets inside a thread over terms numbered by ascending place.
        products: "none", "rounded" (every product rounded first), "fused" (some in an FMA).
        lanes: shuffle masks inside a warp, first step first.
        contracted: the first shuffle step fuses a lane's own product and takes its partner's rounded one.
        warps: warp strides joined through shared memory, first step first; None where not readable.
        unread: why something about it could not be read.
        parts: what each of its instructions does, for all results of a thread that are summed like this; the last one
            of a result comes last.
    """

    kind: str
    tree: Tree
    terms: int
    products: str
    lanes: tuple[int, ...]
    contracted: bool
    warps: tuple[int, ...] | None
    unread: str = ""
    ways: tuple[str, ...] = ()
    root: Node | None = field(default=None, compare=False, hash=False)
    parts: list[tuple[str, Node]] = field(default_factory=list[tuple[str, Node]], compare=False, hash=False)


@dataclass(frozen=True, eq=False)
class _Step:
    kind: str
    mask: int
    base: Node
    contracted: bool
    node: Node


def reductions(flow: Flow) -> list[Found]:
    """Every reduction across lanes or warps, or within a thread on its way to other warps; equal ones once, in order."""
    steps = _steps(flow)
    used = {id(s.base) for s in steps.values()}
    roots = [n for n in flow.nodes if id(n) in steps and id(n) not in used]
    later: set[int] = set()
    for node in roots:
        below = _bottom(node, steps)[1]
        if below.op == "shared":
            later |= {id(s.value) for s in _sources(below, steps, steps[id(node)].kind)}
    found: list[Found] = []
    for root in roots:
        if id(root) in later:
            continue
        try:
            one = _read(root, steps)
        except RecursionError:
            one = Found(
                "sum", 0, 1, "none", (), False, None, "a chain of more than some hundred sums in a thread"
            )
        known = next((f for f in found if f == one), None)
        if known is None:
            found.append(one)
        (known or one).parts.extend(_parts(root, steps))
    return found


def _steps(flow: Flow) -> dict[int, _Step]:
    out: dict[int, _Step] = {}
    for node in flow.nodes:
        step = _step(node)
        if step is not None:
            out[id(node)] = step
    return out


def _kind(node: Node) -> str:
    if node.op in ("add", "fma"):
        return "sum"
    return "max" if node.tag.startswith("!") else "min"


def _step(node: Node) -> _Step | None:
    if node.op in ("add", "max"):
        a, b = node.args
    elif node.op == "max3":
        pairs = [(x, y) for x in node.args for y in node.args if y.op == "shfl" and y.args[0] is x]
        if not pairs:
            return None
        a, b = pairs[0]
    elif node.op == "fma":
        own, b = node.args[:2], node.args[2]
        if b.op == "shfl" and b.args[0].op == "mul" and set(map(id, b.args[0].args)) == set(map(id, own)):
            return _Step("sum", b.number, b.args[0], True, node)
        return None
    else:
        return None
    for x, y in ((a, b), (b, a)):
        if y.op == "shfl" and y.args[0] is x:
            return _Step(_kind(node), y.number, x, False, node)
        if y.op == "shfl" and node.op == "max" and x.op == "max" and any(z is y.args[0] for z in x.args):
            return _Step(
                _kind(node), y.number, y.args[0], False, node
            )  # joined with an earlier maximum first
    return None


def _bottom(node: Node, steps: dict[int, _Step]) -> tuple[list[_Step], Node]:
    """The shuffle steps above a value, first one first, and what they start from."""
    chain: list[_Step] = []
    while id(node) in steps and (not chain or steps[id(node)].kind == chain[0].kind):
        chain.append(steps[id(node)])
        node = chain[-1].base
    return chain[::-1], node


def _parts(root: Node, steps: dict[int, _Step]) -> Iterator[tuple[str, Node]]:
    """What each instruction of a reduction does, the first ones first."""
    chain, bottom = _bottom(root, steps)
    across = "across lanes"
    if bottom.op == "shared":
        across = "across warps"
        for store in _sources(bottom, steps, chain[0].kind):
            yield from _parts(store.value, steps)
        yield across, bottom
    else:
        yield from _of_thread(bottom, chain[0].kind if chain else _kind(bottom))
    for step in chain:
        shuffle = next(a for a in step.node.args if a.op == "shfl")
        if step.contracted:
            yield "partner's product", step.base
            yield "partner's product", shuffle
            yield "own product, fused", step.node
        else:
            yield across, shuffle
            yield across, step.node


def _of_thread(root: Node, kind: str) -> Iterator[tuple[str, Node]]:
    """The sums inside a thread, and the products that they sum."""
    left = [root]
    while left:
        node = left.pop()
        if kind == "sum" and node.op in ("add", "fma"):
            yield "in a thread", node
            left += node.args if node.op == "add" else node.args[2:]
        elif kind == "sum" and node.op == "mul" and not _squared(node) and node is not root:
            yield "products", node
        elif kind != "sum" and node.op in ("max", "max3") and _kind(node) == kind:
            yield "in a thread", node
            left += node.args


def _read(root: Node, steps: dict[int, _Step]) -> Found:
    chain, bottom = _bottom(root, steps)
    kind, warps, unread, different = chain[0].kind, (), "", ()
    if bottom.op == "shared":
        across, first = _across(chain, bottom, steps, kind)
        ways = {_shape(s.value, steps, kind): s for s in _sources(bottom, steps, kind)}
        if first is None:
            unread = "what lies in shared memory was not followed"
        elif len(ways) > 1:
            different = tuple(text(_inside(_bottom(s.value, steps)[1], kind)[0]) for s in ways.values())
            unread = f"the results of a thread are bracketed in {len(ways)} ways: {'; '.join(different)}"
        elif across is None:
            unread = "which warp's value a lane takes from shared memory was not followed"
        warps = across
        chain, bottom = ([], bottom) if first is None else first
    tree, terms, products, why = _inside(bottom, kind)
    contracted = bool(chain) and chain[0].contracted
    return Found(
        kind=kind,
        tree=tree,
        terms=terms,
        products="fused" if contracted and products == "none" else products,
        lanes=tuple(s.mask for s in chain),
        contracted=contracted,
        warps=warps,
        unread=unread or why,
        ways=different,
        root=root,
    )


def _sources(load: Node, steps: dict[int, _Step], kind: str) -> list[Store]:
    """The stores of reduced values of this kind that a load from shared memory takes from: the newest."""
    for stored in (load.stored, load.before):
        found: list[Store] = []
        for store in stored:
            chain, below = _bottom(store.value, steps)
            if below.op == "shared" or (chain and chain[0].kind != kind):
                continue
            if chain or _inside(below, kind)[1] > 1:
                found.append(store)
        if found:
            return found
    return []


def _across(
    chain: list[_Step], load: Node, steps: dict[int, _Step], kind: str
) -> tuple[tuple[int, ...] | None, tuple[list[_Step], Node] | None]:
    """Warp strides of a chain that starts from shared memory, and the chain that was stored there."""
    origin: dict[
        int, int
    ] = {}  # address: the first warp that stores there; others store the same, or it is a race
    sources = _sources(load, steps, kind)
    if not sources:
        return None, None
    first = _bottom(sources[0].value, steps)
    for store in sources:
        if store.address is None:
            return None, first
        for thread, address in enumerate(store.address.tolist()):
            if store.storing is None or store.storing[thread]:
                origin.setdefault(address, thread // 32)
    return (None if load.address is None else _strides(chain, load.address, origin)), first


def _strides(chain: list[_Step], address: Words, origin: dict[int, int]) -> tuple[int, ...] | None:
    strides: list[int] = []
    places = address.tolist()
    for step in chain:
        apart = {
            origin[a] ^ origin[b]
            for lane in range(32)
            if (a := places[lane]) in origin and (b := places[lane ^ step.mask]) in origin
        }
        if len(apart) != 1 or 0 in apart:
            return None
        strides.append(apart.pop())
    return tuple(strides)


def _shape(node: Node, steps: dict[int, _Step], kind: str) -> object:
    chain, bottom = _bottom(node, steps)
    tree, terms, products, _ = _inside(bottom, kind)
    return tuple(s.mask for s in chain), tree, terms, products


def _inside(node: Node, kind: str) -> tuple[Tree, int, str, str]:
    """Brackets inside a thread: (tree, number of terms, how products enter, why the order is not known)."""
    leaves: list[tuple[Node, ...]] = []
    rounded, fused = [0], [0]

    def leaf(*nodes: Node) -> int:
        leaves.append(nodes)
        return len(leaves) - 1

    def walk(n: Node) -> Tree:
        if kind == "sum" and n.op == "add":
            return ("+", walk(n.args[0]), walk(n.args[1]))
        if kind == "sum" and n.op == "fma":
            fused[0] += 1
            return ("fma", leaf(*n.args[:2]), walk(n.args[2]))
        if kind != "sum" and n.op in ("max", "max3") and _kind(n) == kind:
            parts: list[Tree] = [walk(a) for a in n.args]
            out = parts[0]
            for part in parts[1:]:
                out = ("+", out, part)
            return out
        if kind == "sum" and n.op == "mul" and not _squared(n):
            rounded[0] += 1
            return ("*", leaf(*n.args))
        return leaf(n)

    tree = walk(node)
    order, why = _order(leaves)
    if why and len(leaves) > 1:
        return tree, len(leaves), "", why
    tree = relabel(tree, lambda i: order[i])
    products = "fused" if fused[0] else "rounded" if rounded[0] else "none"
    if len(leaves) == 1 and not fused[0]:
        products = "none" if not rounded[0] else "rounded"
    return tree, len(leaves), products, ""


def _squared(node: Node) -> bool:
    return node.args[0] is node.args[1]


def _order(leaves: list[tuple[Node, ...]]) -> tuple[list[int], str]:
    """The number of each term by ascending place of what it is made of."""
    keys: list[tuple[Any, ...]] = []
    for nodes in leaves:
        made = [o for n in nodes for o in origins(through(n))]
        loads = [o for o in made if o.op == "load"]
        tensor = [o for o in made if o.op == "mma"]
        if tensor:
            keys.append(_column(tensor))
        elif loads and all(o.address is not None for o in loads):
            keys.append(("load", *sorted({int(o.address[0]) for o in loads if o.address is not None})))
        else:
            return list(range(len(leaves))), "the order of terms in a thread: their origin was not followed"
    if any(k[1] < 0 for k in keys) and len({k[2] for k in keys}) > 1:
        return list(
            range(len(leaves))
        ), "the order of terms in a thread: they come from several tensor-core results"
    if len(set(keys)) < len(keys) or len({len(k) for k in keys}) > 1:
        return list(range(len(leaves))), "the order of terms in a thread: two have one origin"
    ranks = {
        key: i for i, key in enumerate(sorted(keys, key=lambda k: np.array(k[1:], dtype=object).tolist()))
    }
    return [ranks[k] for k in keys], ""


def _column(results: list[Node]) -> tuple[Any, ...]:
    """Where a result of ``mma`` lies among the columns: by the address of its second factor (-1: not known), its chain
    and its number in the instruction's results.
    """
    last = max(results, key=lambda o: o.number)
    first = last
    while first.args[0].op == "mma":
        first = first.args[0]
    second = first.args[5] if len(first.args) > 5 else None
    known = second is not None and second.op == "ldsm" and second.address is not None
    where = (
        (int(second.address[0]), second.number)
        if known and second is not None and second.address is not None
        else (-1, 0)
    )
    pieces = sorted(int(o.tag.rsplit(" ", 1)[1]) for o in results if o.number == last.number)
    chain = first.number if where[0] < 0 else 0
    return ("mma", where[0], chain, where[1], *pieces)


def relabel(tree: Tree, name: Callable[[int], int]) -> Tree:
    """The tree with other numbers, the two sides of each addition in one fixed order."""
    if isinstance(tree, int):
        return name(tree)
    head, *rest = tree
    parts = [relabel(p, name) for p in rest]
    if head == "+":
        parts.sort(key=text)
    return (head, *parts)


def text(tree: Tree, kind: str = "sum") -> str:
    """For people: ``fma(t2, fma(t0, t1))``, where a bare term under an FMA is a rounded product; ``max(t0, t1)``."""
    if isinstance(tree, int):
        return f"t{tree}"
    head, *rest = tree
    parts = [text(p, kind) for p in rest]
    if head == "+" and kind != "sum":
        return f"{kind}({parts[0]}, {parts[1]})"
    return (
        f"({parts[0]} + {parts[1]})"
        if head == "+"
        else parts[0]
        if head == "*"
        else f"fma({parts[0]}, {parts[1]})"
    )


def named(tree: Tree, terms: int) -> str | None:
    """The tree of the spec language that has these brackets, or None."""
    if terms == 1:
        return ""
    for name, make in NAMED.items():
        if relabel(make(terms), lambda i: i) == plain(tree):
            return name
    return None


def plain(tree: Tree) -> Tree:
    """Without the marks of rounded products."""
    if isinstance(tree, int):
        return tree
    head, *rest = tree
    parts = [plain(p) for p in rest]
    return parts[0] if head == "*" else relabel((head, *parts), lambda i: i)


def _seq(order: list[int], head: str) -> Tree:
    tree: Tree = order[0]
    for term in order[1:]:
        tree = ("fma", term, tree) if head == "fma" else ("+", tree, term)
    return tree


def _pairs(parts: list[Tree]) -> Tree:
    while len(parts) > 1:
        joined: list[Tree] = [("+", parts[i], parts[i + 1]) for i in range(0, len(parts) - 1, 2)]
        parts = joined + ([parts[-1]] if len(parts) % 2 else [])
    return parts[0]


def _fused_pairs(n: int) -> Tree:
    pairs: list[Tree] = [("fma", i, i + 1) for i in range(0, n - 1, 2)]
    return _pairs(pairs + ([n - 1] if n % 2 else []))


NAMED: dict[str, Callable[[int], Tree]] = {
    "seq()": lambda n: _seq(list(range(n)), "+"),
    "pairwise()": lambda n: _pairs(list(range(n))),
    "seq(desc)": lambda n: _seq(list(range(n))[::-1], "+"),
    "seq(fma)": lambda n: _seq(list(range(n)), "fma"),
    "seq(fma, swap)": lambda n: _seq([1, 0, *range(2, n)], "fma"),
    "pairwise(fma)": _fused_pairs,
}
