"""The page of proofs: what is not proved comes first, statuses differ by more than colour, shared assumptions stand once."""

from __future__ import annotations

import re
from typing import get_args

import pytest

from reports.contract_base import to_json
from reports.prove import contract as c
from reports.prove.page import render, render_markdown
from reports.prove.view import MEANING, METHODS, ORDER, headline, shared, shown, text
from search.prove.answer import Kind, Status
from tests.reports.prove import made
from tests.reports.prove.made import text_of
from tests.reports.test_html import HOSTILE, outline

EVIL = HOSTILE + "\u202e"


@pytest.fixture(scope="module")
def page() -> str:
    return render(made.proofs())


def claim(page: str, number: int) -> str:
    """The element of a claim."""
    start = page.index(f'id="claim-{number}"')
    return page[page.rindex("<details", 0, start) : page.index("</dl></details>", start)]


def test_the_page_is_a_function_of_the_json_and_loads_nothing(page: str) -> None:
    assert render(c.Proofs.model_validate_json(to_json(made.proofs()))) == page
    found = outline(page)
    assert len(found.ids) == len(set(found.ids))
    assert {a[1:] for a in found.anchors if a.startswith("#")} <= set(found.ids)
    for name, value in found.attributes:
        assert name not in ("src", "srcset", "action", "data"), (name, value)
        assert name != "href" or str(value).startswith(("#", "data:,")), value
    assert not re.search(r"url\(|https?://|@import", page)
    assert "default-src 'none'" in page.replace("&#39;", "'")


def test_what_is_not_proved_comes_first(page: str) -> None:
    body = text_of(page[page.index("<main") :])
    said = "2 of 12 claims are refuted, 1 unknown, 1 not decided, 1 tested; 5 proved, 1 checked exhaustively, 1 refused."
    assert body.startswith(f"Proofs: equal {said}")
    parts = [
        page.index(f'id="{name}"') for name in ("open", "grids", "proved", "refused", "assumptions", "run")
    ]
    assert parts == sorted(parts)


def test_headlines() -> None:
    proved, open_one = made.proof(), made.proof("not decided")
    assert headline([]) == "Nothing was asked."
    assert headline([proved]) == "The claim is proved."
    assert headline([proved] * 1200) == "All 1,200 claims are proved."
    assert headline([open_one]) == "The claim is not decided."
    assert headline([made.proof("tested")] * 2) == "2 of 2 claims are tested; none is proved."
    assert headline([proved, open_one]) == "1 of 2 claims is not decided; 1 proved."
    assert headline([proved, made.proof("refused")]) == "Of 2 claims 1 proved, 1 refused."


def test_every_status_has_a_word_a_mark_and_an_outline_of_its_own(page: str) -> None:
    """What a colour-blind reader sees: the word, the shape of the mark, and the class that draws the outline."""
    badges = re.findall(
        r'<summary><span class="status (s-[a-z-]+)( leans)?"><svg[^>]*><path d="([^"]+)"/></svg>([a-z ]+)<',
        page,
    )
    looks = {(css, mark, word) for css, _, mark, word in badges}
    assert {word for _, _, word in looks} == {
        *("proved", "checked exhaustively", "tested", "refuted", "not decided", "unknown", "refused")
    }
    assert len({css for css, _, _ in looks}) == len({mark for _, mark, _ in looks}) == len(looks) == 7
    styles = dict(re.findall(r"^\.status\.(s-[a-z-]+(?:\.leans)?)[^{]*\{([^}]*)\}", page, re.M))
    assert "dashed" in styles["s-tested"]
    assert "--good" not in styles["s-tested"]
    assert "--good" in styles["s-proved"]
    assert "dashed" in styles["s-proved.leans"]


def test_every_status_and_kind_of_question_is_explained() -> None:
    assert set(METHODS) == set(get_args(Kind))
    assert set(MEANING) == set(ORDER) == set(get_args(Status))


def test_a_proof_that_rests_on_a_test_says_so(page: str) -> None:
    leaning, plain = claim(page, 3), claim(page, 2)
    assert "rests on something that was only tested" in text_of(leaning)
    assert 'class="status s-proved leans"' in leaning
    assert "only tested" in text_of(leaning[leaning.index("assumes") :])
    assert "only tested" not in text_of(plain)
    assert "leans" not in plain
    assert "1 of the claims that hold rests on something that was only tested" in text_of(page)
    assert "- **proved, resting on something that was only tested**: walkthrough.triton" in render_markdown(
        made.proofs()
    )


def test_a_claim_with_everything(page: str) -> None:
    said = text_of(claim(page, 4))
    assert "walkthrough.xqa@h200 and walkthrough.xqa@b200 equal bits" in said
    assert "why head 3, column 17: 1.3203125 (0x3fa9) against 1.328125 (0x3faa)" in said
    assert "method structure of two programs" in said
    assert "assumes A1 " in said
    assert (
        "re-checked ulpscope compare walkthrough.xqa@h200 walkthrough.xqa@b200 --random 1 --kv-len 512"
        in said
    )
    assert "bits, walkthrough.xqa@h200 0x3fa9 bits, walkthrough.xqa@b200 0x3faa" in said
    assert f"walkthrough.xqa {made.sha('walkthrough.xqa')[:12]} on h200" in said
    assert said.endswith("took 0.25 s")
    said = text_of(claim(page, 5))
    assert (
        "counterexample: exp scores 2/3, 4/3 counterexample: attention 8/5 counterexample: spec 11/5" in said
    )
    assert "on h200, with rescale = false" in said
    assert "assumes nothing is listed re-checked by no other means" in text_of(claim(page, 6))
    for version in ("z3-solver 4.15.0", "sympy 1.14.0"):
        assert version in text_of(page)


def test_shared_assumptions_stand_once(page: str) -> None:
    claims = shown(made.every())
    known = shared(claims)
    # by hand: 8 of the claims assume the unit and 3 the domain; the others are of one claim each
    assert [(a.number, a.text, a.claims) for a in known] == [(1, made.UNIT, 8), (2, made.DOMAIN, 3)]
    body = page[page.index("<main") :]
    assert body.count(f">{made.UNIT}<") == 1  # elsewhere it is a hint of a link
    assert body.count('href="#assumption-1"') == 8
    assert body.count('href="#assumption-2"') == 3
    assert body.count("the spec takes the shape: its 4 requirements hold") == 1


def test_the_table_of_a_library_leads_to_its_claims() -> None:
    report = made.library(3)
    page = render(report)
    table = page[
        page.index('<table class="proofs"') : page.index("</table>", page.index('<table class="proofs"'))
    ]
    assert re.findall(r'href="#(claim-\d+)"', table) == [f"claim-{i}" for i in range(1, 19)]
    assert "made.kernel_2" in text_of(claim(page, 13))
    assert "| `made.kernel_0` | proved |" in render_markdown(report)
    assert re.findall(r'<details class="group"( open)?>', page) == [""] * 3
    assert "rests on a test" not in page


def test_a_group_says_that_a_proof_in_it_rests_on_a_test() -> None:
    claims = tuple(
        made.partition(f"made.s{i}", assumptions=(made.TESTED,) if i == 7 else ()) for i in range(20)
    )
    page = render(made.proofs(claims))
    groups = re.findall(r'<details class="group"><summary>(.*?)</summary>', page)
    assert [i for i, g in enumerate(groups) if "1 rests on a test" in text_of(g)] == [7]


def test_hundreds_of_claims_are_folded_and_thousands_are_cut() -> None:
    page = render(made.library(80))
    assert len(page.encode()) < 2_000_000
    assert page.count('<details class="claim') == 482
    assert page.count('" open>') == 2  # the two that are not proved
    page = render(made.library(450))
    assert len(page.encode()) < 2_000_000
    assert "more in the JSON" in page


def test_a_page_is_small_whatever_it_holds() -> None:
    huge = made.proof(assumptions=("&" * 90_000,), details={str(i): "&" * 90_000 for i in range(90)})
    page = render(made.proofs((huge,) * 40))
    assert len(page.encode()) < 2_000_000
    assert "40 proved" in text_of(page) or "All 40 claims are proved." in text_of(page)
    assert "more in the JSON" in page


def test_hostile_texts_stay_text() -> None:
    evil = made.proof(
        "refuted",
        subject=EVIL,
        claim=EVIL,
        reason=EVIL * 60,
        assumptions=(EVIL, EVIL * 90),
        rechecked=EVIL,
        details={EVIL: {EVIL: EVIL}, "bits": [EVIL, EVIL], "list": [[EVIL]], "replay": f"ulpscope {EVIL}"},
        about=(made.side(EVIL, EVIL, **{"x": EVIL}), made.side(EVIL, EVIL)),
    )
    row = c.SpecProofs(spec=EVIL, proofs={EVIL: evil})
    report = made.proofs(question="library", proofs=None, specs=(row,), others=(evil,), platforms=(EVIL,))
    about = c.Provenance(command=EVIL, started=EVIL, seconds=1.0, versions={EVIL: EVIL})
    page = render(report.model_copy(update={"provenance": about}))
    assert "<img" not in page
    assert "\u202e" not in page
    assert len(outline(page).scripts) == 1
    assert not [n for n, _ in outline(page).attributes if n.startswith("on")]
    markdown = re.sub(r"(`+)[^`].*?[^`]\1(?!`)", "", render_markdown(report))
    assert "<img" not in markdown.replace("\\<img", "")


def test_a_bound_is_never_rounded_below_itself() -> None:
    bounds = [1.0131, 2.0142615370774575, 8303.2501, 1.0, 0.9999999]
    claims = [made.proof(kind="bound", details={"real_ulp": x}) for x in bounds]
    assert [x.bound for x in shown(claims)] == ["1.014", "2.015", "8,303.251", "1.000", "1.000"]
    others = (
        made.proof("not decided", "bound", details={"real_ulp": 1.5}),
        made.proof(details={"real_ulp": "x"}),
    )
    assert [x.bound for x in shown(others)] == ["", ""]


def test_figures_as_text() -> None:
    assert text(True) == "yes"
    assert text(27525) == "27,525"
    assert text(2.0142615370774575) == "2.01426154"
    assert text(list(range(70))).endswith("62, 63, and 6 more")
    assert text(["a head of 128", "bf16 or f16"]) == "a head of 128; bf16 or f16"
    assert text([[0, 128], [128, 256]]) == "[[0, 128], [128, 256]]"
    assert len(text([[1] * 9000])) == 1201
