"""Calls of tasks that run at the same time: which of several equal calls is which, and which one has to wait for others.

Invariant: nothing waits for its own end, and no wait for another task is longer than its patience.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeVar

from holdfast.faults import InvalidError
from holdfast.once.replay import Calling
from holdfast.runtime.ambient import AMBIENT
from holdfast.runtime.operation.operation import Operation
from holdfast.sessions.place import (
    around_here,
    here,
    is_inside,
    places_of,
    task_here,
    task_name,
    tasks_around,
    uses_around,
    whom_alive,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.once.identity import Identity
    from holdfast.once.replay import Attempts, Use, Uses
    from holdfast.sessions.journal import Journal

__all__ = [
    "PATIENCE_S",
    "attempts_around",
    "calling_of",
    "check_apart",
    "let_others_act",
    "moved_from",
    "until_free",
    "use_after_others",
]

T = TypeVar("T")

_ROUNDS = 10
"""How often the other tasks may run before it is looked at whether there are any."""
_MOMENT_S = 0.01
PATIENCE_S = 5.0
"""Seconds in which another task may still call an unsafe step that the log knows, before another call of its function is drift."""
_TASK_PATIENCE_S = 1.0
"""Seconds in which the task that made a call in an earlier run may still come to it, before another task takes its result."""

_APART = (
    'a key that tells it from the others, as in session.keyed("NAME").step({name}, …), or `with session.part("NAME"):` around each of them, '
    "or all of them as items of one session.map"
)
_EQUAL = "an equal call of {name} in another task at the same time: after a restart their results could change places"


def calling_of(
    journal: Journal,
    identity: Identity,
    earlier: Callable[[], Identity] | None = None,
    owner: Callable[[], Any] | None = None,
) -> Calling:
    """Return a call as it looks for its use; `owner` returns the task that it counts for, if that is not the running one."""
    running = task_here()
    # Before `here`: a task that is new to the session is noted there.
    task = task_name(journal, running())
    places = places_of(here(journal))
    return Calling(identity, attempts_around(), earlier, places, task, owner or running)


def check_apart(uses: Uses, name: str, calling: Calling, journal: Journal) -> None:
    """Raise `InvalidError` if an equal call of another task runs at the same time, and nothing says which of them is which."""
    rivals = uses.rivals(calling)
    if not rivals:
        return
    around = tasks_around(journal)
    if calling.owner is not None:
        around.add(calling.owner())
    for use in rivals:
        task = None if use.owner is None else use.owner()
        mine = {asyncio.current_task(), calling.owner() if calling.owner else None} if use.busy else around
        if task is not None and not task.done() and task not in mine:
            if use.busy:
                # Whoever then gives a key to each of them would make this one once more.
                use.refused = InvalidError.saying("session.step", _APART.format(name=name), _EQUAL.format(name=name))
            raise InvalidError.saying("session.step", _APART.format(name=name), _EQUAL.format(name=name))


async def use_after_others(uses: Uses, calling: Calling, journal: Journal) -> Use:
    """Return the use of a call that another task made in an earlier run, once that task has had the time to come to it."""
    but = tasks_around(journal)
    use = await let_others_act(journal, lambda: uses.take(calling), patience=_TASK_PATIENCE_S, but=but)
    if use is None:
        uses.loose |= uses.tasks_of(calling)
        use = uses.take(calling, of_any_task=True)
    assert use is not None
    return use


async def let_others_act(
    journal: Journal, found: Callable[[], T | None], *, patience: float, but: set[asyncio.Task[Any] | None]
) -> T | None:
    """Let other tasks of the session run until something is found; None: none of them can act any more, or the seconds are over."""
    loop, current, waiting = asyncio.get_running_loop(), asyncio.current_task(), journal.waiting
    until, rounds = loop.time() + patience, 0
    waiting.add(current)
    try:
        while loop.time() < until:
            others = asyncio.all_tasks() - waiting - but
            if rounds > _ROUNDS and not any(is_inside(task, journal) for task in others):
                return None
            await asyncio.sleep(0 if rounds <= _ROUNDS else _MOMENT_S)
            rounds += 1
            if (what := found()) is not None:
                return what
    finally:
        waiting.discard(current)
    return None


def moved_from(uses: Uses, journal: Journal, identity: Identity, use: Use, coming: Callable[[], set[str]]) -> list[str]:
    """Return the equal calls of an earlier run, in other places, that a call may be after a change of the program."""
    if not (found := uses.elsewhere(identity)):
        return []
    use.around = around_here(journal)
    return uses.moved(use, found, whom_alive(journal), coming())


async def until_free(use: Use) -> None:
    """Wait while another call is in this use, or a cancelled one has left something under way there.

    Raise `InvalidError` if that cannot end, because the running code is inside of that call, or of one that it waits for.
    """
    while use.busy or use.left:
        if use.left:
            left = use.left
            await asyncio.wait(left)
            use.left = use.left[len(left) :]
            continue
        around = uses_around()
        if use.needs(around):
            raise InvalidError.saying(
                f"step {use.name!r}", "a key that is not in use around it", "a call that waits for its own end"
            )
        for outer in around:
            outer.waits_for += (use,)
        use.ended = use.ended or asyncio.Event()
        try:
            await use.ended.wait()
        finally:
            for outer in around:
                outer.waits_for = tuple(other for other in outer.waits_for if other is not use)


def attempts_around() -> Attempts:
    """Return the recoveries around the running code, each with the number of its present attempt."""
    around = AMBIENT.get()
    if around is None:
        return _NO_ATTEMPTS
    found: Attempts = {}
    while around is not None:
        if isinstance(around, Operation) and not around.over:
            found[around.run] = around.attempts
        around = around.around
    return found or _NO_ATTEMPTS


_NO_ATTEMPTS: Attempts = {}
"""What is known of a step that no recovery is around. It is never changed: a session may have many thousands of them."""
