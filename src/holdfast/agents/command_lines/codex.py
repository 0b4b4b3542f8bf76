"""Codex's lines: `codex exec --json`.

Each line is an object with a `type`: `thread.started` with the id, `turn.started`, `item.started`, `item.updated` and `item.completed`
with an item, `error`, and at last `turn.completed` or `turn.failed`. Items are messages, commands, changes of files, calls of MCP tools
and more; every item that is not a message, a thought, a list of things to do or an error is a tool call.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast.agents.command_lines.report import LineReader, ProgramFailure, number, text_of
from holdfast.agents.parts import Retrying, Text, ToolCalled, ToolReturned
from holdfast.classify import from_text
from holdfast.policies.models.usage import Usage

if TYPE_CHECKING:
    from holdfast.agents.parts import AgentPart

__all__ = ["LOST", "RESUME", "SECRETS", "CodexLines", "recognises"]

RESUME = ("resume", "{session}", "-")
SECRETS = ("OPENAI_API_KEY", "CODEX_API_KEY")
LOST = ("no rollout found for", "no recorded session found", "no saved session found")
"""What it prints if it does not know the thread that it should resume."""

_TALK = frozenset({"agent_message", "reasoning", "todo_list", "error"})
_FAILED = frozenset({"failed", "declined"})
_TYPES = frozenset(
    {"thread.started", "turn.started", "turn.completed", "turn.failed", "item.completed", "item.started"}
)
_RECONNECTING = "Reconnecting..."


def recognises(found: dict[str, Any]) -> bool:
    """Whether an object is a line of this form."""
    return found.get("type") in _TYPES


class CodexLines(LineReader):
    """Reads the lines of `codex exec --json`."""

    def __init__(self) -> None:
        super().__init__()
        self._begun: set[str] = set()
        """Tool calls whose start has come."""
        self._retries = 0

    def read_object(self, found: dict[str, Any]) -> list[AgentPart]:
        """Take a JSON object."""
        report = self.report
        item = found.get("item")
        match found.get("type"):
            case "thread.started":
                report.session = str(found.get("thread_id") or "")
            case "turn.started":
                report.turns += 1
            case "item.started" if isinstance(item, dict):
                return self._begin(item)
            case "item.completed" if isinstance(item, dict):
                return self._complete(item)
            case "error":
                return self._error(str(found.get("message") or ""))
            case "turn.completed":
                report.ended, report.failure = True, None
                report.answer = report.text
                report.usage = _usage(found.get("usage"))
            case "turn.failed":
                report.ended = True
                error = found.get("error")
                text = str(error.get("message") or "") if isinstance(error, dict) else ""
                report.failure = ProgramFailure(text=text or "the turn failed and says nothing", reason="turn.failed")
        return []

    def _begin(self, item: dict[str, Any]) -> list[AgentPart]:
        kind, identity = str(item.get("type")), str(item.get("id"))
        if kind in _TALK or identity in self._begun:
            return []
        self._begun.add(identity)
        self.report.tool_calls += 1
        self.report.begin_anew()
        return [ToolCalled(id=identity, name=_name(kind, item), arguments=_arguments(item))]

    def _complete(self, item: dict[str, Any]) -> list[AgentPart]:
        kind = str(item.get("type"))
        if kind == "agent_message":
            text = str(item.get("text") or "")
            # Each message is whole. The last one is the answer, and those before it say what is done next.
            self.report.begin_anew()
            self.report.say(text)
            return [Text(text=text)] if text else []
        if kind == "error":
            self.report.keep(str(item.get("message") or ""))
        if kind in _TALK:
            return []
        called = self._begin(item)
        exit_code = item.get("exit_code")
        returned = ToolReturned(
            id=str(item.get("id")),
            name=_name(kind, item),
            content=text_of(_first(item, "aggregated_output", "result", "changes", "error")),
            is_error=item.get("status") in _FAILED or exit_code not in (None, 0),
        )
        return [*called, returned]

    def _error(self, message: str) -> list[AgentPart]:
        if not message.startswith(_RECONNECTING):
            # `turn.failed` follows and says the same, unless the program is cut before.
            self.report.failure = ProgramFailure(text=message, reason="error")
            return []
        self._retries += 1
        reason = message.partition("(")[2].removesuffix(")") or message
        return [
            Retrying(line=message.partition(" (")[0], attempt=self._retries, delay=0.0, fault=from_text(reason)),
        ]


def _name(kind: str, item: dict[str, Any]) -> str:
    named = [str(part) for part in (item.get("server"), item.get("tool")) if part]
    return "/".join(named) or kind


def _arguments(item: dict[str, Any]) -> dict[str, Any]:
    if isinstance(arguments := item.get("arguments"), dict):
        return arguments
    return {name: item[name] for name in ("command", "query", "changes") if name in item}


def _first(item: dict[str, Any], *names: str) -> Any:
    return next((item[name] for name in names if item.get(name) is not None), None)


def _usage(reported: Any) -> Usage | None:
    if not isinstance(reported, dict) or (given := number(reported.get("input_tokens"))) is None:
        return None
    cached, written, output = (
        int(number(reported.get(name)) or 0)
        for name in ("cached_input_tokens", "cache_write_input_tokens", "output_tokens")
    )
    # The count of the input includes what came from the cache and what went there.
    return Usage(input=max(0, int(given) - cached - written), output=output, cached=cached, written=written)
