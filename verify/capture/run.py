"""`capture_kernels`: every kernel that can run here, over its fixed inputs, into one capture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from specs.errors import FidelityError, InputError, did_you_mean
from verify.capture.format import Capture, array_infos, check_empty, write_capture
from verify.capture.inputs import Arrays, from_case, info_of, make, name_of
from verify.capture.kernels import KERNELS, NAMES, PROBES, listed_kernels
from verify.capture.machine import this_machine
from verify.capture.producers.base import Call, Produced, Progress, Source, load_prober, load_producer
from verify.case import Case

REPEATS = 2
"""How often each input runs; a kernel that gives other bytes the second time is not compared."""


@dataclass
class _Draft:
    """A capture under way."""

    embed: bool
    inputs: dict[str, Any] = field(default_factory=dict[str, Any])
    records: dict[str, Any] = field(default_factory=dict[str, Any])
    probes: dict[str, Any] = field(default_factory=dict[str, Any])
    libraries: dict[str, Any] = field(default_factory=dict[str, Any])
    arrays: dict[str, NDArray[Any]] = field(default_factory=dict[str, NDArray[Any]])

    def add_input(self, name: str, arrays: Arrays, scale: float, causal: bool, **more: Any) -> None:
        if name in self.inputs:
            return
        info = info_of(arrays, scale, causal, **more)
        self.inputs[name] = info.model_dump(mode="json", by_alias=True)
        if info.embedded:
            self.arrays |= {f"inputs/{name}/{key}": array for key, array in arrays.items()}

    def add_record(self, kernel: str, name: str, runs: Sequence[Produced]) -> None:
        first = runs[0]
        same = all(_bytes(run) == _bytes(first) for run in runs[1:])
        key = f"{kernel}.{name}"
        self.arrays |= {f"records/{key}/{n}": array for n, array in first.arrays.items()}
        self.records[key] = {
            "kernel": kernel,
            "input": name,
            "context": dict(first.context),
            "options": dict(first.options),
            "call": dict(first.call),
            "repeats": len(runs),
            "repeatable": same,
            "arrays": array_infos(first.arrays),
        }


class _Given(NamedTuple):
    """An input of the user's own."""

    name: str
    arrays: Arrays
    scale: float
    causal: bool


def _bytes(run: Produced) -> dict[str, bytes]:
    return {name: np.ascontiguousarray(array).tobytes() for name, array in run.arrays.items()}


def chosen(names: str | None) -> tuple[str, ...]:
    """The kernels and probes that ``names`` lists, separated by commas; all of them where it is None.

    Raises:
        InputError: an unknown name.
    """
    if names is None:
        return NAMES
    listed = listed_kernels(names)
    for name in listed:
        if name not in NAMES:
            raise InputError(f"unknown kernel '{name}'", place="--kernels", remedy=did_you_mean(name, NAMES))
    return listed


def availability(names: Sequence[str]) -> dict[str, str | None]:
    """For each name, why it cannot run here; None where it can."""
    return {name: _source(name).available(name) for name in names}


def _source(name: str) -> Source:
    return load_prober() if name in PROBES else load_producer(KERNELS[name].producer)


def capture_kernels(
    folder: Path,
    names: Sequence[str],
    *,
    quick: bool = False,
    embed: bool = False,
    extra: Case | None = None,
    progress: Progress | None = None,
) -> Capture:
    """Run ``names`` over their inputs and write a capture to ``folder``.

    Args:
        folder: new or empty.
        names: of `NAMES`; those that cannot run here are noted with the reason.
        quick: few and small inputs.
        embed: store the inputs, too, and not only how they are made.
        extra: one more input for every kernel, such as tensors of a model; always stored.
        progress: told the kernel, and how many of its inputs are done.

    Raises:
        FidelityError: none of the kernels can run here.
        InputError: the folder or ``extra`` cannot be used.
    """
    found = availability(names)
    skipped = {name: reason for name, reason in found.items() if reason is not None}
    if len(skipped) == len(names):
        reasons = "; ".join(f"{name}: {reason}" for name, reason in skipped.items())
        raise FidelityError(
            "none of the kernels can run on this machine",
            place="ulpscope capture kernels",
            remedy=reasons,
        )
    check_empty(folder)
    given = None if extra is None else _Given(extra.name, *from_case(extra))
    draft = _Draft(embed)
    for name in names:
        if name in skipped:
            continue
        if name in PROBES:
            _probe(draft, name, quick, progress)
        else:
            _kernel(draft, name, quick, given, progress)
    fields = {
        "made": datetime.now(UTC).isoformat(timespec="seconds"),
        "tool": f"ulpscope {version('ulpscope')}",
        "quick": quick,
        "machine": this_machine().model_dump(mode="json"),
        "libraries": draft.libraries,
        "skipped": skipped,
        "inputs": draft.inputs,
        "records": draft.records,
        "probes": draft.probes,
    }
    return write_capture(folder, fields, draft.arrays)


def _kernel(draft: _Draft, kernel: str, quick: bool, extra: _Given | None, progress: Progress | None) -> None:
    producer = load_producer(KERNELS[kernel].producer)
    cases = list(KERNELS[kernel].cases(quick))
    total = len(cases) + (extra is not None)

    def step(name: str, arrays: Arrays, scale: float, causal: bool, done: int, **more: Any) -> None:
        call = Call(arrays["q"], arrays["k"], arrays["v"], scale, causal)
        runs = [producer.run(kernel, call) for _ in range(REPEATS)]
        draft.add_input(name, arrays, scale, causal, **more)
        draft.add_record(kernel, name, runs)
        if progress is not None:
            progress(kernel, done, total)

    for done, (recipe, causal) in enumerate(cases, 1):
        given = {"recipe": recipe.model_dump(mode="json"), "embedded": draft.embed}
        step(name_of(recipe, causal), make(recipe), float(recipe.head_dim) ** -0.5, causal, done, **given)
    if extra is not None:
        name = "given-" + "".join(c if c.isalnum() or c in "._+-" else "-" for c in extra.name)[:80]
        step(name, extra.arrays, extra.scale, extra.causal, total, embedded=True, origin=extra.name[:2000])
    _note(draft, kernel, producer)


def _probe(draft: _Draft, name: str, quick: bool, progress: Progress | None) -> None:
    prober = load_prober()
    for what, call, arrays in prober.sweep(name, quick, progress):
        key = f"{name}.{what}"
        draft.arrays |= {f"probes/{key}/{n}": array for n, array in arrays.items()}
        draft.probes[key] = {
            "kernel": name,
            "what": what,
            "call": dict(call),
            "arrays": array_infos(arrays),
        }
    _note(draft, name, prober)


def _note(draft: _Draft, kernel: str, source: Source) -> None:
    first, *others = source.libraries(kernel)
    more: Mapping[str, str] = {library.name: library.version for library in others}
    draft.libraries[kernel] = first.model_copy(update={"more": more}).model_dump(mode="json")
