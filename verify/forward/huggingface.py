"""Models in the Hugging Face format: a folder with config.json and model.safetensors, sharded or not."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specs.errors import InputError
from verify.forward.architecture import Architecture, from_config
from verify.forward.weights import Model, check_finite, check_shape, check_size, shapes

CONFIG, SINGLE, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
_MAX_JSON = 64 << 20
_MAX_HEADER = 100 << 20
_NAMES = {
    "q": "self_attn.q_proj",
    "k": "self_attn.k_proj",
    "v": "self_attn.v_proj",
    "o": "self_attn.o_proj",
    "gate": "mlp.gate_proj",
    "up": "mlp.up_proj",
    "down": "mlp.down_proj",
    "attn_norm": "input_layernorm",
    "mlp_norm": "post_attention_layernorm",
    "q_norm": "self_attn.q_norm",
    "k_norm": "self_attn.k_norm",
}


def load_folder(folder: Path) -> Model:
    """The model in ``folder``.

    Raises:
        InputError: a file is missing, truncated or malformed; a tensor is missing or has another shape or dtype.
        UnsupportedError: an architecture that is not modelled.
    """
    config = read_json(folder / CONFIG)
    architecture = from_config(config, str(folder / CONFIG))
    check_size(architecture, str(folder))
    files = _files(folder)
    tensors: dict[str, Tensor] = {}
    for file in files:
        tensors |= read_header(file)
    read = _reader(tensors, str(folder))
    prefix = "model." if "model.embed_tokens.weight" in tensors or not tensors else ""
    a = architecture
    embedding = read(f"{prefix}embed_tokens.weight", (a.vocab, a.hidden))
    head = embedding if a.tied else read("lm_head.weight", (a.vocab, a.hidden))
    layers = _layers(a, read, prefix)
    return Model(
        architecture=a,
        embedding=embedding,
        head=head,
        norm=read(f"{prefix}norm.weight", (a.hidden,)),
        layers=layers,
        name=folder.resolve().name,
        sha256=files_sha256(files),
    )


def _layers(
    a: Architecture, read: Callable[[str, tuple[int, ...]], NDArray[Any]], prefix: str
) -> dict[str, NDArray[Any]]:
    out: dict[str, NDArray[Any]] = {}
    for name, shape in shapes(a).items():
        stacked = np.empty((a.layers, *shape), np.float32)
        for i in range(a.layers):
            stacked[i] = read(f"{prefix}layers.{i}.{_NAMES[name]}.weight", shape)
        out[name] = stacked
    return out


def read_json(file: Path) -> dict[str, Any]:
    """A JSON object from ``file``.

    Raises:
        InputError: missing, too large, or no JSON object.
    """
    try:
        if not file.is_file():
            raise InputError(
                "no such file",
                place=str(file),
                remedy="give a folder in the Hugging Face format, or a .gguf file",
            )
        if file.stat().st_size > _MAX_JSON:
            raise InputError("larger than 64 MiB", place=str(file), remedy="this is no config or index")
        found = json.loads(file.read_bytes())
    except OSError as error:
        raise InputError(
            f"cannot be read: {error.strerror}", place=str(file), remedy="check its permissions"
        ) from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"not JSON: {str(error)[:120]}", place=str(file), remedy="write it again") from None
    if not isinstance(found, dict):
        raise InputError("not a JSON object", place=str(file), remedy="write it again")
    return found


def _files(folder: Path) -> list[Path]:
    if (folder / INDEX).is_file():
        weights = read_json(folder / INDEX).get("weight_map")
        if not isinstance(weights, Mapping) or not all(isinstance(v, str) for v in weights.values()):
            raise InputError(
                "no weight_map", place=str(folder / INDEX), remedy="see the index of a sharded model"
            )
        names = sorted(set(weights.values()))
        for name in names:
            if Path(name).name != name:
                raise InputError(
                    f"a shard called {name[:60]!r}",
                    place=str(folder / INDEX),
                    remedy="shards lie in the folder itself",
                )
            if not (folder / name).is_file():
                raise InputError(
                    f"the shard {name} is missing",
                    place=str(folder),
                    remedy="download every file of the index",
                )
        return [folder / name for name in names]
    if not (folder / SINGLE).is_file():
        raise InputError(
            f"neither {SINGLE} nor {INDEX}",
            place=str(folder),
            remedy="give a folder with safetensors weights",
        )
    return [folder / SINGLE]


class Tensor:
    """Where one tensor lies: file, dtype name, shape, and its bytes in the file."""

    __slots__ = ("dtype", "file", "shape", "start", "stop")

    def __init__(self, file: Path, dtype: str, shape: tuple[int, ...], start: int, stop: int) -> None:
        self.file, self.dtype, self.shape, self.start, self.stop = file, dtype, shape, start, stop


def read_header(file: Path) -> dict[str, Tensor]:
    """Every tensor of a safetensors file, from its header alone; nothing of the data is read.

    The format: 8 bytes of length, a JSON header with dtype, shape and data_offsets, then the data
    (https://huggingface.co/docs/safetensors).

    Raises:
        InputError: truncated, or the header is not what the data can be.
    """
    place = str(file)

    def damaged(why: str) -> InputError:
        return InputError(f"truncated or damaged: {why}", place=place, remedy="download the file again")

    size = file.stat().st_size
    with file.open("rb") as stream:
        first = stream.read(8)
        length = int.from_bytes(first, "little")
        if len(first) < 8 or length > min(_MAX_HEADER, size - 8):
            raise damaged("its header does not fit the file")
        try:
            header = json.loads(stream.read(length))
        except (ValueError, RecursionError):
            raise damaged("its header is no JSON") from None
    base = 8 + length
    out: dict[str, Tensor] = {}
    if not isinstance(header, dict):
        raise damaged("its header is no table")
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        try:
            start, stop = (int(i) for i in entry["data_offsets"])
            shape = tuple(int(n) for n in entry["shape"])
            dtype = str(entry["dtype"])
        except (TypeError, KeyError, ValueError):
            raise damaged(f"tensor '{str(name)[:60]}' has no offsets, shape or dtype") from None
        if not 0 <= start <= stop <= size - base or any(n < 0 for n in shape):
            raise damaged(f"tensor '{str(name)[:60]}' ends past the end of the file")
        out[str(name)] = Tensor(file, dtype, shape, base + start, base + stop)
    return out


def _reader(tensors: Mapping[str, Tensor], place: str) -> Callable[[str, tuple[int, ...]], NDArray[Any]]:
    """``read(name, shape)``: a tensor as f32."""
    from verify.files import stored_kinds

    kinds = {k: stored_kinds()[k] for k in ("F32", "BF16", "F16")}

    def read(name: str, shape: tuple[int, ...]) -> NDArray[Any]:
        found = tensors.get(name)
        if found is None:
            raise InputError(
                f"the tensor '{name}' is missing",
                place=place,
                remedy=f"the files hold {len(tensors)} tensors; the architecture needs this one",
            )
        if found.dtype not in kinds:
            raise InputError(
                f"dtype {found.dtype}",
                place=f"{found.file}: tensor '{name}'",
                remedy="F32, BF16 and F16 are read",
            )
        dtype = np.dtype(kinds[found.dtype])
        check_shape(found.shape, shape, name, place)
        if found.stop - found.start != dtype.itemsize * int(np.prod(shape, dtype=np.int64)):
            raise InputError(
                "its bytes are not what its shape needs",
                place=f"{found.file}: tensor '{name}'",
                remedy="download the file again",
            )
        raw = np.fromfile(found.file, dtype, count=int(np.prod(shape, dtype=np.int64)), offset=found.start)
        return check_finite(raw.reshape(shape).astype(np.float32), name, place)

    return read


def files_sha256(files: list[Path]) -> str:
    """SHA-256 of one file; of the hashes of several, in order."""
    hashes: list[str] = []
    for file in files:
        with file.open("rb") as stream:
            hashes.append(hashlib.file_digest(stream, "sha256").hexdigest())
    return hashes[0] if len(hashes) == 1 else hashlib.sha256("".join(hashes).encode()).hexdigest()
