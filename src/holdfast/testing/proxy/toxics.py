"""What can be wrong with a connection, as values.

Invariant: a toxic is checked when it is made. It applies to bytes that go `up` (to the server), `down` (to the client) or
both ways, and to a share of the connections that the proxy's seed draws.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from holdfast import options

__all__ = [
    "DIRECTIONS",
    "TOXICS",
    "Bandwidth",
    "BlackHole",
    "Direction",
    "HalfOpen",
    "Jitter",
    "Latency",
    "Limit",
    "Reset",
    "Slicing",
    "Toxic",
]

Direction: TypeAlias = Literal["up", "down"]
DIRECTIONS: tuple[Direction, ...] = ("up", "down")


class _Toxic(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, repr_omit_defaults=True, tag_field="toxic"):
    direction: Direction | Literal["both"] = "both"
    share: float = 1.0
    """The share of connections it befalls."""

    def __post_init__(self) -> None:
        options.one_of(f"{self.word}.direction", self.direction, (*DIRECTIONS, "both"))
        options.share(f"{self.word}.share", self.share)
        self.check()

    @property
    def word(self) -> str:
        """What it is called in texts: `black-hole`."""
        return str(self.__struct_config__.tag)

    def check(self) -> None:
        """Refuse values of its own that make no sense."""


class Latency(_Toxic, frozen=True, kw_only=True, tag="latency"):
    """Everything arrives this much later. It takes nothing from the throughput."""

    seconds: float

    def check(self) -> None:
        options.seconds("latency.seconds", self.seconds, zero=True)


class Jitter(_Toxic, frozen=True, kw_only=True, tag="jitter"):
    """What is sent together arrives later by a random time of up to this much, never out of order."""

    seconds: float

    def check(self) -> None:
        options.seconds("jitter.seconds", self.seconds, zero=True)


class Bandwidth(_Toxic, frozen=True, kw_only=True, tag="bandwidth"):
    """No more than so many bytes a second."""

    rate: int

    def check(self) -> None:
        options.count("bandwidth.rate", self.rate)


class Slicing(_Toxic, frozen=True, kw_only=True, tag="slicing"):
    """Everything arrives in pieces of at most `size` bytes, `pause` seconds apart: messages are cut anywhere."""

    size: int
    pause: float = 0.0

    def check(self) -> None:
        options.count("slicing.size", self.size)
        options.seconds("slicing.pause", self.pause, zero=True)


class Reset(_Toxic, frozen=True, kw_only=True, tag="reset"):
    """Once so many bytes have passed, both sides get a TCP reset; 0: as soon as they connect."""

    after: int = 0

    def check(self) -> None:
        options.count("reset.after", self.after, least=0)


class Limit(_Toxic, frozen=True, kw_only=True, tag="limit"):
    """Once so many bytes have passed, the connection is closed in good order: a body that is too short."""

    after: int

    def check(self) -> None:
        options.count("limit.after", self.after, least=0)


class HalfOpen(_Toxic, frozen=True, kw_only=True, tag="half-open"):
    """Once so many bytes have passed, who receives them is gone, and who sends them is never told."""

    after: int = 0

    def check(self) -> None:
        options.count("half-open.after", self.after, least=0)


class BlackHole(_Toxic, frozen=True, kw_only=True, tag="black-hole"):
    """Nothing arrives, not even that the other side has closed. What is lost is lost."""


Toxic: TypeAlias = Latency | Jitter | Bandwidth | Slicing | Reset | Limit | HalfOpen | BlackHole

TOXICS: tuple[type[Toxic], ...] = (Latency, Jitter, Bandwidth, Slicing, Reset, Limit, HalfOpen, BlackHole)
"""All there are."""
