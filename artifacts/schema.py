"""JSON schema (draft 2020-12) of records."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from heterocc.artifacts.records import Limit, Record, field_types

_TYPES: Mapping[Any, str] = {int: "integer", float: "number", str: "string", bool: "boolean"}


def schema_of(record: type[Record]) -> dict[str, Any]:
    """The schema of a record, with those of the records in it under `$defs`."""
    known: dict[str, dict[str, Any]] = {}
    schema = _object(record, known)
    del known[record.__name__]
    return {"$defs": known, **schema}


def _object(record: type[Record], known: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """The schema of a record, which is entered into `known`."""
    schema: dict[str, Any] = {"title": record.__name__, "type": "object"}
    schema["description"] = inspect.cleandoc(record.__doc__ or "")
    known[record.__name__] = schema
    properties: dict[str, Any] = {}
    required = []
    for name, hint in field_types(record).items():
        found = _type(hint, None, known)
        if not any("$ref" in form for form in (found, *found.get("anyOf", ()))):  # those have titles of their own
            found["title"] = name.replace("_", " ").title()
        if name in record.__dict__:
            default = record.__dict__[name]
            found["default"] = default.model_dump(mode="json") if isinstance(default, Record) else _plain(default)
        else:
            required.append(name)
        properties[name] = found
    schema["properties"] = properties
    if required:
        schema["required"] = required
    return schema


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _type(hint: Any, limit: Limit | None, known: dict[str, dict[str, Any]]) -> dict[str, Any]:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _type(arguments[0], arguments[1], known)
    if origin is UnionType or origin is Union:
        return {"anyOf": [_type(a, None, known) for a in arguments]}
    if origin is Literal:
        kinds = {_TYPES[type(choice)] for choice in arguments}
        return {**({"const": arguments[0]} if len(arguments) == 1 else {"enum": list(arguments)}), "type": kinds.pop()}
    if origin is tuple and arguments[-1] is ...:
        return {"type": "array", "items": _type(arguments[0], None, known), **_limits(limit, "Items")}
    if origin is tuple:
        items = [_type(a, None, known) for a in arguments]
        return {"type": "array", "prefixItems": items, "minItems": len(items), "maxItems": len(items)}
    if origin is dict:
        return {"type": "object", "additionalProperties": _type(arguments[1], None, known)}
    if hint is NoneType:
        return {"type": "null"}
    if hint in _TYPES:
        return {"type": _TYPES[hint], **_limits(limit, "Length")}
    if hint.__name__ not in known:
        _object(hint, known)
    return {"$ref": f"#/$defs/{hint.__name__}"}


def _limits(limit: Limit | None, of: str) -> dict[str, Any]:
    if limit is None:
        return {}
    names: dict[str, float | str | None] = {
        f"min{of}": limit.min_length,
        f"max{of}": limit.max_length,
        "pattern": limit.pattern,
    }
    names |= {"minimum": limit.ge, "maximum": limit.le}
    return {name: value for name, value in names.items() if value is not None}
