"""The table of kernels: its names are known elsewhere, and the documentation has the same table."""

from __future__ import annotations

from pathlib import Path

import pytest

import verify
from specs import load_spec
from verify.capture.kernels import KERNELS, PROBES
from verify.capture.producers.probe_sources import PARTS

PAGE = Path(verify.__file__).parents[1] / "docs" / "captures.md"


def test_specs_have_the_sites_that_are_named() -> None:
    for name, kernel in KERNELS.items():
        spec = load_spec(kernel.spec)
        lines = {line for section in spec.sections.values() for line in section}
        assert {s.site for s in kernel.sites} <= lines, name
        assert len({s.array for s in kernel.sites}) == len(kernel.sites)
        assert kernel.releases.low <= kernel.releases.high


def test_every_probe_has_parts() -> None:
    assert set(PARTS) == set(PROBES)


@pytest.mark.skipif(not PAGE.is_file(), reason="the documentation is not here")
def test_the_page_has_the_same_table() -> None:
    rows = [line.strip("| \n").split("|") for line in PAGE.read_text().splitlines() if line.startswith("| `")]
    said = {n.strip(" `"): [c.strip() for c in cells] for names, *cells in rows for n in names.split(",")}
    assert set(said) == {*KERNELS, *PROBES}
    library = ""
    for name, kernel in KERNELS.items():
        library = library if said[name][0] == "the same" else said[name][0]
        assert said[name][1] == f"`{kernel.spec}`"
        for release in (kernel.releases.low, kernel.releases.high):
            assert f"{kernel.releases.library} " in library
            assert ".".join(map(str, release)) in library, name
    assert all(said[name][1] == "the platform" for name in PROBES)
