"""Toxics: the faults of a connection, as values and as text: `Latency(seconds=0.05)`, `latency=0.05;direction=down`.

Invariant: a toxic is checked when it is made. It applies to bytes that go `up` (to the server), `down` (to the client) or both
ways, and to a share of the connections, which the proxy's seed draws. Text that cannot be read raises `InvalidError`, which says
what was expected, what was found and where.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias
from urllib.parse import urlsplit

import msgspec

from holdfast import options
from holdfast.faults import InvalidError

Direction: TypeAlias = Literal["up", "down"]
DIRECTIONS: tuple[Direction, ...] = ("up", "down")


class _Toxic(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, repr_omit_defaults=True, tag_field="toxic"):
    direction: Direction | Literal["both"] = "both"
    share: float = 1.0
    """The share of connections that it applies to."""

    def __post_init__(self) -> None:
        options.one_of(f"{self.name}.direction", self.direction, (*DIRECTIONS, "both"))
        options.share(f"{self.name}.share", self.share)
        self.check()

    @property
    def name(self) -> str:
        """Its name in texts: `black-hole`."""
        return str(self.__struct_config__.tag)

    def check(self) -> None:
        """Raise `InvalidError` if a field of this kind of toxic is out of range."""


class Latency(_Toxic, frozen=True, kw_only=True, tag="latency"):
    """Everything arrives this much later: `Latency(seconds=0.05)`. The throughput stays the same."""

    seconds: float

    def check(self) -> None:
        options.seconds("latency.seconds", self.seconds, zero=True)


class Jitter(_Toxic, frozen=True, kw_only=True, tag="jitter"):
    """Each chunk arrives later by a random time up to this limit, and never out of order: `Jitter(seconds=0.02)`."""

    seconds: float

    def check(self) -> None:
        options.seconds("jitter.seconds", self.seconds, zero=True)


class Bandwidth(_Toxic, frozen=True, kw_only=True, tag="bandwidth"):
    """At most this many bytes pass per second: `Bandwidth(rate=10_000)`."""

    rate: int

    def check(self) -> None:
        options.count("bandwidth.rate", self.rate)


class Slicing(_Toxic, frozen=True, kw_only=True, tag="slicing"):
    """Everything arrives in pieces of at most `size` bytes, `pause` seconds apart, cut anywhere: `Slicing(size=7)`."""

    size: int
    pause: float = 0.0

    def check(self) -> None:
        options.count("slicing.size", self.size)
        options.seconds("slicing.pause", self.pause, zero=True)


class Reset(_Toxic, frozen=True, kw_only=True, tag="reset"):
    """After this many bytes both sides get a TCP reset: `Reset(after=100)`. With 0 they get it when they connect."""

    after: int = 0

    def check(self) -> None:
        options.count("reset.after", self.after, least=0)


class Limit(_Toxic, frozen=True, kw_only=True, tag="limit"):
    """After this many bytes the connection is closed normally, so the body is too short: `Limit(after=100)`."""

    after: int

    def check(self) -> None:
        options.count("limit.after", self.after, least=0)


class HalfOpen(_Toxic, frozen=True, kw_only=True, tag="half-open"):
    """After this many bytes the receiver is disconnected, and the sender does not notice: `HalfOpen(after=100)`."""

    after: int = 0

    def check(self) -> None:
        options.count("half-open.after", self.after, least=0)


class BlackHole(_Toxic, frozen=True, kw_only=True, tag="black-hole"):
    """Nothing arrives, not even the end of the connection. The bytes are lost: `BlackHole(share=0.5)`."""


Toxic: TypeAlias = Latency | Jitter | Bandwidth | Slicing | Reset | Limit | HalfOpen | BlackHole
"""Any toxic: `FaultProxy(address, *toxics: Toxic | str)`. Making a toxic raises `InvalidError` for values out of range."""

TOXICS: tuple[type[Toxic], ...] = (Latency, Jitter, Bandwidth, Slicing, Reset, Limit, HalfOpen, BlackHole)
"""All kinds of toxics."""


_PORTS = {"http": 80, "ws": 80, "https": 443, "wss": 443}
_MAX_PORT = 65_535

_KINDS: dict[str, type[Toxic]] = {str(kind.__struct_config__.tag): kind for kind in TOXICS}
_MAIN_FIELD = {word: field for word, kind in _KINDS.items() for field in kind.__struct_fields__[2:3]}
"""The field that a value without a name sets. It is the first field after the two fields that all kinds have."""


def toxic_of(text: str) -> Toxic:
    """Return the toxic that a text describes: its name, `=VALUE` for its main field, `;field=value` for the others.

    For example:
        toxic_of("reset=100;direction=down")

    Raises `InvalidError` for text that it cannot read.
    """
    head, *rest = (part.strip() for part in text.split(";"))
    word, given, value = head.partition("=")
    kind = _KINDS.get(word)
    if kind is None:
        raise InvalidError.at("toxic", f"one of {', '.join(sorted(_KINDS))}", word)
    fields: dict[str, Any] = {}
    if given:
        if word not in _MAIN_FIELD:
            raise InvalidError.at(f"toxic {word}", "no value", value)
        fields[_MAIN_FIELD[word]] = value
    for part in rest:
        name, _, value = part.partition("=")
        if name not in kind.__struct_fields__:
            raise InvalidError.at(f"toxic {word}", f"one of {', '.join(kind.__struct_fields__)}", name)
        fields[name] = value
    return _converted(word, kind, fields)


def _converted(word: str, kind: type[Toxic], fields: dict[str, Any]) -> Toxic:
    try:
        # The conversion is not strict, because the numbers are text here.
        return msgspec.convert({"toxic": word, **fields}, kind, strict=False)
    except msgspec.ValidationError as error:
        cause = error.__cause__
        # Our own check failed, and msgspec wrapped its error. Raise the original error, which says more.
        if isinstance(cause, InvalidError):
            raise cause from None
        context = InvalidError.from_msgspec(error).fault.context
        path = str(context["path"]).replace("$", word, 1)
        raise InvalidError.saying(path, str(context["expected"]), str(context["received"])) from None


def address_of(path: str, given: Any) -> tuple[str, int]:
    """Return host and port of `host:port`, `[::1]:port`, a URL or a pair. Raises `InvalidError` for anything else."""
    read = given
    if isinstance(given, str) and "://" in given:
        read = _address_in(given)
    elif isinstance(given, str):
        host, _, port = given.rpartition(":")
        read = (host.removeprefix("[").removesuffix("]"), int(port) if port.isascii() and port.isdecimal() else port)
    try:
        address = msgspec.convert(read, tuple[str, int])
    except msgspec.ValidationError:
        address = ("", 0)
    if not address[0] or not 0 <= address[1] <= _MAX_PORT:
        raise InvalidError.at(path, f"HOST:PORT or a URL, with a port from 0 to {_MAX_PORT}", given)
    return address


def _address_in(url: str) -> tuple[str, int]:
    """Return host and port of a URL; what is missing or wrong as an address that there is not."""
    try:
        parts = urlsplit(url)
        return parts.hostname or "", _PORTS.get(parts.scheme, -1) if parts.port is None else parts.port
    except ValueError:
        return "", -1
