"""Preflight: does this machine, with this jaxlib and device, emulate faithfully?

Every trap that XLA is known to set has a probe (`verify.engine.probes`). `preflight` runs them and reports;
`ensure_faithful` runs those that an emulation needs, once in a process, and refuses where one fails.
"""

from __future__ import annotations

import functools
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from specs.errors import FidelityError

if TYPE_CHECKING:
    from jax import Array

    from verify.engine.probes import Carriers, Inputs, Outputs, Probe

_SEED = 20240229
_REMEDY = (
    "use backend='oracle', or start Python with XLA_FLAGS=--xla_cpu_max_isa=AVX (no fused multiply-add), or "
    "install jax and jaxlib 0.10.2, with which this was built; 'ulpscope doctor --full' tells more"
)
_REMEDY_DEVICE = "emulate on the CPU device: JAX_PLATFORMS=cpu"


@dataclass(frozen=True)
class ProbeResult:
    """What one probe found.

    Attributes:
        name: the trap.
        ok: whether every element is right.
        detail: how many results were compared, or the first that is wrong, with bits.
        remedy: what to do; empty where ``ok``.
    """

    name: str
    ok: bool
    detail: str
    remedy: str = ""


@dataclass(frozen=True)
class Report:
    """The results of a run of probes, and where they ran."""

    probes: tuple[ProbeResult, ...]
    device: str
    versions: str

    @property
    def ok(self) -> bool:
        """Whether every probe holds."""
        return all(probe.ok for probe in self.probes)


def preflight(
    device: Any = None,
    quick: bool = True,
    *,
    compute: str | None = None,
    carriers: Carriers | None = None,
) -> Report:
    """Run the probes.

    Args:
        device: a `jax.Device`, or the name of a platform such as "cpu"; default: the CPU device.
        quick: compile each set of probes once, in one fused function. Otherwise each probe is compiled by
            itself as well, and loops also run outside of any jitted function.
        compute: only the probes that emulation in this format ("f32" or "f64") needs; default: all.
        carriers: a `verify.engine.probes.Carriers` to test instead of the real ones.

    Returns:
        A report with a result for each probe, failed or not. Never raises because a probe fails.
    """
    import jax

    from verify.engine import probes

    where = jax.devices(device or "cpu")[0] if device is None or isinstance(device, str) else device
    tested = probes.Carriers() if carriers is None else carriers
    chosen = [p for p in probes.PROBES if compute in (None, p.compute)]
    rng = np.random.default_rng(_SEED)
    inputs = {p.name: p.inputs(rng) for p in chosen}
    expected = {p.name: p.expected(inputs[p.name]) for p in chosen}
    with jax.default_device(where):
        runs = [_compiled(chosen, tested, inputs)]
        if not quick:
            runs += [_compiled([p], tested, inputs) for p in chosen]
            runs.append({n: f(tested, inputs[n]) for n, f in probes.UNJITTED.items() if n in inputs})
    results = [_judge(n, [run[n] for run in runs if n in run], expected[n], where.platform) for n in inputs]
    versions = f"jax {jax.__version__}, jaxlib {metadata.version('jaxlib')}, {platform.machine()}"
    return Report(tuple(results), str(where), versions)


def _compiled(chosen: list[Probe], carriers: Carriers, inputs: Mapping[str, Inputs]) -> dict[str, Outputs]:
    """The outputs of several probes from one jitted function."""
    import jax

    from verify.engine.primitives import ZERO, x64

    def together(zero: Array, data: Mapping[str, Mapping[str, Array]]) -> dict[str, dict[str, Array]]:
        return {p.name: p.program(carriers, zero, data[p.name]) for p in chosen}

    with x64():
        found = jax.jit(together)(ZERO, {p.name: inputs[p.name] for p in chosen})
        return jax.tree.map(np.asarray, found)


def _judge(name: str, runs: list[Outputs], expected: Outputs, device: str) -> ProbeResult:
    compared = 0
    for run in runs:
        for part, want in expected.items():
            if part not in run:
                continue
            got = run[part]
            compared += want.size
            wrong = np.flatnonzero(~_same(got, want))
            if wrong.size:
                where = int(wrong[0])
                detail = (
                    f"{part}: {wrong.size} of {want.size} results are wrong; element {where} is "
                    f"{_show(got, where)}, right is {_show(want, where)}"
                )
                return ProbeResult(name, False, detail, _REMEDY if device == "cpu" else _REMEDY_DEVICE)
    return ProbeResult(name, True, f"{compared} results, bit for bit")


def _same(got: NDArray[Any], want: NDArray[Any]) -> NDArray[np.bool_]:
    if got.shape != want.shape or got.dtype != want.dtype:
        raise TypeError(f"a probe gives {got.dtype}{got.shape} where {want.dtype}{want.shape} is expected")
    if want.dtype.kind != "f":
        return np.atleast_1d(got == want)
    words = f"u{want.dtype.itemsize}"
    got, want = np.atleast_1d(got), np.atleast_1d(want)
    return (got.view(words) == want.view(words)) | (np.isnan(got) & np.isnan(want))


def _show(values: NDArray[Any], index: int) -> str:
    value = values.ravel()[index]
    if values.dtype.kind != "f":
        return f"{value:#x}" if values.dtype.kind == "u" else str(value)
    word = value.view(f"u{value.dtype.itemsize}")
    return f"{value!s} ({word:#0{2 + 2 * value.dtype.itemsize}x})"


@functools.cache
def _quick(compute: str) -> Report:
    return preflight(compute=compute)


def ensure_faithful(compute: str = "f32") -> None:
    """Check, once in a process, that the array engine emulates faithfully on the CPU device.

    Args:
        compute: the format that the emulation computes in, "f32" or "f64".

    Raises:
        FidelityError: a probe fails; the message names the first, with bits, and the remedy.
    """
    report = _quick(compute)
    failed = [p for p in report.probes if not p.ok]
    if failed:
        more = f" ({len(failed) - 1} more probes fail)" if failed[1:] else ""
        raise FidelityError(
            f"this machine does not emulate faithfully: {failed[0].detail}{more}",
            place=f"preflight, {failed[0].name}, {report.versions}",
            remedy=failed[0].remedy,
        )
