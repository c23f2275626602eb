"""Probes of the hardware itself: the special-function unit over every operand, matrix instructions on many.

``sweep_NAME`` keeps, for each of 512 ranges of 2**23 operands, how many results differ from the model, how many
operands the model does not know, and a checksum, the sum of ``result * (2 * i + 1)`` modulo 2**64; and 1,000 of the
differences, first come, as (operand, hardware, model).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from verify.capture.machine import importable, imported, library
from verify.capture.manifest import Library
from verify.capture.producers import base
from verify.capture.producers.base import Progress, needs
from verify.capture.producers.probe_sources import (
    BLOCKS,
    INSTRUCTIONS,
    KEPT,
    MATRIX,
    MMA,
    PARTS,
    matrix_source,
    sweep_source,
)

Array = NDArray[Any]
CLASSES = ("normal", "wide", "subnormal", "cancel", "special")


class _Factors(NamedTuple):
    """What factors of one format are made of.

    ``kind``: NumPy's type, none for tf32; ``span``: powers of two by which wide ones differ; ``low``: a factor that
    makes normal numbers small; ``odd``: words of zeros, infinities, NaN, the largest number, the smallest subnormal.
    """

    kind: Any
    span: int
    low: float
    odd: tuple[int, ...]


_F16 = _Factors(np.float16, 6, 2.0**-13, (0x8000, 0x7C00, 0xFC00, 0x7E00, 0x7BFF, 0x0001))
_FACTORS = {
    "bf16": _Factors(ml_dtypes.bfloat16, 30, 2.0**-66, (0x8000, 0x7F80, 0xFF80, 0x7FC0, 0x7F7F, 0x0001)),
    "f16": _F16,
    "f16_f16": _F16,
    "tf32": _Factors(
        None, 30, 2.0**-66, (0x80000000, 0x7F800000, 0xFF800000, 0x7FC00000, 0x7F7FE000, 0x00002000)
    ),
    "e4m3fn": _Factors(ml_dtypes.float8_e4m3fn, 4, 2.0**-7, (0x80, 0x7F, 0x7E, 0xFE, 0x01)),
    "e5m2": _Factors(ml_dtypes.float8_e5m2, 8, 2.0**-15, (0x80, 0x7C, 0xFC, 0x7E, 0x7B, 0x01)),
}


def available(kernel: str) -> str | None:
    """Why it cannot run here."""
    missing = needs("torch")
    if missing is not None:
        return missing
    torch = imported("torch")

    if not hasattr(torch.cuda, "_compile_kernel") and not importable("cupy"):
        return (
            f"PyTorch {torch.__version__} compiles no kernels at run time: PyTorch 2.9 does, or install cupy"
        )
    capability = base.capability()
    if kernel == "wgmma" and capability != (9, 0):
        return f"wgmma is an instruction of SM 9.0, not of SM {capability[0]}.{capability[1]}"
    if kernel == "mma" and capability < (8, 0):
        return f"m16n8k16 needs SM 8.0 or later, not SM {capability[0]}.{capability[1]}"
    return None


def libraries(kernel: str) -> tuple[Library, ...]:
    """PyTorch, whose run-time compiler is used."""
    return (library("torch", "torch"),)


def compiled(source: str, name: str, architecture: str | None = None) -> Any:
    """A kernel that takes ``grid``, ``block`` and a list of tensors."""
    torch = imported("torch")

    if hasattr(torch.cuda, "_compile_kernel"):
        kernel: Any = torch.cuda._compile_kernel(source, name, compute_capability=architecture)
        return lambda grid, block, args: kernel(grid=(grid, 1, 1), block=(block, 1, 1), args=list(args))
    cupy = imported("cupy")

    options = (f"--gpu-architecture=sm_{architecture}",) if architecture else ()
    raw: Any = cupy.RawKernel(source, name, options=options)
    return lambda grid, block, args: raw((grid,), (block,), tuple(cupy.from_dlpack(t) for t in args))


def sweep(
    kernel: str, quick: bool, progress: Progress | None
) -> Iterator[tuple[str, dict[str, Any], dict[str, Array]]]:
    """Each part of a probe: its name, what was asked, and its arrays."""
    names = PARTS[kernel]
    for done, name in enumerate(names, 1):
        if kernel == "mufu":
            yield name, {"instruction": INSTRUCTIONS[name]}, _function(name)
        elif (found := _matrix(kernel, name, quick)) is not None:
            yield name, {"instruction": MATRIX[kernel][name][0]}, found
        if progress is not None:
            progress(kernel, done, len(names))


def _function(name: str) -> dict[str, Array]:
    torch = imported("torch")

    def zeros(size: int, dtype: Any) -> Any:
        return torch.zeros(size, dtype=dtype, device="cuda")

    sums, total = zeros(BLOCKS, torch.int64), zeros(1, torch.int32)
    counts, unknown, kept = (
        zeros(BLOCKS, torch.int32),
        zeros(BLOCKS, torch.int32),
        zeros(3 * KEPT, torch.int32),
    )
    compiled(sweep_source(name), f"sweep_{name}")(64 * BLOCKS, 256, [sums, counts, unknown, kept, total])
    torch.cuda.synchronize()
    some = min(int(total.item()) & 0xFFFFFFFF, KEPT)
    return {
        "checksum": sums.cpu().numpy().view(np.uint64),
        "mismatches": counts.cpu().numpy().view(np.uint32),
        "unknown": unknown.cpu().numpy().view(np.uint32),
        "kept": kept.cpu().numpy().view(np.uint32).reshape(KEPT, 3)[:some].copy(),
    }


def operands(name: str, problems: int, seed: int = 0) -> tuple[Array, Array, Array]:
    """Words ``a [problems, 16, k]``, ``b [problems, 8, k]`` and ``c [problems, 16, 8]``, the classes in turn."""
    _, k, size, half = MMA[name]
    factors = _FACTORS[name]
    rng = np.random.default_rng([seed, k, size])
    a, b = rng.standard_normal((problems, 16, k)), rng.standard_normal((problems, 8, k))
    c = rng.standard_normal((problems, 16, 8))
    kind = np.arange(problems) % len(CLASSES)
    for x in (a, b, c):
        wide = kind == 1
        x[wide] *= 2.0 ** rng.integers(-factors.span, factors.span + 1, x[wide].shape)
    a[kind == 2] *= factors.low
    b[kind == 2] *= factors.low
    c[kind == 2] *= factors.low**2
    cancel = kind == 3
    a[cancel, :, 1::2] = a[cancel, :, ::2]
    b[cancel, :, 1::2] = -b[cancel, :, ::2] * (1 + 2.0**-6 * rng.integers(0, 2, b[cancel, :, ::2].shape))
    words = [_words(x, factors.kind) for x in (a, b)]
    special = np.flatnonzero(kind == 4)
    for p in special:
        for x in words:
            row, column = rng.integers(0, x.shape[1]), rng.integers(0, k)
            x[p, row, column] = factors.odd[rng.integers(0, len(factors.odd))]
    accumulator = c.astype(np.float16).view(np.uint16) if half else c.astype(np.float32).view(np.uint32)
    return words[0], words[1], accumulator


def _words(x: Array, kind: Any) -> Array:
    """Words of ``kind``, of tf32 where it is None."""
    if kind is None:
        word = x.astype(np.float32).view(np.uint32)
        return (word + np.uint32(0x1000)) & np.uint32(0xFFFFE000)
    top = float(ml_dtypes.finfo(kind).max)
    return np.clip(x, -top, top).astype(np.float32).astype(kind).view(f"u{np.dtype(kind).itemsize}")


def _matrix(instruction: str, name: str, quick: bool) -> dict[str, Array] | None:
    torch = imported("torch")

    if MATRIX[instruction][name][2] == 1 and base.capability() < (8, 9):
        return None
    problems = 40 if quick else 2_000
    a, b, c = operands(name, problems)
    if instruction == "wgmma":
        b = np.repeat(b[::4], 4, axis=0)  # four problems share B
    architecture = "90a" if instruction == "wgmma" else None
    given = b[::4] if instruction == "wgmma" else b
    tensors = [
        torch.from_numpy(np.ascontiguousarray(x).view(np.int32).copy()).to("cuda") for x in (a, given, c)
    ]
    result = torch.zeros_like(tensors[2])
    kernel = compiled(matrix_source(instruction, name), "probe", architecture)
    kernel(
        problems // 4 if instruction == "wgmma" else problems,
        128 if instruction == "wgmma" else 32,
        [*tensors, result],
    )
    torch.cuda.synchronize()
    d = result.cpu().numpy().view(c.dtype).reshape(c.shape)
    return {"a": a, "b": b, "c": c, "d": d}
