"""Which sockets are let in, by what they cost, and how fast one may send. Machines; nothing here waits.

Invariant: whoever opens sockets without being known uses up only places of that kind: when all are taken, an idle one of the address that
holds most makes room for the newest. A socket whose bytes wait unread here is never the one that goes: then the server is slow, not the client.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Generic, TypeVar

from holdfast.bridge.access.lockout import address_group
from holdfast.faults import Fault

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.bridge.settings import BridgeSettings

__all__ = ["Admission", "MessagePace", "Strangers"]

S = TypeVar("S")

_MOST_LOOKED_AT = 32
"""How many sockets are asked whether they are idle, to find one that goes. When the server was slow, none of many thousand may be."""


class Strangers(Generic[S]):
    """Sockets whose client is not known yet, by address, the oldest first: `strangers.add(socket, "192.0.2.7")`.

    A socket takes one place, and one more for each `max_frame_before_auth` bytes that the server holds of it.

    most: how many places there are if the process cannot open as many sockets as the settings allow.
    """

    def __init__(self, settings: BridgeSettings, is_idle: Callable[[S], bool], *, most: int | None = None) -> None:
        self._most = settings.max_unauthenticated if most is None else min(most, settings.max_unauthenticated)
        self._most_of_address = settings.max_unauthenticated_per_address
        self._place_bytes = settings.connection.max_frame_before_auth
        self._is_idle = is_idle
        # A dict keeps the order in which they came.
        self._sockets: defaultdict[str, dict[S, int]] = defaultdict(dict)
        """The places of each."""
        self._places: Counter[str] = Counter()
        self._all = 0

    def add(self, socket: S, address: str) -> S | None:
        """Count a socket. Returns an older one to close, if there are too many: it is not counted any more."""
        self._sockets[address][socket] = 1
        self._count(address, 1)
        return self._surplus(address, socket)

    def holds(self, socket: S, address: str, size: int) -> S | None:
        """The server holds so many bytes of a socket. Returns one to close, as `add`."""
        before = self._sockets.get(address, {}).get(socket)
        now = 1 + size // self._place_bytes
        if before is None or now <= before:
            return None
        self._sockets[address][socket] = now
        self._count(address, now - before)
        return self._surplus(address, socket)

    def remove(self, socket: S, address: str) -> bool:
        """Its client is known, or it is gone. Returns whether it was counted."""
        of_address = self._sockets.get(address)
        places = None if of_address is None else of_address.pop(socket, None)
        if of_address is None or places is None:
            return False
        self._count(address, -places)
        if not of_address:
            del self._sockets[address]
            del self._places[address]
        return True

    def __len__(self) -> int:
        return self._all

    def _count(self, address: str, places: int) -> None:
        self._places[address] += places
        self._all += places

    def _surplus(self, address: str, newest: S) -> S | None:
        if self._places[address] > self._most_of_address:
            crowded = address
        elif self._all > self._most:
            crowded = self._most_crowded()
        else:
            return None
        return self._oldest_idle(crowded, newest)

    def yield_one(self, newest: S | None = None) -> S | None:
        """Return an idle socket to close, though there are places left: the process has no sockets left. It is not counted any more."""
        return self._oldest_idle(self._most_crowded(), newest) if self._places else None

    def _most_crowded(self) -> str:
        return max(self._places, key=self._places.__getitem__)

    def _oldest_idle(self, crowded: str, newest: S | None) -> S | None:
        for looked, socket in enumerate(self._sockets[crowded]):
            if looked >= _MOST_LOOKED_AT:
                break
            if socket != newest and self._is_idle(socket):
                self.remove(socket, crowded)
                return socket
        return None


class Admission(Generic[S]):
    """The sockets of a bridge by address: `admission.opened(socket, "192.0.2.7")` returns the one that has to go, if any."""

    def __init__(
        self, settings: BridgeSettings, is_idle: Callable[[S], bool] = lambda _: True, *, most: int | None = None
    ) -> None:
        self._settings = settings
        self._known: dict[S, str] = {}
        self._by_address: Counter[str] = Counter()
        """How many of the known ones each address has."""
        self._strangers = Strangers(settings, is_idle, most=most)
        self._addresses: dict[S, str] = {}
        """Those of sockets that have not authenticated."""

    def opened(self, socket: S, peer: str) -> S | None:
        """Count a socket that has not authenticated. Returns an older one to close, if there are too many."""
        address = self._addresses[socket] = address_group(peer)
        return self._gone(self._strangers.add(socket, address))

    def yield_one(self) -> S | None:
        """Return an idle socket that has not authenticated, to close it; None if there is none. It is not counted any more."""
        return self._gone(self._strangers.yield_one())

    def _gone(self, oldest: S | None) -> S | None:
        if oldest is not None:
            del self._addresses[oldest]
        return oldest

    def authenticated(self, socket: S, *, replaces: S | None = None) -> Fault | None:
        """The holder of a socket is known. Returns why it may not stay, if so. `replaces`: an older socket that it takes the place of."""
        if replaces is not None:
            self.closed(replaces)
        address = self._addresses.pop(socket, None)
        if address is None:
            return None
        self._strangers.remove(socket, address)
        most = self._settings.max_connections_per_address
        if self._by_address[address] >= most:
            return Fault.of("CONN_LIMIT", "Too many connections from this address", context={"limit": most})
        self._known[socket] = address
        self._by_address[address] += 1
        return None

    def closed(self, socket: S) -> None:
        """A socket is gone."""
        stranger = self._addresses.pop(socket, None)
        if stranger is not None:
            self._strangers.remove(socket, stranger)
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
