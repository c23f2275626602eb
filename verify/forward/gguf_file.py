"""Models in GGUF, through the PyPI package ``gguf`` (an extra): metadata, tensors of any quantisation it knows.

Weights are dequantised to f32, as llama.cpp's reference code does.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specs.errors import InputError, UnsupportedError
from verify.forward.architecture import from_gguf
from verify.forward.gguf_header import Header, read_gguf_header
from verify.forward.huggingface import files_sha256
from verify.forward.weights import Model, check_finite, check_shape, check_size, shapes

_NAMES = {
    "q": "attn_q",
    "k": "attn_k",
    "v": "attn_v",
    "o": "attn_output",
    "gate": "ffn_gate",
    "up": "ffn_up",
    "down": "ffn_down",
    "attn_norm": "attn_norm",
    "mlp_norm": "ffn_norm",
    "q_norm": "attn_q_norm",
    "k_norm": "attn_k_norm",
}


def load_gguf(file: Path) -> Model:
    """The model in ``file``.

    Raises:
        InputError: the package ``gguf`` is not installed; the file is missing, truncated or damaged; a tensor is missing
            or has another shape. UnsupportedError: an architecture or a quantisation that is not known.
    """
    gguf = _package()
    place = str(file)
    header = read_gguf_header(file)
    fields, tensors = header.fields, header.tensors
    if "rope_freqs.weight" in tensors:
        raise UnsupportedError(
            "rescaled rotary frequencies (rope_freqs)",
            place=place,
            remedy="give the Hugging Face folder of the model",
        )

    def read(name: str, shape: tuple[int, ...]) -> NDArray[Any]:
        found = tensors.get(name)
        if found is None:
            raise InputError(
                f"the tensor '{name}' is missing",
                place=place,
                remedy=f"the file holds {len(tensors)} tensors; the architecture needs this one",
            )
        check_shape(found.shape, shape, name, place)
        data, kind = _bytes(gguf, file, header, name)
        try:
            values = gguf.quants.dequantize(data, kind)
        except (NotImplementedError, ValueError, KeyError) as error:
            raise UnsupportedError(
                f"{kind.name}: {str(error)[:100]}",
                place=f"{place}: tensor '{name}'",
                remedy="use F32, F16, BF16, Q8_0, Q4_0, Q4_1 or another format that the gguf package decodes",
            ) from None
        return check_finite(np.asarray(values, np.float32).reshape(shape), name, place)

    embedded = tensors.get("token_embd.weight")
    if embedded is None or len(embedded.shape) != 2:
        raise InputError(
            "the tensor 'token_embd.weight' is missing", place=place, remedy="give a whole model"
        )
    a = from_gguf(fields, "output.weight" not in tensors, embedded.shape[0], place)
    check_size(a, place)
    embedding = read("token_embd.weight", (a.vocab, a.hidden))
    layers: dict[str, NDArray[Any]] = {}
    for name, shape in shapes(a).items():
        layers[name] = np.stack([read(f"blk.{i}.{_NAMES[name]}.weight", shape) for i in range(a.layers)])
    return Model(
        architecture=a,
        embedding=embedding,
        head=embedding if a.tied else read("output.weight", (a.vocab, a.hidden)),
        norm=read("output_norm.weight", (a.hidden,)),
        layers=layers,
        name=str(fields.get("general.name") or file.name),
        sha256=files_sha256([file]),
        tokenizer=_tokenizer(fields),
    )


def _package() -> Any:
    try:
        import gguf
    except ImportError:
        raise InputError(
            "GGUF files are read by the package gguf, which is not installed",
            remedy="pip install 'ulpscope[gguf]', or pip install gguf",
        ) from None
    return gguf


def _bytes(gguf: Any, file: Path, header: Header, name: str) -> tuple[NDArray[np.uint8], Any]:
    """The stored bytes of a tensor, a row a line, and its type.

    Raises:
        InputError: its data ends past the end of the file. UnsupportedError: a type that the package does not know.
    """
    entry, place = header.tensors[name], f"{file}: tensor '{name}'"
    try:
        kind = gguf.GGMLQuantizationType(entry.kind)
        block, size = gguf.GGML_QUANT_SIZES[kind]
    except (ValueError, KeyError):
        raise UnsupportedError(
            f"tensors of type {entry.kind}", place=place, remedy="a newer gguf package may know it"
        ) from None
    if entry.shape[-1] % block:
        raise InputError(
            f"rows of {entry.shape[-1]} in blocks of {block}", place=place, remedy="the file is damaged"
        )
    row = entry.shape[-1] // block * size
    count = math.prod(entry.shape[:-1]) * row
    if entry.start + count > header.size:
        raise InputError(
            "truncated or damaged: a tensor ends past the end of the file",
            place=place,
            remedy="download the file again",
        )
    data = np.fromfile(file, np.uint8, count=count, offset=entry.start)
    return data.reshape(*entry.shape[:-1], row), kind


def _tokenizer(fields: Mapping[str, Any]) -> dict[str, Any]:
    """What `verify.forward.tokens` needs."""
    prefix = "tokenizer.ggml."
    return {k.removeprefix(prefix): v for k, v in fields.items() if k.startswith(prefix)}
