"""Expected words of tensor-core dot products, as flat cases: model runs, and recordings where they are at hand."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from specs import load_platform
from specs.dot_products import DotProduct, find
from specs.formats import BASES, Format
from verify.numerics.rounding import decode
from verify.numerics.tensor_core import NAN_WORDS, chained

HERE = Path(__file__).parents[1] / "data"
SHARED = Path(__file__).parents[3] / "shared" / "oracle"
SMALL = HERE / "tensor_core_model_small.npz"
WHOLE = SHARED / "tensor_core_model.npz"
RECORDED = SHARED / "tensor_core_hardware.npz"

Words = NDArray[np.unsignedinteger]
FORMATS = {"fp16": "f16", "e4m3": "e4m3fn", "E4M3": "e4m3fn"}
ARCHITECTURES = {
    "Volta": "v100",
    "Turing": "t4",
    "Ampere": "a100",
    "Ada_Lovelace": "l40s",
    "Hopper": "h200",
    "Blackwell": "b200",
    "RTX_Blackwell": "sm120",
}
GPUS = {"V100": "v100", "A100": "a100", "Ada": "rtx4090", "H100": "h100", "H200": "h200", "B200": "b200"}
UNSUPPORTED = {f"{gpu}__E4M3__d_fp16" for gpu in ("H100", "H200", "B200")}


@dataclass(frozen=True)
class Case:
    """n dot products of one instruction: a, b [n, k] and c, d [n] in words of fmt, fmt, output, output."""

    key: str
    dot: DotProduct
    k: int
    fmt: Format
    a: Words
    b: Words
    c: Words
    d: Words

    def part(self, step: int, first: int = 0) -> Case:
        """Every ``step``-th dot product."""
        at = slice(first, None, step)
        return Case(self.key, self.dot, self.k, self.fmt, self.a[at], self.b[at], self.c[at], self.d[at])


def scalar_words(case: Case) -> Words:
    """The scalar definition on a case, as words."""
    a, b = (values(x, case.fmt) for x in (case.a, case.b))
    c = values(case.c, BASES[case.dot.output])
    pairs = zip(a.tolist(), b.tolist(), c.tolist(), strict=True)
    return words_of([chained(case.dot, case.k, x, y, z, case.fmt, case.fmt) for x, y, z in pairs], case.dot)


def values(words: Words, fmt: Format) -> NDArray[np.float64]:
    """Float64 values of stored words; of a tf32 word the low 13 bits do not count."""
    return decode(words & np.uint32(0xFFFFE000) if fmt.base == "tf32" else words, fmt)


def words_of(results: list[float], dot: DotProduct) -> Words:
    """Words of results, NaN as the hardware writes it."""
    real, word = (np.float32, np.uint32) if dot.output == "f32" else (np.float16, np.uint16)
    array = np.array(results, real)
    return np.where(np.isnan(array), word(NAN_WORDS[dot.output]), array.view(word))


def model_path() -> Path:
    """The whole file where it is at hand, else the small copy."""
    return WHOLE if WHOLE.exists() else SMALL


@lru_cache(maxsize=2)
def model_cases(path: Path) -> tuple[Case, ...]:
    """The model's results, each through the entry of its platform."""
    return tuple(_model_cases(path))


def _model_cases(path: Path) -> Iterator[Case]:
    with np.load(path) as file:
        data = {k: file[k] for k in file.files}
    for key in (k for k in data if k.startswith("D__")):
        _, instruction, architecture, qualifier = key.split("__")
        words = qualifier.split(".")
        shape = next(w for w in words if w[0] == "m" and "n" in w)
        kind = {"f16": "fp16"}.get(name := words[words.index("f32") + 1], name)
        fmt, k = BASES[FORMATS.get(kind, kind)], int(shape.split("k")[1])
        a, b, c = (data[f"in_{kind}_{shape}__{x}"] for x in "ABC")
        dots = load_platform(ARCHITECTURES[architecture]).dot_products
        dot = find(dots, instruction, fmt, fmt, BASES["f32"], k)
        full = (*c.shape, k)
        a = np.broadcast_to(a[:, :, None, :], full).reshape(-1, k)
        b = np.broadcast_to(np.moveaxis(b, 1, 2)[:, None], full).reshape(-1, k)
        yield Case(key, dot, k, fmt, a, b, c.reshape(-1), data[key].reshape(-1))


@lru_cache(maxsize=1)
def recorded_cases() -> tuple[Case, ...]:
    """The words that GPUs gave; H100 and H200 E4M3 to f32 are of wgmma, on an accumulator of zero."""
    return tuple(_recorded_cases())


def _recorded_cases() -> Iterator[Case]:
    for key, kind, gpu, data in recorded():
        if key in UNSUPPORTED:
            continue
        fmt, output = BASES[FORMATS.get(kind, kind)], "f16" if key.endswith("fp16") else "f32"
        k, wgmma = data["a"].shape[1], kind == "E4M3" and gpu in ("H100", "H200")
        dots = load_platform(GPUS[gpu]).dot_products
        dot = find(dots, "wgmma" if wgmma else "mma", fmt, fmt, BASES[output], k)
        c = np.zeros_like(data["c_f32"]) if wgmma else data["c_f32"]
        yield Case(key, dot, k, fmt, data["a"], data["b"], narrow(c, output), narrow(data["d"], output))


def recorded() -> Iterator[tuple[str, str, str, dict[str, Words]]]:
    """Every recorded set: key, format, GPU, and arrays a, b, c_f32, d."""
    with np.load(RECORDED) as file:
        data = {k: file[k] for k in file.files}
    for key in (k for k in data if "__d_" in k):
        gpu, kind, _ = key.split("__")
        own = {x: data[f"{gpu}__{kind}__{x}"] for x in ("a", "b", "c_f32")}
        yield key, kind, gpu, {**own, "d": data[key]}


def narrow(words: Words, output: str) -> Words:
    """f32 words of values, rounded once to the output format."""
    return words if output == "f32" else words.view(np.float32).astype(np.float16).view(np.uint16)
