"""Where cases run: processes of this machine, or a cluster. All of them look alike to the coordinator."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from specs.errors import InputError, UlpscopeError, UnsupportedError

LOCAL = "local"
MAX_WORKERS = 1_024


class EngineError(UlpscopeError):
    """The engine is gone or was never there. What was saved before is there."""


@dataclass(frozen=True)
class Ended:
    """A case that an engine gives back.

    Attributes:
        key: what it was submitted as.
        reply: the text that `search.campaign.work.call` returned; None: the worker died.
        why: how it died, in words.
    """

    key: str
    reply: str | None
    why: str = ""


class Engine(Protocol):
    """Runs `search.campaign.work.call` in other processes. One thread uses it.

    A case whose worker dies comes back without a reply, and alone: whatever else was running goes on, or is run
    again by the engine.
    """

    label: str

    def capacity(self) -> int:
        """How many cases may be under way at once. It may change."""
        ...

    def submit(self, key: str, group: str, payload: str) -> None:
        """Run a case, where it can be in a worker that had one of the same group. At most `capacity` are under way."""
        ...

    def wait(self, seconds: float) -> list[Ended]:
        """What has ended since the last call; waits for the first at most ``seconds``.

        Raises:
            EngineError: the engine is lost.
        """
        ...

    def close(self, *, at_once: bool) -> None:
        """Free everything. ``at_once``: do not wait for what is under way."""
        ...


def open_engine(text: str, workers: int | None = None) -> Engine:
    """The engine that ``text`` names.

    Args:
        text: ``local``, ``dask://HOST:PORT``, ``ray://HOST:PORT`` or ``ray://local``.
        workers: processes, for ``local`` and ``ray://local`` (default: one for each CPU); a bound on what is under way
            at once, for clusters.

    Raises:
        InputError: neither of these. UnsupportedError: its package is not installed. EngineError: nothing answers.
    """
    if workers is not None and not 1 <= workers <= MAX_WORKERS:
        raise InputError(
            f"{workers} workers", place="--workers", remedy=f"give a number in 1..{MAX_WORKERS:,}"
        )
    scheme, sign, address = text.partition("://")
    if text == LOCAL:
        from search.campaign.engines.local import LocalEngine

        return LocalEngine(workers)
    if sign and address and scheme == "dask":
        from search.campaign.engines.on_dask import DaskEngine

        return DaskEngine(address, workers)
    if sign and address and scheme == "ray":
        from search.campaign.engines.on_ray import RayEngine

        return RayEngine(address, workers)
    raise InputError(
        f"'{text[:100]}' is no engine",
        place="--engine",
        remedy="give local, dask://HOST:PORT, ray://HOST:PORT or ray://local",
    )


def missing(package: str, extra: str) -> UnsupportedError:
    """The error for a package that is not installed."""
    return UnsupportedError(
        f"{package} is not installed", place="--engine", remedy=f"pip install 'ulpscope[{extra}]'"
    )


def same_versions(found: dict[str, str], place: str) -> None:
    """Refuse workers that compute with another ulpscope, jaxlib or solver than this process.

    Raises:
        EngineError: they do.
    """
    from search.campaign.work import versions

    own = versions()
    other = {
        name: version for name, version in found.items() if own.get(name) != version and name != "python"
    }
    if other:
        shown = ", ".join(f"{name} {version} (here {own.get(name)})" for name, version in other.items())
        raise EngineError(
            f"its workers have {shown}",
            place=place,
            remedy="install the same versions there: results must not depend on where they are computed",
        )
