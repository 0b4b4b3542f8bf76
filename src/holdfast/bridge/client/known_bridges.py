"""`KnownBridges`: the keys of bridges whose certificates sign themselves, each as its first connection showed it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from holdfast.bridge.access.private_files import read_private, write_private
from holdfast.bridge.client.certificate import pins_of
from holdfast.faults import InvalidError

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["KnownBridges"]


class KnownBridges:
    """A file of hosts with their pins: `KnownBridges(Path("known_bridges.json")).pins("bridge.example:443")`."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def pins(self, place: str) -> frozenset[str]:
        """Return the pin of a bridge; empty if it is new. Raises `InvalidError` for a file that cannot be read as one of these."""
        known = self._read()
        return pins_of([known[place]]) if place in known else frozenset()

    def keep(self, place: str, pin: str) -> None:
        """Keep the pin of a bridge."""
        written = msgspec.json.encode({**self._read(), place: pin})
        write_private(self._path, msgspec.json.format(written, indent=2))

    def _read(self) -> dict[str, str]:
        content = read_private(self._path)
        try:
            return {} if content is None else msgspec.json.decode(content, type=dict[str, str])
        except msgspec.DecodeError as error:
            raise InvalidError.saying(
                "known_bridges", "a file that this client has written", str(self._path)
            ) from error
