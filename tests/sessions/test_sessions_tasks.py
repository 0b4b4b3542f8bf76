"""Equal calls of parallel tasks: which is which after a restart, and what is refused because nobody could tell."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from sessions_kit import Crash, code_of, killed, next_run

from holdfast import Ok, OutcomeUnknownError, tool
from holdfast.faults import HoldfastError, InvalidError
from holdfast.sessions import Session
from holdfast.stores import MemoryStore
from holdfast.testing import run

DONE: list[Any] = []


@pytest.fixture(autouse=True)
def nothing_done() -> None:
    DONE.clear()


async def new_id() -> int:
    DONE.append("id")
    return DONE.count("id")


async def note(what: str) -> str:
    DONE.append(what)
    return what.upper()


@tool(effect="unsafe")
async def pay(who: str, number: int = 0) -> str:
    DONE.append((who, number))
    if who == "nobody":
        raise KeyError(who)
    return f"{who} {number}"


@tool(effect="unsafe")
async def slowly(who: str) -> str:
    DONE.append(who)
    await asyncio.sleep(5)
    return who.upper()


# --- told apart by the function and the arguments of the task ---


WAITS: dict[str, float] = {}
"""The seconds after which each task makes its first call, in this run."""


async def order(session: Session, who: str) -> str:
    """The session cannot be compared after a restart: `who` is what tells the tasks apart."""
    await asyncio.sleep(WAITS[who])
    number = await session.step(new_id)
    await asyncio.sleep(WAITS["pay"])
    return await session.step(pay, who, number)


def begun(how: str, *orders: Any) -> Any:
    async def grouped() -> list[Any]:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one) for one in orders]
        return [task.result() for task in tasks]

    async def created() -> list[Any]:
        return [await task for task in [asyncio.create_task(one) for one in orders]]

    return {"gather": lambda: asyncio.gather(*orders), "group": grouped, "create": created}[how]()


@pytest.mark.parametrize("how", ["gather", "group", "create"])
@pytest.mark.parametrize("stored", ["first", "both"])
def test_XD4_equal_calls_of_two_tasks_do_not_swap_their_results(how: str, stored: str) -> None:
    async def first(session: Session) -> None:
        WAITS.update(ada=0.1, bob=0 if stored == "both" else 100, pay=100)
        orders = [asyncio.create_task(order(session, who)) for who in ("ada", "bob")]
        await asyncio.sleep(1)
        for one in orders:
            one.cancel()
        await asyncio.wait(orders)
        raise Crash

    async def main() -> list[Any]:
        store = MemoryStore()
        await killed(store, first)
        async with Session.open("s", store=store) as session:
            # Now the tasks come in the other order.
            WAITS.update(ada=0.2, bob=0.1 if stored == "first" else 0.3, pay=0)
            return await begun(how, order(session, "ada"), order(session, "bob"))

    expected = {"first": ["ada 1", "bob 2"], "both": ["ada 2", "bob 1"]}[stored]
    assert run(main()) == expected
    assert DONE.count("id") == 2
    assert len([one for one in DONE if isinstance(one, tuple)]) == 2


def test_XD4_tasks_begun_by_tasks_are_told_apart_too() -> None:
    async def fetch(session: Session, waits: list[float]) -> int:
        await asyncio.sleep(waits.pop())
        return await session.step(new_id)

    async def handle(session: Session, who: str) -> tuple[str, int]:
        await session.step(note, who)
        (number,) = await asyncio.gather(fetch(session, [WAITS[who]]))
        return who, number

    async def main() -> None:
        store = MemoryStore()
        async with Session.open("s", store=store) as session:
            WAITS.update(ada=1, bob=2)
            first = await asyncio.gather(handle(session, "ada"), handle(session, "bob"))
        async with Session.open("s", store=store) as session:
            WAITS.update(ada=2, bob=1)
            assert await asyncio.gather(handle(session, "ada"), handle(session, "bob")) == first

    run(main())


# --- the same call from another task than before ---


@pytest.mark.parametrize("named", [True, False])
def test_XD4_workers_that_take_what_comes_find_what_others_have_stored(named: bool) -> None:
    async def worker(session: Session, name: Any, work: asyncio.Queue[str], waits: float) -> None:
        while not work.empty():
            what = work.get_nowait()
            await session.step(pay, what)
            await asyncio.sleep(waits)

    async def program(session: Session, *waits: float) -> None:
        work: asyncio.Queue[str] = asyncio.Queue()
        for what in "abcdefgh":
            work.put_nowait(what)
        names = range(3) if named else [object()] * 3
        await asyncio.gather(*(worker(session, name, work, wait) for name, wait in zip(names, waits, strict=True)))

    async def main() -> None:
        store = MemoryStore()
        for waits in [(1, 2, 3), (3, 2, 1), (2, 1, 1)]:
            async with Session.open("s", store=store) as session:
                await program(session, *waits)

    run(main())
    assert len(DONE) == 8


def test_XK2_a_loop_that_becomes_a_gather_or_a_map_keeps_what_it_has() -> None:
    async def main() -> None:
        store, names = MemoryStore(), ["a", "b", "a", "c"]
        async with Session.open("s", store=store) as session:
            first = [await session.step(note, name) for name in names]
        async with Session.open("s", store=store) as session:
            assert [one.value async for one in session.map(note, names) if isinstance(one, Ok)] == first
        async with Session.open("s", store=store) as session:

            async def work(name: str) -> str:
                return await session.step(note, name)

            assert await asyncio.gather(*map(work, ["a", "b", "c"])) == ["A", "B", "C"]

    run(main())
    assert DONE == ["a", "b", "a", "c"]


# --- refused ---


def test_XD4_equal_calls_at_the_same_time_that_nothing_tells_apart_are_refused() -> None:
    async def branch(session: Session, waits: asyncio.Event) -> int:
        found = await session.step(new_id)
        await waits.wait()
        return found

    async def main() -> None:
        async with Session.open("s", store=MemoryStore()) as session:
            with pytest.raises(InvalidError) as raised:
                await asyncio.gather(branch(session, asyncio.Event()), branch(session, asyncio.Event()))
            assert 'session.keyed("NAME").step(new_id, …)' in str(raised.value)
            with pytest.raises(InvalidError):
                await asyncio.gather(session.step(pay, "ada"), session.step(pay, "ada"))
            # With keys they are told apart.
            both = [session.keyed(f"id {n}").step(new_id) for n in (1, 2)]
            assert len(set(await asyncio.gather(*both))) == 2

    run(main())
    assert ("ada", 0) not in DONE


def test_equal_calls_are_refused_before_either_happens() -> None:
    """Whoever then gives each of them a key makes two payments, not three."""

    async def main() -> None:
        store = MemoryStore()
        async with Session.open("s", store=store) as session:
            both = [session.step(pay, "ada"), session.step(pay, "ada")]
            found = await asyncio.gather(*both, return_exceptions=True)
            assert [type(each) for each in found] == [InvalidError, InvalidError]
            assert session.unknown == ()
        async with Session.open("s", store=store) as session:
            keyed = [session.keyed(f"payment {number}").step(pay, "ada") for number in (1, 2)]
            assert await asyncio.gather(*keyed) == ["ada 0", "ada 0"]

    run(main())
    assert DONE == [("ada", 0), ("ada", 0)]


def test_an_equal_call_that_comes_after_the_first_has_begun_is_refused_alone() -> None:
    async def slow(session: Session) -> str:
        return await session.step(slowly, "ada")

    async def main() -> None:
        async with Session.open("s", store=MemoryStore()) as session:
            first = asyncio.create_task(slow(session))
            await asyncio.sleep(1)
            with pytest.raises(InvalidError):
                await asyncio.create_task(slow(session))
            assert await first == "ADA"

    run(main())
    assert DONE == ["ada"]


def test_equal_calls_of_tasks_that_only_start_tasks_are_told_apart_by_a_part() -> None:
    async def buy(session: Session, what: str) -> str:
        number = await session.step(new_id)
        return await session.step(pay, what, number)

    async def customer(session: Session, who: str) -> list[str]:
        with session.part(who):
            return await asyncio.gather(buy(session, "milk"), buy(session, "eggs"))

    async def main() -> None:
        store, found = MemoryStore(), []
        for _ in range(2):
            async with Session.open("s", store=store) as session:
                found.append(await asyncio.gather(customer(session, "ada"), customer(session, "bob")))
        assert found[0] == found[1]
        assert len(DONE) == 8

    run(main())


def test_XD4_equal_calls_one_after_the_other_are_counted() -> None:
    async def main() -> None:
        store = MemoryStore()
        found = []
        for _ in range(2):
            async with Session.open("s", store=store) as session:
                one = await session.step(new_id)
                two = await asyncio.wait_for(session.step(new_id), 5)
                three = await asyncio.create_task(session.step(new_id))
                four = await asyncio.gather(session.step(new_id), session.step(note, "x"))
                found.append([one, two, three, four[0]])
        assert found == [[1, 2, 3, 4]] * 2

    run(main())


def test_XD4_equal_items_of_a_map_are_numbered_by_their_place_among_each_other() -> None:
    fails = {2}

    async def draw(name: str) -> int:
        DONE.append(name)
        if len(DONE) in fails:
            raise ValueError(name)
        return len(DONE)

    async def main() -> None:
        store = MemoryStore()
        async with Session.open("s", store=store) as session:
            first = [one async for one in session.map(draw, ["x", "x", "x"], concurrency=1)]
        async with Session.open("s", store=store) as session:
            second = [one async for one in session.map(draw, ["x", "x", "x"], concurrency=3)]
        assert [isinstance(one, Ok) for one in first] == [True, False, True]
        assert [one.value for one in second if isinstance(one, Ok)] == [1, 4, 3]

    run(main())


# --- drift, once nobody can make the recorded call any more ---


def test_XD17_a_slow_sibling_makes_the_recorded_call() -> None:
    async def branch(session: Session, who: str, waits: float) -> str:
        await asyncio.sleep(waits)
        return await session.step(pay, who)

    async def first(session: Session) -> None:
        await branch(session, "ada", 0)
        raise Crash

    async def main() -> None:
        store = MemoryStore()
        await killed(store, first)
        async with Session.open("s", store=store) as session:
            assert await asyncio.gather(branch(session, "ada", 0.5), branch(session, "bob", 0)) == ["ada 0", "bob 0"]

    run(main())
    assert DONE == [("ada", 0), ("bob", 0)]


def test_XD17_drift_is_raised_when_the_others_have_ended() -> None:
    async def first(session: Session) -> None:
        await session.step(pay, "ada")
        raise Crash

    async def main() -> None:
        store = MemoryStore()
        await killed(store, first)
        with pytest.raises(HoldfastError) as raised:
            async with Session.open("s", store=store) as session:
                await asyncio.gather(session.step(note, "x"), session.step(pay, "bob"), session.step(pay, "cy"))
        assert code_of(raised.value) == "SESS_STEP_DRIFT"

    run(main())
    assert DONE == [("ada", 0), "x"]


# --- an item before others ---


@pytest.mark.parametrize("kind", [list, tuple, dict.fromkeys])
@pytest.mark.parametrize("ended", [30, 20])
def test_an_item_may_be_inserted_before_more_items_than_a_map_runs_at_once(kind: Any, ended: int) -> None:
    """The map comes to the others, though it holds them until the first has ended."""
    names = [f"name {number}" for number in range(30)]

    async def first(session: Session) -> None:
        async for outcome in session.map(pay, names, concurrency=2):
            if outcome.unwrap() == f"{names[ended - 1]} 0":
                raise Crash

    async def main() -> None:
        store = MemoryStore()
        await killed(store, first)
        async with Session.open("s", store=store) as session:
            items = kind(["new", *names])
            found = [outcome.unwrap() async for outcome in session.map(pay, items, concurrency=2)]
            assert found == [f"{name} 0" for name in ("new", *names)]

    run(main())
    assert sorted(DONE) == sorted((name, 0) for name in ("new", *names))


def test_an_item_that_takes_the_place_of_one_of_several_equal_items_is_drift() -> None:
    async def main() -> None:
        store = MemoryStore()
        async with Session.open("s", store=store) as session:
            assert len(await session.map(pay, ["ada", "ada", "ada"], concurrency=1, collect=True)) == 3
        next_run()
        with pytest.raises(HoldfastError) as raised:
            async with Session.open("s", store=store) as session:
                await session.map(pay, ["bob", "ada", "ada"], concurrency=1, collect=True)
        assert code_of(raised.value) == "SESS_STEP_DRIFT"

    run(main())
    assert DONE == [("ada", 0)] * 3


def test_other_tasks_know_what_a_map_still_comes_to() -> None:
    names = [f"name {number}" for number in range(9)]

    async def mapped(session: Session) -> None:
        async for outcome in session.map(pay, names, concurrency=2):
            outcome.unwrap()
            # Longer than a call waits for others before it is drift.
            await asyncio.sleep(2)

    async def main() -> None:
        store = MemoryStore()
        async with Session.open("s", store=store) as session:
            await mapped(session)
        next_run()
        async with Session.open("s", store=store) as session:
            await asyncio.gather(mapped(session), session.step(pay, "new"))

    run(main())
    assert len(DONE) == 10


def test_two_maps_that_still_come_to_equal_items_come_to_both() -> None:
    async def mapped(session: Session, name: str) -> None:
        async for outcome in session.map(pay, [f"{name} before", "ada"], concurrency=1):
            outcome.unwrap()
            await asyncio.sleep(10)

    async def main() -> None:
        store = MemoryStore()
        async with Session.open("s", store=store) as session:
            # One after the other in the first run: equal items at the same time would be refused.
            await mapped(session, "one")
            await mapped(session, "two")
        next_run()
        async with Session.open("s", store=store) as session:
            new = asyncio.create_task(session.step(pay, "new"))
            both = [asyncio.create_task(mapped(session, "one")), asyncio.create_task(mapped(session, "two"))]
            assert await new == "new 0"
            for one in both:
                one.cancel()
            await asyncio.wait(both)

    run(main())
    assert DONE.count(("ada", 0)) == 2


def test_a_doubt_that_keeps_the_program_from_other_calls_is_raised_instead_of_drift() -> None:
    """Whether a new call has drifted is known when those calls are made."""

    async def first(session: Session) -> None:
        await session.step(pay, "bob")
        with pytest.raises(KeyError):
            await session.step(pay, "nobody")
        raise Crash

    async def main() -> None:
        store = MemoryStore()
        await killed(store, first)
        async with Session.open("s", store=store) as session:
            with pytest.raises(OutcomeUnknownError) as doubt:
                await session.step(pay, "nobody")
            with pytest.raises(OutcomeUnknownError) as raised:
                await session.step(pay, "new")
            assert raised.value.key == doubt.value.key == session.unknown[0]
            await session.resolve(doubt.value.key, happened=False)
            assert await session.step(pay, "bob") == "bob 0"
            assert await session.step(pay, "new") == "new 0"

    run(main())
    assert DONE == [("bob", 0), ("nobody", 0), ("new", 0)]


def test_drift_from_a_call_in_doubt_says_that_it_is_in_doubt() -> None:
    async def first(session: Session) -> None:
        with pytest.raises(KeyError):
            await session.step(pay, "nobody")
        raise Crash

    async def main() -> None:
        store = MemoryStore()
        await killed(store, first)
        async with Session.open("s", store=store) as session:
            with pytest.raises(HoldfastError) as raised:
                await session.step(pay, "new")
            assert code_of(raised.value) == "SESS_STEP_DRIFT"
            (key,) = session.unknown
            assert f"If it did not: `await session.resolve({key!r}, happened=False)`" in str(raised.value)
            await session.resolve(key, happened=False)
            assert await session.step(pay, "new") == "new 0"

    run(main())


def test_drift_shows_a_call_that_this_run_has_not_made() -> None:
    async def first(session: Session) -> None:
        await session.step(pay, "ada")
        await session.step(pay, "bob")
        raise Crash

    async def main() -> None:
        store = MemoryStore()
        await killed(store, first)
        with pytest.raises(HoldfastError) as raised:
            async with Session.open("s", store=store) as session:
                await asyncio.gather(session.step(pay, "new"), session.step(pay, "ada"))
        assert 'Before: pay("bob"). Now: pay("new")' in str(raised.value)

    run(main())


# --- tasks that values tell apart ---


@pytest.mark.parametrize("names", [("ada", "bob"), (17, 18)])
@pytest.mark.parametrize("how", ["step", "task", "step_or_ask"])
@pytest.mark.parametrize("effect", ["unsafe", "read"])
def test_a_task_does_not_get_the_result_of_another_one_that_is_slow(names: Any, how: str, effect: Any) -> None:
    orders: list[str] = []
    got: dict[Any, str] = {}

    @tool(effect=effect)
    async def new_order(amount: int) -> str:
        orders.append(f"order {len(orders)}")
        return orders[-1]

    async def order(session: Session) -> str:
        return await (session.step_or_ask if how == "step_or_ask" else session.step)(new_order, 50)

    async def customer(session: Session, name: Any) -> None:
        if name in slow:
            await slow[name].wait()
        await session.step(note, str(name))
        got[name] = await (asyncio.create_task(order(session)) if how == "task" else order(session))
        if name in crash:
            raise Crash

    slow: dict[Any, asyncio.Event] = {}
    crash = [names[0]]

    async def first(session: Session) -> None:
        await asyncio.gather(customer(session, names[0]))

    async def main() -> None:
        store = MemoryStore()
        await killed(store, first)
        assert got == {names[0]: "order 0"}
        crash.clear()
        next_run()
        async with Session.open("s", store=store) as session:
            slow[names[0]] = asyncio.Event()
            ada = asyncio.ensure_future(customer(session, names[0]))
            await asyncio.ensure_future(customer(session, names[1]))
            slow[names[0]].set()
            await ada

    run(main())
    assert got == {names[0]: "order 0", names[1]: "order 1"}


def test_an_unsafe_call_of_a_task_that_is_gone_is_not_given_to_another_one() -> None:
    @tool(effect="unsafe")
    async def new_order(amount: int) -> str:
        return f"order of {amount}"

    async def customer(session: Session, name: str) -> str:
        return await session.step(new_order, 50)

    async def main() -> None:
        async with MemoryStore() as store:
            async with Session.open("s", store=store) as session:
                await asyncio.gather(customer(session, "ada"))
            next_run()
            async with Session.open("s", store=store) as session:
                with pytest.raises(HoldfastError) as caught:
                    await asyncio.gather(customer(session, "bob"))
                assert caught.value.fault.code == "SESS_STEP_DRIFT"
                await session.accept(caught.value.fault.context["key"])
                assert await asyncio.gather(customer(session, "bob")) == ["order of 50"]

    run(main())


class Pool:
    """Workers that take from one queue."""

    def __init__(self) -> None:
        self.queue: asyncio.Queue[str] = asyncio.Queue()

    async def work(self, session: Session, name: str, pay: Any) -> None:
        await session.step(pay, await self.queue.get())


async def with_queue(session: Session, queue: asyncio.Queue[str], name: str, pay: Any) -> None:
    await session.step(pay, await queue.get())


async def with_subtask(session: Session, queue: asyncio.Queue[str], name: str, pay: Any) -> None:
    async def one(who: str) -> None:
        await session.step(pay, who)

    await asyncio.create_task(one(await queue.get()))


async def with_iterator(session: Session, todo: Any, name: str, pay: Any) -> None:
    await session.step(pay, next(todo))


async def with_list(session: Session, todo: list[str], name: str, pay: Any) -> None:
    await session.step(pay, todo.pop())


@pytest.mark.parametrize("kind", ["queue", "subtask", "captured", "method", "iterator", "list"])
def test_workers_with_names_take_unsafe_work_in_any_order(kind: str) -> None:
    paid: list[str] = []

    @tool(effect="unsafe", name="pay")
    async def pay(who: str) -> str:
        paid.append(who)
        return who

    async def pool(session: Session, items: list[str]) -> None:
        held = Pool()
        for item in items:
            held.queue.put_nowait(item)
        queue = held.queue

        async def captured(session: Session, name: str) -> None:
            await session.step(pay, await queue.get())

        todo = iter(items)
        works: dict[str, Any] = {
            "queue": lambda name: with_queue(session, queue, name, pay),
            "subtask": lambda name: with_subtask(session, queue, name, pay),
            "captured": lambda name: captured(session, name),
            "method": lambda name: held.work(session, name, pay),
            "iterator": lambda name: with_iterator(session, todo, name, pay),
            "list": lambda name: with_list(session, items, name, pay),
        }
        await asyncio.gather(*(works[kind](f"worker-{number}") for number in range(len(items))))

    async def main() -> None:
        async with MemoryStore() as store:
            for items in (["ada", "bob", "cy"], ["cy", "ada", "bob"], ["bob", "cy", "ada"]):
                next_run()
                async with Session.open("s", store=store) as session:
                    await pool(session, list(items))

    run(main())
    assert sorted(paid) == ["ada", "bob", "cy"]


# --- work with steps of its own ---


@tool(effect="unsafe")
async def take_fee() -> int:
    DONE.append("fee")
    return len(DONE)


async def customer(session: Session, who: str) -> int:
    """Each customer makes an equal run, such as one of a workflow."""

    async def work(key: str) -> int:
        del key
        number = await session.step(take_fee)
        if WAITS.get("dies") == WAITS[who]:
            raise Crash
        return number

    await asyncio.sleep(WAITS[who])
    return await session.numbered("fee", "same", work)


@pytest.mark.parametrize("dies", [1.0, 2.0])
def test_equal_runs_of_tasks_keep_what_they_paid_whoever_comes_first(dies: float) -> None:
    async def program(session: Session) -> list[int]:
        return await asyncio.gather(customer(session, "ada"), customer(session, "bob"))

    async def main() -> None:
        store = MemoryStore()
        WAITS.update(ada=1.0, bob=2.0, dies=dies)
        await killed(store, program)
        assert len(DONE) == dies
        del WAITS["dies"]
        WAITS.update(ada=2.0, bob=1.0)
        async with Session.open("s", store=store) as session:
            assert await program(session) == [1, 2]

    run(main())
    assert len(DONE) == 2


def test_a_run_is_made_anew_for_the_task_whose_own_one_is_not_there() -> None:
    """Bob's run has begun, and Ada's has not: she does not get his, though she comes first now."""

    async def main() -> None:
        store = MemoryStore()
        WAITS.update(ada=1.0, bob=2.0)
        async with Session.open("s", store=store) as session:
            assert await asyncio.create_task(customer(session, "bob")) == 1
        next_run()
        async with Session.open("s", store=store) as session:
            tasks = [asyncio.create_task(customer(session, who)) for who in ("ada", "bob")]
            assert await asyncio.gather(*tasks) == [2, 1]

    run(main())
    assert len(DONE) == 2


def test_equal_runs_that_were_made_one_after_the_other_may_be_made_by_tasks() -> None:
    async def main() -> None:
        store = MemoryStore()
        WAITS.update(ada=0.0, bob=0.0)
        async with Session.open("s", store=store) as session:
            for who in ("ada", "bob"):
                await customer(session, who)
        next_run()
        async with Session.open("s", store=store) as session:
            await asyncio.gather(customer(session, "ada"), customer(session, "bob"))

    run(main())
    assert len(DONE) == 2
