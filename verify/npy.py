"""Headers of .npy streams from strangers: NumPy's own reader, whose every failure is a `ValueError`."""

from __future__ import annotations

import tokenize
import warnings
from typing import Any

import numpy as np


def npy_header(stream: Any) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Shape, whether in Fortran order, and dtype of the array whose .npy stream begins here.

    Raises:
        ValueError: it is no such stream, of a version above 2, or its header is damaged.
    """
    version = np.lib.format.read_magic(stream)
    if version not in ((1, 0), (2, 0)):
        raise ValueError(f"npy version {version}")
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            shape, fortran, dtype = read(stream)
    except (SyntaxError, TypeError, RecursionError, MemoryError, tokenize.TokenError):
        raise ValueError("its header is damaged") from None
    if any(n < 0 for n in shape):
        raise ValueError(f"its shape is {shape}")
    return tuple(int(n) for n in shape), bool(fortran), dtype
