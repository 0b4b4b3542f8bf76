"""The JSON Schema of `holdfast.toml`, made from the policies themselves, for editors.

Invariant: nothing is described twice. Types, defaults and descriptions are the options' own.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
import types
from collections.abc import Mapping
from itertools import pairwise
from typing import Any, Literal, Union, get_args, get_origin

import msgspec

from holdfast.config.settings import BASES
from holdfast.config.tables import CIRCUITS, NONE
from holdfast.policies import Circuit, Policy
from holdfast.policies.alerts import Alerts
from holdfast.policies.profiles import PROFILES

__all__ = ["json_schema"]

_SCALARS = {int: "integer", float: "number", bool: "boolean", str: "string"}


def json_schema() -> dict[str, Any]:
    """Return the schema. `"none"` stands where an option may be left without a value."""
    tables: dict[str, Any] = {}
    policy = _table(Policy, tables)
    top = {
        "enabled": {"type": "boolean", "default": True, "description": "False: every recovery is a plain call."},
        "base": {"enum": list(BASES), "description": "Which of our policies the default one starts from."},
        "profile": {"enum": list(PROFILES), "description": "Which document's numbers the default policy starts from."},
        "phase": {"enum": [1, 2, 3, 4], "description": "Which of document 004's phases it starts from."},
        "policy": {**policy, "description": "What holds where nothing else is said."},
        "targets": {
            "type": "object",
            "additionalProperties": policy,
            "description": "What holds for one target: claude, tool:bash, agent:builder. Starts from the policy.",
        },
        "alerts": {**_table(Alerts, tables), "description": "When somebody is called, and where."},
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": "holdfast.config/1",
        "title": "holdfast.toml",
        **_object(top),
        "not": {"anyOf": [{"required": list(pair)} for pair in (("base", "profile"), ("base", "phase"), ("profile", "phase"))]},
        "$defs": tables,
    }  # fmt: skip


def _table(kind: type[msgspec.Struct], tables: dict[str, Any]) -> dict[str, Any]:
    """Describe a table laid over `kind`: everything may be left out."""
    name = kind.__name__
    if name not in tables:
        tables[name] = {}
        told = _descriptions(kind)
        options = {field.name: _option(field, told, tables) for field in msgspec.structs.fields(kind)}
        tables[name] = {**_object(options), "description": inspect.getdoc(kind)}
    return {"$ref": f"#/$defs/{name}"}


def _object(properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "additionalProperties": False, "properties": properties}


def _option(field: msgspec.structs.FieldInfo, told: Mapping[str, str], tables: dict[str, Any]) -> dict[str, Any]:
    option = _of(field.type, tables)
    if field.name in told:
        option["description"] = told[field.name]
    if isinstance(field.default, (int, float, str, type(None))):
        option["default"] = NONE if field.default is None else field.default
    return option


def _of(kind: Any, tables: dict[str, Any]) -> dict[str, Any]:
    """Describe a type as it is written in TOML."""
    origin = get_origin(kind)
    if origin in (Union, types.UnionType):
        return {"anyOf": [_of(part, tables) for part in get_args(kind)]}
    if origin is Literal:
        return {"enum": list(get_args(kind))}
    if origin is tuple:
        return {"type": "array", "items": _of(get_args(kind)[0], tables)}
    if origin is Mapping:
        key, value = get_args(kind)
        return {"type": "object", "propertyNames": _of(key, tables), "additionalProperties": _of(value, tables)}
    if kind is type(None):
        return {"const": NONE}
    if kind is Circuit:
        return {"anyOf": [{"enum": list(CIRCUITS)}, _table(Circuit, tables)]}
    return {"type": _SCALARS[kind]} if kind in _SCALARS else _table(kind, tables)


def _descriptions(kind: type) -> dict[str, str]:
    """Return what stands under each option in the source."""
    (tree,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    assert isinstance(tree, ast.ClassDef)
    told = {}
    for option, below in pairwise(tree.body):
        match option, below:
            case (
                ast.AnnAssign(target=ast.Name(id=name)),
                ast.Expr(value=ast.Constant(value=str(text))),
            ):
                told[name] = inspect.cleandoc(text)
    return told
