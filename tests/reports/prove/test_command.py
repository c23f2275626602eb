"""``ulpscope prove``: its files, its schema, what hashes it states; and ``ulpscope report --proofs``."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from reports import build
from reports.cli import app
from reports.contract_base import to_json
from reports.kernels.contract import from_text
from reports.prove import contract as c
from reports.prove.page import render, render_markdown
from reports.prove.section import ProofFile, Subject, proof_section
from reports.prove.view import shown
from search.prove import partition
from search.prove.contracts import Checked
from specs import load_platform, load_spec
from tests.commands import invoke
from tests.reports import synthetic
from tests.reports.prove import made
from tests.reports.prove.made import text_of
from tests.verify.capture.test_cli import SAMPLE

XQA = "walkthrough.xqa"
SPLITS = ("partition", "walkthrough.flash_attention_2@h200", "--kv-len", "27525", "--find", "batch")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_schema() -> None:
    out, _ = invoke(app, "prove", "--schema")
    assert json.loads(out) == c.json_schema()


def test_files_in_a_folder(folder: Path) -> None:
    out, _ = invoke(app, "prove", *SPLITS, "-o", "out")
    assert out.startswith("walkthrough.flash_attention_2@h200: the batch from which on")
    assert out.splitlines()[-3:] == ["out/proofs.html", "out/proofs.md", "out/proofs.json"]
    found = c.Proofs.model_validate_json((folder / "out" / "proofs.json").read_text())
    assert (folder / "out" / "proofs.html").read_text() == render(found)
    assert (folder / "out" / "proofs.md").read_text() == render_markdown(found)
    assert found.question == "partition"
    assert {"z3-solver", "sympy", "python-flint", "ulpscope"} <= set(found.provenance.versions)
    (one,) = found.claims
    assert (one.kind, one.status) == ("values", "exhaustive")
    assert (
        one.about[0].sha256
        == hashlib.sha256(load_spec("walkthrough.flash_attention_2").to_toml().encode()).hexdigest()
    )
    assert one.about[0].platforms == {"h200": load_platform("h200").content_hash}


def test_a_page_alone_goes_to_a_folder_of_its_own(folder: Path) -> None:
    out, err = invoke(app, "prove", *SPLITS, "--format", "html")
    (made_folder,) = (folder / "runs").iterdir()
    assert sorted(p.name for p in made_folder.iterdir()) == ["proofs.html", "proofs.json", "proofs.md"]
    assert out.splitlines()[0] == "1 checked exhaustively"
    assert out.splitlines()[1] == f"runs/{made_folder.name}/proofs.html"
    assert "checked exhaustively  [" in err


def test_json_is_the_contract_whatever_is_written_besides(folder: Path) -> None:
    out, _ = invoke(
        app, "prove", "equal", "--platforms", "a100,l40s", "--dot", "bf16", "--format", "json", "-o", "out"
    )
    found = c.Proofs.model_validate_json(out)
    assert to_json(found) == (folder / "out" / "proofs.json").read_text()
    assert [(s.spec, s.sha256, list(s.platforms)) for s in found.claims[0].about] == [
        ("", None, ["a100"]),
        ("", None, ["l40s"]),
    ]


def test_a_folder_that_cannot_be_written_to_is_refused_before_anything_is_proved(folder: Path) -> None:
    (folder / "file").write_text("")
    out, err = invoke(app, "prove", *SPLITS, "-o", "file", code=2)
    assert out == ""
    assert "file: cannot be written" in err
    assert "choose another folder with -o" in err


def test_a_mistake_leaves_no_folder(folder: Path) -> None:
    invoke(app, "prove", "partition", "no.such.spec", "-o", "out", code=2)
    assert not (folder / "out").exists()


def test_assumptions_that_were_only_tested_are_known_by_their_words(monkeypatch: pytest.MonkeyPatch) -> None:
    """A contract that has no whole grid: the page finds the words that `search.prove.partition` then uses."""
    monkeypatch.setattr(partition, "check", lambda name, counts: Checked(False, 7, "over seven batches"))
    spec = load_spec("walkthrough.flash_attention_2")
    found = partition.prove_partition(spec, {"h200": load_platform("h200")}, recheck=False)
    assert found.status == "proved"
    (one,) = shown([made.partition(assumptions=found.assumptions)])
    assert one.leans
    assert [a.tested for a in one.assumptions] == ["over seven batches" in a for a in found.assumptions]


@pytest.fixture
def capture_proofs(folder: Path) -> Path:
    """A file with a claim about the spec of the packaged capture, and one about another text of it."""
    spec, platform = load_spec("torch_cpu.sdpa_flash"), load_platform("amd_avx512")
    own = c.Side(
        spec=spec.name, sha256=spec.content_hash, changes={}, platforms={platform.name: platform.content_hash}
    )
    foreign = own.model_copy(update={"sha256": made.sha("other")})
    claims = (*(made.partition(spec.name, about=(side,)) for side in (own, foreign)), made.refuted())
    path = folder / "given.json"
    path.write_text(to_json(made.proofs(claims)))
    return path


def test_a_capture_with_proofs(folder: Path, capture_proofs: Path) -> None:
    out, _ = invoke(app, "report", SAMPLE, "--proofs", str(capture_proofs), "-o", "out")
    assert "  Proofs: 1 claim about this report: 1 proved." in out.splitlines()
    found = from_text((folder / "out" / "report.json").read_text()).proofs
    assert found is not None
    assert [x.fit for x in found.claims] == ["here", "other"]
    assert (found.left_out, found.files[0].name) == (1, "given.json")
    page = (folder / "out" / "report.html").read_text()
    assert "1 claim about this report: 1 proved" in text_of(page)
    assert "not about this spec about another text of torch_cpu.sdpa_flash" in text_of(page)
    assert "## Proofs" in (folder / "out" / "report.md").read_text()


def test_a_report_gives_its_files_of_proofs_to_the_build(
    capture_proofs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[int] = []

    def main_report(**options: object) -> object:
        files = options["proofs"]
        assert isinstance(files, list)
        given.extend(len(proofs.claims) for _, proofs in files)
        return synthetic.report()

    monkeypatch.setattr(build, "main_report", main_report)
    invoke(app, "report", "--proofs", str(capture_proofs), "--proofs", str(capture_proofs), "-o", "out")
    assert given == [3, 3]


def test_what_the_build_makes_of_them() -> None:
    """The specs of the report by their own hashes: a claim about XQA on H200 fits, one about other platforms does not."""
    spec, h200 = load_spec(XQA), load_platform("h200")
    side = c.Side(spec=XQA, sha256=spec.content_hash, changes={}, platforms={"h200": h200.content_hash})
    (target,) = build.make_targets([XQA], ["h200"])
    subject = Subject.of([(target.spec, target.platform)], [load_spec("walkthrough.dense")])
    assert set(subject.specs) == {XQA, "walkthrough.dense"}
    far = side.model_copy(update={"platforms": {"h100": load_platform("h100").content_hash}})
    found = proof_section(
        [(_file(2), made.proofs((made.proof(about=(side,)), made.proof(about=(far,)))))], subject
    )
    assert [x.fit for x in found.claims] == ["here"]
    assert found.left_out == 1


def _file(claims: int) -> ProofFile:
    return ProofFile(name="x", sha256=made.sha("x"), command="", started="", versions={}, claims=claims)


@pytest.mark.parametrize(
    ("arguments", "cause"),
    [
        (("diff", "a", "b"), "--proofs: does not go with diff"),
        (("--campaign", "c"), "--proofs: does not go with --campaign"),
        (("run_folder",), "--proofs: runs alone name no specs that a claim could be about"),
    ],
)
def test_reports_that_have_no_specs(capture_proofs: Path, arguments: tuple[str, ...], cause: str) -> None:
    out, err = invoke(app, "report", *arguments, "--proofs", str(capture_proofs), code=2)
    assert (out, cause in err) == ("", True), err


def test_a_file_that_is_none_is_refused_before_anything_is_computed(folder: Path) -> None:
    (folder / "old.json").write_text('{"schema": 1, "proofs": []}')
    for arguments in (("--teaching",), (SAMPLE,)):
        out, err = invoke(app, "report", *arguments, "--proofs", "old.json", code=2)
        assert out == ""
        assert "old.json: is no file of proofs: it states no schema_id" in err
    assert not (folder / "runs").exists()


@pytest.mark.parametrize(
    "option", [("-c", "nan"), ("-c", "inf"), ("-c", "1.0000001"), ("--seconds", "nan"), ("--seconds", "inf")]
)
def test_numbers_that_are_no_limits_are_refused(option: tuple[str, str]) -> None:
    cells = ("walkthrough.xqa@h200", "walkthrough.triton@h200")
    _, err = invoke(app, "prove", "bound", *cells, "--kv-len", "99", *option, code=2)
    assert {"-c": "--cancellation"}.get(option[0], option[0]) in err
