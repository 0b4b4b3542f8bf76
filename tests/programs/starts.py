"""One start of a program: a fork of this process, killed where the start says. And the person who looks after the store meanwhile."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sqlite3
import sys
import threading
import time
import traceback
from contextlib import closing
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.programs import world

from holdfast import HoldfastError, OutcomeUnknownError
from holdfast.sessions import answer, pending, resolve_step, retention
from holdfast.sessions.admin import overview
from holdfast.stores import open_store
from holdfast.stores.failpoints import FAILPOINTS
from holdfast.testing.crashtest.inside import forks

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from tests.programs.program import Start

__all__ = ["End", "prune", "run", "settle", "warm"]

LIMIT_S = 20.0
"""After so long a start hangs."""
_MARKS = frozenset({"written", "committed", "before", "after", "said", "asked", "model"})
"""The moments between which the state of the world changes. The others are inside of one write."""
_STORE, _KEPT = "work.db", ".behind.db"
_REPORT, _MODULES = ".report.json", ".modules"


@dataclass(frozen=True)
class End:
    """How a start ended: ended, killed, hung, or raised with the facts about its error."""

    how: str
    code: str = ""
    error: str = ""
    """The type of the error."""
    cause: str = ""
    """The code of the failure of a part, if that ended the whole."""
    message: str = ""
    ours: bool = False
    """Whether the error is one of Holdfast's, so that it says how to go on."""
    trace: str = ""

    @property
    def asks(self) -> bool:
        """Whether somebody has to say something before it goes on."""
        return not {self.code, self.cause}.isdisjoint(("TOOL_OUTCOME_UNKNOWN", "SESS_NO_INTERACTOR"))


def run(source: str, folder: Path, start: Start) -> End:
    """Start the program once, in a process of its own."""
    report = folder / _REPORT
    report.unlink(missing_ok=True)

    def program() -> None:
        _arm(start)
        _perform(source, folder)
        _leave()

    pid = forks.start(program, str(folder), output=str(folder / ".output"), errors=str(folder / ".errors"))
    status = forks.wait(pid, LIMIT_S)
    if status is None:
        return End("hung", message=(folder / ".errors").read_text()[-2_000:])
    if not report.exists():
        errors = (folder / ".errors").read_text()
        if not os.WIFSIGNALED(status):
            raise RuntimeError(f"the harness failed: {status} {errors}")
        return End("killed", message=str(status))
    return End(**json.loads(report.read_text()))


def _leave() -> None:
    """End as a program does, but without the exit handlers of the tests around it, which are no part of it."""
    threading._shutdown()
    os._exit(0)


def _perform(source: str, folder: Path) -> None:
    sys.path.insert(0, str(folder))
    try:
        exec(compile(source, "program.py", "exec"), {"__name__": "__main__"})
        facts: dict[str, Any] = {"how": "ended"}
    except BaseException as error:
        facts = _facts(error)
    signal.setitimer(signal.ITIMER_REAL, 0)
    loaded = [name for name in sys.modules if name.startswith("holdfast") or "." not in name]
    Path(_MODULES).write_text("\n".join(loaded))
    Path(_REPORT).write_text(json.dumps(facts))


def _facts(error: BaseException) -> dict[str, Any]:
    each = _leaves(error)
    # What asks comes first: a group may hold a cancelled sibling beside it.
    each.sort(key=lambda leaf: (not isinstance(leaf, OutcomeUnknownError), not isinstance(leaf, HoldfastError)))
    leaf = each[0]
    fault = getattr(leaf, "fault", None)
    return {
        "how": "raised",
        "code": str(getattr(fault, "code", "")),
        "error": type(leaf).__name__,
        "cause": "" if fault is None else str(fault.context.get("subtask_code", "")),
        "message": str(leaf),
        "ours": isinstance(leaf, HoldfastError),
        "trace": "".join(traceback.format_exception(error))[-6_000:],
    }


def _leaves(error: BaseException) -> list[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        return [leaf for each in error.exceptions for leaf in _leaves(each)]
    return [error]


def _arm(start: Start) -> None:
    """Make the kill ready, in the child. SIGALRM is not handled, so it ends the process as SIGKILL does, wherever it is."""
    if start.clock:
        real = time.time
        time.time = lambda: real() + start.clock
    if start.behind:
        world.mark = _setting_back(*start.behind)
    if start.slow:
        FAILPOINTS.hook = _wait_for_the_disk
    kill = start.kill
    if kill is None:
        return
    if kill.how == "delay":
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, kill.n / 1_000)
        return
    left = kill.n
    counted = {kill.how} if kill.how in ("before", "after") else _MARKS

    def reach(name: str) -> None:
        nonlocal left
        if start.slow:
            _wait_for_the_disk(name)
        if kill.how == "point" or name.split(" ", 1)[0] in counted:
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    world.mark = reach
    if kill.how != "world":
        FAILPOINTS.hook = reach


def _wait_for_the_disk(name: str) -> None:
    """In the thread that writes, a commit takes a while."""
    if name == "written" and threading.current_thread() is not threading.main_thread():
        time.sleep(random.random() / 150)


def _setting_back(saved: int, restored: int) -> Callable[[str], None]:
    """Return what keeps a copy of the store at one mark of the program, and brings it back at a later one."""
    marks = count(1)

    def reach(name: str) -> None:
        del name
        match next(marks):
            case number if number == saved and Path(_STORE).exists():
                _copy(_STORE, _KEPT)
            case number if number == restored and Path(_KEPT).exists():
                _copy(_KEPT, _STORE)
                Path(_KEPT).unlink()

    return reach


def _copy(source: str, target: str) -> None:
    with closing(sqlite3.connect(source)) as one, closing(sqlite3.connect(target)) as other:
        one.backup(other)


def settle(folder: Path, store: str, session: str) -> None:
    """Answer what is open at the store, truthfully, as a person does between two starts. It runs in a process of its own."""

    async def person() -> None:
        async with open_store(store) as opened:
            seen = await overview(opened, session)
            for key in seen.unknown:
                found = world.happened(key)
                await resolve_step(opened, session, key, happened=found is not None, result=found, by="person")
            for question in await pending(opened, session):
                given = await world.Person().ask(question)
                await answer(opened, session, question.id, given.value, by="person")

    _at_the_store(folder, person)


def prune(folder: Path, store: str) -> None:
    """Drop what need not be kept, as `holdfast sessions prune` does."""

    async def person() -> None:
        async with open_store(store) as opened:
            await retention.prune(opened, retention.Retention(entries=0), time.time())

    _at_the_store(folder, person)


def _at_the_store(folder: Path, person: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Let somebody do something at the store, in a process of its own."""

    def program() -> None:
        asyncio.run(person())
        _leave()

    pid = forks.start(program, str(folder), output=str(folder / ".output"), errors=str(folder / ".person"))
    if forks.wait(pid, LIMIT_S) != 0:
        raise RuntimeError(f"the person could not do it: {(folder / '.person').read_text()[-3_000:]}")


def warm(folder: Path) -> None:
    """Import what the last program had imported, so that its next start need not."""
    listed = folder / _MODULES
    if listed.exists():
        forks.preload(name for name in listed.read_text().split() if name not in sys.modules and name != "__main__")
