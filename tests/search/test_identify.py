"""``ulpscope identify``: a real kernel's bits, run folders, predicted logits, and probes for what is ambiguous."""

import json

import ml_dtypes
import numpy as np
import pytest

from reports.cli import app
from search.probes import Probe, probes, searched
from search.replay import replay_file
from specs import load_platform, load_spec
from tests.commands import invoke
from tests.verify.runs.making import SMOLLM2
from tests.verify.runs.test_real import at_hand
from verify.case import Case
from verify.identify.observations import of_run
from verify.identify.ranking import Judged, rank
from verify.runs.folder import write_run
from verify.runs.manifest import Coordinate, Manifest, Recording
from verify.runs.sequence import Attention, Full, Sequence

BF16 = ml_dtypes.bfloat16
FA2 = "walkthrough.flash_attention_2"


def manifest(kind: str = "raw_logits", **flags: object) -> Manifest:
    where = Coordinate.model_validate({"gpu": "H200", "flags": flags})
    capture = Recording.model_validate({"value_kind": kind, "teacher_forced": True})
    return Manifest(schema=1, kind="run", run_id="r", coordinate=where, capture=capture, files=())


@pytest.fixture
def attention_run(tmp_path):
    """Four decode steps by the oracle; so short that H200 and B200 divide the tokens alike."""
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal(s).astype(BF16) for s in ((4, 2, 8), (60, 1, 8), (60, 1, 8)))
    spec, platform = load_spec(FA2), load_platform("h200")
    out = [
        Case("", {"q": q[i], "k": k[: 57 + i], "v": v[: 57 + i]})
        .emulate(spec, platform, backend="oracle")
        .output
        for i in range(4)
    ]
    layer = Attention(0, q, k, v, np.stack(out))
    sequence = Sequence("c", 0, np.arange(56, 60), np.array([5, 6, 7, 8]), attention=(layer,))
    return write_run(tmp_path / "run", manifest(phase="decode"), [sequence])


def test_a_real_kernel_is_recognised_by_its_bits():
    """PyTorch's CPU kernel, recorded; a GPU kernel of the same attention is not it."""
    words = ("-c", "torch_cpu.sdpa_flash@amd_avx512", "-c", "flash_attn2.splitkv_decode@h200")
    out, _ = invoke(app, "identify", "torch_cpu_2.13.0", *words, "--format", "json")
    answer = json.loads(out)
    assert answer["kind"] == "named"
    first, second = answer["ranking"]
    assert first["names"] == ["torch_cpu.sdpa_flash@amd_avx512"]
    assert first["exact_share"] == 1.0
    assert second["exact_share"] < 1.0
    assert second["first"]["captured"] != second["first"]["predicted"]


def test_a_run_folder_and_the_words(attention_run):
    words = ("-c", f"{FA2}@h200", "-c", f"{FA2}@b200", "-c", "walkthrough.xqa@h200")
    out, err = invoke(app, "identify", attention_run.place, *words)
    assert f"{FA2}@h200 = {FA2}@b200" in out
    assert "none of the candidates" in out
    assert "to tell them apart:" in out
    assert "4 of 4 positions bit-exact" in err


def test_what_is_ambiguous_gets_probes(attention_run):
    """Two programs that no position tells apart: the command that would, at the recorded shape."""
    seen = of_run(attention_run)
    exact = np.zeros(40, np.int64)
    judged = [Judged((f"{name}@h200",), 40, 40, exact, None) for name in (FA2, "walkthrough.xqa")]
    found = rank(judged, lambda i, j: np.zeros(40, np.bool_))
    assert (found.kind, found.ambiguous) == ("ambiguous", (1,))
    assert [p.command for p in probes(found, seen)] == [
        f"ulpscope search {FA2}@h200 walkthrough.xqa@h200 --space qkv --kv-len 60 --q-heads 2 --kv-heads 1 --head-dim 8"
    ]


@pytest.mark.slow
def test_probes_are_searched_and_filed(attention_run, tmp_path):
    seen = of_run(attention_run)
    sides = "walkthrough.trtllm_gen@h200", "walkthrough.triton@h200"
    probe = searched(Probe(*sides, "ulpscope search a b"), seen, tmp_path / "w", 300)
    assert "ULP stored" in probe.said
    again = replay_file(next(f for f in probe.files if f.endswith(".json")))
    assert again.differences == ()
    assert again.integer == int(probe.said.partition("rounding, ")[2].partition(" ")[0])


def test_a_pair_that_cannot_be_searched_is_no_error(attention_run, tmp_path):
    """On demand, a search that finds and files: `test_probes_are_searched_and_filed`."""
    probe = Probe(f"{FA2}@h200", "walkthrough.dense@h200", "ulpscope search a b")
    refused = searched(probe, of_run(attention_run), tmp_path, 40)
    assert "cannot be searched" in refused.said
    assert not refused.files


def test_predicted_logits(tmp_path):
    data = np.random.default_rng(1).standard_normal((30, 9)).astype(BF16)

    def folder(name: str, rows: np.ndarray) -> str:
        full = Full(len(rows), rows.shape[1], rows.dtype, lambda a, b: rows[a:b])
        s = Sequence("c", 0, np.arange(30), np.arange(30) % 9, prompt=np.array([1]), full=full)
        return write_run(tmp_path / name, manifest(), [s]).place

    wrong = data.copy()
    wrong.view(np.uint16)[::3, 2] ^= 1
    places = folder("cap", data), folder("right", data), folder("wrong", wrong)
    out, _ = invoke(
        app, "identify", places[0], "--predicted", places[2], "--predicted", places[1], "--format", "json"
    )
    answer = json.loads(out)
    assert answer["kind"] == "consistent"
    assert [r["exact_positions"] for r in answer["ranking"]] == [30, 20]


@pytest.mark.parametrize(
    ("words", "cause"),
    [
        (("nowhere",), "nowhere"),
        (("torch_cpu_2.13.0", "-c", "flash_atn2"), "unknown spec"),
        (("torch_cpu_2.13.0", "-c", f"{FA2}@h2000"), "unknown platform"),
        (("torch_cpu_2.13.0", "--predicted", "x"), "holds no logits"),
        (("torch_cpu_2.13.0", "-c", f"{FA2}@h200", "--disturbed", "2"), "not between 0 and 1"),
        (("torch_cpu_2.13.0", "-c", "walkthrough.tiled@h200"), "no candidate can be tried"),
    ],
)
def test_mistakes_have_a_message(words, cause):
    _, err = invoke(app, "identify", *words, code=2)
    assert cause in err
    assert "error: " in err


def test_a_stored_output_that_its_rounded_inputs_do_not_give():
    """Recomputed from the stored q, k and v, the stored output of the layer is off by up to 6.6e-3."""
    file = at_hand(SMOLLM2 / "smollm2_T320_attn_fp16in.npz")
    _, err = invoke(app, "identify", str(file), "-c", "walkthrough.dense@h200")
    assert "the captured output lies up to 0.0066 from exact attention" in err
    assert "was not computed from these numbers" in err
