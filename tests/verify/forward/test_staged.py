"""The declared forward, bit for bit against scalar definitions; and what it refuses."""

from typing import Any

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from specs.errors import InputError, SpecError, UnsupportedError
from tests.verify.forward.making import config_of, tensors_of, write_model
from tests.verify.forward.scalar import F32, Scalar
from verify.forward.attention import load_cell
from verify.forward.config import Arithmetic
from verify.forward.load import load_model
from verify.forward.predict import Predictor
from verify.forward.staged import RowSet, Staged
from verify.numerics.operations import add, fma, mul

IDS = [3, 17, 79, 0, 41]
VLLM: dict[str, Any] = {
    "numbers": {"activations": "bf16"},
    "attention": {"kernel": "walkthrough.flash_attention_2@h200"},
    "gemm": {"kernel": "mma", "platform": "h200", "k": 16, "splits": 2, "unit": 16},
    "norm": {
        "kernel": "tree",
        "tree": "chunks(8, chunks(2, pairwise(fma), seq()), chunks(32, butterfly(1, 2, 4, 8, 16), seq()))",
        "tree_alone": "chunks(8, seq(fma), chunks(32, butterfly(1, 2, 4, 8, 16), seq()))",
        "root": "mufu.rsq",
        "before_weight": True,
    },
    "rope": {"angles": "f32", "table": "activations", "compute": "f32", "fused": True},
    "mlp": {"exp": "cuda.expf", "divide": "div", "round_gate": True},
}
OTHER: dict[str, Any] = {
    "numbers": {"activations": "bf16"},
    "attention": {"kernel": "walkthrough.xqa@sm120"},
    "gemm": {"kernel": "mma", "platform": "a100", "k": 8, "splits": 1, "unit": 16},
    "norm": {"kernel": "tree", "tree": "seq()", "root": "sqrt", "before_weight": False},
    "rope": {"angles": "f32", "table": "activations", "compute": "activations"},
    "mlp": {"exp": "triton.exp", "divide": "div.full", "round_gate": False},
}


def arithmetic(sections: dict[str, Any]) -> Arithmetic:
    gemm = {**sections["gemm"], "splits": str(sections["gemm"]["splits"])}
    return Arithmetic.model_validate({"schema": 1, "name": "test", **sections, "gemm": gemm})


def by_lanes(xs: list[float], one: Any) -> float:
    """Eight in a thread by ``one``; of four threads (or one or two) lane 0 of a butterfly of strides 1, 2, 4, ..."""
    threads = [one(xs[i : i + 8]) for i in range(0, len(xs), 8)]
    while len(threads) > 1:
        threads = [add(*threads[i : i + 2], F32) for i in range(0, len(threads), 2)]
    return threads[0]


def pairs(xs: list[float]) -> float:
    total = 0.0
    for a, b in zip(xs[::2], xs[1::2], strict=True):
        total = add(total, fma(a, a, mul(b, b, F32), F32), F32)
    return total


def fused(xs: list[float]) -> float:
    total = 0.0
    for x in xs:
        total = fma(x, x, total, F32)
    return total


def in_order(xs: list[float]) -> float:
    total = 0.0
    for x in xs:
        total = add(total, mul(x, x, F32), F32)
    return total


@pytest.mark.parametrize(
    ("sections", "family", "squares", "alone"),
    [
        (VLLM, "qwen3", lambda x: by_lanes(x, pairs), lambda x: by_lanes(x, fused)),
        pytest.param(OTHER, "llama", in_order, in_order, marks=pytest.mark.slow),
    ],
    ids=["vllm-qwen3", "other-llama"],
)
def test_every_logit_is_that_of_the_scalar_definitions(sections, family, squares, alone, tmp_path):
    """Slow with the second: as much again, mostly compilation."""
    config = config_of(model_type=family)
    tensors = tensors_of(config, seed=3)
    model = load_model(write_model(tmp_path / "m", config, tensors))
    found = Predictor(model, arithmetic(sections))(IDS).logits()
    assert found.dtype.name == "bfloat16"
    want = Scalar(config, tensors, sections).logits(IDS, squares, alone)
    assert np.array_equal(found.astype(np.float64), want)
    assert np.unique(want).size > 100


@pytest.mark.slow
def test_a_prompt_is_read_by_another_kernel_and_in_products_of_other_splits(tmp_path):
    """Rows of the prompt are those of a whole call; later rows those of steps after a prompt of other bits. Compiles for
    half a minute.
    """
    config = config_of()
    model = load_model(write_model(tmp_path / "m", config, tensors_of(config, seed=4)))

    def logits(attention: dict[str, Any], splits: str) -> np.ndarray:
        sections = {**OTHER, "attention": attention}
        made = arithmetic({**sections, "gemm": {**OTHER["gemm"], "splits": splits}})
        return Predictor(model, made)(IDS).logits().view(np.uint16)

    whole = logits({"kernel": "walkthrough.triton@h200", "calls": "whole"}, "2")
    steps = logits({"kernel": "walkthrough.xqa@sm120"}, "1")
    both = logits(
        {"kernel": "walkthrough.xqa@sm120", "prompt": 3, "prompt_kernel": "walkthrough.triton@h200"},
        "select(m == 3, 2, 1)",
    )
    assert np.array_equal(both[:3], whole[:3])
    assert not np.array_equal(both[:3], steps[:3])
    assert not np.array_equal(both[3:], whole[3:])


def test_lines_of_the_spec_can_be_changed():
    plain, _ = load_cell("walkthrough.xqa@sm120", {})
    spec, platform = load_cell("walkthrough.xqa@sm120", {"row": {"output": "bf16(exact * 2)"}})
    assert platform.name == "sm120"
    assert spec.sections["row"]["output"] == "bf16(exact * 2)"
    assert {**spec.sections["row"], "output": ""} == {**plain.sections["row"], "output": ""}
    assert spec.sections["token"] == plain.sections["token"]
    with pytest.raises(SpecError, match=r"attention\.lines"):
        load_cell("walkthrough.xqa@sm120", {"token": {"score": "sum(q * k"}})
    with pytest.raises(InputError, match="did you mean 'score'"):
        load_cell("walkthrough.xqa@sm120", {"token": {"scor": "q"}})
    with pytest.raises(InputError, match="no section"):
        load_cell("walkthrough.xqa@sm120", {"tokens": {"score": "q"}})


@pytest.mark.parametrize(
    ("part", "values", "error", "words"),
    [
        ("attention", {"kernel": "walkthrough.xka@h200"}, SpecError, "did you mean 'walkthrough.xqa'"),
        ("attention", {"kernel": "walkthrough.xqa@h2000"}, SpecError, "unknown platform"),
        ("gemm", {"kernel": "mma", "platform": "t4", "splits": 1}, UnsupportedError, "no dot product mma"),
        ("gemm", {"kernel": "mma", "platform": "h200", "splits": "m - m"}, SpecError, "splits = 0"),
        ("gemm", {"kernel": "mma", "platform": "h200", "splits": "mm"}, SpecError, "unknown name 'mm'"),
    ],
)
def test_what_is_declared_must_exist(part, values, error, words, tmp_path):
    config = config_of(num_hidden_layers=1)
    model = load_model(write_model(tmp_path / "m", config, tensors_of(config)))
    with pytest.raises(error, match=words):
        Predictor(model, arithmetic({**OTHER, part: values}))(IDS)


def test_an_infinite_product_is_refused(tmp_path):
    """In the first layer, so that the second is not compiled for; attention in plain f32 compiles less, too."""
    config = config_of(num_hidden_layers=1)
    tensors = tensors_of(config)
    tensors["model.layers.0.mlp.down_proj.weight"] = np.full((32, 48), 3e38, np.float32)
    model = load_model(write_model(tmp_path / "m", config, tensors))
    with pytest.raises(InputError, match="product of layer 0 is infinite"):
        Predictor(model, arithmetic({**OTHER, "attention": {"kernel": "plain"}}))(IDS)


def test_long_sequences_are_worked_through_in_blocks_of_rows(tmp_path):
    """Rows do not know of each other: those past a block of 512 are those of a product of their own."""
    config = config_of(num_hidden_layers=1)
    model = load_model(write_model(tmp_path / "m", config, tensors_of(config)))
    staged = Staged(arithmetic({**VLLM, "attention": {"kernel": "plain"}}), model)
    rng = np.random.default_rng(8)
    words = jnp.asarray(rng.standard_normal((640, 32)).astype(ml_dtypes.bfloat16).view(np.uint16))
    whole = np.asarray(staged.product(words, "up.0", [RowSet(0, 640, 640)]))
    part = np.asarray(staged.product(words[500:564], "up.0", [RowSet(0, 64, 64)]))
    assert np.array_equal(whole[500:564, :96], part[:, :96])
    values = np.asarray(words)[500:502].view(ml_dtypes.bfloat16).astype(np.float64)
    gate = np.concatenate([model.layers[n][0] for n in ("gate", "up")]).astype(np.float64)
    near = values @ gate.T
    assert np.abs(whole[500:502, :96].view(np.float32) - near).max() < 1e-4
