"""The database: what it refuses, and what a full disk leaves."""

from __future__ import annotations

import os
import shutil
import sqlite3
import stat
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from search.campaign import load, resume, start
from search.campaign.database import FILE, TABLES, Database, StorageError, locked
from search.campaign.engines import Ended
from search.campaign.work import call, read_reply
from specs.errors import InputError
from tests.search.campaign import working
from tests.search.campaign.making import campaign, results
from tests.search.campaign.working import name, outcome


class Here:
    """An engine in this process: one case at a time."""

    label = "here"

    def __init__(self) -> None:
        self.done: list[Ended] = []

    def capacity(self) -> int:
        return 1

    def submit(self, key: str, group: str, payload: str) -> None:
        self.done.append(Ended(key, call(payload)))

    def wait(self, seconds: float) -> list[Ended]:
        done, self.done = self.done, []
        return done

    def close(self, *, at_once: bool) -> None:
        pass


def run(folder, seeds=range(4), function=working.good, **options):
    return start(campaign(seeds), folder, engine=Here(), work=name(function), **options)


@pytest.fixture
def folder(tmp_path):
    run(tmp_path / "a")
    return tmp_path / "a"


def change(folder, *statements):
    with sqlite3.connect(folder / FILE, isolation_level=None) as connection:
        for statement in statements:
            connection.execute(statement)
    connection.close()


def test_what_is_read_is_what_was_written(folder):
    loaded = load(folder)
    assert (loaded.name, loaded.title, loaded.file) == ("small", "", campaign(range(4)).text)
    assert [row.case for row in loaded.cases] == list(campaign(range(4)).cases)
    for seed, row in enumerate(loaded.cases):
        expected = outcome({"seed": seed, "kv_len": 64})
        for key in ("found", "best_ulp", "integer_ulp", "bound_ulp", "evaluations", "details"):
            assert getattr(row, key) == expected[key]
        assert (row.status, row.attempts, row.message, row.method) == ("done", 1, "", "search")
        assert row.witness == folder / "witnesses" / row.id[:16] / "witness.json"
        assert row.seconds is not None
        assert 0 <= row.seconds < 60
    (only,) = loaded.runs
    assert (only.how, only.engine, only.workers) == ("finished", "here", 1)
    assert "numpy" in only.versions
    assert loaded.summary.best_ulp == max(row.best_ulp or 0 for row in loaded.cases)


def test_a_database_that_is_written_with_care(folder):
    database = Database(folder)
    assert database.connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    assert database.connection.execute("PRAGMA synchronous").fetchone() == (2,)  # FULL
    database.close()
    assert not (folder / f"{FILE}-wal").exists()


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (["PRAGMA application_id = 7"], "is a database of another program"),
        (["PRAGMA user_version = 2"], "has version 2, not 1"),
        (["DROP TABLE events"], "has other tables"),
        (["CREATE TABLE extra (x)"], "has other tables"),
        (["CREATE VIEW extra AS SELECT 1"], "has other tables"),
        (
            ["CREATE TRIGGER extra AFTER INSERT ON runs BEGIN DELETE FROM cases; END"],
            "has other tables",
        ),
        (["UPDATE cases SET status = 'won'"], "unknown status 'won'"),
        (["UPDATE results SET witness = '../../x'"], "leads out of it"),
        (["UPDATE results SET witness = '/etc/passwd'"], "leads out of it"),
        (["UPDATE runs SET versions = '{'"], "no JSON"),
        (["DELETE FROM campaign"], "cannot be read"),
    ],
)
def test_a_foreign_newer_or_changed_database_is_refused(folder, damage, message):
    change(folder, *damage)
    with pytest.raises(InputError, match=message) as found:
        load(folder)
    assert found.value.remedy


def test_a_case_in_it_that_is_none(folder):
    change(folder, "UPDATE cases SET body = '{\"kv_len\": 3}'")
    with pytest.raises(InputError, match="not a case"):
        _ = load(folder).cases[0].case
    change(folder, "UPDATE cases SET body = '['")
    with pytest.raises(InputError, match="no JSON"):
        _ = load(folder).cases[0].case


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    run(folder, range(1))
    return folder / FILE


SPOTS = st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), max_size=40)


@given(spots=SPOTS, length=st.none() | st.floats(0, 1))
def test_a_damaged_file_is_an_error_and_never_a_traceback(spots, length, whole):
    raw = bytearray(whole.read_bytes())
    for at, byte in spots:
        raw[int(at * len(raw))] = byte
    end = len(raw) if length is None else int(length * len(raw))
    with tempfile.TemporaryDirectory() as name, suppress(InputError):
        Path(name, FILE).write_bytes(raw[:end])
        loaded = load(name)
        _ = loaded.summary
        for row in loaded.cases:
            row.result()
            _ = row.case


def test_folders_without_a_campaign(tmp_path, folder):
    with pytest.raises(InputError, match="no such folder"):
        load(tmp_path / "none")
    (tmp_path / "empty").mkdir()
    for read in (load, resume):
        with pytest.raises(InputError, match="holds no campaign"):
            read(tmp_path / "empty")
    assert not list((tmp_path / "empty").iterdir())
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / FILE).write_text("hello")
    with pytest.raises(InputError, match="is not a SQLite database"):
        load(tmp_path / "text")
    assert load(folder / FILE).name == "small"


def test_a_folder_with_another_campaign_is_left_alone(folder):
    before = results(folder)
    other = campaign([77], "").file
    from search.campaign import parse_campaign
    from tests.search.campaign.making import HEAD, PAIR

    another = parse_campaign(HEAD.replace("small", "large") + f"seeds = [{other.seeds[0]}]\n" + PAIR)
    with pytest.raises(InputError, match="holds another campaign, small"):
        start(another, folder, engine=Here(), work=name(working.good))
    assert results(folder) == before


def test_a_database_never_chooses_what_runs(folder):
    change(folder, "UPDATE campaign SET work = 'os:getcwd'", "UPDATE cases SET status = 'pending'")
    with pytest.raises(InputError, match="was made with the work function 'os:getcwd'"):
        resume(folder, engine=Here(), work=name(working.good))
    assert {row.status for row in load(folder).cases} == {"pending"}


def test_only_one_coordinator_at_a_time(folder):
    with locked(folder), pytest.raises(InputError, match="another process runs this campaign"):
        run(folder, range(6))
    assert run(folder, range(6)).counts["done"] == 6


@pytest.mark.parametrize("method", ["list_cases", "begin_run"])
def test_a_full_disk_ends_the_run_and_what_was_saved_is_read(tmp_path, monkeypatch, method):
    original = getattr(Database, method)

    def nearly_full(self, *arguments):
        (pages,) = self.connection.execute("PRAGMA page_count").fetchone()
        self.connection.execute(f"PRAGMA max_page_count = {pages + 3}")
        return original(self, *arguments)

    folder = tmp_path / "a"
    with monkeypatch.context() as patch:
        patch.setattr(Database, method, nearly_full)
        with pytest.raises(StorageError, match="database or disk is full") as found:
            run(folder, range(60))
    assert "resume" in found.value.remedy
    loaded = load(folder)
    done = [row for row in loaded.cases if row.status == "done"]
    assert all(row.witness is not None and row.witness.is_file() for row in done)
    if method == "list_cases":  # all of it or nothing
        assert not loaded.cases
    else:
        assert 0 < len(done) < 60
        assert f"({len(done)} of 60 cases are saved in {folder / FILE})" in str(found.value)
        assert resume(folder, engine=Here(), work=name(working.good)).counts["done"] == 60
    run(folder, range(60))
    run(tmp_path / "b", range(60))
    assert results(folder) == results(tmp_path / "b")


LIMITED = """
import resource, sys
from search.campaign import start
from search.campaign.database import StorageError
from tests.search.campaign.making import campaign
from tests.search.campaign.test_database import Here, run
limit = 1 << 18
resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
try:
    run(sys.argv[1], range(60))
except StorageError as error:
    print(error)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="has no limits of resources")
def test_files_that_cannot_grow_end_the_run_and_what_was_saved_is_read(tmp_path):
    folder = tmp_path / "a"
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, str(folder)], capture_output=True, text=True, timeout=60, check=True
    )
    assert "cannot be written" in done.stdout
    saved = load(folder).summary.counts["done"]
    assert f"({saved} of 60 cases are saved" in done.stdout
    assert 0 < saved < 60
    assert resume(folder, engine=Here(), work=name(working.good)).counts["done"] == 60


def test_a_witness_that_cannot_be_written_ends_the_run(tmp_path):
    folder = tmp_path / "a"
    folder.mkdir()
    (folder / "witnesses").write_text("in the way")
    with pytest.raises(StorageError, match=r"witness\.json.*: cannot be written"):
        run(folder)
    assert load(folder).summary.counts["pending"] == 4


def test_a_copy_in_a_folder_that_is_read_only(tmp_path, folder):
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    copy.chmod(stat.S_IRUSR | stat.S_IXUSR)
    try:
        assert load(copy).summary.counts["done"] == 4
        if not os.access(copy, os.W_OK):
            with pytest.raises(InputError, match="cannot be"):
                resume(copy, engine=Here(), work=name(working.good))
    finally:
        copy.chmod(stat.S_IRWXU)


def test_the_tables_hold_what_the_file_promises(folder):
    with sqlite3.connect(folder / FILE) as connection:
        names = {row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    connection.close()
    assert names == set(TABLES) == {"campaign", "runs", "cases", "attempts", "results", "events"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no outcome"),
        ("[]", "no outcome"),
        ('{"ended": "done", "seconds": 1}', "no outcome"),
        ('{"ended": "done", "seconds": 1, "outcome": {"found": "nothing", "more": 1}, "files": {}}', "more"),
        ('{"ended": "done", "seconds": 1, "outcome": {"found": "witness"}, "files": {}}', "best_ulp = None"),
        (
            '{"ended": "done", "seconds": 1, "outcome": {"found": "nothing", "witness": "x"}, "files": {}}',
            "none of its files",
        ),
        (
            '{"ended": "done", "seconds": 1, "outcome": {"found": "nothing"}, "files": {"../x": ""}}',
            "may not be called",
        ),
        (
            '{"ended": "done", "seconds": 1, "outcome": {"found": "nothing"}, "files": {"x": "*"}}',
            "no outcome",
        ),
        (
            '{"ended": "done", "seconds": 1, "outcome": {"found": "witness", "best_ulp": 1e999}, "files": {}}',
            "best_ulp",
        ),
    ],
)
def test_a_reply_that_is_none_is_a_failed_case(text, message):
    reply = read_reply(text)
    assert reply.ended == "failed"
    assert message in reply.message
