"""The names that every spec knows, and what may stand for a number without a cast."""

from __future__ import annotations

from specs.nodes import Name, Node, Num, Op, Tree

#: Scalars that a run supplies.
SCALARS = ("scale", "rsqrt_head_dim", "q_scale", "softcap", "k_scale", "v_scale")
#: Scalars with one value for each query head: the logit of a sink, the slope of ALiBi.
HEAD_SCALARS = ("sink", "slope")
#: Integers of a token (its number in the sequence) and of a query row (the number of its own token).
INDICES = ("key_index", "query_index")
BUILTIN = ("visible", "inf", "nan", "it", *SCALARS, *HEAD_SCALARS, *INDICES)


#: What tensor cores read.
TENSOR_FORMATS = ("bf16", "f16", "tf32", "e4m3fn", "e5m2")


def is_mma(n: Node) -> bool:
    """Whether a tree is a chain of tensor-core instructions."""
    return isinstance(n, Tree) and n.kind == "mma"


def is_literal(n: Node) -> bool:
    """A number as it was written, with or without a sign."""
    return isinstance(n, Num) or (isinstance(n, Op) and n.op == "neg" and is_literal(n.args[0]))


def constant(n: Node) -> bool:
    """Whether an integer is the same everywhere: made of literals alone. It stands for a number without a cast."""
    below = list(n.children())
    return all(constant(child) for child in below) if below else isinstance(n, Num)


def neutral(n: Node) -> bool:
    """Literals that every float format holds: they do not widen a select."""
    if isinstance(n, Op) and n.op == "neg":
        return neutral(n.args[0])
    return (isinstance(n, Num) and n.text in ("0", "1", "0.0", "1.0")) or (
        isinstance(n, Name) and n.id == "inf"
    )
