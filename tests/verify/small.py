"""Small specs that tests write out: what stands above their lines, and their plans."""

from __future__ import annotations

from typing import Any

from specs import parse_spec
from specs.bind import bind
from specs.context import make_context
from verify.partition import Plan, plan_program

HEADER = """
schema = 1
name = "test.small"
status = "read"
summary = "a test"
[numbers]
compute = "f32"
inputs = { q = "bf16", k = "bf16", v = "bf16" }
"""


def planned(text: str, kv_len: int, **context: Any) -> Plan:
    """The plan of the spec with these lines, on four SMs."""
    values = make_context({"sm_count": 4, "compute_capability": 90, "kv_len": kv_len, **context})
    return plan_program(bind(parse_spec(HEADER + text), values), values)
