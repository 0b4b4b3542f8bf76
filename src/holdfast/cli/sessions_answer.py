"""`holdfast sessions answer`: an answer to a question, whether the program that asks runs or not."""

from __future__ import annotations

import getpass
import socket
from typing import TYPE_CHECKING

import msgspec

from holdfast.cli.exits import Exit
from holdfast.cli.output import narrate, show_json
from holdfast.cli.stored import with_store
from holdfast.faults import InvalidError
from holdfast.sessions import Answer, answer, pending
from holdfast.sessions.outside import find

if TYPE_CHECKING:
    from holdfast.stores import Store

__all__ = ["answer_of", "sessions_answer"]


def answer_of(value: str | None, *, yes: bool, no: bool, dismiss: bool, reason: str) -> Answer:
    """Return the answer that flags and argument name: exactly one."""
    said = [
        name
        for name, is_said in {"VALUE": value is not None, "--yes": yes, "--no": no, "--dismiss": dismiss}.items()
        if is_said
    ]
    if len(said) != 1:
        raise InvalidError.saying(
            "answer", "one of VALUE, --yes, --no, --dismiss", " and ".join(said) or "none of them"
        )
    if dismiss:
        return Answer.dismissed(reason)
    if no:
        return Answer.no(reason)
    return Answer(value=True if yes else value, reason=reason)


def sessions_answer(url: str | None, given: str, question: str, said: Answer, *, by: str | None, as_json: bool) -> Exit:
    """Put an answer on record."""

    async def give(store: Store) -> Exit:
        session = await find(store, given)
        id_ = await _question(store, session, question)
        answered = await answer(store, session, id_, said, by=by or f"{getpass.getuser()}@{socket.gethostname()}")
        if as_json:
            show_json({"schema": "holdfast.sessions.answer/1", "session": session, **msgspec.to_builtins(answered)})
        else:
            narrate(f"{id_} of {session}: {answered.outcome}, by {answered.by}")
        return Exit.OK

    return with_store(url, give)


async def _question(store: Store, session: str, given: str) -> str:
    """Return the id of the open question that begins so; what fits none is for the store to refuse."""
    fitting = [question.id for question in await pending(store, session) if question.id.startswith(given)]
    if given in fitting or not fitting:
        return given
    if len(fitting) > 1:
        raise InvalidError.saying("question", "the beginning of one id", f"that of {', '.join(fitting)}")
    return fitting[0]
