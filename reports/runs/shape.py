"""Whether JSON has the shape of a schema, told at the first place where it has not.

A validator that gathers every error of a file from a stranger may need many times the memory of the file; this stops. It
knows what schemas of pydantic models use: references, alternatives, types, constants, properties, items, and bounds.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Schema = Mapping[str, Any]
_TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "boolean": (bool,),
    "null": (type(None),),
    "integer": (int,),
    "number": (int, float),
}
MOST = 6  # steps of a path that are told


def misfit(value: Any, schema: Schema) -> str | None:
    """Where and how ``value`` does not fit ``schema``; None if it fits."""
    return _misfit(value, schema, schema.get("$defs", {}), ())


def _misfit(value: Any, schema: Schema, defs: Schema, path: tuple[str, ...]) -> str | None:
    if "$ref" in schema:
        return _misfit(value, defs[schema["$ref"].rsplit("/", 1)[1]], defs, path)
    if "anyOf" in schema:
        found = [_misfit(value, one, defs, path) for one in schema["anyOf"]]
        # Of several misfits the one that is deepest tells most.
        return None if None in found else max((x for x in found if x), key=lambda x: x.count("."))
    wanted = schema.get("type")
    if wanted is not None and (
        not isinstance(value, _TYPES[wanted]) or (wanted in ("integer", "number") and isinstance(value, bool))
    ):
        return _told(path, f"should be of type {wanted}")
    if "const" in schema and value != schema["const"]:
        return _told(path, f"should be '{schema['const']}'")
    if "enum" in schema and value not in schema["enum"]:
        return _told(path, f"should be one of {', '.join(map(str, schema['enum']))}")
    if isinstance(value, dict):
        return _object(value, schema, defs, path)
    if isinstance(value, list):
        return _array(value, schema, defs, path)
    if isinstance(value, int | float) and not (
        schema.get("minimum", value) <= value <= schema.get("maximum", value)
    ):
        return _told(path, f"should be {_bounds(schema)}")
    return None


def _object(value: dict[str, Any], schema: Schema, defs: Schema, path: tuple[str, ...]) -> str | None:
    known: Schema = schema.get("properties", {})
    for name in schema.get("required", ()):
        if name not in value:
            return _told((*path, name), "is missing")
    more = schema.get("additionalProperties", True)
    for name, x in value.items():
        if name in known:
            found = _misfit(x, known[name], defs, (*path, name))
        elif isinstance(more, Mapping):
            found = _misfit(x, more, defs, (*path, name))  # pyright: ignore[reportUnknownArgumentType]
        else:
            found = None if more else _told((*path, name), "is not known")
        if found is not None:
            return found
    return None


def _array(value: list[Any], schema: Schema, defs: Schema, path: tuple[str, ...]) -> str | None:
    if not schema.get("minItems", 0) <= len(value) <= schema.get("maxItems", len(value)):
        return _told(path, f"has {len(value)} items")
    first: list[Schema] = schema.get("prefixItems", [])
    items = schema.get("items")
    for i, x in enumerate(value):
        one = first[i] if i < len(first) else items
        if isinstance(one, Mapping):
            found = _misfit(x, one, defs, (*path, str(i)))  # pyright: ignore[reportUnknownArgumentType]
            if found is not None:
                return found
    return None


def _bounds(schema: Schema) -> str:
    low, high = schema.get("minimum"), schema.get("maximum")
    return " and ".join(
        x for x in ("" if low is None else f"at least {low}", "" if high is None else f"at most {high}") if x
    )


def _told(path: tuple[str, ...], what: str) -> str:
    where = ".".join(part[:40] for part in path[:MOST]) + ("..." if len(path) > MOST else "")
    return f"{where or 'the whole'} {what}"
