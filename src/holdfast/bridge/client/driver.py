"""`Driver`: performs what the client's machine decides: connects, sends, waits, and hands messages to their sessions.

Invariant: everything that happens goes through the machine, in one loop. Whoever waits for an answer gets it, or the reason why there is
none; nobody is left waiting when the client ends.
"""

from __future__ import annotations

import asyncio
import logging
import random
from typing import TYPE_CHECKING, Any, Protocol
from uuid import uuid4

import msgspec

from holdfast._version import __version__
from holdfast.bridge.client.errors import connection_error, rejected_error
from holdfast.bridge.client.link import Link
from holdfast.bridge.client.messages import NotStored, Snapshot, fault_of_payload, gap_of, message_of
from holdfast.events import Failed
from holdfast.faults import Fault, HoldfastError
from holdfast.runtime.ambient import new_run
from holdfast.runtime.fault_of import fault_of
from holdfast.runtime.runtime import default_runtime
from holdfast.wire.client import ClientConnection, Status
from holdfast.wire.client_effects import (
    Connect,
    Deliver,
    Drop,
    Expired,
    GapFound,
    Held,
    Joined,
    NotJoined,
    Online,
    Send,
    TokenNeeded,
)
from holdfast.wire.client_effects import Failed as GaveUp
from holdfast.wire.outbox import Acked, Outbox, Outgoing
from holdfast.wire.position import Position

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine

    from holdfast.bridge.client.dial import Dialer, Socket
    from holdfast.bridge.client.messages import Message
    from holdfast.bridge.client.outbox_file import OutboxFile
    from holdfast.wire.client_effects import ClientEffect
    from holdfast.wire.envelope import Envelope
    from holdfast.wire.outbox import AckResult
    from holdfast.wire.reconnect import Address, Schedule

__all__ = ["ConnectionStatus", "Driver", "MemberSession"]

_LOGGER = logging.getLogger("holdfast.bridge")


class ConnectionStatus(msgspec.Struct, frozen=True, kw_only=True):
    """How the connection is: `Client(on_status=lambda now: print(now.status))`."""

    status: Status
    """disconnected, connecting, connected, reconnecting, or error: it has given up."""
    attempt: int = 0
    """The attempt to connect that comes next, from 1."""
    delay: float = 0.0
    """Seconds until that attempt."""
    fault: Fault | None = None
    """Why it is not connected."""


class MemberSession(Protocol):
    """A session of the application, as the driver sees it."""

    def joined(self, payload: dict[str, Any]) -> None: ...
    def delivered(self, message: Message) -> None: ...
    def loaded(self, snapshot: Snapshot) -> None: ...
    def ended(self, error: BaseException | None) -> None: ...


class _LoopClock:
    """The clock of the loop, so that a test can turn it; dates are the runtime's."""

    def wall(self) -> float:
        return default_runtime().clock.wall()

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()


class Driver:
    """One client at work: the machine, its connection, its outbox and its sessions."""

    def __init__(
        self,
        dialer: Dialer,
        *,
        token: str | Callable[[], str | Awaitable[str]],
        client_id: str,
        schedule: Schedule,
        accept_public: bool,
        heartbeat_timeout: float,
        answer_timeout: float,
        file: OutboxFile | None,
        on_status: Callable[[ConnectionStatus], None] | None,
    ) -> None:
        self._dialer = dialer
        self._token = token
        self.file = file
        self._on_status = on_status
        self._answer_timeout = answer_timeout
        outbox = Outbox()
        for message in file.messages if file is not None else ():
            outbox.add(message)
        self.machine = ClientConnection(
            token if isinstance(token, str) else "",
            clock=_LoopClock(),
            rng=random.SystemRandom(),
            new_id=lambda: str(uuid4()),
            client_id=client_id,
            client_version=__version__,
            schedule=schedule,
            outbox=outbox,
            accept_public=accept_public,
            heartbeat_timeout=heartbeat_timeout,
            answer_timeout=answer_timeout,
        )
        self.error: BaseException | None = None
        """Why it has given up."""
        self.ack: dict[str, Any] = {}
        """What the server said of itself when it accepted the client last."""
        self._link: Link | None = None
        self._members: dict[str, MemberSession] = {}
        self._sends: dict[str, asyncio.Future[AckResult]] = {}
        self._asks: dict[str, asyncio.Future[Envelope]] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._online: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        # Nobody need wait for it, and then it is no mistake that nobody hears of its error.
        self._online.add_done_callback(lambda done: done.cancelled() or done.exception())
        self._timer: asyncio.TimerHandle | None = None
        self._shown = ConnectionStatus(status="disconnected")

    # --- for the application ---

    async def start(self, *, wait: bool) -> None:
        """Connect. With `wait` it returns when the client is connected, or raises when it gives up."""
        self.perform(self.machine.connect())
        if wait:
            await asyncio.shield(self._online)

    async def stop(self) -> None:
        """Disconnect, and let nobody wait any more."""
        link, self._link = self._link, None
        if link is not None:
            await link.close()
        self.machine.disconnect()
        self._show()
        self._release(None)
        if self._timer is not None:
            self._timer.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        if self.file is not None:
            await self.file.close()

    def join(self, session: str, member: MemberSession, **options: Any) -> None:
        """Join a session for the application."""
        self.check()
        self.perform(self.machine.join(session, **options))
        self._members[session] = member

    def leave(self, session: str) -> None:
        """Leave a session."""
        self._members.pop(session, None)
        self.perform(self.machine.leave(session))

    async def send(self, session: str, type_: str, payload: dict[str, Any], expires: float | None) -> AckResult:
        """Send a message, and return the server's answer when it is stored. Raises if it is rejected, or if the client gives up."""
        self.check()
        expires_at = None if expires is None else default_runtime().clock.wall() + expires
        message = self.machine.compose(session, type_, payload, expires_at=expires_at)
        future: asyncio.Future[AckResult] = asyncio.get_running_loop().create_future()
        self._sends[message.id] = future
        try:
            # The message is kept and sent even if the caller is cancelled meanwhile: half of that would be a message that nobody knows of.
            await asyncio.shield(self._spawn(self._submit(message)))
            return await future
        finally:
            self._sends.pop(message.id, None)

    async def ask(self, type_: str, payload: dict[str, Any]) -> Envelope:
        """Send a request and return its answer. Raises if the connection is lost before that, or no answer comes in time."""
        self.check()
        id_, effects = self.machine.ask(type_, payload)
        if not effects:
            raise connection_error(Fault.of("CONN_WEBSOCKET_CLOSED", "The client is not connected just now"))
        future: asyncio.Future[Envelope] = asyncio.get_running_loop().create_future()
        self._asks[id_] = future
        self.perform(effects)
        try:
            async with asyncio.timeout(self._answer_timeout):
                return await future
        except TimeoutError:
            text = f"The server did not answer {type_} within {self._answer_timeout:g} s"
            context = {"timeout_s": self._answer_timeout}
            raise connection_error(Fault.of("CONN_HEARTBEAT_LOST", text, context=context)) from None
        finally:
            self._asks.pop(id_, None)

    def taken(self, session: str, position: Position) -> None:
        """The application has finished with a message."""
        self.perform(self.machine.taken(session, position))
        if self.file is not None:
            self.file.move(session, position)

    def check(self) -> None:
        """Raise why the client has given up, if it has."""
        if self.error is not None:
            raise _copy(self.error)

    async def _submit(self, message: Outgoing) -> None:
        if self.file is not None:
            await self.file.add(message)
        try:
            self.perform(self.machine.submit(message))
        except HoldfastError:
            # Others have filled the outbox in the meantime.
            self._forget(message)
            raise

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # --- what the machine decides ---

    def perform(self, effects: list[ClientEffect]) -> None:
        """Do what the machine has decided."""
        for effect in effects:
            match effect:
                case Send(frame):
                    if self._link is not None:
                        self._link.send(frame)
                case Deliver(message):
                    self._deliver(message)
                case Acked(message, result):
                    self._acked(message, result)
                case Connect(attempt, delay, address):
                    self._connect(attempt, delay, address)
                case Drop():
                    self._drop()
                case _:
                    self._perform_rare(effect)
        self._show()
        self._set_timer()

    def _perform_rare(self, effect: ClientEffect) -> None:
        match effect:
            case GapFound(session, gap):
                self._to(session, gap_of(gap))
            case Joined(session, payload) if session in self._members:
                self._members[session].joined(payload)
            case NotJoined(session, fault) if session in self._members:
                self._members.pop(session).ended(rejected_error(fault))
            case Online(ack):
                self.ack = ack
                if not self._online.done():
                    self._online.set_result(None)
            case Held(message, fault):
                self._hold(message, fault)
            case Expired(message):
                text = "The message expired before it could be sent"
                self._rejected(message, Fault.of("SYS_TIMEOUT", text, context={"message_id": message.id}))
            # With a function that returns tokens the next attempt has a new one.
            case GaveUp(fault) | TokenNeeded(fault) if isinstance(effect, GaveUp) or isinstance(self._token, str):
                self.fail(connection_error(fault))
            case _:
                pass

    def fail(self, error: BaseException) -> None:
        """Give up, and tell everybody who waits."""
        if self.error is None:
            self.error = error
            self._report(error)
            self._drop()
            self._release(error)

    def _report(self, error: BaseException) -> None:
        """Tell this program's log, metrics and alerts that the client has given up."""
        runtime, fault = default_runtime(), error.fault if isinstance(error, HoldfastError) else fault_of(error)
        attempts = fault.context.get("attempts")
        failed = Failed(
            at=runtime.clock.wall(),
            run=new_run(),
            operation=f"bridge {self._dialer.host}",
            fault=fault,
            exhausted=fault.code == "CONN_RECONNECT_EXHAUSTED",
            attempts=attempts if isinstance(attempts, int) else 1,
        )
        runtime.bus.emit(failed)

    def wake_up(self) -> None:
        """The machine is awake or online again: find out whether the connection works, or try at once."""
        self.perform(self.machine.woke_up())

    def _connect(self, attempt: int, delay: float, address: Address) -> None:
        self._drop()
        if self.error is not None:
            return

        async def dial() -> Socket:
            self.machine.token = await self._current_token()
            return await self._dialer.dial(address)

        self._link = Link(self, dial, delay)
        self._show(attempt=attempt, delay=delay)

    async def _current_token(self) -> str:
        if isinstance(self._token, str):
            return self._token
        try:
            async with asyncio.timeout(self._dialer.timeout):
                found = self._token()
                return found if isinstance(found, str) else await found
        except HoldfastError:
            raise
        except TimeoutError as error:
            raise HoldfastError(Fault.of("CONN_TIMEOUT", "The function for the token took too long")) from error
        except Exception as error:
            # It may fetch the token over the network that has just been lost. What is no failure of a service or a network is a mistake in it.
            fault = fault_of(error)
            if fault.retryable and (isinstance(error, OSError) or fault.code != "SYS_UNKNOWN"):
                raise HoldfastError(fault) from error
            raise

    def _drop(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            link.drop()
        self._fail_asks(connection_error(Fault.of("CONN_WEBSOCKET_CLOSED")))

    def _fail_asks(self, error: BaseException) -> None:
        for future in self._asks.values():
            if not future.done():
                future.set_exception(_copy(error))

    def _deliver(self, message: Envelope) -> None:
        payload = message.payload
        session = message.session_id or str(payload.get("session_id", ""))
        if message.re in self._asks and not self._asks[message.re].done():
            self._asks[message.re].set_result(message)
        elif message.type == "error":
            self._heard_error(message)
        elif message.type == "snapshot" and session in self._members:
            position = Position(epoch=str(payload["epoch"]), offset=int(payload["offset"]))
            self._members[session].loaded(Snapshot(state=payload.get("state"), position=position, at=message.timestamp))
        else:
            self._to(session, message_of(message))

    def _heard_error(self, message: Envelope) -> None:
        fault = fault_of_payload(message.payload)
        future = self._asks.get(message.id)
        if future is not None and not future.done():
            future.set_exception(rejected_error(fault))
        else:
            _LOGGER.warning("The bridge reports an error: %s  %s", fault.code, fault.message)

    def _to(self, session: str, message: Message) -> None:
        member = self._members.get(session)
        if member is not None:
            member.delivered(message)

    def _acked(self, message: Outgoing, result: AckResult) -> None:
        if result.status == "rejected":
            self._rejected(message, fault_of_payload(result.error))
            return
        self._forget(message)
        future = self._sends.get(message.id)
        if future is not None and not future.done():
            future.set_result(result)

    def _rejected(self, message: Outgoing, fault: Fault) -> None:
        self._forget(message)
        future = self._sends.get(message.id)
        if future is not None and not future.done():
            future.set_exception(rejected_error(fault))
            return
        # Nobody waits for it any more, so it becomes a message: nothing is lost unnoticed.
        payload = msgspec.json.decode(message.frame).get("payload", {})
        _LOGGER.warning("A message to session %s was not stored: %s", message.session_id, fault.message)
        self._to(message.session_id, NotStored(id=message.id, fault=fault, payload=payload))

    def _hold(self, message: Outgoing, fault: Fault) -> None:
        """Tell the caller that waits for the message, who can make it shorter. One that nobody waits for stays, and is shown as pending."""
        if message.id in self._sends:
            self.machine.outbox.discard(message.id)
            self._rejected(message, fault)
        else:
            _LOGGER.warning(
                "A message to session %s is not sent: %s. client.pending shows it, client.discard takes it out",
                message.session_id,
                fault.message,
            )

    def discard(self, id_: str) -> bool:
        """Take a message out of the outbox; return whether it was there."""
        message = self.machine.outbox.discard(id_)
        if message is None:
            return False
        self._forget(message)
        future = self._sends.get(id_)
        if future is not None and not future.done():
            future.set_exception(rejected_error(Fault.of("SYS_CANCELLED", "The message was discarded")))
        # Those after it may have waited for its place.
        self.perform(self.machine.flush())
        return True

    def _forget(self, message: Outgoing) -> None:
        if self.file is not None:
            self.file.remove(message.id)

    def _release(self, error: BaseException | None) -> None:
        """Let nobody wait any more. Without an error the application has ended the client itself."""
        why = error or connection_error(Fault.of("CONN_WEBSOCKET_CLOSED", "The client was closed"))
        waiting: list[asyncio.Future[Any]] = [*self._sends.values(), self._online]
        for future in waiting:
            if not future.done():
                future.set_exception(_copy(why))
        self._fail_asks(why)
        for session in list(self._members):
            self._members.pop(session).ended(error)

    # --- what happens to the connection ---

    def link_opened(self, link: Link) -> None:
        """The connection is open."""
        if link is self._link:
            self.perform(self.machine.opened())

    def link_failed(self, link: Link, fault: Fault) -> None:
        """An attempt failed."""
        if link is self._link:
            self._link = None
            self.perform(self.machine.connect_failed(fault))

    def link_received(self, link: Link, frame: bytes) -> None:
        """A frame has come."""
        if link is self._link:
            self.perform(self.machine.received(frame))

    def link_closed(self, link: Link, code: int, reason: str) -> None:
        """The connection has ended."""
        if link is self._link:
            self._drop()
            self.perform(self.machine.closed(code, reason))

    def link_crashed(self, link: Link, error: BaseException) -> None:
        """Something that is not about the connection has failed, such as the function that returns the token."""
        if link is self._link:
            self._link = None
            self.machine.disconnect()
            self.fail(error)

    # --- the time, and what is shown ---

    def _set_timer(self) -> None:
        at = None if self.error is not None else self.machine.next_at
        if at is None:
            return
        # A timer that fires too early does nothing but set the next one, and that is cheaper than a new one for each message.
        if self._timer is not None and not self._timer.cancelled() and self._timer.when() <= at:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_at(at, self._tick)

    def _tick(self) -> None:
        self._timer = None
        if self.error is None:
            self.perform(self.machine.tick())

    def _show(self, *, attempt: int = 0, delay: float = 0.0) -> None:
        if not attempt and self.machine.status == self._shown.status:
            return
        now = ConnectionStatus(status=self.machine.status, attempt=attempt, delay=delay, fault=self.machine.fault)
        self._shown = now
        if self._on_status is not None:
            try:
                self._on_status(now)
            except Exception:
                _LOGGER.exception("on_status raised")


def _copy(error: BaseException) -> BaseException:
    """Return an error of ours anew for each who waits: a shared one would collect all their tracebacks."""
    return type(error)(error.fault) if isinstance(error, HoldfastError) else error
