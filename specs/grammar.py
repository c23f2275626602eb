"""Text of one slot (an expression or a level rule) to nodes.

The text goes through `ast.parse` with a whitelist of a dozen node types and becomes our own frozen nodes; it
is never evaluated by Python. Length and depth are bounded before and after parsing.
"""

from __future__ import annotations

import ast
import math
import re
import warnings
from dataclasses import dataclass
from functools import lru_cache

from specs.errors import Place, SpecError, did_you_mean
from specs.formats import BASES, is_format, parse_format, split_format
from specs.functions import FORMAT_OPS, FUNCTIONS, LEVELS, TREES
from specs.nodes import (
    At,
    Cast,
    Cmp,
    Last,
    LevelRule,
    Logic,
    Name,
    Node,
    Num,
    Op,
    Owns,
    Pos,
    Prev,
    Reduce,
    Select,
    Tree,
)
from specs.rules import rule_names

MAX_LENGTH = 2_000
MAX_DEPTH = 60
MAX_BUTTERFLY = 6
MAX_NODES = 5_000

_BINARY: dict[type[ast.operator], str] = {
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.Div: "/",
    ast.FloorDiv: "//",
    ast.Mod: "%",
    ast.BitXor: "^",
}
_COMPARE: dict[type[ast.cmpop], str] = {
    ast.Eq: "==",
    ast.NotEq: "!=",
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
}
_SPECIAL = ("select", "prev", "last", "pos", "owns", "at", "shfl_xor", "butterfly", "bits", "max", "any")
_WORD = re.compile(r"[A-Za-z0-9_.-]{1,40}")
_FAR = re.compile(r"[eE][-+]?[\d_]{4,}$")  # 1e-999999999: as a fraction it fills the memory
_FLAGS = ("fma", "swap", "desc", "cycle", "wgmma", "tcgen05")
_REDUCE_KEYWORDS = ("over", "by", "start", "first")


@lru_cache(maxsize=4096)
def parse_expr(text: str, place: Place | None = None) -> Node:
    """Parse one expression (of a site, a state's start, a constant or an integer formula).

    Args:
        text: the expression, ASCII, at most 2,000 characters and 60 levels deep.
        place: where the first character of ``text`` stands; columns of errors are counted from it.

    Raises:
        SpecError: with file:line:column, cause and remedy.
    """
    return _Parser(text, place or Place("<expression>")).expression()


@lru_cache(maxsize=512)
def parse_level(text: str, place: Place | None = None) -> LevelRule:
    """Parse one level rule: ``pieces(...)``, ``deal(...)``, ``tiles(...)`` or ``view(...)``.

    Raises:
        SpecError: with file:line:column, cause and remedy.
    """
    return _Parser(text, place or Place("<level>")).level()


@dataclass(frozen=True, slots=True)
class _Parser:
    text: str
    place: Place

    def expression(self) -> Node:
        return self._node(self._parse(), 0)

    def level(self) -> LevelRule:
        tree = self._parse()
        if not isinstance(tree, ast.Call) or not isinstance(tree.func, ast.Name):
            raise self._error(tree, "a level is a call", f"write one of {', '.join(LEVELS)}, as in tiles(64)")
        kind = tree.func.id
        if kind not in LEVELS:
            raise self._error(tree, f"unknown level rule '{kind}'", did_you_mean(kind, LEVELS))
        args, flags = self._split_flags(tree, LEVELS[kind])
        want = 2 if kind == "view" else 1
        if len(args) != want:
            raise self._error(
                tree,
                f"{kind}() takes {want} argument(s), got {len(args)}",
                "see the level rules in docs/language.md",
            )
        keywords = self._keywords(tree, LEVELS[kind])
        if kind in ("pieces", "deal") and "unit" not in keywords:
            raise self._error(
                tree, f"{kind}() needs unit=", "say how many tokens are never parted, as in unit=64"
            )
        keep = False
        if "empty" in keywords:
            word = keywords["empty"]
            if not isinstance(word, ast.Name) or word.id != "keep":
                raise self._error(word, "empty= takes one word, keep", "write empty=keep, or leave it out")
            keep = True
        numbers = {name: self._node(n, 1) for name, n in keywords.items() if name != "empty"}
        return LevelRule(
            kind,
            tuple(self._node(a, 1) for a in args),
            **numbers,
            keep_empty=keep,
            desc="desc" in flags,
            at=tree.col_offset,
        )

    # -- parsing and errors -------------------------------------------------------------------------------

    def _parse(self) -> ast.expr:
        text = self.text
        if not text.strip():
            raise SpecError(
                "empty expression", place=self.place, remedy="write an expression, or remove the line"
            )
        if len(text) > MAX_LENGTH:
            raise SpecError(
                f"expression of {len(text)} characters; the limit is {MAX_LENGTH}",
                place=self.place,
                remedy="name its parts as sites of their own",
            )
        if not text.isascii() or "\n" in text or "\\" in text or "#" in text:
            bad = next((i for i, ch in enumerate(text) if not ch.isascii() or ch in "\n\\#"), 0)
            raise SpecError(
                f"character {text[bad]!r} is not allowed in an expression",
                place=self._at(bad),
                remedy="expressions are one line of ASCII",
            )
        depth = deepest = 0
        for ch in text:
            depth += (ch in "([{") - (ch in ")]}")
            deepest = max(deepest, depth)
        if deepest > MAX_DEPTH:
            raise SpecError(
                f"brackets nested {deepest} deep; the limit is {MAX_DEPTH}",
                place=self.place,
                remedy="name the inner parts as sites of their own",
            )
        lead = len(text) - len(text.lstrip())
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                tree = ast.parse(text.lstrip(), mode="eval").body
        except SyntaxError as e:
            column = max((e.offset or 1) - 1, 0) + lead
            raise SpecError(
                f"not an expression: {e.msg}", place=self._at(column), remedy=f"in: {_shorten(text)}"
            ) from None
        except (RecursionError, MemoryError, ValueError):
            raise SpecError(
                "expression too deep to read", place=self.place, remedy="name its parts as sites of their own"
            ) from None
        if lead:
            for node in ast.walk(tree):
                if isinstance(node, ast.expr | ast.keyword):
                    node.col_offset += lead
                    if node.end_col_offset is not None:
                        node.end_col_offset += lead
        return tree

    def _at(self, offset: int) -> Place:
        column = self.place.column + offset if self.place.column else offset + 1
        return Place(self.place.file, self.place.line, column)

    def _error(self, node: ast.AST, cause: str, remedy: str) -> SpecError:
        return SpecError(cause, place=self._at(getattr(node, "col_offset", 0)), remedy=remedy)

    # -- nodes --------------------------------------------------------------------------------------------

    def _node(self, n: ast.expr, depth: int) -> Node:
        if depth > MAX_DEPTH:
            raise self._error(
                n, f"expression deeper than {MAX_DEPTH} levels", "name its parts as sites of their own"
            )
        at = n.col_offset
        match n:
            case ast.Constant():
                return self._number(n)
            case ast.Name():
                return (Num if n.id in ("true", "false") else Name)(n.id, at=at)
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return Op("neg", (self._node(operand, depth + 1),), at=at)
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                return Logic("not", (self._node(operand, depth + 1),), at=at)
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
                return Op(
                    _BINARY[type(op)], (self._node(left, depth + 1), self._node(right, depth + 1)), at=at
                )
            case ast.BinOp():
                raise self._error(
                    n,
                    f"operator {type(n.op).__name__} is not part of the language",
                    "use + - * / (// % ^ on integers)",
                )
            case ast.BoolOp(op=op, values=values):
                word = "and" if isinstance(op, ast.And) else "or"
                return Logic(word, tuple(self._node(v, depth + 1) for v in values), at=at)
            case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in _COMPARE:
                return Cmp(
                    _COMPARE[type(op)], self._node(left, depth + 1), self._node(right, depth + 1), at=at
                )
            case ast.Compare():
                raise self._error(
                    n, "only single comparisons == != < <= > >= are allowed", "join two of them with 'and'"
                )
            case ast.Call():
                return self._call(n, depth)
            case ast.Attribute():
                raise self._error(
                    n,
                    "attributes are not part of the language",
                    "a dotted name must be called, as in mufu.ex2(x)",
                )
            case _:
                raise self._error(
                    n,
                    f"{type(n).__name__} is not part of the language",
                    "see the grammar in docs/language.md",
                )

    def _number(self, n: ast.Constant) -> Num:
        text = self.text[n.col_offset : n.end_col_offset]
        if isinstance(n.value, str):
            if not _WORD.fullmatch(n.value) or text[0] not in "'\"":
                raise self._error(
                    n, "a word in quotes has letters, digits, '.', '_' and '-' only", "as in fork == 'vllm'"
                )
            return Num(f"'{n.value}'", at=n.col_offset)
        if isinstance(n.value, bool) or not isinstance(n.value, int | float):
            raise self._error(n, f"{text[:40]} is not a number", "write a decimal number, inf or a name")
        if text[:2].lower() in ("0x", "0o", "0b"):
            raise self._error(
                n, f"bare constant {text}: value or bit pattern?", f"write bits({text}) for a bit pattern"
            )
        if len(text) > 80 or (isinstance(n.value, float) and math.isinf(n.value)) or _FAR.search(text):
            raise self._error(n, f"number {text[:20]} is too long or large", "write inf, 0 or fewer digits")
        return Num(text.replace("_", ""), at=n.col_offset)

    def _function_name(self, n: ast.Call) -> str:
        parts: list[str] = []
        f: ast.expr = n.func
        while isinstance(f, ast.Attribute) and len(parts) < 4:
            parts.append(f.attr)
            f = f.value
        if not isinstance(f, ast.Name):
            raise self._error(
                n, "only named functions can be called", "see the function table in docs/language.md"
            )
        parts.append(f.id)
        return ".".join(reversed(parts))

    def _call(self, n: ast.Call, depth: int) -> Node:
        name = self._function_name(n)
        at = n.col_offset
        if any(isinstance(a, ast.Starred) for a in n.args) or any(k.arg is None for k in n.keywords):
            raise self._error(n, "* and ** arguments are not part of the language", "write each argument")
        if is_format(name):
            self._arity(n, name, 1, 1)
            return Cast(parse_format(name), self._node(n.args[0], depth + 1), at=at)
        if (split := split_format(name))[0]:
            return self._formatted(n, *split, depth)
        if name in ("sum", "dot") or (name in ("max", "any") and len(n.args) == 1):
            return self._reduce(n, name, depth)
        special = getattr(self, f"_call_{name}", None) if name in _SPECIAL else None
        if special is not None:
            return special(n, depth)
        if name in FUNCTIONS:
            f = FUNCTIONS[name]
            self._arity(n, name, f.low, f.high)
            return Op(name, tuple(self._node(a, depth + 1) for a in n.args), at=at)
        if name in rule_names():
            if n.keywords:
                raise self._error(n, f"{name}() takes no keywords", "give the arguments in order")
            return Op(name, tuple(self._node(a, depth + 1) for a in n.args), at=at)
        known = [*FUNCTIONS, *_SPECIAL, "sum", "dot", *BASES, *rule_names()]
        raise self._error(n, f"unknown function '{name}'", did_you_mean(name, known))

    def _formatted(self, n: ast.Call, prefix: str, last: str, depth: int) -> Node:
        fmt = parse_format(prefix)
        if last in ("sum", "dot"):
            return self._reduce(n, last, depth, fmt)
        if last not in FORMAT_OPS:
            raise self._error(
                n, f"'{last}' cannot name its format", did_you_mean(last, [*FORMAT_OPS, "sum", "dot"])
            )
        op = FORMAT_OPS[last]
        arity = 2 if op in ("+", "-", "*", "/") else FUNCTIONS[op].low
        self._arity(n, f"{prefix}.{last}", arity, arity)
        return Op(op, tuple(self._node(a, depth + 1) for a in n.args), format=fmt, at=n.col_offset)

    def _arity(self, n: ast.Call, name: str, low: int, high: int) -> None:
        if n.keywords:
            word = n.keywords[0].arg
            raise self._error(
                n.keywords[0], f"{name}() takes no keyword '{word}'", "give the arguments in order"
            )
        if not low <= len(n.args) <= high:
            want = str(low) if low == high else f"{low} to {high}"
            raise self._error(
                n,
                f"{name}() takes {want} argument(s), got {len(n.args)}",
                "see the function table in docs/language.md",
            )

    # -- special forms ------------------------------------------------------------------------------------

    def _word(self, n: ast.expr, what: str) -> str:
        if not isinstance(n, ast.Name):
            raise self._error(n, f"{what} must be a plain name", "write the name without quotes or brackets")
        return n.id

    def _call_select(self, n: ast.Call, depth: int) -> Node:
        self._arity(n, "select", 3, 3)
        c, a, b = (self._node(x, depth + 1) for x in n.args)
        return Select(c, a, b, at=n.col_offset)

    def _call_prev(self, n: ast.Call, depth: int) -> Node:
        self._arity(n, "prev", 1, 2)
        level = self._word(n.args[1], "the level of prev()") if len(n.args) == 2 else None
        return Prev(self._word(n.args[0], "the state of prev()"), level, at=n.col_offset)

    def _call_last(self, n: ast.Call, depth: int) -> Node:
        self._arity(n, "last", 1, 1)
        return Last(self._word(n.args[0], "the state of last()"), at=n.col_offset)

    def _call_pos(self, n: ast.Call, depth: int) -> Node:
        self._arity(n, "pos", 1, 1)
        return Pos(self._word(n.args[0], "the axis of pos()"), at=n.col_offset)

    def _call_owns(self, n: ast.Call, depth: int) -> Node:
        self._arity(n, "owns", 1, 1)
        return Owns(self._word(n.args[0], "the level of owns()"), at=n.col_offset)

    def _call_at(self, n: ast.Call, depth: int) -> Node:
        if len(n.args) != 1 or not n.keywords:
            raise self._error(n, "at() takes one expression and AXIS=index", "as in at(den, segment=0)")
        moves = tuple((str(k.arg), self._node(k.value, depth + 1)) for k in n.keywords)
        return At(self._node(n.args[0], depth + 1), moves, at=n.col_offset)

    def _xor(self, arg: Node, axis: str, k: Node, at: int) -> At:
        return At(arg, ((axis, Op("^", (Pos(axis, at=at), k), at=at)),), at=at)

    def _call_shfl_xor(self, n: ast.Call, depth: int) -> Node:
        self._arity(n, "shfl_xor", 3, 3)
        axis = self._word(n.args[1], "the axis of shfl_xor()")
        return self._xor(
            self._node(n.args[0], depth + 1), axis, self._node(n.args[2], depth + 1), n.col_offset
        )

    def _call_butterfly(self, n: ast.Call, depth: int) -> Node:
        self._arity(n, "butterfly", 3, 2 + MAX_BUTTERFLY)
        value = self._node(n.args[0], depth + 1)
        axis = self._word(n.args[1], "the axis of butterfly()")
        for k in n.args[2:]:
            other = self._xor(value, axis, self._node(k, depth + 1), n.col_offset)
            value = Op("+", (value, other), at=n.col_offset)
            if sum(1 for _ in value.walk()) > MAX_NODES:  # each stride doubles it
                raise self._error(n, f"butterfly() unfolds to over {MAX_NODES} nodes", "name the inner value")
        return value

    def _call_bits(self, n: ast.Call, depth: int) -> Node:
        self._arity(n, "bits", 1, 1)
        arg = n.args[0]
        text = self.text[arg.col_offset : arg.end_col_offset]
        if not isinstance(arg, ast.Constant) or not isinstance(arg.value, int) or text[:2].lower() != "0x":
            raise self._error(arg, "bits() takes one hexadecimal pattern", "as in bits(0x3F317218)")
        if arg.value >= 1 << 64:
            raise self._error(arg, "pattern wider than 64 bits", "give the pattern in the compute format")
        return Num(text, bits=arg.value, at=n.col_offset)

    def _call_max(self, n: ast.Call, depth: int) -> Node:
        f = FUNCTIONS["max"]
        self._arity(n, "max", f.low, f.high)
        return Op("max", tuple(self._node(a, depth + 1) for a in n.args), at=n.col_offset)

    def _call_any(self, n: ast.Call, depth: int) -> Node:
        raise self._error(n, "any() as a value takes one condition", "as in any(m > prev(M), over=row)")

    def _reduce(self, n: ast.Call, kind: str, depth: int, fmt: object = None) -> Node:
        operands = 2 if kind == "dot" else 1
        wants_tree = kind in ("sum", "dot")
        want = operands + (1 if wants_tree else 0)
        if len(n.args) != want:
            shape = "dot(a, b, tree)" if kind == "dot" else "sum(x, tree)" if kind == "sum" else f"{kind}(x)"
            raise self._error(n, f"{kind}() takes {want} argument(s), got {len(n.args)}", f"write {shape}")
        keywords = self._keywords(n, _REDUCE_KEYWORDS)
        tree = self._tree(n.args[-1], depth + 1) if wants_tree else None
        if (
            kind == "sum"
            and tree is not None
            and any("fma" in t.flags for t in tree.walk() if isinstance(t, Tree))
        ):
            raise self._error(n, "a sum has no products to fuse", "write dot(a, b, tree), or drop fma")
        over = keywords.get("over")
        axes: tuple[str, ...] | None = None
        if over is not None:
            items = over.elts if isinstance(over, ast.Tuple) else [over]
            axes = tuple(self._word(i, "an axis of over=") for i in items)
        by = keywords.get("by")
        start, first = keywords.get("start"), keywords.get("first")
        if not wants_tree and (by or start or first):
            raise self._error(n, f"{kind}() takes over= only", "remove the other keywords")
        return Reduce(
            kind,
            tuple(self._node(a, depth + 1) for a in n.args[:operands]),
            tree,
            over=axes,
            by=self._word(by, "the view of by=") if by is not None else None,
            start=self._node(start, depth + 1) if start is not None else None,
            first=self._node(first, depth + 1) if first is not None else None,
            format=fmt,  # pyright: ignore[reportArgumentType]
            at=n.col_offset,
        )

    def _tree(self, n: ast.expr, depth: int) -> Tree:
        if depth > MAX_DEPTH:
            raise self._error(n, "tree too deep", "flatten it")
        if not isinstance(n, ast.Call) or not isinstance(n.func, ast.Name) or n.func.id not in TREES:
            word = n.func.id if isinstance(n, ast.Call) and isinstance(n.func, ast.Name) else ""
            raise self._error(
                n, "the last argument of a sum is its tree", did_you_mean(word, TREES) + ", as in seq()"
            )
        kind = n.func.id
        low, high, inner_count, flags_allowed = TREES[kind]
        args, flags = self._split_flags(n, flags_allowed)
        inner = tuple(self._tree(a, depth + 1) for a in args if self._is_tree(a))
        ints = tuple(self._node(a, depth + 1) for a in args if not self._is_tree(a))
        if n.keywords:
            raise self._error(n, f"{kind}() takes no keywords", "give the arguments in order")
        if not low <= len(ints) <= high or len(inner) != inner_count:
            raise self._error(
                n,
                f"{kind}() takes {low}{f' to {high}' if high != low else ''} integer(s) and {inner_count} inner tree(s)",
                f"as in {'mma(16, wgmma)' if kind == 'mma' else 'lanes(4, pairwise(fma), butterfly(2, 1))'}",
            )
        if kind == "mma" and len(flags) > 1:
            raise self._error(n, "an mma tree is one instruction", "as in mma(16) or mma(16, wgmma)")
        if "swap" in flags and ("fma" not in flags or "desc" in flags):
            raise self._error(n, "swap only means something with fma, in order", "write seq(fma, swap)")
        return Tree(kind, ints, flags, inner, at=n.col_offset)

    @staticmethod
    def _is_tree(n: ast.expr) -> bool:
        return isinstance(n, ast.Call) and isinstance(n.func, ast.Name) and n.func.id in TREES

    def _split_flags(self, n: ast.Call, allowed: frozenset[str]) -> tuple[list[ast.expr], tuple[str, ...]]:
        args: list[ast.expr] = []
        flags: list[str] = []
        for a in n.args:
            if isinstance(a, ast.Name) and a.id in allowed and a.id in _FLAGS:
                if a.id in flags:
                    raise self._error(a, f"'{a.id}' twice", "write it once")
                flags.append(a.id)
            else:
                args.append(a)
        return args, tuple(flags)

    def _keywords(self, n: ast.Call, allowed: frozenset[str] | tuple[str, ...]) -> dict[str, ast.expr]:
        found: dict[str, ast.expr] = {}
        for k in n.keywords:
            word = str(k.arg)
            if word not in allowed or word == "desc":
                raise self._error(k, f"unknown keyword '{word}='", did_you_mean(word, allowed))
            if word in found:
                raise self._error(k, f"'{word}=' twice", "write it once")
            found[word] = k.value
        return found


def _shorten(text: str, width: int = 100) -> str:
    return text if len(text) <= width else text[: width - 3] + "..."
