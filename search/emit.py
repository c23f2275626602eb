"""A short script that feeds a witness to a real kernel on a user's machine.

Scripts are made by jinja2 from the templates of this package. Whatever comes from a witness is written as a literal of
Python (`literal`), never as text between: a hostile name stays a string.
"""

from __future__ import annotations

import base64
import hashlib
import math
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from search.witness import Witness, depth, read, to_bytes
from specs.errors import InputError, UnsupportedError, did_you_mean
from specs.formats import Format
from verify.numerics.rounding import round_array

if TYPE_CHECKING:
    import jinja2

Language = Literal["torch", "triton", "jax"]
#: Arrays of at most so many bytes stand in the script; larger ones are read from beside it.
EMBEDDED = 16_384
#: Kernels of the torch script: name, and the module that it needs, in the order in which they are tried.
KERNELS = (
    ("flash_attn", "flash_attn"),
    ("flash_attn3", "flash_attn_interface"),
    ("vllm_flash_attn", "vllm"),
    ("flashinfer_xqa", "flashinfer"),
    ("flashinfer_fa2", "flashinfer"),
    ("flashinfer_trtllm_gen", "flashinfer"),
    ("sdpa", "torch"),
)
#: Parts of names of specs, and the kernels that they describe.
_OF_SPECS = (
    ("flash_attn2", "flash_attn"),
    ("flash_attn3", "flash_attn3"),
    ("xqa", "flashinfer_xqa"),
    ("trtllm", "flashinfer_trtllm_gen"),
    ("flashinfer", "flashinfer_fa2"),
    ("torch_cpu", "sdpa"),
)
#: Pieces of 16-bit numbers that hold one float32 number.
_PIECES = 3
_WIDTH = 100


def emit(witness: Witness, language: str, *, name: str = "witness") -> str:
    """The text of a script.

    Args:
        witness: what to feed.
        language: ``torch``: FlashAttention, FlashInfer, vLLM or PyTorch itself; ``triton``: vLLM's Triton kernel;
            ``jax``.
        name: of the witness's files, ``NAME.safetensors``: arrays that are too large to stand in the script are
            read from beside it.

    Raises:
        InputError: another language, or no name.
        UnsupportedError: real kernels cannot be given this input exactly.
    """
    if language not in get_args(Language):
        known = get_args(Language)
        raise InputError(
            f"no scripts in '{language[:40]}'", place="--emit", remedy=did_you_mean(language, known)
        )
    space, record = witness.space, witness.record
    context = space.full_context()
    formats = witness.sides[0].program(context).inputs
    fmt = _format(formats, [s.format for s in record.sides])
    _ordinary(witness)
    scale, usual = _scale(depth(space))
    ready = space.kind == "scores"
    if ready:
        _check_scores(witness, fmt, scale)
    data = to_bytes(witness, name)[f"{name}.safetensors"]
    text = base64.b64encode(data).decode() if len(data) <= EMBEDDED else ""
    values = {
        "name": name,
        "arrays": f"{name}.safetensors",
        "sha256": hashlib.sha256(data).hexdigest(),
        "data": [text[i : i + _WIDTH] for i in range(0, len(text), _WIDTH)],
        "sides": [{"label": s.label, "words": list(s.output)} for s in record.sides],
        "tokens": space.kv_len,
        "columns": space.dims,
        "q_heads": int(context.get("q_heads", 1)),
        "kv_heads": int(context.get("kv_heads", 1)),
        "head_dim": depth(space),
        "format": fmt.base,
        "scale": scale if ready else float(depth(space)) ** -0.5,
        "usual": usual or not ready,
        "ready": ready,
        "num_splits": _splits(witness),
        "kernels": _kernels([s.spec.name for s in witness.sides]),
    }
    return _environment().get_template(f"{language}.py.j2").render(values)


def emit_file(path: str | Path, language: str) -> str:
    """`emit` of a witness on disk, whose arrays the script reads from beside it where they are large.

    Raises:
        as `emit` and `search.witness.read`.
    """
    given = Path(path)
    stem = given.stem if given.suffix in (".json", ".safetensors") else given.name
    return emit(read(given), language, name=stem)


def literal(value: Any) -> str:
    """A plain value as a literal of Python in ASCII, strings in double quotes.

    Raises:
        TypeError: it is something else.
    """
    if isinstance(value, str):
        inner = ascii(value)[1:-1]
        if not ascii(value).startswith('"'):
            inner = inner.replace("\\'", "'").replace('"', '\\"')
        return f'"{inner}"'
    if isinstance(value, list | tuple):
        return f"[{', '.join(literal(x) for x in value)}]"
    if value is None or isinstance(value, bool | int) or (isinstance(value, float) and math.isfinite(value)):
        return repr(value)
    raise TypeError(f"no literal of {type(value).__name__}")


def _format(formats: Mapping[str, Format], outputs: list[str]) -> Format:
    """The one format of q, k, v and the outputs."""
    bases = {formats[n].base for n in ("q", "k", "v") if n in formats} | {o.split(".")[0] for o in outputs}
    if len(bases) != 1 or not bases <= {"bf16", "f16"}:
        raise UnsupportedError(
            f"inputs and outputs in {', '.join(sorted(bases))}",
            place="--emit",
            remedy="scripts are written for bf16 throughout, or f16 throughout",
        )
    return formats["v"]


def _ordinary(witness: Witness) -> None:
    """Refuse what the calls in the templates do not pass on."""
    context = dict(witness.record.space.context)
    for side in witness.record.sides:
        context |= side.context
    asked = [n for n in ("has_sinks", "has_alibi", "has_softcap") if context.get(n)]
    asked += [n for n in ("batch", "q_len") if context.get(n, 1) != 1]
    asked += ["window"] if witness.space.first else []
    if asked:
        raise UnsupportedError(
            f"{asked[0]} = {context[asked[0]]}",
            place="--emit",
            remedy="scripts are written for one query token of one sequence, and for plain attention",
        )


def _splits(witness: Witness) -> int:
    """The split count that callers are to give: that of the sides, where they have one in common; else 0."""
    shared = dict(witness.record.space.context)
    given = {{**shared, **side.context}.get("num_splits", 0) for side in witness.record.sides}
    only = given.pop() if len(given) == 1 else 0
    return only if isinstance(only, int) else 0


def _scale(length: int) -> tuple[float, bool]:
    """The softmax scale that a script uses, a power of two; and whether it is ``head_dim ** -0.5``."""
    if length < max(_PIECES, 8):
        raise UnsupportedError(
            f"heads of {length} elements",
            place="--emit",
            remedy="give the context of a real model, such as head_dim = 64",
        )
    usual = float(length) ** -0.5
    scale = 2.0 ** math.floor(math.log2(usual))
    return scale, scale == usual


def _check_scores(witness: Witness, fmt: Format, scale: float) -> None:
    """Refuse scores that three numbers of the format do not hold exactly."""
    scores = witness.arrays["scores"].astype(np.float64)
    if not np.isfinite(scores).all():
        raise UnsupportedError(
            "tokens are masked by a score of -inf, which is no product of q and k",
            place="--emit",
            remedy="search without masks",
        )
    rest = scores / scale
    for _ in range(_PIECES):
        if fmt.base == "bf16":
            wide = rest.astype(np.float32)
            piece = (wide.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32).astype(np.float64)
        else:
            piece = round_array(rest, fmt)
        rest = rest - piece
    if not (rest == 0).all():
        raise UnsupportedError(
            f"{int((rest != 0).sum())} scores are no sums of three numbers of {fmt}",
            place="--emit",
            remedy="their magnitudes are too small or too large: round them, or use --space qkv",
        )


def _kernels(names: list[str]) -> list[tuple[str, str]]:
    """The kernels, first those that the specs describe."""
    first = [kernel for part, kernel in _OF_SPECS if any(part in name for name in names)]
    return sorted(KERNELS, key=lambda k: k[0] not in first)


@cache
def _environment() -> jinja2.Environment:
    import jinja2

    # No markup: every value that is not a number of this module's own goes through py.
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(lambda name: (files("search") / "templates" / name).read_text("utf-8")),
        autoescape=False,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["py"] = literal
    return environment
