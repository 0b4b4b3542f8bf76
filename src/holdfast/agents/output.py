"""The form of an agent's answer: the JSON Schema that the provider gets, and the check of what comes back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.faults import InvalidError
from holdfast.tools.schema import check_document, converted, schema_of

if TYPE_CHECKING:
    from holdfast.providers.messages import Reply

__all__ = ["Output"]


class Output:
    """The form of an answer, from a type (msgspec, dataclass, TypedDict, pydantic) or a JSON Schema."""

    def __init__(self, given: Any) -> None:
        self._kind = given
        self.schema = _closed(_schema_of(given))

    def value(self, reply: Reply) -> Any:
        """Return the answer as a value of the type. Raises `ValueError` if it does not fit; the text says where."""
        document = reply.data
        if document is None:
            try:
                document = msgspec.json.decode(reply.text)
            except msgspec.DecodeError as error:
                raise ValueError(f"it is not JSON: {error}") from None
        if isinstance(self._kind, Mapping):
            check_document(self.schema, document)
            return document
        return converted(document, self._kind)


def _schema_of(given: Any) -> dict[str, Any]:
    if isinstance(given, Mapping):
        return dict(given)
    try:
        return schema_of(given)
    except TypeError as error:
        raise InvalidError.saying("agent.output", "a type that JSON has, or a JSON Schema", str(error)) from None


def _closed(schema: Any) -> Any:
    """Return a schema whose objects allow no other fields: providers reject a schema that leaves it open."""
    if isinstance(schema, list):
        return [_closed(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {name: _closed(part) for name, part in schema.items()}
    if closed.get("type") == "object" and "properties" in closed:
        closed.setdefault("additionalProperties", False)
    return closed
