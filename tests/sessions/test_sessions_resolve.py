"""A step of unknown outcome is resolved once: the first resolution counts, also if two people resolve it at the same moment."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from sessions_kit import Crash, Done, FailingStore, code_of, dies, next_run

from holdfast import call_key, recover, tool
from holdfast.faults import HoldfastError, InvalidError, OutcomeUnknownError
from holdfast.runtime.tool import Happened
from holdfast.sessions import Session
from holdfast.sessions.admin import overview, resolve_step
from holdfast.sessions.history import history_of
from holdfast.stores import MemoryStore, open_store
from holdfast.testing import run
from holdfast.testing.postgres import PrivateServer

DONE = Done()


@tool(effect="unsafe")
async def deploy(plan: str) -> int:
    DONE.append(plan)
    if len(DONE) == 1:
        raise TimeoutError("read timed out")
    return 8


@pytest.fixture(autouse=True)
def nothing_done():
    DONE.clear()


@pytest.fixture(scope="module")
def server():
    with PrivateServer() as running:
        yield running


@pytest.fixture(params=["sqlite", "postgres"])
def address(request, tmp_path):
    return f"sqlite:{tmp_path / 's.db'}" if request.param == "sqlite" else request.getfixturevalue("server").url


def deploy_with(act: Callable[[], int], **contract: Any) -> Callable[[str], Any]:
    """Return another version of `deploy`: it has the same name."""

    async def other(plan: str) -> int:
        return act()

    other.__qualname__ = "deploy"
    other.__code__ = other.__code__.replace(co_qualname="deploy")
    return tool(effect="unsafe", **contract)(other)


async def doubted(store: Any, id_: str = "s") -> str:
    """Leave a step of unknown outcome; return its key."""
    async with Session.open(id_, store=store) as session:
        with pytest.raises(TimeoutError):
            await session.step(deploy, "v2")
        return session.unknown[0]


def test_the_first_of_two_who_resolve_at_once_wins(address):
    async def main():
        key = await doubted(address, "both")
        async with open_store(address) as one, open_store(address) as other:
            said = await asyncio.gather(
                resolve_step(one, "both", key, happened=True, result=7, by="ann"),
                resolve_step(other, "both", key, happened=False, by="bob"),
                return_exceptions=True,
            )
        (refused,) = [error for error in said if isinstance(error, BaseException)]
        assert code_of(refused) == "SESS_ALREADY_ANSWERED"
        happened = said[0] is not refused
        first = "ann" if happened else "bob"
        assert refused.fault.context["by"] == first
        assert refused.fault.context["happened"] is happened
        assert f"by {first} at 20" in refused.fault.message
        assert 'deploy("v2")' in refused.fault.message
        async with Session.open("both", store=address) as session:
            # What the second one claimed has no effect, in this process or in the next.
            assert await session.step(deploy, "v2") == (7 if happened else 8)

    asyncio.run(main())
    assert len(DONE) in (1, 2)


def test_two_processes_resolve_one_doubt_and_exactly_one_wins(address):
    async def main():
        return await doubted(address, "raced")

    key = asyncio.run(main())
    # Both wait for the same moment, so that their commits meet.
    program = (
        "import asyncio, sys, time\n"
        "from holdfast.faults import HoldfastError\n"
        "from holdfast.sessions.admin import resolve_step\n"
        "from holdfast.stores import open_store\n"
        "async def main(address, key, result):\n"
        "    async with open_store(address) as store:\n"
        "        print('ready', flush=True)\n"
        "        sys.stdin.readline()\n"
        "        try:\n"
        "            await resolve_step(store, 'raced', key, happened=True, result=result, by=f'p{result}')\n"
        "            print('won', flush=True)\n"
        "        except HoldfastError as error:\n"
        "            print(error.fault.code, error.fault.context['by'], flush=True)\n"
        "asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))\n"
    )
    racers = [
        subprocess.Popen(
            [sys.executable, "-c", program, address, key, str(n)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for n in range(3)
    ]
    for racer in racers:
        assert racer.stdout is not None
        assert racer.stdout.readline() == "ready\n"
    for racer in racers:
        assert racer.stdin is not None
        racer.stdin.write("go\n")
        racer.stdin.flush()
    said = [racer.communicate(timeout=60)[0].strip() for racer in racers]
    winner = said.index("won")
    assert sorted(said) == sorted(["won", *[f"SESS_ALREADY_ANSWERED p{winner}"] * 2])

    async def resumed():
        async with Session.open("raced", store=address) as session:
            return await session.step(deploy, "v2")

    assert asyncio.run(resumed()) == winner
    assert DONE == ["v2"]


def test_the_same_resolution_again_is_no_error(address):
    async def main():
        key = await doubted(address, "again")
        async with open_store(address) as store:
            for _ in range(2):
                assert await resolve_step(store, "again", key, happened=True, result={"id": 7}, by="ann") == key
            before = (await store.session("again")).top
            async with Session.open("again", store=store) as session:
                await session.resolve(key, happened=True, result={"id": 7})
            # Only the state of the session changed: nothing was resolved a second time.
            types = [entry.type for entry in await store.read("again", after=before)]
            assert "step_ended" not in types

    asyncio.run(main())


@pytest.mark.parametrize("second", [{"happened": False}, {"happened": True, "result": 8}])
def test_a_later_resolution_that_differs_shows_the_first(second):
    async def main():
        store = MemoryStore()
        key = await doubted(store)
        async with Session.open("s", store=store) as session:
            await session.resolve(key, happened=True, result=7, by="ann")
            with pytest.raises(HoldfastError, match="resolved as happened, with the result 7, by ann at 20") as raised:
                await session.resolve(key, **second)
            assert code_of(raised.value) == "SESS_ALREADY_ANSWERED"
            with pytest.raises(HoldfastError) as raised:
                await resolve_step(store, "s", "deploy", **second)
            assert code_of(raised.value) == "SESS_ALREADY_ANSWERED"
            assert raised.value.fault.context["key"] == key
            assert await session.step(deploy, "v2") == 7
        (step,) = (await history_of(store, "s")).outside
        assert step.resolved
        assert step.resolved_by == "ann"

    run(main())


def test_a_step_of_a_turn_that_has_ended_is_resolved_once_too():
    async def main():
        store = MemoryStore()
        async with Session.open("s", store=store) as session:
            with pytest.raises(TimeoutError):
                async with session.turn("first"):
                    await session.step(deploy, "v2")
            (key,) = session.unknown
            async with session.turn("second"):
                assert session.in_flight == 2
            await session.resolve(key, happened=False, by="ann")
            with pytest.raises(HoldfastError, match="resolved as not happened, by ann at 20"):
                await session.resolve(key, happened=True, result=1)

    run(main())


def test_a_second_doubt_about_the_same_step_is_resolved_by_itself():
    async def main():
        store = MemoryStore()
        key = await doubted(store)
        await resolve_step(store, "s", key, happened=False, by="ann")

        def crash() -> int:
            raise Crash

        session = await Session.open("s", store=store).__aenter__()
        with pytest.raises(Crash):
            await session.step(deploy_with(crash), "v2")
        await dies(session)
        # It is not the doubt that ann resolved: the step has run once more since.
        await resolve_step(store, "s", key, happened=False, by="bob")
        async with Session.open("s", store=store) as session:
            assert await session.step(deploy, "v2") == 8

    run(main())


def test_a_resolution_does_not_undo_what_the_program_found_out_first():
    async def main():
        store = FailingStore()
        key = await doubted(store)
        # A person's resolution is on its way, and the program's own `verify` is faster.
        store.failing = lambda commit: True
        with pytest.raises(HoldfastError, match="disk is full"):
            await resolve_step(store, "s", key, happened=False, by="ann")
        store.failing = lambda commit: False
        late = store.tried[-1]
        async with Session.open("s", store=store) as session:
            assert await session.step(deploy_with(lambda: 0, verify=lambda key, plan: Happened(7)), "v2") == 7
        await store.commit(late)
        async with Session.open("s", store=store) as session:
            assert await session.step(deploy, "v2") == 7
        assert DONE == ["v2"]

    run(main())


def test_a_key_that_was_never_in_doubt_is_no_key_to_resolve():
    async def main():
        store = MemoryStore()
        await doubted(store)
        with pytest.raises(InvalidError, match="one of the unknown steps"):
            await resolve_step(store, "s", "undeploy", happened=True)
        async with Session.open("s", store=store) as session:
            with pytest.raises(OutcomeUnknownError):
                await session.step(deploy, "v2")
        assert (await overview(store, "s")).unknown

    run(main())


@pytest.mark.parametrize("in_turn", [False, True])
def test_a_resolution_whose_result_does_not_fit_opens_the_doubt_again(in_turn: bool) -> None:
    async def program(session: Session) -> int:
        if not in_turn:
            return await session.step(deploy, "v2")
        async with session.turn("release"):
            return await session.step(deploy, "v2")

    async def main() -> None:
        async with MemoryStore() as store:
            with pytest.raises(TimeoutError):
                async with Session.open("s", store=store) as session:
                    await program(session)
            if in_turn:
                # The doubt outlives its turn.
                async with Session.open("s", store=store) as session:
                    await session.abandon()
            for wrong in ("eight", [8]):
                (key,) = (await overview(store, "s")).unknown
                await resolve_step(store, "s", key, happened=True, result=wrong)
                with pytest.raises(OutcomeUnknownError, match="expected the stored value to be int"):
                    async with Session.open("s", store=store) as session:
                        await program(session)
            (key,) = (await overview(store, "s")).unknown
            await resolve_step(store, "s", key, happened=True, result=8)
            async with Session.open("s", store=store) as session:
                assert await program(session) == 8
        assert DONE == ["v2"]

    run(main())


def test_a_turn_that_took_a_resolved_result_has_done_its_step():
    """The person said that it happened, and a turn returned that. The next run does not do it again."""

    async def program(session: Session) -> int:
        async with session.turn("a release"):
            return await session.keyed("v2").step(deploy, "v2")

    async def main():
        store = MemoryStore()
        async with Session.open("s", store=store) as session:
            with pytest.raises(TimeoutError):
                await program(session)
            with pytest.raises(OutcomeUnknownError):
                await program(session)
        await resolve_step(store, "s", "s/1/key:v2", happened=True, result=5)
        next_run()
        async with Session.open("s", store=store) as session:
            assert await program(session) == 5
        next_run()
        async with Session.open("s", store=store) as session:
            with pytest.raises(HoldfastError, match="has done it") as raised:
                await program(session)
            assert code_of(raised.value) == "SESS_STEP_DRIFT"

    run(main())
    assert DONE == ["v2"]


def test_the_error_of_a_doubt_names_the_key_that_the_service_got():
    @tool(effect="unsafe")
    @recover("bank")
    async def wire(who: str) -> str:
        DONE.append(call_key())
        raise TimeoutError("read timed out")

    async def main():
        async with Session.open("s", store=MemoryStore()) as session:
            for _ in range(2):
                with pytest.raises(OutcomeUnknownError) as raised:
                    await session.step(wire, "ada")
            assert [f"{raised.value.key}/1"] == DONE
            assert f"knows it by '{raised.value.key}/1'" in str(raised.value)

    run(main())
