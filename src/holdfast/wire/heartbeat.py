"""`HeartbeatWatch`: whether the other side is still there.

Invariant: every byte that arrives counts as a sign of life. Silence while this side itself did not run (a phone that slept, a loop that was
blocked) is not held against the other side.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from holdfast import options
from holdfast.policies.profiles import BRIDGE

HEARTBEAT_S = BRIDGE.limits["heartbeat_s"]
HEARTBEAT_TIMEOUT_S = BRIDGE.limits["pong_s"]
_WAKE_S = 3.0
"""How long the other side may take to answer after this side was asleep."""

Beat: TypeAlias = Literal["ping", "dead"]
"""Send a ping; or the other side is gone."""


class HeartbeatWatch:
    """Watches one connection. `now` is the monotonic clock.

    heartbeat = HeartbeatWatch(now)
    match heartbeat.check(now):
        case "ping": send_ping()
        case "dead": close()
    wait_until(heartbeat.next_at)
    """

    def __init__(self, now: float, *, interval: float = HEARTBEAT_S, timeout: float = HEARTBEAT_TIMEOUT_S) -> None:
        options.seconds("heartbeat.interval", interval)
        options.seconds("heartbeat.timeout", timeout)
        self.interval, self.timeout = interval, timeout
        self._pinged = False
        self.next_at = now + interval
        """When to call `check` next."""

    def received(self, now: float) -> None:
        """Something arrived, whatever it is."""
        self._pinged = False
        self.next_at = now + self.interval

    def check(self, now: float) -> Beat | None:
        """Return what to do now; None: nothing yet."""
        if now < self.next_at:
            return None
        if now - self.next_at > 2 * self.interval:
            return self.wake(now)
        if self._pinged:
            return "dead"
        self._pinged = True
        self.next_at = now + self.timeout
        return "ping"

    def wake(self, now: float) -> Beat:
        """Ask at once, and do not wait long: this side was asleep, or is online again."""
        self._pinged = True
        self.next_at = now + min(_WAKE_S, self.timeout)
        return "ping"
