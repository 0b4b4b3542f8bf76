"""The exception that surfaces: it is the original one, with a fault and a note on it."""

from __future__ import annotations

import pytest
from recover_kit import LOOSE, Always, Flaky, World, reset

from holdfast import (
    Circuit,
    Fault,
    HoldfastError,
    Policy,
    fault_of,
)
from holdfast.events import (
    Retry,
)

OFTEN = Circuit(failures=1_000_000, rate=None)


def test_R26_the_exception_carries_every_attempt_and_its_cause_is_untouched() -> None:
    world = World()
    cause = OSError("the cause")

    def work() -> None:
        world.clock.advance(0.25)
        raise reset() from cause

    with pytest.raises(ConnectionResetError) as failed:
        world.recover("a").call(work)
    assert failed.value.__cause__ is cause
    attempts = fault_of(failed.value).attempts
    assert [(attempt.number, attempt.code, attempt.took, attempt.waited) for attempt in attempts] == [
        (1, "CONN_RESET", 0.25, 0),
        (2, "CONN_RESET", 0.25, 1),
        (3, "CONN_RESET", 0.25, 2),
    ]
    assert [attempt.started - attempts[0].started for attempt in attempts] == [0, 1.25, 3.5]
    assert all(attempt.cause.type == "ConnectionResetError" for attempt in attempts if attempt.cause)
    assert len(failed.value.__notes__) == 1


def test_S2_14_a_failure_that_was_given_up_is_final_for_outer_recoveries() -> None:
    with pytest.raises(ConnectionResetError) as failed:
        World().recover("a").call(Always(reset))
    assert fault_of(failed.value).retryable is False


def test_R26_one_exception_object_raised_again_and_again_does_not_grow() -> None:
    world = World()
    error = reset()
    for _ in range(5):
        with pytest.raises(ConnectionResetError) as failed:
            world.recover("a", Policy(circuit=OFTEN)).call(Always(lambda: error))
        assert failed.value is error
        assert len(error.__notes__) == 1
        assert [attempt.number for attempt in fault_of(error).attempts] == [1, 2, 3]
    assert len(world.of(Retry)) == 10  # the verdict of the last operation did not stick


def test_R26_a_note_of_the_users_own_stays() -> None:
    error = reset()
    error.add_note("mine")
    for _ in range(2):
        with pytest.raises(ConnectionResetError):
            World().recover("a").call(Always(lambda: error))
    assert error.__notes__[0] == "mine"
    assert len(error.__notes__) == 2


def test_R1_exception_groups_pass_through_and_are_classified_by_their_members() -> None:
    world = World()

    def group(*errors: Exception) -> ExceptionGroup[Exception]:
        return ExceptionGroup("several", errors)

    good = Flaky(group(reset(), TimeoutError()))
    assert world.recover("a").call(good) == "ok"
    bad = Always(lambda: group(reset(), ValueError("a mistake")))
    with pytest.raises(ExceptionGroup):
        world.recover("a").call(bad)
    assert bad.calls == 1


def test_R21_a_transient_error_in_the_context_does_not_make_a_mistake_transient() -> None:
    def work() -> None:
        try:
            raise reset()
        except ConnectionResetError:
            raise KeyError("a defect while handling it")  # noqa: B904 - the context is the point

    world = World()
    with pytest.raises(KeyError):
        world.recover("a", effect="read").call(work)
    assert world.waits() == []


def test_R26_an_error_of_ours_that_is_raised_again_is_judged_anew() -> None:
    """The verdict that one operation left on the error object does not bind the next operation."""
    world = World()
    error = HoldfastError(Fault.of("PROVIDER_OVERLOADED"))
    for _ in range(3):
        failing = Always(lambda: error)
        with pytest.raises(HoldfastError):
            world.recover("a", Policy(attempts=3, circuit=LOOSE)).call(failing)
        assert failing.calls == 3
        assert len(fault_of(error).attempts) == 3
        assert not error.fault.retryable
