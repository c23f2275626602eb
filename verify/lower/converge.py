"""Where architectures part: each stage equal or different, and what that says of a common claim."""

from __future__ import annotations

import re
from collections import Counter

from specs.schema import Frozen
from verify.lower.canonical import STEPS, distance
from verify.lower.layout import definitions
from verify.lower.stages import STAGES, TITLES, Kernel

CLAIM = "identical through LLVM IR; layouts, PTX and machine code differ"
_FLOATING = {
    "ptx": re.compile(r"^\s*((?:add|sub|mul|fma|max|div|ex2)\.[\w.]*f32(?:x2)?)\b", re.M),
    "sass": re.compile(r"\*/\s+(?:@!?U?P\w+\s+)?(FADD2?|FMUL2?|FFMA2?|FMNMX3?|MUFU\.\w+|\w*MMA\.[\w.]+)\b"),
}


class StageComparison(Frozen):
    """One stage over all architectures.

    ``groups`` hold what is equal; where there is one, ``aside`` says what had to be put aside: an index of `STEPS`.
    ``detail`` names counts that differ.
    """

    stage: str
    groups: tuple[tuple[str, ...], ...]
    aside: int
    detail: str = ""

    @property
    def equal(self) -> bool:
        """Whether all architectures have one and the same."""
        return len(self.groups) == 1

    def verdict(self) -> str:
        """For people."""
        if not self.equal:
            parts = " | ".join(" = ".join(g) for g in self.groups)
            return f"different: {parts}"
        return (
            "equal, byte for byte" if self.aside == 0 else f"equal but for {_and(STEPS[1 : self.aside + 1])}"
        )


class Convergence(Frozen):
    """All stages of one kernel, the last common one, the first from which on none is common, and the claim."""

    kernel: str
    stages: tuple[StageComparison, ...]
    last_common: str | None
    parted: str | None
    layouts_differ: bool
    claim: str

    @property
    def holds(self) -> bool:
        """Whether the claim holds for this kernel."""
        return self.claim == "holds"


def converge(kernel: Kernel) -> Convergence:
    """Compare every stage of a kernel over its architectures."""
    found = tuple(
        _stage(s, {a: getattr(t, s) for a, t in kernel.stages.items()})
        for s in STAGES
        if s != "sass" or all(t.sass for t in kernel.stages.values())
    )
    last, parted = None, None
    for one in found:
        if not one.equal:
            break
        last = one.stage
    for one in reversed(found):
        if one.equal:
            break
        parted = one.stage
    layouts = {tuple(sorted(_layouts(t.ttgir))) for t in kernel.stages.values()}
    return Convergence(
        kernel=kernel.name,
        stages=found,
        last_common=last,
        parted=parted,
        layouts_differ=len(layouts) > 1,
        claim=_claim(found, len(layouts) > 1) if len(kernel.stages) > 1 else "needs two architectures",
    )


def _layouts(ttgir: str) -> list[str]:
    return list(definitions(ttgir).values())


def _stage(stage: str, texts: dict[str, str]) -> StageComparison:
    groups: list[list[str]] = []
    aside = 0
    for arch, text in texts.items():
        for group in groups:
            apart = distance(stage, texts[group[0]], text)
            if apart is not None:
                group.append(arch)
                aside = max(aside, apart)
                break
        else:
            groups.append([arch])
    detail = "" if len(groups) == 1 else _detail(stage, {g[0]: texts[g[0]] for g in groups})
    return StageComparison(stage=stage, groups=tuple(tuple(g) for g in groups), aside=aside, detail=detail)


def operations(stage: str, text: str) -> Counter[str]:
    """Floating-point operations of a stage, counted."""
    if stage == "llir":
        out: Counter[str] = Counter()
        for line in text.splitlines():
            m = re.search(r"= (?:\w+ )*?(fadd|fsub|fmul|fdiv)\b|@(llvm\.(?:fma|maxnum|minnum))", line)
            if m is not None and "declare" not in line:
                out[(m[1] or m[2]) + (" <2 x float>" if "<2 x float>" in line else "")] += 1
        return out
    pattern = _FLOATING.get(stage)
    return Counter(pattern.findall(text)) if pattern is not None else Counter()


def _detail(stage: str, texts: dict[str, str]) -> str:
    counted = {arch: operations(stage, text) for arch, text in texts.items()}
    names = sorted({n for c in counted.values() for n in c})
    apart = [n for n in names if len({c[n] for c in counted.values()}) > 1]
    if not apart:
        return "the same floating-point operations, by count" if names else ""
    return "; ".join(f"{n} {' / '.join(str(c[n]) for c in counted.values())}" for n in apart)


def _claim(found: tuple[StageComparison, ...], layouts: bool) -> str:
    by = {c.stage: c.equal for c in found}
    wrong = [f"{TITLES[s]} already differs" for s in ("ttir", "llir") if not by[s]]
    if not layouts:
        wrong.append("layouts are the same")
    wrong += [f"{TITLES[s]} is the same" for s in ("ptx", "sass") if by.get(s, False)]
    if wrong:
        return f"does not hold: {', '.join(wrong)}"
    return "holds" if "sass" in by else "holds as far as PTX: no disassembler"


def _and(words: tuple[str, ...]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
