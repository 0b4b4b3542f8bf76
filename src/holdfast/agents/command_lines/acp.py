"""The Agent Client Protocol: JSON-RPC lines in both directions, version 1 of the protocol.

    we: initialize ─▶ session/new | session/load | session/resume ─▶ session/prompt ─▶ (session/cancel)
    the program: the answers, session/update for each piece of its work, session/request_permission before a risky tool call

The program works with its own files and terminals: we offer it none of ours.

The reader is a machine without I/O: `begin` and every line put what has to be written into `outgoing`, and what a person has to decide into
`asked`. It needs no package. The official one is written for editors: it validates strictly, so a word of a newer version ends a turn, and
importing it takes longer than many programs run. The tests drive a program that is written with it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from holdfast._version import __version__
from holdfast.agents.command_lines.report import LineReader, ProgramFailure, number, text_of
from holdfast.agents.parts import Text, ToolCalled, ToolReturned
from holdfast.policies.models.usage import Usage
from holdfast.providers.messages import ToolCall

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.agents.parts import AgentPart
    from holdfast.faults import Code

__all__ = ["LOST", "AcpLines", "Asked", "is_spoken"]

VERSION = 1
_US = {"name": "holdfast", "title": "Holdfast", "version": __version__}
LOST = ("session not found", "unknown session", "no such session", "no conversation found", "no rollout found")
"""What programs answer, in lower case, if they do not know the conversation that they should load."""

_UNKNOWN_TO_PROGRAM = (-32601, -32602, -32002)
"""Codes of an answer to `session/load` that mean: no such method, no such id, no such resource."""
_NO_METHOD = {"code": -32601, "message": "Method not found"}
_BAD_REQUEST = {"code": -32602, "message": "Invalid params"}
_STOPS: dict[str, tuple[Code, str]] = {
    "max_tokens": ("TASK_OUTPUT_EXHAUSTED", "The answer reached the limit of its tokens before its end"),
    "max_turn_requests": ("TASK_TURNS_EXHAUSTED", "The program stopped at its own limit of model requests"),
    "refusal": ("PROVIDER_CONTENT_POLICY", "The model declined to answer"),
    "cancelled": ("ACTOR_CLI_ERROR", "The program says that its turn was cancelled, and nobody here did that"),
}
"""Ends of a turn without an answer."""
_ENDED = ("completed", "failed")
"""States of a tool call. No set: a program may send something that is no text, and a list cannot be looked up in a set."""

_ONCE, _ALWAYS, _DENIED = ("allow_once",), ("allow_once", "allow_always"), ("reject_once", "reject_always")
"""Which option of a program is chosen. One that holds for later calls too is chosen only if nobody decides about single calls."""


def is_spoken(argv: Sequence[str]) -> bool:
    """Whether the arguments of a program ask for this protocol: `gemini --acp`, `opencode acp`, `claude-code-acp`."""
    _, *more = argv
    is_named = any(part.rpartition("/")[2].endswith("-acp") for part in argv if not part.startswith("-"))
    return is_named or more[:1] == ["acp"] or "--acp" in more or "--experimental-acp" in more


class Asked(NamedTuple):
    """The program asks whether it may make a tool call. `AcpLines.answer` says what was decided."""

    id: Any
    """The id of the request."""
    call: ToolCall
    """The kind of the tool (`edit`, `execute` …) and what the program shows about the call."""
    options: tuple[dict[str, Any], ...]


class AcpLines(LineReader):
    """Speaks the protocol for one prompt."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[Asked] = []
        """What somebody must decide about."""
        self._sent: dict[int, str] = {}
        """The methods of our requests that have no answer yet, by their ids."""
        self._prompt = self._folder = self._known = ""
        self._spent = 0.0
        self._is_replayed = False
        """Whether what comes now was said before: a conversation that is loaded comes again as a whole."""
        self._requests = 0
        self._loading = ""
        """The method that goes on with a conversation; empty if the program has none."""
        self._calls: dict[str, dict[str, Any]] = {}
        """What is known about each tool call that has not ended, by its id."""
        self._is_cancelled = False
        self._denied = ""
        """The kind of the last call that was denied."""
        self._counted: set[str] = set()
        self._begun: set[str] = set()
        self._returned: set[str] = set()

    # --- what we say ---

    def begin(self, prompt: str, *, folder: str, session: str = "", spent: float = 0.0) -> None:
        """Begin to speak. session: the conversation to go on with. spent: what it cost up to now."""
        self._prompt, self._folder, self._known, self._spent = prompt, folder, session, spent
        nothing = {"fs": {"readTextFile": False, "writeTextFile": False}, "terminal": False}
        self._request("initialize", protocolVersion=VERSION, clientCapabilities=nothing, clientInfo=_US)

    def answer(self, asked: Asked, *, is_given: bool, is_lasting: bool = False) -> None:
        """Tell the program whether it may make a tool call. `is_lasting`: the permission may hold for later calls, too."""
        if asked not in self.asked:
            # The turn was cancelled meanwhile, which has answered it.
            return
        self.asked.remove(asked)
        self._denied = "" if is_given else asked.call.name
        kinds = _DENIED if not is_given else _ALWAYS if is_lasting else _ONCE
        chosen = [option for kind in kinds for option in asked.options if option.get("kind") == kind]
        if not chosen:
            self._close(asked)
            return
        if is_given:
            # A program that was allowed something may do it before it says so.
            self._count(asked.call.id)
        outcome = {"outcome": "selected", "optionId": chosen[0].get("optionId")}
        self._write({"id": asked.id, "result": {"outcome": outcome}})

    def _close(self, asked: Asked) -> None:
        """Answer a question without a choice. The program does not make the call."""
        self._write({"id": asked.id, "result": {"outcome": {"outcome": "cancelled"}}})

    def cancel(self) -> bool:
        """Ask the program to end its turn; return whether it has one."""
        if "session/prompt" not in self._sent.values():
            return False
        self._is_cancelled = True
        self._write({"method": "session/cancel", "params": {"sessionId": self.report.session}})
        # The protocol wants an answer to every open question about a tool call.
        for asked in tuple(self.asked):
            self.asked.remove(asked)
            self._close(asked)
        return True

    def unread(self, held: int) -> None:
        """The program reads nothing, and so many bytes wait for it: its turn has failed."""
        text = f"The program does not read its input, and {held} bytes wait for it"
        self.report.ended = True
        self.report.failure = ProgramFailure(text=text, reason="unread", code="ACTOR_CLI_ERROR")

    def _request(self, method: str, **params: Any) -> None:
        self._requests += 1
        self._sent[self._requests] = method
        self._write({"id": self._requests, "method": method, "params": params})

    def _write(self, message: dict[str, Any]) -> None:
        self.outgoing.append(msgspec.json.encode({"jsonrpc": "2.0", **message}) + b"\n")

    # --- what the program says ---

    def read_object(self, found: dict[str, Any]) -> list[AgentPart]:
        """Take a message. What is not one of the protocol is kept as text."""
        method, params = found.get("method"), found.get("params")
        given = params if isinstance(params, dict) else {}
        if method == "session/update":
            session = given.get("sessionId", self.report.session)
            return self._update(given.get("update"), is_ours=session == self.report.session or not self.report.session)
        if isinstance(method, str):
            if "id" in found:
                self._asked(method, found["id"], given)
            return []
        if "result" in found or "error" in found:
            self._answered(found)
            return []
        return self.read_text(msgspec.json.encode(found).decode())

    def _asked(self, method: str, identity: Any, params: dict[str, Any]) -> None:
        call, options = params.get("toolCall"), params.get("options")
        if method != "session/request_permission":
            self._write({"id": identity, "error": _NO_METHOD})
        elif not isinstance(call, dict) or not isinstance(options, list):
            self._write({"id": identity, "error": _BAD_REQUEST})
        else:
            known = self._learn(call)
            kind = str(known.get("kind") or "other")
            tool_call = ToolCall(id=str(call.get("toolCallId")), name=kind, arguments=_shown(known))
            choices = tuple(option for option in options if isinstance(option, dict))
            question = Asked(identity, tool_call, choices)
            if self._is_cancelled:
                # It was on its way when the turn was cancelled.
                self._close(question)
            else:
                self.asked.append(question)

    def _answered(self, found: dict[str, Any]) -> None:
        identity = found.get("id")
        method = self._sent.pop(identity, "") if isinstance(identity, int) else ""
        error, result = found.get("error"), found.get("result")
        given = result if isinstance(result, dict) else {}
        if not method:
            self.read_text(msgspec.json.encode(found).decode())
        elif error is not None:
            self._failed(method, error)
        elif method == "initialize":
            self._initialized(given)
        elif method == "session/prompt":
            self._end(given)
        else:
            self._opened(given)

    def _failed(self, method: str, error: Any) -> None:
        code = error.get("code") if isinstance(error, dict) else None
        self.report.ended = True
        self.report.failure = ProgramFailure(text=_words(error), reason=method)
        self.report.is_lost = bool(self._known) and method == self._loading and code in _UNKNOWN_TO_PROGRAM

    def _initialized(self, result: dict[str, Any]) -> None:
        if (version := result.get("protocolVersion")) != VERSION:
            text = f"The program speaks version {version} of the Agent Client Protocol, and we speak version {VERSION}"
            self.report.ended = True
            self.report.failure = ProgramFailure(text=text, reason="initialize", code="PROTO_VERSION_INCOMPATIBLE")
            return
        self._loading = _loading(result.get("agentCapabilities"))
        self.report.can_resume = bool(self._loading)
        where: dict[str, Any] = {"cwd": self._folder, "mcpServers": []}
        if not self._known:
            self._request("session/new", **where)
        elif self._loading:
            self._is_replayed = True
            self._request(self._loading, sessionId=self._known, **where)
        else:
            self.report.ended = self.report.is_lost = True
            self.report.failure = ProgramFailure(text="The program cannot load a conversation", reason="initialize")

    def _opened(self, result: dict[str, Any]) -> None:
        report = self.report
        self._is_replayed = False
        report.session = self._known or str(result.get("sessionId") or "")
        match result.get("models"):
            case {"currentModelId": str(model)}:
                report.model = model
        if not report.session:
            report.ended = True
            report.failure = ProgramFailure(
                text="The program opened a conversation without an id", reason="session/new"
            )
            return
        prompt = [{"type": "text", "text": self._prompt}]
        self._request("session/prompt", sessionId=report.session, prompt=prompt)

    def _end(self, result: dict[str, Any]) -> None:
        report = self.report
        report.ended, report.turns = True, 1
        report.usage = _usage(result.get("usage"))
        stop = str(result.get("stopReason"))
        if stop == "end_turn" and self._denied and not report.text.strip():
            # Some programs end their turn when a call is denied.
            text = f"The call ({self._denied}) was not allowed, and the program ended its turn without an answer"
            report.failure = ProgramFailure(text=text, reason="denied", code="TOOL_APPROVAL_DENIED")
            return
        if stop == "end_turn":
            report.answer = report.text
            return
        code, text = _STOPS.get(stop, ("ACTOR_CLI_ERROR", f"The program ended its turn with the reason {stop!r}"))
        report.failure = ProgramFailure(text=text, reason=stop, code=code)

    # --- the work in pieces ---

    def _update(self, update: Any, *, is_ours: bool) -> list[AgentPart]:
        if not isinstance(update, dict):
            return []
        match update.get("sessionUpdate"):
            case "tool_call" | "tool_call_update":
                # Also of another conversation of the program: it is work that was done.
                return self._call(update)
            case "usage_update" if is_ours:
                self._cost(update.get("cost"))
            case "agent_message_chunk" if is_ours and not self._is_replayed:
                return self._text(update.get("content"))
        return []

    def _text(self, content: Any) -> list[AgentPart]:
        match content:
            case {"type": "text", "text": str(text)} if text:
                self.report.say(text)
                return [Text(text=text)]
        return []

    def _call(self, update: dict[str, Any]) -> list[AgentPart]:
        known, identity = self._learn(update), str(update.get("toolCallId"))
        has_ended = known.get("status") in _ENDED
        if has_ended:
            del self._calls[identity]
        if self._is_replayed:
            return []
        name = str(known.get("title") or known.get("kind") or "")
        parts: list[AgentPart] = []
        if identity not in self._begun:
            self._begun.add(identity)
            self._count(identity)
            given = known.get("rawInput")
            parts.append(ToolCalled(id=identity, name=name, arguments=given if isinstance(given, dict) else {}))
        if has_ended and identity not in self._returned:
            self._returned.add(identity)
            failed = known.get("status") == "failed"
            parts.append(ToolReturned(id=identity, name=name, content=_content(known), is_error=failed))
        return parts

    def _learn(self, update: dict[str, Any]) -> dict[str, Any]:
        """Return all that is known about a tool call. Each message about it has only what is new."""
        known = self._calls.setdefault(str(update.get("toolCallId")), {})
        known.update((name, value) for name, value in update.items() if value is not None)
        return known

    def _count(self, identity: str) -> None:
        if identity not in self._counted:
            self._counted.add(identity)
            self.report.tool_calls += 1
            self.report.begin_anew()

    def _cost(self, cost: Any) -> None:
        match cost:
            case {"amount": amount, "currency": "USD"} if (usd := number(amount)) is not None:
                # The program counts from the beginning of the conversation.
                self.report.usd = max(0.0, usd - self._spent)


def _loading(capabilities: Any) -> str:
    """Return the method that goes on with a conversation; empty if the program has none."""
    match capabilities:
        case {"loadSession": True}:
            return "session/load"
        case {"sessionCapabilities": {"resume": dict()}}:
            return "session/resume"
    return ""


def _shown(known: dict[str, Any]) -> dict[str, Any]:
    """Return what a person is shown about a call: an answer holds for exactly this."""
    shown = {"title": known.get("title"), "input": known.get("rawInput")}
    blocks = known.get("content")
    # A change of a file is shown as the program shows it. Other content is what the call has printed.
    changes = (
        [one for one in blocks if isinstance(one, dict) and one.get("type") == "diff"]
        if isinstance(blocks, list)
        else []
    )
    fields = ("path", "oldText", "newText")
    shown["changes"] = [{name: one[name] for name in fields if name in one} for one in changes]
    return {name: value for name, value in shown.items() if value}


def _content(known: dict[str, Any]) -> str:
    """Return what a call has returned: its text, else its raw output."""
    blocks = known.get("content")
    inner = [one.get("content") for one in blocks if isinstance(one, dict)] if isinstance(blocks, list) else []
    return text_of(inner) or text_of(known.get("rawOutput"))


def _words(error: Any) -> str:
    """Return what an error of JSON-RPC says, with its details."""
    if not isinstance(error, dict):
        return text_of(error)
    data = error.get("data")
    if isinstance(data, dict):
        data = data.get("details") or data.get("message") or data
    return (
        ": ".join(part for part in (text_of(error.get("message")), text_of(data)) if part) or "an error without words"
    )


def _usage(reported: Any) -> Usage | None:
    if not isinstance(reported, dict) or number(reported.get("inputTokens")) is None:
        return None
    names = ("inputTokens", "outputTokens", "thoughtTokens", "cachedReadTokens", "cachedWriteTokens")
    given, output, thought, cached, written = (int(number(reported.get(name)) or 0) for name in names)
    return Usage(input=given, output=output + thought, cached=cached, written=written)
