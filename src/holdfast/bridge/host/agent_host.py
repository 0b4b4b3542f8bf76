"""`AgentHost`: runs the agents of a bridge's sessions in a process of their own, so that they go on while the server is away.

Invariant: a session's agent runs here only while this process holds the lock of its files, so never in two hosts at once. The host ends by
itself when no server has been there for `agents_grace` seconds and no turn works; a turn that only waits for a person goes on in the next host.
"""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast._version import __version__
from holdfast.bridge.host.channel import LONGEST_LINE, HostChannel, host_is_gone
from holdfast.bridge.host.files import HostRecord
from holdfast.bridge.host.store_relay import StoreRelay
from holdfast.bridge.hub import Hub
from holdfast.bridge.log import log_warning
from holdfast.bridge.sessions.agent_runner import AgentRunner
from holdfast.faults import Fault, HoldfastError
from holdfast.sessions.questions.question import Answer
from holdfast.stores import shared
from holdfast.stores.address import open_store
from holdfast.stores.records import FINAL
from holdfast.wire.messages import Question

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.bridge.access.identity import TokenHolder
    from holdfast.bridge.host.files import HostFiles
    from holdfast.bridge.sessions.live_session import LiveSession
    from holdfast.bridge.settings import BridgeSettings
    from holdfast.wire.messages import Payload

__all__ = ["AgentHost"]

_LOCK_S = 30.0
"""How long a new host waits for an old one to end."""
_LOOK_S = 0.05
_HANG_UP_S = 1.0
_CHECK_S = 1.0
"""How often a host without a server looks whether its turns have ended."""


class _Nobody:
    """The authenticator of a hub to which no client connects."""

    def identify(self, token: str, *, peer: str) -> TokenHolder:  # noqa: ARG002 - as every authenticator
        raise HoldfastError(Fault.of("AUTH_FAILED"))

    def make_ticket(self, identity: TokenHolder) -> str:  # noqa: ARG002 - the same
        raise HoldfastError(Fault.of("AUTH_FAILED"))

    def redeem(self, ticket: str, *, peer: str) -> TokenHolder:  # noqa: ARG002 - the same
        raise HoldfastError(Fault.of("AUTH_FAILED"))

    def watch(self, revoked: Callable[[str], None]) -> None:
        """No token is ever revoked here."""


class _HostHub(Hub):
    """A hub whose sessions have one client at most: the server."""

    show_code: Callable[[str, str, str], None]

    def broadcast(self, live: LiveSession, type_: str, payload: Payload) -> None:
        """Hand what is not stored to the server, which has the clients."""
        if type_ == "question" and isinstance(payload, Question) and payload.user_code:
            self.show_code(live.id, payload.question_id, payload.user_code)


class _Server:
    """The server, as a client of the sessions that it has in use."""

    id = "server"
    peer = "server"

    def __init__(self) -> None:
        self.identity: TokenHolder | None = None
        self.client_key: tuple[str, str] | None = None
        self.channel: HostChannel | None = None

    def has_unread(self) -> bool:
        """It is no client that could be slow."""
        return False

    async def end(self, fault: Fault) -> None:
        """The server ends by itself."""

    async def shut_down(self, *, restarts: bool) -> None:
        """The server sees the end of the channel."""

    async def tell(self, type_: str, payload: Payload, session_id: str = "") -> None:
        """The server tells its clients what is stored in no log."""


class AgentHost:
    """The host of an agent: `await AgentHost(agent, store, files, settings).run()` returns when it has nothing to do any more."""

    def __init__(self, agent: Any, store: str, files: HostFiles, settings: BridgeSettings) -> None:
        self._agent = agent
        self._address = store
        self._files = files
        self._settings = settings
        self._server: _Server | None = None
        self._ending = asyncio.Event()
        self._arrived = asyncio.Event()
        """Set while a server is there."""
        self._left = asyncio.Event()
        """Set while none is."""
        self._channels: dict[HostChannel, asyncio.Task[Any] | None] = {}

    async def run(self) -> int:
        """Host the agents until there is nothing to do, or somebody ends it. Returns the exit code of the process."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._ending.set)
        lock = await self._lock()
        if lock is None:
            log_warning("another process of these agents runs, and did not end within %s s", _LOCK_S)
            return 1
        store = await shared.join(open_store(self._address))
        try:
            return await self._serve(StoreRelay(store))
        finally:
            await shared.leave(store)
            await self._hang_up()
            os.close(lock)

    async def _hang_up(self) -> None:
        """End all channels: the server, or whoever asked for the end, sees it."""
        for channel in self._channels:
            channel.close()
        tasks = [task for task in self._channels.values() if task is not None]
        if tasks:
            await asyncio.wait(tasks, timeout=_HANG_UP_S)

    async def _lock(self) -> int | None:
        with suppress(TimeoutError):  # None says that another process holds it
            async with asyncio.timeout(_LOCK_S):
                while (lock := self._files.lock("host")) is None:  # noqa: ASYNC110 - the other process tells nobody
                    await asyncio.sleep(_LOOK_S)
                return lock
        return None

    async def _serve(self, relay: StoreRelay) -> int:
        store: Any = relay
        hub = _HostHub(store, _Nobody(), agent=self._agent, settings=self._settings)
        hub.show_code = self._show_code
        relay.wrote = self._wrote
        self._hub, self._relay = hub, relay
        record = HostRecord(pid=os.getpid(), address=self._files.address(), version=__version__)
        with suppress(FileNotFoundError):
            # Of a host that was killed. This one has the lock.
            os.unlink(record.address)  # noqa: PTH108 - a string, as sockets have it
        server = await asyncio.start_unix_server(self._connected, record.address, limit=LONGEST_LINE)
        os.chmod(record.address, 0o600)  # noqa: PTH101 - the same
        self._files.write(record)
        hub.spawn(hub.go_on())
        waits = [asyncio.ensure_future(each) for each in (self._ending.wait(), self._idle())]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in waits:
                each.cancel()
            self._files.forget(record)
            server.close()
            with suppress(TimeoutError):  # the process ends anyway
                async with asyncio.timeout(self._settings.stop_timeout):
                    await hub.stop()
        return 0

    async def _idle(self) -> None:
        """Return when no server has been there for the grace, and no turn works."""
        wait = self._settings.agents_grace
        while True:
            try:
                async with asyncio.timeout(wait):
                    await self._arrived.wait()
            except TimeoutError:
                if not await self._works():
                    return
                # The grace is over, so the host ends as soon as its turns have.
                wait = _CHECK_S
            else:
                await self._left.wait()
                wait = self._settings.agents_grace

    async def _works(self) -> bool:
        for live in tuple(self._hub.sessions.values()):
            runner = live.runner
            if isinstance(runner, AgentRunner) and runner.is_running and not runner.is_asking:
                # If the store does not answer, nothing works, and nothing is lost.
                with suppress(HoldfastError):
                    if runner.is_busy or await runner.has_work():
                        return True
        return False

    # --- the server ---

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server = _Server()
        channel = server.channel = HostChannel(reader, writer, partial(self._perform, server))
        self._channels[channel] = asyncio.current_task()
        try:
            await channel.run()
        finally:
            self._channels.pop(channel, None)
            self._lost(server)

    def _greet(self, server: _Server) -> dict[str, Any]:
        """A server is there. It takes the place of an older one, which is dead and does not know it."""
        older, self._server = self._server, server
        if older is not None and older.channel is not None:
            older.channel.close()
        self._left.clear()
        self._arrived.set()
        return {"version": __version__, "pid": os.getpid()}

    def _lost(self, server: _Server) -> None:
        if self._server is server:
            self._server = None
            self._arrived.clear()
            self._left.set()
        for live in tuple(self._hub.sessions.values()):
            self._hub.exit(live, server)

    def _wrote(self, session: str) -> None:
        if self._server is not None and self._server.channel is not None:
            self._server.channel.tell("wake", session=session)

    def _show_code(self, session: str, question: str, code: str) -> None:
        if self._server is not None and self._server.channel is not None:
            self._server.channel.tell("code", session=session, question=question, code=code)

    # --- what it asks for ---

    async def _perform(self, server: _Server, op: str, fields: dict[str, Any]) -> Any:
        match op:
            case "hello":
                return self._greet(server)
            case "ping":
                return None
            case "end":
                return self._ending.set()
            case "wake":
                return self._relay.wake(fields["session"])
            case "waiting":
                return [msgspec.to_builtins(each) for each in self._hub.runtime.commands.waiting()]
            case "command" if "session" not in fields:
                return await self._hub.command(**fields)
            case "start":
                return await self._start(server, fields["session"])
            case "activate":
                return await self._activate(server, fields["session"])
            case _:
                return await self._perform_in_session(server, op, **fields)

    async def _start(self, server: _Server, session: str) -> dict[str, str]:
        live = await self._entered(server, session)
        runner = self._hub.runner(live)
        if live.state not in FINAL:
            runner.start()
        return live.secrets

    async def _activate(self, server: _Server, session: str) -> None:
        await self._hub.activate(await self._entered(server, session))

    async def _entered(self, server: _Server, session: str) -> LiveSession:
        live = await self._hub.live(session)
        fault = self._hub.enter(live, server)
        if fault is not None:
            raise HoldfastError(fault)
        return live

    async def _perform_in_session(self, server: _Server, op: str, session: str, **fields: Any) -> bool:
        live = self._hub.sessions.get(session)
        if live is None or live.runner is None:
            return False
        runner = live.runner
        match op:
            case "pause":
                await self._hub.pause(live)
            case "close":
                await self._hub.close(live, fields["reason"])
                self._hub.exit(live, server)
            case "leave":
                await runner.leave(drains=fields["drains"])
                self._hub.exit(live, server)
            case "stop_turn":
                return await runner.stop_turn(**fields)
            case "give":
                return await runner.give(fields["question"], Answer(**fields["answer"]))
            case "command":
                return await runner.command(**fields)
            case _:
                raise host_is_gone(f"the process of the agents does not know {op}")
        return True
