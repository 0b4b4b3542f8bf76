"""The forms of a history, one module each, and how to tell them apart."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from holdfast import options
from holdfast.faults import InvalidError
from holdfast.transcript.forms.anthropic import Anthropic
from holdfast.transcript.forms.chat import Chat
from holdfast.transcript.forms.langchain import LangChain
from holdfast.transcript.forms.pydantic_ai import PydanticAI
from holdfast.transcript.forms.responses import ResponsesItems
from holdfast.transcript.turns import get

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.transcript.turns import HistoryForm

__all__ = ["FormName", "form_of"]

FormName: TypeAlias = Literal["anthropic", "chat", "responses", "langchain", "pydantic-ai"]
"""The form of a history: whose messages they are."""

_FORMS: dict[str, HistoryForm] = {
    "anthropic": Anthropic(),
    "chat": Chat(),
    "responses": ResponsesItems(),
    "langchain": LangChain(),
    "pydantic-ai": PydanticAI(),
}
_PACKAGES = {"langchain_core": "langchain", "pydantic_ai": "pydantic-ai"}
# Blocks that only one of the providers has. Plain text is the same for all of them.
_ANTHROPIC_BLOCKS = frozenset({"tool_use", "tool_result", "thinking", "redacted_thinking", "image", "document"})
_RESPONSES_BLOCKS = frozenset({"input_text", "output_text", "input_image", "input_file"})
_CHAT_BLOCKS = frozenset({"image_url", "input_audio", "file"})
_CHAT_ROLES = frozenset({"tool", "function"})


def form_of(history: Sequence[Any], name: str | None) -> HistoryForm:
    """Return the form that is named, or the one that the messages show."""
    if name is not None:
        options.one_of("form", name, _FORMS)
        for where, message in enumerate(history):
            _check(message, name, where)
        return _FORMS[name]
    found: dict[str, int] = {}
    for where, message in enumerate(history):
        shown = _shown_by(message, where)
        if shown is not None:
            found.setdefault(shown, where)
    if len(found) > 1:
        kinds = " and ".join(f"{kind} (message {where})" for kind, where in found.items())
        raise InvalidError.saying("history", "messages of one form", kinds)
    # Plain texts are valid in every form. Chat has the fewest rules for them.
    return _FORMS[next(iter(found), "chat")]


def _shown_by(message: Any, where: int) -> str | None:
    """Return the form that a message shows, or None if it fits several."""
    if (package := _package(message)) is not None:
        return package
    kind, role = get(message, "type"), get(message, "role")
    if not isinstance(role, str) and not isinstance(kind, str):
        raise InvalidError.saying(f"history[{where}]", "a message with a role or a type", type(message).__name__)
    if role in _CHAT_ROLES or get(message, "tool_calls") is not None:
        return "chat"
    blocks = _blocks(message)
    if blocks & _RESPONSES_BLOCKS:
        return "responses"
    if blocks & _CHAT_BLOCKS:
        return "chat"
    if blocks & _ANTHROPIC_BLOCKS or any("tool_use" in block or "tool_result" in block for block in blocks):
        return "anthropic"
    # Only the items of Responses have a type of their own, except a whole answer of Anthropic's.
    return "responses" if isinstance(kind, str) and not (kind == "message" and "text" in blocks) else None


def _package(message: Any) -> str | None:
    for base in type(message).__mro__:
        if (form := _PACKAGES.get(base.__module__.partition(".")[0])) is not None:
            return form
    return None


def _blocks(message: Any) -> set[str]:
    content = get(message, "content")
    if not isinstance(content, (list, tuple)):
        return set()
    return {kind for block in content if isinstance(kind := get(block, "type"), str)}


def _check(message: Any, name: str, where: int) -> None:
    package = _package(message)
    if package != (name if name in _PACKAGES.values() else None):
        expected = f"a message of the form {name}"
        raise InvalidError.saying(
            f"history[{where}]", expected, f"{type(message).__name__} ({package or 'a plain one'})"
        )
    if package is None and not isinstance(get(message, "role"), str) and not isinstance(get(message, "type"), str):
        raise InvalidError.saying(f"history[{where}]", "a message with a role or a type", type(message).__name__)
