"""Machine code, as NVIDIA's disassembler prints it, followed for all threads of a block at once.

Integer registers are computed, so that it is known where each thread loads and stores: for block 0, with pointers at
distinct multiples of 2**32, and 1 for all other parameters and for what is loaded as an integer. Floating-point registers
become a graph. Instructions are taken in the order of the listing; a block that only a jump reaches goes on with the
registers of the jump, and a loop's body is seen once. What is not understood makes an unknown value, never a guess.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from verify.lower.flow import Flow, Node, Store
from verify.lower.words import integer, predicate

INSTRUCTION = re.compile(
    r"^\s+/\*[0-9a-f]{4,}\*/\s+(?:@(?P<not>!?)(?P<guard>U?P\w+)\s+)?(?P<op>[A-Z][\w.]*)\s*(?P<rest>[^;]*);"
)
REGISTER = re.compile(r"^(?P<name>U?R(?:\d+|Z))(?P<more>[.\w]*)$")
LABEL = re.compile(r"^(\.L_\w+):")
PLACE = re.compile(r"\[([^\[\]]*)\]$")
WIDTH = {"64": 2, "128": 4}

#: Floating-point operations whose number is reported.
COUNTED = (
    "FADD",
    "FADD2",
    "FMUL",
    "FMUL2",
    "FFMA",
    "FFMA2",
    "FMNMX",
    "FMNMX3",
    "MUFU.EX2",
    "MUFU.RCP",
    "SHFL.BFLY",
)
MATRIX = ("HMMA", "HGMMA", "QMMA", "QGMMA", "UTCHMMA", "UTCQMMA", "OMMA", "DMMA")


def instructions(text: str) -> list[tuple[str, str, list[str]]]:
    """(guard or "", opcode, operands) of each instruction, "LABEL" where a block begins; "!" negates a guard."""
    return [(guard, op, parts) for _, guard, op, parts in _numbered(text)]


def _numbered(text: str) -> Iterator[tuple[int, str, str, list[str]]]:
    """The same, with the number of the line in front."""
    for number, line in enumerate(text.splitlines(), 1):
        label = LABEL.match(line)
        if label is not None:
            yield number, "", "LABEL", [label[1]]
        m = INSTRUCTION.match(line)
        if m is None or m["op"] == "NOP" or (m["not"], m["guard"]) == ("!", "PT"):
            continue
        rest = m["rest"].replace(".reuse", "").strip()
        parts = [p.strip() for p in rest.split(",")] if rest else []
        yield number, (m["not"] or "") + (m["guard"] or ""), m["op"], parts


class Machine:
    """Registers of all threads of block 0: integers as ``int64[thread]`` below 2**32, and graphs."""

    def __init__(self, threads: int, flow: Flow) -> None:
        self.flow = flow
        self.thread = np.arange(threads, dtype=np.int64)
        self.zero = np.zeros(threads, np.int64)
        self.ints: dict[str, Any] = {}
        self.flags: dict[str, Any] = {}
        self.nodes: dict[str, Node] = {}
        self.pending: list[Store] = []
        self.before: list[Store] = []
        self.closed = False
        self.ahead: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {}
        self.left = False

    def jump(self, guard: str, op: str, parts: list[str]) -> bool:
        """Whether ``op`` is about control flow. A block that a jump leads to goes on with the registers of the jump."""
        if op == "LABEL":
            if self.left and parts[0] in self.ahead:
                self.ints, self.flags, self.nodes = (dict(d) for d in self.ahead[parts[0]])
            self.left = False
            return True
        if op.startswith("BRA") and parts:
            target = parts[-1].strip("`()")
            self.ahead.setdefault(target, (dict(self.ints), dict(self.flags), dict(self.nodes)))
            self.left = not guard and len(parts) == 1
            return True
        if op == "EXIT":
            self.left = not guard
        return op in ("EXIT", "RET")

    def word(self, text: str) -> Any:
        """An integer operand, modulo 2**32."""
        sign, text = (-1, text[1:]) if text.startswith("-") else (1, text)
        if text.startswith("~"):
            inner = self.word(text[1:])
            return None if inner is None else ~inner & 0xFFFFFFFF
        m = REGISTER.match(text)
        if m is not None:
            value = self.zero if m["name"].endswith("Z") else self.ints.get(m["name"])
        else:
            try:
                value = self.zero + (int(text, 0) & 0xFFFFFFFF)
            except ValueError:
                return self.constant(text, 1)[0]
        return None if value is None else (sign * value) & 0xFFFFFFFF

    def constant(self, text: str, words: int) -> list[Any]:
        """Words of the constant bank: pairs are pointers, low word 0; a single word is 1."""
        m = re.match(r"c\[0x\w+\]\[(0x\w+)\]$", text)
        if m is None:
            return [None] * words
        at = int(m[1], 16)
        if words == 1:
            return [self.zero + 1]
        return [self.zero + (0 if i % 2 == 0 else at + 4 * i) for i in range(words)]

    def wide(self, text: str) -> Any:
        """A register pair as one integer."""
        m = REGISTER.match(text)
        if m is None:
            return self.word(text)
        if m["name"].endswith("Z"):
            return self.zero
        low, high = self.ints.get(m["name"]), self.ints.get(after(m["name"], 1))
        return None if low is None or high is None else low + (high << 32)

    def flag(self, text: str) -> Any:
        """A predicate operand."""
        name = text.removeprefix("!")
        value = self.zero == 0 if name in ("PT", "UPT") else self.flags.get(name)
        return None if value is None else (~value if text.startswith("!") else value)

    def place(self, text: str) -> Any:
        """The address in brackets: registers and an offset; a pair where it says ``.64``."""
        m = PLACE.search(text)
        if m is None:
            return None
        total = self.zero
        for part in m[1].replace("+-", "+ -").split("+"):
            part = part.strip()
            value = self.wide(part.removesuffix(".64")) if part.endswith(".64") else None
            if not part.endswith(".64"):
                sign = part.startswith("-0x")
                value = self.zero - int(part[1:], 16) if sign else self.word(part.removesuffix(".U32"))
            if value is None:
                return None
            total = total + value
        return total

    def node(self, text: str, half: int = 0) -> Node:
        """A floating-point operand; ``half`` chooses of a pair."""
        if text.startswith("-") and not re.match(r"-[\d+I]", text):
            return Node("neg", (self.node(text[1:], half),))
        if text.startswith("|"):
            return Node("abs", (self.node(text.strip("|"), half),))
        m = REGISTER.match(text)
        if m is None:
            return Node("const", tag=text)
        if m["name"].endswith("Z"):
            return Node("const", tag="0")
        name = after(m["name"], half) if "F32x2" in m["more"] else m["name"]
        if name not in self.nodes:
            self.nodes[name] = self.flow.node("entry", tag=name)
        return self.nodes[name]

    def put(self, name: str, node: Node, guard: str) -> None:
        """A register becomes ``node``; under a guard, one of the two."""
        if name.endswith("Z"):
            return
        if guard and node.op not in ("load", "shared"):
            node = self.flow.node("cond", node, self.node(name), tag=guard)
        self.nodes[name] = node


def after(name: str, count: int) -> str:
    """The register ``count`` further."""
    head = name.rstrip("0123456789")
    return name if head == name else f"{head}{int(name[len(head) :]) + count}"


def _elementwise(op: str) -> Callable[[Machine, list[str], int, bool], Node]:
    def make(machine: Machine, parts: list[str], half: int, packed: bool) -> Node:
        count = {"add": 2, "mul": 2, "max": 2, "fma": 3, "max3": 3, "select": 2}[op]
        args = [machine.node(p, half) for p in parts[1 : 1 + count]]
        if len(args) < count:
            raise ValueError(op)
        tag = parts[1 + count] if len(parts) > 1 + count else ""
        return machine.flow.node(op, *args, tag=tag)

    return make


FLOATS: Mapping[str, Callable[[Machine, list[str], int, bool], Node]] = {
    "FADD": _elementwise("add"),
    "FMUL": _elementwise("mul"),
    "FFMA": _elementwise("fma"),
    "FMNMX": _elementwise("max"),
    "FMNMX3": _elementwise("max3"),
    "FSEL": _elementwise("select"),
}


def follow(text: str, threads: int) -> Flow:
    """The data flow of a kernel's listing, for a block of ``threads``."""
    flow = Flow("SASS")
    machine = Machine(threads, flow)
    for flow.line, guard, op, parts in _numbered(text):
        head = op.split(".")[0]
        name = op if op in COUNTED else head
        if name in COUNTED or head in MATRIX:
            key = op if head in MATRIX else name
            flow.counts[key] = flow.counts.get(key, 0) + 1
        if not machine.jump(guard, op, parts):
            try:
                _step(machine, guard, op, head, parts)
            except (IndexError, ValueError):  # a form of the instruction that is not known here
                flow.unknown.append(op)
                for name in parts[:2]:
                    if REGISTER.match(name):
                        _define(machine, name, flow.node("other", tag=op), guard)
    return flow


def _step(machine: Machine, guard: str, op: str, head: str, parts: list[str]) -> None:
    flow = machine.flow
    if head in FLOATS or (head.rstrip("2") in FLOATS and head.endswith("2")):
        packed = head.endswith("2")
        made = [FLOATS[head.rstrip("2")](machine, parts, half, packed) for half in range(2 if packed else 1)]
        for half, node in enumerate(made):
            _define(machine, after(parts[0], half), node, guard)
    elif op == "SHFL.BFLY":
        mask = int(parts[3], 0) if parts[3].startswith("0x") else -1
        _define(machine, parts[1], flow.node("shfl", machine.node(parts[2]), number=mask), guard)
    elif head == "MUFU":
        _define(machine, parts[0], flow.node(op.split(".")[1].lower(), machine.node(parts[1])), guard)
    elif head == "F2FP":
        _define(machine, parts[0], flow.node("pack", *[machine.node(p) for p in parts[1:3]]), guard)
    elif head == "HMMA":
        _matrix(machine, op, parts)
    elif head in ("HGMMA", "QGMMA"):
        _group_matrix(machine, op, parts)
    elif head == "LDSM":
        where = machine.place(parts[1])
        for i in range(int(op.rsplit(".", 1)[-1])):
            _define(machine, after(parts[0], i), flow.node("ldsm", address=where, number=i), guard)
    elif head in ("LDG", "LDS"):
        _load(machine, head, op, parts, guard)
    elif head == "STS":
        _store(machine, op, parts, guard)
    elif head == "BAR":
        machine.closed = True
    elif (head in ("MOV", "UMOV") and "64" not in op) or op in ("IMAD.MOV.U32", "IMAD.MOV"):
        source = parts[-1] if head == "IMAD" else parts[1]
        node, value = machine.node(source), machine.word(source)
        _define(machine, parts[0], node, guard)
        machine.ints[parts[0]] = None if guard else value
    elif not parts or op.startswith(("ST", "BRA", "EXIT", "LDGSTS", "DEPBAR")):
        return
    elif not predicate(machine, guard, op, parts):
        integer(machine, guard, op, parts)


def _define(machine: Machine, name: str, node: Node, guard: str) -> None:
    machine.put(name, node, guard)
    machine.ints[name] = None


def _matrix(machine: Machine, op: str, parts: list[str]) -> None:
    flow, number = machine.flow, len(machine.flow.nodes)
    first = [machine.node(after(parts[1].split(".")[0], i)) for i in range(4)]
    second = [machine.node(after(parts[2].split(".")[0], i)) for i in range(2)]
    zero = parts[3].startswith("RZ")
    starts = [machine.node("RZ" if zero else after(parts[3].split(".")[0], i)) for i in range(4)]
    for i in range(4):
        made = flow.node("mma", starts[i], *first, *second, tag=f"{op} {i}", number=number)
        _define(machine, after(parts[0], i), made, "")


def _group_matrix(machine: Machine, op: str, parts: list[str]) -> None:
    """``wgmma``: a warp's 16 rows of all columns; factors by registers or by descriptors, whose low bits are an address."""
    flow, number = machine.flow, len(machine.flow.nodes)
    columns = int(op.split(".")[1].split("x")[1])
    places = [re.match(r"gdesc\[(UR\d+)\]", p) for p in parts[1:3]]
    first = places[0] or places[1]
    address = None if first is None else machine.ints.get(first[1])
    factor = flow.node("ldsm", address=None if address is None else address & 0x3FFF)
    start = next(p for p in parts[2:] if REGISTER.match(p.split(".")[0]))
    zero = start.startswith("RZ") or "!UPT" in parts
    starts = [machine.node("RZ" if zero else after(start, i)) for i in range(columns // 2)]
    for i, begun in enumerate(starts):
        made = flow.node("mma", begun, factor, tag=f"{op} {i}", number=number)
        _define(machine, after(parts[0], i), made, "")


def _load(machine: Machine, head: str, op: str, parts: list[str], guard: str) -> None:
    words = WIDTH.get(op.rsplit(".", 1)[-1], 1)
    where = machine.place(parts[-1] if head == "LDS" else parts[1])
    for i in range(words):
        address = None if where is None else where + 4 * i
        node = machine.flow.node("load" if head == "LDG" else "shared", address=address, number=i)
        if head == "LDS":
            node.stored, node.before = tuple(machine.pending), tuple(machine.before)
        _define(machine, after(parts[0], i), node, guard)
        if head == "LDG":
            machine.ints[after(parts[0], i)] = machine.zero + 1


def _store(machine: Machine, op: str, parts: list[str], guard: str) -> None:
    if machine.closed:
        machine.before, machine.pending, machine.closed = machine.pending, [], False
    where = machine.place(parts[0])
    storing = machine.flag(guard) if guard else machine.zero == 0
    for i in range(WIDTH.get(op.rsplit(".", 1)[-1], 1)):
        value = machine.node(after(parts[1], i))
        store = Store(value, None if where is None else where + 4 * i, storing)
        machine.pending.append(store)
        machine.flow.stores.append(store)
