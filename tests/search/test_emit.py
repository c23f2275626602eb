"""Scripts: they are good Python, they run, they feed exactly the witness, and hostile words stay words."""

from __future__ import annotations

import ast
import importlib.util
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from search.emit import emit, emit_file, literal
from search.witness import Witness, write
from specs.errors import InputError, UnsupportedError
from tests.search.witnesses import SMALL, altered, member, of_q_and_k

LANGUAGES = ("torch", "triton", "jax")
HOSTILE = '"]); import os; os.system("touch hacked")\n#\\\'\u2028{{ 7 * 7 }}{% raw %}\x00'


def run(script: Path) -> str:
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=300, cwd=script.parent
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def module(path: Path, text: str) -> Any:
    """The script as a module: its functions, without running it."""
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


def bf16(words: Any) -> Any:
    return (words.astype(np.uint32) << 16).view(np.float32).astype(np.float64)


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("name", [SMALL, "fa2_h200_b200"])
def test_scripts_are_tidy_python(tmp_path, language, name):
    path = tmp_path / f"script_{language}.py"
    path.write_text(emit(member(name), language, name=name))
    compile(path.read_text(), str(path), "exec")
    ruff = shutil.which("ruff") or str(Path(sys.executable).parent / "ruff")
    if not Path(ruff).exists():
        pytest.skip("ruff is not installed")
    rules = "--select=E4,E5,E7,E9,F,W,I,UP,B,RUF,D1"
    for command in (["check", rules, "--ignore=E501"], ["format", "--check", "--line-length=110"]):
        done = subprocess.run(
            [ruff, *command, "--isolated", "--no-cache", str(path)], capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout + done.stderr


def test_the_jax_script_runs_here_and_feeds_the_scores_exactly(tmp_path):
    witness = member()
    path = tmp_path / "witness.py"
    script = module(path, emit(witness, "jax", name=SMALL))
    q, k, v = script.qkv()
    assert (q.shape, k.shape, v.shape) == ((24, 256), (64, 4, 256), (64, 4, 256))
    scores = bf16(k) @ bf16(q[0]) / 16  # exact in double precision: three numbers of 8 bits
    assert (scores == witness.arrays["scores"][:, None].astype(np.float64)).all()
    assert (bf16(v)[:, :, 0] == witness.arrays["values"].astype(np.float64)).all()
    assert not v[:, :, 1:].any()
    out = run(path)
    assert out.startswith(f"{SMALL} on ")
    assert out.count("walkthrough.flash_attention_2[split=tiles(20), block=tiles(64)]@h200") == 2
    # No kernel here is one of the sides, but all compute attention: the answers are a few ULP apart.
    apart = [int(n) for n in re.findall(r"(\d+) ULP from", out)]
    assert len(apart) == 4
    assert max(apart) <= 4
    assert all(f"0x{int(s.output[0], 16):04X}" in out for s in witness.record.sides)


def test_the_torch_script_runs_here_without_a_gpu(tmp_path):
    pytest.importorskip("torch")
    path = tmp_path / "witness.py"
    path.write_text(emit(member(), "torch", name=SMALL))
    out = run(path)
    assert "sdpa:" in out or "flash" in out
    assert len(re.findall(r"\d+ ULP from", out)) == 2


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_library_that_is_missing_is_named(tmp_path, language):
    """No traceback: a sentence and an exit code."""
    path = tmp_path / f"script_{language}.py"
    path.write_text(emit(member(), language))
    for library in ("torch", "jax", "numpy"):
        (tmp_path / f"{library}.py").write_text("raise ImportError('not here')")
    done = subprocess.run(
        [sys.executable, str(path)], capture_output=True, text=True, timeout=60, cwd=tmp_path
    )
    assert done.returncode == 1
    assert done.stderr.strip() in (
        "PyTorch and NumPy are needed: not here",
        "JAX and NumPy are needed: not here",
    )


def test_the_split_count_of_the_sides_is_passed_on(tmp_path):
    """Dao's FlashAttention takes it from its caller, 0 for its own rule."""

    def splits(record: Any) -> None:
        record["space"]["context"]["num_splits"] = 8

    for witness, expected in ((member(), 0), (altered(splits), 8)):
        text = emit(witness, "torch")
        assert f"NUM_SPLITS = {expected}  # 0: the kernel chooses itself" in text
        assert text.count("num_splits=NUM_SPLITS") == 2
        compile(text, "script", "exec")


def test_large_arrays_are_read_from_beside_the_script_and_checked(tmp_path):
    large = member("fa2_h200_b200")
    write(large, tmp_path, "large")
    text = emit_file(tmp_path / "large.json", "jax")
    assert len(text) < 8_000
    assert 'ARRAYS = "large.safetensors"' in text
    script = module(tmp_path / "script.py", text)
    found = script.arrays()
    assert (found["scores"] == large.arrays["scores"]).all()
    data = bytearray((tmp_path / "large.safetensors").read_bytes())
    data[-1] ^= 1
    (tmp_path / "large.safetensors").write_bytes(data)
    with pytest.raises(SystemExit, match="not those of the witness"):
        script.arrays()


def test_q_and_k_are_fed_as_they_are(tmp_path):
    witness = of_q_and_k()
    script = module(tmp_path / "script.py", emit(witness, "jax"))
    q, k, v = script.qkv()
    assert (q[0] == witness.arrays["q"].view(np.uint16)).all()
    assert (k[:, 0] == witness.arrays["k"].view(np.uint16)).all()
    assert (v[:, 0, :2] == witness.arrays["values"].view(np.uint16)).all()
    assert script.SCALE == 0.25


# -- hostile words ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_hostile_label_stays_a_string(language):
    hostile = altered(lambda r: r["sides"][0].update(label=HOSTILE))
    kind = altered(lambda r: r["sides"][0].update(label="kind"))
    found, usual = (ast.parse(emit(w, language)) for w in (hostile, kind))
    # The same program: nothing but a constant differs.
    assert [type(n) for n in ast.walk(found)] == [type(n) for n in ast.walk(usual)]
    assert [n.value for n in ast.walk(found) if isinstance(n, ast.Constant) and n.value == HOSTILE] == [
        HOSTILE
    ]


@pytest.mark.parametrize("name", ["../../etc/passwd", 'a"; import os #', "a\nb", ""])
def test_a_hostile_name_is_refused(name):
    with pytest.raises(InputError, match="may not be called"):
        emit(member(), "jax", name=name)


@given(
    st.text() | st.lists(st.text(max_size=5), max_size=3) | st.floats(allow_nan=False, allow_infinity=False)
)
def test_literals_read_back(value):
    text = literal(value)
    assert ast.literal_eval(text) == value
    assert text.isascii()
    assert "\n" not in text


def test_other_things_have_no_literal():
    for value in (float("nan"), float("inf"), {1: 2}, b"x", object()):
        with pytest.raises(TypeError):
            literal(value)


# -- what cannot be fed -------------------------------------------------------------------------------------------------


def test_unknown_languages_are_refused():
    with pytest.raises(InputError, match="no scripts in 'cuda'"):
        emit(member(), "cuda")


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"head_dim": 1}, "heads of 1 elements"),
        ({"q_len": 2}, "q_len = 2"),
        ({"batch": 2}, "batch = 2"),
    ],
)
def test_shapes_that_scripts_do_not_know_are_refused(change, match):
    with pytest.raises(UnsupportedError, match=match):
        emit(altered(lambda r: r["space"]["context"].update(change)), "torch")


@pytest.mark.parametrize(("score", "match"), [(-np.inf, "masked"), (1e-40, "no sums of three")])
def test_scores_that_no_product_gives_are_refused(score, match):
    witness = member()
    scores = witness.arrays["scores"].copy()
    scores[5] = score
    with pytest.raises(UnsupportedError, match=match):
        emit(Witness(witness.record, {**witness.arrays, "scores": scores}), "torch")


def test_a_head_whose_scale_is_no_power_of_two_gets_one_that_is(tmp_path):
    text = emit(altered(lambda r: r["space"]["context"].update(head_dim=128)), "jax")
    assert "SCALE = 0.0625  # of the softmax: a power of two, so that k holds the scores exactly" in text
    q, k, _ = module(tmp_path / "script.py", text).qkv()
    assert (bf16(k) @ bf16(q[0]) / 16 == member().arrays["scores"][:, None]).all()
