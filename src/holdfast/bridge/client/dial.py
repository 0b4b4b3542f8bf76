"""One attempt to connect to a bridge, and what its failure means.

Invariant: a failure is a fault that says whether another attempt can help. A redirect is not followed, because the token would go to
another server.
"""

from __future__ import annotations

import asyncio
import ipaddress
import ssl
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import msgspec

from holdfast import options
from holdfast._version import __version__
from holdfast.extras import needs_extra
from holdfast.faults import Fault, HoldfastError, InvalidError
from holdfast.runtime.fault_of import fault_of
from holdfast.views import wire

with needs_extra("The client of the bridge", "websockets", "server"):
    from websockets.asyncio.client import ClientConnection as Socket
    from websockets.asyncio.client import connect
    from websockets.exceptions import InvalidHandshake, InvalidStatus

from holdfast.bridge.client.certificate import (
    CertificateRejected,
    contexts,
    diagnose,
    pins_of,
    read_certificate,
    rejection,
    unknown_issuer,
)
from holdfast.bridge.client.known_bridges import KnownBridges

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable

    from holdfast.wire.reconnect import Address

__all__ = ["Dialer", "Socket"]

_MAX_FRAME = 16 * 2**20
"""Bytes of the longest message that is read."""
_CLOSE_S = 1.0
"""Seconds that closing a connection may take."""
_LOOK_S = 3.0
"""Seconds that looking at a certificate that was not accepted may take."""


class _Connect(connect):
    def process_redirect(self, exc: Exception) -> Exception | str:
        return exc


class Dialer:
    """Connects to the bridge at a URL: `await Dialer("wss://host/ws", timeout=10).dial("resolve")`.

    Raises `InvalidError` for a URL that is not of a bridge, and for one that would send the token unencrypted to another machine.
    """

    def __init__(
        self,
        url: str,
        *,
        timeout: float,
        pins: Iterable[str] = (),
        ca: str | None = None,
        insecure: bool = False,
        known: str | os.PathLike[str] | None = None,
    ) -> None:
        self.url = _address(url)
        parts = urlsplit(self.url)
        self.host = parts.hostname or ""
        self._is_secure = parts.scheme == "wss"
        self._port = parts.port or (443 if self._is_secure else 80)
        options.seconds("connect_timeout", timeout)
        self.timeout = timeout
        self._pins, self._ca = pins_of(pins), ca
        if known is not None and self._pins:
            raise InvalidError.saying("known_bridges", "a file, or pins", "both")
        self._known = None if known is None else KnownBridges(Path(known))
        if self._pins and not self._is_secure:
            raise InvalidError.saying("url", "wss://, because pins are about the certificate", self.url)
        if not self._is_secure and not insecure and not _is_loopback(self.host):
            text = "wss://, because with ws:// everybody on the way can read the token; insecure=True allows it"
            raise InvalidError.saying("url", text, self.url)
        self._signs_itself = False
        """Whether the server has shown a certificate of its own that is pinned."""
        self._last_address = ""
        """The address of the last connection."""

    async def dial(self, address: Address) -> Socket:
        """Connect, with the last address that worked or with one that is looked up anew. Raises `HoldfastError`."""
        try:
            async with asyncio.timeout(self.timeout):
                socket = await self._open(address)
        except TimeoutError as error:
            context = {"host": self.host, "port": self._port, "timeout_s": self.timeout}
            raise HoldfastError(Fault.of("CONN_TIMEOUT", context=context)) from error
        except ssl.SSLError as error:
            raise HoldfastError(await self._tls_fault(error)) from error
        except (OSError, EOFError, InvalidHandshake) as error:
            fault = _fault(error, self.url)
            if await self._needs_tls(fault):
                text = f"{self.host}:{self._port} speaks TLS: connect to wss://, not to ws://"
                context = {"host": self.host, "port": self._port}
                fault = Fault.of("CONN_MISCONFIGURED", text, retryable=False, context=context)
            raise HoldfastError(fault) from error
        self._last_address = (socket.remote_address or ("",))[0]
        return socket

    @cached_property
    def _contexts(self) -> tuple[ssl.SSLContext, ssl.SSLContext | None]:
        if self._known is not None:
            # Pins that were given come from the bridge's owner. These come from its first connection.
            self._pins = self._known.pins(self._place)
        first = None if self._known is None else self._first_seen
        return contexts(self.host, self._pins, self._ca, first)

    @property
    def _place(self) -> str:
        return f"{self.host}:{self._port}"

    def _first_seen(self, pin: str) -> None:
        assert self._known is not None, "only with a file of known bridges is a first key accepted"
        self._known.keep(self._place, pin)
        # From now on no other key is accepted. The next connection begins with these rules.
        del self._contexts

    async def _open(self, address: Address) -> Socket:
        if not self._is_secure:
            return await self._connect(address, None)
        by_authority, by_pin = self._contexts
        if self._signs_itself and by_pin is not None:
            return await self._connect(address, by_pin)
        try:
            return await self._connect(address, by_authority)
        except CertificateRejected:
            raise
        except ssl.SSLCertVerificationError as error:
            if by_pin is None or not unknown_issuer(error):
                raise
            socket = await self._connect(address, by_pin)
            self._signs_itself = True
            return socket

    async def _connect(self, address: Address, context: ssl.SSLContext | None) -> Socket:
        more: dict[str, Any] = {}
        if context is not None:
            more["ssl"] = context
        if address == "cached" and self._last_address:
            # The certificate and the Host header are still those of the name.
            more |= {"host": self._last_address, "port": self._port}
        socket = await _Connect(
            self.url,
            # Everything that is sent is small and often secret. Compression would cost memory and say something about it.
            compression=None,
            # The heartbeats of the protocol do the same, also through proxies.
            ping_interval=None,
            open_timeout=None,
            close_timeout=_CLOSE_S,
            max_size=_MAX_FRAME,
            proxy=None if more.get("host") or _is_loopback(self.host) else True,
            user_agent_header=f"holdfast/{__version__}",
            **more,
        )
        # At level DEBUG it would log the beginning and the end of each frame, and the end of the first one is the token's.
        socket.protocol.debug = False
        return socket

    async def _tls_fault(self, error: ssl.SSLError) -> Fault:
        if isinstance(error, CertificateRejected):
            return rejection(error.certificate, error.why, host=self.host, pins=self._pins)
        if not isinstance(error, ssl.SSLCertVerificationError):
            found = fault_of(error)
            # A connection that was cut in the handshake may work the next time.
            if found.retryable:
                return found
            return rejection(None, "HANDSHAKE_FAILED", host=self.host, detail=error.reason or str(error))
        der = await self._look()
        if der is None:
            return rejection(None, "HANDSHAKE_FAILED", host=self.host, detail=error.verify_message)
        certificate = read_certificate(der)
        reason = diagnose(
            certificate, host=self.host, now=datetime.now(UTC), verify_code=error.verify_code, pins=self._pins
        )
        return rejection(certificate, reason, host=self.host, detail=error.verify_message, pins=self._pins)

    async def _needs_tls(self, fault: Fault) -> bool:
        """Whether a server that ended a plain connection speaks TLS. One that has worked before is only away."""
        may_be = not self._is_secure and not self._last_address and fault.code == "CONN_RESET"
        return may_be and await self._look() is not None

    async def _look(self) -> bytes | None:
        """Return the certificate that was not accepted. Python does not show it, so it is fetched once more; nothing is sent."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        try:
            async with asyncio.timeout(_LOOK_S):
                _, writer = await asyncio.open_connection(self.host, self._port, ssl=context, server_hostname=self.host)
                try:
                    der: bytes | None = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
                finally:
                    writer.transport.abort()
                return der
        except (OSError, TimeoutError):
            return None


def _address(url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme not in ("ws", "wss") or not parts.hostname:
        raise InvalidError.at("url", "the address of a bridge, such as wss://host/ws", url)
    if parts.username or parts.password or "token=" in parts.query:
        # Addresses are written to logs everywhere.
        raise InvalidError.saying(
            "url", "an address without a secret in it; give the token as token=", "one with a secret"
        )
    # Without a path it would be the page for people.
    return url if parts.path.strip("/") else parts._replace(path="/ws").geturl()


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _fault(error: Exception, url: str) -> Fault:
    if isinstance(error, InvalidStatus):
        return _http_fault(error.response.status_code, bytes(error.response.body or b""), url)
    found = fault_of(error)
    if found.code.startswith("CONN_"):
        return found
    # What was read is not an answer of a web server, or ends before it is one.
    return Fault.of("CONN_RESET", context={"reason": str(error)})


def _is_load(status: int) -> bool:
    return status in (408, 425, 429) or status >= 500


def _http_fault(status: int, body: bytes, url: str) -> Fault:
    """Return the fault of an answer that is not an upgrade: what the bridge says, or what the status means."""
    try:
        document = msgspec.json.decode(body)
        if isinstance(document, dict) and "code" in document:
            found = wire.read(document)
            # What is the server's load passes, whatever the answer calls it.
            if found.retryable or not _is_load(status):
                return found
    except (msgspec.DecodeError, InvalidError):
        # Not the bridge answered, but a proxy with a page of its own. The status remains.
        pass
    context = {"status": status}
    if status in (408, 425):
        text = f"The server answered with HTTP {status}: it did not read the request in time"
        return Fault.of("CONN_TIMEOUT", text, context=context)
    if status == 401:
        return Fault.of("AUTH_FAILED", context=context)
    if status == 403:
        return Fault.of("AUTH_FORBIDDEN", context=context)
    if status == 429:
        return Fault.of("CONN_RATE_LIMITED", context=context)
    if status >= 500:
        return Fault.of(
            "CONN_REFUSED", f"The server answered with HTTP {status} and not with a connection", context=context
        )
    text = f"There is no bridge at {url}: the server answered with HTTP {status}"
    return Fault.of("CONN_UPGRADE_REQUIRED", text, context=context)
