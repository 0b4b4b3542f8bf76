"""Failures of sessions: resuming what cannot be resumed, cancelling, and questions that get no answer."""

from __future__ import annotations

import warnings
from collections.abc import Awaitable, Callable
from typing import Any

from holdfast import Fault, HoldfastError, Session, tool
from holdfast.sessions import Answer, Question, answer, openings
from holdfast.sessions.log import QuestionRaised, TurnStarted, new_entry
from holdfast.sessions.manifest import Manifest, encode_manifest
from holdfast.stores import Commit, EncryptedStore, MemoryStore, NewSession, SessionState
from holdfast.testing import run


class _Says:
    def __init__(self, given: Answer) -> None:
        self.given = given

    async def ask(self, question: Question) -> Answer:
        assert question.id
        return self.given


def _raised(work: Callable[[MemoryStore], Awaitable[Any]]) -> Fault:
    async def main() -> Fault:
        try:
            await work(MemoryStore())
        except HoldfastError as error:
            return error.fault
        raise AssertionError("this was supposed to fail")

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return run(main())


async def _worked(store: MemoryStore, **options: Any) -> None:
    async with Session.open("s", store=store, **options) as session:
        await session.step(abs, -3)


async def _raise_question(store: MemoryStore, *bodies: Any) -> None:
    manifest = encode_manifest(Manifest(session_id="s", store_id=store.id))
    entries = tuple(new_entry(one, f"e{n}") for n, one in enumerate((TurnStarted(turn=1, own=True), *bodies)))
    await store.commit(Commit(session="s", create=NewSession(manifest=manifest)))
    await store.commit(Commit(session="s", state=SessionState.ACTIVE, entries=entries))


def session_may_not_be_resumed() -> Fault:
    async def work(store: MemoryStore) -> None:
        await _worked(store, resumable=False)
        await _worked(store, resumable=False)

    return _raised(work)


def session_waits() -> Fault:
    async def work(store: MemoryStore) -> None:
        async with Session.open("s", store=store) as session:
            session.work.begin()
            await session.sleep(3600)

    return _raised(work)


def session_is_cancelled() -> Fault:
    async def work(store: MemoryStore) -> None:
        async with Session.open("s", store=store) as session:
            session.cancel()
            await session.ask("Name?", expires=60)

    return _raised(work)


def turn_is_cancelled() -> Fault:
    async def work(store: MemoryStore) -> None:
        async with Session.open("s", store=store, interactors=[_Says(Answer.dismissed())]) as session:
            await session.ask("Name?")

    return _raised(work)


def turn_is_begun_inside_another() -> Fault:
    async def work(store: MemoryStore) -> None:
        async with Session.open("s", store=store) as session, session.turn(), session.turn():
            pass

    return _raised(work)


def tools_are_others() -> Fault:
    async def work(store: MemoryStore) -> None:
        await _worked(store, tools={"bash": {"v": 1}})
        await _worked(store, tools={"bash": {"v": 2}}, on_drift="refuse")

    return _raised(work)


def session_is_another_stores() -> Fault:
    async def work(store: MemoryStore) -> None:
        manifest = encode_manifest(Manifest(session_id="s", store_id="elsewhere"))
        await store.commit(Commit(session="s", create=NewSession(manifest=manifest)))
        await _worked(store)

    return _raised(work)


def key_is_another() -> Fault:
    async def work(store: MemoryStore) -> None:
        await _worked(EncryptedStore(store, bytes(32)))
        await _worked(EncryptedStore(store, bytes(range(32))))

    return _raised(work)


def nothing_was_saved() -> Fault:
    async def work(store: MemoryStore) -> None:
        await _raise_question(store)
        await _worked(store, strict=True, on_crash="abandon")

    return _raised(work)


@tool(effect="unsafe")
def _deploy(plan: str) -> str:
    return plan


def step_has_other_arguments() -> Fault:
    async def work(store: MemoryStore) -> None:
        for plan in ("version 1", "version 2"):
            openings._KEPT.clear()  # another run of the program
            async with Session.open("s", store=store) as session:
                await session.step(_deploy, plan)

    return _raised(work)


def nobody_is_there_to_answer() -> Fault:
    async def work(store: MemoryStore) -> None:
        async with Session.open("s", store=store) as session:
            await session.approve("Deploy?")

    return _raised(work)


def question_is_answered_twice() -> Fault:
    async def work(store: MemoryStore) -> None:
        await _raise_question(store, QuestionRaised(id="q-1", step="?Approve#1", turn=1, kind="Approve"))
        await answer(store, "s", "q-1", approved=True)
        await answer(store, "s", "q-1", approved=False)

    return _raised(work)


def question_expires() -> Fault:
    async def work(store: MemoryStore) -> None:
        async with Session.open("s", store=store) as session:
            await session.approve("Deploy?", expires=60)

    return _raised(work)


def question_is_of_no_known_kind() -> Fault:
    async def work(store: MemoryStore) -> None:
        await _raise_question(store, QuestionRaised(id="q-1", step="?Sketch#1", turn=1, kind="Sketch"))
        await answer(store, "s", "q-1", "…")

    return _raised(work)


def answer_does_not_fit() -> Fault:
    async def work(store: MemoryStore) -> None:
        await _raise_question(store, QuestionRaised(id="q-1", step="?Approve#1", turn=1, kind="Approve"))
        await answer(store, "s", "q-1", "perhaps")

    return _raised(work)
