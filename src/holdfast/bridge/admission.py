"""How many sockets an address and everybody together may hold, and how fast one may send. Machines; nothing here waits.

Invariant: whoever opens sockets without authenticating uses up only sockets of that kind: the oldest one makes room for the newest, so that
a client that authenticates at once always gets in.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Generic, TypeVar

from holdfast.bridge.lockout import address_group
from holdfast.faults import Fault

if TYPE_CHECKING:
    from holdfast.bridge.settings import BridgeSettings

__all__ = ["Admission", "MessagePace"]

S = TypeVar("S")


class Admission(Generic[S]):
    """The sockets of a bridge by address: `admission.opened(socket, "192.0.2.7")` returns the one that has to go, if any."""

    def __init__(self, settings: BridgeSettings) -> None:
        self._settings = settings
        self._known: dict[S, str] = {}
        self._by_address: Counter[str] = Counter()
        """How many of the known ones each address has."""
        # A dict keeps the order in which they came.
        self._strangers: dict[S, str] = {}

    def opened(self, socket: S, peer: str) -> S | None:
        """Count a socket that has not authenticated. Returns an older one to close, if there are too many."""
        address = address_group(peer)
        self._strangers[socket] = address
        counts = Counter(self._strangers.values())
        if counts[address] > self._settings.max_unauthenticated_per_address:
            crowded = address
        elif len(self._strangers) > self._settings.max_unauthenticated:
            crowded = counts.most_common(1)[0][0]
        else:
            return None
        oldest = next(each for each, place in self._strangers.items() if place == crowded)
        del self._strangers[oldest]
        return oldest

    def authenticated(self, socket: S, *, replaces: S | None = None) -> Fault | None:
        """The holder of a socket is known. Returns why it may not stay, if so. `replaces`: an older socket that it takes the place of."""
        if replaces is not None:
            self.closed(replaces)
        address = self._strangers.pop(socket, None)
        if address is None:
            return None
        most = self._settings.max_connections_per_address
        if self._by_address[address] >= most:
            return Fault.of("CONN_LIMIT", "Too many connections from this address", context={"limit": most})
        self._known[socket] = address
        self._by_address[address] += 1
        return None

    def closed(self, socket: S) -> None:
        """A socket is gone."""
        self._strangers.pop(socket, None)
        address = self._known.pop(socket, None)
        if address is not None:
            self._by_address[address] -= 1
            if not self._by_address[address]:
                del self._by_address[address]


class MessagePace:
    """How fast one client may send. A client that sends faster is read more slowly; nothing is lost.

    >>> pace = MessagePace(2)
    >>> [pace.wait(now) for now in (0.0, 0.0, 0.0)]
    [0.0, 0.0, 30.0]
    """

    __slots__ = ("_due", "_interval", "_most")

    def __init__(self, per_minute: int) -> None:
        self._interval = 60.0 / per_minute
        self._most = (per_minute - 1) * self._interval
        self._due = 0.0

    def wait(self, now: float) -> float:
        """Count a message, and return how many seconds to wait before it is handled."""
        due = max(self._due, now)
        self._due = due + self._interval
        return max(0.0, due - self._most - now)
