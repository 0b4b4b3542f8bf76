"""The shape of a tool's arguments and results: as JSON Schema for a model, and as a check of what the model sends.

Invariant: arguments that do not fit are a fault that names the field, what was expected and what came. The tool is not called.
"""

from __future__ import annotations

import inspect
import re
import textwrap
import typing
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from holdfast import options
from holdfast.faults import Fault, InvalidError, Partial
from holdfast.runtime.suppress import suppressed

__all__ = [
    "Result",
    "ToolArguments",
    "arguments_of",
    "check_document",
    "converted",
    "description_of",
    "flat_schema",
    "result_of",
    "schema_mistake",
    "schema_of",
    "violations_of",
]

_TYPES = frozenset({"object", "array", "string", "number", "integer", "boolean", "null"})
_ANY_OBJECT: dict[str, Any] = {"type": "object", "properties": {}}


class ToolArguments:
    """The arguments of one tool: their schema, and how to read them."""

    def __init__(self, tool: str, schema: dict[str, Any], kind: Any = None, *, whole: bool = False) -> None:
        self.tool = tool
        self.schema = schema
        self._kind = kind
        """The type that they are converted to; None: only the schema is known."""
        self._whole = whole
        """The converted value is the one argument of the tool. Otherwise its fields are the arguments."""

    def read(self, given: Any) -> dict[str, Any]:
        """Return the arguments for the call. Raises `InvalidError` (TOOL_INPUT_INVALID) if they do not fit."""
        document = self._document(given)
        try:
            # What cannot be written as JSON is not what a model sent, or a text that is none. Other values are converted below.
            msgspec.json.encode(document, enc_hook=str)
        except (UnicodeEncodeError, RecursionError) as error:
            raise self._invalid("", "values that can be written as JSON", "others", _reason_of(error)) from None
        except Exception:  # noqa: BLE001, S110 - a value from Python, which only the conversion judges
            pass
        try:
            if hasattr(self._kind, "model_validate"):
                return {"arguments": self._kind.model_validate(document)}
            if self._kind is None:
                check_document(self.schema, document)
                return document
            value = self._converted(document)
        except msgspec.ValidationError as error:
            raise self._misfit(error, document) from None
        except (ValueError, RecursionError) as error:
            raise self._invalid("", "arguments that fit the schema", "others", _reason_of(error)) from None
        if self._whole:
            return {"arguments": value}
        return {name: getattr(value, name) for name in value.__struct_fields__ if getattr(value, name) is not _UNSET}

    def _converted(self, document: dict[str, Any]) -> Any:
        try:
            return msgspec.convert(document, self._kind)
        except msgspec.ValidationError as error:
            if "`, got `float`" not in str(error):
                raise
            # JSON has one kind of number: 5.0 is an integer, and some providers write every number like that.
            return msgspec.convert(_with_integers(document), self._kind)

    def _document(self, given: Any) -> dict[str, Any]:
        if isinstance(given, (str, bytes)):
            # A model that calls a tool without arguments often sends an empty text.
            try:
                given = msgspec.json.decode(given) if given.strip() else {}
            except (msgspec.DecodeError, RecursionError) as error:
                raise self._invalid("", "a JSON object", "a text that is none", str(error)) from None
        if given is None:
            given = {}
        if not isinstance(given, Mapping) or not all(isinstance(name, str) for name in given):
            raise self._invalid("", "an object", type(given).__name__)
        return dict(given)

    def _misfit(self, error: msgspec.ValidationError, document: dict[str, Any]) -> InvalidError:
        known = self.schema.get("properties", {})
        strange = [name for name in document if known and name not in known]
        if strange and "unknown field" in str(error):
            reason = f"unknown argument `{strange[0]}`; {options.suggestion(strange[0], tuple(known))}"
            return self._invalid(strange[0], options.listed_names(tuple(known)), strange[0], reason)
        context = InvalidError.from_msgspec(error).fault.context
        path, expected = context["path"].removeprefix("$").removeprefix("."), context["expected"]
        if str(error).startswith("Invalid enum value") and (values := _values_at(self.schema, path)):
            expected = f"one of {', '.join(repr(value) for value in values)}"
        return self._invalid(path, expected, context["received"])

    def _invalid(self, field: str, expected: str, received: str, reason: str = "") -> InvalidError:
        place = f"argument `{field}`" if field else "the arguments"
        reason = reason or f"{place}: expected {expected}, got {received}"
        context = {"tool": self.tool, "field": field, "expected": expected, "received": received, "reason": reason}
        return InvalidError(Fault.of("TOOL_INPUT_INVALID", f"{self.tool}: {reason}", context=context))


class Result:
    """The result of one tool: its schema, and the check of a declared type."""

    def __init__(self, tool: str, schema: dict[str, Any] | None, kind: Any = None) -> None:
        self.tool = tool
        self.schema = schema
        self._kind = kind
        """The type that results must fit; None: they are not checked."""

    def check(self, value: Any) -> Any:
        """Return the value. Raises `InvalidError` (TOOL_OUTPUT_MALFORMED) if it does not fit."""
        if self._kind is None:
            return value
        # The part of a result that is there has the declared shape, too.
        shown = value.payload if isinstance(value, Partial) else value
        try:
            if isinstance(self._kind, dict):
                check_document(self._kind, shown)
            else:
                msgspec.convert(shown, self._kind, from_attributes=True)
        except Exception as error:  # noqa: BLE001 - the code of the value's own class may raise anything
            raise self.misfit(_reason_of(error)) from None
        return value

    def misfit(self, reason: str) -> InvalidError:
        """Return the error for a result that does not fit."""
        context = {"tool": self.tool, "reason": reason}
        # The tool has done its work. Only its answer is unreadable.
        return InvalidError(Fault.of("TOOL_OUTPUT_MALFORMED", context=context, maybe_executed=True))


def _with_integers(value: Any) -> Any:
    """Return JSON values in which a whole number is an int."""
    match value:
        case float() if value.is_integer():
            return int(value)
        case dict():
            return {name: _with_integers(each) for name, each in value.items()}
        case list():
            return [_with_integers(each) for each in value]
    return value


def arguments_of(tool: str, fn: Any, declared: Any) -> ToolArguments:
    """Return the arguments of a function, or those that its tool declares. A signature that no schema shows raises `InvalidError`."""
    if isinstance(declared, Mapping):
        return ToolArguments(tool, dict(declared))
    if declared is not None:
        schema = declared.model_json_schema() if hasattr(declared, "model_json_schema") else _schema(tool, declared)
        return ToolArguments(tool, schema, declared, whole=True)
    return _from_signature(tool, fn)


def result_of(tool: str, fn: Any, declared: Any) -> Result:
    """Return the result of a function. Only a declared one is checked: an annotation is often wrong, and nobody noticed."""
    if isinstance(declared, Mapping):
        return Result(tool, dict(declared), dict(declared))
    if declared is not None:
        return Result(tool, _schema(tool, declared), declared)
    try:
        hint = _hints(fn).get("return")
        return Result(tool, None if hint in (None, Any, type(None)) else _flat(msgspec.json.schema(hint)))
    except Exception:  # noqa: BLE001 - an annotation that cannot be read, or shown, declares nothing
        return Result(tool, None)


def description_of(fn: Any) -> str:
    """Return the first part of a function's docstring."""
    return (inspect.getdoc(fn) or "").partition("\n\n")[0].replace("\n", " ").strip()


_SECTION = re.compile(r"^(?:Args|Arguments|Parameters):[ ]*\n(?P<body>(?:[ \t]+\S.*(?:\n|$)|[ \t]*\n)+)", re.MULTILINE)
_ENTRY = re.compile(r"^(?P<name>\w+)\s*(?:\([^)]*\))?:[ ]*(?P<text>.*(?:\n[ \t]+\S.*)*)", re.MULTILINE)
_FIELD = re.compile(r"^:param (?:[^:\n]*\s)?(?P<name>\w+):[ ]*(?P<text>.*(?:\n[ \t]+\S.*)*)", re.MULTILINE)


def parameters_described(fn: Any) -> dict[str, str]:
    """Return what a docstring says about each parameter, below `Args:` or after `:param name:`."""
    text = inspect.getdoc(fn) or ""
    found = list(_FIELD.finditer(text))
    if section := _SECTION.search(text):
        found += _ENTRY.finditer(textwrap.dedent(section["body"]))
    return {each["name"]: " ".join(each["text"].split()) for each in found}


def _values_at(schema: dict[str, Any], path: str) -> list[Any]:
    """Return the closed list of values at a place such as `jobs[...].level`; empty if there is none."""
    found: Any = schema
    for part in re.findall(r"\[[^]]*\]|[^.\[]+", path):
        found = _resolved(schema, found)
        inner = found.get("items") or found.get("additionalProperties")
        found = inner if part.startswith("[") else found.get("properties", {}).get(part)
        if not isinstance(found, dict):
            return []
    return list(_resolved(schema, found).get("enum", ()))


def _resolved(schema: dict[str, Any], part: dict[str, Any]) -> dict[str, Any]:
    name = part.get("$ref", "").rpartition("/")[2]
    return dict(schema.get("$defs", {}).get(name, part))


class _Unset:
    """The default of an argument whose real default the function itself has."""


_UNSET = _Unset()


def _from_signature(tool: str, fn: Any) -> ToolArguments:
    hints = _hints(fn)
    fields: list[Any] = []
    for parameter in inspect.signature(fn).parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
            raise InvalidError.saying(
                f"tool {tool}", "named parameters only, or `input=` with a schema", f"the parameter {parameter}"
            )
        hint = hints.get(parameter.name, Any)
        has_default = parameter.default is not parameter.empty
        fields.append((parameter.name, hint, parameter.default) if has_default else (parameter.name, hint))
    # Required arguments stand first in a struct; by name the order does not matter.
    struct = msgspec.defstruct(tool, _with_safe_defaults(fields), kw_only=True, forbid_unknown_fields=True)
    schema = _schema(tool, struct)
    for name, text in parameters_described(fn).items():
        if text and name in schema["properties"]:
            schema["properties"][name].setdefault("description", text)
    return ToolArguments(tool, schema, struct)


def _with_safe_defaults(fields: list[Any]) -> list[Any]:
    # msgspec shares or copies defaults. A default that it does not take stays the function's own.
    plain = (type(None), bool, int, float, str, bytes, tuple, frozenset)
    return [
        (*field[:2], field[2] if isinstance(field[2], plain) else msgspec.field(default_factory=lambda: _UNSET))
        if len(field) == 3
        else field
        for field in fields
    ]


def _hints(fn: Any) -> dict[str, Any]:
    bare = inspect.unwrap(fn)
    target = bare if inspect.isroutine(bare) else type(bare).__call__
    try:
        return typing.get_type_hints(target, include_extras=True)
    except NameError:
        # A name that is imported for type checkers only. The tool works, and the model sees no type.
        return {}


def _schema(tool: str, kind: Any) -> dict[str, Any]:
    try:
        return _flat(msgspec.json.schema(kind))
    except TypeError as error:
        raise InvalidError.saying(
            f"tool {tool}", "types that JSON has, or `input=` with a schema", str(error)
        ) from None


def schema_of(kind: Any) -> dict[str, Any]:
    """Return the JSON Schema of a type: msgspec, dataclass, TypedDict, pydantic. Raises TypeError for a type that JSON does not have."""
    if hasattr(kind, "model_json_schema"):
        return dict(kind.model_json_schema())
    return flat_schema(kind)


def converted(document: Any, kind: Any) -> Any:
    """Return a document as a value of a type. Raises `ValueError` if it does not fit; the text says where."""
    return kind.model_validate(document) if hasattr(kind, "model_validate") else msgspec.convert(document, kind)


def flat_schema(kind: Any) -> dict[str, Any]:
    """Return the JSON Schema of a type. Raises TypeError for a type that JSON does not have."""
    return _flat(msgspec.json.schema(kind))


def _flat(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a schema whose top is an object and not a reference, as the SDKs take it."""
    definitions = dict(schema.get("$defs", {}))
    top = schema
    if set(schema) <= {"$ref", "$defs"} and "$ref" in schema:
        top = definitions.pop(schema["$ref"].rpartition("/")[2])
    flat = {name: value for name, value in top.items() if name not in {"title", "$defs"}}
    return {**flat, "$defs": definitions} if definitions else flat


def schema_mistake(schema: Any) -> str | None:
    """Return what is wrong with a JSON Schema itself, with its place; None if it can be used."""
    if not isinstance(schema, Mapping):
        return f"expected an object, got {type(schema).__name__}"
    try:
        from jsonschema import Draft202012Validator  # type: ignore[import-untyped, unused-ignore] # noqa: PLC0415
        from jsonschema.exceptions import SchemaError  # type: ignore[import-untyped, unused-ignore] # noqa: PLC0415
    except ImportError:  # an extra that may be missing: a schema is then checked in part
        pass
    else:
        try:
            Draft202012Validator.check_schema(schema)
        except SchemaError as error:
            return f"{error.json_path}: {error.message}"
    return _part_mistake(schema, schema, "$")


def _part_mistake(schema: Mapping[str, Any], part: Mapping[str, Any], path: str) -> str | None:
    """Return a mistake that a schema of schemas does not find: an unknown type, a reference to nothing, a broken pattern."""
    words = part.get("type")
    for word in [words] if isinstance(words, str) else words if isinstance(words, list) else ():
        if word not in _TYPES:
            return f"{path}.type: {word!r} is not a type of JSON Schema"
    reference, pattern = part.get("$ref"), part.get("pattern")
    if isinstance(reference, str) and reference.startswith("#") and not _is_there(schema, reference):
        return f"{path}.$ref: {reference} is not in the schema"
    if isinstance(pattern, str):
        try:
            re.compile(pattern)
        except re.error as error:
            return f"{path}.pattern: {error}"
    found = (_part_mistake(schema, inner, where) for where, inner in _inner(part, path))
    return next(filter(None, found), None)


def _inner(part: Mapping[str, Any], path: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Return the schemas inside of a schema, with their places."""
    for word in ("properties", "$defs", "patternProperties"):
        named = part.get(word)
        if isinstance(named, Mapping):
            yield from ((f"{path}.{word}.{name}", each) for name, each in named.items() if isinstance(each, Mapping))
    for word in ("allOf", "anyOf", "oneOf", "prefixItems"):
        listed = part.get(word)
        if isinstance(listed, list):
            yield from ((f"{path}.{word}[{at}]", each) for at, each in enumerate(listed) if isinstance(each, Mapping))
    for word in ("items", "additionalProperties", "not", "contains"):
        if isinstance(part.get(word), Mapping):
            yield f"{path}.{word}", part[word]


def _is_there(schema: Mapping[str, Any], reference: str) -> bool:
    here: Any = schema
    for word in reference.removeprefix("#").split("/")[1:]:
        if not isinstance(here, Mapping) or word not in here:
            return False
        here = here[word]
    return True


def check_document(schema: dict[str, Any], document: Any) -> None:
    """Check a document against a JSON Schema: with jsonschema if it is installed, else the required fields."""
    violations = violations_of(schema, document)
    if violations:
        raise ValueError(violations[0])


def violations_of(schema: dict[str, Any], document: Any) -> list[str]:
    """Return what is wrong with a document, the most telling violation first."""
    try:
        from jsonschema import Draft202012Validator  # type: ignore[import-untyped, unused-ignore] # noqa: PLC0415
        from jsonschema.exceptions import best_match  # type: ignore[import-untyped, unused-ignore] # noqa: PLC0415
        from referencing import Registry  # noqa: PLC0415
    except ImportError:
        return _missing(schema, document)
    try:
        # With a registry of its own it fetches no schema from an address that a reference names.
        errors = list(Draft202012Validator(schema, registry=Registry()).iter_errors(document))
    except RecursionError:
        raise
    except Exception as error:  # noqa: BLE001 - the schema is wrong, not the document: a reference to nothing, a broken pattern
        suppressed(error, "a tool's schema cannot be used, so only its required fields are checked")
        return _missing(schema, document)
    if not errors:
        return []
    found = [_violation(best_match(errors)), *map(_violation, errors)]
    return list(dict.fromkeys(found))


def _missing(schema: dict[str, Any], document: Any) -> list[str]:
    required = schema.get("required") if isinstance(document, Mapping) else None
    names = required if isinstance(required, (list, tuple)) else ()
    return [f"argument `{name}`: expected a value, got nothing" for name in names if name not in document]


def _violation(error: Any) -> str:
    path = ".".join(str(part) for part in error.absolute_path)
    return f"argument `{path}`: {error.message}" if path else str(error.message)


def _reason_of(error: Exception) -> str:
    """Return one line about what did not fit."""
    if isinstance(error, RecursionError):
        return "it is nested too deep"
    if hasattr(error, "errors"):  # pydantic
        found: Any = error
        first = found.errors()[0]
        return f"argument `{'.'.join(str(part) for part in first['loc'])}`: {first['msg']}"
    return str(error)
