"""What happens to the bytes of one direction of one connection: facts in, the next step out.

Invariant: no I/O and no clock. The same seed, toxics and bytes give the same steps, whatever other connections do.
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

__all__ = ["End", "Flow", "Step"]

T = TypeVar("T")

_DRIP_S = 0.02
"""How finely a bandwidth is made: bytes for this many seconds go at once."""


class End(Enum):
    """How a connection ends by a toxic."""

    RESET = "reset"
    CLOSE = "close"
    HANG = "hang"
    """One side is gone, the other is not told."""


class Step(NamedTuple):
    """Wait `pause` seconds, then take `size` bytes: write them, or drop them where they are `lost`; then `end`, if any."""

    pause: float
    size: int
    lost: bool = False
    end: End | None = None


_ENDINGS: tuple[tuple[type[Reset | HalfOpen | Limit], End], ...] = (
    (Reset, End.RESET),
    (HalfOpen, End.HANG),
    (Limit, End.CLOSE),
)
"""Where two fall on the same byte, the ruder one wins."""


class Flow:
    """The state of one direction: how many bytes have passed, and its luck."""

    __slots__ = ("_direction", "_luck", "_rng", "passed")

    def __init__(self, direction: Direction, rng: Rng) -> None:
        self._direction = direction
        self._rng = rng
        self._luck = rng.random()
        self.passed = 0
        """Bytes that came out at the other end."""

    def delay(self, toxics: Iterable[Toxic]) -> float:
        """Return the seconds that what has just come in travels."""
        mine = tuple(self._mine(toxics))
        steady = sum(toxic.seconds for toxic in _of(mine, Latency))
        return steady + sum(toxic.seconds * self._rng.random() for toxic in _of(mine, Jitter))

    def swallows(self, toxics: Iterable[Toxic]) -> bool:
        """Whether nothing arrives at present."""
        return any(_of(self._mine(toxics), BlackHole))

    def step(self, toxics: Iterable[Toxic], waiting: int) -> Step:
        """Return what to do with the first of `waiting` bytes. The caller must ask again until none is left.

        With none waiting it says whether the connection must end before the first byte.
        """
        mine = tuple(self._mine(toxics))
        if any(_of(mine, BlackHole)):
            return Step(0.0, waiting, lost=True)
        room, end = self._room(mine)
        pause, size = _pace(mine, min(waiting, room))
        self.passed += size
        return Step(pause, size, end=end if size == room else None)

    def _mine(self, toxics: Iterable[Toxic]) -> Iterator[Toxic]:
        for toxic in toxics:
            if toxic.direction in {self._direction, "both"} and self._luck < toxic.share:
                yield toxic

    def _room(self, mine: tuple[Toxic, ...]) -> tuple[float, End | None]:
        """Return how many more bytes may pass, and what happens then."""
        room, then = float("inf"), None
        for kind, end in _ENDINGS:
            for toxic in _of(mine, kind):
                left = max(0, toxic.after - self.passed)
                if left < room:
                    room, then = left, end
        return room, then


def _pace(mine: tuple[Toxic, ...], size: float) -> tuple[float, int]:
    """Return the pause before the next piece, and how many of `size` bytes it has."""
    pause = 0.0
    for slicing in _of(mine, Slicing):
        size = min(size, slicing.size)
        pause += slicing.pause
    rate = min((bandwidth.rate for bandwidth in _of(mine, Bandwidth)), default=None)
    if rate is not None:
        size = min(size, max(1, int(rate * _DRIP_S)))
        pause += size / rate
    return pause if size else 0.0, int(size)


def _of(toxics: Iterable[Toxic], kind: type[T]) -> Iterator[T]:
    return (toxic for toxic in toxics if isinstance(toxic, kind))
