"""Where the bridge of a folder runs: `holdfast serve` writes it down, and `holdfast pair` reads it.

Invariant: only the address of a bridge that accepts connections is returned. One that was killed leaves its file, and nobody listens there.
"""

from __future__ import annotations

import socket
from contextlib import suppress
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import msgspec

from holdfast.bridge.access.private_files import read_private, write_private

if TYPE_CHECKING:
    from pathlib import Path

_FILE = "address.json"
_CONNECT_S = 1.0


class BridgeAddress(msgspec.Struct, frozen=True):
    """The address of a bridge that runs: `BridgeAddress("https://0.0.0.0:3000", "cert.pem").write(home)`."""

    url: str
    cert: str | None
    """The file of its certificate; None if it serves without TLS."""

    def write(self, home: Path) -> None:
        """Write it into the folder of the bridge's tokens."""
        write_private(home / _FILE, msgspec.json.encode(self))

    def remove(self, home: Path) -> None:
        """Remove it, unless another bridge has started since then."""
        if self._stored(home) == self:
            (home / _FILE).unlink(missing_ok=True)

    @classmethod
    def find(cls, home: Path) -> BridgeAddress | None:
        """Return where the last bridge that was started with this folder runs; None if it does not run any more."""
        found = cls._stored(home)
        if found is None:
            return None
        with (
            suppress(OSError),
            socket.create_connection((found.host, found.port), timeout=_CONNECT_S),
        ):  # nobody listens there: None
            return found
        return None

    @property
    def host(self) -> str:
        """The host of the address; loopback in place of one that means all addresses."""
        named = urlsplit(self.url).hostname or ""
        return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(named, named)  # noqa: S104 - it is read, not listened on

    @property
    def is_for_all(self) -> bool:
        """Whether it listens on all addresses of the machine, so that its own names none of them."""
        return self.host != urlsplit(self.url).hostname

    @property
    def port(self) -> int:
        """The port of the address."""
        return urlsplit(self.url).port or 0

    def at(self, host: str) -> str:
        """Return the address with another host."""
        return f"{urlsplit(self.url).scheme}://{f'[{host}]' if ':' in host else host}:{self.port}"

    @classmethod
    def _stored(cls, home: Path) -> BridgeAddress | None:
        try:
            return msgspec.json.decode(read_private(home / _FILE) or b"", type=cls)
        except msgspec.DecodeError:
            return None
