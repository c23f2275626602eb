"""vLLM's Triton unified attention in Triton's interpreter, on a CPU, with an order of its own that is defined.

The kernel's text comes from the installed vLLM; of its other modules only names are needed, which stand-ins give, so
that no GPU is asked for. The interpreter of Triton 3.7.1 multiplies bf16 as integers, truncates f32 to bf16, and leaves
the order of sums to NumPy: a dot here is the exact sum rounded once and then added, sums run left to right, ``exp``
is that of float64 rounded, casts go to nearest even.
"""

from __future__ import annotations

import enum
import importlib.util
import logging
import math
import os
import sys
from collections.abc import Generator
from contextlib import contextmanager
from functools import cache, reduce
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np

from verify.capture.machine import importable, imported, library, number
from verify.capture.manifest import Library
from verify.capture.producers.base import Array, Call, Produced
from verify.capture.producers.vllm_triton import HOMES, SEGMENTS, call_kernel

HELPERS = "vllm.v1.attention.ops.triton_attention_helpers"
TRITON = (3, 7)


class KVQuantMode(enum.IntEnum):
    """vLLM's modes of quantised caches; only ``NONE`` is used."""

    NONE = 0
    FP8_PER_TENSOR = 1
    INT8_PER_TOKEN_HEAD = 2
    FP8_PER_TOKEN_HEAD = 3
    INT4_PER_TOKEN_HEAD = 4


def available(kernel: str) -> str | None:
    """Why it cannot run here."""
    missing = [m for m in ("torch", "triton", "vllm") if not importable(m)]
    if missing:
        return f"{missing[0]} is not installed"
    found = library("triton", "triton").version
    if number(found)[:2] != TRITON:
        return f"Triton {found} is installed: the interpreter of 3.7 is what is put right here"
    return None if _file(HOMES[0]).is_file() else f"the installed vLLM has no {HOMES[0]}"


def libraries(kernel: str) -> tuple[Library, ...]:
    """vLLM, Triton and PyTorch."""
    return library("vllm"), library("triton", "triton"), library("torch", "torch")


def run(kernel: str, call: Call) -> Produced:
    """One call."""
    function = _unified_attention()
    with _interpreting():
        found = call_kernel(function, call, "cpu", split=True, segs=SEGMENTS)
    context = {
        name: value for name, value in found.context.items() if name not in ("vllm_version", "triton_version")
    }
    return Produced(found.arrays, context, found.options, found.call)


def _file(module: str) -> Path:
    """Where the installed vLLM has a module; nothing is imported."""
    spec = importlib.util.find_spec("vllm")
    places = list(spec.submodule_search_locations or ()) if spec is not None else []
    return Path(places[0] if places else ".").joinpath(*module.split(".")[1:]).with_suffix(".py")


def _stand_ins() -> dict[str, ModuleType]:
    torch, triton = imported("torch"), imported("triton")
    platform = SimpleNamespace(
        fp8_dtype=lambda: torch.float8_e4m3fn,
        is_device_capability_family=lambda family: False,
        is_xpu=lambda: False,
    )
    members: dict[str, dict[str, Any]] = {
        "vllm.envs": {"VLLM_BATCH_INVARIANT": False},
        "vllm.logger": {"init_logger": logging.getLogger},
        "vllm.platforms": {"current_platform": platform},
        "vllm.triton_utils": {"triton": triton, "tl": triton.language},
        "vllm.v1.kv_cache_interface": {"KVQuantMode": KVQuantMode},
    }
    names = {".".join(n.split(".")[:i]) for n in (*members, HELPERS) for i in range(1, n.count(".") + 2)}
    modules = {name: ModuleType(name) for name in sorted(names)}
    for name, module in modules.items():
        vars(module)["__path__"] = []
        vars(module).update(members.get(name, {}))
        parent, _, child = name.rpartition(".")
        if parent:
            setattr(modules[parent], child, module)
    return modules


@cache
def _unified_attention() -> Any:
    """The function, its kernels made for the interpreter."""
    files = {name: _file(name) for name in (HELPERS, HOMES[0])}
    with _interpreting():
        modules = _stand_ins()
        before = {name: sys.modules.get(name) for name in (*modules, HOMES[0])}
        sys.modules.update(modules)
        try:
            for name, file in files.items():
                spec = importlib.util.spec_from_file_location(name, file)
                assert spec is not None
                assert spec.loader is not None
                module = importlib.util.module_from_spec(spec)
                sys.modules[name] = module
                spec.loader.exec_module(module)
            return vars(sys.modules[HOMES[0]])["unified_attention"]
        finally:
            for name, module in before.items():
                if module is None:
                    sys.modules.pop(name, None)
                else:
                    sys.modules[name] = module


@contextmanager
def _interpreting() -> Generator[None]:
    """Triton interprets, with the arithmetic of this module; afterwards everything is as before."""
    told = os.environ.get("TRITON_INTERPRET")
    os.environ["TRITON_INTERPRET"] = "1"
    module = imported("triton.runtime.interpreter")
    handle, builder, reduction = module.TensorHandle, module.InterpreterBuilder, module.ReduceOps
    language, convert = imported("triton.language"), module._convert_float

    def values(tensor: Any) -> Array:
        data = tensor.data
        return (
            data.view(ml_dtypes.bfloat16).astype(float)
            if tensor.dtype.scalar == language.bfloat16
            else data.astype(float)
        )

    def dot(self: Any, a: Any, b: Any, d: Any, input_precision: Any, imprecise: Any) -> Any:
        return handle(exact_product(values(a), values(b)) + d.data, d.dtype.scalar)

    def exp(self: Any, arg: Any) -> Any:
        with np.errstate(over="ignore", under="ignore"):
            return handle(np.exp(arg.data.astype(np.float64)).astype(np.float32), arg.dtype.scalar)

    def total(self: Any, given: Any) -> Any:
        return self.to_tensor(left_to_right(given.handle.data, self.axis, self.keep_dims), given.dtype)

    def cast(data: Any, source: Any, target: Any, mode: Any) -> Any:
        if source.scalar == language.float32 and target.scalar == language.bfloat16:
            return data.astype(ml_dtypes.bfloat16).view(np.uint16)
        if source.scalar == language.bfloat16 and target.scalar == language.float32:
            return data.view(ml_dtypes.bfloat16).astype(np.float32).view(np.uint32)
        return convert(data, source, target, mode)

    changes = [(builder, "create_dot", dot), (builder, "create_exp", exp), (reduction, "sum", total)]
    before = [(owner, name, vars(owner)[name]) for owner, name, _ in changes]
    try:
        for owner, name, function in changes:
            setattr(owner, name, function)
        module._convert_float = cast
        yield
    finally:
        for owner, name, function in before:
            setattr(owner, name, function)
        module._convert_float = convert
        if told is None:
            del os.environ["TRITON_INTERPRET"]
        else:
            os.environ["TRITON_INTERPRET"] = told


def exact_product(a: Array, b: Array) -> Array:
    """``a @ b`` in f32: each element the exact sum of products (exact in float64), rounded once to nearest even."""
    out = np.empty((a.shape[0], b.shape[1]), np.float32)
    for i, j in np.ndindex(out.shape):
        out[i, j] = rounded_sum((a[i] * b[:, j]).tolist())
    return out


def rounded_sum(terms: list[float]) -> np.float32:
    """The exact sum of float64 numbers, rounded once to f32: through an odd float64, so that no tie arises on the way."""
    total = math.fsum(terms)
    if not math.isfinite(total) or total == 0:
        return np.float32(total)
    rest = math.fsum([*terms, -total])
    if rest:
        cut = math.nextafter(total, 0.0) if (rest < 0) == (total > 0) else total
        total = float(np.array([np.array([cut]).view(np.uint64)[0] | np.uint64(1)]).view(np.float64)[0])
    with np.errstate(over="ignore"):
        return np.float32(total)


def left_to_right(data: Array, axis: int | None, keep: bool) -> Array:
    """The sum along an axis, in order, each addition rounded to f32."""
    if axis is None:
        data, axis = data.reshape(-1), 0
    out = reduce(np.add, np.moveaxis(data, axis, 0))
    return np.expand_dims(out, axis) if keep else np.asarray(out)
