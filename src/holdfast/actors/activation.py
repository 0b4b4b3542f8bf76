"""One virtual actor in memory: its state is loaded, its messages are worked on, and what they change is stored.

Invariants: an answer is given after the state that it left is stored. A message that failed leaves the state as it was. What is in
memory equals what is stored, or is dropped.
"""

from __future__ import annotations

import asyncio
import copy
from collections import deque
from contextlib import contextmanager
from dataclasses import is_dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from holdfast.actors.actor import ActorRun
from holdfast.actors.cell import Cell, handlers_of
from holdfast.actors.child import Child
from holdfast.faults import Fault, HoldfastError, InvalidError
from holdfast.runtime.fault_of import fault_of
from holdfast.sessions import codec
from holdfast.sessions.stored_types import hints
from holdfast.stores.records import Claim, Commit, NewCheckpoint, SessionState
from holdfast.supervision import Killed, Shutdown

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.actors.virtual import VirtualActor, VirtualActors
    from holdfast.sessions.lease import LeaseKeeper
    from holdfast.stores import Lease, Store
    from holdfast.stores.records import StoredClaim

__all__ = ["KEY", "Activation", "SaveError", "state_type"]

T = TypeVar("T")

KEY = "__holdfast_key__"
"""The name under which the idempotency key of a message travels with its arguments."""
_CLIENT = "actor"
"""The client name of the claims that keep the results of messages with an idempotency key, one claim for each key."""
_STOP_S = 5.0
"""How long it has to end, its hook `stopping` included."""
_KILL_S = 1.0
"""How long its end is waited for once it was cancelled again. One that ignores that, too, is left behind; its fence is stale."""


class SaveError(HoldfastError):
    """The state could not be stored, so the message has failed and the activation was dropped. `__cause__` is the store's error.

    For example:
        except SaveError as error:
            print(error.fault.code)  # SESS_LEASE_LOST: another process has taken the actor over
    """

    code = "SESS_STORE_UNAVAILABLE"


class _Stored(msgspec.Struct, omit_defaults=True):
    """What is stored of an actor."""

    version: int = 0
    state: msgspec.Raw = msgspec.Raw(b"null")
    done: dict[str, tuple[str, msgspec.Raw]] = {}
    """Only in snapshots of earlier versions: the results of messages with a key, and the hashes of their arguments."""


def state_type(kind: type[VirtualActor]) -> Any:
    """Return what the annotation of `state` says; Any if there is none."""
    declared = kind.__holdfast_state__
    if isinstance(declared, str):
        # A name that was defined after the class. Any is the annotation of the base class.
        later = hints(kind).get("state", Any)
        declared = declared if later is Any else later
    if isinstance(declared, str):
        raise InvalidError.saying(
            f"{kind.__name__}.state", "an annotation that can be read while the program runs", declared
        )
    return Any if declared is None else declared


class Activation:
    """One virtual actor in memory."""

    def __init__(
        self,
        system: VirtualActors,
        store: Store,
        kind: type[VirtualActor],
        key: str,
        *,
        lease: Lease,
        keeper: LeaseKeeper,
    ) -> None:
        self._store, self._kind, self._key = store, kind, key
        self._trim_soon = system.trim_soon
        self._name, self._fence, self._keeper = lease.session, lease.fence, keeper
        given = kind.__holdfast_options__
        handlers = {method: self._handler(method) for method in handlers_of(kind)}
        self.cell = Cell(
            f"{kind.__name__}/{key}",
            kind,
            handlers,
            system.runtime,
            capacity=given.mailbox,
            timeout=given.timeout,
        )
        self._type: Any = state_type(kind)
        self._stored = _Stored()
        # The hooks change the state like messages do.
        self.cell.wrap = self._hook
        self._instance: Any = None
        self._works_on = 0
        """How many messages and hooks it works on: one, or none."""
        self._failure: Exception | None = None
        """Why its state is not stored any more: another process has the actor, or nobody knows what is stored."""
        self.run: Any = None
        """Its `ActorRun`, once the state is loaded."""
        self.used = asyncio.get_running_loop().time()
        """When it was used last."""

    @property
    def busy(self) -> bool:
        """Whether it works on a message, or one waits."""
        # A message whose sender has left is worked on to its end.
        current = self.cell.mailbox.current
        return self._works_on > 0 or self.cell.mailbox.size > 0 or (current is not None and not current.withdrawn)

    @property
    def is_lost(self) -> bool:
        """Whether what it does is not stored any more."""
        return self._failure is not None

    @property
    def is_new(self) -> bool:
        """Whether it has had no message yet. Somebody is about to send one: that is why it was activated."""
        return self.cell.mailbox.current is None and self.cell.mailbox.begun is None

    async def start(self) -> None:
        """Load the state and make the instance."""
        checkpoint = await self._store.checkpoint(self._name)
        if checkpoint is not None:
            self._stored = msgspec.json.decode(checkpoint.snapshot, type=_Stored)
            await self._move_keys()
        # A failed save must reach the sender as it is. The activation is ending by then.
        child = Child(self._make, on={SaveError: "resume"}, id=self._key[:64])
        self.run = ActorRun(self.cell, child, 1)
        try:
            await self.run.wait_started()
        except SaveError as error:
            # What was not stored is the work of the hook `started`. The message that waits has not begun.
            raise SaveError(msgspec.structs.replace(error.fault, maybe_executed=False)) from error.__cause__
        self.run.exited.add_done_callback(lambda how: self.cell.end(how.result()))

    async def _move_keys(self) -> None:
        """Make a claim of each key that an earlier version kept in the snapshot, which was written with every message."""
        for key, (digest, result) in self._stored.done.items():
            await self._store.commit(Commit(session=self._name, fence=self._fence, claim=_claim(key, digest, result)))
        if self._stored.done:
            self._stored.done = {}
            checkpoint = _checkpoint(self._stored, None)
            await self._store.commit(Commit(session=self._name, fence=self._fence, checkpoint=checkpoint))

    def _make(self) -> VirtualActor:
        instance = self._kind()
        instance.key = self._key
        instance.__dict__["_holdfast_activation"] = self
        self._instance = instance
        self._restore()
        return instance

    def _restore(self) -> None:
        """Make the state equal to what is stored."""
        if self._stored.version:
            self._instance.state = codec.decode(bytes(self._stored.state), self._type, f"state of {self.cell.name}")
        elif self._type is not Any:
            self._instance.state = self._type()

    def _handler(self, method: Any) -> Any:
        async def handle(instance: Any, *args: Any, **kwargs: Any) -> Any:
            key = kwargs.pop(KEY, None)
            digest = ""
            if key is not None:
                digest = codec.arguments_hash(args, {**kwargs, "": method.__qualname__}, f"message {key}")
                if (done := await self._done(key)) is not None:
                    return self._repeated(method, key, digest, done)
            # What the sender does later to an argument or an answer must not change the state, which may hold it.
            args, kwargs = _apart(args), _apart(kwargs)
            with self._work():
                value = await method(instance, *args, **kwargs)
                await self._save(key, digest, value, method)
            return _apart(value)

        handle.__name__, handle.__qualname__ = method.__name__, method.__qualname__
        return handle

    def _hook(self, method: Any) -> Any:
        """Return what runs for a hook. A state that it has changed is stored; one that was never stored waits for a message."""

        async def handle(instance: Any, *args: Any) -> None:
            with self._work():
                before = self._encoded()
                await method(instance, *args)
                if not self.is_lost and self._encoded() != before:
                    await self.save()

        handle.__name__, handle.__qualname__ = method.__name__, method.__qualname__
        return handle

    @contextmanager
    def _work(self) -> Iterator[None]:
        """Work on a message or a hook. If it fails, the state is what is stored."""
        self._works_on += 1
        try:
            yield
        except BaseException:
            if not self.is_lost:
                self._restore()
            raise
        finally:
            self._works_on -= 1
            self.used = self.cell.loop.time()
            self._trim_soon()

    async def _done(self, key: str) -> StoredClaim | None:
        """Return the claim of a message with this key; None if there was none."""
        wanted = _claim_id(key)
        # The claim after the id that is one less: no other id can be between them.
        before = f"{max(int(wanted, 16) - 1, 0):064x}"
        found = await self._store.claims(self._name, after=(_CLIENT, before), limit=1)
        return found[0] if found and (found[0].client, found[0].id) == (_CLIENT, wanted) else None

    def _repeated(self, method: Any, key: str, digest: str, done: StoredClaim) -> Any:
        if done.body_hash != bytes.fromhex(digest):
            text = f"The key {key!r} was used for another message to {self.cell.name}"
            raise HoldfastError(Fault.of("PROTO_DUPLICATE_ID", text, context={"actor": self.cell.name, "key": key}))
        return codec.decode(done.result, codec.result_type(method), f"result of {method.__qualname__}")

    async def save(self) -> None:
        """Store the state if it has changed."""
        await self._save(None, "", None, None)

    async def _save(self, key: str | None, digest: str, value: Any, method: Any) -> None:
        """Store the state if it has changed, and the result of a message with a key.

        An unchanged state is stored too if the lease may be over: the store then says whether another process has the actor.
        """
        if self._failure is not None:
            raise _save_error(self.cell.name, self._failure) from self._failure
        state = self._encoded()
        if key is None and state == bytes(self._stored.state) and self._keeper.holds(self._name, self._fence):
            return
        claim = None
        if key is not None:
            claim = _claim(
                key, digest, codec.encode_result(value, codec.result_type(method), f"result of {method.__qualname__}")
            )
        stored = _Stored(version=self._stored.version + 1, state=msgspec.Raw(state))
        checkpoint = _checkpoint(stored, key)
        try:
            await self._store.commit(
                Commit(
                    session=self._name, fence=self._fence, state=SessionState.ACTIVE, checkpoint=checkpoint, claim=claim
                )
            )
        except BaseException as error:
            # Nobody knows whether it was stored. The next message reads what the store has.
            self._failure = error if isinstance(error, Exception) else HoldfastError(_cut_off(self.cell.name))
            self.run.leave(Shutdown("its state could not be stored"))
            if not isinstance(error, Exception):
                raise
            raise _save_error(self.cell.name, error) from error
        self._stored = stored

    def _encoded(self) -> bytes:
        """Return the state as it is stored."""
        if self._type is Any and self._instance.state is None:
            return b"null"
        return codec.encode_result(self._instance.state, self._type, f"state of {self.cell.name}")

    def lost(self, fault: Fault) -> None:
        """Another process has taken the actor over: what this one does would be rejected."""
        self._failure = HoldfastError(fault)
        if self.run is not None and not self.run.exited.done():
            self.run.cancel(Killed())

    async def end(self) -> None:
        """Cancel what it works on, run its hook `stopping`, and give its key back. A hook that takes too long is cancelled."""
        how = Killed() if self.is_lost else Shutdown("idle")
        if not self.run.exited.done() and await self.run.stop(how, _STOP_S) is None:
            self.run.kill()
            await asyncio.wait({self.run.exited}, timeout=_KILL_S)
            self.run.abandon()
        self.cell.end(how)
        await self._keeper.give_back(self._name, self._fence)


def _apart(value: T) -> T:
    """Return a copy of data; any other value, and data with something inside that cannot be copied, as it is."""
    if not isinstance(value, list | dict | set | tuple | bytearray | deque | msgspec.Struct) and not is_dataclass(
        value
    ):
        return value
    try:
        return copy.deepcopy(value)
    except Exception:  # noqa: BLE001 - a lock or a client is no part of a state
        return value


def _checkpoint(stored: _Stored, key: str | None) -> NewCheckpoint:
    return NewCheckpoint(message_count=stored.version, last_message_id=key, snapshot=msgspec.json.encode(stored))


def _claim(key: str, digest: str, result: bytes | msgspec.Raw) -> Claim:
    return Claim(client=_CLIENT, id=_claim_id(key), body_hash=bytes.fromhex(digest), result=bytes(result))


def _claim_id(key: str) -> str:
    return sha256(key.encode()).hexdigest()


def _cut_off(name: str) -> Fault:
    text = f"The message to {name} was cancelled while its state was being stored"
    return Fault.of("SESS_STORE_UNAVAILABLE", text, context={"actor": name})


def _save_error(name: str, error: Exception) -> SaveError:
    fault = fault_of(error)
    return SaveError(msgspec.structs.replace(fault.wrapped(f"the state of {name} was not stored"), maybe_executed=True))
