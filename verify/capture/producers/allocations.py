"""Tensors that a library allocates inside a call and does not return: split-KV partial results, for one.

Every allocation of PyTorch passes its dispatcher, also from compiled extensions; a dispatch mode sees them and holds
them until they are read. An operator of another namespace runs below the mode: it is called at its device's kernel
with the mode on again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from verify.capture.machine import imported

_Mode: Any = imported("torch.utils._python_dispatch").TorchDispatchMode
_ALLOCATES = {"empty", "empty_strided", "new_empty", "new_empty_strided", "zeros", "new_zeros", "empty_like"}


class Allocations(_Mode):
    """``with Allocations() as made: ...`` and then ``made.find(dtype, shape)``."""

    def __init__(self, key: Any = None) -> None:
        super().__init__()
        self.tensors: list[Any] = []
        self.key = key

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run ``func`` and keep what it allocates."""
        if func.namespace not in ("aten", "prim", "prims") and self.key is not None:
            with self:
                return func._op_dk(self.key, *args, **(kwargs or {}))
        out = func(*args, **(kwargs or {}))
        if func.namespace == "aten" and func._schema.name.partition("::")[2] in _ALLOCATES:
            self.tensors.append(out)
        return out

    def find(self, dtype: Any, ndim: int) -> list[Any]:
        """Tensors of a dtype and a number of axes that were allocated, in order."""
        return [t for t in self.tensors if t.dtype == dtype and t.dim() == ndim]
