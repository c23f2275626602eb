"""The scanner against hand-counted positions, and against generated documents whose writer knows them."""

from __future__ import annotations

import tomllib
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specs.scan import Path, scan

HAND = '''\
# comment = "not a key"
title = "a#b"
"quoted key" = 'lit\\n'
a.b . "c" = 1
list = [ 1, "x",   # trailing
  { y = "z" } ]
long = """
one\\
   two\\u0041
three"""

[t.u]
d = 1979-05-27 07:32:00
[[v]]
w = true
[[v]]
w = "second"
[v.sub]
k = "q"
'''


def test_hand_counted_positions() -> None:
    found = scan(HAND)
    assert found.key(("title",)) == (2, 1)
    assert found.char(("title",)) == (2, 10)
    assert found.char(("title",), 2) == (2, 12)
    assert found.key(("quoted key",)) == (3, 1)
    assert found.key(("a",)) == (4, 1)
    assert found.key(("a", "b")) == (4, 3)
    assert found.key(("a", "b", "c")) == (4, 7)
    assert found.key(("list", 1)) == (5, 13)
    assert found.char(("list", 1)) == (5, 14)
    assert found.key(("list", 2, "y")) == (6, 5)
    assert found.char(("list", 2, "y")) == (6, 10)
    assert [found.char(("long",), i) for i in (0, 3, 6, 7, 8)] == [(8, 1), (9, 4), (9, 7), (9, 13), (10, 1)]
    assert found.key(("t",)) == (12, 2)
    assert found.key(("t", "u")) == (12, 4)
    assert found.key(("t", "u", "d")) == (13, 1)
    assert found.key(("v", 0)) == (14, 3)
    assert found.key(("v", 1)) == (16, 3)
    assert found.char(("v", 1, "w")) == (17, 6)
    assert found.key(("v", 1, "sub")) == (18, 4)
    assert found.key(("v", 0, "sub")) is None


def test_the_end_of_a_string_is_its_closing_quote() -> None:
    found = scan('x = "ab"')
    assert found.char(("x",), 2) == (1, 8)
    assert found.char(("x",), 99) == (1, 8)


@pytest.mark.parametrize("text", ['x = "abc', "x 1", 'x = ["a" 2]', "x = {a = 1", '"', 'x = "\\q"'])
def test_what_is_not_toml_raises_a_value_error(text: str) -> None:
    with pytest.raises(ValueError, match="line 1, column"):
        scan(text)


class Writer:
    """Writes a document and notes where everything stands, independently of the scanner."""

    def __init__(self, draw: Any) -> None:
        self.draw = draw
        self.text = ""
        self.line = self.column = 1
        self.keys: dict[Path, tuple[int, int]] = {}
        self.strings: dict[Path, list[tuple[int, int]]] = {}
        self.values: dict[Path, str] = {}
        self.names = 0

    def emit(self, text: str) -> None:
        self.text += text
        for char in text:
            self.line, self.column = (self.line + 1, 1) if char == "\n" else (self.line, self.column + 1)

    @property
    def at(self) -> tuple[int, int]:
        return self.line, self.column

    def pick(self, *choices: Any) -> Any:
        return self.draw(st.sampled_from(choices))

    def space(self) -> None:
        self.emit(self.pick("", "", " ", "\t "))

    def key(self) -> str:
        """A new name, written bare or in quotes."""
        self.names += 1
        name = self.pick("a", "b-", "é.", " ", '"', "x_") + str(self.names)
        bare = all(c.isascii() and (c.isalnum() or c in "_-") for c in name)
        if bare and self.pick(True, True, False):
            self.emit(name)
        elif '"' not in name and self.pick(True, False):
            self.emit(f"'{name}'")
        else:
            self.emit('"' + name.replace('"', '\\"') + '"')
        return name

    def string(self, path: Path) -> None:
        kind = self.pick("basic", "literal", "long", "long literal")
        value, places = "", []
        self.emit({"basic": '"', "literal": "'", "long": '"""', "long literal": "'''"}[kind])
        if kind.startswith("long") and self.pick(True, False):
            self.emit("\n")
        for char in self.draw(st.lists(st.sampled_from("ab #=[]{},.é𝄞\t\"'\\\n\0"), max_size=8)):
            if kind.startswith("literal") or kind == "long literal":
                if char in "'\0" or (char == "\n" and kind == "literal"):
                    continue
                if char == "\n" and not value and self.text.endswith("'''"):
                    continue  # it would be trimmed
                places.append(self.at)
                self.emit(char)
            else:
                if kind == "long" and self.pick(False, False, False, True):
                    self.emit("\\ \n \t\n ")  # continued: no character of the value
                    if char in " \t\n":
                        char = "a"
                places.append(self.at)
                if char in '"\\\0' or (char == "\n" and kind == "basic") or self.pick(False, False, True):
                    short = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t"}.get(char)
                    self.emit(short if short and self.pick(True, False) else f"\\U{ord(char):08x}")
                elif char == "\n" and not value and self.text.endswith('"""'):
                    self.emit("\\n")
                else:
                    self.emit(char)
            value += char
        if kind.startswith("long"):
            for _ in range(self.pick(0, 0, 1, 2)):
                if not value or (kind == "long" and self.text.endswith("\\")):
                    break
                quote = '"' if kind == "long" else "'"
                places.append(self.at)
                self.emit(quote)
                value += quote
        places.append(self.at)
        self.emit({"basic": '"', "literal": "'", "long": '"""', "long literal": "'''"}[kind])
        self.values[path], self.strings[path] = value, places

    def value_at(self, path: Path, depth: int = 0) -> None:
        kind = self.pick("string", "string", "other", "array", "inline") if depth < 2 else "string"
        if kind == "string":
            self.string(path)
        elif kind == "other":
            self.emit(self.pick("1", "0x1F", "1e5", "inf", "true", "1979-05-27 07:32:00Z", "07:32:00.5"))
        elif kind == "array":
            self.emit("[")
            for n in range(self.pick(0, 1, 3)):
                self.emit(self.pick("", " ", "\n", " # a ] b\n  "))
                self.keys[*path, n] = self.at
                self.value_at((*path, n), depth + 1)
                self.space()
                self.emit(",")
            self.emit(self.pick("", "\n") + "]")
        else:
            self.emit("{")
            for n in range(self.pick(0, 1, 2)):
                self.emit(", " if n else " ")
                self.pair(path, depth + 1)
            self.emit(" }")

    def pair(self, table: Path, depth: int = 0) -> None:
        path = table
        for n in range(self.pick(1, 1, 2, 3)):
            if n:
                self.space()
                self.emit(".")
                self.space()
            here = self.at
            path = (*path, self.key())
            self.keys[path] = here
        self.space()
        self.emit("=")
        self.space()
        self.value_at(path, depth)

    def pairs(self, table: Path) -> None:
        for _ in range(self.pick(0, 1, 2)):
            self.emit(self.pick("", "\n", "  ", "# note [x]\n"))
            self.pair(table)
            self.emit(self.pick("\n", " # note\n", "\n\n"))

    def table(self, parents: list[str], path: Path, array: bool) -> None:
        """Headers below ``parents`` (written again each time), and what is in them."""
        name = None
        for n in range(self.pick(1, 2) if array else 1):
            self.emit("[[" if array else "[")
            self.space()
            for parent in parents:
                self.emit(parent + ".")
            here = self.at
            if name is None:
                before = len(self.text)
                name = self.key()
                written = self.text[before:]
                self.keys[*path, name] = here
            else:
                self.emit(written)  # pyright: ignore[reportPossiblyUnboundVariable]
            own = (*path, name, n) if array else (*path, name)
            self.keys[own] = here
            self.space()
            self.emit("]]\n" if array else "]\n")
            self.pairs(own)
            if len(parents) < 2 and self.pick(True, False):
                self.table([*parents, written], own, self.pick(True, False))


@st.composite
def documents(draw: Any) -> Writer:
    writer = Writer(draw)
    writer.pairs(())
    for _ in range(draw(st.integers(0, 3))):
        writer.table([], (), draw(st.booleans()))
    if draw(st.booleans()):
        writer.text = writer.text.replace("\n", "\r\n")
    return writer


def leaf(data: Any, path: Path) -> Any:
    for part in path:
        data = data[part]
    return data


@settings(max_examples=150, deadline=None)
@given(documents())
def test_generated_documents(writer: Writer) -> None:
    data = tomllib.loads(writer.text)
    found = scan(writer.text)
    assert {p: leaf(data, p) for p in found.decoded} == found.decoded, "strings differ from tomllib's"
    assert found.decoded == writer.values
    assert {p: found.key(p) for p in writer.keys} == writer.keys
    assert found.keys.keys() == writer.keys.keys()
    for path, places in writer.strings.items():
        assert [found.char(path, n) for n in range(len(places))] == places
