"""Everything that can be asked of the whole library: a few dozen questions, some processes at a time, and a table."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from search.prove.about import about_sides, asked
from search.prove.answer import Proof, rounded_up, tally, words
from search.prove.dots import prove_dots
from search.prove.equal import prove_equal
from search.prove.processes import Reply, ask_all
from search.prove.work import Job, algebra_job, bound_job, partition_job
from search.sides import Side
from specs.context import make_context
from specs.errors import UlpscopeError
from specs.loader import Spec, load_spec
from specs.platforms import Platform, load_platform

#: The limit of one question in seconds.
SECONDS = 25.0
#: Where a bound is asked for: the first platform that a spec takes, at this shape and c.
PLATFORMS = ("h200", "b200", "amd_avx512")
SHAPE = {"q_heads": 8, "kv_heads": 2, "head_dim": 128, "kv_len": 1024}
CANCELLATION = Fraction(1)
HEADS = {n: v for n, v in SHAPE.items() if n != "kv_len"}
#: GPUs that are compared, for every spec; tensor cores that are, for bf16.
PAIRS = (("h200", "h100"), ("h200", "b200"), ("a100", "l40s"))
#: Pairs whose distance is bounded, at a length at which each of them cuts the sequence in two ways.
DISTANCES = (
    ("walkthrough.flash_attention_2@h200", "walkthrough.flash_attention_2@b200"),
    ("walkthrough.xqa@h200", "walkthrough.triton@h200"),
    ("walkthrough.trtllm_gen@b200", "walkthrough.flash_attention_2@h200"),
)
APART = {**SHAPE, "q_heads": 24, "kv_heads": 4, "head_dim": 256, "kv_len": 4352}


@dataclass(frozen=True)
class Row:
    """What was asked of one spec, by column of the table."""

    subject: str
    cells: Mapping[str, Proof]


@dataclass(frozen=True)
class Library:
    """The answers.

    Attributes:
        rows: one for each spec.
        others: of tensor cores and pairs.
    """

    rows: tuple[Row, ...]
    others: tuple[Proof, ...]

    @property
    def proofs(self) -> list[Proof]:
        """All of them."""
        return [p for row in self.rows for p in row.cells.values()] + list(self.others)

    def verdict(self) -> str:
        """How many claims came to what."""
        return tally(p.status for p in self.proofs)

    def lines(self) -> list[str]:
        """The table, what is not proved and why, and what the proofs take for granted."""
        columns = list(dict.fromkeys(c for row in self.rows for c in row.cells))
        table = [["spec", *columns]]
        table += [[r.subject, *(_cell(r.cells.get(c)) for c in columns)] for r in self.rows]
        widths = [max(len(row[i]) for row in table) for i in range(len(table[0]))]
        out = ["  ".join(x.ljust(w) for x, w in zip(row, widths, strict=True)).rstrip() for row in table]
        out += ["", *(f"{p.subject}: {p.claim}: {words(p.status)}" for p in self.others)]
        open_ones = [p for p in self.proofs if p.status not in ("proved", "refused")]
        if open_ones:
            out += ["", "not proved:"]
            out += [f"  {p.subject}: {p.claim}: {words(p.status)}: {_short(p.reason)}" for p in open_ones]
        general = [
            a for p in self.proofs if p.status == "proved" for a in p.assumptions if not a.startswith(_OWN)
        ]
        return [
            *out,
            "",
            "the proofs assume:",
            f"  {EACH}",
            *(f"  {a}" for a in dict.fromkeys(map(_short, general))),
        ]


#: What each proof assumes of its own spec, and how such assumptions begin.
EACH = "each that the kernel is what its spec declares, that its requirements hold, and the shapes that --format json names"
_OWN = ("the kernel is what", "the spec takes the shape", "the lines")


def _cell(proof: Proof | None) -> str:
    if proof is None:
        return "-"
    if "real_ulp" in proof.details and proof.status == "proved":
        return f"proved <= {rounded_up(proof.details['real_ulp'])} ULP"
    return words(proof.status)


def _short(text: str) -> str:
    return text if len(text) <= 240 else text[:237] + "..."


def prove_library(
    names: Sequence[str],
    workers: int,
    seconds: float = SECONDS,
    progress: Callable[[str, int, int], None] | None = None,
) -> Library:
    """Ask everything of some specs.

    Args:
        names: of specs, or paths.
        workers: processes at a time.
        seconds: the limit of one question.
        progress: called with what is done, how many questions are, and how many there are.
    """
    specs = [(name, load_spec(name)) for name in names]
    jobs: list[tuple[str, str, Job]] = []
    for name, spec in specs:
        jobs.append((spec.name, "partition", partition_job(name, {}, seconds)))
        jobs.append((spec.name, "algebra", algebra_job(name, {}, {}, seconds)))
        side = first_side(spec)
        if side is not None:
            job = bound_job([side], {**SHAPE}, CANCELLATION, None, seconds)
            jobs.append((spec.name, "error at c = 1", job))
    pairs = [bound_job([_side(a), _side(b)], {**APART}, CANCELLATION, None, seconds) for a, b in DISTANCES]
    # The longest first: what is left at the end is short.
    every = sorted(range(len(jobs)), key=lambda i: _COST.get(jobs[i][2].kind, 0), reverse=True)
    total = len(jobs) + len(pairs)

    def done(reply: Reply, left: int) -> None:
        if progress is not None:
            progress("proving", total - left, total)

    same: dict[str, dict[str, Proof]] = {}
    others: list[Proof] = []

    def quick() -> None:  # what takes no process of its own
        for _, spec in specs:
            same[spec.name] = {
                f"{a} = {b}": _equal(spec, load_platform(a), load_platform(b)) for a, b in PAIRS
            }
        others.extend(p for a, b in PAIRS for p in prove_dots([load_platform(a), load_platform(b)], "bf16"))

    replies = ask_all([*(jobs[i][2] for i in every), *pairs], workers, done, quick)
    found = {i: _of(reply) for i, reply in zip(every, replies, strict=False)}
    cells: dict[str, dict[str, Proof]] = {spec.name: {} for _, spec in specs}
    for i, (subject, column, _) in enumerate(jobs):
        cells[subject][column] = found[i]
    for name, found_same in same.items():
        cells[name] |= found_same
    others += [_of(reply) for reply in replies[len(every) :]]
    return Library(tuple(Row(n, c) for n, c in cells.items()), tuple(others))


#: Roughly how long the kinds of questions take.
_COST = {"partition": 2, "algebra": 1}


def _of(reply: Reply) -> Proof:
    """The proof of a reply; an error of the question becomes one that says so."""
    job = reply.job
    if reply.error is not None:
        proof = Proof(job.subject, job.claim, "not decided", reply.error.cause)
        return asked(job.kind, job.about, [proof])[0]
    return reply.proofs[0]


def _equal(spec: Spec, a: Platform, b: Platform) -> Proof:
    sides = Side(spec, a), Side(spec, b)
    try:
        found = prove_equal(*sides, HEADS, witness=False, seconds=3.0)
    except UlpscopeError as error:
        found = Proof(f"{sides[0].label} and {sides[1].label}", "equal bits", "refused", error.cause)
    return asked("equal", about_sides(sides), [found])[0]


def first_side(spec: Spec) -> Side | None:
    """The spec on the first of some platforms that takes it at the usual shape."""
    for name in PLATFORMS:
        side = Side(spec, load_platform(name))
        try:
            make_context({**side.platform.context, **SHAPE})
            side.program(SHAPE)
        except UlpscopeError:
            continue
        return side
    return None


def _side(cell: str) -> Side:
    from search.sides import load_side

    return load_side(cell)


def library_names() -> list[str]:
    """The specs of the library."""
    from specs.discover import every

    return [found.name for found in every("spec") if found.kind == "library"]
