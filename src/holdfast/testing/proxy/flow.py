"""Decides what happens to the bytes of one direction of one connection.

Invariant: there is no I/O and no clock. The same seed, toxics and bytes give the same steps. Other connections have no effect.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from holdfast.testing.proxy.toxics import (
    Bandwidth,
    BlackHole,
    Direction,
    HalfOpen,
    Jitter,
    Latency,
    Limit,
    Reset,
    Slicing,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from holdfast.clock import Rng
    from holdfast.testing.proxy.toxics import Toxic

T = TypeVar("T")

_DRIP_S = 0.02
"""A bandwidth sends the bytes of this many seconds at once. Smaller steps would need too many timers."""


class ConnectionEnd(Enum):
    """How a toxic ends a connection."""

    RESET = "reset"
    CLOSE = "close"
    HANG = "hang"
    """One side is disconnected, and the other side does not notice."""


class FlowStep(NamedTuple):
    """Wait `pause` seconds, take `size` bytes, write them (or drop them if `lost`), then perform `end` if it is set."""

    pause: float
    size: int
    lost: bool = False
    end: ConnectionEnd | None = None


_ENDINGS: tuple[tuple[type[Reset | HalfOpen | Limit], ConnectionEnd], ...] = (
    (Reset, ConnectionEnd.RESET),
    (HalfOpen, ConnectionEnd.HANG),
    (Limit, ConnectionEnd.CLOSE),
)
"""The toxics that end a connection, the more abrupt first. If two of them apply at the same byte, the first wins."""


class ByteFlow:
    """The state of one direction: how many bytes have passed, and the draw that decides which toxics apply."""

    __slots__ = ("_direction", "_draw", "_rng", "passed")

    def __init__(self, direction: Direction, rng: Rng) -> None:
        self._direction = direction
        self._rng = rng
        # Draw once: a toxic with a share applies to this direction as a whole or not at all.
        self._draw = rng.random()
        self.passed = 0
        """Bytes that reached the other side."""

    def delay(self, toxics: Iterable[Toxic]) -> float:
        """Return the seconds that the bytes just received are delayed."""
        applicable = tuple(self._applicable(toxics))
        steady = sum(toxic.seconds for toxic in _of(applicable, Latency))
        return steady + sum(toxic.seconds * self._rng.random() for toxic in _of(applicable, Jitter))

    def swallows(self, toxics: Iterable[Toxic]) -> bool:
        """Whether a black hole is switched on now."""
        return any(_of(self._applicable(toxics), BlackHole))

    def step(self, toxics: Iterable[Toxic], waiting: int) -> FlowStep:
        """Return what to do with the first of `waiting` bytes. The caller must call again until no byte is left.

        With `waiting=0` the step says whether the connection must end before the first byte.
        """
        applicable = tuple(self._applicable(toxics))
        if any(_of(applicable, BlackHole)):
            return FlowStep(0.0, waiting, lost=True)
        # Bytes before the end still pass: `reset=100` delivers exactly 100 bytes.
        room, end = self._room(applicable)
        pause, size = _pace(applicable, min(waiting, room))
        self.passed += size
        return FlowStep(pause, size, end=end if size == room else None)

    def _applicable(self, toxics: Iterable[Toxic]) -> Iterator[Toxic]:
        for toxic in toxics:
            # All toxics use the same draw: with equal shares, all of them apply or none.
            if toxic.direction in {self._direction, "both"} and self._draw < toxic.share:
                yield toxic

    def _room(self, applicable: tuple[Toxic, ...]) -> tuple[float, ConnectionEnd | None]:
        """Return how many more bytes may pass, and how the connection ends after them."""
        room, then = float("inf"), None
        for kind, end in _ENDINGS:
            for toxic in _of(applicable, kind):
                left = max(0, toxic.after - self.passed)
                if left < room:
                    room, then = left, end
        return room, then


def _pace(applicable: tuple[Toxic, ...], size: float) -> tuple[float, int]:
    """Return the pause before the next piece, and the size of that piece: at most `size` bytes."""
    pause = 0.0
    for slicing in _of(applicable, Slicing):
        size = min(size, slicing.size)
        pause += slicing.pause
    # If there are several bandwidths, the lowest decides, as on a real network.
    rate = min((bandwidth.rate for bandwidth in _of(applicable, Bandwidth)), default=None)
    if rate is not None:
        size = min(size, max(1, int(rate * _DRIP_S)))
        pause += size / rate
    # Without bytes there is nothing to pace.
    return pause if size else 0.0, int(size)


def _of(toxics: Iterable[Toxic], kind: type[T]) -> Iterator[T]:
    return (toxic for toxic in toxics if isinstance(toxic, kind))
