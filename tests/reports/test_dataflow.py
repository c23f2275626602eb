"""The dataflow of a spec and its layout, against what the walkthrough specs say by eye."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest

from reports.contract import Flow, FlowEdge, FlowNode
from reports.dataflow import flow_of
from reports.flowchart import draw
from reports.layering import arrange
from specs import load_platform, load_spec

CONTEXT = {"kv_len": 27525, "q_heads": 24, "kv_heads": 4, "head_dim": 256}
LIBRARY = (
    "walkthrough.triton",
    "walkthrough.flash_attention_2",
    "walkthrough.xqa",
    "walkthrough.trtllm_gen",
    "walkthrough.dense",
    "walkthrough.tiled",
    "flash_attn2.splitkv_decode",
    "xqa.decode",
    "vllm_triton.decode_3d",
)


def flow(name: str) -> Flow:
    return flow_of(load_spec(name), load_platform("h200"), CONTEXT)


def node(f: Flow, name: str) -> FlowNode:
    return next(n for n in f.nodes if n.id == name)


def edge(f: Flow, source: str, target: str) -> FlowEdge:
    return next(e for e in f.edges if (e.source, e.target) == (source, target))


def test_flash_attention_rounds_p_for_the_value_sum_only() -> None:
    f = flow("walkthrough.flash_attention_2")
    assert (edge(f, "weight", "value").cast, edge(f, "weight", "value").cast_bits) == ("bf16", 16)
    assert edge(f, "weight", "norm").cast is None
    assert node(f, "weight").bits == node(f, "partial").bits == 32
    assert edge(f, "exact", "output").cast == "bf16"
    assert node(f, "output").kind == "output"


def test_xqa_rounds_p_itself_and_the_partial() -> None:
    f = flow("walkthrough.xqa")
    assert node(f, "weight").rounds == ("bf16",)
    assert node(f, "partial").rounds == ("bf16",)
    assert edge(f, "weight", "norm").bits == edge(f, "weight", "value").bits == 16
    assert edge(f, "partial", "exact").bits == 16


def test_trtllm_carries_three_states_of_the_row() -> None:
    f = flow("walkthrough.trtllm_gen")
    assert {n.id for n in f.nodes if n.carried == "row"} == {"m", "den", "num"}
    assert edge(f, "num", "num").when == "prev"
    assert edge(f, "num", "exact").when == "last"


def test_sections_run_from_the_inputs_to_the_row() -> None:
    f = flow("walkthrough.flash_attention_2")
    assert [s.name for s in f.sections] == ["inputs", "token", "split", "row"]
    # The level of blocks has no line of its own: its rule stands with the split's.
    assert f.sections[2].rule == "split = pieces(splits, unit=64); block = tiles(64, desc)"


@pytest.mark.parametrize("name", LIBRARY)
def test_every_spec_is_laid_out_without_overlap_and_downwards(name: str) -> None:
    f = flow(name)
    layers = arrange(f)
    for e in f.edges:
        if e.when != "prev":
            assert layers.rank[e.source] < layers.rank[e.target], f"{e.source} -> {e.target}"
    by_rank: dict[int, list[float]] = {}
    for n in f.nodes:
        by_rank.setdefault(layers.rank[n.id], []).append(layers.place[n.id])
    for places in by_rank.values():
        places.sort()
        gaps = [b - a for a, b in pairwise(places)]
        assert all(gap >= 1.0 - 1e-9 for gap in gaps)
    bands = [layers.bands[s.name] for s in f.sections]
    assert all(a[1] < b[0] for a, b in pairwise(bands))
    assert all(layers.bands[n.section][0] <= layers.rank[n.id] <= layers.bands[n.section][1] for n in f.nodes)


@pytest.mark.parametrize("name", LIBRARY)
def test_the_figure_shows_every_node_and_every_rounding(name: str) -> None:
    f = flow(name)
    svg = str(draw(f, name))
    assert svg.count('<g class="node ') == len(f.nodes)
    roundings = sum(e.cast is not None for e in f.edges) + sum(
        len((*n.rounds, *n.inner)[:2]) for n in f.nodes
    )
    assert svg.count('<g class="round">') == roundings
    assert not re.search(r"nan|inf(?!\b[^<]*</)", re.sub(r"<(title|text)[^>]*>[^<]*", "", svg))


def test_an_empty_flow_is_an_empty_figure() -> None:
    assert "<svg" in str(draw(Flow(sections=(), nodes=(), edges=()), "nothing"))
