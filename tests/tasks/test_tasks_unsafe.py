"""Unsafe tasks in workflows, task systems and stages: what may have happened is not done again, and nothing is done in its place."""

from __future__ import annotations

import asyncio
import json
import threading
from typing import Any

import anthropic
import httpx2
import pytest

from holdfast import (
    CANNOT_TELL,
    NOT_HAPPENED,
    Agent,
    Err,
    Fault,
    Happened,
    HoldfastError,
    InvalidError,
    Ok,
    OutcomeUnknownError,
    Session,
    Task,
    TaskError,
    Tries,
    Verdict,
    tool,
)
from holdfast.documents.task import TaskSystem
from holdfast.providers.anthropic import anthropic_model
from holdfast.runtime.failures.left_behind import LEFT_BEHIND
from holdfast.stores import MemoryStore
from holdfast.tasks import Decomposition, Status, TaskResult
from holdfast.tasks.stages import Stage, StageMachine
from holdfast.tasks.workflows import Workflow
from holdfast.testing import FaultProvider
from holdfast.testing.provider import Script, Turn

LOST = [ConnectionResetError(104, "Connection reset by peer"), TimeoutError(), KeyError("id"), RuntimeError("x")]
FORMS = [
    "(retry 3 (pay 5))",
    "(fallback (pay 5) (pay-elsewhere 5))",
    "(retry-later ((after 1) (attempts 3)) (pay 5))",
    "(try (pay 5) (catch (e) (pay-elsewhere 5)))",
    "(map pay (list 5) :collect true)",
]


class Bank:
    def __init__(self, error: Exception | None, *, times: int = 1, pays: bool = True) -> None:
        self.payments = 0
        self.begun = 0
        self.elsewhere = 0
        self._error, self._times, self._pays = error, times, pays

    def tasks(self, **options: Any) -> dict[str, Any]:
        @tool(effect="unsafe", **options)
        async def pay(amount: int) -> str:
            self.begun += 1
            fails = self._error is not None and self.begun <= self._times
            self.payments += self._pays or not fails
            if fails:
                assert self._error is not None
                raise self._error
            return "receipt"

        @tool(effect="unsafe")
        async def elsewhere(amount: int) -> str:
            self.elsewhere += 1
            return "another receipt"

        return {"pay": pay, "pay-elsewhere": elsewhere}


async def start(source: str, store: MemoryStore | None, tasks: dict[str, Any]) -> Any:
    workflow = Workflow(source, tasks=tasks)
    if store is None:
        return await workflow.run()
    async with Session.open("s", store=store) as session:
        return await workflow.run(session)


@pytest.mark.parametrize("error", LOST, ids=repr)
@pytest.mark.parametrize("source", FORMS)
@pytest.mark.parametrize("stored", [False, True])
async def test_XK1_a_workflow_does_nothing_again_or_instead_of_what_may_have_happened(
    source: str, error: Exception, stored: bool
) -> None:
    bank = Bank(error)
    store = MemoryStore() if stored else None
    for _ in range(2 if stored else 1):
        with pytest.raises(OutcomeUnknownError):
            await start(source, store, bank.tasks())
    assert (bank.payments, bank.elsewhere) == (1, 0)


@pytest.mark.parametrize("stored", [True, False])
async def test_a_doubt_of_a_run_inside_of_a_task_ends_the_run_around_it(stored: bool) -> None:
    bank, store = Bank(LOST[0]), MemoryStore()
    inner = Workflow("(fallback (pay 5) (pay-elsewhere 5))", tasks=bank.tasks())

    @tool(effect="read")
    async def settle(session: Session) -> Any:
        return await inner.run(session if stored else None)

    tasks = {"settle": settle, "instead": bank.tasks()["pay-elsewhere"]}
    with pytest.raises(OutcomeUnknownError):
        await start("(fallback (settle) (instead 5))", store, tasks)
    assert (bank.payments, bank.elsewhere) == (1, 0)


@pytest.mark.parametrize("stored", [False, True])
async def test_XK1_what_did_not_happen_is_retried(stored: bool) -> None:
    bank = Bank(ConnectionRefusedError(111, "refused"), times=2, pays=False)
    assert await start("(retry 3 (pay 5))", MemoryStore() if stored else None, bank.tasks()) == "receipt"
    assert (bank.begun, bank.payments) == (3, 1)


async def test_XK1_a_workflow_goes_on_with_what_verify_found() -> None:
    store, bank = MemoryStore(), Bank(KeyError("id"), pays=False)

    def find(key: str, amount: int) -> Verdict:
        return Happened("receipt") if bank.payments else NOT_HAPPENED

    for _ in range(2):
        # Also when it runs again: the first call is not made then.
        assert await start("(fallback (pay 5) (pay-elsewhere 5))", store, bank.tasks(verify=find)) == "another receipt"
    assert (bank.begun, bank.payments, bank.elsewhere) == (1, 0, 1)

    store, bank = MemoryStore(), Bank(KeyError("id"))
    assert await start("(fallback (pay 5) (pay-elsewhere 5))", store, bank.tasks(verify=find)) == "receipt"
    assert (bank.payments, bank.elsewhere) == (1, 0)


async def test_XK1_an_unsafe_performer_is_not_asked_again_for_a_better_answer() -> None:
    asked = []

    @tool(effect="unsafe")
    async def perform(assignment: Any) -> str:
        asked.append(assignment.prompt)
        return "paid, but this is no JSON"

    system = TaskSystem(perform)
    with pytest.raises(TaskError) as failed:
        await system.run(Task("pay", output={"type": "object"}, reasks=3))
    assert failed.value.fault.maybe_executed
    assert len(asked) == 1


@pytest.mark.parametrize("error", LOST, ids=repr)
async def test_XK1_an_unsafe_act_of_a_stage_is_not_tried_again(error: Exception) -> None:
    ran = []

    @tool(effect="unsafe")
    async def act(work: Any) -> str:
        ran.append(1)
        raise error

    with pytest.raises(OutcomeUnknownError):
        await StageMachine([Stage("pay", act, retry=Tries(attempts=3))]).run()
    assert len(ran) == 1


async def test_a_function_of_a_stage_goes_on_with_a_call_of_which_verify_found_that_it_did_not_happen() -> None:
    bank, looks, store = Bank(ConnectionResetError(104, "Connection reset by peer"), pays=False), [], MemoryStore()

    def find(key: str, amount: int) -> Verdict:
        looks.append(key)
        return CANNOT_TELL if len(looks) == 1 else NOT_HAPPENED

    async def act(work: Any) -> Any:
        answer = await work.call("pay", amount=5)
        return [answer.fault.code, answer.fault.maybe_executed, "It did not happen" in answer.content]

    machine = StageMachine([Stage("a", act)], tools=[bank.tasks(verify=find)["pay"]])
    for _ in range(2):
        async with Session.open("s", store=store) as session:
            ended = await machine.run(session)
            assert ended.value == ["CONN_RESET", False, True]
            assert session.unknown == ()
    assert bank.begun == 1


def test_XD20_a_tool_cannot_take_a_name_of_the_language() -> None:
    @tool(effect="read")
    def retry(n: int) -> int:
        return n

    with pytest.raises(InvalidError, match="a name that the language does not have"):
        Workflow("(retry 3 (list))", tools=[retry])


async def test_XT1_a_plain_performer_that_was_left_behind_is_not_verified_before_its_end() -> None:
    began, may_pay = threading.Event(), threading.Event()
    paid: list[str] = []
    asked: list[str] = []

    def find(key: str, prompt: str) -> Verdict:
        asked.append(prompt)
        return Happened("receipt") if paid else NOT_HAPPENED

    @tool(effect="unsafe", verify=find)
    def pay(assignment: Any) -> str:
        began.set()
        may_pay.wait(20)
        paid.append(assignment.prompt)
        return "receipt"

    async with Session.open("s", store=MemoryStore()) as session:
        first = asyncio.ensure_future(TaskSystem(pay).run(Task("pay"), session=session))
        await asyncio.to_thread(began.wait, 20)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        with pytest.raises(HoldfastError):
            await TaskSystem(pay).run(Task("pay"), session=session)
        assert (asked, paid) == ([], [])
        may_pay.set()
        for _ in range(2000):
            if paid and not LEFT_BEHIND._keys:
                break
            await asyncio.sleep(0.005)
        assert await TaskSystem(pay).run(Task("pay"), session=session) == "receipt"
    assert len(paid) == len(asked) == 1


@pytest.mark.parametrize("found", ["receipt 7", {"receipt": 7}, 7, None])
async def test_what_a_person_found_out_about_a_performer_is_its_answer(found: Any) -> None:
    paid: list[str] = []

    @tool(effect="unsafe")
    async def pay(assignment: Any) -> Any:
        paid.append(assignment.prompt)
        raise KeyError("id")

    async def perform(session: Session) -> Any:
        return await TaskSystem(pay).outcome(Task("pay"), session=session)

    async with MemoryStore() as store:
        async with Session.open("s", store=store) as session:
            assert isinstance(await perform(session), Err)
            (key,) = session.unknown
            await session.resolve(key, happened=True, result=found)
        for _ in range(2):
            async with Session.open("s", store=store) as session:
                ended = await perform(session)
                assert isinstance(ended, Ok), ended
                assert (ended.value.content if isinstance(found, str) else json.loads(ended.value.content)) == found
    assert len(paid) == 1


async def test_what_verify_found_about_a_performer_is_its_answer_in_the_next_run_too() -> None:
    @tool(effect="unsafe", verify=lambda key, *_: Happened("receipt"))
    async def pay(assignment: Any) -> str:
        raise ConnectionResetError(104, assignment.prompt)

    async with MemoryStore() as store:
        for _ in range(2):
            async with Session.open("s", store=store) as session:
                assert await TaskSystem(pay).run(Task("pay"), session=session) == "receipt"


# --- a performer that has made an unsafe call ---


def other_words(task: Task, fault: Any) -> Task:
    return task.with_(prompt=f"Another way: {task.prompt}")


async def parts(task: Task, fault: Any, left: Any) -> Decomposition:
    return Decomposition([task.with_(prompt="a", turns=None), task.with_(prompt="b", turns=None)], "concatenate")


def subtask_of(perform: Any) -> Any:
    async def parent(assignment: Any) -> Any:
        if assignment.results:
            return assignment.results[0].content
        if assignment.task.prompt == "pay in a subtask":
            request = {"type": "atomic", "description": "pay"}
            return TaskResult(status=Status.CONTINUATION, notes={"subtask_request": request})
        return await perform(assignment)

    return parent


SECOND_TRIES: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "handler": ({"handlers": dict.fromkeys(("general", "format", "resource"), other_words)}, {}, "pay"),
    "split": ({"decomposer": parts}, {}, "pay"),
    "subtask": ({}, {}, "pay in a subtask"),
    "asking again": ({}, {"output": int}, "pay"),
    "alternative": ({"alternative": other_words}, {}, "pay"),
}
ENDS: list[Any] = [
    ConnectionResetError(104, "Connection reset by peer"),
    "no number",
    HoldfastError(Fault.of("TASK_TURNS_EXHAUSTED")),
    HoldfastError(Fault.of("TASK_HALTED")),
    HoldfastError(Fault.of("TASK_OUTPUT_INVALID")),
]


@pytest.mark.parametrize("end", ENDS, ids=str)
@pytest.mark.parametrize("within", [True, False], ids=["the payment fails", "it fails after the payment"])
@pytest.mark.parametrize("way", SECOND_TRIES)
async def test_a_task_is_not_done_in_another_way_after_an_unsafe_step(way: str, end: Any, within: bool) -> None:
    options, of_task, prompt = SECOND_TRIES[way]
    bank = Bank(end if within and isinstance(end, Exception) else None)
    pay = bank.tasks()["pay"]

    async def perform(assignment: Any) -> str:
        await session.step(pay, 5)
        if isinstance(end, Exception):
            raise end
        return str(end)

    performer = subtask_of(perform) if way == "subtask" else perform
    async with MemoryStore() as store:
        for _ in range(2):
            async with Session.open("s", store=store) as session:
                ended = await TaskSystem(performer, **options).outcome(Task(prompt, **of_task), session=session)
                if isinstance(ended, Err):
                    assert ended.fault.maybe_executed
    assert bank.payments == 1


async def test_a_task_is_done_in_another_way_after_an_unsafe_step_that_was_rejected() -> None:
    bank = Bank(ConnectionRefusedError(111, "Connection refused"), pays=False)
    pay = bank.tasks()["pay"]

    async def perform(assignment: Any) -> str:
        return str(await session.step(pay, 5))

    async with Session.open("s", store=MemoryStore()) as session:
        tasks = TaskSystem(perform, handlers={"general": other_words, "resource": other_words})
        assert await tasks.run(Task("pay"), session=session) == "receipt"
    assert bank.payments == 1


@pytest.mark.parametrize("stored", [True, False])
@pytest.mark.parametrize("way", ["handler", "split", "asking again"])
async def test_a_task_of_an_agent_is_not_done_in_another_way_after_an_unsafe_tool(way: str, stored: bool) -> None:
    options, of_task, prompt = SECOND_TRIES[way]
    bank = Bank(None)
    calls = (Turn(tool="pay", arguments={"amount": number}) for number in range(5, 9))
    replies: tuple[Any, ...] = tuple(calls) if way != "asking again" else (next(calls), *["no number"] * 9)
    http = httpx2.AsyncClient(transport=FaultProvider(Script(replies=replies)).transport())
    model = anthropic_model("claude-haiku-4-5", anthropic.AsyncAnthropic(api_key="none", http_client=http))
    tasks = TaskSystem(Agent("payer", model, [bank.tasks()["pay"]]), **options)
    async with Session.open("s", store=MemoryStore(), mode="yolo") as session:
        task = Task(prompt, turns=2 if way != "asking again" else 9, **of_task)
        ended = await tasks.outcome(task, session=session if stored else None)
    assert isinstance(ended, Err)
    assert ended.fault.maybe_executed
    assert ended.fault.context["unsafe_calls"] == ["pay"]
    assert bank.payments == 1


MAP = "(map (lambda (each) (if (= each 1) (pay each) (look each))) (list 1 2))"


class Slow:
    """A payment that goes through and whose answer takes long, beside a look-up that fails meanwhile."""

    def __init__(self, verdict: Verdict | None = None) -> None:
        self.payments = 0
        self.elsewhere = 0
        self._paid = asyncio.Event()
        self._verdict = verdict

    def tasks(self) -> dict[str, Any]:
        @tool(effect="unsafe", verify=None if self._verdict is None else self._verify)
        async def pay(each: int) -> str:
            self.payments += 1
            self._paid.set()
            await asyncio.Event().wait()
            raise AssertionError

        async def look(each: int) -> str:
            await self._paid.wait()
            raise ConnectionRefusedError(111, "Connection refused")

        async def elsewhere(each: int) -> str:
            self.elsewhere += 1
            return "paid elsewhere"

        return {"pay": pay, "look": look, "pay-elsewhere": elsewhere}

    def _verify(self, key: str, **_: Any) -> Verdict:
        assert self._verdict is not None
        return self._verdict


@pytest.mark.parametrize(
    "source",
    [
        f"(retry 2 {MAP})",
        f"(fallback {MAP} (pay-elsewhere 1))",
        f"(try {MAP} (catch (e) (pay-elsewhere 1)))",
        f"(map (lambda (x) (retry 2 {MAP})) (list 1))",
    ],
)
@pytest.mark.parametrize("in_session", [False, True])
async def test_an_unsafe_call_that_another_item_of_its_map_stopped_is_not_made_again(source: str, in_session: bool):
    slow = Slow()
    async with MemoryStore() as store:
        for _ in range(3 if in_session else 1):
            with pytest.raises(OutcomeUnknownError):
                await start(source, store if in_session else None, slow.tasks())
    assert (slow.payments, slow.elsewhere) == (1, 0)


async def test_an_unsafe_call_that_another_item_stopped_is_settled_by_its_verify_in_the_next_run():
    slow = Slow(Happened("receipt"))
    async with MemoryStore() as store:
        with pytest.raises(OutcomeUnknownError):
            await start(f"(fallback {MAP} (pay-elsewhere 1))", store, slow.tasks())
        assert await start(f"(fallback {MAP} (pay-elsewhere 1))", store, slow.tasks()) == "paid elsewhere"
    assert (slow.payments, slow.elsewhere) == (1, 1)


async def test_an_unsafe_task_whose_time_is_over_may_have_happened():
    begun: list[Any] = []

    @tool(effect="unsafe")
    async def pay(assignment: Any) -> str:
        begun.append(assignment)
        await asyncio.Event().wait()
        raise AssertionError

    result = await TaskSystem(pay).execute_task(Task("Pay", seconds=5))
    assert len(begun) == 1
    assert result.fault is not None
    assert (result.fault.code, result.fault.maybe_executed) == ("TASK_TIMEOUT", True)
