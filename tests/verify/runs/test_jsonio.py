"""JSON from strangers: what says two things is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from specs.errors import InputError
from verify.runs.jsonio import parse
from verify.runs.load import load_runs

_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False)
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=12,
)


@given(_values)
@example({'a"': '\\"', "\\": ['"\\\\"', "\\\\"]})
def test_what_says_one_thing_is_read(value: object) -> None:
    for text in (json.dumps(value), json.dumps(value, ensure_ascii=False, indent=1)):
        try:
            data = text.encode()
        except UnicodeEncodeError:
            continue
        assert parse(data, "") == json.loads(text)


@pytest.mark.parametrize(
    "text",
    [
        '{"a": 1, "a": 2}',
        '{"a": 1, "\\u0061": 2}',
        '[{"x": {"a": "\\\\\\"", "b": 2, "a": 1}}]',
        '{"a": NaN, "b": 1, "a": 2}',
        '{"a":' * 300 + '{"a": 1, "a": 1}' + "}" * 300,
    ],
)
def test_a_name_twice_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="an object has the name 'a' twice"):
        parse(text.encode(), "f")


def test_the_line_of_a_name_that_is_there_twice(tmp_path: Path) -> None:
    """Which value of the token is meant nobody knows: the file is refused, with the line."""
    good = {
        "choices": [{"logprobs": {"tokens": ["a"], "token_logprobs": [-1.0], "top_logprobs": [{"a": -1.0}]}}]
    }
    line = json.dumps(good)
    file = tmp_path / "a.jsonl"
    file.write_text(line + "\n" + line.replace('{"a": -1.0}', '{"a": -1.0, "a": -2.0}') + "\n")
    with pytest.raises(InputError) as error:
        load_runs(file)
    assert str(error.value).startswith(f"{file}: line 2: an object has the name 'a' twice")
