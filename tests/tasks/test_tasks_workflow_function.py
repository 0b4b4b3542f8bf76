"""Workflows in plain Python: the steps of a session, done once, gone on with by any process."""

from __future__ import annotations

import asyncio
import pickle
from dataclasses import dataclass
from typing import Any

import pydantic
import pytest

from holdfast import (
    Budget,
    BudgetError,
    Err,
    Fault,
    HoldfastError,
    InvalidError,
    Ok,
    OutcomeUnknownError,
    Runtime,
    Session,
    tool,
)
from holdfast.sessions import ParkedError, run_due
from holdfast.stores import default_url, open_store
from holdfast.stores.memory import MemoryStore
from holdfast.tasks import WorkflowFunction, workflow
from holdfast.testing import VirtualClock

CALLS: list[Any] = []
BROKEN: list[Exception] = []
"""What the next calls of `flaky` raise."""


@pytest.fixture(autouse=True)
def _fresh():
    CALLS.clear()
    BROKEN.clear()


@dataclass
class Report:
    pr: int
    notes: list[str]


class Order(pydantic.BaseModel):
    id: int
    items: list[str] = []


async def fetch(pr: int) -> list[str]:
    CALLS.append(("fetch", pr))
    return [f"file {pr}.{n}" for n in range(3)]


async def look_at(file: str) -> str:
    CALLS.append(("look_at", file))
    if BROKEN and file.endswith("1"):
        raise BROKEN.pop(0)
    return f"{file}: fine"


async def flaky(what: str) -> str:
    CALLS.append(("flaky", what))
    if BROKEN:
        raise BROKEN.pop(0)
    return f"{what} is live"


@tool(effect="unsafe")
async def charge(amount: int) -> str:
    CALLS.append(("charge", amount))
    if BROKEN:
        raise BROKEN.pop(0)
    return "charged"


@workflow
async def review(session: Session, pr: int, *, depth: int = 1) -> Report:
    CALLS.append("body")
    files = await session.step(fetch, pr)
    first, second = await asyncio.gather(session.step(look_at, files[0]), session.step(look_at, files[2]))
    outcomes = await session.map(look_at, files, collect=True)
    notes = [each.value if isinstance(each, Ok) else each.fault.code for each in outcomes]
    return Report(pr, [first, second, *notes])


@workflow(name="release")
async def release(session: Session, version: str) -> str:
    return await session.retry_later(after=60, attempts=2, backoff=2, ask=True).step(flaky, version)


@workflow
async def order(session: Session, given: Order) -> int:
    return await session.step(len, given.items)


async def in_session(store, work, runtime=None, **options):
    async with Session.open("s", store=store, runtime=runtime, **options) as session:
        return await work(session)


def test_a_workflow_is_a_value_with_a_name_and_the_schema_of_its_inputs():
    assert isinstance(review, WorkflowFunction)
    assert (review.name, release.name) == (f"{__name__}.review", "release")
    assert (review.__name__, review.run_name, repr(release)) == (
        "review",
        f"workflow {__name__}.review",
        "<workflow release>",
    )
    assert review.schema["properties"] == {"pr": {"type": "integer"}, "depth": {"type": "integer"}}
    assert (review.schema["required"], review.schema["additionalProperties"]) == (["pr"], False)
    assert order.schema["properties"]["given"]["properties"]["id"]["type"] == "integer"
    assert pickle.loads(pickle.dumps(review)) is review


async def test_a_workflow_that_has_ended_returns_its_result_and_runs_nothing():
    async with MemoryStore() as store:
        first = await in_session(store, lambda session: review.run(session, 12))
        again = await in_session(store, lambda session: review.run(session, pr=12, depth=1))
        assert first == again == Report(12, [f"file 12.{n}: fine" for n in (0, 2, 0, 1, 2)])
        assert CALLS.count("body") == 1
        await in_session(store, lambda session: review.run(session, 13))
        assert CALLS.count("body") == 2


async def test_a_workflow_that_failed_goes_on_with_the_steps_that_are_stored():
    @workflow
    async def halting(session: Session, pr: int) -> str:
        files = await session.step(fetch, pr)
        return await session.step(flaky, files[0])

    BROKEN.append(ConnectionResetError("gone"))
    async with MemoryStore() as store:
        with pytest.raises(ConnectionResetError):
            await in_session(store, lambda session: halting.run(session, 1))
        assert await in_session(store, lambda session: halting.run(session, 1)) == "file 1.0 is live"
    assert CALLS == [("fetch", 1), ("flaky", "file 1.0"), ("flaky", "file 1.0")]


async def test_a_map_that_collects_keeps_the_results_beside_a_failure():
    BROKEN.append(ValueError("no"))
    async with MemoryStore() as store:
        found = await in_session(store, lambda session: session.map(look_at, ["a0", "a1", "a2"], collect=True))
    assert [isinstance(each, Ok) for each in found] == [True, False, True]
    assert isinstance(found[1], Err)


async def test_a_plain_call_is_the_function_itself():
    async with MemoryStore() as store:
        assert (await in_session(store, lambda session: review(session, 12))).pr == 12
        await in_session(store, lambda session: review(session, 12))
    assert CALLS.count("body") == 2


def test_run_opens_the_session_of_an_id_in_the_default_store(tmp_path, monkeypatch):
    monkeypatch.setenv("HOLDFAST_STORE", f"sqlite:{tmp_path / 'work.db'}")
    assert default_url() == f"sqlite:{tmp_path / 'work.db'}"
    assert asyncio.run(review.run("review-12", 12)).pr == 12
    asyncio.run(review.run("review-12", 12))
    assert CALLS.count("body") == 1


async def test_a_model_is_an_input_also_after_a_restart():
    async with MemoryStore() as store:
        given = Order(id=7, items=["a", "b"])
        assert await in_session(store, lambda session: order.run(session, given)) == 2
        assert await in_session(store, lambda session: order.resume(session, {"given": given.model_dump()})) == 2
        with pytest.raises(InvalidError, match="inputs for"):
            await in_session(store, lambda session: order.resume(session, {"given": {"id": "x"}}))
        with pytest.raises(InvalidError, match="inputs for"):
            await in_session(store, lambda session: order.resume(session, {"other": 1}))


def not_async(session: Session) -> None: ...
async def no_session() -> None: ...
async def many(session: Session, *prs: int) -> None: ...
async def strange(session: Session, pr: object) -> None: ...


@pytest.mark.parametrize("fn", [not_async, no_session, many, strange, 7])
def test_what_is_no_workflow_is_rejected_where_it_is_declared(fn):
    with pytest.raises(InvalidError, match="workflow"):
        workflow(fn)
    with pytest.raises(InvalidError, match=r"workflow\.name"):
        workflow(name=" ")(fetch)


# Later


async def test_a_step_that_fails_is_tried_again_later_by_any_process():
    clock = VirtualClock()
    runtime = Runtime(clock=clock)
    BROKEN.append(HoldfastError(Fault.of("PROVIDER_UNAVAILABLE")))
    async with MemoryStore(clock=clock) as store:
        with pytest.raises(ParkedError) as parked:
            await in_session(store, lambda session: release.run(session, "4.2"), runtime)
        assert parked.value.until == clock.wall() + 60
        with pytest.raises(ParkedError):
            await in_session(store, lambda session: release.run(session, "4.2"), runtime)
        assert CALLS == [("flaky", "4.2")]
        clock.advance(60)
        runs = [run async for run in run_due(store, release, runtime=runtime)]
        assert [(run.program, run.outcome) for run in runs] == [("workflow release", Ok("4.2 is live"))]
        assert await in_session(store, lambda session: release.run(session, "4.2"), runtime) == "4.2 is live"
        assert len(CALLS) == 2
        assert [run async for run in run_due(store, release, runtime=runtime)] == []


@pytest.mark.parametrize("approved", [True, False])
async def test_after_the_last_attempt_the_operator_is_asked_once(approved):
    clock = VirtualClock()
    runtime = Runtime(clock=clock)
    BROKEN.extend(ConnectionResetError(f"gone {n}") for n in range(2))
    async with MemoryStore(clock=clock) as store:
        with pytest.raises(ParkedError):
            await in_session(store, lambda session: release.run(session, "4.2"), runtime)
        clock.advance(60)
        for _ in range(2):
            with pytest.raises(HoldfastError) as asked:
                await in_session(store, lambda session: release.run(session, "4.2"), runtime)
            assert asked.value.fault.code == "SESS_NO_INTERACTOR"
        assert len(CALLS) == 2

        async def answer(session):
            (question,) = session.pending
            assert "failed 2 times" in question.prompt
            await session.answer(question.id, approved=approved, by="ann")

        await in_session(store, answer, runtime)
        runs = [run async for run in run_due(store, release, runtime=runtime)]
        if approved:
            assert [run.outcome for run in runs] == [Ok("4.2 is live")]
        else:
            assert [run.outcome.fault.code for run in runs] == ["CONN_RESET"]
        assert len(CALLS) == 2 + approved
        assert [run async for run in run_due(store, release, runtime=runtime)] == []


async def test_an_unsafe_step_of_unknown_outcome_is_not_tried_again():
    BROKEN.append(TimeoutError())

    @workflow
    async def paying(session: Session) -> str:
        return await session.retry_later(after=60).step(charge, 5)

    async with MemoryStore() as store:
        for _ in range(2):
            with pytest.raises((TimeoutError, OutcomeUnknownError)):
                await in_session(store, paying.run)
    assert CALLS == [("charge", 5)]


async def test_a_budget_that_is_spent_is_no_reason_to_try_later():
    @workflow
    async def spending(session: Session) -> str:
        return await session.retry_later(after=60).step(flaky, "x")

    BROKEN.append(BudgetError.because(unit="usd", limit=1, used=1))
    async with MemoryStore() as store:
        with Budget(usd=1), pytest.raises(BudgetError):
            await in_session(store, spending.run)


async def test_items_of_a_map_that_wait_let_the_others_end():
    clock = VirtualClock()
    runtime = Runtime(clock=clock)

    @workflow
    async def all_of(session: Session, names: list[str]) -> list[str]:
        async def one(name: str) -> str:
            return await session.retry_later(after=60).step(flaky, name)

        return [each.value for each in await session.map(one, names, collect=True) if isinstance(each, Ok)]

    BROKEN.append(ConnectionResetError("gone"))
    async with MemoryStore(clock=clock) as store:
        with pytest.raises(ParkedError):
            await in_session(store, lambda session: all_of.run(session, ["a", "b", "c"]), runtime)
        assert len(CALLS) == 3
        clock.advance(60)
        (run,) = [run async for run in run_due(store, all_of, runtime=runtime)]
        assert run.outcome == Ok(["a is live", "b is live", "c is live"])
    assert len(CALLS) == 4


@pytest.mark.parametrize(
    "wrong", [{"after": 0}, {"after": 1e9}, {"after": 1, "attempts": 0}, {"after": 1, "backoff": 0.5}]
)
async def test_wrong_options_of_retry_later_are_rejected(wrong):
    async with MemoryStore() as store, Session.open("s", store=store) as session:
        with pytest.raises(InvalidError, match="retry_later"):
            session.retry_later(**wrong)


def test_XK10_due_runs_are_found_by_the_address_of_the_store(tmp_path):
    url = f"sqlite:{tmp_path / 'work.db'}"
    clock = VirtualClock(wall=1_000_000.0)
    runtime = Runtime(clock=clock)
    BROKEN.append(ConnectionResetError("gone"))

    async def main():
        with pytest.raises(ParkedError):
            async with Session.open("s", store=url, runtime=runtime) as session:
                await release.run(session, "4.2")
        clock.advance(60)
        found = [run.outcome async for run in run_due(url, release, runtime=runtime)]
        async with open_store(url) as store:
            assert (await store.session("s")).id == "s"
        return found

    assert asyncio.run(main()) == [Ok("4.2 is live")]


async def test_an_unsafe_step_of_unknown_outcome_inside_of_the_step_is_not_tried_again_either():
    BROKEN.append(TimeoutError())

    @workflow
    async def paying(session: Session) -> str:
        async def body(amount: int) -> str:
            return await session.step(charge, amount)

        return await session.retry_later(after=60).step(body, 5)

    async with MemoryStore() as store:
        for _ in range(2):
            with pytest.raises((TimeoutError, OutcomeUnknownError)):
                await in_session(store, paying.run)
    assert CALLS == [("charge", 5)]
