"""HTTP for tools: one request, to an address that was resolved and checked once.

The standard library's client does the protocol. Ours is the connection: it goes to the very address that was checked, so a name
that means another address a moment later changes nothing. It runs in a thread, and closing its socket ends it.

Invariant: a cancelled request leaves neither a connection nor, beyond a moment, a thread.
"""

from __future__ import annotations

import asyncio
import codecs
import http.client
import re
import socket
import ssl
import time
import zlib
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urljoin, urlsplit

import msgspec

from holdfast.classify import from_http
from holdfast.faults import Category, Fault, HoldfastError, InvalidError, Scope
from holdfast.runtime.runtime import default_runtime
from holdfast.tools.threads import call_in_thread

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from holdfast.faults import Code

__all__ = ["HTTPRequest", "HTTPResponse", "fault_of_response", "send"]

_READ_BYTES = 65_536
_PORTS = {"http": 80, "https": 443}
_ASCII = "".join(chr(sign) for sign in range(33, 127))


class HTTPRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One request."""

    url: str
    method: str = "GET"
    headers: dict[str, str] = {}
    body: bytes | None = None
    timeout: float = 30.0
    cap: int = 1_048_576
    """The most bytes of the answer that are read."""


class HTTPResponse(msgspec.Struct, frozen=True, kw_only=True):
    """One answer."""

    url: str
    status: int
    headers: dict[str, str]
    """Names in lower case."""
    body: bytes
    truncated: bool = False

    @property
    def text(self) -> str:
        """The body as text, in the charset that the answer names, or the page in it."""
        kind = self.headers.get("content-type", "")
        charset = kind.partition("charset=")[2].partition(";")[0].strip("\"' ")
        if not charset and "html" in kind and (named := _META.search(self.body[:1024])):
            charset = named[1].decode()
        charset = charset or "utf-8"
        try:
            if codecs.lookup(charset).name not in _NAMES_OF_HOSTS:
                return self.body.decode(charset, "replace")
        except (LookupError, ValueError):
            # Not a charset, or none for texts.
            pass
        return self.body.decode("utf-8", "replace")


_META = re.compile(rb"<meta[^>]{0,200}?charset\s{0,4}=\s{0,4}[\"']?([a-z0-9_.:-]{1,40})", re.IGNORECASE)
_NAMES_OF_HOSTS = frozenset({"punycode", "idna"})
"""Python's codecs for the names of hosts. A megabyte takes them hours."""


async def send(request: HTTPRequest, check: Callable[[str, list[str]], None] | None = None) -> HTTPResponse:
    """Send a request and read the answer. `check` gets the host and all its addresses, and raises if they are not allowed."""
    exchange = _Exchange(request, check)
    try:
        threads, host = default_runtime().abandoned_threads, parts_of(request.url)[1]
        return await call_in_thread(threads, exchange.perform, owner=f"host {host}")  # type: ignore[no-any-return]
    except asyncio.CancelledError:
        exchange.close()
        raise


class _Exchange:
    """One request and its connection, in a thread."""

    def __init__(self, request: HTTPRequest, check: Callable[[str, list[str]], None] | None) -> None:
        self._request = request
        self._check = check
        self._socket: socket.socket | None = None
        self._closed = False

    def close(self) -> None:
        """End the exchange, from another thread."""
        self._closed = True
        if self._socket is not None:
            with suppress(OSError):
                # Not the method of a TLS socket, which changes what the thread is using.
                socket.socket.shutdown(self._socket, socket.SHUT_RDWR)

    def perform(self) -> HTTPResponse:
        request = self._request
        until = time.monotonic() + request.timeout
        scheme, host, port, path = parts_of(request.url)
        connection = http.client.HTTPConnection(host, port, timeout=request.timeout)
        try:
            self._socket = connection.sock = self._connect(scheme, host, port)
            headers = {
                "Host": _host_header(scheme, host, port),
                "Accept-Encoding": "identity",
                "User-Agent": "holdfast",
            }
            if any(name.lower() == "host" for name in request.headers):
                del headers["Host"]
            headers |= request.headers
            connection.request(request.method, path, request.body, headers)
            answer = connection.getresponse()
            body, truncated = self._read(answer, until)
        except TimeoutError as error:
            fault = Fault.of(
                "TOOL_TIMEOUT",
                f"{host} did not answer within {request.timeout:g} s",
                context={"timeout_s": request.timeout},
            )
            raise HoldfastError(fault) from error
        except http.client.HTTPException as error:
            message = f"{host} did not answer in HTTP: {type(error).__name__}"
            raise HoldfastError(Fault.of("CONN_RESET", message, scope=Scope.TOOL)) from error
        finally:
            connection.close()
        found = {name.lower(): value for name, value in answer.getheaders()}
        body, is_cut = _decompressed(body, found.get("content-encoding", ""), request.cap)
        truncated = truncated or is_cut
        return HTTPResponse(url=request.url, status=answer.status, headers=found, body=body, truncated=truncated)

    def _connect(self, scheme: str, host: str, port: int) -> socket.socket:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        if self._check is not None:
            self._check(host, [str(each[4][0]) for each in found])
        error: OSError | None = None
        for family, kind, protocol, _, address in found:
            if self._closed:
                break
            opened = socket.socket(family, kind, protocol)
            self._socket = opened
            opened.settimeout(self._request.timeout)
            try:
                opened.connect(address)
                if scheme == "https":
                    # The name is checked against the certificate, although the connection goes to the address.
                    secured = ssl.create_default_context().wrap_socket(
                        opened, server_hostname=host, do_handshake_on_connect=False
                    )
                    # Known before the handshake, which may hang: a cancellation closes it.
                    self._socket = opened = secured
                    secured.do_handshake()
            except OSError as failure:
                opened.close()
                error = failure
                if isinstance(failure, ssl.SSLError):
                    break
                continue
            return opened
        raise error or ConnectionAbortedError("the request was cancelled")

    def _read(self, answer: http.client.HTTPResponse, until: float) -> tuple[bytes, bool]:
        body = bytearray()
        while chunk := answer.read1(_READ_BYTES):
            body += chunk
            if len(body) > self._request.cap:
                return bytes(body[: self._request.cap]), True
            if time.monotonic() > until:
                # A server that sends a byte now and then would keep every single read within its limit.
                raise TimeoutError(f"the answer did not end within {self._request.timeout:g} s")
        if answer.length:
            # The connection ended before the length that the answer announced: `read1` does not report that.
            raise http.client.IncompleteRead(bytes(body), answer.length)
        return bytes(body), False


def _decompressed(body: bytes, encoding: str, cap: int) -> tuple[bytes, bool]:
    """Return the content, and whether it was cut. Some servers compress although nobody asked for it.

    Raises `HoldfastError` (TOOL_OUTPUT_MALFORMED) for what cannot be read.
    """
    for name in reversed([part.strip().lower() for part in encoding.split(",")]):
        if name in ("", "identity"):
            continue
        try:
            # 47: gzip or zlib, whichever it is.
            reader = zlib.decompressobj({"gzip": 47, "x-gzip": 47, "deflate": 47}[name])
            body = reader.decompress(body, cap)
        except KeyError:
            raise _unreadable(f"the answer is compressed as {name[:20]}") from None
        except zlib.error:
            raise _unreadable(f"the answer is not compressed as {name}, as it says") from None
        if reader.unconsumed_tail:
            return body, True
    return body, False


def _unreadable(reason: str) -> HoldfastError:
    return HoldfastError(Fault.of("TOOL_OUTPUT_MALFORMED", context={"reason": reason}))


def _host_header(scheme: str, host: str, port: int) -> str:
    # The standard library's own would name port 443, because it does not know that the connection is encrypted.
    name = f"[{host}]" if ":" in host else host.encode("idna").decode("ascii")
    return name if port == _PORTS[scheme] else f"{name}:{port}"


def parts_of(url: str) -> tuple[str, str, int, str]:
    """Return scheme, host, port and path of a URL. Raises `InvalidError` (TOOL_INPUT_INVALID) for any other than http and https."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError as error:
        raise _invalid(url, str(error)) from None
    if parts.scheme not in _PORTS or not host:
        raise _invalid(url, "another scheme, or no host")
    if parts.username is not None or parts.password is not None:
        raise _invalid("a URL with a user", "a user or a password in it")
    if any(sign.isspace() or ord(sign) < 32 for sign in url):
        raise _invalid("a URL with a space", "a space or a control character")
    try:
        host.encode("idna")
    except UnicodeError:
        raise _invalid(url, "a host whose name cannot be looked up") from None
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    # People and redirects write /Köln; on the wire it is ASCII. What is quoted already stays as it is.
    return parts.scheme, host, port or _PORTS[parts.scheme], quote(path, safe=_ASCII)


def _invalid(url: str, received: str) -> InvalidError:
    return InvalidError.saying(
        f"url {url[:200]!r}", "an address that begins with https:// or http://", received, "TOOL_INPUT_INVALID"
    )


_CODES: Mapping[Category, Code] = {
    Category.RATE_LIMIT: "TOOL_RATE_LIMITED",
    Category.AUTH: "TOOL_FORBIDDEN",
    Category.NOT_FOUND: "TOOL_FILE_NOT_FOUND",
    Category.INVALID: "TOOL_INPUT_INVALID",
    Category.VALIDATION: "TOOL_INPUT_INVALID",
    Category.OVERFLOW: "TOOL_INPUT_TOO_LARGE",
    Category.TIMEOUT: "TOOL_TIMEOUT",
}
"""The classifier's rules are about providers of models. A tool that is an HTTP service has the same failures under its own codes."""


_DONE = frozenset({303, 304})
"""Redirects that answer the request: what came of it is at another address, or is what the caller has already."""
_NOT_DONE = frozenset({301, 307, 308})
"""Redirects to the address that does the work. 302 means that, or a page that follows what was done."""


def _redirected(response: HTTPResponse) -> Fault:
    """Return the failure of a request that was sent elsewhere: it would be a success to a model, and may have done nothing."""
    where = ""
    # What is no address is not named.
    with suppress(KeyError, ValueError):
        origin, target = urlsplit(response.url), urlsplit(urljoin(response.url, response.headers["location"]))
        is_here = target[:2] == origin[:2]
        where = f" to {'' if is_here else f'{target.scheme}://{target.netloc}'}{target.path}"[:300]
    reason = f"HTTP {response.status}: the service redirects{where}, and the tool follows no redirect: correct its url"
    return Fault.of(
        "TOOL_EXECUTION_FAILED",
        reason,
        retryable=False,
        scope=Scope.TOOL,
        maybe_executed=response.status not in _NOT_DONE,
        context={"status": response.status, "reason": reason},
    )


def fault_of_response(response: HTTPResponse, now: float) -> Fault | None:
    """Return the failure that a response reports; None for a good one."""
    if response.status < 300 or response.status in _DONE:
        return None
    if response.status < 400:
        return _redirected(response)
    found = from_http(response.status, response.headers, response.text[:_READ_BYTES], now=now)
    code = _CODES.get(found.category, found.code)
    reason = f"HTTP {response.status}"
    context: dict[str, Any] = {**found.context, "status": response.status, "reason": reason}
    message = f"{reason}: {found.message}" if found.message else reason
    return Fault.of(
        code,
        message[:500],
        retryable=found.retryable,
        retry_after=found.retry_after,
        scope=Scope.TOOL,
        maybe_executed=found.maybe_executed,
        rule=found.rule,
        context=context,
    )
