"""`HostLink`: a server's link to the process of its agents, which lives on when the server dies.

Invariant: there is one such process for an agent and a store. A server finds the one that an earlier server started, or starts it, and starts it
again when it has ended: five times a minute at most. One that does not answer for a while hangs, and is ended. What a session's agent does goes through the store; only what must not be stored, and
commands, go through the link.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast import options
from holdfast._version import __version__
from holdfast.bridge.access.private_files import state_folder
from holdfast.bridge.host.channel import LONGEST_LINE, HostChannel, host_is_gone
from holdfast.bridge.host.files import HostFiles
from holdfast.bridge.log import log_error, log_warning
from holdfast.faults import Fault, HoldfastError, InvalidError
from holdfast.runtime.shield import cancel_to_end
from holdfast.stores.address import default_url
from holdfast.supervision.intensity import RestartWindow, Rules

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from holdfast.bridge.host.store_relay import StoreRelay
    from holdfast.bridge.sessions.live_session import LiveSession
    from holdfast.bridge.settings import BridgeSettings
    from holdfast.sessions.questions.question import Answer

__all__ = ["PASSED_SETTINGS", "AgentProcess", "HostLink", "HostedRunner", "end_hosts", "reach"]

PASSED_SETTINGS = (
    *("grace", "on_grace_expiry", "ring_bytes", "ring_age", "replays_log", "coalesce", "max_sessions", "stop_timeout"),
    "agents_grace",
)
"""The settings that the process of the agents gets from the server that starts it."""
_COMMAND = (sys.executable, "-m", "holdfast.cli.agent_process")
HANG_S = 30.0
"""How long a process that runs may not answer. An agent that computes without a pause blocks it meanwhile."""
_OPEN_S = 3.0
"""How long it may take to open its socket."""
_START_S = 60.0
"""How long a new process may take until it can be reached. It imports the agent."""
_LOOK_S = 0.05
_CALL_S = 15.0
"""How long a call waits for a process that is being started."""
_AGAIN_S = 1.0
_RESTARTS = Rules(max_restarts=5, window=60.0)


class AgentProcess(msgspec.Struct, frozen=True, kw_only=True):
    """Lets the agents of a bridge run in a process of their own, which goes on when the server dies or is restarted.

        bridge = Bridge(agent, store="sqlite:work.db", agents=AgentProcess(agent="app:agent"))

    The next server with the same agent, store and folder finds the process again.
    """

    agent: str | None = None
    """The agent, as `holdfast serve` names it: `module:name`. None: the one that `holdfast serve` has without a name."""
    models: tuple[str, ...] = ()
    """The models of the agent without a name."""
    home: Path | None = None
    """The folder in which a server finds the process; by default the bridge's state folder."""
    hang_timeout: float = HANG_S
    """Seconds that the process may not answer. Then it hangs: it is ended, and another one goes on with its turns."""

    def __post_init__(self) -> None:
        options.seconds("agents.hang_timeout", self.hang_timeout)

    def files(self, store: str) -> HostFiles:
        """Return where the process is found."""
        # The agent is imported from the current folder, so in another folder the same name may be another agent.
        return HostFiles.of(self.home or state_folder(), self.agent or "", *self.models, store, str(Path.cwd()))


async def reach(files: HostFiles, perform: Any) -> HostChannel | None:
    """Return a channel to a process that runs, or None if there is none."""
    record = files.record()
    if record is None:
        return None
    try:
        opening = asyncio.open_unix_connection(record.address, limit=LONGEST_LINE)
        reader, writer = await asyncio.wait_for(opening, _OPEN_S)
    except (OSError, TimeoutError):
        return None
    return HostChannel(reader, writer, perform)


async def end_hosts(home: Path) -> int:
    """End every process of agents that a bridge's folder names, in order; return how many there were."""

    async def refuse(op: str, _: Mapping[str, Any]) -> None:
        raise host_is_gone(f"nobody here does {op}")

    ended = 0
    for files in HostFiles.all_in(home):
        channel = await reach(files, refuse)
        if channel is not None:
            running = asyncio.ensure_future(channel.run())
            try:
                async with asyncio.timeout(HANG_S):
                    await channel.call("end")
            except TimeoutError:
                _kill(files)
            # It closes the channel when it has ended.
            await running
            ended += 1
    return ended


def _kill(files: HostFiles) -> None:
    """End a process that hangs. It does not run the code that would end it in order; its turns go on as after a crash."""
    record = files.record()
    # Its socket was open a moment ago, so this is still the process that wrote the record.
    if record is not None and record.pid != os.getpid():
        with suppress(ProcessLookupError):  # it has ended by itself
            os.kill(record.pid, signal.SIGKILL)


class HostLink:
    """The link of one server. `await link.open()` before anything else, `await link.close()` at the end; the process lives on."""

    def __init__(self, process: AgentProcess, settings: BridgeSettings, relay: StoreRelay, store: str | None) -> None:
        if not hasattr(asyncio, "open_unix_connection"):
            expected = "a system with Unix sockets"
            raise InvalidError.saying("bridge.agents", expected, f"{sys.platform}, where agents run in the server")
        self.wanted: set[str] = set()
        """The sessions whose agent is to run."""
        self.show_code: Callable[[str, str, str], None] = lambda *_: None
        """Gets codes of sign-ins: session, question, code."""
        self.unavailable: Callable[[Fault], None] = lambda _: None
        """Gets why no process can be started, once."""
        self._process = process
        self._settings = settings
        self._store = store or default_url()
        if self._store.startswith("memory:"):
            raise InvalidError.at("bridge.store", "a store that another process can open too", self._store)
        self._relay = relay
        self._files = process.files(self._store)
        self._lock: int | None = None
        self._window = RestartWindow()
        self._channel: HostChannel | None = None
        self._reading: asyncio.Task[None] | None = None
        self._keeping: asyncio.Task[None] | None = None
        self._connected = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._child: subprocess.Popen[bytes] | None = None
        self._clients_know = False
        """Whether clients know that no process can be started."""

    @property
    def is_reached(self) -> bool:
        """Whether the process of the agents answers."""
        return self._connected.is_set()

    async def open(self) -> None:
        """Find the process, or start it. Raises CONFIG_INVALID if another server uses it, SYS_BRIDGE_ERROR if it does not start."""
        self._lock = self._files.lock("server")
        if self._lock is None:
            message = "Another server with this agent and store runs already: end it, or use another --home"
            raise HoldfastError(Fault.of("CONFIG_INVALID", message, context={"path": str(self._files.folder)}))
        try:
            await self._connect()
        except BaseException:
            os.close(self._lock)
            raise
        self._relay.wrote = self._wrote
        self._keeping = asyncio.create_task(self._keep(), name="bridge: link to the agents")

    async def close(self) -> None:
        """Leave the process alone."""
        self._connected.clear()
        for task in (self._keeping, self._reading, *self._tasks):
            if task is not None:
                await cancel_to_end(task)
        if self._channel is not None:
            self._channel.close()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    async def call(self, op: str, **fields: Any) -> Any:
        """Ask the process for something. Raises SYS_BRIDGE_ERROR if it is not there, or ends meanwhile."""
        try:
            async with asyncio.timeout(_CALL_S):
                await self._connected.wait()
        except TimeoutError:
            raise host_is_gone(f"the process of the agents does not run; see {self._files.log_path}") from None
        assert self._channel is not None
        return await self._channel.call(op, **fields)

    def want(self, session: str) -> None:
        """Let the agent of a session answer, also in the next process if this one dies."""
        self.wanted.add(session)
        if self._connected.is_set():
            self._spawn_start(session)

    # --- the process ---

    async def _keep(self) -> None:
        while True:
            await self._attend()
            self._connected.clear()
            log_warning("the process of the agents has ended; another one is started")
            await self._connect_again()
            # No wake-up came for what the old one wrote last, nor for what was written since.
            self._relay.wake()
            for session in tuple(self.wanted):
                self._spawn_start(session)

    async def _attend(self) -> None:
        """Return when the process has ended. One that hangs is ended."""
        channel, reading = self._channel, self._reading
        assert channel is not None
        assert reading is not None
        watching = asyncio.create_task(self._watch(channel), name="bridge: heartbeat of the agents")
        try:
            await asyncio.wait((reading, watching), return_when=asyncio.FIRST_COMPLETED)
            if watching.done():
                limit = self._process.hang_timeout
                error = host_is_gone(f"the process of the agents did not answer for {limit:g} s and was ended")
                log_error("%s", error)
                _kill(self._files)
                await _hang_up(channel, reading)
                self.unavailable(error.fault)
        finally:
            watching.cancel()

    async def _watch(self, channel: HostChannel) -> None:
        """Return when the process does not answer any more. Whoever waits for an answer of it learns that there is none."""
        now, limit = asyncio.get_running_loop().time, self._process.hang_timeout
        while True:
            await asyncio.sleep(limit / 3)
            asked_at = now()
            try:
                async with asyncio.timeout(limit * 2 / 3):
                    await channel.call("ping")
                # It has lived for a while. If it ends now, that is news.
                self._clients_know = False
            except HoldfastError:
                # It has ended, or does not know the word. The one is noticed by the reader, the other is a sign of life.
                continue
            except TimeoutError:
                # If this side itself did not run, the answer may be here, unread. Then it is asked once more.
                if now() - asked_at <= limit:
                    return channel.close()

    async def _connect_again(self) -> None:
        while True:
            try:
                return await self._connect()
            except (HoldfastError, OSError) as error:
                log_error("the process of the agents cannot be started: %s", error)
                if isinstance(error, HoldfastError):
                    self._tell(error.fault)
                await asyncio.sleep(_AGAIN_S)

    def _tell(self, fault: Fault) -> None:
        """Tell clients once why the agents are not there."""
        if not self._clients_know:
            self._clients_know = True
            self.unavailable(fault)

    async def _connect(self) -> None:
        if await self._greet():
            return
        await self._start()
        now = asyncio.get_running_loop().time
        until = now() + _START_S
        while not await self._greet():
            if self._child is not None and self._child.poll() is not None:
                raise host_is_gone(f"the process of the agents did not start: {self._files.end_of_log()}")
            if now() > until:
                raise host_is_gone(f"the process of the agents did not start within {_START_S:.0f} s")
            await asyncio.sleep(_LOOK_S)

    async def _greet(self) -> bool:
        """Take up a process that runs; return whether there is one."""
        channel = await reach(self._files, self._perform)
        if channel is None:
            return False
        reading = asyncio.create_task(channel.run(), name="bridge: words of the agents")
        try:
            async with asyncio.timeout(self._process.hang_timeout):
                hello = await channel.call("hello")
                if hello["version"] != __version__:
                    # An upgrade: the old one would not understand everything. Its turns go on in the new one.
                    await channel.call("end")
                    await _hang_up(channel, reading)
                    return False
        except TimeoutError:
            log_error("the process of the agents hangs and is ended; its log: %s", self._files.log_path)
            _kill(self._files)
            await _hang_up(channel, reading)
            return False
        except HoldfastError:
            # It ended just now.
            return False
        self._channel, self._reading = channel, reading
        self._connected.set()
        return True

    async def _start(self) -> None:
        now = asyncio.get_running_loop().time
        while not self._window.add(now(), _RESTARTS):
            why = f"it ended {_RESTARTS.max_restarts} times within {_RESTARTS.window:g} s; see {self._files.log_path}"
            self._tell(host_is_gone(f"the process of the agents is started later: {why}").fault)
            await asyncio.sleep(_AGAIN_S)
        passed = {name: getattr(self._settings, name) for name in PASSED_SETTINGS}
        start = {
            "agent": self._process.agent,
            "models": self._process.models,
            "store": self._store,
            "folder": str(self._files.folder),
            "key": self._files.key,
            "settings": passed,
        }
        log = self._files.open_log()
        try:
            # Its own session: Ctrl-C and the end of the terminal are not for it. The start goes through its input, because everybody
            # can see arguments, and the address of a store may have a password.
            child = subprocess.Popen(  # noqa: ASYNC220, S603 - it outlives this loop, whose own processes it would end; our own command
                _COMMAND, stdin=subprocess.PIPE, stdout=log, stderr=log, start_new_session=True
            )
        finally:
            os.close(log)
        assert child.stdin is not None
        with suppress(BrokenPipeError), child.stdin as given:  # a process that ended at once is noticed by its exit
            given.write(msgspec.json.encode(start))
        self._child = child
        # Whoever started a process has to wait for it, or it stays in the table of processes. This one may outlive us.
        threading.Thread(target=child.wait, name="bridge: end of the agents", daemon=True).start()

    # --- messages of the process ---

    async def _perform(self, op: str, fields: dict[str, Any]) -> None:
        match op:
            case "wake":
                self._relay.wake(fields["session"])
            case "code":
                self.show_code(fields["session"], fields["question"], fields["code"])
            case _:
                raise host_is_gone(f"a server does not know {op}")

    def _wrote(self, session: str) -> None:
        if self._channel is not None:
            self._channel.tell("wake", session=session)

    def _spawn_start(self, session: str) -> None:
        task = asyncio.ensure_future(self._start_session(session))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _start_session(self, session: str) -> None:
        try:
            codes = await self.call("start", session=session)
        except HoldfastError as error:
            # If the process has ended, the next one is asked again.
            if error.fault.code != "SYS_BRIDGE_ERROR":
                log_warning("the agent of %s does not run: %s", session, error)
            return
        for question, code in codes.items():
            self.show_code(session, question, code)


async def _hang_up(channel: HostChannel, reading: asyncio.Task[None]) -> None:
    channel.close()
    reading.cancel()
    await asyncio.wait((reading,))


class HostedRunner:
    """Runs the agent of one session in the process of the agents. It does what an `AgentRunner` does, from afar."""

    def __init__(self, link: HostLink, live: LiveSession) -> None:
        self._link = link
        self._id = live.id

    @property
    def is_running(self) -> bool:
        """Whether the agent answers messages, or is to."""
        return self._id in self._link.wanted

    @property
    def is_busy(self) -> bool:
        """Whether a turn may run: from afar nobody can say that none does."""
        return self.is_running

    def start(self) -> None:
        """Answer what waits, and what comes."""
        self._link.want(self._id)

    async def activate(self) -> None:
        """Open the session again, or raise what prevents it."""
        await self._call("activate")
        self._link.wanted.add(self._id)

    async def pause(self) -> bool:
        """Pause the session after the turn that runs, if it is open there; return whether it was."""
        self._link.wanted.discard(self._id)
        return bool(await self._call("pause"))

    async def leave(self, *, drains: bool = False) -> None:
        """Stop after the turn that runs, and with `drains` after all messages that wait."""
        self._link.wanted.discard(self._id)
        # If the process ends meanwhile, nothing runs any more.
        with suppress(HoldfastError):
            await self._call("leave", drains=drains)

    async def stop(self) -> None:
        """The server stops, and the agent goes on."""

    async def close(self, reason: str) -> bool:
        """Close the session for good, if it is open there; return whether it was."""
        self._link.wanted.discard(self._id)
        return bool(await self._call("close", reason=reason))

    async def stop_turn(self, turn: int | None = None) -> bool:
        """Cancel the turn that runs; return whether there was one. turn: its number, if no other turn is to be cancelled."""
        return bool(await self._call("stop_turn", turn=turn))

    async def give(self, question: str, answer: Answer) -> bool:
        """Hand over an answer that must not be stored. False: nobody waits for it there."""
        given = {"value": answer.value, "outcome": answer.outcome, "reason": answer.reason}
        try:
            return bool(await self._call("give", question=question, answer=given))
        except HoldfastError as error:
            if error.fault.code != "SYS_BRIDGE_ERROR":
                raise
            # The next process reads the answer from the log; only a password has to be given again.
            return False

    async def command(self, run: str, command: str, by: str) -> bool:
        """Tell an operation that waits what to do. False: it is none of this session, or does not wait (any more)."""
        return bool(await self._call("command", run=run, command=command, by=by))

    async def _call(self, op: str, **fields: Any) -> Any:
        return await self._link.call(op, session=self._id, **fields)
