"""A task written as XML: `Task.from_xml(text)` reads it.

<task name="orders" disable_reparsing="true">
  <description>List the orders in {report}</description>
  <inputs><input name="report">…</input></inputs>
  <output_format type="json" schema="array"/>
  <criteria>No order is missing</criteria>
  <file_paths><path>orders/may.md</path></file_paths>
  <context_management>
    <inherit_context>none</inherit_context>
    <accumulate_data>true</accumulate_data>
    <accumulation_format>notes_only</accumulation_format>
    <fresh_context>enabled</fresh_context>
  </context_management>
</task>

Invariant: what is not understood is rejected with its place. Nothing of a template is ignored.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree as ET

from holdfast.faults import InvalidError
from holdfast.tasks.output.format import XmlOutput, check_xml

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["context_use", "options_of"]

_YES = {"true": True, "false": False, "enabled": True, "disabled": False}
_NUMBERS = ("turns", "context", "max_output", "tokens", "max_depth")


def options_of(text: str) -> dict[str, Any]:
    """Return the options of the task that a template describes. Raises a typed fault that names the place of what is wrong."""
    root = ET.fromstring(check_xml(XmlOutput("task"), text))  # noqa: S314 - checked: no document type, no entities
    found: dict[str, Any] = _attributes(root)
    for child in root:
        match child.tag:
            case "description" | "instructions":
                found["prompt"] = (child.text or "").strip()
            case "inputs":
                found["inputs"] = {_name_of(each): (each.text or "") for each in child}
            case "output_format":
                found |= _output(child)
            case "context_management":
                found["use"] = _context(child)
            case "criteria":
                found["criteria"] = (child.text or "").strip()
            case "file_paths":
                found["files"] = tuple((each.text or "").strip() for each in child)
            case other:
                expected = (
                    "description, instructions, inputs, output_format, context_management, criteria or file_paths"
                )
                raise _wrong(f"task.{other}", expected, f"<{other}>")
    if not found.get("prompt"):
        raise _wrong("task.description", "<description> with a text", "none")
    return found


def _attributes(root: ET.Element) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in root.attrib.items():
        if name in _NUMBERS:
            if not value.isdecimal():
                raise _wrong(f"task.{name}", "a number", value)
            found[name] = int(value)
        elif name in {"name", "subtype", "agent"}:
            found[name] = value
        elif name == "disable_reparsing":
            found["decompose"] = not _truth(f"task.{name}", value)
        elif name != "type" or value != "atomic":
            known = ("type", "name", "subtype", "agent", "disable_reparsing", *_NUMBERS)
            raise _wrong(f"task.{name}", f"one of {', '.join(known)}, and the type atomic", f'{name}="{value}"')
    return found


def _name_of(element: ET.Element) -> str:
    name = element.get("name")
    if element.tag != "input" or not name:
        raise _wrong("task.inputs", '<input name="…">', f"<{element.tag}>")
    return name


def _output(element: ET.Element) -> dict[str, Any]:
    kind, schema = element.get("type", "text"), element.get("schema")
    if element.attrib.keys() - {"type", "schema"} or (kind == "text" and schema is not None):
        expected = 'type="json" or "xml" and a schema, or type="text"'
        raise _wrong("task.output_format", expected, " ".join(f'{name}="{value}"' for name, value in element.items()))
    if kind == "json":
        return {"output": schema or "object"}
    if kind == "xml":
        return {"output": XmlOutput(schema or "")}
    if kind == "text":
        return {}
    raise _wrong("task.output_format", 'type="json", "xml" or "text"', f'type="{kind}"')


def _context(element: ET.Element) -> dict[str, Any]:
    return context_use({child.tag: (child.text or "").strip() for child in element} | dict(element.attrib))


def context_use(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of `ContextUse` that a template or a request asks for. Raises TASK_MODEL_INVALID."""
    given = {name: str(value).lower() if isinstance(value, bool) else value for name, value in attributes.items()}
    found: dict[str, Any] = {}
    if "fresh_context" in given and _truth("context_management.fresh_context", given.pop("fresh_context")):
        # What is looked up stands in the place of what is inherited.
        found |= {"fresh": True, "inherit": "none"}
    if "inherit_context" in given:
        found["inherit"] = given.pop("inherit_context")
    if "accumulation_format" in given:
        found["accumulate"] = given.pop("accumulation_format")
    if not _truth("context_management.accumulate_data", given.pop("accumulate_data", "true")):
        found["accumulate"] = None
    if given:
        expected = "inherit_context, accumulate_data, accumulation_format or fresh_context"
        raise _wrong("context_management", expected, str(next(iter(given))))
    return found


def _truth(path: str, value: Any) -> bool:
    if not isinstance(value, str) or value not in _YES:
        raise _wrong(path, "true or false, enabled or disabled", str(value))
    return _YES[value]


def _wrong(path: str, expected: str, received: str) -> InvalidError:
    return InvalidError.saying(path, expected, received, "TASK_MODEL_INVALID")
