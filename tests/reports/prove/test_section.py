"""Which claims a report shows: those about its specs by hash, and never one that has only their name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from reports.cli import app
from reports.contract import from_json, json_schema
from reports.contract_base import to_json
from reports.html import render
from reports.markdown import render_markdown
from reports.prove import contract as c
from reports.prove.section import ProofFile, ProofSection, Subject, proof_section
from reports.prove.sectioning import SectionView
from reports.runs import build as runs_build
from reports.runs import page as runs_page
from reports.runs.build import compare
from reports.runs.markdown import render_markdown as runs_markdown
from reports.runs.prediction import Prediction
from reports.runs.reading import read_report
from specs import load_platform, load_spec
from tests.commands import invoke
from tests.reports import synthetic
from tests.reports.prove import made
from tests.reports.prove.made import text_of
from tests.reports.runs import making
from tests.reports.test_html import outline
from tests.verify.metrics import made as metrics
from verify.runs.folder import write_run

XQA, TRITON = "walkthrough.xqa", "walkthrough.triton"
RUNS: tuple[tuple[str, tuple[tuple[int, float], ...]], ...] = (("a", ()), ("b", ((1, 2.0),)))
#: A report on two specs and two platforms, and one spec that is only shown.
SUBJECT = Subject(
    specs={n: made.sha(n) for n in (XQA, TRITON, "walkthrough.tiled")},
    platforms={p: made.sha(p) for p in ("h200", "b200")},
    cells=frozenset({(XQA, "h200"), (TRITON, "h200"), (TRITON, "b200")}),
)


def section(*claims: c.Proof, subject: Subject = SUBJECT) -> ProofSection:
    file = ProofFile(
        name="proofs.json", sha256=made.sha("file"), command="ulpscope prove ...", started="today",
        versions={"z3-solver": "4.15.0"}, claims=len(claims),
    )  # fmt: skip
    return proof_section([(file, made.proofs(claims))], subject)


def fit(*about: c.Side) -> tuple[str, str] | None:
    """How a claim about some sides fits, with its first remark; None: it is left out."""
    found = section(made.proof(about=about))
    if not found.claims:
        assert found.left_out == 1
        return None
    (one,) = found.claims
    return one.fit, one.remarks[0] if one.remarks else ""


def test_claims_that_fit() -> None:
    assert fit(made.side(XQA, "h200")) == ("here", "")
    assert fit(made.side(XQA, "h200"), made.side(TRITON, "b200")) == ("here", "")
    assert fit(made.side("", "h200"), made.side("", "b200")) == ("here", "")
    assert fit(made.side("walkthrough.tiled", "b200", "a100")) == ("here", "does not cover h200")
    assert fit(made.side(TRITON, "h200", "a100")) == ("here", "does not cover b200")


def test_claims_that_fit_in_part() -> None:
    assert fit(made.side(XQA, "h200"), made.side(XQA, "h100")) == (
        "partly",
        "walkthrough.xqa does not run on h100 in this report",
    )
    assert fit(made.side(XQA, "h200"), made.side("xqa.decode", "h200")) == (
        "partly",
        "xqa.decode is not in this report",
    )
    assert fit(made.side("", "h200"), made.side("", "l40s")) == ("partly", "l40s is not in this report")


def test_claims_that_do_not_concern_the_report() -> None:
    assert fit(made.side("xqa.decode", "h200")) is None
    assert fit(made.side(XQA, "b200")) is None  # it runs on h200 alone there
    assert fit(made.side("walkthrough.tiled", "a100")) is None
    assert fit(made.side("", "a100"), made.side("", "l40s")) is None


def test_a_name_alone_is_not_the_spec() -> None:
    theirs, ours = made.sha("other text")[:12], made.sha(XQA)[:12]
    found = fit(made.side(XQA, "h200", text="other text"))
    assert found == ("other", f"about another text of {XQA}: sha256 {theirs}…, in this report {ours}…")
    # however much the other side fits
    assert fit(made.side(TRITON, "h200"), made.side(XQA, "h200", text="other text")) == found
    changed = fit(made.side(XQA, "h200", window="0"))
    assert changed == ("other", f"about {XQA} with window = 0, not as it is in this report")
    wrong = made.side(XQA, "h200").model_copy(update={"platforms": {"h200": made.sha("mine")}})
    assert fit(wrong) == ("other", "about another declaration of platform h200 than in this report")


def test_what_is_counted_is_what_fits() -> None:
    other = made.proof(about=(made.side(XQA, "h200", text="x"),))
    here = made.proof(about=(made.side(XQA, "h200"),))
    found = section(here, here, other, made.proof("refuted", about=(made.side(TRITON, "b200"),)))
    assert found.headline == "3 claims about this report: 1 refuted, 2 proved"
    assert (
        section(other).headline
        == "No claim of these files is about the specs of this report as they are here"
    )


@pytest.fixture(scope="module")
def shown() -> ProofSection:
    foreign = made.proof(about=(made.side(XQA, "h200", text="other text"),))
    partly = made.proof("not decided", reason="let auto differs")
    return section(made.partition(), made.partition(TRITON), made.refuted(), foreign, partly)


def test_a_report_with_proofs(shown: ProofSection) -> None:
    report = synthetic.report().model_copy(update={"proofs": shown})
    assert from_json(to_json(report)) == report
    pytest.importorskip("jsonschema").validate(json.loads(to_json(report)), json_schema())
    page = render(report)
    found = outline(page)
    assert len(found.ids) == len(set(found.ids))
    assert {a[1:] for a in found.anchors if a.startswith("#")} <= set(found.ids)
    said = text_of(page[page.index('id="proofs"') :])
    assert "nothing was proved again for this report" in said
    assert "2 claims about this report: 2 proved. 1 more is not about these specs as they are here." in said
    assert "not about this spec about another text of walkthrough.xqa: sha256 " in said
    assert "in part about this report" in said
    assert "A2 the domain: kv_len to 2^20; query heads are a multiple of KV heads 2 claims" in said
    markdown = render_markdown(report)
    assert "## Proofs" in markdown
    assert "(**not about this spec**)" in markdown
    assert "- here: does not cover b200" not in markdown


def test_a_section_is_small_whatever_it_holds() -> None:
    huge = made.proof(details={str(i): "x" * 90_000 for i in range(90)}, about=(made.side(XQA, "h200"),))
    views = [SectionView.of(section(*(claim,) * n)) for claim, n in ((huge, 50), (made.partition(), 290))]
    assert [v.most for v in views if v is not None] == [8, 300]


def test_a_report_without_proofs_has_no_such_key() -> None:
    report = synthetic.report()
    assert "proofs" not in json.loads(to_json(report))
    assert 'id="proofs"' not in render(report)


def test_a_report_of_runs_with_proofs(shown: ProofSection, tmp_path: Path) -> None:
    runs = [metrics.run(name, metrics.sequence(values=making.moved(4, *steps))) for name, steps in RUNS]
    report = compare(runs)[0].model_copy(update={"proofs": shown})
    (tmp_path / "report.json").write_text(to_json(report))
    assert read_report(str(tmp_path)) == report
    found = outline(page := runs_page.render(report))
    assert len(found.ids) == len(set(found.ids))
    assert {a[1:] for a in found.anchors if a.startswith("#")} <= set(found.ids)
    assert "not about this spec about another text of walkthrough.xqa" in text_of(page)
    assert "## Proofs" in runs_markdown(report)
    assert "proofs" not in json.loads(to_json(compare(runs)[0]))


def test_candidates_are_what_a_report_of_runs_is_about(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``report RUN ... --candidate SPEC@PLATFORM --proofs FILE``, without the emulation of the candidates."""
    for name, steps in RUNS:
        one = metrics.sequence("q", values=making.moved(4, *steps))
        write_run(tmp_path / "all" / name, metrics.run(name, one).manifest, (one,), form="npz")
    spec, h200 = load_spec(XQA), load_platform("h200")
    own = c.Side(spec=XQA, sha256=spec.content_hash, changes={}, platforms={"h200": h200.content_hash})
    given = made.proofs((made.proof(about=(own,)), made.proof(about=(made.side(XQA, "h200"),))))
    (tmp_path / "proofs.json").write_text(to_json(given))
    monkeypatch.setattr(runs_build, "predict_section", lambda *_, **__: Prediction(headline="made"))
    invoke(
        app, "report", str(tmp_path / "all"), "--candidate", f"{XQA}@h200", "--proofs", str(tmp_path),
        "-o", str(tmp_path / "out"),
    )  # fmt: skip
    report = read_report(str(tmp_path / "out"))
    assert report.verdict.points[-1] == "Proofs: 1 claim about this report: 1 proved."
    found = report.proofs
    assert found is not None
    assert [x.fit for x in found.claims] == ["here", "other"]
