"""How long a call retries before something else answers: only what could answer now shortens it, and a named patience does not."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
from recover_kit import Always, Flaky, World, reset

from holdfast import BATCH, INTERACTIVE, PATIENT, CircuitOpenError, Policy, recover
from holdfast.events import SuppressedError
from holdfast.runtime.fallbacks.cache import MemoryCache
from holdfast.testing import ScriptedHTTPError

SOON = 5.0
"""Three attempts take about two seconds. A call that uses its patience of 120 s or more takes longer than this."""


def down() -> ScriptedHTTPError:
    return ScriptedHTTPError(503)


class Call:
    """A decorated function that always fails, and how long it went on."""

    def __init__(
        self, policy: Policy | None = None, make: Any = down, target: str = "warehouse", **options: Any
    ) -> None:
        self.world = World(defaults=True)
        self.work = Always(make)
        self.fn: Any = self.world.recover(target, policy, **options)(self._load)

    async def _load(self, row: int = 1) -> Any:
        return await self.work.acall(row)

    def __call__(self, *args: Any) -> Any:
        return self.world.run(self.fn(*args))

    def fails(self) -> None:
        with pytest.raises(Exception, match=r".*"):
            self()

    @property
    def gave_up_soon(self) -> bool:
        return self.world.now < SOON


def sorry(fault: Any, row: int = 1) -> str:
    return "sorry"


# --- a degraded answer and a notification ---


@pytest.mark.parametrize(
    "policy", [PATIENT.replace(patience=1800), BATCH, Policy(deadline=1800), Policy(has_fallback=False)]
)
def test_a_degraded_answer_does_not_shorten_a_patience_that_was_named(policy: Policy) -> None:
    plain = Call(policy)
    plain.fails()
    call = Call(policy)
    call.fn.degraded(sorry)
    assert call() == "sorry"
    assert call.work.calls == plain.work.calls
    assert call.world.now == plain.world.now
    assert not call.gave_up_soon


def test_by_default_a_degraded_answer_comes_after_nine_attempts() -> None:
    call = Call(Policy(circuit=None))
    call.fn.degraded(sorry)
    assert call() == "sorry"
    assert call.work.calls == 9
    assert call.world.now == pytest.approx(0.44 + 0.88 + 0.7 + 1.2 + 1.8 + 2.7 + 4 + 6, rel=0.2)


def test_a_notification_does_not_shorten_the_patience() -> None:
    call = Call(Policy(circuit=None))
    call.fn.notify(lambda fault: None)
    call.fails()
    assert not call.gave_up_soon


def test_a_degraded_answer_comes_at_once_while_the_circuit_is_open() -> None:
    call = Call()
    call.fn.degraded(sorry)
    call.world.state("provider:warehouse").force_open(0.0)
    assert call() == "sorry"
    assert (call.world.now, call.work.calls) == (0.0, 0)


@pytest.mark.parametrize("policy", [Policy(patience=60), Policy(deadline=60), Policy(has_fallback=False)])
def test_a_degraded_answer_waits_for_an_open_circuit_where_somebody_named_the_time(policy: Policy) -> None:
    call = Call(policy)
    call.fn.degraded(sorry)
    call.world.state("provider:warehouse").force_open(0.0)
    assert call() == "sorry"
    assert not call.gave_up_soon
    assert call.work.calls == 0


# --- a cache ---


class FailsAfter:
    """Answers so many times, then fails."""

    def __init__(self, answers: int) -> None:
        self.answers = answers
        self.calls = 0

    async def __call__(self, row: int = 1) -> str:
        self.calls += 1
        if self.calls > self.answers:
            raise down()
        return f"row {row}"


def cached(ttl: float = 300, policy: Policy | None = None, answers: int = 1) -> tuple[World, Any]:
    world, work = World(defaults=True), FailsAfter(answers)

    async def load(row: int = 1) -> str:
        return await work(row)

    fn = world.recover("warehouse", policy)(load)
    fn.cached(ttl=ttl)
    return world, fn


def test_an_empty_cache_does_not_shorten_the_patience() -> None:
    world, fn = cached(answers=0)
    with pytest.raises(ScriptedHTTPError):
        world.run(fn(1))
    assert world.now > SOON


def test_a_kept_answer_answers_after_three_attempts() -> None:
    world, fn = cached()
    assert world.run(fn(1)) == "row 1"
    outcome = world.run(fn.outcome(1))
    assert (outcome.value, outcome.via) == ("row 1", "cached")
    assert world.now < SOON


def test_the_answer_to_another_call_does_not_shorten_the_patience() -> None:
    world, fn = cached()
    assert world.run(fn(1)) == "row 1"
    with pytest.raises(ScriptedHTTPError):
        world.run(fn(2))
    assert world.now > SOON


def test_a_kept_answer_that_is_too_old_does_not_shorten_the_patience() -> None:
    world, fn = cached(ttl=10)
    world.run(fn(1))
    world.clock.advance(11)
    began = world.now
    with pytest.raises(ScriptedHTTPError):
        world.run(fn(1))
    assert world.now - began > SOON


def test_an_answer_that_somebody_else_kept_meanwhile_ends_the_patience() -> None:
    call, shared = Call(), MemoryCache()
    call.fn.cached(ttl=300, key=lambda row=1: "x", store=shared)
    failures = iter(range(6))

    def make() -> Exception:
        if next(failures, None) is None:
            # The seventh failure: another process has put its answer meanwhile.
            shared.put(f"{Call._load.__qualname__}:x", "from elsewhere", call.world.now, 300)
        return down()

    call.work.make = make
    assert call() == "from elsewhere"
    assert call.work.calls == 7


def test_a_cache_that_raises_does_not_shorten_the_patience_and_is_reported_once() -> None:
    class Broken:
        def get(self, key: str, now: float) -> Any:
            raise OSError("the cache is down")

        def put(self, key: str, value: Any, now: float, ttl: float) -> None: ...

    call = Call()
    call.fn.cached(ttl=300, store=Broken())
    call.fails()
    assert not call.gave_up_soon
    assert len(call.world.of(SuppressedError)) == 1


# --- a fallback ---


def test_a_fallback_answers_after_three_attempts() -> None:
    call = Call()
    call.fn.degraded(sorry)
    call.fn.fallback(Flaky(value="other").acall)
    assert call() == "other"
    assert call.work.calls == 3


@pytest.mark.parametrize(
    ("policy", "seconds", "took"),
    [
        (None, 4, 8.0),
        (None, 5, 5.0),
        (None, 9, 0.0),
        (None, 200, 0.0),
        (Policy(deadline=300), 30, 0.0),
        (Policy(has_fallback=False), 30, 90.0),  # and the next one does not fit into the patience of 120 s
        (Policy(patience=70), 30, 60.0),
        (Policy(attempts=2), 30, 30.0),
    ],
)
def test_a_long_delay_that_the_service_names_is_not_waited_for_before_a_fallback(
    policy: Policy | None, seconds: int, took: float
) -> None:
    call = Call(policy, lambda: ScriptedHTTPError(429, {"retry-after": str(seconds)}))
    call.fn.fallback(Flaky(value="other").acall)
    assert call() == "other"
    assert call.world.now == took


@pytest.mark.parametrize(
    ("policy", "seconds", "took"),
    [
        (None, 5, 20.0),
        (None, 20, 20.0),
        (None, 200, 0.0),
        (Policy(patience=70), 30, 60.0),
        (Policy(attempts=2), 30, 30.0),
    ],
)
def test_a_long_delay_that_the_service_names_is_not_waited_for_before_a_degraded_answer(
    policy: Policy | None, seconds: int, took: float
) -> None:
    call = Call(policy, lambda: ScriptedHTTPError(429, {"retry-after": str(seconds)}))
    call.fn.degraded(sorry)
    assert call() == "sorry"
    assert call.world.now == took


def test_a_fallback_whose_condition_is_not_met_does_not_shorten_the_patience() -> None:
    call = Call()
    call.fn.fallback(Flaky(value="other").acall, when="rate_limit")
    call.fails()
    assert not call.gave_up_soon


def test_a_fallback_that_lacks_what_the_call_needs_does_not_shorten_the_patience() -> None:
    call = Call(needs=frozenset({"vision"}))
    call.fn.fallback(Flaky(value="other").acall, offers=frozenset())
    call.fails()
    assert not call.gave_up_soon


def test_a_fallback_whose_circuit_is_open_does_not_shorten_the_patience() -> None:
    call = Call()
    other = call.world.recover("other", Policy(wait_for_circuit=False))(Flaky(value="other").acall)
    call.fn.fallback(other)
    call.world.state("provider:other").force_open(0.0)
    call.fails()
    assert not call.gave_up_soon


def test_a_fallback_whose_circuit_closes_meanwhile_ends_the_patience() -> None:
    call = Call()
    other = call.world.recover("other", Policy(wait_for_circuit=False))(Flaky(value="other").acall)
    call.fn.fallback(other)
    state = call.world.state("provider:other")
    state.force_open(0.0)
    failures = iter(range(7))

    def make() -> Exception:
        if next(failures, None) is None:
            state.release(call.world.now)
        return down()

    call.work.make = make
    assert call() == "other"
    assert call.work.calls == 8


def test_a_recovery_inside_the_last_fallback_has_the_attempts_before_the_degraded_answer() -> None:
    call = Call()
    inner = Always(down)

    async def other(row: int = 1) -> Any:
        return await call.world.recover("other").call(inner.acall)

    call.fn.fallback(other)
    call.fn.degraded(sorry)
    assert call() == "sorry"
    assert call.work.calls == 3
    assert inner.calls == 9


# --- what the policy names ---


@pytest.mark.parametrize(
    "policy", [PATIENT, BATCH, Policy(patience=60), Policy(patience=120.0), Policy(has_fallback=False)]
)
def test_a_patience_that_the_policy_names_is_used_up_before_a_fallback(policy: Policy) -> None:
    plain = Call(policy)
    plain.fails()
    call = Call(policy)
    call.fn.fallback(Flaky(value="other").acall)
    assert call() == "other"
    assert call.work.calls == plain.work.calls
    assert not call.gave_up_soon


def test_a_patience_that_the_policy_names_is_used_up_before_a_kept_answer() -> None:
    world, fn = cached(ttl=7200, policy=PATIENT.replace(patience=600))
    world.run(fn(1))
    assert world.run(fn(1)) == "row 1"
    assert world.now > 500


def test_a_named_number_of_attempts_holds_with_and_without_a_fallback() -> None:
    call = Call(PATIENT.replace(attempts=5))
    call.fn.fallback(Flaky(value="other").acall)
    assert call() == "other"
    assert call.work.calls == 5


def test_a_deadline_limits_and_does_not_ask_for_patience() -> None:
    call = Call(Policy(deadline=1800))
    call.fn.fallback(Flaky(value="other").acall)
    assert call() == "other"
    assert call.work.calls == 3


@pytest.mark.parametrize("policy", [Policy(has_fallback=True), PATIENT.replace(has_fallback=True)])
def test_has_fallback_fails_soon_whatever_the_patience(policy: Policy) -> None:
    call = Call(policy)
    call.fails()
    assert call.work.calls == 3


def test_a_named_patience_inside_a_recovery_with_a_fallback_is_used_up() -> None:
    call = Call()
    inner = Always(reset)

    async def load(row: int = 1) -> Any:
        return await call.world.recover("inner", Policy(patience=60)).call(inner.acall)

    outer = call.world.recover("outer")(load)
    outer.fallback(Flaky(value="other").acall)
    assert call.world.run(outer(1)) == "other"
    assert call.world.now > 30


def test_an_open_circuit_is_waited_for_where_the_policy_names_a_patience() -> None:
    call = Call(Policy(patience=60))
    call.fn.fallback(Flaky(value="other").acall)
    call.world.state("provider:warehouse").force_open(0.0)
    assert call() == "other"
    assert call.world.now > 30
    soon = Call()
    soon.fn.fallback(Flaky(value="other").acall)
    soon.world.state("provider:warehouse").force_open(0.0)
    assert soon() == "other"
    assert soon.world.now == 0


def test_a_copied_policy_still_knows_whether_its_patience_was_named() -> None:
    for policy in (INTERACTIVE, Policy(attempts=2), INTERACTIVE.replace(timeout=5)):
        assert not policy.names_patience
        assert not pickle.loads(pickle.dumps(policy)).names_patience
    assert pickle.loads(pickle.dumps(Policy(patience=120.0))).names_patience


# --- streams ---


def test_a_stream_whose_fallback_cannot_answer_is_patient() -> None:
    for options, soon in (({}, True), ({"when": "rate_limit"}, False)):
        world, work = World(defaults=True), Always(down)

        async def tokens(work: Always = work) -> Any:
            await work.acall()
            yield "never"

        async def others() -> Any:
            yield "other"

        live = world.recover("claude").stream(tokens).fallback(others, **options)

        async def read(live: Any = live) -> list[str]:
            async with live() as stream:
                return [item async for item in stream]

        if soon:
            assert world.run(read()) == ["other"]
            assert work.calls == 3
        else:
            with pytest.raises(ScriptedHTTPError):
                world.run(read())
            assert world.now > SOON


def test_sync_functions_have_the_same_patience() -> None:
    world, work = World(defaults=True), Always(down)
    fn = recover("warehouse", PATIENT.replace(patience=1800), runtime=world.runtime)(work)
    fn.degraded(lambda fault: "sorry")
    assert fn() == "sorry"
    assert world.now > 1000
    assert not isinstance(work.raised[0], CircuitOpenError)
