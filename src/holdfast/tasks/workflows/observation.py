"""What a running workflow tells those who watch it, as values.

    def show(observation):
        match observation:
            case CallStarted(name=name, position=position): ...

Invariant: texts in them are masked and short.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from holdfast.workflow.syntax import Position

__all__ = ["BindingKept", "CallEnded", "CallStarted", "Logged", "Observation", "WaitStarted"]


class CallStarted(msgspec.Struct, frozen=True, kw_only=True):
    """A task, tool or function is called."""

    kind: str
    name: str
    position: Position
    expression: str
    strand: str = ""
    """The item of `map` that it belongs to, such as `0.3/`; empty outside of `map`."""


class CallEnded(msgspec.Struct, frozen=True, kw_only=True):
    """The call has ended."""

    kind: str
    name: str
    position: Position
    ok: bool
    stored: bool = False
    """Whether the result was stored by an earlier run, so that nothing was called."""
    text: str = ""
    """The result, or the message of the failure."""
    strand: str = ""


class BindingKept(msgspec.Struct, frozen=True, kw_only=True):
    """A name got a value, and that is stored."""

    name: str
    text: str
    position: Position
    strand: str = ""


class Logged(msgspec.Struct, frozen=True, kw_only=True):
    """A line of `log-message`."""

    text: str
    position: Position


class WaitStarted(msgspec.Struct, frozen=True, kw_only=True):
    """`retry` waits before its next attempt."""

    seconds: float


Observation: TypeAlias = CallStarted | CallEnded | BindingKept | Logged | WaitStarted
