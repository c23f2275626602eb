"""Every line of the FlashAttention-2 and Triton specs matters, those of their variants too.

A change of a line must show: of a number in a bit of the output, of the value before its last rounding or of the
log-sum-exp, judged by the oracle on small inputs; of an integer or a level in the partition or in the bound lines.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from specs import Spec, UnsupportedError, load_platform, load_spec
from specs.context import make_context
from specs.errors import InputError, Place, SpecError
from specs.grammar import parse_expr
from specs.integers import evaluate
from tests.verify.mutation import Asked, Mutant, answers, differ, lines, mutants, mutated, sampled
from verify.partition import plan

Line = tuple[int | None, str, str]
"""The number of a variant, or None; the table and the name of a line."""
Probe = tuple[str, dict[str, Any]]
"""A platform and arguments of `emulate`."""

SHAPE: dict[str, Any] = {"q_heads": 8, "kv_heads": 2}
RNG = np.random.default_rng(11)


def scored(gpu: str, n: int, context: dict[str, Any], shift: int = 0, rows: int = 1, **more: Any) -> Probe:
    """Ready scores about ``shift``."""
    scores = RNG.normal(shift, 2, (rows, n)).astype(np.float32)
    values = RNG.normal(0, 1, (n, 2)).astype(ml_dtypes.bfloat16)
    return gpu, {"scores": scores, "values": values, "context": {**SHAPE, **context}, **more}


def deep(gpu: str, context: dict[str, Any]) -> Probe:
    """Weights that are subnormal, and values so large that they count."""
    scores = np.array([[0, -88, -89, -90, -91]], np.float32)
    return gpu, {
        "scores": scores,
        "values": np.array([[0], *[[2.0**100]] * 4]),
        "context": {**SHAPE, **context},
    }


def masked(probe: Probe, first: int, last: int) -> Probe:
    """The same with tokens that the row does not see, and a second row that sees none."""
    gpu, arguments = probe
    scores = np.concatenate([arguments["scores"], np.full_like(arguments["scores"], -np.inf)])
    scores[0, first:last] = -np.inf
    return gpu, {**arguments, "scores": scores}


def drawn(
    n: int, context: dict[str, Any], q_len: int = 1, fmt: Any = None, kv: Any = None, **more: Any
) -> Probe:
    """Queries, keys and values of one head of 64 elements; f64 unless a format is given."""
    q, k, v = (RNG.normal(0, 1, s) for s in ((q_len, 1, 64), (n, 1, 64), (n, 1, 2)))
    if fmt is not None:
        q, k, v = q.astype(fmt), k.astype(kv or fmt), v.astype(kv or fmt)
    return "h200", {"q": q, "k": k, "v": v, "scale": 0.25, "context": {"head_dim": 64, **context}, **more}


WIDE: dict[str, Any] = {"head_dim": 256}
D128: dict[str, Any] = {"head_dim": 128}
SLOPE = np.array([0.3], np.float32)
KVCACHE: dict[str, Any] = {"options": {"kvcache": True}}
FEATURES = (("sinks", "sinks"), ("alibi", "alibi_slopes"), ("softcap", "softcap"))
FORMATS = {"float16": "f16", "float8_e4m3fn": "e4m3fn"}
F16, E4M3 = np.float16, ml_dtypes.float8_e4m3fn
PROBES: dict[str, list[Probe]] = {
    "flash_attn2.splitkv_decode": [
        scored("h200", 70, {**WIDE, "num_splits": 2}, rows=6),
        scored("h200", 581, {**WIDE, "num_splits": 3}),
        deep("h200", {**WIDE, "num_splits": 1}),
        drawn(33, {}),
        drawn(20, {}, fmt=F16),
        drawn(20, {"window": 9}, fmt=F16),
        drawn(20, {}, alibi_slopes=SLOPE),
        drawn(20, {}, q_len=2, causal=True, alibi_slopes=SLOPE),
        masked(scored("h200", 300, {**WIDE, "num_splits": 2, "window": 900}, **KVCACHE), 100, 300),
        scored("h200", 100, {**WIDE, "num_splits": 3, "fork": "dao", "kv_capacity": 700}, **KVCACHE),
    ],
    "flash_attn2.prefill": [
        scored("h200", 70, WIDE),
        scored("h200", 261, WIDE),
        deep("h200", WIDE),
        drawn(33, {}),
        drawn(20, {}, fmt=F16),
        drawn(20, {"window": 9}, fmt=F16),
        drawn(20, {}, alibi_slopes=SLOPE),
        drawn(20, {}, q_len=2, causal=True, alibi_slopes=SLOPE),
        masked(scored("h200", 200, {**WIDE, "window": 900}), 100, 200),
    ],
    "vllm_triton.decode_3d": [
        scored("h200", 40, D128),
        scored("h200", 270, D128),
        deep("h200", D128),
        drawn(33, {}),
        drawn(20, {}, fmt=F16),
        drawn(20, {}, fmt=ml_dtypes.bfloat16, kv=E4M3, k_scale=0.7, v_scale=1.3),
        drawn(20, {}, fmt=F16, kv=E4M3, k_scale=0.7, v_scale=1.3),
        drawn(20, {}, alibi_slopes=SLOPE, softcap=2.0, sinks=SLOPE),
        drawn(20, {}, alibi_slopes=SLOPE),
        drawn(20, {}, softcap=2.0),
        masked(scored("h200", 761, D128), 50, 400),
        scored("h200", 761, D128),
        masked(scored("h200", 161, {**D128, "vllm_version": 3100}), 0, 30),
        masked(scored("h200", 161, {**D128, "vllm_version": 1300}), 0, 30),
        scored("h200", 200, {**D128, "triton_version": 307}),
        scored("h200", 200, {"head_dim": 64, "triton_version": 307}),
        scored("h200", 200, {"head_dim": 64}),
        scored("b200", 200, D128),
        scored("b200", 250, {**D128, "triton_version": 307}),
        scored("b200", 250, {**WIDE, "triton_version": 307}),
        scored("sm120", 1000, {**D128, "triton_version": 307}),
    ],
    "vllm_triton.decode_2d": [
        scored("h200", 40, D128),
        scored("h200", 101, D128),
        deep("h200", D128),
        drawn(33, {}),
        drawn(20, {}, fmt=F16),
        drawn(20, {}, alibi_slopes=SLOPE, softcap=2.0, sinks=SLOPE),
        drawn(20, {}, alibi_slopes=SLOPE),
        drawn(20, {}, softcap=2.0),
        masked(scored("h200", 161, {**D128, "vllm_version": 3100}, shift=-30), 0, 40),
        scored("h200", 161, {**D128, "vllm_version": 3100, "window": 65}, shift=-30),
        masked(scored("h200", 161, D128), 0, 40),
        scored("b200", 300, {**WIDE, "q_len": 2}),
        scored("b200", 300, {**WIDE, "q_len": 2, "triton_version": 307}),
    ],
}
CONTEXTS: dict[str, list[dict[str, Any]]] = {
    "flash_attn2": [
        {
            "head_dim": d,
            "num_splits": s,
            "q_len": q,
            "q_heads": h,
            "kv_heads": 4,
            "kv_len": n,
            "causal": c,
            **more,
        }
        for d in (32, 64, 96, 128, 192, 256)
        for s, q, h, n, c, more in (
            (0, 1, 24, 9_000, 0, {"fork": "vllm", "max_kv_len": 20_000}),
            (0, 1, 280, 5_000, 0, {"cuda_graph": 1, "kv_capacity": 30_000}),
            (1, 3, 24, 900, 1, {"compute_capability": 89}),
            (9, 1, 24, 700, 0, {}),
            (0, 130, 24, 900, 0, {"batch": 2, "compute_capability": 89, "window": 64}),
            (0, 1, 24, 700, 1, {"has_alibi": 1}),
        )
    ],
    "vllm_triton": [
        {"head_dim": d, "q_heads": 16, "kv_heads": 4, "kv_len": n, "triton_version": 307, **more}
        for d in (64, 128, 256)
        for n, more in (
            (1_000, {}),
            (5_000, {"window": 1024, "causal": 1, "q_len": 3}),
            (700, {"compute_capability": 120, "batch": 2}),
            (700, {"compute_capability": 120, "batch": 3}),
            (700, {"compute_capability": 100, "causal": 1, "q_len": 2}),
            (700, {"vllm_version": 1200, "batch": 26}),
            (700, {"vllm_version": 1200, "batch": 25, "window": 1024}),
            (700, {"batch": 33}),
            (700, {"batch": 32, "vllm_version": 3000}),
            (700, {"q_len": 9, "causal": 1, "batch": 3}),
            (700, {"vllm_version": 3000, "q_len": 5, "causal": 1, "window": 40}),
        )
    ],
}


def every_line(spec: Spec) -> Iterator[Line]:
    """The lines of the file but for options, and those of each variant."""
    yield from ((None, table, name) for table, name in lines(spec) if table != "options")
    for i, variant in enumerate(spec.file.variants):
        for table in ("let", "constants", "levels"):
            yield from ((i, table, name) for name in getattr(variant, table))
        for scope, states in variant.state.items():
            yield from ((i, f"state.{scope}", name) for name in states)
        for section, sites in variant.sections.items():
            yield from ((i, section, name) for name in sites)


def changes(spec: Spec, line: Line) -> Iterator[Mutant]:
    """The changes of `mutation`, and some that it does not have; those that mostly show come first."""
    number, table, name = line
    there = spec if number is None else spec.with_variant(number)
    if table != "numbers":
        text = there.text(table, name)
        if text.startswith("bits("):
            yield "one more", f"bits({int(text[5:-1], 16) + 1:#010x})"
        elif text.startswith("view("):
            yield "other view", re.sub(r"pos\((\w+)\)( // 2)?", r"pos(\1) // 4", text)
        elif text.startswith(("bf16(", "f16(")):
            yield "twice", f"{text[:-1]} * 2)"
        elif table.startswith("state."):
            yield "more", f"({text}) + 1"
        elif table == "let":
            yield "more", f"({text}) * 2 + 1"
        elif table not in ("levels", "constants"):
            yield "negated", f"not ({text})"
    yield from list(mutants(there, table, name))[::-1]


def changed(spec: Spec, line: Line, text: str) -> Spec:
    """``spec`` with another text on one line of the file or of a variant."""
    number, table, name = line
    if number is None:
        return mutated(spec, table, name, text)
    variant = spec.file.variants[number]
    outer, _, inner = table.partition(".")
    if outer in ("let", "constants", "levels"):
        update: dict[str, Any] = {outer: {**getattr(variant, outer), name: text}}
    elif outer == "state":
        update = {"state": {**variant.state, inner: {**variant.state[inner], name: text}}}
    else:
        update = {"sections": {**variant.sections, table: {**variant.sections[table], name: text}}}
    variants = list(spec.file.variants)
    variants[number] = variant.model_copy(update=update)
    return dataclasses.replace(spec, file=spec.file.model_copy(update={"variants": tuple(variants)}))


def answer(spec: Spec, probe: Probe) -> Iterator[tuple[Any, ...]]:
    """The bits of output, of the value before its last rounding and of lse, by the oracle, row by row."""
    gpu, arguments = probe
    return answers(spec, load_platform(gpu), arguments, ("output", "exact", "lse"))


@lru_cache
def before(name: str, number: int) -> list[tuple[Any, ...]]:
    return list(answer(load_spec(name), PROBES[name][number]))


@lru_cache
def numbers(name: str) -> Asked[int]:
    """The numbers of the probes of a spec."""
    return Asked(range(len(PROBES[name])))


@lru_cache
def decided(name: str, number: int) -> dict[str, Any]:
    """Every word that a ``when`` may ask for, as a probe has it."""
    gpu, arguments = PROBES[name][number]
    given = dict(arguments)
    context = {**given.pop("context"), **{f"has_{x}": int(y in given) for x, y in FEATURES}}
    shape = {
        "kv_len": len(given["k"] if "k" in given else given["values"]),
        "q_len": len(given.get("q", [0])),
        **context,
    }
    words = {f"{x}_format": FORMATS.get(given[x].dtype.name, "bf16") if x in given else "bf16" for x in "qkv"}
    device = load_platform(gpu)
    shape |= {"compute_capability": device.compute_capability, "sm_count": device.sm_count}
    shape["causal"] = int(given.get("causal", False))
    values = make_context(shape)
    program = plan(
        load_spec(name),
        device,
        options=given.get("options"),
        **{k: v for k, v in shape.items() if k not in ("compute_capability", "sm_count")},
    ).program
    return {**values, **program.integers, **words, "fp8": int(words["k_format"] == "e4m3fn")}


def applies(name: str, line: Line, number: int) -> bool:
    """Whether the variant of a line is in force for a probe."""
    variant = line[0]
    if variant is None:
        return True
    when = load_spec(name).file.variants[variant].when
    return bool(evaluate(parse_expr(when), decided(name, number), Place(when)))


def bound(spec: Spec, context: dict[str, Any]) -> Any:
    """What a context makes of a spec: the partition and every line, or that it is refused."""
    gpu: dict[str, Any] = {"compute_capability": 90, "sm_count": 132, **context}
    try:
        p = plan(spec, load_platform("h200"), **gpu)
    except UnsupportedError:
        return "refused"
    sites = tuple((s.name, s.expr) for s in p.program.sites.values())
    views = tuple(p.program.views.values())
    return p.tokens.shape, p.tokens.tobytes(), *(e.tobytes() for e in p.exists.values()), views, sites


@lru_cache
def bound_before(name: str, number: int) -> Any:
    return bound(load_spec(name), CONTEXTS[name.partition(".")[0]][number])


def shows(name: str, line: Line, text: str) -> bool:
    """Whether a change shows."""
    other = changed(load_spec(name), line, text)
    if line[1] in ("let", "levels"):
        contexts = CONTEXTS[name.partition(".")[0]]
        return any(
            gives(lambda c=c, i=i: bound(other, c) != bound_before(name, i)) for i, c in enumerate(contexts)
        )
    return numbers(name).any(lambda i: applies(name, line, i) and answers_otherwise(other, name, i))


def answers_otherwise(other: Spec, name: str, number: int) -> bool:
    """Whether another spec answers a probe otherwise."""
    return gives(lambda: differ(answer(other, PROBES[name][number]), before(name, number)))


def gives(what: Callable[[], bool]) -> bool:
    """What a spec gives; one that is no spec, or is refused, gives nothing."""
    try:
        return what()
    except (SpecError, InputError, UnsupportedError):
        return False


LINES = [
    (name, line)
    for name in PROBES
    for line in every_line(load_spec(name))
    if line[2] not in load_spec(name).file.faults  # conditions that results quote; no number depends on them
]


ALIKE = (
    "flash_attn2.prefill",
    "vllm_triton.decode_2d",
)  # line for line like the others, and tested on demand


@pytest.mark.parametrize(
    ("name", "line"),
    [
        pytest.param(
            n,
            x,
            id=f"{n}:{'' if x[0] is None else x[0]}:{x[1]}:{x[2]}",
            marks=[pytest.mark.slow] if n in ALIKE or not sampled(n, *x) else [],
        )
        for n, x in LINES
    ],
)
def test_a_change_of_each_line_shows(name: str, line: Line) -> None:
    """A quarter of the lines by default, the same ones each time; all of them on demand."""
    found = list(changes(load_spec(name), line))
    assert any(shows(name, line, text) for _, text in found), "no change of this line shows"
