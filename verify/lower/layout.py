"""Triton's layouts: which register, lane and warp holds which place along one axis of a tensor."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Spread:
    """Where the places along one axis live: for each bit of a register, lane or warp number its stride along the axis.

    0 stands for a bit that does not move along this axis: another axis, or a copy.
    """

    registers: tuple[int, ...]
    lanes: tuple[int, ...]
    warps: tuple[int, ...]

    @property
    def terms(self) -> int:
        """Places that one thread holds."""
        return 1 << sum(1 for s in self.registers if s)

    @property
    def masks(self) -> frozenset[int]:
        """Lane masks that join different places."""
        return frozenset(1 << i for i, s in enumerate(self.lanes) if s)


def definitions(text: str) -> dict[str, str]:
    """``#name`` to what it stands for, in the text of a module."""
    found = re.findall(r"^(#[\w]+) = (#[\w.]+<.*>|#[\w.]+)$", text, re.M)
    return {name: body for name, body in found if not body.startswith("#loc")}


def spread(layout: str, shape: tuple[int, ...], axis: int, known: dict[str, str]) -> Spread | None:
    """How a layout, a name or its text, spreads ``axis`` of a tensor of ``shape``; None for one that is not known here."""
    body = known.get(layout, layout)
    cut = re.match(r"#ttg\.slice<\{dim = (\d+), parent = (.*)\}>$", body)
    if cut is not None:
        dim = int(cut[1])
        whole = (*shape[:dim], 1, *shape[dim:])
        return spread(cut[2], whole, axis + (axis >= dim), known)
    if body.startswith("#ttg.blocked"):
        return _blocked(body, shape, axis)
    if body.startswith("#ttg.nvidia_mma"):
        return _mma(body, shape, axis)
    if body.startswith("#ttg.linear"):
        return _linear(body, axis)
    return None


def _numbers(body: str, name: str) -> list[int]:
    found = re.search(rf"{name} = \[([\d, ]*)\]", body)
    return [int(n) for n in found[1].split(",")] if found and found[1].strip() else []


def _bits(size: int) -> int:
    return max(size.bit_length() - 1, 0)


def _blocked(body: str, shape: tuple[int, ...], axis: int) -> Spread | None:
    parts = [_numbers(body, n) for n in ("sizePerThread", "threadsPerWarp", "warpsPerCTA")]
    order = _numbers(body, "order")
    if any(len(p) != len(shape) for p in (*parts, order)):
        return None
    stride, out = 1, list[tuple[int, ...]]()
    for sizes in parts:
        bits: list[int] = []
        for dim in order:
            for _ in range(_bits(sizes[dim])):
                bits.append(stride if dim == axis and stride < shape[axis] else 0)
                stride *= 2 if dim == axis else 1
        out.append(tuple(bits))
    more: list[int] = []
    while stride < shape[axis]:
        more.append(stride)
        stride *= 2
    return Spread((*out[0], *more), out[1], out[2])


def _mma(body: str, shape: tuple[int, ...], axis: int) -> Spread | None:
    """Accumulators of ``mma.sync`` (version 2) and ``wgmma`` (version 3): lanes hold two columns of a row."""
    version = re.search(r"versionMajor = (\d+)", body)
    warps, instruction = _numbers(body, "warpsPerCTA"), _numbers(body, "instrShape")
    if version is None or version[1] not in ("2", "3") or len(shape) != 2 or len(warps) != 2:
        return None
    rows, columns = 16, 8 if version[1] == "2" else instruction[1]
    lanes = (0, 0, 1, 2, 4) if axis == 0 else (2, 4, 0, 0, 0)
    registers = [8] if axis == 0 else [1]
    stride = rows if axis == 0 else 8
    if axis == 1:
        while stride < columns:
            registers.append(stride)
            stride *= 2
    bits: list[int] = []
    for dim in (1, 0) if version[1] == "2" else (0, 1):
        for _ in range(_bits(warps[dim])):
            bits.append(stride if dim == axis and stride < shape[axis] else 0)
            stride *= 2 if dim == axis else 1
    while stride < shape[axis]:
        registers.append(stride)
        stride *= 2
    size = shape[axis]
    return Spread(
        tuple(s if s < size else 0 for s in registers),
        tuple(s if s < size else 0 for s in lanes),
        tuple(bits),
    )


def _linear(body: str, axis: int) -> Spread:
    def bases(name: str) -> tuple[int, ...]:
        found = re.search(rf"{name} = \[((?:\[[\d, ]*\](?:, )?)*)\]", body)
        each = re.findall(r"\[([\d, ]*)\]", found[1]) if found else []
        return tuple(int(e.split(",")[axis]) for e in each)

    return Spread(bases("register"), bases("lane"), bases("warp"))
