"""Money and tokens are reserved before a call is sent: calls that run side by side never exceed their budget."""

from __future__ import annotations

import asyncio
import logging
import random
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from contextvars import copy_context
from typing import Any

import pytest
from recover_kit import LOOSE, World, assert_places_free, reset

from holdfast import Budget, BudgetError, CircuitOpenError, DeadlineError, Hedge, Policy, StreamCutError
from holdfast.policies.models.prices import Price, Prices
from holdfast.runtime.runtime import use_runtime

STEADY = Policy(circuit=LOOSE)
PRICES = Prices({"m": Price(input=0, output=1_000_000)})
"""A token of output costs a dollar."""


@pytest.fixture
def world() -> Iterator[World]:
    world = World()
    with use_runtime(world.runtime):
        yield world


@pytest.fixture
def plain() -> Iterator[World]:
    """A world with Holdfast's own defaults, in which nobody names a deadline."""
    world = World(defaults=True)
    with use_runtime(world.runtime):
        yield world


def budget(**limits: Any) -> Budget:
    return Budget(prices=PRICES, **limits)


def asked(max_tokens: int) -> dict[str, Any]:
    return {"model": "m", "max_tokens": max_tokens, "messages": [{"role": "user", "content": "hi"}]}


def answer(tokens: int) -> dict[str, Any]:
    return {"model": "m", "usage": {"input_tokens": 0, "output_tokens": tokens}}


class Service:
    """Answers after a while with so many tokens, and watches the budget all the time."""

    def __init__(self, budget: Budget) -> None:
        self.budget = budget
        self.calls = self.running = self.most = 0

    async def ask(self, *, takes: float = 1.0, used: int = 1, fails: BaseException | None = None, **_: Any) -> Any:
        self.calls += 1
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            await asyncio.sleep(takes)
        finally:
            self.running -= 1
        if fails is not None:
            raise fails
        return answer(used)


def free(budget: Budget) -> bool:
    return all(account.held == {"usd": 0, "tokens": 0} and not account.owners for account in budget.ledger.accounts)


@pytest.mark.parametrize("unit", ["usd", "tokens"])
def test_XR2_fifty_calls_side_by_side_never_exceed_their_budget(world: World, unit: str) -> None:
    async def main() -> None:
        with budget(**{unit: 100}) as spent:
            service, ask = Service(spent), world.recover("a", STEADY)
            calls = [ask.call(service.ask, **asked(20), used=20) for _ in range(50)]
            results = await asyncio.gather(*calls, return_exceptions=True)
        assert getattr(spent.spend(), unit) <= 100
        assert sum(isinstance(result, BudgetError) for result in results) == 50 - service.calls
        assert service.calls >= 4
        assert free(spent)

    world.run(main())


def test_XR2_those_that_do_not_fit_yet_wait_and_are_answered_when_others_cost_less(world: World) -> None:
    async def main() -> None:
        with budget(usd=100) as spent:
            service, ask = Service(spent), world.recover("a", STEADY)
            results = await asyncio.gather(*(ask.call(service.ask, **asked(20), used=1) for _ in range(50)))
        assert results == [answer(1)] * 50
        assert (spent.spend().usd, service.most) == (50.0, 5)
        assert free(spent)

    world.run(main())


@pytest.mark.parametrize("seed", range(40))
def test_XR2_whatever_answers_fails_or_is_cancelled(world: World, seed: int) -> None:
    rng = random.Random(seed)

    async def main() -> None:
        with budget(usd=rng.choice([30, 100])) as outer, budget(usd=60) as inner:
            service = Service(outer)
            ask = world.recover("a", Policy(circuit=LOOSE, concurrency=rng.choice([None, 3])))

            async def one() -> Any:
                most = rng.randint(1, 25)
                fails = rng.choice([None, None, None, reset(), ValueError("no")])
                call = ask.call(service.ask, **asked(most), used=rng.randint(0, most), takes=rng.random(), fails=fails)
                await asyncio.sleep(rng.random() * 3)
                task = asyncio.ensure_future(call)
                if rng.random() < 0.3:
                    asyncio.get_running_loop().call_later(rng.random() * 2, task.cancel)
                return await task

            def watch() -> None:
                for account, most in zip(inner.ledger.accounts, (60, None), strict=True):
                    limit = most or outer._limits.usd
                    assert account.used["usd"] + account.held["usd"] <= limit * 1_000_000_000

            watching = asyncio.ensure_future(_always(watch))
            results = await asyncio.gather(*(one() for _ in range(50)), return_exceptions=True)
            watching.cancel()
            assert not watching.done() or watching.exception() is None
        assert not [result for result in results if isinstance(result, AssertionError)]
        assert free(inner)
        assert not len(inner.reservations._queue)

    world.run(main())


async def _always(check: Any) -> None:
    while True:
        check()
        await asyncio.sleep(0.01)


def test_XR2_a_call_that_never_fits_is_rejected_and_not_sent(world: World) -> None:
    with budget(usd=10) as spent, pytest.raises(BudgetError) as caught:
        world.recover("a", STEADY).call(lambda **_: pytest.fail("it was sent"), **asked(11))
    message = caught.value.fault.message
    assert "$11" in message
    assert "$10" in message
    assert "max_tokens" in message
    assert spent.spend().attempts == 0
    assert free(spent)


def test_XR2_waiting_ends_at_the_deadline(world: World) -> None:
    async def main() -> None:
        with budget(usd=10) as spent:
            service = Service(spent)
            first = asyncio.ensure_future(world.recover("a", STEADY).call(service.ask, **asked(9), takes=30))
            await asyncio.sleep(1)
            late = world.recover("a", Policy(circuit=LOOSE, deadline=5.0)).call(service.ask, **asked(9))
            with pytest.raises(DeadlineError):
                await late
            assert world.now == pytest.approx(6.0)
            await first
        assert (service.calls, free(spent)) == (1, True)

    world.run(main())


@pytest.mark.parametrize("takes", [300.0, 900.0])
def test_XR2_waiting_for_money_ends_at_no_limit_that_nobody_named(plain: World, takes: float) -> None:
    async def main() -> None:
        with budget(usd=10) as spent:
            service, ask = Service(spent), plain.recover("a", STEADY)
            await asyncio.gather(*(ask.call(service.ask, **asked(6), takes=takes) for _ in range(3)))
        assert (service.calls, spent.spend().usd, plain.now, free(spent)) == (3, 3.0, 3 * takes, True)

    plain.run(main())


def test_XR2_the_time_for_retries_stands_still_while_a_call_waits_for_money(plain: World) -> None:
    async def main() -> None:
        with budget(usd=10):
            failures = [reset(), reset()]

            async def flaky(**_: Any) -> Any:
                if failures:
                    raise failures.pop()
                return answer(1)

            ask = plain.recover("a", STEADY)
            first = asyncio.ensure_future(ask.call(Service(Budget()).ask, **asked(6), takes=300))
            await asyncio.sleep(1)
            assert await ask.call(flaky, **asked(6)) == answer(1)
            await first

    plain.run(main())


@pytest.mark.parametrize("limit", ["deadline", "patience", "seconds"])
def test_XR2_waiting_for_money_ends_at_a_limit_that_somebody_named(plain: World, limit: str) -> None:
    async def main() -> None:
        with budget(usd=10, seconds=5 if limit == "seconds" else None) as spent:
            service = Service(spent)
            first = asyncio.ensure_future(plain.recover("a", STEADY).call(service.ask, **asked(9), takes=300))
            await asyncio.sleep(0)
            policy = Policy(circuit=LOOSE) if limit == "seconds" else Policy(circuit=LOOSE, **{limit: 5.0})
            with pytest.raises((DeadlineError, BudgetError)):
                await plain.recover("a", policy).call(service.ask, **asked(9))
            assert plain.now == 5.0
            first.cancel()

    plain.run(main())


def test_XR2_a_stream_whose_task_has_ended_is_not_waited_for(plain: World) -> None:
    """Nobody reads it, so it would hold its money for ever."""

    async def tokens(**_: Any) -> AsyncIterator[str]:
        yield "four"
        yield "four"

    async def main() -> None:
        with budget(usd=10) as spent:
            live, kept = plain.recover("a", STEADY).stream(tokens), []

            async def look() -> None:
                kept.append(await live(**asked(6)).__aenter__())
                async for _ in kept[0]:
                    break

            await asyncio.create_task(look())
            with pytest.raises(BudgetError, match="may use up to"):
                await plain.recover("a", STEADY).call(Service(spent).ask, **asked(6))
            assert plain.now == 0.0

    plain.run(main())


def test_XR2_a_stream_belongs_to_the_task_that_reads_it(plain: World) -> None:
    async def tokens(**_: Any) -> AsyncIterator[str]:
        for _ in range(3):
            await asyncio.sleep(0.2)
            yield "four"

    async def main() -> None:
        with budget(usd=10) as spent:
            service, opened = Service(spent), []

            async def begin() -> None:
                opened.append(await plain.recover("a", STEADY).stream(tokens)(**asked(6)).__aenter__())
                await opened[0].__anext__()

            async def read() -> None:
                async for _ in opened[0]:
                    pass

            await asyncio.create_task(begin())
            reads = asyncio.create_task(read())
            await asyncio.sleep(0.3)
            # Its reader goes on, so it is worth waiting for.
            assert await plain.recover("a", STEADY).call(service.ask, **asked(6)) == answer(1)
            await reads
            assert plain.now == pytest.approx(1.6)

    plain.run(main())


def test_XR2_a_call_on_behalf_of_a_function_takes_its_reservation_over(plain: World) -> None:
    """The function hands its request to a worker task, which is not inside it, and waits for the answer."""

    async def main() -> None:
        queue: asyncio.Queue[Any] = asyncio.Queue()
        client = plain.recover("a", STEADY)
        client._plan.through_client = True  # as the calls of an SDK's client

        async def worker() -> None:
            while True:
                future, request = await queue.get()
                future.set_result(await client.call(service.ask, **request))

        async def gateway(**request: Any) -> Any:
            future = asyncio.get_running_loop().create_future()
            await queue.put((future, request))
            return await future

        with budget(usd=10) as spent:
            service = Service(spent)
            works = asyncio.create_task(worker())
            assert await plain.recover("gateway", STEADY).call(gateway, **asked(6)) == answer(1)
            works.cancel()
        assert (plain.now, spent.spend().usd, spent.spend().attempts, free(spent)) == (1.0, 1.0, 1, True)

    plain.run(main())


def test_XR2_a_call_that_waits_for_functions_in_vain_is_told_so(plain: World, caplog: pytest.LogCaptureFixture) -> None:
    """Nobody can know whether a function waits for this very call: after 15 minutes in which nothing ends it is rejected."""

    async def main() -> None:
        with budget(usd=10) as spent:
            service = Service(spent)
            never = asyncio.ensure_future(plain.recover("gateway", STEADY).call(service.ask, **asked(9), takes=9_000))
            await asyncio.sleep(0)
            with pytest.raises(BudgetError, match=r"waited 900 s .* for gateway, .* waits for this call") as caught:
                await plain.recover("a", STEADY).call(service.ask, **asked(6))
            assert (plain.now, caught.value.fault.context["unit"]) == (900.0, "usd")
            never.cancel()

    plain.run(main())
    assert [record.levelname for record in caplog.records if "for gateway" in record.getMessage()] == ["WARNING"]


def test_XR2_a_cancelled_wait_costs_nothing_and_lets_the_next_one_through(world: World) -> None:
    async def main() -> None:
        with budget(usd=10) as spent:
            service, ask = Service(spent), world.recover("a", STEADY)
            first = asyncio.ensure_future(ask.call(service.ask, **asked(6), takes=10))
            await asyncio.sleep(0)
            large = asyncio.ensure_future(ask.call(service.ask, **asked(9)))
            await asyncio.sleep(0)
            small = asyncio.ensure_future(ask.call(service.ask, **asked(2)))
            await asyncio.sleep(1)
            assert service.calls == 1
            large.cancel()
            await small
            assert world.now == pytest.approx(2.0)
            await first
        assert (spent.spend().usd, spent.spend().unknown, free(spent)) == (2.0, 0, True)

    world.run(main())


def test_XR2_a_cancelled_call_is_charged_and_counted_as_unknown(world: World) -> None:
    prices = Prices({"m": Price(input=1_000_000, output=1_000_000)})

    async def main() -> None:
        with Budget(usd=1000, prices=prices) as spent:
            service, ask = Service(spent), world.recover("a", STEADY)
            call = asyncio.ensure_future(ask.call(service.ask, **asked(9), takes=10))
            await asyncio.sleep(1)
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
        spend = spent.spend()
        assert (spend.unknown, 0 < spend.usd < 30, free(spent)) == (1, True, True)

    world.run(main())


@pytest.mark.parametrize("how", ["is cancelled", "times out", "breaks off"])
@pytest.mark.parametrize(("takes", "made"), [(0.05, 8), (2.0, 300), (60.0, 4000)])
def test_XR2_what_ends_without_usage_counts_what_may_have_been_generated(
    world: World, how: str, takes: float, made: int
) -> None:
    """150 tokens a second, and no more than was reserved: the mean of the others says nothing about it."""

    async def ask(**_: Any) -> Any:
        await asyncio.sleep(takes)
        if how == "breaks off":
            raise reset()
        await asyncio.sleep(1000)

    async def main() -> None:
        with budget(usd=100_000) as spent:
            once = world.recover("a", Policy(circuit=LOOSE, attempts=1))
            await once.call(Service(spent).ask, **asked(4000), used=1000)
            policy = Policy(circuit=LOOSE, attempts=1, timeout=takes if how == "times out" else None)
            call = asyncio.ensure_future(world.recover("a", policy).call(ask, **asked(4000)))
            if how == "is cancelled":
                await asyncio.sleep(takes)
                call.cancel()
            await asyncio.wait((call,))
            assert (spent.spend().usd, spent.spend().unknown, free(spent)) == (1000 + made, 1, True)

    world.run(main())


def test_XR2_a_hedged_copy_that_is_stopped_counts_its_own_time(world: World) -> None:
    policy = Policy(circuit=LOOSE, hedge=Hedge(after=3.0))

    async def main() -> None:
        with budget(usd=100_000) as spent:
            service = Service(spent)
            await world.recover("a", policy, effect="read").call(service.ask, **asked(4000), takes=5, used=700)
        assert (service.calls, spent.spend().usd, spent.spend().unknown) == (2, 700 + 2 * 150, 1)

    world.run(main())


def test_XR2_unknown_usage_is_warned_of_once_per_budget(world: World, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "holdfast"), budget(usd=10):
        for _ in range(3):
            world.recover("a", STEADY).call(lambda **_: "no usage", **asked(1))
    assert len([record for record in caplog.records if "no usage" in record.getMessage()]) == 1


def test_XR2_what_a_circuit_rejects_costs_nothing(world: World) -> None:
    policy = Policy(wait_for_circuit=False)
    world.recover("a", policy)
    world.runtime.registry.get("provider:a").force_open(world.now)
    with budget(usd=10, estimate_usd=1.0) as spent:
        outer = world.recover("outer", Policy(attempts=1, circuit=LOOSE))
        with pytest.raises(CircuitOpenError):
            outer.call(lambda: world.recover("a", policy).call(lambda **_: answer(1), **asked(5)))
    assert (spent.spend().usd, spent.spend().unknown, spent.spend().attempts, free(spent)) == (0.0, 0, 0, True)


def test_XR2_threads_wait_for_each_other(world: World) -> None:
    begun, go_on, done = threading.Event(), threading.Event(), []

    def slow(**_: Any) -> Any:
        begun.set()
        assert go_on.wait(10)
        return answer(1)

    with budget(usd=10) as spent:
        ask = world.recover("a", Policy(circuit=LOOSE, deadline=None, patience=None))
        contexts = [copy_context(), copy_context()]
        first = threading.Thread(target=contexts[0].run, args=(lambda: done.append(ask.call(slow, **asked(6))),))
        first.start()
        assert begun.wait(10)
        second = threading.Thread(
            target=contexts[1].run, args=(lambda: done.append(ask.call(lambda **_: answer(2), **asked(6))),)
        )
        second.start()
        for _ in range(10_000):
            if len(spent.reservations._queue):
                break
            threading.Event().wait(0.001)
        assert done == []
        go_on.set()
        first.join(10)
        second.join(10)
    assert (spent.spend().usd, len(done), free(spent)) == (3.0, 2, True)


def test_XR2_a_nested_recovery_reserves_once(world: World) -> None:
    inner = world.recover("inner", STEADY)

    async def main() -> None:
        with budget(usd=10) as spent:
            service = Service(spent)

            async def both(**request: Any) -> Any:
                return await inner.call(service.ask, **request)

            await world.recover("outer", STEADY).call(both, **asked(9))
        assert (spent.spend().usd, spent.spend().attempts, free(spent)) == (1.0, 1, True)

    world.run(main())


def test_XR2_a_call_that_waits_for_a_place_holds_no_money(world: World) -> None:
    """The outer call has the only place; the one behind it must not keep the money that the inner call needs."""

    async def main() -> None:
        with budget(usd=10) as spent:
            service = Service(spent)
            outer, inner = world.recover("outer", Policy(circuit=LOOSE, concurrency=1)), world.recover("inner", STEADY)

            async def nested() -> Any:
                await asyncio.sleep(1)
                return await inner.call(service.ask, **asked(9))

            first = asyncio.ensure_future(outer.call(nested))
            await asyncio.sleep(0)
            second = asyncio.ensure_future(outer.call(service.ask, **asked(9)))
            await asyncio.gather(first, second)
        assert (spent.spend().usd, free(spent)) == (2.0, True)

    world.run(main())


def test_XR2_a_hedge_is_added_only_if_it_can_be_paid(world: World) -> None:
    policy = Policy(circuit=LOOSE, hedge=Hedge(after=1.0))

    async def main(limit: float) -> int:
        with budget(usd=limit) as spent:
            service = Service(spent)
            await world.recover("a", policy, effect="read").call(service.ask, **asked(9), takes=5)
        assert free(spent)
        return service.calls

    assert (world.run(main(10)), world.run(main(20))) == (1, 2)


@pytest.mark.parametrize("how", ["ends", "is left", "breaks"])
@pytest.mark.parametrize("takes", [0.0, 0.02])
def test_XR2_a_stream_without_usage_is_charged_what_was_seen(world: World, how: str, takes: float) -> None:
    async def tokens(**_: Any) -> AsyncIterator[str]:
        for _ in range(5):
            await asyncio.sleep(takes)
            yield "four"
        if how == "breaks":
            raise reset()

    async def main() -> None:
        with budget(usd=100) as spent:
            live = world.recover("a", STEADY).stream(tokens)
            with suppress(StreamCutError):
                async with live(**asked(90)) as stream:
                    async for _ in stream:
                        if how == "is left":
                            break
        seen = 1 if how == "is left" else 5
        # A stream that did not end may have been generated further than it was read.
        may_be = seen if how == "ends" else max(seen, round(150 * takes * seen))
        assert (spent.spend().usd, spent.spend().unknown, free(spent)) == (may_be, 1, True)

    world.run(main())


def test_XR2_a_stream_that_is_open_does_not_block_its_own_reader(world: World) -> None:
    async def tokens(**_: Any) -> AsyncIterator[str]:
        yield "four"
        yield "four"

    async def main() -> None:
        with budget(usd=10) as spent:
            service = Service(spent)
            async with world.recover("a", STEADY).stream(tokens)(**asked(6)) as stream:
                async for _ in stream:
                    with pytest.raises(BudgetError):
                        await world.recover("a", STEADY).call(service.ask, **asked(6))
            await world.recover("a", STEADY).call(service.ask, **asked(6))
        assert (spent.spend().usd, world.now, free(spent)) == (3.0, 1.0, True)

    world.run(main())


def test_an_answer_that_is_not_accepted_was_paid_for(world: World) -> None:
    with budget(usd=100) as spent:
        answers = iter([answer(3), answer(4)])
        ask = world.recover("a", STEADY, accept=lambda value: value["usage"]["output_tokens"] == 4)
        ask.call(lambda **_: next(answers), **asked(9))
    assert (spent.spend().usd, spent.spend().unknown) == (7.0, 0)


def test_a_function_that_nobody_can_price_is_not_rejected(world: World) -> None:
    with budget(usd=10) as spent:
        ask = world.recover("a", STEADY)
        for _ in range(3):
            ask.call(lambda: answer(4))
        with pytest.raises(BudgetError):
            ask.call(lambda: answer(4))
    assert spent.spend().usd == 12.0


def test_XR2_a_function_that_only_turns_out_to_be_async_waits_too(world: World) -> None:
    """It is called in the thread of the event loop, where a wait would stop the calls that it waits for."""

    async def main() -> None:
        with budget(usd=10) as spent:
            service, ask = Service(spent), world.recover("a", STEADY)

            def plain(**request: Any) -> Any:
                return service.ask(**request)

            await asyncio.gather(ask.call(plain, **asked(6)), ask.call(plain, **asked(6)))
        assert (spent.spend().usd, service.most, free(spent)) == (2.0, 1, True)

    world.run(main())


def test_XR2_a_block_that_finds_the_budget_spent_frees_its_place(world: World) -> None:
    recovery = world.recover("a", Policy(circuit=LOOSE, concurrency=1))

    async def main() -> None:
        with budget(usd=10) as spent:
            service = Service(spent)
            first = asyncio.ensure_future(recovery.call(service.ask, **asked(10), used=10))
            await asyncio.sleep(0)
            with pytest.raises(BudgetError):
                async for attempt in recovery:
                    async with attempt:
                        raise AssertionError
            await first

    world.run(main())
    assert_places_free(world.state("provider:a"))
