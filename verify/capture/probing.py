"""Captured sweeps against the models: the special-function unit by checksums, matrix instructions word by word."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specs import Platform
from specs.dot_products import find
from specs.errors import InputError, UnsupportedError
from specs.formats import BASES
from verify.capture.format import Capture
from verify.capture.kernels import PROBES
from verify.capture.producers.probe_sources import BLOCKS, MATRIX, PARTS, SPAN

CHECKED = (63, 126, 127, 128, 383, 384)
"""Ranges of 2**23 operands whose checksums are computed here again: from 2**-64, 0.5 to 4, and -1 to -4."""


@dataclass(frozen=True)
class ProbeResult:
    """One sweep: how many results were compared, how many differ, the first one, and what was computed here again."""

    name: str
    platform: str
    compared: int
    differing: int
    first: str = ""
    unknown: int = 0
    note: str = ""
    refused: str = ""

    @property
    def exact(self) -> bool:
        """Whether every result has the predicted bits."""
        return not self.refused and self.differing == 0

    def verdict(self) -> str:
        """One sentence."""
        if self.refused:
            return f"{self.name} not compared on {self.platform}: {self.refused}"
        blank = f", {self.unknown:,} operands whose result no model states" if self.unknown else ""
        note = f" ({self.note})" if self.note else ""
        if self.exact:
            return f"{self.name} bit-exact with the model of {self.platform}: {self.compared:,} results{blank}{note}"
        return (
            f"{self.name} unexplained: {self.differing:,} of {self.compared:,} results differ from the model of "
            f"{self.platform}, the first {self.first}{blank}{note}"
        )


def judge_probes(
    capture: Capture, platform: Platform, wanted: set[str] | None = None
) -> Iterator[ProbeResult]:
    """Every probe of a capture, or those of the kernels that are ``wanted``.

    Raises:
        InputError: arrays that are missing, or of another shape.
    """
    for key, probe in capture.manifest.probes.items():
        if wanted is not None and probe.kernel not in wanted:
            continue
        place = f"{capture.path}: probe '{key}'"
        if probe.what not in PARTS.get(probe.kernel, ()):
            raise InputError(
                f"'{probe.kernel}' of '{probe.what}' is not known",
                place=place,
                remedy=f"probes are {', '.join(PROBES)}",
            )
        arrays = capture.arrays(f"probes/{key}")
        if probe.kernel == "mufu":
            yield _function(key, probe.what, arrays, platform, place)
        else:
            yield _matrix(key, probe.kernel, probe.what, arrays, platform, place)


def _expect(arrays: dict[str, NDArray[Any]], shapes: dict[str, tuple[int | None, ...]], place: str) -> None:
    for name, shape in shapes.items():
        array = arrays.get(name)
        if array is None:
            raise InputError(f"lacks array '{name}'", place=place, remedy="make the capture again")
        fits = array.ndim == len(shape) and all(
            w in (None, n) for w, n in zip(shape, array.shape, strict=True)
        )
        if not fits or array.dtype.kind != "u":
            raise InputError(
                f"is {array.dtype} {list(array.shape)}, not unsigned {list(shape)}",
                place=f"{place}: array '{name}'",
                remedy="make the capture again",
            )


def checksum(words: NDArray[np.uint32]) -> int:
    """The sum of ``word * (2 * i + 1)`` modulo 2**64."""
    at = np.arange(words.size, dtype=np.uint64) * np.uint64(2) + np.uint64(1)
    return int((words.astype(np.uint64) * at).sum(dtype=np.uint64))


def _function(
    key: str, what: str, arrays: dict[str, NDArray[Any]], platform: Platform, place: str
) -> ProbeResult:
    if platform.special_functions != "mufu":
        return ProbeResult(key, platform.name, 0, 0, refused=f"{platform.name} has no special-function unit")
    _expect(
        arrays,
        {"checksum": (BLOCKS,), "mismatches": (BLOCKS,), "unknown": (BLOCKS,), "kept": (None, 3)},
        place,
    )
    wrong, blank = int(arrays["mismatches"].sum(dtype=np.uint64)), int(arrays["unknown"].sum(dtype=np.uint64))
    first = ""
    if len(arrays["kept"]):
        kept = arrays["kept"]
        x, hardware, model = (int(w) for w in kept[np.argmin(kept[:, 0])])
        first = f"{what}(0x{x:08x}): hardware 0x{hardware:08x}, model 0x{model:08x}"
    again = [r for r in CHECKED if not arrays["mismatches"][r] and not arrays["unknown"][r]]
    # A range of NaN operands has results of any payload, and none of CHECKED is one.
    for r in again:
        if checksum(predicted(what, r)) != int(arrays["checksum"][r]):
            wrong += 1
            first = first or f"in operands 0x{r * SPAN:08x} to 0x{(r + 1) * SPAN - 1:08x}: another checksum"
    note = f"{len(again)} of {BLOCKS} checksums computed again"
    return ProbeResult(key, platform.name, BLOCKS * SPAN - blank, wrong, first, blank, note)


def predicted(what: str, block: int) -> NDArray[np.uint32]:
    """The results of one range; in those of `CHECKED` the forms with and without .ftz are one."""
    import jax
    import jax.numpy as jnp

    from verify.engine import mufu

    functions: dict[str, Any] = {"ex2": mufu.ex2, "rcp": mufu.rcp, "rsq": mufu.rsq, "lg2": mufu.lg2}
    words = jnp.arange(SPAN, dtype=jnp.uint32) + np.uint32(block * SPAN)
    with jax.enable_x64(True):
        return np.asarray(jax.jit(functions[what.removesuffix("_full")])(words))


def _matrix(
    key: str, instruction: str, what: str, arrays: dict[str, NDArray[Any]], platform: Platform, place: str
) -> ProbeResult:
    import jax
    import jax.numpy as jnp

    from verify.engine.tensor_core import instruction_any

    _, k, _, half = MATRIX[instruction][what]
    p = len(arrays["a"]) if "a" in arrays and arrays["a"].ndim else 0
    _expect(arrays, {"a": (p, 16, k), "b": (p, 8, k), "c": (p, 16, 8), "d": (p, 16, 8)}, place)
    fmt, output = BASES[what.partition("_")[0]], BASES["f16" if half else "f32"]
    try:
        dot = find(platform.dot_products, instruction, fmt, fmt, output, k)
    except UnsupportedError as error:
        return ProbeResult(key, platform.name, 0, 0, refused=error.cause)

    def block(a: Any, b: Any, c: Any) -> Any:
        left = [a[:, :, None, i] for i in range(k)]
        right = [b[:, None, :, i] for i in range(k)]
        return instruction_any(dot, left, right, c, fmt, fmt)

    with jax.enable_x64(True):
        got = np.asarray(jax.jit(block)(*(jnp.asarray(arrays[n]) for n in "abc")))
    want = arrays["d"]
    nan = _nan(want, half) & _nan(got, half)
    differs = (want != got) & ~nan
    first = ""
    if differs.any():
        at = tuple(int(i) for i in np.argwhere(differs)[0])
        digits = 4 if half else 8
        first = (
            f"problem {at[0]}, row {at[1]}, column {at[2]}: hardware 0x{int(want[at]):0{digits}x}, "
            f"model 0x{int(got[at]):0{digits}x}"
        )
    return ProbeResult(key, platform.name, want.size, int(differs.sum()), first)


def _nan(words: NDArray[Any], half: bool) -> NDArray[np.bool_]:
    return (words & (0x7FFF if half else 0x7FFFFFFF)) > (0x7C00 if half else 0x7F800000)
