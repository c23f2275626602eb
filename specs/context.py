"""What a formula may know: the shape, the platform and how the engine was asked to run.

`CONTEXT` is the whole list, with defaults; a name that is neither here nor in the spec is an error.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from specs.errors import InputError, did_you_mean

Value = int | str
Context = dict[str, Any]
MAX_TOKENS = 1 << 24
MAX_BATCH = 1 << 16
MAX_INT = 1 << 40
#: Classes of CPU: the maker whose code MKL takes, and the widest vector instructions; ``none`` on GPUs.
CPU_CLASSES = (
    "none",
    *(f"{maker}{isa}" for maker in ("amd", "intel") for isa in ("", "_avx2", "_avx512", "_amx")),
)


@dataclass(frozen=True, slots=True)
class Variable:
    """A name of the context. ``default`` is a value, the name of another variable, or None (must be given).

    ``words`` are those that a word may be.
    """

    doc: str
    default: Value | None = None
    low: int = 0
    high: int = MAX_INT
    words: tuple[str, ...] = ()


class PlatformWord(str):
    """A word of a platform's file, which may describe a CPU that is not in `CPU_CLASSES`: taken as it is."""

    __slots__ = ()


CONTEXT: dict[str, Variable] = {
    "batch": Variable("sequences in the batch", 1, low=1),
    "q_heads": Variable("query heads", 1, low=1),
    "kv_heads": Variable("key/value heads", 1, low=1),
    "q_len": Variable("query tokens of this sequence", 1, high=MAX_TOKENS),
    "kv_len": Variable("key/value tokens of this sequence", None, high=MAX_TOKENS),
    "head_dim": Variable("elements of one head", 1, low=1, high=1 << 16),
    "max_kv_len": Variable("largest kv_len of the batch", "kv_len", high=MAX_TOKENS),
    "kv_capacity": Variable("tokens the page table has room for", "kv_len", high=MAX_TOKENS),
    "page_size": Variable("tokens per page of the KV cache", 16, low=1),
    "element_bytes": Variable("bytes of one element of K and V", 2, low=1, high=8),
    "window": Variable("sliding window in tokens; 0: none", 0, high=MAX_TOKENS),
    "causal": Variable("1: a query sees no later token", 0, high=1),
    "has_sinks": Variable("1: each query head has the logit of a sink", 0, high=1),
    "has_alibi": Variable("1: each query head has a slope of ALiBi", 0, high=1),
    "has_softcap": Variable("1: scores are capped", 0, high=1),
    "cuda_graph": Variable("1: captured in a CUDA graph", 0, high=1),
    "batch_invariant": Variable(
        "1: VLLM_BATCH_INVARIANT, results that do not depend on the batch", 0, high=1
    ),
    "num_splits": Variable("split count given by the caller; 0: the kernel's own rule", 0, high=1 << 16),
    "sm_count": Variable("streaming multiprocessors of the GPU", None, low=1, high=1 << 16),
    "compute_capability": Variable("90 for Hopper, 100 for B200, 120 for SM120", None, high=1000),
    "cpu": Variable(
        "class of the CPU that the kernel runs on, as its platform names it", "'none'", words=CPU_CLASSES
    ),
    "torch_version": Variable("version of PyTorch, 21300 for 2.13.0", 21300),
    "triton_version": Variable("version of the Triton compiler, 308 for 3.8", 308),
    "vllm_version": Variable("version of vLLM, 3300 for 0.33.0", 3300),
    "flashinfer_version": Variable("version of FlashInfer, 702 for 0.7.2", 702),
    "fork": Variable("which fork of the kernel: 'dao' or 'vllm'", "'dao'", words=("dao", "vllm")),
}
#: The lengths of the whole batch, a tuple, which only partition rules take: see `batch_lengths`.
LENGTHS = "kv_lens"
NAMES = (*CONTEXT, LENGTHS)
#: Names that a platform fixes. Commands name a platform and refuse them beside it; a program may give others.
OF_PLATFORM = ("sm_count", "compute_capability", "cpu")

#: Words that `bind` adds: the formats in which the inputs come, such as ``'bf16'``.
INPUT_FORMATS = ("q_format", "k_format", "v_format")


def refuse_platform(given: Iterable[str], *, place: str) -> None:
    """Refuse names that the platform fixes, where a platform is named as well.

    Raises:
        InputError: the first of them.
    """
    for name in given:
        if name in OF_PLATFORM:
            raise InputError(
                f"{name} is fixed by the platform",
                place=place,
                remedy="choose another platform, or the path of a copy of its file with other values",
            )


def make_context(given: Mapping[str, object], *, place: str = "context") -> Context:
    """Check ``given`` and fill in defaults.

    Returns:
        every name of `CONTEXT` with an integer or a word; ``kv_lens``, if it is given, with a tuple.

    Raises:
        InputError: unknown name or word, wrong type, out of range, or a required name is missing.
    """
    for name in given:
        if name not in NAMES:
            raise InputError(f"unknown name '{name}'", place=place, remedy=did_you_mean(name, NAMES))
    lengths = _lengths(given.get(LENGTHS), place)
    if lengths is not None:
        longest = max(lengths)
        given = {"batch": len(lengths), "max_kv_len": longest, "kv_capacity": longest, **_set(given)}
    values: Context = {}
    for name, variable in CONTEXT.items():
        value = given.get(name)
        if value is None:
            default = variable.default
            if default is None:
                raise InputError(f"{name} is not given", place=place, remedy=f"give {name}: {variable.doc}")
            if isinstance(default, str) and not default.startswith("'"):
                value = values[default]
            else:
                value = default.strip("'") if isinstance(default, str) else default
        values[name] = _checked(name, variable, value, place)
    if values["q_heads"] % values["kv_heads"]:
        raise InputError(
            f"q_heads = {values['q_heads']} is not a multiple of kv_heads = {values['kv_heads']}",
            place=place,
            remedy="grouped-query attention gives every KV head the same number of query heads",
        )
    for name in ("max_kv_len", "kv_capacity"):
        if values[name] < values["kv_len"]:
            raise InputError(
                f"{name} = {values[name]} is less than kv_len = {values['kv_len']}",
                place=place,
                remedy=f"{name} is {CONTEXT[name].doc}",
            )
    if lengths is not None:
        batch, kv_len, longest = values["batch"], values["kv_len"], values["max_kv_len"]
        if len(lengths) != batch or kv_len not in lengths or max(lengths) > longest:
            raise InputError(
                f"kv_lens holds {len(lengths)} lengths up to {max(lengths)}, but batch = {batch}, kv_len = {kv_len} "
                f"and max_kv_len = {longest}",
                place=place,
                remedy="kv_lens is the length of each sequence of the batch, this one among them",
            )
        values[LENGTHS] = lengths
    return values


def batch_lengths(context: Mapping[str, Any]) -> tuple[int, ...]:
    """The length of each sequence of the batch: ``kv_lens``, else ``kv_len`` for all.

    Empty where neither is known: a batch of more than `MAX_BATCH` sequences.
    """
    if LENGTHS in context:
        return context[LENGTHS]
    batch = int(context["batch"])
    return (int(context["kv_len"]),) * batch if batch <= MAX_BATCH else ()


def _set(given: Mapping[str, object]) -> dict[str, object]:
    return {name: value for name, value in given.items() if value is not None}


def _lengths(given: Any, place: str) -> tuple[int, ...] | None:
    """``kv_lens`` as a tuple.

    Raises:
        InputError: not a sequence of lengths, or an empty or an endless one.
    """
    if given is None:
        return None
    if isinstance(given, str) or not (isinstance(given, Sequence) or hasattr(given, "tolist")):
        raise InputError(f"kv_lens = {given!r} is not a list", place=place, remedy="give a list of integers")
    if not 1 <= len(given) <= MAX_BATCH:
        raise InputError(
            f"kv_lens holds {len(given)} lengths", place=place, remedy=f"give 1 to {MAX_BATCH} lengths"
        )
    each = Variable("a list of lengths in tokens", high=MAX_TOKENS)
    return tuple(int(_checked(LENGTHS, each, n, place)) for n in given)


def _checked(name: str, variable: Variable, value: object, place: str) -> Value:
    if isinstance(variable.default, str) and variable.default.startswith("'"):
        if not isinstance(value, str):
            raise InputError(f"{name} = {value!r} is not a word", place=place, remedy=variable.doc)
        if value not in variable.words and not isinstance(value, PlatformWord):
            raise InputError(
                f"{name} = '{value[:40]}' is unknown", place=place, remedy=did_you_mean(value, variable.words)
            )
        return str(value)
    if isinstance(value, bool):
        value = int(value)
    try:
        number = int(value.__index__())  # pyright: ignore[reportAttributeAccessIssue]
    except (AttributeError, TypeError):
        raise InputError(
            f"{name} = {value!r} is not an integer", place=place, remedy=f"{name} is {variable.doc}"
        ) from None
    if not variable.low <= number <= variable.high:
        raise InputError(
            f"{name} = {number} is out of range {variable.low}..{variable.high}",
            place=place,
            remedy=f"{name} is {variable.doc}",
        )
    return number
