"""What an actor's process and its host send each other: frames of four bytes of length and MessagePack.

Values of the user travel as JSON with tags, by the annotations of the actor's methods, as the results of durable steps do. So
nothing is unpickled, unless the actor's class says `pickle=True`.

Invariant: both sides run the same version of this module, because the host starts the worker.
"""

from __future__ import annotations

import inspect
import pickle
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import msgspec

from holdfast.actors.arguments import check_argument
from holdfast.faults import Fault, InvalidError
from holdfast.sessions import codec
from holdfast.sessions.stored_types import hints

if TYPE_CHECKING:
    import asyncio

__all__ = [
    "Begin",
    "Call",
    "Failed",
    "Frame",
    "Ignored",
    "Returned",
    "Started",
    "Stop",
    "Values",
    "pack",
    "read_frame",
]

_LENGTH = 4
_ADVICE = "send plain values, dataclasses or msgspec classes, or declare the actor with pickle=True"


class Begin(msgspec.Struct, tag=True, frozen=True, kw_only=True):
    """To the worker: which actor to make."""

    name: str
    path: list[str]
    """The `sys.path` of the host."""
    module: str
    main: str | None
    """The file of the program, if the class stands in it."""
    kind: str
    args: bytes
    on: list[tuple[str, str]]
    state: bytes | None = None
    """The last snapshot of the instance before."""


class Call(msgspec.Struct, tag=True, frozen=True):
    """To the worker: one message."""

    method: str
    args: bytes
    seconds: float | None
    """The time that is left of the sender's budget."""
    request: str = ""
    """What the sender works on: see `holdfast.request`."""


class Stop(msgspec.Struct, tag=True, frozen=True):
    """To the worker: end now."""

    reason: str


class Started(msgspec.Struct, tag=True, frozen=True):
    """From the worker: the hook `started` is done."""


class Ignored(msgspec.Struct, tag=True, frozen=True):
    """From the worker: the actor is not needed."""


class Returned(msgspec.Struct, tag=True, frozen=True, kw_only=True):
    """From the worker: what a method returned."""

    value: bytes
    state: bytes | None = None
    leaving: bool = False
    """Whether the actor ends after this message, as it decided itself."""


class Failed(msgspec.Struct, tag=True, frozen=True, kw_only=True):
    """From the worker: a method, or the start, raised."""

    fault: Fault
    then: Literal["resume", "restart", "stop", "escalate"]
    """The directive."""
    kind: str
    """The class of the exception, such as `builtins:TimeoutError`."""
    args: list[Any]
    """The arguments of a builtin exception, if they are plain."""
    notes: str = ""


Frame: TypeAlias = Begin | Call | Stop | Started | Ignored | Returned | Failed

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Frame] = msgspec.msgpack.Decoder(Frame)


def pack(frame: Frame) -> bytes:
    """Return a frame as bytes."""
    body = _encoder.encode(frame)
    return len(body).to_bytes(_LENGTH, "big") + body


async def read_frame(reader: asyncio.StreamReader) -> Frame:
    """Read one frame. Raises `IncompleteReadError` or `ConnectionError` at the end of the other side."""
    length = int.from_bytes(await reader.readexactly(_LENGTH), "big")
    return _decoder.decode(await reader.readexactly(length))


class Values:
    """Turns the arguments and results of an actor class into bytes and back."""

    def __init__(self, kind: type, *, pickled: bool) -> None:
        self._kind = kind
        self._pickled = pickled

    def pack_call(self, method: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
        """Return the arguments of a call. Raises `InvalidError` for one that cannot be sent."""
        if self._pickled:
            return pickle.dumps((args, kwargs))
        packed = [
            _packed(value, *type_, method) for value, type_ in zip(args, _parameters(method, len(args)), strict=False)
        ]
        named = {name: _packed(value, name, hints(method).get(name, Any), method) for name, value in kwargs.items()}
        return _encoder.encode((packed, named))

    def unpack_call(self, method: Any, given: bytes) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments again."""
        if self._pickled:
            return pickle.loads(given)  # type: ignore[no-any-return]  # noqa: S301 - the class asked for it, and the host wrote it
        packed, named = msgspec.msgpack.decode(given, type=tuple[list[bytes], dict[str, bytes]])
        where = f"argument of {getattr(method, '__qualname__', method)}"
        types = _parameters(method, len(packed))
        args = tuple(codec.decode(value, type_, where) for value, (_, type_) in zip(packed, types, strict=False))
        kwargs = {name: codec.decode(value, hints(method).get(name, Any), where) for name, value in named.items()}
        return args, kwargs

    def pack(self, value: Any, of: Any) -> bytes:
        """Return the result of a method. Raises `InvalidError` for one that cannot be sent."""
        if self._pickled:
            return pickle.dumps(value)
        return _encoded(value, codec.result_type(of), f"result of {getattr(of, '__qualname__', of)}")

    def unpack(self, value: bytes, of: Any) -> Any:
        """Return the result of a method again."""
        if self._pickled:
            return pickle.loads(value)  # noqa: S301 - the class asked for it, and the worker is ours
        return codec.decode(value, codec.result_type(of), f"result of {getattr(of, '__qualname__', of)}")


def _packed(value: Any, name: str, type_: Any, method: Any) -> bytes:
    """Return one argument as bytes."""
    where = f"argument `{name}` of {getattr(method, '__qualname__', method)}"
    check_argument(value, type_, where)
    return _encoded(value, Any if type_ is object else type_, where)


def _encoded(value: Any, type_: Any, where: str) -> bytes:
    try:
        return codec.encode_result(value, type_, where)
    except InvalidError as error:
        # The codec speaks of what is stored. Here the value is sent.
        cause = error.__cause__
        found = getattr(cause, "found", type(value).__name__)
        place = f" in it{place}" if (place := getattr(cause, "place", "")) else ""
        raise InvalidError.saying(
            where, "a value that can be sent to another process", f"{found}{place}: {_ADVICE}"
        ) from error


def _parameters(method: Any, count: int) -> list[tuple[str, Any]]:
    """Return the names and types of the first positional parameters after `self`; Any for those without a type."""
    try:
        parameters = list(inspect.signature(method).parameters.values())[1:]
    except (TypeError, ValueError):
        return [(str(number), Any) for number in range(count)]
    known = hints(method)
    types = [
        (one.name, known.get(one.name, Any))
        for one in parameters
        if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)
    ]
    rest = next(
        ((one.name, known.get(one.name, Any)) for one in parameters if one.kind is one.VAR_POSITIONAL), ("", Any)
    )
    return [*types, *([rest] * count)][:count]
