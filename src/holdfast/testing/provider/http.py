"""HTTP/1.1 on bytes: requests out of what came, heads and chunks to be sent. No socket, no wait."""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING

from holdfast.testing.provider.requests import Request

if TYPE_CHECKING:
    from holdfast.testing.provider.acts import Head

__all__ = ["LAST_CHUNK", "TLS_ALERT", "BadRequestError", "Reader", "chunk", "head_bytes", "is_tls"]

MAX_HEAD = 65_536
MAX_BODY = 67_108_864
LAST_CHUNK = b"0\r\n\r\n"
TLS_ALERT = b"\x15\x03\x03\x00\x02\x02\x28"
"""A fatal alert: handshake failure."""
_TLS_HANDSHAKE = 0x16
_END_OF_HEAD = b"\r\n\r\n"


class BadRequestError(Exception):
    """What came is no request we can read; holds the status to answer with."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status


class Reader:
    """Collects bytes and gives requests. After an error it must not be used any more."""

    def __init__(self) -> None:
        self._held = bytearray()
        self._head: tuple[str, str, dict[str, str], int] | None = None

    def feed(self, data: bytes) -> None:
        """Take what came."""
        self._held += data

    def next(self) -> Request | None:
        """Return the next request, once all of it came."""
        if self._head is None and not self._read_head():
            return None
        assert self._head is not None
        method, path, headers, length = self._head
        if len(self._held) < length:
            return None
        body = bytes(self._held[:length])
        del self._held[:length]
        self._head = None
        return Request(method, path, headers, body)

    def wants_go_ahead(self) -> bool:
        """Whether the client waits for a word before it sends its body."""
        return self._head is not None and self._head[2].pop("expect", "").lower() == "100-continue"

    def _read_head(self) -> bool:
        end = self._held.find(_END_OF_HEAD)
        if end < 0:
            if len(self._held) > MAX_HEAD:
                raise BadRequestError(431, f"expected at most {MAX_HEAD} bytes of headers")
            return False
        first, *lines = self._held[:end].decode("latin-1").split("\r\n")
        del self._held[: end + len(_END_OF_HEAD)]
        match first.split(" "):
            case [method, path, "HTTP/1.1"]:
                headers = dict(map(_header, lines))
                self._head = (method, path, headers, _length(headers))
                return True
            case [_, _, version] if version.startswith("HTTP/"):
                raise BadRequestError(505, f"expected HTTP/1.1, got {version}")
            case _:
                raise BadRequestError(400, "expected METHOD PATH HTTP/1.1")


def is_tls(data: bytes) -> bool:
    """Whether a connection that begins like this speaks TLS."""
    return data[:1] == bytes([_TLS_HANDSHAKE])


def head_bytes(head: Head, *, extra: str = "") -> bytes:
    """Return a head as it goes over the wire."""
    try:
        phrase = HTTPStatus(head.status).phrase
    except ValueError:
        phrase = "Unknown"
    framing = "transfer-encoding: chunked" if head.length is None else f"content-length: {head.length}"
    lines = "".join([f"{name}: {value}\r\n" for name, value in head.headers])
    return f"HTTP/1.1 {head.status} {phrase}\r\n{lines}{extra}{framing}\r\n\r\n".encode("latin-1")


def chunk(data: bytes) -> bytes:
    """Return a chunk; one without bytes would end the body, so it is left out."""
    return b"%x\r\n%b\r\n" % (len(data), data) if data else b""


def _header(line: str) -> tuple[str, str]:
    name, colon, value = line.partition(":")
    if not colon:
        raise BadRequestError(400, "expected a header as NAME: VALUE")
    return name.strip().lower(), value.strip()


def _length(headers: dict[str, str]) -> int:
    if "transfer-encoding" in headers:
        raise BadRequestError(411, "expected a body with content-length")
    given = headers.get("content-length", "0")
    if not given.isdecimal() or not given.isascii():
        raise BadRequestError(400, f"expected content-length to be a number, got {given!r}")
    if len(given) > len(str(MAX_BODY)) or int(given) > MAX_BODY:
        raise BadRequestError(413, f"expected at most {MAX_BODY} bytes, got {given}")
    return int(given)
