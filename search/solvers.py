"""Two solvers for floating-point and bit-vector terms behind one small interface: Z3, and Bitwuzla where installed."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Protocol

from search.resources import Resources, units
from specs.errors import UnsupportedError
from specs.formats import Format

Term = Any
#: Wall-time limit of Bitwuzla, where none is given.
SECONDS = 60.0


class TermSolver(Protocol):
    """Terms are whatever the solver has; floats carry their sort."""

    def word(self, name: str, bits: int) -> Term:
        """An unknown bit-vector."""
        ...

    def number(self, word: Term, fmt: Format) -> Term:
        """The float of ``fmt`` with the bits of ``word``."""
        ...

    def constant(self, bits: int, width: int) -> Term:
        """A bit-vector."""
        ...

    def arithmetic(self, op: str, args: Sequence[Term]) -> Term:
        """``+ - * / fma neg abs``, rounded to nearest even in the sort of the arguments."""
        ...

    def cast(self, x: Term, fmt: Format) -> Term:
        """``x`` rounded to nearest even in ``fmt``."""
        ...

    def compare(self, op: str, a: Term, b: Term) -> Term:
        """An IEEE comparison of floats."""
        ...

    def is_nan(self, x: Term) -> Term:
        """Whether ``x`` is NaN."""
        ...

    def logic(self, op: str, args: Sequence[Term]) -> Term:
        """``and or not``."""
        ...

    def choose(self, condition: Term, a: Term, b: Term) -> Term:
        """``a`` where the condition holds, else ``b``."""
        ...

    def equal(self, a: Term, b: Term) -> Term:
        """Whether two words, or two floats, are the same."""
        ...

    def at_most(self, a: Term, b: Term) -> Term:
        """Unsigned comparison of words."""
        ...

    def plus(self, a: Term, b: Term) -> Term:
        """The sum of two words."""
        ...

    def require(self, condition: Term) -> None:
        """Assert."""
        ...

    def check(self) -> str:
        """``sat``, ``unsat`` or ``unknown``."""
        ...

    def found(self, word: Term) -> int:
        """The bits of ``word`` in the model."""
        ...

    @property
    def cut(self) -> bool:
        """Whether wall time ended the query."""
        ...

    @property
    def units(self) -> int:
        """What the query took, in Z3's resource units; 0 where they are not counted."""
        ...


def field_bits(fmt: Format) -> int:
    """Bits of the exponent field.

    Raises:
        UnsupportedError: the format is none of IEEE 754's kind, or rounds otherwise.
    """
    if fmt.base not in ("f32", "bf16", "f16", "f64") or fmt.rz or fmt.sat or fmt.ftz:
        raise UnsupportedError(
            f"{fmt} has no sort in the theory of floating point",
            place="bitprecise",
            remedy="use a spec of f16, bf16, f32 and f64 without modifiers",
        )
    return fmt.bits - fmt.p


def make_solver(name: str, *, rlimit: int, seconds: float | None) -> TermSolver:
    """The solver ``z3`` or ``bitwuzla``.

    Args:
        name: which.
        rlimit: resources of Z3: the same answer on every machine, whatever was solved before.
        seconds: wall-time limit. None: none for Z3, `SECONDS` for Bitwuzla, which counts nothing else.

    Raises:
        UnsupportedError: no such solver, or Bitwuzla is not installed.
    """
    if name == "z3":
        return _Z3(rlimit, seconds)
    if name == "bitwuzla":
        try:
            import bitwuzla  # pyright: ignore[reportMissingImports, reportUnusedImport]  # noqa: F401
        except ImportError:
            raise UnsupportedError(
                "Bitwuzla is not installed",
                place="--solver",
                remedy="pip install 'ulpscope[bitwuzla]', or use z3",
            ) from None
        return _Bitwuzla(SECONDS if seconds is None else seconds)
    raise UnsupportedError(f"no solver '{name}'", place="--solver", remedy="use z3 or bitwuzla")


class _Z3:
    """Terms of a context of its own, so that neither the answer nor what it takes depends on queries before it."""

    def __init__(self, rlimit: int, seconds: float | None) -> None:
        import z3

        self.z3: Any = z3
        self.context: Any = z3.Context()
        self.solver: Any = self.z3.SolverFor("QF_BVFP", ctx=self.context)
        self.solver.set("random_seed", 0)
        self.mode: Any = self.z3.RNE(self.context)
        self.rlimit = rlimit
        self.resources = Resources(rlimit, None if seconds is None else time.monotonic() + seconds)

    def _sort(self, fmt: Format) -> Any:
        return self.z3.FPSort(field_bits(fmt), fmt.p, self.context)

    def word(self, name: str, bits: int) -> Term:
        return self.z3.BitVec(name, bits, self.context)

    def number(self, word: Term, fmt: Format) -> Term:
        return self.z3.fpBVToFP(word, self._sort(fmt), self.context)

    def constant(self, bits: int, width: int) -> Term:
        return self.z3.BitVecVal(bits, width, self.context)

    def arithmetic(self, op: str, args: Sequence[Term]) -> Term:
        z3, rm = self.z3, self.mode
        match op:
            case "neg":
                return z3.fpNeg(args[0], self.context)
            case "abs":
                return z3.fpAbs(args[0], self.context)
            case "fma":
                return z3.fpFMA(rm, *args, self.context)
            case _:
                make = {"+": z3.fpAdd, "-": z3.fpSub, "*": z3.fpMul, "/": z3.fpDiv}[op]
                return make(rm, *args, self.context)

    def cast(self, x: Term, fmt: Format) -> Term:
        return self.z3.fpFPToFP(self.mode, x, self._sort(fmt), self.context)

    def compare(self, op: str, a: Term, b: Term) -> Term:
        z3 = self.z3
        table = {"<": z3.fpLT, "<=": z3.fpLEQ, ">": z3.fpGT, ">=": z3.fpGEQ, "==": z3.fpEQ, "!=": z3.fpNEQ}
        return table[op](a, b, self.context)

    def is_nan(self, x: Term) -> Term:
        return self.z3.fpIsNaN(x, self.context)

    def logic(self, op: str, args: Sequence[Term]) -> Term:
        z3 = self.z3
        return z3.Not(args[0]) if op == "not" else (z3.And if op == "and" else z3.Or)(*args)

    def choose(self, condition: Term, a: Term, b: Term) -> Term:
        return self.z3.If(condition, a, b)

    def equal(self, a: Term, b: Term) -> Term:
        return a == b

    def at_most(self, a: Term, b: Term) -> Term:
        return self.z3.ULE(a, b)

    def plus(self, a: Term, b: Term) -> Term:
        return a + b

    def require(self, condition: Term) -> None:
        self.solver.add(condition)

    def check(self) -> str:
        return self.resources.check(self.solver, self.rlimit)

    @property
    def cut(self) -> bool:
        return self.resources.cut

    @property
    def units(self) -> int:
        return units(self.solver)

    def found(self, word: Term) -> int:
        return int(self.solver.model().eval(word, model_completion=True).as_long())


class _Bitwuzla:
    def __init__(self, seconds: float) -> None:
        import importlib

        b: Any = importlib.import_module("bitwuzla")
        self.kind: Any = b.Kind
        self.terms: Any = b.TermManager()
        options = b.Options()
        options.set(b.Option.PRODUCE_MODELS, True)
        options.set(b.Option.TIME_LIMIT_PER, max(1, int(1000 * seconds)))
        self.solver: Any = b.Bitwuzla(self.terms, options)
        self.seconds, self.cut, self.units = seconds, False, 0
        self.mode: Any = self.terms.mk_rm_value(b.RoundingMode.RNE)

    def _make(self, kind: str, args: Sequence[Term], indices: Sequence[int] = ()) -> Term:
        return self.terms.mk_term(getattr(self.kind, kind), list(args), list(indices))

    def word(self, name: str, bits: int) -> Term:
        return self.terms.mk_const(self.terms.mk_bv_sort(bits), name)

    def number(self, word: Term, fmt: Format) -> Term:
        return self._make("FP_TO_FP_FROM_BV", [word], [field_bits(fmt), fmt.p])

    def constant(self, bits: int, width: int) -> Term:
        return self.terms.mk_bv_value(self.terms.mk_bv_sort(width), bits)

    def arithmetic(self, op: str, args: Sequence[Term]) -> Term:
        if op in ("neg", "abs"):
            return self._make("FP_NEG" if op == "neg" else "FP_ABS", args)
        names = {"+": "FP_ADD", "-": "FP_SUB", "*": "FP_MUL", "/": "FP_DIV", "fma": "FP_FMA"}
        return self._make(names[op], [self.mode, *args])

    def cast(self, x: Term, fmt: Format) -> Term:
        return self._make("FP_TO_FP_FROM_FP", [self.mode, x], [field_bits(fmt), fmt.p])

    def compare(self, op: str, a: Term, b: Term) -> Term:
        names = {"<": "FP_LT", "<=": "FP_LEQ", ">": "FP_GT", ">=": "FP_GEQ", "==": "FP_EQUAL"}
        if op == "!=":
            return self.logic("not", [self._make("FP_EQUAL", [a, b])])
        return self._make(names[op], [a, b])

    def is_nan(self, x: Term) -> Term:
        return self._make("FP_IS_NAN", [x])

    def logic(self, op: str, args: Sequence[Term]) -> Term:
        return args[0] if len(args) == 1 and op != "not" else self._make(op.upper(), args)

    def choose(self, condition: Term, a: Term, b: Term) -> Term:
        return self._make("ITE", [condition, a, b])

    def equal(self, a: Term, b: Term) -> Term:
        return self._make("EQUAL", [a, b])

    def at_most(self, a: Term, b: Term) -> Term:
        return self._make("BV_ULE", [a, b])

    def plus(self, a: Term, b: Term) -> Term:
        return self._make("BV_ADD", [a, b])

    def require(self, condition: Term) -> None:
        self.solver.assert_formula(condition)

    def check(self) -> str:
        begin = time.monotonic()
        status = str(self.solver.check_sat()).rpartition(".")[2].lower()
        self.cut = status == "unknown" and time.monotonic() - begin >= self.seconds
        return status

    def found(self, word: Term) -> int:
        return int(self.solver.get_value(word).value(2), 2)
