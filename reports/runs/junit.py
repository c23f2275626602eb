"""What a policy says as JUnit XML: one test case for each pair and condition."""

from __future__ import annotations

import re
from xml.etree import ElementTree as Xml

from reports.runs import contract as c

# XML 1.0, section 2.2: what no document may hold, not even escaped; and what turns the direction of writing.
_FORBIDDEN = re.compile(
    "[^\t\n\r\x20-\x7e\xa0-\u200d\u2010-\u2029\u202f-\u2065\u206a-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]"
)


def clean(text: str) -> str:
    """``text`` with characters replaced that XML cannot hold or that turn the direction of writing."""
    return _FORBIDDEN.sub("\ufffd", text)


def junit(report: c.DivergenceReport, result: c.PolicyResult) -> str:
    """The XML of what a policy says."""
    cases = result.cases
    suite = Xml.Element(
        "testsuite",
        name="ulpscope compare",
        tests=str(len(cases)),
        failures=str(result.failed),
        errors=str(result.errors),
        skipped="0",
        timestamp=report.provenance.started.removesuffix("Z"),
        time=f"{report.provenance.seconds:.3f}",
    )
    properties = Xml.SubElement(suite, "properties")
    for name, value in (
        ("policy", result.file),
        ("policy_sha256", result.sha256),
        ("command", report.provenance.command),
        ("verdict", report.verdict.headline),
    ):
        Xml.SubElement(properties, "property", name=name, value=clean(value))
    for one in cases:
        who = " | ".join(x for x in (one.first, one.second) if x)
        case = _case(suite, f"{result.file}: {one.rule}", f"{who}: {one.condition}")
        if one.outcome != "passed":
            kind = "failure" if one.outcome == "failed" else "error"
            Xml.SubElement(case, kind, message=clean(one.text), type=one.outcome).text = clean(
                f"{who}, by the rule for {one.matched}: {one.text}"
            )
    root = Xml.Element("testsuites")
    root.append(suite)
    Xml.indent(root)
    return Xml.tostring(root, encoding="unicode", xml_declaration=False).join(
        ('<?xml version="1.0" encoding="UTF-8"?>\n', "\n")
    )


def _case(suite: Xml.Element, group: str, name: str) -> Xml.Element:
    return Xml.SubElement(suite, "testcase", classname=clean(group), name=clean(name), time="0")
