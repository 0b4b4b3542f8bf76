"""`FleetLink`: the one connection of a runtime to the engine, and the thread that uses it.

Invariant: no call waits here. An engine that fails twice, or lets the thread wait for `STUCK_S`, is away: calls go on by themselves at once, one
event says so, and one says that it is back. A process looks for it ever more rarely, and comes back at a moment of its own.
"""

from __future__ import annotations

import math
import os
import random
import secrets
import threading
from functools import partial
from typing import TYPE_CHECKING, Any
from weakref import WeakSet, ref

from holdfast.policies.fleet import FleetReport, FleetTarget, tell
from holdfast.runtime.fleet.share import TargetShare
from holdfast.runtime.fleet.shared_state import SharedStateError

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.policies.fleet import FleetAnswer
    from holdfast.policies.fleet_options import SharedOptions
    from holdfast.runtime.fleet.shared_state import SharedState
    from holdfast.runtime.targets.target_state import TargetState

__all__ = ["FleetLink"]

STUCK_S = 0.5
FAILURES = 2
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 5.0
"""Between two looks for an engine that is away."""
SPREAD_S = 1.0
"""Targets are reported again within this time after the engine has come back."""
LONGEST_WAIT_S = 60.0


class FleetLink:
    """The connection of one runtime to the engine of its fleet.

    `opened` opens the engine; `heard` is told when the engine is lost (with the reason) and when it is back (None). Both are called in the
    thread. `threads` is False where something else calls `step`, as in virtual time.
    """

    def __init__(
        self,
        opened: Callable[[], SharedState],
        monotonic: Callable[[], float],
        heard: Callable[[str | None], None],
        options: SharedOptions,
        *,
        threads: bool = True,
    ) -> None:
        self._opened = opened
        self.monotonic = monotonic
        self._heard = heard
        self.options = options
        self._threads = threads
        self._shares: WeakSet[TargetShare] = WeakSet()
        self.woken: Callable[[], None] | None = None
        """Called instead of waking the thread, where there is none."""
        self._begin()

    def _begin(self) -> None:
        # Not the process's number, which another one on another machine may have.
        self.process = f"{os.getpid()}-{secrets.token_hex(4)}"
        self._engine: SharedState | None = None
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._shares_lock = threading.Lock()
        self._event = threading.Event()
        self._rng = random.Random()  # noqa: S311 - jitter, not secrets
        self._failures = 0
        self._is_lost = False
        self._retry_at = 0.0
        self._asked_at = math.inf
        """Since when the thread waits for the engine."""

    def share_of(self, state: TargetState) -> TargetShare:
        """Return the share of a target."""
        share = TargetShare(self, state)
        with self._shares_lock:
            self._shares.add(share)
        return share

    def _all(self) -> list[TargetShare]:
        # A set that another thread adds to cannot be walked.
        with self._shares_lock:
            return list(self._shares)

    def is_away(self, now: float) -> bool:
        """Whether the engine cannot be asked at the moment."""
        return self._is_lost or now - self._asked_at > STUCK_S

    def wake(self) -> None:
        """A report is due. Takes no lock but to start the thread, and never waits."""
        if self.woken is not None:
            self.woken()
            return
        self._event.set()
        if self._thread is None and self._threads:
            self._start()

    def _start(self) -> None:
        if not self._lock.acquire(blocking=False):
            return  # another thread starts it
        try:
            if self._thread is None:
                thread = threading.Thread(target=_serve, args=(ref(self),), name="holdfast-shared", daemon=True)
                thread.start()
                self._thread = thread
        except RuntimeError:
            # The interpreter ends, or there are no more threads: calls go on by themselves.
            self._is_lost = True
        finally:
            self._lock.release()

    def step(self) -> float:
        """Tell the engine what is due; return the seconds until something is due again."""
        now = self.monotonic()
        if now < self._retry_at:
            return self._retry_at - now
        for share in sorted((share for share in self._all() if share.due <= now), key=lambda share: share.due):
            if not self._tell(share):
                return max(0.0, self._retry_at - self.monotonic())
        due = min((share.due for share in self._all()), default=math.inf)
        return min(LONGEST_WAIT_S, max(0.0, due - self.monotonic()))

    def _tell(self, share: TargetShare) -> bool:
        state = share.state
        if state is None:
            with self._shares_lock:
                self._shares.discard(share)
            return True
        report = state.report_shared(share, self.process, self.monotonic())
        self._asked_at = self.monotonic()
        try:
            if self._engine is None:
                self._engine = self._opened()
            answer = self._engine.change(share.name, partial(_apply, report))
        except SharedStateError as error:
            state.take_back_report(share, report)
            self._failed(share, str(error))
            return False
        except Exception as error:  # noqa: BLE001 - whatever a client raises, the thread goes on, and calls do
            state.take_back_report(share, report)
            self._failed(share, type(error).__name__)
            return False
        finally:
            self._asked_at = math.inf
        self._succeeded()
        state.hear_shared(share, answer, self.monotonic())
        return True

    def _failed(self, share: TargetShare, reason: str) -> None:
        now = self.monotonic()
        self._failures += 1
        pause = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0 ** min(self._failures, 10))
        self._retry_at = now + pause * self._rng.uniform(0.5, 1.0)
        share.due = min(share.due, self._retry_at)
        if self._failures >= FAILURES and not self._is_lost:
            self._is_lost = True
            self._heard(reason)

    def _succeeded(self) -> None:
        self._failures = 0
        if self._is_lost:
            self._is_lost = False
            now = self.monotonic()
            for share in self._all():
                if share.due <= now:
                    share.due = now + self._rng.uniform(0.0, SPREAD_S)
            self._heard(None)

    def after_fork(self) -> None:
        """The thread and the connection are the parent's. Called in the child."""
        if self._engine is not None:
            # Kept alive: to close it here would end the parent's.
            _OF_PARENTS.append(self._engine)
        self._begin()


_OF_PARENTS: list[Any] = []


def _apply(report: FleetReport, target: FleetTarget, now: float) -> FleetAnswer:
    return tell(target, report, now)


def _serve(link_ref: ref[FleetLink]) -> None:
    while (link := link_ref()) is not None:
        event = link._event  # noqa: SLF001 - its own thread
        event.clear()
        wait = link.step()
        # A runtime that nobody uses any more is collected, and its thread ends.
        del link
        event.wait(min(wait, 5.0))
