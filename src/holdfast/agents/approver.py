"""`Approver`: decides whether tool calls may run, and asks a person where neither a grant nor the mode decides.

Invariant: a person is asked about one call at a time, in the order in which the calls come, and an answer holds for exactly the arguments
that were shown.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import msgspec

from holdfast.agents.approval import Approval, denied, propose
from holdfast.faults import Fault, HoldfastError
from holdfast.providers.messages import ToolCall
from holdfast.runtime.secrets import process_redactor

if TYPE_CHECKING:
    from collections.abc import Iterator
    from collections.abc import Set as AbstractSet

    from holdfast.agents.approval import Grant, Permission, ProposedCall
    from holdfast.policies.decide import Effect
    from holdfast.sessions.session import Session

__all__ = ["Approver", "Granting", "Terms", "working_for"]

Granting: TypeAlias = Callable[[ToolCall], "Grant | Awaitable[Grant | None] | None"]
"""Returns the permission of a token that is bound to exactly this call, and uses the token up; None if there is none."""


class Terms(NamedTuple):
    """What decides about the tool calls of an agent.

    Invariant: an agent among the tools of another one is allowed no more than that one. It would be a way around what was decided there.
    """

    approval: Approval | None = None
    """None: the mode of the session decides."""
    grant: Granting | None = None
    expires: float | None = None
    envelope: frozenset[str] | None = None
    """The tools that the present stage allows; None: all."""

    def under_caller(self) -> Terms:
        """Return these terms, where they say nothing those of the agent that this one works for, and of both envelopes what is in both."""
        caller = _CALLER.get()
        if caller is None:
            return self
        return Terms(
            caller.approval if self.approval is None else self.approval,
            caller.grant if self.grant is None else self.grant,
            caller.expires if self.expires is None else self.expires,
            _both(self.envelope, _both(caller.envelope, None if caller.approval is None else caller.approval.envelope)),
        )

    def approval_in(self, session: Session | None) -> Approval | None:
        """Return what may run: what the agent or the session allows, and of that only what the present stage allows."""
        if self.envelope is None:
            return self.approval
        approval = self.approval or Approval.of(session)
        return msgspec.structs.replace(approval, envelope=_both(approval.envelope, self.envelope))


_CALLER: ContextVar[Terms | None] = ContextVar("holdfast_agent_caller", default=None)
"""The terms of the agent that the running code works for, as one of its tools; None: for none."""


@contextmanager
def working_for(caller: Terms | None) -> Iterator[None]:
    """Hold the agents in the block to the terms of the agent that called them."""
    token = _CALLER.set(caller)
    try:
        yield
    finally:
        _CALLER.reset(token)


def _both(one: AbstractSet[str] | None, other: AbstractSet[str] | None) -> frozenset[str] | None:
    """Return the names that are in both sets; None is all names."""
    if one is None or other is None:
        return None if one is other else frozenset(one or other or ())
    return frozenset(one & other)


_MOST_QUESTIONS = 3
"""How often a person is asked about one call, if its arguments change while they are asked."""


class Approver:
    """Decides about the tool calls of one reply, or of one run of a program.

    approval: what may run; by default the mode of the session. grant: finds a token for exactly one call. expires: the seconds in which
    a person may answer; then the call is denied. session: asks people and keeps the audit trail.
    """

    def __init__(
        self,
        session: Session | None,
        *,
        approval: Approval | None = None,
        grant: Granting | None = None,
        expires: float | None = None,
    ) -> None:
        self._session = session
        self.approval = approval or Approval.of(session)
        self._grant = grant
        self._expires = expires
        self._asking = asyncio.Lock()
        """Held while a person is asked. It is fair, and the calls come to it in their order."""

    @property
    def decides_each(self) -> bool:
        """Whether somebody decides about each single call, so that no permission may hold for more than one."""
        return self.approval.mode != "yolo" or self._grant is not None

    async def approve(self, call: ToolCall, effect: Effect, place: str) -> ToolCall | Fault:
        """Return the call as it may run, or why it may not. `place` tells equal calls apart, the same in every run of the program.

        Raises what the session raises: SESS_NO_INTERACTOR if a person must be asked and nobody is attached.
        """
        grant: Any = None
        if self._grant is not None and self.approval.admits(call.name):
            grant = self._grant(call)
            if inspect.isawaitable(grant):
                grant = await grant
        permission = self.approval.decide(call.name, effect, grant)
        if permission.verdict != "ask":
            self._audit_permission(call, permission)
            return call if permission.verdict == "run" else denied(call.name, permission.reason)
        if self._session is None:
            return denied(call.name, "nobody can be asked: the agent runs without a session")
        return await self._ask(call, place, self._session, effect)

    async def _ask(self, call: ToolCall, place: str, session: Session, effect: Effect | None) -> ToolCall | Fault:
        """Ask a person. If the arguments change meanwhile, the answer does not count, and the person is asked about the new ones."""
        for _ in range(_MOST_QUESTIONS):
            proposal = _proposal(call, place, effect)
            if not proposal.can_be_shown:
                return denied(
                    call.name, "its arguments are too long to be shown to a person, who must allow it: split the call"
                )
            async with self._asking:
                try:
                    answered = await session.approval(
                        proposal.prompt, details=proposal.details, expires=self._expires, call=call.id
                    )
                except HoldfastError as error:
                    if error.fault.code != "SESS_INTERACTION_EXPIRED":
                        raise
                    return denied(call.name, "nobody answered in time")
            if answered.outcome != "accepted":
                return denied(call.name, answered.reason and f"the user said: {answered.reason}")
            if _proposal(call, place, effect).digest == proposal.digest:
                return msgspec.structs.replace(call, arguments=proposal.arguments)
            self.audit(call, event="void", question=answered.id, reason="the arguments changed")
        return denied(call.name, "its arguments changed each time it was approved")

    def _audit_permission(self, call: ToolCall, permission: Permission) -> None:
        # In mode ask the calls without a risk are most of all calls, and nobody has decided anything about them.
        if permission.verdict == "run" and permission.by == "mode" and self.approval.mode == "ask":
            return
        facts = {"reason": permission.reason} if permission.reason else {}
        self.audit(
            call, event="decided", verdict=permission.verdict, by=permission.by, mode=self.approval.mode, **facts
        )

    def audit(self, call: ToolCall, **facts: Any) -> None:
        """Write to the audit trail of the session what became of a call."""
        if self._session is not None:
            self._session.audit("Approval", tool=call.name, call=call.id, **facts)


def _proposal(call: ToolCall, place: str, effect: Effect | None) -> ProposedCall:
    return propose(call.name, call.arguments, place, process_redactor(), effect)
