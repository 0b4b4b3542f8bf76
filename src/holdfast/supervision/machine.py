"""The restart decisions of one supervisor: `SupervisorMachine`. It takes what happened and when, and returns what to do.

Invariants: it reports no decision about an incarnation that is not the present one. A group restart counts once. Children start in the
order they were added and stop in the reverse order. It behaves as Erlang/OTP's `supervisor`, with two exceptions: a supervisor that
gave up has failed, so a transient one is restarted; and the window is exact, not counted in whole seconds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeAlias

from holdfast.supervision.decision import (
    Close,
    Decision,
    Finish,
    GiveUp,
    Purpose,
    Restarting,
    Start,
    Stop,
    Wait,
)
from holdfast.supervision.exits import Error, Exit, Shutdown, is_clean
from holdfast.supervision.intensity import RestartWindow, Rules

if TYPE_CHECKING:
    from collections.abc import Iterable

    from holdfast.clock import Rng
    from holdfast.supervision.spec import ChildSpec

__all__ = ["ChildState", "Refusal", "Slot", "SupervisorMachine"]

ChildState: TypeAlias = Literal["running", "restarting", "stopped"]
Refusal: TypeAlias = Literal["not_found", "running", "restarting", "present"]
"""Why an administrative call does nothing."""


class Slot:
    """The place of one child: its spec and its present incarnation."""

    __slots__ = ("delay", "failures", "incarnation", "last", "since", "spec", "state", "token", "uncounted", "window")

    def __init__(self, spec: ChildSpec) -> None:
        self.spec = spec
        self.state: ChildState = "stopped"
        self.incarnation = 0
        self.last: Exit | None = None
        """How the last incarnation ended."""
        self.since = 0.0
        """When the present incarnation started."""
        self.failures = 0
        """Restarts in a row; the backoff grows with them."""
        self.delay = 0.0
        self.token = 0
        """Names the pending retry. A retry with an older token is void."""
        self.uncounted = False
        """Whether the pending retry still has to be counted against the budget."""
        self.window = RestartWindow()


class SupervisorMachine:
    """Decides for one supervisor.

    machine = Machine(Rules(strategy="one_for_all"), [ChildSpec(id="a"), ChildSpec(id="b")])
    for step in machine.open(): ...
    machine.exited("a", 1, Error(KeyError()), now=3.0, rng=random)   # [Restarting, Stop, Start, Start]
    """

    def __init__(self, rules: Rules, specs: Iterable[ChildSpec] = ()) -> None:
        self.rules = rules
        self.slots: dict[str, Slot] = {}
        """By id, in the order in which they start."""
        self.is_closed = False
        self._window = RestartWindow()
        for spec in specs:
            self.slots[spec.id] = Slot(spec)

    # What happened

    def open(self) -> Decision:
        """Return the starts of all children."""
        return [_start(slot, "open") for slot in self.slots.values()]

    def started(self, start: Start, now: float, *, runs: bool = True) -> Decision:
        """Note that a child has started. `runs` is False if the child is not needed: it stays listed."""
        slot = self.slots[start.id]
        slot.incarnation = start.incarnation
        slot.state, slot.since = "running" if runs else "stopped", now
        if not runs and (slot.spec.restart == "temporary" or self.rules.is_dynamic):
            return [self._remove(slot, Shutdown("not needed"))]
        return [] if runs else [Close(slot.spec.id, Shutdown("not needed"))]

    def start_failed(self, start: Start, how: Exit, now: float, rng: Rng) -> Decision:
        """Decide about a start that failed. The steps that were to follow it are void."""
        slot = self.slots[start.id]
        slot.incarnation, slot.last, slot.state = start.incarnation, how, "stopped"
        if start.purpose == "add":
            return [self._remove(slot, how)]
        if start.purpose != "recover":
            return []
        if self.rules.max_restarts is None and slot.spec.backoff is None:
            # No budget and no delay would end this: it would start for ever without a pause.
            return self._ended(slot, how)
        self._next_delay(slot, rng)
        # Without a delay it counts when it is tried again, as other children's exits come first in the queue.
        slot.uncounted = slot.delay == 0
        if not slot.uncounted and not self._count(slot, now):
            return self._exhausted(slot, how)
        return [Restarting(slot.spec.id, slot.failures, slot.delay, how), self._wait(slot)]

    def exited(self, id: str, incarnation: int, how: Exit, now: float, rng: Rng) -> Decision:  # noqa: A002
        """Decide about a child that ended. An exit of an earlier incarnation decides nothing."""
        slot = self.slots.get(id)
        if self.is_closed or slot is None or slot.state != "running" or slot.incarnation != incarnation:
            return []
        slot.state, slot.last = "stopped", how
        if isinstance(how, Error) and how.then == "escalate":
            return self._give_up(slot, how, escalated=True)
        if not _restarts(slot.spec, how):
            return self._ended(slot, how)
        if not self._count(slot, now):
            return self._exhausted(slot, how)
        if now - slot.since >= self._reset_after(slot.spec):
            slot.failures, slot.delay = 0, 0.0
        self._next_delay(slot, rng)
        notice = Restarting(id, slot.failures, slot.delay, how)
        stops = self._group_stops(slot)
        # The others stop at once: they depend on the child that is gone.
        return [notice, *stops, *([self._wait(slot)] if slot.delay else self._group_starts(slot))]

    def retry(self, id: str, token: int, now: float) -> Decision:  # noqa: A002 - the word that supervisors use
        """Try again to start a child, if nothing else was decided about it meanwhile."""
        slot = self.slots.get(id)
        if self.is_closed or slot is None or slot.state != "restarting" or slot.token != token:
            return []
        if slot.uncounted and not self._count(slot, now):
            slot.state = "stopped"
            return self._exhausted(slot, slot.last or Shutdown())
        return [*self._group_stops(slot), *self._group_starts(slot)]

    def close(self) -> Decision:
        """Return the stops of all children. From now on nothing is restarted."""
        self.is_closed = True
        ids = [id for id, slot in reversed(self.slots.items())]  # noqa: A001 - the word that supervisors use
        for slot in self.slots.values():
            slot.state = "stopped"
        if self.rules.is_dynamic:
            # Copies of one template do not depend on each other.
            return [Stop(tuple(ids))] if ids else []
        return [Stop((id,)) for id in ids]  # noqa: A001

    # What people request

    def add(self, spec: ChildSpec) -> Decision | Refusal:
        """Add a child and start it."""
        if spec.id in self.slots:
            return "present"
        slot = self.slots[spec.id] = Slot(spec)
        return [_start(slot, "add")]

    def terminate(self, id: str) -> Decision | Refusal:  # noqa: A002 - the word that supervisors use
        """Stop a child. It stays listed, unless it is temporary or a copy of a template."""
        slot = self.slots.get(id)
        if slot is None:
            return "not_found"
        stop = [Stop((id,))] if slot.state == "running" else []
        slot.state = "stopped"
        how = Shutdown("terminated")
        slot.last = how
        if slot.spec.restart == "temporary" or self.rules.is_dynamic:
            return [*stop, self._remove(slot, how)]
        return [*stop, Close(id, how)]

    def revive(self, id: str) -> Decision | Refusal:  # noqa: A002 - the word that supervisors use
        """Start a listed child that does not run."""
        slot = self.slots.get(id)
        if slot is None:
            return "not_found"
        return [_start(slot, "revive")] if slot.state == "stopped" else slot.state

    def delete(self, id: str) -> Decision | Refusal:  # noqa: A002 - the word that supervisors use
        """Remove a listed child that does not run."""
        slot = self.slots.get(id)
        if slot is None:
            return "not_found"
        if slot.state != "stopped":
            return slot.state
        return [self._remove(slot, slot.last or Shutdown())]

    def restarts_left(self, now: float, slot: Slot | None = None) -> int | None:
        """Return how many restarts the budget still allows, of all children or of one; None: any number."""
        window = self._window if slot is None else self._window_of(slot)
        return window.left(now, self.rules)

    # How it decides

    def _count(self, slot: Slot, now: float) -> bool:
        return self._window_of(slot).add(now, self.rules)

    def _window_of(self, slot: Slot) -> RestartWindow:
        return slot.window if self.rules.scope == "child" else self._window

    def _next_delay(self, slot: Slot, rng: Rng) -> None:
        slot.failures += 1
        backoff = slot.spec.backoff
        slot.delay = 0.0 if backoff is None else backoff.at_least(slot.failures, rng, slot.delay)

    def _reset_after(self, spec: ChildSpec) -> float:
        """Return the seconds that a child must run until its delays begin again."""
        if spec.reset_after is not None:
            return spec.reset_after
        backoff = spec.backoff
        if backoff is None:
            return self.rules.window
        first, longest = (backoff.steps[0], backoff.steps[-1]) if backoff.steps else (backoff.initial, backoff.cap)
        return (first + longest) / 2

    def _wait(self, slot: Slot) -> Wait:
        slot.token += 1
        slot.state = "restarting"
        return Wait(slot.spec.id, slot.delay, slot.token)

    def _ended(self, slot: Slot, how: Exit) -> Decision:
        """The child is not restarted. It may have been the last significant one."""
        if slot.spec.restart == "temporary" or self.rules.is_dynamic:
            close = self._remove(slot, how)
        else:
            close = Close(slot.spec.id, how)
        return [close, Finish(slot.spec.id)] if self._is_finished_by(slot.spec) else [close]

    def _is_finished_by(self, spec: ChildSpec) -> bool:
        match self.rules.auto_shutdown:
            case "any_significant":
                return spec.significant
            case "all_significant" if spec.significant:
                return not any(other.spec.significant and other.state != "stopped" for other in self.slots.values())
            case _:
                return False

    def _exhausted(self, slot: Slot, how: Exit) -> Decision:
        if self.rules.gives_up:
            return self._give_up(slot, how)
        window = self._window_of(slot)
        return [GiveUp(slot.spec.id, how, len(window), child_only=True), self._remove(slot, how)]

    def _give_up(self, slot: Slot, how: Exit, *, escalated: bool = False) -> Decision:
        return [GiveUp(slot.spec.id, how, len(self._window_of(slot)), escalated=escalated)]

    def _remove(self, slot: Slot, how: Exit) -> Close:
        del self.slots[slot.spec.id]
        return Close(slot.spec.id, how, removed=True)

    def _group(self, slot: Slot) -> list[Slot]:
        """Return the children that restart with `slot`, itself included, in the order in which they start."""
        slots = list(self.slots.values())
        match self.rules.strategy:
            case "one_for_all":
                return slots
            case "rest_for_one":
                return slots[slots.index(slot) :]
            case _:
                return [slot]

    def _group_stops(self, slot: Slot) -> Decision:
        decision: Decision = []
        for other in reversed(self._group(slot)):
            if other is slot:
                continue
            if other.state == "running":
                decision.append(Stop((other.spec.id,)))
                other.last = Shutdown("group restart")
            other.state = "stopped"
            if other.spec.restart == "temporary":
                decision.append(self._remove(other, Shutdown("group restart")))
        return decision

    def _group_starts(self, slot: Slot) -> Decision:
        """Return the starts of the group. Children that had finished start again too: they belong to the group."""
        slot.state = "stopped"
        return [_start(other, "recover") for other in self._group(slot)]


def _start(slot: Slot, purpose: Purpose) -> Start:
    return Start(slot.spec.id, slot.incarnation + 1, purpose, slot.last)


def _restarts(spec: ChildSpec, how: Exit) -> bool:
    if spec.restart == "temporary" or (isinstance(how, Error) and how.then == "stop"):
        return False
    return spec.restart == "permanent" or not is_clean(how)
