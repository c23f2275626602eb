"""vLLM's two decode kernels for ``lower``, from the sources below ``ULPSCOPE_VLLM``, without vLLM's or torch's own imports.

Executed by the compiling process only; what a test compiles is said in `WANTED`.
"""

import importlib.util
import logging
import os
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import triton
import triton.language as tl

HELPERS = "vllm.v1.attention.ops.triton_attention_helpers"
KERNELS = "vllm.v1.attention.ops.triton_unified_attention"


def _load(name: str) -> ModuleType:
    path = Path(os.environ["ULPSCOPE_VLLM"]).joinpath(*name.split(".")).with_suffix(".py")
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def _stand_ins() -> None:
    limits = SimpleNamespace(min=-448.0, max=448.0)
    given = {
        "torch": {"finfo": lambda dtype: limits, "Tensor": object, "dtype": object},
        "vllm.envs": {"VLLM_BATCH_INVARIANT": False},
        "vllm.logger": {"init_logger": logging.getLogger},
        "vllm.platforms": {"current_platform": SimpleNamespace(fp8_dtype=lambda: None)},
        "vllm.triton_utils": {"triton": triton, "tl": tl},
        "vllm.v1.kv_cache_interface": {"KVQuantMode": SimpleNamespace(NONE=0)},
    }
    names = {".".join(n.split(".")[:i]) for n in (*given, HELPERS) for i in range(1, n.count(".") + 2)}
    for name in sorted(names):
        module = ModuleType(name)
        module.__path__ = []
        vars(module).update(given.get(name, {}))
        sys.modules[name] = module
        parent, _, child = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], child, module)


_stand_ins()
_load(HELPERS)
_kernels = _load(KERNELS)
kernel_unified_attention = _kernels.kernel_unified_attention
reduce_segments = _kernels.reduce_segments
