"""The protocol described for machines and people: a JSON Schema and an AsyncAPI document of all messages, and the tables of the page.

Invariant: nothing is described twice. Types, rules and sentences come from `messages`, `phases`, `close` and `examples`.
"""

from __future__ import annotations

import ast
import inspect
from functools import cache
from typing import Any, Final

import msgspec

from holdfast.wire import close, envelope, messages, outbox, phases, position
from holdfast.wire.examples import example
from holdfast.wire.messages import DURABLE, FROM_CLIENT, FROM_SERVER

PROTOCOL_VERSION: Final = "2"
_DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
_ANYTIME: Final = r"^\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}([.,]\d{1,9})?(Z|[+-]\d{2}:?\d{2})$"
_UUID: Final = "^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$"
_SUMMARIES: Final = {
    "heartbeat_ping": "Asks the other side for a sign of life.",
    "heartbeat_pong": "The answer to `heartbeat_ping`.",
    "message": "The same as `session_message`, in an older form.",
    "session_leave": "Leaves the session. Its work goes on.",
    "session_pause": "Pauses the session after the turn that runs: it can be resumed. Acknowledged when it is paused; other messages are handled meanwhile.",
    "session_close": "Closes the session for good.",
    "session_snapshot": "Asks for the session as it is now, and for the position at which a client goes on.",
    "stop": "Stops the turn that runs. The session stays.",
    "connection_error": "Why the connection ends. A close with its code follows.",
    "error": "A message was not executed, and why.",
}
"""Sentences for messages that share the class of their payload with others."""
_LINE: Final = 100
"""The longest line of an example."""
_MODULES: Final = (messages, envelope, outbox, position)


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of all messages: `$defs/ClientMessage` and `$defs/ServerMessage` choose by `type`.

    >>> json_schema()["$defs"]["SessionJoin"]["required"]
    ['session_id']
    """
    definitions = _payloads("#/$defs/{name}")
    for side, kinds in (("Client", FROM_CLIENT), ("Server", FROM_SERVER)):
        named = {f"{side}.{type_}": _message(type_, kinds[type_], side, "#/$defs/") for type_ in kinds}
        definitions |= named
        definitions[f"{side}Message"] = {"oneOf": [{"$ref": f"#/$defs/{name}"} for name in named]}
    return {
        "$schema": _DIALECT,
        "title": "The messages of the Holdfast bridge",
        "description": "One JSON object in each text frame. Unknown fields are ignored.",
        "anyOf": [{"$ref": "#/$defs/ClientMessage"}, {"$ref": "#/$defs/ServerMessage"}],
        "$defs": definitions,
    }


def asyncapi() -> dict[str, Any]:
    """Return the AsyncAPI 3.0 document of the bridge, from the server's point of view, with an example of every message.

    >>> sorted(asyncapi()["operations"])
    ['fromClient', 'toClient']
    """
    described, listed, operations = {}, {}, {}
    sides = (("Client", FROM_CLIENT, "fromClient", "receive"), ("Server", FROM_SERVER, "toClient", "send"))
    for side, kinds, operation, action in sides:
        names = [f"{side}.{type_}" for type_ in kinds]
        for name, (type_, kind) in zip(names, kinds.items(), strict=True):
            described[name] = _asyncapi_message(type_, kind, side)
            listed[name] = {"$ref": f"#/components/messages/{name}"}
        operations[operation] = {
            "action": action,
            "channel": {"$ref": "#/channels/bridge"},
            "messages": [{"$ref": f"#/channels/bridge/messages/{name}"} for name in names],
        }
    return {
        "asyncapi": "3.0.0",
        "info": {
            "title": "The Holdfast bridge",
            "version": PROTOCOL_VERSION,
            "description": "Remote clients of agents. One JSON object in each text frame of a WebSocket.",
        },
        "defaultContentType": "application/json",
        "channels": {"bridge": {"address": "/ws", "messages": listed, "bindings": {"ws": {"method": "GET"}}}},
        "operations": operations,
        "components": {"messages": described, "schemas": _payloads("#/components/schemas/{name}")},
    }


def _asyncapi_message(type_: str, kind: type[messages.Payload], side: str) -> dict[str, Any]:
    return {
        "name": type_,
        "title": type_,
        "summary": _summary(type_, kind),
        "payload": _message(type_, kind, side, "#/components/schemas/"),
        "examples": [{"name": type_, "payload": example(type_, from_client=side == "Client")}],
    }


def _message(type_: str, kind: type[messages.Payload], side: str, references: str) -> dict[str, Any]:
    """Return the schema of a whole message: the envelope with this type and its payload."""
    of_log = side == "Server" and type_ in DURABLE
    id_: dict[str, Any] = {"type": "string", "pattern": _UUID}
    if type_ == "error":
        # A frame that cannot be read has no id that an answer could repeat, and some ids are not what they should be.
        id_ = {"type": ["string", "null"], "description": "The id of the message that is wrong, exactly as it came."}
    properties = {
        "type": {"const": type_},
        "id": id_,
        "timestamp": {"type": "string", "pattern": _ANYTIME},
        "payload": {"$ref": references + kind.__name__},
        "session_id": {"type": "string"},
        "re": {"type": "string", "description": "The id of the message that this one answers."},
    }
    required = ["type", "id", "timestamp", "payload"]
    if of_log:
        properties["epoch"] = {"type": "string", "description": "The name of the log that `offset` counts in."}
        properties["offset"] = {"type": "integer", "minimum": 1, "maximum": envelope.MAX_OFFSET}
        # A code for signing in is stored nowhere: it comes once more, with the question, beside the log.
        required += ["session_id"] if type_ == "question" else ["session_id", "epoch", "offset"]
    return {"type": "object", "description": _summary(type_, kind), "properties": properties, "required": required}


def _payloads(template: str) -> dict[str, Any]:
    """Return the schemas of all payloads and of what they contain, by the name of their class, with a sentence for each field."""
    kinds = list(dict.fromkeys([*FROM_CLIENT.values(), *FROM_SERVER.values()]))
    _, components = msgspec.json.schema_components(kinds, ref_template=template)
    for name, schema in components.items():
        if "description" in schema:
            # Python 3.13 removes the indentation of a docstring by itself, and earlier versions keep it.
            schema["description"] = inspect.cleandoc(schema["description"])
        for field, described in schema.get("properties", {}).items():
            sentence = _sentences().get((name, field))
            if sentence is not None:
                described["description"] = sentence
    return dict(sorted(components.items()))


@cache
def _sentences() -> dict[tuple[str, str], str]:
    """Return the sentence that stands below each field in the source, by class and field, inherited fields included."""
    found: dict[tuple[str, str], str] = {}
    for module in _MODULES:
        for node in ast.parse(inspect.getsource(module)).body:
            if isinstance(node, ast.ClassDef):
                bases = [base.id for base in node.bases if isinstance(base, ast.Name)]
                inherited = {(node.name, field): text for (of, field), text in found.items() if of in bases}
                found |= inherited | _of_class(node)
    return found


def _of_class(node: ast.ClassDef) -> dict[tuple[str, str], str]:
    found = {}
    for field, following in zip(node.body, node.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(following, ast.Expr):
            text = following.value
            if isinstance(text, ast.Constant) and isinstance(text.value, str):
                found[node.name, field.target.id.rstrip("_")] = " ".join(text.value.split())
    return found


def _summary(type_: str, kind: type[messages.Payload]) -> str:
    return _SUMMARIES.get(type_) or (inspect.getdoc(kind) or "").partition("\n\n")[0].replace("\n", " ")


# --- the tables of the reference page ---


def reference_tables() -> str:
    """Return the generated part of the reference page, as Markdown: phases, close codes, and every message with its fields."""
    parts = [_phases(), _close_codes()]
    for title, side, kinds in (
        ("From the client", "Client", FROM_CLIENT),
        ("From the server", "Server", FROM_SERVER),
    ):
        parts.append(f"## {title}\n")
        parts += [_section(type_, kind, side) for type_, kind in kinds.items()]
    parts += ["## Parts of messages\n", *_parts()]
    return "\n".join(parts).rstrip() + "\n"


def _phases() -> str:
    rows = ["## Phases\n", "| phase | what a client may send |", "|---|---|"]
    for phase, allowed in phases.SEQUENCE_MAP.items():
        rows.append(f"| `{phase.value}` | {', '.join(f'`{each}`' for each in sorted(allowed))} |")
    return "\n".join([*rows, ""])


def _close_codes() -> str:
    rows = ["## Close codes\n", "| code | name | the client |", "|---|---|---|"]
    for code in close.CloseCode:
        then = "connects again" if close.reconnects(code) else "stays away"
        if code in close.UNREADABLE:
            then = (
                "connects again if it was accepted before; stays away after the same close three times without progress"
            )
        rows.append(f"| {code.value} | `{code.name.lower()}` | {then} |")
    return "\n".join([*rows, ""])


def _section(type_: str, kind: type[messages.Payload], side: str) -> str:
    of_log = " It is a part of the log: it has an offset." if side == "Server" and type_ in DURABLE else ""
    shown = _shown(example(type_, from_client=side == "Client")["payload"])
    lines = [
        f"### `{type_}`\n",
        f"{_summary(type_, kind)}{of_log}\n",
        *_fields(kind.__name__),
        "```json",
        shown,
        "```",
        "",
    ]
    return "\n".join(lines)


def _shown(payload: dict[str, Any]) -> str:
    """Return a payload in one line if it fits, otherwise with one field in each line."""
    line = _in_line(payload)
    if len(line) <= _LINE:
        return line
    fields = [f'  "{name}": {_in_line(value)}' for name, value in payload.items()]
    return "{\n" + ",\n".join(fields) + "\n}"


def _in_line(value: Any) -> str:
    return msgspec.json.format(msgspec.json.encode(value), indent=0).decode()


def _parts() -> list[str]:
    top = {kind.__name__ for kind in (*FROM_CLIENT.values(), *FROM_SERVER.values())}
    return [
        "\n".join([f"### {name}\n", f"{schema['description']}\n", *_fields(name)])
        for name, schema in _payloads("{name}").items()
        if name not in top
    ]


def _fields(name: str) -> list[str]:
    schema = _payloads("{name}")[name]
    if not schema.get("properties"):
        return ["No fields.\n"]
    rows = ["| field | type | meaning |", "|---|---|---|"]
    for field, described in schema["properties"].items():
        needed = " (required)" if field in schema["required"] else ""
        text = described.get("description", "").replace("|", "\\|")
        rows.append(f"| `{field}`{needed} | {_type_of(described)} | {text} |")
    return [*rows, ""]


def _type_of(schema: dict[str, Any]) -> str:
    """Return the type of a field in words: string, list of Position."""
    if "$ref" in schema:
        return str(schema["$ref"])
    if "enum" in schema:
        return ", ".join(f"`{each}`" for each in schema["enum"])
    if "anyOf" in schema:
        return " or ".join(_type_of(each) for each in schema["anyOf"])
    kind = str(schema.get("type", "any"))
    if kind == "array" and schema.get("items"):
        return f"list of {_type_of(schema['items'])}"
    if kind == "object" and isinstance(schema.get("additionalProperties"), dict) and schema["additionalProperties"]:
        return f"object of {_type_of(schema['additionalProperties'])}"
    return {"array": "list"}.get(kind, kind)
