"""`Talk`: performs what the machine of the Agent Client Protocol wants: writes to the program, and has its tool calls decided.

Invariant: a tool call that the program asks about is answered once, with what the approval, a grant, the mode or a person decided. In a
session a person's answer counts for one call, also if the program is cut and asks again.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from holdfast.agents.approval import propose
from holdfast.faults import Fault
from holdfast.runtime.secrets import process_redactor
from holdfast.tools.process_error import ProcessError

if TYPE_CHECKING:
    from holdfast.agents.approver import Approver
    from holdfast.agents.command_lines import AcpLines, Asked
    from holdfast.sessions.session import Session
    from holdfast.tools.process import Process

__all__ = ["Permissions", "Talk"]

_CANCEL_S = 2.0
"""How long a program may take to end its turn after `session/cancel`. Then it is stopped."""
_UNREAD_BYTES = 16_777_216
"""How much is held for a program that does not read. One that goes on to ask then is stopped."""


class Permissions:
    """Decides about the tool calls of a run, whose key in the session is `key`."""

    def __init__(self, approver: Approver, session: Session | None, key: str) -> None:
        self._approver = approver
        self._session = session
        self._key = key

    async def is_given(self, asked: Asked) -> bool:
        """Whether the call may run. Raises what the session raises, SESS_NO_INTERACTOR for example."""
        place = await self._place(asked)
        # A program asks about the calls that it takes for risky.
        approved = await self._approver.approve(asked.call, "unsafe", place)
        is_given = not isinstance(approved, Fault)
        if self._session is not None and place:
            # Stored before the program learns it: an answer that was used is not used for the next equal call.
            await self._session.keyed(place).step(decided, is_given)
        return is_given

    @property
    def is_lasting(self) -> bool:
        """Whether a permission may hold for more than one call: nobody wants to decide about the single calls."""
        return not self._approver.decides_each

    async def _place(self, asked: Asked) -> str:
        """Return the name of the question: the first one about this call whose answer was not used."""
        if self._session is None or self._approver.approval.mode != "ask":
            return ""
        # The program's ids of its calls are other ones after a restart, so the arguments identify the call.
        digest = propose(asked.call.name, asked.call.arguments, "", process_redactor()).digest
        number = 0
        while await self._session.keyed(f"{self._key}/permission {digest}.{number}").is_stored():
            number += 1
        return f"{self._key}/permission {digest}.{number}"


async def decided(is_given: bool) -> bool:  # noqa: FBT001 - a stored step: its name and its argument never change
    """Return what was decided, as a step of a session."""
    return is_given


class Talk:
    """The conversation with one running program."""

    def __init__(self, process: Process, lines: AcpLines, permissions: Permissions) -> None:
        self._process = process
        self._lines = lines
        self._permissions = permissions
        self.waited = 0.0
        """Seconds in which the program waited for a decision."""

    async def perform(self) -> None:
        """Write what has to be written, and decide what has to be decided. Raises what the session raises."""
        self._write()
        loop = asyncio.get_running_loop()
        while self._lines.asked:
            asked, began = self._lines.asked[0], loop.time()
            with self._process.limits_paused():
                is_given = await self._permissions.is_given(asked)
            self.waited += loop.time() - began
            self._lines.answer(asked, is_given=is_given, is_lasting=self._permissions.is_lasting)
            self._write()
        if self._lines.report.ended:
            # The program waits for the next prompt. Without input it ends by itself.
            self._process.close_input()

    async def stop(self) -> None:
        """Ask the program to end its turn, wait a moment for that, and stop it."""
        try:
            if self._process.running and self._lines.cancel():
                async with asyncio.timeout(_CANCEL_S):
                    self._write()
                    await self._read_to_end()
        except (TimeoutError, ProcessError):
            # It does not listen, or has ended.
            pass
        finally:
            await self._process.stop()

    async def _read_to_end(self) -> None:
        async for line in self._process.lines():
            self._lines.read(line)
            self._write()
            if self._lines.report.ended:
                return

    def _write(self) -> None:
        # Without waiting: who writes here reads the program's output, too.
        held = 0
        while self._lines.outgoing:
            held = self._process.write_soon(self._lines.outgoing.pop(0))
        if held > _UNREAD_BYTES:
            self._lines.unread(held)
