"""Permissions for one tool call each: bound to the execution, the attempt, the proposal, the tool and its arguments, and used once.

Invariant: a grant that was used is stored as used before the call begins. It stays used after a crash.
"""

from __future__ import annotations

import asyncio
import inspect
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

import msgspec

from holdfast import options
from holdfast.faults import Fault, HoldfastError

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.tasks.workflows.durable import Keeper

__all__ = ["Decision", "Grants", "Proposal", "digest_of"]

Decision: TypeAlias = Literal["approve", "deny", "defer"]
"""What is decided about a proposal. `defer` denies the call, too: it may be proposed again later."""


class Proposal(msgspec.Struct, frozen=True, kw_only=True):
    """A tool call for which a grant is requested. A grant is valid for exactly this one."""

    execution: str
    """Identifies the execution of the stage."""
    attempt: int
    id: str
    """Identifies the call."""
    tool: str
    digest: str
    """Identifies the arguments."""
    arguments: dict[str, Any] = {}
    """For the function that decides. The digest stands for them in the grant."""

    @property
    def token(self) -> str:
        """The name of its grant."""
        bound = [self.execution, self.attempt, self.id, self.tool, self.digest]
        return f"grant-{sha256(msgspec.json.encode(bound)).hexdigest()[:24]}"


class Grants:
    """The grants of one attempt of a stage.

    if await grants.decide(proposal, ask_the_operator) == "approve":
        await grants.use(proposal.token, proposal, by="calls/1")        # once
    """

    def __init__(self, keeper: Keeper, execution: str, attempt: int) -> None:
        self._keeper = keeper
        self._execution = execution
        self._attempt = attempt
        self._using = asyncio.Lock()
        """Held while a grant is used: of two calls with one grant, one gets it."""

    async def decide(self, proposal: Proposal, decide: Callable[[Proposal], Any]) -> Decision | None:
        """Return the decision about a proposal, made once, or None if the function made no decision. An approval makes a grant."""

        async def made() -> Any:
            decision = decide(proposal)
            if inspect.isawaitable(decision):
                decision = await decision
            if decision is not None:
                options.one_of(f"what the grant function returns for {proposal.tool}", decision, get_args(Decision))
            return {"decision": decision, "bound": _bound(proposal)}

        stored = await self._keeper.once(_place(proposal.token, "decided"), made)
        decision: Decision | None = stored["decision"]
        return decision

    async def use(self, token: str, proposal: Proposal, *, by: str) -> None:
        """Use a grant up. `by` identifies the call, the same after a restart: a call that was cut off uses its own grant again.

        Raises TASK_GRANT_INVALID if there is no grant for this call, TASK_GRANT_EXPIRED if it belongs to another execution or attempt,
        and TASK_GRANT_CONSUMED if it was used.
        """
        stored = await self._keeper.stored(_place(token, "decided"))
        if stored is None or stored["decision"] != "approve":
            raise _rejected("TASK_GRANT_INVALID", token)
        bound = stored["bound"]
        if (bound["execution"], bound["attempt"]) != (self._execution, self._attempt):
            raise _rejected("TASK_GRANT_EXPIRED", token)
        if bound != _bound(proposal):
            raise _rejected("TASK_GRANT_INVALID", token)

        async def used() -> str:
            return by

        async with self._using:
            used_by = await self._keeper.once(_place(token, "used"), used)
        if used_by != by:
            raise _rejected("TASK_GRANT_CONSUMED", token)


def digest_of(arguments: Any) -> str:
    """Return what identifies the arguments of a call."""
    return sha256(msgspec.json.encode(arguments, order="deterministic", enc_hook=str)).hexdigest()[:32]


def _bound(proposal: Proposal) -> dict[str, Any]:
    return {
        "execution": proposal.execution,
        "attempt": proposal.attempt,
        "id": proposal.id,
        "tool": proposal.tool,
        "digest": proposal.digest,
    }


def _place(token: str, what: str) -> str:
    return f"grants/{token}/{what}"


def _rejected(code: Any, token: str) -> HoldfastError:
    return HoldfastError(Fault.of(code, context={"grant": token}))
