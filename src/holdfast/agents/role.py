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

import inspect
import secrets
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast import options
from holdfast.agents.feed import parts_of
from holdfast.agents.parts import AgentPart, Done
from holdfast.agents.usage_limit import is_parked
from holdfast.events import AgentFallback, UserNotified
from holdfast.faults import CATALOG, AbortedError, Err, Fault, HoldfastError, InvalidError, Ok
from holdfast.manager.circuit import policy_for
from holdfast.policies.backoff import Tries
from holdfast.policies.decide import can_fall_back
from holdfast.policies.role import RoleSettings
from holdfast.policies.target import Target
from holdfast.runtime import reports
from holdfast.runtime.adapter import Adapter
from holdfast.runtime.drivers import drive_async
from holdfast.runtime.fallback import Chain, drive_chain_async
from holdfast.runtime.operation import Operation
from holdfast.runtime.plan import PLAN_ATTRIBUTE, Plan, PlanCache
from holdfast.runtime.runtime import default_runtime

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence

    from holdfast.agents.feed import Feed
    from holdfast.agents.kind import AnyAgent
    from holdfast.agents.reply import AgentReply
    from holdfast.faults import Code, Outcome
    from holdfast.policies import Policy
    from holdfast.policies.circuit import Circuit
    from holdfast.policies.fallback import Consent
    from holdfast.runtime.runtime import Runtime
    from holdfast.sessions.session import Session

__all__ = ["Role", "check_agent"]


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
        return (await _Run(self, prompt, session).answer())[0]

    async def outcome(self, prompt: str, *, session: Session | None = None) -> Outcome[AgentReply]:
        """Do as `run`, and return `Ok` or `Err`: `via` is `primary`, or the name of the understudy that answered."""
        return await self._outcome(_Run(self, prompt, session))

    async def outcome_anew(self, prompt: str, *, session: Session | None = None) -> Outcome[AgentReply]:
        """Do the same as `outcome`, without the conversation of earlier runs. Agents call other agents so."""
        return await self._outcome(_Run(self, prompt, session, anew=True))

    async def _outcome(self, run: _Run) -> Outcome[AgentReply]:
        try:
            reply, op = await run.answer()
        except Exception as error:  # noqa: BLE001 - an outcome holds any failure
            return Err((self._runtime or default_runtime()).fault_of(error), error)
        return Ok(reply) if op is None else Ok(reply, via=op.via, attempts=reports.timeline(op, None))

    @asynccontextmanager
    async def stream(self, prompt: str, *, session: Session | None = None) -> AsyncIterator[AsyncIterator[AgentPart]]:
        """Return the parts of whoever answers: `async with builder.stream(prompt) as parts`.

        A `FellBack` part stands between the parts of two agents, and a `Retrying` part before the next attempt of the same agent: the
        pieces of text before it are void. The time that the reader takes counts for `timeout`.
        """

        async def work(feed: Feed) -> None:
            reply, _ = await _Run(self, prompt, session, feed).answer()
            await feed.put(Done(reply=reply))

        async with parts_of(self._runtime or default_runtime(), work) as parts:
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
        is_configured = runtime.policy_for(target) is not runtime.policy_for(Target())
        policy = _policy_of(self.settings, policy_for(runtime, target), is_configured=is_configured)
        # Two policies that disagree about one circuit raise an error. Without settings of its own, the role uses those that the
        # circuit has already.
        return Plan(target, policy, keeps_circuits=self.settings.circuit is None, runtime=runtime)

    def __repr__(self) -> str:
        return f"Role({self.name!r}, {self.agent!r}, understudies={list(self.settings.understudies)!r})"


def _policy_of(settings: RoleSettings, policy: Policy, *, is_configured: bool) -> Policy:
    """Return the policy of a role. `policy` is that of its target; `is_configured`: it is not only the default policy."""
    if not is_configured:
        # The limits of the default policy are for one call to a model. An agent makes many.
        policy = policy.replace(timeout=None, deadline=None, patience=None)
    if settings.retry is not None:
        # The policy's schedules for single codes would win over the given one.
        policy = policy.replace(attempts=settings.retry.attempts, backoff=settings.retry.backoff, per_code={})
    if settings.timeout is not None:
        policy = policy.replace(timeout=settings.timeout, deadline=None)
    circuit = settings.circuit or policy.circuit
    if circuit is not None:
        # A run that failed counts whatever the reason is: an agent that never gets done is as useless as one that is down.
        circuit = circuit.replace(count_all=True)
    return policy.replace(circuit=circuit, counts="operation", wait_for_circuit=False)


def check_agent(path: str, agent: Any) -> None:
    if not (isinstance(getattr(agent, "name", None), str) and all(hasattr(agent, verb) for verb in ("run", "stream"))):
        raise InvalidError.at(path, "an agent: an Agent, a CommandAgent, a FunctionAgent or a Role", agent)


# --- one run ---


class _PassingError(Exception):
    """Carries an error that is nobody's failure through an operation, which must neither count nor retry it."""

    def __init__(self, error: Exception) -> None:
        super().__init__(error)
        self.error = error


class _Passes(Adapter):
    passing = (_PassingError,)

    def reported(self, value: object) -> object:
        """Return nothing: the agent's own calls are charged where they are made, and its reply would charge them again."""
        del value
        return None


_PASSES = _Passes()


@contextmanager
def _passing(runtime: Runtime | None = None) -> Iterator[None]:
    """Let failures of the session pass; with a `runtime`, which knows their faults, runs that are parked too."""
    try:
        yield
    except Exception as error:
        is_ours = isinstance(error, HoldfastError) and error.fault.code.startswith("SESS_")
        if is_ours or (runtime is not None and is_parked(runtime.fault_of(error))):
            raise _PassingError(error) from error
        raise


class _Run:
    """One run of a role: the agent itself, then its understudies."""

    def __init__(
        self,
        role: Role,
        prompt: str,
        session: Session | None,
        feed: Feed | None = None,
        *,
        anew: bool = False,
        notifies: bool = True,
    ) -> None:
        self._role = role
        self._prompt = prompt
        self._session = session
        self._feed = feed
        self._anew = anew
        """Whether the agents leave the conversation of their earlier runs out."""
        self._notifies = notifies
        """Whether it notifies the user when all have failed. For an understudy, the role that it stands in for does."""
        self._op: Operation
        self._primary: Fault | None = None
        """Why the agent itself failed."""
        self._handover: _Handover | None = None

    async def answer(self) -> tuple[AgentReply, Operation | None]:
        """Return the reply, and the operation that got it; None: recovery is switched off."""
        plan, role = self._role.plan(), self._role
        try:
            if plan.off:
                return await self._ask(role.agent), None
            op = self._op = Operation(plan, _PASSES)
            return await (self._with_understudies(op) if role.understudies else self._alone(op)), op
        except _PassingError as passing:
            error = passing.error
        # Outside of the block, or the error of the session would have our own as its context.
        raise error

    async def _alone(self, op: Operation) -> AgentReply:
        try:
            return await self._itself(op)
        except Exception as error:
            # As in a chain: somebody stopped the run, or a developer has to act.
            if self._primary is not None and not isinstance(error, AbortedError) and can_fall_back(self._primary):
                await self._notify_safely(self._primary)
            raise

    async def _with_understudies(self, op: Operation) -> AgentReply:
        role, first = self._role, 0
        itself: Callable[[], Awaitable[AgentReply]] = partial(self._itself, op)
        if self._session is not None and role.settings.understudies:
            with _passing():
                self._handover = await _Handover.of(self._session, role, self._prompt)
            if (known := self._handover.in_charge) is not None:
                first, self._primary = known
                itself = partial(_raise, self._primary)
        chain = self._chain(first, itself)
        reply: AgentReply = await drive_chain_async(op, chain, itself(), (), {})
        return reply

    def _chain(self, first: int, itself: Callable[[], Awaitable[AgentReply]]) -> Chain:
        role = self._role
        chain = Chain(itself, name=role.name)
        chain.event = AgentFallback
        chain.primary_name = role.agent.name
        # An understudy is somebody's own code. A defect in it must not hide why the agent itself failed.
        chain.answers_defects = True
        chain.asks = None if self._session is None else partial(self._consent, self._session)
        for place, understudy in enumerate(role.understudies[first:]):
            # Whoever is in charge already had the consent.
            in_charge = place == 0 and self._handover is not None and self._handover.in_charge is not None
            consent: Consent = "configured" if in_charge else role.settings.consent
            chain.fallback(self._step_of(understudy), name=understudy.name, consent=consent)
        chain.notify(self._notify)
        return chain

    def _step_of(self, understudy: Role) -> Callable[[], Awaitable[AgentReply]]:
        async def take_over() -> AgentReply:
            return await self._take_over(understudy)

        if not understudy.understudies:
            # The chain reads the plan here, and leaves out an understudy whose circuit is open.
            setattr(take_over, PLAN_ATTRIBUTE, understudy.plan())
        return take_over

    async def _itself(self, op: Operation) -> AgentReply:
        fault_of = op.plan.runtime.fault_of
        try:
            reply: AgentReply = await drive_async(op, self._ask, (self._role.agent,), {})
        except _PassingError as passing:
            if not is_parked(fault_of(passing.error)) or not self._role.understudies:
                raise
            parked = passing.error
        except Exception as error:
            self._primary = fault_of(error)
            raise
        else:
            return reply
        # The agent waits for the end of a limit. Outside of the operation, so that its circuit does not count it.
        self._primary = fault_of(parked)
        raise parked

    async def _take_over(self, understudy: Role) -> AgentReply:
        with _passing():
            if self._handover is not None and self._primary is not None:
                await self._handover.begins(understudy.name, self._primary)
            run = _Run(understudy, self._prompt, self._session, self._feed, anew=self._anew, notifies=False)
            return (await run.answer())[0]

    async def _ask(self, agent: AnyAgent) -> AgentReply:
        with _passing(self._role.plan().runtime):
            if self._anew and (outcome_anew := getattr(agent, "outcome_anew", None)) is not None:
                reply = _unwrapped(await outcome_anew(self._prompt, session=self._session))
            elif self._feed is None:
                reply = await agent.run(self._prompt, session=self._session)
            else:
                reply = await self._streamed(agent, self._feed)
        return reply if reply.agent else msgspec.structs.replace(reply, agent=agent.name)

    async def _streamed(self, agent: AnyAgent, feed: Feed) -> AgentReply:
        reply: AgentReply | None = None
        async with agent.stream(self._prompt, session=self._session) as parts:
            async for part in parts:
                if isinstance(part, Done):
                    reply = part.reply
                else:
                    await feed.put(part)
        if reply is None:
            raise HoldfastError(Fault.of("ACTOR_ERROR", f"Agent {agent.name} ended its stream without an answer"))
        return reply

    async def _consent(self, session: Session, operation: str, step: str, fault: Fault) -> bool:
        del operation
        # The same words after a restart, so that the stored answer is found: the agent's own failure, not the latest.
        why = self._primary or fault
        with _passing():
            return await session.approve(f"{self._role.name} failed ({why.code}). Let {step} take over?")

    async def _notify_safely(self, fault: Fault) -> None:
        try:
            await self._notify(fault)
        except Exception as failure:  # noqa: BLE001 - the error to raise is the agent's own
            reports.suppressed(self._op, failure, "the notification of a failed role raised")

    async def _notify(self, exhausted: Fault) -> None:
        """Notify the user once: attached interactors, events and the log, and the role's own function."""
        if self._notifies:
            await self._show_failure(self._primary or exhausted)
        if self._handover is not None:
            # A run that is started again begins with the agent itself.
            await self._handover.all_failed()
        notify = self._role.notify if self._notifies else None
        if notify is not None and inspect.isawaitable(pending := notify(exhausted)):
            await pending

    async def _show_failure(self, fault: Fault) -> None:
        role = self._role
        people, tried = 0, role.settings.understudies
        if self._session is not None:
            others = f", and so did {', '.join(tried)}" if tried else ""
            people = await self._session.notify(f"{role.name} failed{others}. {fault.for_user()}", fault=fault)
        runtime, op = self._op.plan.runtime, self._op
        if runtime.bus.wants(UserNotified):
            runtime.bus.emit(
                UserNotified(
                    at=runtime.clock.wall(),
                    run=op.run,
                    operation=op.plan.name,
                    agent=role.name,
                    tried=tried,
                    people=people,
                    fault=fault,
                )
            )


def _unwrapped(outcome: Outcome[AgentReply]) -> AgentReply:
    """Return the reply, or raise the error itself: it must stay the one that the agent raised."""
    if isinstance(outcome, Ok):
        return outcome.value
    raise outcome.error if isinstance(outcome.error, Exception) else HoldfastError(outcome.fault)


async def _raise(fault: Fault) -> AgentReply:
    raise HoldfastError(fault)


# --- what a session remembers of a run ---


class _Handover:
    """Which understudy of a role has taken over in one run, as the session stores it."""

    def __init__(self, session: Session, key: str) -> None:
        self._session = session
        self._key = key
        self.in_charge: tuple[int, Fault] | None = None
        """The place of the understudy that has taken over, and why the agent itself failed; None: nobody has taken over."""

    @classmethod
    async def of(cls, session: Session, role: Role, prompt: str) -> _Handover:
        """Return what is stored about this run: about the first, second … run with this prompt in the turn or session."""
        run = await session.step(role_run, role.name, prompt)
        number = 1
        while await session.keyed(f"{run}/{number}/failed").is_stored():
            # All had failed, and the program was started again.
            number += 1
        handover = cls(session, f"{run}/{number}")
        names = role.settings.understudies
        for place in reversed(range(len(names))):
            step = session.keyed(f"{run}/{number}/to:{names[place]}")
            if await step.is_stored():
                handover.in_charge = place, _fault_in(await step.step(takes_over, "", ""))
                break
        return handover

    async def begins(self, understudy: str, why: Fault) -> None:
        """Store that an understudy takes over, before it begins."""
        # Not the failure's own text: it may quote a secret that a store rejects.
        await self._session.keyed(f"{self._key}/to:{understudy}").step(takes_over, why.code, why.for_user())

    async def all_failed(self) -> None:
        await self._session.keyed(f"{self._key}/failed").step(all_failed)


def _fault_in(stored: dict[str, Any]) -> Fault:
    # A newer version may have stored a code that this one does not know.
    code: Code = stored["code"] if stored["code"] in CATALOG else "SYS_UNKNOWN"
    return Fault.of(code, stored["message"])


# Sessions know a step by the name of its function, so these names are in stored logs.


def role_run(role: str, prompt: str) -> str:
    """Return a new id for a run. The session stores it, so a program that is run again gets the same."""
    del prompt
    return f"role:{role}:{secrets.token_hex(6)}"


def takes_over(code: str, message: str) -> dict[str, str]:
    return {"code": code, "message": message}


def all_failed() -> bool:
    return True
