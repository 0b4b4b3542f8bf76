"""One run of a role: its agent with retries, then its understudies, then the notification of the user.

Invariant: a failure of the session, and a run that is parked, pass through the operation: they are neither counted nor retried.
"""

from __future__ import annotations

import inspect
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from holdfast.agents.handover import Handover
from holdfast.agents.parts import Done
from holdfast.agents.usage_limit import is_parked
from holdfast.events import AgentFallback, UserNotified
from holdfast.faults import AbortedError, Fault, HoldfastError, Ok
from holdfast.policies.decide import can_fall_back
from holdfast.runtime.fallbacks.fallback import Chain, drive_chain_async
from holdfast.runtime.operation import reports
from holdfast.runtime.operation.adapter import Adapter
from holdfast.runtime.operation.drivers import call_plainly_async, drive_async
from holdfast.runtime.operation.operation import Operation
from holdfast.runtime.operation.plan import PLAN_ATTRIBUTE

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from holdfast.agents.feed import Feed
    from holdfast.agents.kind import AnyAgent
    from holdfast.agents.reply import AgentReply
    from holdfast.agents.role import Role
    from holdfast.faults import Outcome
    from holdfast.policies.fallback import Consent
    from holdfast.runtime.runtime import Runtime
    from holdfast.sessions.session import Session

__all__ = ["RoleRun"]


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


class RoleRun:
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
        self._handover: Handover | None = None

    async def answer(self) -> tuple[AgentReply, Operation | None]:
        """Return the reply, and the operation that got it; None: recovery is switched off."""
        plan, role = self._role.plan(), self._role
        try:
            if plan.off:
                return await call_plainly_async(plan, self._ask, (role.agent,)), None
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
                self._handover = await Handover.of(self._session, role, self._prompt)
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
            run = RoleRun(understudy, self._prompt, self._session, self._feed, anew=self._anew, notifies=False)
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
