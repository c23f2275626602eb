"""Every line of every spec matters: a small change to it changes a bit of output or lse, or the partition.

The changes are made by `mutation` without knowing the spec, judged by the oracle on the inputs of `probes`. All
of them must show, but for those listed here with the reason why they cannot.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import numpy as np
import pytest

from specs import Spec, UnsupportedError, load_spec
from specs.bind import bind
from specs.context import make_context
from specs.errors import SpecError
from tests.verify.mutation import Asked, differ, lines, mutants, mutated, sampled
from tests.verify.probes import TOKENS, Probe, answer, probes
from verify.partition import plan_program
from verify.traffic import Layer, tile_count

LINES = [(name, *line) for name in TOKENS for line in lines(load_spec(name))]
#: Specs of which every line is changed by default: one of each arithmetic (f64, f32), whole rows and groups.
WHOLE = ("walkthrough.dense", "walkthrough.triton")
#: Every line of those, and of the others the lines that are `sampled`.
MARKED = [
    pytest.param(*x, id=":".join(x), marks=() if x[0] in WHOLE or sampled(*x) else pytest.mark.slow)
    for x in LINES
]

EXACT_PRODUCTS = "a product of two bf16 values is exact in f32, so that fusing it changes nothing"
FINITE = "any finite number does: the weights of a masked group are exp(-inf - it) = 0"
ROUNDED_NEXT = "output rounds to bf16 anyway"
KILLED = "multiplied by alpha = exp(-inf) = 0 in the first step; without a step the guard on the sum gives 0"
NO_WEIGHT = "its weight is 0"
NEVER_ABOVE = (
    "a group without tokens is not visited, so more groups than the cache has tiles are the same groups"
)
MASKED = "a segment that is all masked has norm = 0 and top = -inf: one of the two tests would do"

#: (spec, line, start of the label of the change, why it changes no bit). Patterns, first match from the start.
EQUIVALENT = [
    (r"walkthrough\.(triton|flash|trtllm|xqa)", "score", "fused: ", EXACT_PRODUCTS),
    (r"walkthrough\.(triton|flash|xqa)", "value", "fused: ", EXACT_PRODUCTS),
    (r"walkthrough\.trtllm", "partial", "fused: ", EXACT_PRODUCTS),
    ("", "(safe|most_safe|m_safe)", "one more: select.*, 1", FINITE),
    ("", "exact", "round: ", ROUNDED_NEXT),
    (r"walkthrough\.(flash|xqa)", "partial", "one more: .*== 0, 1", NO_WEIGHT),
    (
        r"walkthrough\.xqa",
        "groups",
        r"left: max|(argument [01]|one more|half): min\(max\(1, sm_count // \(batch \* kv_heads\)\), ceildiv",
        NEVER_ABOVE,
    ),
    (r"walkthrough\.trtllm", "den start", "one more: ", KILLED),
    (r"walkthrough\.trtllm", "num start", "(one more|start -2): ", KILLED),
    (r"walkthrough\.tiled", "l start", "one more: ", KILLED),
    (r"vllm_triton\.interpreter$", "(l|acc) start", "(one more|start -2): ", KILLED),
    (r"vllm_triton\.interpreter_2d", "l start", "one more: ", KILLED),
    (r"vllm", "score", "drop left: .*scale \\* dot", "adding a sum to 0 is exact"),
    (r"vllm", "valid", "(first condition|last condition|plus|add zero): ", MASKED),
    (r"vllm", "(most|total)", "always: ", MASKED),
    (r"vllm", "(w|total)", "one more: select\\(valid, .*, 1\\)|one more: .*norm, 1\\)", NO_WEIGHT),
]


@lru_cache
def probed(name: str) -> Asked[tuple[Probe, list[Any]]]:
    spec = load_spec(name)
    return Asked((p, list(answer(spec, p))) for p in probes(spec))


def contexts() -> list[dict[str, Any]]:
    """Shapes and platforms on which the words of partition formulas differ."""
    rng = np.random.default_rng(3)
    found: list[dict[str, Any]] = []
    for _ in range(60):
        heads, group = int(rng.integers(1, 9)), int(rng.choice([1, 3, 6, 13, 40, 64]))
        kv_len = int(rng.integers(1, 130)) * 64 if rng.random() < 0.5 else int(rng.integers(1, 9000))
        found.append(
            {
                "kv_len": kv_len,
                "kv_capacity": kv_len + int(rng.choice([0, 0, 300])),
                "batch": int(rng.integers(1, 5)),
                "q_heads": heads * group,
                "kv_heads": heads,
                "q_len": int(rng.choice([1, 1, 1, 3, 5, 30])),
                "sm_count": int(rng.choice([8, 16, 20, 33, 66])),
            }
        )
    found.append({"kv_len": 65_600, "sm_count": 132})  # 1,025 blocks: 129 splits would be eligible
    found.append({"kv_len": 4_000, "batch": 64, "kv_heads": 4, "q_heads": 4, "sm_count": 66})
    return [{**c, "compute_capability": 90} for c in found]


CONTEXTS = contexts()


def plans(spec: Spec) -> Iterator[tuple[Any, ...]]:
    """The partition in every context, one after the other as they are asked for."""
    for given in CONTEXTS:
        context = make_context(given)
        plan = plan_program(bind(spec, context), context)
        yield plan.tokens.shape, plan.tokens.tobytes(), *(e.tobytes() for e in plan.exists.values())


@lru_cache
def planned(name: str) -> list[tuple[Any, ...]]:
    return list(plans(load_spec(name)))


def shows(name: str, table: str, changed: Spec) -> bool | None:
    """Whether a bit of the answers or the plans changes; None where none does and the changed spec is no spec."""
    try:
        if table in ("let", "levels"):
            return differ(plans(changed), planned(name))
    except (SpecError, UnsupportedError):
        return None
    refused: list[str] = []

    def tells(probe: tuple[Probe, list[Any]]) -> bool:
        try:
            return differ(answer(changed, probe[0]), probe[1])
        except (SpecError, UnsupportedError):
            refused.append(probe[0].name)
            return False

    return probed(name).any(tells) or (None if refused else False)


def listed(name: str, table: str, line: str, label: str) -> bool:
    """Whether a change is listed as equivalent."""
    word = f"{line} start" if table.startswith("state.") else line
    return any(
        re.match(n, name) and re.fullmatch(at, word) and re.match(p, label) for n, at, p, _ in EQUIVALENT
    )


@pytest.mark.parametrize(("name", "table", "line"), MARKED)
def test_every_change_of_a_line_shows(name: str, table: str, line: str) -> None:
    """All lines of two specs by default; a quarter of the lines of the others, the same ones each time."""
    if (name, line) == ("walkthrough.tiled", "q_block"):
        pytest.skip("no number depends on it: see test_the_query_block_decides_the_tiles")
    spec = load_spec(name)
    changes = [
        (label, text) for label, text in mutants(spec, table, line) if not listed(name, table, line, label)
    ]
    outcomes = {label: shows(name, table, mutated(spec, table, line, text)) for label, text in changes}
    assert [label for label, shown in outcomes.items() if shown is False] == [], "no bit changed"
    assert any(outcomes.values()), "no change of this line shows"


@pytest.mark.slow
@pytest.mark.parametrize("name", TOKENS)
def test_what_is_listed_as_equivalent_is(name: str) -> None:
    spec = load_spec(name)
    changes = [(*x, *m) for x in lines(spec) for m in mutants(spec, *x) if listed(name, *x, m[0])]
    for table, line, label, text in changes:
        assert shows(name, table, mutated(spec, table, line, text)) in (False, None), f"{line}: {label}"


def test_the_query_block_decides_the_tiles() -> None:
    """The issue's figure: 64 tokens in 16 x 16 blocks visit 10 tiles; half as wide, 20."""

    def tiles(spec: Spec) -> int:
        context = make_context({"kv_len": 64, "sm_count": 132, "compute_capability": 90})
        ints = bind(spec, context).integers
        layer = Layer(
            64,
            q_heads=1,
            kv_heads=1,
            head_dim=16,
            q_block=int(ints["q_block"]),
            kv_block=int(ints["kv_block"]),
        )
        return tile_count(layer).tiles_visited

    spec = load_spec("walkthrough.tiled")
    assert tiles(spec) == 10
    assert tiles(mutated(spec, "let", "q_block", "8")) == 20


def test_specs_without_a_line_by_line_test_are_known() -> None:
    """Those of kernels that are judged by a second program, by recorded values or live, and not line by line."""
    from specs.discover import every
    from tests.verify.test_mutations_kernels import PROBES as KERNELS

    rest = {f.name for f in every() if f.kind == "library"} - set(TOKENS) - set(KERNELS)
    assert rest == {
        "flash_attn3.decode",
        "flashinfer.fa2_decode",
        "torch_cpu.sdpa_flash",
        "trtllm_gen.reduction",
        "xqa.decode",
        "xqa.decode_fp8_sm90",
    }
