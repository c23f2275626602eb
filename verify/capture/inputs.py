"""The fixed inputs of a capture, each made again from its name alone: kind, seed and shape.

Kinds: ``random`` normal numbers; ``sharp`` queries ten times as long, so that few tokens carry the weight;
``spread`` rows of V that differ by up to 2**11, so that the order of additions shows; ``cancel`` rows of V in pairs
of opposite sign up to 2**14, whose sums cancel; ``rising`` keys that grow along the sequence, so that the maximum
moves in every tile; ``low`` logits near -1.3e5, below the floor of some kernels; ``tiny`` V near the smallest
normal number; ``teaching`` a period of twelve tokens under a staircase, whose exact answer is known.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from specs.errors import InputError
from verify.capture.format import Capture, array_info
from verify.capture.manifest import InputInfo, Recipe
from verify.case import Case

Arrays = dict[str, NDArray[Any]]
DTYPES: dict[str, Any] = {"bf16": ml_dtypes.bfloat16, "f16": np.float16}
ADVERSARIAL = ("sharp", "spread", "cancel", "rising", "tiny")
SCORES = (0.5, 1.0, 0.75, -2.0, -1.25, -0.75, -0.5, -3.0, -0.25, -2.25, 0.75, 0.5)
VALUES = (1.875, 3.5, -0.5, 6.0, 0.0, -1.0, 5.5, -0.5, -3.5, 0.5, 4.0, -2.5)
_MOST = 1 << 26
"""Numbers that one input may have: a hostile recipe must not take all memory."""


def recipe(
    kind: str,
    kv_len: int,
    *,
    q_len: int = 1,
    q_heads: int = 8,
    kv_heads: int = 2,
    head_dim: int = 128,
    **more: Any,
) -> Recipe:
    """A recipe; ``seed`` (0) and ``dtype`` (bf16) may be given, too."""
    sizes = {"q_len": q_len, "kv_len": kv_len, "q_heads": q_heads, "kv_heads": kv_heads, "head_dim": head_dim}
    return Recipe.model_validate({"kind": kind, "seed": 0, "dtype": "bf16", **sizes, **more})


def name_of(r: Recipe, causal: bool) -> str:
    """The name of an input: what it is and its shape."""
    mask = "-causal" if causal else ""
    return f"{r.kind}-q{r.q_len}-n{r.kv_len}-h{r.q_heads}-{r.kv_heads}-d{r.head_dim}-{r.dtype}-seed{r.seed}{mask}"


def make(r: Recipe) -> Arrays:
    """``q [q_len, q_heads, head_dim]``, ``k, v [kv_len, kv_heads, head_dim]`` of a recipe.

    Raises:
        InputError: it would have too many numbers.
    """
    if max(r.kv_len * r.kv_heads, r.q_len * r.q_heads) * r.head_dim > _MOST:
        raise InputError(f"has more than {_MOST:,} numbers", place="recipe", remedy="embed larger inputs")
    kind = DTYPES[r.dtype]
    rng = np.random.default_rng([r.seed, r.q_len, r.kv_len, r.q_heads, r.kv_heads, r.head_dim])
    q = rng.standard_normal((r.q_len, r.q_heads, r.head_dim))
    k = rng.standard_normal((r.kv_len, r.kv_heads, r.head_dim))
    v = rng.standard_normal((r.kv_len, r.kv_heads, r.head_dim))
    if r.kind == "sharp":
        q *= 10.0
    elif r.kind == "spread":
        v *= 2.0 ** rng.integers(0, 12, (r.kv_len, r.kv_heads, 1))
    elif r.kind == "cancel":
        v[1::2] = -v[: r.kv_len // 2 * 2 : 2]
        v *= 2.0 ** rng.integers(0, 15, (r.kv_len, r.kv_heads, 1))
    elif r.kind == "rising":
        k *= np.linspace(0.1, 4.0, max(r.kv_len, 1))[: r.kv_len, None, None]
    elif r.kind == "low":
        q, k = np.abs(q) + 64.0, -np.abs(k) - 256.0
    elif r.kind == "tiny":
        v *= 2.0**-126 if r.dtype == "bf16" else 2.0**-14
    elif r.kind == "teaching":
        q, k, v = _teaching(r)
    return {name: x.astype(np.float32).astype(kind) for name, x in (("q", q), ("k", k), ("v", v))}


def _teaching(r: Recipe) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Scores ``S[t % 12] + ((t // 64) % 9) / 8`` from one element of q and k, values ``V[t % 12]`` in every column."""
    token = np.arange(r.kv_len)
    q, k = np.zeros((r.q_len, r.q_heads, r.head_dim)), np.zeros((r.kv_len, r.kv_heads, r.head_dim))
    q[..., 0] = r.head_dim**0.5
    k[..., 0] = (np.asarray(SCORES)[token % 12] + (token // 64 % 9) / 8)[:, None]
    v = np.broadcast_to(np.asarray(VALUES)[token % 12][:, None, None], k.shape)
    return q, k, v


def info_of(arrays: Mapping[str, NDArray[Any]], scale: float, causal: bool, **more: Any) -> InputInfo:
    """What a manifest says of an input."""
    infos = {name: array_info(array) for name, array in arrays.items()}
    fields = {"embedded": False, **more, "scale": scale, "causal": causal, "arrays": infos}
    return InputInfo.model_validate(fields)


def load(capture: Capture, name: str) -> Case:
    """An input of a capture: from the file, or made again and compared with its sha256.

    Raises:
        InputError: it is not in the manifest, or what is made is not what was captured.
    """
    info = capture.manifest.inputs.get(name)
    place = f"{capture.path}: input '{name}'"
    if info is None:
        raise InputError("is not in the manifest", place=place, remedy="make the capture again")
    if set(info.arrays) != {"q", "k", "v"}:
        held = ", ".join(info.arrays) or "nothing"
        raise InputError(f"holds {held}", place=place, remedy="an input is q, k and v")
    if info.embedded:
        arrays = capture.arrays(f"inputs/{name}")
    elif info.recipe is None:
        raise InputError(
            "is neither embedded nor made from a recipe", place=place, remedy="make the capture again"
        )
    else:
        arrays = make(info.recipe)
        changed = [n for n, a in arrays.items() if array_info(a) != info.arrays[n]]
        if changed:
            raise InputError(
                f"this NumPy ({np.__version__}) makes another {', '.join(changed)} than was captured",
                place=place,
                remedy="capture with --embed, which stores the inputs",
            )
    return Case(name=name, arrays=arrays, scale=info.scale, causal=info.causal)


def around(*boundaries: int, least: int = 1) -> tuple[int, ...]:
    """Each boundary, one token less and one more."""
    return tuple(sorted({n for b in boundaries for n in (b - 1, b, b + 1) if n >= least}))


def from_case(case: Case) -> tuple[Arrays, float, bool]:
    """q, k and v of a user's input, for capturing kernels on the tensors of a model.

    Raises:
        InputError: it holds ready scores, or formats that no kernel takes.
    """
    if set(case.arrays) != {"q", "k", "v"}:
        raise InputError("holds no q, k and v", place=case.name, remedy="kernels take q, k and v")
    arrays = {n: np.asarray(case.arrays[n]) for n in ("q", "k", "v")}
    kinds: Sequence[Any] = [np.dtype(kind) for kind in DTYPES.values()]
    if any(a.dtype not in kinds for a in arrays.values()):
        held = ", ".join(sorted({str(a.dtype) for a in arrays.values()}))
        raise InputError(
            f"is {held}", place=case.name, remedy="give bfloat16 or float16, as the kernels take them"
        )
    q = arrays["q"]
    arrays["q"] = q[None] if q.ndim == 2 else q
    scale = float(q.shape[-1]) ** -0.5 if case.scale is None else float(case.scale)
    return arrays, scale, case.causal
