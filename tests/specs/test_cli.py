"""``ulpscope spec``: JSON alone on stdout, messages on stderr, exit codes 0, 1 and 2, no traceback."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import specs
from specs.cli import app
from tests.commands import invoke

ROOT = Path(specs.__file__).parents[1]


pytestmark = pytest.mark.usefixtures("here")
run = partial(invoke, app)


def run_json(*args: str, code: int = 0) -> Any:
    return json.loads(run(*args, "--format", "json", code=code)[0])


def test_list() -> None:
    text, errors = run("list")
    assert "walkthrough.xqa" in text
    assert "h200" in text
    assert errors == ""
    data = run_json("list")
    assert {s["name"] for s in data["specs"]} >= {"walkthrough.dense", "xqa.decode"}
    assert {p["name"]: p["sm_count"] for p in data["platforms"]}["sm120"] == 188
    assert data["workloads"] == [
        {
            "name": "agent_session",
            "title": "22 assistant messages of four agent conversations",
            "ranges": 22,
            "tokens": 9060,
        }
    ]
    assert data["requested"]["flashinfer"]["by_capability"]["100"] == "walkthrough.trtllm_gen"


def test_a_broken_file_in_specs_d_does_not_stop_the_list(here: Path) -> None:
    (here / "specs.d").mkdir()
    (here / "specs.d" / "bad.toml").write_text("[")
    entry = {s["name"]: s for s in run_json("list")["specs"]}["bad"]
    assert entry["status"] == "broken"
    assert "specs.d/bad.toml:1:2" in entry["error"]


def test_show() -> None:
    text, _ = run("show", "walkthrough.trtllm_gen")
    assert "num     = prev(num) * a + partial * b" in text
    assert run_json("show", "walkthrough.trtllm_gen")["status"] == "walkthrough"


def test_show_says_what_its_functions_were_held_against() -> None:
    text, _ = run("show", "flash_attn2.splitkv_decode")
    assert re.search(r"^evidence +mufu\.ex2 += replayed: ten .* GB200", text, re.M)
    assert re.search(r"^ +mufu\.lg2 += model only", text, re.M)
    assert run_json("show", "flash_attn2.splitkv_decode")["evidence"].keys() == {
        "mufu.ex2",
        "mufu.rcp",
        "mufu.lg2",
    }
    assert run_json("show", "walkthrough.xqa")["evidence"] == {}


def test_new_check_show_diff(here: Path) -> None:
    out, hint = run("new", "acme.decode")
    assert out.strip() == "specs.d/acme.decode.toml"
    assert "spec check specs.d/acme.decode.toml" in hint
    checked, errors = run("check", "specs.d/acme.decode.toml", "walkthrough.xqa")
    assert checked.startswith("ok: acme.decode, 13 sites, 1 level, sha256 ")
    assert errors == ""
    data = run_json("check", "acme.decode")
    assert data["ok"] is True
    assert len(data["results"][0]["hash"]) == 64
    text, _ = run("diff", "acme.decode", "walkthrough.triton")
    assert text.endswith("1 changed, 1 only in acme.decode, 0 only in walkthrough.triton, 17 the same\n")
    assert run_json("diff", "acme.decode", "walkthrough.triton")["counts"]["changed"] == 1
    run("diff", "acme.decode", "walkthrough.triton", "--fail-on-difference", code=1)
    run("diff", "acme.decode", "acme.decode", "--fail-on-difference")


def test_new_never_overwrites(here: Path) -> None:
    path = here / "mine.toml"
    path.write_text("precious")
    _, errors = run("new", "mine", "--path", str(path), code=2)
    assert "exists already" in errors
    assert path.read_text() == "precious"
    _, errors = run("new", "../evil", code=2)
    assert "cannot name a spec" in errors
    (here / "file").write_text("")
    _, errors = run("new", "mine", "--path", "file/mine.toml", code=2)
    assert "cannot be written" in errors


def test_check_tells_place_cause_and_remedy(here: Path) -> None:
    run("new", "acme.decode")
    path = here / "specs.d" / "acme.decode.toml"
    path.write_text(path.read_text().replace("max(score)", "max(scorre)"))
    out, errors = run("check", "acme.decode", code=2)
    assert out == ""
    assert errors.startswith(
        "error: specs.d/acme.decode.toml:28:15: unknown name 'scorre'\n  did you mean 'score'?"
    )
    result = run("check", "acme.decode", "walkthrough.xqa", "--format", "json", code=2)[0]
    data = json.loads(result)
    assert [r["ok"] for r in data["results"]] == [False, True]
    assert data["results"][0]["place"] == "specs.d/acme.decode.toml:28:15"


def test_check_types_the_spec(here: Path) -> None:
    """An error that needs axes and kinds: the output must not have one value per token."""
    run("new", "acme.decode")
    path = here / "specs.d" / "acme.decode.toml"
    path.write_text(path.read_text().replace('"bf16(exact)"', '"bf16(score)"'))
    _, errors = run("check", "acme.decode", code=2)
    assert "specs.d/acme.decode.toml:40" in errors


@pytest.mark.parametrize("command", [["show"], ["check"], ["diff", "walkthrough.xqa"]])
def test_an_unknown_name_is_exit_code_2(command: list[str]) -> None:
    out, errors = run(*command, "walkthrough.xqq", code=2)
    assert out == ""
    assert "did you mean 'walkthrough.xqa'?" in errors


def test_a_hidden_file_is_a_warning_on_stderr(here: Path) -> None:
    run("new", "walkthrough.xqa")
    data, warnings = run("show", "walkthrough.xqa", "--format", "json")
    assert json.loads(data)["origin"] == "specs.d/walkthrough.xqa.toml"
    assert warnings.startswith("warning: specs.d/walkthrough.xqa.toml hides ")


def test_schema() -> None:
    assert json.loads(run("schema")[0])["title"] == "ulpscope spec, schema 1"


def processor_seconds(code: str) -> float:
    """Of a new interpreter: what else this machine does takes no part."""
    before = os.times()
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    after = os.times()
    return after.children_user + after.children_system - before.children_user - before.children_system


def test_check_starts_fast_and_light() -> None:
    """`spec check` has half a second in all; no array or plotting library may be loaded for it.

    Half a second is of a machine that starts Python with typer and pydantic in 0.13 s: a slower one is allowed as many
    times its own start.
    """
    code = (
        "import sys\nfrom specs.cli import app\n"
        "try:\n    app(['check', 'walkthrough.xqa'])\n"
        "except SystemExit as e:\n    assert not e.code\n"
        "heavy = {'numpy', 'jax', 'rich', 'plotly', 'sympy', 'flint'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    rounds = [
        (processor_seconds("import pydantic, tomllib, typer"), processor_seconds(code)) for _ in range(5)
    ]
    bare, checked = (min(seconds) for seconds in zip(*rounds, strict=True))
    assert checked < 0.5 / 0.13 * bare


@pytest.mark.parametrize(
    "arguments",
    [
        ("show", "vllm:flashinfer"),
        ("check", "vllm:flashinfer"),
        ("diff", "vllm:flashinfer", "xqa.decode"),
        ("diff", "xqa.decode", "vllm:flashinfer"),
    ],
)
def test_the_name_of_a_backend_is_not_called_an_unknown_spec(arguments: tuple[str, ...]) -> None:
    assert run(*arguments, code=2) == (
        "",
        "error: 'vllm:flashinfer' is a backend, not a spec: its platform and shape decide which spec it is\n"
        "  `ulpscope plan vllm:flashinfer -p PLATFORM --kv-len TOKENS` says which\n",
    )


def test_a_spec_called_like_a_backend_is_shown(here: Path) -> None:
    assert "'flash_attn' is a backend" in run("show", "flash_attn", code=2)[1]
    run("new", "flash_attn")
    assert run("show", "flash_attn")[0]
    assert "unknown spec 'vllm:flashinfr'" in run("show", "vllm:flashinfr", code=2)[1]
