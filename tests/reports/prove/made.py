"""Proofs of every status, made by hand: what a page has to show, and texts that would break one."""

from __future__ import annotations

import hashlib
import re
from typing import Any

from reports.prove import contract as c

UNIT = "all GPUs have one special-function unit, as their platforms declare: mufu"
DOMAIN = "the domain: kv_len to 2^20; query heads are a multiple of KV heads"
TESTED = "longest(): a length of the batch: only tested, not proved, over one batch (1 call)"
XQA = "walkthrough.xqa"


def sha(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def text_of(html: str) -> str:
    """What of some HTML is read."""
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", html)).strip()


def side(spec: str, *platforms: str, text: str | None = None, **changes: str) -> c.Side:
    """A side of a spec whose hash is that of ``text``, by default of its name."""
    hashed = sha(spec if text is None else text) if spec else None
    return c.Side(spec=spec, sha256=hashed, changes=changes, platforms={p: sha(p) for p in platforms})


def proof(status: str = "proved", kind: str = "equal", **more: Any) -> c.Proof:
    values: dict[str, Any] = {
        "subject": f"{XQA}@h200 and {XQA}@h100",
        "claim": "equal bits for every shape and input",
        "status": status,
        "reason": "one spec; nothing of the platform enters its formulas",
        "assumptions": (UNIT,),
        "rechecked": "",
        "details": {},
        "seconds": 0.25,
        "kind": kind,
        "about": (side(XQA, "h200"), side(XQA, "h100")),
    }
    return c.Proof.model_validate({**values, **more})


def partition(spec: str = XQA, **more: Any) -> c.Proof:
    values: dict[str, Any] = {
        "subject": spec,
        "claim": "each token is owned exactly once",
        "reason": "Z3, 1 case of the spec's formulas, over all integers: at most 512 pieces",
        "assumptions": (DOMAIN, "the spec takes the shape: its 4 requirements hold"),
        "rechecked": "153 whole plans by the code that makes plans",
        "about": (side(spec, "h200", "b200", "sm120"),),
        "details": {"cases": 5, "requirements": ["a head of 128", "bf16 or f16"]},
    }
    return proof("proved", "partition", **{**values, **more})


def refuted() -> c.Proof:
    return proof(
        "refuted",
        subject=f"{XQA}@h200 and {XQA}@b200",
        claim="equal bits",
        reason="head 3, column 17: 1.3203125 (0x3fa9) against 1.328125 (0x3faa), 12 of 6,144 outputs differ",
        rechecked="replay: ulpscope compare ...",
        details={
            "text": "head 3, column 17",
            "index": [3, 17],
            "bits": ["0x3fa9", "0x3faa"],
            "seed": 1,
            "replay": f"ulpscope compare {XQA}@h200 {XQA}@b200 --random 1 --kv-len 512",
        },
        about=(side(XQA, "h200"), side(XQA, "b200")),
    )


def algebra() -> c.Proof:
    return proof(
        "refuted",
        "algebra",
        subject="walkthrough.tiled",
        claim="without roundings it is softmax attention",
        reason="line 'acc': after one more tile the earlier tokens weigh too much",
        assumptions=(UNIT, DOMAIN),
        rechecked="ball arithmetic with real exponentials gives 2.2",
        details={
            "line": "acc",
            "counterexample": {"exp_scores": ["2/3", "4/3"], "attention": "8/5", "spec": "11/5"},
        },
        about=(side("walkthrough.tiled", "h200", rescale="false"),),
    )


def every() -> tuple[c.Proof, ...]:
    """One claim of each status, two of what is refuted, and a proof that rests on a test."""
    grid = {"values": list(range(124, 144)), "of": [1, 512]}
    dot = (side("", "a100"), side("", "l40s"))
    return (
        proof(),
        partition(),
        partition("walkthrough.triton", assumptions=(DOMAIN, TESTED)),
        refuted(),
        algebra(),
        proof("not decided", reason="let auto differs; no input was tried", assumptions=()),
        proof("unknown", "small", reason="z3 gave no answer", claim="equal outputs on 4 tokens"),
        proof("tested", claim="equal bits on 400 inputs", reason="400 inputs agree, which proves nothing"),
        proof("exhaustive", "values", claim="sm_count for which the rule gives 54 pieces", details=grid),
        proof("refused", reason="torch takes no shape", assumptions=()),
        proof("proved", "dot", subject="mma on a100 and mma on l40s", claim="one function", about=dot),
        proof("proved", "bound", claim="at most 2.0143 ULP", details={"real_ulp": 2.0142615, "n": [1712, 0]}),
    )


def proofs(claims: tuple[c.Proof, ...] | None = None, **more: Any) -> c.Proofs:
    values: dict[str, Any] = {
        "question": "equal",
        "verdict": "as made",
        "provenance": {
            "command": "ulpscope prove equal ...",
            "started": "2026-01-31T12:00:00Z",
            "seconds": 12.5,
            "versions": {"ulpscope": "0.1.0", "z3-solver": "4.15.0", "sympy": "1.14.0"},
        },
        "proofs": every() if claims is None else claims,
    }
    return c.Proofs.model_validate({**values, **more})


def library(specs: int, each: int = 6) -> c.Proofs:
    """A library of so many specs: what is asked of every spec, and two pairs."""
    names = [f"made.kernel_{i}" for i in range(specs)]
    rows = tuple(
        c.SpecProofs(spec=n, proofs={f"question {k}": partition(n) for k in range(each)}) for n in names
    )
    return proofs(
        question="library",
        proofs=None,
        platforms=("h100", "h200"),
        specs=rows,
        others=(refuted(), proof("not decided")),
    )
