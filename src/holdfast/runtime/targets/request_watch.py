"""`RequestWatch`: what operations report of requests that fail again and again, so that one at fault is not taken for a sick service."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.policies.poison import Requests

if TYPE_CHECKING:
    from holdfast.runtime.locks import Lock

__all__ = ["RequestWatch"]


class RequestWatch:
    """The requests to one target, under the lock of its state."""

    __slots__ = ("lock", "seen")

    def __init__(self, lock: Lock) -> None:
        self.lock = lock
        """The lock of the target's state. A fork makes a new one."""
        self.seen = Requests()
        """Its methods are called by whoever holds the lock."""

    def failed(
        self, first: tuple[float, float] | None, attempts: int, began: float, now: float
    ) -> tuple[float, float] | None:
        """Note a failed attempt. Return when the first attempt of its operation began and failed, if a request may have caused that."""
        if first is None:
            return (began, now) if attempts == 1 else None
        with self.lock:
            self.seen.failed_again(*first)
        return first

    def retry_helped(self) -> None:
        """A retry was answered."""
        with self.lock:
            self.seen.helped()

    def gave_up(self, now: float, attempts: int) -> None:
        """An operation gave up that the service had failed again and again. The next first attempt shows whether it was the service."""
        with self.lock:
            self.seen.gave_up(now, attempts)

    def is_poison(self, first: tuple[float, float], attempts: int) -> bool:
        """Whether an operation fails because of its own request. `first`: when its first attempt began and failed."""
        with self.lock:
            return self.seen.are_poison(*first, attempts)
