"""Plain functions as steps in threads: the loop goes on, and what a thread did is known even if its caller was cancelled."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from holdfast import OutcomeUnknownError, call_key, tool
from holdfast.faults import InvalidError
from holdfast.sessions import Session
from holdfast.stores import MemoryStore
from holdfast.tools import ToolError


class Gate:
    """A function that waits until it may end."""

    def __init__(self) -> None:
        self.may_end = threading.Event()
        self.began = threading.Event()
        self.calls: list[str] = []

    def wait(self, what: str) -> str:
        self.calls.append(call_key())
        self.began.set()
        assert self.may_end.wait(20)
        return what.upper()

    def fail(self, what: str) -> str:
        self.wait(what)
        raise ToolError(what)


async def began(gate: Gate) -> None:
    await asyncio.to_thread(gate.began.wait, 20)


def test_a_plain_function_does_not_block_the_loop() -> None:
    gate = Gate()

    async def main() -> None:
        async with Session.open("s", store=MemoryStore(), threads=True) as session:
            step = asyncio.ensure_future(session.step(gate.wait, "x"))
            await began(gate)
            assert not step.done()
            gate.may_end.set()
            assert await step == "X"
            assert await session.step(gate.wait, "y") == "Y"
        assert gate.calls[0].startswith("s/Gate.wait@")

    asyncio.run(main())


def test_by_default_it_runs_in_the_thread_of_the_loop() -> None:
    def here() -> bool:
        return threading.current_thread() is threading.main_thread()

    async def main() -> None:
        for threads in (False, True):
            async with Session.open("s", store=MemoryStore(), threads=threads) as session:
                assert await session.step(here) is not threads

    asyncio.run(main())


@pytest.mark.parametrize("effect", ["unsafe", "idempotent"])
@pytest.mark.parametrize("fails", [False, True])
def test_a_cancelled_call_of_a_thread_is_waited_for_and_not_started_twice(effect: Any, fails: bool) -> None:
    gate = Gate()

    @tool(effect=effect)
    def work(what: str) -> str:
        return gate.fail(what) if fails and len(gate.calls) == 0 else gate.wait(what)

    async def main() -> None:
        store = MemoryStore()
        async with Session.open("s", store=store, threads=True) as session:
            first = asyncio.ensure_future(session.step(work, "x"))
            await began(gate)
            first.cancel()
            with pytest.raises(asyncio.CancelledError):
                await first
            again = asyncio.ensure_future(session.step(work, "x"))
            await asyncio.sleep(0.01)
            assert len(gate.calls) == 1
            gate.may_end.set()
            assert await again == "X"
            assert session.unknown == ()
        # A ToolError says that it did not happen, so it was done again.
        assert len(gate.calls) == (2 if fails else 1)

    asyncio.run(main())


def test_an_unsafe_thread_that_outlives_its_session_is_unknown() -> None:
    gate = Gate()

    @tool(effect="unsafe")
    def work(what: str) -> str:
        return gate.wait(what)

    async def main() -> None:
        store = MemoryStore()
        async with Session.open("s", store=store, threads=True) as session:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.2):
                    await session.step(work, "x")
        gate.may_end.set()
        await asyncio.sleep(0.05)
        async with Session.open("s", store=store, threads=True) as session:
            with pytest.raises(OutcomeUnknownError):
                await session.step(work, "x")

    asyncio.run(main())
    assert len(gate.calls) == 1


def test_a_wrong_option_is_refused() -> None:
    with pytest.raises(InvalidError, match=r"session\.threads"):
        Session.open("s", store=MemoryStore(), threads="yes")  # type: ignore[arg-type]
