"""A process in which all time is virtual, for libraries without an injectable clock: the module `time` reads a virtual clock.

Must be entered before the libraries are imported: some keep `time.time` by name.
Invariant: no wait of a contender takes real time. A wait that blocks the thread is counted, since it would delay the others.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.testing import VirtualClock

_really_sleep = time.sleep


class VirtualTime:
    """Puts a clock in place of the process's, and counts how often somebody slept on the loop's own thread."""

    def __init__(self, clock: VirtualClock) -> None:
        self.blocked = 0
        self._clock = clock

    def take_over(self) -> None:
        patched: Any = time
        patched.time = self._clock.wall
        patched.monotonic = self._clock.monotonic
        patched.sleep = self._sleep

    def _sleep(self, seconds: float) -> None:
        if threading.current_thread() is not threading.main_thread():
            # A library's helper thread: its pace is its own, and the clock is moved by the loop alone.
            _really_sleep(seconds)
            return
        self.blocked += 1
        self._clock.sleep(seconds)
