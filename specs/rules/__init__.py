"""Named partition rules: heuristics of real kernels that are loops or tables, not formulas.

A rule is a pure function of integers that returns an integer. It is registered under its own name and called from
any integer formula of a spec. Rules are ordinary Python of this package or of an installed extension; a spec file
can name a rule, never define one.
"""

from __future__ import annotations

from specs.rules.flash_attention import (
    fa2_num_splits,
    fa3_block_m,
    fa3_block_n,
    fa3_num_splits,
    fa3_overlaps,
    fa3_pv_from_registers,
    fa3_varlen_splits,
)
from specs.rules.flashinfer import flashinfer_kv_chunk, flashinfer_kv_tile, flashinfer_query_tile, longest
from specs.rules.registry import call_rule, partition_rule, rule_names

__all__ = [
    "call_rule",
    "fa2_num_splits",
    "fa3_block_m",
    "fa3_block_n",
    "fa3_num_splits",
    "fa3_overlaps",
    "fa3_pv_from_registers",
    "fa3_varlen_splits",
    "flashinfer_kv_chunk",
    "flashinfer_kv_tile",
    "flashinfer_query_tile",
    "longest",
    "partition_rule",
    "rule_names",
]
