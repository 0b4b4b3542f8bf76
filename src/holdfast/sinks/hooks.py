"""The state of validators for a screen: a badge for each check, toasts that come and go, and a history.

    with watch_hooks(show, runtime):     # show(change): `change.badge`, `change.toast`
        …

Recovery events stand in the same history, as indicators. Invariant: a badge is what its last event says. A screen redraws on each change.
"""

from __future__ import annotations

from collections import deque
from enum import StrEnum
from typing import TYPE_CHECKING, get_args

import msgspec

from holdfast.events import HookEvent, RecoveryEvent
from holdfast.faults import InvalidError
from holdfast.runtime.runtime import default_runtime

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.events import HookState
    from holdfast.runtime.bus import Subscription
    from holdfast.runtime.runtime import Runtime

__all__ = ["HookBadge", "HookBoard", "HookChange", "HookToast", "watch_hooks"]

HISTORY = 100
"""The events that are kept; the oldest leave first."""
_BATCH_S = 1.0
"""Corrections that follow each other this soon share one toast."""


class HookBadge(StrEnum):
    """What a check is at: `change.badge is HookBadge.FAILED`."""

    PENDING = "pending"
    VALIDATING = "validating"
    PASSED = "passed"
    CORRECTED = "corrected"
    FAILED = "failed"
    SKIPPED = "skipped"


BADGES: dict[HookState, HookBadge] = {
    "pending": HookBadge.PENDING,
    "triggered": HookBadge.VALIDATING,
    "passed": HookBadge.PASSED,
    "corrected": HookBadge.CORRECTED,
    "failed": HookBadge.FAILED,
    "skipped": HookBadge.SKIPPED,
    # It could not check, so nothing is known to be wrong.
    "error": HookBadge.SKIPPED,
}
_SECONDS: dict[HookBadge, float | None] = {HookBadge.PASSED: 2.0, HookBadge.CORRECTED: 5.0, HookBadge.FAILED: None}
"""How long the toast of a badge stays; None means until the user closes it."""


class HookToast(msgspec.Struct, frozen=True, kw_only=True):
    """A short message: `toast.text` for `toast.seconds`."""

    badge: HookBadge
    text: str
    at: float
    seconds: float | None
    """None means until the user closes it."""
    hidden: bool = False
    """A screen may leave it out: nothing has to be known."""
    count: int = 1
    """The corrections that it stands for. A toast that stands for more replaces the one before."""


class HookChange(msgspec.Struct, frozen=True, kw_only=True):
    """What an event changes on a screen."""

    event: HookEvent | RecoveryEvent
    badge: HookBadge | None = None
    """The badge of the check; None for an event of a recovery, which is an indicator."""
    toast: HookToast | None = None


class HookBoard:
    """The badges and the history at present: `board.apply(event)` for every event, in order."""

    def __init__(self) -> None:
        self.badges: dict[tuple[str, str], HookBadge] = {}
        """By the id of the call and the name of the validator."""
        self.history: deque[HookEvent | RecoveryEvent] = deque(maxlen=HISTORY)
        self._toast: HookToast | None = None

    def apply(self, event: HookEvent | RecoveryEvent) -> HookChange:
        """Apply an event; return what it changes."""
        self.history.append(event)
        if not isinstance(event, HookEvent):
            return HookChange(event=event)
        badge = BADGES[event.what]
        self.badges.pop((event.call, event.validator), None)
        self.badges[event.call, event.validator] = badge
        while len(self.badges) > HISTORY:
            del self.badges[next(iter(self.badges))]
        return HookChange(event=event, badge=badge, toast=self._toast_of(event, badge))

    def _toast_of(self, event: HookEvent, badge: HookBadge) -> HookToast | None:
        if badge not in _SECONDS:
            return None
        last, count, text = self._toast, 1, f"{event.validator} {badge}"
        is_batch = last is not None and last.badge is badge is HookBadge.CORRECTED and event.at - last.at <= _BATCH_S
        if last is not None and is_batch:
            count = last.count + 1
            text = f"{count} corrections"
        hidden = badge is HookBadge.PASSED
        toast = HookToast(badge=badge, text=text, at=event.at, seconds=_SECONDS[badge], hidden=hidden, count=count)
        if not hidden:
            self._toast = toast
        return toast


def watch_hooks(show: Callable[[HookChange], object], runtime: Runtime | None = None) -> Subscription:
    """Call `show` with every change, until the subscription is cancelled. Raises `InvalidError` if `show` is not a function.

    with watch_hooks(lambda change: print(change.badge, change.event)):
        ...
    """
    if not callable(show):
        raise InvalidError.at("watch_hooks", "a function of a HookChange", show)
    board = HookBoard()
    return (runtime or default_runtime()).on(
        lambda event: show(board.apply(event)), HookEvent, *get_args(RecoveryEvent)
    )
