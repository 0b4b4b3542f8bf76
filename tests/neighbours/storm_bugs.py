"""Bugs that Holdfast once had, put back by small patches, and the world that finds each.

A patch brings the harm back, not the old code. It is made in the process of a play, and ends with it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec
from tests.neighbours.oracle import harms
from tests.neighbours.storm_play import warm
from tests.neighbours.storm_world import draw

from holdfast.agents import command_run, tool_calls
from holdfast.bridge import requests
from holdfast.bridge.access.tokens import Tokens
from holdfast.bridge.hub import Hub
from holdfast.bridge.sessions import agent_runner
from holdfast.bridge.sessions import summaries as session_summaries
from holdfast.bridge.sessions.live_session import LiveSession
from holdfast.bridge.sessions.log_reader import LogReader
from holdfast.runtime.failures import tool_fault
from holdfast.supervision import directive
from holdfast.tools import threads, toolbox

if TYPE_CHECKING:
    from collections.abc import Iterable

Put = Callable[..., None]


def xt3_exit(put: Put) -> None:
    """A tool that calls `sys.exit()` ends the program."""
    put(toolbox, "ends_only_its_call", lambda _: False)


def xt3_beside(put: Put) -> None:
    """A call that raises what is no `Exception` takes the results of the calls beside it."""
    put(tool_calls, "leave_fault", lambda *_: None)


def xt6_scripts(put: Put) -> None:
    """All scripts of one interpreter have one circuit."""
    put(command_run, "_target_of", lambda agent: agent.target)


def xt3_words(put: Put) -> None:
    """All of an error's text is searched for paths."""

    class Whole:
        text = staticmethod(lambda text: text)

    real = tool_fault.process_redactor
    put(tool_fault, "process_redactor", lambda: _Both(Whole.text, real()))


class _Both:
    """A redactor that leaves a text whole, and masks the rest as ever."""

    def __init__(self, text: Any, real: Any) -> None:
        self.text, self._real = text, real

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


def xt5(put: Put) -> None:
    """A wrong path, a 401 or a 404 of one message ends the tree."""
    put(directive, "DEFAULT", directive.DEFAULT)
    directive.DEFAULT.update(directive.BY_KIND)  # type: ignore[attr-defined]


def xt6(put: Put) -> None:
    """All file tools of everybody have one circuit."""
    real = toolbox.recover

    def shared(target: Any, policy: Any = None, **more: Any) -> Any:
        if "@" in (target.tool or ""):
            target = msgspec.structs.replace(target, tool="file-system")
        return real(target, policy, **more)

    put(toolbox, "recover", shared)


def xt7_threads(put: Put) -> None:
    """Calls that hang in threads are counted together, whoever made them."""
    real = threads.call_in_thread

    async def alike(abandoned: Any, call: Any, *, name: str = "", owner: str = "") -> Any:
        return await real(abandoned, call, name=name, owner="everybody")

    put(threads, "call_in_thread", alike)


def xb6(put: Put) -> None:
    """What is fatal for one session ends the server."""
    put(Hub, "_end_use", lambda self, session: self._loop.stop())


def xb6_exit(put: Put) -> None:
    """An agent that calls `sys.exit()` ends the server."""
    put(agent_runner.AgentRunner, "_work_as_told", agent_runner.AgentRunner._work)


def xb6_task(put: Put) -> None:
    """An agent that calls `sys.exit()` in a task of its own ends the server."""
    put(agent_runner, "contained", contextlib.nullcontext)


def xb7_readers(put: Put) -> None:
    """Each connection that is behind in a session reads all of it from the store, while everybody waits."""
    put(LogReader, "turn", lambda self, identity: contextlib.nullcontext())
    put(LogReader, "find", lambda *_: None)


def xb7_lockout(put: Put) -> None:
    """Wrong tokens lock out the right ones of their address."""
    real = Tokens.identify

    def identify(self: Any, token: str, *, peer: str) -> Any:
        self.admit(peer)
        return real(self, token, peer=peer)

    put(Tokens, "identify", identify)


def xb7_requests(put: Put) -> None:
    """Requests that wait for nothing are answered one after the other, whoever waits."""

    class Others:
        came = True

    put(requests, "_Others", Others)


def xj1_wedge(put: Put) -> None:
    """An agent that cancels its own task ends its runner and not its turn, which begins again with each message."""

    def told(_: Any) -> int:
        task = asyncio.current_task()
        assert task is not None
        return task.cancelling()

    put(agent_runner.AgentRunner, "_times_told", told)


def xj1_growing(put: Put) -> None:
    """Whoever connects waits for the end of each log, which moves away while it is read."""
    real = LiveSession._learn

    async def to_the_end(self: Any) -> None:
        while self._known is None or self._known.seen < self.top:
            await real(self)

    put(LiveSession, "_learn", to_the_end)
    put(session_summaries, "_PATIENCE_S", 3600.0)


BUGS: dict[str, tuple[Callable[[Put], None], str]] = {
    each.__name__: (each, room)
    for room, bugs in {
        "tools": (xt3_exit, xt3_beside, xt3_words, xt6, xt6_scripts, xt7_threads),
        "actors": (xt5,),
        "bridge": (xb6, xb6_exit, xb6_task, xb7_readers, xb7_lockout, xb7_requests, xj1_wedge, xj1_growing),
    }.items()
    for each in bugs
}
"""By the finding that each of them was, and the room in which its worlds are drawn."""


def finds(bug: str, seed: int) -> str:
    """Return the harm that a world shows with this bug and does not show without; empty: none."""
    patch, room = BUGS[bug]
    warm((room,))
    world = draw(seed, (room,))
    found = harms(world, patch)
    return f"seed {seed}: {found[0]}" if found and not harms(world) else ""


def hunt(bug: str, seeds: Iterable[int]) -> str:
    """Draw worlds until one finds the bug; return how."""
    return next((found for seed in seeds if (found := finds(bug, seed))), "")


__all__ = ["BUGS", "finds", "hunt"]
