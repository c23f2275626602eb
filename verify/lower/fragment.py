"""What was read, as a spec: the lines of reductions as they are, in a frame that is declared as assumed.

What could not be read stands as ``any()``, a tree that promises no order, and is said beside.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field

from verify.lower.read import Reading, ReadReduction

WHY = "the frame around the lines that were read; what any() stands for was not read"


@dataclass
class _Lines:
    """Lines of the fragment by section, and which of them are the frame's."""

    sections: dict[str, dict[str, str]] = field(default_factory=lambda: {})
    frame: list[str] = field(default_factory=lambda: [])

    def put(self, section: str, name: str, text: str, *, read: bool = False) -> None:
        """Add a line."""
        self.sections.setdefault(section, {})[name] = text
        if not read:
            self.frame.append(name)


def _written(readings: list[Reading]) -> tuple[_Lines, dict[str, ReadReduction]]:
    lines = _Lines()
    by_role = {r.role: r for reading in readings for r in reading.reductions}
    exp = _function(readings)
    _tile(lines, readings, by_role.get("tile_sum"), exp)
    _merge(lines, by_role, exp, readings)
    return lines, by_role


def lines_of(readings: list[Reading]) -> dict[str, str]:
    """The lines of `fragment`, by name."""
    return {name: text for table in _written(readings)[0].sections.values() for name, text in table.items()}


def fragment(readings: list[Reading], stem: str, coordinate: str, file: str) -> str:
    """The text of a spec of one architecture, from the readings of all kernels of a file."""
    arch = readings[0].arch
    lines, by_role = _written(readings)
    bits = _bits(by_role)
    tokens = by_role["tile_sum"].shape[by_role["tile_sum"].axis] if "tile_sum" in by_role else 16
    source = sorted({r.source for r in readings})
    read = [n for section in lines.sections.values() for n in section if n not in lines.frame]
    head = [
        f"# Lines read: {', '.join(read) or 'none'}. The others are a frame, see [assumed].",
        "schema  = 1",
        f'name    = "lowered.{_word(stem)}.{arch}"',
        'status  = "read"',
        f'summary = "{file}, as {coordinate} compiles it for {arch}; read from {" and ".join(source)}"',
        "",
        "[assumed]",
        f"lines = {json.dumps(lines.frame)}",
        f'why   = "{WHY}"',
        "",
        "[numbers]",
        'compute = "f32"',
        'inputs  = { q = "bf16", k = "bf16", v = "bf16" }',
        "",
        "[levels]",
        f'segment = "pieces({1 << bits}, unit={tokens}, empty=keep)"',
        f'tile    = "tiles({tokens})"',
        "",
        "[state.segment]",
        'm   = "-inf"',
        'l   = "0"',
        'acc = "0"',
    ]
    for name, section in lines.sections.items():
        width = max(map(len, section))
        head += ["", f"[{name}]", *[f'{n:<{width}} = "{text}"' for n, text in section.items()]]
    return "\n".join(head) + "\n"


def _word(stem: str) -> str:
    return re.sub(r"[^a-z0-9_]", "_", stem.lower()).strip("_") or "kernel"


def _function(readings: list[Reading]) -> str:
    forms = {form for r in readings for form in r.exponentials}
    names = {"triton.exp": "triton.exp", "exp2": "mufu.ex2", "exp2, flushing": "f32.ftz.mufu.ex2"}
    return names.get(next(iter(forms)), "exp") if len(forms) == 1 else "exp"


def _bits(by_role: dict[str, ReadReduction]) -> int:
    for role in ("denominator", "numerator", "weights"):
        if role in by_role:
            one = by_role[role]
            return max(one.shape[one.axis].bit_length() - 1, 0)
    return 4


def instruction(reading: Reading) -> str | None:
    """The ``mma`` tree of a kernel that has one kind of tensor-core instruction."""
    found: set[str] = set()
    for name in reading.instructions:
        size = re.search(r"m\d+n\d+k(\d+)", name)
        if name.startswith("mma.sync") and size:
            found.add(f"mma({size[1]})")
        elif name.startswith("wgmma") and size:
            found.add(f"mma({size[1]}, wgmma)")
        elif name.startswith("tcgen05") and "kind::f16" in name:
            found.add("mma(16, tcgen05)")
        else:
            return None
    return found.pop() if len(found) == 1 else None


def _tile(lines: _Lines, readings: list[Reading], total: ReadReduction | None, exp: str) -> None:
    with_dots = [r for r in readings if "scores" in r.roles and "values" in r.roles]
    mma = instruction(with_dots[0]) if with_dots else None
    dots = with_dots[0].dots if with_dots else ()
    scores = [d for d in dots if d.start == "+0" and d.ascending]
    values = [d for d in dots if d.start == "product"]
    known = mma is not None and len(scores) == 1 and len(values) == 1 and len(dots) == 2
    tree = mma if known and mma else "any()"
    form = scores[0].scaled if known else ""
    text = f"fma(scale, dot(q, k, {tree}), 0)" if form == "fma" else f"scale * dot(q, k, {tree})"
    lines.put("token", "product", text, read=known and form != "")
    lines.put("token", "score", "select(visible, product, -inf)")
    lines.put("tile", "m", "max(prev(m), max(score))")
    lines.put("tile", "safe", "select(m > -inf, m, 0)")
    lines.put("tile", "weight", f"{exp}(score - safe)")
    lines.put("tile", "alpha", f"{exp}(prev(m) - safe)")
    inner = total.tree if total is not None and total.products == "none" and not total.contracted else None
    added = f"sum(weight, {inner or 'any()'})"
    fused = total is not None and total.joined == "fma"
    text = f"fma(prev(l), alpha, {added})" if fused else f"prev(l) * alpha + {added}"
    lines.put("tile", "l", text, read=inner is not None and total is not None and total.joined != "")
    lines.put("tile", "acc", f"dot(bf16(weight), v, {tree}, start=prev(acc) * alpha)", read=known)


def _merge(lines: _Lines, by_role: dict[str, ReadReduction], exp: str, readings: list[Reading]) -> None:
    lines.put("segment", "top", "last(m)")
    lines.put("segment", "norm", "last(l)")
    lines.put("row", "most", "max(top)")
    lines.put("row", "w", f"{exp}(top - most)")
    _denominator(lines, by_role.get("denominator"))
    numerator = by_role.get("numerator")
    text, read = "sum(w * last(acc), any())", False
    if numerator is not None and numerator.tree and numerator.products in ("fused", "rounded"):
        read = True
        fused = numerator.products == "fused"
        text = f"dot(w, last(acc), {numerator.tree})" if fused else f"sum(w * last(acc), {numerator.tree})"
    lines.put("row", "num", text, read=read)
    full = any("div.full.f32" in r.divisions for r in readings)
    lines.put("row", "exact", "div.full(num, total)" if full else "num / total")
    lines.put("row", "output", "bf16(exact)")
    lines.put(
        "row",
        "lse",
        "most + log(at(den, segment=0))" if "den" in lines.sections["row"] else "most + log(total)",
    )


def _denominator(lines: _Lines, one: ReadReduction | None) -> None:
    if one is None or one.tree is None or one.warps:
        lines.put("row", "total", "sum(norm * w, any())")
        return
    if not one.contracted:
        lines.put("row", "total", f"sum(norm * w, {one.tree})", read=one.products == "rounded")
        return
    first, *rest = one.along
    places = one.shape[one.axis]
    lines.put("row", "d", f"fma(norm, w, shfl_xor(norm * w, segment, {first}))", read=True)
    den = f"butterfly(d, segment, {', '.join(map(str, rest))})" if rest else "d"
    lines.put("row", "den", den, read=True)
    step = one.columns[0] if one.columns else 0
    bits = places.bit_length() - 1
    straight = (
        step > 0 and one.along == one.lanes and all(s == step << i for i, s in enumerate(one.columns[:bits]))
    )
    where = f"pos(dim) // {step} % {places}" if straight else "0"
    lines.put("row", "total", f"at(den, segment={where})", read=straight)
