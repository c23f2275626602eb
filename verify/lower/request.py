"""What to compile, from the text of a kernel's file and the options: nothing is executed here."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from specs.errors import InputError, Place, did_you_mean
from verify.lower.stages import contents

ARCHS = ("sm_80", "sm_86", "sm_87", "sm_89", "sm_90", "sm_100", "sm_103", "sm_120", "sm_121")
#: Bytes of a file of kernels, or of a table of their types.
MOST = 4 << 20
_TYPE = re.compile(r"^\*?(?:i1|[iu](?:8|16|32|64)|fp(?:8e4nv|8e5|16|32|64)|bf16)(?::16)?$")
Value = int | float | bool | str | None


@dataclass(frozen=True)
class Wanted:
    """One kernel: types of its run-time arguments, ``*bf16:16`` for a pointer divisible by 16, and its constants."""

    name: str
    signature: dict[str, str]
    constexprs: dict[str, Value]
    num_warps: int = 4
    num_stages: int = 3


@dataclass(frozen=True)
class _File:
    path: Path
    kernels: dict[str, list[str]]
    told: Mapping[str, Any]


def architectures(text: str) -> list[str]:
    """The architectures of ``sm_90,sm_100``.

    Raises:
        InputError: one is not known.
    """
    found = [part.strip() for part in text.split(",") if part.strip()]
    for name in found:
        if name not in ARCHS:
            raise InputError(
                f"'{name}' is no architecture that is known here",
                place="--arch",
                remedy=f"{did_you_mean(name, ARCHS)} (known: {', '.join(ARCHS)})",
            )
    if not found:
        raise InputError("no architecture", place="--arch", remedy="write --arch sm_90,sm_100")
    return list(dict.fromkeys(found))


def wanted(
    path: Path,
    *,
    kernel: str | None = None,
    signature: str | None = None,
    constexprs: Sequence[str] = (),
    how: Path | None = None,
    num_warps: int | None = None,
    num_stages: int | None = None,
) -> list[Wanted]:
    """The kernels to compile: by the options, by the table ``how``, or by the file's own ``LOWER``.

    Raises:
        InputError: the file is missing or no Python, has no kernel or several and none is named, or a kernel's types
            and constants are not given or do not fit its arguments.
    """
    file = _read(path)
    if kernel is not None and kernel not in file.kernels:
        raise InputError(
            f"has no kernel '{kernel}'", place=str(path), remedy=did_you_mean(kernel, file.kernels)
        )
    told = file.told if how is None else _table(how)
    if signature is not None or constexprs:
        name = kernel or _only(file)
        told = {name: _given(file, name, signature or "", constexprs)}
    names = [kernel] if kernel is not None else list(told) or [_only(file)]
    return [_one(file, name, told, num_warps, num_stages) for name in names]


def _read(path: Path) -> _File:
    try:
        text = contents(path, MOST).decode()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise InputError(
            f"cannot be read: {why}",
            place=str(path),
            remedy="give the path of a Python file with a Triton kernel",
        ) from None
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError) as error:
        at = (error.lineno or 0, error.offset or 0) if isinstance(error, SyntaxError) else (0, 0)
        what = error.msg if isinstance(error, SyntaxError) else str(error)
        raise InputError(
            f"is not valid Python: {what}", place=Place(str(path), *at), remedy="correct the file"
        ) from None
    kernels = {
        n.name: [a.arg for a in (*n.args.posonlyargs, *n.args.args)]
        for n in tree.body
        if isinstance(n, ast.FunctionDef) and any(_jit(d) for d in n.decorator_list)
    }
    if not kernels:
        raise InputError(
            "has no kernel: no function at its top level is decorated with triton.jit",
            place=str(path),
            remedy="give the file that defines the kernel",
        )
    return _File(path, kernels, _lower(tree, path))


def _jit(decorator: ast.expr) -> bool:
    call = decorator.func if isinstance(decorator, ast.Call) else decorator
    return (isinstance(call, ast.Attribute) and call.attr == "jit") or (
        isinstance(call, ast.Name) and call.id == "jit"
    )


def _lower(tree: ast.Module, path: Path) -> dict[str, Any]:
    for node in tree.body:
        if isinstance(node, ast.Assign) and any(
            isinstance(t, ast.Name) and t.id == "LOWER" for t in node.targets
        ):
            value = _literal(node.value)
            if isinstance(value, dict):
                return cast("dict[str, Any]", value)
            raise InputError(
                "LOWER is no dictionary of plain values",
                place=Place(str(path), node.lineno, node.col_offset + 1),
                remedy='write LOWER = {"kernel": {"signature": {"X": "*fp32:16"}, "constexprs": {"BLOCK": 64}}}',
            )
    return {}


def _literal(node: ast.expr) -> Any:
    """A dictionary of words, numbers and dictionaries as it is written; Ellipsis stands for anything else."""
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        number = _literal(node.operand)
        return -number if isinstance(number, int | float) else ...
    if isinstance(node, ast.Dict) and all(isinstance(k, ast.Constant) for k in node.keys):
        pairs = {
            _literal(k): _literal(v) for k, v in zip(node.keys, node.values, strict=True) if k is not None
        }
        return ... if ... in pairs.values() else pairs
    return ...


def _table(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(contents(path, MOST).decode())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as error:
        raise InputError(
            f"cannot be read as TOML: {error}", place=str(path), remedy="see docs/lowering.md for its tables"
        ) from None


def _only(file: _File) -> str:
    if len(file.kernels) > 1:
        raise InputError(
            f"has {len(file.kernels)} kernels: {', '.join(file.kernels)}",
            place=str(file.path),
            remedy="name one with --kernel, or say in LOWER how each is compiled",
        )
    return next(iter(file.kernels))


def _given(file: _File, name: str, signature: str, constexprs: Sequence[str]) -> dict[str, Any]:
    constants: dict[str, Value] = {}
    for pair in constexprs:
        key, sign, value = pair.partition("=")
        if not sign:
            raise InputError(
                f"'{pair}' is not NAME=VALUE", place="--constexpr", remedy="write --constexpr BLOCK=64"
            )
        constants[key.strip()] = _value(value.strip())
    free = [a for a in file.kernels[name] if a not in constants]
    types = [t.strip() for t in signature.split(",") if t.strip()]
    if len(types) != len(free):
        raise InputError(
            f"{len(types)} types for the {len(free)} arguments of {name}: {', '.join(free)}",
            place="--signature",
            remedy="give one type for each argument that is no --constexpr, in order",
        )
    return {"signature": dict(zip(free, types, strict=True)), "constexprs": constants}


def _value(text: str) -> Value:
    words: dict[str, Value] = {"true": True, "false": False, "none": None}
    if text.lower() in words:
        return words[text.lower()]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _one(
    file: _File, name: str, told: Mapping[str, Any], num_warps: int | None, num_stages: int | None
) -> Wanted:
    place = f"{file.path}: kernel {name}"
    if name not in file.kernels:
        raise InputError("there is no such kernel", place=place, remedy=did_you_mean(name, file.kernels))
    table: object = told.get(name)
    if not isinstance(table, dict):
        raise InputError(
            "the types of its arguments are not given",
            place=place,
            remedy="give --signature and --constexpr, or say them in LOWER in the file",
        )
    entry = cast("dict[str, Any]", table)
    parts: dict[str, dict[str, Any]] = {}
    for key in ("signature", "constexprs"):
        part: object = entry.get(key, {})
        if not isinstance(part, dict):
            raise InputError(f"{key} is no table", place=place, remedy="give names with values")
        parts[key] = cast("dict[str, Any]", part)
    signature, constants = parts["signature"], parts["constexprs"]
    missing = [a for a in file.kernels[name] if a not in signature and a not in constants]
    extra = [a for a in (*signature, *constants) if a not in file.kernels[name]]
    if missing or extra:
        what = (
            f"no type or constant for {', '.join(missing)}" if missing else f"no argument {', '.join(extra)}"
        )
        raise InputError(what, place=place, remedy=f"its arguments are {', '.join(file.kernels[name])}")
    for argument, kind in signature.items():
        if not isinstance(kind, str) or not _TYPE.match(kind):
            raise InputError(
                f"'{kind}' is no type for {argument}",
                place=place,
                remedy="types are i32, fp32, bf16, ..., with * for a pointer and :16 for divisible by 16: *bf16:16",
            )
    for argument, value in constants.items():
        if not isinstance(value, int | float | bool | str | None):
            raise InputError(
                f"constant {argument} is no number, word or truth value", place=place, remedy="give one"
            )
    warps, stages = num_warps or entry.get("num_warps", 4), num_stages or entry.get("num_stages", 3)
    if warps not in (1, 2, 4, 8, 16, 32):
        raise InputError(f"{warps} warps", place=place, remedy="give a power of two from 1 to 32")
    if not isinstance(stages, int) or not 1 <= stages <= 16:
        raise InputError(f"{stages} stages", place=place, remedy="give a number from 1 to 16")
    return Wanted(name, dict(signature), dict(constants), warps, stages)
