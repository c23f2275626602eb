"""A report of runs from a file that somebody sends."""

from __future__ import annotations

from reports.reading import Readable, read
from reports.runs.contract import SCHEMA_ID, DivergenceReport

NAME = "report.json"
REPORT = Readable(
    model=DivergenceReport,
    schema_id=SCHEMA_ID,
    name=NAME,
    noun="report",
    kind="report of runs",
    again="make the report again with: ulpscope report RUN ...",
    why="only reports of runs are compared",
    instead="name the report.json of `ulpscope report RUN ...` or `ulpscope compare RUN ... --out`",
    none=f"name the {NAME} of `ulpscope report RUN ...`",
)


def read_report(name: str) -> DivergenceReport:
    """The report in a file, or in the report.json of a folder.

    Raises:
        InputError: there is none, it is too large, no JSON, cut off, another kind of report, or of another version.
    """
    return read(name, REPORT)
