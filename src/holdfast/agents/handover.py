"""Which understudy of a role has taken over in a run, as the session stores it.

Invariant: it is stored before the understudy begins, so that a program that is run again goes on with the same one.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any

from holdfast.faults import CATALOG, Fault

if TYPE_CHECKING:
    from holdfast.agents.role import Role
    from holdfast.faults import Code
    from holdfast.sessions.session import Session

__all__ = ["Handover"]


class Handover:
    """Which understudy of a role has taken over in one run, as the session stores it."""

    def __init__(self, session: Session, key: str) -> None:
        self._session = session
        self._key = key
        self.in_charge: tuple[int, Fault] | None = None
        """The place of the understudy that has taken over, and why the agent itself failed; None: nobody has taken over."""

    @classmethod
    async def of(cls, session: Session, role: Role, prompt: str) -> Handover:
        """Return what is stored about this run: about the first, second … run with this prompt in the turn or session."""
        run = await session.step(role_run, role.name, prompt)
        number = 1
        while await session.keyed(f"{run}/{number}/failed").is_stored():
            # All had failed, and the program was started again.
            number += 1
        handover = cls(session, f"{run}/{number}")
        names = role.settings.understudies
        for place in reversed(range(len(names))):
            stored = await session.keyed(f"{run}/{number}/to:{names[place]}").stored()
            if stored is not None:
                handover.in_charge = place, _fault_in(stored)
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
