"""`Client`: a client of the bridge, over all its connections."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self
from uuid import uuid4

import msgspec

from holdfast import options
from holdfast.bridge.client.dial import Dialer
from holdfast.bridge.client.driver import ConnectionStatus, Driver
from holdfast.bridge.client.outbox_file import OutboxFile
from holdfast.bridge.client.session import RemoteSession
from holdfast.faults import InvalidError
from holdfast.runtime.runtime import default_runtime
from holdfast.wire.client import ANSWER_TIMEOUT_S
from holdfast.wire.heartbeat import HEARTBEAT_TIMEOUT_S
from holdfast.wire.messages import SessionSummary
from holdfast.wire.outbox import Lost
from holdfast.wire.reconnect import BRIDGE, DEFAULT, LINEAR, Schedule

if TYPE_CHECKING:
    import os
    from collections.abc import Awaitable, Callable, Iterable
    from types import TracebackType

    from holdfast.faults import Fault
    from holdfast.wire.client import Status
    from holdfast.wire.messages import Role
    from holdfast.wire.position import Position

__all__ = ["Client", "Pending"]

_SCHEDULES = {"default": DEFAULT, "bridge": BRIDGE, "linear": LINEAR}


class Pending(NamedTuple):
    """A message that the server has not acknowledged yet: `for each in client.pending: print(each.text)`."""

    id: str
    session: str
    text: str
    """What was sent, if it is a text for the agent; otherwise its type."""
    fault: Fault | None = None
    """Why it is held and not sent: the server does not take it. `client.discard(id)` takes it out."""
    retry_count: int = 0
    """How often it was sent and the connection was lost before the server acknowledged it, since the client was opened."""
    last_error: Fault | None = None
    """Why the connection was lost the last time."""


class Client:
    """A client of the bridge. It connects again by itself, sends what was not acknowledged, and goes on reading where it was.

        async with Client("wss://host/ws", token=token, outbox="outbox.db") as client, client.join("release-42") as session:
            await session.send("fix the tests")
            async for message in session: ...

    token: the token, or a function that returns one; it is called before each attempt to connect, so it can return a new one. If the
        function fails as a network or a service does, or is not done within `connect_timeout`, the attempt has failed and the next one
        follows. What else it raises is raised.
    outbox: a file in which unacknowledged messages and positions are kept over a restart. One file belongs to one client and one
        bridge. Without it they are kept in memory.
    reconnect: a `Schedule`, or the name of one: `default` goes on for five minutes, `bridge` makes five attempts after 1, 2, 5, 10
        and 30 s, `linear` makes five with growing delays. None: that of the default runtime's profile.
    pins: hashes of the server's public key (`sha256/…`), the current one and the next. Needed for a certificate that signs itself.
    known_bridges: a file in which the key of a bridge is kept whose certificate signs itself, when the client connects for the first time. A
        bridge that shows another key later is rejected, until its line is taken out of the file. Whoever stands in between at the first
        time is believed, so `pins` are safer.
    ca: a file of certificate authorities to trust, in place of the system's.
    insecure: allow `ws://` to another machine. Everybody on the way can read the token then.
    accept_public: the user accepts that the bridge is reached over the public internet without a tunnel.
    offline: enter the blocks of the client and of its sessions without waiting for the connection.
    connect_timeout: seconds for one attempt to connect.
    heartbeat_timeout: seconds that the server may take to answer a ping, until the connection counts as dead.
    answer_timeout: seconds that the server may take to acknowledge a message, until the client connects again and sends it again.
    inbox: messages of a session that are held in memory at most. An application that is slower reads the rest from the server later.
    on_status: called with a `ConnectionStatus` when it changes.

    Entering the block raises `BridgeConnectionError` when the client gives up: after the last attempt, for a token that is not accepted
    (AUTH_…), and at once for a certificate that is not accepted (CONN_TLS_HANDSHAKE_FAILED, `fault.context["reason"]`).
    """

    @options.suggests
    def __init__(
        self,
        url: str,
        *,
        token: str | Callable[[], str | Awaitable[str]],
        outbox: str | os.PathLike[str] | None = None,
        reconnect: Schedule | Literal["default", "bridge", "linear"] | None = None,
        pins: Iterable[str] = (),
        known_bridges: str | os.PathLike[str] | None = None,
        ca: str | None = None,
        insecure: bool = False,
        accept_public: bool = False,
        offline: bool = False,
        connect_timeout: float = 10.0,
        heartbeat_timeout: float = HEARTBEAT_TIMEOUT_S,
        answer_timeout: float = ANSWER_TIMEOUT_S,
        inbox: int = 1000,
        on_status: Callable[[ConnectionStatus], None] | None = None,
    ) -> None:
        if not token:
            raise InvalidError.saying("token", "a token, or a function that returns one", "an empty text")
        if reconnect is None:
            reconnect = "bridge" if default_runtime().profile.name == "bridge" else "default"
        if isinstance(reconnect, str):
            options.one_of("reconnect", reconnect, tuple(_SCHEDULES))
            reconnect = _SCHEDULES[reconnect]
        options.count("inbox", inbox)
        options.seconds("heartbeat_timeout", heartbeat_timeout)
        options.seconds("answer_timeout", answer_timeout)
        self._dialer = Dialer(url, timeout=connect_timeout, pins=pins, ca=ca, insecure=insecure, known=known_bridges)
        self._path = outbox
        self._offline = offline
        self._inbox = inbox
        self._options: dict[str, Any] = {
            "token": token,
            "schedule": reconnect,
            "accept_public": accept_public,
            "heartbeat_timeout": heartbeat_timeout,
            "answer_timeout": answer_timeout,
            "on_status": on_status,
        }
        self._driver_or_none: Driver | None = None

    async def __aenter__(self) -> Self:
        if self._driver_or_none is not None:
            raise InvalidError.saying("client", "a client that is not open yet", "one that is")
        file = None if self._path is None else await OutboxFile.open(self._path)
        client_id = str(uuid4()) if file is None else file.client_id
        driver = Driver(self._dialer, client_id=client_id, file=file, **self._options)
        self._driver_or_none = driver
        try:
            await driver.start(wait=not self._offline)
        except BaseException:
            self._driver_or_none = None
            await driver.stop()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        driver, self._driver_or_none = self._driver_or_none, None
        if driver is not None:
            await driver.stop()

    @property
    def _driver(self) -> Driver:
        if self._driver_or_none is None:
            raise InvalidError.saying("client", "a client that is open: use `async with`", "one that is not")
        return self._driver_or_none

    def join(
        self,
        session: str,
        *,
        role: Role = "controller",
        after: Position | None = None,
        history: Literal["tail", "full", "pending", "none"] = "tail",
    ) -> RemoteSession:
        """Join a session: `async with bridge.join("release-42") as session`.

        after: go on after this position. By default that is the one in the outbox file, if there is one.
        history: what comes first without a position: what the server holds, all, what waits for an answer, or nothing.
        role: an `observer` reads only.
        """
        return self._session(session, role=role, after=after or self._kept(session), history=history)

    def create(self, session: str, *, agent: str = "", title: str = "", working_directory: str = "") -> RemoteSession:
        """Join a session, and make it first if it does not exist: `async with client.create("release-42") as session`."""
        named = {"agent": agent, "title": title, "working_directory": working_directory}
        creation = {name: value for name, value in named.items() if value}
        return self._session(session, after=self._kept(session), creation=creation)

    async def sessions(self) -> list[SessionSummary]:
        """Return the sessions that this client may see. Raises `BridgeConnectionError` if it is not connected just now, or gets no answer in time."""
        found, after = list[SessionSummary](), ""
        while True:
            answer = await self._driver.ask("session_list", {"after": after} if after else {})
            found += msgspec.convert(answer.payload.get("sessions", []), list[SessionSummary])
            before, after = after, str(answer.payload.get("next", ""))
            if after <= before:
                return found

    @property
    def status(self) -> Status:
        """disconnected, connecting, connected, reconnecting, or error: it has given up."""
        return "disconnected" if self._driver_or_none is None else self._driver_or_none.machine.status

    @property
    def client_id(self) -> str:
        """Who this client is for the bridge, over all its connections: `message.client_id == client.client_id`."""
        return self._driver.machine.client_id

    @property
    def pending(self) -> list[Pending]:
        """What the server has not acknowledged yet, in the order of sending."""
        outbox = self._driver.machine.outbox
        return [
            _pending(each.id, each.session_id, each.frame)._replace(
                fault=outbox.held.get(each.id), retry_count=lost.times, last_error=lost.fault
            )
            for each in outbox
            for lost in (outbox.lost.get(each.id, Lost()),)
        ]

    def discard(self, id_: str) -> bool:
        """Take a message out of the outbox, and return whether it was there: `client.discard(client.pending[0].id)`.

        Its `send` raises SYS_CANCELLED. A message that was sent may be stored already.
        """
        return self._driver.discard(id_)

    def wake_up(self) -> None:
        """Call this when the machine is awake or online again: a dead connection is noticed, or the next attempt made, at once."""
        self._driver.wake_up()

    def _kept(self, session: str) -> Position | None:
        file = self._driver.file
        return None if file is None else file.positions.get(session)

    def _session(self, session: str, **more: Any) -> RemoteSession:
        options.name("session", session)
        return RemoteSession(self._driver, session, limit=self._inbox, wait=not self._offline, **more)


def _pending(id_: str, session: str, frame: bytes) -> Pending:
    document = msgspec.json.decode(frame)
    return Pending(id_, session, str(document["payload"].get("content", document["type"])))
