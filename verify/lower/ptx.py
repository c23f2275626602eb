"""PTX, followed for all threads of a block at once, for where no disassembler is at hand.

ptxas may still fuse a product and a sum that PTX has apart, so the FMAs found here are those of LLVM alone.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from verify.lower.flow import Flow, Node, Store

_LINE = re.compile(r"^\s*(?:@(?P<guard>!?%p\d+)\s+)?(?P<op>[a-z][\w.:]*)\s+(?P<rest>[^;]*);")
_MASK = 0xFFFFFFFF
_FLOAT = {"add": "add", "mul": "mul", "sub": "sub", "fma": "fma", "max": "max", "min": "min", "div": "div"}


class Threads:
    """Registers of all threads of block 0: integers, graphs, and pairs of graphs in 64-bit registers."""

    def __init__(self, threads: int) -> None:
        self.flow = Flow("PTX")
        self.thread = np.arange(threads, dtype=np.int64)
        self.zero = np.zeros(threads, np.int64)
        self.ints: dict[str, Any] = {}
        self.flags: dict[str, Any] = {}
        self.nodes: dict[str, Node] = {}
        self.pairs: dict[str, tuple[Node, Node]] = {}
        self.pending: list[Store] = []
        self.before: list[Store] = []
        self.closed = False
        self.pointers = 0

    def word(self, text: str) -> Any:
        """An integer operand."""
        if text.startswith("%"):
            return self.ints.get(text)
        try:
            return self.zero + int(text, 0)
        except ValueError:
            return self.zero + 1024 if text.startswith("global_smem") else None

    def node(self, text: str) -> Node:
        """A floating-point operand."""
        if not text.startswith("%"):
            return Node("const", tag=text)
        if text not in self.nodes:
            self.nodes[text] = self.flow.node("entry", tag=text)
        return self.nodes[text]

    def pair(self, text: str) -> tuple[Node, Node]:
        """A pair of floating-point operands."""
        if text not in self.pairs:
            self.pairs[text] = (
                self.flow.node("entry", tag=f"{text} low"),
                self.flow.node("entry", tag=f"{text} high"),
            )
        return self.pairs[text]

    def place(self, text: str) -> Any:
        """The address in brackets."""
        inner = re.search(r"\[\s*([^\]]*?)\s*\]", text)
        total: Any = self.zero
        for part in re.split(r"\s*\+\s*", inner[1]) if inner else ["?"]:
            value = self.word(part)
            total = None if value is None or total is None else total + value
        return total


def follow(text: str, threads: int) -> Flow:
    """The data flow of a kernel's PTX, for a block of ``threads``."""
    machine = Threads(threads)
    counts = machine.flow.counts
    for machine.flow.line, line in enumerate(text.split(".section\t.debug")[0].splitlines(), 1):
        m = _LINE.match(line)
        if m is None or (m["op"].startswith("ld.param") is False and m["op"].startswith(".")):
            continue
        parts = [p.strip() for p in re.findall(r"\{[^}]*\}|\[[^\]]*\]|[^,{}\[\]]+", m["rest"]) if p.strip()]
        op = m["op"]
        if re.match(r"(add|sub|mul|fma|max|ex2|div|mma|wgmma|shfl)\b.*(f32|bfly)", op):
            counts[op] = counts.get(op, 0) + 1
        try:
            _step(machine, m["guard"] or "", op, parts)
        except (IndexError, ValueError, KeyError):  # a form of the instruction that is not known here
            machine.flow.unknown.append(op)
            for name in _names(parts[0]) if parts else []:
                machine.nodes[name], machine.ints[name] = machine.flow.node("other", tag=op), None
    return machine.flow


def _names(text: str) -> list[str]:
    return re.findall(r"%\w+|0f\w+|-?\d+", text)


def _step(machine: Threads, guard: str, op: str, parts: list[str]) -> None:
    flow, head = machine.flow, op.split(".")[0]
    if op.endswith("f32x2"):
        sides = [machine.pair(p) for p in parts[1:]]
        machine.pairs[parts[0]] = (
            _made(flow, head, [a for a, _ in sides]),
            _made(flow, head, [b for _, b in sides]),
        )
    elif head in _FLOAT and op.endswith(".f32"):
        machine.nodes[parts[0]] = _made(flow, head, [machine.node(p) for p in parts[1:]])
    elif op == "selp.f32":
        machine.nodes[parts[0]] = flow.node("select", *[machine.node(p) for p in parts[1:3]], tag=parts[3])
    elif op.startswith("shfl.sync.bfly"):
        mask = int(parts[2]) if parts[2].isdecimal() else -1
        machine.nodes[parts[0].split("|")[0]] = flow.node("shfl", machine.node(parts[1]), number=mask)
    elif re.match(r"cvt\.rn\.\w+16(x2)?\.f32$", op):
        machine.nodes[parts[0]] = flow.node("pack", *[machine.node(p) for p in parts[1:]])
    elif head == "ex2":
        tag = "" if "ftz" in op else "full"
        machine.nodes[parts[0]] = flow.node("ex2", machine.node(parts[1]), tag=tag)
    elif op.startswith("mma.sync"):
        _matrix(machine, op, parts)
    elif op.startswith("ldmatrix"):
        for i, name in enumerate(_names(parts[0])):
            machine.nodes[name] = flow.node("ldsm", address=machine.place(parts[1]), number=i)
    elif op.startswith(("ld.global", "ld.shared")):
        _load(machine, op, parts)
    elif op.startswith("st.shared"):
        _store(machine, guard, parts)
    elif head in ("bar", "barrier"):
        machine.closed = True
    elif op == "mov.b64" and "{" in "".join(parts):
        _pack(machine, parts)
    else:
        _integer(machine, guard, op, parts)


def _made(flow: Flow, head: str, args: list[Node]) -> Node:
    if len(args) != 3 if head == "fma" else not 2 <= len(args) <= 3:
        raise ValueError(head)
    if head == "sub":
        return flow.node("add", args[0], Node("neg", (args[1],)))
    if head in ("max", "min"):
        return flow.node("max3" if len(args) > 2 else "max", *args, tag="!PT" if head == "max" else "PT")
    return flow.node(head, *args)


def _matrix(machine: Threads, op: str, parts: list[str]) -> None:
    number = len(machine.flow.nodes)
    groups = [_names(p) for p in parts[:4]]
    starts = [machine.node(n) if n.startswith("%") else Node("const", tag="0") for n in groups[3]]
    first = [machine.node(n) for n in groups[1]]
    for i, name in enumerate(groups[0]):
        made = machine.flow.node("mma", starts[i], *first, tag=f"{op} {i}", number=number)
        machine.nodes[name] = made


def _load(machine: Threads, op: str, parts: list[str]) -> None:
    where = machine.place(parts[1])
    names = _names(parts[0])
    shared = op.startswith("ld.shared")
    made: list[Node] = []
    wide = op.endswith("b64") and shared
    for i in range(2 if wide else len(names)):
        node = machine.flow.node(
            "shared" if shared else "load", address=None if where is None else where + 4 * i, number=i
        )
        if shared:
            node.stored, node.before = tuple(machine.pending), tuple(machine.before)
        made.append(node)
    if wide:
        machine.pairs[names[0]] = (made[0], made[1])
        return
    for name, node in zip(names, made, strict=True):
        machine.nodes[name], machine.ints[name] = node, None if shared else machine.zero + 1


def _store(machine: Threads, guard: str, parts: list[str]) -> None:
    if machine.closed:
        machine.before, machine.pending, machine.closed = machine.pending, [], False
    where = machine.place(parts[0])
    flag = machine.flags.get(guard.removeprefix("!")) if guard else machine.zero == 0
    storing = flag if flag is None or not guard.startswith("!") else ~flag
    for i, name in enumerate(_names(parts[1])):
        store = Store(machine.node(name), None if where is None else where + 4 * i, storing)
        machine.pending.append(store)
        machine.flow.stores.append(store)


def _pack(machine: Threads, parts: list[str]) -> None:
    if parts[0].startswith("{"):
        low, high = _names(parts[0])
        machine.nodes[low], machine.nodes[high] = machine.pair(parts[1])
    else:
        low, high = (machine.node(n) for n in _names(parts[1]))
        machine.pairs[parts[0]] = (low, high)


def _integer(machine: Threads, guard: str, op: str, parts: list[str]) -> None:
    head, *marks = op.split(".")
    if head in ("bra", "ret", "cp", "st") or not parts:
        return
    if head == "cvt":
        whole = re.match(r"cvt\.[us](32|64)\.([us])32$", op)
        value: Any = None if whole is None else machine.word(parts[1])
        if value is not None and whole is not None and whole.groups() == ("64", "s"):
            value = np.where(value & 0x80000000, value - (1 << 32), value)
        machine.ints[parts[0]] = value
        return
    if op.startswith("ld.param"):
        wide = op.endswith("64")
        machine.pointers += 1
        machine.ints[parts[0]] = machine.zero + (machine.pointers << 32 if wide else 1)
        return
    if head == "mov" and not guard:
        source = parts[1]
        special = {"%tid.x": machine.thread, "%nctaid.x": machine.zero + 1, "%ctaid.x": machine.zero}
        machine.ints[parts[0]] = special[source] if source in special else machine.word(source)
        machine.nodes[parts[0]] = machine.node(source)
        if source in machine.pairs:
            machine.pairs[parts[0]] = machine.pairs[source]
        return
    values = [machine.word(p) for p in parts[1:]]
    known = not guard and all(v is not None for v in values)
    result = _value(head, marks, values) if known else None
    if head == "setp":
        machine.flags[parts[0]] = result
    else:
        machine.ints[parts[0]] = result if result is None or "64" in op or "wide" in op else result & _MASK


def _three(values: list[Any]) -> tuple[Any, Any, Any]:
    given: list[Any] = [*values, None, None, None]
    return given[0], given[1], given[2]


def _value(head: str, marks: list[str], values: list[Any]) -> Any:
    a, b, c = _three(values)
    if "wide" in marks or head == "setp" or marks[-1:] == ["s32"]:
        sign = marks[-1] == "s32"
        a, b, _ = _three(
            [np.where(x & 0x80000000, x - (1 << 32), x) if sign and x is not None else x for x in (a, b)]
        )
    if head in ("add", "sub", "mul", "and", "or", "xor", "shl", "shr") and b is None:
        return None
    if head == "setp":
        kinds = {"eq": a == b, "ne": a != b, "lt": a < b, "le": a <= b, "gt": a > b, "ge": a >= b}
        return kinds.get(marks[0])
    if head == "bfe":
        cut = a >> int(b[0]) & ((1 << int(c[0])) - 1)
        top = 1 << int(c[0]) - 1
        return np.where(cut & top, cut - 2 * top, cut) if marks == ["s32"] else cut
    simple = {
        "add": lambda: a + b,
        "sub": lambda: a - b,
        "mul": lambda: a * b,
        "mad": lambda: a * b + c,
        "and": lambda: a & b,
        "or": lambda: a | b,
        "xor": lambda: a ^ b,
        "shl": lambda: a << int(b[0]),
        "shr": lambda: a >> int(b[0]),
        "neg": lambda: -a,
    }
    return simple[head]() if head in simple and "hi" not in marks else None
