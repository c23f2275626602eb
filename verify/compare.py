"""Two runs on one input: how far apart, and where they part first."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specs.program import TOKEN
from verify.emulator import Result
from verify.explain import bit_text, decimal
from verify.numerics.ulp import UlpSummary, format_of, ulp_summary


@dataclass(frozen=True)
class Difference:
    """The first place where a site differs: its index, axis by axis, and both values with their bits."""

    site: str
    index: dict[str, int]
    left: str
    left_bits: str
    right: str
    right_bits: str

    def __str__(self) -> str:
        where = ", ".join(f"{axis} {i}" for axis, i in self.index.items())
        return (
            f"{self.site} at {where or 'its only value'}: "
            f"{self.left} ({self.left_bits}) against {self.right} ({self.right_bits})"
        )


@dataclass(frozen=True)
class Comparison:
    """What two runs of one input have in common.

    Attributes:
        output: the outputs in their stored format; None where the two formats differ.
        lse: likewise; None too where a spec has no lse.
        sites: sites that both have with equal axes and sizes (tokens in their own order), in the order of the
            dataflow, and whether all their bits agree.
        first: the first difference in the first site that differs.
        same_partition: whether the tokens are divided and visited alike.
        groups: group counts.
    """

    output: UlpSummary | None
    lse: UlpSummary | None
    sites: dict[str, bool]
    first: Difference | None
    same_partition: bool
    groups: tuple[int, int]

    @property
    def identical(self) -> bool:
        """Whether the outputs have equal bits (NaN payloads aside)."""
        return self.output is not None and self.output.bit_equal

    def verdict(self, left: str, right: str) -> str:
        """One sentence."""
        if self.output is None:
            return f"{left} and {right} give different number formats: their bits cannot agree"
        if self.identical:
            return f"bit-exact: {right} gives the output bits of {left}"
        s = self.output
        changed = s.n - s.equal + s.zero_sign
        far = "" if s.max is None else f", at most {s.max:,} ULP"
        special = s.nan_mismatch + s.inf_mismatch
        odd = f", {special} of them NaN or infinite on one side" if special else ""
        return f"{changed:,} of {s.n:,} outputs of {right} differ from {left}{far}{odd}"

    def to_json(self) -> dict[str, Any]:
        """The comparison as JSON."""
        return {
            "identical": self.identical,
            "output": None if self.output is None else asdict(self.output),
            "lse": None if self.lse is None else asdict(self.lse),
            "sites": self.sites,
            "first_difference": None if self.first is None else asdict(self.first),
            "same_partition": self.same_partition,
            "groups": list(self.groups),
        }


def common_sites(a: Result, b: Result) -> list[str]:
    """Sites that both have as floats of one format with axes of the same roles, in the order of the dataflow."""
    left, right = a.plan.program.sites, b.plan.program.sites
    return [
        name
        for name, site in left.items()
        if name in right
        and site.type.kind == right[name].type.kind == "float"
        and site.type.format == right[name].type.format
        and _roles(a, name) == _roles(b, name)
    ]


def _roles(result: Result, name: str) -> frozenset[str]:
    """The axes of a site by role: levels by depth, since their names differ; none beside tokens."""
    axes = result.plan.program.sites[name].type.axes
    levels = result.plan.levels
    if TOKEN in axes:
        return axes - set(levels)
    return frozenset(str(levels.index(axis)) if axis in levels else axis for axis in axes)


def compare(a: Result, b: Result) -> Comparison:
    """Compare two results of one input. Evaluates the common sites of both traces."""
    same = a.plan.count == b.plan.count and all(
        np.array_equal(x.tokens, y.tokens) for x, y in zip(a.plan.groups, b.plan.groups, strict=True)
    )
    sites: dict[str, bool] = {}
    first: Difference | None = None
    for name in common_sites(a, b):
        x, y = _by_token(a, name), _by_token(b, name)
        if x.shape != y.shape:
            continue
        differs = ~_same_bits(x, y)
        sites[name] = not differs.any()
        if first is None and not sites[name]:
            first = _difference(a, name, x, y, differs)
    return Comparison(
        output=_summary(a.output, b.output),
        lse=None if a.lse is None or b.lse is None else _summary(a.lse, b.lse),
        sites=sites,
        first=first,
        same_partition=same,
        groups=(a.plan.count, b.plan.count),
    )


def _summary(a: NDArray[Any], b: NDArray[Any]) -> UlpSummary | None:
    return ulp_summary(a, b) if a.dtype == b.dtype and a.shape == b.shape else None


def _same_bits(x: NDArray[Any], y: NDArray[Any]) -> NDArray[np.bool_]:
    words = f"u{x.dtype.itemsize}"
    return (x.view(words) == y.view(words)) | ((x != x) & (y != y))


def _by_token(result: Result, name: str) -> NDArray[Any]:
    """A site's values; those of tokens in the order of the sequence, whatever the partition."""
    array = result.trace[name]
    axes = result.trace.axes(name)
    if axes[: len(result.plan.levels) + 1] != (*result.plan.levels, TOKEN):
        return np.ascontiguousarray(array)
    lead = array.ndim - len(axes)
    inner = array.reshape(*array.shape[:lead], -1, *array.shape[lead + len(result.plan.levels) + 1 :])
    owned = result.plan.tokens.reshape(-1)
    slots = np.empty(result.plan.kv_len, dtype=np.int64)
    slots[owned[owned >= 0]] = np.flatnonzero(owned >= 0)
    return np.ascontiguousarray(np.take(inner, slots, axis=lead))


def _difference(
    a: Result, name: str, x: NDArray[Any], y: NDArray[Any], differs: NDArray[np.bool_]
) -> Difference:
    at = tuple(int(i) for i in np.argwhere(differs)[0])
    axes = a.trace.axes(name)
    levels = (*a.plan.levels, TOKEN)
    named = (TOKEN, *axes[len(levels) :]) if axes[: len(levels)] == levels else axes
    rows = x.ndim - len(named)
    lead = ("head",) if rows == 1 else ("query", "head")[:rows]
    fmt = format_of(x.dtype)
    return Difference(
        site=name,
        index=dict(zip((*lead, *named), at, strict=True)),
        left=decimal(x[at], fmt),
        left_bits=bit_text(x[at], fmt),
        right=decimal(y[at], fmt),
        right_bits=bit_text(y[at], fmt),
    )
