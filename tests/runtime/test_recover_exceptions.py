"""The exception that surfaces: it is the original one, with a fault and a note on it."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable
from typing import Any

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
from holdfast.runtime.fault_of import gave_up_in

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


# --- layers ---


def _task_group(work: Callable[[], Awaitable[Any]]) -> Callable[[], Awaitable[Any]]:
    async def in_group() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(_own(work))

    return in_group


def _raised_again(work: Callable[[], Awaitable[Any]]) -> Callable[[], Awaitable[Any]]:
    async def wrapped() -> None:
        try:
            await work()
        except Exception:
            raise ConnectionError("the SDK's own error")  # noqa: B904 - the missing `from` is the point

    return wrapped


def _raised_from_none(work: Callable[[], Awaitable[Any]]) -> Callable[[], Awaitable[Any]]:
    async def wrapped() -> None:
        try:
            await work()
        except Exception:
            raise ConnectionError("the SDK's own error") from None

    return wrapped


def _raised_again_in_a_group(work: Callable[[], Awaitable[Any]]) -> Callable[[], Awaitable[Any]]:
    return _raised_again(_task_group(_task_group(_raised_again(work))))


async def _own(work: Callable[[], Awaitable[Any]]) -> None:
    await work()


@pytest.mark.parametrize("wrap", [_task_group, _raised_again, _raised_from_none, _raised_again_in_a_group])
def test_FR3_layers_do_not_multiply_however_the_error_is_wrapped(wrap: Any) -> None:
    world = World()
    policy = Policy(attempts=3, circuit=LOOSE)
    failing = Always(reset)
    work = failing.acall
    for name in ("inner", "middle", "outer"):
        work = wrap(world.recover(name, policy, effect="read")(work))
    with pytest.raises(Exception) as failed:
        world.run(world.recover("outmost", policy, effect="read")(work)())
    assert failing.calls == 3
    assert not fault_of(failed.value).retryable


def test_FR3_a_group_of_many_members_is_searched_to_the_last() -> None:
    world = World()
    policy = Policy(attempts=3, circuit=LOOSE)
    failing = Always(reset)

    def work() -> None:
        errors: list[Exception] = [reset() for _ in range(200)]
        try:
            world.recover("inner", policy).call(failing)
        except ConnectionResetError as error:
            errors.append(error)
        raise ExceptionGroup("many", errors)

    with pytest.raises(ExceptionGroup):
        world.recover("outer", policy).call(work)
    assert failing.calls == 3


def test_FR3_errors_that_refer_to_each_other_are_searched_once() -> None:
    first, second = reset(), reset()
    first.__context__, second.__cause__ = second, first
    assert not gave_up_in(first, "run")


def test_FR3_an_earlier_failure_in_the_context_does_not_prevent_a_retry_elsewhere() -> None:
    """Only the recovery around both calls stops. A recovery of its own in the handler retries as usual."""
    world = World()
    backup = Flaky(reset(), value="backup")

    def work() -> Any:
        try:
            world.recover("inner").call(Always(reset))
        except ConnectionResetError:
            return world.recover("backup").call(backup)

    assert world.recover("outer").call(work) == "backup"
    assert backup.calls == 2


# --- exceptions that refuse changes ---


@dataclasses.dataclass(frozen=True)
class _Frozen(ConnectionResetError):
    status: int = 0


class _Immutable(ConnectionResetError):
    def __setattr__(self, name: str, value: object) -> None:
        raise TypeError("immutable")


class _WithoutNotes(ConnectionResetError):
    def add_note(self, note: str, /) -> None:
        raise RuntimeError("no notes, please")


class _NotesInATuple(ConnectionResetError):
    __notes__ = ("mine",)  # type: ignore[assignment]


class _NotesInAText(ConnectionResetError):
    def __init__(self) -> None:
        self.__notes__ = "mine"  # type: ignore[assignment]


class _NotesOfNumbers(ConnectionResetError):
    def __init__(self) -> None:
        self.__notes__ = [1, None]  # type: ignore[list-item]


class _UnreadableNotes(ConnectionResetError):
    @property
    def __notes__(self) -> list[str]:  # type: ignore[override]
        raise ValueError("unreadable")


ODD = [_Frozen, _Immutable, _WithoutNotes, _NotesInATuple, _NotesInAText, _NotesOfNumbers, _UnreadableNotes]


async def _caught(call: Awaitable[Any]) -> Exception:
    # Caught in the loop: the context managers around a virtual loop set `__traceback__` of an exception that passes them.
    try:
        return await call  # type: ignore[no-any-return] # the assertion of the test finds an answer
    except Exception as error:
        return error


@pytest.mark.parametrize("form", ["sync", "async"])
@pytest.mark.parametrize("odd", ODD)
def test_FR5_an_exception_that_refuses_changes_surfaces_itself(odd: type[Exception], form: str) -> None:
    world = World()
    failing = Always(odd)
    recovery = world.recover("a", Policy(attempts=3, circuit=LOOSE))
    for _ in range(2):
        if form == "sync":
            with pytest.raises(odd) as failed:
                recovery.call(failing)
            error: Any = failed.value
        else:
            error = world.run(_caught(recovery.call(failing.acall)))
        assert error is failing.raised[-1]
        assert [attempt.number for attempt in fault_of(error).attempts] == [1, 2, 3]
    assert failing.calls == 6


@pytest.mark.parametrize("form", ["sync", "async"])
@pytest.mark.parametrize("odd", ODD)
def test_FR5_an_exception_that_refuses_changes_has_its_fallbacks(odd: type[Exception], form: str) -> None:
    world = World()
    failing, bad, good = Always(odd), Always(odd), Flaky(value="backup")
    sync = form == "sync"
    answer = world.recover("a", Policy(attempts=1, circuit=LOOSE))(failing if sync else failing.acall)
    answer.fallback(bad if sync else bad.acall)
    if sync:
        with pytest.raises(odd) as failed:
            answer()
        error: Any = failed.value
    else:
        error = world.run(_caught(answer()))
    assert error is failing.raised[0]
    assert len(fault_of(error).context["fallbacks"]) == 1
    answer.fallback(good if sync else good.acall)
    assert (answer() if sync else world.run(answer())) == "backup"
    assert bad.calls == 2


@pytest.mark.parametrize("odd", ODD)
def test_FR5_layers_do_not_multiply_for_an_exception_that_refuses_changes(odd: type[Exception]) -> None:
    world = World()
    failing = Always(odd)
    policy = Policy(attempts=3, circuit=LOOSE)
    with pytest.raises(odd):
        world.recover("outer", policy).call(world.recover("inner", policy)(failing))
    assert failing.calls == 3


def test_FR5_one_exception_object_that_refuses_notes_is_judged_anew_each_time() -> None:
    world = World()
    error = _NotesOfNumbers()
    for _ in range(3):
        failing = Always(lambda: error)
        with pytest.raises(_NotesOfNumbers):
            world.recover("a", Policy(attempts=3, circuit=LOOSE)).call(failing)
        assert failing.calls == 3
    assert len(error.__notes__) == 3  # two of its own, one of ours
