"""The connection mode: how a client reaches the bridge, and what that means for its safety."""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    from holdfast.wire.messages import ConnectionMode

__all__ = ["MODE_TEXTS", "mode_of"]

_Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address
_Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network


def _networks(*named: str) -> tuple[_Network, ...]:
    return tuple(ipaddress.ip_network(each) for each in named)


_TAILSCALE: Final = _networks("100.64.0.0/10", "fd7a:115c:a1e0::/48")
_PRIVATE: Final = _networks("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "169.254.0.0/16", "fc00::/7", "fe80::/10")

MODE_TEXTS: Final[dict[ConnectionMode, str]] = {
    "local_only": "The client runs on the same machine.",
    "private_network": "The client is in the same private network.",
    "secure_remote": "The client comes through an encrypted private network.",
    "direct_public": "The client comes over the public internet. Acknowledge the warning before you join a session.",
    "misconfigured": "The connection is not encrypted, and the client is on another machine.",
}
"""What a person reads about each mode."""


def mode_of(peer: str, *, is_encrypted: bool, host: str = "", allows_plain: bool = False) -> ConnectionMode:
    """Return the mode of a connection from the address `peer`.

    >>> mode_of("127.0.0.1", is_encrypted=False), mode_of("192.168.1.7", is_encrypted=False)
    ('local_only', 'misconfigured')

    host: the name under which the client has reached the server. allows_plain: an unencrypted connection from elsewhere is wanted.
    """
    address = _address(peer)
    # A connection that never leaves the machine needs no encryption.
    if address is None or address.is_loopback:
        return "local_only"
    if not is_encrypted and not allows_plain:
        return "misconfigured"
    if _is_in(address, _TAILSCALE) or _name_of(host).endswith(".ts.net"):
        return "secure_remote"
    return "private_network" if _is_in(address, _PRIVATE) else "direct_public"


def _is_in(address: _Address, networks: tuple[_Network, ...]) -> bool:
    return any(address in network for network in networks)


def _name_of(host: str) -> str:
    """Return the name in a Host header, without its port."""
    name, colon, port = host.rpartition(":")
    return name if colon and port.isdigit() else host


def _address(peer: str) -> _Address | None:
    """Return the address; None for a socket of this machine that has none."""
    try:
        address = ipaddress.ip_address(peer.partition("%")[0])
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address
