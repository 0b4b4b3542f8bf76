"""The default policy in half-bad times: brownouts, outages, limits that depend on the load, crowds that return."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import httpx2
import pytest
from recover_kit import Always, Flaky, World, reset

from holdfast import INTERACTIVE, PATIENT, Circuit, CircuitOpenError, Fault, Policy, Target, fault_of
from holdfast.events import Failed, Recovered, Retry
from holdfast.testing import ScriptedHTTPError, no_waiting, seeded

MODEL = Target(provider="claude", model="opus")


class Service:
    """Fails by the moment or by the load, and keeps when requests came. Good answers take a second, if nothing else is named."""

    def __init__(self, world: World, fails: Callable[[float], int | None], seconds: float = 1.0) -> None:
        self.world, self.fails, self.seconds = world, fails, seconds
        self.arrivals: list[float] = []
        self.rejected = 0

    async def ask(self) -> str:
        self.arrivals.append(self.world.now)
        if (status := self.fails(self.world.now)) is not None:
            self.rejected += 1
            await asyncio.sleep(0.02)
            raise ScriptedHTTPError(status)
        await asyncio.sleep(self.seconds)
        return "ok"


def bucket(world: World, per_second: float, burst: float) -> Callable[[float], int | None]:
    left, at = burst, 0.0

    def fails(now: float) -> int | None:
        nonlocal left, at
        left, at = min(burst, left + (now - at) * per_second), now
        if left < 1:
            return 429
        left -= 1
        return None

    return fails


def play(world: World, service: Service, due: list[float], policy: Policy | None = None) -> list[Any]:
    """Make one call at each of these moments; return the seconds each took, or its error."""
    recovery = world.recover(MODEL, policy)

    async def one(at: float) -> float | Exception:
        await asyncio.sleep(at)
        try:
            await recovery.call(service.ask)
        except Exception as error:
            return error
        return world.now - at

    async def main() -> list[Any]:
        return await asyncio.gather(*(one(at) for at in due))

    return world.run(main())


def world() -> World:
    return World(defaults=True, rng=seeded(3))


def test_a_retry_comes_after_the_moment_in_which_the_service_failed() -> None:
    it = world()
    service = Service(it, lambda now: 503 if 20.0 <= now < 21.0 else None)
    took = play(it, service, [*map(float, range(21))])
    assert service.rejected == 2, "the plain client's second attempt meets the same failure, its third does not"
    assert 1.1 <= took[-1] <= 2.6


def test_a_service_that_fails_two_seconds_of_three_answers_every_call() -> None:
    it = world()
    bad = {second for second in range(30, 210) if random.Random(second).random() < 0.66}
    service = Service(it, lambda now: 529 if int(now) in bad else None)
    took = play(it, service, [float(at) for at in range(0, 240, 3)])
    assert not [each for each in took if isinstance(each, Exception)]
    assert sorted(took)[len(took) // 2] < 5


def test_a_dead_service_gets_what_the_plain_client_sends_and_then_its_callers_return_in_a_ramp() -> None:
    it = world()
    service = Service(it, lambda now: 503 if 10 <= now < 70 else None)
    took = play(it, service, [at / 4 for at in range(400)])
    assert not [each for each in took if isinstance(each, Exception)]
    seconds = Counter(int(at) for at in service.arrivals)
    assert sum(seconds[at] for at in range(30, 70)) <= 40 * 4 * 3 + 10, (
        "three attempts of each, and hardly a further retry"
    )
    assert all(seconds[70 + later] <= 4 + 2 ** (later + 3) for later in range(5)), (
        "a crowd of 240 does not come back at once"
    )


def test_XR19_those_who_wait_return_soon_also_where_an_answer_takes_long() -> None:
    it = world()
    service = Service(it, lambda now: 503 if now < 60 else None, seconds=50.0)
    took = play(it, service, [at / 2 for at in range(100)])
    assert not [each for each in took if isinstance(each, Exception)]
    assert max(took) <= 60 + 50 + 50 + 10, "those who wait follow the first answer"


@pytest.mark.parametrize("burst", [10.0, 60.0])
def test_a_limit_that_depends_on_the_load_is_used(burst: float) -> None:
    """Nobody announces it, so the first ones are tried early: they might be another tenant's rejections."""
    it, chance = world(), random.Random(5)
    service = Service(it, bucket(it, 1.0, burst))
    took = play(it, service, sorted(chance.uniform(0, 180) for _ in range(360)))
    answered = [each for each in took if not isinstance(each, Exception)]
    assert len(answered) >= 0.9 * min(360, 300 + burst)
    assert service.rejected <= len(service.arrivals) / 4


def test_a_burst_is_spread_instead_of_rejected() -> None:
    it = world()
    service = Service(it, bucket(it, 2.0, 20.0))
    took = play(it, service, [0.0] * 200)
    assert not [each for each in took if isinstance(each, Exception)]
    assert service.rejected <= 3 * 200, "no more than the plain client's: all were sent before an experiment began"


@pytest.mark.parametrize("places", [4, 8])
def test_a_limit_on_calls_at_the_same_time_is_learned_as_a_number_of_places(places: int) -> None:
    it = world()
    under_way = 0

    async def ask() -> str:
        nonlocal under_way
        if under_way >= places:
            await asyncio.sleep(0.02)
            raise ScriptedHTTPError(429)
        under_way += 1
        try:
            await asyncio.sleep(1)
        finally:
            under_way -= 1
        return "ok"

    # The calls of a key are counted from the beginning, those of a provider from the first rejection on.
    recovery = it.recover(Target(provider="claude", model="opus", credential="team"))

    async def main() -> list[str]:
        return await asyncio.gather(*(recovery.call(ask) for _ in range(20 * places)))

    assert it.run(main()) == ["ok"] * 20 * places
    assert it.now <= 20 + 10, "no place is left empty for long"


def test_cancelled_and_failed_calls_free_their_places() -> None:
    it = world()
    under_way, calls = 0, 0

    async def ask() -> str:
        nonlocal under_way, calls
        if under_way >= 6:
            raise ScriptedHTTPError(429)
        under_way, calls = under_way + 1, calls + 1
        try:
            await asyncio.sleep(1)
            if calls % 5 == 0:
                raise ScriptedHTTPError(400)
        finally:
            under_way -= 1
        return "ok"

    recovery = it.recover(MODEL)

    async def main() -> list[Any]:
        tasks = [asyncio.create_task(recovery.call(ask)) for _ in range(90)]
        await asyncio.sleep(5.5)
        for task in tasks[10:60:5]:
            task.cancel()
        return await asyncio.gather(*tasks, return_exceptions=True)

    ended = it.run(main())
    assert len([each for each in ended if each == "ok"]) > 50
    assert it.now <= 19


def test_a_retry_waits_for_a_moment_if_another_call_failed_just_now() -> None:
    it = world()
    service = Service(it, lambda now: 503 if now < 5.75 else None)
    took = play(it, service, [0.0, 0.5, 0.7])
    assert [each for each in took if isinstance(each, Exception)] == []
    assert len(service.arrivals) <= 17, "without it, there are nineteen"
    assert max(took) < 9


def test_a_retry_does_not_wait_for_ever_for_a_moment_without_failures() -> None:
    it = world()
    service = Service(it, lambda now: 503)
    unlucky = it.recover(MODEL, Policy(attempts=4))
    others = it.recover(MODEL, Policy(attempts=1))

    async def main() -> list[str]:
        crowd = [asyncio.create_task(_one(others, service, at / 3)) for at in range(30)]
        outcome = await unlucky.outcome(service.ask)
        await asyncio.gather(*crowd)
        return [str(outcome.fault.code)]

    assert it.run(main()) == ["PROVIDER_UNAVAILABLE"]


async def _one(recovery: Any, service: Service, at: float) -> None:
    await asyncio.sleep(at)
    await recovery.outcome(service.ask)


def test_interactive_calls_go_before_a_batch() -> None:
    it = world()
    service = Service(it, bucket(it, 1.0, 1.0))
    batch, people = it.recover(MODEL, INTERACTIVE.replace(priority="low")), it.recover(MODEL)
    ended: list[str] = []

    async def one(name: str, at: float, recovery: Any) -> None:
        await asyncio.sleep(at)
        await recovery.call(service.ask)
        ended.append(name)

    async def main() -> None:
        calls = [one("batch", 0.0, batch) for _ in range(30)]
        await asyncio.gather(*calls, *(one("person", 5.0, people) for _ in range(3)))

    it.run(main())
    assert max(place for place, name in enumerate(ended) if name == "person") < 16


def test_who_is_cancelled_in_the_queue_leaves_its_place_to_the_next() -> None:
    it = world()
    service = Service(it, bucket(it, 1.0, 1.0))
    recovery = it.recover(MODEL)

    async def main() -> list[Any]:
        tasks = [asyncio.create_task(recovery.call(service.ask)) for _ in range(12)]
        await asyncio.sleep(2)
        for task in tasks[3:9]:
            task.cancel()
        return await asyncio.gather(*tasks, return_exceptions=True)

    ended = it.run(main())
    assert [each for each in ended if each == "ok"] == ["ok"] * 6
    assert it.now < 20


def test_every_call_waits_for_a_circuit_where_nothing_else_would_answer() -> None:
    it = world()
    service = Service(it, lambda now: 503 if now < 40 else None)
    took = play(it, service, [float(at) for at in range(40)])
    assert not [each for each in took if isinstance(each, Exception)]
    rejecting = it.recover("other", Policy(wait_for_circuit=False))
    it.runtime.registry.get("provider:other").force_open(it.now)
    with pytest.raises(CircuitOpenError):
        rejecting.call(Flaky())


def test_the_line_says_the_time_where_no_number_limits_the_attempts() -> None:
    it = World(defaults=True)
    it.recover("claude").call(Flaky(reset(), reset()))
    assert [event.text for event in it.of(Retry)] == [
        "Retrying… attempt 2 · 120 s left",
        "Retrying… attempt 3 · 120 s left",
    ]
    numbered = World(defaults=True)
    numbered.recover("claude", Policy(attempts=3)).call(Flaky(reset()))
    assert [event.text for event in numbered.of(Retry)] == ["Retrying... (2/3)"]


def test_an_answer_that_is_coming_is_not_cut_when_the_patience_is_over() -> None:
    it = World(defaults=True)
    policy = Policy(timeout=None, patience=5)
    assert it.run(it.recover("claude", policy).call(Flaky(takes=50).acall)) == "ok"
    assert it.now == 50


def test_FR19_two_requests_that_always_fail_do_not_shut_the_service_for_others() -> None:
    it = world()
    recovery = it.recover(MODEL)

    async def broken() -> str:
        await asyncio.sleep(0.1)
        raise ScriptedHTTPError(500)

    async def main() -> list[str]:
        bad = [asyncio.create_task(recovery.outcome(broken)) for _ in range(2)]
        good = [await recovery.call(Flaky(takes=0.5).acall) for _ in range(60)]
        await asyncio.gather(*bad)
        return good

    assert it.run(main()) == ["ok"] * 60
    assert it.now < 140


def test_a_call_that_waited_for_a_circuit_reports_the_wait_once_and_its_end() -> None:
    it = world()
    it.runtime.registry.get("provider:claude").force_open(it.now)

    async def main() -> str:
        call = asyncio.create_task(it.recover("claude").call(Flaky(takes=1).acall))
        await asyncio.sleep(30)
        it.runtime.registry.get("provider:claude").release(it.now)
        return await call

    assert it.run(main()) == "ok"
    assert [event.fault.code for event in it.of(Retry)] == ["CIRCUIT_OPEN"]
    (recovered,) = it.of(Recovered)
    assert recovered.attempts == 1
    assert recovered.after == it.now


def test_a_burst_that_is_spread_is_no_news() -> None:
    it = world()
    service = Service(it, lambda _: None)
    assert max(play(it, service, [0.0] * 200)) > 1.1
    assert not it.of(Retry)
    assert not it.of(Recovered)


def test_nobody_waits_for_the_circuit_of_a_key_that_is_denied() -> None:
    it = world()
    key = Target(provider="claude", credential="team")
    recovery = it.recover(key, Policy(circuit=Circuit(failures=1)))
    with pytest.raises(ScriptedHTTPError):
        recovery.call(Flaky(ScriptedHTTPError(401)))
    with pytest.raises(CircuitOpenError):
        recovery.call(Flaky())
    assert it.now == 0
    # A policy that names it waits all the same.
    assert it.recover(key, Policy(circuit=Circuit(failures=1), wait_for_circuit=True)).call(Flaky()) == "ok"
    assert it.now == 30


def test_where_nothing_waits_there_are_no_turns_and_an_open_circuit_rejects() -> None:
    it = world()
    limited = ScriptedHTTPError(429, headers={"retry-after": "7"})
    policy = Policy(circuit=Circuit(failures=3))
    with no_waiting(it.runtime):
        assert it.recover(MODEL).call(Flaky(limited, ScriptedHTTPError(503))) == "ok"
        with pytest.raises(ScriptedHTTPError):
            it.recover("other", policy.replace(attempts=3)).call(Flaky(*[ScriptedHTTPError(503)] * 3))
        with pytest.raises(CircuitOpenError) as rejected:
            it.recover("other", policy).call(Flaky())
    assert fault_of(rejected.value).attempts == ()
    assert it.now == 0


def test_S1_2_a_call_that_a_fallback_could_answer_makes_way_after_three_bad_seconds() -> None:
    it = world()
    service = Service(it, lambda now: 503 if now < 60 else None)
    answer = it.recover(MODEL)(service.ask)
    answer.fallback(Flaky(value="other").acall, name="other")

    async def main() -> list[str]:
        async def one(at: float) -> str:
            await asyncio.sleep(at)
            return await answer()

        return await asyncio.gather(*(one(float(at)) for at in range(100)))

    answers = it.run(main())
    assert set(answers[:60]) == {"other"}
    assert sum(at < 60 for at in service.arrivals) <= 14
    assert answers[-1] == "ok"
    assert answers.index("ok") <= 82, "one call looks again now and then"


def test_a_call_that_met_a_failure_passes_it_on_to_its_fallbacks_when_it_makes_way() -> None:
    it = world()
    service, other = Service(it, lambda _: 529), Always(lambda: ScriptedHTTPError(401))
    answer = it.recover("claude")(service.ask)
    answer.fallback(other.acall, name="other")
    faults: list[Fault] = []

    @answer.degraded
    def sorry(fault: Fault) -> str:
        faults.append(fault)
        return "sorry"

    async def main() -> None:
        for _ in range(4):
            assert await answer() == "sorry"

    it.run(main())
    assert [fault.code for fault in faults] == [*["PROVIDER_OVERLOADED"] * 3, "CIRCUIT_OPEN"]
    assert len(faults[2].attempts) == 1, "its own failure, and not the circuit"
    assert faults[3].message.startswith("claude has failed for a while, so the fallback answers until")
    assert faults[3].message.endswith(": PROVIDER_OVERLOADED")


def test_a_policy_that_says_that_something_else_answers_fails_soon() -> None:
    it = World(defaults=True)
    fails = Always(reset)
    recovery = it.recover("claude", INTERACTIVE.replace(has_fallback=True))
    with pytest.raises(ConnectionResetError):
        it.run(recovery.call(fails.acall))
    assert fails.calls == 3
    it.state("provider:claude").force_open(it.now)
    began = it.now
    with pytest.raises(CircuitOpenError):
        it.run(recovery.call(fails.acall))
    assert it.now == began
    assert len(it.of(Failed)) == 2, "nobody else reports it"


def test_a_limit_that_was_met_without_waiting_does_not_slow_the_calls_after_it() -> None:
    it = World(defaults=True)
    limited = Flaky(ScriptedHTTPError(429, {"retry-after": "30"}))
    with no_waiting(it.runtime):
        assert it.run(it.recover("claude").call(limited.acall)) == "ok"
    began = it.now
    it.run(it.recover("claude").call(Flaky().acall))
    assert it.now == began, "no time has passed in which the limit could end"


# What surfaces after attempts


class GoneError(ConnectionResetError):
    pass


@pytest.mark.parametrize("kind", ["function", "block", "stream"])
def test_the_latest_failure_surfaces_where_the_circuit_lets_no_further_attempt_through(kind: str):
    """It was `CircuitOpenError`, which no `except` around the plain call is for."""
    world = World(defaults=True)
    recovery = world.recover("claude")

    async def ask():
        raise GoneError(104, "gone")

    async def items():
        raise GoneError(104, "gone")
        yield

    async def one() -> Exception:
        try:
            if kind == "function":
                await recovery.call(ask)
            elif kind == "block":
                async for attempt in recovery:
                    async with attempt:
                        await ask()
            else:
                async with recovery.stream(items)() as stream:
                    async for _ in stream:
                        pass
        except Exception as error:
            return error
        raise AssertionError("it was answered")

    async def act() -> list[Exception]:
        return await asyncio.gather(*(one() for _ in range(20)))

    found = world.run(act())
    assert world.state("provider:claude")._breaker.opens
    assert {type(error) for error in found} == {GoneError}
    assert {(error.__cause__, error.__context__) for error in found} == {(None, None)}
    assert all(fault_of(error).code == "CONN_RESET" and len(fault_of(error).attempts) >= 3 for error in found)
    assert all(any("gave up" in note for note in error.__notes__) for error in found)


@pytest.mark.parametrize("is_sync", [False, True])
def test_the_latest_response_is_returned_where_the_circuit_lets_no_further_attempt_through(is_sync: bool):
    world = World(defaults=True)
    recovery = world.recover("shop")

    def get():
        return httpx2.Response(503)

    async def ask():
        return get()

    async def act():
        return await asyncio.gather(*(recovery.call(ask) for _ in range(20)))

    found = [recovery.call(get)] if is_sync else world.run(act())
    assert {answer.status_code for answer in found} == {503}


def test_a_fallback_gets_the_latest_failure_where_the_circuit_lets_no_further_attempt_through():
    world = World(defaults=True)
    kept = []

    @world.recover("claude", PATIENT.replace(patience=60))
    async def ask():
        raise GoneError(104, "gone")

    @ask.degraded
    async def sorry(fault):
        kept.append(fault.code)
        return "sorry"

    async def act():
        return await asyncio.gather(*(ask() for _ in range(20)))

    assert set(world.run(act())) == {"sorry"}
    assert set(kept) == {"CONN_RESET"}
