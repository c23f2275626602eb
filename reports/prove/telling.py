"""How answers are told: as text, as JSON, and as files in a folder."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING

from reports.contract_base import to_json
from reports.folder import write_files
from reports.prove import contract as c
from reports.prove.build import library_report, proofs_report
from search.prove.answer import weakest, words
from verify.console import Answer, command_line

if TYPE_CHECKING:
    from search.prove.answer import Proof
    from search.prove.library import Library

NAME = "proofs.json"


@dataclass(frozen=True)
class Telling:
    """One question under way.

    Attributes:
        answer: where to say it.
        question: the sub-command.
        folder: of the files; None: none are written.
        brief: whether only the verdict and the files are told.
        began: `time.perf_counter` when it began.
    """

    answer: Answer
    question: c.Question
    folder: Path | None
    brief: bool = False
    began: float = field(default_factory=perf_counter)

    def say(self, found: Iterable[Proof]) -> None:
        """Tell proofs; a refuted claim is an answer, not a failure.

        Raises:
            InputError: the folder cannot be written to.
        """
        every = list(found)
        report = proofs_report(self.question, every, command=command_line(), began=self.began)
        lines = [line for proof in every for line in proof.lines()]
        self._tell(report, lines, words(weakest(p.status for p in every)))

    def say_library(self, found: Library) -> None:
        """Tell the answers on a library, as `say`."""
        report = library_report(found, command=command_line(), began=self.began)
        self._tell(report, found.lines(), found.verdict())

    def _tell(self, report: c.Proofs, lines: list[str], verdict: str) -> None:
        paths = [] if self.folder is None else write(report, self.folder)
        self.answer.data(report.model_dump(mode="json"))
        for line in [report.verdict] if self.brief else lines:
            self.answer.text(line)
        for path in paths:
            self.answer.text(str(path))
        self.answer.close(verdict)


def write(report: c.Proofs, folder: Path) -> list[Path]:
    """Write the page, the Markdown and the JSON, each whole or not at all.

    Raises:
        InputError: the folder cannot be written to.
    """
    from reports.prove.page import render, render_markdown

    return write_files(
        folder,
        {"proofs.html": render(report), "proofs.md": render_markdown(report), NAME: to_json(report)},
    )
