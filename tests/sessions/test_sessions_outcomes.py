"""How an unsafe step ends: done, known not to have happened, or in doubt. Only evidence lets it run a second time."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest

from holdfast import NOT_HAPPENED, Happened, OutcomeUnknownError, Policy, Runtime, Verdict, fault_of, recover, tool
from holdfast.events import OperatorAsked
from holdfast.faults import Fault, HoldfastError
from holdfast.once.records import StepEnded
from holdfast.sessions import IT_HAPPENED, Answer, Question, Session
from holdfast.sessions.history import history_of
from holdfast.sessions.journal import entries_of
from holdfast.sessions.log import read_entry
from holdfast.stores import MemoryStore
from holdfast.stores.chain import session_chain
from holdfast.stores.verification import records_of
from holdfast.testing import Capture, run
from holdfast.tools import ToolError


class Bank:
    """A service that takes payments, and then the program fails."""

    def __init__(self, error: BaseException, *, pays: bool = True) -> None:
        self.payments = 0
        self.begun = 0
        self._error = error
        self._pays = pays

    async def pay(self, amount: int) -> str:
        self.begun += 1
        self.payments += self._pays
        raise self._error


def answered(status: int) -> httpx.HTTPStatusError:
    request = httpx.Request("POST", "https://bank.test/payments")
    return httpx.HTTPStatusError("no", request=request, response=httpx.Response(status, request=request))


def paying(bank: Bank, **options: Any) -> Any:
    @tool(effect="unsafe", **options)
    async def pay(amount: int) -> str:
        return await bank.pay(amount)

    return pay


async def start(store: MemoryStore, pay: Any, amount: Any = 5) -> Any:
    async with Session.open("s", store=store) as session:
        return await session.step(pay, amount)


async def ends(store: MemoryStore) -> list[StepEnded]:
    read = [read_entry("s", entry) async for entry in entries_of(store, "s", 0)]
    return [body for body in read if isinstance(body, StepEnded)]


AFTER_THE_EFFECT = [
    KeyError("id"),
    IndexError("0"),
    AttributeError("id"),
    TypeError("x"),
    ValueError("x"),
    AssertionError("x"),
    ZeroDivisionError("x"),
    RuntimeError("x"),
    StopAsyncIteration(),
    json.JSONDecodeError("x", "y", 0),
    UnicodeDecodeError("utf-8", b"x", 0, 1, "x"),
    FileNotFoundError(2, "No such file"),
    PermissionError(13, "Permission denied"),
    OSError(28, "No space left on device"),
    MemoryError(),
    RecursionError(),
    NotImplementedError(),
    TimeoutError(),
    ConnectionResetError(104, "Connection reset by peer"),
    answered(409),
    answered(500),
    answered(503),
    HoldfastError(Fault.of("PROVIDER_OUTPUT_INVALID")),
    HoldfastError(Fault.of("SYS_DEADLINE_EXCEEDED")),
    ExceptionGroup("x", [ValueError("x")]),
]


@pytest.mark.parametrize("error", AFTER_THE_EFFECT, ids=lambda error: f"{type(error).__name__}-{error}"[:40])
def test_XD1_an_unsafe_step_that_took_effect_and_then_raised_never_runs_again(error: Exception) -> None:
    bank = Bank(error)
    pay = paying(bank)

    async def main() -> None:
        async with MemoryStore() as store:
            with pytest.raises(type(error)):
                await start(store, pay)
            for _ in range(2):
                with pytest.raises(OutcomeUnknownError) as unknown:
                    await start(store, pay)
                # It says how the step failed, for the person who has to find out.
                assert unknown.value.fault.context["failed_with"] == fault_of(error).code
                assert (type(error).__name__ in str(unknown.value)) is not isinstance(error, HoldfastError)
            async with Session.open("s", store=store) as session:
                await session.resolve(unknown.value.key, happened=True, result="receipt")
            assert await start(store, pay) == "receipt"

    run(main())
    assert bank.payments == 1


@pytest.mark.parametrize(
    ("error", "evidence"),
    [
        (ConnectionRefusedError(111, "Connection refused"), "connection-refused"),
        (httpx.ConnectTimeout("slow"), "not-connected"),
        (answered(404), "status-404"),
        (answered(429), "status-429"),
        (HoldfastError(Fault.of("CIRCUIT_OPEN")), "rejected-by-us"),
        (ToolError("no such account"), "rejected-by-tool"),
    ],
    ids=repr,
)
def test_XD1_a_failure_that_shows_that_nothing_happened_lets_it_run_again(error: Exception, evidence: str) -> None:
    bank = Bank(error, pays=False)
    pay = paying(bank)

    async def main() -> None:
        async with MemoryStore() as store:
            for _ in range(2):
                with pytest.raises(type(error)):
                    await start(store, pay)
            # The log, the audit trail and the history name the evidence.
            assert [ended.evidence for ended in await ends(store)] == [evidence, evidence]
            records = [record async for record in records_of(store, session_chain("s"))]
            told = [json.loads(bytes(record.payload)) for record in records if record.kind == "Fault"]
            assert [record["evidence"] for record in told] == [evidence, evidence]
            (step,) = (await history_of(store, "s")).outside
            assert (step.state, step.evidence) == ("failed", evidence)

    run(main())
    assert bank.begun == 2


def test_XD1_arguments_that_do_not_fit_are_no_doubt() -> None:
    called = []

    @tool(effect="unsafe")
    async def pay(amount: int) -> str:
        called.append(amount)
        return "receipt"

    async def main() -> None:
        async with MemoryStore() as store, Session.open("s", store=store) as session:
            with pytest.raises(TypeError):
                await session.step(pay, 5, 6)
            assert session.unknown == ()

    run(main())
    assert called == []


def test_XD1_arguments_that_do_not_fit_inside_of_the_body_are_a_doubt() -> None:
    def book(amount: int) -> None:
        raise AssertionError

    @tool(effect="unsafe")
    async def pay(amount: int) -> str:
        book(amount, amount)  # type: ignore[call-arg]
        return "receipt"

    async def main() -> None:
        async with MemoryStore() as store, Session.open("s", store=store) as session:
            with pytest.raises(TypeError):
                await session.step(pay, 5)
            assert len(session.unknown) == 1

    run(main())


@pytest.mark.parametrize("recovers", [False, True])
@pytest.mark.parametrize("error", [KeyError("id"), ValueError("x"), RuntimeError("x")], ids=repr)
def test_XD20_verify_is_asked_after_any_failure(error: Exception, recovers: bool) -> None:
    bank = Bank(error)
    asked = []

    def find(key: str, amount: int) -> Verdict:
        asked.append(amount)
        return Happened("receipt") if bank.payments else NOT_HAPPENED

    pay = paying(bank, verify=find)
    if recovers:
        pay = recover("bank", Policy(attempts=3))(pay)

    async def main() -> None:
        async with MemoryStore() as store:
            assert await start(store, pay) == "receipt"
            assert await start(store, pay) == "receipt"

    run(main())
    assert (bank.payments, asked) == (1, [5])


def test_XD20_verify_that_found_nothing_is_the_evidence() -> None:
    bank = Bank(KeyError("id"), pays=False)
    pay = paying(bank, verify=lambda key, amount: NOT_HAPPENED)

    async def main() -> None:
        async with MemoryStore() as store:
            for _ in range(2):
                with pytest.raises(KeyError):
                    await start(store, pay)
            assert [ended.evidence for ended in await ends(store) if not ended.unknown] == ["verified", "verified"]

    run(main())
    assert bank.begun == 2


def test_XD20_the_questions_about_two_doubts_name_their_calls() -> None:
    @tool(effect="unsafe")
    async def pay(amount: int) -> str:
        raise ConnectionResetError(104, "reset")

    asked: list[str] = []

    class Cy:
        async def ask(self, question: Question) -> Answer:
            asked.append(question.prompt)
            return Answer(IT_HAPPENED if question.kind == "Select" else "receipt")

    async def main() -> None:
        async with MemoryStore() as store, Session.open("s", store=store, interactors=[Cy()]) as session:
            for amount in (5, 7):
                assert await session.step_or_ask(pay, amount) == "receipt"

    run(main())
    assert len(set(asked)) == len(asked) == 4
    assert all(f"pay({amount})" in prompt for amount, prompt in zip((5, 5, 7, 7), asked, strict=True))


def test_XD15_a_session_that_is_left_in_doubt_says_so() -> None:
    capture, runtime = Capture(), Runtime()
    runtime.on(capture)
    bank = Bank(KeyError("id"))
    pay = paying(bank)

    async def main() -> None:
        async with MemoryStore() as store:
            for _ in range(2):
                # The program handles the error and ends well.
                async with Session.open("s", store=store, runtime=runtime) as session:
                    with pytest.raises((KeyError, OutcomeUnknownError)):
                        await session.step(pay, 5)
            async with Session.open("s", store=store, runtime=runtime) as session:
                await session.resolve(session.unknown[0], happened=True, result="receipt")

    run(main())
    asked = [event for event in capture.events if isinstance(event, OperatorAsked)]
    assert [event.fault.code for event in asked] == ["TOOL_OUTCOME_UNKNOWN"] * 2
    assert {event.session for event in asked} == {"s"}
    assert asked[0].operation.endswith("pay(5)")


# --- a doubt stops equal calls in every place that has no key of its own ---


@pytest.mark.parametrize("key", ["", "invoice-17"])
@pytest.mark.parametrize("restarted", [True, False])
@pytest.mark.parametrize(("first", "then"), [("session", "turn"), ("turn", "session"), ("turn", "turn")])
def test_a_doubt_stops_an_equal_call_in_a_turn_and_outside_of_turns(
    first: str, then: str, restarted: bool, key: str
) -> None:
    run(_doubt_elsewhere(first, then, restarted=restarted, key=key))


async def _doubt_elsewhere(first: str, then: str, *, restarted: bool, key: str) -> None:
    bank, store = Bank(ConnectionResetError(104, "Connection reset by peer")), MemoryStore()
    pay = paying(bank)

    async def call(session: Session, place: str, given: str) -> Any:
        step = session.keyed(key).step if key else session.step
        if place == "session":
            return await step(pay, 5)
        async with session.turn(given, key=given):
            return await step(pay, 5)

    async def both(session: Session) -> None:
        for place, given in ((first, "one"), (then, "two")):
            with pytest.raises((ConnectionResetError, OutcomeUnknownError)):
                await call(session, place, given)

    if restarted:
        for place, given in ((first, "one"), (then, "two")):
            with pytest.raises((ConnectionResetError, OutcomeUnknownError)):
                async with Session.open("s", store=store) as session:
                    await call(session, place, given)
    else:
        async with Session.open("s", store=store) as session:
            await both(session)
    assert bank.payments == 1
    async with Session.open("s", store=store) as session:
        (doubt,) = session.unknown
        await session.resolve(doubt, happened=False)
        with pytest.raises(ConnectionResetError):
            await call(session, then, "two")
    assert bank.payments == 2


def test_a_call_that_runs_outside_of_turns_is_no_doubt_for_an_equal_one_in_a_turn() -> None:
    run(_two_at_once())


async def _two_at_once() -> None:
    begun = [asyncio.Event(), asyncio.Event()]
    waiting = iter(begun)

    @tool(effect="unsafe")
    async def pay(amount: int) -> str:
        next(waiting).set()
        await begun[1].wait()
        return f"paid {amount}"

    async with Session.open("s", store=MemoryStore()) as session:
        outside = asyncio.ensure_future(session.step(pay, 5))
        await begun[0].wait()
        async with session.turn("one"):
            assert await session.step(pay, 5) == "paid 5"
        await outside
        assert session.unknown == ()
