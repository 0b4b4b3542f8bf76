"""The HTTP side inside of a running bridge: one port for sockets, hooks, streams and metrics; errors counted by their source."""

from __future__ import annotations

import asyncio
import contextlib

import httpx
import pytest
import websockets
from bridge_kit import Tokens, limits, raw, serving
from http_kit import KINDS, run

from holdfast.bridge.access.pairing import Pairing
from holdfast.bridge.access.tls import TlsFiles
from holdfast.bridge.access.tokens import Tokens as StoredTokens
from holdfast.bridge.server import Bridge
from holdfast.stores import MemoryStore
from holdfast.stores.records import SessionState

HOOK = {"event": "Stop", "timestamp": "2026-03-20T14:32:00Z", "session_id": "s", "payload": {"reason": "error"}}


@contextlib.asynccontextmanager
async def both(agent=None, **options):
    """A bridge, and an HTTP client for it."""
    async with (
        serving(agent, tokens=options.pop("tokens", None) or Tokens(**KINDS), **options) as bridge,
        httpx.AsyncClient(base_url=bridge.url, trust_env=False, timeout=10) as http,
    ):
        yield bridge, http


def bearer(name):
    return {"authorization": f"Bearer {name}"}


async def counted(http, **labels):
    """Return how often an error was counted."""
    text = (await http.get("/metrics", headers=bearer("metrics"))).text
    wanted = [f'{name}="{value}"' for name, value in labels.items()]
    lines = [line for line in text.splitlines() if line.startswith("holdfast_errors_total")]
    return sum(float(line.rpartition(" ")[2]) for line in lines if all(each in line for each in wanted))


async def until(condition):
    async with asyncio.timeout(5):
        while not await condition():  # noqa: ASYNC110 - the server's own state has no event
            await asyncio.sleep(0.005)


def test_B71_a_hook_event_reaches_the_clients_that_have_joined_with_its_offset():
    async def scenario():
        async with both() as (bridge, http), raw(bridge) as phone, raw(bridge) as desk:
            for client in (phone, desk):
                await client.auth("ada")
            await phone.create("s")
            await desk.join("s")
            answer = await http.post("/hooks/event", json=HOOK, headers=bearer("hook"))
            assert (answer.json()["received"], answer.json()["broadcast_count"]) == (True, 2)
            for client in (phone, desk):
                event = await client.until("claude_event")
                assert (event["payload"]["event"], event["offset"]) == ("Stop", answer.json()["offset"])
                assert event["payload"]["event_id"] == answer.json()["event_id"]

    run(scenario())


def test_one_port_serves_the_page_the_api_and_the_socket_behind_one_guard():
    async def scenario():
        async with both() as (_, http):
            page = await http.get("/")
            assert (page.status_code, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
            assert "script-src 'self'" in page.headers["content-security-policy"]
            assert (await http.get("/health")).json()["status"] == "healthy"
            assert (await http.get("/nope")).json()["error"] == "NotFound"
            assert (await http.get("/health", headers={"origin": "https://evil.example"})).status_code == 403
            assert (await http.get("/ws")).json()["code"] == "CONN_UPGRADE_REQUIRED"

    run(scenario())


def test_B83_a_socket_of_a_foreign_page_is_rejected_without_an_error_in_the_log(caplog):
    async def scenario():
        async with serving() as bridge:
            with pytest.raises(websockets.exceptions.InvalidStatus) as caught:
                await websockets.connect(bridge.ws_url, origin="https://evil.example", proxy=None)
            assert caught.value.response.status_code == 403
        assert [record.getMessage() for record in caplog.records if record.levelname == "ERROR"] == []

    run(scenario())


def test_a_message_over_http_is_answered_by_the_agent_and_seen_by_every_client():
    async def agent(turn):
        return f"you said {turn.text}"

    async def scenario():
        async with both(agent) as (bridge, http), raw(bridge) as client:
            await client.auth("ada")
            await client.create("s")
            sent = await http.post(
                "/sessions/s/events", json={"type": "message", "content": "hi"}, headers=bearer("root")
            )
            assert sent.status_code == 202
            assert (await client.until("user_message"))["payload"]["content"] == "hi"
            assert (await client.until("stream_chunk"))["payload"]["text"] == "you said hi"

    run(scenario())


def test_a_message_over_http_to_a_session_that_nobody_has_joined_is_answered_too():
    async def agent(turn):
        return f"you said {turn.text}"

    async def scenario():
        async with both(agent, settings=limits(grace=0.05, on_grace_expiry="pause")) as (bridge, http):
            await http.post("/hooks/event", json=HOOK, headers=bearer("hook"))
            await http.post("/sessions/s/events", json={"type": "message", "content": "hi"}, headers=bearer("ada"))

            async def answered():
                page = (await http.get("/sessions/s/events", headers=bearer("ada"))).json()
                return any(event["payload"].get("text") == "you said hi" for event in page["events"])

            await until(answered)
            # The sender is a client that left: after its grace the session is let go.
            await until(lambda: has_left(bridge))

    async def has_left(bridge):
        return not bridge.hub.sessions

    run(scenario())


def test_an_admin_closes_a_session_in_which_the_agent_works():
    async def agent(turn):
        await asyncio.Event().wait()

    async def scenario():
        async with both(agent) as (bridge, http), raw(bridge) as client:
            await client.auth("ada")
            await client.create("s")
            await client.say("work")
            closed = await http.post("/admin/sessions/s/close", json={"reason": "enough"}, headers=bearer("root"))
            assert closed.json()["state"] == "closed"

    run(scenario())


def test_a_code_becomes_the_token_of_a_device_once(tmp_path):
    async def scenario():
        tokens = StoredTokens(tmp_path / "tokens.json")
        tokens.create("hooks", kind="hook")
        offer = Pairing(tokens).offer()
        async with both(tokens=tokens) as (_, http):
            body = {"code": offer.code, "name": "Ada's phone"}
            made = await http.post("/pair", json=body)
            assert (made.status_code, made.json()["name"], made.json()["role"]) == (200, "Ada's phone", "controller")
            assert (await http.get("/info", headers=bearer(made.json()["token"]))).status_code == 200
            again = await http.post("/pair", json=body)
            assert again.status_code == 401
            assert "token" not in again.json()

    run(scenario())


def test_B85_wrong_tokens_are_locked_out_over_http_also_from_loopback_and_counted(tmp_path):
    async def scenario():
        tokens = StoredTokens(tmp_path / "tokens.json")
        right, metrics = tokens.create("Ada").text, tokens.create("prometheus", kind="metrics").text
        tokens.create("hooks", kind="hook")
        async with both(tokens=tokens) as (_, http):
            statuses = [(await http.get("/info", headers=bearer("guess"))).status_code for _ in range(20)]
            assert statuses[0] == 401
            assert 429 in statuses
            locked = await http.get("/info", headers=bearer("guess"))
            assert locked.status_code == 429
            assert int(locked.headers["retry-after"]) >= 1
            assert (await http.get("/info", headers=bearer(right))).status_code == 200
            assert (await http.get("/metrics", headers=bearer(metrics))).status_code == 200

    run(scenario())


def test_S0_32_B107_errors_of_sockets_are_counted_as_the_client_s():
    async def scenario():
        async with both() as (bridge, http):
            async with raw(bridge) as client:
                await client.auth("guess")
            async with raw(bridge) as client:
                await client.auth("ada", client_version="1.2", platform="ios")
                await client.socket.send("{")
                await client.until("error")
                await client.ask("session_join", {"session_id": "nope"}, "session_joined")
            assert await counted(http, code="AUTH_FAILED", source="client", severity="error") == 1
            assert await counted(http, code="PROTO_INVALID_MESSAGE", source="client") == 1
            assert await counted(http, code="SESS_NOT_FOUND", source="client", category="SESS_") == 1
            await http.post("/hooks/event", json={}, headers=bearer("hook"))
            assert await counted(http, code="HOOK_VALIDATION_FAILED", source="hook") == 1
            await http.get("/health", headers={"host": "evil.example"})
            assert await counted(http, code="AUTH_FORBIDDEN", source="client") == 1

    run(scenario())


def test_S0_33_a_client_that_comes_back_in_vain_and_a_session_that_is_dropped_are_counted():
    async def scenario():
        async with both(settings=limits(grace=0.05)) as (bridge, http):
            async with raw(bridge) as client:
                await client.auth("ada", resume=[{"session_id": "gone", "after": {"epoch": "k", "offset": 3}}])
                await client.until("error")
            assert await counted(http, code="CONN_RECONNECT_EXHAUSTED", source="client") == 1
            async with raw(bridge) as client:
                await client.auth("ada")
                await client.create("leaves")
            async with raw(bridge) as client:
                await client.auth("ada")
                await client.create("lost")
                client.socket.transport.abort()

            async def was_dropped():
                return (
                    await counted(http, code="CONN_WEBSOCKET_CLOSED", source="client") == 1 and not bridge.hub.sessions
                )

            # Only the one that broke is a drop. The other client said goodbye.
            await until(was_dropped)

    run(scenario())


def test_the_metrics_show_connections_and_sessions_in_use():
    async def scenario():
        async with both() as (bridge, http), raw(bridge) as client:
            await client.auth("ada")
            await client.create("s")
            text = (await http.get("/metrics", headers=bearer("metrics"))).text
            assert "holdfast_bridge_connections 1.0" in text
            assert "holdfast_bridge_sessions 1.0" in text

    run(scenario())


def test_B82_a_tls_handshake_that_never_comes_is_closed_after_the_header_time(tmp_path):
    files = TlsFiles(tmp_path / "tls")
    files.create(["localhost"])

    async def scenario():
        settings = limits(tls_cert=files.cert, tls_key=files.key, header_timeout=0.2)
        async with serving(tokens=Tokens(**KINDS), settings=settings) as bridge:
            port = int(bridge.url.rpartition(":")[2])
            for sent in (b"", b"\x16\x03\x01"):
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(sent)
                with contextlib.suppress(ConnectionResetError):
                    assert await asyncio.wait_for(reader.read(), 5) == b""
                writer.close()

    run(scenario())


def test_streams_end_when_the_bridge_stops():
    async def scenario():
        async with MemoryStore() as store, httpx.AsyncClient(trust_env=False) as http:
            async with Bridge(store=store, tokens=Tokens(**KINDS)).serving("127.0.0.1", 0) as bridge:
                await bridge.hub.create("s")
                request = http.build_request("GET", f"{bridge.url}/sessions/s/stream", headers=bearer("ada"))
                response = await http.send(request, stream=True)
                assert response.status_code == 200
            async with asyncio.timeout(5):
                lines = [line async for line in response.aiter_lines()]
            assert lines[0] == "retry: 1000"
            assert (await store.session("s")).state is SessionState.CREATED

    run(scenario())
