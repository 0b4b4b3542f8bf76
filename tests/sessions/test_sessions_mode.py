"""The mode of a session with its list of tools, and approvals that are bound to what exactly was shown."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from sessions_kit import code_of

from holdfast.faults import HoldfastError, InvalidError
from holdfast.sessions import Answer, DriftWarning, Session, answer
from holdfast.stores import MemoryStore
from holdfast.testing import run


def test_G14_a_session_in_mode_allowlist_has_its_list_and_a_resumed_one_takes_it_from_the_manifest():
    async def main():
        store = MemoryStore()
        async with Session.open("s", store=store, mode="allowlist", allowed_tools=["search", "read"]) as session:
            assert (session.mode, session.allowed_tools) == ("allowlist", {"read", "search"})
            await session.message("hello")
        async with Session.open("s", store=store, mode="allowlist") as session:
            assert session.allowed_tools == {"read", "search"}
            assert session.drift == ()
        async with Session.open("s", store=store, mode="allowlist", allowed_tools=iter(["search", "read"])) as session:
            assert session.drift == ()
        with pytest.warns(DriftWarning, match="allowed_tools was"):
            async with Session.open("s", store=store, mode="allowlist", allowed_tools=["read"]) as session:
                assert session.allowed_tools == {"read"}

    run(main())


def test_the_other_modes_have_no_list():
    async def main():
        async with Session.open("s", store=MemoryStore()) as session:
            assert (session.mode, session.allowed_tools) == ("ask", None)

    run(main())


def test_an_empty_list_allows_nothing_and_is_kept():
    async def main():
        store = MemoryStore()
        for given in ((), None):
            async with Session.open("s", store=store, mode="allowlist", allowed_tools=given) as session:
                assert session.allowed_tools == frozenset()
                await session.message("hello")

    run(main())


def test_a_new_session_in_mode_allowlist_needs_a_list_and_none_is_made_without_it():
    async def main():
        store = MemoryStore()
        with pytest.raises(InvalidError, match=r'allowed_tools: expected the names of the tools for mode="allowlist"'):
            async with Session.open("s", store=store, mode="allowlist"):
                raise AssertionError
        with pytest.raises(HoldfastError) as missing:
            await store.session("s")
        assert code_of(missing.value) == "SESS_NOT_FOUND"

    run(main())


@pytest.mark.parametrize(
    ("mode", "given"), [("ask", ["read"]), ("yolo", []), ("allowlist", "read"), ("allowlist", [""]), ("allowlist", [5])]
)
def test_a_list_that_would_be_ignored_or_misread_is_rejected(mode: str, given: Any) -> None:
    with pytest.raises(InvalidError, match=r"session\.allowed_tools: expected a list"):
        Session.open("s", store=MemoryStore(), mode=mode, allowed_tools=given)


class Clerk:
    """Answers everything, and keeps what was shown."""

    name = "clerk"

    def __init__(self, *answers: Answer) -> None:
        self.answers = list(answers)
        self.shown: list[Any] = []

    async def ask(self, question):
        self.shown.append(question)
        return self.answers.pop(0)


def test_G13_an_approval_holds_only_for_the_details_that_were_shown():
    async def main():
        clerk = Clerk(Answer(True), Answer.no("too much"))
        async with Session.open("s", store=MemoryStore(), interactors=[clerk]) as session:
            first = await session.approval("Pay?", details={"amount": 5})
            other = await session.approval("Pay?", details={"amount": 5000})
        assert (first.outcome, first.by) == ("accepted", "clerk")
        assert (other.outcome, other.reason) == ("rejected", "too much")
        assert [question.details for question in clerk.shown] == [{"amount": 5}, {"amount": 5000}]

    run(main())


def test_G13_an_answer_that_comes_after_a_restart_holds_for_the_same_details_only():
    async def main():
        store = MemoryStore()
        for _ in range(2):
            with pytest.raises(HoldfastError) as kept:
                async with Session.open("s", store=store) as session:
                    await session.approval("Pay?", details={"amount": 5})
            assert code_of(kept.value) == "SESS_NO_INTERACTOR"
        (question,) = session.pending
        await answer(store, "s", question.id, approved=True, by="ann")
        async with Session.open("s", store=store) as session:
            assert (await session.approval("Pay?", details={"amount": 5})).by == "ann"
            with pytest.raises(HoldfastError, match="Permission required"):
                await session.approval("Pay?", details={"amount": 6})

    run(main())


@pytest.mark.parametrize("used", [True, False])
def test_a_record_of_a_session_is_in_its_audit_trail_also_if_nothing_else_is_done(used):
    async def main():
        store = MemoryStore()
        async with Session.open("s", store=store) as session:
            if used:
                await session.message("hello")
            session.audit("Approval", tool="deploy", verdict="deny")
        records = [record for record in await store.audit("session:s") if record.kind == "Approval"]
        assert [msgspec.json.decode(bytes(record.payload)) for record in records] == [
            {"tool": "deploy", "verdict": "deny"}
        ]

    run(main())
