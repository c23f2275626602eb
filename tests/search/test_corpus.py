"""The corpus: every witness that was filed still replays, bit for bit; and what broken members get."""

from __future__ import annotations

import shutil

import pytest

from search.corpus import check, exit_code, members
from search.replay import replay
from specs.errors import InputError
from tests.search.witnesses import CORPUS, SMALL, member

#: By name: tokens, and the distance of the stored outputs.
FILED = {
    "fa2_20_12_c1": (64, 2),
    "fa2_20_12_c05": (64, 4),
    "fa2_20_12_c01": (64, 19),
    "fa2_h200_b200": (27_525, 4),
    "user_spec": (64, 6),
    "xqa_triton_64": (64, 6),
}
#: Likewise of real kernels, over q, k and v.
KERNELS = {
    "fa2_a100_h200_c1": (3, 2),
    "fa2_a100_h200_c05": (4, 4),
    "triton_h200_b200": (65, 1),
    "xqa_h200_sm120_c1": (128, 2),
    "xqa_h200_sm120_c05": (33, 2),
}


def test_the_corpus_is_complete():
    assert [p.stem for p in members(CORPUS)] == sorted(FILED | KERNELS)


@pytest.mark.parametrize("name", FILED)
def test_every_member_replays(name):
    witness = member(name)
    result = replay(witness)
    assert result.replays, result.lines()
    assert result.certified
    assert (witness.record.space.kv_len, result.integer) == FILED[name]
    assert result.constraint == "holds"


@pytest.mark.parametrize("engine", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", KERNELS)
def test_every_member_of_a_real_kernel_replays(name, engine):
    """By the scalar definition and exact arithmetic; the array engine takes seconds to compile such a kernel."""
    witness = member(name)
    result = replay(witness, engine=engine)
    assert result.replays, result.lines()
    assert result.certified
    assert (witness.record.space.kv_len, result.integer) == KERNELS[name]
    assert result.constraint == "holds"


def test_nothing_lies_above_the_bound_of_two_programs_that_merge_alike():
    """Triton on H200 and B200 sums segments in another order alone."""
    bound = member("triton_h200_b200").record.bound
    assert bound is not None
    assert bound.real is not None
    assert (bound.rigor, bound.integer) == ("rigorous", 1)
    assert 0 < (member("triton_h200_b200").record.score or 0) < bound.real < 0.01


def test_the_spec_of_a_user_is_in_no_library():
    from specs.discover import resolve
    from specs.errors import SpecError

    name = member("user_spec").sides[0].spec.name
    assert name == "mine.alternate"
    with pytest.raises(SpecError):
        resolve(name)


def test_broken_members_are_reported_beside_the_others(tmp_path):
    for suffix in (".json", ".safetensors"):
        shutil.copy(CORPUS / f"{SMALL}{suffix}", tmp_path / f"a{suffix}")
    (tmp_path / "b.json").write_text("{}")
    (tmp_path / "c.safetensors").write_bytes(b"")
    seen = []
    found = check(tmp_path, progress=seen.append)
    assert [m.path.name for m in found] == ["a.json", "b.json", "c.json"]
    assert [m.replays for m in found] == [True, False, False]
    assert seen == list(found)
    assert "no such file" in found[1].lines()[0]
    assert exit_code(found) == 2
    assert exit_code(found[:1]) == 0


def test_a_folder_without_witnesses_is_refused(tmp_path):
    with pytest.raises(InputError, match="holds no witness"):
        members(tmp_path)
    with pytest.raises(InputError, match="no such folder"):
        members(tmp_path / "none")
