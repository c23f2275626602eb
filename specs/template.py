"""The file that ``ulpscope spec new`` writes: a spec that works, the language explained in comments."""

from __future__ import annotations

TEMPLATE = """\
# A spec says four things about a kernel: how tokens are grouped, where numbers are rounded, how sums are
# bracketed, and how partial results are merged. `ulpscope spec check {path}` checks it,
# `ulpscope spec diff {name} walkthrough.triton` compares it with another, line by line.
schema  = 1
name    = "{name}"
status  = "walkthrough"          # then "read" (from source), "replayed", "hardware" (equals a capture)
summary = "say in one line what is special about this kernel"

# [[source]]                     # where you read the arithmetic
# repository = "owner/name"
# commit     = "0123456789abcdef"
# path       = "src/kernel.cu"

[numbers]
compute = "f32"                  # each + - * / exp log fma rounds once to this format, to nearest even
inputs  = {{ q = "bf16", k = "bf16", v = "bf16" }}    # f64 f32 tf32 f16 e5m2 e4m3fn; f32.ftz flushes

[let]                            # integers: of the shape (kv_len, kv_heads, ...) and the GPU (sm_count, ...)
groups = "min(16, ceildiv(kv_len, 64))"

[levels]                         # outermost first: which tokens each piece owns
group = "pieces(groups, unit=64)"    # contiguous; deal(n, unit=) is round-robin, tiles(n) cuts by n tokens

[token]                          # one value per token
score = "select(visible, sum(q * k, seq()) * scale, -inf)"    # seq(): from +0, in order

[group]                          # one section per level; a reduction here runs over the tokens of the group
top    = "max(score)"
safe   = "select(top == -inf, 0, top)"       # a group whose tokens are all masked has weights 0, not NaN
weight = "exp(score - safe)"
norm   = "sum(weight, seq())"                # sums the unrounded weights
value  = "sum(bf16(weight) * v, seq())"      # bf16(x) is a rounding of its own

[row]                            # one query row: the merge of the groups
most      = "max(top)"
most_safe = "select(most == -inf, 0, most)"
w         = "exp(top - most_safe)"
total     = "sum(norm * w, seq())"
exact     = "select(total == 0, 0, sum(value * w, seq()) / total)"
output    = "bf16(exact)"
lse       = "most + log(total)"
"""


def template(name: str, path: str) -> str:
    """The text of a new spec called ``name`` that will stand at ``path``."""
    return TEMPLATE.format(name=name, path=path)
