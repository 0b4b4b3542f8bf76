"""`FileWatch`: what a running bridge reads anew when its file changes: the tokens and the certificate.

Invariant: a file that cannot be read changes nothing and ends nothing. It is logged once, and tried again.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from holdfast.bridge.log import log_error
from holdfast.faults import HoldfastError
from holdfast.runtime.shield import cancel_to_end

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["FileWatch", "Reloadable"]

_EVERY_S = 0.5


@runtime_checkable
class Reloadable(Protocol):
    """Something that comes from a file: `Tokens`, `ServerTls`."""

    def reload(self) -> object:
        """Read the file again if it has changed."""
        ...


class FileWatch:
    """Lets each of these look at its file twice a second: `watch = FileWatch([tokens, tls]); watch.start(); …; await watch.stop()`."""

    def __init__(self, watched: Iterable[object] = (), *, every: float = _EVERY_S) -> None:
        self._watched = [each for each in watched if isinstance(each, Reloadable)]
        self._every = every
        self._logged: dict[int, str] = {}
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to look."""
        if self._watched:
            self._task = asyncio.create_task(self._watch(), name="bridge: tokens and certificates")

    async def stop(self) -> None:
        """Look no more."""
        if self._task is not None:
            await cancel_to_end(self._task)

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(self._every)
            self.check()

    def check(self) -> None:
        """Let each look at its file now."""
        for number, each in enumerate(self._watched):
            try:
                each.reload()
            except (HoldfastError, OSError) as error:
                text = str(error)
                if self._logged.get(number) != text:
                    # Without a traceback: whoever runs the server has to repair a file, not the program.
                    log_error("%s (what was read before stays in use)", text)
                self._logged[number] = text
            else:
                self._logged.pop(number, None)
