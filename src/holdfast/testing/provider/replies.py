"""The replies of the provider to requests without a fault.

There are three modes. `echo` repeats the user's last text. `tools` calls the first tool on offer and then reports its result.
With a list of turns, the number of the assistant's earlier turns in the conversation selects the reply. A turn is a text, the call of
a tool, or a text with several calls.

A request that wants JSON of a schema gets it, and one that forces or forbids a tool call is obeyed. Only a list of turns is played as it
is written.

Invariant: the same request always gets the same reply, so a retry gets the reply of the first attempt.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import msgspec

from holdfast.testing.provider.schema import example

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

Calls = Literal["may", "must", "never"]
"""Whether a reply calls a tool."""

# Fragments of this length cut through JSON tokens, as real deltas do.
_FRAGMENT = 7


class ToolCall(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One of the calls of a `Turn`."""

    tool: str
    arguments: dict[str, Any] | str = {}
    """A text is sent as it is, so that it may be broken JSON. Protocols whose calls are JSON objects send it as a string there."""


class Turn(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A turn of a scripted conversation that calls tools: one, or several with a text before them.

    For example:
        search = Turn(tool="search", arguments={"q": "holdfast"})
        both = Turn(text="I look at both.", calls=(ToolCall("read", {"path": "a"}), ToolCall("read", {"path": "b"})))
        Script(replies=(search, both, "Done."))
    """

    tool: str = ""
    """The only tool, or the first one."""
    arguments: dict[str, Any] | str = {}
    text: str = ""
    """What the model says before it calls."""
    calls: tuple[ToolCall, ...] = ()
    """Further calls of the same turn, in this order."""
    tokens: int = 0
    """The tokens that the whole turn takes; 0: few. A request that allows fewer gets the beginning, with the reason that the limit was reached."""

    @property
    def all_calls(self) -> tuple[ToolCall, ...]:
        """Every call of the turn."""
        return (ToolCall(self.tool, self.arguments), *self.calls) if self.tool else self.calls


class OfferedTool(NamedTuple):
    """A tool on offer, the same for all protocols."""

    name: str
    schema: dict[str, Any]


def only(tools: tuple[OfferedTool, ...], names: Sequence[Any]) -> tuple[OfferedTool, ...]:
    """Return the tools with these names. A tool that is not on offer is called too, without arguments."""
    known = {tool.name: tool for tool in tools}
    return tuple(known.get(name, OfferedTool(name, {})) for name in names if isinstance(name, str) and name)


class RequestContent(NamedTuple):
    """The content of a request, the same for all protocols."""

    text: str
    """The user's last text."""
    result: str | None
    """The result of a tool, if the conversation ends with one."""
    turns: int
    """How many turns the assistant has had."""
    tools: tuple[OfferedTool, ...]
    """The tools that may be called. If the request names one that must be called, it is the only one."""
    tokens: int
    calls: Calls = "may"
    schema: dict[str, Any] | None = None
    """The schema of the JSON that the reply must be."""
    limit: int | None = None
    """The most tokens that the reply may have."""


class WrittenCall(NamedTuple):
    """The call of a tool, as an answer carries it."""

    name: str
    arguments: str
    """JSON, or a script's broken text."""
    suffix: str
    """What makes its id differ from those of the other calls of the same answer."""
    is_cut: bool = False
    """Whether the end of its arguments is missing."""

    @property
    def pieces(self) -> list[str]:
        """The fragments in which the arguments are streamed."""
        return [self.arguments[at : at + _FRAGMENT] for at in range(0, len(self.arguments), _FRAGMENT)]

    @property
    def json(self) -> msgspec.Raw:
        """The arguments as a part of a JSON document. A broken text becomes a string, one that was cut an empty object."""
        if self.is_cut:
            return msgspec.Raw(b"{}")
        try:
            msgspec.json.decode(self.arguments)
        except msgspec.DecodeError:
            return msgspec.Raw(msgspec.json.encode(self.arguments))
        return msgspec.Raw(self.arguments.encode())


class Cached(NamedTuple):
    """The tokens of a prompt that were read from the cache, and those that were stored in it."""

    read: int = 0
    written: int = 0


class ReplyContent(NamedTuple):
    """The content of an answer: a text, the calls of tools, or both."""

    text: str
    calls: tuple[WrittenCall, ...]
    input_tokens: int
    cached: Cached | None = None
    """What of the prompt came from the cache, and what was stored there; None: no cache was used."""
    is_cut: bool = False
    """Whether it reached the limit of its tokens before its end."""

    def cut(self, share: float) -> ReplyContent:
        """Return the beginning: this share of its pieces. A call of which nothing else is left has its name."""
        left = int(self.output_tokens * share)
        texts = self.pieces[:left]
        left -= len(texts)
        calls: list[WrittenCall] = []
        for call in self.calls if len(texts) == len(self.pieces) else ():
            kept = call.pieces[:left]
            is_cut = len(kept) < len(call.pieces)
            calls.append(call._replace(arguments="".join(kept), is_cut=is_cut))
            left -= len(kept)
            if is_cut:
                break
        return self._replace(text="".join(texts), calls=tuple(calls), is_cut=True)

    @property
    def has_text(self) -> bool:
        """Whether the answer has a part with text. Without calls it has one, even if it is empty."""
        return bool(self.text) or not self.calls

    @property
    def pieces(self) -> list[str]:
        """The pieces in which the text is streamed: its words."""
        if not self.has_text:
            return []
        first, *others = self.text.split(" ")
        return [first, *(f" {word}" for word in others)]

    @property
    def output_tokens(self) -> int:
        """The number of tokens: one per piece."""
        return len(self.pieces) + sum(len(call.pieces) for call in self.calls)


def reply_to(prompt: RequestContent, mode: str | Sequence[str | Turn]) -> ReplyContent:
    """Return the reply to a prompt in one of the modes above."""
    if isinstance(mode, str):
        return MODES[mode](prompt)
    # The last turn repeats, so that a longer conversation does not fail.
    turn = mode[min(prompt.turns, len(mode) - 1)]
    if isinstance(turn, str):
        return _say(prompt, turn)
    reply = _call(prompt, turn.text, turn.all_calls)
    limit = prompt.limit
    # A limit that is no number is the request's mistake, and no reason to cut.
    return reply.cut(limit / turn.tokens) if isinstance(limit, int) and limit < turn.tokens else reply


def call_first_tool(prompt: RequestContent) -> ReplyContent:
    """Call the first tool on offer. Without a tool, reply with a text."""
    if not prompt.tools:
        return _answer(prompt, f"You said: {prompt.text}")
    tool = prompt.tools[0]
    reply = _call(prompt, "", (ToolCall(tool.name, example(tool.schema)),))
    # Ids count the requests of one server. A conversation that goes on with another server must not meet the same id again.
    return (
        reply._replace(calls=tuple(call._replace(suffix=f"_t{prompt.turns}") for call in reply.calls))
        if prompt.turns
        else reply
    )


def _echo(prompt: RequestContent) -> ReplyContent:
    if prompt.calls == "must" and prompt.tools:
        return call_first_tool(prompt)
    return _answer(prompt, f"You said: {prompt.text}")


def _use_tools(prompt: RequestContent) -> ReplyContent:
    if prompt.calls != "must" and prompt.result is not None:
        return _answer(prompt, f"The tool says: {prompt.result}")
    return _echo(prompt) if prompt.calls == "never" else call_first_tool(prompt)


def _answer(prompt: RequestContent, text: str) -> ReplyContent:
    if prompt.schema is None:
        return _say(prompt, text)
    return _say(prompt, msgspec.json.encode(example(prompt.schema)).decode())


MODES: dict[str, Callable[[RequestContent], ReplyContent]] = {"echo": _echo, "tools": _use_tools}


def _say(prompt: RequestContent, text: str) -> ReplyContent:
    return ReplyContent(text=text, calls=(), input_tokens=prompt.tokens)


def _call(prompt: RequestContent, text: str, calls: Sequence[ToolCall]) -> ReplyContent:
    written = tuple(
        # The first id has no suffix: it is the id of the only call in most answers.
        WrittenCall(call.tool, _arguments(call.arguments), f"_{at}" if at else "")
        for at, call in enumerate(calls)
    )
    return ReplyContent(text=text, calls=written, input_tokens=prompt.tokens)


def _arguments(given: Any) -> str:
    return given if isinstance(given, str) else msgspec.json.encode(given).decode()
