"""The plain form: text, or JSON lines for programs of your own.

A line that is not an object of the kinds below is text, and all text together is the answer. Objects:

    {"type": "session", "id": "…"}                                     the program's own id of the conversation
    {"type": "text", "text": "…"}                                      a piece of the answer
    {"type": "tool-call", "id": "…", "name": "…", "arguments": {…}}     a tool call begins
    {"type": "tool-result", "id": "…", "name": "…", "content": "…", "isError": false}
    {"type": "result", "text": "…", "usd": 0.1, "turns": 2, "usage": {"input": 1, "output": 2, "cached": 0, "written": 0}}
    {"type": "error", "message": "…", "status": 529, "retryAt": 1790000000}
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.agents.command_lines.report import LineReader, ProgramFailure, number, text_of
from holdfast.agents.parts import Text, ToolCalled, ToolReturned
from holdfast.policies.models.usage import Usage

if TYPE_CHECKING:
    from holdfast.agents.parts import AgentPart

__all__ = ["KINDS", "PlainLines"]

KINDS = frozenset({"session", "text", "tool-call", "tool-result", "result", "error"})
_COUNTS = ("input", "output", "cached", "written", "written_hour", "searches")


class PlainLines(LineReader):
    """Reads text, and the documented objects between it."""

    def __init__(self) -> None:
        super().__init__()
        self._printed = False

    def read(self, line: str) -> list[AgentPart]:
        """Take one line. An empty line is part of a text."""
        return super().read(line) if line.strip() else self._text(line)

    def read_text(self, line: str) -> list[AgentPart]:
        """Take a line of text: it is a part of the answer."""
        return self._text(line)

    def read_object(self, found: dict[str, Any]) -> list[AgentPart]:
        """Take a JSON object. One of another kind is text: the answer itself may be JSON."""
        report = self.report
        match found:
            case {"type": "session", "id": str(identity)}:
                report.session = identity
            case {"type": "text", "text": str(text)}:
                report.say(text)
                return [Text(text=text)] if text else []
            case {"type": "tool-call", "name": str(name)}:
                report.tool_calls += 1
                report.begin_anew()
                arguments = found.get("arguments")
                given = arguments if isinstance(arguments, dict) else {}
                return [ToolCalled(id=str(found.get("id") or ""), name=name, arguments=given)]
            case {"type": "tool-result", "name": str(name)}:
                content, failed = text_of(found.get("content")), found.get("isError") is True
                return [ToolReturned(id=str(found.get("id") or ""), name=name, content=content, is_error=failed)]
            case {"type": "result"}:
                self._result(found)
            case {"type": "error", "message": str(message)}:
                status = found.get("status")
                report.ended = True
                report.failure = ProgramFailure(
                    text=message,
                    status=status if isinstance(status, int) else None,
                    retry_at=number(found.get("retryAt")),
                )
            case _:
                return self._text(msgspec.json.encode(found).decode())
        return []

    def end(self) -> None:
        """The program has ended by itself: what it printed is the answer."""
        report = self.report
        if not report.ended:
            report.ended, report.answer = True, report.text.strip("\n")

    def _text(self, line: str) -> list[AgentPart]:
        # The end of each line comes with the next one, so that the last line has none.
        text = f"\n{line}" if self._printed else line
        self._printed = True
        self.report.say(text)
        return [Text(text=text)] if text else []

    def _result(self, found: dict[str, Any]) -> None:
        report = self.report
        report.ended = True
        text = found.get("text")
        report.answer = text if isinstance(text, str) else report.text
        report.usd = number(found.get("usd"))
        report.turns = int(number(found.get("turns")) or 0)
        if isinstance(model := found.get("model"), str):
            report.model = model
        if isinstance(usage := found.get("usage"), dict):
            counts = {name: int(number(usage.get(name)) or 0) for name in _COUNTS}
            report.usage = msgspec.convert(counts, Usage)
