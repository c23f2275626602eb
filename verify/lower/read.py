"""What the compiled kernel does, read: dot products, reductions, exponentials, divisions, fused sums."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from typing import Any

from specs.schema import Frozen
from verify.lower import ptx, sass
from verify.lower.brackets import along, compose
from verify.lower.flow import Flow, Node
from verify.lower.sites import SiteInstructions, sited
from verify.lower.stages import Kernel
from verify.lower.trees import Found, reductions, text
from verify.lower.ttgir import Reduction, program


class ReadReduction(Frozen):
    """One ``tt.reduce`` of the source and what became of it.

    Attributes:
        tree: an expression of the spec language; ``unread`` says why there is none.
        brackets: those inside a thread, over its terms t0, t1, ... by ascending place.
        products: "none", "rounded" or "fused".
        lanes: shuffle masks in the order of execution; ``along`` are their strides along the axis.
        warps: strides of warps that are joined through shared memory.
        contracted: the first shuffle step is an FMA of a lane's own product and its partner's rounded one.
        joined: how the result goes into a running value, "fma" or "add".
        nameless: all was read, but the spec language has no name for these brackets.
        ways: where results of one thread are bracketed differently, each way.
        columns: strides of the columns that lanes 1, 2, 4, 8, 16 hold apart, where each lane uses its own result.
    """

    role: str
    kind: str
    place: str
    shape: tuple[int, ...]
    axis: int
    layout: str
    brackets: str = ""
    products: str = "none"
    lanes: tuple[int, ...] = ()
    along: tuple[int, ...] = ()
    warps: tuple[int, ...] = ()
    contracted: bool = False
    joined: str = ""
    columns: tuple[int, ...] = ()
    tree: str | None = None
    unread: str = ""
    nameless: bool = False
    ways: tuple[str, ...] = ()


class ReadDot(Frozen):
    """Chains of tensor-core instructions of one kind: ``count`` chains of ``length``, that begin at ``start``.

    ``ascending``: the factors' addresses rise along the chain; False also where they were not followed. ``scaled``: what
    the result goes into first, "mul" by one number, "fma" with + 0, or "".
    """

    instruction: str
    count: int
    length: int
    start: str
    ascending: bool
    scaled: str


class Reading(Frozen):
    """One kernel on one architecture. ``source`` is SASS, or PTX where no disassembler was at hand.

    ``sites``: by the line of the fragment, its instructions in that listing.
    """

    kernel: str
    arch: str
    source: str
    dots: tuple[ReadDot, ...]
    roles: tuple[str, ...]
    instructions: tuple[str, ...]
    reductions: tuple[ReadReduction, ...]
    exponentials: dict[str, int]
    divisions: dict[str, int]
    counts: dict[str, int]
    sites: tuple[SiteInstructions, ...] = ()


def read(kernel: Kernel, arch: str) -> Reading:
    """Read one kernel's stages for one architecture."""
    stages = kernel.stages[arch]
    flow = (
        sass.follow(stages.sass, 32 * kernel.num_warps)
        if stages.sass
        else ptx.follow(stages.ptx, 32 * kernel.num_warps)
    )
    what = program(stages.ttgir)
    found = reductions(flow)
    matches = [(r, *_match(r, found, flow)) for r in what.reductions]
    return Reading(
        kernel=kernel.name,
        arch=arch,
        source=flow.source,
        dots=tuple(_dots(flow)),
        roles=tuple(d.role for d in what.dots),
        instructions=tuple(sorted(set(_INSTRUCTIONS.findall(stages.ptx)))),
        reductions=tuple(one for _, one, _ in matches),
        exponentials=dict(Counter(_exponential(n) for n in flow.nodes if n.op == "ex2")),
        divisions=dict(Counter(re.findall(r"\b(div\.(?:full|rn|approx)[\w.]*|rcp\.[\w.]+)", stages.ptx))),
        counts=dict(sorted(flow.counts.items())),
        sites=sited(
            flow,
            stages.sass or stages.ptx,
            [(r.role, fits, one.unread if len(fits) != 1 else "") for r, one, fits in matches],
        ),
    )


_INSTRUCTIONS = re.compile(
    r"\b(mma\.sync\.[\w.:]*m\d+n\d+k\d+[\w.:]*|wgmma\.mma_async[\w.:]*m\d+n\d+k\d+[\w.:]*|tcgen05\.mma\.[\w.:]+)"
)


def _match(wanted: Reduction, found: list[Found], flow: Flow) -> tuple[ReadReduction, list[Found]]:
    """What became of a reduction, and the reductions of the instructions that fit it: one, where it was found."""
    base: dict[str, Any] = {
        "role": wanted.role,
        "kind": wanted.kind,
        "place": wanted.place,
        "shape": wanted.shape,
        "axis": wanted.axis,
        "layout": wanted.layout,
    }
    where = wanted.spread
    if where is None:
        return ReadReduction(**base, unread="this layout is not known here"), []
    warps = sum(1 for s in where.warps if s)
    fits = [
        f
        for f in found
        if f.kind == wanted.kind
        and f.terms == where.terms
        and frozenset(f.lanes) == where.masks
        and (f.warps is None or len(f.warps) == warps)
        and not (f.warps is None and warps == 0)
    ]
    if len(fits) != 1:
        shown = "; ".join(dict.fromkeys(text(f.tree, f.kind) for f in fits))
        many = f"{len(fits)} reductions of the instructions fit its layout: {shown}"
        none = "no reduction of the instructions fits its layout"
        return ReadReduction(**base, unread=many if fits else none), fits
    one = fits[0]
    tree, why = compose(one, where)
    steps = where.lanes if wanted.columns is None else wanted.columns.lanes
    made = ReadReduction(
        **base,
        brackets=text(one.tree, one.kind) if one.terms > 1 else "",
        products=one.products,
        lanes=one.lanes,
        along=along(one.lanes, where.lanes) or (),
        warps=one.warps or (),
        contracted=one.contracted,
        joined=_joined(one, flow),
        columns=() if wanted.columns is None else steps,
        tree=tree,
        unread=why,
        nameless=tree is None and not one.unread and one.warps is not None,
        ways=one.ways,
    )
    return made, fits


def _joined(one: Found, flow: Flow) -> str:
    """How the result goes into a running value: "fma", "add" or "" where it does not, or that was not seen."""
    root = one.root

    def result(node: Node) -> bool:
        return node is root or (node.op == "shared" and any(s.value is root for s in node.stored))

    for node in flow.nodes:
        if node.op == "fma" and result(node.args[2]):
            return "fma"
        if node.op == "add" and any(result(a) for a in node.args):
            other = next(a for a in node.args if not result(a)) if node.args[0] is not node.args[1] else None
            if other is not None and other.op == "mul":
                return "add"
    return ""


def _dots(flow: Flow) -> list[ReadDot]:
    heads = [n for n in flow.nodes if n.op == "mma" and n.tag.endswith(" 0")]
    inner = {id(n.args[0]) for n in heads}
    scaled = {id(a): _scale(n) for n in flow.nodes if n.op in ("mul", "fma") for a in n.args if a.op == "mma"}
    chains: Counter[tuple[str, int, str, bool, str]] = Counter()
    for last in heads:
        if id(last) in inner:
            continue
        chain = [last]
        while chain[0].args[0].op == "mma":
            chain.insert(0, chain[0].args[0])
        first = chain[0].args[0]
        start = {"const": "+0", "mul": "product", "entry": "running value"}.get(first.op, "other")
        places = [n.args[1].address for n in chain]
        known = [int(a[0]) for a in places if a is not None]
        rising = all(a < b for a, b in itertools.pairwise(known))
        up = len(chain) == 1 or (len(known) == len(chain) and rising)
        chains[(last.tag.rsplit(" ", 1)[0], len(chain), start, up, scaled.get(id(last), ""))] += 1
    return [
        ReadDot(instruction=i, count=n, length=length, start=s, ascending=u, scaled=x)
        for (i, length, s, u, x), n in chains.items()
    ]


def _scale(node: Node) -> str:
    if node.op == "mul":
        return "mul"
    return (
        "fma"
        if node.args[2].op == "const" and node.args[2].tag.strip("+") in ("0", "RZ", "0f00000000")
        else ""
    )


def _exponential(node: Node) -> str:
    """The form of one ``ex2``: guarded for subnormal results or not, its argument times log2(e) or not."""
    inner, guarded = node.args[0], False
    if inner.op == "cond" and inner.args[0].op == "mul":
        guarded, inner = True, inner.args[1]
    scaled = inner.op == "mul" and any(a.op == "const" and _log2e(a.tag) for a in inner.args)
    name = "triton.exp" if scaled else "exp2"
    return name if guarded or node.tag == "full" else f"{name}, flushing"


def _log2e(tag: str) -> bool:
    if tag.lower() in ("0f3fb8aa3b", "0x3fb8aa3b"):
        return True
    try:
        return abs(float(tag) - 1.4426950216293335) < 1e-9
    except ValueError:
        return False
