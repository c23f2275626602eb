"""Runs what README.md and docs/*.md tell a reader to type, and compares what they say comes back.

A ``console`` block is a session: each line that begins with ``$`` runs in one shell, in a folder of the
document's own, and must print what follows it (``...`` stands for anything); a failing command must be
followed by ``$ echo $?``. A ``python`` block is executed, as a doctest where it has prompts, all blocks of a
document in one namespace. ``<!-- file: PATH -->`` before a block writes the block to that file. ``sh`` blocks
build an environment, which a test does not do again: `.ci/run` does, and must hold their first two lines.
"""

import doctest
import os
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from specs import functions
from specs.context import CONTEXT
from specs.formats import BASES, MODIFIERS
from specs.rules import rule_names

ROOT = Path(__file__).parents[1]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^(?:<!-- file: (?P<file>\S+) -->\n+)?```(?P<kind>\w+)\n(?P<text>.*?)^```$", re.M | re.S)
LINK = re.compile(r"\]\((?!https?:|#)(?P<path>[^)#\s]+)(?:#[^)]*)?\)")
MARK = "--- end of command "


@dataclass(frozen=True)
class Block:
    kind: str
    text: str
    file: str | None
    line: int


def blocks(document: Path) -> list[Block]:
    text = document.read_text(encoding="utf-8")
    return [
        Block(m["kind"], m["text"], m["file"], text.count("\n", 0, m.start("text")))
        for m in BLOCK.finditer(text)
    ]


def session(text: str) -> list[tuple[str, str]]:
    """A transcript as (command, expected output) pairs; a command ending in ``\\`` has more lines."""
    pairs: list[list[str]] = []
    open_command = False
    for line in text.splitlines():
        if line.startswith("$ "):
            pairs.append([line[2:], ""])
        elif open_command:
            pairs[-1][0] += "\n" + line
        else:
            assert pairs, f"output before any command: {line}"
            pairs[-1][1] += line + "\n"
        open_command = (line.startswith("$ ") or open_command) and line.endswith("\\")
    return [(command, output) for command, output in pairs]


def run(pairs: list[tuple[str, str]], folder: Path) -> list[tuple[int, str]]:
    """The exit code and the output (both streams) of each command, run in one shell."""
    script = "(exit 0)\n" + "".join(
        f"{command}\nstatus=$?; echo {shlex.quote(MARK)}$status; (exit $status)\n" for command, _ in pairs
    )
    environment = os.environ | {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "COLUMNS": "100",
        "NO_COLOR": "1",
        "TERM": "dumb",
    }
    done = subprocess.run(
        ["bash", "-c", script],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
        check=False,
    )
    found = re.findall(rf"(.*?){re.escape(MARK)}(\d+)\n", done.stdout, re.S)
    assert len(found) == len(pairs), done.stdout
    return [(int(code), output) for output, code in found]


def check_session(block: Block, folder: Path, document: Path) -> None:
    pairs = session(block.text)
    results = run(pairs, folder)
    checker = doctest.OutputChecker()
    for n, ((command, want), (code, got)) in enumerate(zip(pairs, results, strict=True)):
        asked = n + 1 < len(pairs) and pairs[n + 1][0] == "echo $?"
        where = f"{document.name}:{block.line}: $ {command}"
        assert code == 0 or asked, f"{where}\nexit code {code}\n{got}"
        got = "".join(line.rstrip() + "\n" for line in got.splitlines())
        if want:
            same = checker.check_output(want, got, doctest.ELLIPSIS)
            assert same, f"{where}\n--- the document says\n{want}--- it prints\n{got}"


def check_python(block: Block, names: dict[str, object], document: Path) -> None:
    name = f"{document.name}:{block.line}"
    if ">>>" not in block.text:
        exec(compile(block.text, name, "exec"), names)
        return
    test = doctest.DocTestParser().get_doctest(block.text, names, name, str(document), block.line)
    report: list[str] = []
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    failed, _ = runner.run(test, out=report.append, clear_globs=False)
    names.update(test.globs)
    assert not failed, "".join(report)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda d: d.name)
def test_what_a_reader_types(document, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "__main__"}
    for block in blocks(document):
        if block.file is not None:
            target = tmp_path / block.file
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(block.text, encoding="utf-8")
        elif block.kind == "console":
            check_session(block, tmp_path, document)
        elif block.kind == "python":
            check_python(block, names, document)
        else:
            assert block.kind in ("sh", "text", "toml", "json"), f"{document.name}:{block.line}"


def test_ci_runs_the_commands_of_the_readme():
    """One command from nothing to a report, one that passes the tests: CI types both, letter for letter."""
    ci = (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()
    commands = [line for b in blocks(ROOT / "README.md") if b.kind == "sh" for line in b.text.splitlines()]
    first, second, *_ = commands
    assert first.endswith("ulpscope report")
    assert "pytest" in second
    assert {first, second} <= set(ci)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda d: d.name)
def test_links_lead_somewhere(document):
    text = document.read_text(encoding="utf-8")
    missing = [m["path"] for m in LINK.finditer(text) if not (document.parent / m["path"]).exists()]
    assert not missing


def test_every_document_is_reachable_from_the_readme():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert {f"docs/{d.name}" for d in DOCUMENTS[1:]} <= {m["path"] for m in LINK.finditer(text)}


def test_the_architecture_names_modules_that_exist():
    """In the table of packages each name in backquotes that looks like a module or a folder stands in its package."""
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \|(.*)$", text, re.M)
    assert {package for package, _ in rows} == {"specs", "verify", "search", "reports"}
    for package, row in rows:
        named = re.findall(r"`(\w+(?:\.py|/))`", row)
        assert named
        assert not [n for n in named if not (ROOT / package / n).exists()]


def first_cells(document: Path) -> set[str]:
    """Every name in backquotes in the first cell of a table's row."""
    rows = [line.split(" | ")[0] for line in document.read_text().splitlines() if line.startswith("| `")]
    return {name for row in rows for name in re.findall(r"`([^`(]+)", row)}


def test_the_reference_names_everything():
    """docs/language.md has a table row for each function, tree, level rule, format and integer."""
    words = first_cells(ROOT / "docs" / "language.md")
    for table in (functions.FUNCTIONS, functions.TREES, functions.LEVELS, CONTEXT, BASES):
        assert set(table) <= words
    assert {f".{m}" for m in MODIFIERS} <= words
    assert set(rule_names()) <= words


def test_the_readme_lists_the_library():
    """The table of specs has exactly the specs of the library, each with the status that its file states."""
    from specs import load_spec

    table: dict[str, str] = {}
    for line in (ROOT / "README.md").read_text(encoding="utf-8").splitlines():
        found = re.match(r"\| `([a-z0-9_.]+)` \| (walkthrough|read|replayed|hardware) \|", line)
        if found:
            table[found[1]] = found[2]
    library = [path.name.removesuffix(".toml") for path in (ROOT / "specs" / "library").glob("*.toml")]
    assert table == {name: load_spec(name).file.status for name in library}


def test_no_document_names_a_machine():
    for document in (*DOCUMENTS, ROOT / "CHANGELOG.md"):
        text = document.read_text(encoding="utf-8")
        assert not re.search(r"(?<![\w.])/(?:home|root|work|tmp|opt|usr)/", text), document.name
