"""What a process of its own is asked, and the answers. A job holds texts and numbers, so that any process takes it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from search.prove.about import about_sides, about_spec, asked
from search.prove.answer import About, Kind, Proof
from specs.loader import Spec, load_spec, parse_spec
from specs.platforms import Platform, load_platform
from specs.writer import to_toml

if TYPE_CHECKING:
    from search.sides import Side


@dataclass(frozen=True)
class Job:
    """One question.

    Attributes:
        kind: ``partition``, ``algebra``, ``bound`` or ``small``.
        about: the specs that it is about.
        subject, claim: what is said of it if no answer comes.
        seconds: it is killed then.
        spec: a spec as text and what its text is called; of a pair the first.
        values: whatever else the question takes.
    """

    kind: Kind
    about: tuple[About, ...]
    subject: str
    claim: str
    seconds: float
    spec: tuple[str, str]
    values: Mapping[str, Any] = field(default_factory=dict[str, Any])


def packed(spec: Spec) -> tuple[str, str]:
    """A spec as text, with its origin."""
    return to_toml(spec.file), spec.origin


def library_platforms() -> dict[str, Platform]:
    """The platforms that are found by name."""
    from specs.discover import every

    return {found.name: load_platform(found.name) for found in every("platform")}


def check_names(fixed: Mapping[str, Any], specs: Sequence[Spec] = ()) -> None:
    """Refuse names and values that no formula can see.

    Args:
        fixed: names of the context, or of options of the specs.
        specs: whose options count.

    Raises:
        InputError: an unknown name, or a value of the wrong kind or out of range.
    """
    from specs.context import make_context

    context = {n: v for n, v in fixed.items() if not any(n in s.file.options for s in specs)}
    make_context({"kv_len": 0, "sm_count": 1, "compute_capability": 90, **context}, place="--set")


def partition_job(name: str, fixed: Mapping[str, Any], seconds: float) -> Job:
    """The question whether a spec's partition is one, on all platforms of the library.

    Args:
        name: of a spec, or a path; with ``@PLATFORM`` on that platform alone.
        fixed: values of names that are not to vary.
        seconds: the limit.
    """
    from search.prove.partition import CLAIM

    cell, at, platform = name.partition("@")
    spec = load_spec(cell)
    check_names(fixed, [spec])
    platforms = {platform: load_platform(platform)} if at else library_platforms()
    values = {"platforms": platforms, "fixed": dict(fixed)}
    options = {name: value for name, value in fixed.items() if name in spec.file.options}
    about = (about_spec(spec, platforms.values(), options),)
    return Job("partition", about, spec.name, CLAIM, seconds, packed(spec), values)


def answer(job: Job) -> list[Proof]:
    """Answer a job in this process.

    Raises:
        UlpscopeError: as the question's own function.
    """
    return asked(job.kind, job.about, [_answer(job)])


def _answer(job: Job) -> Proof:
    spec = parse_spec(*job.spec)
    if job.kind == "partition":
        from search.prove.partition import prove_partition

        return prove_partition(spec, job.values["platforms"], job.values["fixed"])
    if job.kind == "algebra":
        from search.prove.algebra import prove_algebra
        from search.sides import Side as Made

        sides = [Made(spec, p, job.values["options"]) for p in job.values["platforms"]]
        return prove_algebra(sides, job.values["contexts"])
    if job.kind == "bound":
        from search.prove.bounds import prove_bound

        other = job.values["other"]
        b = None if other is None else _side(parse_spec(*other), job.values["b"])
        rest = job.values["context"], job.values["cancellation"], job.values["roundings"]
        more = {} if job.values["box"] is None else {"score_box": float(job.values["box"])}
        return prove_bound(_side(spec, job.values["a"]), b, *rest, **more)
    if job.kind == "small":
        from search.prove.small import prove_small

        other = _side(parse_spec(*job.values["other"]), job.values["b"])
        return prove_small(_side(spec, job.values["a"]), other, job)
    raise AssertionError(job.kind)


#: Platforms whose programs are proved where none is named, and the shapes: long and short sequences, with and without sinks.
ALGEBRA_ON = ("h200", "b200", "sm120", "a100", "amd_avx512")
SHAPES: tuple[dict[str, int], ...] = tuple(
    {"q_heads": 8, "kv_heads": 2, "head_dim": d, "kv_len": n, **more}
    for d in (64, 128, 256)
    for n in (1 << 18, 64)
    for more in ({}, {"has_sinks": 1})
)


def algebra_job(name: str, context: Mapping[str, Any], options: Mapping[str, Any], seconds: float) -> Job:
    """The question whether a spec without its roundings is softmax attention.

    Args:
        name: of a spec, or a path; with ``@PLATFORM`` on that platform alone.
        context: what replaces the values of `SHAPES`.
        options: values for the spec's ``[options]``.
        seconds: the limit.
    """
    from search.prove.algebra import CLAIM

    cell, at, platform = name.partition("@")
    spec = load_spec(cell)
    check_names(context, [spec])
    platforms = [load_platform(p) for p in ([platform] if at else ALGEBRA_ON)]
    contexts = list({repr(c): c for c in ({**shape, **context} for shape in SHAPES)}.values())
    values = {"platforms": platforms, "contexts": contexts, "options": dict(options)}
    about = (about_spec(spec, platforms, options),)
    return Job("algebra", about, spec.name, CLAIM, seconds, packed(spec), values)


def small_job(a: Side, b: Side, tokens: int, context: Mapping[str, Any], solver: str, seconds: float) -> Job:
    """The question whether two sides part on a few tokens, bit by bit."""
    values: dict[str, Any] = {
        "other": packed(b.spec),
        "a": _rest(a),
        "b": _rest(b),
        "tokens": tokens,
        "context": {n: v for n, v in context.items() if n != "kv_len"},
        "solver": solver,
    }
    claim = f"equal outputs on {tokens} tokens"
    subject = f"{a.label} and {b.label}"
    return Job("small", about_sides([a, b]), subject, claim, seconds, packed(a.spec), values)


def bound_job(
    sides: Sequence[Side],
    context: Mapping[str, Any],
    cancellation: Fraction,
    roundings: int | None,
    seconds: float,
    score_box: float | None = None,
) -> Job:
    """The question how far two sides can be apart; of one side, how far from the exact answer."""
    a, b = sides[0], sides[1] if len(sides) > 1 else None
    values: dict[str, Any] = {
        "other": None if b is None else packed(b.spec),
        "a": _rest(a),
        "b": None if b is None else _rest(b),
        "context": dict(context),
        "cancellation": cancellation,
        "roundings": roundings,
        "box": score_box,
    }
    subject = f"{a.label} and {'the exact answer' if b is None else b.label}"
    claim = f"a bound at c = {float(cancellation):g}"
    return Job("bound", about_sides(sides[:2]), subject, claim, seconds, packed(a.spec), values)


#: What a side is besides its spec: platform, options, context, changed lines.
Rest = tuple[Platform, dict[str, Any], dict[str, Any], dict[str, str]]


def _rest(side: Side) -> Rest:
    return side.platform, dict(side.options), dict(side.context), dict(side.changed)


def _side(spec: Spec, rest: Rest) -> Side:
    from search.sides import Side as Made

    return Made(spec, *rest)
