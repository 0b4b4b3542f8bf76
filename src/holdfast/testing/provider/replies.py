"""What the provider answers when nothing goes wrong. The same request always gets the same reply, also the second time.

Three ways: `echo` says the user's last words back; `tools` calls the first tool on offer and then tells what came of it;
a list of turns is played by the number of the assistant's turns in the conversation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["WAYS", "Asked", "Reply", "Tool", "Turn", "call_first_tool", "reply_to"]

_DEPTH = 8
_FRAGMENT = 7


class Turn(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A scripted turn that calls a tool."""

    tool: str
    arguments: dict[str, Any] = {}


class Tool(NamedTuple):
    """A tool on offer, whichever protocol it was offered in."""

    name: str
    schema: dict[str, Any]


class Asked(NamedTuple):
    """What a request asks for, in no protocol's words."""

    said: str
    """The user's last words."""
    result: str | None
    """What a tool returned, where that is the last thing in the conversation."""
    turns: int
    """How many turns the assistant has had."""
    tools: tuple[Tool, ...]
    tokens: int


class Reply(NamedTuple):
    """What is answered: a text, or the call of a tool."""

    text: str
    tool: str
    arguments: str
    input_tokens: int

    @property
    def pieces(self) -> list[str]:
        """The parts in which it is streamed: words of the text, fragments of the arguments."""
        if not self.tool:
            first, *others = self.text.split(" ")
            return [first, *(f" {word}" for word in others)]
        return [self.arguments[at : at + _FRAGMENT] for at in range(0, len(self.arguments), _FRAGMENT)]

    @property
    def output_tokens(self) -> int:
        """How many tokens this is: one per piece."""
        return len(self.pieces)


def reply_to(asked: Asked, way: str | Sequence[str | Turn]) -> Reply:
    """Return the reply to what was asked, in one of the ways above."""
    if isinstance(way, str):
        return WAYS[way](asked)
    turn = way[min(asked.turns, len(way) - 1)]
    return _say(asked, turn) if isinstance(turn, str) else _call(asked, turn.tool, turn.arguments)


def call_first_tool(asked: Asked) -> Reply:
    """Call the first tool on offer, or say something where there is none."""
    if not asked.tools:
        return _echo(asked)
    tool = asked.tools[0]
    return _call(asked, tool.name, _example(tool.schema))


def _echo(asked: Asked) -> Reply:
    return _say(asked, f"You said: {asked.said}")


def _use_tools(asked: Asked) -> Reply:
    if asked.result is not None:
        return _say(asked, f"The tool says: {asked.result}")
    return call_first_tool(asked)


WAYS: dict[str, Callable[[Asked], Reply]] = {"echo": _echo, "tools": _use_tools}


def _say(asked: Asked, text: str) -> Reply:
    return Reply(text=text, tool="", arguments="", input_tokens=asked.tokens)


def _call(asked: Asked, tool: str, arguments: Any) -> Reply:
    return Reply(text="", tool=tool, arguments=msgspec.json.encode(arguments).decode(), input_tokens=asked.tokens)


_EXAMPLES = {"string": "example", "integer": 1, "number": 1.5, "boolean": True, "array": [], "null": None}


def _example(schema: Any, depth: int = 0) -> Any:
    """Return a value that fits a JSON schema of the plain kind."""
    if not isinstance(schema, dict) or depth > _DEPTH:
        return {}
    if isinstance(choices := schema.get("enum"), list) and choices:
        return choices[0]
    if schema.get("type", "object") != "object":
        return _EXAMPLES.get(str(schema.get("type")), "example")
    properties = schema.get("properties")
    if not isinstance(properties, dict):
        return {}
    return {name: _example(inner, depth + 1) for name, inner in properties.items()}
