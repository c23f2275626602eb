"""Where things stand in a TOML text: the offset of every key and of every character of every string.

`tomllib` gives values and forgets positions. This scanner reads the same text again and keeps nothing but
positions, so that an error about the meaning of a line names the line, and an error inside a formula names
the column. It expects a text that `tomllib` has accepted, and knows the whole of TOML 1.0: dotted and quoted
keys, inline tables, arrays of tables, four kinds of strings. Numbers, dates and booleans are skipped.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from dataclasses import dataclass, field

Path = tuple[str | int, ...]
"""How to reach a value in the parsed document: ``("variant", 0, "row", "num")``."""

_BARE = re.compile(r"[A-Za-z0-9_-]+")
_OTHER = re.compile(r"[^,\]}\n#]*")
_SPACE = re.compile(r"[ \t]*")
_GAP = re.compile(r"(?:[ \t\n]|#[^\n]*)*")
_ESCAPES = {"b": "\b", "t": "\t", "n": "\n", "f": "\f", "r": "\r", '"': '"', "\\": "\\"}


@dataclass(frozen=True, slots=True)
class Scan:
    """Positions in one text.

    ``keys`` has the offset of the last part of each key, of each header and of each array element;
    ``strings`` the offset in the source of each character of a string value, and after them that of its
    closing quote; ``decoded`` the values themselves, for the test that compares them with `tomllib`.
    """

    source: str
    keys: dict[Path, int] = field(default_factory=dict[Path, int])
    strings: dict[Path, tuple[int, ...]] = field(default_factory=dict[Path, tuple[int, ...]])
    decoded: dict[Path, str] = field(default_factory=dict[Path, str])
    _lines: list[int] = field(default_factory=list[int])

    def line_column(self, offset: int) -> tuple[int, int]:
        """Line and column, both from 1 and in characters, of an offset into the text."""
        if not self._lines:
            self._lines.extend([0, *(m.end() for m in re.finditer("\n", self.source))])
        line = bisect_right(self._lines, offset)
        return line, offset - self._lines[line - 1] + 1

    def key(self, path: Path) -> tuple[int, int] | None:
        """Line and column of the key at ``path``, or None if the text has no such key."""
        offset = self.keys.get(path)
        return None if offset is None else self.line_column(offset)

    def char(self, path: Path, index: int = 0) -> tuple[int, int] | None:
        """Line and column of character ``index`` of the string at ``path``; past its end: its quote."""
        offsets = self.strings.get(path)
        return None if offsets is None else self.line_column(offsets[min(max(index, 0), len(offsets) - 1)])


def scan(text: str) -> Scan:
    """The positions in ``text``, which `tomllib` accepts. Line ends become ``\\n``, as they do there.

    Raises:
        ValueError: the text is not TOML (the position is in the message).
    """
    scanner = _Scanner(text.replace("\r\n", "\n"))
    scanner.document()
    return scanner.out


class _Scanner:
    """A cursor over the text; each method reads one construct and leaves the cursor behind it."""

    def __init__(self, source: str) -> None:
        self.src = source
        self.i = 0
        self.out = Scan(source)
        self.counts: dict[Path, int] = {}  # how many elements each array of tables has so far

    def document(self) -> None:
        """Read headers and pairs until the end of the text."""
        table: Path = ()
        while True:
            self.skip(_GAP)
            if self.i >= len(self.src):
                return
            table = self.header() if self.src[self.i] == "[" else self.pair(table)

    def header(self) -> Path:
        """Read ``[a.b]`` or ``[[a.b]]``: the path of the table that follows."""
        array = self.src.startswith("[[", self.i)
        self.i += 2 if array else 1
        parts = self.key_parts()
        self.expect("]]" if array else "]")
        path: Path = ()
        for n, (name, offset) in enumerate(parts):
            path = (*path, name)
            self.out.keys.setdefault(path, offset)
            if array and n == len(parts) - 1:
                self.counts[path] = self.counts.get(path, 0) + 1
            if path in self.counts:
                path = (*path, self.counts[path] - 1)
                self.out.keys.setdefault(path, offset)
        return path

    def pair(self, table: Path) -> Path:
        """Read ``a.b = value`` inside ``table``, which is returned."""
        path = table
        for name, offset in self.key_parts():
            path = (*path, name)
            self.out.keys.setdefault(path, offset)
        self.expect("=")
        self.skip(_SPACE)
        self.value(path)
        return table

    def key_parts(self) -> list[tuple[str, int]]:
        """Read a key: its parts, each with its offset."""
        parts: list[tuple[str, int]] = []
        while True:
            self.skip(_SPACE)
            start = self.i
            if self.at('"') or self.at("'"):
                parts.append((self.string()[0], start))
            else:
                match = _BARE.match(self.src, self.i)
                if match is None:
                    raise self.wrong("a key")
                self.i = match.end()
                parts.append((match.group(), start))
            self.skip(_SPACE)
            if not self.at("."):
                return parts
            self.i += 1

    def value(self, path: Path) -> None:
        """Read any value; strings are recorded, containers entered, everything else skipped."""
        if self.at('"') or self.at("'"):
            self.out.decoded[path], self.out.strings[path] = self.string()
        elif self.at("["):
            self.array(path)
        elif self.at("{"):
            self.i += 1
            self.skip(_SPACE)
            while not self.at("}"):
                self.pair(path)
                self.skip(_SPACE)
                if self.at(","):
                    self.i += 1
                elif not self.at("}"):
                    raise self.wrong("',' or '}'")
            self.i += 1
        else:
            self.skip(_OTHER)

    def array(self, path: Path) -> None:
        """Read ``[a, b, ...]``, over several lines or one."""
        self.i += 1
        index = 0
        self.skip(_GAP)
        while not self.at("]"):
            self.out.keys[*path, index] = self.i
            self.value((*path, index))
            index += 1
            self.skip(_GAP)
            if self.at(","):
                self.i += 1
                self.skip(_GAP)
            elif not self.at("]"):
                raise self.wrong("',' or ']'")
        self.i += 1

    def string(self) -> tuple[str, tuple[int, ...]]:
        """Read a string of any kind: its value, and the offset of each of its characters and of its end."""
        quote = self.src[self.i]
        long = self.src.startswith(quote * 3, self.i)
        self.i += 3 if long else 1
        if long and self.at("\n"):
            self.i += 1
        close = quote * 3 if long else quote
        chars: list[str] = []
        offsets: list[int] = []
        while not self.src.startswith(close, self.i):
            if self.i >= len(self.src):
                raise self.wrong(f"the closing {close}")
            start = self.i
            char = self.escape(long) if quote == '"' and self.at("\\") else self.take()
            if char is not None:
                chars.append(char)
                offsets.append(start)
        while (
            long and self.src.startswith(quote, self.i + 3) and len(close) < 5
        ):  # """a""" may end in 4 or 5 quotes
            close += quote
            chars.append(quote)
            offsets.append(self.i)
            self.i += 1
        offsets.append(self.i)
        self.i += 3 if long else 1
        return "".join(chars), tuple(offsets)

    def escape(self, long: bool) -> str | None:
        """Read a backslash escape: its character, or None for a line end that is continued."""
        self.i += 1
        if long and (match := re.compile(r"[ \t]*\n").match(self.src, self.i)):
            self.i = match.end()
            self.skip(re.compile(r"[ \t\n]*"))
            return None
        letter = self.take()
        if letter in "uU":
            width = 4 if letter == "u" else 8
            digits = self.src[self.i : self.i + width]
            self.i += width
            return chr(int(digits, 16))
        if letter not in _ESCAPES:
            raise self.wrong("an escape")
        return _ESCAPES[letter]

    def take(self) -> str:
        self.i += 1
        return self.src[self.i - 1]

    def at(self, char: str) -> bool:
        return self.src.startswith(char, self.i)

    def skip(self, pattern: re.Pattern[str]) -> None:
        match = pattern.match(self.src, self.i)
        self.i = self.i if match is None else match.end()

    def expect(self, text: str) -> None:
        self.skip(_SPACE)
        if not self.src.startswith(text, self.i):
            raise self.wrong(repr(text))
        self.i += len(text)

    def wrong(self, wanted: str) -> ValueError:
        line, column = self.out.line_column(self.i)
        return ValueError(f"expected {wanted} at line {line}, column {column}")
