"""The restart machine alone: whatever happens, its decisions keep the rules. No event loop is involved."""

from __future__ import annotations

import random
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from holdfast import Backoff, InvalidError
from holdfast.supervision.decision import Close, Finish, GiveUp, Restarting, Start, Stop, Wait
from holdfast.supervision.exits import Error, Killed, Normal, Shutdown
from holdfast.supervision.intensity import RestartWindow, Rules
from holdfast.supervision.machine import SupervisorMachine
from holdfast.supervision.spec import ChildSpec

CHANCE = random.Random(0)
CRASH = Error(RuntimeError("crash"))

exits = st.sampled_from([Normal(), Shutdown(), CRASH, Killed(9), Error(RuntimeError(), "stop")])
specs = st.builds(
    dict,
    restart=st.sampled_from(["permanent", "transient", "temporary"]),
    backoff=st.sampled_from([None, Backoff(initial=1, cap=8, jitter=0)]),
    wants=st.booleans(),
)
rules = st.builds(
    Rules,
    strategy=st.sampled_from(["one_for_one", "one_for_all", "rest_for_one"]),
    max_restarts=st.sampled_from([0, 1, 3, None]),
    window=st.sampled_from([1.0, 10.0]),
    scope=st.sampled_from(["supervisor", "child"]),
    auto_shutdown=st.sampled_from(["never", "any_significant", "all_significant"]),
)


class World:
    """Performs decisions in no time, and checks each of them."""

    def __init__(self, rules: Rules, wanted: list[dict[str, Any]]) -> None:
        self.specs = [
            ChildSpec(
                id=f"c{number}",
                restart=each["restart"],
                backoff=each["backoff"],
                significant=rules.auto_shutdown != "never" and each["restart"] != "permanent" and each["wants"],
            )
            for number, each in enumerate(wanted)
        ]
        self.machine = SupervisorMachine(rules, self.specs)
        self.order = [spec.id for spec in self.specs]
        self.running: dict[str, int] = {}
        self.waits: list[tuple[float, Wait]] = []
        self.now = 0.0
        self.restarts: dict[str, list[float]] = {}
        self.ended: GiveUp | Finish | None = None

    def perform(self, decision: list[Any], failing: bool = False) -> None:
        started: list[str] = []
        stopped: list[str] = []
        steps = list(decision)
        while steps:
            step = steps.pop(0)
            match step:
                case Start():
                    assert step.id not in self.running, "started twice"
                    if failing:
                        failing = False
                        steps = self.machine.start_failed(step, CRASH, self.now, CHANCE)
                        continue
                    self.running[step.id] = step.incarnation
                    steps = self.machine.started(step, self.now) + steps
                    started.append(step.id)
                case Stop(ids=ids):
                    for name in ids:
                        assert self.running.pop(name, None) is not None or self.machine.is_closed, "stopped twice"
                        stopped.append(name)
                case Wait():
                    assert step.delay >= 0
                    self.waits.append((self.now + step.delay, step))
                case Close(id=id, removed=removed):
                    assert id not in self.running
                    assert removed == (id not in self.machine.slots)
                case Restarting(id=id):
                    self.restarts.setdefault(id, []).append(self.now)
                case GiveUp() if step.child_only:
                    assert self.machine.rules.scope == "child"
                case GiveUp() | Finish():
                    self.ended = step
                    assert not steps, "nothing follows the end"
        assert started == sorted(started, key=self.order.index), "started out of order"
        assert stopped == sorted(stopped, key=self.order.index, reverse=True), "stopped out of order"

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        due = [wait for at, wait in self.waits if at <= self.now]
        self.waits = [(at, wait) for at, wait in self.waits if at > self.now]
        for wait in due:
            if self.ended is None:
                self.perform(self.machine.retry(wait.id, wait.token, self.now))

    def check(self) -> None:
        listed = {name: slot.state for name, slot in self.machine.slots.items()}
        assert {name for name, state in listed.items() if state == "running"} == set(self.running)
        for name, state in listed.items():
            if state == "restarting":
                assert any(wait.id == name for _, wait in self.waits), f"nobody will try {name} again"


actions = st.lists(
    st.tuples(
        st.sampled_from(["exit", "exit", "exit", "exit twice", "terminate", "revive", "delete", "time", "fail"]),
        st.integers(0, 4),
        exits,
        st.sampled_from([0.1, 2.0, 20.0]),
    ),
    max_size=30,
)


@settings(max_examples=150, deadline=None)
@given(rules, st.lists(specs, min_size=1, max_size=5), actions)
def test_whatever_happens_the_decisions_keep_the_rules(rules, wanted, actions):
    world = World(rules, wanted)
    world.perform(world.machine.open())
    for kind, index, how, seconds in actions:
        if world.ended is not None:
            break
        name = world.order[index % len(world.order)]
        incarnation = world.running.get(name, 0)
        match kind:
            case "exit" | "exit twice" | "fail":
                if incarnation:
                    del world.running[name]
                    world.perform(
                        world.machine.exited(name, incarnation, how, world.now, CHANCE), failing=kind == "fail"
                    )
                if kind == "exit twice" and world.ended is None:
                    assert world.machine.exited(name, incarnation, how, world.now, CHANCE) == []
            case "time":
                world.pass_time(seconds)
            case _:
                decided = getattr(world.machine, kind)(name)
                if not isinstance(decided, str):
                    world.perform(decided)
        if world.ended is None:
            # A failed start without a delay is tried again at once, as a message.
            world.pass_time(0.0)
        if world.ended is None:
            world.check()
    if isinstance(world.ended, GiveUp) and not world.ended.escalated:
        assert rules.max_restarts is not None
    world.perform(world.machine.close())
    assert world.running == {}
    assert world.machine.exited(world.order[0], 1, CRASH, world.now, CHANCE) == []


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 4), st.lists(st.floats(0, 30), max_size=40))
def test_never_more_restarts_in_a_window_than_allowed_and_never_fewer(limit, gaps):
    rules = Rules(max_restarts=limit, window=10)
    window, now, allowed = RestartWindow(), 0.0, []
    for gap in gaps:
        now += gap
        recent = [at for at in allowed if at >= now - 10]
        assert window.add(now, rules) == (len(recent) < limit)
        if len(recent) < limit:
            allowed.append(now)
        assert len(window) <= limit


def test_the_window_is_exact_and_not_counted_in_whole_seconds():
    rules = Rules(max_restarts=1, window=1)
    window = RestartWindow()
    assert window.add(0.95, rules)
    assert not window.add(1.94, rules)
    assert window.add(1.96, rules)


def test_the_time_of_a_window_is_its_age():
    rules = Rules(max_restarts=2, window=10)
    window = RestartWindow()
    assert [window.add(at, rules) for at in (0, 9, 11, 12)] == [True, True, True, False]


def test_escalation_is_the_supervisors_failure_whatever_the_restart_type():
    for restart in ("permanent", "transient", "temporary"):
        machine = SupervisorMachine(Rules(max_restarts=None), [ChildSpec(id="a", restart=restart)])
        (start,) = machine.open()
        machine.started(start, 0.0)
        (step,) = machine.exited("a", 1, Error(RuntimeError(), "escalate"), 0.0, CHANCE)
        assert isinstance(step, GiveUp)
        assert step.escalated


def test_a_directive_to_stop_holds_for_a_permanent_child_too():
    machine = SupervisorMachine(Rules(), [ChildSpec(id="a")])
    (start,) = machine.open()
    machine.started(start, 0.0)
    assert machine.exited("a", 1, Error(RuntimeError(), "stop"), 0.0, CHANCE) == [
        Close("a", Error(machine.slots["a"].last.error, "stop"))
    ]


@pytest.mark.parametrize(
    "options",
    [
        {"strategy": "one_for_none"},
        {"max_restarts": True},
        {"window": -1},
        {"strategy": "simple_one_for_one", "auto_shutdown": "any_significant"},
    ],
)
def test_A6_A38_rules_that_have_no_meaning_are_rejected(options):
    with pytest.raises(InvalidError):
        Rules(**options)
