"""Durable steps (DESIGN section 6, B102): done once, whatever stops the process."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
from sessions_kit import Crash, FailingStore, code_of, killed, square

from holdfast import OutcomeUnknownError, Policy, Runtime, recover, tool
from holdfast.faults import HoldfastError, InvalidError, Ok
from holdfast.once.outcome import Drifted, InDoubt, Repeat, Return, RunStep, decide_step, needs_start
from holdfast.once.records import StepEnded, StepStarted
from holdfast.runtime.tool import call_key
from holdfast.sessions import Session
from holdfast.stores import MemoryStore
from holdfast.testing import Midpoint, VirtualClock, run

DONE: list[Any] = []


@pytest.fixture(autouse=True)
def nothing_done() -> None:
    DONE.clear()


async def plan(goal: str) -> str:
    DONE.append(goal)
    return goal.upper()


def counted(n: int) -> int:
    DONE.append(n)
    return n


@tool(effect="unsafe")
async def deploy(plan: str) -> int:
    DONE.append(plan)
    return 7


@tool(effect="unsafe")
async def cut(plan: str) -> int:
    DONE.append(plan)
    raise Crash


@tool(effect="read")
def cut_read() -> int:
    DONE.append("read")
    if len(DONE) == 1:
        raise Crash
    return 1


@tool(effect="keyed")
def cut_keyed() -> str:
    DONE.append(call_key())
    if len(DONE) == 1:
        raise Crash
    return call_key()


def cut_undeclared() -> int:
    DONE.append("undeclared")
    if len(DONE) == 1:
        raise Crash
    return 1


def started(effect: str | None = None, args: str = "a") -> StepStarted:
    return StepStarted(turn=1, step="s#1", args=args, effect=effect)


def ended(*, ok: bool, unknown: bool = False) -> StepEnded:
    return StepEnded(turn=1, step="s#1", args="a", ok=ok, unknown=unknown)


@pytest.mark.parametrize(
    ("known", "effect", "decided"),
    [
        (None, None, RunStep()),
        (None, "unsafe", RunStep()),
        (started("unsafe"), "unsafe", InDoubt()),
        (started(), None, Repeat(unknown=True)),
        (started("keyed"), "keyed", Repeat(unknown=True)),
        (started("read"), "read", Repeat(unknown=True)),
        (ended(ok=False), "unsafe", Repeat(unknown=False)),
        (ended(ok=False, unknown=True), "unsafe", InDoubt()),
        (ended(ok=False, unknown=True), "idempotent", Repeat(unknown=True)),
    ],
)
def test_B102_what_is_decided_about_a_step(known: Any, effect: Any, decided: Any) -> None:
    assert decide_step(known, effect) == decided


@pytest.mark.parametrize(
    ("known", "effect", "other", "decided"),
    [
        (None, "unsafe", ended(ok=True), Drifted(ended(ok=True))),
        (None, "unsafe", started("unsafe"), Drifted(started("unsafe"))),
        (None, "unsafe", ended(ok=False, unknown=True), Drifted(ended(ok=False, unknown=True))),
        (None, "unsafe", ended(ok=False), RunStep()),
        (None, "keyed", ended(ok=True), RunStep()),
        (ended(ok=False), "unsafe", ended(ok=True), Repeat(unknown=False)),
    ],
)
def test_FD3_what_another_step_of_the_function_that_was_not_replayed_decides(
    known: Any, effect: Any, other: Any, decided: Any
) -> None:
    assert decide_step(known, effect, (other,)) == decided


def test_a_done_step_is_never_done_again() -> None:
    for effect in (None, "read", "idempotent", "keyed", "unsafe"):
        assert isinstance(decide_step(ended(ok=True), effect), Return)


def test_only_unsafe_steps_begin_with_a_record() -> None:
    assert [effect for effect in (None, "read", "idempotent", "keyed", "unsafe") if needs_start(effect)] == ["unsafe"]


def test_a_step_is_stored_once_and_not_repeated_on_resume() -> None:
    async def main() -> None:
        store = MemoryStore()
        with pytest.raises(RuntimeError, match="later"):
            async with Session.open("s", store=store) as session:
                assert await session.step(plan, "ship") == "SHIP"
                raise RuntimeError("later")
        async with Session.open("s", store=store) as session:
            assert await session.step(plan, "ship") == "SHIP"
            assert await session.step(deploy, "SHIP") == 7

    run(main())
    assert DONE == ["ship", "SHIP"]


def test_the_nth_use_of_a_function_is_a_step_of_its_own() -> None:
    async def main() -> None:
        store = MemoryStore()

        async def work(session: Session) -> None:
            assert [await session.step(counted, n) for n in (1, 2, 3)] == [1, 2, 3]

        async def work_and_die(session: Session) -> None:
            await work(session)
            raise Crash

        await killed(store, work_and_die)
        async with Session.open("s", store=store) as session:
            await work(session)
            assert await session.step(counted, 4) == 4

    run(main())
    assert DONE == [1, 2, 3, 4]


def test_B102_an_unsafe_step_cut_midway_is_of_unknown_outcome_and_never_repeated() -> None:
    async def main() -> None:
        store = MemoryStore()
        await killed(store, lambda session: session.step(cut, "p"))
        for _ in range(2):
            with pytest.raises(OutcomeUnknownError) as raised:
                async with Session.open("s", store=store) as session:
                    (key,) = session.unknown
                    await session.step(cut, "p")
            assert raised.value.key == key
            assert key.startswith("s/cut@")

    run(main())
    assert DONE == ["p"]


@pytest.mark.parametrize(("happened", "done"), [(True, ["p"]), (False, ["p", "p"])])
def test_B102_somebody_who_looked_says_whether_it_happened(happened: bool, done: list[str]) -> None:
    async def main() -> None:
        store = MemoryStore()
        await killed(store, lambda session: session.step(cut, "p"))
        async with Session.open("s", store=store) as session:
            await session.resolve(session.unknown[0], happened=happened, result=99)
            assert session.unknown == ()
            if happened:
                assert await session.step(cut, "p") == 99
            else:
                with pytest.raises(Crash):
                    await session.step(cut, "p")
        trail = [record.kind for record in await store.audit("session:s")]
        assert "Approval" in trail

    run(main())
    assert done == DONE


def test_resolve_names_the_steps_it_could_be() -> None:
    async def main() -> None:
        async with Session.open("s", store=MemoryStore()) as session:
            await session.step(plan, "x")
            with pytest.raises(InvalidError, match=r"one of the unknown steps \(none\), got 's/plan'"):
                await session.resolve("s/plan", happened=True)

    run(main())


@pytest.mark.parametrize("fn", [cut_read, cut_keyed, cut_undeclared])
def test_B102_other_steps_cut_midway_are_done_again(fn: Any) -> None:
    async def main() -> None:
        store = MemoryStore()
        await killed(store, lambda session: session.step(fn))
        async with Session.open("s", store=store) as session:
            assert session.unknown == ()
            await session.step(fn)

    run(main())
    assert len(DONE) == 2
    if fn is cut_keyed:
        assert DONE[0] == DONE[1]
        assert DONE[0].startswith("s/cut_keyed@")


def test_keys_of_calls_inside_a_step_are_stable_and_differ() -> None:
    keys: list[str] = []

    @recover("bank")
    async def pay() -> None:
        keys.append(call_key())

    async def both() -> None:
        await pay()
        await pay()
        keys.append(call_key())
        if len(keys) == 3:
            raise Crash

    async def main() -> None:
        store = MemoryStore()
        await killed(store, lambda session: session.step(both))
        async with Session.open("s", store=store) as session:
            await session.step(both)

    run(main())
    step = keys[2]
    assert step.startswith("s/test_keys_of_calls_inside_a_step_are_stable_and_differ.<locals>.both@")
    assert keys == [f"{step}/1", f"{step}/2", step] * 2


def test_a_step_that_failed_is_done_again_on_resume() -> None:
    async def flaky() -> int:
        DONE.append("try")
        if len(DONE) < 3:
            raise ConnectionError("down")
        return 5

    async def main() -> None:
        store = MemoryStore()
        for _ in range(2):
            with pytest.raises(ConnectionError, match="down"):
                async with Session.open("s", store=store) as session:
                    await session.step(flaky)
        async with Session.open("s", store=store) as session:
            assert await session.step(flaky) == 5

    run(main())
    assert len(DONE) == 3


def test_steps_side_by_side_keep_their_names() -> None:
    async def main() -> None:
        store = MemoryStore()

        async def work(session: Session) -> list[int]:
            return await asyncio.gather(*(session.step(counted, n) for n in range(20)))

        with pytest.raises(RuntimeError):
            async with Session.open("s", store=store) as session:
                assert await work(session) == list(range(20))
                raise RuntimeError
        async with Session.open("s", store=store) as session:
            assert await work(session) == list(range(20))

    run(main())
    assert sorted(DONE) == list(range(20))


def test_map_yields_in_order_and_keeps_failures_as_outcomes() -> None:
    async def odd(n: int) -> int:
        await asyncio.sleep(10 - n)
        if n % 2:
            raise ValueError(f"odd: {n}")
        return n * 10

    async def main() -> None:
        async with Session.open("s", store=MemoryStore()) as session:
            results = [outcome async for outcome in session.map(odd, range(6), concurrency=3)]
        assert [r.value if isinstance(r, Ok) else str(r.error) for r in results] == [
            0,
            "odd: 1",
            20,
            "odd: 3",
            40,
            "odd: 5",
        ]

    run(main())


def test_map_never_does_more_at_once_than_it_may() -> None:
    at_once = [0, 0]

    async def busy(n: int) -> int:
        at_once[0] += 1
        at_once[1] = max(at_once)
        await asyncio.sleep(1)
        at_once[0] -= 1
        return n

    async def main() -> None:
        async with Session.open("s", store=MemoryStore()) as session:
            assert len([o async for o in session.map(busy, range(20), concurrency=4)]) == 20

    run(main())
    assert at_once[1] == 4


def test_map_goes_on_where_it_was_killed_each_item_once() -> None:
    deaths = [3, 7, 13, 14, 25, 26, 30, 39, 40, 41]
    done: dict[str, int] = {}

    @tool(effect="keyed")
    async def summarise(n: int) -> int:
        done[call_key()] = done.get(call_key(), 0) + 1
        if deaths and sum(done.values()) >= deaths[0]:
            del deaths[0]
            raise Crash
        return n

    async def work(session: Session) -> list[int]:
        return [o.value async for o in session.map(summarise, range(40), concurrency=5)]

    async def main() -> None:
        store = MemoryStore()
        while deaths:
            await killed(store, work)
        async with Session.open("s", store=store) as session:
            assert await work(session) == list(range(40))

    run(main())
    assert len(done) == 40  # the key of an item is the same each time: the other side did each once
    assert sum(done.values()) <= 40 + 10 * 5  # and of those at work when it died, some again


def test_a_map_that_is_left_early_leaves_nothing_running() -> None:
    async def main() -> None:
        async with Session.open("s", store=MemoryStore()) as session:
            batch = session.map(square, range(100), concurrency=8)
            async for _ in batch:
                break
            await batch.aclose()
            assert len(asyncio.all_tasks()) == 2  # this one, and the keeper of the lease

    run(main())


def test_S2_17_a_store_that_fails_ends_the_batch_not_the_item() -> None:
    async def main() -> None:
        store = FailingStore()
        async with Session.open("s", store=store) as session:
            await session.step(counted, 0)
            store.failing = lambda _: True
            with pytest.raises(HoldfastError) as raised:
                [o async for o in session.map(square, range(5))]
            assert code_of(raised.value) == "SESS_STORE_UNAVAILABLE"
            assert session.state == "error"
            store.failing = lambda _: False

    run(main())


def test_a_partial_is_named_after_its_function() -> None:
    async def main() -> None:
        store = MemoryStore()
        with pytest.raises(RuntimeError):
            async with Session.open("s", store=store) as session:
                await session.step(partial(counted, 5))
                raise RuntimeError
        async with Session.open("s", store=store) as session:
            assert await session.step(partial(counted, 5)) == 5

    run(main())
    assert DONE == [5]


def test_FU10_a_session_that_was_not_entered_says_what_to_write() -> None:
    async def main() -> None:
        session = Session.open("s", store=MemoryStore())
        with pytest.raises(InvalidError) as raised:
            await session.step(lambda: 1)
        assert raised.value.fault.message == (
            "session: expected `async with Session.open('s', …) as session`, got a session that was not entered"
        )

    run(main())


def test_a_recovery_around_a_step_does_not_multiply_the_attempts_of_a_recovery_inside_it():
    runtime = Runtime(clock=VirtualClock(), rng=Midpoint())
    calls = []
    three = Policy(attempts=3, circuit=None)

    @recover("inner", three, runtime=runtime)
    async def fetch() -> str:
        calls.append(1)
        raise ConnectionResetError

    async def work() -> None:
        async with Session.open("s", store=MemoryStore(), runtime=runtime) as session:
            await recover("outer", three, runtime=runtime).call(session.step, fetch)

    with pytest.raises(ConnectionResetError):
        run(work(), clock=runtime.clock)
    assert len(calls) == 3


def test_a_lambda_is_rejected_because_all_lambdas_of_a_function_have_one_name() -> None:
    async def main() -> None:
        store = MemoryStore()
        async with Session.open("s", store=store) as session:
            for rejected in (session.step(lambda: 1), session.step(partial(lambda n: n, 1))):
                with pytest.raises(InvalidError, match=r"a function with a name.*step\(fetch, url\).*got a lambda"):
                    await rejected
            assert await session.keyed("one").step(lambda: 1) == 1
        async with Session.open("s", store=store) as session:
            assert await session.keyed("one").step(lambda: 2) == 1

    run(main())


class Till:
    """Not a dataclass: nothing says what tells two of them apart."""

    def __init__(self, name: str) -> None:
        self.name = name

    @tool(effect="unsafe")
    def pay(self, sum_: int) -> str:
        DONE.append(self.name)
        return f"{self.name} paid {sum_}"


@dataclass
class Account(Till):
    name: str


def test_an_unsafe_method_is_known_by_its_object_too_so_nobody_gets_the_receipt_of_another() -> None:
    DONE.clear()

    async def pay(names: list[str]) -> list[str]:
        async with Session.open("s", store=store) as session:
            return [await session.step(Account(name).pay, 5) for name in names]

    store = MemoryStore()
    assert run(pay(["ada", "bob"])) == ["ada paid 5", "bob paid 5"]
    assert run(pay(["bob", "ada"])) == ["bob paid 5", "ada paid 5"]
    # A third payment may be the change of another one: it is drift, and not a payment.
    with pytest.raises(HoldfastError, match="SESS_STEP_DRIFT"):
        run(pay(["cy"]))
    assert DONE == ["ada", "bob"]


def test_an_unsafe_method_of_an_object_that_cannot_be_recognised_needs_a_key() -> None:
    DONE.clear()

    async def main() -> None:
        async with Session.open("s", store=MemoryStore()) as session:
            with pytest.raises(
                InvalidError, match=r"session\.keyed\('pay-ada'\)\.step.*got the method Till\.pay"
            ) as raised:
                await session.step(Till("ada").pay, 5)
            assert raised.value.fault.code == "CONFIG_OPTION_INVALID"
            assert DONE == []
            assert await session.keyed("pay-ada").step(Till("ada").pay, 5) == "ada paid 5"

    run(main())
