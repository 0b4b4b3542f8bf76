"""An agent among the tools of another one is allowed no more than that one: through a role, a function, and an agent between them, too."""

from __future__ import annotations

from typing import Any

import pytest
from agents_kit import World

from holdfast import Agent, Session, Stage, StageMachine, tool
from holdfast.agents import Approval, FunctionAgent, Role
from holdfast.sessions import Answer
from holdfast.stores import MemoryStore
from holdfast.testing.provider import Turn


class Yard:
    """A helper that merges, and those who let it work."""

    def __init__(self) -> None:
        self.world = World()
        self.merged: list[str] = []
        self.asked: list[str] = []
        self.worlds: dict[str, World] = {}

    name = "ann"

    async def ask(self, question: Any) -> Answer:
        self.asked.append(question.details["arguments"])
        return Answer.no("not today")

    def agent(self, *turns: Any, tools: Any, name: str, **more: Any) -> Agent:
        self.worlds[name] = World(*turns)
        return self.world.agent(*tools, name=name, model=self.worlds[name].model(), **more)

    def helper(self, **more: Any) -> Agent:
        @tool(effect="unsafe")
        async def merge(branch: str) -> str:
            self.merged.append(branch)
            return "merged"

        turn = Turn(tool="merge", arguments={"branch": "main"})
        return self.agent(turn, "I tried.", tools=[merge], name="helper", description="Merges.", **more)

    def through(self, door: str, **more: Any) -> Any:
        helper = self.helper(**more)
        if door == "role":
            return Role("helper", helper, runtime=self.world.runtime)
        if door == "function":

            async def work(prompt: str, session: Session | None) -> str:
                return (await helper.run(prompt, session=session)).text

            return FunctionAgent("function", work)
        if door == "two deep":
            middle = self.agent(
                Turn(tool="helper", arguments={"prompt": "merge"}), "Asked.", tools=[helper], name="middle"
            )
            turn = Turn(tool="middle", arguments={"prompt": "merge"})
            return self.agent(turn, "Done.", tools=[middle], name="deputy")
        return helper

    def boss(self, helper: Any, **more: Any) -> Agent:
        turn = Turn(tool=helper.name, arguments={"prompt": "merge it"})
        return self.agent(turn, "Done.", tools=[helper], name="boss", **more)

    def run(self, boss: Agent, *, mode: str = "yolo") -> str:
        async def main() -> str:
            async with self.world.session(MemoryStore(), mode=mode, interactors=[self]) as session:
                return (await boss.run("go", session=session)).text

        return str(self.world.run(main()))


DOORS = ["agent", "role", "function", "two deep"]
NAMES = frozenset({"helper", "middle", "deputy", "function"})


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize(
    "terms",
    [
        {"approval": Approval(mode="yolo", envelope=NAMES)},
        {"approval": Approval(mode="allowlist", allowed=NAMES)},
        {"approval": Approval(mode="ask")},
        {"grant": lambda call: "deny" if call.name == "merge" else None},
    ],
    ids=["envelope", "allowlist", "ask", "grant"],
)
def test_what_an_agent_may_not_do_itself_it_may_not_let_another_agent_do(door, terms):
    yard = Yard()
    assert yard.run(yard.boss(yard.through(door), **terms)) == "Done."
    assert (yard.merged, yard.worlds["helper"].received) == ([], 2)
    assert len(yard.asked) == (terms.get("approval") == Approval(mode="ask"))


@pytest.mark.parametrize("door", DOORS)
def test_the_allowed_tools_of_a_stage_hold_for_the_agents_among_its_agents_tools(door):
    yard = Yard()
    boss = yard.boss(yard.through(door))
    stage = Stage("review", boss, allowed_tools=boss.tool_names - {"merge"}, body="go")

    async def main() -> Any:
        async with yard.world.session(MemoryStore()) as session:
            return await StageMachine([stage], runtime=yard.world.runtime).run(session)

    assert yard.world.run(main()).value == "Done."
    assert (yard.merged, yard.worlds["helper"].received) == ([], 2)


@pytest.mark.parametrize(("grant", "merged"), [("approve", ["main"]), ("deny", [])])
def test_the_grant_function_of_a_stage_decides_about_the_calls_of_an_agent_among_the_tools(grant, merged):
    yard = Yard()
    asked = []

    def decide(proposal: Any) -> str:
        asked.append(proposal.tool)
        return "approve" if proposal.tool == "helper" else grant

    async def main() -> Any:
        async with yard.world.session(MemoryStore()) as session:
            stage = Stage("review", yard.boss(yard.helper()), grant=decide, body="go")
            return await StageMachine([stage], runtime=yard.world.runtime).run(session)

    assert yard.world.run(main()).value == "Done."
    assert (asked, yard.merged) == (["helper", "merge"], merged)


def test_without_a_session_the_calls_of_an_agent_among_the_tools_are_denied_as_the_agents_own_are():
    yard = Yard()
    boss = yard.boss(yard.helper(), approval=Approval(mode="ask"))
    assert yard.world.run(boss.run("go")).text == "Done."
    assert yard.merged == []


def test_an_approval_of_its_own_wins_over_the_callers_mode_and_not_over_its_envelope():
    for envelope, merged in ((NAMES | {"merge"}, ["main"]), (NAMES, [])):
        yard = Yard()
        helper = yard.helper(approval=Approval(mode="yolo"))
        yard.run(yard.boss(helper, approval=Approval(mode="ask", envelope=envelope)))
        assert (yard.merged, yard.asked) == (merged, [])


def test_the_model_of_an_agent_among_the_tools_sees_only_what_it_may_call():
    yard = Yard()
    yard.run(yard.boss(yard.helper(), approval=Approval(mode="yolo", envelope=NAMES)))
    assert not yard.worlds["helper"].sent[0].get("tools")


def test_an_agent_that_a_function_runs_is_the_functions_own_and_what_follows_is_held_to_nothing():
    yard = Yard()
    helper = yard.helper()

    @tool(effect="read")
    async def ship() -> str:
        """Ship it."""
        return (await helper.run("merge")).text

    boss = yard.agent(
        Turn(tool="ship", arguments={}), "Done.", tools=[ship], name="boss", approval=Approval(mode="ask")
    )
    assert yard.run(boss) == "Done."
    assert yard.merged == ["main"]
    assert yard.run(yard.boss(Yard().helper())) == "Done."
