"""Claude Code's lines: `claude -p --output-format stream-json --verbose`.

Each line is an object with a `type`: `system` (the start, retries of a request), `assistant` and `user` (messages with tool calls and
their results), `stream_event` (pieces of a message, with `--include-partial-messages`), `rate_limit_event`, and at last `result`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast.agents.command_lines.report import LineReader, ProgramFailure, number, text_of
from holdfast.agents.parts import Retrying, Text, ToolCalled, ToolReturned
from holdfast.classify import from_http, from_text
from holdfast.policies.models.usage import usage_of

if TYPE_CHECKING:
    from holdfast.agents.parts import AgentPart

__all__ = ["LOST", "RESUME", "SECRETS", "ClaudeLines", "recognises"]

RESUME = ("--resume", "{session}")
SECRETS = ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "CLAUDE_CODE_OAUTH_TOKEN")
LOST = ("no conversation found with session id",)
"""What it prints if it does not know the conversation that it should resume."""


def recognises(found: dict[str, Any]) -> bool:
    """Whether an object is a line of this form."""
    return isinstance(found.get("session_id"), str) and found.get("type") in {"system", "assistant", "user", "result"}


class ClaudeLines(LineReader):
    """Reads `stream-json`."""

    def __init__(self) -> None:
        super().__init__()
        self._streamed: set[str] = set()
        """Messages whose text has come in pieces. They come as a whole too, and must not count twice."""
        self._message = ""
        """The message whose pieces come now."""
        self._names: dict[str, str] = {}
        """The tools by the id of their call."""
        self._limit_ends: float | None = None

    def read_object(self, found: dict[str, Any]) -> list[AgentPart]:
        """Take a JSON object."""
        if isinstance(session := found.get("session_id"), str):
            self.report.session = session
        match found.get("type"):
            case "system":
                return self._system(found)
            case "assistant":
                return self._assistant(found)
            case "user":
                return self._results(found)
            case "stream_event":
                return self._piece(found)
            case "rate_limit_event":
                self._limit(found)
            case "result":
                self._result(found)
        return []

    def _system(self, found: dict[str, Any]) -> list[AgentPart]:
        if isinstance(model := found.get("model"), str):
            self.report.model = model
        if found.get("subtype") != "api_retry":
            return []
        attempt, most = int(number(found.get("attempt")) or 1), int(number(found.get("max_retries")) or 0)
        status, word = found.get("error_status"), str(found.get("error") or "unknown")
        self.report.rejected = word if status is None else f"API Error: {status} {word}"
        fault = from_http(status, {}, word, provider="anthropic") if isinstance(status, int) else from_text(word)
        line = f"Retrying... ({attempt + 1}/{most + 1})" if most else f"Retrying… attempt {attempt + 1}"
        delay = (number(found.get("retry_delay_ms")) or 0.0) / 1000
        return [Retrying(line=line, attempt=attempt, delay=delay, fault=fault)]

    def _assistant(self, found: dict[str, Any]) -> list[AgentPart]:
        message = found.get("message")
        if isinstance(message, dict) and message.get("model") == "<synthetic>":
            self.report.rejected = text_of(message.get("content"))
        # A failed request comes as a message too; the result after it says the same. A subagent's messages are not the answer.
        if not isinstance(message, dict) or found.get("is_api_error_message") or found.get("parent_tool_use_id"):
            return self._calls_inside(message)
        parts: list[AgentPart] = []
        for block in _blocks(message):
            match block.get("type"):
                case "text" if message.get("id") not in self._streamed:
                    parts += self._say(str(block.get("text") or ""))
                case "tool_use":
                    parts.append(self._call(block))
        return parts

    def _calls_inside(self, message: Any) -> list[AgentPart]:
        """Count the calls of a subagent: they change the world too."""
        for block in _blocks(message):
            if block.get("type") == "tool_use":
                self.report.tool_calls += 1
        return []

    def _call(self, block: dict[str, Any]) -> ToolCalled:
        self.report.tool_calls += 1
        self.report.begin_anew()
        identity, name, arguments = str(block.get("id")), str(block.get("name")), block.get("input")
        self._names[identity] = name
        return ToolCalled(id=identity, name=name, arguments=arguments if isinstance(arguments, dict) else {})

    def _results(self, found: dict[str, Any]) -> list[AgentPart]:
        return [
            ToolReturned(
                id=(identity := str(block.get("tool_use_id"))),
                name=self._names.pop(identity, ""),
                content=text_of(block.get("content")),
                is_error=block.get("is_error") is True,
            )
            for block in _blocks(found.get("message"))
            if block.get("type") == "tool_result" and not found.get("parent_tool_use_id")
        ]

    def _piece(self, found: dict[str, Any]) -> list[AgentPart]:
        event = found.get("event")
        if not isinstance(event, dict) or found.get("parent_tool_use_id"):
            return []
        match event:
            case {"type": "message_start", "message": {"id": str(identity)}}:
                self._message = identity
            case {"type": "content_block_delta", "delta": {"type": "text_delta", "text": str(text)}}:
                self._streamed.add(self._message)
                return self._say(text)
        return []

    def _say(self, text: str) -> list[AgentPart]:
        if not text:
            return []
        self.report.say(text)
        return [Text(text=text)]

    def _limit(self, found: dict[str, Any]) -> None:
        match found.get("rate_limit_info"):
            case {"status": "rejected", "resetsAt": ends}:
                self._limit_ends = number(ends)

    def _result(self, found: dict[str, Any]) -> None:
        report = self.report
        report.ended = True
        report.turns = int(number(found.get("num_turns")) or 0)
        report.usd = number(found.get("total_cost_usd"))
        report.usage = usage_of(found)
        answer = found.get("result")
        report.answer = answer if isinstance(answer, str) else None
        subtype = str(found.get("subtype") or "")
        if found.get("is_error") is not True and subtype == "success":
            return
        errors = found.get("errors")
        texts = [str(one) for one in errors] if isinstance(errors, list) else []
        status = found.get("api_error_status")
        report.failure = ProgramFailure(
            text=report.answer or "; ".join(texts) or subtype or "the result is an error and says nothing",
            status=status if isinstance(status, int) else None,
            reason=subtype if subtype != "success" else str(found.get("terminal_reason") or ""),
            retry_at=self._limit_ends,
        )
        report.answer = None


def _blocks(message: Any) -> list[dict[str, Any]]:
    content = message.get("content") if isinstance(message, dict) else None
    return [block for block in content if isinstance(block, dict)] if isinstance(content, list) else []
