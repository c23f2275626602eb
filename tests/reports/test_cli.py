"""The command line: answers, exit codes, and what a mistake gets."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from reports import build, contract
from reports.cli import app
from specs.errors import FidelityError, InputError
from tests.reports import synthetic
from verify.console import Progress

SMALL = ("--input", "small.npz", "--backend", "oracle")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of its own with a small input: p is rounded before the sum in XQA, after it elsewhere."""
    monkeypatch.chdir(tmp_path)
    np.savez(
        "small.npz", scores=np.array([[0.0, -1.0]], np.float32), values=np.array([[1.0], [3.0]], np.float32)
    )
    return tmp_path


def run(*arguments: str) -> Any:
    return CliRunner().invoke(app, arguments)


def answer(*arguments: str) -> dict[str, Any]:
    """JSON alone on stdout, and the last line of stderr has verdict, run time and replay."""
    done = run(*arguments, "--format", "json")
    assert done.exit_code == 0, done.stderr
    last = done.stderr.strip().splitlines()[-1]
    assert " s]  replay: ulpscope" in last
    return json.loads(done.stdout)


def refused(*arguments: str) -> str:
    """Exit code 2, a message on stderr, nothing on stdout."""
    done = run(*arguments)
    assert done.exit_code == 2, (done.exit_code, done.output, done.exception)
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    return done.stderr


def test_plan() -> None:
    data = answer(
        "plan", "walkthrough.flash_attention_2", "-p", "h200", "--kv-len", "27525", "--model", "qwen"
    )
    assert (data["count"], data["span"]) == (54, 512)
    assert sum(g["tokens"] for g in data["groups"]) == 27525
    text = run("plan", "walkthrough.xqa", "-p", "sm120", "--kv-len", "600").stdout
    assert run("plan", "walkthrough.xqa@sm120", "--kv-len", "600").stdout == text
    assert "512..599" in text


def test_emulate() -> None:
    data = answer("emulate", "walkthrough.triton", "-p", "h200", *SMALL)
    # (1 + 3 bf16(exp(-1))) / (1 + exp(-1)) = 2.1015625 / 1.36787945 = 1.53636..., in bf16 1.5390625.
    assert data["output"]["values"] == ["1.5390625"]
    assert data["output"]["bits"] == ["0x3fc5"]
    assert data["backend"] == "oracle"
    assert len(data["input"]["sha256"]["scores"]) == 64


def test_a_backend_that_users_ask_for_resolves_by_platform() -> None:
    found = [answer("emulate", "flashinfer", "-p", p, *SMALL)["spec"] for p in ("h200", "b200", "sm120")]
    assert found == ["walkthrough.xqa", "walkthrough.trtllm_gen", "walkthrough.xqa"]


def test_emulate_explains() -> None:
    done = run("emulate", "walkthrough.xqa", "-p", "h200", *SMALL, "--explain-tokens", "2")
    assert done.exit_code == 0
    for expected in (
        "token 1",
        "0x3ebc",
        "group 0: 2 tokens",
        "row: 1 groups merged",
        "bf16(exp(score - safe))",
    ):
        assert expected in done.stdout
    data = answer("emulate", "walkthrough.xqa", "-p", "h200", *SMALL, "--explain-tokens", "1")
    assert data["steps"][0]["title"].startswith("token 0")


def test_compare_and_its_exit_codes() -> None:
    cells = ("compare", "walkthrough.triton@h200", "walkthrough.xqa@h200")
    data = answer(*cells, *SMALL)
    assert data["same_partition"] is True
    assert data["first_difference"]["site"] == "norm"
    assert data["first_difference"]["right"] == "1.3671875"
    assert run(*cells, *SMALL).exit_code == 0
    same = run("compare", "triton@h200", "triton@b200", *SMALL, "--fail-on-divergence")
    assert same.exit_code == 0
    assert "bit-exact: walkthrough.triton on b200" in same.stdout


HEADS = ("--kv-len", "40", "--q-heads", "2", "--kv-heads", "1", "--head-dim", "64", "--random", "1")


@pytest.mark.parametrize(
    ("left", "right", "more", "want"),
    [
        # vLLM takes the 2D kernel in batch-invariant mode, XQA where head_dim is 16 or more
        (
            "vllm:triton@h200",
            "vllm:triton@a100",
            ("--set", "batch_invariant=1"),
            ("vllm_triton.decode_2d on h200", "vllm_triton.decode_2d on a100"),
        ),
        (
            "vllm:triton@h200",
            "vllm_triton.decode_2d@h200",
            (),
            ("vllm_triton.decode_3d on h200", "vllm_triton.decode_2d on h200"),
        ),
        ("vllm:flashinfer@h200", "xqa.decode@h200", (), ("xqa.decode on h200", "xqa.decode on h200")),
    ],
)
def test_compared_kernels_are_those_of_the_shape(
    left: str, right: str, more: tuple[str, ...], want: tuple[str, str]
) -> None:
    data = answer("compare", left, right, *HEADS, "--backend", "oracle", *more)
    assert (data["left"], data["right"]) == want


def kernel_of(platform: str, name: str, **arrays: Any) -> str:
    """The kernel of vLLM that `emulate` runs for the backend on these arrays."""
    np.savez("arrays.npz", **arrays)
    given = ("-i", "arrays.npz", "--backend", "oracle", "--set", "fork=vllm")
    return answer("emulate", name, "-p", platform, *given)["spec"]


def test_the_arrays_of_a_file_decide_which_kernel_runs() -> None:
    rng = np.random.default_rng(3)

    def drawn(*shape: int) -> np.ndarray[Any, Any]:
        return rng.standard_normal(shape, dtype=np.float32)

    wide = {"q": drawn(4, 64), "k": drawn(20, 2, 64), "v": drawn(20, 2, 64)}
    assert kernel_of("h200", "vllm:flashinfer", **wide) == "xqa.decode"
    assert kernel_of("h200", "xqa", **wide) == "xqa.decode"
    # the first bytes of 1.0 and below in e4m3fn: 0x00 to 0x38
    bits = {n: rng.integers(0, 0x39, (20, 2, 64), dtype=np.uint8) for n in ("k", "v")}
    narrow = {"q": wide["q"], **bits, "dtype": np.array("float8_e4m3fn")}
    assert kernel_of("h200", "vllm:flashinfer", **narrow) == "xqa.decode_fp8_sm90"
    assert kernel_of("sm120", "vllm:flashinfer", **narrow) == "xqa.decode"
    # many sequences: the 2D kernel of Triton
    assert kernel_of("h200", "vllm:triton", **wide) == "vllm_triton.decode_3d"
    assert kernel_of("h200", "vllm:triton", **wide, batch=np.array(65)) == "vllm_triton.decode_2d"
    # several query tokens
    prefill = {**wide, "q": drawn(3, 4, 64), "causal": np.array(1)}
    assert kernel_of("a100", "flash_attn", **wide) == "flash_attn2.splitkv_decode"
    assert kernel_of("a100", "flash_attn", **prefill) == "flash_attn2.splitkv_decode"
    assert kernel_of("a100", "vllm:triton", **prefill) == "vllm_triton.decode_3d"
    # slopes of ALiBi: version 2 on Hopper as well
    assert kernel_of("h200", "flash_attn", **wide) == "flash_attn3.decode"
    slopes = {**wide, "alibi_slopes": drawn(4)}
    assert kernel_of("h200", "flash_attn", **slopes) == "flash_attn2.splitkv_decode"


def test_a_command_does_not_contradict_its_platform() -> None:
    for name in ("sm_count", "compute_capability", "cpu"):
        message = refused("plan", "xqa.decode", "-p", "h200", "--kv-len", "9", "--set", f"{name}=120")
        assert f"--set: {name} is fixed by the platform\n  choose another platform" in message
    np.savez("arrays.npz", scores=np.zeros(3), values=np.zeros((3, 1)), sm_count=np.array(3))
    message = refused("emulate", "walkthrough.xqa", "-p", "h200", "-i", "arrays.npz")
    assert "arrays.npz: sm_count is fixed by the platform" in message


def test_words_of_the_context_are_checked() -> None:
    message = refused("plan", "flash_attn3.decode", "-p", "h200", "--kv-len", "9", "--set", "fork=vlm")
    assert "fork = 'vlm' is unknown\n  did you mean 'vllm'?" in message


def test_a_divergence_fails_where_asked() -> None:
    np.savez(
        "apart.npz", scores=np.array([[0.0, -0.3]], np.float32), values=np.array([[1.0], [1.5]], np.float32)
    )
    values = np.linspace(0.5, 2.0, 64, dtype=np.float32)[None].repeat(2, 0)
    values[1] *= 1.7
    values = np.linspace(0.5, 2.0, 64, dtype=np.float32)[None].repeat(2, 0)
    values[1] *= 1.7
    np.savez("apart.npz", scores=np.array([[0.0, -0.3]], np.float32), values=values)
    cells = (
        "compare",
        "walkthrough.triton@h200",
        "walkthrough.xqa@h200",
        "-i",
        "apart.npz",
        "--backend",
        "oracle",
    )
    assert run(*cells).exit_code == 0
    failed = run(*cells, "--fail-on-divergence")
    assert failed.exit_code == 1
    assert "outputs of walkthrough.xqa on h200 differ" in failed.stderr


def test_traffic() -> None:
    data = answer("traffic", "--spec", "walkthrough.flash_attention_2")
    sizes = {row["tokens"]: row["algorithms"] for row in data["rows"]}
    assert f"{sizes[32768]['tiled']['bytes'] / 1e6:.2f}" == "69524.78"
    assert f"{sizes[32768]['dense']['bytes'] / 1e6:.2f}" == "275951.65"
    assert "not measured" in data["what"]
    assert {d["platform"] for d in data["decode"]} == {"h200", "b200", "sm120"}
    done = run("traffic")
    assert "not measured" in done.stdout
    assert "17582.52" in done.stdout
    small = answer("traffic", "--tokens", "64", "--heads", "1", "--head-dim", "16", "--block", "16")
    assert small["rows"][0]["tiles"] == {
        "dense_elements": 4160,
        "tiled_elements": 0,
        "tile_elements": 256,
        "tiles_visited": 10,
    }


def test_a_backend_that_users_ask_for_resolves_in_every_command() -> None:
    for platform, spec in (("h200", "walkthrough.xqa"), ("b200", "walkthrough.trtllm_gen")):
        done = run("plan", "flashinfer", "-p", platform, "--kv-len", "600")
        assert done.exit_code == 0
        assert f"{spec} on {platform}" in done.stderr
    table = answer("traffic", "--tokens", "600", "--spec", "flashinfer", "-p", "h200", "-p", "b200")
    assert [d["spec"] for d in table["decode"]] == ["walkthrough.xqa", "walkthrough.trtllm_gen"]


def test_a_folder_called_like_a_backend_hides_nothing(folder: Path) -> None:
    (folder / "triton").mkdir()
    assert "walkthrough.triton on h200" in run("plan", "triton", "-p", "h200", "--kv-len", "9").stderr


def test_the_schema_of_a_report() -> None:
    done = run("report", "--schema")
    assert done.exit_code == 0
    assert json.loads(done.stdout) == contract.json_schema()


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> contract.Report:
    report = synthetic.report()
    monkeypatch.setattr(build, "main_report", lambda **_: report)
    return report


def test_a_report_is_three_files(made: contract.Report, folder: Path) -> None:
    done = run("report", "-o", "out")
    assert done.exit_code == 0, done.stderr
    assert done.stdout.splitlines()[0] == made.verdict.headline
    assert sorted(p.name for p in (folder / "out").iterdir()) == ["report.html", "report.json", "report.md"]
    assert contract.from_json((folder / "out" / "report.json").read_text()) == made
    assert run("report", "-o", "out", "--fail-on-divergence").exit_code == 1


def test_a_report_goes_to_a_folder_of_its_run(made: contract.Report, folder: Path) -> None:
    data = answer("report")
    assert data["files"] == [f"runs/{made.run.id}/report.{kind}" for kind in ("json", "html", "md")]
    assert data["report"]["schema_id"] == "ulpscope.report/1"
    assert (folder / "runs" / made.run.id / "report.html").exists()


def test_nothing_is_half_written(
    made: contract.Report, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = folder / "out"
    build.write(made, out)
    before = {p.name: p.read_bytes() for p in out.iterdir()}

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(InputError, match="No space left"):
        build.write(made.model_copy(update={"title": "other"}), out)
    assert {p.name: p.read_bytes() for p in out.iterdir()} == before
    (folder / "file").write_text("")
    assert "cannot be written" in refused("report", "-o", "file/out")


@pytest.mark.parametrize("command", ["report", "sweep"])
def test_a_folder_that_cannot_be_written_is_found_before_anything_is_computed(
    command: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "main_report", lambda **_: pytest.fail("computed"))
    monkeypatch.setattr("reports.sweep.sweep", lambda *_, **__: pytest.fail("computed"))
    (folder / "file").write_text("")
    assert "cannot be written: Not a directory" in refused(command, "-o", "file/out")

    def full(**_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("tempfile.TemporaryFile", full)
    assert "cannot be written: Permission denied" in refused(command, "-o", "new/folder")
    assert not (folder / "new").exists()


def test_a_computation_that_fails_leaves_no_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(**_: object) -> None:
        assert (folder / "new" / "out").is_dir()
        raise InputError("no cell could be computed")

    monkeypatch.setattr(build, "main_report", fails)
    assert "no cell" in refused("report", "-o", "new/out")
    assert not (folder / "new").exists()
    (folder / "new" / "out").mkdir(parents=True)
    assert "no cell" in refused("report", "-o", "new/out")
    assert (folder / "new" / "out").is_dir()


def test_progress_away_from_a_terminal_is_whole_lines(capsys: pytest.CaptureFixture[str]) -> None:
    progress = Progress()
    for stage, done, total in (("a", 0, 0), ("a", 1, 3), ("a", 2, 3), ("a", 3, 3), ("b", 0, 2)):
        progress(stage, done, total)
    progress.clear()
    text = capsys.readouterr().err
    assert text.splitlines() == ["a, 0 s", "a: 3 of 3, 0 s", "b: 0 of 2, 0 s"]
    assert not {"\r", "\x1b"} & set(text)


def test_progress_on_a_terminal_is_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    progress = Progress()
    progress("a", 1, 2)
    progress("a", 2, 2)
    progress.clear()
    text = capsys.readouterr().err
    assert "\n" not in text
    assert text.endswith("a: 2 of 2, 0 s\r\x1b[K")


BAD = [
    (("emulate", "walkthrough.xka", "-p", "h200", *SMALL), "did you mean 'walkthrough.xqa'"),
    (("emulate", "walkthrough.xqa", "-p", "h300", *SMALL), "h200"),
    (("emulate", "walkthrough.xqa", "-p", "h200"), "one of --input"),
    (("emulate", "walkthrough.xqa", "-p", "h200", "--teaching", "--random", "1"), "one of --input"),
    (("emulate", "walkthrough.xqa", "-p", "h200", "--random", "1"), "--kv-len"),
    (("emulate", "walkthrough.xqa", "-p", "h200", "--random", "1", "--kv-len", "0"), "out of range"),
    (
        ("emulate", "walkthrough.xqa", "-p", "h200", "--random", "-1", "--kv-len", "9"),
        "seed -1 is negative",
    ),
    (("report", "--seed", "-1"), "--seed"),
    (("sweep", "--seed", "-1"), "--seed"),
    (("emulate", "walkthrough.xqa", "-p", "h200", "--input", "none.npz"), "no such file"),
    (("emulate", "walkthrough.xqa", "-p", "h200", *SMALL, "--set", "batch"), "no '='"),
    (("emulate", "walkthrough.xqa", "-p", "h200", *SMALL, "--set", "spam=1"), "unknown name 'spam'"),
    (("emulate", "walkthrough.tiled", "-p", "h200", *SMALL, "--option", "kv_block=x"), "not NAME=VALUE"),
    (("emulate", "walkthrough.xqa", "-p", "h200", *SMALL, "--explain-tokens", "-1"), "greater than"),
    (("emulate", "walkthrough.xqa", "-p", "h200", *SMALL, "--batch", "0"), "batch"),
    (("compare", "walkthrough.xqa", "walkthrough.xqa@h200", *SMALL), "names no platform"),
    (("compare", "flashinfer@a100", "walkthrough.xqa@h200", *SMALL), "has no spec"),
    (("plan", "walkthrough.xqa", "-p", "h200", "--kv-len", "999999999999"), "out of range"),
    (("plan", "walkthrough.xqa", "-p", "h200"), "kv-len"),
    (("plan", "walkthrough.xqa", "--kv-len", "9"), "write SPEC@PLATFORM"),
    (("plan", "walkthrough.xqa@h200", "-p", "b200", "--kv-len", "9"), "name the platform once"),
    (("emulate", "walkthrough.xqa", *SMALL), "names no platform"),
    (("traffic", "--tokens", "0"), "tokens is 0"),
    (("traffic", "--tokens", "99999999999999999999999"), "at most 16777216"),
    (("traffic", "--full", "--tokens", "99999999999999999999999"), "at most 16777216"),
    (("traffic", "--kv-heads", "0"), "kv_heads is 0"),
    (("traffic", "--head-dim", "65537"), "at most 65536"),
    (("report", "--spec", "nothing"), "unknown spec 'nothing'"),
    (("report", "--set", "fork=vllm"), "--set: only goes with an input"),
    (("report", "--kv-len", "9"), "--kv-len: only goes with an input"),
    (("report", "-s", "vllm:flash_attention_2"), "set fork=vllm"),
    (("report", "-s", "tritn"), "did you mean 'triton'?"),
    (("plan", "flashinfr", "-p", "h200", "--kv-len", "9"), "did you mean 'flashinfer'?"),
    (("traffic", "--spec", "walkthrough.xka"), "did you mean 'walkthrough.xqa'?"),
    (("sweep", "--stride", "0"), "stride"),
    (("frobnicate",), "frobnicate"),
]


@pytest.mark.parametrize(
    ("arguments", "message"), BAD, ids=lambda x: " ".join(x)[:40] if isinstance(x, tuple) else ""
)
def test_mistakes_are_explained(arguments: tuple[str, ...], message: str) -> None:
    assert message in " ".join(refused(*arguments).replace("│", " ").split())


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"scores": np.array([[np.nan, 0]]), "values": np.ones((2, 1))}, "nan"),
        ({"scores": np.array([[np.inf, 0]]), "values": np.ones((2, 1))}, "inf"),
        ({"scores": np.zeros((1, 3)), "values": np.ones((2, 1))}, "3 tokens"),
        ({"q": np.ones((3, 4)), "k": np.ones((2, 2, 4)), "v": np.ones((2, 2, 4))}, "3 query heads"),
        ({"scores": np.zeros((1, 2), np.int32), "values": np.ones((2, 1))}, "int32"),
        ({"scores": np.zeros((1, 2)), "values": np.array([["a"], ["b"]])}, "<U1"),
    ],
)
def test_bad_arrays_are_explained(arrays: dict[str, Any], message: str) -> None:
    np.savez("bad.npz", **arrays)
    assert message in refused("emulate", "walkthrough.xqa", "-p", "h200", "--input", "bad.npz")


def test_masked_rows_are_counted() -> None:
    np.savez("masked.npz", scores=np.full((1, 4), -np.inf, np.float32), values=np.ones((4, 1), np.float32))
    data = answer("emulate", "walkthrough.xqa", "-p", "h200", "-i", "masked.npz", "--backend", "oracle")
    assert (data["empty_rows"], data["output"]["values"], data["lse"]["values"]) == (1, ["0.0"], ["-inf"])


def test_an_environment_that_cannot_emulate_is_3(monkeypatch: pytest.MonkeyPatch) -> None:
    def unfaithful(*_: object, **__: object) -> None:
        raise FidelityError("the guard of a product does not hold", remedy="use another machine")

    monkeypatch.setattr("verify.preflight.preflight", unfaithful)
    done = run("doctor")
    assert done.exit_code == 3
    assert "use another machine" in done.stderr


def test_an_interrupt_is_130(monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(build, "main_report", stop)
    done = run("report")
    assert done.exit_code == 130
    assert done.stdout == ""
    assert "replay: ulpscope" in done.stderr


def test_the_installed_command_answers() -> None:
    code = "import sys; sys.argv[0] = 'ulpscope'; from reports.main import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code, "emulate", "walkthrough.xqa", "-p", "h200", "-i", "no such.npz"],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": str(Path(build.__file__).parents[1])},
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "error: no such.npz: no such file\n  check the path\n"
