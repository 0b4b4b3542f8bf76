"""Cancellation of a part of a session: session > turn > stage > tool (N2-10).

Invariant: cancelling a scope cancels the scopes inside it, innermost first, and never the scopes around it. A cancellation from
elsewhere passes through unchanged.
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
"""Why a scope was cancelled: a user cancelled it, the scope around it was cancelled, or a limit was reached."""

_CODES: dict[ScopeKind, Code] = {
    "session": "SESS_CANCELLED",
    "turn": "SESS_TURN_CANCELLED",
    "stage": "TASK_STAGE_CANCELLED",
    "tool": "TOOL_CANCELLED",
}


class Scope:
    """A block that can be cancelled as a whole.

        async with Scope("stage", parent=turn.scope, name="tests") as scope:
            ...                     # elsewhere: scope.cancel()

    A block that was cancelled this way raises `AbortedError` with the code of its kind: SESS_CANCELLED, SESS_TURN_CANCELLED,
    TASK_STAGE_CANCELLED or TOOL_CANCELLED.
    """

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

    @property
    def parent(self) -> Scope | None:
        """The scope around this one."""
        return self._parent

    def cancel(self, reason: Reason = "user") -> bool:
        """Cancel the scope and all scopes inside it; return whether it was running."""
        # The task would count a second cancellation too, and one `uncancel` would not undo both.
        if self.reason is not None or self._task is None:
            return False
        # Innermost first: a tool must see its own cancellation before the turn around it ends.
        for child in reversed(self._children or ()):
            child.cancel("parent")
        self.reason = reason
        self._task.cancel()
        return True

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.__exit__(kind, error, trace)

    def __enter__(self) -> Self:
        self._task = asyncio.current_task()
        assert self._task is not None
        # Earlier cancellations of the task are not ours. Remember their number.
        self._cancelling = self._task.cancelling()
        if self._parent is not None:
            self._parent._add(self)  # noqa: SLF001 - a scope and its parent are one tree
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        task, self._task = self._task, None
        if self._parent is not None:
            self._parent._drop(self)  # noqa: SLF001 - a scope and its parent are one tree
        if task is None or self.reason is None:
            return
        if task.uncancel() <= self._cancelling and kind is asyncio.CancelledError:
            # Translate only our own cancellation. The cancellation of an outer scope must reach that scope.
            raise self.error() from error

    def _add(self, child: Scope) -> None:
        if self._children is None:
            self._children = []
        self._children.append(child)

    def _drop(self, child: Scope) -> None:
        assert self._children is not None
        self._children.remove(child)
        if not self._children:
            # Most sessions are idle most of the time, so an empty list is not kept.
            self._children = None

    def error(self) -> AbortedError:
        """Return the error that a cancelled scope raises."""
        code = _CODES[self.kind]
        context = {"scope": self.kind, "name": self.name, "reason": self.reason or "user"}
        return AbortedError(Fault.of(code, context=context))
