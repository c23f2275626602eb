"""Partitions: known counts, each token owned exactly once, and what is out of bounds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specs import Spec, load_platform, load_spec, parse_spec
from specs.bind import bind
from specs.context import make_context
from specs.discover import every
from specs.errors import InputError, SpecError, UnsupportedError
from tests.tables import Row, Table
from tests.verify.small import HEADER
from verify import plan, plan_ragged
from verify.partition import Plan, plan_program

LIBRARY = [f.name for f in every() if f.kind == "library"]
QWEN: dict[str, Any] = {"q_heads": 24, "kv_heads": 4, "head_dim": 256}


def planned(spec: Spec, **context: Any) -> Plan:
    values = make_context({"compute_capability": 90, "sm_count": 132, **context})
    return plan_program(bind(spec, values), values)


# -- expected values --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "platform", "count", "first"),
    [
        ("flash_attention_2", "h200", 54, 512),
        ("flash_attention_2", "b200", 62, 448),
        ("flash_attention_2", "sm120", 87, 320),
        ("xqa", "h200", 33, None),
        ("xqa", "sm120", 47, None),
        ("triton", "h200", 16, None),
        ("triton", "b200", 16, None),
        ("triton", "sm120", 16, None),
        ("trtllm_gen", "b200", 216, 128),
    ],
)
def test_the_nine_cells_of_the_teaching_input(
    spec: str, platform: str, count: int, first: int | None
) -> None:
    p = plan(load_spec(f"walkthrough.{spec}"), load_platform(platform), kv_len=27_525, batch=1, **QWEN)
    assert p.count == len(p) == count
    assert first is None or len(p.groups[0].tokens) == first
    assert p.groups[0].tokens.dtype == np.int64
    assert [g.index for g in p.groups] == list(range(count))


def test_flash_attention_2_visits_its_431_blocks_last_to_first() -> None:
    p = plan(load_spec("walkthrough.flash_attention_2"), load_platform("h200"), kv_len=27_525, **QWEN)
    assert int(p.exists["block"].sum()) == 431
    assert p.groups[0].tokens[:3].tolist() == [448, 449, 450]
    assert p.groups[0].tokens[-3:].tolist() == [61, 62, 63]
    last = p.groups[-1]
    assert last.span == (53 * 512, 27_525)
    assert last.tokens[0] == 430 * 64, "the last block, of five tokens, comes first"
    assert last.tokens[4] == 27_524


@pytest.mark.parametrize(("platform", "count"), [("h200", 18), ("b200", 23), ("sm120", 30)])
def test_the_bundled_layer_tells_platforms_apart(platform: str, count: int) -> None:
    shape: dict[str, Any] = {"kv_len": 5_683, "batch": 4, "q_heads": 9, "kv_heads": 3, "head_dim": 64}
    assert plan(load_spec("walkthrough.flash_attention_2"), load_platform(platform), **shape).count == count


def test_triton_has_sixteen_segments_of_whole_tiles() -> None:
    p = plan(load_spec("walkthrough.triton"), load_platform("h200"), kv_len=300)
    assert [g.span for g in p.groups] == [(i, min(300, i + 32)) for i in range(0, 300, 32)]


def test_xqa_deals_tiles_round_robin() -> None:
    p = plan(
        load_spec("walkthrough.xqa"), load_platform("h200"), kv_len=2_000, kv_heads=8, q_heads=8, batch=6
    )
    assert p.count == 132 // 48
    assert p.groups[1].tokens[::256].tolist() == [256, 768, 1280, 1792]
    assert len(p.groups[1].tokens) == 3 * 256 + 2_000 - 1_792


def check_xqa(row: Row) -> None:
    capacity, heads = int(row["max_seq_len_capacity"]), int(row["kv_heads"])
    p = planned(
        load_spec("walkthrough.xqa"),
        sm_count=int(row["sm_count"]),
        batch=int(row["batch"]),
        kv_heads=heads,
        q_heads=heads,
        kv_len=min(capacity, 40_000),
        kv_capacity=capacity,
    )
    assert p.program.integers["groups"] == int(row["mha_cu_grid_x"])
    if capacity <= 40_000:  # longer ones only need more memory
        assert p.count == int(row["mha_cu_grid_x"])
        assert -(-p.span // 256) == int(row["mha_cu_max_tiles_per_subseq"])
        assert sum(-(-len(g.tokens) // 256) for g in p.groups) == int(row["mha_cu_tiles256_total"])


XQA_TABLE = Table("xqa_subseq_small.csv", "xqa_subseq.csv", 200, 3_000, check_xqa)


def test_xqa_sub_sequences() -> None:
    XQA_TABLE.replay_small()


@pytest.mark.slow
def test_xqa_sub_sequences_on_the_whole_table() -> None:
    """By default the small table, a sample of its rows."""
    XQA_TABLE.replay_whole()


# -- laws -------------------------------------------------------------------------------------------------


def assert_partition(p: Plan, kv_len: int) -> None:
    """Each token once; pieces that exist where tokens are; visited pieces inside visited ones; holes at the end."""
    owned = p.tokens[p.tokens >= 0]
    assert sorted(owned.tolist()) == list(range(kv_len))
    live = p.tokens >= 0
    assert (live[..., :-1] >= live[..., 1:]).all(), "tokens stand at the front of their piece"
    for i, name in enumerate(p.levels):
        exists = p.exists[name]
        assert exists.shape == p.tokens.shape[: i + 1]
        has = live.reshape(*exists.shape, -1).any(axis=-1)
        assert (exists >= has).all(), "what has tokens is visited"
        if i:
            assert (exists <= p.exists[p.levels[i - 1]][..., None]).all()
    kept = {level.name for level in p.program.levels if level.rule.keep_empty}
    if p.levels and p.levels[0] not in kept:
        assert all(len(g.tokens) for g in p.groups)
    assert sum(len(g.tokens) for g in p.groups) == kv_len
    assert p.span == max((len(g.tokens) for g in p.groups), default=0)


@settings(max_examples=150)
@given(
    name=st.sampled_from(LIBRARY),
    kv_len=st.one_of(st.integers(0, 5_000), st.sampled_from([0, 1, 63, 64, 65, 255, 256, 257, 4_096])),
    sms=st.integers(1, 512),
    capability=st.sampled_from([80, 89, 90, 100, 120]),
    batch=st.integers(1, 70),
    heads=st.integers(1, 9),
    group=st.integers(1, 9),
    queries=st.integers(1, 20),
    head_dim=st.sampled_from([64, 128, 192, 256]),
    spare=st.sampled_from([0, 1, 300, 100_000]),
    splits=st.sampled_from([0, 0, 1, 7]),
    fork=st.sampled_from(["dao", "vllm"]),
)
def test_each_token_is_owned_exactly_once(
    name: str,
    kv_len: int,
    sms: int,
    capability: int,
    batch: int,
    heads: int,
    group: int,
    queries: int,
    head_dim: int,
    spare: int,
    splits: int,
    fork: str,
) -> None:
    spec = load_spec(name)
    shape: dict[str, Any] = dict(
        kv_len=kv_len,
        sm_count=sms,
        compute_capability=capability,
        batch=batch,
        q_heads=heads * group,
        kv_heads=heads,
        q_len=queries,
        head_dim=head_dim,
        max_kv_len=kv_len + spare,
        kv_capacity=kv_len + spare,
        num_splits=splits,
        fork=fork,
    )
    try:
        p = planned(spec, **shape)
    except UnsupportedError:
        assert spec.file.requires, "only a spec that states its needs may refuse"
        return
    assert_partition(p, kv_len)


RULES = st.one_of(
    st.builds("tiles({}{})".format, st.integers(1, 70), st.sampled_from(["", ", desc"])),
    st.builds(
        "pieces({}, unit={}{}{})".format,
        st.integers(1, 20),
        st.integers(1, 40),
        st.sampled_from(["", ", of=max_kv_len", ", skip=2", ", of=max_kv_len, skip=3"]),
        st.sampled_from(["", ", empty=keep"]),
    ),
    st.builds(
        "deal({}, unit={}{}{})".format,
        st.integers(1, 20),
        st.integers(1, 40),
        st.sampled_from(["", ", skip=3"]),
        st.sampled_from(["", ", empty=keep"]),
    ),
)


@settings(max_examples=150)
@given(rules=st.lists(RULES, max_size=4), kv_len=st.integers(0, 600), spare=st.integers(0, 200))
def test_any_nesting_of_rules_is_a_partition(rules: list[str], kv_len: int, spare: int) -> None:
    """``of`` may cut a whole longer than the sequence, not a shorter one: tokens past it would have no owner."""
    text = "".join(f'l{i} = "{rule}"\n' for i, rule in enumerate(rules))
    body = f"[levels]\n{text}" if rules else ""
    spec = parse_spec(f'{HEADER}{body}[row]\noutput = "sum(v, seq())"\n')
    assert_partition(planned(spec, kv_len=kv_len, max_kv_len=kv_len + spare), kv_len)


@given(n=st.integers(1, 12), unit=st.integers(1, 40), kv_len=st.integers(1, 700))
def test_rules_do_what_they_say(n: int, unit: int, kv_len: int) -> None:
    """Against the definitions in words, token by token."""

    def groups(rule: str) -> list[list[int]]:
        spec = parse_spec(f'{HEADER}[levels]\ng = "{rule}"\n[row]\noutput = "sum(v, seq())"\n')
        return [g.tokens.tolist() for g in planned(spec, kv_len=kv_len).groups]

    tokens = range(kv_len)
    units = -(-kv_len // unit)
    width = -(-units // n) * unit
    pieces = [list(tokens[i : i + width]) for i in range(0, kv_len, width)]
    assert groups(f"pieces({n}, unit={unit})") == pieces
    dealt: list[list[int]] = [[t for t in tokens if t // unit % n == i] for i in range(n)]
    assert groups(f"deal({n}, unit={unit})") == [d for d in dealt if d]
    tiles = [list(tokens[i : i + unit]) for i in range(0, kv_len, unit)]
    assert groups(f"tiles({unit})") == tiles
    assert groups(f"tiles({unit}, desc)") == tiles[::-1]


@given(n=st.integers(1, 12), unit=st.integers(1, 40), kv_len=st.integers(1, 700), skip=st.integers(0, 30))
def test_skipped_units_come_before_the_cut(n: int, unit: int, kv_len: int, skip: int) -> None:
    """Against the definitions in words, token by token."""

    def groups(rule: str) -> list[list[int]]:
        spec = parse_spec(f'{HEADER}[levels]\ng = "{rule}"\n[row]\noutput = "sum(v, seq())"\n')
        return [g.tokens.tolist() for g in planned(spec, kv_len=kv_len).groups]

    units = -(-kv_len // unit)
    dealt: list[list[int]] = [[t for t in range(kv_len) if (t // unit - skip) % n == i] for i in range(n)]
    assert groups(f"deal({n}, unit={unit}, skip={skip})") == [d for d in dealt if d]
    left = max(0, units - skip)
    width = -(-left // n)

    def piece(token: int) -> int:
        return max(0, token // unit - skip) // width if width else 0

    cut: list[list[int]] = [[t for t in range(kv_len) if piece(t) == i] for i in range(n)]
    assert groups(f"pieces({n}, unit={unit}, skip={skip})") == [c for c in cut if c]


def test_a_ragged_batch_sees_its_longest_sequence() -> None:
    plans = plan_ragged(
        load_spec("walkthrough.xqa"), load_platform("h200"), kv_lens=[300, 5_000, 0], q_heads=8, kv_heads=8
    )
    assert [p.kv_len for p in plans] == [300, 5_000, 0]
    assert [p.program.integers["groups"] for p in plans] == [132 // 24] * 3
    assert [p.count for p in plans] == [2, 5, 0]
    with pytest.raises(InputError, match="no sequence"):
        plan_ragged(load_spec("walkthrough.xqa"), load_platform("h200"), kv_lens=[])


# -- out of bounds ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rule", "cause"),
    [
        ("tiles(kv_len - 100)", r"<text>:10:12: tiles\(\) with 0; at least 1"),
        ("tiles(0 - 5)", r"tiles\(\) with -5"),
        ("pieces(4, unit=kv_len - 100)", r"<text>:10:21: pieces\(\) with 0"),
        ("pieces(4, unit=16, of=0-1)", r"pieces\(\) with -1"),
        ("deal(kv_len // 1000, unit=4)", r"deal\(\) with 0"),
        ("tiles(kv_len // (batch - 1))", r"<text>:10:12: division by zero"),
        ("tiles(fork)", r"tiles\(\) with dao"),
        ("tiles(nothing)", r"unknown name 'nothing'"),
    ],
)
def test_a_rule_out_of_range(rule: str, cause: str) -> None:
    with pytest.raises(SpecError, match=cause):
        planned(parse_spec(f'{HEADER}[levels]\ng = "{rule}"\n[row]\noutput = "sum(v, seq())"\n'), kv_len=100)


def test_pieces_of_too_small_a_whole_are_refused() -> None:
    """Else the tokens past it would have no owner."""
    spec = parse_spec(f'{HEADER}[levels]\ng = "pieces(4, unit=8, of=60)"\n[row]\noutput = "sum(v, seq())"\n')
    assert planned(spec, kv_len=64).count == 4, "whole units cover 64 tokens"
    with pytest.raises(SpecError, match=r"test\.small: level 'g': pieces\(of=60\) covers 64 of 65 tokens"):
        planned(spec, kv_len=65)


def test_a_piece_count_beyond_memory_is_refused() -> None:
    spec = parse_spec(
        f'{HEADER}[levels]\ng = "pieces(2 * 65536 * 4096, unit=1)"\n[row]\noutput = "sum(v, seq())"\n'
    )
    with pytest.raises(UnsupportedError, match="padded slots; the limit is"):
        planned(spec, kv_len=1_000)


@pytest.mark.parametrize(
    ("given", "cause"),
    [
        ({"kv_len": 1_000_000_000}, "kv_len = 1000000000 is out of range 0..16777216"),
        ({"kv_len": -1}, "kv_len = -1 is out of range"),
        ({"kv_len": 10.5}, "kv_len = 10.5 is not an integer"),
        ({"kv_len": "10"}, "kv_len = '10' is not an integer"),
        ({}, "kv_len is not given"),
        ({"kv_len": 10, "sm_count": 0}, "sm_count = 0 is out of range 1..65536"),
        ({"kv_len": 10, "kv_capacity": 9}, "kv_capacity = 9 is less than kv_len = 10"),
        ({"kv_len": 10, "max_kv_len": 9}, "max_kv_len = 9 is less than kv_len = 10"),
        ({"kv_len": 10, "q_heads": 5, "kv_heads": 2}, "q_heads = 5 is not a multiple of kv_heads = 2"),
        ({"kv_len": 10, "kv_hedas": 2}, "unknown name 'kv_hedas'\n  did you mean 'kv_heads'?"),
        ({"kv_len": 10, "fork": 3}, "fork = 3 is not a word"),
        ({"kv_len": 10, "batch": None, "window": 1 << 30}, "window = 1073741824 is out of range"),
    ],
)
def test_a_context_out_of_range(given: dict[str, Any], cause: str) -> None:
    with pytest.raises(InputError) as caught:
        plan(load_spec("walkthrough.triton"), load_platform("h200"), **given)
    assert str(caught.value).startswith(f"walkthrough.triton on h200: {cause}")
    assert caught.value.remedy


def test_an_unknown_option_is_told_the_known_ones() -> None:
    with pytest.raises(SpecError, match="no option 'subtract'\n  did you mean 'subtract_max'"):
        plan(load_spec("walkthrough.dense"), load_platform("h200"), kv_len=5, options={"subtract": True})
    with pytest.raises(SpecError, match="subtract_max = 1 is not a bool"):
        plan(load_spec("walkthrough.dense"), load_platform("h200"), kv_len=5, options={"subtract_max": 1})
