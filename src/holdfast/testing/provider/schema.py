"""Values that fit a JSON schema: the arguments of a tool call, and structured outputs.

Every value is the simplest one that fits: the first choice, the least number, all properties. `pattern` and `not` are not read.
"""

from __future__ import annotations

from typing import Any

# The depth is limited, because a schema may refer to itself.
_DEPTH = 8
_TEXTS = {
    "date-time": "2025-01-01T00:00:00Z",
    "date": "2025-01-01",
    "time": "00:00:00Z",
    "duration": "P1D",
    "email": "someone@example.com",
    "hostname": "example.com",
    "ipv4": "192.0.2.1",
    "ipv6": "2001:db8::1",
    "uri": "https://example.com",
    "uuid": "00000000-0000-4000-8000-000000000000",
}
_MOST = 1_000


def example(schema: Any) -> Any:
    """Return a value that fits a JSON schema, or Gemini's form of one.

    For example:
        assert example({"type": "object", "properties": {"days": {"type": "integer"}}}) == {"days": 1}
    """
    return _Maker(schema).value(schema, 0)


class _Maker:
    """Makes values for the parts of one schema."""

    def __init__(self, root: Any) -> None:
        self._root = root

    def value(self, schema: Any, depth: int) -> Any:
        # `true` as a schema fits everything.
        if not isinstance(schema, dict) or depth > 4 * _DEPTH:
            return {}
        for word in ("const", "default"):
            if word in schema and (word == "const" or schema[word] is not None):
                return schema[word]
        if isinstance(choices := schema.get("enum"), list) and choices:
            return choices[0]
        if isinstance(reference := schema.get("$ref"), str):
            return self.value(self._referred(reference), depth + 1)
        if isinstance(parts := schema.get("allOf"), list) and parts:
            return self._merged([schema, *parts], depth)
        for word in ("anyOf", "oneOf"):
            if isinstance(parts := schema.get(word), list) and parts:
                return self.value(self._simplest(parts, depth), depth + 1)
        return self._typed(schema, depth)

    def _typed(self, schema: dict[str, Any], depth: int) -> Any:
        kind = schema.get("type")
        if isinstance(kind, list):
            kind = next((each for each in kind if each != "null"), "null")
        # Gemini writes the types in capitals.
        kind = str(kind).lower() if kind is not None else "array" if "items" in schema else "object"
        if kind == "object":
            return self._object(schema, depth)
        if kind == "array":
            return self._array(schema, depth)
        if kind in ("integer", "number"):
            return _number(schema, whole=kind == "integer")
        if kind == "string":
            return _text(schema)
        return {"boolean": True, "null": None}.get(kind, "example")

    def _object(self, schema: dict[str, Any], depth: int) -> dict[str, Any]:
        properties = schema.get("properties")
        if not isinstance(properties, dict):
            properties = {}
        required = schema.get("required")
        wanted = [name for name in required if isinstance(name, str)] if isinstance(required, list) else []
        # Below some depth only what is required is made, or a schema that refers to itself would never end.
        names = dict.fromkeys([*properties, *wanted] if depth < _DEPTH else wanted)
        return {name: self.value(properties.get(name, {"type": "string"}), depth + 1) for name in names}

    def _array(self, schema: dict[str, Any], depth: int) -> list[Any]:
        first = schema.get("prefixItems")
        made = [self.value(item, depth + 1) for item in first] if isinstance(first, list) else []
        least = schema.get("minItems")
        # Gemini writes numbers of this kind as texts.
        count = int(least) if isinstance(least, (int, str)) and str(least).isdecimal() else 0
        while len(made) < min(count, _MOST):
            made.append(self.value(schema.get("items"), depth + 1))
        return made

    def _simplest(self, parts: list[Any], depth: int) -> Any:
        """Choose the first part; where the schema refers to itself, a part that ends it."""
        ends = [part for part in parts if isinstance(part, dict) and part.get("type") == "null"]
        return ends[0] if ends and depth >= _DEPTH else parts[0]

    def _merged(self, parts: list[Any], depth: int) -> Any:
        merged: dict[str, Any] = {}
        properties: dict[str, Any] = {}
        required: list[Any] = []
        for part in parts:
            found = self._referred(part["$ref"]) if isinstance(part, dict) and "$ref" in part else part
            if isinstance(found, dict):
                merged |= {name: value for name, value in found.items() if name != "allOf"}
                properties |= found["properties"] if isinstance(found.get("properties"), dict) else {}
                required += found["required"] if isinstance(found.get("required"), list) else []
        if properties:
            merged |= {"properties": properties, "required": required}
        merged.pop("$ref", None)
        return self.value(merged, depth + 1)

    def _referred(self, reference: Any) -> Any:
        """Return the part of the schema that `#/$defs/Name` refers to."""
        found = self._root
        for name in str(reference).removeprefix("#").split("/"):
            if name:
                found = found.get(name.replace("~1", "/").replace("~0", "~")) if isinstance(found, dict) else None
        return found


def _number(schema: dict[str, Any], *, whole: bool) -> Any:
    value: float = 1 if whole else 1.5
    for word, step in (("minimum", 0), ("exclusiveMinimum", 1)):
        bound = schema.get(word)
        if isinstance(bound, (int, float)) and not isinstance(bound, bool) and value < bound + step:
            value = bound + step
    for word, step in (("maximum", 0), ("exclusiveMaximum", 1)):
        bound = schema.get(word)
        if isinstance(bound, (int, float)) and not isinstance(bound, bool) and value > bound - step:
            value = bound - step
    multiple = schema.get("multipleOf")
    if isinstance(multiple, (int, float)) and multiple and not isinstance(multiple, bool):
        # Round up, because the value is often the minimum.
        value = -(-value // multiple) * multiple
    return int(value) if whole else value


def _text(schema: dict[str, Any]) -> str:
    text = _TEXTS.get(str(schema.get("format")), "example")
    least, most = schema.get("minLength"), schema.get("maxLength")
    if isinstance(least, int) and len(text) < least:
        text = text.ljust(min(least, _MOST), "e")
    return text[:most] if isinstance(most, int) and most >= 0 else text
