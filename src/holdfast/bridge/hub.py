"""`Hub`: what all connections of a bridge share: the store, the sessions in use, who is connected, and the limits.

Invariant: one `LiveSession` for each session in use, however many clients it has. A connection counts from its `auth` until it has ended,
and only the end of a session's last connection starts its grace.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, Protocol
from uuid import uuid4

from holdfast import options
from holdfast.bridge.live_session import LiveSession
from holdfast.faults import Fault, HoldfastError
from holdfast.runtime.runtime import default_runtime
from holdfast.sessions.journal import audit
from holdfast.sessions.manifest import Manifest, encode_manifest, manifest_fields
from holdfast.stores import Commit, NewSession
from holdfast.wire.replay import RING_AGE_S, RING_BYTES
from holdfast.wire.server import ServerLimits

if TYPE_CHECKING:
    from collections.abc import Iterable

    from holdfast.bridge.identity import Authenticator, Identity
    from holdfast.runtime.runtime import Runtime
    from holdfast.stores import SessionRecord, Store

__all__ = ["Connected", "Hub", "HubLimits"]


class HubLimits(options.Options, frozen=True, kw_only=True, omit_defaults=True, repr_omit_defaults=True):
    """What a bridge allows and keeps: `HubLimits(grace=1800)`. Wrong options raise `InvalidError`."""

    connection: ServerLimits = ServerLimits()
    grace: float = 300.0
    """Seconds that a session without clients is kept as it is."""
    ring_bytes: int = RING_BYTES
    """Bytes of a session's newest messages in memory."""
    ring_age: float = RING_AGE_S
    """Seconds for which they are kept there."""
    replays_log: bool = True
    """Whether a client that is behind the memory gets the rest from the store. False: it gets a gap."""
    send_timeout: float = 10.0
    """Seconds that a client may take to read. A slower one is disconnected, and goes on where it was."""
    max_connections: int = 10_000
    max_clients: int = 100
    """Connections in one session."""
    max_inflight: int = 32
    """Messages of one client that wait to be stored."""
    resume_age: float = 86_400.0
    """Seconds for which a client may come back with its resume token."""
    lenient_ids: bool = False
    """Accept ids of messages that are not UUIDs, as older clients send them."""
    allows_plain: bool = False
    """Accept unencrypted connections from other machines."""

    def __post_init__(self) -> None:
        for name in ("ring_bytes", "max_connections", "max_clients", "max_inflight"):
            options.count(f"limits.{name}", getattr(self, name))
        for name in ("grace", "ring_age", "send_timeout", "resume_age"):
            options.seconds(f"limits.{name}", getattr(self, name))


class Connected(Protocol):
    """A connection, as the hub sees it."""

    id: str
    identity: Identity | None
    client_key: tuple[str, str] | None

    async def end(self, fault: Fault) -> None:
        """End it for a reason that the client gets."""
        ...

    async def shut_down(self, *, restarts: bool) -> None:
        """End it because the server stops."""
        ...


class Hub:
    """The shared part of a bridge. Open it with `async with` in the loop in which its connections run."""

    def __init__(
        self,
        store: Store,
        authenticator: Authenticator,
        *,
        limits: HubLimits = HubLimits(),  # noqa: B008 - a frozen value
        runtime: Runtime | None = None,
    ) -> None:
        self.store = store
        self.authenticator = authenticator
        self.limits = limits
        self.runtime = runtime or default_runtime()
        self.clock = self.runtime.clock
        self.connections: set[Connected] = set()
        self.sessions: dict[str, LiveSession] = {}
        self._by_client: dict[tuple[str, str], Connected] = {}
        self._opening = asyncio.Lock()
        self._graces: dict[str, asyncio.TimerHandle] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        authenticator.watch(self._revoked)

    async def stop(self, *, restarts: bool = False) -> None:
        """Close all connections, and stop following the logs."""
        for timer in self._graces.values():
            timer.cancel()
        self._graces.clear()
        await asyncio.gather(*(each.shut_down(restarts=restarts) for each in tuple(self.connections)))
        for live in tuple(self.sessions.values()):
            await live.close()
        self.sessions.clear()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # --- sessions ---

    async def live(self, session: str) -> LiveSession:
        """Return a session in use, or raise SESS_NOT_FOUND."""
        found = self.sessions.get(session)
        if found is not None:
            return found
        async with self._opening:
            found = self.sessions.get(session)
            if found is None:
                found = self._made(await self._record(session))
                await found.open()
                self.sessions[session] = found
        return found

    async def create(self, session: str, *, agent: str = "", working_directory: str = "") -> LiveSession:
        """Make a session, or raise SESS_ILLEGAL_TRANSITION if there is one of that name."""
        name = session or f"s-{uuid4().hex[:12]}"
        now = self.clock.wall()
        fields = manifest_fields(
            config=None, tools=None, project_root=working_directory or None, agent_type=agent, mode="ask", model=None
        )
        manifest = Manifest(session_id=name, store_id=self.store.id, created_at=now, updated_at=now, **fields)
        made = audit("SessionLifecycle", name, state="created", by="bridge")
        await self.store.commit(
            Commit(session=name, create=NewSession(manifest=encode_manifest(manifest)), audit=(made,))
        )
        return await self.live(name)

    async def visible(self, identity: Identity) -> list[SessionRecord]:
        """Return the sessions that somebody may see."""
        found, after = list[Any](), ""
        while page := await self.store.sessions(after=after):
            found += [record for record in page if identity.may_see(record.id)]
            after = page[-1].id
        return found

    async def _record(self, session: str) -> SessionRecord:
        try:
            return await self.store.session(session)
        except HoldfastError as error:
            if error.fault.code == "CONFIG_OPTION_INVALID":
                # No session can have this name. Whoever guesses names learns no more than that.
                raise HoldfastError(Fault.of("SESS_NOT_FOUND", context={"session_id": session})) from error
            raise

    def _made(self, record: SessionRecord) -> LiveSession:
        return LiveSession(
            record,
            self.store,
            clock=self.clock,
            ring_bytes=self.limits.ring_bytes,
            ring_age=self.limits.ring_age,
            replays_log=self.limits.replays_log,
        )

    # --- connections ---

    def admit(self, connection: Connected) -> Fault | None:
        """Count a connection that has authenticated. Returns why it may not stay, if so."""
        if len(self.connections) >= self.limits.max_connections:
            return Fault.of("CONN_LIMIT", context={"limit": self.limits.max_connections})
        self.connections.add(connection)
        key = connection.client_key
        if key is None:
            return None
        older, self._by_client[key] = self._by_client.get(key), connection
        if older is not None and older is not connection:
            self.spawn(older.end(Fault.of("CONN_SUPERSEDED", context={"connection_id": connection.id})))
        return None

    def leave(self, connection: Connected) -> None:
        """A connection has ended."""
        self.connections.discard(connection)
        key = connection.client_key
        # An older connection that ends late must not remove the newer one.
        if key is not None and self._by_client.get(key) is connection:
            del self._by_client[key]

    def enter(self, live: LiveSession, connection: Connected) -> Fault | None:
        """Add a connection to a session. Returns why it may not join, if so."""
        if connection not in live.clients and len(live.clients) >= self.limits.max_clients:
            return Fault.of("CONN_LIMIT", context={"limit": self.limits.max_clients, "session_id": live.id})
        live.clients.add(connection)
        timer = self._graces.pop(live.id, None)
        if timer is not None:
            timer.cancel()
        return None

    def exit(self, live: LiveSession, connection: Connected) -> None:
        """Take a connection out of a session. The last one starts the grace."""
        if connection not in live.clients:
            return
        live.clients.discard(connection)
        if not live.clients and self.sessions.get(live.id) is live:
            loop = asyncio.get_running_loop()
            self._graces[live.id] = loop.call_later(self.limits.grace, self._grace_over, live)

    def _grace_over(self, live: LiveSession) -> None:
        self._graces.pop(live.id, None)
        if live.clients:
            return
        if self.sessions.get(live.id) is live:
            del self.sessions[live.id]
        self.spawn(live.close())

    def _revoked(self, token_id: str) -> None:
        for connection in tuple(self.connections):
            identity = connection.identity
            if identity is not None and identity.token_id == token_id:
                self.spawn(connection.end(Fault.of("AUTH_TOKEN_REVOKED")))

    def spawn(self, work: Any) -> None:
        """Run something that nobody waits for."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._spawned)

    def _spawned(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            logging.getLogger("holdfast").error("bridge: %s", task.exception())

    def others(self, live: LiveSession, connection: Connected) -> Iterable[Any]:
        """Return the other connections of a session."""
        return (each for each in tuple(live.clients) if each is not connection)
