"""Cancelling part of what a session does: session > turn > stage > tool (N2-10).

Invariant: cancelling a scope cancels what is inside it, innermost first, and never what is around it. What was not cancelled here
passes through untouched.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Literal, Self, TypeAlias

from holdfast.faults import AbortedError, Fault

if TYPE_CHECKING:
    from types import TracebackType

    from holdfast.faults import Code

__all__ = ["Reason", "Scope", "ScopeKind"]

ScopeKind: TypeAlias = Literal["session", "turn", "stage", "tool"]
Reason: TypeAlias = Literal["user", "parent", "cap"]
"""Somebody asked for it, the scope around was cancelled, or a limit was reached."""

_CODES: dict[ScopeKind, Code] = {
    "session": "SESS_CANCELLED",
    "turn": "SESS_TURN_CANCELLED",
    "stage": "SESS_TURN_CANCELLED",
    "tool": "TOOL_CANCELLED",
}


class Scope:
    """Something that can be cancelled as a whole: `async with Scope("turn", parent=session_scope) as scope`."""

    __slots__ = ("_cancelling", "_children", "_parent", "_task", "kind", "name", "reason")

    def __init__(self, kind: ScopeKind, *, parent: Scope | None = None, name: str = "") -> None:
        self.kind = kind
        self.name = name
        self.reason: Reason | None = None
        """Why it was cancelled."""
        self._parent = parent
        self._children: list[Scope] | None = None
        self._task: asyncio.Task[object] | None = None
        self._cancelling = 0

    def cancel(self, reason: Reason = "user") -> bool:
        """Cancel it and all inside it; return whether there was something to cancel."""
        if self.reason is not None or self._task is None:
            return False
        for child in reversed(self._children or ()):
            child.cancel("parent")
        self.reason = reason
        self._task.cancel()
        return True

    async def __aenter__(self) -> Self:
        self._task = asyncio.current_task()
        assert self._task is not None
        self._cancelling = self._task.cancelling()
        if self._parent is not None:
            self._parent._add(self)  # noqa: SLF001 - a scope and its parent are one tree
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        task, self._task = self._task, None
        if self._parent is not None:
            self._parent._drop(self)  # noqa: SLF001 - ditto
        if task is None or self.reason is None:
            return
        if task.uncancel() <= self._cancelling and kind is asyncio.CancelledError:
            # Only ours: whoever is around must see its own cancellation.
            raise self.error() from error

    def _add(self, child: Scope) -> None:
        if self._children is None:
            self._children = []
        self._children.append(child)

    def _drop(self, child: Scope) -> None:
        assert self._children is not None
        self._children.remove(child)
        if not self._children:
            # Many scopes are idle most of the time.
            self._children = None

    def error(self) -> AbortedError:
        """Return what to raise where the scope was cancelled."""
        code = _CODES[self.kind]
        context = {"scope": self.kind, "name": self.name, "reason": self.reason or "user"}
        return AbortedError(Fault.of(code, context=context))
