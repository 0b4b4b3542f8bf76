"""When a client connects again, and how.

Invariant: after its own list a client goes on at the longest delay until the server has given the session up. Only a client that counts
attempts, or one that the server rejects for good, gives up.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, NamedTuple, TypeAlias

from holdfast import options
from holdfast.faults import Fault, InvalidError
from holdfast.faults import Schedule as Kind
from holdfast.policies import profiles

if TYPE_CHECKING:
    from holdfast.clock import Rng

Address: TypeAlias = Literal["resolve", "cached"]
"""How the next attempt finds the server: it asks for the address anew, or takes the last one that worked."""


class Schedule(options.Options, frozen=True, kw_only=True, omit_defaults=True, repr_omit_defaults=True):
    """The delays between attempts to connect: `Schedule(delays=(1, 2, 5), attempts=3)`. Wrong options raise `InvalidError`."""

    delays: tuple[float, ...] = (1.0, 2.0, 5.0, 10.0, 30.0)
    """Seconds before each attempt. The last one repeats."""
    jitter: float = 0.2
    """Each delay is spread over this share of it, to both sides."""
    attempts: int | None = None
    """Attempts before it gives up; None: until `grace` has passed."""
    grace: float | None = 300.0
    """Seconds that the server keeps the session of a client that is gone; None: no limit."""
    factor: float = 1.0
    """Each delay after the list is so many times the one before."""
    cap: float = 30.0
    """The longest delay after the list."""
    waits_first: bool = True
    """Whether it waits before its first attempt, and not after it."""
    message: str = ""
    """The message of the error at the end; empty: our own."""

    def __post_init__(self) -> None:
        if not self.delays:
            raise InvalidError.saying("reconnect.delays", "at least one delay", "none")
        for place, delay in enumerate(self.delays):
            options.seconds(f"reconnect.delays[{place}]", delay, zero=True)
        options.share("reconnect.jitter", self.jitter, zero=True)
        options.count("reconnect.attempts", self.attempts, optional=True)
        options.seconds("reconnect.grace", self.grace, optional=True)
        options.at_least("reconnect.factor", self.factor, 1)
        options.seconds("reconnect.cap", self.cap)

    def delay(self, attempt: int) -> float:
        """Return the delay before attempt `attempt` (from 1), without jitter."""
        place = attempt - 1 if self.waits_first else attempt - 2
        if place < 0:
            return 0.0
        if place < len(self.delays):
            return self.delays[place]
        return min(max(self.cap, self.delays[-1]), self.delays[-1] * self.factor ** (place - len(self.delays) + 1))


DEFAULT: Final = Schedule()
_LOST, _RECOVERY = profiles.BRIDGE.schedules[Kind.RECONNECT], profiles.BRIDGE.tries["recovery"]
BRIDGE: Final = Schedule(delays=_LOST.backoff.steps, jitter=0.0, attempts=len(_LOST.backoff.steps), grace=None)
"""Exactly five attempts after 1, 2, 5, 10 and 30 seconds."""
CONNECT_TIMEOUT: Final = Schedule(delays=(1.0, 2.0, 5.0, 10.0), jitter=0.0, factor=2.0, cap=60.0)
"""After an attempt that exceeded its time limit: 1 s, 2 s with the address that worked, 5 s with a new one, 10 s and then doubling."""
LINEAR: Final = Schedule(
    delays=tuple(_RECOVERY.backoff.initial * place for place in (1, 2, 3, 4, 5)),
    jitter=0.0,
    attempts=_RECOVERY.attempts,
    grace=None,
    waits_first=False,
    message="Max retries exceeded",
)
"""Five attempts, the first at once, then after 1, 2, 3 and 4 seconds."""

_CACHED = frozenset({2})
"""The attempts after a connect timeout that take the last address that worked."""


class NextAttempt(NamedTuple):
    """Connect again after `delay` seconds."""

    number: int
    delay: float
    address: Address = "resolve"


class Exhausted(NamedTuple):
    """Give up: every attempt failed, or the server has given the session up."""

    fault: Fault


class Reconnect:
    """Counts the attempts of one loss of connection. `now` is the monotonic clock.

    reconnect = Reconnect(lost_at=now)
    match reconnect.next(now, rng):
        case NextAttempt(delay=delay): ...
        case Exhausted(fault=fault): ...
    """

    def __init__(self, schedule: Schedule = DEFAULT, *, lost_at: float) -> None:
        self.schedule = schedule
        self.attempts = 0
        self._lost_at = lost_at
        self._timeouts = 0

    def next(self, now: float, rng: Rng, *, is_awake: bool = False, timed_out: bool = False) -> NextAttempt | Exhausted:
        """Return when to connect next. `is_awake`: the device just came back, so the next attempt is made at once.

        `timed_out`: the last attempt exceeded its time limit.
        """
        schedule = self.schedule
        is_over = schedule.attempts is not None and self.attempts >= schedule.attempts
        is_given_up = schedule.attempts is None and schedule.grace is not None and now - self._lost_at >= schedule.grace
        if is_over or is_given_up:
            fault = Fault.of("CONN_RECONNECT_EXHAUSTED", schedule.message or None, context={"attempts": self.attempts})
            return Exhausted(fault)
        self.attempts += 1
        self._timeouts = self._timeouts + 1 if timed_out else 0
        address: Address = "cached" if self._timeouts in _CACHED else "resolve"
        if is_awake:
            return NextAttempt(self.attempts, 0.0, address)
        delay = CONNECT_TIMEOUT.delay(self._timeouts) if timed_out else schedule.delay(self.attempts)
        spread = 1 + schedule.jitter * (2 * rng.random() - 1)
        return NextAttempt(self.attempts, delay * spread, address)
