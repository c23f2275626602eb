"""``ulpscope explain``: what it says, its files, its schema, and what a mistake gets."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from reports.cli import app
from reports.explain import contract as c
from reports.explain.page import render, render_markdown

FA2, XQA = "walkthrough.flash_attention_2@h200", "walkthrough.xqa@h200"
SMALL = ("--input", "small.npz", "--backend", "oracle")
HOSTILE = "</script><img src=x onerror=alert(1)>"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of its own with a small input of two groups: 300 tokens in five splits, or in two tiles."""
    monkeypatch.chdir(tmp_path)
    make_input(tmp_path / "small.npz")
    return tmp_path


def make_input(path: Path) -> None:
    rng = np.random.default_rng(7)
    np.savez(
        path,
        scores=rng.standard_normal((2, 300)).astype(np.float32),
        values=rng.standard_normal((300, 3)).astype(np.float32),
    )


def run(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["explain", *arguments])


def answer(*arguments: str) -> c.Explanation:
    done = run(*arguments, "--format", "json")
    assert done.exit_code == 0, done.stderr
    return c.Explanation.model_validate_json(done.stdout)


def refused(*arguments: str) -> str:
    done = run(*arguments)
    assert done.exit_code == 2, (done.exit_code, done.output, done.exception)
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    return done.stderr


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A folder with the files of one explanation, and what was printed."""
    place = tmp_path_factory.mktemp("written")
    make_input(place / "small.npz")
    chosen = ("--input", str(place / "small.npz"), "--backend", "oracle", "--row", "1", "--dim", "2")
    done = run(FA2, XQA, *chosen, "--out", str(place / "out"))
    assert done.exit_code == 0, done.stderr
    return place / "out", done.stdout


def read(folder: Path) -> c.Explanation:
    return c.Explanation.model_validate_json((folder / "explain.json").read_text())


def test_verdict_first_then_where_and_what(written: tuple[Path, str]) -> None:
    lines = written[1].splitlines()
    assert lines[0].startswith(
        "first parts at weight, another quantity on either side: it reads safe, of which some groups own other tokens; "
    )
    assert " ULP at row " in lines[0]
    assert " accounts for " in lines[0]
    assert any("first at group 0: 64 tokens from 0 and 256 tokens from 0" in line for line in lines)
    assert "  partials and merge" in lines
    assert "    + w = norm * exp(top - most_safe)" in lines
    assert (
        "  walkthrough.xqa@h200                weight = bf16(exp(score - safe))  (walkthrough.xqa.toml:22:12)"
        in lines
    )


def test_the_numbers_add_up_in_the_json_and_fit_its_schema(written: tuple[Path, str]) -> None:
    found = read(written[0])
    schema = json.loads(run("--schema").stdout)
    pytest.importorskip("jsonschema").validate(found.model_dump(mode="json"), schema)
    assert found.attribution is not None
    one = found.attribution.elements[0]
    assert one.at == {"row": 1, "dim": 2}
    total = sum(Fraction(x.exact) for x in one.contributions)
    assert total == Fraction(one.total_exact)
    assert total + Fraction(one.rounding_exact) == one.ulp
    places = [int(one.bits_a, 16), int(one.bits_b, 16)]
    assert (places[0] ^ places[1]) < 0x8000  # of one sign
    assert abs(places[1] - places[0]) == abs(one.ulp)
    assert [r.proved for r in found.attribution.rankings] == [True, True]
    assert found.attribution.rankings[1].ranks[0].line in ("weight", "partial")


def test_files_and_pages_are_functions_of_the_contract(written: tuple[Path, str]) -> None:
    folder, _ = written
    assert sorted(p.name for p in folder.iterdir()) == ["explain.html", "explain.json", "explain.md"]
    found = read(folder)
    page = (folder / "explain.html").read_text()
    assert render(found) == page
    assert render_markdown(found) == (folder / "explain.md").read_text()
    assert '"type":"waterfall"' in page
    assert "http://" not in page.split("<script>")[0]
    assert "walkthrough.xqa.toml:22:12" in page
    assert "/walkthrough.xqa.toml" not in page


def test_what_comes_from_files_is_escaped(written: tuple[Path, str]) -> None:
    found = read(written[0])
    part = found.parts[0].model_copy(update={"name": HOSTILE})
    hostile = found.model_copy(update={"input": HOSTILE, "parts": (part, *found.parts[1:])})
    page = render(hostile)
    assert "<img src=x" not in page
    assert "<img" not in render_markdown(hostile).replace("\\<img", "")


def test_no_attribution() -> None:
    found = answer(FA2, XQA, *SMALL, "--no-attribution")
    assert found.attribution is None
    assert [p.name for p in found.parts] == ["partition", "weights and sums", "partials and merge"]
    assert found.travel is not None
    assert found.travel.stations[-1].name == "output"


def test_the_same_program() -> None:
    done = run(XQA, XQA, *SMALL)
    assert done.exit_code == 0, done.stderr
    assert done.stdout.startswith("the same program: no line, partition or primitive differs")


FRAGMENTS = ("attention.sm_90.toml@h200", "attention.sm_100.toml@h200")
KEPT = ("--lowering", "attention@3.8.0", "--lowering", "attention@3.8.0:sm_100")


FEW = ("--random", "0", "--kv-len", "128", "--q-heads", "1", "--kv-heads", "1", "--head-dim", "16")
BARE = ("--backend", "oracle", "--no-attribution")


@pytest.fixture
def fragments() -> None:
    """The specs that `lower` writes of the example."""
    assert CliRunner().invoke(app, ["lower", "attention@3.8.0", "--fragments", "."]).exit_code == 0


@pytest.mark.usefixtures("fragments")
def test_the_instruction_behind_the_first_site_is_named() -> None:
    """One source, two architectures: eight FFMA and four FADD of rounded products' sums, or six FADD2 of two each."""
    found = answer(*FRAGMENTS, *FEW, *BARE, *KEPT)
    assert found.travel is not None
    assert found.travel.first is not None
    assert found.travel.stations[found.travel.first].name == "num"
    h200, b200 = found.realised
    assert (h200.side, h200.arch, h200.kernel, h200.source, h200.undecided) == (
        0,
        "sm_90",
        "merge",
        "SASS",
        "",
    )
    assert (b200.side, b200.arch, b200.undecided) == (1, "sm_100", "")
    shown = [[(i.opcode, len(i.lines)) for i in one.instructions][:3] for one in (h200, b200)]
    assert shown == [[("FMUL", 8), ("FFMA", 8), ("FADD", 4)], [("FMUL", 16), ("FADD2", 6), ("LDS.128", 1)]]
    assert h200.instructions[1].text == "FFMA R5, R22, R5, R20"
    assert (
        "Behind num of lowered.attention.sm_90@h200 on sm_90: FMUL, FFMA, FADD, SHFL.BFLY."
        in found.verdict.points
    )
    page, text = render(found), render_markdown(found)
    assert "FADD2" in page
    assert "| in a thread | 6 | `FADD2` | 125 |" in text


@pytest.mark.usefixtures("fragments")
def test_a_line_that_the_lowering_computes_otherwise_gets_no_instruction() -> None:
    """The merge of sm_100 against the listing of sm_90, and a spec of other lines altogether."""
    done = run(*FRAGMENTS, *FEW, *BARE, "--lowering", "attention@3.8.0:sm_90")
    assert done.exit_code == 0, done.stderr
    other = "num = dot(w, last(acc), lanes(4, pairwise(fma), butterfly()))"
    assert f"not decided: the lowering computes another line of this name: {other}" in done.stdout
    found = answer(FA2, XQA, *SMALL, "--no-attribution", *KEPT[:2])
    why = {one.site: one.undecided for one in found.realised}
    assert (
        why["weight"] == "the lowering computes another line of this name: weight = triton.exp(score - safe)"
    )
    assert why["norm"] == "the lowering computes another line of this name: norm = last(l)"


def test_an_ensemble() -> None:
    found = answer(
        FA2, XQA, "--random", "0", "--kv-len", "300", "--q-heads", "2", "--kv-heads", "1", "--head-dim", "8",
        "--ensemble", "2", "--backend", "oracle",
    )  # fmt: skip
    assert found.ensemble is not None
    assert sum(Fraction(s.exact) for s in found.ensemble.shares) == Fraction(found.ensemble.changed.exact)
    assert found.ensemble.interval == "range"
    assert render(found).count("fig-shares") == 2
    assert "| all that differ |" in render_markdown(found)


def test_divergence_can_fail() -> None:
    assert run(FA2, XQA, *SMALL, "--no-attribution", "--fail-on-divergence").exit_code == 1
    assert run(XQA, XQA, *SMALL, "--fail-on-divergence").exit_code == 0


def test_mistakes() -> None:
    assert "did you mean 'walkthrough.xqa'" in refused(FA2, "walkthrough.xka@h200", *SMALL)
    assert "1 sides" in refused(FA2, *SMALL)
    assert "names no platform" in refused("walkthrough.xqa", XQA, *SMALL)
    assert "no input, or more than one" in refused(FA2, XQA)
    assert "walkthrough.dense stores f64, walkthrough.xqa bf16" in refused(
        "walkthrough.dense@h200", XQA, *SMALL
    )
    assert "dim 9 of 3" in refused(FA2, XQA, *SMALL, "--dim", "9")
    assert "no axis 'head'" in refused(FA2, XQA, *SMALL, "--head", "0")
    assert "an ensemble is made of random inputs" in refused(FA2, XQA, *SMALL, "--ensemble", "3")
    same = refused(XQA, XQA, "--random", "0", "--kv-len", "40", "--ensemble", "2", "--backend", "oracle")
    assert "are the same program here" in same
    assert "given 3 times" in refused(FA2, XQA, *SMALL, *KEPT, *KEPT[:2])
    assert "it has sm_90, sm_100, sm_120" in refused(FA2, XQA, *SMALL, "--lowering", "attention@3.8.0:sm_80")
    Path("file").write_text("")
    assert "cannot be written" in refused(FA2, XQA, *SMALL, "--out", "file")
