"""PyTorch's CPU flash attention, run in a process of its own: which code it takes here, and what it gives.

The spec describes one class of machine: PyTorch 2.13.0, AVX-512, and MKL's code for CPUs of AMD. On a CPU of Intel
with AVX-512 the same code is in the same library, behind questions that MKL asks of the CPU; a shim of three functions
answers them as an EPYC would. Disassembled, that code asks for the vendor, for family 10h, for FMA4 and for AVX2, and
for nothing else: no cache sizes. On any other machine there is nothing to compare with.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from itertools import pairwise
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

Array = np.ndarray[Any, Any]
VERSION = "2.13.0"
REMEDY = f"pip install 'ulpscope[torch]' brings PyTorch {VERSION}"
SHIM = """
int mkl_serv_intel_cpu_true(void) { return 0; }
int mkl_serv_intel_cpu(void) { return 0; }
int mkl_serv_cpuiszen(void) { return 1; }
"""
PRODUCER = """
import sys
import numpy as np
import torch

torch.set_num_threads(int(sys.argv[3]))
if not torch.__version__.startswith(sys.argv[4]) or torch.backends.cpu.get_cpu_capability() != "AVX512":
    sys.exit(f"PyTorch {torch.__version__}, {torch.backends.cpu.get_cpu_capability()}")
given, found = np.load(sys.argv[1]), {}
attention = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
for name in given["names"]:
    q, k, v = (torch.from_numpy(given[f"{name}.{x}"]).view(torch.bfloat16).unsqueeze(0) for x in "qkv")
    output, lse = attention(q, k, v, is_causal=bool(given[f"{name}.causal"]))
    heads, rows = q.shape[1:3]
    assert output.shape == q.shape and lse.shape == (1, heads, rows)
    found[f"{name}.output"] = output[0].contiguous().view(torch.int16).numpy()
    found[f"{name}.lse"] = lse[0].contiguous().numpy()
np.savez(sys.argv[2], **found)
"""


@dataclass(frozen=True)
class Shape:
    """One call. Heads 0, 2, ... get random numbers, the others numbers that show in which order they are added.

    ``spread``: rows of V differ by factors up to 2 ** (spread - 1); ``sharp`` multiplies Q, ``small`` V.
    """

    queries: int
    keys: int
    head_dim: int = 64
    heads: int = 2
    causal: bool = False
    spread: int = 12
    seed: int = 0
    sharp: float = 1.0
    small: float = 1.0

    @property
    def name(self) -> str:
        """A name for files and messages."""
        parts = (self.queries, self.keys, self.head_dim, self.heads, int(self.causal))
        return "_".join(str(x) for x in (*parts, self.spread, self.seed, self.sharp, self.small))

    def arrays(self) -> tuple[Array, Array, Array]:
        """`q [heads, n, d]`, `k, v [heads, m, d]` in bfloat16."""
        rng = np.random.default_rng([self.queries, self.keys, self.head_dim, self.seed])
        each = [(self._revealing if h % 2 else self._random)(rng) for h in range(self.heads)]
        q, k, v = (np.stack(parts) for parts in zip(*each, strict=True))
        stored = (q * self.sharp, k, v * self.small)
        return tuple(x.astype(np.float32).astype(ml_dtypes.bfloat16) for x in stored)  # type: ignore[return-value]

    def _random(self, rng: np.random.Generator) -> tuple[Array, Array, Array]:
        q, k, v = (rng.standard_normal((n, self.head_dim)) for n in (self.queries, self.keys, self.keys))
        return q, k, v * 2.0 ** rng.integers(0, self.spread, (self.keys, 1))

    def _revealing(self, rng: np.random.Generator) -> tuple[Array, Array, Array]:
        """Huge opposite summands in both products, and a sum of weights little above 1 with a maximum of 0.

        Opposite elements of V need equal weights: the keys of a pair are equal, and summed in one way.
        """
        n, d = self.keys, self.head_dim
        q = 2.0 ** rng.integers(-1, 1, (self.queries, 1)) * np.ones(d)
        k = rng.standard_normal((n, d)) * 0.5 - rng.uniform(1, 12, (n, 1)) / d**0.5
        for row in k:
            i, j = rng.permutation(d)[:2]
            row[i], row[j] = row[i] + 2.0**19, -(2.0**19)
        v = rng.standard_normal((n, d))
        top = int(rng.integers(0, n))
        cuts = sorted({*range(0, n, 16), n // 4 * 4, n})
        for first, end in pairwise(cuts):
            order = rng.permutation([i for i in range(first, end) if i != top])
            for i, j in zip(order[::2], order[1::2], strict=False):
                k[j] = k[i]
                huge = rng.random(d) < 0.7
                v[i, huge] = 2.0 ** rng.integers(16, 24, d)[huge]
                v[j, huge] = -v[i, huge]
        k[top] = 0
        return q, k, v


@dataclass(frozen=True)
class Machine:
    """What was found: ``skip`` says why there is nothing to compare with, empty where there is."""

    skip: str = ""
    environment: dict[str, str] = field(default_factory=dict[str, str])
    how: str = ""


def cpu_class() -> tuple[str, set[str]]:
    """Vendor and flags of the CPU, as Linux tells them."""
    vendor, flags = platform.machine(), set[str]()
    path = Path("/proc/cpuinfo")
    for line in path.read_text().splitlines() if path.exists() else []:
        key, _, value = line.partition(":")
        if key.strip() == "vendor_id":
            vendor = value.strip()
        if key.strip() == "flags":
            flags = set(value.split())
            break
    return vendor, flags


def installed() -> str | None:
    """The version of PyTorch that is installed."""
    try:
        return version("torch")
    except PackageNotFoundError:
        return None


def machine(folder: Path) -> Machine:
    """How the kernel of the spec is run here, if it can be; a shim is compiled into ``folder``."""
    found = installed()
    if found is None:
        return Machine(skip=f"PyTorch is not installed: {REMEDY}")
    if found.split("+")[0] != VERSION:
        return Machine(skip=f"PyTorch {found} is installed, the spec is of {VERSION}: {REMEDY}")
    vendor, flags = cpu_class()
    wide = {"avx512f", "avx512bw", "avx512dq", "avx512vl"}
    if missing := wide - flags:
        return Machine(
            skip=f"CPU class found: {vendor} without {', '.join(sorted(missing))}; the spec's has AVX-512"
        )
    name, glibc = platform.libc_ver()
    number = tuple(int(x) for x in glibc.split(".")[:2]) if glibc else (0, 0)
    if name != "glibc" or not (2, 28) <= number < (2, 41):
        return Machine(skip=f"C library found: {name} {glibc}; expf and logf are those of glibc 2.28 to 2.40")
    plain = {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE"}  # no AMX
    if vendor == "AuthenticAMD":
        return Machine(environment=plain, how="AMD, native")
    compiler = shutil.which("cc") or shutil.which("gcc")
    if vendor != "GenuineIntel" or compiler is None:
        return Machine(
            skip=f"CPU class found: {vendor} with AVX-512, C compiler: {compiler}; the spec's is AMD"
        )
    source, shim = folder / "as_amd.c", folder / "as_amd.so"
    source.write_text(SHIM)
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", shim, source], check=True)
    return Machine(environment={**plain, "LD_PRELOAD": str(shim)}, how="Intel, MKL's code for AMD")


def run(
    here: Machine, shapes: Sequence[Shape], folder: Path, threads: int = 1
) -> dict[str, tuple[Array, Array]]:
    """Output `[heads, n, d]` in bfloat16 and lse `[heads, n]` of each shape by its name, from one process."""
    given: dict[str, Any] = {"names": np.array([s.name for s in shapes])}
    for shape in shapes:
        for key, x in zip("qkv", shape.arrays(), strict=True):
            given[f"{shape.name}.{key}"] = x.view(np.int16)
        given[f"{shape.name}.causal"] = np.array(shape.causal)
    inputs, outputs = folder / f"in{threads}.npz", folder / f"out{threads}.npz"
    np.savez(inputs, **given)
    command = [sys.executable, "-c", PRODUCER, inputs, outputs, str(threads), VERSION]
    done = subprocess.run(
        command, env={**os.environ, **here.environment}, capture_output=True, text=True, timeout=900
    )
    if done.returncode:
        raise RuntimeError(f"PyTorch did not run: {done.stderr[-2000:]}")
    found = np.load(outputs)
    return {
        s.name: (found[f"{s.name}.output"].view(ml_dtypes.bfloat16), found[f"{s.name}.lse"]) for s in shapes
    }
