"""Runs that wait, for the end of a usage limit or for their next attempt: a timer in the session's log, which survives the process.

Invariant: a run that is parked is in the log before its caller learns of it. Whoever opens the session next knows until when it waits,
and the session's lease lets one process at a time go on with it.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.faults import CATALOG, Fault, HoldfastError
from holdfast.runtime.secrets import process_redactor
from holdfast.sessions.journal import audit
from holdfast.sessions.log import RunParked, RunUnparked
from holdfast.sessions.manifest import decode_manifest, encode_manifest
from holdfast.sessions.open_ends import close, waits_for

if TYPE_CHECKING:
    from holdfast.sessions.journal import Journal
    from holdfast.stores import SessionRecord

__all__ = ["ParkedError", "ParkedRuns", "parked_fault", "parked_until", "shown_time"]


class ParkedError(HoldfastError):
    """The run is parked until a time, and nothing was done. The code is that of the failure; `until` is when it goes on.

    For example:
        except ParkedError as error:
            print(f"again at {error.until}")
    """

    code = "PROVIDER_QUOTA_EXHAUSTED"

    @property
    def until(self) -> float:
        """When the run may go on (wall clock, seconds since the epoch)."""
        return float(self.fault.context["parked_until"])


def parked_fault(run: RunParked) -> Fault:
    """Return the fault behind a parked run, with the time in its message."""
    # A code of a newer version is not in the catalog of this one.
    code: Any = run.code if run.code in CATALOG else ParkedError.code
    return Fault.of(code, f"{run.agent} is parked until {shown_time(run.until)}: {run.reason}")


def shown_time(wall: float) -> str:
    """Return a time as people read it, in UTC."""
    return datetime.fromtimestamp(wall, UTC).strftime("%Y-%m-%d %H:%M:%SZ")


class _Timer(msgspec.Struct, rename="camel"):
    """What a manifest says about a wait. Other fields are not read, so that a damaged manifest does not break a list."""

    parked_until: float | None = None


def parked_until(record: SessionRecord) -> float | None:
    """Return when the first run of a session goes on, without reading its log; None: no run is parked."""
    try:
        return msgspec.json.decode(record.manifest, type=_Timer).parked_until
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


class ParkedRuns:
    """The runs of a session that wait until a time: one for each agent, and other work by its key. `Session.parked` returns it."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    def of(self, agent: str) -> RunParked | None:
        """Return the run of an agent that is parked, also if its time is over; None if there is none."""
        return self._journal.memory.parked.get(agent)

    def all(self) -> tuple[RunParked, ...]:
        """Return all of them, the one that goes on first in front."""
        return tuple(sorted(self._journal.memory.parked.values(), key=lambda run: run.until))

    def waits(self, run: str, error: ParkedError) -> Exception:
        """Return the error with which a run waits, to raise it: what is around is not done either, also if its code handles the error."""
        return waits_for(self._journal, f"timer {run}", error)

    def goes_on(self, run: str) -> None:
        """A run that waited goes on here."""
        close(self._journal, f"timer {run}")

    async def is_lifted(self, agent: str) -> bool:
        """Whether somebody has let an agent go on before its time, also from another process."""
        await self._journal.catch_up()
        return self.of(agent) is None

    async def park(self, agent: str, until: float, fault: Fault, *, program: str = "", given: Any = None) -> None:
        """Store that the run of an agent, or other work, waits until a time (wall clock), and why.

            await session.parked.park("coder", until=time.time() + 7200, fault=fault)

        `program` and `given` are what `holdfast.sessions.later.run_due` runs when the time has come.
        """
        parked = RunParked(
            agent=agent,
            until=until,
            turn=self._journal.memory.turn if self._journal.memory.in_flight else 0,
            code=fault.code,
            reason=process_redactor().text(fault.message),
            program=program,
            given=given,
        )
        record = audit("SessionLifecycle", self._journal.session, agent=agent, parked_until=until, code=fault.code)
        others = [run.until for run in self.all() if run.agent != agent]
        await self._journal.write(parked, audit=(record,), manifest=await self._manifest(min([until, *others])))

    async def unpark(self, agent: str, *, by: str = "") -> bool:
        """Store that an agent goes on, or may go on now. Return whether it was parked.

        await session.parked.unpark("coder", by="ann")        # the limit was raised
        """
        if self.of(agent) is None:
            return False
        record = audit("SessionLifecycle", self._journal.session, agent=agent, parked_until=None, by=by)
        others = [run.until for run in self.all() if run.agent != agent]
        gone = RunUnparked(agent=agent, by=by)
        await self._journal.write(gone, audit=(record,), manifest=await self._manifest(min(others, default=None)))
        return True

    async def move(self, run: RunParked, agent: str, until: float, *, by: str = "") -> None:
        """Store that a parked run waits until another time, under this name. There is no moment at which it is not parked."""
        moved = msgspec.structs.replace(run, agent=agent, until=until)
        gone = () if run.agent == agent else (RunUnparked(agent=run.agent, by=by),)
        record = audit("SessionLifecycle", self._journal.session, agent=agent, parked_until=until, by=by)
        others = [other.until for other in self.all() if other.agent not in (agent, run.agent)]
        manifest = await self._manifest(min([until, *others]))
        await self._journal.write(moved, *gone, audit=(record,), manifest=manifest)

    async def _manifest(self, until: float | None) -> bytes:
        # The manifest is in the session's row. So a list of sessions shows who waits without reading all their logs.
        session = self._journal.session
        stored = await self._journal.store.session(session)
        manifest = decode_manifest(session, bytes(stored.manifest))
        return encode_manifest(msgspec.structs.replace(manifest, parked_until=until))
