"""`Role`: an agent with understudies, isolated by a circuit of its own.

    builder = Role("builder", coder, understudies=[simple, by_hand], timeout=300)
    reply = await builder.run("paint the door", session=session)

A run is one operation of the runtime: retries around the agent itself, one outcome for the circuit `agent:builder`, then the
understudies in order, each with a circuit of its own. If all fail, the user is notified once and the agent's own error is raised.

Invariant: a name has no understudies unless somebody gave them. In a session, an understudy that has taken over stays in charge of that
run after a restart. A failure of the session itself is nobody's failure: it is neither counted nor answered by an understudy. An agent
that is parked at a usage limit has not failed either: it is neither counted nor retried, and an understudy may take over.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from holdfast import options
from holdfast.agents.feed import parts_of
from holdfast.agents.kind import check_agent
from holdfast.agents.parts import AgentPart, Done
from holdfast.agents.role_run import RoleRun
from holdfast.faults import Err, Fault, InvalidError, Ok
from holdfast.manager.circuit import policy_for
from holdfast.policies.backoff import Tries
from holdfast.policies.role import RoleSettings
from holdfast.policies.target import Target
from holdfast.runtime.operation import reports
from holdfast.runtime.operation.plan import Plan, PlanCache
from holdfast.runtime.runtime import default_runtime

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from holdfast.agents.feed import Feed
    from holdfast.agents.kind import AnyAgent
    from holdfast.agents.reply import AgentReply
    from holdfast.faults import Outcome
    from holdfast.policies import Policy
    from holdfast.policies.circuit import Circuit
    from holdfast.policies.fallback import Consent
    from holdfast.runtime.runtime import Runtime
    from holdfast.sessions.session import Session

__all__ = ["Role"]


class Role:
    """An agent with understudies: `run`, `outcome` and `stream` are those of whoever answers.

        from holdfast.agents import FunctionAgent, Role

        by_hand = FunctionAgent("manual-mode", lambda prompt: f"Please do this by hand: {prompt}")
        builder = Role("builder", coder, understudies=[simple, by_hand], timeout=300)
        reply = await builder.run("paint the door")
        print(reply.agent)                                  # who answered

    name: its name in messages and events; it uses the circuit `agent:NAME`.
    agent: an `Agent`, a `CommandAgent`, a `FunctionAgent`, another role.
    understudies: the agents that take over when the agent has failed for good, in order. Each is called once.
    circuit: when to go to the understudies at once. By default after five runs in a row that failed; a probe follows after 30 s. Every
        run counts once, however many attempts it took.
    timeout: seconds for one attempt, and for each understudy. By default there is no limit.
    retry: how often and when the agent itself is retried. By default as the failure allows, three attempts at most.
    consent: with `"ask"` a person must agree before an understudy takes over: in a session its interactors, otherwise the runtime's
        `consent` function. Without anybody to ask, no understudy takes over.
    notify: a function, plain or async, that is called with the fault when the agent and all understudies have failed.
    runtime: by default the default runtime.

    The role counts for the circuit of its name. Do not put `@recover("agent:NAME")` around a function inside it: a run would count twice.
    Retries, understudies and the last failure are reported as `Retry`, `AgentFallback` and `UserNotified` events. In a session the attached
    interactors that have a method `notify` show the last failure too. A session remembers which understudy has taken over: a program that
    is run again goes on with it and asks nobody again.

    Wrong options raise `InvalidError`, and so does a name that two of the agents share.
    """

    @options.suggests
    def __init__(
        self,
        name: str,
        agent: AnyAgent,
        *,
        understudies: Sequence[AnyAgent] = (),
        circuit: Circuit | None = None,
        timeout: float | None = None,
        retry: Tries | None = None,
        consent: Consent = "configured",
        notify: Callable[[Fault], object] | None = None,
        runtime: Runtime | None = None,
    ) -> None:
        options.name("role.name", name)
        understudies = options.listed("role.understudies", understudies, "agents")
        for path, one in (("role.agent", agent), *(("role.understudies", one) for one in understudies)):
            check_agent(path, one)
        if notify is not None and not callable(notify):
            raise InvalidError.at("role.notify", "a function of the fault", notify)
        names = tuple(one.name for one in understudies)
        if name in names:
            raise InvalidError.saying("role.understudies", f"other names than the role's own, {name!r}", f"{name!r}")
        self.name = name
        self.agent = agent
        """The agent that has the role."""
        self.settings = RoleSettings(
            agent=agent.name, understudies=names, circuit=circuit, timeout=timeout, retry=retry, consent=consent
        )
        """The options it was made with, and the names of its agents."""
        self.notify = notify
        self._runtime = runtime
        self.understudies = tuple(self._understudy(one) for one in understudies)
        """Those who take over, in order. Each has a role of its own, and so a circuit of its own."""
        self._plans = PlanCache(self._make_plan)

    async def run(self, prompt: str, *, session: Session | None = None) -> AgentReply:
        """Return the reply of the agent, or of the understudy that took over.

            reply = await builder.run("paint the door", session=session)

        Raises the agent's own error if all have failed; its notes, and the fault's context under `fallbacks`, list the others. Raises
        `CircuitOpenError` if the circuit is open and there is no understudy. Failures of the session, such as SESS_STORE_UNAVAILABLE or
        SESS_NO_INTERACTOR, are raised as they are.
        """
        return (await RoleRun(self, prompt, session).answer())[0]

    async def outcome(self, prompt: str, *, session: Session | None = None) -> Outcome[AgentReply]:
        """Do as `run`, and return `Ok` or `Err`: `via` is `primary`, or the name of the understudy that answered."""
        return await self._outcome(RoleRun(self, prompt, session))

    async def outcome_anew(self, prompt: str, *, session: Session | None = None) -> Outcome[AgentReply]:
        """Do the same as `outcome`, without the conversation of earlier runs. Agents call other agents so."""
        return await self._outcome(RoleRun(self, prompt, session, anew=True))

    async def _outcome(self, run: RoleRun) -> Outcome[AgentReply]:
        try:
            reply, op = await run.answer()
        except Exception as error:  # noqa: BLE001 - an outcome holds any failure
            return Err((self._runtime or default_runtime()).fault_of(error), error)
        return Ok(reply) if op is None else Ok(reply, via=op.via, attempts=reports.timeline(op, None))

    @asynccontextmanager
    async def stream(self, prompt: str, *, session: Session | None = None) -> AsyncIterator[AsyncIterator[AgentPart]]:
        """Return the parts of whoever answers: `async with builder.stream(prompt) as parts`.

        If a person must agree before an understudy takes over, an `Asking` part says so. A `FellBack` part stands between the parts of two agents, and a `Retrying` part before the next attempt of the same agent: the
        pieces of text before it are void. The time that the reader takes counts for `timeout`.
        """

        async def work(feed: Feed) -> None:
            # The question whether an understudy may take over is the role's own. Those of its agents come with their parts.
            reply, _ = await RoleRun(self, prompt, session, feed).answer()
            await feed.put(Done(reply=reply))

        async with parts_of(self._runtime or default_runtime(), work, session) as parts:
            yield parts

    @property
    def description(self) -> str:
        """What another agent's model reads about it: the description of its agent."""
        return str(getattr(self.agent, "description", ""))

    def plan(self) -> Plan:
        """For runs: return how a run recovers now."""
        return self._plans.get()

    def _understudy(self, agent: AnyAgent) -> Role:
        if isinstance(agent, Role):
            return agent
        # An understudy is called once: the time for retries was spent on the agent itself.
        once = Tries(attempts=1)
        return Role(agent.name, agent, timeout=self.settings.timeout, retry=once, runtime=self._runtime)

    def _make_plan(self) -> Plan:
        runtime = self._runtime or default_runtime()
        target = Target(agent=self.name)
        policy = policy_for(runtime, target)
        if not runtime.has_policy_for(target):
            # The limits of the default policy are for one call to a model. An agent makes many; a document may limit those too.
            policy = policy.replace(timeout=runtime.profile.agent_timeout(self.name), deadline=None, patience=None)
        policy = _policy_of(self.settings, policy)
        # Two policies that disagree about one circuit raise an error. Without settings of its own, the role uses those that the
        # circuit has already.
        keeps_circuits = self.settings.circuit is None
        # A run that failed counts whatever the reason is: an agent that never gets done is as useless as one that is down.
        return Plan(target, policy, keeps_circuits=keeps_circuits, counts_all=True, runtime=runtime)

    def __repr__(self) -> str:
        return f"Role({self.name!r}, {self.agent!r}, understudies={list(self.settings.understudies)!r})"


def _policy_of(settings: RoleSettings, policy: Policy) -> Policy:
    """Return the policy of a role. `policy` is that of its target."""
    if settings.retry is not None:
        # The policy's schedules for single codes would win over the given one.
        policy = policy.replace(attempts=settings.retry.attempts, backoff=settings.retry.backoff, per_code={})
    if settings.timeout is not None:
        policy = policy.replace(timeout=settings.timeout, deadline=None)
    return policy.replace(circuit=settings.circuit or policy.circuit, counts="operation", wait_for_circuit=False)
