"""The machine that a capture is made on: GPU by PyTorch, CPU by what its own libraries choose their code by."""

from __future__ import annotations

import ctypes
import os
import platform
import shutil
import subprocess
import sys
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from verify.capture.manifest import Library, Machine

#: Environment variables that change which code runs.
TOLD = (
    "ONEDNN_MAX_CPU_ISA",
    "MKL_ENABLE_INSTRUCTIONS",
    "LD_PRELOAD",
    "CUDA_VISIBLE_DEVICES",
    "TRITON_INTERPRET",
)
_WIDE = {"avx512f", "avx512bw", "avx512dq", "avx512vl"}
_NO_AMX = ("AVX512_CORE", "AVX512_CORE_VNNI", "AVX512_CORE_BF16", "AVX512_CORE_FP16", "AVX2", "AVX2_VNNI")


def installed(distribution: str) -> str | None:
    """The version of a distribution that is installed."""
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def imported(name: str) -> Any:
    """A module of a library that may be missing, imported now. Types of it are not known here."""
    return import_module(name)


def importable(module: str) -> bool:
    """Whether a top-level module can be found; it is not imported."""
    try:
        return module in sys.modules or find_spec(module) is not None
    except (ImportError, ValueError):
        return False


def library(distribution: str, module: str | None = None) -> Library:
    """Name, version and, where the module says it, commit of an installed library."""
    found, commit = installed(distribution), None
    if module is not None and module in sys.modules:
        loaded = sys.modules[module]
        found = found or getattr(loaded, "__version__", None)
        told = getattr(getattr(loaded, "version", None), "git_version", None)
        commit = told if isinstance(told, str) else getattr(loaded, "__commit__", None)
    return Library(name=distribution, version=str(found or "unknown"), commit=commit)


def gpu_missing() -> str | None:
    """Why no kernel can run on a GPU here; None where one can."""
    if not importable("torch"):
        return "PyTorch is not installed, so no CUDA GPU can be used"
    torch = imported("torch")

    if torch.version.cuda is None:
        return f"PyTorch {torch.__version__} is a build without CUDA"
    if not torch.cuda.is_available():
        return "no CUDA GPU is visible to PyTorch"
    return None


def cpu_facts() -> tuple[str, set[str]]:
    """Vendor and flags of the CPU, as Linux tells them; the architecture's name elsewhere."""
    vendor, flags = platform.machine() or "unknown", set[str]()
    info = Path("/proc/cpuinfo")
    for line in info.read_text(errors="replace").splitlines() if info.is_file() else []:
        key, _, value = line.partition(":")
        if key.strip() == "vendor_id":
            vendor = value.strip()
        if key.strip() == "flags":
            flags = set(value.split())
            break
    return vendor, flags


def cpu_class() -> str:
    """The word that platforms know a CPU by: what MKL and oneDNN inside PyTorch choose their code by.

    MKL is asked itself whether it takes its code for Intel's CPUs, where PyTorch has it.
    """
    vendor, flags = cpu_facts()
    if not flags >= _WIDE:
        return f"{_word(vendor)}_avx2" if "avx2" in flags else _word(vendor)
    told = _mkl_takes_intel_code()
    maker = ("intel" if told else "amd") if told is not None else _word(vendor)
    amx = "amx_tile" in flags and os.environ.get("ONEDNN_MAX_CPU_ISA", "").upper() not in _NO_AMX
    return f"{maker}_amx" if amx else f"{maker}_avx512"


def _word(vendor: str) -> str:
    known = {"AuthenticAMD": "amd", "GenuineIntel": "intel"}
    return known.get(vendor, "".join(c for c in vendor.lower() if c.isalnum())[:20] or "unknown")


def _mkl_takes_intel_code() -> bool | None:
    """What MKL answers when its kernels ask whether this CPU is Intel's; None where PyTorch has no MKL."""
    spec = find_spec("torch") if importable("torch") else None
    if spec is None or spec.origin is None:
        return None
    found = sorted((Path(spec.origin).parent / "lib").glob("libtorch_cpu.so"))
    try:
        if not found:
            return None
        imported("torch")  # its libraries are loaded in the order it wants
        return bool(
            ctypes.CDLL(None).mkl_serv_intel_cpu_true()
        )  # a preloaded answer comes first, as it does for MKL
    except (OSError, AttributeError):
        try:
            return bool(ctypes.CDLL(str(found[0])).mkl_serv_intel_cpu_true())
        except (OSError, AttributeError):
            return None


def _driver() -> str | None:
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return None
    command = [tool, "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    lines = done.stdout.split()
    return lines[0] if done.returncode == 0 and lines else None


def this_machine() -> Machine:
    """What a manifest says of this machine."""
    vendor, _ = cpu_facts()
    told = {name: os.environ[name][:2000] for name in TOLD if name in os.environ}
    gpu: dict[str, Any] = {}
    if gpu_missing() is None:
        torch = imported("torch")

        properties = torch.cuda.get_device_properties(0)
        gpu = {
            "gpu": str(properties.name),
            "sm_count": int(properties.multi_processor_count),
            "compute_capability": 10 * int(properties.major) + int(properties.minor),
            "driver": _driver(),
            "cuda": str(torch.version.cuda),
        }
    return Machine(
        system=platform.platform(),
        python=platform.python_version(),
        cpu=vendor,
        cpu_class=cpu_class(),
        environment=told,
        **gpu,
    )


def release(text: str) -> int:
    """A version as specs count it: ``0.7.2.post1`` is 702."""
    major, minor, patch = number(text)
    return 10_000 * major + 100 * minor + patch


def number(text: str, places: int = 3) -> tuple[int, ...]:
    """The leading numbers of a version: ``0.7.2.post1`` is (0, 7, 2)."""
    out: list[int] = []
    for part in text.split("+")[0].split(".")[:places]:
        digits = "".join(c for c in part if c.isdigit())
        if not part[:1].isdigit():
            break
        out.append(int(digits))
    return tuple(out + [0] * (places - len(out)))
