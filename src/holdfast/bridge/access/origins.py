"""Where a request comes from: its address, the name it was sent to, and the page that sent it. Pure decisions about headers.

Invariant: names are compared whole: scheme, host and port. Nothing is believed that a client may write itself, except of a listed proxy.
"""

from __future__ import annotations

from functools import lru_cache
from ipaddress import ip_address, ip_network
from typing import TYPE_CHECKING, Any, NamedTuple

from holdfast.bridge.http.responses import rejected

if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.bridge.settings import BridgeSettings

__all__ = ["Sender", "sender_of"]

_PORTS = {"http": "80", "https": "443"}


class Sender(NamedTuple):
    """Who sent a request that was let in."""

    address: str
    host: str
    is_secure: bool
    foreign_origin: str = ""
    """The origin of a page elsewhere that may use the bridge; empty for our own page and for programs."""

    def scheme(self, kind: str) -> str:
        """Return the scheme of the request as the client sees it."""
        return {"http": ("http", "https"), "websocket": ("ws", "wss")}[kind][self.is_secure]


def sender_of(scope: Mapping[str, Any], settings: BridgeSettings) -> Sender:
    """Return who sent a request. Raise if it was sent to another name, or by a page that may not."""
    headers = _Headers(scope["headers"])
    peer = (scope.get("client") or ("", 0))[0]
    is_secure = scope["scheme"] in {"https", "wss"}
    host = headers.one("host")
    proxies = settings.trusted_proxies
    if proxies and _is_in(peer, proxies):
        peer = _forwarded_for(headers.all("x-forwarded-for"), proxies) or peer
        is_secure = headers.last("x-forwarded-proto", "https" if is_secure else "http") == "https"
        host = headers.last("x-forwarded-host", host)
    host = host.lower()
    if not _is_listed(host, settings.known_hosts):
        message = f"This bridge is not reached as '{host[:80]}'" if host else "The request has no Host"
        raise rejected(403, f"{message}; add the name to allowed_hosts if it is right", "AUTH_FORBIDDEN")
    own = _origin("https" if is_secure else "http", host)
    foreign = _checked_origin(headers, own, settings.allowed_origins)
    if not foreign:
        _check_site(scope, headers)
    return Sender(peer, host, is_secure, foreign)


def _checked_origin(headers: _Headers, own: str, origins: tuple[str, ...]) -> str:
    """Return the origin of a page elsewhere that may ask; empty for our own page, and for programs, which send none."""
    given = headers.one("origin")
    if not given or _normal(given) == own:
        return ""
    if given in origins:
        return given
    message = f"Pages of '{given[:80]}' may not use this bridge; add the origin to allowed_origins if it is right"
    raise rejected(403, message, "AUTH_FORBIDDEN")


def _check_site(scope: Mapping[str, Any], headers: _Headers) -> None:
    """Raise if a browser says that another site caused the request. A link that a person follows is no such request."""
    site = headers.one("sec-fetch-site")
    if site in {"", "none", "same-origin"}:
        return
    is_link = headers.one("sec-fetch-mode") == "navigate" and headers.one("sec-fetch-dest") == "document"
    if scope["type"] == "http" and scope["method"] == "GET" and is_link:
        return
    raise rejected(403, "Another site caused this request", "AUTH_FORBIDDEN")


class _Headers:
    def __init__(self, raw: list[tuple[bytes, bytes]]) -> None:
        self._raw = raw

    def all(self, name: str) -> list[str]:
        key = name.encode()
        return [value.decode("latin-1").strip() for known, value in self._raw if known == key]

    def one(self, name: str) -> str:
        """Return a header that may come once; two of them are a try to be read in two ways."""
        found = self.all(name)
        if len(found) > 1:
            raise rejected(400, f"The header {name} came twice")
        return found[0] if found else ""

    def last(self, name: str, default: str) -> str:
        """Return the last value of a list: the one that the nearest proxy has added."""
        found = self.all(name)
        return found[-1].rpartition(",")[2].strip() if found else default


def _split(host: str) -> tuple[str, str]:
    """Return name and port of a host: `[::1]:80` is `[::1]` and `80`."""
    name, colon, port = host.rpartition(":")
    return (name, port) if colon and not port.endswith("]") else (host, "")


def _is_listed(host: str, hosts: frozenset[str]) -> bool:
    name, port = _split(host)
    if port and not (port.isascii() and port.isdigit()):
        return False
    if name.startswith("[") and name.endswith("]"):
        return name[1:-1] in hosts
    # Without brackets an IPv6 address could be read as a name and a port.
    return ":" not in name and name in hosts


def _origin(scheme: str, host: str) -> str:
    name, port = _split(host)
    return f"{scheme}://{name}:{port or _PORTS[scheme]}"


def _normal(origin: str) -> str:
    """Return an origin with its port. Anything else that a header may hold equals no origin."""
    scheme, mark, host = origin.partition("://")
    return _origin(scheme, host.lower()) if mark and scheme in _PORTS else origin


def _forwarded_for(values: list[str], proxies: tuple[str, ...]) -> str:
    """Return the last address that is not one of our proxies. Those before it were written by the client."""
    chain = [part.strip() for value in values for part in value.split(",")]
    for address in reversed(chain):
        if not _is_address(address):
            return ""
        if not _is_in(address, proxies):
            return address
    return ""


def _is_address(text: str) -> bool:
    try:
        ip_address(text)
    except ValueError:
        return False
    return True


@lru_cache(maxsize=1_024)
def _is_in(address: str, networks: tuple[str, ...]) -> bool:
    try:
        found = ip_address(address)
    except ValueError:
        return False
    return any(found in ip_network(each, strict=False) for each in networks)
