"""What producers are given and give back, and how arrays pass between NumPy and PyTorch without a bit changed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Protocol

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from verify.capture.machine import gpu_missing, importable, imported
from verify.capture.manifest import Library

Array = NDArray[Any]
Progress = Callable[[str, int, int], None]
"""Told a kernel, how much of it is done, and how much there is."""


@dataclass(frozen=True)
class Call:
    """One input: ``q [q_len, q_heads, head_dim]``, ``k, v [kv_len, kv_heads, head_dim]``."""

    q: Array
    k: Array
    v: Array
    scale: float
    causal: bool = False

    @property
    def group(self) -> int:
        """Query heads of one KV head."""
        return self.q.shape[1] // self.k.shape[1]


@dataclass(frozen=True)
class Produced:
    """What one call gave: arrays in the layouts of `verify.capture.kernels`, and what a plan must know of it."""

    arrays: Mapping[str, Array]
    context: Mapping[str, int | str] = field(default_factory=dict[str, int | str])
    options: Mapping[str, bool | int | float] = field(default_factory=dict[str, bool | int | float])
    call: Mapping[str, Any] = field(default_factory=dict[str, Any])


class Source(Protocol):
    """What every module of this package says of its kernels."""

    def available(self, kernel: str) -> str | None:
        """Why the kernel cannot run here; None where it can."""
        ...

    def libraries(self, kernel: str) -> tuple[Library, ...]:
        """What the kernel comes from, the one whose version counts first."""
        ...


class Producer(Source, Protocol):
    """A module that runs kernels of attention."""

    def run(self, kernel: str, call: Call) -> Produced:
        """Run it once."""
        ...


class Prober(Source, Protocol):
    """A module that asks the hardware itself."""

    def sweep(
        self, kernel: str, quick: bool, progress: Progress | None
    ) -> Iterator[tuple[str, Mapping[str, Any], Mapping[str, Array]]]:
        """Each part of a probe: its name, what was asked, and its arrays."""
        ...


def load_producer(name: str) -> Producer:
    """The module that runs kernels of attention, by its name."""
    module: Any = import_module(f"verify.capture.producers.{name}")
    return module


def load_prober() -> Prober:
    """The module of probes."""
    from verify.capture.producers import probes

    return probes


def device() -> str:
    """Where tensors of GPU kernels live. Tests of the plumbing put the CPU in its place."""
    return "cuda"


def capability() -> tuple[int, int]:
    """Major and minor of the GPU's compute capability."""
    return tuple(imported("torch").cuda.get_device_capability(0))


def sm_count() -> int:
    """SMs of the GPU."""
    return int(imported("torch").cuda.get_device_properties(0).multi_processor_count)


def needs(*modules: str) -> str | None:
    """Why GPU kernels of these modules cannot run: no GPU, or a module is missing."""
    missing = [m for m in modules if not importable(m)]
    if missing:
        return f"{missing[0]} is not installed"
    return gpu_missing()


def to_torch(array: Array, where: str) -> Any:
    """A tensor of the same bits."""
    torch = imported("torch")

    data = np.ascontiguousarray(array)
    if data.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(data.view(np.int16).copy()).view(torch.bfloat16).to(where)
    return torch.from_numpy(data.copy()).to(where)


def to_numpy(tensor: Any) -> Array:
    """An array of the same bits, in the order of the tensor's axes whatever its strides."""
    torch = imported("torch")

    data = tensor.detach().contiguous().cpu()
    if data.dtype == torch.bfloat16:
        return data.view(torch.int16).numpy().view(ml_dtypes.bfloat16).copy()
    return data.numpy().copy()


def pages(call: Call, page: int, where: str, capacity: int | None = None) -> tuple[Any, Any, Any]:
    """K and V ``[pages, page, kv_heads, head_dim]`` and a block table ``[1, pages]`` int32 that visits them backwards.

    Slots beyond the sequence hold zeros. ``capacity``: tokens that the table has room for.
    """
    torch = imported("torch")

    n = call.k.shape[0]
    count = max(1, -(-max(capacity or n, n) // page))
    caches: list[Any] = []
    for array in (call.k, call.v):
        padded = np.zeros((count * page, *array.shape[1:]), array.dtype)
        padded[:n] = array
        caches.append(to_torch(padded.reshape(count, page, *array.shape[1:])[::-1], where))
    table = torch.arange(count - 1, -1, -1, dtype=torch.int32, device=where)[None]
    return caches[0], caches[1], table


def sync(where: str) -> None:
    """Wait for the GPU."""
    torch = imported("torch")

    if where == "cuda":
        torch.cuda.synchronize()
