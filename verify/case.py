"""One attention problem as a value: arrays, scale and context, ready for any spec on any platform."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from specs import Platform, Spec
from specs.errors import InputError
from verify.features import NONE, Features

if TYPE_CHECKING:
    from verify.arguments import Problem
    from verify.emulator import Result, Run
    from verify.engine.layout import KV

#: Named inputs that a command can ask for; a package further out adds its own.
NAMED: dict[str, Callable[[], Case]] = {}


@dataclass(frozen=True, eq=False)
class Case:
    """An input of `emulate`: ready scores with values, or q, k and v.

    Attributes:
        name: what messages and reports call it.
        arrays: ``scores [rows, kv_len]`` and ``values [kv_len, dim]``, or ``q [q_heads, head_dim]`` or
            ``[q_len, q_heads, head_dim]`` with ``k, v [kv_len, kv_heads, head_dim]``.
        scale: softmax scale; None: ``head_dim ** -0.5``.
        causal: whether a query sees no later token.
        features: sinks, ALiBi slopes, softcap and scales of the KV cache.
        context: integers of the plan that the arrays do not say.
    """

    name: str
    arrays: Mapping[str, NDArray[Any]]
    scale: float | None = None
    causal: bool = False
    features: Features = NONE
    context: Mapping[str, int] = field(default_factory=dict[str, int])

    @property
    def kv_len(self) -> int:
        """Tokens of the sequence."""
        array = self.arrays.get("values", self.arrays.get("k"))
        return 0 if array is None else int(array.shape[0])

    def with_context(self, more: Mapping[str, int]) -> Case:
        """The same problem with more, or other, integers of the context."""
        return replace(self, context={**self.context, **more})

    def problem(self, spec: Spec) -> Problem:
        """The arrays, checked and rounded to the input formats of ``spec``.

        Raises:
            InputError: wrong name, shape, dtype or value.
        """
        from verify.emulator import make_problem

        return make_problem(spec, self.arrays, self.scale, self.causal, self.context, self.features)

    def start(
        self,
        spec: Spec,
        platform: Platform,
        *,
        backend: str = "engine",
        options: Mapping[str, Any] | None = None,
        kv: KV | None = None,
    ) -> Run:
        """Bind the problem to a spec and a platform; nothing is computed yet.

        Args:
            spec: a loaded spec.
            platform: a loaded platform.
            backend: ``engine`` or ``oracle``.
            options: values for the spec's ``[options]``.
            kv: K and V of this sequence laid out before, perhaps for more tokens; the engine makes them if None.

        Raises:
            UlpscopeError: as `verify.emulate`.
        """
        from verify.emulator import start_run

        return start_run(
            spec,
            platform,
            self.arrays,
            scale=self.scale,
            causal=self.causal,
            features=self.features,
            context=self.context,
            options=options,
            backend=backend,
            kv=kv,
        )

    def emulate(self, spec: Spec, platform: Platform, *, sites: Sequence[str] = (), **options: Any) -> Result:
        """Run it. ``sites`` are evaluated together with the output, so that the trace of them costs no more.

        Args:
            spec: a loaded spec.
            platform: a loaded platform.
            sites: names of sites; those that the spec does not have are left out.
            **options: as `start`.

        Raises:
            UlpscopeError: as `verify.emulate`.
        """
        return finish(self.start(spec, platform, **options), sites)

    def hashes(self) -> dict[str, str]:
        """sha256 of the bytes of each array, in C order; sinks and slopes included."""
        per_head = {"sinks": self.features.sinks, "alibi_slopes": self.features.alibi_slopes}
        arrays = {**self.arrays, **{n: np.asarray(a) for n, a in per_head.items() if a is not None}}
        return {n: hashlib.sha256(np.ascontiguousarray(a).tobytes()).hexdigest() for n, a in arrays.items()}

    def kernel_context(self) -> dict[str, Any]:
        """What decides which kernel an engine runs: `shape`, flags of features, and formats narrower than 32 bits.

        Wider arrays are rounded to the input formats of whatever kernel it is, and decide nothing.
        """
        from verify.arguments import format_of

        formats = {
            f"{n}_format": format_of(self.arrays[n].dtype) for n in ("q", "k", "v") if n in self.arrays
        }
        narrow = {n: fmt.base for n, fmt in formats.items() if fmt is not None and fmt.bits < 32}
        return {**self.features.context(), **self.shape(), **narrow}

    def shape(self) -> dict[str, int]:
        """The integers of the context that the arrays say, then those that were given."""
        said = {"kv_len": self.kv_len}
        q, k = self.arrays.get("q"), self.arrays.get("k")
        if q is not None and k is not None and q.ndim in (2, 3) and k.ndim == 3:
            said |= {
                "q_len": q.shape[0] if q.ndim == 3 else 1,
                "q_heads": q.shape[-2],
                "kv_heads": k.shape[1],
                "head_dim": q.shape[-1],
                "causal": int(self.causal),
            }
        return {**said, **self.context}


def finish(run: Run, sites: Sequence[str] = ()) -> Result:
    """The result of a bound run, with ``sites`` evaluated in the same go."""
    known = run.site_names()
    run.evaluate([n for n in dict.fromkeys(("output", "lse", *sites)) if n in known])
    return run.result()


def random_case(seed: int, kv_len: int, *, q_heads: int = 24, kv_heads: int = 4, head_dim: int = 256) -> Case:
    """q, k and v in bf16, drawn from a normal distribution of variance 1; the scale is the usual one.

    Raises:
        InputError: a size is out of range, or the seed is negative.
    """
    if seed < 0:
        raise InputError(f"seed {seed} is negative", place="seed", remedy="give 0 or more")
    sizes = {"kv_len": kv_len, "q_heads": q_heads, "kv_heads": kv_heads, "head_dim": head_dim}
    for name, size in sizes.items():
        if not 0 < size <= 1 << 24:
            raise InputError(f"{name} = {size} is out of range", place=name, remedy="give 1 to 2**24")
    if kv_len * kv_heads * head_dim > 1 << 31:
        raise InputError(
            f"{kv_len} tokens of {kv_heads} heads of {head_dim} are more than 2**31 numbers",
            place="kv_len",
            remedy="draw a shorter sequence",
        )
    import ml_dtypes

    rng = np.random.default_rng(seed)

    def draw(*shape: int) -> NDArray[Any]:
        return rng.standard_normal(shape, dtype=np.float32).astype(ml_dtypes.bfloat16)

    arrays = {
        "q": draw(q_heads, head_dim),
        "k": draw(kv_len, kv_heads, head_dim),
        "v": draw(kv_len, kv_heads, head_dim),
    }
    return Case(f"random normal q, k, v, seed {seed}", arrays)
