"""The lengths of a ragged batch as part of the context."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import specs
from specs import load_platform, parse_spec
from specs.context import MAX_BATCH, OF_PLATFORM, batch_lengths, make_context
from specs.errors import InputError, SpecError
from verify import emulate, plan, plan_ragged

GPU = {"sm_count": 132, "compute_capability": 90}
TEXT = """\
schema = 1
name = "test.ragged"
status = "read"
summary = "chunks by the lengths of the whole batch"
[numbers]
compute = "f32"
inputs = { q = "bf16", k = "bf16", v = "bf16" }
[let]
chunk = "flashinfer_kv_chunk(kv_lens, 1, page_size, 0, 2 * sm_count // kv_heads)"
[levels]
part = "tiles(chunk)"
[token]
score = "sum(q * k, seq()) * scale"
[part]
top   = "max(score)"
value = "sum(exp(score - top) * v, seq())"
norm  = "sum(exp(score - top), seq())"
[row]
w      = "exp(top - max(top))"
output = "bf16(sum(w * value, seq()) / sum(w * norm, seq()))"
"""


def test_lengths_say_what_the_batch_is() -> None:
    context = make_context({**GPU, "kv_len": 5, "kv_lens": [9, 5, 0]})
    assert context["kv_lens"] == (9, 5, 0)
    assert (context["batch"], context["max_kv_len"], context["kv_capacity"]) == (3, 9, 9)
    assert batch_lengths(context) == (9, 5, 0)
    padded = make_context({**GPU, "kv_len": 5, "kv_lens": np.array([9, 5]), "max_kv_len": 4096})
    assert padded["max_kv_len"] == 4096


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"fork": "vlm"}, "context: fork = 'vlm' is unknown\n  did you mean 'vllm'?"),
        ({"fork": ""}, "context: fork = '' is unknown\n  known names: dao, vllm"),
        ({"cpu": "amd_avx521"}, "context: cpu = 'amd_avx521' is unknown\n  did you mean 'amd_avx512'?"),
    ],
)
def test_a_wrong_word_is_refused(given: dict[str, str], message: str) -> None:
    with pytest.raises(InputError) as caught:
        make_context({**GPU, "kv_len": 5, **given})
    assert str(caught.value) == message


def test_words_are_taken() -> None:
    context = make_context({**GPU, "kv_len": 5, "fork": "vllm", "cpu": "amd_avx512"})
    assert (context["fork"], context["cpu"]) == ("vllm", "amd_avx512")
    assert make_context({**load_platform("amd_avx512").context, "kv_len": 5})["cpu"] == "amd_avx512"


def test_a_platform_file_may_bring_a_class_of_cpu_of_its_own(tmp_path: Path) -> None:
    library = Path(specs.__file__).parent / "platforms" / "amd_avx512.toml"
    mine = tmp_path / "mine.toml"
    mine.write_text(library.read_text().replace('cpu_class = "amd_avx512"', 'cpu_class = "arm_sve"'))
    given = load_platform(mine).context
    assert make_context({**given, "kv_len": 5})["cpu"] == "arm_sve"
    with pytest.raises(InputError, match="cpu = 'arm_sve' is unknown"):
        make_context({**given, "kv_len": 5, "cpu": "arm_sve"})


def test_without_lengths_all_are_alike() -> None:
    context = make_context({**GPU, "kv_len": 5, "batch": 3})
    assert "kv_lens" not in context
    assert batch_lengths(context) == (5, 5, 5)
    huge = make_context({**GPU, "kv_len": 5, "batch": MAX_BATCH + 1})
    assert batch_lengths(huge) == (), "a rule that needs them refuses"


@pytest.mark.parametrize(
    ("given", "cause"),
    [
        ({"kv_lens": 5}, "kv_lens = 5 is not a list"),
        ({"kv_lens": "55"}, "kv_lens = '55' is not a list"),
        ({"kv_lens": []}, "kv_lens holds 0 lengths"),
        ({"kv_lens": [5] * (MAX_BATCH + 1)}, "kv_lens holds 65537 lengths"),
        ({"kv_lens": [5, -1]}, "kv_lens = -1 is out of range"),
        ({"kv_lens": [5, 2.5]}, "kv_lens = 2.5 is not an integer"),
        ({"kv_lens": [6, 7]}, "kv_lens holds 2 lengths up to 7, but batch = 2, kv_len = 5"),
        ({"kv_lens": [5, 7], "batch": 3}, "kv_lens holds 2 lengths up to 7, but batch = 3"),
        ({"kv_lens": [5, 7], "max_kv_len": 6}, "and max_kv_len = 6"),
        ({"kv_lenses": [5]}, "unknown name 'kv_lenses'"),
    ],
)
def test_wrong_lengths_are_refused(given: dict[str, Any], cause: str) -> None:
    with pytest.raises(InputError, match=cause):
        make_context({**GPU, "kv_len": 5, **given})


def test_the_plan_of_one_sequence_depends_on_the_others() -> None:
    """2,048 and 64 pages: 32 pages a chunk fill the 66 places; alone, the short one is cut at eight pages."""
    spec, h200 = parse_spec(TEXT), load_platform("h200")
    shape: dict[str, Any] = {"q_heads": 4, "kv_heads": 4}
    assert plan(spec, h200, kv_len=1_024, **shape).count == 8
    long, short = plan_ragged(spec, h200, kv_lens=[32_768, 1_024], **shape)
    assert (long.program.integers["chunk"], short.program.integers["chunk"]) == (512, 512)
    assert (long.count, short.count) == (64, 2)


def test_emulation_of_a_ragged_batch_sees_all_lengths() -> None:
    spec, h200 = parse_spec(TEXT), load_platform("h200")
    rng = np.random.default_rng(5)
    q = rng.standard_normal((3, 4, 16), dtype=np.float32)
    k, v = (rng.standard_normal((3, 700, 4, 16), dtype=np.float32) for _ in range(2))
    lengths = [700, 300, 0]
    small = {
        "sm_count": 4,
        "page_size": 16,
    }  # two places for three sequences: never enough
    runs = emulate(spec, h200, q=q, k=k, v=v, kv_lens=lengths, context=small, backend="oracle")
    assert [r.plan.program.integers["chunk"] for r in runs] == [704, 704, 704]
    one = emulate(spec, h200, q=q[1], k=k[1, :300], v=v[1, :300], context=small, backend="oracle")
    assert one.plan.program.integers["chunk"] == 160


def test_a_list_is_no_value() -> None:
    h200 = load_platform("h200")
    with pytest.raises(SpecError, match=r"kv_lens is a list"):
        plan(parse_spec(TEXT.replace("tiles(chunk)", "tiles(kv_lens)")), h200, kv_len=10)
    with pytest.raises(SpecError, match=r"kv_lens is a list, not a value"):
        plan(parse_spec(TEXT.replace("* scale", "* kv_lens")), h200, kv_len=10)


@pytest.mark.parametrize("name", ["h200", "amd_avx512"])
def test_what_a_platform_fixes_is_what_it_says(name: str) -> None:
    assert set(load_platform(name).context) == set(OF_PLATFORM)
