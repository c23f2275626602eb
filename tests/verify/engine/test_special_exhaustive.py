"""Every f32 number through glibc's expf and logf and PyTorch's fexp_u20, compiled here, beside the engine."""

import ctypes
import os
import platform
import shutil
import subprocess
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specs.formats import BASES
from verify.engine.primitives import F32, ZERO, F32Exact, x64

pytestmark = pytest.mark.slow
SINGLE = BASES["f32"]
CHUNK = 1 << 22

LOOP = """
#include <cstdint>
#include <cstring>
{include}
extern "C" void sweep(uint32_t start, uint32_t count, float *out) {{
    for (uint32_t i = 0; i < count; i += {step}) {{
        float x[{step}];
        for (uint32_t j = 0; j < {step}; j++) {{ uint32_t w = start + i + j; std::memcpy(&x[j], &w, 4); }}
        {body}
    }}
}}
"""


def build(folder: Path, include: str, body: str, step: int, flags: list[str]) -> ctypes.CDLL:
    if shutil.which("g++") is None:
        pytest.skip("needs g++")
    source, target = folder / "sweep.cpp", folder / "sweep.so"
    source.write_text(LOOP.format(include=include, body=body, step=step))
    command = [
        "g++",
        "-O2",
        "-std=c++20",
        "-fno-builtin",
        "-shared",
        "-fPIC",
        str(source),
        "-o",
        str(target),
        *flags,
    ]
    subprocess.run(command, check=True, capture_output=True)
    return ctypes.CDLL(str(target))


def flags_of_the_cpu() -> str:
    path = Path("/proc/cpuinfo")
    return path.read_text() if path.exists() else ""


def glibc(name: str, folder: Path) -> ctypes.CDLL:
    found, version = platform.libc_ver()
    known = found == "glibc" and (2, 28) <= tuple(map(int, version.split(".")[:2])) < (2, 41)
    if not known or " fma " not in flags_of_the_cpu():
        pytest.skip(f"needs glibc 2.28 to 2.40 on x86-64 with FMA, found {found} {version}")
    return build(folder, "#include <math.h>", f"out[i] = {name}(x[0]);", 1, ["-lm"])


def torch_u20(folder: Path) -> ctypes.CDLL:
    torch = pytest.importorskip("torch")
    if not torch.__version__.startswith("2.13.") or " avx512bw " not in flags_of_the_cpu():
        pytest.skip(f"needs PyTorch 2.13 on AVX-512, found {torch.__version__}")
    instructions = ["-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mfma", "-mavx2"]
    where = f"-I{os.path.join(os.path.dirname(torch.__file__), 'include')}"
    body = "at::vec::Vectorized<float>::loadu(x).fexp_u20().store(out + i);"
    capability = ["-DCPU_CAPABILITY=AVX512", "-DCPU_CAPABILITY_AVX512"]
    return build(folder, "#include <ATen/cpu/vec/vec.h>", body, 16, [*capability, *instructions, where])


@pytest.mark.parametrize("carrier", [F32, F32Exact])
@pytest.mark.parametrize("name", ["glibc.expf", "glibc.logf", "torch.fexp_u20"])
def test_every_number(name, carrier, tmp_path):
    library = torch_u20(tmp_path) if name.startswith("torch") else glibc(name.partition(".")[2], tmp_path)

    @jax.jit
    def wrong(zero, start, expected):
        words = start + jnp.arange(CHUNK, dtype=jnp.uint32)
        ops = carrier(zero)
        result = ops.encode(ops.special(name, ops.decode(words, SINGLE)))
        bad = (result != expected) & ~(_nan(result) & _nan(expected))
        if carrier is F32:  # which holds no subnormal numbers, and says so: see test_special.py
            bad = bad & ~(_subnormal(words) | _subnormal(expected))
        return jnp.sum(bad), words[jnp.argmax(bad)]

    expected = np.empty(CHUNK, np.float32)
    for start in range(0, 1 << 32, CHUNK):
        library.sweep(
            ctypes.c_uint32(start), ctypes.c_uint32(CHUNK), expected.ctypes.data_as(ctypes.c_void_p)
        )
        with x64():
            count, first = wrong(ZERO, np.uint32(start), expected.view(np.uint32))
        assert not int(count), (int(count), hex(int(first)))


def _nan(words):
    return (words & 0x7FFFFFFF) > 0x7F800000


def _subnormal(words):
    return ((words & 0x7FFFFFFF) - 1) < 0x7FFFFF
