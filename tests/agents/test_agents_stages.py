"""Agents in stages, over the fault provider: tools, turns, the form of the result, grants, failed requests, and kills."""

from __future__ import annotations

import pytest
from agents_kit import Scripted, World

from holdfast import Agent, InvalidError, Session, Stage, StageMachine, Tries, tool
from holdfast.agents import FunctionAgent
from holdfast.providers import Reply, ToolCall
from holdfast.stores.memory import MemoryStore
from holdfast.tasks.stages import StageError
from holdfast.testing.provider import Turn
from holdfast.testing.provider.replies import ToolCall as Call

SCHEMA = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}


class Stop(BaseException):
    """The process ends here."""


def kit(ran, stops=None):
    @tool(effect="unsafe")
    async def deploy(version: str) -> str:
        if stops is not None and not ran:
            stops()
        ran.append(version)
        return f"deployed {version}"

    @tool(effect="read")
    async def read(path: str) -> str:
        raise FileNotFoundError(f"{path} of /home/ann")

    return deploy, read


def call(name, **arguments):
    return Call(name, arguments)


def ended_by(world, *stages, session=None, **given):
    machine = StageMachine(stages, runtime=world.runtime)

    async def main():
        if session is None:
            return await machine.run(**given)
        async with world.session(session) as opened:
            return await machine.run(opened, **given)

    return world.run(main())


def test_N2_6_the_model_ends_act_with_the_completion_tool_and_its_form_is_checked():
    world = World(
        "I am done.",
        Turn(calls=(call("complete", ok="yes"),)),
        Turn(calls=(call("complete", ok=True), call("deploy", version="9"))),
    )
    ran = []
    agent = world.agent(*kit(ran))
    ended = ended_by(world, Stage("review", agent, body="Review {x}", completion=SCHEMA), inputs={"x": "it"})
    assert ended.value == {"ok": True}
    assert ran == [], "the work is done, so the calls beside it are not run"
    tools = [spec["name"] for spec in world.sent[0]["tools"]]
    assert tools == ["deploy", "read", "complete"]
    assert "call the tool complete with the result" in str(world.sent[1]["messages"][-1])
    assert "argument `ok`" in str(world.sent[2]["messages"][-1])


def test_N2_4_an_agent_at_its_turn_cap_ends_act_and_the_next_attempt_can_end_well():
    busy = Reply(calls=(ToolCall(id="1", name="read", arguments={"path": "a"}),))
    world, seen = World(), []
    agent = Agent("coder", Scripted(busy, busy, "done"), kit([]), runtime=world.runtime)
    stage = Stage("a", agent, body="go", turn_cap=2, assert_=lambda ctx: seen.append(ctx.act))
    ended = ended_by(world, stage)
    assert (ended.value, ended.executions[0].attempts) == ("done", 2)
    assert [(act.cap_hit, act.turns) for act in seen] == [(True, 2), (False, 1)]


def test_S2_3_a_failed_tool_call_goes_to_the_model_as_a_typed_shape_and_to_assert_as_a_fault():
    world = World(Turn(calls=(call("read", path="gone"),)), "it is not there")
    seen = []
    stage = Stage("a", world.agent(*kit([])), body="go", assert_=lambda ctx: seen.extend(ctx.act.failures))
    assert ended_by(world, stage).value == "it is not there"
    assert [fault.code.partition("_")[0] for fault in seen] == ["TOOL"]
    shown = str(world.sent[1]["messages"][-1])
    assert "FileNotFound" not in shown
    assert '"code"' in shown


def test_S2_11_a_stage_may_show_the_model_more_for_debugging():
    world = World(Turn(calls=(call("read", path="gone"),)), "ah")
    ended_by(world, Stage("a", world.agent(*kit([])), body="go", detail="full"))
    assert "FileNotFoundError" in str(world.sent[1]["messages"][-1])


def test_only_the_allowed_tools_are_shown_and_run():
    world = World(Turn(calls=(call("deploy", version="4.2"),)), "well")
    ran = []
    ended_by(world, Stage("a", world.agent(*kit(ran)), allowed_tools=["read"], body="go"))
    assert [spec["name"] for spec in world.sent[0]["tools"]] == ["read"]
    assert ran == []
    assert "does not allow this tool" in str(world.sent[1]["messages"][-1])


@pytest.mark.parametrize(("decision", "runs"), [("approve", True), ("deny", False), ("defer", False)])
def test_N2_8_a_grant_of_the_stage_decides_about_exactly_one_call(decision, runs):
    world = World(Turn(calls=(call("deploy", version="4.2"),)), "well")
    ran, proposals = [], []

    def grant(proposal):
        proposals.append(proposal)
        return decision

    store = MemoryStore()

    async def main():
        # Mode `ask` would ask a person; the grant wins.
        async with Session.open("s", store=store, runtime=world.runtime) as session:
            stage = Stage("a", world.agent(*kit(ran)), body="go", grant=grant)
            return await StageMachine([stage], runtime=world.runtime).run(session)

    world.run(main())
    assert ran == (["4.2"] if runs else [])
    (proposal,) = proposals
    assert (proposal.tool, proposal.attempt, proposal.arguments) == ("deploy", 1, {"version": "4.2"})


def test_S2_4_S2_18_requests_are_retried_by_recover_and_only_then_the_attempt_fails():
    # The profile makes 3 calls for a 500; the stage makes 2 attempts.
    world = World("up", faults="500*4, ok")
    ended = ended_by(world, Stage("a", world.agent(), body="go", retry=Tries(attempts=2)))
    assert (ended.value, ended.executions[0].attempts, world.received) == ("up", 2, 5)


def test_S2_6_a_request_that_fails_for_good_fails_the_stage_with_its_code():
    world = World(faults="auth*9")
    with pytest.raises(StageError) as error:
        ended_by(world, Stage("a", world.agent(), body="go", retry=Tries(attempts=1)))
    assert error.value.fault.context["cause"].startswith("AUTH_")


@pytest.mark.parametrize("at", [0, 1, 2, 3])
def test_an_agent_that_is_cut_off_in_a_stage_goes_on_there_and_pays_for_nothing_twice(at):
    store, ran, stopped = MemoryStore(), [], []
    replies = [
        Reply(calls=(ToolCall(id="1", name="deploy", arguments={"version": "1"}),)),
        Reply(calls=(ToolCall(id="2", name="deploy", arguments={"version": "2"}),)),
        Reply(calls=(ToolCall(id="3", name="complete", arguments={"ok": True}),)),
    ]
    world = World()

    class Cut(Scripted):
        async def exchange(self, request):
            if len(self.requests) == at and not stopped:
                stopped.append(1)
                raise Stop
            return await super().exchange(request)

    model = Cut(*replies)
    agent = Agent("coder", model, kit(ran), runtime=world.runtime)
    stages = [
        Stage("build", agent, body="go", completion=SCHEMA, grant=lambda proposal: "approve"),
        Stage("check", FunctionAgent("checker", lambda prompt: f"checked {prompt}"), body="{build}"),
    ]

    async def start():
        async with Session.open("s", store=store, runtime=world.runtime) as session:
            return await StageMachine(stages, runtime=world.runtime).run(session)

    if at < 3:
        with pytest.raises(Stop):
            world.run(start())
    ended = world.run(start())
    assert ended.value == 'checked {"ok":true}'
    assert ran == ["1", "2"]
    assert len(model.requests) == 3
    assert world.run(start()) == ended


def test_limits_that_an_agent_cannot_keep_are_rejected():
    by_hand = FunctionAgent("hand", lambda prompt: prompt)
    with pytest.raises(InvalidError, match="allowed_tools"):
        StageMachine([Stage("a", by_hand, allowed_tools=["x"])])
    agent = World().agent(*kit([]))
    with pytest.raises(InvalidError, match="did you mean `read`"):
        StageMachine([Stage("a", agent, allowed_tools=["raed"])])
    with pytest.raises(InvalidError, match="a name that no tool has"):
        StageMachine([Stage("a", agent, completion=SCHEMA, completion_tool="read")])
