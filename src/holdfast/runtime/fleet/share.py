"""`TargetShare`: what this process knows of a target from the others, and what it has to tell them.

A call reads it under the target's lock and never waits for it. Without a start a call waits its turn like one that the pace holds back, and is
woken when the link brings a start.

Invariant: an outcome is told once. While the engine is away, calls go on at this process's part of the last pace, and later as if nothing
were shared.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final
from weakref import ref

from holdfast.policies.fleet import FleetReport, MetLimit

if TYPE_CHECKING:
    from holdfast.policies.circuit import Permit
    from holdfast.policies.fleet import FleetAnswer
    from holdfast.policies.queue import Priority
    from holdfast.runtime.fleet.link import FleetLink
    from holdfast.runtime.targets.target_state import TargetState

__all__ = ["TargetShare"]

LAPSES_S = 0.3
"""A start that no call has used for so long is given back."""
STALE_S = 3.0
"""For so long after the next report was due, the last answer still holds."""
ALONE_S = 120.0
"""While the engine is away, the last pace holds for so long."""
ALONE_SHARE = 0.9
SLOWER = 0.8
"""What a rejection multiplies the pace by then."""
LEAST_WAIT_S = 0.02
HELD_S = 1.0
"""A probe is held back for so much longer than was told, so that the next answer comes before."""
_ROUNDING = 1e-6
_EARLY: Final = -1
_NEVER = float("inf")


class TargetShare:
    """The part of one target in one process. The target's lock is held around each method, but for `report_due`."""

    __slots__ = (
        "__weakref__",
        "_accepted",
        "_alone_next",
        "_alone_share",
        "_answer",
        "_answered",
        "_early",
        "_heard_at",
        "_limited",
        "_link",
        "_probe",
        "_probe_failed",
        "_returns",
        "_seed",
        "_starts",
        "_state",
        "_told",
        "_unused",
        "_used",
        "due",
        "name",
    )

    def __init__(self, link: FleetLink, state: TargetState) -> None:
        self._link = link
        self._state = ref(state)
        self.name = state.name
        self.due = _NEVER
        """When the next report is due."""
        self._forget()

    def _forget(self) -> None:
        self._answer: FleetAnswer | None = None
        self._heard_at = 0.0
        self._starts: deque[tuple[int, float]] = deque()
        """Number and time of starts that no call has used."""
        self._early = self._accepted = self._unused = 0
        self._limited: list[MetLimit] = []
        self._answered = False
        self._probe = self._probe_failed = 0
        self._returns: int | None = None
        self._alone_next, self._alone_share = 0.0, ALONE_SHARE
        self._used, self._seed = True, 0.0
        self._told: dict[Priority, int] = {}
        """The calls that wait for a start, as the others know."""

    # --- for calls ---

    def governs(self, now: float) -> bool:
        """Whether the fleet's pace decides when calls start."""
        answer = self._answer
        if answer is None or not answer.per_second:
            return False
        if self._link.is_away(now):
            return now < self._heard_at + ALONE_S
        return now < self._heard_at + answer.look_in + STALE_S

    @property
    def has_pace(self) -> bool:
        """Whether the fleet had a pace when it was last asked."""
        return self._answer is not None and self._answer.per_second > 0

    def is_alone(self, now: float) -> bool:
        """Whether the engine is away, and this process keeps to its part of the last pace."""
        return self._link.is_away(now)

    def wants_start(self, priority: Priority) -> None:
        """A call waits. That others wait, too, is told already; how many is told with the next report."""
        if priority not in self._told:
            self.report_due(self._link.monotonic())

    @property
    def is_held(self) -> bool:
        """Whether calls wait that could start at once."""
        return self._answer is not None and self._answer.is_held

    def free(self, now: float) -> int:
        """Return how many starts no call has used."""
        while self._starts and now - self._starts[0][1] > LAPSES_S:
            self._starts.popleft()
            self._unused += 1
        return len(self._starts)

    def wait(self, now: float, ahead: int) -> float:
        """Return the seconds until a call may start, if `ahead` calls go before it; 0: now."""
        assert self._answer is not None
        if self._link.is_away(now):
            return max(0.0, self._alone_next - now) + ahead * self._alone_gap()
        if ahead < self.free(now):
            return max(0.0, self._starts[ahead][1] - now)
        # The link wakes it sooner if its start comes sooner.
        turns = (ahead - len(self._starts)) * self._answer.processes / self._answer.per_second
        return max(self._heard_at + self._answer.look_in - now, LEAST_WAIT_S) + turns

    def _alone_gap(self) -> float:
        assert self._answer is not None
        return self._answer.processes / (self._alone_share * self._answer.per_second)

    def started(self, now: float) -> int:
        """A call starts. Return the number of its start; -1: it had none, although there is a pace."""
        if self._link.is_away(now):
            self._alone_next = max(now, self._alone_next) + self._alone_gap()
        elif self.free(now) and self._starts[0][1] <= now + _ROUNDING:
            return self._starts.popleft()[0]
        return _EARLY

    def used(self, now: float) -> None:
        """A call comes. Return at once where the others are told of this process already."""
        self._used = True
        if self.due == _NEVER:
            self.report_due(now)

    def limited(self, permit: Permit, requested: float | None, now: float) -> None:
        """A call was rejected because there were too many."""
        self._limited.append(MetLimit(max(0, permit.start), requested))
        permit.start = 0
        if self._link.is_away(now):
            self._alone_share *= SLOWER
        self.report_due(now)

    def ended(self, permit: Permit, now: float, *, answered: bool, is_away: bool) -> None:
        """A call ended in another way. `is_away`: the target's circuit is open."""
        self._accepted += permit.start > 0
        self._early += permit.start < 0
        permit.start = 0
        if permit.probe:
            self._probe_ended(now, answered=answered)
        elif is_away:
            self.report_due(now)

    def _probe_ended(self, now: float, *, answered: bool) -> None:
        self._answered = self._answered or answered
        if self._probe and not answered:
            self._probe_failed, self._probe = self._probe, 0
        self.report_due(now)

    def report_due(self, now: float) -> None:
        """There is something to tell, or to ask. Any thread may say so."""
        if self.due > now:
            self.due = now
            self._link.wake()

    # --- for the link ---

    @property
    def state(self) -> TargetState | None:
        """The target; None: it was forgotten."""
        return self._state()

    def report(self, process: str, waiting: dict[Priority, int], now: float, *, is_away: bool) -> FleetReport:
        """Return what is to be told now, and count anew."""
        free = self.free(now)
        wanted: dict[Priority, int] = {}
        for priority, count in waiting.items():
            served = min(free, count)
            free -= served
            if count > served:
                wanted[priority] = count - served
        knew = self._answer
        shares_limits, is_away = self._link.options.limits, is_away and self._link.options.circuits
        report = FleetReport(
            process=process,
            waiting=wanted if shares_limits else {},
            early=self._early,
            accepted=self._accepted,
            unused=self._unused,
            limited=tuple(self._limited) if shares_limits else (),
            is_away=is_away,
            wants_probe=is_away and bool(waiting),
            answered=self._answered,
            probe_failed=self._probe_failed,
            seed=self._seed,
        )
        self._early = self._accepted = self._unused = self._probe_failed = 0
        self._limited, self._answered, self._used, self._seed = [], False, False, 0.0
        self._told = waiting
        # Set before the engine is asked: what comes meanwhile makes it due again.
        self.due = now + (STALE_S if knew is None else knew.look_in)
        return report

    def take_back(self, report: FleetReport) -> None:
        """The report was not told: it is told with the next one."""
        self._told = {}
        self._early += report.early
        self._accepted += report.accepted
        self._unused += report.unused
        self._limited = [*report.limited, *self._limited]
        self._answered = self._answered or report.answered
        self._probe_failed = self._probe_failed or report.probe_failed

    def hear(self, answer: FleetAnswer, now: float, *, is_quiet: bool) -> bool:
        """Keep what the others know; return whether the target has come back. `is_quiet`: nobody waits, and it is not away."""
        knew = self._answer
        if knew is not None and knew.epoch != answer.epoch:
            # The engine has forgotten. The first to say what it knew sets the pace, and the others keep to it.
            self._starts.clear()
            self._seed = knew.per_second if knew.is_held and not answer.per_second else 0.0
            self.due = now if self._seed else self.due
        self._answer, self._heard_at = answer, now
        self._alone_next, self._alone_share = now, ALONE_SHARE
        kept = [start for start in self._starts if start[0] > answer.void or start[1] <= now]
        self._starts = deque(sorted([*kept, *((start.number, now + start.at) for start in answer.starts)]))
        came_back = self._returns is not None and answer.returns > self._returns
        self._returns = answer.returns
        if self.due > now:
            # A process that does not use the target says nothing, and is forgotten after a while.
            self.due = now + answer.look_in if self._used or not is_quiet else _NEVER
        return came_back

    def takes_probe(self) -> bool:
        """Whether this process has just been asked to look whether the target is back."""
        answer = self._answer
        if answer is None or not answer.probe or answer.probe == self._probe:
            return False
        self._probe = answer.probe
        return True

    @property
    def holds_for(self) -> float:
        """Seconds for which others look whether the target is back; 0: this process may."""
        return 0.0 if self._answer is None or not self._answer.hold_for else self._answer.hold_for + HELD_S

    def after_fork(self) -> None:
        """What the parent was given is the parent's."""
        self.due = _NEVER
        self._forget()
