"""`Ring`: the newest messages of a session in memory, so that clients that are a little behind need no store. `ReplayBuffer`: the same for texts.

Invariant: what it holds has no holes. `size` is the exact number of bytes, and what is too old is dropped when it is read, too.
"""

from __future__ import annotations

from collections import deque
from datetime import UTC, datetime
from typing import TYPE_CHECKING, NamedTuple

from holdfast import options
from holdfast.policies.profiles import BRIDGE
from holdfast.wire.position import Reach

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.clock import Clock

RING_BYTES = int(BRIDGE.limits["replay_bytes"])
RING_AGE_S = BRIDGE.limits["replay_age_s"]


class RingMessage(NamedTuple):
    """A message in the ring, as it is sent."""

    offset: int
    id: str
    timestamp: str
    """When it was stored. It never goes back within a session."""
    frame: bytes
    at: float
    """When it came, by the monotonic clock."""


class Ring:
    """The newest messages of one session. `now` is the monotonic clock.

        ring = Ring(epoch="k3J", top=17)
        ring.append(Held(18, "…", "2026-11-15T01:02:03.004Z", b"{…}", now), now)
        ring.read(after=17, now=now)

    A message that is larger than the whole ring is not held, and nothing before it: a client that is behind it reads the store.
    """

    def __init__(self, *, epoch: str, top: int = 0, max_bytes: int = RING_BYTES, max_age: float = RING_AGE_S) -> None:
        options.count("ring.max_bytes", max_bytes)
        options.seconds("ring.max_age", max_age)
        self.epoch = epoch
        self.top = top
        self.size = 0
        self.max_bytes, self.max_age = max_bytes, max_age
        self._held: deque[RingMessage] = deque()
        self._has_expired = False

    def __len__(self) -> int:
        return len(self._held)

    def __iter__(self) -> Iterator[RingMessage]:
        return iter(self._held)

    @property
    def oldest(self) -> int:
        """The oldest offset that it holds; `top + 1` if it holds none."""
        return self._held[0].offset if self._held else self.top + 1

    def append(self, message: RingMessage, now: float) -> None:
        """Add the next message. Older ones are dropped until it fits."""
        if message.offset != self.top + 1:
            # Messages were stored that never came here. What is older than the hole cannot be followed by what is newer.
            self._clear()
        self.top = message.offset
        if len(message.frame) > self.max_bytes:
            self._clear()
            return
        self._held.append(message)
        self.size += len(message.frame)
        self._drop_old(now)
        while self.size > self.max_bytes:
            self._drop(has_expired=False)

    def read(self, after: int, now: float, *, most_bytes: int = 65_536) -> list[RingMessage] | None:
        """Return messages after an offset, at least one and about `most_bytes`; None if the next one is not held.

        An empty list: there are none yet.
        """
        self._drop_old(now)
        if after >= self.top:
            return []
        if after < self.oldest - 1:
            return None
        found: list[RingMessage] = []
        size = 0
        # Offsets have no holes, so the place of an offset is known.
        for place in range(after - self.oldest + 1, len(self._held)):
            message = self._held[place]
            if found and size + len(message.frame) > most_bytes:
                break
            found.append(message)
            size += len(message.frame)
        return found

    def since(self, timestamp: str | None, now: float) -> tuple[list[RingMessage], bool]:
        """Return the messages with this time stamp or a later one, and whether these are all that there were.

        Older clients ask by time. Several messages may have one time stamp, so that one is included; the client knows it by its id.
        """
        self._drop_old(now)
        if timestamp is None:
            return list(self._held), self.oldest <= 1
        found = [message for message in self._held if message.timestamp >= timestamp]
        # If an older one is held too, nothing after it can be missing.
        return found, self.oldest <= 1 or (bool(self._held) and self._held[0].timestamp < timestamp)

    def reach(self, now: float, *, oldest_stored: int | None = None) -> Reach:
        """Return what can be sent: what is held here, and with `oldest_stored` what the store has."""
        self._drop_old(now)
        oldest = self.oldest if oldest_stored is None else min(self.oldest, oldest_stored)
        return Reach(epoch=self.epoch, oldest=oldest, top=self.top, has_expired=self._has_expired)

    def id_at(self, offset: int) -> str | None:
        """Return the id of the message at an offset, if it is held."""
        place = offset - self.oldest
        return self._held[place].id if 0 <= place < len(self._held) else None

    def _drop_old(self, now: float) -> None:
        while self._held and now - self._held[0].at > self.max_age:
            self._drop(has_expired=True)

    def _drop(self, *, has_expired: bool) -> None:
        self.size -= len(self._held.popleft().frame)
        self._has_expired = has_expired

    def _clear(self) -> None:
        self._held.clear()
        self.size, self._has_expired = 0, False


class ReplayBuffer:
    """The newest texts, as many as fit into `max_size` bytes and are not older than `max_age` seconds.

        buffer = ReplayBuffer(clock=runtime.clock)
        buffer.append('{"type": "message"}')
        missed = buffer.get_replay(since=last_received)

    A text that is larger than the whole buffer is not held, and nothing before it. The sessions of a bridge are `Ring`s, which also know
    offsets. Wrong numbers raise `InvalidError`.
    """

    @options.suggests
    def __init__(self, *, clock: Clock, max_size: int = RING_BYTES, max_age: float = RING_AGE_S) -> None:
        self._clock = clock
        self._ring = Ring(epoch="", max_bytes=max_size, max_age=max_age)

    @property
    def size(self) -> int:
        """The bytes that it holds, in UTF-8."""
        return self._ring.size

    def append(self, message: str) -> None:
        """Add a text. Older ones are dropped until it fits."""
        now, at = self._clock.monotonic(), datetime.fromtimestamp(self._clock.wall(), UTC)
        self._ring.append(RingMessage(self._ring.top + 1, "", _exact(at), message.encode(), now), now)

    def get_replay(self, since: datetime | None = None) -> list[str]:
        """Return what came after `since`, a time with its zone; without it everything that is held. What came just then is left out."""
        held, _ = self._ring.since(None, self._clock.monotonic())
        after = "" if since is None else _exact(since)
        return [message.frame.decode() for message in held if message.timestamp > after]


def _exact(at: datetime) -> str:
    # To the microsecond and in one zone, so that texts compare as times do.
    return at.astimezone(UTC).isoformat(timespec="microseconds")
