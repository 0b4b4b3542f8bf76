"""A call whose thread was left behind may still take effect: nobody may say that it did not happen before the thread has ended."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from holdfast import NOT_HAPPENED, Agent, Happened, InvalidError, OutcomeUnknownError, Policy, Verdict, recover, tool
from holdfast.providers import Offers, Reply, ToolCall, ToolResult
from holdfast.runtime.failures.left_behind import LEFT_BEHIND
from holdfast.sessions import IT_DID_NOT_HAPPEN, Answer, Session
from holdfast.stores import MemoryStore
from holdfast.tools import Toolbox, ToolError, edit_file
from holdfast.tools import files as files_module
from holdfast.tools.toolbox import as_tool


class Bank:
    """A service that takes a payment when the test lets it."""

    def __init__(self) -> None:
        self.begun = 0
        self.paid = 0
        self.asked = 0
        self.began = threading.Event()
        self.may_pay = threading.Event()

    def send(self) -> str:
        self.begun += 1
        self.began.set()
        self.may_pay.wait(20)
        self.paid += 1
        return "receipt"

    def find(self, key: str, **_: Any) -> Verdict:
        self.asked += 1
        return Happened("receipt") if self.paid else NOT_HAPPENED


async def until_none_runs() -> None:
    for _ in range(2000):
        if not LEFT_BEHIND._keys:
            return
        await asyncio.sleep(0.005)
    raise AssertionError("a thread still runs")


def test_XT1_a_tool_over_its_time_is_not_verified_while_its_thread_runs() -> None:
    bank = Bank()

    @tool(effect="unsafe", timeout=0.05, verify=bank.find)
    def pay() -> str:
        return bank.send()

    async def main() -> None:
        ended = await Toolbox([pay]).outcome("pay")
        assert ended.fault.code == "TOOL_OUTCOME_UNKNOWN"
        bank.may_pay.set()
        await until_none_runs()

    asyncio.run(main())
    assert (bank.begun, bank.paid, bank.asked) == (1, 1, 0)


def test_XT1_neither_is_a_plain_call_in_a_thread_of_recover() -> None:
    bank = Bank()

    @recover("bank", Policy(attempts=3, timeout=0.05), threads=True)
    @tool(effect="unsafe", verify=bank.find)
    def pay() -> str:
        return bank.send()

    with pytest.raises(OutcomeUnknownError):
        pay()
    bank.may_pay.set()
    asyncio.run(until_none_runs())
    assert (bank.begun, bank.paid, bank.asked) == (1, 1, 0)


def test_XT1_a_step_is_verified_when_its_thread_has_ended() -> None:
    bank = Bank()

    @as_tool
    @tool(effect="unsafe", verify=bank.find)
    def pay() -> str:
        return bank.send()

    async def main() -> None:
        async with MemoryStore() as store, Session.open("s", store=store) as session:
            first = asyncio.ensure_future(session.step(pay))
            await asyncio.to_thread(bank.began.wait, 20)
            first.cancel()
            with pytest.raises(asyncio.CancelledError):
                await first
            with pytest.raises(OutcomeUnknownError):
                await session.step(pay)
            assert bank.asked == 0
            bank.may_pay.set()
            await until_none_runs()
            assert await session.step(pay) == "receipt"

    asyncio.run(main())
    assert (bank.begun, bank.paid, bank.asked) == (1, 1, 1)


class Early:
    """Somebody who looks at once, and says that it did not happen yet."""

    def __init__(self) -> None:
        self.asked = 0

    async def ask(self, question: Any) -> Answer:
        del question
        self.asked += 1
        return Answer(IT_DID_NOT_HAPPEN)


class PaysOnce:
    """A model that calls `pay` once."""

    name = "own/scripted"
    offers = Offers(tool_calling=True)

    async def exchange(self, request: Any) -> Reply:
        if any(isinstance(message, ToolResult) for message in request.messages):
            return Reply(text="done")
        return Reply(calls=(ToolCall(id="call-1", name="pay", arguments={}),), stop="tools")

    @asynccontextmanager
    async def stream(self, request: Any, **_: Any) -> AsyncIterator[Any]:
        raise NotImplementedError
        yield request


@pytest.mark.parametrize("how", ["step_or_ask", "agent"])
def test_XT1_nobody_is_asked_and_believed_while_the_thread_runs(how: str) -> None:
    bank, person = Bank(), Early()

    @recover("bank", Policy(attempts=1, timeout=0.05), threads=True)
    @tool(effect="unsafe")
    def pay_in_thread() -> str:
        return bank.send()

    @tool(effect="unsafe", timeout=0.05)
    def pay() -> str:
        return bank.send()

    async def main() -> None:
        async with (
            MemoryStore() as store,
            Session.open("s", store=store, mode="yolo", interactors=[person], threads=True) as session,
        ):
            if how == "agent":
                await Agent("clerk", PaysOnce(), [pay]).run("Pay.", session=session)
            else:
                with pytest.raises(OutcomeUnknownError):
                    await session.step_or_ask(pay_in_thread)
            (key,) = session.unknown
            with pytest.raises(InvalidError, match="still runs"):
                await session.resolve(key, happened=False)
            bank.may_pay.set()
            await until_none_runs()
            await session.resolve(key, happened=True, result="receipt")

    asyncio.run(main())
    assert (bank.begun, bank.paid, person.asked) == (1, 1, 0)


def test_XT1_a_body_cannot_say_that_nothing_happened_while_its_thread_runs() -> None:
    bank = Bank()

    @as_tool
    @tool(effect="unsafe")
    def send() -> str:
        return bank.send()

    @tool(effect="unsafe")
    async def pay() -> str:
        sending = asyncio.ensure_future(send())
        await asyncio.to_thread(bank.began.wait, 20)
        sending.cancel()
        await asyncio.wait((sending,))
        raise ToolError("the bank is slow")

    async def main() -> None:
        async with MemoryStore() as store, Session.open("s", store=store) as session:
            with pytest.raises(ToolError):
                await session.step(pay)
            with pytest.raises(OutcomeUnknownError):
                await session.step(pay)
            bank.may_pay.set()
            await until_none_runs()

    asyncio.run(main())
    assert (bank.begun, bank.paid) == (1, 1)


def test_XT1_edit_file_changes_nothing_after_it_was_cancelled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.txt").write_text("before")
    reading, may_go_on = threading.Event(), threading.Event()
    content = files_module._content

    def slow(place: Any) -> Any:
        reading.set()
        may_go_on.wait(20)
        return content(place)

    monkeypatch.setattr(files_module, "_content", slow)
    box = Toolbox([edit_file(tmp_path)])

    async def main() -> None:
        editing = asyncio.ensure_future(box.answer("edit_file", {"path": "a.txt", "old": "before", "new": "after"}))
        await asyncio.to_thread(reading.wait, 20)
        editing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await editing
        may_go_on.set()
        await until_none_runs()

    asyncio.run(main())
    assert (tmp_path / "a.txt").read_text() == "before"
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]


def test_XT1_edit_file_ends_before_it_is_cancelled_once_it_has_begun_to_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.txt").write_text("before")
    writing, may_go_on = threading.Event(), threading.Event()
    write = files_module._write

    def slow(place: Any, content: bytes, mode: int) -> None:
        writing.set()
        may_go_on.wait(20)
        write(place, content, mode)

    monkeypatch.setattr(files_module, "_write", slow)
    box = Toolbox([edit_file(tmp_path)])

    async def main() -> None:
        editing = asyncio.ensure_future(box.answer("edit_file", {"path": "a.txt", "old": "before", "new": "after"}))
        await asyncio.to_thread(writing.wait, 20)
        editing.cancel()
        await asyncio.sleep(0)
        assert not editing.done()
        may_go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await editing
        # What the caller sees now stays.
        assert (tmp_path / "a.txt").read_text() == "after"

    asyncio.run(main())
