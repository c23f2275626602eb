"""Positions, the split-count verdict, and a sweep that survives an interrupt."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from reports import build, depth, sweep
from reports.contract import DepthPoint, SplitFamily, SplitPoint
from reports.splits import COUNTS, FORCED, families, verdict
from specs import load_platform, load_workload, parse_spec
from specs.errors import InputError
from verify import plan

WORKLOAD = load_workload("agent_session")


def test_the_workload_has_the_issues_positions() -> None:
    every = depth.positions(WORKLOAD)
    assert len(WORKLOAD.ranges) == 22
    assert len(every) == 9060
    assert (every[0].range, every[0].kv_len) == ("SP01-M001", 6336)
    assert max(p.kv_len for p in every) == 122863 + 698
    assert len({(p.range, p.kv_len) for p in every}) == 9060


def test_a_sample_is_one_position_of_each_range_and_repeats() -> None:
    one = depth.sample(WORKLOAD, seed=3)
    assert one == depth.sample(WORKLOAD, seed=3) != depth.sample(WORKLOAD, seed=4)
    assert [p.range for p in one] == [depth.range_name(r) for r in WORKLOAD.ranges]
    assert set(one) <= set(depth.positions(WORKLOAD))
    assert len(depth.sample(WORKLOAD, seed=3, each=5)) == 110


def test_a_shorter_position_sees_a_part_of_the_longer() -> None:
    scores, values = depth.sequence(1, 50)
    longer, more = depth.sequence(1, 80)
    assert (longer[:, :50] == scores).all()
    assert scores.shape == (depth.ROWS, 50)
    assert more.shape == (80, depth.DIM)
    assert values.dtype.name == "bfloat16"


def test_pairs_hold_one_thing_fixed() -> None:
    pairs = depth.default_pairs(build.make_targets())
    assert len(pairs) == 9
    for a, b in pairs:
        assert (a.backend == b.backend) != (a.platform.name == b.platform.name)


def test_a_cell_is_the_kernel_of_its_inputs() -> None:
    one, many = {"kv_heads": 2, "q_heads": 4}, {"kv_heads": 2, "q_heads": 4, "batch": 65}
    names = [build.make_targets(("vllm:triton",), ("h200",), [c])[0].spec.name for c in (one, many)]
    assert names == ["vllm_triton.decode_3d", "vllm_triton.decode_2d"]
    with pytest.raises(InputError, match=r"decode_3d for one input and vllm_triton\.decode_2d for another"):
        build.make_targets(("vllm:triton",), ("h200",), [one, many])


def point(n: int, mean: float, share: float, half: float = 1.0) -> SplitPoint:
    return SplitPoint(splits=n, mean=mean, low=mean - half, high=mean + half, worst=9.0, best_share=share)


def test_the_verdict_follows_the_figures() -> None:
    points = [point(1, 5.0, 0.4), point(2, 4.9, 0.6)]
    differ = [
        SplitFamily(name="a", inputs=4, means=(1.0, 2.0)),
        SplitFamily(name="b", inputs=4, means=(2.0, 1.0)),
    ]
    text = verdict(points, differ)
    assert text.startswith("It depends on the input: 1 and 2 splits each have the least mean error")
    assert "the intervals of all counts overlap" in text
    agree = [SplitFamily(name="a", inputs=4, means=(2.0, 1.0))]
    clear = verdict([point(1, 9.0, 0.1), point(2, 1.0, 0.9)], agree)
    assert clear.startswith("2 splits have the least mean error in every family")
    assert "2 splits err least, clearly less than 1." in clear
    assert "best on 90% of inputs only (chance: 50%)" in clear


def test_forced_splits_are_the_spec_with_one_integer_changed() -> None:
    spec = parse_spec(FORCED, "test")
    for n in COUNTS:
        found = plan(spec, load_platform("h200"), kv_len=2048, num_splits=n)
        assert found.count == n
        assert {g.tokens.size for g in found.groups} == {2048 // n}


def test_families_are_exact_on_entry() -> None:
    for _, scores, values in families(0):
        assert (scores.astype(np.float32) == scores).all()
        assert not (values.astype(np.float32).view(np.uint32) & 0xFFFF).any()


class StoppedError(Exception):
    """An interrupt in the middle."""


def fake(stop_after: int | None = None) -> Any:
    def measure(where: Any, pairs: Any, seed: int, context: Any) -> Iterator[list[depth.Measured]]:
        for n, position in enumerate(where):
            if stop_after is not None and n == stop_after:
                raise StoppedError
            p = DepthPoint(
                range=position.range,
                position=position.kv_len,
                n=4,
                ulp_max=2,
                ulp_p99=2,
                flips=0,
                ulp_mean=0.5,
                changed=0.25,
            )
            yield [depth.Measured(position, a.name, b.name, p) for a, b in pairs]

    return measure


def test_a_sweep_goes_on_where_it_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    targets = build.make_targets(("triton", "flash_attention_2"), ("h200",))
    file = tmp_path / "runs" / "sweep.jsonl"
    monkeypatch.setattr(sweep, "measure", fake(stop_after=3))
    with pytest.raises(StoppedError):
        sweep.sweep(WORKLOAD, targets, 0, {"q_heads": 24}, file, stride=1000)
    assert len(file.read_text().splitlines()) == 1 + 3
    with file.open("a") as out:
        out.write('{"range": "cut sho')
    counted: list[tuple[int, int]] = []
    monkeypatch.setattr(sweep, "measure", fake())
    tallies = sweep.sweep(
        WORKLOAD, targets, 0, {"q_heads": 24}, file, stride=1000, progress=lambda a, b: counted.append((a, b))
    )
    assert counted == [(n, 10) for n in range(3, 11)]
    assert [t.to_json() for t in tallies] == [
        {
            "left": "Triton · H200",
            "right": "FlashAttention 2 · H200",
            "positions": 10,
            "positions_that_part": 10,
            "outputs": 40,
            "changed_share": 0.25,
            "ulp_max": 2,
        }
    ]
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert len(lines) == 11
    assert lines[0]["schema_id"] == "ulpscope.sweep/1"
    monkeypatch.setattr(sweep, "measure", fake(stop_after=0))
    assert sweep.sweep(WORKLOAD, targets, 0, {"q_heads": 24}, file, stride=1000)[0].positions == 10


@pytest.mark.parametrize("change", ["seed", "text", "empty line"])
def test_another_sweep_is_never_continued(
    change: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    targets = build.make_targets(("triton", "flash_attention_2"), ("h200",))
    file = tmp_path / "sweep.jsonl"
    monkeypatch.setattr(sweep, "measure", fake())
    if change == "seed":
        sweep.sweep(WORKLOAD, targets, 1, {}, file, stride=5000)
    else:
        file.write_text("not a sweep\n" if change == "text" else "\n")
    before = file.read_bytes()
    with pytest.raises(InputError, match="another sweep"):
        sweep.sweep(WORKLOAD, targets, 0, {}, file, stride=5000)
    assert file.read_bytes() == before


def test_a_stride_is_positive(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="stride 0"):
        sweep.sweep(WORKLOAD, build.make_targets(), 0, {}, tmp_path / "x", stride=0)


def test_two_positions_through_two_cells() -> None:
    targets = build.make_targets(("triton", "flash_attention_2"), ("h200",))
    where = [depth.Position("a", 200), depth.Position("b", 250)]
    found = list(depth.measure(where, depth.default_pairs(targets), 0, {}))
    assert [(m.position.kv_len, m.point.n) for (m,) in found] == [(200, 128), (250, 128)]
    scores, values = depth.sequence(0, 250)
    from verify.case import Case

    case = Case("x", {"scores": scores[:, :200], "values": values[:200]})
    a, b = (case.emulate(t.spec, t.platform, backend="oracle").output.view(np.uint16) for t in targets)
    assert found[0][0].point.changed == pytest.approx(float((a != b).mean()))


def test_a_point_tells_the_bulk_from_changes_of_sign() -> None:
    import ml_dtypes

    a = np.ones(200, ml_dtypes.bfloat16)
    b = a.copy()
    b[:50] = 1 + 2**-7  # one ULP
    a[0], b[0] = 2**-10, -(2**-10)  # bf16 bits 0x3a80 on either side of zero
    where = depth.Position("r", 10)
    p = depth._compare(where, "a", "b", a, b).point  # pyright: ignore[reportPrivateUsage]
    assert (p.n, p.ulp_max, p.ulp_p99, p.flips) == (200, 2 * 0x3A80, 1, 1)
    assert p.changed == 0.25
