"""`Hub`: what all connections of a bridge share: the store, the sessions in use, who is connected, and the limits.

Invariant: one `LiveSession` for each session in use, however many clients it has. A connection counts from its `auth` until it has ended,
and only the end of a session's last connection starts its grace.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol
from uuid import uuid4

import msgspec

from holdfast.bridge.access.admission import Admission
from holdfast.bridge.access.audit import AccessAudit
from holdfast.bridge.access.resume_tokens import ResumeTokens
from holdfast.bridge.error_reports import ErrorReports
from holdfast.bridge.host.link import HostedRunner
from holdfast.bridge.http.descriptors import most_sockets
from holdfast.bridge.log import log_error, log_warning
from holdfast.bridge.sessions.agent_runner import AgentRunner, agent_name, check_agent, problem
from holdfast.bridge.sessions.live_session import LiveSession
from holdfast.bridge.sessions.log_reader import LogReader
from holdfast.bridge.settings import BridgeSettings
from holdfast.events import (
    AgentFallback,
    BudgetWarning,
    CircuitStateChange,
    Commanded,
    Degraded,
    Failed,
    Fallback,
    HookEvent,
    Recovered,
    Repaired,
    Retry,
    RetryDenied,
    StreamResumed,
    encode,
)
from holdfast.events.lines import LogLines
from holdfast.faults import Fault, HoldfastError
from holdfast.policies.profiles import BRIDGE
from holdfast.runtime.runtime import default_runtime
from holdfast.runtime.secrets import process_redactor
from holdfast.sessions import admin, machine
from holdfast.sessions.journal import audit
from holdfast.sessions.manifest import Manifest, decode_manifest, encode_manifest, manifest_fields
from holdfast.sinks.hooks import BADGES
from holdfast.stores import Commit, NewSession, SessionState
from holdfast.stores.errors import session_ended
from holdfast.stores.records import FINAL
from holdfast.stores.store import PAGE_ENTRIES
from holdfast.wire.envelope import stamp
from holdfast.wire.messages import CertificateRotation

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from holdfast.bridge.access.identity import Authenticator, TokenHolder
    from holdfast.bridge.access.tls import Rotation
    from holdfast.bridge.host.link import HostLink
    from holdfast.bridge.sessions.live_session import Incoming
    from holdfast.bridge.settings import OnGraceExpiry
    from holdfast.runtime.runtime import Runtime
    from holdfast.stores import SessionRecord, Store
    from holdfast.wire.messages import Payload
    from holdfast.wire.outbox import AckResult

__all__ = ["Connected", "Hub"]


_FORWARDED = (
    *(Retry, Fallback, AgentFallback, Recovered, Failed, Degraded, Repaired, RetryDenied, StreamResumed),
    *(CircuitStateChange, BudgetWarning, Commanded, HookEvent),
)
"""The recovery events that clients get, and what validators say of the agent's work."""
_UNENDED = (SessionState.CREATED, SessionState.ACTIVE, SessionState.PAUSED)
_SHARED = 20
"""From so many places on, one device may have half of them."""
_PLACE_S = 10.0
"""When a client may ask again for a place that is taken by a session in use."""
_RECENT_S = 86_400.0
"""How long ago a session may have been used that a new server goes on with by itself."""


def _no_place(message: str, limit: int) -> HoldfastError:
    return HoldfastError(Fault.of("CONN_LIMIT", message, retry_after=_PLACE_S, context={"limit": limit}))


def _agent_of(record: SessionRecord) -> str:
    try:
        return decode_manifest(record.id, bytes(record.manifest)).agent_type
    except HoldfastError:
        return ""


class Connected(Protocol):
    """A connection, as the hub sees it."""

    id: str
    peer: str
    identity: TokenHolder | None
    client_key: tuple[str, str] | None

    @property
    def has_unread(self) -> Callable[[], bool]:
        """Whether bytes of the client wait for this process to read them."""
        ...

    async def end(self, fault: Fault) -> None:
        """End it for a reason that the client gets."""
        ...

    async def shut_down(self, *, restarts: bool) -> None:
        """End it because the server stops."""
        ...

    async def tell(self, type_: str, payload: Payload, session_id: str = "") -> None:
        """Send a message that is stored in no log; about a session or about none."""
        ...


class Hub:
    """The shared part of a bridge. Open it with `async with` in the loop in which its connections run."""

    def __init__(
        self,
        store: Store,
        authenticator: Authenticator,
        *,
        agent: Any = None,
        settings: BridgeSettings = BridgeSettings(),  # noqa: B008 - a frozen value
        runtime: Runtime | None = None,
        reports: ErrorReports | None = None,
        host: HostLink | None = None,
    ) -> None:
        check_agent(agent)
        self.host = host
        """The process of the agents; None: they run in this one."""
        self.reports = reports or ErrorReports()
        """Where errors of clients and of the server are counted."""
        self.agent = agent
        self.store = store
        self.authenticator = authenticator
        self.settings = settings
        self.runtime = runtime or default_runtime()
        self.clock = self.runtime.clock
        self.connections: set[Connected] = set()
        most = most_sockets()
        self.most_connections = (
            settings.max_connections if most is None else min(settings.max_connections, most * 3 // 4)
        )
        """How many clients may be connected: not more than the process can open sockets."""
        self._admission: Admission[Connected] = Admission(
            settings, lambda each: not each.has_unread(), most=None if most is None else most // 2
        )
        self.sessions: dict[str, LiveSession] = {}
        self.reading = LogReader()
        """How connections read logs from the store."""
        self._of_device: Counter[str] = Counter()
        """How many connections each token has."""
        self._by_client: dict[tuple[str, str], Connected] = {}
        self._opening = asyncio.Lock()
        self._lines = LogLines()
        self._graces: dict[str, asyncio.TimerHandle] = {}
        self._endings: dict[str, asyncio.Event] = {}
        """The sessions that are let go now, each with what is set when that is done."""
        self._is_stopping = False
        self._tasks: set[asyncio.Task[Any]] = set()
        self.resume_tokens = ResumeTokens(settings.resume_age)
        self._loop = asyncio.get_running_loop()
        self._subscription = self.runtime.bus.subscribe(self._on_event, _FORWARDED)
        self.access = AccessAudit(store)
        if host is not None:
            host.show_code = self._show_code
            host.unavailable = self._agents_unavailable
        self.seen: deque[tuple[str, str]] = deque(maxlen=int(BRIDGE.limits["event_queue"]))
        """The notifications that were acknowledged, each with its client. `request_replay` does not send them again."""
        self.rotation: CertificateRotation | None = None
        """The change of the certificate that is ahead."""
        authenticator.watch(self._revoked)
        watch_rejected = getattr(authenticator, "watch_rejected", None)
        if watch_rejected is not None:
            watch_rejected(self.access.rejected)

    async def stop(self, *, restarts: bool = False) -> None:
        """Close all connections, let the agents pause, and stop following the logs. A turn that runs goes on at the next start."""
        self._is_stopping = True
        self._subscription.cancel()
        for timer in self._graces.values():
            timer.cancel()
        self._graces.clear()
        # All at once: a client that does not read must not keep an agent from ending its turn and giving its lease back.
        farewells = [each.shut_down(restarts=restarts) for each in tuple(self.connections)]
        ends = [self._put_away(live) for live in tuple(self.sessions.values())]
        await asyncio.gather(*farewells, *ends, return_exceptions=True)
        self.sessions.clear()
        if self.host is not None:
            await self.host.close()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.access.close()

    # --- sessions ---

    async def live(self, session: str, device: str = "") -> LiveSession:
        """Return a session, which is in use from now on: whoever asks for it enters it, or its grace ends that.

        device: the id of the token that asks for it. Raises SESS_NOT_FOUND, SESS_CLOSED if it can never be used again, and CONN_LIMIT.
        """
        found = self.sessions.get(session)
        if found is not None:
            return found
        async with self._opening:
            ending = self._endings.get(session)
            if ending is not None:
                await ending.wait()
            found = self.sessions.get(session)
            if found is None:
                found = await self._open(session, device)
        return found

    async def _open(self, session: str, device: str) -> LiveSession:
        record = await self.record(session)
        if record.state is SessionState.CLOSED:
            raise HoldfastError(session_ended(session))
        all_, most = (
            self.settings.max_sessions,
            self._share(self.settings.max_sessions, self.settings.max_sessions_per_device),
        )
        of_device = sum(each.opened_by == device for each in self.sessions.values()) if device else 0
        if of_device >= most and not await self._make_room(device):
            raise _no_place("Too many sessions of this token are in use", most)
        if len(self.sessions) >= all_ and not await self._make_room():
            raise _no_place("Too many sessions are in use", all_)
        live = self._made(record)
        live.opened_by = device
        await live.open()
        self.sessions[session] = live
        self._start_grace(live)
        self._wake(live)
        return live

    @staticmethod
    def _share(all_: int, given: int | None) -> int:
        """Return how many of all places one device may have. Somebody alone may have all, which a small number is meant for."""
        return given if given is not None else all_ if all_ < _SHARED else all_ // 2

    async def look_at(self, session: str) -> LiveSession:
        """Return a session to read in it, as it is now, or raise SESS_NOT_FOUND. It is not in use because of this."""
        found = self.sessions.get(session)
        if found is None:
            found = self._made(await self.record(session))
            await found.catch_up()
        return found

    async def take(self, live: LiveSession, messages: Sequence[Incoming]) -> list[AckResult | Exception]:
        """Store messages of users, each once, and let the agent answer them, also if the session was paused.

        Returns where each stands, or why it could not be stored.
        """
        with self.holding(live):
            results = await live.store(messages)
            if self.sessions.get(live.id) is live and not all(isinstance(each, Exception) for each in results):
                self._wake(live)
        return results

    async def answered(self, session: str) -> None:
        """Let an agent go on whose question was answered, also if nobody is in its session."""
        if self.agent is None:
            return
        try:
            live = await self.live(session)
        except HoldfastError as error:
            # The answer is stored. The agent takes it when the session is opened the next time.
            log_warning("session %s is left alone: %s", session, error)
            return
        with self.holding(live):
            self._wake(live)

    def _wake(self, live: LiveSession) -> None:
        if self.agent is not None and live.state not in FINAL and not self._is_stopping:
            self.runner(live).start()

    async def _make_room(self, device: str = "") -> bool:
        """Put away a session that nobody is in and whose agent rests: one whose grace is over, or the one that was left first.

        device: the id of the token that has brought it into use, if another one does not help.
        """
        in_grace = {id_: place for place, id_ in enumerate(self._graces)}
        for live in sorted(self.sessions.values(), key=lambda each: in_grace.get(each.id, -1)):
            is_needed = live.is_used or live.is_ending or (live.runner is not None and live.runner.is_busy)
            if is_needed or (device and live.opened_by != device):
                continue
            if live.runner is not None:
                await live.runner.leave(drains=True)
            if not live.is_used and self.sessions.get(live.id) is live:
                self._cancel_grace(live)
                await self._put_aside(live)
                return True
            self._wake(live)
        return False

    def _is_left(self, live: LiveSession) -> bool:
        return not live.is_used and live.id not in self._graces

    def runner(self, live: LiveSession) -> AgentRunner | HostedRunner:
        """Return what runs the agent of a session."""
        if live.runner is None and self.host is not None:
            live.runner = HostedRunner(self.host, live)
        elif live.runner is None:
            live.runner = AgentRunner(
                self.agent, live, self.store, runtime=self.runtime, coalesces=self.settings.coalesce
            )
        return live.runner

    async def _put_away(self, live: LiveSession) -> None:
        if live.runner is not None:
            await live.runner.stop()
        await live.close()

    async def activate(self, live: LiveSession) -> None:
        """Make a paused session active again, or raise SESS_NOT_RESUMABLE."""
        record = await self.store.session(live.id)
        manifest = decode_manifest(live.id, bytes(record.manifest))
        error = machine.not_resumable(live.id, record.state, resumable=manifest.resumable)
        if error is not None:
            raise error
        await self.runner(live).activate()

    async def pause(self, live: LiveSession) -> None:
        """Pause a session after the turn that runs. It can be resumed.

        Raises SESS_CLOSED, or SESS_ILLEGAL_TRANSITION if there is nothing to pause in its state.
        """
        state = (await self.store.session(live.id)).state
        if state is not SessionState.PAUSED:
            machine.check(live.id, state, SessionState.PAUSED)
        was_open = live.runner is not None and await live.runner.pause()
        if not was_open and (await self.store.session(live.id)).state is SessionState.ACTIVE:
            # Its owner died, or works in another process: then this raises SESS_LEASE_LOST.
            await admin.make_resumable(self.store, live.id)
        await live.catch_up()

    async def close(self, live: LiveSession, reason: str) -> None:
        """Close a session for good."""
        if live.runner is None or not await live.runner.close(reason):
            await admin.close(self.store, live.id, reason)
        await live.catch_up()

    async def go_on(self) -> None:
        """Let the agent go on with what an earlier server left: turns that were cut off, and messages that wait.

        Only sessions that this agent has served, and that were used within a day: others are taken up when somebody joins them.
        """
        if self.agent is None or self.host is not None:
            # The process of the agents looks for it itself.
            return
        name, since, after = agent_name(self.agent), self.clock.wall() - _RECENT_S, ""
        while page := await self.store.sessions(states=_UNENDED, after=after):
            for record in page:
                if record.last_at >= since and record.id not in self.sessions and _agent_of(record) == name:
                    await self._go_on(record)
            after = page[-1].id

    async def _go_on(self, record: SessionRecord) -> None:
        looked = AgentRunner(self.agent, self._made(record), self.store, runtime=self.runtime)
        try:
            if admin.in_use(record, self.store, self.runtime) or not await looked.has_work():
                return
            await self.live(record.id)
        except HoldfastError as error:
            log_warning("session %s is left alone: %s", record.id, error)

    async def create(
        self, session: str, *, agent: str = "", title: str = "", working_directory: str = "", device: str = ""
    ) -> LiveSession:
        """Make a session, or raise SESS_ILLEGAL_TRANSITION if there is one of that name."""
        name = session or f"s-{uuid4().hex[:12]}"
        now = self.clock.wall()
        fields = manifest_fields(
            config=None,
            tools=None,
            project_root=working_directory or None,
            agent_type=agent or ("" if self.agent is None else agent_name(self.agent)),
            title=title,
            mode="ask",
            model=None,
        )
        manifest = Manifest(session_id=name, store_id=self.store.id, created_at=now, updated_at=now, **fields)
        made = audit("SessionLifecycle", name, state="created", by="bridge")
        await self.store.commit(
            Commit(session=name, create=NewSession(manifest=encode_manifest(manifest)), audit=(made,))
        )
        older = self.sessions.get(name)
        if older is not None:
            # It was removed from the store while somebody still was in it.
            await older.open_again()
        return await self.live(name, device)

    async def visible(
        self, identity: TokenHolder, *, states: Sequence[SessionState] = (), after: str = "", most: int | None = None
    ) -> list[SessionRecord]:
        """Return the sessions that somebody may see, by id after `after`, in one of `states` if given, and no more than `most`."""
        if identity.sessions is not None:
            return (await self._named(sorted(each for each in identity.sessions if each > after), states))[:most]
        found = list[Any]()
        # Every client that authenticates asks for the first ones. A store may have many thousands.
        limit = PAGE_ENTRIES if most is None else most
        while page := await self.store.sessions(states=states, after=after, limit=limit):
            found += page
            after = page[-1].id
            if most is not None and len(found) >= most:
                break
        return found[:most] if identity.kind in ("device", "admin") else []

    async def _named(self, names: Iterable[str], states: Sequence[SessionState]) -> list[SessionRecord]:
        found = []
        for name in names:
            try:
                record = await self.record(name)
            except HoldfastError as error:
                if error.fault.code != "SESS_NOT_FOUND":
                    raise
                continue
            if not states or record.state in states:
                found.append(record)
        return found

    async def record(self, session: str) -> SessionRecord:
        """Return what the store knows of a session, or raise SESS_NOT_FOUND."""
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
            ring_bytes=self.settings.ring_bytes,
            ring_age=self.settings.ring_age,
            replays_log=self.settings.replays_log,
            broadcast=self.broadcast,
        )

    # --- connections ---

    def arrive(self, connection: Connected) -> None:
        """Count a connection that has not authenticated yet. If there are too many, an older one makes room for it."""
        self._send_away(self._admission.opened(connection, connection.peer))

    def make_room(self) -> bool:
        """Close a connection that has not authenticated, because no socket is left; return whether there was one."""
        return self._send_away(self._admission.yield_one())

    def _send_away(self, older: Connected | None) -> bool:
        if older is not None:
            # A client comes back after this. After a limit it would not, and many come at once when a server restarts.
            message = "Too many connections wait to authenticate"
            self.spawn(older.end(Fault.of("CONN_RATE_LIMITED", message, retry_after=1.0)))
        return older is not None

    def admit(self, connection: Connected) -> Fault | None:
        """Count a connection that has authenticated. Returns why it may not stay, if so."""
        key = connection.client_key
        older = None if key is None else self._by_client.get(key)
        # A client that comes back takes the place of its older connection, also if there is no other place.
        if len(self.connections) - (older in self.connections) >= self.most_connections:
            return Fault.of("CONN_LIMIT", context={"limit": self.most_connections})
        device = "" if connection.identity is None else connection.identity.token_id
        most = self._share(self.most_connections, self.settings.max_connections_per_device)
        if self._of_device[device] - (older in self.connections) >= most:
            return Fault.of("CONN_LIMIT", "Too many connections with this token", context={"limit": most})
        fault = self._admission.authenticated(connection, replaces=older)
        if fault is not None:
            return fault
        self.connections.add(connection)
        self._of_device[device] += 1
        if connection.identity is not None:
            self.access.admitted(connection.identity, peer=connection.peer, connection_id=connection.id)
        if key is not None:
            self._by_client[key] = connection
        if older is not None and older is not connection:
            self.spawn(older.end(Fault.of("CONN_SUPERSEDED", context={"connection_id": connection.id})))
        return None

    def leave(self, connection: Connected) -> None:
        """A connection has ended."""
        self._admission.closed(connection)
        if connection in self.connections and connection.identity is not None:
            self._of_device[connection.identity.token_id] -= 1
            # So that it does not grow with each token that there ever was.
            self._of_device += Counter()
        self.connections.discard(connection)
        key = connection.client_key
        # An older connection that ends late must not remove the newer one.
        if key is not None and self._by_client.get(key) is connection:
            del self._by_client[key]

    def enter(self, live: LiveSession, connection: Connected) -> Fault | None:
        """Add a connection to a session. Returns why it may not join, if so."""
        if connection not in live.clients and len(live.clients) >= self.settings.max_clients:
            return Fault.of("CONN_LIMIT", context={"limit": self.settings.max_clients, "session_id": live.id})
        live.clients.add(connection)
        self._cancel_grace(live)
        return None

    def exit(self, live: LiveSession, connection: Connected, *, was_lost: bool = False) -> None:
        """Take a connection out of a session. The last one starts the grace. was_lost: it broke, and nobody closed it."""
        if connection not in live.clients:
            return
        live.clients.discard(connection)
        live.was_lost = was_lost
        self._start_grace(live)

    @contextmanager
    def holding(self, live: LiveSession) -> Iterator[None]:
        """Keep a session in use while a request needs it. Whoever asks counts as a client that has left again."""
        live.visits += 1
        self._cancel_grace(live)
        try:
            yield
        finally:
            live.visits -= 1
            self._start_grace(live)

    def _start_grace(self, live: LiveSession) -> None:
        if live.is_used or self._is_stopping or self.sessions.get(live.id) is not live:
            return
        self._cancel_grace(live)
        self._graces[live.id] = self._loop.call_later(self.settings.grace, self._grace_over, live)

    def _cancel_grace(self, live: LiveSession) -> None:
        timer = self._graces.pop(live.id, None)
        if timer is not None:
            timer.cancel()

    def _grace_over(self, live: LiveSession) -> None:
        self._graces.pop(live.id, None)
        # An earlier grace may have ended, and wait for the agent. It then finds that this one is over, too.
        if not live.is_used and not live.is_ending:
            live.is_ending = True
            self.spawn(self._end_grace(live))

    async def _end_grace(self, live: LiveSession) -> None:
        """Nobody came back: pause or close the session, as it is configured. The agent's turn is not cut."""
        how, runner = self.settings.on_grace_expiry, live.runner
        try:
            while how != "detach" and runner is not None and runner.is_running:
                await runner.leave(drains=True)
        finally:
            live.is_ending = False
        if not self._is_left(live):
            # Somebody came while the agent finished its turn. If nobody is here any more, another grace has begun.
            self._wake(live)
            return
        if live.was_lost:
            self.reports.session_dropped(live.id)
        if how != "detach" or runner is None:
            await self._put_aside(live, how)

    async def _put_aside(self, live: LiveSession, how: OnGraceExpiry = "detach") -> None:
        """End the use of a session. Whoever asks for it meanwhile waits, and finds it as it is afterwards."""
        if self.sessions.get(live.id) is not live:
            return
        ended = self._endings[live.id] = asyncio.Event()
        del self.sessions[live.id]
        try:
            await live.close()
            if how != "detach":
                await self._let_go(live, closes=how == "close")
        finally:
            del self._endings[live.id]
            ended.set()

    async def _let_go(self, live: LiveSession, *, closes: bool) -> None:
        record = await self.store.session(live.id)
        if record.state in FINAL or admin.in_use(record, self.store, self.runtime):
            return
        # What hooks and users have added is in the log, also if no program has ever opened the session.
        is_empty = record.checkpoint is None and record.top == 0
        if closes or is_empty:
            await admin.close(self.store, live.id, "nobody came back")
        elif record.state is SessionState.ACTIVE:
            await admin.make_resumable(self.store, live.id)

    def _revoked(self, token_id: str) -> None:
        self.resume_tokens.revoke(token_id)
        self.access.revoked(token_id)
        for connection in tuple(self.connections):
            identity = connection.identity
            if identity is not None and identity.token_id == token_id:
                self.spawn(connection.end(Fault.of("AUTH_TOKEN_REVOKED")))

    def spawn(self, work: Any) -> asyncio.Task[Any]:
        """Run something that nobody has to wait for."""
        task: asyncio.Task[Any] = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._spawned)
        return task

    def _spawned(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log_error("%s", task.exception())

    # --- what clients see of the agent's recoveries ---

    def announce_rotation(self, rotation: Rotation | None) -> None:
        """Tell every client that the certificate changes, and those who come later too. None: it does not, or it has."""
        self.rotation = None
        if rotation is not None:
            at = stamp(rotation.at)
            self.rotation = CertificateRotation(new_fingerprint=rotation.pin, effective_date=at)
            for each in tuple(self.connections):
                self.spawn(each.tell("certificate_rotation_scheduled", self.rotation))

    def broadcast(self, live: LiveSession, type_: str, payload: Payload) -> None:
        """Send something that is not stored to everybody in a session."""
        for each in tuple(live.clients):
            self.spawn(each.tell(type_, payload, live.id))

    def _on_event(self, event: Any) -> None:
        if isinstance(event, Commanded) and not event.session:
            # Whoever commands is not inside the session whose operation obeys.
            lives = tuple(self.sessions.values())
            session = next((live.id for live in lives if event.run in live.runs), "")
            event = msgspec.structs.replace(event, session=session)
        if isinstance(event, Failed):
            # Sessions store what their agents do, also while no client sends anything.
            self.access.failed(event.fault)
        if isinstance(event, Failed) and not event.run:
            # A turn of the agent, and no operation in it. Clients get its notification, without the words of the agent's own code.
            return
        # A tool may run in a thread, and so may its recovery.
        if event.session in self.sessions:
            self._loop.call_soon_threadsafe(self._forward, event)

    def _forward(self, event: Any) -> None:
        live = self.sessions.get(event.session)
        if live is None or not isinstance(live.runner, AgentRunner) or live.runner.session is None:
            return
        can, facts = list[str](), dict[str, str]()
        if isinstance(event, Retry):
            # When it goes on is said by `until`, so the reason need not say it once more.
            fault = msgspec.structs.replace(event.fault, retry_after=None)
            facts["reason"] = fault.for_user(redactor=process_redactor())
            facts["until"] = stamp(self.clock.wall() + event.delay)
            waiting = next((each for each in self.runtime.commands.waiting() if each.run == event.run), None)
            if waiting is not None:
                can = ["retry_now", *(["fall_back"] if waiting.can_fall_back else []), "cancel"]
            if event.run not in live.runs:
                live.runs.append(event.run)
        line = event.text if isinstance(event, Retry) else self._lines.of(event)[1]
        document = msgspec.json.decode(encode(event))
        if isinstance(event, HookEvent):
            document["badge"] = BADGES[event.what]
        live.runner.publish("recovery", {"event": document, "line": line, "run": event.run, "can": can} | facts)

    async def waiting(self) -> list[dict[str, Any]]:
        """Return the operations that wait and can be commanded, here and in the process of the agents."""
        here = [msgspec.to_builtins(each) for each in self.runtime.commands.waiting()]
        return here if self.host is None else here + await self.host.call("waiting")

    async def command(self, run: str, command: str, by: str) -> bool:
        """Tell any operation that waits what to do; return whether it obeys."""
        if getattr(self.runtime.commands, command)(run, by=by):
            return True
        return self.host is not None and bool(await self.host.call("command", run=run, command=command, by=by))

    def _show_code(self, session: str, question: str, code: str) -> None:
        live = self.sessions.get(session)
        if live is not None:
            live.show_code(question, code)

    def _agents_unavailable(self, fault: Fault) -> None:
        for live in tuple(self.sessions.values()):
            self.spawn(live.publish(("notification", problem("agent_unavailable", fault))))

    def others(self, live: LiveSession, connection: Connected) -> Iterable[Any]:
        """Return the other connections of a session."""
        return (each for each in tuple(live.clients) if each is not connection)
