"""Virtual actors: addressed by a key, always there, in memory only while they are used.

    class Room(VirtualActor):
        state: RoomState

        async def join(self, name: str) -> int:
            self.state.members.append(name)
            return len(self.state.members)

    async with VirtualActors("sqlite:rooms.db") as rooms:
        lobby = rooms.get(Room, "lobby")          # local, and never fails
        await lobby.ask(Room.join, "ann")         # the first message activates it, with its saved state

Each key is active in one process at a time. A lease in the store says in which, and its fence makes the store reject what an earlier
one still writes. If that process dies, the next message activates the actor elsewhere, from its saved state.

Invariants: an answer is given after the state that it left is stored. A message that failed leaves the state as it was. What is in
memory equals what is stored, or is dropped.
"""

from __future__ import annotations

import asyncio
import inspect
import re
import sys
from contextlib import suppress
from hashlib import sha256
from math import inf
from typing import TYPE_CHECKING, Any, ClassVar, Concatenate, Generic, NoReturn, ParamSpec, TypeVar, cast

import msgspec

from holdfast import options
from holdfast.actors.activation import KEY, Activation, SaveError, state_type
from holdfast.actors.actor import Actor
from holdfast.actors.cell import AskTimeoutError, handlers_of, no_attribute
from holdfast.actors.ref import Ref
from holdfast.events import MessageDropped, SuppressedError
from holdfast.faults import Err, Fault, HoldfastError, InvalidError, Ok, Scope
from holdfast.runtime.fault_of import fault_of
from holdfast.runtime.runtime import default_runtime
from holdfast.sessions.lease import keeper_for, take, this_process
from holdfast.sessions.manifest import Manifest, encode_manifest
from holdfast.sessions.retention import ACTORS
from holdfast.stores.address import open_store
from holdfast.stores.records import Commit, NewSession

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path
    from typing import Self

    from holdfast.faults import Outcome
    from holdfast.runtime.runtime import Runtime
    from holdfast.stores import Lease, Store

__all__ = ["SaveError", "VirtualActor", "VirtualActors", "VirtualRef"]

A = TypeVar("A", bound="VirtualActor")
P = ParamSpec("P")
T = TypeVar("T")

_PLAIN_KEY = re.compile(r"[A-Za-z0-9_.@-]{1,64}")
_LONGEST_NAME = 50
_TELLS_S = 5.0
"""How long leaving the block waits for messages of `tell`."""
_TRIES = 10
"""How often a message is sent again to a new activation, if the one before ended before it began to work on it."""


class VirtualActor(Actor):
    """The base of virtual actors. The annotation of `state` says what is stored; it must be possible to make it without arguments.

        class RoomState(msgspec.Struct):
            members: list[str] = []

        class Room(VirtualActor):
            state: RoomState

            async def join(self, name: str) -> int:
                self.state.members.append(name)
                return len(self.state.members)

    After each message that worked, a state that has changed is stored before the answer is given. A message that raises leaves no
    trace in the state. The hooks `started`, `stopping` and `down` are stored in the same way. `__init__` takes no arguments;
    `self.key` is the key. A `watch` ends when the actor leaves memory.
    """

    state: Any = None
    key: str = ""
    __holdfast_state__: ClassVar[Any] = None

    def __init_subclass__(cls, **given: Any) -> None:
        super().__init_subclass__(**given)
        annotation = inspect.get_annotations(cls).get("state")
        if isinstance(annotation, str):
            # Read now, because only here the names around a class in a function are known.
            frame = sys._getframe(1)  # noqa: SLF001 - the documented way to the names around
            # An annotation that cannot be read stays the text that it is, and its check says so.
            with suppress(Exception):
                annotation = eval(annotation, frame.f_globals, frame.f_locals)  # noqa: S307 - the class's own annotation
        if annotation is not None:
            cls.__holdfast_state__ = annotation

    async def save(self) -> None:
        """Store the state now, in the middle of a message. What fails later in this message does not undo it.

        await self.save()
        """
        activation = self.__dict__.get("_holdfast_activation")
        if activation is None:
            raise InvalidError.saying(
                f"{type(self).__name__}", "an actor that VirtualActors activated", "one made by hand"
            )
        await activation.save()


class VirtualRef(Generic[A]):
    """The address of a virtual actor. It is made without asking anybody, and always valid.

    For example:
        lobby = rooms.get(Room, "lobby")
        count = await lobby.ask(Room.join, "ann")
        await lobby.using(key="order-17").ask(Room.pay, 5)  # done once, however often it is sent
    """

    __slots__ = ("_idempotency", "_kind", "_priority", "_system", "_timeout", "key")

    def __init__(
        self,
        system: VirtualActors,
        kind: type[A],
        key: str,
        *,
        timeout: float | None = None,
        priority: int = 5,
        idempotency: str | None = None,
    ) -> None:
        self._system, self._kind, self.key = system, kind, key
        self._timeout, self._priority, self._idempotency = timeout, priority, idempotency

    if not TYPE_CHECKING:
        # Hidden from type checkers, which must reject the names that a ref does not have.
        def __getattr__(self, name: str) -> NoReturn:
            raise no_attribute(self, self._kind if name[:1] != "_" else None, name)

    def __deepcopy__(self, _: object) -> Self:
        """A copy of a message has the same addresses."""
        return self

    @property
    def name(self) -> str:
        """The name of the actor: `Room/lobby`."""
        return f"{self._kind.__name__}/{self.key}"

    def using(
        self, *, timeout: float | None = None, priority: int | None = None, key: str | None = None
    ) -> VirtualRef[A]:
        """Return a ref to the same actor with other options. Wrong options raise `InvalidError`.

        timeout, priority: as for any actor. key: an idempotency key. The result of the message is stored with the state, in one
        transaction, and a message with the same key gets that result and does nothing.

            await lobby.using(key="order-17").ask(Room.pay, 5)
        """
        options.seconds("ref.timeout", timeout, optional=True)
        options.count("ref.priority", priority, least=0, optional=True)
        options.name("ref.key", key, optional=True)
        return VirtualRef(
            self._system,
            self._kind,
            self.key,
            timeout=self._timeout if timeout is None else timeout,
            priority=self._priority if priority is None else priority,
            idempotency=self._idempotency if key is None else key,
        )

    async def ask(self, method: Callable[Concatenate[A, P], Awaitable[T]], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a method of the actor and return its result, once the state that it left is stored.

        The time of an activation counts for the time limit. Raises as `Ref.ask` does, and `SaveError`; `HoldfastError` with SESS_LEASE_LOST if another process holds the actor.

            count = await lobby.ask(Room.join, "ann")
        """
        _check_method(self._kind, method)
        named: Any = kwargs if self._idempotency is None else {**kwargs, KEY: self._idempotency}
        now = asyncio.get_running_loop().time
        timeout = self._kind.__holdfast_options__.timeout if self._timeout is None else self._timeout
        ends = inf if timeout is None else now() + timeout
        await self._system._after_told(self.name)  # noqa: SLF001 - one system
        for attempt in range(_TRIES):
            activation = await self._active_until(ends, method)
            ref: Any = Ref(activation.cell, timeout=ends - now(), priority=self._priority)
            try:
                return cast("T", await ref.ask(method, *args, **named))
            except HoldfastError as error:
                # The activation ended before the message had its turn: it is sent to the next one.
                if error.fault.code != "ACTOR_STOPPED" or error.fault.maybe_executed or attempt == _TRIES - 1:
                    raise
        raise AssertionError("the last attempt returns or raises")

    async def _active_until(self, ends: float, method: Any) -> Activation:
        """Return the activation. Raises `AskTimeoutError` if there is none by this time of the event loop."""
        limit = asyncio.timeout_at(None if ends == inf else ends)
        try:
            async with limit:
                return await self._system._active(self._kind, self.key)  # noqa: SLF001 - one system
        except TimeoutError as error:
            if not limit.expired():
                raise
            text = f"Actor {self.name} was not active in time: {method.__qualname__}"
            context = {"actor": self.name}
            fault = Fault.of("SYS_TIMEOUT", text, scope=Scope.AGENT, maybe_executed=False, context=context)
            raise AskTimeoutError(fault) from error

    async def outcome(
        self, method: Callable[Concatenate[A, P], Awaitable[T]], /, *args: P.args, **kwargs: P.kwargs
    ) -> Outcome[T]:
        """Like `ask`, but return `Ok` or `Err`. It raises only `CancelledError`, and `InvalidError` for a wrong `method`."""
        _check_method(self._kind, method)
        try:
            value = await self.ask(method, *args, **kwargs)
        except Exception as error:  # noqa: BLE001 - that is what `outcome` is for
            fault = fault_of(error)
            return Err(msgspec.structs.replace(fault, context={"actor": self.name, **fault.context}), error)
        return value if isinstance(value, Err) else Ok(value=value)

    def tell(
        self, method: Callable[Concatenate[A, P], Awaitable[object]], /, *args: P.args, **kwargs: P.kwargs
    ) -> None:
        """Have a method run, and do not wait. A failure is reported as an event.

        Leaving the block of `VirtualActors` waits up to 5 s for such messages. One that was not worked on by then is reported as an
        event (`MessageDropped`). Raises `InvalidError` outside of the block.

            lobby.tell(Room.join, "ann")
        """
        _check_method(self._kind, method)
        self._system._check_open()  # noqa: SLF001 - one system
        self._system._in_background(self.outcome(method, *args, **kwargs), self.name, method.__qualname__)  # noqa: SLF001

    def __repr__(self) -> str:
        return f"<VirtualRef {self.name}>"


def _check_address(kind: Any, key: Any) -> None:
    if not (isinstance(kind, type) and issubclass(kind, VirtualActor)):
        raise InvalidError.at("get", "a class derived from VirtualActor", kind)
    if not isinstance(key, str) or not key:
        raise InvalidError.at("get", "a key that is a text", key)
    state_type(kind)


def _check_method(kind: type, method: Any) -> None:
    if method not in handlers_of(kind):
        known = ", ".join(sorted(f"{kind.__name__}.{one.__name__}" for one in handlers_of(kind)))
        given = str(getattr(method, "__qualname__", type(method).__name__))
        raise InvalidError.saying(
            f"ask of {kind.__name__}", f"a public async method of {kind.__name__}: {known}", given
        )


class VirtualActors:
    """The virtual actors of one store in this process.

        async with VirtualActors("postgresql://…/work") as rooms:
            await rooms.get(Room, "lobby").ask(Room.join, "ann")

    Leaving the block waits up to 5 s for messages of `tell`, ends all activations, and gives their keys back.

    store: a store, or its address; an address is opened with the block.
    idle: seconds without work after which an actor leaves memory (300).
    most_active: how many actors are in memory at most (10,000). Beyond that, those that were idle longest leave.
    lease: seconds that a key stays with this process after it has stopped renewing it (30). A process of the same machine that has
        died is noticed at once.
    Wrong options raise `InvalidError`.
    """

    @options.suggests
    def __init__(
        self,
        store: Store | str | Path | None = None,
        *,
        idle: float = 300.0,
        most_active: int = 10_000,
        lease: float = 30.0,
        runtime: Runtime | None = None,
    ) -> None:
        options.seconds("virtual.idle", idle)
        options.count("virtual.most_active", most_active)
        options.seconds("virtual.lease", lease)
        self._given = store
        self.idle, self._most_active, self._ttl = idle, most_active, lease
        self.runtime = default_runtime() if runtime is None else runtime
        self._store: Store | None = None
        self._opened: Store | None = None
        self._activations: dict[str, asyncio.Future[Activation]] = {}
        """By the name of their session, the one that was used longest ago first."""
        self._ending: dict[str, asyncio.Task[None]] = {}
        self._kinds: dict[str, type] = {}
        """The class of each name that was used. The name is part of what is stored."""
        self._told: dict[asyncio.Task[Any], str] = {}
        """Messages that nobody waits for, with the name of their actor."""
        self._timer: asyncio.TimerHandle | None = None
        self._trims = False

    async def __aenter__(self) -> Self:
        given: Any = self._given
        if given is None or isinstance(given, str) or hasattr(given, "__fspath__"):
            self._opened = open_store(given)
            self._store = await self._opened.__aenter__()
        else:
            self._store = given
        return self

    async def __aexit__(self, kind: type[BaseException] | None = None, *_: object) -> None:
        try:
            if kind is None or issubclass(kind, Exception):
                await self._wait_for_tells()
        finally:
            await self._close()

    async def _wait_for_tells(self) -> None:
        """Wait for the messages of `tell`, also for those that such messages send."""
        now = asyncio.get_running_loop().time
        ends = now() + _TELLS_S
        while self._told and (left := ends - now()) > 0:
            await asyncio.wait(self._told, timeout=left)

    async def _close(self) -> None:
        store, self._store = self._store, None
        if self._timer is not None:
            self._timer.cancel()
        for task in tuple(self._told):
            task.cancel()
        await asyncio.gather(*self._told, return_exceptions=True)
        if starting := [each for each in self._activations.values() if not each.done()]:
            # Nobody waits for them any more, and a hook that hangs must not keep the program.
            for late in (await asyncio.wait(starting, timeout=_TELLS_S))[1]:
                late.cancel()
        for name in tuple(self._activations):
            self._evict(name)
        await asyncio.gather(*self._ending.values(), return_exceptions=True)
        if self._opened is not None and store is not None:
            await self._opened.__aexit__(None, None, None)

    def _check_open(self) -> None:
        if self._store is None:
            raise InvalidError.saying(
                "VirtualActors", "`async with VirtualActors(…)` around it", "one that is not open"
            )

    def get(self, kind: type[A], key: str) -> VirtualRef[A]:
        """Return the address of an actor. Nothing is asked and nothing is loaded, so it never fails for a key.

        lobby = rooms.get(Room, "lobby")
        """
        _check_address(kind, key)
        known = self._kinds.setdefault(_stored_name(kind), kind)
        if known is not kind and (known.__module__, known.__qualname__) != (kind.__module__, kind.__qualname__):
            # They would share the state of each key.
            raise InvalidError.saying(
                f"VirtualActors.get of {kind.__module__}.{kind.__qualname__}",
                "a class whose name no other actor in this store has",
                f"the name of {known.__module__}.{known.__qualname__}",
            )
        return VirtualRef(self, kind, key)

    @property
    def active(self) -> int:
        """How many actors are in memory."""
        return len(self._activations)

    # --- activation ---

    async def _active(self, kind: type[VirtualActor], key: str) -> Activation:
        name = _session_name(kind, key)
        while True:
            self._check_open()
            if (ending := self._ending.get(name)) is not None:
                await asyncio.wait({ending})
                continue
            activating = self._activations.get(name)
            if activating is None:
                activating = asyncio.ensure_future(self._activate(name, kind, key))
                self._activations[name] = activating
                activating.add_done_callback(lambda done: self._activated(name, done))
            elif activating.done():
                # Used last, so it is evicted last.
                self._activations[name] = self._activations.pop(name)
            # Shielded: other callers wait for the same activation.
            activation = await asyncio.shield(activating)
            if not activation.run.exited.done():
                return activation
            await asyncio.sleep(0)

    async def _activate(self, name: str, kind: type[VirtualActor], key: str) -> Activation:
        store = self._store
        assert store is not None
        lease = await self._take(store, name, kind, key)
        keeper = keeper_for(store, self._ttl, self.runtime.clock)
        activation = Activation(self, store, kind, key, lease=lease, keeper=keeper)
        keeper.keep(lease, lambda fault: self._lost(name, activation, fault), self.runtime)
        try:
            await activation.start()
        except BaseException:
            await keeper.give_back(name, lease.fence)
            raise
        if activation.is_lost:
            # Another process has taken it over since the state was read.
            await activation.end()
            raise _held_elsewhere(kind, key, "")
        return activation

    def _lost(self, name: str, activation: Activation, fault: Fault) -> None:
        activation.lost(fault)
        current = self._activations.get(name)
        if current is not None and _result(current) is activation:
            # Messages must not wait until a method that ignores its cancellation ends.
            self._evict(name)

    async def _take(self, store: Store, name: str, kind: type[VirtualActor], key: str) -> Lease:
        for _ in range(2):
            try:
                return await take(store, name, self._ttl, self.runtime)
            except HoldfastError as error:
                if error.fault.code == "SESS_LEASE_LOST":
                    raise _held_elsewhere(kind, key, str(error.fault.context.get("owner", ""))) from error
                if error.fault.code != "SESS_NOT_FOUND":
                    raise
            manifest = Manifest(session_id=name, store_id=store.id)
            # Another process may create it at the same moment. Then its lease decides.
            with suppress(HoldfastError):
                await store.commit(Commit(session=name, create=NewSession(manifest=encode_manifest(manifest))))
        return await take(store, name, self._ttl, self.runtime)

    def _activated(self, name: str, done: asyncio.Future[Activation]) -> None:
        if done.cancelled() or done.exception() is not None:
            if self._activations.get(name) is done:
                del self._activations[name]
            return
        activation = done.result()
        activation.run.exited.add_done_callback(lambda _: self._exited(name, done))
        self.trim()
        self._set_timer()

    def _exited(self, name: str, activated: asyncio.Future[Activation]) -> None:
        # One that ignored its end for a while may have a successor by now, which is not its business.
        if self._activations.get(name) is activated:
            self._evict(name)

    # --- eviction ---

    def _evict(self, name: str) -> None:
        """End an activation. Messages that come meanwhile wait, and activate it again."""
        activating = self._activations.pop(name, None)
        if activating is None or name in self._ending:
            return
        ending = asyncio.ensure_future(self._end(activating))
        self._ending[name] = ending
        ending.add_done_callback(lambda _: self._ending.pop(name, None))

    async def _end(self, activating: asyncio.Future[Activation]) -> None:
        # Whoever waits for the activation gets the error. Here it only ends.
        with suppress(Exception, asyncio.CancelledError):
            activation = await activating
            await activation.end()

    def trim(self) -> None:
        """End activations beyond the limit, those that were idle longest first."""
        while len(self._activations) > self._most_active and self._evict_oldest():
            pass

    def trim_soon(self) -> None:
        """An activation has become idle: those beyond the limit may end now. After a burst none of them could."""
        if len(self._activations) > self._most_active and not self._trims:
            self._trims = True
            asyncio.get_running_loop().call_soon(self._trim)

    def _trim(self) -> None:
        self._trims = False
        self.trim()

    def _evict_oldest(self) -> bool:
        """End the activation that was idle longest; return whether there was one."""
        for name, activating in tuple(self._activations.items()):
            activation = _result(activating)
            if activation is not None and not (activation.is_new or activation.busy):
                self._evict(name)
                return True
        return False

    def _set_timer(self) -> None:
        if self._timer is None and self._activations:
            self._timer = asyncio.get_running_loop().call_later(self.idle / 4, self._sweep)

    def _sweep(self) -> None:
        self._timer = None
        now = asyncio.get_running_loop().time()
        for name, activating in tuple(self._activations.items()):
            activation = _result(activating)
            if activation is not None and not activation.busy and now - activation.used >= self.idle:
                self._evict(name)
        self._set_timer()

    def _in_background(self, work: Any, name: str, message: str) -> None:
        task = asyncio.ensure_future(self._reported(work, name))
        self._told[task] = name

        # A task that is cancelled before it has begun runs no line of its own.
        def over(_: object) -> None:
            del self._told[task]
            if task.cancelled():
                work.close()
                at = self.runtime.clock.wall()
                self.runtime.bus.emit(MessageDropped(at=at, actor=name, message=message, reason="stopped"))

        task.add_done_callback(over)

    async def _after_told(self, name: str) -> None:
        """Let the messages that were told to an actor before go first: each is sent when its task begins."""
        if name in self._told.values() and asyncio.current_task() not in self._told:
            await asyncio.sleep(0)

    async def _reported(self, work: Any, name: str) -> None:
        outcome = await work
        if isinstance(outcome, Err):
            reason = f"a message to {name} failed, and nobody waits for its answer"
            self.runtime.bus.emit(SuppressedError.of(outcome.fault, reason, at=self.runtime.clock.wall()))


def _session_name(kind: type, key: str) -> str:
    """Return the name of an actor's session. A key that a name cannot hold is replaced by its hash."""
    shown = key if _PLAIN_KEY.fullmatch(key) else f"=.{sha256(key.encode()).hexdigest()[:32]}".lstrip("=")
    return f"{ACTORS}{_stored_name(kind)}:k{shown}"


def _stored_name(kind: type) -> str:
    """Return the name of an actor's class as it is stored. The module is not part of it, so that a class can be moved."""
    name = kind.__qualname__.replace("<locals>", "")
    if len(name) <= _LONGEST_NAME:
        return name
    return f"{name[-33:].lstrip('.')}.{sha256(name.encode()).hexdigest()[:16]}"


def _result(activating: asyncio.Future[Activation]) -> Activation | None:
    """Return an activation; None while it is under way, and between its failure and the callback that removes it."""
    if not activating.done() or activating.cancelled() or activating.exception() is not None:
        return None
    return activating.result()


def _held_elsewhere(kind: type, key: str, owner: str) -> HoldfastError:
    text = (
        f"{kind.__name__}/{key} is active in {_shown_owner(owner)}. Nothing was done: "
        "send the message there, or again when it has left memory (idle, or that process has ended)"
    )
    context = {"actor": f"{kind.__name__}/{key}", "owner": owner}
    return HoldfastError(Fault.of("SESS_LEASE_LOST", text, retryable=True, maybe_executed=False, context=context))


def _shown_owner(owner: str) -> str:
    """Return the owner of a lease as people write it: `process 4711 on web-1`."""
    host, _, rest = owner.partition("/")
    pid = rest.partition("/")[0]
    if not pid.isdigit():
        return "another process"
    if owner.rpartition("/")[0] == this_process().rpartition("/")[0]:
        return f"another VirtualActors of this process ({pid} on {host})"
    return f"process {pid} on {host}"
