"""Plain functions as steps in threads: the loop goes on, and what a thread did is known even if its caller was cancelled."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from typing import Any

import anyio.to_thread
import pytest
from sessions_kit import next_run

from holdfast import NOT_HAPPENED, Happened, HoldfastError, OutcomeUnknownError, Policy, call_key, recover, tool
from holdfast.faults import Fault, InvalidError
from holdfast.runtime.failures.left_behind import LEFT_BEHIND
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


# --- threads that outlive their call ---


def payment(gate: Gate, paid: list[str], how: str) -> Any:
    """A payment that takes effect when the gate opens; its `verify` looks what was paid."""

    def charge(who: str) -> str:
        gate.wait(who)
        paid.append(who)
        return "receipt"

    def find(_key: str, who: str) -> Any:
        return Happened("receipt") if who in paid else NOT_HAPPENED

    if how == "threads":
        return tool(effect="unsafe", verify=find, name="pay")(charge)

    @tool(effect="unsafe", verify=find, name="pay")
    async def pay(who: str) -> str:
        if how == "to_thread":
            return await asyncio.to_thread(charge, who)
        if how == "anyio":
            return str(await anyio.to_thread.run_sync(charge, who, abandon_on_cancel=True))
        ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        run = contextvars.copy_context().run
        threading.Thread(target=run, args=(charge, who), daemon=True).start()
        return await ended

    return pay


@pytest.mark.parametrize("how", ["threads", "to_thread", "anyio", "own thread"])
@pytest.mark.parametrize("opens_again", [False, True])
def test_verify_is_not_asked_while_a_thread_of_the_call_still_runs(how: str, opens_again: bool) -> None:
    gate, paid = Gate(), list[str]()
    pay = payment(gate, paid, how)

    async def begin(session: Session) -> None:
        step = asyncio.ensure_future(session.step(pay, "ada"))
        await began(gate)
        step.cancel()
        await asyncio.wait((step,))

    async def is_paid_later(session: Session) -> None:
        if how != "threads" or opens_again:
            with pytest.raises(OutcomeUnknownError):
                await session.step(pay, "ada")
            with pytest.raises(InvalidError, match="whose thread still runs"):
                await session.resolve(session.unknown[0], happened=False)
        gate.may_end.set()
        while LEFT_BEHIND.runs(call_of_session(session)):  # noqa: ASYNC110 - a thread ends it
            await asyncio.sleep(0.001)
        assert await session.step(pay, "ada") == "receipt"

    def call_of_session(session: Session) -> str:
        return session.unknown[0] if session.unknown else "none"

    async def main() -> None:
        async with MemoryStore() as store:
            async with Session.open("s", store=store, threads=True) as session:
                await begin(session)
                if not opens_again:
                    await is_paid_later(session)
            if opens_again:
                async with Session.open("s", store=store, threads=True) as session:
                    await is_paid_later(session)

    asyncio.run(main())
    assert paid == ["ada"]


def test_a_recovery_alone_does_not_ask_verify_while_a_thread_of_its_call_still_runs() -> None:
    gate, paid = Gate(), list[str]()
    pay = recover("bank", Policy(timeout=0.01))(payment(gate, paid, "to_thread"))

    async def main() -> None:
        with pytest.raises(OutcomeUnknownError):
            await pay("ada")
        gate.may_end.set()

    asyncio.run(main())
    assert paid == ["ada"]


@pytest.mark.parametrize("threads", [False, True])
def test_a_call_that_happened_after_its_caller_had_gone_is_not_made_again_by_the_one_that_looks_again(
    threads: bool,
) -> None:
    gate, paid = Gate(), list[str]()

    @tool(effect="unsafe")
    def pay(who: str) -> str:
        if threads:
            gate.wait(who)
        else:
            # The timeout comes while the loop is blocked: it is noticed when the result is stored.
            step.cancel()
        paid.append(who)
        return f"receipt {len(paid)}"

    step: asyncio.Future[str]

    async def main() -> None:
        nonlocal step
        async with MemoryStore() as store:
            async with Session.open("s", store=store, threads=threads) as session:
                step = asyncio.ensure_future(session.step(pay, "ada"))
                if threads:
                    await began(gate)
                    step.cancel()
                    gate.may_end.set()
                with pytest.raises(asyncio.CancelledError):
                    await step
                assert await session.step(pay, "ada") == "receipt 1"
            next_run()
            async with Session.open("s", store=store, threads=threads) as session:
                assert await session.step(pay, "ada") == "receipt 1"
                with pytest.raises(HoldfastError, match="its caller had stopped waiting") as caught:
                    await session.step(pay, "ada")
                await session.accept(caught.value.fault.context["key"])
                assert await session.step(pay, "ada") == "receipt 1"

    asyncio.run(main())
    assert len(paid) == 1


@pytest.mark.parametrize("through", [asyncio.to_thread, anyio.to_thread.run_sync])
def test_verify_is_asked_at_once_about_a_call_whose_thread_has_ended(through: Any) -> None:
    def charge(_: str) -> str:
        raise ConnectionResetError(104, "reset")

    @tool(effect="unsafe", verify=lambda _key, _who: Happened("receipt"))
    async def pay(who: str) -> str:
        return str(await through(charge, who))

    async def main() -> None:
        async with MemoryStore() as store, Session.open("s", store=store) as session:
            for number in range(100):
                assert await session.step(pay, f"customer {number}") == "receipt"

    asyncio.run(main())


async def do_turn(session: Session) -> None:
    async with session.turn("hi"):
        pass


@pytest.mark.parametrize(
    "call",
    [
        lambda session: session.step(str, 1),
        lambda session: session.keyed("k").step(str, 1),
        lambda session: session.map(str, [1], collect=True),
        lambda session: session.approve("Deploy?"),
        lambda session: session.message("hi"),
        lambda session: session.checkpoint(),
        lambda session: session.parked.park("a", 1.0, Fault.of("PROVIDER_UNAVAILABLE")),
        do_turn,
    ],
)
@pytest.mark.parametrize("in_turn", [False, True])
def test_a_call_in_another_event_loop_raises_at_once(call: Any, in_turn: bool) -> None:
    async def use(session: Session) -> None:
        await session.step(len, "first")
        session.context["changed"] = True

        def elsewhere() -> None:
            async def called() -> None:
                await call(session)

            asyncio.run(called())

        with pytest.raises(InvalidError, match="in another event loop"):
            await asyncio.to_thread(elsewhere)
        assert await session.step(len, "here") == 4

    async def main() -> None:
        async with MemoryStore() as store, Session.open("s", store=store) as session:
            if in_turn:
                async with session.turn("x"):
                    await use(session)
            else:
                await use(session)

    asyncio.run(main())
