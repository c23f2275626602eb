"""Policies: the grammar of conditions, first match wins, what is missing fails; JUnit XML that parsers read."""

from __future__ import annotations

from xml.etree import ElementTree as Xml

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reports.runs.build import compare
from reports.runs.junit import clean, junit
from reports.runs.numbers import NUMBERS
from reports.runs.policy import judge, load_policy, parse_condition
from specs.errors import InputError
from tests.reports.runs import making
from tests.verify.metrics import made


def policy(tmp_path, text):
    file = tmp_path / "policy.toml"
    file.write_text(text)
    return load_policy(file)


def rules(*pairs):
    return "".join(f'[[rule]]\nmatch = "{match}"\nfail_if = {fail}\n' for match, fail in pairs)


@pytest.fixture(scope="module")
def report():
    return compare(making.triangle()[:3], draws=2)[0]


@pytest.mark.parametrize(
    ("text", "numbers", "expected"),
    [
        ("max_abs > 0.5", {"max_abs": 0.5}, False),
        ("max_abs >= 0.5", {"max_abs": 0.5}, True),
        ("top1_flips > 0.1%", {"top1_flips": 0.0011}, True),
        ("top1_flips > 0.1%", {"top1_flips": 0.001}, False),
        ("p99.9 > 1e-3", {"p99.9": 0.002}, True),
        ("cosine < 0.9 or max_abs > 1", {"cosine": 0.95, "max_abs": 2}, True),
        ("rms > 1 and max_abs > 1 or kl_max > 1", {"rms": 2, "max_abs": 0, "kl_max": 2}, True),
        ("rms > 1 and max_abs > 1 or kl_max > 1", {"rms": 2, "max_abs": 0, "kl_max": 0}, False),
        ("kl_max > 1", {}, None),
        ("kl_max > 1 or rms > 1", {"rms": 2}, True),
        ("kl_max > 1 or rms > 1", {"rms": 0}, None),
        ("kl_max > 1 and rms > 1", {"rms": 0}, False),
        ("max_ulp != 0", {"max_ulp": 0}, False),
        ("ppl_ratio == 1", {"ppl_ratio": 1}, True),
        ("kl_max > 1", {"kl_max": float("inf")}, True),
        ("never", {}, False),
    ],
)
def test_conditions(text, numbers, expected):
    assert parse_condition(text, "here").judge(numbers.get) is expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "max_abs",
        "max_abs > ",
        "> 1",
        "max_abs > 1 or",
        "max_abs > 1 max_abs",
        "max_abs > nan",
        "max_abs > inf",
        "max_abs > 1 + 1",
        "(max_abs > 1)",
        "__import__('os') > 1",
        "max_abz > 1",
        "health. > 1",
        "health.nan_values > 0",
        "max_abs => 1",
        "max_abs > 1" + " or max_abs > 1" * 200,
    ],
)
def test_conditions_that_are_refused(text):
    with pytest.raises(InputError):
        parse_condition(text, "here")


@given(
    st.sampled_from(sorted(NUMBERS)),
    st.sampled_from((">", ">=", "<", "<=", "==", "!=")),
    st.decimals(-1000, 1000, allow_nan=False, places=3),
    st.floats(-2000, 2000),
)
def test_a_comparison_is_that_of_python(name, sign, limit, value):
    import operator

    table = {">": "gt", ">=": "ge", "<": "lt", "<=": "le", "==": "eq", "!=": "ne"}
    expected = getattr(operator, table[sign])(value, float(limit))
    assert parse_condition(f"{name}{sign}{limit}", "here").judge({name: value}.get) is expected


def test_the_first_match_wins(tmp_path, report):
    text = rules(("b", '"max_abs > 100"'), ("*", '["max_abs > 3.5", "top1_flips > 0%"]'))
    result = judge(report, policy(tmp_path, text))
    seen = {(x.first, x.second, x.rule, x.condition): x.outcome for x in result.cases}
    # Largest differences by construction: a-b 3, a-c 4, b-c 7.
    assert seen == {
        ("a", "b", "*", "max_abs > 3.5"): "passed",
        ("a", "b", "*", "top1_flips > 0%"): "passed",
        ("a", "b", "b", "max_abs > 100"): "passed",
        ("a", "c", "*", "max_abs > 3.5"): "failed",
        ("a", "c", "*", "top1_flips > 0%"): "passed",
        ("b", "c", "b", "max_abs > 100"): "passed",
        ("b", "c", "*", "max_abs > 3.5"): "failed",
        ("b", "c", "*", "top1_flips > 0%"): "passed",
    }
    assert (result.passed, result.failed, result.errors, result.ok) == (6, 2, 0, False)
    failed = next(x for x in result.cases if x.outcome == "failed")
    assert (failed.measured, failed.text) == ({"max_abs": 4}, "max_abs > 3.5: max_abs = 4")


def test_a_coordinate_without_a_rule_is_an_error(tmp_path, report):
    with pytest.raises(InputError, match="no rule matches the coordinate 'c'"):
        judge(report, policy(tmp_path, rules(("[ab]", '"max_abs > 1"'))))


def test_globs_match_labels_and_the_reference_needs_no_rule(tmp_path):
    runs = [making.at(r, gpu="H200" if r.name == "a" else "B200") for r in making.triangle()[:3]]
    found = compare(runs, reference="a", draws=2)[0]
    result = judge(found, policy(tmp_path, rules(("B200*", '"max_abs > 3.5"'))))
    assert [(x.matched, x.outcome) for x in result.cases] == [("b", "passed"), ("c", "failed")]


def test_what_was_not_measured_cannot_pass(tmp_path, report):
    result = judge(report, policy(tmp_path, rules(("*", '"health.nan > 0 or repeats > 1"'))))
    assert {(x.first, x.second, x.outcome) for x in result.cases} == {(n, "", "error") for n in "abc"}
    lone = [made.run("x", made.sequence("p", n=3)), made.run("y", made.sequence("q", n=3))]
    apart = compare(lone, draws=2)[0]
    assert [x.outcome for x in judge(apart, policy(tmp_path, rules(("*", '"max_abs > 1"')))).cases] == [
        "error"
    ] * 2
    assert judge(apart, policy(tmp_path, rules(("*", '"never"')))).ok


def test_numbers_of_runs(tmp_path):
    one = np.array([-1.0, -2.0])
    run = made.run(
        "x",
        *(made.sequence("p", i, chosen=v, tokens=[1, 2]) for i, v in enumerate((one, one + 0.25, one))),
        kind="raw_logprobs",
    )
    found = compare([run], draws=2)[0]
    text = rules(("*", '["repeats > 1", "repeats > 2", "health.positive_logprobs > 0"]'))
    outcomes = [x.outcome for x in judge(found, policy(tmp_path, text)).cases]
    assert outcomes == ["failed", "passed", "passed"]


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("", "has no rules"),
        ("rule = 3", "rule is not a list"),
        ("[[rule]]\nfail_if = 'never'", "match is missing"),
        ("[[rule]]\nmatch = '*'", "fail_if is missing"),
        ("[[rule]]\nmatch = '*'\nfail_if = [1]", "fail_if is missing or no text"),
        ("[[rule]]\nmatch = '*'\nfail_if = 'never'\nwhen = 1", "unknown key 'when'"),
        ("rules = []", "unknown key 'rules'"),
        ("[[rule]\n", "is no TOML"),
        ("[[rule]]\nmatch = '*'\nfail_if = 'top_flips > 1'", "no number is called 'top_flips'"),
    ],
)
def test_policies_that_are_refused(tmp_path, text, cause):
    with pytest.raises(InputError, match=cause):
        policy(tmp_path, text)


def test_junit(tmp_path, report):
    names = {"a": "a <&\"' \x00\x1b ]]>", "b": "b\nc \ud83d", "c": "c"}
    odd = report.model_copy(
        update={
            "pairs": tuple(
                p.model_copy(update={"first": names[p.first], "second": names[p.second]})
                for p in report.pairs
            ),
            "coordinates": tuple(x.model_copy(update={"name": names[x.name]}) for x in report.coordinates),
        }
    )
    result = judge(odd, policy(tmp_path, rules(("*", '["max_abs > 3.5", "kl_max > 1 and repeats > 1"]'))))
    root = Xml.fromstring(junit(odd, result).encode())
    (suite,) = root.findall("testsuite")
    cases = suite.findall("testcase")
    assert int(suite.attrib["tests"]) == len(cases) == len(result.cases)
    assert int(suite.attrib["failures"]) == len(suite.findall("testcase/failure")) == result.failed == 2
    assert int(suite.attrib["errors"]) == len(suite.findall("testcase/error")) == result.errors
    assert cases[0].attrib["name"] == "a <&\"' \ufffd\ufffd ]]> | b\nc \ufffd: max_abs > 3.5"


@given(st.text())
def test_any_text_becomes_xml(text):
    element = Xml.Element("x", name=clean(text))
    back = Xml.fromstring(Xml.tostring(element, encoding="utf-8"))
    assert back.attrib["name"] == clean(text)
