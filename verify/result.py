"""What a run gives back: output, log-sum-exp, and every site by name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from specs.errors import InputError, did_you_mean
from verify.partition import Plan

if TYPE_CHECKING:
    from verify.emulator import Run


class Trace(Mapping[str, NDArray[Any]]):
    """Every site of a run by name, evaluated when it is asked for.

    ``trace[site]`` has the shape ``[*rows, *axes]``: the leading shape of the output, then the site's own axes,
    levels outermost first, then ``token``, then ``dim``; a float site in the storage dtype of its format, a
    condition as bool. Pieces and tokens that do not exist hold NaN (False in conditions).
    """

    def __init__(self, run: Run) -> None:
        self._run = run

    def __getitem__(self, name: str) -> NDArray[Any]:
        names = self._run.site_names()
        if name not in names:
            raise InputError(
                f"no site '{name}'",
                place=f"trace of {self._run.program.spec}",
                remedy=did_you_mean(name, names),
            )
        return self._run.outward(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._run.site_names())

    def __len__(self) -> int:
        return len(self._run.site_names())

    def axes(self, name: str) -> tuple[str, ...]:
        """The axes of a site after those of the rows."""
        program = self._run.program
        kinds = program.sites[name].type.axes
        return tuple(a for a in program.axes if a in kinds)


@dataclass(frozen=True)
class Result:
    """What one run gave.

    Attributes:
        output: ``[*rows, dim]`` in the storage dtype of the spec's output format.
        lse: ``[*rows]`` log-sum-exp, natural unless the spec says otherwise; None if the spec has no such site.
        trace: every site by name.
        plan: the partition.
        spec, platform: names.
        backend: ``engine`` or ``oracle``.
        empty_rows: rows that see no token.
        exact_path: whether the slower exact path ran because a subnormal number was possible.
    """

    output: NDArray[Any]
    lse: NDArray[Any] | None
    trace: Trace
    plan: Plan
    spec: str
    platform: str
    backend: str
    empty_rows: int
    exact_path: bool
