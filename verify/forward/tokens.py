"""Tokens of a sequence: ids from a file, or a text through the model's own tokenizer.

Byte-pair merging of GPT-2 kind is done here for GGUF files whose pre-tokenizer is known; folders in the Hugging Face
format with a tokenizer.json go through the package ``tokenizers`` where it is installed.
"""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from specs.errors import InputError, UnsupportedError
from verify.forward.weights import Model

_MOST = 64 << 20
_DIGITS = "digits apart"
#: Pre-tokenizers of GGUF (``tokenizer.ggml.pre``) that are GPT-2's, and whether digits stand alone.
_PRE = {"gpt-2": "", "default": "", "smollm": _DIGITS}
_SPLIT = r"'(?:s|t|re|ve|m|ll|d)| ?[^\W\d_]+|{digits}| ?(?:[^\s\w]|_)+|\s+(?!\S)|\s+"


def read_tokens(file: Path) -> list[tuple[str, list[int] | str]]:
    """Sequences of token ids, or texts that have yet to be encoded, by name.

    A file holds a JSON list of ids, a list of such lists, or an object with ``input_ids``; numbers between spaces; or it
    is an .npz or .npy with ``input_ids`` (or its only array) of one or two dimensions: those are named by their order. A
    .jsonl file is one of prompts, as `ulpscope capture script` takes it, with the names that it gives.

    Raises:
        InputError: missing, too large or of another form.
    """
    place = str(file)
    if not file.is_file():
        raise InputError("no such file", place=place, remedy="check the path")
    if file.stat().st_size > _MOST:
        raise InputError("larger than 64 MiB", place=place, remedy="give token ids")
    if file.suffix == ".jsonl":
        from verify.runs.prompts import read_prompts

        return [
            (p.conversation, str(p.text) if p.token_ids is None else list(p.token_ids))
            for p in read_prompts(file)
        ]
    if file.suffix in (".npz", ".npy"):
        found: Any = _arrays(file)
    else:
        try:
            text = file.read_bytes().decode("utf-8")
            found = json.loads(text) if text.lstrip()[:1] in ("[", "{") else [int(w) for w in text.split()]
        except (ValueError, RecursionError, OSError) as error:
            raise InputError(
                f"no token ids: {str(error)[:100]}", place=place, remedy="give a JSON list, or numbers"
            ) from None
    if isinstance(found, Mapping):
        found = found.get("input_ids")
    if isinstance(found, list) and found and all(isinstance(x, list) for x in found):
        rows: list[Any] = found
    else:
        rows = [found]
    for row in rows:
        if not isinstance(row, list) or not row or not all(type(x) is int and abs(x) < 1 << 31 for x in row):
            raise InputError(
                "no list of token ids", place=place, remedy="give whole numbers, as in [504, 1463]"
            )
    return [(f"{file.stem}-{i}" if len(rows) > 1 else file.stem, row) for i, row in enumerate(rows)]


def _arrays(file: Path) -> Any:
    try:
        with file.open("rb") as stream:
            loaded = np.load(stream, allow_pickle=False)
            if isinstance(loaded, np.ndarray):
                return loaded.tolist()
            names = list(loaded)
            name = "input_ids" if "input_ids" in names else names[0] if len(names) == 1 else ""
            return loaded[name].tolist() if name else None
    except Exception as error:  # whatever a damaged archive makes NumPy raise
        raise InputError(
            f"cannot be read: {type(error).__name__}: {str(error)[:100]}",
            place=str(file),
            remedy="write it with np.savez",
        ) from None


def encode(text: str, model: Model, folder: Path | None = None) -> list[int]:
    """Token ids of ``text``; no beginning-of-sequence token is added.

    Args:
        text: what to read.
        model: whose tokenizer.
        folder: of a model in the Hugging Face format.

    Raises:
        InputError: no tokenizer. UnsupportedError: one that is not known here.
    """
    if model.tokenizer:
        return _merged(text, model.tokenizer)
    file = None if folder is None else folder / "tokenizer.json"
    if file is None or not file.is_file():
        raise InputError("the model comes without a tokenizer", place="--text", remedy="give --tokens FILE")
    try:
        tokenizers: Any = importlib.import_module("tokenizers")  # not declared: only some folders need it
    except ImportError:
        raise InputError(
            "tokenizer.json needs the package tokenizers, which is not installed",
            place="--text",
            remedy="pip install tokenizers, or give --tokens FILE",
        ) from None
    try:
        return list(tokenizers.Tokenizer.from_file(str(file)).encode(text, add_special_tokens=False).ids)
    except Exception as error:
        raise InputError(
            f"tokenizer.json: {str(error)[:120]}", place=str(file), remedy="give --tokens"
        ) from None


def _alphabet() -> list[str]:
    """The printable character that stands for each byte in a GPT-2 vocabulary."""
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    spare = iter(range(256, 512))
    return [chr(byte if byte in printable else next(spare)) for byte in range(256)]


def _merged(text: str, tokenizer: Mapping[str, Any]) -> list[int]:
    kind, pre = str(tokenizer.get("model")), str(tokenizer.get("pre", "default"))
    if kind != "gpt2" or pre not in _PRE:
        raise UnsupportedError(
            f"a tokenizer of kind '{kind}', '{pre}'",
            place="--text",
            remedy=f"GPT-2's with {', '.join(_PRE)} is done here; give --tokens FILE",
        )
    digits = r"\d" if _PRE[pre] else r" ?\d+"
    pieces = re.compile(_SPLIT.format(digits=digits))
    index = {token: number for number, token in enumerate(tokenizer["tokens"])}
    ranks = {tuple(pair.split(" ")): rank for rank, pair in enumerate(tokenizer["merges"])}
    alphabet, ids = _alphabet(), list[int]()
    known: dict[str, list[int]] = {}
    for piece in pieces.findall(text):
        if piece not in known:
            known[piece] = _pieces(piece, alphabet, ranks, index)
        ids += known[piece]
    return ids


def _pieces(
    piece: str, alphabet: list[str], ranks: Mapping[tuple[str, ...], int], index: Mapping[str, int]
) -> list[int]:
    """One piece of text by merging pairs, lowest rank first."""
    parts = [alphabet[byte] for byte in piece.encode()]
    while len(parts) > 1:
        pairs = [ranks.get(pair, 1 << 30) for pair in pairwise(parts)]
        best = min(range(len(pairs)), key=pairs.__getitem__)
        if pairs[best] == 1 << 30:
            break
        parts[best : best + 2] = [parts[best] + parts[best + 1]]
    try:
        return [index[part] for part in parts]
    except KeyError as error:
        raise InputError(
            f"the vocabulary has no {error}", place="--text", remedy="give --tokens FILE"
        ) from None
