"""A worker finishes what was submitted: it claims, resumes, waits, tries again and stops in order. The same on every store."""

from __future__ import annotations

import asyncio
import logging
from contextlib import asynccontextmanager

import pytest

from holdfast import DeadlineError, Err, HoldfastError, InvalidError, Ok, Session, Tries, tool
from holdfast.faults import AbortedError
from holdfast.policies.backoff import Backoff
from holdfast.sessions import answer, pending, resolve_step
from holdfast.sessions.admin import close
from holdfast.sessions.journal import memory_of
from holdfast.stores import MemoryStore
from holdfast.tasks.workflows.function import workflow
from holdfast.work import Worker, WorkHandle, cancel, pause, program, resume, retry, signal, submit
from holdfast.work import worker as worker_module

pytestmark = pytest.mark.anyio
SOON = Tries(attempts=3, backoff=Backoff(initial=0.01, cap=0.01))


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.fixture(autouse=True)
def _quick_sweeps(monkeypatch):
    monkeypatch.setattr(worker_module, "_SWEEP_S", 0.05)


@pytest.fixture
async def store(make_store):
    async with make_store() as opened:
        yield opened


@asynccontextmanager
async def working(store, *programs, **options):
    async with asyncio.timeout(12):
        async with Worker(store, programs, **options) as worker:
            yield worker


async def until(store, handle, *statuses):
    async with asyncio.timeout(20):
        while (status := await handle.status()) not in statuses:  # noqa: ASYNC110 - real processes and stores
            await asyncio.sleep(0.01)
    return status


async def idle(worker):
    async with asyncio.timeout(10):
        while worker.running:  # noqa: ASYNC110 - as above
            await asyncio.sleep(0.01)


DONE: list[object] = []


@pytest.fixture(autouse=True)
def _nothing_done():
    DONE.clear()


async def note(what):
    DONE.append(what)
    return what


@program("double")
async def double(session: Session, number: int) -> int:
    await session.step(note, f"double {number}")
    return 2 * number


@workflow(name="plain")
async def plain(session: Session, who: str, often: int = 1) -> list[str]:
    return [await session.step(note, f"{who} {n}") for n in range(often)]


@program("sleeper")
async def sleeper(session: Session, seconds: float) -> str:
    await session.step(note, "before")
    await session.sleep(seconds)
    await session.step(note, "after")
    return "slept"


@program("approval")
async def approval(session: Session, within: float | None) -> object:
    await session.step(note, "asked")
    return await session.wait_for("approved", timeout=within)


# --- submitting ---


async def test_what_is_submitted_is_done_by_a_worker(store):
    handle = await submit(double, 21, store=store)
    assert await handle.status() == "ready"
    async with working(store, double):
        assert await handle == 42
    assert DONE == ["double 21"]
    assert await handle.status() == "done"
    assert (await store.session(handle.id)).state == "closed"


async def test_a_key_is_one_request(store):
    first = await submit(double, 1, key="o-7", store=store)
    again = await submit(double, 1, key="o-7", store=store)
    assert first.id == again.id == "double:o-7"
    with pytest.raises(HoldfastError) as error:
        await submit(double, 2, key="o-7", store=store)
    assert error.value.fault.code == "PROTO_DUPLICATE_ID"
    async with working(store, double):
        assert await first == 2
        # Also when it has ended.
        assert await (await submit(double, 1, key="o-7", store=store)) == 2
    assert DONE == ["double 1"]


async def test_any_text_may_be_a_key(store):
    keys = ["a b", "ä/ö", "x" * 500, "../..", "a:b", ":"]
    handles = [await submit(double, n, key=key, store=store) for n, key in enumerate(keys)]
    assert len({handle.id for handle in handles}) == len(keys)
    assert [handle.id for handle in handles] == [
        (await submit(double, n, key=key, store=store)).id for n, key in enumerate(keys)
    ]


async def test_a_workflow_is_submitted_as_it_is(store):
    async with working(store, plain):
        assert await (await submit(plain, "ada", 2, store=store)) == ["ada 0", "ada 1"]
        assert await (await submit(plain, "bob", store=store)) == ["bob 0"]
        assert await (await submit(plain.given("eve", often=3), store=store)) == ["eve 0", "eve 1", "eve 2"]


async def test_wrong_arguments_are_rejected_when_they_are_submitted(store):
    with pytest.raises(InvalidError):
        await submit(double, store=store)
    with pytest.raises(InvalidError):
        await submit(double, object(), store=store)
    with pytest.raises(InvalidError):
        await submit(note, 1, store=store)
    assert await store.work() == []


async def test_a_worker_needs_programs_and_a_store_that_keeps_work(store):
    with pytest.raises(InvalidError):
        Worker(store, [])
    with pytest.raises(InvalidError):
        Worker(store, [note])
    with pytest.raises(InvalidError):
        Worker(store, [double, program("double")(sleeper.fn)])


async def test_a_later_item_waits_for_its_time(store):
    handle = await submit(double, 1, at=4e9, store=store)
    async with working(store, double):
        assert await (await submit(double, 2, store=store)) == 4
        assert await handle.status() == "waiting"
        assert await retry(handle.id, store=store)
        assert await handle == 2


# --- failures ---


@program("flaky", retry=SOON)
async def flaky(session: Session, failures: int) -> str:
    await session.step(note, "first")
    DONE.append("try")
    if DONE.count("try") <= failures:
        raise ConnectionResetError(104, "Connection reset by peer")
    return "ok"


async def test_a_fault_that_may_pass_is_tried_again_and_steps_are_not_repeated(store):
    async with working(store, flaky):
        assert await (await submit(flaky, 2, store=store)) == "ok"
    assert DONE.count("first") == 1
    assert DONE.count("try") == 3


async def test_after_the_last_attempt_it_is_a_dead_letter_with_a_way_back(store):
    handle = await submit(flaky, 4, store=store)
    async with working(store, flaky):
        outcome = await handle.outcome()
        assert isinstance(outcome, Err)
        assert outcome.fault.code == "CONN_RESET"
        item = await handle.item()
        assert (item.status, item.failures, item.code) == ("failed", 3, "CONN_RESET")
        with pytest.raises(HoldfastError, match="reset"):
            await handle
        assert await retry(handle.id, store=store, by="ann")
        assert await until(store, handle, "done", "failed") == "done"
        assert await handle.outcome() == Ok("ok")
    assert not await retry(handle.id, store=store)
    assert DONE.count("first") == 1


@program("wrong")
async def wrong(session: Session) -> None:
    DONE.append("run")
    raise TypeError("a mistake")


async def test_a_mistake_in_the_program_is_a_dead_letter_at_once(store):
    async with working(store, wrong):
        outcome = await (await submit(wrong, store=store)).outcome()
    assert not outcome.ok
    assert outcome.fault.code == "SYS_PROGRAMMING_ERROR"
    assert DONE == ["run"]


async def test_an_item_whose_workers_die_again_and_again_is_a_dead_letter(store):
    handle = await submit(double, 1, store=store)
    async with working(store, wrong) as worker:
        # Two workers that died: they claimed it, and did not stop in order.
        for _ in range(2):
            wanted = worker_module.WorkWanted(
                claim="gone", ttl=0.001, programs=(("program double", ""),), queues=worker._queues, limit=1
            )
            await store.claim_work(wanted)
            await asyncio.sleep(0.01)
            await store.free_work([(handle.id, "gone")])
    async with working(store, double, max_starts=2):
        outcome = await handle.outcome()
    assert not outcome.ok
    assert outcome.fault.code == "ACTOR_MAX_RESTARTS"
    assert DONE == []


# --- waiting ---


async def test_a_program_that_sleeps_gives_its_place_to_others(store):
    async with working(store, sleeper, double, concurrency=1) as worker:
        handle = await submit(sleeper, 3600.0, store=store)
        assert await until(store, handle, "waiting") == "waiting"
        await idle(worker)
        assert await (await submit(double, 1, store=store)) == 2
        # Waking it too early runs nothing twice, and it sleeps on.
        await retry(handle.id, store=store)
        await asyncio.sleep(0.3)
        assert await until(store, handle, "waiting") == "waiting"
    assert DONE == ["before", "double 1"]


async def test_a_program_goes_on_when_its_time_has_come(store):
    async with working(store, sleeper):
        assert await (await submit(sleeper, 1.3, store=store)) == "slept"
    assert DONE == ["before", "after"]


async def test_outside_of_workers_a_program_sleeps_in_place(store):
    async with Session.open("plain", store=store) as session:
        assert await sleeper(session, 0.05) == "slept"
        # The time counts from the first call: in the same run it is another wait, in a new one the same.
    async with Session.open("plain", store=store) as session, asyncio.timeout(5):
        await session.sleep(0.05)


async def test_a_signal_wakes_a_program_at_once(store):
    async with working(store, approval):
        handle = await submit(approval, None, store=store)
        await until(store, handle, "waiting")
        await handle.signal("approved", {"by": "ann"})
        assert await handle == {"by": "ann"}
    assert DONE == ["asked"]


async def test_a_signal_that_came_before_the_wait_counts(store):
    handle = await submit(approval, 3600.0, store=store)
    await signal(handle.id, "approved", 7, store=store, id="s-1")
    await signal(handle.id, "approved", 7, store=store, id="s-1")
    async with working(store, approval):
        assert await handle == 7


async def test_each_signal_ends_one_wait_in_order(store):
    @program("three")
    async def three(session: Session) -> list[object]:
        return [await session.wait_for("go") for _ in range(3)]

    async with working(store, three):
        handle = await submit(three, store=store)
        for number in range(3):
            await signal(handle.id, "go", number, store=store)
            await asyncio.sleep(0.02)
        assert await handle == [0, 1, 2]


async def test_a_signal_that_does_not_come_is_a_deadline(store):
    async with working(store, approval):
        outcome = await (await submit(approval, 0.2, store=store)).outcome()
    assert not outcome.ok
    assert outcome.fault.code == "SYS_DEADLINE_EXCEEDED"


async def test_the_end_of_a_wait_is_stored(store):
    async with Session.open("s", store=store) as session:
        with pytest.raises(DeadlineError):
            await session.wait_for("never", timeout=0.05)
    await signal("s", "never", 1, store=store)
    async with Session.open("s", store=store) as session:
        with pytest.raises(DeadlineError):
            await session.wait_for("never", timeout=0.05)
        assert await session.wait_for("never", timeout=0.05) == 1


@program("asker")
async def asker(session: Session) -> bool:
    await session.step(note, "asks")
    return await session.approve("Deploy?", expires=3600)


async def test_a_question_waits_outside_of_the_worker_and_its_answer_wakes_it(store):
    async with working(store, asker) as worker:
        handle = await submit(asker, store=store)
        await until(store, handle, "waiting")
        await idle(worker)
        (question,) = await pending(store, handle.id)
        await answer(store, handle.id, question.id, approved=True)
        assert await handle is True
    assert DONE == ["asks"]


async def test_a_wait_beside_another_branch_wakes_with_the_first(store):
    @program("both")
    async def both(session: Session) -> list[object]:
        return list(
            await asyncio.gather(session.wait_for("a"), session.wait_for("b", timeout=3600), session.sleep(0.05))
        )

    async with working(store, both):
        handle = await submit(both, store=store)
        await until(store, handle, "waiting")
        await signal(handle.id, "b", 2, store=store)
        await asyncio.sleep(0.2)
        await signal(handle.id, "a", 1, store=store)
        assert await handle == [1, 2, None]


@tool(effect="unsafe")
async def charge(order: str) -> str:
    DONE.append(f"charge {order}")
    raise TimeoutError("nobody knows")


@program("payment")
async def payment(session: Session, order: str) -> str:
    return await session.step(charge, order)


async def test_a_doubt_waits_for_a_person_and_goes_on_when_it_is_resolved(store):
    async with working(store, payment):
        handle = await submit(payment, "o-1", store=store)
        await until(store, handle, "waiting", "failed")
        # The first run failed, and may have happened; the second one finds the doubt.
        async with asyncio.timeout(20):
            while (await handle.item()).code != "TOOL_OUTCOME_UNKNOWN":  # noqa: ASYNC110 - as above
                await asyncio.sleep(0.02)
        (key,) = (await memory_of(store, handle.id)).unknown()
        await resolve_step(store, handle.id, key, happened=True, result="paid")
        assert await handle == "paid"
    assert DONE == ["charge o-1"]


# --- cancelling and pausing ---


async def test_cancelling_what_does_not_run_ends_it_at_once(store):
    for at in (None, 4e9):
        handle = await submit(double, 1, at=at, store=store)
        assert await handle.cancel(by="ann")
        with pytest.raises(AbortedError, match="ann"):
            await handle
        assert not await handle.cancel()
    assert (await store.session(handle.id)).state == "closed"
    async with working(store, double):
        await asyncio.sleep(0.2)
    assert DONE == []


async def test_cancelling_what_runs_lets_its_step_end(store):
    begun, go = asyncio.Event(), asyncio.Event()

    async def slow():
        begun.set()
        await go.wait()
        DONE.append("slow ended")

    @program("steps")
    async def steps(session: Session) -> None:
        await session.step(slow)
        await session.step(note, "next")

    async with working(store, steps):
        handle = await submit(steps, store=store)
        await begun.wait()
        assert await handle.cancel()
        await asyncio.sleep(0.2)
        assert await handle.status() == "running"
        go.set()
        with pytest.raises(AbortedError):
            await handle
    assert DONE == ["slow ended"]
    assert (await store.session(handle.id)).state == "closed"


async def test_a_session_that_is_closed_ends_its_item(store):
    handle = await submit(double, 1, store=store)
    await close(store, handle.id, "not needed")
    assert await handle.status() == "cancelled"


async def test_a_paused_item_waits_until_it_is_resumed(store):
    handle = await submit(double, 1, store=store)
    assert await pause(handle.id, store=store)
    async with working(store, double):
        await asyncio.sleep(0.2)
        assert await handle.status() == "paused"
        assert await resume(handle.id, store=store)
        assert await handle == 2
    assert not await resume(handle.id, store=store)


# --- stopping, and going on ---


async def test_a_worker_that_stops_lets_the_step_end_and_another_goes_on(store):
    begun, go = asyncio.Event(), asyncio.Event()

    async def slow():
        begun.set()
        await go.wait()
        DONE.append("slow")

    @program("long")
    async def long(session: Session) -> str:
        await session.step(slow)
        await session.step(note, "next")
        return "end"

    first = await Worker(store, long).__aenter__()
    handle = await submit(long, store=store)
    await begun.wait()
    stopping = asyncio.ensure_future(first.__aexit__(None, None, None))
    await asyncio.sleep(0.05)
    assert not stopping.done()
    go.set()
    async with asyncio.timeout(20):
        await stopping
    assert DONE == ["slow"]
    assert await handle.status() == "ready"
    async with working(store, long):
        assert await handle == "end"
    assert DONE == ["slow", "next"]


async def test_an_inner_step_of_the_step_in_flight_is_let_begin(store):
    begun, go = asyncio.Event(), asyncio.Event()

    @program("nested")
    async def nested(session: Session) -> str:
        async def order():
            begun.set()
            await go.wait()
            await session.step(note, "inner")

        await session.step(order)
        await session.step(note, "next")
        return "end"

    worker = await Worker(store, nested).__aenter__()
    handle = await submit(nested, store=store)
    await begun.wait()
    stopping = asyncio.ensure_future(worker.__aexit__(None, None, None))
    await asyncio.sleep(0.05)
    go.set()
    async with asyncio.timeout(10):
        await stopping
    assert DONE == ["inner"]
    assert await handle.status() == "ready"


async def test_what_a_dead_worker_left_is_claimed_when_its_lease_has_ended(store):
    handle = await submit(double, 1, store=store)
    other = worker_module.WorkWanted(
        claim="another-machine/1/2/3",
        ttl=0.5,
        programs=(("program double", ""),),
        queues=(worker_module.WorkQueue(name="default"),),
        limit=1,
    )
    await store.claim_work(other)
    await store.acquire(handle.id, "another-machine/1/2/3/4", 0.5)
    async with working(store, double):
        await asyncio.sleep(0.2)
        assert await handle.status() == "running"
        assert await handle == 2


async def test_an_item_in_whose_session_somebody_works_waits_for_them(store):
    handle = await submit(double, 1, store=store)
    async with working(store, double):
        pass
    handle = await submit(double, 2, key="k", store=store)
    async with Session.open(handle.id, store=store), working(store, double):
        await asyncio.sleep(0.3)
        assert "double 2" not in DONE
    async with working(store, double):
        assert await handle == 4


async def test_two_workers_share_the_work_and_run_nothing_twice(store):
    handles = [await submit(double, n, store=store) for n in range(30)]
    async with working(store, double, concurrency=3), working(store, double, concurrency=3):
        assert [await handle for handle in handles] == [2 * n for n in range(30)]
    assert sorted(DONE) == sorted(f"double {n}" for n in range(30))


# --- what a worker does not know ---


async def test_what_a_worker_does_not_know_stays_and_is_named(store, caplog, monkeypatch):
    newer = program("double", version="2")(double.fn)
    handle = await submit(newer, 1, store=store)
    with caplog.at_level(logging.WARNING, "holdfast"):
        async with working(store, double):
            await asyncio.sleep(0.2)
    assert await handle.status() == "ready"
    assert "program double version 2" in caplog.text
    assert "holdfast work cancel" in caplog.text
    async with working(store, newer):
        assert await handle == 2


async def test_a_version_that_accepts_the_older_one_goes_on_with_its_items(store):
    old = program("job", version="1")(sleeper.fn)
    handle = await submit(old, 3600.0, store=store)
    async with working(store, old):
        await until(store, handle, "waiting")
    new = program("job", version="2", accepts=["1"])(sleeper.fn)
    async with working(store, new):
        await retry(handle.id, store=store)
        await asyncio.sleep(0.1)
        assert await until(store, handle, "waiting") == "waiting"
    assert DONE == ["before"]


async def test_a_store_of_somebody_else_that_keeps_no_work_is_refused():
    class Other:
        id = "x"

    with pytest.raises(InvalidError, match="work items"):
        async with Worker(Other(), double):
            pass


async def test_a_handle_is_found_again_by_its_id():
    async with MemoryStore() as store:
        handle = await submit(double, 4, store=store)
        async with working(store, double):
            assert await WorkHandle(handle.id, store=store) == 8
        with pytest.raises(HoldfastError):
            await WorkHandle("nobody", store=store).status()
        assert not await cancel(handle.id, store=store)
