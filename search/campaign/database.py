"""The database of a campaign: one SQLite file, written by the coordinator alone.

It is in WAL mode and every commit is synced, so that a killed process, a full disk or a power cut leaves all that was
committed, and others may read while it is written. A file that somebody else wrote is checked before it is used:
kind, version, damage, and that it holds these tables and nothing else.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from search.campaign.case import Case, canonical
from search.campaign.work import Outcome
from specs.errors import InputError, UlpscopeError

Status = Literal["done", "failed", "crashed", "timeout", "pending"]
FILE = "campaign.sqlite"
LOCK = "lock.sqlite"
WITNESSES = "witnesses"
APPLICATION = 0x554C5053
VERSION = 1
MAX_ROWS = 1_000_000
MAX_TEXT = 1 << 24

TABLES = {
    "campaign": "CREATE TABLE campaign (name TEXT NOT NULL, title TEXT NOT NULL, file TEXT NOT NULL, "
    "work TEXT NOT NULL, created TEXT NOT NULL) STRICT",
    "runs": "CREATE TABLE runs (id INTEGER PRIMARY KEY, began TEXT NOT NULL, ended TEXT, how TEXT, "
    "engine TEXT NOT NULL, workers INTEGER NOT NULL, versions TEXT NOT NULL) STRICT",
    "cases": "CREATE TABLE cases (id TEXT PRIMARY KEY, position INTEGER, body TEXT NOT NULL, "
    "status TEXT NOT NULL) STRICT, WITHOUT ROWID",
    "attempts": "CREATE TABLE attempts (case_id TEXT NOT NULL, number INTEGER NOT NULL, run_id INTEGER NOT NULL, "
    "ended TEXT NOT NULL, alone INTEGER NOT NULL, seconds REAL NOT NULL, message TEXT NOT NULL, "
    "PRIMARY KEY (case_id, number)) STRICT, WITHOUT ROWID",
    "results": "CREATE TABLE results (case_id TEXT PRIMARY KEY, found TEXT NOT NULL, best_ulp REAL, "
    "integer_ulp INTEGER, bound_ulp REAL, evaluations INTEGER NOT NULL, cut_by_wall_time INTEGER NOT NULL, "
    "witness TEXT, details TEXT NOT NULL) STRICT, WITHOUT ROWID",
    "events": "CREATE TABLE events (id INTEGER PRIMARY KEY, run_id INTEGER NOT NULL, at TEXT NOT NULL, "
    "kind TEXT NOT NULL, message TEXT NOT NULL) STRICT",
}


class StorageError(UlpscopeError):
    """The database or a file beside it cannot be written. What was committed before is there."""


@dataclass(frozen=True)
class Todo:
    """A case that is still to be run.

    Attributes:
        id, text: of the case.
        deaths: how many workers died while they ran it.
        status: pending, or how it ended before.
        group: cases of one group have the same programs to compile.
    """

    id: str
    text: str
    deaths: int = 0
    status: Status = "pending"
    group: str = ""


def now() -> str:
    """The time in UTC, to the millisecond."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def connect(path: Path, *, write: bool) -> sqlite3.Connection:
    """A connection to a database that is known to be one of ours: see `check`.

    Raises:
        InputError: it is not there, not ours, damaged or newer.
    """
    if not path.is_file():
        raise InputError(
            "holds no campaign" if path.parent.is_dir() else "no such folder",
            place=str(path.parent),
            remedy="give the folder of a campaign, such as runs/NAME",
        )
    try:
        with path.open("rb") as file:
            head = file.read(16)
        if head != b"SQLite format 3\x00":
            raise InputError("is not a SQLite database", place=str(path), remedy="give another folder")
        reader = _read_only(path)
        try:
            check(reader, path)
        except BaseException:
            reader.close()
            raise
        if not write:
            return reader
        reader.close()
        return _writer(path)
    except (sqlite3.Error, OSError, UnicodeDecodeError) as error:  # also a message of SQLite may be no UTF-8
        raise InputError(
            f"cannot be read: {error}",
            place=str(path),
            remedy="check its permissions, or take a copy from before it was damaged",
        ) from None


def check(connection: sqlite3.Connection, path: Path) -> None:
    """Refuse a database that this module has not made.

    Raises:
        InputError: another program's, a newer one, damaged, or with other tables. sqlite3.Error: not readable.
    """
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if application != APPLICATION:
        raise InputError(
            "is a database of another program", place=str(path), remedy="give the folder of a campaign"
        )
    if version != VERSION:
        raise InputError(
            f"has version {version}, not {VERSION}",
            place=str(path),
            remedy="read it with the version of ulpscope that wrote it",
        )
    (state,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    if state != "ok":
        raise InputError(
            f"is damaged: {state}", place=str(path), remedy="take a copy from before it was damaged"
        )
    rows = connection.execute("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL")
    if dict(rows.fetchall()) != TABLES:
        raise InputError(
            "has other tables than a campaign", place=str(path), remedy="give the folder of a campaign"
        )
    for table in TABLES:
        (rows,) = connection.execute(f"SELECT count(*) FROM {table}").fetchone()
        if rows > MAX_ROWS:
            raise InputError(
                f"has {rows:,} {table}", place=str(path), remedy=f"at most {MAX_ROWS:,} are read"
            )


def _read_only(path: Path) -> sqlite3.Connection:
    uri = path.absolute().as_uri()
    beside = [path.with_name(path.name + end) for end in ("-wal", "-shm")]
    # In a folder that cannot be written SQLite cannot make the files of its WAL mode; without them nobody writes.
    still = not os.access(path.parent, os.W_OK) and not any(file.exists() for file in beside)
    return _opened(f"{uri}?{'immutable=1' if still else 'mode=ro'}")


def _writer(path: Path) -> sqlite3.Connection:
    connection = _opened(f"{path.absolute().as_uri()}?mode=rwc")
    try:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
    except BaseException:
        connection.close()
        raise
    return connection


def _opened(uri: str) -> sqlite3.Connection:
    connection = sqlite3.connect(uri, uri=True, isolation_level=None, timeout=10.0)
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MAX_TEXT)
    connection.execute("PRAGMA trusted_schema = OFF")
    connection.text_factory = _text
    return connection


def _text(data: bytes) -> str:
    """A text of a database that may be damaged."""
    return data.decode("utf-8", "replace")


@contextmanager
def locked(folder: Path) -> Generator[None]:
    """Be the only coordinator of ``folder``. The lock goes with the process, however that ends.

    A transaction on a database of its own: it locks on every system that SQLite knows, and readers of the
    campaign are not in its way.

    Raises:
        InputError: another one is at work.
    """
    connection = sqlite3.connect(folder / LOCK, isolation_level=None, timeout=0.0)
    try:
        try:
            connection.execute("BEGIN EXCLUSIVE")
        except sqlite3.Error as error:
            busy = getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_BUSY
            raise InputError(
                "another process runs this campaign" if busy else f"cannot be locked: {error}",
                place=str(folder),
                remedy="wait for it, or stop it; `ulpscope campaign status` shows how far it is",
            ) from None
        yield
    finally:
        connection.close()


class Database:
    """The writing end. Use it inside `locked`.

    Raises:
        StorageError: from every method that writes, if that fails; the database is as it was before the call.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = folder / FILE
        self.connection = connect(self.path, write=True)
        self.run = 0

    @staticmethod
    def create(folder: Path, name: str, title: str, file: str, work: str) -> Database:
        """A new, empty database in ``folder``.

        Raises:
            StorageError: it cannot be written.
        """
        # Made under another name, so that nobody ever finds half of one.
        path, made = folder / FILE, folder / f"{FILE}.new"
        try:
            made.unlink(missing_ok=True)
            connection = _writer(made)
            try:
                connection.execute("BEGIN IMMEDIATE")
                for sql in TABLES.values():
                    connection.execute(sql)
                row = (name, title, file, work, now())
                connection.execute("INSERT INTO campaign VALUES (?, ?, ?, ?, ?)", row)
                connection.execute(f"PRAGMA application_id = {APPLICATION}")
                connection.execute(f"PRAGMA user_version = {VERSION}")
                connection.execute("COMMIT")
            finally:
                connection.close()
            os.replace(made, path)
        except (sqlite3.Error, OSError) as error:
            raise _storage(path, error) from None
        return Database(folder)

    def close(self) -> None:
        """Close the file; its WAL is folded in."""
        self.connection.close()

    @contextmanager
    def writing(self) -> Generator[sqlite3.Connection]:
        """One transaction."""
        try:
            self.connection.execute("BEGIN IMMEDIATE")
            yield self.connection
            self.connection.execute("COMMIT")
        except BaseException as error:
            with suppress(sqlite3.Error):
                if self.connection.in_transaction:
                    self.connection.execute("ROLLBACK")
            if isinstance(error, sqlite3.Error):
                raise _storage(self.path, error) from None
            raise

    def describe(self, name: str, title: str, file: str) -> None:
        """Replace the campaign file."""
        with self.writing() as connection:
            connection.execute("UPDATE campaign SET name = ?, title = ?, file = ?", (name, title, file))

    def head(self) -> tuple[str, str]:
        """Name and work function of the campaign."""
        return self.connection.execute("SELECT name, work FROM campaign").fetchone()

    def holds_any(self, ids: Iterable[str]) -> bool:
        """Whether one of these cases is known."""
        known = {row[0] for row in self.connection.execute("SELECT id FROM cases")}
        return any(id_ in known for id_ in ids)

    def list_cases(self, cases: Iterable[Case]) -> None:
        """Make these the cases of the campaign, in this order. Known ones keep what was done; others are unlisted."""
        with self.writing() as connection:
            connection.execute("UPDATE cases SET position = NULL")
            connection.executemany(
                "INSERT INTO cases VALUES (?, ?, ?, 'pending') ON CONFLICT (id) DO UPDATE SET position = excluded.position",
                ((case.id, position, case.text) for position, case in enumerate(cases)),
            )

    def todo(self, retry: bool) -> list[Todo]:
        """Cases that are pending, in order; with ``retry`` also those that failed, crashed or ran out of time.

        Raises:
            InputError: one of them is no case.
        """
        where = "status != 'done'" if retry else "status = 'pending'"
        rows = self.connection.execute(
            "SELECT id, body, (SELECT count(*) FROM attempts WHERE case_id = id AND ended = 'died'), status FROM cases "
            f"WHERE position IS NOT NULL AND {where} ORDER BY position"
        )
        return [Todo(*row, group=Case.from_text(row[1], f"case {row[0][:12]}").group) for row in rows]

    def counts(self) -> dict[Status, int]:
        """Listed cases by status."""
        found: dict[Status, int] = dict.fromkeys(("done", "failed", "crashed", "timeout", "pending"), 0)
        rows = self.connection.execute(
            "SELECT status, count(*) FROM cases WHERE position IS NOT NULL GROUP BY status"
        )
        found.update(rows)
        return found

    def best(self) -> float | None:
        """The largest ``best_ulp`` of the listed cases."""
        return self.connection.execute(
            "SELECT max(best_ulp) FROM results JOIN cases ON id = case_id WHERE position IS NOT NULL"
        ).fetchone()[0]

    def begin_run(self, engine: str, workers: int, versions: Mapping[str, str]) -> None:
        """Note that a coordinator begins."""
        with self.writing() as connection:
            row = (now(), engine, workers, canonical(dict(versions)))
            cursor = connection.execute(
                "INSERT INTO runs (began, engine, workers, versions) VALUES (?, ?, ?, ?)", row
            )
            self.run = int(cursor.lastrowid or 0)

    def end_run(self, how: str) -> None:
        """Note that it ends: ``finished``, ``interrupted`` or ``stopped``."""
        with self.writing() as connection:
            connection.execute("UPDATE runs SET ended = ?, how = ? WHERE id = ?", (now(), how, self.run))

    def event(self, kind: str, message: str) -> None:
        """Note that something happened."""
        with self.writing() as connection:
            row = (self.run, now(), kind, message)
            connection.execute("INSERT INTO events (run_id, at, kind, message) VALUES (?, ?, ?, ?)", row)

    def record(
        self,
        case_id: str,
        status: Status,
        ended: str,
        *,
        seconds: float,
        alone: bool = False,
        message: str = "",
        outcome: Outcome | None = None,
        files: Mapping[str, bytes] | None = None,
    ) -> None:
        """Save how an attempt at a case ended, and its result if there is one: all of it or nothing."""
        paths = self._write_files(case_id, files or {})
        with self.writing() as connection:
            connection.execute(
                "INSERT INTO attempts SELECT ?1, 1 + count(*), ?2, ?3, ?4, ?5, ?6 FROM attempts WHERE case_id = ?1",
                (case_id, self.run, ended, int(alone), seconds, message),
            )
            connection.execute("UPDATE cases SET status = ? WHERE id = ?", (status, case_id))
            if outcome is not None:
                row = (
                    case_id,
                    outcome.found,
                    outcome.best_ulp,
                    outcome.integer_ulp,
                    outcome.bound_ulp,
                    outcome.evaluations,
                    int(outcome.cut_by_wall_time),
                    paths.get(outcome.witness or ""),
                    canonical(outcome.details),
                )
                connection.execute("INSERT OR REPLACE INTO results VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", row)

    def _write_files(self, case_id: str, files: Mapping[str, bytes]) -> dict[str, str]:
        """Write files beside the database, each whole or not at all; their paths from its folder, by name."""
        paths: dict[str, str] = {}
        for name, data in files.items():
            path = self.folder / WITNESSES / case_id[:16] / name
            part = path.with_name(f"{name}.part")
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                with part.open("wb") as file:
                    file.write(data)
                    file.flush()
                    os.fsync(file.fileno())
                os.replace(part, path)
            except OSError as error:
                with suppress(OSError):
                    part.unlink(missing_ok=True)
                raise _storage(path, error) from None
            paths[name] = path.relative_to(self.folder).as_posix()
        return paths


def _storage(path: Path, error: sqlite3.Error | OSError) -> StorageError:
    cause = (isinstance(error, OSError) and error.strerror) or str(error)
    return StorageError(
        f"cannot be written: {cause}",
        place=str(path),
        remedy="what was saved before is there; make room, or check the permissions, and resume",
    )
