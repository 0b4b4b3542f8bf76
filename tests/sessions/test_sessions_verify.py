"""Tools that settle their own outcome: `verify` finds out whether a call happened, `check` whether a result is one."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import pytest
from sessions_kit import Crash, code_of, killed

from holdfast import (
    CANNOT_TELL,
    NOT_HAPPENED,
    Happened,
    InvalidError,
    OutcomeUnknownError,
    Policy,
    Runtime,
    Verdict,
    call_key,
    recover,
    tool,
)
from holdfast.events import SuppressedError
from holdfast.faults import Fault, HoldfastError, Ok
from holdfast.sessions import I_DO_NOT_KNOW, IT_DID_NOT_HAPPEN, IT_HAPPENED, OUTCOMES, Answer, Question, Session
from holdfast.sessions.admin import fork_session
from holdfast.stores import MemoryStore
from holdfast.testing import Capture, run


def reset() -> Exception:
    return ConnectionResetError(104, "Connection reset by peer")


class Bank:
    """A service that remembers payments by key, and whose answers may be lost."""

    def __init__(self, *, lose: int = 0, before: bool = False, die: bool = False) -> None:
        self.paid: dict[str, int] = {}
        self.calls = 0
        self.lookups: list[tuple[Any, ...]] = []
        self.verdict: Verdict | Exception | None = None
        self._lose, self._before, self._die = lose, before, die

    async def send(self, amount: int) -> str:
        self.calls += 1
        lost = self.calls <= self._lose
        if not (lost and self._before):
            self.paid[call_key()] = amount
        if lost and self._die:
            raise Crash
        if lost:
            raise reset()
        return f"receipt {amount}"

    def look_up(self, key: str, amount: int) -> Verdict:
        self.lookups.append((key, amount))
        if isinstance(self.verdict, Exception):
            raise self.verdict
        if self.verdict is not None:
            return self.verdict
        return Happened(f"receipt {self.paid[key]}") if key in self.paid else NOT_HAPPENED


def payment(bank: Bank, *, is_async: bool = False, way: str = "") -> Any:
    """A payment that the bank knows by its key; `way` says where its recovery is."""

    async def look_up(key: str, amount: int) -> Verdict:
        await asyncio.sleep(1)
        return bank.look_up(key, amount)

    async def pay(amount: int) -> str:
        return await (recovery.call(bank.send, amount) if way == "inside" else bank.send(amount))

    recovery = recover("bank", Policy(attempts=3))
    as_tool = tool(effect="unsafe", verify=look_up if is_async else bank.look_up)
    if way in ("below", "partial"):
        made = as_tool(recovery(pay))
        return made if way == "below" else partial(made)
    return recovery(as_tool(pay)) if way == "above" else as_tool(pay)


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("way", ["", "above", "below", "partial", "inside"])
@pytest.mark.parametrize("before", [False, True])
def test_a_machine_settles_a_step_that_was_killed(is_async: bool, way: str, before: bool) -> None:
    bank = Bank(lose=1, before=before, die=True)
    pay = payment(bank, is_async=is_async, way=way)

    async def main() -> None:
        store = MemoryStore()
        await killed(store, lambda session: session.step(pay, 5))
        async with Session.open("s", store=store) as session:
            assert await session.step(pay, 5) == "receipt 5"
            assert session.unknown == ()
        async with Session.open("s", store=store) as session:
            assert await session.step(pay, 5) == "receipt 5"

    run(main())
    assert len(bank.paid) == 1
    assert bank.calls == (2 if before else 1)
    # What it does not find by one key may have been sent with the other one.
    assert len(bank.lookups) == (2 if before or way == "inside" else 1)


@pytest.mark.parametrize("before", [False, True])
def test_a_lost_answer_in_a_step_is_settled_at_once(before: bool) -> None:
    bank = Bank(lose=1, before=before)
    pay = payment(bank)

    async def main() -> None:
        async with Session.open("s", store=MemoryStore()) as session:
            if before:
                # It did not happen: the step's own error is raised, and the step may be called again.
                with pytest.raises(ConnectionResetError):
                    await session.step(pay, 5)
            assert await session.step(pay, 5) == "receipt 5"

    run(main())
    assert len(bank.paid) == 1


@pytest.mark.parametrize("verdict", [CANNOT_TELL, reset(), "yes", None])
def test_what_verify_cannot_tell_stays_unknown(verdict: Any) -> None:
    bank = Bank(lose=1, die=True)
    bank.verdict = verdict if verdict is not None else True  # type: ignore[assignment]
    pay = payment(bank)
    heard = Capture()
    runtime = Runtime()
    runtime.on(heard)

    async def main() -> None:
        store = MemoryStore()
        await killed(store, lambda session: session.step(pay, 5))
        async with Session.open("s", store=store, runtime=runtime) as session:
            with pytest.raises(OutcomeUnknownError):
                await session.step(pay, 5)
            bank.verdict = None
            assert await session.step(pay, 5) == "receipt 5"

    run(main())
    assert bank.calls == 1
    reasons = [event.reason for event in heard.of(SuppressedError)]
    assert reasons == ([] if verdict is CANNOT_TELL else ["verify failed, so the outcome stays unknown"])


def test_verify_is_retried_like_a_read() -> None:
    bank = Bank(lose=1, die=True)
    tries = []

    async def flaky(key: str, amount: int) -> Verdict:
        tries.append(key)
        if len(tries) < 3:
            raise reset()
        return bank.look_up(key, amount)

    @tool(effect="unsafe", verify=flaky)
    async def pay(amount: int) -> str:
        return await bank.send(amount)

    async def main() -> None:
        store = MemoryStore()
        await killed(store, lambda session: session.step(pay, 5))
        async with Session.open("s", store=store) as session:
            assert await session.step(pay, 5) == "receipt 5"

    run(main())
    assert len(tries) == 3


@pytest.mark.parametrize("before", [False, True])
@pytest.mark.parametrize("is_async", [False, True])
def test_recover_settles_a_lost_answer_and_goes_on(before: bool, is_async: bool) -> None:
    bank = Bank(lose=1, before=before)
    pay = payment(bank, way="above", is_async=is_async)
    assert run(pay(5)) == "receipt 5"
    assert len(bank.paid) == 1
    assert bank.calls == (2 if before else 1)
    ((key, amount),) = bank.lookups
    assert (amount, key) == (5, next(iter(bank.paid)))


def test_recover_raises_what_verify_cannot_tell() -> None:
    bank = Bank(lose=1)
    bank.verdict = CANNOT_TELL
    with pytest.raises(OutcomeUnknownError):
        run(payment(bank, way="above")(5))
    assert bank.calls == 1


def test_recover_verifies_a_call_that_ran_into_its_own_limit() -> None:
    seen: list[str] = []

    def look_up(key: str) -> Verdict:
        return Happened(f"found {key == seen[0]}")

    @recover("bank")
    @tool(effect="unsafe", timeout=5, verify=look_up)
    async def slow() -> str:
        seen.append(call_key())
        await asyncio.sleep(100)
        return "never"

    assert run(slow()) == "found True"


def test_a_plain_function_is_verified_too() -> None:
    calls = []

    @recover("bank", Policy(attempts=3))
    @tool(effect="unsafe", verify=lambda key, n: NOT_HAPPENED if len(calls) == 1 else Happened(n))
    def pay(n: int) -> int:
        calls.append(n)
        raise reset()

    async def main() -> Any:
        return await asyncio.to_thread(pay, 4)

    assert asyncio.run(main()) == 4
    assert calls == [4, 4]


# --- check ---


def test_a_result_that_fails_its_check_is_a_failure_and_not_stored() -> None:
    written: list[str] = []

    @tool(effect="idempotent", check=lambda result, path, text: path in written)
    def write(path: str, text: str) -> str:
        if len(written) < 1:
            written.append("elsewhere")
            return "done"
        written.append(path)
        return "done"

    async def main() -> None:
        async with Session.open("s", store=MemoryStore()) as session:
            with pytest.raises(HoldfastError) as raised:
                await session.step(write, "a.txt", "hello")
            assert code_of(raised.value) == "TOOL_EXECUTION_FAILED"
            assert "its check rejects the result" in str(raised.value)
            assert await session.step(write, "a.txt", "hello") == "done"
            assert await session.step(write, "a.txt", "hello") == "done"

    run(main())
    assert written == ["elsewhere", "a.txt", "a.txt"]


def test_an_unsafe_call_whose_check_fails_is_unknown_until_verify_settles_it() -> None:
    sent: list[str] = []

    async def is_listed(result: str, to: str) -> str | None:
        return None if to in sent[1:] else f"no mail to {to} in the outbox"

    def outbox(key: str, to: str) -> Verdict:
        return NOT_HAPPENED if len(sent) == 1 else Happened("late")

    @tool(effect="unsafe", check=is_listed)
    async def mail(to: str) -> str:
        sent.append(to)
        return "sent"

    @recover("mail", Policy(attempts=3))
    @tool(effect="unsafe", check=is_listed, verify=outbox)
    async def verified(to: str) -> str:
        return await mail(to)

    async def main() -> None:
        async with Session.open("s", store=MemoryStore()) as session:
            with pytest.raises(HoldfastError, match="no mail to ann in the outbox"):
                await session.step(mail, "ann")
            with pytest.raises(OutcomeUnknownError):
                await session.step(mail, "ann")
        sent.clear()
        assert await verified("ben") == "sent"
        assert sent == ["ben", "ben"]

    run(main())


def test_recover_makes_an_idempotent_call_again_whose_check_fails() -> None:
    results = iter(["", "", "page"])

    @recover("web", Policy(attempts=3))
    @tool(effect="idempotent", check=bool)
    def fetch() -> str:
        return next(results)

    async def main() -> str:
        return await asyncio.to_thread(fetch)

    assert run(main()) == "page"


@pytest.mark.parametrize(
    ("verdict", "code"),
    [
        (False, "TOOL_EXECUTION_FAILED"),
        ("nothing was written", "TOOL_EXECUTION_FAILED"),
        ("TOOL_OUTPUT_MALFORMED", "TOOL_OUTPUT_MALFORMED"),
        (Fault.of("TOOL_FORBIDDEN"), "TOOL_FORBIDDEN"),
        (0, "TOOL_EXECUTION_FAILED"),
        (ValueError("a bug in the check"), "TOOL_EXECUTION_FAILED"),
        (None, None),
        (True, None),
    ],
)
def test_what_a_check_may_return(verdict: Any, code: str | None) -> None:
    def look(result: int) -> Any:
        if isinstance(verdict, Exception):
            raise verdict
        return verdict

    @tool(effect="read", check=look)
    def read() -> int:
        return 3

    outcome = recover("reader", Policy(attempts=1)).outcome(read)
    assert (None if isinstance(outcome, Ok) else outcome.fault.code) == code


def test_wrong_options_are_refused_where_they_are_written() -> None:
    async def later(*_: Any) -> Verdict:
        return CANNOT_TELL

    with pytest.raises(InvalidError, match='expected effect="unsafe"'):
        tool(effect="read", verify=later)
    with pytest.raises(InvalidError, match=r"tool\.check: expected a function"):
        tool(effect="read", check=3)  # type: ignore[arg-type]
    for options in ({"verify": later}, {"check": later}):
        with pytest.raises(InvalidError, match="a plain function, as the tool is one, got an async function"):
            tool(effect="unsafe", **options)(print_nothing)


def print_nothing() -> None:
    """A plain tool."""


# --- a person ---


class Person:
    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.shown: list[Question] = []

    async def ask(self, question: Question) -> Answer:
        self.shown.append(question)
        return Answer(self.answers.pop(0))


@pytest.mark.parametrize(
    ("answers", "returned", "calls"),
    [
        (("It happened", '"receipt 5"'), "receipt 5", 1),
        (("It did not happen",), "receipt 5", 2),
        (("I do not know",), None, 1),
        ((IT_HAPPENED, "receipt 5"), "receipt 5", 1),
        ((IT_HAPPENED, "5"), "5", 1),
        ((True, '"receipt 5"'), "receipt 5", 1),
        ((False,), "receipt 5", 2),
        (("yes", "receipt 5"), "receipt 5", 1),
        (("No",), "receipt 5", 2),
        ((IT_DID_NOT_HAPPEN,), "receipt 5", 2),
        ((I_DO_NOT_KNOW,), None, 1),
    ],
)
def test_step_or_ask_asks_a_person_whether_it_happened(answers: Any, returned: str | None, calls: int) -> None:
    bank = Bank(lose=1, die=True)

    @tool(effect="unsafe")
    async def pay(amount: int) -> str:
        return await bank.send(amount)

    person = Person(*answers)

    async def main() -> None:
        store = MemoryStore()
        await killed(store, lambda session: session.step(pay, 5))
        async with Session.open("s", store=store, interactors=[person]) as session:
            if returned is None:
                with pytest.raises(OutcomeUnknownError):
                    await session.step_or_ask(pay, 5)
            else:
                assert await session.step_or_ask(pay, 5) == returned
                assert session.unknown == ()

    run(main())
    assert bank.calls == calls
    assert person.shown[0].prompt.endswith("pay(5) was started and its end is not known. Did it happen?")
    assert tuple(person.shown[0].choices) == tuple(OUTCOMES)


def test_the_result_of_a_step_that_returns_no_text_must_be_json() -> None:
    @tool(effect="unsafe")
    async def pay(amount: int) -> dict[str, int]:
        return await Bank(lose=1, die=True).send(amount)

    async def main() -> None:
        store = MemoryStore()
        await killed(store, lambda session: session.step(pay, 5))
        async with Session.open("s", store=store, interactors=[Person(IT_HAPPENED, "receipt 5")]) as session:
            with pytest.raises(HoldfastError, match="JSON") as raised:
                await session.step_or_ask(pay, 5)
        assert raised.value.fault.code == "SESS_INTERACTION_MISMATCH"

    run(main())


def test_yes_is_no_choice_of_another_question() -> None:
    async def main() -> None:
        async with Session.open("s", store=MemoryStore(), interactors=[Person(True)]) as session:
            with pytest.raises(HoldfastError, match="one of staging, production"):
                await session.select("Where?", ["staging", "production"])

    run(main())


def test_a_new_doubt_about_the_same_step_is_a_new_question() -> None:
    bank = Bank(lose=2, before=True)

    @tool(effect="unsafe")
    async def pay(amount: int) -> str:
        return await bank.send(amount)

    person = Person("It did not happen", "It did not happen")

    async def main() -> None:
        async with Session.open("s", store=MemoryStore(), interactors=[person], mode="yolo") as session:
            assert await session.step_or_ask(pay, 5) == "receipt 5"

    run(main())
    assert len(person.shown) == 2
    assert bank.calls == 3


def test_nobody_attached_means_no_automatic_answer_to_a_doubt() -> None:
    bank = Bank(lose=1)

    @tool(effect="unsafe")
    async def pay(amount: int) -> str:
        return await bank.send(amount)

    async def main() -> None:
        async with Session.open("s", store=MemoryStore(), mode="yolo") as session:
            with pytest.raises(ConnectionResetError):
                await session.step_or_ask(pay, 5)
            with pytest.raises(OutcomeUnknownError):
                await session.step_or_ask(pay, 5)

    run(main())
    assert bank.calls == 1


def test_a_fork_asks_about_the_call_that_the_original_made() -> None:
    bank = Bank(lose=1, die=True)
    pay = payment(bank)

    async def main() -> None:
        store = MemoryStore()
        await killed(store, lambda session: session.step(pay, 5))
        await fork_session(store, "s", "fork")
        async with Session.open("fork", store=store) as session:
            assert await session.step(pay, 5) == "receipt 5"

    run(main())
    assert bank.calls == 1
    ((key, _),) = bank.lookups
    assert key == next(iter(bank.paid))
