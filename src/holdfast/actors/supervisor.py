"""`Supervisor`: an async context manager that starts children, restarts them when they fail, and stops them in order.

Invariants: leaving the block stops every child. A supervisor that gave up raises `GaveUpError` out of its block, after its children have
stopped. A nested supervisor is a child like any other: it fails by the same error.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Self, TypeVar, TypeVarTuple, Unpack, overload

import msgspec

from holdfast import options
from holdfast.actors.child import Child, ChildOptions
from holdfast.actors.errors import ChildNotFoundError, ChildStoppedError
from holdfast.actors.loop import SupervisorLoop
from holdfast.actors.supervised_map import supervised_map
from holdfast.events import ChildExited, ChildLeaked, ChildRestarting, ChildStarted, ChildStopped, GaveUp
from holdfast.faults import Fault, HoldfastError, InvalidError
from holdfast.runtime.bus import EventStream
from holdfast.runtime.runtime import default_runtime
from holdfast.supervision.exits import Error, Exit
from holdfast.supervision.intensity import Rules
from holdfast.supervision.machine import ChildState
from holdfast.supervision.spec import Restart

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
    from types import TracebackType

    from holdfast.actors.actor import Actor
    from holdfast.actors.host import Host, Place
    from holdfast.actors.ref import Ref
    from holdfast.actors.supervised_map import OnTimeout
    from holdfast.actors.task import Handle
    from holdfast.events import Event
    from holdfast.faults import Outcome
    from holdfast.runtime.runtime import Runtime
    from holdfast.supervision.decision import Decision
    from holdfast.supervision.intensity import AutoShutdown, BudgetScope, OnExhausted, Strategy
    from holdfast.supervision.machine import Refusal, SupervisorMachine
    from holdfast.tools.process import Run
    from holdfast.tools.process_error import Finished

__all__ = ["ChildInfo", "Counts", "Supervisor"]

A = TypeVar("A", bound="Actor")
I = TypeVar("I")  # noqa: E741 - an item
S = TypeVar("S", bound="Supervisor")
T = TypeVar("T")
Ts = TypeVarTuple("Ts")

_KINDS = (ChildStarted, ChildExited, ChildRestarting, ChildStopped, ChildLeaked, GaveUp)


class ChildInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A child as its supervisor sees it: `[info.id for info in await team.which_children()]`."""

    id: str
    state: ChildState
    """`running`, `restarting` (a restart is due, or failed and is tried again) or `stopped`."""
    incarnation: int
    """How often it was started."""
    restart: Restart
    is_supervisor: bool
    ref: Any
    """What `start` returned for it."""
    last_exit: Exit | None
    """How its last incarnation ended; None if it never ended."""


class Counts(msgspec.Struct, frozen=True, kw_only=True):
    """How many children a supervisor has: `(await team.count_children()).active`."""

    specs: int
    """Listed, running or not."""
    active: int
    """Running."""
    supervisors: int
    workers: int


class Supervisor:
    """Starts children, restarts them when they fail, and stops them in reverse order when its block ends.

        async with Supervisor("team", strategy="rest_for_one", max_restarts=3, window=60) as team:
            await team.start(Memory)
            coder = await team.start(Coder, "haiku", restart="transient", backoff=Backoff(initial=1, cap=30))
            notes = await coder.ask(Coder.review, diff)

    If the children fail more often than `max_restarts` within `window` seconds, all of them are stopped and `GaveUpError` is raised
    out of the block, with the last failure as its cause. A tree is written with `children`:

        Supervisor("root", children=[Child(Memory), Supervisor("workers", strategy="one_for_all", children=[Child(Coder)])])

    name: its name in paths and events.
    strategy: which children restart together. `one_for_one`: only the one that ended; `one_for_all`: all; `rest_for_one`: it and those
        that were started after it; `simple_one_for_one`: the only child is a template, and `spawn` starts copies of it.
    max_restarts, window: the restart budget. None allows any number.
    scope: `supervisor` (the children share the budget) or `child` (each has its own).
    on_exhausted: `give_up` or `stop_child` (only that child is removed). By default it follows the scope.
    auto_shutdown: `any_significant` or `all_significant` ends the supervisor when such children have ended by themselves.
    max_children: how many children may be listed; one more raises `HoldfastError` with SYS_BULKHEAD_FULL. By default there is no limit.
    children: what it starts first, in this order: `Child`, `Supervisor`, or a factory without arguments.

    Wrong options raise `InvalidError`. A child that does not start raises `StartError`.
    """

    __holdfast_supervisor__ = True

    @options.suggests
    def __init__(
        self,
        name: str = "supervisor",
        *,
        strategy: Strategy = "one_for_one",
        max_restarts: int | None = 3,
        window: float = 60.0,
        scope: BudgetScope = "supervisor",
        on_exhausted: OnExhausted | None = None,
        auto_shutdown: AutoShutdown = "never",
        max_children: int | None = None,
        children: Iterable[Child | Supervisor | Callable[..., Any]] = (),
        runtime: Runtime | None = None,
    ) -> None:
        options.name("supervisor.name", name)
        self.name = name
        self.rules = Rules(
            strategy=strategy,
            max_restarts=max_restarts,
            window=window,
            scope=scope,
            on_exhausted=on_exhausted,
            auto_shutdown=auto_shutdown,
            max_children=max_children,
        )
        self._children = _named(children, self.rules)
        if max_children is not None and not self.rules.is_dynamic and len(self._children) > max_children:
            raise InvalidError.saying(
                "supervisor.children", f"at most {max_children} children", f"{len(self._children)}"
            )
        self._runtime = runtime
        self._run: SupervisorLoop | None = None
        self._owner: asyncio.Task[Any] | None = None
        """The task that is inside the block."""
        self._has_cancelled = False
        self._numbers: dict[str, int] = {}

    # Opening and closing

    async def __aenter__(self) -> Self:
        await self._open(self.name, self._runtime or default_runtime())
        self._owner, self._has_cancelled = asyncio.current_task(), False
        assert self._run is not None
        self._run.ended.add_done_callback(self._interrupt)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        owner, self._owner = self._owner, None
        run = self._loop
        is_cancelled = isinstance(error, asyncio.CancelledError)
        try:
            how = await run.stop()
        except asyncio.CancelledError:
            # Our own cancellation arrives here if the block ended at the moment when the supervisor gave up.
            if not (self._has_cancelled and run.ended.done()):
                raise
            is_cancelled, how = True, run.ended.result()
        if self._has_cancelled and owner is not None and owner.uncancel() > 0 and is_cancelled:
            # Somebody else cancelled this task as well, and that comes first.
            raise asyncio.CancelledError
        if isinstance(how, Error):
            raise how.error

    async def _open(self, path: str, runtime: Runtime) -> SupervisorLoop:
        if self._run is not None and not self._run.ended.done():
            raise InvalidError.saying(
                f"supervisor {self.name}", "one block at a time", "a supervisor that is open already"
            )
        children = {} if self.rules.is_dynamic else self._children
        rules = self.rules
        if not runtime.supervises:
            # Without supervision a child that crashed stays ended, and the others go on.
            rules = msgspec.structs.replace(rules, max_restarts=0, on_exhausted="stop_child")
        self._run = SupervisorLoop(path, rules, children, runtime)
        await self._run.open()
        return self._run

    def _interrupt(self, ended: asyncio.Future[Exit]) -> None:
        """End the block of a supervisor that gave up."""
        if self._owner is not None and isinstance(ended.result(), Error):
            self._has_cancelled = True
            self._owner.cancel()

    async def stop(self) -> None:
        """Stop all children in reverse order. Later calls, and calls from several tasks, wait for the same end.

        A child may call it: it is stopped like the others.
        """
        run = self._loop
        run.request_stop()
        # Shielded: a child that calls this is cancelled by what it called.
        await asyncio.shield(run.ended)

    def request_stop(self) -> None:
        """Have all children stopped, and do not wait for it."""
        self._loop.request_stop()

    async def wait(self) -> Exit:
        """Wait until the supervisor has ended by itself or by `stop`. Raises `GaveUpError` if it gave up.

        For example:
            async with Supervisor("app", auto_shutdown="any_significant", children=[...]) as app:
                await app.wait()
        """
        how = await asyncio.shield(self._loop.ended)
        if isinstance(how, Error):
            raise how.error
        return how

    @property
    def path(self) -> str:
        """The names from the root to this supervisor: `root/workers`."""
        return self.name if self._run is None else self._run.path

    @property
    def is_running(self) -> bool:
        """Whether it is open."""
        return self._run is not None and not self._run.ended.done()

    # Children

    # The first three take the arguments that the function or class takes, and no others. A class that is a child is called like a
    # function: its parameters are those of its constructor.
    @overload
    async def start(
        self, factory: Callable[[*Ts], Awaitable[T]], *args: *Ts, **options: Unpack[ChildOptions]
    ) -> Handle[T]: ...
    @overload
    async def start(self, factory: Callable[[*Ts], A], *args: *Ts, **options: Unpack[ChildOptions]) -> Ref[A]: ...
    @overload
    async def start(self, factory: Callable[[*Ts], S], *args: *Ts, **options: Unpack[ChildOptions]) -> S: ...
    @overload
    async def start(self, factory: S, **options: Unpack[ChildOptions]) -> S: ...
    @overload
    async def start(
        self, factory: Run | list[str] | tuple[str, ...], **options: Unpack[ChildOptions]
    ) -> Handle[Finished]: ...
    @overload
    async def start(self, factory: Child, *args: Any, **options: Unpack[ChildOptions]) -> Any: ...
    @overload
    async def start(
        self, factory: Any, *args: Any, host: Callable[[Child, Place], Host] | None, **options: Unpack[ChildOptions]
    ) -> Any: ...
    async def start(self, factory: Any, *args: Any, **options: Any) -> Any:  # type: ignore[misc] # mypy does not match `*args: *Ts` with Any
        """Start a child after the others, and return what it is reached by once it has started.

        That is a `Ref` for an actor class, a `Handle` for a coroutine function, and the supervisor itself for a `Supervisor`. The
        options are those of `Child`. Raises `StartError` if it did not start; then it is not listed. A `Child` may be passed too.
        Arguments that do not fit the factory raise `InvalidError`.

            poller = await team.start(poll, "inbox", restart="transient", backoff=Backoff(initial=1))
        """
        if self.rules.is_dynamic:
            raise InvalidError.saying(f"supervisor {self.name}", "`spawn`, which copies its template", "`start`")
        child = factory.replace(*args, **options) if isinstance(factory, Child) else Child(factory, *args, **options)
        _check_significant(child, self.rules)
        child.check_arguments()
        return await self._add(child)

    async def spawn(self, *args: Any, id: str | None = None) -> Any:  # noqa: A002 - the word that supervisors use
        """Start another copy of the template of a `simple_one_for_one` supervisor, with `args` after the template's own.

        For example:
            async with Supervisor("fetchers", strategy="simple_one_for_one", children=[Child(fetch)]) as pool:
                await pool.spawn("https://example.org/1")
        """
        if not self.rules.is_dynamic:
            raise InvalidError.saying(f"supervisor {self.name}", "the strategy simple_one_for_one", self.rules.strategy)
        template = next(iter(self._children.values()))
        child = template.replace(*args, id=id)
        child.check_arguments()
        return await self._add(child, always_numbered=True)

    def map(
        self,
        fn: Callable[[I], Awaitable[T]],
        items: Iterable[I],
        *,
        concurrency: int = 16,
        timeout: float | None = None,
        on_timeout: OnTimeout = "kill",
    ) -> AsyncIterator[Outcome[T]]:
        """Run `fn` for each item as a child of its own, and yield an `Ok` or `Err` for each, in the order of the items.

            async for outcome in team.map(summarise, documents, concurrency=4, timeout=30):
                ...

        An item that takes longer than `timeout` seconds is cancelled: `on_timeout="kill"` puts an `Err` in its place, and `"raise"` ends
        the map with `TimeoutError`. If the loop ends early, the items that run are cancelled; use `contextlib.aclosing` to wait for that.
        """
        return supervised_map(self, fn, items, concurrency=concurrency, seconds=timeout, on_timeout=on_timeout)

    async def terminate_child(self, id: str) -> None:  # noqa: A002 - the word that supervisors use
        """Stop a child. It stays listed for `restart_child`, unless it is temporary or was spawned.

        Raises `ChildNotFoundError`.
        """
        await self._decide(id, lambda machine: machine.terminate(id))

    async def restart_child(self, id: str) -> Any:  # noqa: A002 - the word that supervisors use
        """Start a child that is listed and does not run; return its ref.

        Raises `ChildNotFoundError`, `InvalidError` if it runs or is being restarted, `StartError` if it does not start.
        """
        await self._decide(id, lambda machine: machine.revive(id))
        return self._loop.seats[id].host.ref

    async def delete_child(self, id: str) -> None:  # noqa: A002 - the word that supervisors use
        """Remove a child that is listed and does not run. Raises `ChildNotFoundError`, or `InvalidError` if it runs."""
        await self._decide(id, lambda machine: machine.delete(id))

    async def which_children(self) -> list[ChildInfo]:
        """Return the children in the order in which they start."""

        async def look() -> list[ChildInfo]:
            return self._look()

        return await self._loop.call(look)

    async def count_children(self) -> Counts:
        """Return how many children there are."""
        infos = await self.which_children()
        supervisors = sum(info.is_supervisor for info in infos)
        return Counts(
            specs=len(infos),
            active=sum(info.state == "running" for info in infos),
            supervisors=supervisors,
            workers=len(infos) - supervisors,
        )

    def events(self) -> EventStream[Event]:
        """Return the events of this supervisor and of those below it, from now on.

        For example:
            async with team.events() as events:
                async for event in events:
                    print(event)
        """
        run = self._loop
        below = f"{run.path}/"

        def is_ours(event: Event) -> bool:
            path: str = getattr(event, "supervisor", "")
            return path == run.path or path.startswith(below)

        return EventStream(run.runtime.bus, _KINDS, is_ours)

    @property
    def _loop(self) -> SupervisorLoop:
        if self._run is None:
            raise ChildStoppedError.because(f"Supervisor {self.name} is not open: use `async with`", actor=self.name)
        return self._run

    async def _add(self, child: Child, *, always_numbered: bool = False) -> Any:
        run = self._loop

        async def add() -> tuple[str, Any]:
            most = self.rules.max_children
            if most is not None and len(run.seats) >= most:
                context = {"name": f"the children of {run.path}", "limit": most}
                raise HoldfastError(Fault.of("SYS_BULKHEAD_FULL", context=context, maybe_executed=False))
            id = child.id or self._free_id(child.name, run.seats, always_numbered=always_numbered)  # noqa: A001
            if id in run.seats:
                raise InvalidError.saying(f"child {id}", "an id that is free", "one that is listed already")
            host = await run.add(id, child)
            return id, host.ref

        async def undo(added: tuple[str, Any]) -> None:
            # The caller was cancelled: nobody would know of this child.
            for decide in (run.machine.terminate, run.machine.delete):
                decided = decide(added[0])
                await run.perform([] if isinstance(decided, str) else decided)

        _, ref = await run.call(add, undo)
        return ref

    def _free_id(self, name: str, taken: Any, *, always_numbered: bool) -> str:
        if not always_numbered and name not in taken:
            return name
        # Counted, not searched: a pool may have spawned many.
        number = self._numbers.get(name, 0 if always_numbered else 1)
        while f"{name}-{(number := number + 1)}" in taken:
            pass
        self._numbers[name] = number
        return f"{name}-{number}"

    async def _decide(self, id: str, ask: Callable[[SupervisorMachine], Decision | Refusal]) -> None:  # noqa: A002
        run = self._loop

        async def work() -> None:
            decided = ask(run.machine)
            if decided == "not_found":
                raise ChildNotFoundError.because(actor=f"{run.path}/{id}")
            if isinstance(decided, str):
                raise InvalidError.saying(
                    f"child {run.path}/{id}", "a child that does not run", f"one that is {decided}"
                )
            await run.perform(decided)

        await run.call(work)

    def _look(self) -> list[ChildInfo]:
        run = self._loop
        return [
            ChildInfo(
                id=id,
                state=slot.state,
                incarnation=slot.incarnation,
                restart=slot.spec.restart,
                is_supervisor=slot.spec.supervisor,
                ref=run.seats[id].host.ref,
                last_exit=slot.last,
            )
            for id, slot in run.machine.slots.items()  # noqa: A001 - the word that supervisors use
        ]

    @staticmethod
    def __holdfast_host__(child: Child, place: Place) -> SupervisorHost:
        return SupervisorHost(child, place)

    def __repr__(self) -> str:
        return f"<Supervisor {self.path} {self.rules.strategy} {'running' if self.is_running else 'not open'}>"


class _SupervisorRun:
    """One incarnation of a nested supervisor."""

    def __init__(self, run: SupervisorLoop) -> None:
        self._run = run
        self.exited = run.ended

    async def stop(self, reason: Exit, grace: float | None) -> Exit | None:
        """Stop its children in order."""
        del reason
        self._run.request_stop()
        await asyncio.wait({self.exited}, timeout=grace)
        return self.exited.result() if self.exited.done() else None

    def kill(self) -> None:
        """Kill its children."""
        self._run.hurry()


class SupervisorHost:
    """Runs a supervisor as a child of another. Each incarnation has the children that were written down for it."""

    def __init__(self, child: Child, place: Place) -> None:
        self._place = place
        self.ref: Supervisor = child.factory if isinstance(child.factory, Supervisor) else child.factory(*child.args)

    async def start(self, incarnation: int, cause: Exit | None) -> _SupervisorRun:
        """Start the supervisor and its children."""
        del incarnation, cause
        return _SupervisorRun(await self.ref._open(self._place.path, self._place.runtime))  # noqa: SLF001

    def close(self, how: Exit) -> None:
        """Nothing waits for a supervisor that has ended."""


def _named(children: Iterable[Any], rules: Rules) -> dict[str, Child]:
    named: dict[str, Child] = {}
    for given in children:
        child = given if isinstance(given, Child) else Child(given)
        _check_significant(child, rules)
        if not rules.is_dynamic:
            # A template gets its last arguments from `spawn`.
            child.check_arguments()
        if child.id is not None and child.id in named:
            raise InvalidError.saying("supervisor.children", "a different id for each child", f"{child.id!r} twice")
        named[child.id or _free_id(child.name, named)] = child
    if rules.is_dynamic and len(named) != 1:
        raise InvalidError.saying(
            "supervisor.children", "one template for simple_one_for_one", f"{len(named)} children"
        )
    return named


def _check_significant(child: Child, rules: Rules) -> None:
    if child.significant and rules.auto_shutdown == "never":
        raise InvalidError.saying(
            f"child {child.name}", "no significant child where auto_shutdown is never", "significant=True"
        )


def _free_id(name: str, taken: Any) -> str:
    if name not in taken:
        return name
    number = 2
    while f"{name}-{number}" in taken:
        number += 1
    return f"{name}-{number}"
