"""`Ref`: how others talk to an actor. It stays valid while the actor is restarted.

Invariant: every `ask` ends. Its answer, an error of the actor, the end of its time, or the end of the actor is what ends it.
A letter is worked on at most once.
"""

from __future__ import annotations

import asyncio
from asyncio import CancelledError, Future, current_task
from typing import TYPE_CHECKING, Any, Concatenate, Generic, NoReturn, ParamSpec, Self, TypeVar

import msgspec

from holdfast import options
from holdfast.actors.cell import ASKER, no_attribute
from holdfast.actors.mailbox import NORMAL, Letter
from holdfast.faults import Err, Fault, HoldfastError, InvalidError, Ok
from holdfast.runtime.ambient import AMBIENT, in_force
from holdfast.runtime.fault_of import fault_of
from holdfast.runtime.lineage import REQUEST

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop
    from collections.abc import Awaitable, Callable, Coroutine

    from holdfast.actors.cell import Cell
    from holdfast.actors.health import HealthState
    from holdfast.actors.mailbox import Pressure
    from holdfast.faults import Outcome
    from holdfast.supervision import Exit

__all__ = ["Ref"]

A_co = TypeVar("A_co", covariant=True)
P = ParamSpec("P")
T = TypeVar("T")


class Ref(Generic[A_co]):
    """The address of an actor. `Supervisor.start` returns it; it may be passed around, also to other threads.

    For example:
        coder = await team.start(Coder, "haiku")
        notes = await coder.ask(Coder.review, diff)         # raises what the method raises
        match await coder.outcome(Coder.review, diff): ...  # Ok or Err
        coder.tell(Coder.forget)                            # nobody waits for an answer
    """

    __slots__ = ("__weakref__", "_cell", "_priority", "_timeout")

    def __init__(self, cell: Cell, *, timeout: float | None = None, priority: int = NORMAL) -> None:
        self._cell = cell
        self._timeout = cell.timeout if timeout is None else timeout
        self._priority = priority

    if not TYPE_CHECKING:
        # Hidden from type checkers, which must reject the names that a ref does not have.
        def __getattr__(self, name: str) -> NoReturn:
            raise no_attribute(self, self._cell.kind if name[:1] != "_" else None, name)

    def __deepcopy__(self, _: object) -> Self:
        """A copy of a message has the same addresses."""
        return self

    @property
    def name(self) -> str:
        """The name of the actor, with those of its supervisors: `team/coder`."""
        return self._cell.name

    @property
    def restarts(self) -> int:
        """How often the actor was started again. A restart counts from the crash on."""
        return self._cell.restarts

    @property
    def alive(self) -> bool:
        """Whether the actor takes messages. While it is being restarted it does."""
        return self._cell.exit is None

    @property
    def waiting(self) -> int:
        """How many messages wait in the actor's mailbox."""
        return self._cell.mailbox.size

    @property
    def pressure(self) -> Pressure:
        """How full the actor's mailbox is: `none`, `long` (more than 100 messages) or `high` (80 % of its capacity or more)."""
        return self._cell.mailbox.pressure

    @property
    def health(self) -> HealthState:
        """What the pings of the actor's `Health` found: `healthy`, `failing`, `open` or `half-open`."""
        return self._cell.health

    async def relieved(self) -> None:
        """Wait until the pressure is not high any more: `await coder.relieved()` before the next message slows a sender down.

        It also ends with the actor. Raises `DeadlineError` when the time of a `Budget` around is over.
        """
        cell = self._cell
        if asyncio.get_running_loop() is not cell.loop:
            await _ask_elsewhere(cell.loop, self.relieved())
        else:
            await cell.relieved(AMBIENT.get())

    def using(self, *, timeout: float | None = None, priority: int | None = None) -> Ref[A_co]:
        """Return a ref to the same actor with other options. Wrong options raise `InvalidError`.

        timeout: seconds that an `ask` waits. priority: 10 and above is urgent, 5 and above normal (the default is 5).

            await coder.using(timeout=120, priority=10).ask(Coder.review, diff)
        """
        options.seconds("ref.timeout", timeout, optional=True)
        options.count("ref.priority", priority, least=0, optional=True)
        return Ref(
            self._cell,
            timeout=self._timeout if timeout is None else timeout,
            priority=self._priority if priority is None else priority,
        )

    async def ask(  # noqa: C901, PLR0912 - nearly every message takes this way, and calls would slow it down
        self, method: Callable[Concatenate[A_co, P], Awaitable[T]], /, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Run a method of the actor, after the messages that came before, and return its result.

        Raises what the method raises; `HoldfastError` with ACTOR_CRASHED if the actor crashed over it (the error is its
        `__cause__`), ACTOR_STOPPED or ACTOR_MAILBOX_FULL; `InvalidError` with ACTOR_ERROR, which names
        the circle, if the actor waits for the one that asks; `AskTimeoutError` when the time is over, `DeadlineError` when that of
        a `Budget` around is. A caller that is cancelled withdraws its message; a method that has begun goes on.

            notes = await coder.ask(Coder.review, diff)
        """
        cell = self._cell
        # It belongs to the loop that runs. To ask for that loop first takes a third as long again.
        reply: asyncio.Future[T] = Future()
        loop = reply.get_loop()
        if loop is not cell.loop:
            return await _ask_elsewhere(cell.loop, self.ask(method, *args, **kwargs))
        asker = ASKER.get()
        if asker is not None:
            if asker.task is current_task(loop):
                asker.check_wait(cell)
            else:
                # A task beside the message of the actor: the actor itself does not wait.
                asker = None
        try:
            handler = cell.handlers[method]
        except KeyError:
            handler = cell.handler_of(method)
        ends = cell.now() + self._timeout
        ambient = AMBIENT.get()
        letter = Letter(handler, args, kwargs, reply, ends)
        if ambient is not None:
            ends = cell.clip(letter, ambient)
        if named := REQUEST.get():
            letter.request = named
        mailbox = cell.mailbox
        reader = mailbox.reader
        if reader is not None and mailbox.closed is None and not reader.done():
            # What `put` does where the actor waits, without the call: this is the way of nearly every message.
            mailbox.reader, mailbox.current = None, letter
            reader.set_result(letter)
        else:
            if mailbox.closed is not None:
                # A caller that asks a stopped actor in a loop must still be reached by a cancellation.
                await asyncio.sleep(0)
            mailbox.put(letter, self._priority)
        if ends < cell.due:
            cell.set_timer(ends)
        if asker is not None:
            asker.waits_for = cell
        try:
            return await reply
        except CancelledError:
            # Its letter, if it still waits, takes no room any more.
            mailbox.withdrew()
            raise
        finally:
            if asker is not None:
                asker.waits_for = None

    async def outcome(
        self, method: Callable[Concatenate[A_co, P], Awaitable[T]], /, *args: P.args, **kwargs: P.kwargs
    ) -> Outcome[T]:
        """Like `ask`, but return `Ok` or `Err`. It raises only `CancelledError`, and `InvalidError` for a wrong `method`.

        match await coder.outcome(Coder.review, diff):
            case Ok(value=notes): ...
            case Err(fault=fault): print(fault.code, fault.maybe_executed)
        """
        self._cell.handler_of(method)
        try:
            value = await self.ask(method, *args, **kwargs)
        except Exception as error:  # noqa: BLE001 - that is what `outcome` is for
            return Err(self._placed(fault_of(error)), error)
        return value if isinstance(value, Err) else Ok(value=value)

    def tell(
        self, method: Callable[Concatenate[A_co, P], Awaitable[object]], /, *args: P.args, **kwargs: P.kwargs
    ) -> None:
        """Have a method run, and do not wait. An error in it is reported as an event, and acted on as for `ask`.

        Raises `HoldfastError` with ACTOR_STOPPED or ACTOR_MAILBOX_FULL (not from other threads, which cannot know yet).

            coder.tell(Coder.forget)
        """
        cell = self._cell
        letter = Letter(
            cell.handler_of(method), args, kwargs, None, ambient=in_force(AMBIENT.get()), request=REQUEST.get()
        )
        if cell.mailbox.closed is not None or _running_loop() is cell.loop:
            cell.mailbox.put(letter, self._priority)
        else:
            _check_open(cell.loop)
            cell.loop.call_soon_threadsafe(self._put_or_drop, letter)

    async def ended(self) -> Exit:
        """Wait until the actor has ended for good, and return how. It returns at once if the actor has ended already.

        print(await coder.ended())
        """
        loop = asyncio.get_running_loop()
        if loop is not self._cell.loop:
            return await _ask_elsewhere(self._cell.loop, self.ended())
        over: asyncio.Future[Exit] = loop.create_future()
        unwatch = self._cell.watch(lambda how: None if over.done() else over.set_result(how))
        try:
            return await over
        finally:
            unwatch()

    def _put_or_drop(self, letter: Letter) -> None:
        try:
            self._cell.mailbox.put(letter, self._priority)
        except HoldfastError as error:
            self._cell.drop(letter, "rejected", error)

    def _placed(self, fault: Fault) -> Fault:
        place: dict[str, Any] = {"actor": self._cell.name}
        if "restart_count" not in fault.context:
            # The fault of a crash counts its own restart already.
            place["restarts"] = self._cell.restarts
        return msgspec.structs.replace(fault, context={**place, **fault.context})

    # Two refs to one actor are equal, whatever their options are: members of a group are found by it.
    def __eq__(self, other: object) -> bool:
        return isinstance(other, Ref) and self._cell is other._cell

    def __hash__(self) -> int:
        return hash(self._cell)

    def __repr__(self) -> str:
        return f"<Ref {self._cell.name} ({self._cell.kind.__name__})>"


def _running_loop() -> AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def _check_open(loop: AbstractEventLoop) -> None:
    if loop.is_closed():
        raise InvalidError.saying("Ref", "an actor whose event loop runs", "an actor whose event loop is closed")


async def _ask_elsewhere(loop: AbstractEventLoop, asking: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on the loop of the actor, and wait for it on ours. A cancellation is passed on."""
    try:
        _check_open(loop)
    except InvalidError:
        asking.close()
        raise
    return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(asking, loop))
