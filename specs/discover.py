"""Which file a name means.

A name that contains ``/`` or ends with ``.toml`` is a path. Any other name is looked for in ``./specs.d/``,
then in the library of this package, then in the folders that installed packages announce under the
entry-point group ``ulpscope.specs``. Nothing is imported and nothing in a file is run: an entry point is only
resolved to a folder.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from specs.errors import SpecError, did_you_mean

ENTRY_POINTS = "ulpscope.specs"
PACKAGE = Path(__file__).parent
LOCAL = "specs.d"


@dataclass(frozen=True, slots=True)
class Found:
    """A file by name. ``kind`` is path, specs.d, library or the name of an installed distribution.

    ``shadows`` are the files of the same name further down the search order that this one hides.
    """

    name: str
    path: Path
    kind: str
    shadows: tuple[Path, ...] = ()

    @property
    def warning(self) -> str:
        """A sentence about the files that this one hides, or nothing."""
        if not self.shadows:
            return ""
        return f"{self.path} hides {', '.join(str(p) for p in self.shadows)}, of the same name"


def is_path(name: str) -> bool:
    """Whether ``name`` is a path and not the name of a file in a known folder."""
    return "/" in name or "\\" in name or name.endswith(".toml")


def resolve(name: str, what: str = "spec", *, base: Path | None = None, but: Path | None = None) -> Found:
    """The file that ``name`` means.

    Args:
        name: a name or a path.
        what: spec, platform, model or workload; all but specs are looked for in this package only.
        base: the folder that a relative path starts from (default: the working directory).
        but: a file that is not meant, if there is another of its name (a spec may extend the one it hides).

    Raises:
        SpecError: no such name, with the closest one.
    """
    if not name or "\0" in name:
        raise SpecError(
            f"not the name of a {what}: {name!r}", remedy=f"`ulpscope spec list` names every {what}"
        )
    if is_path(name):
        return Found(Path(name).stem, (base or Path()) / name, "path")
    matches = [f for f in _candidates(what, everywhere=False) if f.name == name]
    if not matches:
        matches = [f for f in _candidates(what, everywhere=True) if f.name == name]
    others = [f for f in matches if but is None or not _same(f.path, but)]
    if others:
        first, *rest = others
        return Found(name, first.path, first.kind, tuple(f.path for f in rest if f.kind != first.kind))
    if matches:
        return matches[0]
    known = [f.name for f in _candidates(what, everywhere=True)]
    raise SpecError(f"unknown {what} '{name}'", remedy=did_you_mean(name, known))


def every(what: str = "spec") -> list[Found]:
    """Every file that a name reaches, by name; hidden ones are listed in ``shadows``."""
    by_name: dict[str, list[Found]] = {}
    for found in _candidates(what, everywhere=True):
        by_name.setdefault(found.name, []).append(found)
    return [
        Found(name, files[0].path, files[0].kind, tuple(f.path for f in files[1:]))
        for name, files in sorted(by_name.items())
    ]


def _candidates(what: str, *, everywhere: bool) -> Iterator[Found]:
    """All files in search order; installed packages, which cost time to list, only if asked for."""
    if what != "spec":
        yield from _folder(PACKAGE / f"{what}s", "library")
        return
    yield from _folder(Path(LOCAL), LOCAL)
    yield from _folder(PACKAGE / "library", "library")
    if everywhere:
        import importlib.metadata

        for point in sorted(
            importlib.metadata.entry_points(group=ENTRY_POINTS), key=lambda p: (p.name, p.value)
        ):
            for folder in _folders_of(point.value):
                yield from _folder(folder, point.dist.name if point.dist is not None else point.name)


def _folder(folder: Path, kind: str) -> Iterator[Found]:
    try:
        names = sorted(p for p in folder.iterdir() if p.suffix == ".toml")
    except OSError:
        return
    for path in names:
        yield Found(path.name.removesuffix(".toml"), path, kind)


def _folders_of(value: str) -> list[Path]:
    """The folders of the package that an entry point names, found without importing it.

    Only the first part is resolved by the import system, which runs no code for a top-level name; the
    rest are subfolders.
    """
    top, *rest = value.partition(":")[0].strip().split(".")
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError):
        return []
    if spec is None or spec.submodule_search_locations is None:
        return []
    return [Path(location).joinpath(*rest) for location in spec.submodule_search_locations]


def _same(a: Path, b: Path) -> bool:
    try:
        return a.resolve() == b.resolve()
    except (OSError, RuntimeError):
        return a == b
