"""`Role`: an agent with understudies, isolated by a circuit of its own. `Roles`: the roles of a program by name.

    builder = Role("builder", coder, understudies=[simple, by_hand], timeout=300)
    reply = await builder.run("paint the door", session=session)

A run is one operation of the runtime: retries around the agent itself, one outcome for the circuit `agent:builder`, then the
understudies in order, each with a circuit of its own. If all fail, the user is notified once and the agent's own error is raised.

Invariant: a name has no understudies unless somebody gave them. In a session, an understudy that has taken over stays in charge of that
run after a restart. A failure of the session itself is nobody's failure: it is neither counted nor answered by an understudy.
"""

from __future__ import annotations

import asyncio
import inspect
import secrets
from collections import deque
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast import options
from holdfast.agents.parts import AgentPart, Done, FellBack, Retrying
from holdfast.config.problems import ConfigError, Problems
from holdfast.config.sources import load
from holdfast.events import AgentFallback, Retry, UserNotified
from holdfast.faults import CATALOG, Err, Fault, HoldfastError, InvalidError, Ok
from holdfast.manager.circuit import policy_for
from holdfast.policies.backoff import Tries
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
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence

    from holdfast.agents.kind import AnyAgent
    from holdfast.agents.reply import AgentReply
    from holdfast.faults import Outcome
    from holdfast.policies import Policy
    from holdfast.policies.circuit import Circuit
    from holdfast.policies.fallback import Consent
    from holdfast.runtime.runtime import Runtime
    from holdfast.sessions.session import Session

__all__ = ["Role", "Roles"]

_MOST_PARTS = 64
"""Parts of a stream that wait for their reader. An agent that is faster waits."""


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
        for path, one in (("role.agent", agent), *(("role.understudies", one) for one in understudies)):
            _check_agent(path, one)
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
        try:
            reply, op = await _Run(self, prompt, session).answer()
        except Exception as error:  # noqa: BLE001 - an outcome holds any failure
            return Err((self._runtime or default_runtime()).fault_of(error), error)
        return Ok(reply) if op is None else Ok(reply, via=op.via, attempts=reports.timeline(op, None))

    @asynccontextmanager
    async def stream(self, prompt: str, *, session: Session | None = None) -> AsyncIterator[AsyncIterator[AgentPart]]:
        """Return the parts of whoever answers: `async with builder.stream(prompt) as parts`.

        A `FellBack` part stands between the parts of two agents, and a `Retrying` part before the next attempt of the same agent: the
        pieces of text before it are void. The time that the reader takes counts for `timeout`.
        """
        channel = _Channel()
        working = asyncio.ensure_future(_Run(self, prompt, session, channel).answer())
        working.add_done_callback(channel.wake)
        try:
            yield channel.parts(working)
        finally:
            # The reader may have left early: nobody wants the answer any more.
            if not working.done():
                working.cancel()
                await asyncio.wait({working})
            if not working.cancelled():
                # Read the exception, or asyncio would log that it was never retrieved.
                working.exception()

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


def _check_agent(path: str, agent: Any) -> None:
    if not (isinstance(getattr(agent, "name", None), str) and all(hasattr(agent, verb) for verb in ("run", "stream"))):
        raise InvalidError.at(path, "an agent: an Agent, a CommandAgent, a FunctionAgent or a Role", agent)


# --- one run ---


class _PassingError(Exception):
    """Carries a failure of the session through an operation, which must neither count it nor answer it."""

    def __init__(self, error: HoldfastError) -> None:
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
def _passing() -> Iterator[None]:
    try:
        yield
    except HoldfastError as error:
        if error.fault.code.startswith("SESS_"):
            raise _PassingError(error) from error
        raise


class _Run:
    """One run of a role: the agent itself, then its understudies."""

    def __init__(
        self,
        role: Role,
        prompt: str,
        session: Session | None,
        channel: _Channel | None = None,
        *,
        notifies: bool = True,
    ) -> None:
        self._role = role
        self._prompt = prompt
        self._session = session
        self._channel = channel
        self._notifies = notifies
        """Whether it notifies the user when all have failed. For an understudy, the role that it stands in for does."""
        self._op: Operation
        self._primary: Fault | None = None
        """Why the agent itself failed."""
        self._latest: Fault | None = None
        self._handover: _Handover | None = None

    async def answer(self) -> tuple[AgentReply, Operation | None]:
        """Return the reply, and the operation that got it; None: recovery is switched off."""
        plan, role = self._role.plan(), self._role
        if plan.off:
            return await self._ask(role.agent), None
        op = self._op = Operation(plan, _PASSES)
        try:
            with self._showing_retries():
                if role.understudies:
                    reply = await self._with_understudies(op)
                else:
                    reply = await self._alone(op)
        except _PassingError as passing:
            error = passing.error
        else:
            return reply, op
        raise error

    async def _alone(self, op: Operation) -> AgentReply:
        try:
            return await self._itself(op)
        except Exception as error:
            if not op.passes(error) and self._primary is not None:
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
                self._latest = self._primary
                itself = partial(_raise, self._primary)
        chain = self._chain(first, itself)
        reply: AgentReply = await drive_chain_async(op, chain, itself(), (), {})
        return reply

    def _chain(self, first: int, itself: Callable[[], Awaitable[AgentReply]]) -> Chain:
        role = self._role
        chain = Chain(itself, name=role.name)
        chain.event = AgentFallback
        chain.primary_name = role.name
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
        try:
            reply: AgentReply = await drive_async(op, self._ask, (self._role.agent,), {})
        except Exception as error:
            if not op.passes(error):
                self._primary = self._latest = op.plan.runtime.fault_of(error)
            raise
        return reply

    async def _take_over(self, understudy: Role) -> AgentReply:
        with _passing():
            if self._handover is not None and self._primary is not None:
                await self._handover.begins(understudy.name, self._primary)
            if self._channel is not None:
                self._channel.put(FellBack(from_=self._role.name, to=understudy.name, fault=self._latest))
            try:
                run = _Run(understudy, self._prompt, self._session, self._channel, notifies=False)
                return (await run.answer())[0]
            except Exception as error:
                self._latest = self._op.plan.runtime.fault_of(error)
                raise

    async def _ask(self, agent: AnyAgent) -> AgentReply:
        with _passing():
            if self._channel is None:
                reply = await agent.run(self._prompt, session=self._session)
            else:
                reply = await self._streamed(agent, self._channel)
        return reply if reply.agent else msgspec.structs.replace(reply, agent=agent.name)

    async def _streamed(self, agent: AnyAgent, channel: _Channel) -> AgentReply:
        reply: AgentReply | None = None
        async with agent.stream(self._prompt, session=self._session) as parts:
            async for part in parts:
                if isinstance(part, Done):
                    reply = part.reply
                else:
                    await channel.hand_over(part)
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
        role, fault = self._role, self._primary or exhausted
        if self._handover is not None:
            # A run that is started again begins with the agent itself.
            await self._handover.all_failed()
        if not self._notifies:
            return
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
        if role.notify is not None and inspect.isawaitable(told := role.notify(exhausted)):
            await told

    @contextmanager
    def _showing_retries(self) -> Iterator[None]:
        """Put a `Retrying` part into the stream before each further attempt of the agent itself."""
        channel, op = self._channel, self._op
        if channel is None:
            yield
            return

        def show(event: Any) -> None:
            if event.run == op.run:
                channel.put(
                    Retrying(
                        line=event.text,
                        attempt=event.attempt + 1,
                        delay=event.delay,
                        fault=event.fault,
                        restarts_text=True,
                    )
                )

        with op.plan.runtime.on(show, Retry):
            yield


async def _raise(fault: Fault) -> AgentReply:
    raise HoldfastError(fault)


class _Channel:
    """The parts that wait for the reader of a stream."""

    def __init__(self) -> None:
        self._parts: deque[AgentPart] = deque()
        self._changed = asyncio.Event()
        """Set when a part has come, or the work has ended."""
        self._read = asyncio.Event()
        """Set when the reader has taken a part."""

    def put(self, part: AgentPart) -> None:
        self._parts.append(part)
        self._changed.set()

    async def hand_over(self, part: AgentPart) -> None:
        """Put a part. If too many wait, wait for the reader."""
        self.put(part)
        while len(self._parts) >= _MOST_PARTS:
            self._read.clear()
            await self._read.wait()

    def wake(self, _: object) -> None:
        self._changed.set()

    async def parts(self, working: asyncio.Future[tuple[AgentReply, Operation | None]]) -> AsyncIterator[AgentPart]:
        while True:
            while self._parts:
                part = self._parts.popleft()
                self._read.set()
                yield part
            if working.done():
                break
            self._changed.clear()
            await self._changed.wait()
        yield Done(reply=working.result()[0])


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
            step = session.keyed(f"{run}/{number}/{names[place]}")
            if await step.is_stored():
                handover.in_charge = place, _fault_in(await step.step(takes_over, "", ""))
                break
        return handover

    async def begins(self, understudy: str, why: Fault) -> None:
        """Store that an understudy takes over, before it begins."""
        # Not the failure's own text: it may quote a secret that a store rejects.
        await self._session.keyed(f"{self._key}/{understudy}").step(takes_over, why.code, why.for_user())

    async def all_failed(self) -> None:
        await self._session.keyed(f"{self._key}/failed").step(all_failed)


def _fault_in(stored: dict[str, Any]) -> Fault:
    # A newer version may have stored a code that this one does not know.
    code = stored["code"] if stored["code"] in CATALOG else "SYS_UNKNOWN"
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


# --- the roles of a program ---


class Roles:
    """The roles of a program by name: `roles["builder"]`. Agents are made in code; who stands behind whom may be in `holdfast.toml`.

        from holdfast.agents import Roles

        roles = Roles([coder, simple, by_hand])             # as [roles.…] in holdfast.toml says
        reply = await roles["builder"].run("paint the door")

    agents: every agent that a role may name.
    roles: settings by name of the role. By default those of `holdfast.toml`, as `holdfast.config.load` finds it.
    notify: called with the fault when a role and all its understudies have failed.
    runtime: by default the default runtime.

    An understudy may also be the name of another role. A name without settings has no role. Names that nothing has, and roles that wait
    for each other, raise `ConfigError`, which lists every mistake.
    """

    def __init__(
        self,
        agents: Iterable[AnyAgent],
        roles: Mapping[str, RoleSettings] | None = None,
        *,
        notify: Callable[[Fault], object] | None = None,
        runtime: Runtime | None = None,
    ) -> None:
        self._agents = _by_name(agents)
        config = load() if roles is None else None
        self._settings = dict(config.roles if config is not None else roles or {})
        self._notify = notify
        self._runtime = runtime
        self._roles: dict[str, Role] = {}
        problems = Problems()
        for name in self._settings:
            self._find_mistakes(name, problems)
        if problems.found:
            raise ConfigError.of("roles" if config is None else config.source, problems.found)
        for name in self._settings:
            self._roles[name] = self._role(name)

    def __getitem__(self, name: str) -> Role:
        if name not in self._roles:
            raise InvalidError.at(
                "roles", f"a role of this program ({', '.join(self._roles) or 'there is none'})", name
            )
        return self._roles[name]

    def __contains__(self, name: object) -> bool:
        return name in self._roles

    def __iter__(self) -> Iterator[str]:
        return iter(self._roles)

    def __len__(self) -> int:
        return len(self._roles)

    def __repr__(self) -> str:
        return f"Roles({', '.join(self._roles)})"

    def _find_mistakes(self, name: str, problems: Problems) -> None:
        settings = self._settings[name]
        agent = settings.agent or name
        if agent not in self._agents:
            problems.add_unknown(f"roles.{name}.agent", "agent", agent, self._agents)
        for understudy in settings.understudies:
            path = f"roles.{name}.understudies"
            if understudy == name or (understudy not in self._agents and name in self._behind(understudy)):
                problems.add_text(path, "agents that do not stand behind themselves", understudy)
            elif understudy not in self._agents and understudy not in self._settings:
                problems.add_unknown(path, "agent", understudy, {**self._agents, **self._settings})

    def _behind(self, name: str) -> set[str]:
        """Return the names of all roles that stand behind a role, directly or not."""
        found: set[str] = set()
        waiting = [name]
        while waiting:
            settings = self._settings.get(waiting.pop())
            others = set(settings.understudies if settings is not None else ()) - set(self._agents) - found
            found |= others
            waiting += others
        return found

    def _role(self, name: str) -> Role:
        if name in self._roles:
            return self._roles[name]
        settings = self._settings[name]
        return Role(
            name,
            self._agents[settings.agent or name],
            understudies=[self._agents.get(one) or self._role(one) for one in settings.understudies],
            circuit=settings.circuit,
            timeout=settings.timeout,
            retry=settings.retry,
            consent=settings.consent,
            notify=self._notify,
            runtime=self._runtime,
        )


def _by_name(agents: Iterable[AnyAgent]) -> dict[str, AnyAgent]:
    found: dict[str, AnyAgent] = {}
    for agent in agents:
        _check_agent("roles.agents", agent)
        if agent.name in found:
            raise InvalidError.saying("roles.agents", "a name of its own for each agent", f"{agent.name!r} twice")
        found[agent.name] = agent
    return found
