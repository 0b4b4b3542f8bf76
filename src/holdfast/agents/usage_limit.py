"""Usage limits that say when they end: the run is parked until then, and goes on where it was, in this process or another one.

    failure ─▶ limit_end ─▶ until ─▶ decide ─▶ wait, then go on
                                          └──▶ store the time, raise; the next start of the program goes on after it

Invariant: with a session the time is stored before anybody waits or raises. Before it is over no request is sent.
"""

from __future__ import annotations

import asyncio
import inspect
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import msgspec

from holdfast.agents.parts import Parked
from holdfast.events import Retry
from holdfast.runtime.ambient import AMBIENT, in_force
from holdfast.runtime.fault_of import add_note, leave_fault
from holdfast.sessions.parked_runs import ParkedError, parked_fault, shown_time

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.faults import Fault
    from holdfast.runtime.runtime import Runtime
    from holdfast.sessions.session import Session

__all__ = ["OnLimit", "ParkedError", "Parking", "is_parked", "limit_end", "waits"]

OnLimit: TypeAlias = Literal["auto", "wait", "raise"]
"""What an agent does at a usage limit that says when it ends: wait for it, or raise. `auto` waits if the limit ends before the
deadline of the budget around it, and raises otherwise: without a budget nobody knows that there is time."""

# A plan's window, a day's requests: they end at a known time, however far away.
_LIMITS = frozenset({"PROVIDER_QUOTA_EXHAUSTED", "PROVIDER_DAILY_LIMIT"})
_LEAST_S = 60.0
"""A rate limit of a minute or less is no reason to park: attempts and circuits deal with it."""
_LOOK_S = 60.0
"""How long it sleeps at once. The wall clock may be set, and a laptop may be closed, while it waits."""
_LATER_S = 1.0
"""Seconds after the end of a limit. A request at the very second may still be counted before it."""


def limit_end(fault: Fault, now: float) -> float | None:
    """Return when the usage limit behind a failure ends, as wall clock; None if it is none, or does not say.

    A rate limit counts if it lasts longer than a minute, and an open circuit if such a limit has opened it. If another model of a
    chain failed for another reason, waiting for the first one is not what helps.
    """
    wait = fault.retry_after
    if wait is None or any(_is_other(step) for step in fault.context.get("fallbacks", ())):
        return None
    code = fault.context.get("reason") if fault.code == "CIRCUIT_OPEN" else fault.code
    if code in _LIMITS or (code == "PROVIDER_RATE_LIMITED" and wait > _LEAST_S):
        return now + wait
    return None


def _is_other(step: Any) -> bool:
    code = step.get("code") if isinstance(step, dict) else None
    return code is not None and code not in _LIMITS and code not in ("PROVIDER_RATE_LIMITED", "CIRCUIT_OPEN")


def is_parked(fault: Fault) -> bool:
    """Whether a failure means that a run waits in its session for the end of a usage limit."""
    return "parked_until" in fault.context


def waits(on_limit: OnLimit, wait: float, left: float | None) -> bool:
    """Whether to wait so many seconds, if `left` seconds are left until the deadline; None: there is no deadline."""
    in_time = left is None or wait < left
    return in_time and (on_limit == "wait" or (on_limit == "auto" and left is not None))


class Parking:
    """What one run of an agent does about usage limits. Ask it before each request, and after each that failed.

    parking = Parking("coder", session, "auto", runtime)
    while True:
        await parking.check()
        try:
            return await request()
        except Exception as error:
            if not await parking.goes_on(error):
                raise
    """

    def __init__(
        self,
        agent: str,
        session: Session | None,
        on_limit: OnLimit,
        runtime: Runtime,
        show: Callable[[Parked], Any] | None = None,
    ) -> None:
        self._agent = agent
        self._session = session
        self._on_limit: OnLimit = on_limit
        self._runtime = runtime
        self._show = show

    async def check(self) -> None:
        """Wait for the end of the limit at which this agent is parked in the session, or raise `ParkedError`."""
        parked = None if self._session is None else self._session.parked.of(self._agent)
        if parked is None or self._session is None:
            return
        fault = parked_fault(parked)
        if parked.until > self._now and not await self._waited(parked.until, fault):
            raise ParkedError(self._with_time(fault, parked.until))
        await self._session.parked.unpark(self._agent)

    async def goes_on(self, error: Exception) -> bool:
        """Park the run if the failure is a usage limit that says when it ends. Return True when the limit has ended.

        False: the caller raises the error. If the run is parked, its fault says until when.
        """
        fault = self._runtime.fault_of(error)
        until = limit_end(fault, self._now)
        if until is None:
            return False
        until += _LATER_S
        if self._session is not None:
            await self._session.parked.park(self._agent, until, fault)
            fault = self._with_time(fault, until)
        if await self._waited(until, fault):
            if self._session is not None:
                await self._session.parked.unpark(self._agent)
            return True
        if self._session is not None:
            leave_fault(error, fault)
            add_note(error, f"holdfast: {self._agent} is parked until {shown_time(until)}; run it again then")
            await self._session.notify(f"{self._agent} is parked until {shown_time(until)}.", fault=fault)
        return False

    async def _waited(self, until: float, fault: Fault) -> bool:
        """Wait, if there is time and the user wants it. Return whether the time is over."""
        if self._show is not None and inspect.isawaitable(shown := self._show(Parked(until=until, fault=fault))):
            await shown
        wait = until - self._now
        left = _time_left(self._runtime)
        if not waits(self._on_limit, wait, left):
            return False
        self._runtime.bus.emit(
            Retry(
                at=self._now,
                operation=self._agent,
                attempt=1,
                max_attempts=None,
                delay=wait,
                fault=fault,
                requested=True,
                left=left,
                why=f"parked until {shown_time(until)}",
            )
        )
        while (rest := until - self._now) > 0:
            await asyncio.sleep(min(rest, _LOOK_S))
            if self._session is not None and await self._session.parked.is_lifted(self._agent):
                break
        return True

    def _with_time(self, fault: Fault, until: float) -> Fault:
        """Return the fault with the time at which the run goes on."""
        session = "" if self._session is None else self._session.id
        return msgspec.structs.replace(
            fault,
            retry_after=max(0.0, until - self._now),
            context={**fault.context, "parked_until": until, "session_id": session, "agent": self._agent},
        )

    @property
    def _now(self) -> float:
        return self._runtime.clock.wall()


def _time_left(runtime: Runtime) -> float | None:
    around = in_force(AMBIENT.get())
    monotonic = runtime.clock.monotonic
    deadline = None if around is None else around.cut_on(monotonic)
    return None if deadline is None else deadline - monotonic()
