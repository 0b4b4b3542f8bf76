"""The JSON Schema of `holdfast.toml`, for editors. It is generated from the policies.

Invariant: nothing is described twice. Types, defaults and descriptions are those of the options in the source.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
import types
from collections.abc import Mapping
from itertools import combinations, pairwise
from typing import Any, Literal, Union, get_args, get_origin

import msgspec

from holdfast.config.settings import BASES, CIRCUITS, NONE, STARTS
from holdfast.policies import Circuit, Policy
from holdfast.policies.alerts import Alerts
from holdfast.policies.policy import MODES, PHASES
from holdfast.policies.profiles import PROFILES
from holdfast.policies.role import RoleSettings
from holdfast.wire.bridge_options import BridgeOptions

__all__ = ["json_schema"]

_PHASE = (
    "Instead of base and profile: 1 only classifies failures, 2 adds limits and retries, 3 supervision, 4 circuits."
)
_MODE = {
    "enum": list(MODES),
    "description": "What recoveries do: recover; observe (make the plain call and report what they would have done); off.",
}
_SCALARS = {int: "integer", float: "number", bool: "boolean", str: "string"}


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of `holdfast.toml` as a dict.

    `holdfast config schema` prints it. In code:

        import json

        from holdfast.config import json_schema

        print(json.dumps(json_schema(), indent=2))
    """
    tables: dict[str, Any] = {}
    policy = _table(Policy, tables)
    top = {
        "mode": {**_MODE, "default": "recover"},
        "enabled": {
            "type": "boolean",
            "default": True,
            "description": 'False: every recovery is a plain call, as with mode = "off".',
        },
        "log": {
            "type": "boolean",
            "default": True,
            "description": "False: retries, fallbacks, circuit changes and give-ups are not logged by default.",
        },
        "base": {"enum": list(BASES), "description": "The built-in policy that the default policy starts from."},
        "profile": {
            "enum": list(PROFILES),
            "description": "Instead of base: the profile whose numbers it starts from.",
        },
        "phase": {"enum": [phase.number for phase in PHASES], "description": _PHASE},
        # A table in TOML changes the options it names, so nothing in it is required.
        "policy": {**policy, "description": "The policy of every target that has none of its own."},
        "targets": {
            "type": "object",
            "additionalProperties": _table(Policy, tables, as_="Target", mode=_MODE),
            "description": "The policy of one target: claude, tool:bash, agent:builder. It starts from [policy].",
        },
        "roles": {
            "type": "object",
            "additionalProperties": _table(RoleSettings, tables),
            "description": "Which agents stand behind a role, by the role's name. holdfast.agents.Roles reads it.",
        },
        "bridge": {
            **_table(BridgeOptions, tables),
            "description": "Where a bridge listens, and its limits. holdfast serve reads it.",
        },
        "alerts": {**_table(Alerts, tables), "description": "When to alert a person, and where to."},
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": "holdfast.config/1",
        "title": "holdfast.toml",
        **_object(top),
        "not": {"anyOf": [{"required": list(pair)} for pair in combinations(STARTS, 2)]},
        "$defs": tables,
    }  # fmt: skip


def _table(kind: type[msgspec.Struct], tables: dict[str, Any], *, as_: str = "", **more: Any) -> dict[str, Any]:
    """Return a reference to the table of `kind`, in which every option may be left out; add it to `tables` first.

    `more` are options that a table of this name has besides, and no struct has.
    """
    name = as_ or kind.__name__
    if name not in tables:
        # Entered before it is described. Otherwise a kind that contains itself would be described for ever.
        tables[name] = {}
        descriptions = _descriptions(kind)
        options = {field.name: _option(field, descriptions, tables) for field in msgspec.structs.fields(kind)}
        tables[name] = {**_object({**more, **options}), "description": inspect.getdoc(kind)}
    return {"$ref": f"#/$defs/{name}"}


def _object(properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "additionalProperties": False, "properties": properties}


def _option(
    field: msgspec.structs.FieldInfo, descriptions: Mapping[str, str], tables: dict[str, Any]
) -> dict[str, Any]:
    option = _type(field.type, tables)
    if field.name in descriptions:
        option["description"] = descriptions[field.name]
    if isinstance(field.default, (int, float, str, type(None))):
        option["default"] = NONE if field.default is None else field.default
    return option


def _type(kind: Any, tables: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a type as it is written in TOML."""
    origin = get_origin(kind)
    if origin in (Union, types.UnionType):
        return {"anyOf": [_type(part, tables) for part in get_args(kind)]}
    if origin is Literal:
        return {"enum": list(get_args(kind))}
    if origin is tuple:
        return {"type": "array", "items": _type(get_args(kind)[0], tables)}
    if origin is Mapping:
        key, value = get_args(kind)
        return {"type": "object", "propertyNames": _type(key, tables), "additionalProperties": _type(value, tables)}
    if kind is type(None):
        return {"const": NONE}
    if kind is Circuit:
        return {"anyOf": [{"enum": list(CIRCUITS)}, _table(Circuit, tables)]}
    return {"type": _SCALARS[kind]} if kind in _SCALARS else _table(kind, tables)


def _descriptions(kind: type) -> dict[str, str]:
    """Return the docstring under each option of the class."""
    # Python keeps no docstrings of attributes, so they are read from the source.
    (tree,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    assert isinstance(tree, ast.ClassDef)
    found = {}
    for option, below in pairwise(tree.body):
        match option, below:
            case (
                ast.AnnAssign(target=ast.Name(id=name)),
                ast.Expr(value=ast.Constant(value=str(text))),
            ):
                found[name] = inspect.cleandoc(text)
    return found
