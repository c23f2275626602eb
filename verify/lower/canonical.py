"""Stages made comparable: without locations, targets and names, and without order where the operations permit it."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from hashlib import blake2b

from verify.lower.layout import definitions

_LOC = re.compile(r" loc\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)")
_NAMES = {
    "ttir": re.compile(r"%[\w]+"),
    "ttgir": re.compile(r"%[\w]+"),
    "llir": re.compile(r"%[\w.$-]+|%\"[^\"]*\""),
    "ptx": re.compile(r"%[a-z]+\d+\b|\$L_\w+"),
    "sass": re.compile(r"\.L_\w+"),
}
_DEFINES = {
    "ttir": re.compile(r"^\s*(?P<defs>%[\w:, #%]+?) = "),
    "ttgir": re.compile(r"^\s*(?P<defs>%[\w:, #%]+?) = "),
    "llir": re.compile(r"^\s*(?P<defs>%[\w.$-]+|%\"[^\"]*\") = |^(?P<label>%?[\w.$-]+|\"[^\"]*\"):"),
    "ptx": re.compile(
        r"^\s*(?:@!?%p\d+\s+)?(?!st|bra|bar|cp|red|atom)[a-z][\w.:]*\s+(?P<defs>\{[^}]*\}|%\w+)|^(?P<label>\$L_\w+|%n\d+):"
    ),
    "sass": re.compile(r"^(?P<label>\.L_\w+):"),
}
#: Operations whose order counts.
_EFFECT = {
    "ttir": re.compile(r"tt\.(store|load|atomic|return)|scf\.|cf\.|reduce|\^bb|gpu\.barrier"),
    "ttgir": re.compile(
        r"tt\.(store|load|atomic|return)|scf\.|cf\.|reduce|\^bb|barrier|async|ttng\.|local_|memdesc|wait"
    ),
    "llir": re.compile(r"\b(store|load|call|br|ret|fence|atomicrmw|switch|define)\b|:$"),
    "ptx": re.compile(
        r"^\s*(@!?%p\d+\s+)?(ld\.global|ld\.shared|st|bar|cp|bra|ret|shfl|wgmma|tcgen05|mbarrier|red|atom)|^\$L|^%n\d+:"
    ),
    "sass": re.compile(r"."),
}
ROUNDS = 64

#: What two texts have to be freed of until they are equal, least first.
STEPS = ("bytes", "locations and target", "names", "order")


def cleaned(stage: str, text: str) -> list[str]:
    """Lines without locations and without what only names the target."""
    if stage in ("ttir", "ttgir"):
        known = definitions(text)
        lines = [_LOC.sub("", line).rstrip() for line in text.splitlines() if not line.startswith("#")]
        joined = "\n".join(line for line in lines if line)
        joined = re.sub(r', ttg\.target = "[^"]*"|ttg\.target = "[^"]*",? ?', "", joined)
        for _ in range(4):  # a layout may be written in terms of another one
            joined = re.sub(r"#\w+\b(?!\.)", lambda m: known.get(m[0], m[0]), joined)
        return joined.splitlines()
    if stage == "llir":
        out: list[str] = []
        for line in text.splitlines():
            line = re.sub(r",? !(?:dbg|srcloc|tbaa) !\d+", "", line).rstrip()
            if line and not re.match(r"^(!|;|source_filename|\s*#dbg_|target )", line):
                out.append(re.sub(r"\s*;.*$", "", line))
        return out
    if stage == "ptx":
        out = []
        for line in text.split(".section\t.debug")[0].splitlines():
            line = re.sub(r"\s*//.*$", "", line).rstrip()
            if line and not re.match(
                r"^\s*\.(version|target|loc|file|b8|b32|b64|section)\b|^\$L__tmp|^\$L__func", line
            ):
                out.append(line)
        return out
    out = []
    for line in text.splitlines():
        code = re.match(r"^\s+/\*[0-9a-f]{4,}\*/\s+(.*?);?\s*(?:/\*.*)?$", line)
        if code is not None and not code[1].startswith("NOP"):
            out.append(code[1].strip())
        elif re.match(r"^\.L_\w+:", line):
            out.append(line)
    return out


def renamed(stage: str, lines: list[str]) -> list[str]:
    """The same lines, names numbered by their first appearance."""
    names: dict[str, str] = {}
    pattern = _NAMES[stage]
    labels = _DEFINES[stage]

    def number(found: re.Match[str]) -> str:
        return names.setdefault(found[0], f"%n{len(names)}")

    out: list[str] = []
    for line in lines:
        at = labels.match(line)
        if stage == "llir" and at is not None and at["label"]:
            line = f"%{line}"
        out.append(pattern.sub(number, line))
    return out


def unordered(stage: str, lines: list[str]) -> Counter[str]:
    """Operations with what they depend on, counted: equal for programs that differ in names and in order alone.

    Each line gets a hash of its own text and of the hashes of the lines that define its names, again and again. Lines
    with effects also depend on the effect before them, and all on the region they stand in.
    """
    pattern, define = _NAMES[stage], _DEFINES[stage]
    defined: dict[str, list[tuple[int, int]]] = defaultdict(list)
    texts: list[str] = []
    for i, line in enumerate(lines):
        m = define.match(line)
        found = list[str]()
        if m is not None:
            groups = m.groupdict()
            found = pattern.findall(groups.get("defs") or "")
            if groups.get("label"):
                found.append(groups["label"] if stage != "llir" else f"%{groups['label'].lstrip('%')}")
        if stage in ("ttir", "ttgir"):
            found += re.findall(r"(%\w+): ", line) if re.search(r"\^bb|tt\.func", line) else []
            found += re.findall(r"(%\w+) = %", line.partition("iter_args")[2])
        for j, name in enumerate(found):
            defined[name].append((i, j))
        texts.append(line)
    hashes = [_hash(pattern.sub(lambda m: "%" if m[0] in defined else m[0], t)) for t in texts]
    links: list[list[tuple[int, int]]] = []
    previous, openers = -1, list[int]()
    for i, line in enumerate(texts):
        uses = [d for name in pattern.findall(line) if name in defined for d in defined[name] if d[0] != i]
        if stage in ("ttir", "ttgir"):
            if line.lstrip().startswith("}") and openers:
                openers.pop()
            if openers:
                uses.append((openers[-1], -2))
            if line.endswith("{"):
                openers.append(i)
        if _EFFECT[stage].search(line):
            if previous >= 0:
                uses.append((previous, -1))
            previous = i
        links.append(uses)
    kinds = len(set(hashes))
    for _ in range(ROUNDS):
        hashes = [
            _hash(h, *(f"{hashes[i]}.{j}" for i, j in uses)) for h, uses in zip(hashes, links, strict=True)
        ]
        if len(set(hashes)) == kinds:
            break
        kinds = len(set(hashes))
    return Counter(hashes)


def _hash(*parts: str) -> str:
    return blake2b("\0".join(parts).encode(), digest_size=12).hexdigest()


def distance(stage: str, a: str, b: str) -> int | None:
    """How much has to be put aside until ``a`` and ``b`` are equal, an index of `STEPS`; None where they differ."""
    if a == b:
        return 0
    first, second = cleaned(stage, a), cleaned(stage, b)
    if first == second:
        return 1
    first, second = renamed(stage, first), renamed(stage, second)
    if first == second:
        return 2
    if stage == "sass" or len(first) != len(second):
        return None
    return 3 if unordered(stage, first) == unordered(stage, second) else None
