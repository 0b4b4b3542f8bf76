"""Failures that the catalog names after tools, raised where no tool was called: a locked database, a missing file."""

from __future__ import annotations

import sqlite3
from typing import Any

import pytest
from recover_kit import Always, Flaky, World

from holdfast import Err, Fault, NextActor, Policy, fault_of
from holdfast.events import Failed, Retry
from holdfast.faults import Schedule, Scope


def locked() -> sqlite3.OperationalError:
    return sqlite3.OperationalError("database is locked")


class DeadlockDetected(Exception):
    """As psycopg names it."""


@pytest.mark.parametrize("target", ["warehouse", "service:db", None])
@pytest.mark.parametrize("failure", [locked(), DeadlockDetected("deadlock detected")])
def test_E4_a_busy_database_is_retried_outside_of_tools(target: str | None, failure: Exception) -> None:
    world = World(defaults=True)
    work = Flaky(failure, failure, failure, value="row")
    assert world.recover(target).call(work) == "row"
    assert work.calls == 4
    assert {event.fault.code for event in world.of(Retry)} == {"TOOL_RESOURCE_BUSY"}
    assert {event.fault.next_actor for event in world.of(Retry)} == {NextActor.MACHINE}


def test_a_busy_database_that_stays_busy_goes_to_the_operator() -> None:
    world = World(defaults=True)
    with pytest.raises(sqlite3.OperationalError) as failed:
        world.recover("warehouse", Policy(attempts=3)).call(Always(locked))
    assert len(fault_of(failed.value).attempts) == 3
    assert fault_of(failed.value).next_actor is NextActor.OPERATOR
    (event,) = world.of(Failed)
    assert event.fault.scope is Scope.REQUEST


@pytest.mark.parametrize("inside", [False, True])
def test_in_a_tool_the_model_decides_whether_to_call_again(inside: bool) -> None:
    world = World(defaults=True)
    work = Always(locked)

    def call() -> Any:
        # The tool's own function may have a recovery of its own around its database.
        return world.recover("warehouse", Policy(attempts=1)).call(work) if inside else work()

    outcome = world.recover("tool:load", effect="read").outcome(call)
    assert isinstance(outcome, Err)
    assert work.calls == 1
    assert outcome.fault.next_actor is NextActor.MODEL
    assert outcome.fault.scope is Scope.TOOL


def test_a_missing_file_outside_of_tools_is_for_a_developer_and_is_not_retried() -> None:
    world = World(defaults=True)
    work = Always(lambda: FileNotFoundError(2, "No such file or directory", "rates.csv"))
    outcome = world.recover("rates").outcome(work)
    assert work.calls == 1
    assert outcome.fault.code == "TOOL_FILE_NOT_FOUND"
    assert outcome.fault.next_actor is NextActor.DEVELOPER


def test_what_a_program_raises_as_a_fault_of_its_own_stays_as_it_is() -> None:
    fault = Fault.of("TOOL_RESOURCE_BUSY")
    assert (fault.scope, fault.schedule, fault.next_actor) == (Scope.TOOL, Schedule.TOOL, NextActor.MODEL)
    outside = fault.outside_tools()
    assert (outside.scope, outside.schedule, outside.next_actor) == (
        Scope.REQUEST,
        Schedule.TRANSIENT,
        NextActor.MACHINE,
    )
    assert Fault.of("PROVIDER_OVERLOADED").outside_tools() == Fault.of("PROVIDER_OVERLOADED")
