"""The process that executes a kernel's file: compiles its kernels with Triton for GPUs that need not be there.

Reads one request as JSON from standard input and writes one answer as JSON to the file that the request names. What the
kernel's file prints goes to standard error. Started by `compile`, and by nothing else.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

FLOAT_TYPES = ("fp16", "bf16", "fp32", "fp64")


class RefusedError(Exception):
    """Why a kernel was not compiled, for the user."""


def main() -> None:
    """Answer the request on standard input."""
    request = json.load(sys.stdin)
    out, sys.stdout = Path(request["out"]), sys.stderr
    try:
        answer: dict[str, Any] = {"lowering": lower(request)}
    except RefusedError as error:
        answer = {"refused": str(error)}
    out.write_text(json.dumps(answer))


def lower(request: dict[str, Any]) -> dict[str, Any]:
    """Compile what ``request`` names.

    Raises:
        RefusedError: the file does not run, has no such kernel, or Triton does not compile it.
    """
    path = Path(request["path"])
    triton = importlib.import_module("triton")
    module = _module(path)
    kernels: list[dict[str, Any]] = []
    for wanted in request["kernels"]:
        function = getattr(module, wanted["name"], None)
        if function is None or not hasattr(function, "arg_names"):
            raise RefusedError(f"{wanted['name']} is no kernel of {path.name} once the file has run")
        stages: dict[str, dict[str, str]] = {}
        for arch in request["archs"]:
            stages[arch] = _stages(triton, function, wanted, arch, request["fp_fusion"], path)
        kernels.append({**wanted, "stages": stages})
    return {
        "schema": 1,
        "file": re.sub(r"[^\w .+-]", "_", path.name)[:200],
        "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        "triton": triton.__version__,
        "fp_fusion": request["fp_fusion"],
        "tools": {arch: _ptxas(arch) for arch in request["archs"]},
        "kernels": kernels,
    }


def _module(path: Path) -> Any:
    sys.path.append(str(path.parent))  # behind: a file beside the kernel takes no name of a library
    taken = path.stem in sys.modules or path.stem in sys.stdlib_module_names
    name = f"kernel_{path.stem}" if taken else path.stem
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise RefusedError(f"{path.name} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise RefusedError(f"the file does not run here: {type(error).__name__}: {error}") from error
    return module


def _stages(
    triton: Any, function: Any, wanted: dict[str, Any], arch: str, fusion: bool, path: Path
) -> dict[str, str]:
    compiler = importlib.import_module("triton.compiler")
    backends = importlib.import_module("triton.backends.compiler")
    signature: dict[str, str] = {}
    attributes: dict[tuple[int], list[list[Any]]] = {}
    for i, name in enumerate(function.arg_names):
        if name in wanted["constexprs"]:
            signature[name] = "constexpr"
            continue
        kind, _, divisor = wanted["signature"][name].partition(":")
        signature[name] = kind
        if divisor:
            attributes[(i,)] = [["tt.divisibility", int(divisor)]]
    source = compiler.ASTSource(
        function, signature=signature, constexprs=wanted["constexprs"], attrs=attributes
    )
    target = backends.GPUTarget("cuda", int(re.sub(r"\D", "", arch)), 32)
    options = {
        "num_warps": wanted["num_warps"],
        "num_stages": wanted["num_stages"],
        "enable_fp_fusion": fusion,
    }
    try:
        made = triton.compile(source, target=target, options=options)
    except Exception as error:
        text = f"{type(error).__name__}: {error}".strip()
        raise RefusedError(f"Triton does not compile {wanted['name']} for {arch}: {text[:2000]}") from error
    texts = {name: _anonymous(str(made.asm[name]), path) for name in ("ttir", "ttgir", "llir", "ptx")}
    return {**texts, "sass": _disassembled(made.asm["cubin"])}


def _anonymous(text: str, path: Path) -> str:
    """Without the folders of this machine, and without PTX's tables for debuggers."""
    text = text.split("\n\t.section\t.debug")[0]
    text = text.replace(str(path), path.name).replace(f'directory: "{path.parent}"', 'directory: ""')
    text = re.sub(r'"/[^"]*/(triton/[^"]*)"', r'"\1"', text)
    return re.sub(r'directory: "/[^"]*"', 'directory: ""', text)


def _tools() -> Path:
    nvidia = importlib.util.find_spec("triton.backends.nvidia")
    places = list(nvidia.submodule_search_locations or ()) if nvidia is not None else []
    return Path(places[0] if places else ".") / "bin"


def _ptxas(arch: str) -> str:
    newer = _tools() / "ptxas-blackwell"
    tool = newer if int(re.sub(r"\D", "", arch)) >= 100 and newer.is_file() else _tools() / "ptxas"
    if not tool.is_file():
        return "unknown"
    told = subprocess.run([tool, "--version"], capture_output=True, text=True, timeout=60, check=False).stdout
    found = re.search(r"\bV(\d+\.\d+\.\d+)", told)
    return found[1] if found else "unknown"


def _disassembled(cubin: bytes) -> str:
    """The machine code as text; empty where there is no disassembler."""
    tool = _tools() / "nvdisasm"
    if not tool.is_file():
        return ""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "kernel.cubin"
        file.write_bytes(cubin)
        done = subprocess.run([tool, "-c", file], capture_output=True, text=True, timeout=120, check=False)
    return done.stdout if done.returncode == 0 else ""


if __name__ == "__main__":
    main()
