"""A lowering for people and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from verify.lower.converge import CLAIM, Convergence
from verify.lower.fragment import lines_of
from verify.lower.read import ReadDot, Reading, ReadReduction
from verify.lower.stages import TITLES, Lowering

ROLES = {
    "score_max": "maximum of the scores of a tile",
    "tile_sum": "sum of the weights of a tile",
    "merge_max": "maximum over splits",
    "weights": "sum of the weights over splits",
    "denominator": "denominator over splits",
    "numerator": "numerator over splits",
    "other": "a reduction",
}
DOTS = {"scores": "scores", "values": "weighted values", "other": "a product"}


def lowering_json(
    lowering: Lowering, compared: Sequence[Convergence], readings: Sequence[Reading]
) -> dict[str, Any]:
    """Everything but the texts of the stages."""
    return {
        "schema": 1,
        "file": lowering.file,
        "sha256": lowering.sha256,
        "triton": lowering.triton,
        "fp_fusion": lowering.fp_fusion,
        "ptxas": lowering.tools,
        "made": lowering.coordinate(),
        "archs": list(lowering.archs),
        "claim": CLAIM,
        "lines": {a: lines_of([r for r in readings if r.arch == a]) for a in lowering.archs},
        "kernels": [
            {
                **c.model_dump(mode="json"),
                "readings": [r.model_dump(mode="json") for r in readings if r.kernel == c.kernel],
            }
            for c in compared
        ],
    }


def lowering_text(
    lowering: Lowering, compared: Sequence[Convergence], readings: Sequence[Reading]
) -> Iterator[str]:
    """Verdict first, then each kernel: its stages, the claim, what was read."""
    yield verdict(lowering, compared, readings)
    yield ""
    yield f"{lowering.file} (sha256 {lowering.sha256[:12]}): {lowering.coordinate()}"
    for one in compared:
        yield ""
        yield f"{one.kernel}"
        if len(lowering.archs) > 1:
            width = max(len(TITLES[s.stage]) for s in one.stages)
            for stage in one.stages:
                yield f"  {TITLES[stage.stage]:<{width}}  {stage.verdict()}"
                if stage.detail:
                    yield f"  {'':<{width}}  {stage.detail}"
            yield f"  last common stage: {_title(one.last_common)}; first that does not converge again: {_title(one.parted)}"
            yield f'  claim "{CLAIM}": {one.claim}'
        for archs, reading in _alike([r for r in readings if r.kernel == one.kernel]):
            yield f"  read on {' = '.join(archs)}, from {_source(reading)}:"
            yield from (f"    {line}" for line in _reading(reading))


def _source(reading: Reading) -> str:
    return "machine code" if reading.source == "SASS" else "PTX (no disassembler; ptxas may fuse more)"


def _title(stage: str | None) -> str:
    return TITLES[stage] if stage else "none"


def verdict(lowering: Lowering, compared: Sequence[Convergence], readings: Sequence[Reading]) -> str:
    """One line: are the trees the same, and does the claim hold."""
    apart: list[str] = []
    for one in compared:
        mine = [r for r in readings if r.kernel == one.kernel]
        if len({tuple(x.role for x in r.reductions) for r in mine}) > 1:
            apart.append(f"{one.kernel}: TTGIR has other reductions")
            continue
        for n, first in enumerate(mine[0].reductions if mine else ()):
            groups = _grouped(mine, n)
            if len(groups) > 1:
                shown = " | ".join(" = ".join(a) for a, _ in groups)
                apart.append(f"{one.kernel}: {ROLES[first.role]} ({shown})")
        for n, what in enumerate(
            ({_tensor(r.dots) for r in mine}, {frozenset(r.exponentials) for r in mine})
        ):
            if len(what) > 1:
                apart.append(f"{one.kernel}: {('tensor-core chains', 'exponentials')[n]}")
    unread = sum(bool(x.unread) and not x.nameless for r in readings for x in r.reductions)
    more = f"; {unread} could not be read" if unread else ""
    if len(lowering.archs) == 1:
        return f"lowered for {lowering.archs[0]}{more}"
    return (f"sums are bracketed differently: {'; '.join(apart)}" if apart else _same(unread)) + more


def _same(unread: int) -> str:
    return "no other brackets in what was read" if unread else "the same brackets on all"


def _tensor(dots: tuple[ReadDot, ...]) -> frozenset[tuple[str, int, str]]:
    return frozenset((d.instruction, d.length, d.start) for d in dots)


def _arithmetic(one: ReadReduction) -> tuple[object, ...]:
    if one.kind in ("max", "min"):
        return (one.kind,)  # exact in any order
    return one.tree, one.brackets, one.products, one.lanes, one.warps, one.contracted, one.joined, one.ways


def _grouped(mine: Sequence[Reading], n: int) -> list[tuple[list[str], ReadReduction]]:
    out: list[tuple[list[str], ReadReduction]] = []
    for reading in mine:
        mind = reading.reductions[n]
        if mind.unread and not mind.nameless and not mind.ways:
            continue  # what was not read is no difference
        for archs, known in out:
            if _arithmetic(known) == _arithmetic(reading.reductions[n]):
                archs.append(reading.arch)
                break
        else:
            out.append(([reading.arch], reading.reductions[n]))
    return out


def _alike(readings: Sequence[Reading]) -> list[tuple[list[str], Reading]]:
    """Readings that are the same but for the architecture and the counts of instructions."""
    out: list[tuple[list[str], Reading]] = []
    for reading in readings:
        for archs, known in out:
            if list(_reading(known, counts=False)) == list(_reading(reading, counts=False)):
                archs.append(reading.arch)
                break
        else:
            out.append(([reading.arch], reading))
    return out


def _reading(reading: Reading, *, counts: bool = True) -> Iterator[str]:
    for name in reading.instructions:
        roles = ", ".join(dict.fromkeys(DOTS[r] for r in reading.roles))
        yield f"dot product{f' ({roles})' if roles else ''}: {name}"
    for dot in reading.dots:
        k = "k ascending" if dot.ascending else "order of k not read"
        scaled = {"mul": ", then times one number", "fma": ", then fma(scale, dot, 0)"}.get(dot.scaled, "")
        yield f"  {dot.count} chain(s) of {dot.length} {dot.instruction}, {k}, starting from {dot.start}{scaled}"
    for one in reading.reductions:
        yield f"{ROLES[one.role]}, line {one.place.split(':')[0] or '?'}: {_found(one)}"
    forms = ", ".join(f"{n} {form}" for form, n in reading.exponentials.items())
    divisions = ", ".join(f"{n} {form}" for form, n in reading.divisions.items())
    if forms:
        yield f"exponentials: {forms}"
    if divisions:
        yield f"divisions (PTX): {divisions}"
    if counts:
        yield "instructions: " + ", ".join(f"{name} {n}" for name, n in reading.counts.items())


def _found(one: ReadReduction) -> str:
    if one.unread and one.tree is None and not one.nameless:
        return f"not read: {one.unread}"
    parts: list[str] = []
    if one.brackets:
        parts.append(f"thread {one.brackets}")
    if one.lanes:
        parts.append(f"lanes {', '.join(map(str, one.lanes))}")
    if one.contracted:
        parts.append("first step an FMA of a lane's own product and its partner's rounded one")
    if one.warps:
        parts.append(f"warps {', '.join(map(str, one.warps))} through shared memory")
    if one.products != "none" and not one.contracted:
        parts.append({"fused": "products fused", "rounded": "products rounded"}[one.products])
    if one.joined:
        parts.append(f"into the running sum by {'an FMA' if one.joined == 'fma' else 'product and sum'}")
    tree = one.tree or (one.unread if one.nameless else "one term")
    return f"{tree}  ({'; '.join(parts)})" if parts else tree
