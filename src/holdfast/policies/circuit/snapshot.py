"""A breaker's state as one value, for a restart or another process.

Invariant: times are wall clock here and nowhere else; a wall clock that jumped cannot hold a circuit open for longer than
its open time.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import msgspec

from holdfast.events import CircuitState
from holdfast.faults import Code, InvalidError
from holdfast.policies.circuit.records import Rejection
from holdfast.policies.circuit.rules import Rule

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.policies.circuit.machine import Breaker

__all__ = ["BreakerSnapshot", "read_snapshot", "write_snapshot"]

MOST = 2**53
"""No count is larger: it is where JSON's numbers stop being exact."""
_TIMES = ("last_failure", "last_success", "last_state_change")
_TOTALS = ("failures", "successes", "ignored", "cancelled", "rejected", "opens")
_AMOUNTS = ("open_time", "reopen_time", "consecutive_failures", "good_probes", "isolations", *_TOTALS)


class BreakerSnapshot(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A breaker's state. Plain JSON; times are wall clock, seconds since the epoch."""

    at: float
    """When it was taken."""
    name: str = ""
    state: CircuitState = CircuitState.CLOSED
    until: float | None = None
    """When an open circuit lets a probe through. None while open: it is held open."""
    open_time: float = 0.0
    """Seconds of the present open time; 0 while closed."""
    reopen_time: float = 0.0
    """Seconds from the latest bad probe's start to the next, from which they grow; 0 while closed."""
    reason: Code | None = None
    """The code of the failure that opened it."""
    last_error: str | None = None
    """That failure's text."""
    rule: Rule | None = None
    """What opened it."""
    consecutive_failures: int = 0
    good_probes: int = 0
    isolations: int = 0
    """How many hold it open by hand."""
    disabled: bool = False
    """Somebody disabled it by hand."""
    parts: tuple[tuple[float, int, int, int], ...] = ()
    """The window: seconds since the part began; good, bad and slow calls in it."""
    usual: tuple[float, float] | None = None
    """Calls and failures that adaptive thresholds learned from."""
    failures: int = 0
    successes: int = 0
    ignored: int = 0
    cancelled: int = 0
    rejected: int = 0
    opens: int = 0
    last_failure: float | None = None
    last_success: float | None = None
    last_state_change: float | None = None

    def __post_init__(self) -> None:
        """Refuse what no breaker wrote: a file that was edited by hand must not wedge a circuit."""
        for name in ("at", "until", *_TIMES):
            value = getattr(self, name)
            if value is not None and not math.isfinite(value):
                raise InvalidError.at(f"snapshot.{name}", "a finite number of seconds", value)
        for path, amount in self._amounts():
            if not 0 <= amount <= MOST:
                raise InvalidError.at(f"snapshot.{path}", f"a number from 0 to {MOST}", amount)

    def _amounts(self) -> Iterator[tuple[str, float]]:
        for name in _AMOUNTS:
            yield name, getattr(self, name)
        for index, part in enumerate(self.parts):
            for amount in part:
                yield f"parts[{index}]", amount
        for amount in self.usual or ():
            yield "usual", amount


def write_snapshot(breaker: Breaker, now: float, wall: float) -> BreakerSnapshot:
    """Return the breaker's state. Permits that are out are not part of it."""
    ahead = wall - now
    why = breaker.rejection
    return BreakerSnapshot(
        at=wall,
        name=breaker.name,
        state=breaker.recorded_state,
        until=_moved(breaker.open_until, ahead),
        open_time=breaker.open_time,
        reopen_time=breaker.reopen_time,
        reason=why.reason if why else None,
        last_error=why.last_failure if why else None,
        rule=why.rule if why else None,
        consecutive_failures=breaker.streak,
        good_probes=breaker.good_probes,
        isolations=breaker.isolations,
        disabled=breaker.disabled,
        parts=tuple(breaker.window.parts(now)),
        usual=(breaker.usual.calls, breaker.usual.bad) if breaker.usual else None,
        last_failure=_moved(breaker.last_failure, ahead),
        last_success=_moved(breaker.last_success, ahead),
        last_state_change=_moved(breaker.last_change, ahead),
        **{name: getattr(breaker, name) for name in _TOTALS},
    )


def read_snapshot(breaker: Breaker, snapshot: BreakerSnapshot, now: float, wall: float) -> None:
    """Put the state into a breaker that was just made. What the window held grows older by the time in between."""
    ahead = wall - now
    breaker.recorded_state = snapshot.state
    breaker.open_time = min(snapshot.open_time, breaker.config.open_cap)
    breaker.reopen_time = min(snapshot.reopen_time, breaker.config.open_cap)
    if snapshot.state is CircuitState.OPEN and snapshot.until is not None:
        # The wall clock may have jumped in between; nobody waits longer than the open time for that (litellm#34416).
        breaker.open_until = now + min(snapshot.until - wall, breaker.open_time)
    if snapshot.state is not CircuitState.CLOSED:
        breaker.rejection = Rejection(
            name=snapshot.name,
            state=snapshot.state,
            retry_at=breaker.open_until,
            reason=snapshot.reason,
            last_failure=snapshot.last_error,
            rule=snapshot.rule,
        )
    breaker.streak = snapshot.consecutive_failures
    breaker.good_probes = snapshot.good_probes
    breaker.isolations = snapshot.isolations
    breaker.disabled = snapshot.disabled
    if breaker.usual is not None and snapshot.usual is not None:
        breaker.usual.calls, breaker.usual.bad = snapshot.usual
    since = max(0.0, wall - snapshot.at)
    breaker.window.load(((age + since, good, bad, slow) for age, good, bad, slow in snapshot.parts), now)
    for name in _TOTALS:
        setattr(breaker, name, getattr(snapshot, name))
    breaker.last_failure = _moved(snapshot.last_failure, -ahead)
    breaker.last_success = _moved(snapshot.last_success, -ahead)
    breaker.last_change = _moved(snapshot.last_state_change, -ahead)


def _moved(time: float | None, by: float) -> float | None:
    return None if time is None else time + by
