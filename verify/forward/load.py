"""A model by path, or by the name of one that can be fetched."""

from __future__ import annotations

from pathlib import Path

from specs.errors import InputError
from verify.forward.weights import Model

#: Names in place of a path.
NAMES = ("smollm2",)


def load_model(name_or_path: str | Path) -> Model:
    """The model in a Hugging Face folder or a ``.gguf`` file; ``smollm2``: SmolLM2-135M-Instruct, fetched once.

    Raises:
        InputError: no such model, or its files are missing, truncated or malformed. UnsupportedError: an architecture
            that is not modelled.
    """
    text = str(name_or_path)
    if text in NAMES and not Path(text).exists():
        from verify.forward.smollm2 import load

        return load()
    path = Path(text)
    if path.is_dir():
        from verify.forward.huggingface import load_folder

        return load_folder(path)
    if path.suffix.lower() == ".gguf":
        from verify.forward.gguf_file import load_gguf

        return load_gguf(path)
    if not path.exists():
        raise InputError(
            f"no model '{text}'", place="argument MODEL", remedy="give a folder, a .gguf file, or: smollm2"
        )
    raise InputError(
        "no model that is known here",
        place=text,
        remedy="give a folder with config.json and model.safetensors, or a .gguf file",
    )
