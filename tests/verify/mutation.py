"""Small changes of one line of a spec, made on its text: what a mistake in the spec would look like.

Nothing here knows a spec. `mutants` lists the changed texts of a line with a label each; whether a change is
legal, and whether it shows, is for the test to find out.
"""

from __future__ import annotations

import ast
import copy
import dataclasses
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from itertools import zip_longest
from typing import Any, Generic, TypeVar

from specs import Platform, Spec
from specs.formats import is_format
from verify.emulator import start_run
from verify.features import Features
from verify.judge import judge

Mutant = tuple[str, str]
"""A label and the changed text."""
T = TypeVar("T")


class Asked(Generic[T]):
    """Questions, of which any may tell: the one that told last is asked first.

    Whether one tells does not depend on the order, only how soon it is found: what shows one change of a line
    mostly shows the next one, too.
    """

    def __init__(self, questions: Iterable[T]) -> None:
        self.questions = list(questions)

    def any(self, tells: Callable[[T], bool]) -> bool:
        """Whether one of the questions tells."""
        for i, question in enumerate(self.questions):
            if tells(question):
                self.questions.insert(0, self.questions.pop(i))
                return True
        return False


_FUNCTIONS = {"exp": "exp2", "log": "log2", "min": "max", "ceildiv": "add"}
_COMPARE: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Gt: ast.LtE,
    ast.Lt: ast.GtE,
    ast.GtE: ast.Lt,
    ast.LtE: ast.Gt,
}


def answers(
    spec: Spec, platform: Platform, arguments: Mapping[str, Any], sites: Sequence[str]
) -> Iterator[tuple[Any, ...]]:
    """Formats and bits of ``sites`` by the oracle, for the ``arguments`` of `emulate`: row by row, as they are asked for.

    What differs in its first row costs no second one.
    """
    more = {n: x for n, x in arguments.items() if n in ("scale", "causal", "context", "options")}
    features = Features(**{f.name: arguments[f.name] for f in fields(Features) if f.name in arguments})
    arrays = {n: arguments[n] for n in ("scores", "values", "q", "k", "v") if n in arguments}
    assert len(more) + len(arrays) + sum(f.name in arguments for f in fields(Features)) == len(arguments)
    run = start_run(spec, platform, arrays, features=features, backend="oracle", **more)
    rows = [(h, r) for h in range(run.problem.heads) for r in range(run.problem.rows)]
    for some in [rows] if run.program.couples_rows else [[row] for row in rows]:
        found = judge(run.program, run.plan, run.problem, run.scalars, sites, some)
        yield tuple((found[site].dtype.name, found[site].tobytes()) for site in sites)


def differ(found: Iterator[tuple[Any, ...]], known: Sequence[tuple[Any, ...]]) -> bool:
    """Whether answers are not those that are known."""
    return any(a != b for a, b in zip_longest(found, known))


def lines(spec: Spec) -> Iterator[tuple[str, str]]:
    """Every line that says something about the arithmetic, as (table, name)."""
    file = spec.file
    yield "numbers", "compute"
    for name in ("q", "k", "v"):
        yield "numbers", name
    for table in ("options", "let", "constants", "levels"):
        for name in getattr(file, table):
            yield table, name
    for scope, states in file.state.items():
        for name in states:
            yield f"state.{scope}", name
    for section, sites in file.sections.items():
        for name in sites:
            yield section, name


def mutants(spec: Spec, table: str, name: str) -> Iterator[Mutant]:
    """The changes of one line, each with a label that is unique in the line."""
    if table == "numbers":
        for new in ("f64", "f32", "f16", "bf16", "f32.ftz", "f32.rz", "bf16.rz"):
            if new != (spec.numbers.compute if name == "compute" else getattr(spec.numbers.inputs, name)):
                yield new, new
        return
    if table == "options":
        yield "not", str(not spec.file.options[name])
        return
    text = _text(spec, table, name)
    seen = {ast.unparse(ast.parse(text, mode="eval"))}
    for label, new in _edits(spec, table, text):
        if new not in seen:
            seen.add(new)
            yield f"{label}: {new}", new


def mutated(spec: Spec, table: str, name: str, text: str) -> Spec:
    """``spec`` with another text on one line."""
    file = spec.file
    if table == "numbers":
        numbers = spec.numbers
        if name == "compute":
            numbers = numbers.model_copy(update={"compute": text})
        else:
            numbers = numbers.model_copy(update={"inputs": numbers.inputs.model_copy(update={name: text})})
        return dataclasses.replace(spec, file=file.model_copy(update={"numbers": numbers}))
    value: Any = text == "True" if table == "options" else text
    outer = "state" if table.startswith("state.") else "sections"
    if table in ("options", "let", "constants", "levels"):
        update: dict[str, Any] = {table: {**getattr(file, table), name: value}}
    else:
        inner = table.removeprefix("state.")
        tables = getattr(file, outer)
        update = {outer: {**tables, inner: {**tables[inner], name: value}}}
    return dataclasses.replace(spec, file=file.model_copy(update=update))


def _text(spec: Spec, table: str, name: str) -> str:
    return spec.text(table, name)


def _edits(spec: Spec, table: str, text: str) -> Iterator[Mutant]:
    tree = ast.parse(text, mode="eval")
    count = sum(1 for _ in ast.walk(tree))
    change = _of_level if table == "levels" else _of_integers if table == "let" else _of_values
    for number in range(count):
        node = list(ast.walk(tree))[number]
        for label, build in change(spec, node):
            new = copy.deepcopy(tree)
            target = list(ast.walk(new))[number]
            replacement = build(target)
            if replacement is not target:
                new = _Replace(target, replacement).visit(new)
            yield label, ast.unparse(ast.fix_missing_locations(new))
    if table.startswith("state."):
        yield from ((f"start {word}", word) for word in ("1", "inf", "-2"))
    elif table not in ("levels", "let", "constants"):
        if not (isinstance(tree.body, ast.Call) and ast.unparse(tree.body.func) == "bf16"):
            yield "round", f"bf16({text})"
        yield "add zero", f"{text} + 1e-6"


def sampled(*line: Any) -> bool:
    """Whether a line is in the sample of the default run: about one of four, by a hash of its names."""
    return zlib.crc32(":".join(map(str, line)).encode()) % 4 == 0


Edit = tuple[str, Callable[[Any], ast.AST]]


def _of_values(spec: Spec, node: ast.AST) -> Iterator[Edit]:
    match node:
        case ast.Call(func=ast.Name(id=f), args=args):
            yield from _of_call(spec, f, args)
        case ast.BinOp(op=ast.Sub() | ast.Div()):
            yield "swap operands", lambda n: ast.BinOp(n.right, n.op, n.left)
            if isinstance(node.op, ast.Div):
                yield "reciprocal", lambda n: ast.BinOp(n.left, ast.Mult(), _call("rcp", n.right))
        case ast.BinOp(left=left, op=ast.Add()):
            yield "subtract", lambda n: ast.BinOp(n.left, ast.Sub(), n.right)
            yield "drop left", lambda n: n.right
            yield "drop right", lambda n: n.left
            if isinstance(left, ast.BinOp) and isinstance(left.op, ast.Mult):
                yield "contract", lambda n: _call("fma", n.left.left, n.left.right, n.right)
        case ast.BinOp(op=ast.Mult()):
            yield "drop left", lambda n: n.right
            yield "drop right", lambda n: n.left
        case ast.Compare(ops=[op]):
            yield "other comparison", lambda n: ast.Compare(n.left, [_COMPARE[type(op)]()], n.comparators)
        case ast.BoolOp():
            yield "first condition", lambda n: n.values[0]
            yield "last condition", lambda n: n.values[-1]
        case ast.UnaryOp(op=ast.USub()):
            yield "plus", lambda n: n.operand
        case ast.Constant(value=int(x)):
            yield "one more", lambda n: ast.Constant(x + 1)
        case _:
            return


def _of_call(spec: Spec, f: str, args: list[ast.expr]) -> Iterator[Edit]:
    if is_format(f):
        yield "no cast", lambda n: n.args[0]
        yield "f16", lambda n: _call("f16", n.args[0])
        yield "toward zero", lambda n: ast.Call(ast.Attribute(n.func, "rz"), n.args, [])
    elif f in _FUNCTIONS:
        yield _FUNCTIONS[f], lambda n: _call(_FUNCTIONS[f], *n.args)
        yield f"no {f}", lambda n: n.args[0]
    elif f == "select":
        yield "always", lambda n: n.args[1]
        yield "never", lambda n: n.args[2]
    elif f in ("prev", "last"):
        starts = {name: text for states in spec.file.state.values() for name, text in states.items()}
        name = args[0].id if isinstance(args[0], ast.Name) else ""
        yield "start", lambda n: ast.parse(starts[name], mode="eval").body
    elif f == "max" and len(args) == 1:
        yield "sum", lambda n: _call("sum", n.args[0], _call("seq"))
    elif f == "max":
        yield "left", lambda n: n.args[0]
        yield "right", lambda n: n.args[1]
    elif f == "sum":
        for tree in ("pairwise()", "butterfly()", "exact()", "lanes(2, seq(), seq())"):
            yield tree, lambda n, t=tree: ast.Call(n.func, [n.args[0], ast.parse(t, mode="eval").body], [])
        if isinstance(args[0], ast.BinOp) and isinstance(args[0].op, ast.Mult):
            fused = ast.parse("seq(fma)", mode="eval").body
            yield "fused", lambda n: _call("dot", n.args[0].left, n.args[0].right, fused)
    elif f == "dot":
        for tree in ("seq()", "seq(fma)", "pairwise()"):
            yield tree, lambda n, t=tree: ast.Call(n.func, [*n.args[:2], ast.parse(t, mode="eval").body], [])


def _of_integers(spec: Spec, node: ast.AST) -> Iterator[Edit]:
    match node:
        case ast.Constant(value=int(x)):
            yield "one more", lambda n: ast.Constant(x + 1)
            yield "half", lambda n: ast.Constant(max(1, x // 2))
        case ast.BinOp(op=ast.Mult() | ast.FloorDiv()):
            yield "drop left", lambda n: n.right
            yield "drop right", lambda n: n.left
        case ast.Call(func=ast.Name(id=f), args=args) if len(args) > 1:
            if f == "ceildiv":
                yield "round down", lambda n: ast.BinOp(n.args[0], ast.FloorDiv(), n.args[1])
            elif f in ("min", "max"):
                yield "left", lambda n: n.args[0]
                yield "right", lambda n: n.args[1]
            for i in range(len(args)):
                yield (
                    f"argument {i}",
                    lambda n, i=i: _with(n, i, ast.BinOp(n.args[i], ast.Add(), ast.Constant(1))),
                )
        case ast.Name(id=name) if not name.startswith(("fa2", "ceil", "min", "max")):
            yield f"{name} is 1", lambda n: ast.Constant(1)
        case _:
            return


def _of_level(spec: Spec, node: ast.AST) -> Iterator[Edit]:
    match node:
        case ast.Constant(value=int(x)):
            yield "half", lambda n: ast.Constant(x // 2)
            yield "double", lambda n: ast.Constant(x * 2)
            yield "one less", lambda n: ast.Constant(x - 1)
        case ast.Call(func=ast.Name(id="pieces")):
            yield (
                "deal",
                lambda n: ast.Call(ast.Name("deal"), n.args, [k for k in n.keywords if k.arg != "of"]),
            )
            yield "one more", lambda n: _with(n, 0, ast.BinOp(n.args[0], ast.Add(), ast.Constant(1)))
        case ast.Call(func=ast.Name(id="deal")):
            yield "pieces", lambda n: ast.Call(ast.Name("pieces"), n.args, n.keywords)
            yield "one more", lambda n: _with(n, 0, ast.BinOp(n.args[0], ast.Add(), ast.Constant(1)))
        case ast.Call(func=ast.Name(id="tiles"), args=args):
            if len(args) == 2:
                yield "ascending", lambda n: _call("tiles", n.args[0])
            else:
                yield "descending", lambda n: _call("tiles", n.args[0], ast.Name("desc"))
        case _:
            return


def _call(name: str, *args: ast.expr) -> ast.Call:
    return ast.Call(ast.Name(name), list(args), [])


def _with(call: ast.Call, i: int, arg: ast.expr) -> ast.Call:
    return ast.Call(call.func, [*call.args[:i], arg, *call.args[i + 1 :]], call.keywords)


class _Replace(ast.NodeTransformer):
    def __init__(self, old: ast.AST, new: ast.AST) -> None:
        self.old, self.new = old, new

    def visit(self, node: ast.AST) -> Any:
        return self.new if node is self.old else self.generic_visit(node)
