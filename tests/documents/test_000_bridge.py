"""Document 000, the bridge: errors, session recovery and reconnection. In its order: each sample and each sentence, run over real sockets."""

# ruff: noqa: SIM117 - the bridge and its clients are told apart more easily in blocks of their own
from __future__ import annotations

import asyncio
import errno
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import httpx2
import pytest
from documents_kit import Model, World, failing, http
from websockets.asyncio.client import ClientConnection

from holdfast import Agent, CircuitOpenError, Fault, HoldfastError, Runtime, documents, recover, tool
from holdfast.actors import VirtualActor, VirtualActors
from holdfast.bridge import AgentProcess, ConnectionStatus, ErrorReports, TlsFiles, Turn
from holdfast.bridge.access.identity import TokenHolder
from holdfast.bridge.access.mode import mode_of
from holdfast.bridge.client.certificate import Certificate, diagnose
from holdfast.bridge.sessions import agent_runner
from holdfast.config import read
from holdfast.documents.bridge import (
    BRIDGE_CIRCUIT,
    CONNECT_TIMEOUT,
    LINEAR,
    RECONNECT_DELAYS,
    SEQUENCE_MAP,
    Alerts,
    Bridge,
    BridgeConnectionError,
    BridgeSettings,
    Client,
    ConnectionState,
    ErrorMetric,
    HookRules,
    Layer,
    PersistedCheckpoint,
    PersistedSession,
    ReconnectionExhaustedError,
    ReplayBuffer,
    Schedule,
    Session,
    SessionState,
    Severity,
    bridge,
    connection_error,
    create_circuit_breaker,
    http_body,
    load_sessions,
    raise_alerts,
    react_to_failures,
    read_hook,
    read_message,
    save_sessions,
    tool_error,
    validate_sequence,
)
from holdfast.events import Failed, Retry
from holdfast.faults import CATALOG, meaning
from holdfast.manager import ExecutionOptions, ResilienceManager
from holdfast.providers import Reply, ToolCall
from holdfast.runtime.runtime import use_runtime
from holdfast.sinks import measure_errors
from holdfast.stores import MemoryStore, SqliteStore
from holdfast.testing import Capture, VirtualClock
from holdfast.testing import run as virtually
from holdfast.testing.proxy import BlackHole, FaultProxy
from holdfast.tools import Toolbox, bash
from holdfast.tools import run as run_program
from holdfast.tools.toolbox import TIME_LIMIT
from holdfast.views import wire
from holdfast.wire.bridge_options import ServerLimits
from holdfast.wire.messages import HealthStatus
from holdfast.wire.outbox import Outbox, Outgoing
from holdfast.wire.reconnect import NextAttempt, Reconnect
from holdfast.wire.server import ServerConnection

sys.path.insert(0, str(Path(__file__).parents[1] / "bridge"))
from bridge_kit import LIMIT, Raw, Tokens, raw, serving

TOKENS = {
    "token": TokenHolder(token_id="t-1", kind="device", name="Ada"),
    "hook": TokenHolder(token_id="t-2", kind="hook", name="hooks"),
    "admin": TokenHolder(token_id="t-3", kind="admin", name="Root"),
}
PLAYS = Runtime(profile="bridge")
"""The runtime of a program that keeps to the document."""
HOOK = {"event": "Stop", "timestamp": "2026-03-20T14:32:00Z", "session_id": "s", "payload": {}}


def run(work: Callable[[], Awaitable[None]]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(4 * LIMIT):
            await work()

    asyncio.run(limited())


def a_bridge(agent: Any = None, **options: Any) -> Any:
    """A bridge that plays the document, with a token for each kind."""
    return serving(agent, **{"tokens": Tokens(**TOKENS), "runtime": PLAYS, "settings": None} | options)


def over_http(bridge: Bridge, token: str = "token") -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=bridge.url, headers={"authorization": f"Bearer {token}"}, trust_env=False)


async def eventually(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(LIMIT):
        while not condition():  # noqa: ASYNC110 - the condition is on the other side of a socket
            await asyncio.sleep(0.002)


async def in_session(client: Raw, session: str = "s", **auth: Any) -> dict[str, Any]:
    ack = await client.auth(**auth)
    await client.create(session)
    return ack


async def end_agents(home: Path) -> None:
    """End the process of the agents that a bridge has started."""
    ended = [sys.executable, "-m", "holdfast", "serve", "--end-agents", "--home", str(home)]
    await asyncio.to_thread(subprocess.run, ended, check=True, capture_output=True)


async def echo(turn: Turn) -> str:
    return f"you said {turn.text}"


# --- the layers and the taxonomy ---


def test_S0_1_every_code_belongs_to_one_of_four_layers():
    """Failures are handled in layers: transport, protocol, application, recovery."""
    assert [layer.value for layer in Layer] == ["transport", "protocol", "application", "recovery"]
    layers = {code: Fault.of(code).layer for code in ("CONN_WEBSOCKET_CLOSED", "CONN_TLS_HANDSHAKE_FAILED")}
    assert set(layers.values()) == {Layer.TRANSPORT}
    assert {Fault.of(code).layer for code in ("PROTO_INVALID_MESSAGE", "PROTO_SEQUENCE_ERROR")} == {Layer.PROTOCOL}
    assert {Fault.of(code).layer for code in ("SESS_NOT_FOUND", "TOOL_EXECUTION_FAILED")} == {Layer.APPLICATION}
    assert Fault.of("CONN_RECONNECT_EXHAUSTED").layer is Layer.RECOVERY


@pytest.mark.parametrize(
    ("code", "prefix"),
    [
        ("CONN_WEBSOCKET_CLOSED", "CONN_"),
        ("AUTH_TOKEN_EXPIRED", "AUTH_"),
        ("PROTO_INVALID_MESSAGE", "PROTO_"),
        ("SESS_NOT_FOUND", "SESS_"),
        ("TOOL_EXECUTION_FAILED", "TOOL_"),
        ("HOOK_VALIDATION_FAILED", "HOOK_"),
        ("SYS_INTERNAL_ERROR", "SYS_"),
    ],
)
def test_S0_2_the_prefix_of_a_code_is_the_category_that_metrics_count(code, prefix):
    """Seven categories, each with its prefix and a sample."""
    assert ErrorMetric.of(Fault.of(code)).category == prefix


def test_S0_3_the_wire_sends_every_code_of_the_document_as_it_is():
    """The codes that the document names: each is known, and is sent unchanged."""
    named = [
        "CONN_WEBSOCKET_CLOSED",
        "CONN_TLS_HANDSHAKE_FAILED",
        "CONN_TIMEOUT",
        "AUTH_TOKEN_EXPIRED",
        "PROTO_INVALID_MESSAGE",
        "PROTO_SEQUENCE_ERROR",
        "SESS_NOT_FOUND",
        "SESS_CLOSED",
        "SESS_NOT_RESUMABLE",
        "TOOL_EXECUTION_FAILED",
        "TOOL_TIMEOUT",
        "HOOK_VALIDATION_FAILED",
        "SYS_INTERNAL_ERROR",
        "CIRCUIT_OPEN",
    ]
    for code in named:
        assert code in CATALOG
        assert http_body(Fault.of(code))["code"] == connection_error(Fault.of(code))["payload"]["code"] == code


@pytest.mark.parametrize(
    ("severity", "code", "does"),
    [
        ("info", "SYS_CANCELLED", []),
        ("warning", "TOOL_INPUT_INVALID", ["metrics"]),
        ("error", "PROVIDER_UNAVAILABLE", ["metrics", "notify"]),
        ("critical", "CIRCUIT_OPEN", ["metrics", "notify", "alert", "circuit"]),
        ("fatal", "ACTOR_MAX_RESTARTS", ["metrics", "notify", "alert", "circuit", "terminate"]),
    ],
)
def test_S0_4_a_severity_decides_what_is_done_about_a_failure(caplog, severity, code, does):
    """info: log; warning: metrics; error: notify; critical: alert, circuit; fatal: terminate. Each does what the one before does, too."""
    caplog.set_level("INFO")
    runtime, done = Runtime(profile="bridge"), []
    names = ("metrics", "notify", "alert", "circuit", "terminate")
    functions = {name: lambda _, name=name: done.append(name) for name in names}
    with react_to_failures(runtime, **functions):
        fault = Fault.of(code)
        runtime.bus.emit(Failed(at=1.0, run="r", operation="claude", fault=fault, exhausted=False))
    assert (fault.severity.value, done) == (severity, does)
    assert any(code in record.getMessage() for record in caplog.records)
    assert [each.value for each in Severity] == ["info", "warning", "error", "critical", "fatal"]


def test_S0_4_S0_32_the_metrics_of_a_severity_name_the_session_and_the_side():
    """session_id: associated session; source: client, where one in this program gave up. `react_to_failures` counts as `/metrics` does."""
    runtime, counted = Runtime(profile="bridge"), []
    with react_to_failures(runtime, metrics=counted.append):
        for code, session in (("PROVIDER_UNAVAILABLE", "s-1"), ("CONN_RECONNECT_EXHAUSTED", "")):
            runtime.bus.emit(
                Failed(at=1.0, run="r", operation="o", session=session, fault=Fault.of(code), exhausted=True)
            )
    assert [(each.session_id, each.source) for each in counted] == [("s-1", "server"), (None, "client")]


def test_S0_4_a_critical_failure_raises_its_alert_by_itself_and_once():
    """critical: an alert and a broken circuit, without a function of the application."""
    world, raised = World("bridge"), []
    with raise_alerts(world.runtime, Alerts(), tell=raised.append):
        options = {"provider": "down"}
        for _ in range(8):
            with pytest.raises((httpx2.HTTPStatusError, CircuitOpenError)):
                world.manager.execute(failing(http(503)), ExecutionOptions(**options))
    assert world.manager.get_circuit("down").state == "open"
    assert [alert.level for alert in raised if alert.signal == "CIRCUIT_OPEN"] == ["critical"]


@pytest.mark.parametrize("through", ["the agent's own code", "a recovery"])
def test_S0_4_a_fatal_failure_ends_its_session_for_good_and_no_other(caplog, through):
    """fatal: it is logged, its session is lost for good, and the server serves the others."""
    runtime = Runtime(profile="bridge")

    @recover("team", runtime=runtime)
    async def fail() -> str:
        raise HoldfastError(Fault.of("ACTOR_MAX_RESTARTS"))

    async def agent(turn: Turn) -> str:
        if turn.text == "die" and through == "a recovery":
            await fail()
        if turn.text == "die":
            raise HoldfastError(Fault.of("ACTOR_MAX_RESTARTS"))
        return f"you said {turn.text}"

    async def work() -> None:
        raised: list[Any] = []
        with raise_alerts(runtime, Alerts(), tell=raised.append):
            async with a_bridge(agent, runtime=runtime) as served, raw(served) as one, raw(served) as two:
                await in_session(one, "a", client_id="one")
                await in_session(two, "b", client_id="two")
                await one.say("die")
                assert (await one.until("notification"))["payload"]["data"]["code"] == "ACTOR_MAX_RESTARTS"
                while (event := (await one.until("session_event"))["payload"])["event"] != "session_error":
                    pass
                assert (event["state"], event["reason"]) == ("error", "failed: ACTOR_MAX_RESTARTS")
                again = await one.say("again")
                assert (again["code"], again["message"]) == ("SESS_CLOSED", "Session 'a' has ended with an error")
                resumed = await two.ask("session_resume", {"session_id": "a"}, "session_joined")
                assert resumed["payload"]["code"] == "SESS_NOT_RESUMABLE"
                await two.say("hello")
                assert await two.said() == "you said hello"
                assert (await two.join("a"))["state"] == "error"
                assert (await served.hub.store.session("a")).state is SessionState.ERROR
        assert [alert.signal for alert in raised] == ["ACTOR_MAX_RESTARTS"]
        assert "session a has ended with an error" in caplog.text

    run(work)


@pytest.mark.parametrize("through", ["the agent's own code", "a recovery"])
@pytest.mark.parametrize(
    ("raises", "alerts", "priority"),
    [
        (HoldfastError(Fault.of("SYS_CANCELLED")), [], "low"),
        (HoldfastError(Fault.of("TOOL_INPUT_INVALID")), [], "high"),
        (RuntimeError("the key is hunter2"), [], "high"),
        (HoldfastError(Fault.of("CIRCUIT_OPEN")), ["CIRCUIT_OPEN"], "high"),
        (MemoryError(), ["SYS_OUT_OF_MEMORY"], "high"),
    ],
    ids=["info", "warning", "error", "critical", "out of memory"],
)
def test_S0_4_S0_32_a_failure_does_the_same_whether_or_not_a_recovery_was_around_it(through, raises, alerts, priority):
    """Each severity: a failure is counted once and alerts alike, whoever raised it; what is only information disturbs nobody."""
    runtime, heard = Runtime(profile="bridge"), list[Failed]()
    raised, measured = list[Any](), list[ErrorMetric]()

    async def fail() -> None:
        raise raises

    async def agent(turn: Turn) -> None:
        await (recover("team", runtime=runtime)(fail) if through == "a recovery" else fail)()

    async def work() -> None:
        runtime.on(heard.append, Failed)
        with raise_alerts(runtime, Alerts(), tell=raised.append), measure_errors(measured.append, runtime=runtime):
            async with a_bridge(agent, runtime=runtime) as served, raw(served) as client:
                await in_session(client)
                await client.say("go")
                notification = (await client.until("notification"))["payload"]
                while (await client.until("session_event"))["payload"]["event"] != "turn_ended":
                    pass
                # What comes after it in the log.
                await client.ask("session_rename", {"title": "t"}, "ack")
        assert notification["priority"] == priority
        (failed,) = heard
        assert (failed.fault.code, failed.session) == (notification["data"]["code"], "s")
        assert [(each.code, each.session_id) for each in measured] == [(failed.fault.code, "s")]
        assert [alert.signal for alert in raised if alert.signal in CATALOG] == alerts
        if through != "a recovery":
            assert "hunter2" not in json.dumps(client.received)

    run(work)


def test_S0_4_a_call_that_an_open_circuit_rejects_in_a_turn_is_counted_once():
    """critical: the circuit that rejects a call reports it, and the turn that ends with it does not report it again."""
    runtime, heard, calls = Runtime(profile="bridge"), list[Failed](), failing(ConnectionResetError())

    async def agent(turn: Turn) -> None:
        async def call() -> str:
            return calls()

        await recover("team", runtime=runtime)(call)()

    async def work() -> None:
        runtime.on(heard.append, Failed)
        ResilienceManager(runtime).get_circuit("team").force_open()
        async with a_bridge(agent, runtime=runtime) as served, raw(served) as client:
            await in_session(client)
            for _ in range(3):
                await client.say("go")
                assert (await client.until("notification"))["payload"]["data"] == {"code": "CIRCUIT_OPEN"}
        assert ([event.fault.code for event in heard], calls.calls) == (["CIRCUIT_OPEN"] * 3, 0)

    run(work)


def test_S0_4_a_turn_that_is_given_up_after_crashes_is_counted(monkeypatch):
    """Every severity: nothing was raised where the process died, so whoever gives the turn up reports it."""
    heard: list[Failed] = []

    async def agent(turn: Turn) -> None:
        await asyncio.Event().wait()

    async def work() -> None:
        async with MemoryStore() as store:
            async with a_bridge(agent, store=store) as served, raw(served) as client:
                await in_session(client)
                await client.say("go")
                while (await client.until("session_event"))["payload"]["event"] != "turn_started":
                    pass
            monkeypatch.setattr(agent_runner, "MOST", -1)  # the turn was cut off: that is enough
            runtime = Runtime(profile="bridge")
            runtime.on(heard.append, Failed)
            async with a_bridge(agent, store=store, runtime=runtime):
                await eventually(lambda: heard)
        assert [(event.fault.code, event.session) for event in heard] == [("SYS_PROCESS_EXIT", "s")]

    run(work)


class Room(VirtualActor):
    """A virtual actor: at any time only one process has it."""

    state: dict[str, bool]

    async def enter(self, name: str) -> list[str]:
        self.state[name] = True
        return sorted(self.state)


def test_S0_4_a_turn_that_uses_what_another_process_has_fails_once(tmp_path):
    """fatal: the lease that was lost is that of something the turn uses, not of its session. The turn is not run again and again."""
    asked: list[str] = []

    async def work() -> None:
        address, raised = f"sqlite:{tmp_path}/rooms.db", list[Any]()
        runtime = Runtime(profile="bridge")
        async with VirtualActors(address) as there, VirtualActors(address) as here:
            assert await there.get(Room, "lobby").ask(Room.enter, "ann") == ["ann"]

            async def agent(turn: Turn) -> str:
                asked.append(turn.text)
                return str(await here.get(Room, "lobby").ask(Room.enter, turn.text))

            with raise_alerts(runtime, Alerts(), tell=raised.append):
                async with a_bridge(agent, runtime=runtime) as served, raw(served) as client:
                    await in_session(client)
                    await client.say("bob")
                    assert (await client.until("notification"))["payload"]["data"] == {"code": "SESS_LEASE_LOST"}
                    while (await client.until("session_event"))["payload"]["event"] != "session_error":
                        pass
                    assert (await client.say("again"))["code"] == "SESS_CLOSED"
        assert asked == ["bob"]
        assert [alert.signal for alert in raised] == ["SESS_LEASE_LOST"]

    run(work)


def test_S0_4_a_turn_whose_own_store_is_well_is_not_run_for_ever_for_another_one(monkeypatch):
    """error: a notification and retries. They end, although the store that fails is not that of the session."""
    monkeypatch.setattr(agent_runner, "_AGAIN_S", (0.001,) * 3)
    asked: list[str] = []

    async def agent(turn: Turn) -> str:
        asked.append(turn.text)
        if turn.text == "read the archive":
            raise HoldfastError(Fault.of("SESS_STORE_UNAVAILABLE", context={"store": "archive"}))
        return f"you said {turn.text}"

    async def work() -> None:
        async with a_bridge(agent, runtime=Runtime(profile="bridge")) as served, raw(served) as client:
            await in_session(client)
            await client.say("read the archive")
            while (await client.until("notification"))["payload"]["notification_type"] != "agent_error":
                pass
            await client.say("hello")
            assert await client.said() == "you said hello"
        assert asked == ["read the archive"] * 4 + ["hello"]

    run(work)


def test_S0_4_without_the_profile_a_fatal_failure_costs_its_turn():
    """The default is milder: the session is opened anew, and answers its next message."""
    opened: list[int] = []

    async def agent(turn: Turn) -> str:
        opened.append(id(turn.session))
        if turn.text == "die":
            raise HoldfastError(Fault.of("ACTOR_MAX_RESTARTS"))
        return f"you said {turn.text}"

    async def work() -> None:
        async with serving(agent, tokens=Tokens(**TOKENS), runtime=Runtime()) as served, raw(served) as client:
            await in_session(client)
            await client.say("die")
            await client.say("hello")
            assert await client.said() == "you said hello"
            assert len(set(opened)) == 2

    run(work)


# --- CONN_WEBSOCKET_CLOSED ---


def attempts_of(reconnect: str | None) -> tuple[list[float], float, HoldfastError]:
    """Connect where nobody listens, in virtual time; return the delays, the time, and the error."""
    seen: list[ConnectionStatus] = []

    async def work() -> tuple[float, HoldfastError]:
        begun = asyncio.get_running_loop().time()
        with pytest.raises(ReconnectionExhaustedError) as error:
            async with Client("ws://127.0.0.1:1/ws", token="t", reconnect=reconnect, on_status=seen.append):
                pass
        return asyncio.get_running_loop().time() - begun, error.value

    with use_runtime(Runtime(profile="bridge")):
        took, error = virtually(work())
    assert seen[-2].status == "error"
    return [now.delay for now in seen if now.status == "reconnecting"], took, error


def test_S0_5_S0_6_a_client_tries_five_times_after_its_delays_and_raises():
    """RECONNECT_DELAYS: 1, 2, 5, 10, 30 s; each attempt connects and asks for what it missed; then ReconnectionExhaustedError."""
    assert RECONNECT_DELAYS.delays == (1, 2, 5, 10, 30)
    # A program with the profile need not name the schedule.
    delays, took, error = attempts_of(None)
    assert (delays, took) == ([1, 2, 5, 10, 30], pytest.approx(48))
    assert (error.fault.code, error.fault.context["attempts"]) == ("CONN_RECONNECT_EXHAUSTED", 5)


def test_S0_5_a_reason_that_does_not_recover_is_an_error_at_once():
    """A reason that is not recoverable: no attempt, but the error state with the reason."""

    async def work() -> None:
        seen: list[ConnectionStatus] = []
        async with a_bridge() as served:
            with pytest.raises(BridgeConnectionError) as error:
                async with Client(served.ws_url, token="wrong", on_status=seen.append):
                    pass
        assert error.value.fault.code == "AUTH_FAILED"
        assert [now.status for now in seen] == ["connecting", "error", "disconnected"]
        assert seen[1].fault.code == "AUTH_FAILED"

    run(work)


def test_S0_6_S0_9_a_client_that_comes_back_gets_what_it_missed():
    """After a lost connection the client connects again, and gets the messages that it missed in one replay_buffer."""

    async def work() -> None:
        async with a_bridge() as served:
            async with raw(served) as client:
                await in_session(client, client_id="phone")
                await client.say("one")
                first = await client.until("user_message")
            async with raw(served) as writer:
                await writer.auth(client_id="laptop")
                await writer.join("s")
                await writer.say("two")
                await writer.say("three")
            async with raw(served) as client:
                await client.auth(client_id="phone")
                after = {"epoch": first["epoch"], "offset": first["offset"], "id": first["id"]}
                assert (await client.join("s", after=after))["recovered"] is True
                replay = await client.until("replay_buffer")
                assert [each["payload"]["content"] for each in replay["payload"]["messages"]] == ["two", "three"]

    run(work)


def test_S0_7_S0_8_a_session_without_a_client_is_kept_for_five_minutes():
    """SESSION_GRACE: five minutes. The last client's end starts the timer, a client that returns stops it, its end ends the session's use."""
    assert bridge.limits["session_grace_s"] == BridgeSettings.of_profile("bridge").grace == 300
    settings = BridgeSettings.of_profile("bridge", grace=0.05)

    async def work() -> None:
        async with a_bridge(echo, settings=settings) as served:
            async with raw(served) as client:
                await in_session(client)
                await client.say("hello")
                await client.said()
            async with raw(served) as client:
                await client.auth()
                assert (await client.join("s"))["state"] == "active"
                # It is here, so no time ends it.
                await asyncio.sleep(0.1)
                assert "s" in served.hub.sessions
            await eventually(lambda: not served.hub.sessions)
            # What could be resumed is paused, and not lost.
            assert (await served.hub.store.session("s")).state is SessionState.PAUSED
            # A session that nobody knows: nothing happens, and whoever asks for it learns that.
            async with raw(served) as client:
                await client.auth()
                assert (await client.join("nope"))["code"] == "SESS_NOT_FOUND"

    run(work)


def test_S0_8_a_grace_that_is_over_closes_a_session_where_that_is_set():
    """At the end of the grace the session is closed, where that is set; a resumable one is paused by default."""
    settings = BridgeSettings.of_profile("bridge", grace=0.02, on_grace_expiry="close")

    async def work() -> None:
        async with a_bridge(settings=settings) as served:
            async with raw(served) as client:
                await in_session(client)
                await client.say("hello")
            await eventually(lambda: not served.hub.sessions and not served.hub._tasks)
            async with raw(served) as client:
                await client.auth()
                assert (await client.join("s"))["code"] == "SESS_CLOSED"

    run(work)


# --- CONN_TLS_HANDSHAKE_FAILED ---


def test_S0_10_what_is_wrong_with_a_certificate_is_found_in_the_documents_order():
    """First its expiry, then the chain, then the name of the host, then the pin of one that signs itself."""
    now = datetime(2026, 3, 20, tzinfo=UTC)
    good = Certificate("sha256/x", now - timedelta(1), now + timedelta(1), ("localhost",), is_self_signed=True)
    wrong = [
        (good._replace(not_after=now - timedelta(1), names=(), is_self_signed=False), "CERTIFICATE_EXPIRED"),
        (good._replace(names=(), is_self_signed=False), "CHAIN_INCOMPLETE"),
        (good._replace(names=()), "HOSTNAME_MISMATCH"),
        (good, "SELF_SIGNED"),
    ]
    for certificate, reason in wrong:
        assert diagnose(certificate, host="localhost", now=now, verify_code=20, pins=()) == reason


def self_signed(folder: Path, **options: Any) -> tuple[BridgeSettings, TlsFiles]:
    files = TlsFiles(folder)
    files.create(**options)
    return BridgeSettings.of_profile("bridge", tls_cert=files.cert, tls_key=files.key), files


async def tls_failure(served: Bridge, **options: Any) -> Fault:
    with pytest.raises(BridgeConnectionError) as error:
        async with Client(served.ws_url.replace("127.0.0.1", "localhost"), token="token", **options):
            pass
    return error.value.fault


def test_S0_10_S0_11_an_expired_certificate_is_the_documents_connection_error(tmp_path):
    """The client's answer: the reason, its expiry, what to do, and that it does not recover."""

    async def work() -> None:
        old, files = self_signed(tmp_path / "tls", days=1, now=datetime.now(UTC) - timedelta(9))
        async with a_bridge(settings=old) as served:
            message = connection_error(await tls_failure(served, pins=files.pins()), literal=True)
        payload = message["payload"]
        assert (message["type"], payload["code"]) == ("connection_error", "CONN_TLS_HANDSHAKE_FAILED")
        assert (payload["message"], payload["recoverable"]) == ("TLS certificate validation failed", False)
        details = payload["details"]
        assert (details["reason"], details["suggested_action"]) == ("CERTIFICATE_EXPIRED", "regenerate_certificates")
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", details["expiry"])

    run(work)


# --- CONN_TIMEOUT ---


def test_S0_12_attempts_that_exceed_their_time_wait_1_2_5_10_seconds_and_longer():
    """1 s, then 2 s with the cached address, 5 s with a new one, then 10 s and exponentially more."""
    assert [CONNECT_TIMEOUT.delay(attempt) for attempt in range(1, 8)] == [1, 2, 5, 10, 20, 40, 60]
    recovery, found = Reconnect(RECONNECT_DELAYS, lost_at=0.0), []
    for _ in range(4):
        match recovery.next(0.0, World("bridge").runtime.rng, timed_out=True):
            case NextAttempt(delay=delay, address=address):
                found.append((delay, address))
    assert found == [(1, "resolve"), (2, "cached"), (5, "resolve"), (10, "resolve")]


def test_S0_12_the_second_attempt_dials_the_cached_address_and_the_third_asks_for_it_again(monkeypatch):
    """Attempt 2 connects to the address that worked before, without asking for the name; attempt 3 asks again."""
    # The document's seconds, as milliseconds.
    short = Schedule(delays=tuple(delay / 1000 for delay in CONNECT_TIMEOUT.delays), jitter=0.0)
    monkeypatch.setattr("holdfast.wire.reconnect.CONNECT_TIMEOUT", short)

    async def work() -> None:
        loop, dialled, statuses = asyncio.get_running_loop(), list[str](), list[ConnectionStatus]()
        connect = loop.create_connection

        async def dial(protocol: Any, *address: Any, **options: Any) -> Any:
            # The proxy gives its address by place; the client names the host.
            dialled.extend([options["host"]] if "host" in options else [])
            return await connect(protocol, *address, **options)

        async with a_bridge() as served, FaultProxy(served.ws_url) as proxy:
            url = proxy.url.replace("127.0.0.1", "localhost")
            options: dict[str, Any] = {"connect_timeout": 0.3, "on_status": statuses.append}
            options["reconnect"] = Schedule(delays=(0.001,), jitter=0.0)
            async with Client(url, token="token", **options):
                loop.create_connection = dial  # type: ignore[method-assign]
                with proxy.under(BlackHole()):
                    proxy.cut()
                    await eventually(lambda: len(dialled) >= 4)
        del loop.create_connection
        timed_out = [now.delay for now in statuses if now.fault is not None and now.fault.code == "CONN_TIMEOUT"]
        assert timed_out[:3] == list(short.delays[:3])
        # The connection was lost, then two attempts exceeded their time.
        assert dialled[:4] == ["localhost", "localhost", "127.0.0.1", "localhost"]

    run(work)


# --- PROTO_INVALID_MESSAGE, PROTO_SEQUENCE_ERROR ---

GOOD = {
    "type": "session_list",
    "id": "0b8a7f60-1111-4222-8333-444455556666",
    "timestamp": "2026-03-20T14:32:00Z",
    "payload": {},
}


@pytest.mark.parametrize(
    ("field", "received", "constraint"),
    [
        ("type", "", "required"),
        ("type", "Session-List", "matches"),
        ("type", "health_v1", "matches"),
        ("id", "msg-123", "uuid"),
        ("timestamp", "2026-03-20 14:32:00", "iso8601"),
        ("payload", [], "object"),
        ("payload", None, "object"),
    ],
)
def test_S0_13_S0_14_a_message_that_breaks_a_rule_gets_its_violation(field, received, constraint):
    """type, id (a UUID), timestamp (ISO 8601) and payload (an object) are required. The error names the field, the rule and the value."""

    async def work() -> None:
        async with a_bridge() as served, raw(served) as client:
            await client.auth()
            await client.socket.send(json.dumps(GOOD | {field: received}))
            answer = await client.next()
            assert (answer["type"], answer["id"]) == ("error", (GOOD | {field: received})["id"])
            payload = answer["payload"]
            assert (payload["code"], payload["message"]) == ("PROTO_INVALID_MESSAGE", "Message validation failed")
            (violation,) = payload["violations"]
            assert (violation["field"], violation["constraint"]) == (field, constraint)
            assert violation["received"] == ("array" if received == [] else received)
            # The same for a field of the payload.
            await client.socket.send(json.dumps(GOOD | {"type": "session_join", "payload": {"session_id": 7}}))
            (violation,) = (await client.next())["payload"]["violations"]
            assert (violation["field"], violation["received"]) == ("payload.session_id", 7)

    run(work)


@pytest.mark.parametrize("field", ["type", "id", "timestamp", "payload"])
def test_S0_13_each_field_of_a_message_is_required(field):
    """Required: without type, id, timestamp or payload a message is answered with the violation of that field."""

    async def work() -> None:
        async with a_bridge() as served, raw(served) as client:
            await client.auth()
            await client.socket.send(json.dumps({name: value for name, value in GOOD.items() if name != field}))
            answer = await client.next()
            assert (answer["type"], answer["payload"]["code"]) == ("error", "PROTO_INVALID_MESSAGE")
            (violation,) = answer["payload"]["violations"]
            assert (violation["field"], violation["constraint"]) == (field, "required")

    run(work)


def test_S0_13_a_time_is_read_alike_by_every_client():
    """ISO 8601: with its zone, and in the one form that every client reads. The page says which."""
    known = {"2026-03-20T14:32:00Z", "2026-03-20T14:32:00.5+01:00"}
    for text in (*known, "2026-03-20T14:32:00", "2026-03-20T14:32Z", "20260320T143200Z", "2026-03-20"):
        body = {"type": "auth", "id": "0b8a7f60-1111-4222-8333-444455556666", "timestamp": text, "payload": {}}
        found = getattr(read_message(json.dumps(body)), "violations", ())
        assert [each.constraint for each in found] == ([] if text in known else ["iso8601"])


def test_S0_16_a_ping_may_come_first_and_an_unknown_type_is_named_so():
    """`auth` first: a heartbeat says nothing, and may come at any time. What no phase knows is in no sequence."""

    async def work() -> None:
        async with a_bridge() as served, raw(served) as client:
            await client.send("heartbeat_ping", {})
            assert (await client.next())["type"] == "heartbeat_pong"
            assert (await client.auth())["type"] == "connection_ack"
            assert (await client.ask("session_explode", {}))["payload"]["code"] == "PROTO_UNKNOWN_TYPE"

    run(work)


def test_S0_15_S0_16_auth_that_is_not_first_ends_the_connection_with_the_sequence():
    """`auth` not first. The error has expected, received and currentPhase, also in the closing connection_error."""

    async def work() -> None:
        async with a_bridge() as served, raw(served) as client:
            await client.send("session_join", {"session_id": "s"})
            for type_ in ("error", "connection_error"):
                answer = await client.next()
                assert (answer["type"], answer["payload"]["code"]) == (type_, "PROTO_SEQUENCE_ERROR")
                assert answer["payload"]["details"] == {
                    "expected": ["auth"],
                    "received": "session_join",
                    "currentPhase": "unauthenticated",
                }

    run(work)


def test_S0_15_S0_16_messages_before_their_phase_are_sequence_errors():
    """`health_check` before `connection_ack`, and `session_message` before `session_join`."""
    early = validate_sequence("health_check", ConnectionState.UNAUTHENTICATED)
    assert (early.code, early.context["received"]) == ("PROTO_SEQUENCE_ERROR", "health_check")
    assert "session_message" not in SEQUENCE_MAP[ConnectionState.HEALTHY]

    async def work() -> None:
        async with a_bridge() as served:
            async with raw(served) as client:
                await client.send("health_check", {})
                assert (await client.next())["payload"]["code"] == "PROTO_SEQUENCE_ERROR"
            async with raw(served) as client:
                await client.auth()
                answer = await client.ask("session_message", {"content": "hi"})
                assert answer["payload"]["code"] == "PROTO_SEQUENCE_ERROR"
                assert answer["payload"]["details"]["currentPhase"] == "authenticated"
                assert (await client.create("s"))["session_id"] == "s"
                assert (await client.say("hi"))["status"] == "stored"

    run(work)


# --- SESS_NOT_FOUND, SESS_CLOSED ---


def test_S0_17_N0_14_a_missing_session_over_http_is_the_documents_body():
    """404 with error, code, message and three suggestions; and the request's id, the time and the page of the code."""

    async def work() -> None:
        async with a_bridge() as served, over_http(served) as client:
            answer = await client.get("/sessions/sess-abc123")
            body = answer.json()
            assert answer.status_code == 404
            assert {name: body.pop(name) for name in ("error", "code", "message", "suggestions")} == {
                "error": "NotFound",
                "code": "SESS_NOT_FOUND",
                "message": "Session 'sess-abc123' not found",
                "suggestions": [
                    "Check session ID spelling",
                    "Session may have expired",
                    "Use GET /sessions to list active sessions",
                ],
            }
            assert set(body) == {"request_id", "timestamp", "documentation_url"}
            page = await client.get(body["documentation_url"])
            assert page.status_code == 200
            assert page.text.startswith("# SESS_NOT_FOUND")
            assert (await client.get("/errors/NO_SUCH_CODE")).status_code == 404

    run(work)


def test_S0_18_S0_19_S0_20_a_session_goes_through_the_states_of_the_chart():
    """created, active, paused, closed; a paused one that is resumable becomes active again; a closed one takes no operation."""

    async def work() -> None:
        async with a_bridge(echo) as served, raw(served) as client, over_http(served) as web:

            async def state() -> str:
                return (await web.get("/sessions/s")).json()["state"]

            await client.auth()
            assert (await client.create("s"))["state"] == "created"
            refused = await client.ask("session_resume", {"session_id": "s"}, "session_joined")
            assert refused["payload"]["code"] == "SESS_NOT_RESUMABLE"
            await client.say("hello")
            assert await client.said() == "you said hello"
            assert await state() == "active"
            await client.ask("session_pause", {"session_id": "s"}, "ack")
            assert await state() == "paused"
            record = await served.hub.store.session("s")
            assert record.checkpoint is not None
            resumed = await client.ask("session_resume", {"session_id": "s"}, "session_joined")
            assert resumed["payload"]["state"] == "active"
            await client.ask("session_close", {"session_id": "s"}, "ack")
            assert await state() == "closed"
            assert (await client.say("again"))["code"] == "SESS_CLOSED"
            needed = {"session_rename": {"title": "t"}, "command": {"run": "r", "command": "cancel"}}
            for operation in ("session_resume", "session_pause", "session_close", "session_rename", "stop", "command"):
                payload = {"session_id": "s"} | needed.get(operation, {})
                answer = await client.ask(operation, payload, "session_joined", "ack")
                assert (operation, answer["payload"]["code"]) == (operation, "SESS_CLOSED")
            # What it has stored can be read.
            assert (await client.ask("session_snapshot", {}, "snapshot"))["payload"]["session_id"] == "s"
        assert {each.value for each in SessionState} >= {"created", "active", "paused", "closed", "error"}

    run(work)


ASKING_APP = """
async def agent(turn):
    return f"approved: {await turn.approve('May I?')}"
"""


@pytest.mark.parametrize("kept_in", ["this process", "the process of the agents"])
def test_S0_18_a_client_that_pauses_a_session_is_served_until_its_turn_has_ended(tmp_path, monkeypatch, kept_in):
    """ACTIVE -> PAUSED comes after the turn that runs. Until then its client's pings and its answer to the turn's question count."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "asking.py").write_text(ASKING_APP)
    options: dict[str, Any] = {}
    if kept_in != "this process":
        agents = AgentProcess(agent="asking:agent", home=tmp_path / "home")
        options = {"store": f"sqlite:{tmp_path / 'work.db'}", "agents": agents}

    async def agent(turn: Turn) -> str:
        return f"approved: {await turn.approve('May I?')}"

    async def work() -> None:
        async with a_bridge(agent, **options) as served, raw(served) as client:
            await in_session(client)
            await client.say("go")
            question = (await client.until("question"))["payload"]
            paused = await client.send("session_pause", {})
            await client.send("heartbeat_ping", {})
            assert (await client.until("heartbeat_pong", "ack"))["type"] == "heartbeat_pong"
            given = {name: question[name] for name in ("question_id", "arguments_hash")} | {"value": True}
            assert (await client.ask("answer", given, "ack"))["type"] == "ack"
            assert await client.said() == "approved: True"
            while paused not in (await client.until("ack"))["payload"]["ids"]:
                pass
            assert (await served.hub.store.session("s")).state is SessionState.PAUSED
            # A pause for which no turn has to end is over before the next message.
            await client.ask("session_resume", {"session_id": "s"}, "session_joined")
            await client.send("session_pause", {})
            again = await client.ask("session_resume", {"session_id": "s"}, "session_joined")
            assert again["type"] == "session_joined"

    async def until_the_agents_have_ended() -> None:
        try:
            await work()
        finally:
            if options:
                await end_agents(tmp_path / "home")

    run(until_the_agents_have_ended)


def test_S0_18_a_session_that_is_created_active_or_paused_may_end_in_error(tmp_path):
    """CREATED -> ERROR and ACTIVE -> ERROR: a session that failed takes nothing more, and cannot be resumed."""

    async def work() -> None:
        async with SqliteStore(tmp_path / "work.db") as store:
            for name in ("created", "active"):
                async with Session.open(name, store=store) as session:
                    if name == "active":
                        await session.message("hello")
                    assert session.state == name
                    await session.fail("the disk is damaged")
                    assert session.state is SessionState.ERROR
                    with pytest.raises(HoldfastError) as ended:
                        await session.message("more")
                    assert ended.value.fault.code == "SESS_CLOSED"
                assert (await store.session(name)).state is SessionState.ERROR
                with pytest.raises(HoldfastError) as again:
                    async with Session.open(name, store=store):
                        pass
                assert again.value.fault.code == "SESS_NOT_RESUMABLE"
                assert again.value.fault.message == f"Session '{name}' cannot be resumed: its state is error"

    run(work)


def test_S0_20_a_resumed_session_has_its_checkpoint(tmp_path):
    """resumeSession restores the checkpoint; a session that is not paused or not resumable raises SESS_NOT_RESUMABLE."""

    async def work() -> None:
        async with SqliteStore(tmp_path / "work.db") as store:
            async with Session.open("s", store=store) as session:
                session.context = {"plan": [1, 2]}
            async with Session.open("s", store=store) as session:
                assert session.context == {"plan": [1, 2]}
                assert session.state is SessionState.ACTIVE
                await session.close("done")
            with pytest.raises(HoldfastError) as error:
                async with Session.open("s", store=store):
                    pass
            assert error.value.fault.code == "SESS_CLOSED"

    run(work)


# --- TOOL_EXECUTION_FAILED, TOOL_TIMEOUT ---


def test_S0_19_S0_20_a_session_that_is_not_resumable_is_not_resumed():
    """`resumable`: a paused session without it raises SESS_NOT_RESUMABLE, and so does one that is active; a list shows which can be."""

    async def work() -> None:
        async with a_bridge(echo) as served, raw(served) as client, over_http(served) as web:
            for name, resumable in (("once", False), ("again", True)):
                async with Session.open(name, store=served.hub.store, resumable=resumable) as session:
                    session.context = {"plan": 1}
            await client.auth()
            shown = {each: (await web.get(f"/sessions/{each}")).json() for each in ("once", "again")}
            assert {each["state"] for each in shown.values()} == {"paused"}
            assert {name: each["resumable"] for name, each in shown.items()} == {"once": False, "again": True}
            listed = (await client.ask("session_list", {}, "sessions"))["payload"]["sessions"]
            assert {each["session_id"]: each["status"] for each in listed} == {"once": "paused", "again": "resumable"}
            refused = await client.ask("session_resume", {"session_id": "once"}, "session_joined")
            assert refused["payload"]["code"] == "SESS_NOT_RESUMABLE"
            why = "Session 'once' cannot be resumed: it was opened with resumable=False"
            assert refused["payload"]["message"] == why
            resumed = await client.ask("session_resume", {"session_id": "again"}, "session_joined")
            assert resumed["payload"]["state"] == "active"
            twice = await client.ask("session_resume", {"session_id": "again"}, "session_joined")
            assert twice["payload"]["code"] == "SESS_NOT_RESUMABLE"

    run(work)


async def ended_call(served: Bridge, client: Raw) -> dict[str, Any]:
    """Let the agent make its call, allow it, and return how the call ended."""
    await in_session(client)
    await client.say("go")
    while True:
        message = await client.until("approval_required", "tool_error", "tool_result")
        if message["type"] != "approval_required":
            return message
        call = {"tool_call_id": message["payload"]["tool_call_id"], "decision": "approved"}
        await client.send("approval_response", call)


def calling(name: str, arguments: dict[str, Any], *tools: Any) -> Agent:
    call = ToolCall(id="tool-abc123", name=name, arguments=arguments)
    return Agent("coder", Model("own/model", Reply(calls=(call,)), Reply(text="done")), tools=tools)


def test_S0_21_a_command_that_exits_with_1_is_the_documents_tool_error(tmp_path):
    """A non-zero exit: its code, both streams, its time; retryable, three times at most."""

    async def work() -> None:
        agent = calling("bash", {"command": "echo 'error: file not found' >&2; exit 1"}, bash(tmp_path))
        async with a_bridge(agent) as served, raw(served) as client:
            message = await ended_call(served, client)
            assert await client.said() == "done"
        payload = message["payload"]
        details = payload.pop("details")
        assert payload.pop("tool_call_id").startswith("tool-abc123")
        assert (message["type"], payload) == (
            "tool_error",
            {
                "tool": "bash",
                "code": "TOOL_EXECUTION_FAILED",
                "message": "Command exited with code 1",
                "retryable": True,
                "max_retries": 3,
            },
        )
        assert (details["exit_code"], details["stdout"]) == (1, "")
        assert details["stderr"].strip() == "error: file not found"
        assert isinstance(details["execution_time_ms"], int)

    run(work)


@pytest.mark.parametrize("exit_code", [2, 124, 128, 130, 137, 143, 255])
def test_S0_21_every_exit_code_of_a_command_is_a_tool_error(tmp_path, exit_code):
    """A non-zero exit, whatever the code: git exits with 128, ssh with 255, and a shell with 137 after a command that was killed."""

    async def work() -> None:
        agent = calling("bash", {"command": f"exit {exit_code}"}, bash(tmp_path))
        async with a_bridge(agent) as served, raw(served) as client:
            message = await ended_call(served, client)
            assert await client.said() == "done"
        assert (message["type"], message["payload"]["code"]) == ("tool_error", "TOOL_EXECUTION_FAILED")
        assert message["payload"]["message"] == f"Command exited with code {exit_code}"
        assert message["payload"]["details"]["exit_code"] == exit_code
        assert (message["payload"]["retryable"], message["payload"]["max_retries"]) == (True, 3)

    run(work)


def test_S0_21_S0_27_commands_that_end_by_themselves_open_no_circuit(tmp_path):
    """The circuit is for services: a shell whose commands time out, are killed or have no network is well, and runs the next one."""
    box = Toolbox([bash(tmp_path)], runtime=Runtime(profile="bridge"))

    async def work() -> None:
        for ends in ("exit 124", "exit 137", *["echo 'curl: (28) Connection timed out' >&2; exit 28"] * 5):
            assert (await box.answer("bash", {"command": ends})).fault.code != "CIRCUIT_OPEN"
        assert not (await box.answer("bash", {"command": "echo well"})).is_error

    run(work)


@pytest.mark.parametrize(
    ("stderr", "code", "retries"),
    [
        ("curl: (28) Connection timed out", "CONN_TIMEOUT", 3),
        ("HTTP 429 Too Many Requests", "PROVIDER_RATE_LIMITED", 3),
        ("fork: Cannot allocate memory", "TOOL_OUT_OF_MEMORY", 1),
        ("cat: x: No such file or directory", "TOOL_FILE_NOT_FOUND", 0),
        ("x: Permission denied", "TOOL_FORBIDDEN", 0),
    ],
    ids=["network timeout", "rate limited", "out of memory", "file not found", "permission denied"],
)
def test_S0_21_S0_22_a_command_that_says_why_it_failed_is_retryable_by_the_documents_table(
    tmp_path, stderr, code, retries
):
    """Network timeout and rate limit: yes. File not found, permission denied: no. Out of memory: once."""

    async def work() -> None:
        agent = calling("bash", {"command": f"echo '{stderr}' >&2; exit 1"}, bash(tmp_path))
        async with a_bridge(agent) as served, raw(served) as client:
            payload = (await ended_call(served, client))["payload"]
        assert (payload["code"], payload["retryable"], payload["max_retries"]) == (code, retries > 0, retries)

    run(work)


def test_S0_21_a_function_that_raises_is_a_tool_error():
    """An exception of a tool is the same message."""

    @tool(effect="read")
    def look(name: str) -> str:
        raise ValueError(f"unknown city {name}")

    async def work() -> None:
        async with a_bridge(calling("look", {"name": "Oslo"}, look)) as served, raw(served) as client:
            message = await ended_call(served, client)
        assert (message["type"], message["payload"]["code"]) == ("tool_error", "TOOL_EXECUTION_FAILED")
        assert message["payload"]["retryable"] is False

    run(work)


@pytest.mark.parametrize(
    ("error", "calls"),
    [
        (TimeoutError("network"), 2),
        (FileNotFoundError(2, "No such file"), 1),
        (PermissionError(13, "Permission denied"), 1),
        (http(429), 2),
        (MemoryError(), 2),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), 2),
        (None, 1),
    ],
    ids=["timeout", "file not found", "permission denied", "rate limited", "out of memory", "no memory", "fine"],
)
def test_S0_22_what_is_retried_and_what_fails_at_once(error, calls):
    """Network timeout and rate limit: with backoff. File not found, permission denied: at once. Out of memory: once more, then fail."""
    world, ask = World("bridge"), failing(*([error] if error is not None else []), None)

    @tool(effect="read", name="look")
    async def look() -> str:
        return ask()

    answer = virtually(Toolbox([look], runtime=world.runtime).answer("look", {}), clock=world.clock)
    assert ask.calls == calls
    assert answer.is_error is (calls == 1 and error is not None)


@pytest.mark.parametrize(
    ("error", "delays"),
    [(TimeoutError("network"), [1, 2]), (http(429), [5, 10, 20, 40, 80])],
    ids=["network timeout", "rate limited"],
)
def test_S0_22_what_is_retried_waits_longer_each_time_and_never_all_at_once(error, delays):
    """Network timeout: exponential backoff. Rate limit: backoff with jitter, so that two callers do not come back together."""
    waited = []
    for chance in (0.0, 0.5, 1.0):
        world = World("bridge")
        world.runtime.rng = SimpleNamespace(random=lambda chance=chance: chance)

        @tool(effect="read", name="look")
        async def look() -> str:
            raise error

        virtually(Toolbox([look], runtime=world.runtime).answer("look", {}), clock=world.clock)
        waited.append([event.delay for event in world.of(Retry)])
        assert world.now == pytest.approx(sum(waited[-1]))
    early, exact, late = waited
    assert exact == delays
    assert early == pytest.approx([0.8 * delay for delay in delays])
    assert late == pytest.approx([1.2 * delay for delay in delays])


@pytest.mark.parametrize(
    "error", [MemoryError(), OSError(errno.ENOMEM, "Cannot allocate memory")], ids=["python", "os"]
)
def test_S0_22_memory_that_is_short_for_a_second_time_fails(error):
    """Out of memory: retry once, then fail."""
    world, ask = World("bridge"), failing(error)

    @tool(effect="read", name="look")
    def look() -> str:
        return ask()

    answer = virtually(Toolbox([look], runtime=world.runtime).answer("look", {}), clock=world.clock)
    assert (ask.calls, answer.fault.code) == (2, "TOOL_OUT_OF_MEMORY")
    assert tool_error(Fault.of("TOOL_OUT_OF_MEMORY"))["payload"]["max_retries"] == 1


@pytest.mark.parametrize("ends", ["raises", "runs a program that fails", "exceeds its time"])
def test_S0_21_S0_23_of_an_unsafe_call_that_broke_off_a_person_is_asked(ends):
    """An exception, a time limit: with an unsafe tool the page says otherwise. Nobody knows what it did, so it is no plain error."""

    @tool(effect="unsafe", timeout=0.05)
    async def pay() -> str:
        if ends == "raises":
            raise RuntimeError("connection lost")
        if ends == "runs a program that fails":
            # The program has ended by itself. What the tool had done before it is not known.
            await run_program(["false"])
        await asyncio.sleep(LIMIT)
        return ""

    async def work() -> None:
        async with a_bridge(calling("pay", {}, pay)) as served, raw(served) as client:
            await in_session(client)
            await client.say("go")
            call = (await client.until("approval_required"))["payload"]["tool_call_id"]
            await client.send("approval_response", {"tool_call_id": call, "decision": "approved"})
            assert "Did it happen?" in (await client.until("question", "tool_error"))["payload"]["prompt"]

    run(work)


def test_S0_23_a_tool_has_the_documents_time_limit():
    """bash 5 minutes, read_file 10 s, edit_file 30 s, search one minute."""
    for name, seconds in {"bash": 300, "read_file": 10, "edit_file": 30, "search": 60}.items():
        found: list[float | None] = []
        look = tool(name=name, effect="read")(lambda found=found: found.append(TIME_LIMIT.get()))
        asyncio.run(Toolbox([look], runtime=PLAYS).answer(name, {}))
        assert found == [seconds]

    @tool(name="read_file", effect="unsafe")
    async def hang() -> str:
        await asyncio.sleep(11)
        return "late"

    world = World("bridge")
    answer = virtually(Toolbox([hang], runtime=world.runtime).answer("read_file", {}), clock=world.clock)
    assert answer.fault.context.get("failed_with", answer.fault.code) == "TOOL_TIMEOUT"
    assert world.now == pytest.approx(10, abs=1)


# --- HOOK_VALIDATION_FAILED ---

SEVEN = ("SessionStart", "SessionEnd", "PreToolUse", "PostToolUse", "UserPromptSubmit", "Stop", "SubagentStop")


def test_S0_24_S0_25_seven_events_are_known_and_another_one_is_named():
    """Seven events, a date and time, a session, a payload that is any object. Otherwise `received: false`, and what is wrong with each field."""

    async def work() -> None:
        async with a_bridge() as served, over_http(served, "hook") as client:
            for event in SEVEN:
                answer = await client.post("/hooks/event", json=HOOK | {"event": event})
                assert answer.json()["received"] is True, answer.text
            for other in ("Explode", "PreCompact", "Notification"):
                answer = await client.post("/hooks/event", json=HOOK | {"event": other})
                body = answer.json()
                assert (answer.status_code, body["received"], body["code"]) == (400, False, "HOOK_VALIDATION_FAILED")
                (error,) = body["errors"]
                listed = ", ".join(SEVEN)
                assert error == {"field": "event", "message": f"Invalid enum value. Expected one of: {listed}"}
            wrong = {"event": "Stop", "timestamp": "2026-03-20 14:32:00", "session_id": "", "payload": []}
            answer = await client.post("/hooks/event", json=wrong)
            assert [each["field"] for each in answer.json()["errors"]] == ["timestamp", "session_id", "payload"]
            # Its session is known by this name, in places where not every text can stand.
            for name in ("my session", "C:/x/y"):
                answer = await client.post("/hooks/event", json=HOOK | {"session_id": name})
                assert [each["field"] for each in answer.json()["errors"]] == ["session_id"]

    run(work)


# --- recovery patterns ---


def test_S0_26_a_replay_buffer_keeps_what_fits_and_is_young_enough():
    """100 KB and 30 minutes; the oldest go first. `get_replay(since)` has what is later than `since`, and nothing from just then."""
    clock = VirtualClock()
    buffer = ReplayBuffer(clock=clock)
    for number in range(30):
        buffer.append(f"{number:02}" + "x" * 9_998)
    assert [text[:2] for text in buffer.get_replay()] == [str(number) for number in range(20, 30)]
    assert buffer.size <= 102_400 == BridgeSettings.of_profile("bridge").ring_bytes == bridge.limits["replay_bytes"]
    clock.advance(60)
    buffer.append("é")
    at = datetime.fromtimestamp(clock.wall(), UTC)
    assert buffer.get_replay(since=at) == []
    assert buffer.get_replay(since=at - timedelta(microseconds=1)) == ["é"]
    clock.advance(1_745)
    assert buffer.get_replay() == ["é"]
    assert buffer.size == 2
    assert bridge.limits["replay_age_s"] == BridgeSettings.of_profile("bridge").ring_age == 1_800
    buffer.append("y" * 102_401)
    assert buffer.get_replay() == []


def test_S0_27_five_failures_open_a_circuit_for_60_seconds_and_a_probe_decides():
    """Threshold 5, 60 s; open: CIRCUIT_OPEN without a call; half-open after that; success closes, failure opens again."""
    world = World("bridge")
    circuit = create_circuit_breaker("agent-sdk", BRIDGE_CIRCUIT, runtime=world.runtime)
    for _ in range(4):
        circuit.record_failure()
    circuit.record_success()
    for _ in range(5):
        assert circuit.state == "closed"
        circuit.record_failure()
    ask = failing(None)

    def is_rejected() -> bool:
        assert circuit.state == "open"
        calls = ask.calls
        with pytest.raises(CircuitOpenError) as error:
            circuit.execute(ask)
        return (error.value.fault.code, ask.calls) == ("CIRCUIT_OPEN", calls)

    assert is_rejected()
    world.clock.advance(59.9)
    assert is_rejected()
    world.clock.advance(0.1)
    assert circuit.state == "half-open"
    with pytest.raises(ConnectionResetError):
        circuit.execute(failing(ConnectionResetError()))
    world.clock.advance(59.9)
    assert is_rejected()
    world.clock.advance(0.1)
    assert circuit.state == "half-open"
    assert circuit.execute(ask) == "answer"
    assert circuit.state == "closed"
    # The success has set the count back: one failure does not open it again.
    circuit.record_failure()
    assert circuit.state == "closed"


def test_S0_27_what_says_nothing_about_the_service_does_not_open_its_circuit():
    """Every exception counts in the document. Here a wrong value and a missing file do not: the service is well."""
    circuit = create_circuit_breaker("disk", BRIDGE_CIRCUIT, runtime=World("bridge").runtime)
    for error in (ValueError("wrong"), FileNotFoundError("missing")):
        for _ in range(5):
            with pytest.raises(type(error)):
                circuit.execute(failing(error))
        assert circuit.state == "closed"
    for _ in range(5):
        with pytest.raises(ConnectionResetError):
            circuit.execute(failing(ConnectionResetError()))
    assert circuit.state == "open"


def test_S0_28_N0_21_sessions_are_saved_as_a_pretty_list_and_loaded(tmp_path):
    """All sessions in one JSON file, indented by two; a file that is missing holds none. A bad session does not hide the others."""
    path, at = tmp_path / "sessions.json", datetime(2026, 3, 20, 14, 32, tzinfo=UTC)
    assert load_sessions(path).sessions == []
    kept = PersistedCheckpoint(message_count=3, last_message_id="m-3", context_snapshot={"plan": "x"})
    session = PersistedSession(
        id="s", agent_type="coder", working_directory="/srv", created_at=at, last_activity_at=at, checkpoint=kept
    )
    save_sessions(path, [session])
    assert load_sessions(path).sessions == [session]
    (written,) = json.loads(path.read_text())
    assert list(written) == ["id", "agentType", "workingDirectory", "createdAt", "lastActivityAt", "checkpoint"]
    assert written["checkpoint"] == {"messageCount": 3, "lastMessageId": "m-3", "contextSnapshot": {"plan": "x"}}
    assert path.read_text().startswith('[\n  {\n    "id": "s"')
    path.write_text(json.dumps([{"id": "broken"}, written], indent=2))
    loaded = load_sessions(path)
    assert (loaded.sessions, [each.fault.code for each in loaded.problems]) == ([session], ["SESS_MANIFEST_DRIFT"])


def test_S0_29_the_recovery_class_tries_at_once_and_then_after_1_2_3_4_seconds():
    """MAX_RETRIES 5, BASE_DELAY 1 s: connect, synchronize, flush; exhausted: 'Max retries exceeded'. Nothing is waited for after the last."""
    delays, took, error = attempts_of("linear")
    assert (delays, took) == ([0, 1, 2, 3, 4], pytest.approx(10))
    assert isinstance(error, BridgeConnectionError)
    assert "Max retries exceeded" in str(error)
    assert LINEAR.attempts == 5


def test_S0_30_a_client_asks_for_what_came_since_its_last_message():
    """`request_replay` with `since`: the messages from that time on, as they were."""

    async def work() -> None:
        async with a_bridge() as served, raw(served) as client:
            await in_session(client)
            await client.say("one")
            first = await client.until("user_message")
            await asyncio.sleep(0.002)
            await client.say("two")
            await client.until("user_message")
            asked = await client.ask("request_replay", {"since": first["timestamp"]}, "replay_buffer")
            # On the wire the message of just then comes again, since several may have one time; its id tells it.
            assert [each["payload"]["content"] for each in asked["payload"]["messages"]] == ["one", "two"]
            assert asked["payload"]["messages"][0]["id"] == first["id"]

    run(work)


def test_S0_6_S0_29_S0_30_S0_31_a_client_that_comes_back_connects_synchronizes_and_then_sends(monkeypatch):
    """reconnect: connect, request what came since the last message, and only then flush what waits, first in, first out."""
    sent: list[dict[str, Any]] = []
    send, receive = ClientConnection.send, ClientConnection.recv

    async def noted(socket: ClientConnection, frame: Any, **options: Any) -> None:
        sent.append(json.loads(frame))
        await send(socket, frame, **options)

    async def received(socket: ClientConnection, **options: Any) -> Any:
        frame = await receive(socket, **options)
        if (message := json.loads(frame))["type"] == "session_joined":
            sent.append(message)
        return frame

    monkeypatch.setattr(ClientConnection, "send", noted)
    monkeypatch.setattr(ClientConnection, "recv", received)

    async def work() -> None:
        async with a_bridge() as served, FaultProxy(served.ws_url) as proxy:
            seen: list[ConnectionStatus] = []
            options: dict[str, Any] = {"reconnect": Schedule(delays=(0.05,), jitter=0.0), "on_status": seen.append}
            async with Client(proxy.url, token="token", **options) as client, client.create("s") as session:
                await session.send("zero")
                before = len(sent)
                proxy.cut()
                await eventually(lambda: "reconnecting" in [now.status for now in seen])
                await asyncio.gather(*(session.send(text) for text in ("one", "two")))
        kinds = [each["type"] for each in sent[before:] if each["type"] != "heartbeat_ping"]
        assert kinds[:5] == ["auth", "session_join", "session_joined", "session_message", "session_message"]
        # The position is more exact than a time: several messages may have one.
        (joined,) = (each["payload"] for each in sent[before:] if each["type"] == "session_join")
        assert joined["after"]["offset"] == 1
        texts = [each["payload"]["content"] for each in sent[before:] if each["type"] == "session_message"]
        assert texts == ["one", "two"]

    run(work)


def test_S0_31_N0_11_what_is_sent_while_away_is_kept_and_sent_in_order(tmp_path):
    """Messages wait while the connection is away, and are flushed first in, first out. Each says how often it was lost, and why."""

    async def work() -> None:
        async with a_bridge() as served, FaultProxy(served.ws_url) as proxy:
            options: dict[str, Any] = {"outbox": tmp_path / "outbox.db", "answer_timeout": 0.3}
            options["reconnect"] = Schedule(delays=(0.01,), jitter=0.0)
            async with Client(proxy.url, token="token", **options) as client, client.create("s") as session:
                await session.send("zero")
                with proxy.under(BlackHole()):
                    waiting = [asyncio.ensure_future(session.send(text)) for text in ("one", "two")]
                    await eventually(lambda: client.status == "reconnecting")
                    waiting.append(asyncio.ensure_future(session.send("three")))
                    await eventually(lambda: len(client.pending) == 3)
                    lost = [(each.text, each.retry_count, each.last_error) for each in client.pending]
                    assert [(text, count) for text, count, _ in lost] == [("one", 1), ("two", 1), ("three", 0)]
                    assert lost[0][2].code == "CONN_HEARTBEAT_LOST"
                    assert lost[2][2] is None
                client.wake_up()
                await asyncio.gather(*waiting)
                assert client.pending == []
            entries = [entry for entry in await served.hub.store.read("s") if entry.type == "message"]
            assert [json.loads(bytes(entry.body))["content"] for entry in entries] == ["zero", "one", "two", "three"]

    run(work)


# --- metrics and alerts ---


def test_S0_32_an_error_metric_has_the_documents_labels(tmp_path):
    """category, code, severity, source (client, server, hook), and the session and the client's version, where they are known."""

    async def work() -> None:
        found: list[ErrorMetric] = []
        disk = AsyncExitStack()
        store = await disk.enter_async_context(SqliteStore(tmp_path / "work.db"))
        async with a_bridge(reports=ErrorReports(found.append), store=store) as served:
            async with raw(served) as client, over_http(served, "hook") as web:
                await client.auth(client_version="1.4.0", platform="ios")
                await client.join("nope")
                await web.post("/hooks/event", json={}, headers={"user-agent": "curl/8"})
                # The store of the server fails: nobody else is to blame.
                await disk.aclose()
                async with over_http(served) as device:
                    assert (await device.get("/sessions")).status_code == 503
        session, hook, own = found
        assert (own.category, own.code, own.source) == ("SESS_", "SESS_STORE_UNAVAILABLE", "server")
        assert (session.category, session.code, session.severity) == ("SESS_", "SESS_NOT_FOUND", "error")
        assert (session.source, session.session_id, session.user_agent) == ("client", "nope", "ios 1.4.0")
        assert (hook.category, hook.source, hook.user_agent) == ("HOOK_", "hook", "curl/8")

    run(work)


def test_S0_32_S0_4_the_metrics_of_a_bridge_count_what_its_agent_raises():
    """Log + metrics: an error of the agent has category, code, severity and source in the metrics that the bridge shows."""

    async def agent(turn: Turn) -> None:
        raise ConnectionResetError("gone")

    async def work() -> None:
        async with a_bridge(agent, runtime=Runtime(profile="bridge")) as served, raw(served) as client:
            await in_session(client)
            await client.say("go")
            await client.until("notification")
            async with over_http(served, "admin") as web:
                text = (await web.get("/metrics")).text
        labels = 'category="CONN_",code="CONN_RESET",severity="error",source="server"'
        assert f"holdfast_errors_total{{{labels}}} 1.0" in text

    run(work)


def test_S0_32_a_client_that_gives_up_reports_it():
    """Source client: exhausted reconnections are an event, a line of the log and a metric in the client's own program."""
    clock, heard = VirtualClock(), Capture()
    runtime = Runtime(profile="bridge", clock=clock)
    runtime.on(heard)
    found: list[ErrorMetric] = []

    async def work() -> None:
        with pytest.raises(ReconnectionExhaustedError):
            async with Client("ws://127.0.0.1:1/ws", token="t"):
                pass

    with use_runtime(runtime), measure_errors(found.append, runtime=runtime), raise_alerts(runtime, Alerts()) as alerts:
        for _ in range(10):
            alerts.count("reconnection_failures")
        assert alerts.level("reconnection_failures") == "ok"
        virtually(work(), clock=clock)
        assert alerts.level("reconnection_failures") == "warning"
    failed = [event for event in heard.events if isinstance(event, Failed)]
    assert {(event.fault.code, event.attempts, event.exhausted) for event in failed} == {
        ("CONN_RECONNECT_EXHAUSTED", 5, True)
    }
    assert {(metric.code, metric.source) for metric in found} == {("CONN_RECONNECT_EXHAUSTED", "client")}


def test_S0_33_the_alerts_begin_above_the_documents_thresholds():
    """Error rate above 5 and 15 %; reconnections above 10 and 50 a minute; drops 5 and 20; hooks 20 and 100. Equal is not above."""
    thresholds = {
        "reconnection_failures": (10, 50),
        "session_drops": (5, 20),
        "hook_failures": (20, 100),
    }
    for signal, (warning, critical) in thresholds.items():
        with raise_alerts(Runtime(clock=VirtualClock()), Alerts()) as alerts:
            for count in range(1, critical + 2):
                alerts.count(signal)
                assert (
                    alerts.level(signal) == "critical" if count > critical else "warning" if count > warning else "ok"
                )
    for percent, level in ((5, "ok"), (6, "warning"), (15, "warning"), (16, "critical")):
        with raise_alerts(Runtime(clock=VirtualClock()), Alerts()) as alerts:
            for number in range(100):
                alerts.operation(failed=number >= 100 - percent)
            assert (percent, alerts.level("error_rate")) == (percent, level)


def test_S0_33_the_error_rate_counts_messages_and_requests_of_the_bridge():
    """The error rate is of the bridge's messages and requests, those that were answered and those that failed."""

    async def work() -> None:
        counted: list[bool] = []
        with raise_alerts(Runtime(clock=VirtualClock()), Alerts()) as alerts:
            count = alerts.operation
            alerts.operation = lambda *, failed: (counted.append(failed), count(failed=failed))
            async with a_bridge(reports=ErrorReports(alerts=alerts)) as served:
                async with raw(served) as client, over_http(served) as web:
                    await in_session(client)
                    await client.say("hello")
                    assert counted == [False, False, False]
                    await web.get("/info")
                    assert counted.count(False) == 4
                    await web.get("/sessions/nope")
                    await client.join("nope")
                    assert counted.count(True) == 2

    run(work)


# --- the project that the document comes from: handshake and phases ---


def test_N0_1_the_order_of_a_connection_from_auth_to_joined():
    """auth, connection_ack, health_check, health_status, session_start, session_ready, message. Pings are allowed in every phase."""

    async def work() -> None:
        async with a_bridge(echo) as served, raw(served) as client:
            assert (await client.ask("heartbeat_ping", {}, "heartbeat_pong"))["type"] == "heartbeat_pong"
            await client.auth()
            assert (await client.ask("health_check", {}, "health_status"))["payload"]["status"] == "healthy"
            ready = await client.ask("session_start", {"session_id": "s"}, "session_ready")
            assert ready["payload"]["status"] == "ready"
            assert (await client.ask("message", {"content": "hi"}, "ack"))["type"] == "ack"
            assert await client.said() == "you said hi"
            again = await client.ask("session_start", {"session_id": "s", "resume": True}, "session_ready")
            assert again["payload"]["session_id"] == "s"

    run(work)


def test_N0_2_the_acknowledgement_says_where_and_what_the_bridge_is():
    """connection_ack has the id of the auth, the version, the agents, the mode, the address and the active sessions."""

    async def work() -> None:
        async with a_bridge(calling("x", {})) as served, raw(served) as client:
            await in_session(client, "old", client_id="a")
            async with raw(served) as other:
                id_ = await other.send(
                    "auth", {"token": "token", "client_version": "1.0.0", "platform": "ios", "device_id": "d"}
                )
                ack = await other.next()
                payload = ack["payload"]
                assert (ack["type"], ack["id"]) == ("connection_ack", id_)
                assert (payload["bridge_url"], payload["supported_agents"]) == (served.ws_url, ["coder"])
                assert (payload["connection_mode"], payload["requires_health_verification"]) == ("local_only", False)
                assert payload["connection_mode_description"]
                assert [each["session_id"] for each in payload["active_sessions"]] == ["old"]

    run(work)


def test_N0_3_N0_7_the_older_names_of_codes_mean_ours():
    """AUTH_FAILED, INSECURE_TRANSPORT, MISCONFIGURED, VERSION_INCOMPATIBLE, RATE_LIMITED; SESSION_NOT_FOUND, AGENT_ERROR, TOOL_ERROR …"""
    older = {
        "AUTH_FAILED": "AUTH_FAILED",
        "INSECURE_TRANSPORT": "CONN_INSECURE_TRANSPORT",
        "VERSION_INCOMPATIBLE": "PROTO_VERSION_INCOMPATIBLE",
        "SESSION_NOT_FOUND": "SESS_NOT_FOUND",
        "AGENT_ERROR": "ACTOR_ERROR",
        "TOOL_ERROR": "TOOL_EXECUTION_FAILED",
    }
    assert {name: meaning(name).code for name in older} == older
    assert {meaning(name).code for name in ("RATE_LIMITED", "BRIDGE_ERROR", "MISCONFIGURED", "GIT_ERROR")} <= set(
        CATALOG
    )

    async def work() -> None:
        async with a_bridge() as served:
            async with raw(served) as client:
                refused = await client.auth("wrong")
                assert (refused["type"], refused["payload"]["code"]) == ("connection_error", "AUTH_FAILED")
            async with raw(served) as client:
                refused = await client.auth(protocol=[99])
                assert refused["payload"]["code"] == "PROTO_VERSION_INCOMPATIBLE"

    run(work)


def public(clock: VirtualClock) -> ServerConnection:
    """The server's side of a connection that came over the public internet and is authenticated."""
    ids = iter(f"0b8a7f60-1111-4222-8333-{number:012}" for number in range(99))
    machine = ServerConnection(clock=clock, new_id=lambda: next(ids), limits=ServerLimits(), mode="direct_public")
    machine.phase = ConnectionState.AWAITING_ACK
    return machine


def test_N0_4_a_public_connection_is_acknowledged_and_that_holds_for_8_hours():
    """health_check and its checks; a public connection is ready after its warning is acknowledged, for session_timeout 8h and no longer."""

    async def work() -> None:
        async with a_bridge() as served, raw(served) as client:
            await client.auth()
            asked = {"timestamp": datetime.now(UTC).isoformat(), "client_nonce": "n", "client_capabilities": ["a"]}
            status = (await client.ask("health_check", asked, "health_status"))["payload"]
            assert (status["status"], status["ready"], status["warnings"]) == ("healthy", True, [])
            assert set(status["checks"]) == {"tls_valid", "clock_sync", "version_compatible", "token_permissions"}
            assert set(status) >= {field for field in HealthStatus.__struct_fields__ if field != "latency_ms"}

    run(work)
    clock = VirtualClock()
    machine = public(clock)
    frame = GOOD | {"type": "acknowledge_warning", "payload": {"warning_code": "DIRECT_PUBLIC_CONNECTION"}}
    (sent,) = machine.received(json.dumps(frame))
    accepted = json.loads(sent.frame)
    assert (accepted["type"], accepted["payload"]) == (
        "acknowledgment_accepted",
        {"warning_code": "DIRECT_PUBLIC_CONNECTION", "ready": True, "session_timeout": "8h"},
    )
    clock.advance(8 * 3600 - 1)
    machine.received(json.dumps(GOOD | {"type": "heartbeat_ping"}))
    assert machine.tick() == []
    assert machine.next_at == pytest.approx(clock.monotonic() + 1)
    clock.advance(1)
    reason, close = machine.tick()
    assert json.loads(reason.frame)["payload"]["recoverable"] is True
    assert "acknowledge the warning" in json.loads(reason.frame)["payload"]["message"]
    assert machine.is_closed
    assert close.code


@pytest.mark.parametrize(
    ("peer", "encrypted", "mode"),
    [
        ("127.0.0.1", True, "local_only"),
        ("100.78.42.15", True, "secure_remote"),
        ("192.168.1.5", True, "private_network"),
        ("fd00::1", True, "private_network"),
        ("203.0.113.9", True, "direct_public"),
        ("203.0.113.9", False, "misconfigured"),
    ],
)
def test_N0_5_how_a_client_came_is_one_of_five_modes(peer, encrypted, mode):
    """local_only, private_network, secure_remote, direct_public, misconfigured."""
    assert mode_of(peer, is_encrypted=encrypted, host="bridge.example", allows_plain=False) == mode


def test_N0_6_silence_is_asked_about_after_15_seconds_and_ends_10_later():
    """A ping every 15 s; without an answer within 10 s the connection is dropped. A rejected auth and a disconnect end reconnecting."""
    clock = VirtualClock()
    machine = public(clock)
    clock.advance(15)
    (ping,) = machine.tick()
    assert json.loads(ping.frame)["type"] == "heartbeat_ping"
    clock.advance(10)
    reason, _ = machine.tick()
    assert json.loads(reason.frame)["payload"]["code"] == "CONN_HEARTBEAT_LOST"
    limits = BridgeSettings.of_profile("bridge").connection
    assert (limits.heartbeat, limits.heartbeat_timeout, limits.auth_timeout) == (15, 10, 10)
    assert (bridge.limits["heartbeat_s"], bridge.limits["pong_s"]) == (15, 10)


def test_N0_8_an_error_says_whether_it_recovers_and_when():
    """recoverable and retry_after_ms, in whole milliseconds."""
    limited = connection_error(Fault.of("CONN_RATE_LIMITED", retry_after=1.5))["payload"]
    assert (limited["recoverable"], limited["retry_after_ms"]) == (True, 1500)
    assert wire.read({"type": "error", "payload": limited}).retry_after == 1.5


def test_N0_9_an_answer_its_tools_and_its_approvals_are_messages():
    """stream_start, stream_chunk, stream_end; tool_call, tool_result; approval_required with risk_level and source; session_end."""

    @tool(effect="unsafe")
    def deploy(plan: str) -> str:
        return f"deployed {plan}"

    async def work() -> None:
        async with a_bridge(calling("deploy", {"plan": "v2"}, deploy)) as served, raw(served) as client:
            ended = await ended_call(served, client)
            assert (ended["type"], ended["payload"]["success"]) == ("tool_result", True)
            end = await client.until("stream_end")
            assert end["payload"]["finish_reason"] == "stop"
            kinds = {each["type"]: each["payload"] for each in client.received}
            assert {"stream_start", "stream_chunk", "tool_call", "approval_resolved"} <= set(kinds)
            assert (kinds["approval_required"]["risk_level"], kinds["approval_required"]["source"]) == (
                "high",
                "agent_sdk",
            )
            assert kinds["approval_resolved"]["decision"] == "approved"
            assert (await client.ask("session_end", {"reason": "completed"}, "ack"))["type"] == "ack"

    run(work)


def test_N0_9_an_approval_with_other_arguments_is_a_call_that_is_asked_about():
    """approval_response: approved, rejected, or modified with other arguments, which the model calls with."""

    @tool(effect="unsafe")
    def deploy(plan: str) -> str:
        return f"deployed {plan}"

    async def work() -> None:
        agent = calling("deploy", {"plan": "v2"}, deploy)
        async with a_bridge(agent) as served, raw(served) as client:
            await in_session(client)
            await client.say("go")
            asked = (await client.until("approval_required"))["payload"]
            answer = {"tool_call_id": asked["tool_call_id"], "decision": "modified", "modifications": {"plan": "v3"}}
            await client.send("approval_response", answer)
            ended = await client.until("tool_error")
            assert ended["payload"]["code"] == "TOOL_APPROVAL_DENIED"
            assert "v3" in str(ended["payload"])

    run(work)


def test_N0_10_an_acknowledged_notification_is_not_replayed_and_the_rest_is():
    """auth, ack with the active sessions, replay; notification_ack removes notifications, and nothing else, for this client."""

    async def agent(turn: Turn) -> str:
        await turn.notify("The build is red")
        return "done"

    async def work() -> None:
        async with a_bridge(agent) as served, raw(served) as client:
            await in_session(client, client_id="phone")
            await client.say("hello")
            shown = await client.until("notification")
            await client.said()
            seen = {"notification_ids": [shown["payload"]["notification_id"]]}

            async def replayed(one: Raw) -> list[str]:
                asked = await one.ask("request_replay", {}, "replay_buffer")
                return [each["type"] for each in asked["payload"]["messages"]]

            before = await replayed(client)
            assert "notification" in before
            await client.ask("notification_ack", seen, "ack")
            # A replay takes nothing away; the acknowledgement takes the notification away.
            assert (
                await replayed(client) == await replayed(client) == [each for each in before if each != "notification"]
            )
            async with raw(served) as other:
                ack = await other.auth(client_id="laptop")
                assert [each["session_id"] for each in ack["payload"]["active_sessions"]] == ["s"]
                await other.join("s")
                # What it gets because it joined is another replay, which comes before this.
                await other.until("session_state")
                assert await replayed(other) == before

    run(work)


def test_N0_11_an_outbox_holds_a_thousand_messages_and_says_when_it_is_full():
    """The queue of a client holds 1,000 messages. One more is an error, and nothing is dropped."""
    outbox = Outbox()
    for number in range(1_000):
        outbox.add(Outgoing(str(number), "s", b"{}"))
    with pytest.raises(HoldfastError) as error:
        outbox.add(Outgoing("more", "s", b"{}"))
    assert (error.value.fault.code, len(outbox)) == ("SYS_RESOURCE_EXHAUSTED", 1_000)


# --- HTTP ---


def test_N0_12_the_endpoints_take_the_tokens_that_they_are_for_and_health_lists_its_checks():
    """Below /api/v1, by token: device, hook, admin. /health is 200 or 503 with its checks: the parts, the agent, the disk, and your own."""
    licence = [True]

    async def work() -> None:
        async with a_bridge(echo, checks={"licence": lambda: licence[0]}) as served, over_http(served) as client:
            well = await client.get("/api/v1/health")
            assert (well.status_code, well.json()["status"]) == (200, "healthy")
            assert well.json()["checks"] == dict.fromkeys(
                ("websocket_server", "hook_endpoint", "store", "agent_sdk", "disk_space", "licence"), True
            )
            licence[0] = False
            ill = await client.get("/health")
            assert (ill.status_code, ill.json()["status"], ill.json()["checks"]["licence"]) == (503, "degraded", False)
            assert (await client.get("/ws")).json()["code"] == "CONN_UPGRADE_REQUIRED"
            assert (await client.post("/hooks/event", json=HOOK)).status_code == 401
            assert (await client.post("/admin/reload-hooks", json={})).status_code == 403
            await client.get("/sessions")
            async with over_http(served, "hook") as hooks, over_http(served, "admin") as admin:
                assert (await hooks.post("/hooks/event", json=HOOK)).status_code == 200
                assert (await admin.post("/admin/reload-hooks", json={})).json()["reloaded"] is True
            key = {"idempotency-key": "k-1"}
            added = await client.post("/sessions/s/events", json={"type": "message", "content": "hi"}, headers=key)
            assert added.status_code == 202, added.text

    run(work)


def test_N0_12_a_disk_without_room_and_a_provider_whose_circuit_is_open_are_ill(monkeypatch):
    """disk_space and agent_sdk are false when the disk is full, and when no provider of the agent can be called."""
    runtime = Runtime(profile="bridge")

    async def work() -> None:
        async with a_bridge(echo, runtime=runtime) as served, over_http(served) as client:
            circuit = create_circuit_breaker("claude", BRIDGE_CIRCUIT, runtime=runtime)
            for _ in range(5):
                circuit.record_failure()
            monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(1, 1, 0))
            checks = (await client.get("/health")).json()["checks"]
            assert (checks["agent_sdk"], checks["disk_space"], checks["store"]) == (False, False, True)

    run(work)


def test_N0_13_info_has_the_documents_limits():
    """max_sessions 10, five connections, messages of 10 MB, 30 s for a hook."""

    async def work() -> None:
        async with a_bridge() as served, over_http(served) as client:
            info = (await client.get("/info")).json()
            limits = info["limits"]
            assert (limits["max_sessions"], limits["max_websocket_connections"]) == (10, 5)
            assert (limits["max_message_size_mb"], limits["hook_timeout_seconds"]) == (10, 30)
            assert info["hook_events"] == list(SEVEN)

    run(work)


def test_N0_13_holdfast_serve_keeps_to_the_profile_of_its_file(tmp_path):
    """`profile = "bridge"` in holdfast.toml is enough: the command serves with the document's limits and its seven events."""
    (tmp_path / "holdfast.toml").write_text('profile = "bridge"\n[bridge]\nmax_sessions = 7\n')
    command = [sys.executable, "-m", "holdfast", "serve", "--port", "0", "--store", "memory:", "--home", str(tmp_path)]
    env = {**os.environ, "BRIDGE_TOKEN": "t" * 40, "HOOK_TOKEN": "h" * 40}
    process = subprocess.Popen(
        command, cwd=tmp_path, env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        url = process.stdout.readline().strip()
        info = httpx.get(f"{url}/info", headers={"authorization": f"Bearer {'t' * 40}"}, trust_env=False).json()
    finally:
        process.terminate()
        process.wait(10)
        process.stdout.close()
    limits = info["limits"]
    # What the file names wins over the profile.
    assert (limits["max_sessions"], limits["max_websocket_connections"]) == (7, 5)
    assert info["hook_events"] == list(SEVEN)


def test_N0_14_statuses_of_http_errors():
    """401 for a wrong token, 403 for a wrong kind, 400 for a wrong hook, 404, 409 for a closed session, 429 with retry_after, 500."""
    statuses = {
        "AUTH_INVALID_TOKEN": 401,
        "AUTH_INSUFFICIENT_SCOPE": 403,
        "HOOK_VALIDATION_FAILED": 400,
        "HOOK_AUTH_FAILED": 401,
        "SESS_NOT_FOUND": 404,
        "SESS_CLOSED": 409,
        "CONN_RATE_LIMITED": 429,
        "SYS_INTERNAL_ERROR": 500,
    }
    assert {code: CATALOG[code].http_status for code in statuses} == statuses
    assert http_body(Fault.of("CONN_RATE_LIMITED", retry_after=7))["retry_after"] == 7


def test_N0_15_an_address_that_asks_too_often_learns_when_to_come_back():
    """Requests of an address per minute: /info 60, /hooks/event 120, /hooks/batch 10, /sessions 30, /files 60."""

    async def work() -> None:
        async with a_bridge() as served, over_http(served) as client:
            rates = (await client.get("/info")).json()["limits"]["requests_per_minute"]
            assert {rates[path] for path in ("/health", "/info", "/files")} == {60}
            assert (rates["/hooks/event"], rates["/hooks/batch"], rates["/sessions"]) == (120, 10, 30)
            stranger = {"authorization": "Bearer nobody"}
            statuses = [(await client.get("/sessions", headers=stranger)).status_code for _ in range(30)]
            over = await client.get("/sessions", headers=stranger)
            assert (set(statuses), over.status_code) == ({401}, 429)
            assert int(over.headers["retry-after"]) <= 60
            # The holder of a right token has as many of its own.
            statuses = [(await client.get("/sessions")).status_code for _ in range(31)]
            assert (set(statuses[:30]), statuses[30]) == ({200}, 429)

    run(work)


def test_N0_16_a_hook_and_a_batch_are_answered_with_their_ids():
    """received, event_id, broadcast_count, timestamp; of a batch: count, accepted, rejected, event_ids. What is right is stored."""

    async def work() -> None:
        async with a_bridge() as served, over_http(served, "hook") as client, raw(served) as watcher:
            await in_session(watcher)
            body = (await client.post("/hooks/event", json=HOOK)).json()
            assert {"received", "event_id", "broadcast_count", "timestamp"} <= set(body)
            assert body["broadcast_count"] == 1
            shown = await watcher.until("claude_event")
            assert (shown["payload"]["event"], shown["payload"]["event_id"]) == ("Stop", body["event_id"])
            batch = (await client.post("/hooks/batch", json={"events": [HOOK, HOOK | {"event": "Explode"}]})).json()
            assert (batch["received"], batch["count"], batch["accepted"], batch["rejected"]) == (True, 2, 1, 1)
            assert len(batch["event_ids"]) == 1

    run(work)


def test_N0_17_the_extended_hooks_have_nine_events_older_keys_and_a_code_for_each_field():
    """PreCompact and Notification, `event_type`, HOOK_STALE_TIMESTAMP, and the required fields of each event's payload, by setting."""
    now = datetime(2026, 3, 20, 14, 32, tzinfo=UTC).timestamp()
    strict = HookRules(strict=True, skew=300)
    older = {"event_type": "PreCompact", **{name: value for name, value in HOOK.items() if name != "event"}}
    assert read_hook(older, now=now, rules=strict).event == "PreCompact"
    found = read_hook(HOOK | {"event": "PreToolUse"}, now=now + 301, rules=strict)
    assert {error.code for error in found} == {"HOOK_STALE_TIMESTAMP", "HOOK_INVALID_PAYLOAD"}
    assert {error.field for error in found} >= {"payload.tool", "payload.params", "payload.risk_level"}
    codes = {error.code for error in read_hook({"event": "x", "payload": 1}, now=now)}
    assert codes == {
        "HOOK_INVALID_EVENT_TYPE",
        "HOOK_INVALID_TIMESTAMP",
        "HOOK_INVALID_SESSION_ID",
        "HOOK_INVALID_PAYLOAD",
    }

    async def work() -> None:
        # Without the profile the nine are accepted.
        async with serving(tokens=Tokens(**TOKENS)) as served, over_http(served, "hook") as client:
            assert (await client.post("/hooks/event", json=HOOK | {"event": "Notification"})).status_code == 200

    run(work)


def test_N0_18_the_environment_gives_port_tokens_and_root_and_an_empty_one_is_an_error(tmp_path):
    """PORT 3000, BRIDGE_TOKEN, HOOK_TOKEN, ALLOWED_PROJECT_ROOT. What is set and empty, or missing where others can come, fails the start."""
    environ = {"BRIDGE_TOKEN": "b" * 40, "HOOK_TOKEN": "h" * 40, "ALLOWED_PROJECT_ROOT": str(tmp_path)}
    settings = BridgeSettings.from_env(environ, profile="bridge")
    assert (settings.port, settings.bridge_token, settings.served_root) == (3000, "b" * 40, tmp_path)
    assert settings.max_sessions == 10
    with pytest.raises(HoldfastError, match="HOOK_TOKEN is set, but empty"):
        BridgeSettings.from_env(environ | {"HOOK_TOKEN": " "})
    with pytest.raises(HoldfastError, match="ALLOWED_PROJECT_ROOT is not set"):
        BridgeSettings.from_env({"HOST": "0.0.0.0"}).check_start()


def test_N0_18_the_file_and_the_profile_meet_and_what_is_written_wins():
    """`profile = "bridge"` is the whole document; an option of `[bridge]` wins over it."""
    file = read({"profile": "bridge", "bridge": {"max_sessions": 7}}).bridge
    settings = BridgeSettings.from_env({}, file=file, profile="bridge")
    assert (settings.max_sessions, settings.max_connections, settings.extended_hooks) == (7, 5, False)
    assert Bridge(runtime=PLAYS, tokens=Tokens()).settings.max_connections == 5


def test_N0_19_a_key_is_trusted_at_first_use_and_another_one_is_refused(tmp_path):
    """A self-signed certificate with its pin; trust on first use keeps the first key, and refuses another one until a person decides."""
    known = tmp_path / "known_bridges.json"

    async def connect(settings: BridgeSettings, port: int = 0, **options: Any) -> int:
        async with a_bridge(settings=settings, port=port) as served:
            url = served.ws_url.replace("127.0.0.1", "localhost")
            async with Client(url, token="token", **options) as client, client.create("s"):
                return served.port

    async def work() -> None:
        first, files = self_signed(tmp_path / "one")
        async with a_bridge(settings=first) as served:
            assert (await tls_failure(served)).context["reason"] == "SELF_SIGNED"
        pin, _ = files.pins()
        assert pin.startswith("sha256/")
        assert files.key.stat().st_mode & 0o077 == 0
        await connect(first, pins=[pin])
        port = await connect(first, known_bridges=known)
        assert json.loads(known.read_text()) == {f"localhost:{port}": pin}
        assert known.stat().st_mode & 0o077 == 0
        await connect(first, port, known_bridges=known)
        other, _ = self_signed(tmp_path / "two")
        async with a_bridge(settings=other, port=port) as served:
            fault = await tls_failure(served, known_bridges=known)
        assert (fault.context["reason"], fault.context["suggested_action"]) == ("PIN_MISMATCH", "confirm_pin")
        assert json.loads(known.read_text()) == {f"localhost:{port}": pin}

    run(work)


def test_N0_20_a_session_goes_on_while_nobody_watches_and_several_may_watch():
    """Several listeners; the work goes on without any; whoever comes back gets what was written, and then what is new."""

    async def work() -> None:
        go = asyncio.Event()

        async def agent(turn: Turn) -> None:
            await turn.say("begun ")
            await go.wait()
            await turn.say("ended")

        async with a_bridge(agent) as served:
            async with raw(served) as one, raw(served) as two:
                await in_session(one, client_id="one")
                await two.auth(client_id="two")
                await two.join("s")
                await one.say("go")
                for client in (one, two):
                    assert (await client.until("stream_chunk"))["payload"]["text"] == "begun "
            go.set()
            async with raw(served) as back:
                await back.auth(client_id="one")
                await back.join("s", history="full")
                texts = []
                while not texts or texts[-1] != "ended":
                    message = await back.next()
                    messages = message["payload"]["messages"] if message["type"] == "replay_buffer" else [message]
                    texts += [each["payload"]["text"] for each in messages if each["type"] == "stream_chunk"]
                assert texts == ["begun ", "ended"]

    run(work)


AGENTS_APP = """
import os
from holdfast import Fault, HoldfastError

async def agent(turn):
    if turn.text == "die":
        raise HoldfastError(Fault.of("ACTOR_MAX_RESTARTS"))
    return f"{os.getpid()}: {turn.text}"
"""


def test_N0_22_S0_4_agents_in_a_process_of_their_own_go_on_when_the_server_ends(tmp_path, monkeypatch):
    """A process of its own for the agents: it outlives the server, and the next server finds it at its socket."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "holdfast.toml").write_text('profile = "bridge"\n')
    (tmp_path / "app.py").write_text(AGENTS_APP)

    async def answer(text: str) -> int:
        agents = AgentProcess(agent="app:agent", home=tmp_path / "home")
        store = f"sqlite:{tmp_path / 'work.db'}"
        async with a_bridge(echo, store=store, agents=agents) as served, raw(served) as client:
            await client.auth()
            await client.ask("session_start", {"session_id": "s"}, "session_ready")
            await client.say(text)
            while not (said := await client.said()).endswith(text):
                pass
            if text == "two":
                # A fatal failure there ends its session as it does here.
                await client.create("dying")
                await client.send("session_message", {"content": "die"}, session_id="dying")
                while (await client.until("session_event"))["payload"]["event"] != "session_error":
                    pass
        return int(said.partition(":")[0])

    async def work() -> None:
        first = await answer("one")
        try:
            assert await answer("two") == first != os.getpid()
        finally:
            await end_agents(tmp_path / "home")

    run(work)


def test_N0_23_messages_that_wait_are_answered_in_order_and_together_where_that_is_set():
    """One turn at a time, first in, first out. With `coalesce` those that wait are joined by a blank line, and the turn names them."""

    async def work() -> None:
        go = asyncio.Event()
        heard: list[str] = []

        async def agent(turn: Turn) -> str:
            heard.append(turn.text)
            if turn.text == "first":
                await go.wait()
            return f"to {turn.text}"

        for coalesce, expected in ((True, ["first", "a\n\nb\n\nc"]), (False, ["first", "a", "b", "c"])):
            heard.clear()
            go.clear()
            settings = BridgeSettings.of_profile("bridge", coalesce=coalesce)
            async with a_bridge(agent, settings=settings) as served, raw(served) as client:
                await in_session(client)
                await client.say("first")
                await eventually(lambda: heard)
                offsets = [(await client.say(text))["offset"] for text in ("a", "b", "c")]
                go.set()
                for _ in expected:
                    await client.until("stream_end")
                assert heard == expected
                begun = [each["payload"] for each in client.received if each["payload"].get("event") == "turn_started"]
                if coalesce:
                    assert (begun[-1]["answers"], begun[-1]["coalesced"]) == (offsets[-1], offsets[:-1])
                else:
                    assert [each["answers"] for each in begun[1:]] == offsets

    run(work)


# --- the names of the document ---

PAGES = Path(__file__).parents[2] / "docs/explanation/documents"
IMPORTED = (
    *("BridgeConnection", "RECONNECT_DELAYS", "ReconnectionExhaustedError", "SessionState", "ProtocolMessage"),
    *("ConnectionState", "SEQUENCE_MAP", "validate_sequence", "Session", "SessionCheckpoint", "TOOL_TIMEOUTS"),
    *("ReplayBuffer", "CircuitBreaker", "PersistedSession", "save_sessions", "load_sessions", "BridgeMessage"),
    *("BridgeConnectionException", "ErrorMetric"),
)
INSIDE = (
    *("BridgeConnectionRecovery", "MAX_RETRIES", "BASE_DELAY", "DisconnectReason", "isRecoverable", "SESSION_GRACE_MS"),
    *("handleDisconnect", "handleReconnect", "closeSession", "ProtocolError", "HookEventSchema", "resumeSession"),
    *("loadSession", "restoreCheckpoint", "SESSIONS_FILE", "BridgeMessage.requestReplay", "interface SessionState"),
    *("new CircuitBreaker(threshold, timeoutMs)", "Session.resumable"),
)


def test_the_names_of_the_document_can_be_imported_or_the_page_says_what_does_it():
    """What a user imports has the document's name; for what its samples do inside, the page names ours."""
    assert [name for name in IMPORTED if not hasattr(documents.bridge, name)] == []
    table = (PAGES / "000-bridge.md").read_text().partition("## Names")[2]
    assert [name for name in INSIDE if f"`{name}`" not in table] == []
    assert (documents.bridge.BridgeConnection, documents.bridge.BridgeConnectionException) == (
        Client,
        BridgeConnectionError,
    )
    assert documents.bridge.TOOL_TIMEOUTS == {"bash": 300, "read_file": 10, "edit_file": 30, "search": 60}


# --- the document's client, in another language ---

NODE = """
const socket = new WebSocket(process.env.BRIDGE_URL);
const send = (type, payload) =>
  socket.send(JSON.stringify({ type, id: crypto.randomUUID(), timestamp: new Date().toISOString(), payload }));
let started;
socket.onopen = () => send("auth", { token: "token", client_version: "1.0.0", platform: "web" });
socket.onmessage = ({ data }) => {
  const { type, payload, timestamp } = JSON.parse(data);
  if (type === "connection_ack") send("session_start", { session_id: "s" });
  if (type === "session_ready") send("session_message", { content: "hello" });
  if (type === "stream_start") started = timestamp;
  if (type === "stream_end") send("request_replay", { since: started });
  if (type === "replay_buffer") {
    // An older client gets each message as a text.
    console.log(JSON.stringify(payload.messages.map((each) => JSON.parse(each).type)));
    socket.close();
  }
  if (type === "error") { console.error(data); process.exit(1); }
};
"""


def test_S0_9_S0_30_N0_1_the_protocol_works_from_javascript(tmp_path):
    """A client that only knows the document's messages connects, sends, and asks for a replay since a time."""
    program = shutil.which("node")
    if program is None:
        pytest.skip("Node.js is missing (Debian: apt-get install nodejs)")
    (tmp_path / "client.mjs").write_text(NODE)

    async def work() -> None:
        async with a_bridge(echo) as served:
            process = await asyncio.create_subprocess_exec(
                *(program, "--experimental-websocket", str(tmp_path / "client.mjs")),
                env={**os.environ, "BRIDGE_URL": served.ws_url, "NODE_NO_WARNINGS": "1"},
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
            )
            output, problems = await process.communicate()
        assert problems == b""
        types = json.loads(output)
        assert {"stream_start", "stream_chunk", "stream_end"} <= set(types)
        assert "user_message" not in types

    run(work)
