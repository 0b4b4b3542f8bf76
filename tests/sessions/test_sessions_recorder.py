"""What recoveries do inside a session carries the session, the turn and the step, and is in the session's audit chain."""

from __future__ import annotations

import asyncio
import contextvars
from collections import Counter
from typing import Any

import msgspec
import pytest
from sessions_kit import Crash, FailingStore, killed

from holdfast import Backoff, Circuit, Policy, Runtime, recover, suppress, tool
from holdfast.events import CircuitStateChange, Event, Failed, Fallback, Recovered, Retry, SuppressedError
from holdfast.runtime.runtime import use_runtime
from holdfast.sessions import Session
from holdfast.sessions.recorder import MOST_WAITING
from holdfast.sinks import ErrorMetric, measure_errors
from holdfast.stores import MemoryStore, SqliteStore
from holdfast.stores.verification import verify_store
from holdfast.testing import VirtualClock, run


@pytest.fixture
def runtime():
    with use_runtime(Runtime(waits=False)) as runtime:
        yield runtime


class Flaky:
    """A tool that fails a number of times, then returns its argument."""

    def __init__(self, failures: int, **options: Any) -> None:
        self.left = failures
        self.options = options

    def __call__(self) -> Any:
        @recover("flaky", Policy(attempts=6), **self.options)
        async def call() -> str:
            if self.left:
                self.left -= 1
                raise ConnectionError("connection reset by peer")
            return "done"

        return call


async def trail(store: Any, session: str = "s") -> list[tuple[str, str, dict[str, Any]]]:
    return [
        (record.kind, record.correlation, msgspec.json.decode(record.payload))
        for record in await store.audit(f"session:{session}")
    ]


def of_kind(records: list[tuple[str, str, dict[str, Any]]], kind: str) -> list[tuple[str, dict[str, Any]]]:
    return [(correlation, payload) for found, correlation, payload in records if found == kind]


def where(event: Event) -> tuple[str, int, str]:
    return event.session, event.turn, event.step


@tool(effect="idempotent")
async def fetch() -> str:
    return "fetched"


def test_FM4_retries_inside_a_step_carry_session_turn_and_step(runtime):
    seen: list[Event] = []
    call = Flaky(2)()

    async def flaky() -> str:
        return await call()

    async def main():
        async with MemoryStore() as store, Session.open("s", store=store) as session:
            with runtime.on(seen.append, Retry, Recovered):
                await session.step(flaky)
                async with session.turn("go") as turn:
                    await session.step(fetch)
                    call_again = Flaky(1)()
                    await call_again()
                    return turn.number

    number = asyncio.run(main())
    assert [type(event) for event in seen] == [Retry, Retry, Recovered, Retry, Recovered]
    assert {where(event)[0] for event in seen} == {"s"}
    assert {where(event)[2].rpartition(".")[2].partition("@")[0] for event in seen[:3]} == {"flaky"}
    # Outside of a step but inside of a turn.
    assert where(seen[3]) == ("s", number, "")


def test_FM4_the_sessions_chain_holds_the_retries_with_the_steps_end(runtime):
    """Nobody listens to the runtime: the chain records them all the same, in the step's own commit."""
    call = Flaky(2)()

    async def flaky() -> str:
        return await call()

    store = FailingStore()

    async def main():
        async with store, Session.open("s", store=store) as session:
            await session.step(flaky)
            with_end = [commit for commit in store.tried if any(entry.type == "step_ended" for entry in commit.entries)]
            return await trail(store), with_end

    records, (end,) = asyncio.run(main())
    retries = of_kind(records, "Retry")
    assert [payload["attempt"] for _, payload in retries] == [1, 2]
    assert all(key.startswith("s/") and "flaky" in key for key, _ in retries)
    assert all(payload["session"] == "s" and payload["run"] and "flaky" in payload["step"] for _, payload in retries)
    assert [record.kind for record in end.audit][:3] == ["Retry", "Retry", "Recovery"]


def test_FM4_circuits_fallbacks_and_suppressed_errors_too(runtime):
    seen: list[Event] = []

    @recover("down", Policy(attempts=1, circuit=None))
    async def primary() -> str:
        raise ConnectionError("connection refused")

    @primary.fallback
    async def second() -> str:
        return "second"

    breaking = recover("breaking", Policy(attempts=1, circuit=Circuit(failures=1)))

    async def work() -> str:
        with suppress(OSError, reason="the cache is optional"):
            raise OSError("disk")
        with suppress(ConnectionError, reason="it is expected"):
            await breaking.call(broken)
        return await primary()

    async def broken() -> None:
        raise ConnectionError("connection refused")

    async def main():
        async with MemoryStore() as store, Session.open("s", store=store) as session:
            with runtime.on(seen.append, CircuitStateChange, Fallback, SuppressedError, Failed):
                await session.step(work)
            return await trail(store)

    records = asyncio.run(main())
    kinds = {kind for kind, _, _ in records}
    assert {"Circuit", "Fallback", "SuppressedError", "Fault"} <= kinds
    assert {type(event) for event in seen} == {CircuitStateChange, Fallback, SuppressedError, Failed}
    assert {where(event)[0] for event in seen} == {"s"}
    assert all("work" in event.step for event in seen)


def test_FM4_another_runtime_inside_a_step_is_recorded_too(runtime):
    other = Runtime(waits=False)
    call = Flaky(1, runtime=other)()

    async def flaky() -> str:
        return await call()

    async def main():
        async with MemoryStore() as store, Session.open("s", store=store) as session:
            await session.step(flaky)
            return await trail(store)

    assert len(of_kind(asyncio.run(main()), "Retry")) == 1


def test_FM4_parallel_steps_and_two_sessions_keep_theirs_apart(runtime):
    async def flaky(name: str) -> str:
        return await Flaky(len(name))()()

    async def one(store: MemoryStore, session_id: str, names: list[str]) -> None:
        async with Session.open(session_id, store=store) as session:
            await asyncio.gather(*(session.step(flaky, name) for name in names))

    async def main():
        async with MemoryStore() as store:
            await asyncio.gather(one(store, "s", ["a", "bb"]), one(store, "t", ["ccc"]))
            return await trail(store), await trail(store, "t"), await verify_store(store)

    first, second, verified = asyncio.run(main())
    assert sorted(Counter(key for key, _ in of_kind(first, "Retry")).values()) == [1, 2]
    assert len(of_kind(second, "Retry")) == 3
    assert {payload["session"] for _, payload in of_kind(second, "Retry")} == {"t"}
    assert verified.sound


def test_FM4_a_step_that_waits_long_has_its_retries_written_after_a_second():
    """What a crash can lose is one second of records, not an hour of them."""
    clock = VirtualClock()

    async def main():
        with use_runtime(Runtime(clock=clock)):
            calls = 0

            @recover("slow", Policy(attempts=3, backoff=Backoff(steps=(60,), cap=60), timeout=None))
            async def slow() -> str:
                nonlocal calls
                calls += 1
                if calls == 1:
                    raise ConnectionError("connection reset by peer")
                return "done"

            async with MemoryStore(clock=clock) as store, Session.open("s", store=store, lease=10_000) as session:
                task = asyncio.ensure_future(session.step(slow))
                await asyncio.sleep(5)
                early = of_kind(await trail(store), "Retry")
                await task
                return early, await trail(store)

    early, records = run(main(), clock=clock)
    assert len(early) == 1
    assert len(of_kind(records, "Retry")) == 1
    assert len(of_kind(records, "Recovery")) == 1


def test_FM4_records_that_a_failed_commit_carried_are_written_by_the_next(runtime):
    async def flaky() -> str:
        return await Flaky(1)()()

    async def main():
        async with FailingStore() as store, Session.open("s", store=store) as session:
            failed = 0

            def once(commit: Any) -> bool:
                nonlocal failed
                failed += 1
                return failed == 1

            store.failing = once
            await session.step(flaky)
            await session.step(fetch)
            return await trail(store)

    records = asyncio.run(main())
    # The write's own retry is recorded as well.
    assert sorted(payload["operation"] for _, payload in of_kind(records, "Retry")) == ["flaky", "tool:session-store"]


def test_FM4_more_records_than_fit_are_counted(runtime):
    async def noisy() -> int:
        for _ in range(MOST_WAITING + 5):
            with suppress(OSError, reason="noise"):
                raise OSError("noise")
        return 1

    async def main():
        async with MemoryStore() as store, Session.open("s", store=store) as session:
            await session.step(noisy)
            return [record async for record in _all(store)]

    records = asyncio.run(main())
    assert sum(record.kind == "SuppressedError" for record in records) == MOST_WAITING
    assert [msgspec.json.decode(r.payload)["count"] for r in records if b"records-dropped" in bytes(r.payload)] == [5]


async def _all(store: Any):
    after = 0
    while page := await store.audit("session:s", after=after):
        for record in page:
            yield record
        after = page[-1].seq


def test_FM4_a_step_without_failures_writes_no_record_more(runtime):
    async def main():
        async with MemoryStore() as store, Session.open("s", store=store) as session:
            before = len(await trail(store))
            await session.step(fetch)
            await session.step(fetch)
            return len(await trail(store)) - before

    # The start of the turn or of the session may be one record, a step is none.
    assert asyncio.run(main()) <= 2


def test_FM4_work_that_outlives_its_step_belongs_to_the_session_and_then_to_nothing(runtime):
    seen: list[Event] = []
    gates: list[asyncio.Event] = []
    left: list[asyncio.Task[Any]] = []

    async def later() -> None:
        for gate in gates:
            await gate.wait()
            with suppress(OSError, reason="late"):
                raise OSError("late")

    async def starts() -> int:
        left.append(asyncio.ensure_future(later()))
        return 1

    async def main():
        gates.extend((asyncio.Event(), asyncio.Event()))
        async with MemoryStore() as store:
            async with Session.open("s", store=store) as session:
                with_handler = runtime.on(seen.append, SuppressedError)
                await session.step(starts)
                gates[0].set()
                await asyncio.sleep(0.01)
            gates[1].set()
            await asyncio.gather(*left)
            with_handler.cancel()
            return await trail(store)

    records = asyncio.run(main())
    assert [(event.session, event.step) for event in seen] == [("s", ""), ("", "")]
    assert len(of_kind(records, "SuppressedError")) == 1


def test_FM4_a_session_left_in_another_task_stops_recording(runtime):
    async def main():
        async with MemoryStore() as store:
            session = Session.open("s", store=store)
            await session.__aenter__()
            await asyncio.create_task(session.__aexit__(None, None, None), context=contextvars.Context())
            seen: list[Event] = []
            with runtime.on(seen.append, SuppressedError), suppress(OSError, reason="after"):
                raise OSError("after")
            return seen

    (event,) = asyncio.run(main())
    assert event.session == ""


def test_FM4_a_crash_in_mid_step_loses_what_was_not_written_and_the_chain_says_that_it_crashed(tmp_path, runtime):
    """The guarantee, as it is documented: at most the last second, and never without a record of the crash."""

    async def flaky() -> str:
        await Flaky(1)()()
        raise Crash

    async def main():
        async with SqliteStore(tmp_path / "s.db") as store:
            await killed(store, lambda session: session.step(flaky))
            async with Session.open("s", store=store):
                return await trail(store), await verify_store(store)

    records, verified = asyncio.run(main())
    assert verified.sound
    assert any(payload.get("reason") == "crash" for _, payload in of_kind(records, "SessionLifecycle"))


def test_FM4_error_metrics_name_the_session(runtime):
    found: list[ErrorMetric] = []

    @recover("down", Policy(attempts=1))
    async def down() -> str:
        raise ConnectionError("connection refused")

    async def work() -> None:
        with suppress(ConnectionError, reason="expected"):
            await down()

    async def main():
        with measure_errors(found.append):
            async with MemoryStore() as store, Session.open("s", store=store) as session:
                await session.step(work)
            await work()

    asyncio.run(main())
    assert [metric.session_id for metric in found] == ["s", None]


def test_FM4_a_step_in_a_thread_is_recorded(runtime):
    def blocking() -> int:
        with suppress(OSError, reason="in a thread"):
            raise OSError("disk")
        return 1

    async def threaded() -> int:
        return await asyncio.to_thread(blocking)

    async def main():
        async with MemoryStore() as store, Session.open("s", store=store) as session:
            await session.step(threaded)
            return await trail(store)

    assert len(of_kind(asyncio.run(main()), "SuppressedError")) == 1
