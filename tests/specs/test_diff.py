"""The difference of two specs, and a spec on a page."""

from __future__ import annotations

import json

import pytest

from specs import load_spec, parse_spec
from specs.diff import DiffLine, diff
from specs.discover import every
from specs.show import rows, show_json, show_rich, show_text

A = """
schema = 1
name = "a"
status = "read"
summary = ""
[numbers]
compute = "f32"
inputs = { q = "bf16", k = "bf16", v = "bf16" }
[options]
fast = true
[let]
n = "4"
[levels]
split = "pieces(n, unit=64)"
block = "tiles(64)"
[token]
score = "sum(q*k, seq())"
[split]
top = "max(score)"
norm = "sum(exp(score - top), seq())"
[row]
total = "sum(norm, seq())"
output = "total"
[[variant]]
when = "causal == 1"
[variant.row]
output = "total + 1"
"""
B = """
schema = 1
name = "b"
status = "read"
summary = "other"
[numbers]
compute = "f32.ftz"
inputs = { q = "bf16", k = "bf16", v = "bf16" }
[levels]
segment = "pieces(16, unit=16)"
lane = "view(4, pos(token) % 4)"
[state.segment]
m = "-inf"
[token]
score = "sum(q * k,  seq())"
[segment]
m = "max(prev(m), top)"
top = "max(score)"
norm = "sum(exp(score - m), seq())"
[row]
output = "sum(norm, seq())"
[[variant]]
when = "causal == 1"
drop = ["norm"]
[variant.row]
output = "1"
[[variant]]
when = "batch == 1"
[variant.let]
n = "5"
"""
a, b = parse_spec(A), parse_spec(B)


def test_lines_meet_by_role_and_name() -> None:
    found = {(line.role, line.site): line for line in diff(a, b).lines}
    assert found["numbers", "compute"].change == "changed"
    assert found["options", "fast"] == DiffLine("options", "fast", "only_a", "true", None)
    assert found["let", "n"] == DiffLine("let", "n", "only_a", "4", None)
    assert found["token", "score"].change == "same", "spaces are no difference"
    assert found["level 2", "tokens"] == DiffLine(
        "level 2", "tokens", "changed", "pieces(n, unit=64)", "pieces(16, unit=16)", "split", "segment"
    ), "the two levels that share sites"
    assert found["level 1", "tokens"] == DiffLine(
        "level 1", "tokens", "only_a", "tiles(64)", None, "block", None
    )
    assert found["views", "lane"].change == "only_b"
    assert found["level 2", "top"].change == "same"
    assert found["level 2", "m"].change == "only_b"
    assert found["level 2", "norm"].change == "changed"
    assert found["state of level 2", "m"].change == "only_b"
    assert found["row", "total"].change == "only_a"
    assert found["row", "output"] == DiffLine(
        "row", "output", "changed", "total", "sum(norm, seq())", "row", "row"
    )
    assert found["variant causal == 1: row", "output"].change == "changed"
    assert found["variant causal == 1", "drop"].b == "norm"
    assert found["variant batch == 1: let", "n"].change == "only_b"


def test_lines_only_in_the_second_stand_where_they_stand_there() -> None:
    sites = [line.site for line in diff(a, b).lines if line.role == "level 2" and line.site != "tokens"]
    assert sites == ["m", "top", "norm"]


def test_text_of_a_difference() -> None:
    text = diff(a, b).to_text()
    assert (
        "[level 2: split / segment]\n- tokens  = pieces(n, unit=64)\n+ tokens  = pieces(16, unit=16)\n"
        in text
    )
    assert "[row]\n- total   = sum(norm, seq())\n- output  = total\n+ output  = sum(norm, seq())\n" in text
    assert "sum(q*k" not in text
    assert "  score   = sum(q*k, seq())" in diff(a, b).to_text(unchanged=True)


@pytest.mark.parametrize("name", [f.name for f in every() if f.kind == "library"])
def test_a_spec_does_not_differ_from_itself(name: str) -> None:
    spec = load_spec(name)
    found = diff(spec, parse_spec(spec.to_toml()))
    assert found.same
    assert set(found.counts()) == {"same", "changed", "only_a", "only_b"}
    assert sum(found.counts().values()) == found.counts()["same"] == len(found.lines)


def test_a_difference_turns_round() -> None:
    forth, back = diff(a, b), diff(b, a)
    turn = {"same": "same", "changed": "changed", "only_a": "only_b", "only_b": "only_a"}
    assert {(x.site, turn[x.change], x.a, x.b) for x in forth.lines} == {
        (x.site, x.change, x.b, x.a) for x in back.lines
    }


def test_the_walkthroughs_difference_is_the_issues_table() -> None:
    """XQA rounds the weight for both sums; FlashAttention-2 only for the value sum."""
    lines = diff(load_spec("walkthrough.flash_attention_2"), load_spec("walkthrough.xqa")).lines
    changed = {line.site: (line.a, line.b) for line in lines if line.change == "changed"}
    assert changed["weight"] == ("exp(score - safe)", "bf16(exp(score - safe))")
    assert changed["value"] == ("sum(bf16(weight) * v, seq())", "sum(weight * v, seq())")
    assert "norm" not in changed
    assert "score" not in changed


def test_json_of_a_difference() -> None:
    data = json.loads(json.dumps(diff(a, b).to_json()))
    assert (data["schema"], data["a"], data["b"], data["same"]) == (1, "a", "b", False)
    assert data["lines"][0] == {
        "role": "numbers",
        "site": "compute",
        "change": "changed",
        "a": "f32",
        "b": "f32.ftz",
        "section_a": None,
        "section_b": None,
    }


@pytest.mark.parametrize("name", [f.name for f in every() if f.kind == "library"])
def test_a_spec_fits_on_a_page(name: str) -> None:
    spec = load_spec(name)
    text = show_text(spec)
    lines = text.splitlines()
    before = [line.startswith("variant") for line in [*lines, "variant"]].index(True)
    assert before < (45 if name.startswith("walkthrough.") else 85), "but for its variants"
    assert len(lines) < 140
    assert show_rich(spec).plain == text
    for section, sites in spec.sections.items():
        for site, expression in sites.items():
            assert any(r[1:] == (site, expression) for r in rows(spec)), (section, site)


def test_sections_are_shown_from_the_token_outwards() -> None:
    headings = [r[0] for r in rows(load_spec("flash_attn2.splitkv_decode")) if r[0]]
    assert [h for h in headings[: headings.index("variant")] if h != "require"] == [
        "numbers", "options", "let", "constants", "levels", "state of split", "token", "block", "split", "row",
    ]  # fmt: skip


def test_json_of_a_spec() -> None:
    spec = load_spec("walkthrough.xqa")
    data = json.loads(json.dumps(show_json(spec)))
    assert data["name"] == "walkthrough.xqa"
    assert data["content_hash"] == spec.content_hash
    assert [s["section"] for s in data["sections"]] == ["token", "group", "row"]
    assert data["sections"][1]["sites"] == spec.sections["group"]
    assert data["schema"] == 1
