"""The tree of supervisors and actors of this process, as values that can be sent and printed.

Invariants: looking changes nothing and waits for no child. A tree is at most `MOST_NODES` long, and the event loop gets its turn every
few nodes, so a program with 100,000 actors can be looked at too.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import msgspec

from holdfast.actors.crash import crash_of
from holdfast.actors.ref import Ref
from holdfast.actors.task import Handle
from holdfast.supervision.exits import Error, Killed
from holdfast.supervision.machine import ChildState
from holdfast.tools.process import Run

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.actors.loop import ChildSeat, SupervisorLoop
    from holdfast.actors.supervisor import Supervisor
    from holdfast.runtime.runtime import Runtime
    from holdfast.supervision.exits import Exit
    from holdfast.supervision.machine import Slot

__all__ = ["MOST_NODES", "Kind", "Node", "Tree", "tree_of"]

MOST_NODES = 5000
"""The most nodes of a tree. Each supervisor says how many of its children were left out."""
_SLICE = 100
"""So many nodes are looked at before other tasks get their turn."""
_LONGEST_NAME = 200
_DEEPEST = 50

Kind: TypeAlias = Literal["supervisor", "actor", "process", "task", "command", "child"]
"""What a node is. `process`: an actor in a process of its own; `task`: a coroutine function; `child`: it has a host of its own."""


class Node(msgspec.Struct, frozen=True, kw_only=True):
    """A supervisor, an actor or another child: `[node.name for node in tree.roots]`."""

    name: str
    kind: Kind
    state: ChildState
    """`running`, `restarting` (it starts again, or waits for it) or `stopped`."""
    incarnation: int
    """How often it was started."""
    uptime: float | None = None
    """Seconds since its present incarnation started; None if it does not run."""
    restarts_left: int | None = None
    """Restarts that are allowed now: of a supervisor's children together, or of a child with a budget of its own."""
    max_restarts: int | None = None
    """Restarts that are allowed within `window` seconds; None: any number, or this node has no budget."""
    window: float | None = None
    waiting: int | None = None
    """Messages in its mailbox; None: it has none."""
    capacity: int | None = None
    """Messages that its mailbox can hold."""
    last_failure: str | None = None
    """The code of the failure that ended its last incarnation."""
    children: list[Node] = []
    left_out: int = 0
    """Children that are not listed, because the tree would be too long."""


class Tree(msgspec.Struct, frozen=True, kw_only=True):
    """What a process shows of itself."""

    pid: int
    program: str
    """The name of its script."""
    roots: list[Node]


async def tree_of(supervisors: Sequence[Supervisor]) -> Tree:
    """Return the tree of these supervisors. Raises `InvalidError` if one of them runs in another event loop."""
    look = _Look()
    roots = [await look.root(one) for one in supervisors]
    return Tree(pid=os.getpid(), program=PurePath(sys.argv[0] if sys.argv else "").name or "python", roots=roots)


class _Look:
    """One look at a tree: it counts the nodes."""

    def __init__(self) -> None:
        self._count = 0
        self._now = asyncio.get_running_loop().time

    async def root(self, supervisor: Supervisor) -> Node:
        run = supervisor._run  # noqa: SLF001 - one room
        if run is None:
            return Node(name=_short(supervisor.name), kind="supervisor", state="stopped", incarnation=0)
        run._check_caller()  # noqa: SLF001 - one room
        how = run.ended.result() if run.ended.done() else None
        return Node(
            name=_short(supervisor.name),
            kind="supervisor",
            state="running" if how is None else "stopped",
            incarnation=1,
            uptime=None if how else self._now() - run.since,
            last_failure=_code(how, run.runtime),
            **self._budget(run),
            **await self._below(run, 1),
        )

    async def _below(self, run: SupervisorLoop, depth: int) -> dict[str, Any]:
        """Return the children of a supervisor."""
        # A copy: children come and go while other tasks have their turn.
        slots = list(run.machine.slots.items())
        nodes: list[Node] = []
        for id, slot in slots:  # noqa: A001 - the word that supervisors use
            if self._count >= MOST_NODES or depth > _DEEPEST:
                break
            seat = run.seats.get(id)
            if seat is None:
                continue
            self._count += 1
            if self._count % _SLICE == 0:
                await asyncio.sleep(0)
            nodes.append(await self._child(run, slot, seat, depth))
        else:
            return {"children": nodes}
        return {"children": nodes, "left_out": len(slots) - len(nodes)}

    async def _child(self, run: SupervisorLoop, slot: Slot, seat: ChildSeat, depth: int) -> Node:
        ref = seat.host.ref
        state = _state(run, slot)
        facts: dict[str, Any] = {}
        if run.machine.rules.scope == "child":
            facts |= self._budget(run, slot)
        inner: SupervisorLoop | None = None
        if isinstance(ref, Ref):
            cell = ref._cell  # noqa: SLF001 - one room
            facts |= {"waiting": cell.mailbox.size, "capacity": cell.mailbox.capacity}
            inner = cell.team._run if cell.team is not None else None  # noqa: SLF001 - one room
        elif slot.spec.supervisor:
            inner = getattr(ref, "_run", None)
            facts |= {} if inner is None else self._budget(inner)
        return Node(
            name=_short(slot.spec.id),
            kind=_kind(slot, seat),
            state=state,
            incarnation=slot.incarnation,
            uptime=self._now() - slot.since if state == "running" else None,
            last_failure=_code(slot.last, run.runtime),
            **facts,
            **(await self._below(inner, depth + 1) if inner is not None else {}),
        )

    def _budget(self, run: SupervisorLoop, slot: Slot | None = None) -> dict[str, Any]:
        """Return the restart budget of a supervisor, or of one of its children."""
        rules = run.machine.rules
        if rules.max_restarts is None or (rules.scope == "child") != (slot is not None):
            return {}
        left = run.machine.restarts_left(self._now(), slot)
        return {"restarts_left": left, "max_restarts": rules.max_restarts, "window": rules.window}


def _state(run: SupervisorLoop, slot: Slot) -> ChildState:
    # The machine notes a child as stopped until its start has succeeded.
    return "restarting" if slot.incarnation and run.starts == slot.spec.id else slot.state


def _kind(slot: Slot, seat: ChildSeat) -> Kind:
    ref, factory = seat.host.ref, seat.child.factory
    if slot.spec.supervisor:
        return "supervisor"
    if isinstance(factory, Run):
        return "command"
    if isinstance(ref, Ref):
        given = getattr(ref._cell.kind, "__holdfast_options__", None)  # noqa: SLF001 - one room
        return "process" if getattr(given, "host", "task") == "process" else "actor"
    return "task" if isinstance(ref, Handle) else "child"


def _code(how: Exit | None, runtime: Runtime) -> str | None:
    if isinstance(how, Killed):
        return "ACTOR_CRASHED"
    return crash_of(how.error, runtime.fault_of(how.error), "").code if isinstance(how, Error) else None


def _short(name: str) -> str:
    return name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 1]}…"
