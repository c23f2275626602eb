"""What was read, as specs that load, set against the spec of the example that was written by hand."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

import pytest

from specs.diff import diff
from specs.loader import load_spec, parse_spec
from tests.verify.lower.test_trees import ARCHS, NUMERATOR, kept, reading
from verify.lower.fragment import fragment
from verify.lower.read import Reading

READ = {"product", "l", "acc", "d", "den", "total", "num"}


def made(version: str, arch: str, readings: list[Reading] | None = None) -> str:
    readings = readings or [reading(version, k, arch) for k in ("attend", "merge")]
    return fragment(readings, "attention", kept(version).coordinate(), "attention.py")


@pytest.mark.parametrize(("version", "arch"), NUMERATOR)
def test_the_lines_read_are_those_written_by_hand(version: str, arch: str) -> None:
    """No line differs but the one of the numerator, where the hand-written spec has a variant."""
    by_hand = load_spec(Path(str(files("verify.lower") / "examples" / "attention.toml")))
    found = parse_spec(made(version, arch))
    lines = dict(found.file.sections["token"] | found.file.sections["tile"] | found.file.sections["row"])
    wanted = dict(
        by_hand.file.sections["token"] | by_hand.file.sections["tile"] | by_hand.file.sections["row"]
    )
    number = {"3.7.1": 307, "3.8.0": 308}[version]
    for variant in by_hand.file.variants:
        when = variant.when.replace("triton_version", str(number)).replace(
            "compute_capability", arch.removeprefix("sm_")
        )
        if eval(when):
            wanted |= variant.sections["row"]
    assert {n: str(t) for n, t in lines.items()} == {n: str(t) for n, t in wanted.items()}
    assert found.file.assumed is not None
    assert set(found.file.assumed.lines).isdisjoint(READ)
    assert READ | set(found.file.assumed.lines) == {n for s in found.file.sections.values() for n in s}


def test_the_difference_of_two_architectures_is_one_line() -> None:
    a, b = (parse_spec(made("3.8.0", arch)) for arch in ("sm_90", "sm_100"))
    text = diff(a, b).to_text(unchanged=False)
    assert "- num     = dot(w, last(acc), lanes(4, pairwise(fma), butterfly()))" in text
    assert "+ num     = sum(w * last(acc), lanes(4, pairwise(), butterfly()))" in text
    assert "1 changed, 0 only in" in text


def test_what_was_not_read_promises_nothing() -> None:
    """Without the trees a line stands as any(), in a frame, and the spec still loads."""
    readings = [reading("3.8.0", k, "sm_90") for k in ("attend", "merge")]
    blind = [
        r.model_copy(
            update={
                "reductions": tuple(
                    x.model_copy(update={"tree": None, "unread": "no"}) for x in r.reductions
                ),
                "dots": (),
            }
        )
        for r in readings
    ]
    found = parse_spec(made("3.8.0", "sm_90", blind))
    assert found.file.assumed is not None
    assert {"product", "l", "acc", "total", "num"} <= set(found.file.assumed.lines)
    assert str(found.file.sections["row"]["num"]) == "sum(w * last(acc), any())"
    assert str(found.file.sections["token"]["product"]) == "scale * dot(q, k, any())"


@pytest.mark.parametrize("arch", ARCHS)
def test_one_kernel_alone_loads_too(arch: str) -> None:
    for name in ("attend", "merge"):
        parse_spec(made("3.7.1", arch, [reading("3.7.1", name, arch)]))
