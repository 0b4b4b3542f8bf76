"""The registry of targets: the state that all calls to one name share.

Invariant: one name has one state, however many callers, threads and event loops use it, and in whatever order they come. The
registry is bounded: closed and idle targets are dropped first, and later calls do not use a state that was dropped.
"""

from __future__ import annotations

import operator
import threading
from typing import TYPE_CHECKING
from weakref import WeakSet

from holdfast.runtime.targets.target_state import TargetState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from holdfast.runtime.fleet.link import FleetLink

__all__ = ["Registry"]

_SHARED = ("provider:", "model:", "key:", "deployment:", "quota:")


class Registry:
    """The target states of a runtime, by name."""

    def __init__(self, most: int, evicted: Callable[[], None]) -> None:
        self._most = most
        self._evicted = evicted
        self._lock = threading.Lock()
        self._states: dict[str, TargetState] = {}
        self._unnamed: WeakSet[TargetState] = WeakSet()
        self._opens_of_evicted = 0
        self._link: FleetLink | None = None

    def get(self, name: str) -> TargetState:
        """Return the state of this name; it is created where there is none."""
        state = self._states.get(name)
        if state is None:
            with self._lock:
                # Another thread may have created it before this one got the lock.
                state = self._states.get(name)
                if state is None:
                    if len(self._states) >= self._most:
                        self._evict_idle()
                    state = TargetState(name)
                    self._attach(state)
                    self._states[name] = state
        return state

    def share(self, link: FleetLink | None) -> None:
        """Share the states of services outside of the program with other processes; None: no longer."""
        with self._lock:
            self._link = link
            for state in self._states.values():
                self._attach(state)

    def _attach(self, state: TargetState) -> None:
        # Tools, agents and functions are this process's own.
        is_shared = self._link is not None and state.name.startswith(_SHARED)
        state.share = self._link.share_of(state) if self._link is not None and is_shared else None

    def known(self, name: str) -> TargetState | None:
        """Return the state of this name, or None."""
        return self._states.get(name)

    def unnamed(self, label: str) -> TargetState:
        """Return a new state for a recovery without a target. Nothing can look it up by name. It lives as long as its plan."""
        # A weak reference is kept, so that a forked worker can replace the lock of this state too.
        state = TargetState(label)
        self._unnamed.add(state)
        return state

    def holds(self, state: TargetState) -> bool:
        """Whether a state without a name is still in use."""
        return state in self._unnamed

    def forget(self) -> None:
        """Forget every target, also those that a person holds. Calls under way settle the states that they began with."""
        with self._lock:
            if not self._states and not self._unnamed:
                return
            self._opens_of_evicted += sum(state.opens for state in self._states.values())
            self._states = {}
            self._unnamed = WeakSet()
        # Plans hold states directly: every plan looks up again.
        self._evicted()

    def renew(self) -> None:
        """The settings were reloaded: each target takes on the next policy it serves."""
        for state in self:
            state.renew()

    def follow_settings(self) -> None:
        """The settings have changed: calls that wait for a place or a start follow the new ones."""
        for state in self:
            if state.limiter is not None:
                state.limiter.follow_settings()

    def forget_paces(self) -> None:
        """Forget what rate limits have taught about each target. Circuits and counts stay."""
        for state in self:
            state.forget_pace()

    def opens(self) -> int:
        """Return how often circuits opened, evicted ones included."""
        with self._lock:
            return self._opens_of_evicted + sum(state.opens for state in self._states.values())

    def __iter__(self) -> Iterator[TargetState]:
        with self._lock:
            return iter(tuple(self._states.values()))

    def __len__(self) -> int:
        return len(self._states)

    def after_fork(self) -> None:
        """Replace every lock after a fork: a thread of the parent may hold one, and that thread does not exist here."""
        self._lock = threading.Lock()
        for state in (*self._states.values(), *self._unnamed):
            state.after_fork()

    def _evict_idle(self) -> None:
        """Drop the tenth of the targets that was idle longest. Targets with an open circuit are dropped last.

        A circuit that a person holds is never dropped, because that person would not notice.
        """
        closed: list[TargetState] = []
        others: list[TargetState] = []
        for state in self._states.values():
            if not state.is_held:
                (closed if state.is_closed else others).append(state)
        count = max(1, len(self._states) // 10)
        closed.sort(key=_IDLE_SINCE)
        if len(closed) < count:
            closed += sorted(others, key=_IDLE_SINCE)
        for state in closed[:count]:
            del self._states[state.name]
            self._opens_of_evicted += state.opens
        # Plans hold states directly. This makes every plan look up again, so that none keeps using a dropped state.
        self._evicted()


# A sort key in C that returns plain floats: callers wait while this runs, and a tuple for each of many states would wake the
# garbage collector.
_IDLE_SINCE = operator.attrgetter("_breaker.idle_since")
