"""`retry_on` and `never_retry`: which errors callers want retried or not."""

from __future__ import annotations

import gc
import logging
import weakref
from typing import Any

import pytest
from recover_kit import LOOSE, Flaky, World, reset

from holdfast import Budget, InvalidError, OutcomeUnknownError, Policy, Runtime, recover
from holdfast.events import Failed, SuppressedError
from holdfast.testing import Capture, Midpoint, VirtualClock, script, use_runtime


class ShopClosedError(Exception):
    """Only its author knows whether it passes by itself."""


class ShopSoldError(ShopClosedError):
    """It does not pass by itself."""


@pytest.fixture
def runtime():
    with use_runtime(Runtime(clock=VirtualClock(), rng=Midpoint())) as runtime:
        yield runtime


def test_an_unknown_failure_is_not_retried_without_retry_on(runtime):
    calls = script([ShopClosedError("come back"), "ok:hat"])
    with pytest.raises(ShopClosedError):
        recover("shop").call(calls)
    assert calls.calls == 1


def test_a_named_type_is_retried_as_transient_failures_are(runtime):
    calls = script([ShopClosedError("come back"), ShopSoldError("gone"), "ok:hat"])
    assert recover("shop", retry_on=ShopClosedError).call(calls) == "hat"
    assert runtime.clock.monotonic() == pytest.approx(0.4375 + 0.875)


@pytest.mark.parametrize(
    "named", [(ValueError, ShopClosedError), lambda error: "come back" in str(error)], ids=["several", "a function"]
)
def test_several_types_or_a_function_may_be_named(runtime, named):
    calls = script([ShopClosedError("come back"), "ok:hat"])
    assert recover("shop", retry_on=named).call(calls) == "hat"


def test_retry_on_keeps_the_limit_of_attempts(runtime):
    calls = script([ShopClosedError(str(n)) for n in range(5)])
    with pytest.raises(ShopClosedError, match="3"):
        recover("shop", Policy(attempts=4), retry_on=ShopClosedError).call(calls)
    assert calls.calls == 4


def test_never_retry_wins_over_retry_on_and_over_the_classifier(runtime):
    capture = Capture()
    runtime.on(capture)
    calls = script([ShopSoldError("gone"), TimeoutError("slow")])
    shop = recover("shop", retry_on=ShopClosedError, never_retry=(ShopSoldError, TimeoutError))
    with pytest.raises(ShopSoldError) as caught:
        shop.call(calls)
    with pytest.raises(TimeoutError):
        shop.call(calls)
    assert calls.calls == 2
    assert "the caller does not want it retried" in caught.value.__notes__[0]
    assert [event.exhausted for event in capture.of(Failed)] == [False, False]


def test_errors_that_are_not_named_are_classified_as_ever(runtime):
    calls = script("503, ok:hat")
    assert recover("shop", retry_on=ShopClosedError, never_retry=KeyError).call(calls) == "hat"


def test_retry_on_never_repeats_an_unsafe_call(runtime):
    calls = script([TimeoutError("sent, no answer"), "ok"])
    with pytest.raises(OutcomeUnknownError):
        recover("shop", effect="unsafe", retry_on=TimeoutError).call(calls)
    assert calls.calls == 1


def test_R18_cancellation_and_interrupts_are_never_retried(runtime):
    calls = script([KeyboardInterrupt(), "ok"])
    with pytest.raises(KeyboardInterrupt):
        recover("shop", retry_on=lambda error: True).call(calls)
    assert calls.calls == 1


def test_retry_on_everything_ends_with_the_budget(runtime):
    calls = script([ShopClosedError("come back")] * 9)
    with Budget(attempts=2), pytest.raises(ShopClosedError):
        recover("shop", Policy(attempts=9), retry_on=lambda error: True).call(calls)
    assert calls.calls == 2


def test_R25_a_predicate_that_raises_is_ignored_and_logged_once(runtime, caplog):
    capture = Capture()
    runtime.on(capture, SuppressedError)
    calls = script("503, 503, ok:hat")
    with caplog.at_level(logging.ERROR, logger="holdfast"):
        assert recover("shop", retry_on=lambda error: error.missing).call(calls) == "hat"
    assert [event.reason for event in capture] == ["retry_on raised"]
    assert len(caplog.records) == 1


@pytest.mark.parametrize(
    ("named", "shown"),
    [(KeyboardInterrupt, "KeyboardInterrupt"), (BaseException, "BaseException"), ((ValueError, "x"), "'x'"), (3, "3")],
)
def test_an_invalid_override_is_an_error_where_it_is_written(named, shown):
    with pytest.raises(InvalidError, match=rf"recover\.never_retry: expected types below Exception.* got {shown}"):
        recover("shop", never_retry=named)


def test_an_async_predicate_is_an_error_because_a_coroutine_is_always_true():
    async def perhaps(error):
        return False

    with pytest.raises(InvalidError, match=r"recover\.retry_on: expected a plain function"):
        recover("shop", retry_on=perhaps)


def test_FR17_a_predicate_made_for_each_call_is_reported_once_and_not_kept() -> None:
    world = World()
    kept: list[weakref.ref[Any]] = []

    def once() -> None:
        def broken(error: Exception) -> bool:
            raise LookupError("a defect")

        kept.append(weakref.ref(broken))
        assert world.recover("a", Policy(circuit=LOOSE), retry_on=broken).call(Flaky(reset())) == "ok"

    for _ in range(20):
        once()
    gc.collect()
    assert [ref() for ref in kept] == [None] * 20
    assert len([event for event in world.of(SuppressedError) if "retry_on" in event.reason]) == 1
