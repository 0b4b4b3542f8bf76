"""The doubts of a session: unsafe steps that may have happened, and what somebody found out about them.

Invariant: the first finding counts. It also closes the questions about its doubt that nobody has answered.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast.events import OperatorAsked
from holdfast.faults import HoldfastError, InvalidError
from holdfast.once.doubt import call_text, resolve_command, unknown_error
from holdfast.once.identity import key_of
from holdfast.runtime.failures.left_behind import LEFT_BEHIND
from holdfast.runtime.runtime import default_runtime
from holdfast.sessions.admin import check_repeated
from holdfast.sessions.log import Answered
from holdfast.sessions.open_ends import close, handled
from holdfast.sessions.steps import Finding, questions_about, settlement, shown
from holdfast.stores.address import cli_option
from holdfast.stores.records import WAKE

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from holdfast.sessions.journal import Journal

__all__ = ["Doubts"]


class Doubts:
    """The steps of a session that may have happened. `Session.doubts` returns it."""

    def __init__(self, journal: Journal, running: Callable[[], set[str]]) -> None:
        self._journal = journal
        self._running = running
        """Returns the steps that run now: their outcome is not unknown, only not there yet."""

    def keys(self) -> tuple[str, ...]:
        """Return the keys of all of them."""
        running = self._running()
        unknown = self._journal.memory.unknown()
        return tuple(key_of(self._journal.session, after) for after in unknown if after not in running)

    def about(self, fn: str, arguments: dict[str, Any]) -> str:
        """Return the key of a step that called this function with these arguments; empty if there is none.

        key = session.doubts.about("deploy", {"version": "4.2"})
        """
        text, running = shown((), arguments), self._running()
        for after, entry in self._journal.memory.unknown().items():
            if after not in running and entry.fn == fn and entry.shown == text:
                return key_of(self._journal.session, after)
        return ""

    def text(self, key: str) -> str:
        """Return the step of a doubt as a person knows it: `deploy("version 2")`."""
        return call_text(self._journal.memory.unknown()[key.removeprefix(f"{self._journal.session}/")])

    def start(self, key: str) -> str:
        """Return the id of the entry with which the step of a doubt began: an answer about it settles this start, and no other.

        details = {"start": session.doubts.start(key)}
        """
        entry = self._journal.memory.unknown().get(key.removeprefix(f"{self._journal.session}/"))
        return "" if entry is None else entry.begun

    def report(self) -> None:
        """Report each of them, when the session is left: nobody may look at a run that ended well.

        The event `operator-asked` is a line of the log and an alert.
        """
        journal, running = self._journal, self._running()
        runtime = journal.runtime or default_runtime()
        for after, entry in journal.memory.unknown().items():
            if after in running:
                continue
            fault = unknown_error(journal.session, after, entry, store_option=cli_option(journal.store)).fault
            runtime.bus.emit(
                OperatorAsked(
                    at=runtime.clock.wall(),
                    operation=call_text(entry),
                    attempts=1,
                    fault=fault,
                    session=journal.session,
                )
            )

    async def resolve(self, key: str, *, happened: bool, result: Any, by: str, at: float) -> None:
        """Store what somebody found out: see `Session.resolve`. `at` is when."""
        journal = self._journal
        if not happened and LEFT_BEHIND.runs(key):
            raise InvalidError.saying(
                "session.resolve",
                "the end of the call, or happened=True",
                f"{key}, whose thread still runs: it may take effect yet",
            )
        await journal.catch_up()
        finding = Finding.of(happened=happened, result=result, by=by, at=at)
        try:
            settled = settlement(journal.memory, journal.session, key, finding)
            await journal.write(
                settled.ended, *settled.answers, claim=settled.claim, audit=(settled.record,), work=WAKE
            )
        except HoldfastError as error:
            await check_repeated(journal.store, journal.session, key, finding, error)
        # Somebody else may have written the same.
        await journal.catch_up()
        close(journal, key_of(journal.session, key.removeprefix(f"{journal.session}/")))

    def handled(self) -> AbstractContextManager[None]:
        """Return a block that ends well only if the one who goes on knows of each doubt inside of it: an agent's model, for example.

        with session.doubts.handled(): ...
        """
        return handled(self._journal)

    def command(self, key: str) -> str:
        """Return the command that stores what somebody found out, up to `--happened` or `--not-happened`."""
        session = self._journal.session
        return resolve_command(session, key.removeprefix(f"{session}/"), cli_option(self._journal.store))

    async def withdraw_questions(self, key: str, reason: str) -> None:
        """Close the open questions about a doubt, because nobody waits for their answers any more.

        await session.doubts.withdraw_questions(key, "the model knows that the outcome is unknown")
        """
        await self._journal.catch_up()
        gone = questions_about(self._journal.memory, key)
        if gone:
            await self._journal.write(*(Answered(id=each.id, outcome="rejected", reason=reason) for each in gone))
