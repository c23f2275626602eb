"""What a kernel needs: ``[[require]]``, formats that it accepts, and how a refusal reads."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from specs import Spec, SpecError, UnsupportedError, load_platform, parse_spec
from specs.bind import bind
from specs.context import make_context
from specs.diff import diff
from specs.formats import parse_format
from specs.program import Program
from specs.show import show_json, show_text
from verify import emulate

TEXT = """\
schema = 1
name = "test.needs"
status = "read"
summary = "a test"
[[require]]
that = "head_dim % 16 == 0 and head_dim <= most"
message = "head_dim is a multiple of 16 up to 128"
[[require]]
that = "compute_capability >= 90"
message = "it runs on Hopper and later"
[numbers]
compute = "f32"
inputs = { q = "bf16", k = "bf16", v = "bf16" }
accepts = { q = ["bf16", "f16"], k = ["bf16", "f16"], v = ["bf16", "f16"] }
[let]
most = "128"
[token]
score = "sum(q * k, seq()) * scale"
[row]
top    = "max(score)"
weight = "exp(score - top)"
output = "bf16(sum(weight * v, seq()) / sum(weight, seq()))"
[[variant]]
when = "q_format == 'f16'"
[variant.row]
output = "f16(sum(weight * v, seq()) / sum(weight, seq()))"
"""


def bound(spec: Spec, formats: dict[str, str] | None = None, **context: Any) -> Program:
    full = {"kv_len": 10, "head_dim": 64, "sm_count": 132, "compute_capability": 90, **context}
    given = {name: parse_format(fmt) for name, fmt in (formats or {}).items()}
    return bind(spec, make_context(full), formats=given)


def test_a_shape_that_the_kernel_does_not_take_is_refused_with_its_values() -> None:
    spec = parse_spec(TEXT, "my.toml")
    assert bound(spec).sites["output"].type.format == parse_format("bf16")
    with pytest.raises(UnsupportedError) as caught:
        bound(spec, head_dim=130)
    assert str(caught.value) == (
        "my.toml:6:9: test.needs does not take head_dim = 130, most = 128\n  head_dim is a multiple of 16 up to 128"
    )
    with pytest.raises(UnsupportedError, match="does not take compute_capability = 80\n  it runs on Hopper"):
        bound(spec, compute_capability=80)


def test_a_requirement_is_a_formula_of_known_names() -> None:
    with pytest.raises(SpecError, match=r"my\.toml:9:9: unknown name 'compute_capabillity'"):
        parse_spec(TEXT.replace("compute_capability", "compute_capabillity"), "my.toml")
    with pytest.raises(
        SpecError, match=r"my\.toml:7:1: unknown key 'require\.0\.massage'\n  did you mean 'message'"
    ):
        parse_spec(TEXT.replace('message = "head', 'massage = "head', 1), "my.toml")


def test_requirements_are_part_of_the_spec() -> None:
    spec = parse_spec(TEXT, "my.toml")
    again = parse_spec(spec.to_toml(), "again.toml")
    assert again == spec
    assert len(again.file.requires) == 2
    other = parse_spec(TEXT.replace("<= most", "<= 256"), "other.toml")
    assert other != spec
    changed = [line for line in diff(spec, other).lines if line.change != "same"]
    assert {line.role for line in changed} == {"require"}
    text = " ".join(show_text(spec).split())
    assert "require that = compute_capability >= 90 message = it runs on Hopper and later" in text
    assert show_json(spec)["require"][1]["that"] == "compute_capability >= 90"


def test_faults_name_lines_of_the_spec() -> None:
    faulty = TEXT.replace("[numbers]", '[faults]\nlow = "all weights vanish"\n[numbers]')
    with pytest.raises(SpecError, match=r"my\.toml:12:1: faults: no line 'low'"):
        parse_spec(faulty, "my.toml")
    spec = parse_spec(faulty.replace("[row]", '[row]\nlow = "top < -1000"'), "my.toml")
    assert parse_spec(spec.to_toml()) == spec
    assert spec.file.faults == {"low": "all weights vanish"}
    assert "all weights vanish" in show_text(spec)


def test_a_child_keeps_the_requirements_of_its_base(tmp_path: Any) -> None:
    (tmp_path / "base.toml").write_text(TEXT)
    head = 'schema = 1\nname = "test.child"\nstatus = "read"\nsummary = "a test"\nextends = "./base.toml"\n'
    more = '[[require]]\nthat = "kv_len <= 100"\nmessage = "at most 100 tokens"\n'
    (tmp_path / "child.toml").write_text(head + more)
    from specs import load_spec

    spec = load_spec(tmp_path / "child.toml")
    assert [r.message for r in spec.file.requires][1:] == [
        "it runs on Hopper and later",
        "at most 100 tokens",
    ]
    with pytest.raises(UnsupportedError, match=r"child\.toml:7:9: test\.child does not take kv_len = 101"):
        bound(spec, kv_len=101)
    with pytest.raises(UnsupportedError, match=r"base\.toml:9:9: test\.child does not take compute_cap"):
        bound(spec, compute_capability=80)


def test_formulas_see_the_formats_of_the_inputs() -> None:
    spec = parse_spec(TEXT, "my.toml")
    f16 = {"q": "f16", "k": "f16", "v": "f16"}
    assert bound(spec, f16).sites["output"].type.format == parse_format("f16")
    with pytest.raises(SpecError, match="'q_format' is given to every spec"):
        parse_spec(TEXT.replace("most = ", 'q_format = "1"\nmost = '))


def test_arrays_in_formats_that_the_kernel_takes_stay_as_they_are() -> None:
    spec, h200 = parse_spec(TEXT, "my.toml"), load_platform("h200")
    rng = np.random.default_rng(3)
    q, k, v = (rng.standard_normal(shape) for shape in ((1, 64), (10, 1, 64), (10, 1, 64)))

    def run(dtype: Any) -> Any:
        arrays = [x.astype(dtype) for x in (q, k, v)]
        return emulate(spec, h200, q=arrays[0], k=arrays[1], v=arrays[2], backend="oracle").output

    assert run(np.float16).dtype == np.float16
    assert run(ml_dtypes.bfloat16).dtype == ml_dtypes.bfloat16
    assert run(np.float32).dtype == ml_dtypes.bfloat16
    with pytest.raises(UnsupportedError) as caught:
        run(ml_dtypes.float8_e4m3fn)
    assert "argument q: the kernel takes no q in e4m3fn\n  it takes bf16 and f16" in str(caught.value)


@pytest.mark.parametrize(("condition", "value"), [("kv_len", "64"), ("kv_len - kv_len", "0"), ("'a'", "'a'")])
def test_a_requirement_is_a_condition(condition: str, value: str) -> None:
    text = TEXT + f'[[require]]\nthat = "{condition}"\nmessage = "never"\n'
    with pytest.raises(SpecError, match=rf"my\.toml:\d+:9: {value} where a condition is needed"):
        bound(parse_spec(text, "my.toml"), head_dim=64, kv_len=64)


def test_a_fault_is_a_condition() -> None:
    text = TEXT.replace("[numbers]", '[faults]\ntop = "it is large"\n[numbers]')
    with pytest.raises(SpecError, match=r"my\.toml:12:8: faults: line 'top' is no condition but a float"):
        bound(parse_spec(text, "my.toml"), head_dim=64)
