"""Models in GGUF, through the PyPI package ``gguf`` (an extra): metadata, tensors of any quantisation it knows.

Weights are dequantised to f32, as llama.cpp's reference code does.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specs.errors import InputError, UnsupportedError
from verify.forward.architecture import from_gguf
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
_MAX_KEYS, _MAX_TENSORS = 10_000, 100_000


def load_gguf(file: Path) -> Model:
    """The model in ``file``.

    Raises:
        InputError: the package ``gguf`` is not installed; the file is missing, truncated or damaged; a tensor is missing
            or has another shape. UnsupportedError: an architecture or a quantisation that is not known.
    """
    gguf = _package()
    place = str(file)
    _check_head(file)
    try:
        reader = gguf.GGUFReader(file)
        fields = {
            k: f.contents() for k, f in reader.fields.items() if k.startswith(("general.", "tokenizer.ggml."))
        }
        own = str(fields.get("general.architecture"))
        fields |= {k: f.contents() for k, f in reader.fields.items() if k.startswith(f"{own}.")}
    except Exception as error:  # whatever a damaged file makes the package raise
        raise InputError(
            f"truncated or damaged: {type(error).__name__}: {str(error)[:120]}",
            place=place,
            remedy="download the file again",
        ) from None
    tensors = {t.name: t for t in reader.tensors}
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
        stored = tuple(int(n) for n in reversed(found.shape))
        check_shape(np.broadcast_to(np.float32(0), stored), shape, name, place)
        try:
            values = gguf.quants.dequantize(found.data, found.tensor_type)
        except (NotImplementedError, ValueError, KeyError) as error:
            raise UnsupportedError(
                f"{found.tensor_type.name}: {str(error)[:100]}",
                place=f"{place}: tensor '{name}'",
                remedy="use F32, F16, BF16, Q8_0, Q4_0, Q4_1 or another format that the gguf package decodes",
            ) from None
        return check_finite(np.asarray(values, np.float32).reshape(shape), name, place)

    embedded = tensors.get("token_embd.weight")
    if embedded is None or len(embedded.shape) != 2:
        raise InputError(
            "the tensor 'token_embd.weight' is missing", place=place, remedy="give a whole model"
        )
    a = from_gguf(fields, "output.weight" not in tensors, int(embedded.shape[1]), place)
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


def _check_head(file: Path) -> None:
    """Magic, version and counts, before anything else is believed. Source: the GGUF specification of ggml."""
    place = str(file)
    try:
        if not file.is_file():
            raise InputError("no such file", place=place, remedy="check the path")
        with file.open("rb") as stream:
            head = stream.read(24)
    except OSError as error:
        raise InputError(
            f"cannot be read: {error.strerror}", place=place, remedy="check its permissions"
        ) from None
    if head[:4] != b"GGUF" or len(head) < 24:
        raise InputError("not a GGUF file", place=place, remedy="its first bytes are not 'GGUF'")
    version, tensors, keys = struct.unpack("<IQQ", head[4:])
    if version not in (2, 3):
        raise UnsupportedError(
            f"GGUF version {version}", place=place, remedy="little-endian versions 2 and 3 are read"
        )
    if tensors > _MAX_TENSORS or keys > _MAX_KEYS:
        raise InputError(f"{tensors:,} tensors, {keys:,} keys", place=place, remedy="the file is damaged")


def _tokenizer(fields: Mapping[str, Any]) -> dict[str, Any]:
    """What `verify.forward.tokens` needs."""
    prefix = "tokenizer.ggml."
    return {k.removeprefix(prefix): v for k, v in fields.items() if k.startswith(prefix)}
