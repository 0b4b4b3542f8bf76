"""The form that a task's output must have, and the check of what came.

Invariant: output that does not fit is never lost. The fault holds the whole original text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final
from xml.parsers import expat

import msgspec

from holdfast import options
from holdfast.faults import Fault, HoldfastError, InvalidError, Partial
from holdfast.tools.schema import converted, schema_mistake, schema_of, violations_of

__all__ = ["OutputFormat", "UnreadableError", "XmlOutput", "check_xml", "code_in"]

_WORDS: Final = {
    "object": "object",
    "array": "array",
    "[]": "array",
    "string": "string",
    "number": "number",
    "boolean": "boolean",
}
_FENCED = re.compile(r"```(?:json|xml)?[ \t]*\n(.*?)\n?[ \t]*```", re.DOTALL)
_BLOCK = re.compile(r"^```[^`\n]*\n(.*?)^```[ \t]*$", re.DOTALL | re.MULTILINE)
_MOST_VIOLATIONS = 20


class XmlOutput(msgspec.Struct, frozen=True):
    """Output in XML: well-formed, with this element around everything, and these elements in it."""

    root: str = ""
    """The outermost element; empty: any."""
    elements: tuple[str, ...] = ()
    """Elements that must occur."""


class UnreadableError(ValueError):
    """The output is no JSON at all. Whether that is a failure depends on the task."""


class OutputFormat:
    """A form of output, from what `Task.output` takes.

    >>> OutputFormat("string[]").read('["a"]')
    ['a']
    """

    def __init__(self, given: Any) -> None:
        self._kind = given
        self.schema: dict[str, Any] | None = None
        if isinstance(given, str):
            self.schema = _schema_of_word(given)
        elif isinstance(given, Mapping):
            self.schema = dict(given)
            if mistake := schema_mistake(self.schema):
                raise InvalidError.saying("task.output", "a JSON Schema", mistake, "TASK_MODEL_INVALID")
        elif not isinstance(given, XmlOutput):
            self.schema = _schema_of_type(given)

    @property
    def is_strict(self) -> bool:
        """Whether output that is no JSON is a failure by default: not if only a word says what the form is."""
        return not isinstance(self._kind, str)

    @property
    def instruction(self) -> str:
        """Return the instruction about the form for the agent."""
        if isinstance(self._kind, XmlOutput):
            names = ", ".join(f"<{name}>" for name in (self._kind.root, *self._kind.elements) if name)
            return f"Answer only with well-formed XML{f' with these elements: {names}' if names else ''}."
        schema = msgspec.json.encode(self.schema).decode()
        return f"Answer only with JSON that fits this JSON Schema: {schema}"

    def read(self, text: str) -> Any:
        """Return the output as a value. Raises `HoldfastError` if it does not fit, and `UnreadableError` if it is no JSON."""
        if isinstance(self._kind, XmlOutput):
            return check_xml(self._kind, text)
        document = _json_in(text)
        assert self.schema is not None
        self._check_type(document, text)
        violations = violations_of(self.schema, document)[:_MOST_VIOLATIONS]
        if violations:
            raise self._invalid(violations, text)
        if isinstance(self._kind, (str, Mapping)):
            return document
        try:
            return converted(document, self._kind)
        except ValueError as error:
            raise self._invalid([str(error)], text) from None

    def _check_type(self, document: Any, text: str) -> None:
        expected = (self.schema or {}).get("type")
        actual = _type_of(document)
        if isinstance(expected, str) and actual != expected and not (expected == "number" and actual == "integer"):
            context = {"expected": expected, "actual": "number" if actual == "integer" else actual}
            raise HoldfastError(Fault.of("TASK_OUTPUT_FORMAT", context=context, partial=Partial(payload=text)))

    @staticmethod
    def _invalid(violations: list[str], text: str) -> HoldfastError:
        context = {"violations": violations}
        return HoldfastError(Fault.of("TASK_OUTPUT_INVALID", context=context, partial=Partial(payload=text)))


def _schema_of_word(word: str) -> dict[str, Any]:
    inner = word.strip().removesuffix("[]")
    if word.strip() not in _WORDS and (inner == word.strip() or inner not in _WORDS):
        known = (*_WORDS, "string[]", "number[]", "object[]")
        raise InvalidError.saying(
            "task.output",
            f"one of {', '.join(known)}",
            f"{word!r}; {options.suggestion(word, known)}",
            "TASK_MODEL_INVALID",
        )
    if word.strip() in _WORDS:
        return {"type": _WORDS[word.strip()]}
    return {"type": "array", "items": {"type": _WORDS[inner]}}


def _schema_of_type(given: Any) -> dict[str, Any]:
    try:
        return schema_of(given)
    except TypeError as error:
        expected = "a type that JSON has, a JSON Schema, a word such as 'array', or XmlOutput"
        raise InvalidError.saying("task.output", expected, str(error), "TASK_MODEL_INVALID") from None


def _json_in(text: str) -> Any:
    """Return the JSON that a text is, or that stands in its only fenced block: models like to fence what they write."""
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        fenced = _FENCED.findall(text)
        if len(fenced) == 1:
            try:
                return msgspec.json.decode(fenced[0])
            # The block is no JSON either: the error below says why the whole text is not JSON.
            except (msgspec.DecodeError, RecursionError):
                pass
        raise UnreadableError(f"it is not JSON: {error}") from None


def code_in(text: str) -> str:
    """Return the code in a text: its only fenced block, or all of it."""
    blocks = _BLOCK.findall(text)
    return str(blocks[0]) if len(blocks) == 1 else text


def _type_of(document: Any) -> str:
    match document:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int():
            return "integer"
        case float():
            return "number"
        case str():
            return "string"
        case list():
            return "array"
        case _:
            return "object"


def check_xml(expected: XmlOutput, text: str) -> str:
    """Return the XML in a text, or raise. It is read as it streams by: no tree, no document type, no entities of its own."""
    fenced = _FENCED.findall(text)
    body = (fenced[0] if len(fenced) == 1 else text).strip()
    names: list[str] = []
    parser = expat.ParserCreate()

    def refuse(*_: Any) -> None:
        raise ValueError("a document type or an entity declaration, which are not allowed")

    parser.StartDoctypeDeclHandler = refuse
    parser.EntityDeclHandler = refuse
    parser.StartElementHandler = lambda name, _: names.append(name)
    try:
        parser.Parse(body, True)  # noqa: FBT003 - its own parameter
    except expat.ExpatError as error:
        context = {
            "location": f"line {error.lineno}, column {error.offset + 1}",
            "reason": expat.ErrorString(error.code),
        }
        raise HoldfastError(Fault.of("TASK_XML_PARSE_ERROR", context=context, partial=Partial(payload=text))) from None
    except ValueError as error:
        raise _xml_invalid([f"it has {error}"], text) from None
    wrong = [f"<{name}> is missing" for name in expected.elements if name not in names]
    if expected.root and names[0] != expected.root:
        wrong.insert(0, f"expected <{expected.root}> around everything, got <{names[0]}>")
    if wrong:
        raise _xml_invalid(wrong, text)
    return body


def _xml_invalid(violations: list[str], text: str) -> HoldfastError:
    context = {"reason": "; ".join(violations), "violations": violations}
    return HoldfastError(Fault.of("TASK_XML_INVALID", context=context, partial=Partial(payload=text)))
