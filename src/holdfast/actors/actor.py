"""`Actor`: a class whose public async methods can be asked, one message at a time, and that comes back after a crash.

    class Coder(Actor):
        def __init__(self, model: str) -> None:
            self.model = model

        async def review(self, diff: str) -> Notes: ...

    coder = await team.start(Coder, "haiku")
    notes = await coder.ask(Coder.review, diff)

Invariants: an instance works on one message at a time. A message that made an instance crash is lost, those behind it are kept for
the next instance. Nothing that a method raises leaves the actor's task.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from contextvars import ContextVar, copy_context
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar

import msgspec

from holdfast import options
from holdfast.actors.cell import ASKER, Cell, handlers_of, stopped_midway
from holdfast.actors.crash import crash_of, log_traceback
from holdfast.actors.errors import IgnoreStart, StartError
from holdfast.actors.health import Health, HealthMonitor
from holdfast.actors.mailbox import Letter
from holdfast.actors.process import ProcessHost
from holdfast.actors.ref import Ref
from holdfast.actors.supervisor import Supervisor
from holdfast.actors.task import abandon
from holdfast.faults import Fault, HoldfastError, InvalidError
from holdfast.runtime.ambient import AMBIENT
from holdfast.runtime.lineage import REQUEST
from holdfast.supervision import Error, Killed, Shutdown, directive_for

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Self

    from holdfast.actors.child import Child
    from holdfast.actors.host import Host, Place
    from holdfast.supervision import Directive, Exit

__all__ = ["Actor", "ActorHost", "ActorOptions", "ActorRun"]

B = TypeVar("B")

_IN_A_ROW = 64
"""So many messages are worked on before other tasks get their turn, even if no method waits for anything."""
_HOOK_S = 5.0
"""Seconds that the hook `crashed` may take. A hook that hangs must not keep the actor from coming back."""
_KILL_S = 0.5
"""Seconds that an actor may take to end whose start was cancelled."""


class ActorOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What the class line of an actor sets: `class Coder(Actor, mailbox=200, timeout=120): ...`."""

    mailbox: int = 1000
    stash: int | None = None
    timeout: float | None = 30.0
    host: Literal["task", "process"] = "task"
    pickle: bool = False
    stop_children: bool = True
    health: Health | None = None

    def __post_init__(self) -> None:
        options.one_of("actor.host", self.host, ("task", "process"))
        options.flag("actor.pickle", self.pickle)
        options.flag("actor.stop_children", self.stop_children)
        if not isinstance(self.health, Health | None):
            raise InvalidError.at("actor.health", "a Health or None", self.health)
        options.count("actor.mailbox", self.mailbox)
        options.count("actor.stash", self.stash, least=0, optional=True)
        options.seconds("actor.timeout", self.timeout, optional=True)


class Actor:
    """The base of actors. Public async methods are what it can be asked; `__init__` makes the state of a fresh instance.

        class Counter(Actor, timeout=5):
            def __init__(self) -> None:
                self.count = 0

            async def add(self, n: int) -> int:
                self.count += n
                return self.count

        async with Supervisor("team") as team:
            counter = await team.start(Counter)
            assert await counter.ask(Counter.add, 2) == 2

    Options on the class line, inherited by subclasses; wrong ones raise `InvalidError`:
    mailbox: the most messages that may wait. stash: the most that may wait while it is restarted; by default all of them.
    timeout: the seconds that an `ask` waits for its answer by default; None: for ever.
    host: `process` runs it in a process of its own, so that a segfault ends only this actor; by default it is a task.
    pickle: whether arguments and results of a process are pickled; by default they travel as JSON, by the annotations.
    health: pings that notice an actor that hangs; by default there are none.
    stop_children: whether its own children are stopped when it is restarted; by default they are.

    Hooks, which cannot be asked: `started`, `stopping`, `crashed`, `down`; for a process `snapshot` and `restore`.
    """

    __holdfast_options__: ClassVar[ActorOptions] = ActorOptions()
    _holdfast_run: ActorRun | None = None

    def __init_subclass__(cls, **given: Any) -> None:
        super().__init_subclass__()
        if given:
            known = msgspec.structs.asdict(cls.__holdfast_options__)
            for name, value in given.items():
                if name not in known:
                    raise options.unknown(ActorOptions, name, value)
            cls.__holdfast_options__ = ActorOptions(**{**known, **given})
        for name in _RESERVED:
            if name in cls.__dict__:
                raise InvalidError.saying(
                    f"{cls.__name__}.{name}",
                    "another name, because every actor has this method",
                    "a method of the class",
                )

    # Set before `__init__` runs, so that `__init__` can use `self.ref`. Type checkers must see the subclass's own signature.
    if not TYPE_CHECKING:

        def __new__(cls, *_args: Any, **_kwargs: Any) -> Self:
            self = super().__new__(cls)
            run = _BIRTH.get()
            if run is not None:
                object.__setattr__(self, "_holdfast_run", run)
            return self

    @staticmethod
    def __holdfast_host__(child: Child, place: Place) -> Host:
        kind: Any = getattr(child.factory, "func", child.factory)  # functools.partial
        given: ActorOptions = kind.__holdfast_options__
        return ActorHost(child, place) if given.host == "task" else ProcessHost(child, place)

    @property
    def ref(self) -> Ref[Self]:
        """The address of this actor, to pass to others. Raises `InvalidError` for an instance that no supervisor started."""
        return Ref(self._running().cell)

    def stop(self, detail: object = None) -> None:
        """End this actor after the present message. With `restart="permanent"` it is started again, as Erlang does.

        self.stop("nothing left to do")
        """
        self._running().leave(Shutdown(detail))

    def watch(self, other: Ref[Any]) -> Callable[[], None]:
        """Have the hook `down` called once `other` has ended for good, also if it has already. Return what undoes it.

        self.watch(coder)
        """
        run = self._running()
        return other._cell.watch(lambda how: run.notify(other, how))  # noqa: SLF001 - the rooms' own part of a ref

    async def children(self, **rules: Any) -> Supervisor:
        """Return the supervisor of this actor's own children. The first call opens it, with these options of `Supervisor`.

        The children end with this actor. If their supervisor gives up, this actor has failed.

            helpers = await self.children(max_restarts=5)
            self.helper = await helpers.start(Helper)
        """
        return await self._running().children(rules)

    async def started(self) -> None:
        """Hook: called before the first message. If it raises, the start has failed."""

    async def stopping(self, exit: Exit) -> None:  # noqa: A002 - the word of the whole room
        """Hook: called before the actor ends, unless it crashed. `exit` says why."""

    async def crashed(self, error: BaseException) -> None:
        """Hook: called on the old instance before it is given up, instead of `stopping`. What it raises is only reported."""

    async def down(self, other: Ref[Any], exit: Exit) -> None:  # noqa: A002 - the word of the whole room
        """Hook: `other`, which this actor watches, has ended for good."""

    def snapshot(self) -> Any:
        """Hook, for a process: return the state to keep, after each message that worked. None, the default, keeps nothing.

        The host keeps it. After a crash, `restore` of the next instance gets it, even if the process was killed.
        """

    def restore(self, state: Any, /) -> None:
        """Hook, for a process: take over the last snapshot of the instance before. Called before `started`."""

    async def _ping(self) -> None:
        """Answer a ping: this actor got to it."""

    def _running(self) -> ActorRun:
        if self._holdfast_run is None:
            raise InvalidError.saying(
                f"{type(self).__name__}",
                f"an actor that a supervisor started: await team.start({type(self).__name__})",
                "an instance made by hand",
            )
        return self._holdfast_run


_RESERVED = ("children", "ref", "stop", "watch")
_BIRTH: ContextVar[ActorRun | None] = ContextVar("holdfast_birth", default=None)


class ActorHost:
    """Runs an actor as a task. The mailbox is kept here while instances come and go."""

    def __init__(self, child: Child, place: Place) -> None:
        self.child = child
        kind: Any = getattr(child.factory, "func", child.factory)  # functools.partial
        given: ActorOptions = kind.__holdfast_options__
        self.cell = Cell(
            place.path,
            kind,
            handlers_of(kind),
            place.runtime,
            capacity=given.mailbox,
            stash=given.stash,
            timeout=given.timeout,
        )
        self.ref: Ref[Any] = Ref(self.cell)

    async def start(self, incarnation: int, cause: Exit | None) -> ActorRun | None:
        """Make an instance and return when its hook `started` is done."""
        del cause
        self.cell.begin(incarnation)
        run = ActorRun(self.cell, self.child, incarnation)
        try:
            await run.wait_started()
        except IgnoreStart:
            return None
        return run

    def close(self, how: Exit) -> None:
        """Fail what waits: no further instance follows."""
        self.cell.end(how)


class ActorRun:
    """One instance of an actor, in a task of its own."""

    __slots__ = ("_child", "_leaving", "_monitor", "_requested", "_task", "cell", "exited", "instance", "started")

    def __init__(self, cell: Cell, child: Child, incarnation: int) -> None:
        self.cell = cell
        self._child = child
        self.exited: asyncio.Future[Exit] = cell.loop.create_future()
        self.started: asyncio.Future[None] = cell.loop.create_future()
        self.instance: Any = None
        self._requested: Exit | None = None
        """How it ends if it obeys the cancellation that was requested."""
        self._leaving: Exit | None = None
        """How it ends after the present message: as it decided itself, or as was requested."""
        context = copy_context()
        # The actor outlives the budget in which it is started. Each message brings the budget of its sender.
        context.run(AMBIENT.set, None)
        context.run(_BIRTH.set, self)
        context.run(ASKER.set, cell)
        self._monitor: HealthMonitor | None = None
        self._task = cell.loop.create_task(self._live(), name=f"{cell.name}#{incarnation}", context=context)
        self._task.add_done_callback(self._done)
        cell.task = self._task

    # --- what its supervisor does ---

    async def wait_started(self) -> None:
        """Wait until the hook `started` is done. Raises what the start raised."""
        try:
            started: set[asyncio.Future[Any]] = {self.started, self.exited}
            await asyncio.wait(started, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            self.kill()
            await asyncio.wait({self.exited}, timeout=_KILL_S)
            self.abandon()
            raise
        if self.started.done():
            health: Health | None = self.cell.kind.__holdfast_options__.health
            if health is not None and not self.exited.done():
                self._monitor = HealthMonitor(self.cell, health, Actor._ping, self._hung)  # noqa: SLF001
            return
        how = self.exited.result()
        if not isinstance(how, Error):
            raise StartError.because(actor=self.cell.name, reason="it ended while it was starting")
        if isinstance(how.error, Exception):
            raise how.error
        raise StartError.because(actor=self.cell.name, reason=str(how)) from how.error

    async def stop(self, reason: Exit, grace: float | None) -> Exit | None:
        """Cancel the present message, run the hook `stopping`, and wait for the end."""
        self.cancel(reason)
        await asyncio.wait({self.exited}, timeout=grace)
        return self.exited.result() if self.exited.done() else None

    def kill(self) -> None:
        """Cancel the task and do not wait."""
        self.cancel(Killed())

    def cancel(self, reason: Exit) -> None:
        """Cancel the task, which then ends for this reason."""
        if not self.exited.done():
            # The flags are set first: a task may end as soon as it is cancelled. A method that ignores the cancellation finishes its
            # message, and no other follows: if it was given up meanwhile, the mailbox belongs to the next instance.
            self._requested = self._leaving = reason
            self._task.cancel()

    def _hung(self, error: HoldfastError) -> None:
        """It has answered no pings: end it, whether it obeys or not."""
        self.cancel(Error(error))
        self.cell.loop.call_later(_HOOK_S, self._give_up, Error(error))

    @property
    def task(self) -> asyncio.Task[None]:
        """The task, to look at."""
        return self._task

    def abandon(self) -> None:
        """Let go of the task if it ignores its cancellation: the program must end without it."""
        if not self._task.done():
            abandon(self._task, self.cell.runtime)

    def _give_up(self, how: Exit) -> None:
        if not self.exited.done():
            self.cell.failed()
            self.exited.set_result(how)
            self.abandon()

    def _done(self, _task: asyncio.Task[None]) -> None:
        # Python cancels a coroutine that has not begun without running a line of it.
        if not self.exited.done():
            self.exited.set_result(self._requested or Error(asyncio.CancelledError()))

    # --- what its instance does ---

    def leave(self, how: Exit) -> None:
        """End after the present message."""
        self._leaving = how

    def notify(self, other: Ref[Any], how: Exit) -> None:
        """Have the hook `down` called, after the messages that came before."""
        if self._task.done():
            return
        letter = Letter(self._hook_of("down"), (other, how), {}, None)
        try:
            # A full mailbox must not hide that somebody ended: there is one such letter for each actor that is watched.
            self.cell.mailbox.put(letter, is_bounded=False)
        except HoldfastError as error:
            self.cell.drop(letter, "rejected", error)

    # --- its life ---

    async def _live(self) -> None:
        try:
            self.instance = self._child.factory(*self._child.args)
            await self._hook_of("started")(self.instance)
            if not self.started.done():
                self.started.set_result(None)
            how = await self._work()
        except asyncio.CancelledError as error:
            how = self._requested or Error(error)
        except BaseException as error:  # noqa: BLE001 - an actor never takes its supervisor with it
            self._pass_garbage(error)
            how = Error(error)
        if self._monitor is not None:
            self._monitor.stop()
        if self.exited.done():
            # It hung and was given up. The mailbox belongs to another instance by now.
            return
        # A letter that this instance was handed and did not begin is for the next one.
        self.cell.mailbox.put_back()
        await self._stop_children(how)
        if self.started.done():
            await self._say_goodbye(how)
        if not self.exited.done():
            self.exited.set_result(how)

    async def _work(self) -> Exit:  # noqa: C901, PLR0912 - each message takes this way, and calls would slow it down
        """Work on messages until one of them ends this instance."""
        mailbox, instance, loop = self.cell.mailbox, self.instance, self.cell.loop
        in_a_row = 0
        while self._leaving is None:
            if not mailbox.size:
                in_a_row = 0
                reader = mailbox.reader = asyncio.Future(loop=loop)
                letter = await reader
            else:
                letter = mailbox.take()
                in_a_row += 1
                if in_a_row == _IN_A_ROW:
                    in_a_row = 0
                    await asyncio.sleep(0)
            reply = letter.reply
            if reply is not None and reply.done():
                continue
            mailbox.begun = letter
            ambient = letter.ambient
            if ambient is not None:
                AMBIENT.set(ambient)
            if named := letter.request:
                REQUEST.set(named)
            try:
                if letter.kwargs:
                    call = letter.handler(instance, *letter.args, **letter.kwargs)
                elif len(args := letter.args) == 1:
                    # Nearly every message. Unpacking a tuple would make the call half as slow again.
                    call = letter.handler(instance, args[0])
                else:
                    call = letter.handler(instance, *args)
            except TypeError as error:
                # Wrong arguments are the sender's mistake. Nothing of the method has run, so the actor is unharmed.
                if not letter.fail(error):
                    self.cell.report(letter, self.cell.runtime.fault_of(error))
                AMBIENT.set(None)
                REQUEST.set("")
                continue
            try:
                value = await call
            except BaseException as error:  # noqa: BLE001 - it goes to whoever asked, and the directive decides
                how = self._failed(letter, error)
                if how is not None:
                    return how
            else:
                if reply is not None and not reply.done():
                    reply.set_result(value)
            if reply is None and mailbox.current is letter:
                # No reply tells that it is done.
                mailbox.current = None
            if ambient is not None:
                AMBIENT.set(None)
            if named:
                REQUEST.set("")
        return self._leaving

    def _failed(self, letter: Letter, error: BaseException) -> Exit | None:
        """A message failed: answer its sender, and return how the instance ends; None: it goes on."""
        self._pass_garbage(error)
        cell = self.cell
        if self._requested is not None and isinstance(error, asyncio.CancelledError):
            cell.drop(letter, "stopped", stopped_midway(cell.name, self._requested))
            return self._requested
        fault = cell.runtime.fault_of(error)
        then: Directive = directive_for(fault, error, self._child.on)
        if then == "resume":
            if not letter.fail(_passed_on(error, fault)):
                self.cell.report(letter, fault)
                log_traceback(error, f"{letter.name} of {cell.name}", cell.runtime)
            cell.resumed(letter, fault)
            return None
        restarts = then == "restart" and self._child.restart != "temporary"
        crash = _crash(cell.name, letter, error, cell.count_restart() if restarts else cell.restarts)
        if not letter.fail(crash):
            self.cell.report(letter, crash_of(error, fault, cell.name))
        return Error(error, then)

    def _pass_garbage(self, error: BaseException) -> None:
        if isinstance(error, GeneratorExit) and self.cell.loop.is_closed():
            # Python throws an abandoned coroutine away; there is nobody to report to.
            raise error

    async def _say_goodbye(self, how: Exit) -> None:
        """Run the hook that is right for this end. A hook that raises is reported and changes nothing."""
        kind = type(self.instance)
        if isinstance(how, Error):
            self.cell.failed()
            if kind.crashed is not Actor.crashed:
                await self._hook("crashed", self.instance.crashed(how.error), _HOOK_S)
        elif not isinstance(how, Killed) and kind.stopping is not Actor.stopping:
            # How long it may take is the supervisor's business: it cancels and goes on when the time is over.
            await self._hook("stopping", self._hook_of("stopping")(self.instance, how), None)

    def _hook_of(self, name: str) -> Any:
        hook, wrap = getattr(type(self.instance), name), self.cell.wrap
        # The hooks of `Actor` do nothing, which nobody needs to wrap.
        return hook if wrap is None or hook is getattr(Actor, name) else wrap(hook)

    async def children(self, rules: dict[str, Any]) -> Supervisor:
        """Return the supervisor of this actor's own children, open."""
        team = self.cell.team
        if team is None:
            team = self.cell.team = Supervisor(self.cell.name.rpartition("/")[2], **rules)
            opened = await team._open(self.cell.name, self.cell.runtime)  # noqa: SLF001 - one room
            opened.ended.add_done_callback(self._children_ended)
        return team  # type: ignore[no-any-return]

    def _children_ended(self, ended: asyncio.Future[Exit]) -> None:
        how = ended.result()
        if isinstance(how, Error):
            self.cancel(how)

    async def _stop_children(self, how: Exit) -> None:
        team = self.cell.team
        is_restart = isinstance(how, Error) and how.then == "restart"
        if team is not None and (not is_restart or self.cell.kind.__holdfast_options__.stop_children):
            self.cell.team = None
            # The children's own supervisor has reported what they raised. The actor itself must end all the same.
            with suppress(Exception):
                await team.stop()

    async def _hook(self, name: str, call: Any, seconds: float | None) -> None:
        try:
            async with asyncio.timeout(seconds):
                await call
        except BaseException as error:  # noqa: BLE001 - a hook never keeps an actor from ending
            runtime = self.cell.runtime
            where = f"the hook {type(self.instance).__name__}.{name}"
            if isinstance(error, Exception):
                runtime.bus.hook_raised(type(self.instance), where, error, at=runtime.clock.wall())


def _passed_on(error: BaseException, fault: Fault) -> BaseException:
    """Return the error that the sender gets: the method's own, unless asyncio could not pass it on."""
    if isinstance(error, Exception) and not isinstance(error, StopIteration):
        return error
    ours = HoldfastError(fault)
    ours.__cause__ = error
    return ours


def _crash(name: str, letter: Letter, error: BaseException, restarts: int) -> HoldfastError:
    reason = type(error).__name__
    # The text of a foreign exception may raise, and whoever asked must hear of the crash.
    with suppress(Exception):
        reason = f"{reason}: {text}" if (text := str(error)) else reason
    context = {"actor": name, "reason": reason, "message": letter.name, "restart_count": restarts}
    crash = HoldfastError(Fault.of("ACTOR_CRASHED", maybe_executed=True, context=context))
    crash.__cause__ = error
    return crash
