"""A time limit on sync functions: opt-in, in threads that are counted, capped, and never hold up the exit."""

from __future__ import annotations

import contextvars
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from recover_kit import Flaky, reset

from holdfast import DeadlineError, HoldfastError, OutcomeUnknownError, Policy, Runtime, fault_of, recover
from holdfast.runtime import limits
from holdfast.runtime.ambient import AMBIENT

SHORT = 0.02


@pytest.fixture
def runtime() -> Runtime:
    return Runtime(waits=False)


@pytest.fixture
def release(runtime: Runtime) -> Iterator[threading.Event]:
    """Set at the end of the test, so that what hangs ends; then no thread may be counted any more."""
    event = threading.Event()
    yield event
    event.set()
    for _ in range(1000):
        if runtime.abandoned_threads.count == 0:
            return
        threading.Event().wait(0.005)
    pytest.fail(f"expected no abandoned thread, got {runtime.abandoned_threads.count}")


def limited(runtime: Runtime, *, attempts: int = 1, timeout: float = SHORT) -> Any:
    policy = Policy(timeout=timeout, attempts=attempts)
    return recover("tool:sync", policy, effect="read", threads=True, runtime=runtime)


def test_R67_the_caller_goes_on_at_the_limit_and_the_thread_is_counted(
    runtime: Runtime, release: threading.Event
) -> None:
    with pytest.raises(DeadlineError) as failed:
        limited(runtime).call(release.wait)
    assert runtime.abandoned_threads.count == 1
    assert failed.value.fault.code == "TOOL_TIMEOUT"


def test_R67_beyond_the_cap_no_thread_is_started(
    runtime: Runtime, release: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "MOST_ABANDONED", 2)
    recovery = limited(runtime)
    for _ in range(2):
        with pytest.raises(DeadlineError):
            recovery.call(release.wait)
    work = Flaky()
    with pytest.raises(HoldfastError) as rejected:
        recovery.call(work)
    assert rejected.value.fault.code == "SYS_BULKHEAD_FULL"
    assert work.calls == 0


def test_R67_interpreter_exit_is_not_held_up() -> None:
    code = """
import threading
from holdfast import DeadlineError, Policy, recover
try:
    recover("a", Policy(timeout=0.02, attempts=1), threads=True).call(threading.Event().wait)
except DeadlineError:
    print("went on")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=20, check=True)
    assert done.stdout == "went on\n"


def test_answers_and_exceptions_come_through_unchanged() -> None:
    runtime = Runtime(waits=False)
    assert limited(runtime, timeout=10).call(lambda: 5) == 5
    error = ValueError("its own")
    with pytest.raises(ValueError, match="its own") as failed:
        limited(runtime, timeout=10).call(Flaky(error))
    assert failed.value is error
    assert limited(runtime, timeout=10, attempts=3).call(Flaky(reset(), reset())) == "ok"


@pytest.mark.parametrize("stop", [KeyboardInterrupt, SystemExit])
def test_R18_an_interrupt_in_the_thread_stops_the_caller(stop: type[BaseException]) -> None:
    work = Flaky(stop())
    with pytest.raises(stop):
        limited(Runtime(waits=False), timeout=10, attempts=9).call(work)
    assert work.calls == 1


def test_the_thread_sees_the_callers_context_and_the_operation() -> None:
    word: contextvars.ContextVar[str] = contextvars.ContextVar("word", default="none")
    word.set("mine")

    def look() -> tuple[str, bool]:
        return word.get(), AMBIENT.get() is not None

    assert limited(Runtime(waits=False), timeout=10).call(look) == ("mine", True)


def test_a_late_call_is_retried_in_a_thread_of_its_own(release: threading.Event) -> None:
    calls: list[threading.Thread] = []

    def first_hangs() -> str:
        calls.append(threading.current_thread())
        if len(calls) == 1:
            release.wait()
        return "second"

    policy, runtime = Policy(timeout=SHORT, attempts=2), Runtime(waits=False)
    recovery = recover("claude", policy, effect="read", threads=True, runtime=runtime)
    assert recovery.call(first_hangs) == "second"
    assert len(set(calls)) == 2
    assert threading.current_thread() not in calls


@pytest.mark.parametrize("target", ["claude", "tool:charge", None])
@pytest.mark.parametrize(("effect", "copies"), [(None, 1), ("unsafe", 1), ("read", 3), ("idempotent", 3), ("keyed", 3)])
def test_FR18_no_copy_runs_beside_a_call_that_was_left_behind_unless_its_effect_allows(
    release: threading.Event, target: str | None, effect: Any, copies: int
) -> None:
    begun: list[int] = []

    def hangs() -> None:
        begun.append(1)
        release.wait()

    policy = Policy(timeout=SHORT, deadline=None, attempts=3)
    recovery = recover(target, policy, effect=effect, threads=True, runtime=Runtime(waits=False))
    with pytest.raises(OutcomeUnknownError if effect == "unsafe" else DeadlineError) as failed:
        recovery.call(hangs)
    assert len(begun) == copies
    if effect is None:
        assert "still runs in its thread" in "".join(failed.value.__notes__)


def test_FR18_a_failure_before_the_limit_is_retried_in_a_thread_as_before() -> None:
    recovery = recover("claude", Policy(timeout=10, attempts=3), threads=True, runtime=Runtime(waits=False))
    assert recovery.call(Flaky(reset(), reset())) == "ok"


def test_without_a_limit_no_thread_is_used() -> None:
    recovery = recover("a", Policy(timeout=None, patience=None), threads=True, runtime=Runtime(waits=False))
    assert recovery.call(threading.current_thread) is threading.current_thread()


def test_R14_fifty_callers_each_get_their_own_end(release: threading.Event) -> None:
    recovery = recover("claude", Policy(timeout=0.05, attempts=1), threads=True, runtime=Runtime(waits=False))
    ends: list[Any] = [None] * 50

    def one(number: int) -> None:
        try:
            ends[number] = recovery.call(release.wait if number % 10 == 0 else (lambda: number))
        except DeadlineError as error:
            ends[number] = fault_of(error).code

    callers = [threading.Thread(target=one, args=(number,)) for number in range(50)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    late = [number for number in range(50) if ends[number] == "PROVIDER_TIMEOUT"]
    assert set(late) >= {0, 10, 20, 30, 40}
    assert all(ends[number] == number for number in range(50) if number not in late)
