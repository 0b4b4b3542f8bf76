"""What processes that share a target know together: its pace, who starts next, and who looks whether it is back.

    answer = tell(target, report, now)     a process says what its calls met and what it wants; the engine keeps `target`

The engine (`stores/shared_state/`) keeps one `FleetTarget` for each target and applies `tell` to it, one report after the other, by its
own clock. All that is decided is decided here, once, whatever the engine is.

A pace is counted in *starts*. Each has a number and a time at most `AHEAD_S` from now, and goes to the process and class whose turn it is:
self-clocked fair queueing over (process, class), with the shares of `policies/queue.py`. A rejection cuts the pace once: calls with a number
that was given before the cut do not cut it again.

Two cuts measure a limit, as in `policies/pace.py`. That one counts its rise in the calls of one process and guesses numbers of places; this
one rises by time, because its calls are everybody's, and the more measurements agree, the more slowly it searches.

Calls wait for starts only where that helps: once a good share of those that did not wait is rejected, and while those that wait are seldom
rejected. A service that rejects at random, whatever we do, holds nobody up for long.

Invariant: starts never exceed the pace; at most one process looks whether a target is back, and an outcome that belongs to an earlier outage
changes nothing.
"""

from __future__ import annotations

import math
from typing import Final

import msgspec

from holdfast.policies.queue import PRIORITIES, SHARES, Priority

__all__ = [
    "KEPT_S",
    "FleetAnswer",
    "FleetReport",
    "FleetTarget",
    "GivenStart",
    "MetLimit",
    "restored",
    "stored",
    "tell",
]

KEPT_S = 900.0
"""An engine forgets a target that nobody reports about for so long."""
BACK_S = 1.0
"""An engine's clock that goes back by more has been set. What was measured by it is worth nothing."""

AHEAD_S = 0.1
"""A start is given at most so long before its time: after a cut, few are left that were given at the old pace."""
LAPSES_S = 0.3
"""A start that its process does not fetch for so long goes to others."""
GONE_S = 15.0
"""A process that says nothing for so long is forgotten; with many processes later, because each says less often."""
HEARTBEAT_S = 2.0
"""How often a process reports that uses a target and wants nothing."""
LOOK_S = 1.0
"""How often one reports that waits."""
OPEN_LOOK_S = 0.5
"""The same while the target is away."""
MANY = 20
"""With more processes than this, each reports more rarely: the engine hears no more of a thousand than of so many."""
RECENT_S = 10.0
FIRST_PER_S = 4.0
SLOWEST_PER_S = 1 / 60
FEW = 3
"""Fewer starts than this between two cuts measure nothing."""
DEEP_CUT = 0.5
STEP = 0.02
"""A cut goes this far below what was measured. The pace is back at it in the middle of a search, and as far above at its end."""
GONE_AT = 2.0
"""Where the pace was so many times what was measured, and nobody had to wait, the limit is gone."""
SHORTEST_SEARCH_S, LONGEST_SEARCH_S = 8.0, 150.0
SEARCH_CALLS, RISE_CALLS = 16.0, 8.0
"""A search lasts for at least so many calls. If none is rejected in it, the pace doubles in so many calls."""
MOST_DOUBLINGS = 12.0
SURE_CALLS = 300.0
"""The most calls that a measurement weighs."""
DIFFERS = 0.2
"""A measurement that differs by more is a new limit, and the old ones count no more."""
FIRST_PAUSE_S, PAUSE_GROWTH, LONGEST_PAUSE_S = 1.0, 1.6, 5.0
TRUSTED_S, TRUSTED_SHARE = 10.0, 0.25
FORGET_S = 30.0
"""Where nobody waited and none was rejected for so long, calls start at once again."""
IDLE = 0.05
NEWER_EARLY, HOLDS = 0.1, 0.4
"""The weight of the latest call that did not wait, and the share of rejected ones from which on calls wait."""
FAR = 1.3
DOUBTED = 9.0
KNOWN_CALLS = 8.0
SHORT_CUTS = 6
COUNTED_CALLS = 40
HARMS = 0.4
"""Where calls wait, and fewer than this share of the calls of before are accepted, waiting does harm. A limit accepts as many."""
FIRST_FREE_S, LONGEST_FREE_S = 5.0, 300.0
QUORUM = 2
"""So many processes must have found a target away, or the only one."""
FOUND_S = 30.0
"""How long such a finding counts."""
PROBE_GAP_S, LONGEST_GAP_S = 2.0, 15.0
PROBE_LEASE_S = 15.0
"""The process that looks must say for so long what it found; then another one looks."""

_BY_CLASS: Final = tuple(reversed(PRIORITIES))
_NEVER = float("-inf")


class GivenStart(msgspec.Struct, array_like=True):
    """The permission to start one call."""

    number: int
    at: float
    """In what a process is told: seconds from now."""


class MetLimit(msgspec.Struct, array_like=True, frozen=True):
    """A call was rejected because there were too many."""

    number: int = 0
    """Of its start; 0: it did not wait for one."""
    requested: float | None = None
    """The pause that the other side named."""


class FleetReport(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a process has met since its last report, and what it wants."""

    process: str
    waiting: dict[Priority, int] = {}
    """Calls that wait for a start."""
    early: int = 0
    """Calls that started without one, and are not rejected."""
    accepted: int = 0
    """Calls that had a start and were answered."""
    unused: int = 0
    """Starts that no call has used."""
    limited: tuple[MetLimit, ...] = ()
    is_away: bool = False
    """Its own circuit is open."""
    wants_probe: bool = False
    """Calls of it wait for the target to be back."""
    answered: bool = False
    """It was away, and has answered."""
    probe_failed: int = 0
    """The number of the probe that found it still away."""
    seed: float = 0.0
    """Calls per second that this process knew to be accepted, for an engine that has forgotten."""
    leaves: bool = False
    """The process ends."""


class FleetAnswer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the process should keep to until it reports again."""

    epoch: int
    starts: tuple[GivenStart, ...] = ()
    void: int = 0
    """Starts up to this number that are still ahead are not to be used."""
    look_in: float = HEARTBEAT_S
    """Seconds until it should report again."""
    per_second: float = 0.0
    """The pace of all; 0: there is none."""
    is_held: bool = False
    """Calls that could start at once wait, too."""
    processes: int = 1
    behind: int = 0
    """Calls of all processes that wait."""
    hold_for: float = 0.0
    """The target is away, and this process looks no sooner than in so many seconds. 0: as it likes."""
    probe: int = 0
    """This process looks whether it is back; the number of the probe."""
    returns: int = 0
    """How often the target has come back."""
    is_forced: bool = False
    """A person holds it open for all."""


class FleetMember(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A process, as the others know it."""

    seen: float
    waiting: dict[Priority, int] = {}
    served: dict[Priority, int] = {}
    """The virtual time up to which each class was served."""
    starts: list[GivenStart] = []
    """Given and not fetched yet."""
    found_away: float = _NEVER


class FleetPace(msgspec.Struct, kw_only=True, omit_defaults=True):
    """How fast the calls of all start."""

    top: float
    """Calls per second that were accepted."""
    weight: float = 0.0
    """Calls that this was measured by; 0: it is a guess."""
    cut_at: float
    cut_number: int = 0
    next: float
    started: int = 0
    """Calls since the cut, without those that were rejected."""
    since: float
    """When the calls began that measure it next."""
    calls: int = 0
    """Those of them from before the cut."""
    idle: float = 0.0
    """Seconds since then in which one might have started and nobody wanted."""
    is_raised: bool = False
    """It was set above the mean, to find out."""
    refuted: int = 0
    """How often that was wrong."""
    short: int = 0
    """Cuts in a row with hardly a call between them."""
    pause: float = 0.0
    waited_at: float
    """When somebody waited last, or a call was rejected."""

    def per_second(self, now: float) -> float:
        """Return the calls that may start per second."""
        if self.pause:
            return 1.0 / self.pause
        since = max(0.0, now - self.cut_at)
        if not self.weight:
            return float(self.top * 2.0 ** min(since / 2.0, self.started / RISE_CALLS, MOST_DOUBLINGS))
        part = since / self._search_s
        if part <= 1.0:
            return max(SLOWEST_PER_S, self.top * (1.0 + STEP * (2.0 * part - 1.0) ** 3))
        doubles_in = max(self._search_s / 8.0, min(RISE_CALLS, self.weight) / self.top)
        return float(self.top * (1.0 + STEP) * 2.0 ** min((since - self._search_s) / doubles_in, MOST_DOUBLINGS))

    @property
    def _search_s(self) -> float:
        return max(
            min(LONGEST_SEARCH_S, self.weight / self.top),
            SHORTEST_SEARCH_S,
            min(SEARCH_CALLS, 2.0 * self.weight) / self.top,
        )

    def is_over(self, now: float) -> bool:
        """Whether nobody had to wait for it for a while."""
        return now - self.waited_at > FORGET_S

    def cut(self, now: float, number: int) -> None:
        """A call that started since the last cut was rejected."""
        per_s, calls = self.per_second(now), self.started
        self.calls += max(0, calls)
        self.short = max(0, self.short + (1 if 0 < calls < FEW else -1))
        if calls <= 0:
            self.pause = min(LONGEST_PAUSE_S, max(FIRST_PAUSE_S, self.pause * PAUSE_GROWTH))
            if not self.calls:
                # Nothing was accepted: how long that lasted says nothing about how much is.
                self.since = now
        else:
            self.pause = 0.0
            if self.calls >= FEW:
                self._measure(now, per_s)
            elif self.weight >= KNOWN_CALLS:
                # One cut soon after another says little against so many calls.
                self.weight /= 2.0
            else:
                self.top = max(SLOWEST_PER_S, min(per_s, 2.0 * self.top) * DEEP_CUT)
                self.weight = min(self.weight, float(FEW))
        self.cut_at, self.cut_number, self.started = now, number, 0
        # Calls that start already at the old pace use up what comes next.
        self.next = now + max(1.0 / self.per_second(now), min(1.0, AHEAD_S * per_s / self.top))

    def _measure(self, now: float, per_s: float) -> None:
        """Learn from the calls since the last measurement; the pace was `per_s` when one was rejected."""
        calls, took = self.calls, now - self.since
        measured = calls / took
        if self.idle > IDLE * took:
            # Nobody wanted to start for a while: the limit is at least what was accepted, and at most what would have filled that time.
            measured = min(max(self.top, measured), calls / max(took - self.idle, 0.1 * took))
        was_raised, self.is_raised = self.is_raised, False
        if was_raised and calls < SEARCH_CALLS:
            self.refuted += 1
        if self.weight and per_s > min(FAR + 0.5 * self.refuted, 2.0) * max(measured, self.top):
            # The pace was faster than any limit that saves everything for later. One that saves nothing is as fast as it was now. The
            # truth is between: if the next call is soon rejected, the mean is, and that is what is measured then.
            measured, self.is_raised = math.sqrt(measured * per_s), True
        measured = max(SLOWEST_PER_S, measured)
        if not self.weight or abs(measured - self.top) > DIFFERS * self.top:
            self.top, self.weight = measured, float(calls)
        else:
            # A count of calls is off by one, so twice as many are four times as sure.
            old, new = self.weight**2, float(calls) ** 2
            if per_s <= self.top:
                # The pace did not even rise above what was measured: that was too much.
                new *= DOUBTED
            self.top = (self.top * old + measured * new) / (old + new)
            self.weight = min(SURE_CALLS, math.sqrt(old + new))
        self.since, self.calls, self.idle = now, 0, 0.0


class FleetGate(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Whether calls wait that could start at once, because that helps."""

    early: float = 0.0
    """The share of the latest calls that did not wait and were rejected."""
    is_held: bool = False
    since: float = 0.0
    good: int = 0
    """Calls that waited and were answered."""
    bad: int = 0
    """Calls that waited and were rejected."""
    before: float = 0.0
    """Calls per second that were accepted before calls waited; 0: nobody knows."""
    free_until: float = _NEVER
    free_s: float = FIRST_FREE_S

    def count(self, accepted: int, rejected: int, *, good: int, bad: int) -> None:
        """Count calls that did not wait, and calls that did."""
        self.good, self.bad = self.good + good, self.bad + bad
        if self.good + self.bad > COUNTED_CALLS:
            self.good, self.bad = self.good // 2, self.bad // 2
        self.early *= (1 - NEWER_EARLY) ** accepted
        self.early = 1 - (1 - self.early) * (1 - NEWER_EARLY) ** rejected

    def look(self, pace: FleetPace, now: float) -> None:
        """Decide whether calls wait."""
        if not self.is_held:
            self.is_held = self.early >= HOLDS and now >= self.free_until
            self.since, self.good, self.bad = now, 0, 0
        elif pace.weight >= KNOWN_CALLS and pace.top > self.before and not pace.is_raised:
            self.before = pace.top
        elif self._harms(pace):
            pace.short = 0
            self.is_held, self.early, self.before = False, 0.0, 0.0
            self.free_until = now + self.free_s
            self.free_s = min(LONGEST_FREE_S, 2 * self.free_s)
        elif now - self.since > 20 * self.free_s:
            self.free_s = FIRST_FREE_S

    def _harms(self, pace: FleetPace) -> bool:
        is_rejected = self.good >= FEW and self.bad > self.good and self.good + self.bad >= COUNTED_CALLS / 2
        return is_rejected or pace.short >= SHORT_CUTS or pace.top < HARMS * self.before


class FleetCircuit(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Whether the target is away, and who looks."""

    is_open: bool = False
    since: float = 0.0
    probes: int = 0
    """The number of the latest probe."""
    owner: str = ""
    until: float = 0.0
    """When its turn to look ends."""
    began: float = 0.0
    next_at: float = 0.0
    returns: int = 0
    is_forced: bool = False


class FleetTarget(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What the engine keeps for one target."""

    epoch: int
    """Another one means that the engine has forgotten everything."""
    at: float = 0.0
    """The time of the latest change."""
    members: dict[str, FleetMember] = {}
    reached: int = 0
    """The virtual time of the latest start."""
    number: int = 0
    """Of the latest start."""
    pace: FleetPace | None = None
    known: tuple[float, float] = (0.0, 0.0)
    """The top and weight of the latest pace."""
    recent: list[tuple[float, int]] = []
    """When calls were reported that started without waiting and were not rejected."""
    limited_since: float = 0.0
    gate: FleetGate = msgspec.field(default_factory=FleetGate)
    circuit: FleetCircuit = msgspec.field(default_factory=FleetCircuit)
    rejected: int = 0
    """429s so far."""
    granted: int = 0
    """Starts so far."""


def restored(raw: bytes | None, now: float) -> tuple[FleetTarget, float]:
    """Return the target that an engine has kept, and the time to go by; a new one if it has kept none that can be read."""
    if raw is not None:
        try:
            target = _DECODER.decode(raw)
        except msgspec.DecodeError:
            pass  # another version's: what it knew is learned anew
        else:
            if now >= target.at - BACK_S:
                return target, max(now, target.at)
    return FleetTarget(epoch=int(now * 1000)), now


def stored(target: FleetTarget, now: float) -> bytes:
    """Return what an engine keeps of a target."""
    target.at = now
    return _ENCODER.encode(target)


def tell(target: FleetTarget, report: FleetReport, now: float) -> FleetAnswer:
    """Take a report in, and return what its process should keep to. Changes `target`.

    target = FleetTarget(epoch=1)
    answer = tell(target, FleetReport(process="a", limited=(MetLimit(),)), now=0.0)
    """
    if report.leaves:
        target.members.pop(report.process, None)
        if target.circuit.owner == report.process:
            target.circuit.owner = ""
        return FleetAnswer(epoch=target.epoch)
    member = target.members.get(report.process)
    if member is None:
        member = target.members[report.process] = FleetMember(seen=now)
    member.seen = now
    slowness = max(1.0, len(target.members) / MANY)
    for name in [name for name, other in target.members.items() if now - other.seen > GONE_S * slowness]:
        del target.members[name]
    _take_back_lapsed(target, now)
    member.waiting = {name: count for name, count in report.waiting.items() if count > 0}
    _learn(target, report, now)
    void = 0 if target.pace is None else target.pace.cut_number
    starts: tuple[GivenStart, ...] = ()
    if target.pace is not None:
        _give_starts(target, now)
        starts = tuple(GivenStart(start.number, max(0.0, start.at - now)) for start in member.starts)
        member.starts = []
    hold_for, probe = _look(target, member, report, now)
    pace = target.pace
    return FleetAnswer(
        epoch=target.epoch,
        starts=starts,
        void=void,
        look_in=_look_in(target, member, now, slowness, away=hold_for > 0 or probe > 0),
        per_second=0.0 if pace is None else pace.per_second(now),
        is_held=pace is not None and target.gate.is_held,
        processes=len(target.members),
        behind=sum(sum(other.waiting.values()) for other in target.members.values()),
        hold_for=hold_for,
        probe=probe,
        returns=target.circuit.returns,
        is_forced=target.circuit.is_forced,
    )


_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(FleetTarget)


# --- the pace ---


def _learn(target: FleetTarget, report: FleetReport, now: float) -> None:
    target.rejected += len(report.limited)
    if target.pace is None and (report.limited or report.seed):
        _begin_pace(target, report, now)
    pace = target.pace
    if pace is None:
        return
    _count(target, pace, report, now)
    was_held = target.gate.is_held
    for met in report.limited:
        _limit(target, pace, met, now)
    target.gate.look(pace, now)
    if target.gate.is_held and not was_held:
        _hold(target, pace, now)
    if pace.is_over(now):
        is_gone = pace.per_second(now) > GONE_AT * pace.top
        target.known = (0.0, 0.0) if is_gone else (pace.top, pace.weight / 2)
        target.pace, target.gate = None, FleetGate(free_s=target.gate.free_s)
        for member in target.members.values():
            member.starts = []


def _begin_pace(target: FleetTarget, report: FleetReport, now: float) -> None:
    top, weight = target.known if target.known[0] else (report.seed or FIRST_PER_S, 0.0)
    target.pace = FleetPace(
        top=top, weight=weight, cut_at=now, since=now, cut_number=target.number, next=now, waited_at=now
    )
    target.limited_since, target.recent = now, []
    if report.seed:
        target.gate.is_held, target.gate.since = True, now


def _count(target: FleetTarget, pace: FleetPace, report: FleetReport, now: float) -> None:
    pace.started += report.early - report.unused
    if report.early:
        recent = [(at, count) for at, count in target.recent if now - at < RECENT_S]
        target.recent = [*recent, (now, report.early)]
    if report.accepted or report.early:
        pace.pause = 0.0
    # A call that could not wait has used what the next one would have.
    taken = (report.early if target.gate.is_held else 0) - report.unused
    pace.next += taken / pace.per_second(now)
    in_turn = sum(met.number > 0 for met in report.limited)
    target.gate.count(report.early, len(report.limited) - in_turn, good=report.accepted, bad=in_turn)


def _hold(target: FleetTarget, pace: FleetPace, now: float) -> None:
    """Calls begin to wait: at the pace at which the latest ones were accepted."""
    took = now - target.limited_since
    target.gate.before = sum(count for _, count in target.recent) / took if took >= LOOK_S else 0.0
    if not pace.weight:
        pace.top = max(SLOWEST_PER_S, target.gate.before or FIRST_PER_S)
    pace.cut_at = pace.since = now
    pace.started, pace.calls, pace.idle, pace.cut_number = 0, 0, 0.0, target.number
    pace.next = max(pace.next, now + 1.0 / pace.per_second(now))


def _limit(target: FleetTarget, pace: FleetPace, met: MetLimit, now: float) -> None:
    pace.waited_at = now
    if met.number > pace.cut_number:
        pace.started -= 1
        if now - pace.cut_at < 2 * AHEAD_S:
            # It still pays for those that started before the cut.
            pace.next = max(pace.next, now + AHEAD_S)
            return
        pace.cut(now, target.number)
        # What was given at the old pace, and has not begun, is taken back.
        for member in target.members.values():
            member.starts = []
    elif met.number:
        pace.started -= 1
    if met.requested is not None:
        pace.next = max(pace.next, now + min(met.requested, max(TRUSTED_S, TRUSTED_SHARE * met.requested)))


def _take_back_lapsed(target: FleetTarget, now: float) -> None:
    """Take back the starts that a process did not fetch. It has its turn again when it says that it still waits."""
    pace = target.pace
    for member in target.members.values():
        kept = [start for start in member.starts if now - start.at <= LAPSES_S]
        if pace is not None and len(kept) < len(member.starts):
            lost = len(member.starts) - len(kept)
            pace.next -= lost / pace.per_second(now)
            pace.started -= lost
            member.starts, member.waiting = kept, {}


def _give_starts(target: FleetTarget, now: float) -> None:
    pace = target.pace
    assert pace is not None
    lines: dict[tuple[str, Priority], int] = {
        (name, priority): _due(target, member, priority)
        for name, member in target.members.items()
        for priority in member.waiting
    }
    behind = now - max(pace.next, pace.cut_at)
    if behind > AHEAD_S:
        pace.idle += behind
        pace.next = now
    while lines and pace.next <= now + AHEAD_S:
        name, priority = min(lines, key=lambda line: (lines[line], line))
        member, due = target.members[name], lines[name, priority]
        target.number += 1
        target.granted += 1
        member.starts.append(GivenStart(target.number, pace.next))
        member.served[priority] = target.reached = max(target.reached, due)
        member.waiting[priority] -= 1
        if member.waiting[priority] > 0:
            lines[name, priority] = due + SHARES[priority]
        else:
            del member.waiting[priority], lines[name, priority]
        pace.started += 1
        pace.next += 1.0 / pace.per_second(max(now, pace.next))
    if lines:
        pace.waited_at = now


def _due(target: FleetTarget, member: FleetMember, priority: Priority) -> int:
    """Return the virtual time at which the next call of a process and class is served."""
    return max(target.reached - SHARES[priority], member.served.get(priority, 0)) + SHARES[priority]


def _look_in(target: FleetTarget, member: FleetMember, now: float, slowness: float, *, away: bool) -> float:
    look = HEARTBEAT_S * slowness
    if away:
        look = min(look, OPEN_LOOK_S * slowness)
    pace = target.pace
    if pace is None or not member.waiting:
        return look
    lines: dict[tuple[str, Priority], int] = {
        (name, priority): _due(target, other, priority)
        for name, other in target.members.items()
        for priority in other.waiting
    }
    line = min((due, line) for line, due in lines.items() if target.members[line[0]] is member)
    before = 0
    for (name, priority), first in lines.items():
        if target.members[name] is not member and (first, (name, priority)) < line:
            others, rest = divmod(line[0] - first, SHARES[priority])
            before += min(target.members[name].waiting[priority], others + (rest > 0 or (name, priority) < line[1]))
    turn = pace.next - now + before / pace.per_second(now) - 0.5 * AHEAD_S
    return min(look, LOOK_S * slowness, max(turn, 0.01))


# --- the circuit ---


def _look(target: FleetTarget, member: FleetMember, report: FleetReport, now: float) -> tuple[float, int]:
    """Return for how long the process holds back its probes, and the number of the probe that it makes now."""
    circuit = target.circuit
    member.found_away = now if report.is_away else _NEVER
    if report.answered and circuit.is_open:
        circuit.is_open, circuit.owner = False, ""
        circuit.returns += 1
        for other in target.members.values():
            other.found_away = _NEVER
        return 0.0, 0
    gap = max(PROBE_GAP_S, LONGEST_GAP_S / len(target.members))
    if report.probe_failed and report.probe_failed == circuit.probes and circuit.owner == report.process:
        circuit.owner, circuit.next_at = "", circuit.began + gap
    if not report.is_away or not _is_away(target, gap, now):
        return 0.0, 0
    return _probe(circuit, report, gap, now)


def _is_away(target: FleetTarget, gap: float, now: float) -> bool:
    """Return whether enough processes have found it away."""
    circuit = target.circuit
    if not circuit.is_open:
        found = sum(now - other.found_away <= FOUND_S for other in target.members.values())
        circuit.is_open = found >= min(QUORUM, len(target.members))
        circuit.since, circuit.next_at = now, now + gap
    return circuit.is_open


def _probe(circuit: FleetCircuit, report: FleetReport, gap: float, now: float) -> tuple[float, int]:
    # The more processes there are, the sooner somebody looks.
    circuit.next_at = min(circuit.next_at, max(circuit.since, circuit.began) + gap)
    if circuit.owner and now >= circuit.until:
        circuit.owner = ""
    if circuit.owner == report.process:
        return 0.0, circuit.probes
    if circuit.owner:
        return circuit.until - now, 0
    if now >= circuit.next_at and report.wants_probe:
        circuit.probes += 1
        circuit.owner, circuit.began, circuit.until = report.process, now, now + PROBE_LEASE_S
        return 0.0, circuit.probes
    return max(circuit.next_at - now, OPEN_LOOK_S), 0
