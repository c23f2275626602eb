"""The instructions behind a line of a side, where a lowering of its kernel is at hand.

The lowering says what its instructions compute, line by line. Where the side's line is that line, its integers written out,
these instructions realise it; where it is another one of the same name, that is said; nothing is guessed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from search.explain.flat import Flat
from verify.lower.behind import Behind
from verify.lower.sites import Instruction

_SPACE = re.compile(r"\s+")


@dataclass(frozen=True)
class Realised:
    """What realises one line of one side.

    Attributes:
        side: 0 or 1. site: name of the line. text: of the side, its integers written out.
        lowered: the line of this name that the lowering computes; empty if it has none.
        kernel: whose listing it is. source: ``SASS`` or ``PTX``. instructions: in that listing.
        undecided: why these are not the instructions of this line, or only candidates; empty if they are its own.
        file, sha256, made, arch: of the lowering.
    """

    side: int
    site: str
    text: str
    lowered: str
    kernel: str
    source: str
    instructions: tuple[Instruction, ...]
    undecided: str
    file: str
    sha256: str
    made: str
    arch: str


def realised(side: int, site: str, flat: Flat, lowering: Behind) -> Realised:
    """The instructions of a lowering behind a line.

    Args:
        side: 0 or 1, to be kept.
        site: name of the line.
        flat: the tables of the side under its own names, see `search.explain.flat.flatten`.
        lowering: of the kernel that the side describes.
    """
    text = flat.lines[site].text if site in flat.lines else ""
    lowered = lowering.lines.get(site, "")
    place = lowering.places.get(site)
    if not lowered:
        why = f"the lowering has no line '{site}'"
    elif _SPACE.sub("", text) != _SPACE.sub("", lowered):
        why = f"the lowering computes another line of this name: {site} = {lowered}"
    elif place is None:
        why = "no instruction of this line was found"
    else:
        why = _undecided(place.found.undecided, place.found.instructions)
    return Realised(
        side=side,
        site=site,
        text=text,
        lowered=lowered,
        kernel="" if place is None else place.kernel,
        source="" if place is None else place.source,
        instructions=() if place is None else place.found.instructions,
        undecided=why,
        file=lowering.file,
        sha256=lowering.sha256,
        made=lowering.made,
        arch=lowering.arch,
    )


def _undecided(why: str, found: tuple[Instruction, ...]) -> str:
    if not why:
        return ""
    counts: dict[str, int] = {}
    for one in found:
        counts[one.opcode] = counts.get(one.opcode, 0) + len(one.lines)
    shown = ", ".join(f"{count} {opcode}" for opcode, count in counts.items())
    return f"some of these {shown}: {why}" if shown else why


def opcodes(found: Realised) -> str:
    """The kinds of instructions of a line, loads aside, as ``FMUL, FFMA, SHFL.BFLY, FADD``."""
    kinds = dict.fromkeys(one.opcode for one in found.instructions)
    return ", ".join(kind for kind in kinds if not kind.startswith(("LDS", "ld.")))
