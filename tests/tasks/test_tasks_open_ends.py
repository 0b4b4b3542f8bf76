"""What is stored once does not end as done over a doubt or a wait inside of it, whatever its code does with the error."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from holdfast import (
    NOT_HAPPENED,
    Fault,
    Happened,
    HoldfastError,
    Ok,
    OutcomeUnknownError,
    Runtime,
    Session,
    Stage,
    StageMachine,
    Task,
    TaskSystem,
    Workflow,
    tool,
)
from holdfast.sessions import ParkedError, answer, pending, run_due
from holdfast.stores import MemoryStore
from holdfast.tasks import workflow
from holdfast.testing import VirtualClock


class Bank:
    """Pays, as soon as the line is up. Until then nobody knows whether a payment arrived."""

    def __init__(self) -> None:
        self.paid: list[str] = []
        self.is_down = True

    def pay(self) -> Callable[[str], Awaitable[str]]:
        @tool(effect="unsafe", name="pay")
        async def pay(who: str) -> str:
            if self.is_down:
                raise ConnectionResetError(104, "reset")
            self.paid.append(who)
            return f"receipt {who}"

        return pay


async def catching(session: Session, pay: Any) -> Any:
    try:
        return await session.step(pay, "ada")
    except Exception as error:
        return f"sorry: {type(error).__name__}"


async def collecting(session: Session, pay: Any) -> Any:
    return [each.value for each in await session.map(pay, ["ada"], collect=True) if isinstance(each, Ok)]


async def gathering(session: Session, pay: Any) -> Any:
    ended = await asyncio.gather(session.step(pay, "ada"), return_exceptions=True)
    return [each for each in ended if isinstance(each, str)]


BODIES = [catching, collecting, gathering]


async def in_workflow(session: Session, body: Any, pay: Any) -> Any:
    @workflow(name="w")
    async def w(session: Session) -> Any:
        return await body(session, pay)

    return await w.run(session)


async def in_step(session: Session, body: Any, pay: Any) -> Any:
    async def order() -> Any:
        return await body(session, pay)

    return await session.step(order)


async def in_step_in_step(session: Session, body: Any, pay: Any) -> Any:
    async def outer() -> Any:
        try:
            return await in_step(session, body, pay)
        except HoldfastError:
            return "sorry"

    return await session.step(outer)


async def in_task(session: Session, body: Any, pay: Any) -> Any:
    async def perform(_: Any) -> Any:
        return str(await body(session, pay))

    return await TaskSystem(perform).run(Task("x"), session=session)


async def in_stage(session: Session, body: Any, pay: Any) -> Any:
    async def act(_: Any) -> Any:
        return await body(session, pay)

    return (await StageMachine([Stage("pay", act)], name="m").run(session)).value


async def in_language(session: Session, body: Any, pay: Any) -> Any:
    async def order() -> Any:
        return await body(session, pay)

    return await Workflow('(fallback (order) "sorry")', tasks=[order], name="w").run(session)


async def in_keyed_turn(session: Session, body: Any, pay: Any) -> Any:
    async with session.turn("pay", key="m-1"):
        return await body(session, pay)


async def in_other_session(session: Session, body: Any, pay: Any) -> Any:
    async def order() -> Any:
        async with Session.open("other", store=session._store) as other:
            return await body(other, pay)

    return await session.step(order)


DOORS = [in_workflow, in_step, in_step_in_step, in_task, in_stage, in_language, in_keyed_turn, in_other_session]


@pytest.mark.parametrize("body", BODIES)
@pytest.mark.parametrize("door", DOORS)
def test_a_result_is_not_stored_over_a_doubt_that_its_code_swallowed(door: Any, body: Any) -> None:
    async def main() -> None:
        bank = Bank()
        async with MemoryStore() as store:
            for _ in range(2):
                with pytest.raises(HoldfastError) as caught:
                    async with Session.open("s", store=store) as session:
                        await door(session, body, bank.pay())
                assert caught.value.fault.code == "TOOL_OUTCOME_UNKNOWN"
            bank.is_down = False
            async with Session.open("other" if door is in_other_session else "s", store=store) as session:
                (key,) = session.unknown
                await session.resolve(key, happened=False)
            for _ in range(2):
                async with Session.open("s", store=store) as session:
                    assert "receipt ada" in str(await door(session, body, bank.pay()))
            assert bank.paid == ["ada"]

    asyncio.run(main())


def test_a_call_that_certainly_did_not_happen_lets_its_workflow_go_on() -> None:
    @tool(effect="unsafe")
    async def pay(_: str) -> str:
        raise ConnectionRefusedError(111, "Connection refused")

    async def main() -> None:
        async with MemoryStore() as store, Session.open("s", store=store) as session:
            assert await in_workflow(session, catching, pay) == "sorry: ConnectionRefusedError"

    asyncio.run(main())


def test_a_doubt_that_the_code_itself_resolves_lets_its_workflow_go_on() -> None:
    bank = Bank()

    async def body(session: Session, pay: Any) -> str:
        try:
            return str(await session.step(pay, "ada"))
        except ConnectionResetError:
            await session.resolve(session.unknown[0], happened=True, result="receipt by hand")
            return "by hand"

    async def main() -> None:
        async with MemoryStore() as store, Session.open("s", store=store) as session:
            assert await in_workflow(session, body, bank.pay()) == "by hand"

    asyncio.run(main())


@pytest.mark.parametrize("happened", [True, False])
def test_verify_settles_a_call_that_its_workflow_stopped(happened: bool) -> None:
    begun: list[str] = []

    @tool(effect="unsafe", verify=lambda _key, _who: Happened("receipt") if happened else NOT_HAPPENED)
    async def pay(who: str) -> str:
        begun.append(who)
        await asyncio.sleep(60)
        return "receipt"

    async def body(session: Session, pay: Any) -> str:
        try:
            async with asyncio.timeout(0.001):
                return str(await session.step(pay, "ada"))
        except TimeoutError:
            return "too slow"

    async def main() -> None:
        async with MemoryStore() as store:
            if happened:
                with pytest.raises(OutcomeUnknownError, match="has happened after the program went on"):
                    async with Session.open("s", store=store) as session:
                        await in_workflow(session, body, pay)
            for _ in range(2):
                async with Session.open("s", store=store) as session:
                    assert await in_workflow(session, body, pay) == ("receipt" if happened else "too slow")
            assert begun == ["ada"]

    asyncio.run(main())


@pytest.mark.parametrize("door", [in_workflow, in_step, in_language, in_stage])
def test_a_run_that_waits_for_its_time_is_parked_although_its_code_swallowed_the_error(door: Any) -> None:
    calls = []

    async def deploy() -> str:
        calls.append("deploy")
        if len(calls) == 1:
            raise HoldfastError(Fault.of("PROVIDER_UNAVAILABLE"))
        return "live"

    async def body(session: Session, _: Any) -> str:
        try:
            return await session.retry_later(after=60).step(deploy)
        except Exception:
            return "sorry"

    async def main() -> None:
        clock = VirtualClock()
        runtime = Runtime(clock=clock)
        async with MemoryStore() as store:
            for _ in range(2):
                with pytest.raises(ParkedError):
                    async with Session.open("s", store=store, runtime=runtime) as session:
                        await door(session, body, None)
            clock.advance(61)
            for _ in range(2):
                async with Session.open("s", store=store, runtime=runtime) as session:
                    assert await door(session, body, None) == "live"
        assert len(calls) == 2

    asyncio.run(main())


def test_a_parked_workflow_that_swallowed_the_error_is_due_when_its_time_has_come() -> None:
    calls = []

    async def deploy() -> str:
        calls.append("deploy")
        if len(calls) == 1:
            raise HoldfastError(Fault.of("PROVIDER_UNAVAILABLE"))
        return "live"

    @workflow(name="release")
    async def release(session: Session) -> str:
        try:
            return await session.retry_later(after=60).step(deploy)
        except Exception:
            return "sorry"

    async def main() -> None:
        clock = VirtualClock()
        runtime = Runtime(clock=clock)
        async with MemoryStore() as store:
            with pytest.raises(ParkedError):
                async with Session.open("s", store=store, runtime=runtime) as session:
                    await release.run(session)
            clock.advance(61)
            ended = [run.outcome async for run in run_due(store, release, runtime=runtime)]
            assert [each.value for each in ended if isinstance(each, Ok)] == ["live"]

    asyncio.run(main())


@pytest.mark.parametrize("door", [in_workflow, in_step, in_keyed_turn])
def test_a_run_that_waits_for_a_person_is_not_done_although_its_code_swallowed_the_error(door: Any) -> None:
    async def body(session: Session, _: Any) -> str:
        try:
            return "deployed" if await session.approve("Deploy?") else "no"
        except Exception:
            return "sorry"

    async def main() -> None:
        async with MemoryStore() as store:
            with pytest.raises(HoldfastError) as caught:
                async with Session.open("s", store=store) as session:
                    await door(session, body, None)
            assert caught.value.fault.code == "SESS_NO_INTERACTOR"
            (question,) = await pending(store, "s")
            await answer(store, "s", question.id, approved=True)
            for _ in range(2):
                async with Session.open("s", store=store) as session:
                    assert await door(session, body, None) == "deployed"

    asyncio.run(main())


def test_the_doubt_about_a_stages_call_shows_its_arguments() -> None:
    @tool(effect="unsafe")
    async def transfer(to: str, amount: int) -> str:
        raise ConnectionResetError(104, "reset")

    async def act(work: Any) -> Any:
        return (await work.call("transfer", to="ada", amount=500)).content

    async def main() -> None:
        async with MemoryStore() as store, Session.open("s", store=store) as session:
            machine = StageMachine([Stage("pay", act)], tools=[transfer], name="m")
            for _ in range(2):
                with pytest.raises(OutcomeUnknownError) as caught:
                    await machine.run(session)
            assert 'transfer(to="ada", amount=500) with key' in str(caught.value)

    asyncio.run(main())
