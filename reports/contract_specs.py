"""The part of the contract that shows specs: their dataflow, their text and their differences."""

from __future__ import annotations

from typing import Literal

from reports.contract_base import Count, Frozen, Sha256


class FlowSection(Frozen):
    """A column of the dataflow figure: inputs, token, a level or the row. ``rule``: how it divides tokens."""

    name: str
    rule: str = ""


class FlowNode(Frozen):
    """A site, state or input. ``rounds``: narrower formats to which its own result is rounded.

    ``inner``: roundings inside its expression that belong to no edge. ``carried`` names the scope in which
    a state lives, None for what is not carried.
    """

    id: str
    section: str
    kind: Literal["input", "site", "output"]
    text: str
    format: str
    bits: Count
    rounds: tuple[str, ...] = ()
    inner: tuple[str, ...] = ()
    reduction: str = ""
    carried: str | None = None


class FlowEdge(Frozen):
    """A use of ``source`` in ``target``. ``cast``: the format to which the value is rounded on the way.

    ``format`` and ``bits`` describe the value as it leaves the source. ``when``: "now", "prev" (the state one
    step before) or "last" (the state after the fold).
    """

    source: str
    target: str
    format: str
    bits: Count
    cast: str | None = None
    cast_bits: Count | None = None
    when: Literal["now", "prev", "last"] = "now"


class Flow(Frozen):
    """The dataflow of one spec: columns from left to right, nodes in the order of the file, edges."""

    sections: tuple[FlowSection, ...]
    nodes: tuple[FlowNode, ...]
    edges: tuple[FlowEdge, ...]


class Source(Frozen):
    """Where the arithmetic of a spec was read."""

    repository: str
    commit: str
    path: str


class SpecView(Frozen):
    """One spec as the page shows it: its resolved ``text`` and the hash of that text."""

    name: str
    status: str
    summary: str
    text: str
    sha256: Sha256
    sources: tuple[Source, ...] = ()
    flow: Flow


class DiffLine(Frozen):
    """One line of a spec difference, matched by the role of its section and its site."""

    kind: Literal["same", "changed", "left", "right"]
    section: str
    site: str
    left: str = ""
    right: str = ""


class SpecDiff(Frozen):
    """The line-by-line difference of two specs."""

    left: str
    right: str
    lines: tuple[DiffLine, ...]
