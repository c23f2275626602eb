"""Campaigns as a library: start one from its file, resume it, and see how far it is."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Generator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

from search.campaign.coordinator import Coordinator, Interrupts, Progress
from search.campaign.database import FILE, Database, StorageError, locked
from search.campaign.engines import LOCAL, Engine, open_engine
from search.campaign.plan import Campaign, read_campaign
from search.campaign.reading import Summary, load
from search.campaign.work import WORK, resolve, versions
from specs.errors import InputError, UlpscopeError

#: Where a campaign goes that is not told where.
RUNS = Path("runs")


def _silent(_: object) -> None:
    pass


def start(
    file: str | Path | Campaign,
    folder: str | Path | None = None,
    *,
    engine: str | Engine = LOCAL,
    workers: int | None = None,
    retry: bool = False,
    kill_after: float | None = None,
    progress: Callable[[Progress], None] = _silent,
    notice: Callable[[str], None] = _silent,
    interrupts: Interrupts | None = None,
    work: str = WORK,
) -> Summary:
    """Run a campaign file; in a folder that has it already, go on: what is done stays done, new cases are added.

    Args:
        file: path of a campaign file, or one that was read.
        folder: where the database and the witnesses go (default: ``runs/NAME``).
        engine: ``local``, ``dask://HOST:PORT``, ``ray://HOST:PORT`` or ``ray://local``; or one that is open, which stays
            so.
        workers: see `open_engine`.
        retry: run cases again that failed, crashed or ran out of time.
        kill_after: seconds after which a case is stopped, whatever its budget says. None: never.
        progress: called now and then.
        notice: called with a sentence that people should see.
        interrupts: counts Ctrl-C; a default one takes it over while cases run.
        work: the work function, ``module:function``, which every worker must be able to import.

    Returns:
        the numbers; with ``interrupted`` after Ctrl-C.

    Raises:
        SpecError: the file is wrong. InputError: an argument is, or the folder holds something else.
        EngineError: the engine is lost. StorageError: the disk is full, or the like. All that was finished before
        is saved.
    """
    campaign = file if isinstance(file, Campaign) else read_campaign(file)
    cases = campaign.cases
    resolve(work)
    where = RUNS / campaign.name if folder is None else Path(folder)
    try:
        where.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"cannot be made: {error.strerror or error}",
            place=str(where),
            remedy="choose another folder with -o",
        ) from None
    with locked(where):
        if not (where / FILE).exists():
            Database.create(where, campaign.name, campaign.file.title, campaign.text, work).close()
        database = Database(where)
        with closing(database):
            _same_work(database, work)
            if database.head()[0] != campaign.name and not database.holds_any(case.id for case in cases):
                raise InputError(
                    f"holds another campaign, {database.head()[0]}",
                    place=str(where),
                    remedy="choose another folder with -o",
                )
            database.list_cases(cases)
            database.describe(campaign.name, campaign.file.title, campaign.text)
            return _run(
                database,
                engine,
                workers,
                retry=retry,
                kill_after=kill_after,
                progress=progress,
                notice=notice,
                interrupts=interrupts,
                work=work,
            )


def resume(
    folder: str | Path,
    *,
    engine: str | Engine = LOCAL,
    workers: int | None = None,
    retry: bool = False,
    kill_after: float | None = None,
    progress: Callable[[Progress], None] = _silent,
    notice: Callable[[str], None] = _silent,
    interrupts: Interrupts | None = None,
    work: str = WORK,
) -> Summary:
    """Go on with the campaign in ``folder``, without its file. Arguments and errors as `start`.

    Engine and work function are the caller's: what the database says of them is history.
    """
    where = Path(folder)
    resolve(work)
    load(where)  # before a lock is put into a folder that is no campaign's
    with locked(where), closing(Database(where)) as database:
        _same_work(database, work)
        return _run(
            database,
            engine,
            workers,
            retry=retry,
            kill_after=kill_after,
            progress=progress,
            notice=notice,
            interrupts=interrupts,
            work=work,
        )


def status(folder: str | Path) -> Summary:
    """How far the campaign in ``folder`` is, also while it runs.

    Raises:
        InputError: it holds none.
    """
    return load(folder).summary


def resume_command(folder: Path, engine: str = LOCAL, workers: int | None = None) -> str:
    """What to type to go on, quoted for a shell."""
    words = ["ulpscope", "campaign", "resume", str(folder)]
    words += [] if engine == LOCAL else ["--engine", engine]
    words += [] if workers is None else ["--workers", str(workers)]
    return shlex.join(words)


def _same_work(database: Database, work: str) -> None:
    _, known = database.head()
    if known != work:
        raise InputError(
            f"was made with the work function {known[:100]!r}, not {work!r}",
            place=str(database.folder),
            remedy="resume it with the program that made it, or choose another folder",
        )


def _run(
    database: Database,
    engine: str | Engine,
    workers: int | None,
    *,
    retry: bool,
    kill_after: float | None,
    progress: Callable[[Progress], None],
    notice: Callable[[str], None],
    interrupts: Interrupts | None,
    work: str,
) -> Summary:
    if kill_after is not None and not 0 < kill_after <= 1e7:
        raise InputError(
            f"{kill_after} seconds", place="--kill-after", remedy="give a number above 0, up to 10 million"
        )
    todo = database.todo(retry)
    interrupted = False
    if todo:
        interrupts = interrupts or Interrupts(notice)
        with interrupts.caught(), _engine(engine, workers, interrupts) as opened:
            coordinator = Coordinator(
                database,
                opened,
                work,
                todo,
                kill_after=kill_after,
                progress=progress,
                interrupts=interrupts,
            )
            try:
                database.begin_run(opened.label, opened.capacity(), versions())
                interrupted = coordinator.run()
                database.end_run("interrupted" if interrupted else "finished")
            except UlpscopeError as error:
                raise _stopped(database, coordinator, error) from None
    return replace(load(database.folder).summary, interrupted=interrupted)


@contextmanager
def _engine(engine: str | Engine, workers: int | None, interrupts: Interrupts) -> Generator[Engine]:
    """The engine, closed at the end if it was opened here: at once after an error or a second Ctrl-C."""
    if not isinstance(engine, str):
        yield engine
        return
    opened = open_engine(engine, workers)
    try:
        yield opened
    except BaseException:
        opened.close(at_once=True)
        raise
    opened.close(at_once=interrupts.count > 1)


def _stopped(database: Database, coordinator: Coordinator, error: UlpscopeError) -> UlpscopeError:
    """The error with what was saved; noted in the database, if that can still be written."""
    try:
        database.event("stopped", str(error))
        database.end_run("stopped")
    except StorageError:
        pass
    state = coordinator.state()
    return type(error)(
        f"{error.cause} ({state.done} of {state.total} cases are saved in {database.path})",
        place=error.place,
        remedy=error.remedy,
    )
