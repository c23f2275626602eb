"""Bit-precise SMT: the whole computation as solver terms, for a handful of tokens."""

from __future__ import annotations

import math
import multiprocessing
import time
from multiprocessing.connection import Connection
from typing import Any

from search.baselines.tracking import Tracker, no_base
from search.bitprecise import MAX_TOKENS, RLIMIT, Finding, find
from search.evolve import Found, Progress
from search.sides import Side
from search.space import Inputs
from search.target import Target
from specs.errors import UlpscopeError, UnsupportedError
from specs.loader import parse_spec
from specs.platforms import Platform
from specs.writer import to_toml


def bit_precise(
    target: Target,
    *,
    seed: int,
    evaluations: int,
    wall: float = math.inf,
    progress: Progress | None = None,
    rlimit: int = RLIMIT,
) -> Found:
    """The largest k for which the solver finds scores and values whose stored outputs are k apart, from 1 upwards.

    Scores are free over a few levels, values over the significands of [1, 2) and 0. Each model counts as one evaluation; the
    seed has no effect, and all queries together take at most ``rlimit`` of the solver's units. Every query runs in a
    process of its own, which is killed where wall time ends: Z3 looks at the clock only now and then.

    Raises:
        UnsupportedError: too many tokens for it, more than two sides, a construct without an encoding, or a space with an
            input to start from.
    """
    no_base(target, "bit-precise SMT")
    space = target.space
    if space.first:
        raise UnsupportedError(
            "bit-precise SMT with a window", place="method", remedy="search a sequence as long as the window"
        )
    if space.kv_len > MAX_TOKENS or len(target.sides) != 2 or space.dims != 1:
        raise UnsupportedError(
            f"bit-precise SMT on {space.kv_len} tokens, {len(target.sides)} sides, {space.dims} columns",
            place="method",
            remedy=f"it takes two sides, one column and at most {MAX_TOKENS} tokens",
        )
    tracker = Tracker(target, evaluations, wall, progress)
    a, b = target.sides
    k = 1
    while tracker.left > 0 and rlimit > 0:
        remaining = wall - (time.monotonic() - tracker.begin)
        context = dict(space.context)
        found = _killed_after(remaining, a, b, k, space.kv_len, context, space.cancellation < 1, rlimit)
        if found is None:
            tracker.cut = True
            break
        rlimit -= max(1, found.units)
        if found.status != "sat" or found.scores is None or found.values is None:
            break
        tracker.measure(Inputs.one(found.scores, found.values))
        k = max(k, found.distance or 0) + 1
    return tracker.found()


def _killed_after(
    seconds: float,
    a: Side,
    b: Side,
    k: int,
    tokens: int,
    context: dict[str, Any],
    signed: bool,
    rlimit: int,
) -> Finding | None:
    """`search.bitprecise.find` in a fresh process; None where it took longer than ``seconds``.

    Raises:
        UnsupportedError: the process died. What `find` raises.
    """
    spawn = multiprocessing.get_context("spawn")
    receive, send = spawn.Pipe(duplex=False)
    process = spawn.Process(
        target=_find, args=(send, _packed(a), _packed(b), k, tokens, context, signed, rlimit)
    )
    process.start()
    send.close()
    limit = None if math.isinf(seconds) else max(0.0, seconds)
    try:
        answer: Any = receive.recv() if receive.poll(limit) else None
    except EOFError:
        raise UnsupportedError(
            "the solver's process died", place="method", remedy="give it more memory, or fewer tokens"
        ) from None
    finally:
        process.kill()
        process.join()
        receive.close()
    if isinstance(answer, tuple):
        kind, cause, place, remedy = answer
        raise kind(cause, place=place, remedy=remedy)
    return answer


#: A side for another process: the spec as text and its origin, then the other fields.
Packed = tuple[str, str, Platform, dict[str, Any], dict[str, Any], dict[str, str]]


def _packed(side: Side) -> Packed:
    text = to_toml(side.spec.file)
    return (
        text,
        side.spec.origin,
        side.platform,
        dict(side.options),
        dict(side.context),
        dict(side.changed),
    )


def _unpacked(packed: Packed) -> Side:
    text, origin, platform, options, context, changed = packed
    return Side(parse_spec(text, origin), platform, options, context, changed)


def _find(
    send: Connection,
    a: Packed,
    b: Packed,
    k: int,
    tokens: int,
    context: dict[str, Any],
    signed: bool,
    rlimit: int,
) -> None:
    """Answer one query, or send why not."""
    try:
        sides = _unpacked(a), _unpacked(b)
        send.send(find(*sides, k, tokens=tokens, context=context, signed=signed, rlimit=rlimit))
    except UlpscopeError as error:
        send.send((type(error), error.cause, error.place, error.remedy))
