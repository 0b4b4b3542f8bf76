"""Which tool calls run: envelope, then grant, then mode; decided without I/O."""

from __future__ import annotations

import asyncio
from itertools import product
from typing import Any

import pytest
from agents_kit import World

from holdfast import Agent, tool
from holdfast.agents.approval import Approval, denied, propose
from holdfast.faults import InvalidError
from holdfast.faults.redaction import REDACTOR
from holdfast.sessions import answer
from holdfast.stores.memory import MemoryStore
from holdfast.testing.provider import Turn

MODES = {"ask": None, "allowlist": frozenset({"read"}), "yolo": None}
EFFECTS = ("read", "idempotent", "keyed", "unsafe")


def verdict(mode, tool, effect, **more):
    grant = more.pop("grant", None)
    return Approval(mode=mode, allowed=MODES[mode], **more).decide(tool, effect, grant)


def test_N2_19_the_mode_decides_if_nothing_else_does():
    assert verdict("ask", "pay", "unsafe").verdict == "ask"
    assert [verdict("ask", "pay", effect).verdict for effect in EFFECTS[:3]] == ["run"] * 3
    assert [verdict("allowlist", "read", effect).verdict for effect in EFFECTS] == ["run"] * 4
    assert [verdict("allowlist", "pay", effect).verdict for effect in EFFECTS] == ["deny"] * 4
    assert [verdict("yolo", "pay", effect).verdict for effect in EFFECTS] == ["run"] * 4


@pytest.mark.parametrize(("mode", "effect", "grant"), list(product(MODES, EFFECTS, (None, "approve", "deny", "defer"))))
def test_N2_19_the_envelope_wins_over_grants_and_modes(mode, effect, grant):
    decision = verdict(mode, "read", effect, envelope={"search"}, grant=grant)
    assert (decision.verdict, decision.by) == ("deny", "envelope")
    assert verdict(mode, "read", effect, envelope={"read"}, grant=grant) == verdict(mode, "read", effect, grant=grant)


@pytest.mark.parametrize(("mode", "effect"), list(product(MODES, EFFECTS)))
def test_N2_19_a_grant_wins_over_the_mode_and_a_deferred_one_denies(mode, effect):
    decided = {grant: verdict(mode, "pay", effect, grant=grant) for grant in ("approve", "deny", "defer")}
    assert {grant: decision.verdict for grant, decision in decided.items()} == {
        "approve": "run",
        "deny": "deny",
        "defer": "deny",
    }
    assert {decision.by for decision in decided.values()} == {"grant"}


def test_N2_19_an_empty_envelope_allows_nothing():
    assert verdict("yolo", "read", "read", envelope=()).verdict == "deny"


@pytest.mark.parametrize(
    "given",
    [
        {"mode": "allowlist"},
        {"mode": "ask", "allowed": ["read"]},
        {"mode": "Yolo"},
        {"mode": "allowlist", "allowed": "read"},
        {"envelope": "read"},
    ],
)
def test_wrong_options_are_rejected(given: Any) -> None:
    with pytest.raises(InvalidError, match=r"approval\."):
        Approval(**given)


def test_G13_a_proposal_is_bound_to_its_arguments_and_its_place():
    one, same = (
        propose("pay", {"to": "a", "amount": 5}, "1.0", REDACTOR),
        propose("pay", {"amount": 5, "to": "a"}, "1.0", REDACTOR),
    )
    assert one == same
    others = [
        propose("pay", {"to": "a", "amount": 6}, "1.0", REDACTOR),
        propose("pay", {"to": "a", "amount": 5}, "1.1", REDACTOR),
        propose("refund", {"to": "a", "amount": 5}, "1.0", REDACTOR),
    ]
    assert all(other.details != one.details for other in others)


def test_G13_the_arguments_that_run_are_a_copy_of_those_shown():
    given = {"files": ["a"]}
    proposal = propose("delete", given, "1.0", REDACTOR)
    given["files"].append("/")
    assert proposal.arguments == {"files": ["a"]}


def test_G13_arguments_that_are_too_long_to_show_differ_all_the_same():
    long = "x" * 600_000
    one, other = (propose("write", {"text": long + end}, "1.0", REDACTOR) for end in "ab")
    assert len(one.prompt) < 20_000
    assert one.details["arguments"] == other.details["arguments"]
    assert not one.can_be_shown
    assert one.digest != other.digest


def test_a_question_shows_no_secret():
    secret = "sk-ant-api03-" + "A1b2" * 20
    proposal = propose("fetch", {"key": secret}, "1.0", REDACTOR)
    assert secret not in proposal.prompt + str(proposal.details)
    assert proposal.arguments == {"key": secret}


def test_N2_9_the_model_learns_who_did_not_allow_it():
    shown = denied("pay", "the user said: too much").for_model()
    assert (shown["class"], shown["code"]) == ("ToolTerminal", "ApprovalDenied")
    assert shown["context"]["message"] == "pay was not run: the user said: too much"
    assert shown["context"]["retryable"] is False


# --- as options of an agent ---


def asked(*replies: Any, **more: Any) -> tuple[World, list[int], Agent]:
    """Return an agent whose model wants to pay 5."""
    paid: list[int] = []

    @tool(effect="unsafe")
    async def pay(amount: int) -> str:
        """Pay."""
        paid.append(amount)
        return f"paid {amount}"

    world = World(Turn(tool="pay", arguments={"amount": 5}), *replies or ("Done.",))
    return world, paid, world.agent(pay, **more)


def last_result(world: World) -> dict[str, Any]:
    return world.sent[-1]["messages"][-1]["content"][0]


def test_N2_9_an_approval_that_nobody_gives_in_time_is_a_denial_that_the_model_gets():
    world, paid, agent = asked(expires=900)

    class Away:
        async def ask(self, question: Any) -> Any:
            await asyncio.Event().wait()

    async def main() -> float:
        async with world.session(MemoryStore(), mode="ask", interactors=[Away()]) as session:
            begun = world.runtime.clock.monotonic()
            assert (await agent.run("pay", session=session)).text == "Done."
            return world.runtime.clock.monotonic() - begun

    assert world.run(main()) == pytest.approx(900, abs=5)
    assert paid == []
    assert "nobody answered in time" in last_result(world)["content"]


def test_N2_9_with_expires_the_agent_waits_for_an_answer_through_the_store():
    world, paid, agent = asked(expires=900)
    store = MemoryStore()

    async def main() -> None:
        async with world.session(store, mode="ask") as session:
            running = asyncio.ensure_future(agent.run("pay", session=session))
            while not session.pending:  # noqa: ASYNC110 - in virtual time
                await asyncio.sleep(1)
            await answer(store, "s", session.pending[0].id, approved=True, runtime=world.runtime)
            assert (await running).text == "Done."

    world.run(main())
    assert paid == [5]


def test_N2_9_the_approval_of_an_agent_wins_over_the_mode_of_the_session():
    world, paid, agent = asked(approval=Approval(mode="yolo", envelope={"search"}))

    async def main() -> None:
        async with world.session(MemoryStore(), mode="yolo") as session:
            await agent.run("pay", session=session)

    world.run(main())
    assert paid == []
    assert "stage does not allow" in last_result(world)["content"]


@pytest.mark.parametrize(("grant", "ran"), [("approve", [5]), ("deny", []), ("defer", [])])
def test_N2_9_a_grant_decides_about_exactly_one_call_of_an_agent(grant: Any, ran: list[int]):
    seen: list[Any] = []

    def granted(call: Any) -> Any:
        seen.append((call.name, call.arguments))
        return grant

    world, paid, agent = asked(grant=granted)

    async def main() -> None:
        # Nobody is attached: without the grant the run would end with a question.
        async with world.session(MemoryStore(), mode="ask") as session:
            await agent.run("pay", session=session)

    world.run(main())
    assert (paid, seen) == (ran, [("pay", {"amount": 5})])


@pytest.mark.parametrize("wrong", [{"expires": 0}, {"expires": "soon"}, {"approval": "yolo"}, {"grant": "approve"}])
def test_wrong_options_about_approvals_say_what_is_expected(wrong: dict[str, Any]):
    with pytest.raises(InvalidError, match=f"agent\\.{next(iter(wrong))}"):
        asked(**wrong)
