"""Integer instructions of NVIDIA's machine code, as far as addresses need them. Others leave an unknown value."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from verify.lower.sass import Machine

MASK = 0xFFFFFFFF
_REGISTER = re.compile(r"^U?R(?:\d+|Z)$")
_FLAG = re.compile(r"^!?U?P(?:\d+|T)$")


def signed(value: Any) -> Any:
    """32 bits as a signed integer."""
    return np.where(value & 0x80000000, value - (1 << 32), value)


def _lut(a: Any, b: Any, c: Any, table: int) -> Any:
    out = np.zeros_like(a)
    for bits in range(8):
        if table >> bits & 1:
            term = (a if bits & 4 else ~a) & (b if bits & 2 else ~b) & (c if bits & 1 else ~c)
            out = out | term
    return out & MASK


def _compared(kind: str, x: Any, y: Any) -> Any:
    table = {"NE": x != y, "EQ": x == y, "GE": x >= y, "GT": x > y, "LT": x < y, "LE": x <= y}
    return table.get(kind)


def predicate(machine: Machine, guard: str, op: str, parts: list[str]) -> bool:
    """Whether ``op`` sets a predicate alone; if so, sets it, or makes it unknown."""
    head = op.split(".")[0]
    if head == "LOP3" and _FLAG.match(parts[0]):
        flag = parts.pop(0)
        values: list[Any] = [machine.word(p) for p in parts[1:4]]
        known = not guard and all(v is not None for v in values)
        machine.flags[flag] = _lut(values[0], values[1], values[2], int(parts[4], 16)) != 0 if known else None
        return _is_zero(parts[0])
    if head in ("ISETP", "UISETP"):
        a: Any = machine.word(parts[2])
        b: Any = machine.word(parts[3])
        unsigned = ".U32" in op
        known = not guard and a is not None and b is not None and ".EX" not in op
        kind = op.split(".")[1]
        value = None
        if known:
            x, y = (a, b) if unsigned else (signed(a), signed(b))
            value = _compared(kind, x, y)
            more = machine.flag(parts[4])
            value = value & more if value is not None and more is not None and ".AND" in op else None
        machine.flags[parts[0]] = value
        return True
    if "SETP" in head or head == "PLOP3":
        machine.flags[parts[0]] = None
        return True
    return False


def _is_zero(name: str) -> bool:
    return name in ("RZ", "URZ")


def integer(machine: Machine, guard: str, op: str, parts: list[str]) -> None:
    """One integer instruction: its result, or unknown."""
    from verify.lower.sass import after

    carries = [p for p in parts[1:3] if re.match(r"^U?P(?:\d|T)$", p)]
    rest = [p for p in parts[1:] if p not in carries or p not in parts[1:3]]
    name = parts[0]
    if not _REGISTER.match(name):
        return
    try:
        value, wide = _value(machine, op, rest, carries)
    except (IndexError, ValueError):  # a form of the instruction that is not known here
        value, wide = None, False
    words = {"64": 2, "128": 4}.get(op.rsplit(".", 1)[-1], 2 if ".WIDE" in op else 1)
    if isinstance(value, list):
        results = value
    elif wide and value is not None:
        results = [value & MASK, value >> 32 & MASK]
    else:
        results = [None if value is None else value & MASK, *[None] * (words - 1)]
    for i, result in enumerate(results):
        target = after(name, i)
        if target.endswith("Z"):
            continue
        machine.ints[target] = None if guard else result
        machine.nodes[target] = machine.flow.node("other", tag=op)


def _value(machine: Machine, op: str, parts: list[str], carries: list[str]) -> tuple[Any, bool]:
    """(the result or its words, whether it fills a pair)."""
    head, marks = op.split(".")[0].removeprefix("U"), op.split(".")[1:]
    if head in ("LDC",):
        words = {"64": 2, "128": 4}.get(marks[-1] if marks else "", 1)
        return machine.constant(parts[0], words), False
    if head == "LDCU":
        words = {"64": 2, "128": 4}.get(marks[-1] if marks else "", 1)
        return machine.constant(parts[0], words), False
    if head in ("S2R", "S2UR", "2UR", "CS2R"):
        if head == "CS2R":
            return [machine.zero, machine.zero] if parts[0] == "SRZ" else None, False
        return machine.thread if parts[0] == "SR_TID.X" else machine.zero, False
    if head == "HFMA2" and parts[:2] == ["-RZ", "RZ"]:  # how a constant is moved: two halves
        halves = np.array([float(p) for p in parts[2:4]], np.float16).view(np.uint16)
        return machine.zero + (int(halves[0]) << 16 | int(halves[1])), False
    if head in ("R2UR", "MOV"):
        if "64" in marks:
            return machine.wide(parts[0]), True
        return machine.word(parts[0]), False
    if head == "LEA":
        return _lea(machine, marks, parts, carries)
    if head == "IMAD":
        return _imad(machine, marks, parts)
    if head in ("IADD", "IADD3") and "64" in marks:
        pairs = [machine.wide(p) for p in parts if not _FLAG.match(p)]
        return (None if any(p is None for p in pairs) else sum(pairs)), True
    values = [machine.word(p) for p in parts if not _FLAG.match(p)]
    if head == "SEL":
        flag = machine.flag(parts[2])
        if flag is None or values[0] is None or values[1] is None:
            return None, False
        return np.where(flag, values[0], values[1]), False
    if any(v is None for v in values):
        return None, False
    if "X" in marks:
        flags = [machine.flag(p) for p in parts if _FLAG.match(p)]
        written = [c for c in carries if c not in ("PT", "UPT")]
        known = head in ("IADD3", "IADD") and not written and all(f is not None for f in flags)
        return (sum(values) + sum(f.astype(np.int64) for f in flags) if known else None), False
    return _plain(machine, head, marks, values, carries), False


def _plain(machine: Machine, head: str, marks: list[str], values: list[Any], carries: list[str]) -> Any:
    if head in ("IADD3", "IADD", "VIADD"):
        total = sum(values)
        for i, carry in enumerate(carries):
            machine.flags[carry] = total > MASK + i * (MASK + 1)
        return total
    if head == "LOP3":
        return _lut(values[0], values[1], values[2], int(values[3][0]))
    if head == "IABS":
        return np.abs(signed(values[0]))
    if head == "SGXT":
        bits = int(values[1][0])
        low = values[0] & ((1 << bits) - 1)
        return low if "U32" in marks else np.where(low >> (bits - 1) & 1, low - (1 << bits), low)
    if head == "SHF" and "U64" in marks:
        both = (values[2] << 32) + values[0]
        return (both << int(values[1][0])) >> 32 if "L" in marks else None
    if head == "SHF":
        amount = int(values[1][0]) if (values[1] == values[1][0]).all() else values[1]
        if "L" in marks and "HI" not in marks:
            return values[0] << amount
        if "R" in marks and "HI" in marks and (values[0] == 0).all():
            return (signed(values[2]) if "S32" in marks else values[2]) >> amount
    return None


def _lea(machine: Machine, marks: list[str], parts: list[str], carries: list[str]) -> tuple[Any, bool]:
    """``LEA``: a shifted plus b; ``.HI.X``: its upper word, with the lower one's carry."""
    a, b = machine.word(parts[0]), machine.word(parts[1])
    if a is None or b is None:
        return None, False
    if "HI" not in marks:
        total = (a << int(parts[2], 16) & MASK) + b
        if carries and carries[0] not in ("PT", "UPT"):
            machine.flags[carries[0]] = total > MASK
        return total, False
    if "SX32" in marks:
        high, shift, carry = signed(a) >> 31, int(parts[2], 16), parts[3] if len(parts) > 3 else ""
    else:
        high, shift, carry = machine.word(parts[2]), int(parts[3], 16), parts[4] if len(parts) > 4 else ""
    flag = machine.flag(carry) if "X" in marks else machine.zero != 0
    if high is None or flag is None:
        return None, False
    both = ((high << 32) + a) >> (32 - shift)
    return (both & MASK) + b + flag, False


def _imad(machine: Machine, marks: list[str], parts: list[str]) -> tuple[Any, bool]:
    a, b = machine.word(parts[0]), machine.word(parts[1])
    if a is None or b is None:
        return None, "WIDE" in marks
    if "WIDE" in marks:
        c = machine.wide(parts[2])
        if "U32" not in marks:
            a, b = signed(a), signed(b)
        return (None, True) if c is None else (a * b + c, True)
    c = machine.word(parts[2])
    if c is None:
        return None, False
    if "HI" in marks:
        a, b = (a, b) if "U32" in marks else (signed(a), signed(b))
        return (a * b >> 32) + c, False
    flag = machine.flag(parts[3]) if "X" in marks else machine.zero != 0
    return None if flag is None else a * b + c + flag, False
