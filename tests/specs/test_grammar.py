"""Text to nodes: what is read as what, what is refused where, and that nothing else ever happens."""

from __future__ import annotations

import re

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from specs.errors import Place, SpecError
from specs.formats import parse_format
from specs.grammar import parse_expr, parse_level
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

A, B, C = Name("a"), Name("b"), Name("c")


@pytest.mark.parametrize(
    ("text", "node"),
    [
        ("1.5e-3", Num("1.5e-3")),
        ("1_000", Num("1000")),
        ("inf", Name("inf")),
        ("bits(0x3F317218)", Num("0x3F317218", bits=0x3F317218)),
        ("-a", Op("neg", (A,))),
        ("a - b - c", Op("-", (Op("-", (A, B)), C))),
        ("a + b * c", Op("+", (A, Op("*", (B, C))))),
        ("a // 2 % b ^ 1", Op("^", (Op("%", (Op("//", (A, Num("2"))), B)), Num("1")))),
        ("fma(a, b, c)", Op("fma", (A, B, C))),
        ("mufu.ex2(a)", Op("mufu.ex2", (A,))),
        ("bf16(a)", Cast(parse_format("bf16"), A)),
        ("f32.ftz(a)", Cast(parse_format("f32.ftz"), A)),
        ("bf16.mul(a, b)", Op("*", (A, B), format=parse_format("bf16"))),
        ("f32.rz.fma(a, b, c)", Op("fma", (A, B, C), format=parse_format("f32.rz"))),
        ("a <= b", Cmp("<=", A, B)),
        ("fork == 'vllm'", Cmp("==", Name("fork"), Num("'vllm'"))),
        ("a < b and not c or b", Logic("or", (Logic("and", (Cmp("<", A, B), Logic("not", (C,)))), B))),
        ("select(a, b, c)", Select(A, B, C)),
        ("prev(m)", Prev("m")),
        ("prev(m, tile)", Prev("m", "tile")),
        ("last(m)", Last("m")),
        ("pos(token)", Pos("token")),
        ("owns(split)", Owns("split")),
        ("at(a, g=1, h=b)", At(A, (("g", Num("1")), ("h", B)))),
        ("shfl_xor(a, g, 8)", At(A, (("g", Op("^", (Pos("g"), Num("8")))),))),
        ("max(a)", Reduce("max", (A,))),
        ("max(a, b)", Op("max", (A, B))),
        ("any(a > b, over=row)", Reduce("any", (Cmp(">", A, B),), over=("row",))),
        ("sum(a, seq())", Reduce("sum", (A,), Tree("seq"))),
        ("dot(a, b, seq(fma, swap))", Reduce("dot", (A, B), Tree("seq", flags=("fma", "swap")))),
        ("sum(a, seq(desc))", Reduce("sum", (A,), Tree("seq", flags=("desc",)))),
        (
            "sum(a, whole(4, seq(), seq(desc)))",
            Reduce("sum", (A,), Tree("whole", (Num("4"),), (), (Tree("seq"), Tree("seq", flags=("desc",))))),
        ),
        (
            "sum(a, chunks(n, 1, seq(), pairwise(), cycle))",
            Reduce(
                "sum",
                (A,),
                Tree("chunks", (Name("n"), Num("1")), ("cycle",), (Tree("seq"), Tree("pairwise"))),
            ),
        ),
        ("sum(a, exact(), over=(g, token))", Reduce("sum", (A,), Tree("exact"), over=("g", "token"))),
        (
            "sum(a, seq(), by=g, first=it * 2)",
            Reduce("sum", (A,), Tree("seq"), by="g", first=Op("*", (Name("it"), Num("2")))),
        ),
        (
            "bf16.sum(a, seq(), start=b)",
            Reduce("sum", (A,), Tree("seq"), start=B, format=parse_format("bf16")),
        ),
        (
            "dot(a, b, lanes(4, pairwise(fma), butterfly(2, 1)))",
            Reduce(
                "dot",
                (A, B),
                Tree(
                    "lanes",
                    (Num("4"),),
                    (),
                    (Tree("pairwise", flags=("fma",)), Tree("butterfly", (Num("2"), Num("1")))),
                ),
            ),
        ),
        ("fa2_num_splits(1, 2, 3, 4)", Op("fa2_num_splits", tuple(Num(str(i)) for i in (1, 2, 3, 4)))),
    ],
)
def test_what_is_read_as_what(text: str, node: Node) -> None:
    assert parse_expr(text) == node
    assert parse_expr(f"  {text} ") == node


def test_butterfly_keeps_the_own_value_on_the_left() -> None:
    other = parse_expr("shfl_xor(a, g, 2)")
    once = Op("+", (A, other))
    twice = Op("+", (once, At(once, (("g", Op("^", (Pos("g"), Num("1")))),))))
    assert parse_expr("butterfly(a, g, 2, 1)") == twice


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("tiles(64)", LevelRule("tiles", (Num("64"),))),
        ("tiles(n, desc)", LevelRule("tiles", (Name("n"),), desc=True)),
        ("pieces(n, unit=16)", LevelRule("pieces", (Name("n"),), unit=Num("16"))),
        (
            "pieces(n, unit=16, of=m, empty=keep)",
            LevelRule("pieces", (Name("n"),), unit=Num("16"), of=Name("m"), keep_empty=True),
        ),
        ("deal(n, unit=256)", LevelRule("deal", (Name("n"),), unit=Num("256"))),
        ("view(4, pos(token) % 4)", LevelRule("view", (Num("4"), Op("%", (Pos("token"), Num("4")))))),
    ],
)
def test_levels(text: str, rule: LevelRule) -> None:
    assert parse_level(text) == rule


REFUSED = [
    # text, column (from 1), cause, remedy
    ("", 1, "empty expression", "write an expression"),
    ("a +", None, "not an expression", "in: a +"),
    ("a ** b", 1, "operator Pow is not part", "use \\+ - \\*"),
    ("a @ b", 1, "operator MatMult is not part", "use"),
    ("a < b < c", 1, "only single comparisons", "'and'"),
    ("a is b", 1, "only single comparisons", ""),
    ("a.b", 1, "attributes are not part", "must be called"),
    ("a[0]", 1, "Subscript is not part", "grammar"),
    ("x + [1]", 5, "List is not part", "grammar"),
    ("lambda: 1", 1, "Lambda is not part", ""),
    ("a if b else c", 1, "IfExp is not part", ""),
    ("f'{a}'", 1, "JoinedStr is not part", ""),
    ("(a, b)", 1, "Tuple is not part", ""),
    ("~a", 1, "UnaryOp is not part", ""),
    ("True", 1, "True is not a number", ""),
    ("1j", 1, "1j is not a number", ""),
    ("b'1'", 1, "not a number", ""),
    ("a + 0x3F317218", 5, "bare constant 0x3F317218", r"write bits\(0x3F317218\)"),
    ("1e999", 1, "large", ""),
    ("1e-999999999", 1, "too long or large", "0"),
    ("a + 0e999999999", 5, "too long or large", ""),
    ("'a b'", 1, "a word in quotes", "fork"),
    ("__import__('os')", 1, "unknown function '__import__'", ""),
    ("exec(a)", 1, "unknown function 'exec'", "did you mean"),
    ("().x()", 1, "only named functions", ""),
    ("a.b.c.d.e(1)", 1, "unknown function 'a.b.c.d.e'", "known names"),
    ("epx(a)", 1, "unknown function 'epx'", "'exp'"),
    ("exp(a, b)", 1, r"exp\(\) takes 1 argument", ""),
    ("exp(a, x=b)", 8, "takes no keyword 'x'", ""),
    ("exp(*a)", 1, r"\* and \*\* arguments", ""),
    ("exp(**a)", 1, r"\* and \*\* arguments", ""),
    ("bf16()", 1, r"bf16\(\) takes 1 argument", ""),
    ("bf16.max(a, b)", 1, "'max' cannot name its format", ""),
    ("sum(a)", 1, r"sum\(\) takes 2 argument", r"write sum\(x, tree\)"),
    ("sum(a, b)", 8, "the last argument of a sum is its tree", ""),
    ("sum(a, sqe())", 8, "the last argument of a sum is its tree", "'seq'"),
    ("sum(a, seq(), ovr=g)", 15, "unknown keyword 'ovr='", "'over'"),
    ("sum(a, seq(), over='g')", 20, "an axis of over= must be a plain name", ""),
    ("sum(a, seq(4))", 8, r"seq\(\) takes 0 integer", ""),
    ("sum(a, lanes(4, seq()))", 8, r"lanes\(\) takes 1 integer\(s\) and 2 inner", ""),
    ("dot(a, b, seq(swap))", 11, "swap only means something with fma", ""),
    ("dot(a, b, seq(fma, swap, desc))", 11, "in order", ""),
    ("sum(a, whole(4, seq()))", 8, r"whole\(\) takes 1 integer\(s\) and 2 inner tree", ""),
    ("sum(a, chunks(seq(), seq()))", 8, r"chunks\(\) takes 1 to 8 integer", ""),
    ("sum(a, lanes(4, seq(), seq(), cycle))", 8, r"lanes\(\) takes 1 integer", ""),
    ("dot(a, b, seq(fma, fma))", 20, "'fma' twice", ""),
    ("sum(a, seq(fma))", 1, "no products to fuse", ""),
    ("max(a, over=g, by=h)", 1, r"max\(\) takes over= only", ""),
    ("any(a, b)", 1, "takes 1 argument|takes one condition", ""),
    ("prev(1)", 6, "the state of prev", "without quotes"),
    ("prev(m, 'x')", 9, "the level of prev", ""),
    ("last(m, n)", 1, r"last\(\) takes 1 argument", ""),
    ("at(a)", 1, r"at\(\) takes one expression and AXIS=index", ""),
    ("bits(12)", 6, r"bits\(\) takes one hexadecimal pattern", ""),
    ("bits(0x1FFFFFFFFFFFFFFFF)", 6, "wider than 64 bits", ""),
    ("butterfly(a, g)", 1, r"butterfly\(\) takes 3 to 8", ""),
    ("fa2_num_splits(n=1)", 1, "takes no keywords", ""),
    ("a # b", 3, "character '#' is not allowed", "one line of ASCII"),
    ("a\\n", 2, "is not allowed", ""),
    ("a\nb", 2, "is not allowed", ""),
    ("a \u2013 b", 3, "is not allowed", ""),
    ("a" * 2001, 0, "expression of 2001 characters", "name its parts"),
    ("(" * 70 + "a" + ")" * 70, 0, "brackets nested 70 deep", ""),
    ("-" * 100 + "a", 62, "deeper than 60 levels", ""),
    ("a" + " + a" * 70, None, "deeper than 60 levels", ""),
]


@pytest.mark.parametrize(("text", "column", "cause", "remedy"), REFUSED, ids=[r[0][:30] for r in REFUSED])
def test_what_is_refused_and_where(text: str, column: int | None, cause: str, remedy: str) -> None:
    """The line starts at column 10 of line 7; an offset of 0 says that no character is at fault."""
    with pytest.raises(SpecError, match=cause) as caught:
        parse_expr(text, Place("my.toml", 7, 10))
    assert isinstance(caught.value.place, Place)
    assert (caught.value.place.file, caught.value.place.line) == ("my.toml", 7)
    if column is not None:
        assert caught.value.place.column == 9 + max(1, column)
    assert caught.value.remedy
    assert re.search(remedy, caught.value.remedy)


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("64", "a level is a call"),
        ("tlies(4)", "unknown level rule 'tlies'"),
        ("tiles()", r"tiles\(\) takes 1 argument"),
        ("tiles(4, 5)", r"tiles\(\) takes 1 argument"),
        ("tiles(4, unit=4)", "unknown keyword 'unit='"),
        ("pieces(4)", r"pieces\(\) needs unit="),
        ("pieces(4, unit=1, empty=drop)", "takes one word, keep"),
        ("pieces(4, 1, unit=1)", "takes 1 argument"),
        ("deal(4, unit=1, of=4)", "unknown keyword 'of='"),
        ("view(4)", r"view\(\) takes 2 argument"),
        ("a.tiles(4)", "a level is a call"),
    ],
)
def test_levels_that_are_refused(text: str, cause: str) -> None:
    with pytest.raises(SpecError, match=rf"my\.toml:7:\d+: .*{cause}"):
        parse_level(text, Place("my.toml", 7, 10))


def test_what_unfolds_without_bound_is_refused() -> None:
    text = "a"
    for _ in range(4):
        text = f"butterfly({text}, g, 1, 2, 4, 8, 16, 32)"
    with pytest.raises(SpecError, match="unfolds to over"):
        parse_expr(text)


# -- anything at all --------------------------------------------------------------------------------------

TEXT = """
a b inf 0 1 2.5 1e9 0x10 'w' exp fma max min sum dot any select prev last pos owns at bits bf16 f32.ftz real
seq pairwise butterfly lanes chunks whole cycle mma exact tiles pieces deal view unit= over= by= start= first= desc fma swap
( ) ( ) ( ) , , + - * / // % ^ < == and or not . = [ ] : lambda if else for in ** ~ ; await yield
"""
WORDS = st.lists(st.sampled_from(TEXT.split()), max_size=25)


@settings(max_examples=400)
@given(st.one_of(WORDS.map(" ".join), WORDS.map("".join), st.text(max_size=60)))
@example("\x00")
@example("\ud800")
@example("9" * 1900)
@example("(" * 59 + "[" * 2)
@example("a=1")
@example("0" * 5000)
def test_any_text_is_nodes_or_a_message(text: str) -> None:
    for parse in (parse_expr, parse_level):
        try:
            node = parse(text)
        except SpecError as error:
            caught = error
        else:
            assert all(isinstance(n, Node) for n in node.walk())
            hash(node)
            continue
        assert caught.cause
        assert caught.place
        assert caught.remedy
