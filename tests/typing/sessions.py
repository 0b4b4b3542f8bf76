"""Sessions (API.md, job 4) as a type checker sees them. Never run."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import assert_type

from holdfast import Outcome, Session, tool
from holdfast.faults import Fault
from holdfast.sessions import Answer, DeviceCode, Interactor, Question, answer
from holdfast.stores import Store


async def make_plan(goal: str) -> str:
    return goal


def count(plan: str, *, twice: bool = False) -> int:
    return len(plan) * (2 if twice else 1)


@tool(effect="unsafe")
async def deploy(plan: str) -> int:
    return len(plan)


async def summarise(document: bytes) -> str:
    return document.decode()


class Window:
    async def ask(self, question: Question) -> Answer:
        return Answer(question.prompt)


class Deaf:
    async def ask(self, question: str) -> str:
        return question


async def sign_in(fault: Fault) -> DeviceCode:
    return DeviceCode(fault.message)


async def job(store: Store, documents: list[bytes]) -> None:
    window: Interactor = Window()
    async with Session.open("release-42", interactors=[window]) as s:
        assert_type(s, Session)
        plan = await s.step(make_plan, "goal")
        assert_type(plan, str)
        assert_type(await s.step(count, plan, twice=True), int)
        assert_type(await s.approve(f"Deploy {plan}?", expires=3600), bool)
        assert_type(await s.step(deploy, plan), int)
        assert_type(await s.step_or_ask(make_plan, "goal"), str)
        assert_type(await s.step_or_ask(count, plan), int)
        async for result in s.map(summarise, documents, concurrency=16):
            assert_type(result, Outcome[str])
        assert_type(await s.ask("Name?"), str)
        assert_type(await s.select("Where?", ["here", "there"]), str)
        assert_type(await s.confirm("Sure?"), bool)
        assert_type(await s.authenticate("Sign in", url="https://id.example/device"), bool)
        assert_type(await s.password("Password?"), str | None)
        s.sign_in = sign_in
        await s.answer("q-1", approved=True)
        await answer(store, "s", "q-1", "there", by="ada")

        await s.step(make_plan, 7)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]
        await s.step_or_ask(make_plan)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
        await s.approve("Deploy?", timeout=3)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
        s.attach(Deaf())  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def opened(store: Store) -> Awaitable[Session]:
    return Session.open("s", store=store).__aenter__()
