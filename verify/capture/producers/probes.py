"""Probes of the hardware itself: the special-function unit over every operand, matrix instructions on many.

``sweep_NAME`` keeps, for each of 512 ranges of 2**23 operands, how many results differ from the model, how many
operands the model does not know, and a checksum, the sum of ``result * (2 * i + 1)`` modulo 2**64; and 1,000 of the
differences, first come, as (operand, hardware, model).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

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
    PARTS,
    matrix_source,
    sweep_source,
)

Array = NDArray[Any]
CLASSES = ("normal", "wide", "subnormal", "cancel", "special")
_BYTES = {"bf16": 2, "f16": 2, "f16_f16": 2, "tf32": 4, "e4m3fn": 1, "e5m2": 1}
_KINDS: dict[str, Any] = {
    "bf16": ml_dtypes.bfloat16,
    "f16": np.float16,
    "f16_f16": np.float16,
    "e4m3fn": ml_dtypes.float8_e4m3fn,
    "e5m2": ml_dtypes.float8_e5m2,
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
    size = _BYTES[name]
    k = 32 // size
    rng = np.random.default_rng([seed, k, size])
    a, b = rng.standard_normal((problems, 16, k)), rng.standard_normal((problems, 8, k))
    c = rng.standard_normal((problems, 16, 8))
    kind = np.arange(problems) % len(CLASSES)
    span = {"bf16": 30, "tf32": 30, "f16": 6, "f16_f16": 6, "e4m3fn": 4, "e5m2": 8}[name]
    for x in (a, b, c):
        wide = kind == 1
        x[wide] *= 2.0 ** rng.integers(-span, span + 1, x[wide].shape)
    low = {
        "bf16": 2.0**-66,
        "tf32": 2.0**-66,
        "f16": 2.0**-13,
        "f16_f16": 2.0**-13,
        "e4m3fn": 2.0**-7,
        "e5m2": 2.0**-15,
    }
    a[kind == 2] *= low[name]
    b[kind == 2] *= low[name]
    c[kind == 2] *= low[name] ** 2
    cancel = kind == 3
    a[cancel, :, 1::2] = a[cancel, :, ::2]
    b[cancel, :, 1::2] = -b[cancel, :, ::2] * (1 + 2.0**-6 * rng.integers(0, 2, b[cancel, :, ::2].shape))
    words = [_words(x, name) for x in (a, b)]
    special = np.flatnonzero(kind == 4)
    for p in special:
        odd = _odd_words(name)
        for x in words:
            row, column = rng.integers(0, x.shape[1]), rng.integers(0, k)
            x[p, row, column] = odd[rng.integers(0, len(odd))]
    accumulator = (
        c.astype(np.float16).view(np.uint16) if name == "f16_f16" else c.astype(np.float32).view(np.uint32)
    )
    return words[0], words[1], accumulator


def _words(x: Array, name: str) -> Array:
    if name == "tf32":
        word = x.astype(np.float32).view(np.uint32)
        return (word + np.uint32(0x1000)) & np.uint32(0xFFFFE000)
    top = float(ml_dtypes.finfo(_KINDS[name]).max)
    kind: Any = {1: np.uint8, 2: np.uint16}[_BYTES[name]]
    return np.clip(x, -top, top).astype(np.float32).astype(_KINDS[name]).view(kind)


def _odd_words(name: str) -> tuple[int, ...]:
    """Zeros, infinities, NaN, the largest number and the smallest subnormal of a format."""
    return {
        "bf16": (0x8000, 0x7F80, 0xFF80, 0x7FC0, 0x7F7F, 0x0001),
        "tf32": (0x80000000, 0x7F800000, 0xFF800000, 0x7FC00000, 0x7F7FE000, 0x00002000),
        "f16": (0x8000, 0x7C00, 0xFC00, 0x7E00, 0x7BFF, 0x0001),
        "f16_f16": (0x8000, 0x7C00, 0xFC00, 0x7E00, 0x7BFF, 0x0001),
        "e4m3fn": (0x80, 0x7F, 0x7E, 0xFE, 0x01),
        "e5m2": (0x80, 0x7C, 0xFC, 0x7E, 0x7B, 0x01),
    }[name]


def _matrix(instruction: str, name: str, quick: bool) -> dict[str, Array] | None:
    torch = imported("torch")

    if _BYTES[name] == 1 and base.capability() < (8, 9):
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
