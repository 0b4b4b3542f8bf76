"""Single keys from a terminal, read in a thread while a block runs.

Invariant: when the block ends the terminal is as it was, and no thread is left. Ctrl-C stays what it is.
"""

from __future__ import annotations

import os
import select
import threading
from typing import TYPE_CHECKING, Any, Self, TextIO

try:
    import termios
    import tty
except ModuleNotFoundError:  # Windows has neither: the lines are shown, without keys
    termios = tty = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Keys"]


class Keys:
    """Calls `pressed` with each key typed at `terminal`."""

    def __init__(self, terminal: TextIO, pressed: Callable[[str], object]) -> None:
        self._file = terminal.fileno()
        self._pressed = pressed
        self._before: list[Any] | None = None
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        if termios is None:
            return self
        self._before = termios.tcgetattr(self._file)
        tty.setcbreak(self._file)
        # Its other end is closed to say that it is over: a thread in `select` cannot be told otherwise.
        over, self._over = os.pipe()
        self._thread = threading.Thread(target=self._read, args=(over,), name="holdfast keys", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._thread is None:
            return
        os.close(self._over)
        self._thread.join()
        assert self._before is not None
        termios.tcsetattr(self._file, termios.TCSADRAIN, self._before)

    def _read(self, over: int) -> None:
        try:
            while over not in (ready := select.select([self._file, over], [], [])[0]):
                typed = os.read(self._file, 1) if ready else b""
                if not typed:  # the terminal is gone
                    return
                self._pressed(typed.decode("latin-1"))
        except OSError:  # ditto
            return
        finally:
            os.close(over)
