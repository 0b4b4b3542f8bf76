"""HTTP/1.1 as values and as bytes: the request, and the acts of an answer. This module uses no socket and never waits."""

from __future__ import annotations

import re
from collections.abc import Generator
from enum import Enum
from http import HTTPStatus
from typing import Any, NamedTuple, TypeAlias
from urllib.parse import parse_qsl

import msgspec

Headers: TypeAlias = tuple[tuple[str, str], ...]

# These limits keep a broken client from filling the memory of the test run.
MAX_HEAD = 65_536
MAX_BODY = 67_108_864
LAST_CHUNK = b"0\r\n\r\n"
# With this alert a client reports a failed handshake. Without it, the client reports only a closed connection.
TLS_ALERT = b"\x15\x03\x03\x00\x02\x02\x28"
"""A fatal alert: handshake failure."""
_TLS_HANDSHAKE = 0x16
_HEX = re.compile(rb"[0-9a-fA-F]+")
_END_OF_HEAD = b"\r\n\r\n"
_BEARER = "bearer "
_KEYS = ("x-api-key", "api-key", "x-goog-api-key")
_AWS_KEY = re.compile(r"^AWS4-HMAC-SHA256 .*?Credential=([^/,\s]+)/")


class Request:
    """A request as it reached the provider: method, path, headers (names in lower case), body, and what they contain.

    For example:
        assert provider.requests[-1].model == "claude-sonnet-4-5"
    """

    __slots__ = ("_document", "body", "headers", "method", "path", "path_model", "path_stream", "query")

    def __init__(self, method: str, path: str, headers: dict[str, str], body: bytes = b"") -> None:
        self.method = method
        self.path, _, query = path.partition("?")
        self.query = dict(parse_qsl(query)) if query else {}
        self.path_model = ""
        """The model that the path names; `routes` sets it. Some protocols have it there and not in the body."""
        self.path_stream = False
        """Whether the path asks for a stream; `routes` sets it."""
        self.headers = headers
        self.body = body
        self._document: dict[str, Any] | None = None

    @property
    def document(self) -> dict[str, Any]:
        """The JSON object of the body; empty if the body is not a JSON object."""
        if self._document is None:
            try:
                # Decode the body at its first use, because many faults do not need it.
                read = msgspec.json.decode(self.body)
            except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
                read = None
            self._document = read if isinstance(read, dict) else {}
        return self._document

    @property
    def model(self) -> str:
        """The requested model."""
        if self.path_model:
            return self.path_model
        model = self.document.get("model")
        return model if isinstance(model, str) else ""

    @property
    def stream(self) -> bool:
        """Whether the client wants a stream."""
        return self.path_stream or self.document.get("stream") is True

    @property
    def key(self) -> str:
        """The API key, from the header or parameter in which the client sends it. AWS's clients send only the key's id."""
        authorization = self.headers.get("authorization", "")
        if authorization[: len(_BEARER)].lower() == _BEARER:
            return authorization[len(_BEARER) :].strip()
        if signed := _AWS_KEY.search(authorization):
            return signed[1]
        return next((key for name in _KEYS if (key := self.headers.get(name))), self.query.get("key", ""))

    def list_of(self, name: str) -> list[dict[str, Any]]:
        """Return the objects in the list `name` of the document."""
        found = self.document.get(name)
        return [item for item in found if isinstance(item, dict)] if isinstance(found, list) else []

    def dict_of(self, name: str) -> dict[str, Any]:
        """Return the object `name` of the document; empty if there is none."""
        found = self.document.get(name)
        return found if isinstance(found, dict) else {}

    def __repr__(self) -> str:
        return f"Request({self.method!r}, {self.path!r}, model={self.model!r}, stream={self.stream})"


class Pause(NamedTuple):
    """Send nothing for some seconds. None means until the client leaves."""

    seconds: float | None


class ReplyHead(NamedTuple):
    """Status line and headers. Without a length the body is sent in chunks."""

    status: int
    headers: Headers
    length: int | None = None


class Data(NamedTuple):
    """Bytes of the body."""

    data: bytes


class Raw(NamedTuple):
    """Bytes that are not HTTP, sent in place of a head."""

    data: bytes


class ReplyEnd(Enum):
    """How the answer ends."""

    END = "the answer is whole; the connection stays open"
    CLOSE = "the connection is closed"
    RESET = "the connection is reset"


Act: TypeAlias = Pause | ReplyHead | Data | Raw | ReplyEnd
Plan: TypeAlias = Generator[Act, None, None]
"""The acts of an answer. Close the plan when the answer has ended or its client has left."""


class BadRequestError(Exception):
    """The bytes are not a request that we can read. `status` is the status of the answer."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status


class RequestReader:
    """Collects bytes and returns requests. After an error it must not be used any more."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._head: tuple[str, str, dict[str, str], int | None] | None = None
        self._chunks = _Chunks()

    def feed(self, data: bytes) -> None:
        """Add received bytes."""
        self._buffer += data

    def next(self) -> Request | None:
        """Return the next request; None until all of it has arrived."""
        if self._head is None and not self._read_head():
            return None
        assert self._head is not None
        method, path, headers, length = self._head
        body = self._chunks.take(self._buffer) if length is None else self._take(length)
        if body is None:
            return None
        self._head = None
        return Request(method, path, headers, body)

    def _take(self, length: int) -> bytes | None:
        if len(self._buffer) < length:
            return None
        body = bytes(self._buffer[:length])
        del self._buffer[:length]
        return body

    def expects_continue(self) -> bool:
        """Whether the client waits for `100 Continue` before it sends its body. True once per request."""
        # Remove the header, so that the client gets only one `100 Continue`.
        return self._head is not None and self._head[2].pop("expect", "").lower() == "100-continue"

    def _read_head(self) -> bool:
        end = self._buffer.find(_END_OF_HEAD)
        if end < 0:
            if len(self._buffer) > MAX_HEAD:
                raise BadRequestError(431, f"expected at most {MAX_HEAD} bytes of headers")
            return False
        # HTTP defines headers as latin-1, which can decode any byte.
        first, *lines = self._buffer[:end].decode("latin-1").split("\r\n")
        del self._buffer[: end + len(_END_OF_HEAD)]
        match first.split(" "):
            case [method, path, "HTTP/1.1"]:
                headers = dict(map(_header, lines))
                self._head = (method, path, headers, _length(headers))
                return True
            case [_, _, version] if version.startswith("HTTP/"):
                raise BadRequestError(505, f"expected HTTP/1.1, got {version}")
            case _:
                raise BadRequestError(400, "expected METHOD PATH HTTP/1.1")


class _Chunks:
    """Reads a body that comes in chunks."""

    def __init__(self) -> None:
        self._body = bytearray()
        self._ended = False

    def take(self, buffer: bytearray) -> bytes | None:
        """Take chunks from the buffer. Return the body, or None until all of it has arrived."""
        while (end := buffer.find(b"\r\n")) >= 0:
            if self._ended:
                # After the last chunk there may be trailers, and then an empty line.
                line = bytes(buffer[:end])
                del buffer[: end + 2]
                if not line:
                    body, self._body, self._ended = bytes(self._body), bytearray(), False
                    return body
                continue
            size = self._size(bytes(buffer[:end]))
            if len(buffer) < end + 2 + size + 2 and size:
                return None
            if size and buffer[end + 2 + size : end + 4 + size] != b"\r\n":
                raise BadRequestError(400, "expected a line's end after a chunk")
            self._body += buffer[end + 2 : end + 2 + size]
            del buffer[: end + 2 + (size + 2 if size else 0)]
            self._ended = size == 0
        if len(buffer) > MAX_HEAD:
            raise BadRequestError(400, "expected the size of a chunk")
        return None

    def _size(self, line: bytes) -> int:
        # A chunk may have extensions after a semicolon. They mean nothing here.
        digits = line.partition(b";")[0].strip()
        if not _HEX.fullmatch(digits):
            raise BadRequestError(400, f"expected the size of a chunk, got {digits[:20]!r}")
        # Compare the number of digits first, because converting a very long number is slow.
        if len(digits) > len(f"{MAX_BODY:x}") or len(self._body) + int(digits, 16) > MAX_BODY:
            raise BadRequestError(413, f"expected at most {MAX_BODY} bytes")
        return int(digits, 16)


def is_tls(data: bytes) -> bool:
    """Whether these first bytes of a connection are TLS."""
    return data[:1] == bytes([_TLS_HANDSHAKE])


def head_bytes(head: ReplyHead, *, extra: str = "") -> bytes:
    """Return a head as it goes over the wire."""
    try:
        phrase = HTTPStatus(head.status).phrase
    except ValueError:
        # Some statuses, such as 529, are not in the standard. Clients only read the number.
        phrase = "Unknown"
    framing = "transfer-encoding: chunked" if head.length is None else f"content-length: {head.length}"
    lines = "".join([f"{name}: {value}\r\n" for name, value in head.headers])
    return f"HTTP/1.1 {head.status} {phrase}\r\n{lines}{extra}{framing}\r\n\r\n".encode("latin-1")


def chunk(data: bytes) -> bytes:
    """Return a chunk, or nothing for no bytes: an empty chunk would end the body."""
    return b"%x\r\n%b\r\n" % (len(data), data) if data else b""


def _header(line: str) -> tuple[str, str]:
    name, colon, value = line.partition(":")
    if not colon:
        raise BadRequestError(400, "expected a header as NAME: VALUE")
    return name.strip().lower(), value.strip()


def _length(headers: dict[str, str]) -> int | None:
    """Return the length of the body; None if it comes in chunks."""
    if (encoding := headers.get("transfer-encoding")) is not None:
        if encoding.lower() != "chunked":
            raise BadRequestError(501, f"expected transfer-encoding to be chunked, got {encoding!r}")
        # A request with both is how requests are smuggled past a proxy, so servers reject it.
        if "content-length" in headers:
            raise BadRequestError(400, "expected content-length or transfer-encoding, got both")
        return None
    given = headers.get("content-length", "0")
    # `isdecimal` alone also accepts the digits of other writing systems.
    if not given.isdecimal() or not given.isascii():
        raise BadRequestError(400, f"expected content-length to be a number, got {given!r}")
    # Compare the number of digits first, because converting a very long number is slow.
    if len(given) > len(str(MAX_BODY)) or int(given) > MAX_BODY:
        raise BadRequestError(413, f"expected at most {MAX_BODY} bytes, got {given}")
    return int(given)
