"""Clients of other protocols at the bridge, connection modes, and clients that do not read."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from bridge_kit import LIMIT, limits, offsets, raw, serving

from holdfast.agents import FunctionAgent
from holdfast.bridge.access.mode import mode_of

ECHO = FunctionAgent("echo", lambda prompt: f"echo: {prompt}")


def run(work: Callable[[], Awaitable[None]]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(6 * LIMIT):
            await work()

    asyncio.run(limited())


def test_S0_a_client_of_document_000_works_from_auth_to_replay() -> None:
    """It knows `auth`, `session_join`, `session_message` and `request_replay`, and ids that are not UUIDs."""

    async def work() -> None:
        async with serving(ECHO, limits=limits(lenient_ids=True)) as bridge, raw(bridge) as first:
            await first.send("auth", {"token": "token"}, id_="msg-1")
            ack = await first.until("connection_ack")
            assert (ack["id"], ack["payload"]["protocol"]) == ("msg-1", 1)
            await first.send("session_create", {"session_id": "s"}, id_="msg-2")
            await first.until("session_joined")
            await first.send("session_message", {"content": "hello"}, id_="msg-3")
            while (await first.until("stream_chunk"))["payload"]["text"] != "echo: hello":
                pass
            last = first.received[-1]["timestamp"]
        async with serving(ECHO) as bridge, raw(bridge) as again:
            await again.send("auth", {"token": "token"})
            await again.until("connection_ack")
            await again.create("s")
            replay = await again.ask("request_replay", {"since": last}, "replay_buffer")
            assert all(isinstance(each, str) for each in replay["payload"]["messages"])

    run(work)


def test_S0_an_error_has_the_body_of_document_000() -> None:
    async def work() -> None:
        async with serving() as bridge, raw(bridge) as client:
            await client.auth()
            id_ = await client.send("session_message", {"content": "too early"})
            error = await client.until("error")
            assert error["id"] == id_
            assert error["payload"]["code"] == "PROTO_SEQUENCE_ERROR"
            details = error["payload"]["details"]
            assert (details["received"], details["currentPhase"]) == ("session_message", "authenticated")
            assert "session_join" in details["expected"]
            missing = await client.join("nope")
            assert missing["code"] == "SESS_NOT_FOUND"

    run(work)


def test_N0_1_a_client_of_the_other_protocol_works_from_auth_to_its_end() -> None:
    """auth, health_check, session_start, message, session_end, with a notification_ack and a heartbeat between."""

    async def work() -> None:
        async with serving(ECHO) as bridge, raw(bridge) as client:
            about = {
                "client_version": "1.0.0",
                "platform": "ios",
                "device_id": "phone-1",
                "supported_protocols": ["v1"],
            }
            ack = (await client.ask("auth", {"token": "token"} | about, "connection_ack"))["payload"]
            assert {"server_version", "supported_agents", "connection_mode", "active_sessions"} <= set(ack)
            assert (ack["supported_agents"], ack["connection_mode"]) == (["echo"], "local_only")
            health = (await client.ask("health_check", {"client_nonce": "n"}, "health_status"))["payload"]
            assert (health["status"], health["ready"]) == ("healthy", True)
            assert set(health["checks"]) == {"tls_valid", "clock_sync", "version_compatible", "token_permissions"}
            start = {"session_id": "s", "agent": "echo", "working_directory": "/work"}
            ready = (await client.ask("session_start", start, "session_ready"))["payload"]
            assert (ready["session_id"], ready["status"]) == ("s", "ready")
            await client.ask("message", {"session_id": "s", "text": "hello", "role": "user"}, "ack")
            types = list[str]()
            while "stream_end" not in types:
                types.append((await client.until("stream_start", "stream_chunk", "stream_end"))["type"])
            assert types == ["stream_start", "stream_chunk", "stream_end"]
            assert (await client.ask("heartbeat_ping", {}, "heartbeat_pong"))["type"] == "heartbeat_pong"
            assert (await client.ask("notification_ack", {"notification_ids": ["n-1"]}, "ack"))["type"] == "ack"
            listed = (await client.ask("session_list", {}, "sessions"))["payload"]["sessions"]
            made = {"session_id": "s", "status": "active", "agent": "echo", "working_directory": "/work"}
            assert [{name: each.get(name) for name in made} for each in listed] == [made]
            again = (await client.ask("session_start", {"session_id": "s", "resume": True}, "session_ready"))["payload"]
            assert again["session_id"] == "s"
            assert (await client.ask("session_end", {"reason": "completed"}, "ack"))["type"] == "ack"
            assert (await bridge.hub.store.session("s")).state.value == "closed"

    run(work)


@pytest.mark.parametrize(
    ("peer", "encrypted", "mode"),
    [
        ("127.0.0.1", False, "local_only"),
        ("::1", True, "local_only"),
        ("::ffff:127.0.0.1", False, "local_only"),
        ("", False, "local_only"),
        ("192.168.1.7", True, "private_network"),
        ("10.1.2.3", True, "private_network"),
        ("fe80::1%eth0", True, "private_network"),
        ("fd00::7", True, "private_network"),
        ("100.101.102.103", True, "secure_remote"),
        ("fd7a:115c:a1e0::1", True, "secure_remote"),
        ("8.8.8.8", True, "direct_public"),
        ("2001:4860:4860::8888", True, "direct_public"),
        ("192.168.1.7", False, "misconfigured"),
        ("8.8.8.8", False, "misconfigured"),
    ],
)
def test_N0_5_the_mode_follows_from_address_and_encryption(peer: str, *, encrypted: bool, mode: str) -> None:
    assert mode_of(peer, is_encrypted=encrypted) == mode


def test_N0_5_a_name_of_a_private_network_is_a_secure_remote() -> None:
    assert mode_of("203.0.113.9", is_encrypted=True, host="laptop.tail1234.ts.net:3000") == "secure_remote"
    assert mode_of("203.0.113.9", is_encrypted=True, host="laptop.tail1234.ts.net") == "secure_remote"
    assert mode_of("203.0.113.9", is_encrypted=True, host="ts.net.example:3000") == "direct_public"


def _through_proxy(address: str, proto: str) -> dict[str, Any]:
    return {"additional_headers": {"x-forwarded-for": address, "x-forwarded-proto": proto}}


def test_N0_5_a_public_connection_joins_nothing_before_its_warning_is_acknowledged() -> None:
    async def work() -> None:
        settings = limits(trusted_proxies=("127.0.0.1",))
        async with (
            serving(limits=settings) as bridge,
            raw(bridge) as owner,
            raw(bridge, **_through_proxy("8.8.8.8", "https")) as client,
        ):
            await owner.auth()
            await owner.create("s")
            ack = (await client.auth(resume=[{"session_id": "s"}]))["payload"]
            assert (ack["connection_mode"], ack["requires_health_verification"]) == ("direct_public", True)
            refused = await client.ask("session_join", {"session_id": "s"}, "session_joined")
            assert refused["payload"]["code"] == "PROTO_SEQUENCE_ERROR"
            assert refused["payload"]["details"]["currentPhase"] == "awaiting_ack"
            health = (await client.ask("health_check", {}, "health_status"))["payload"]
            assert (health["status"], health["ready"], health["requires_acknowledgment"]) == ("warning", False, True)
            (code,) = health["warnings"]
            wrong = await client.ask("acknowledge_warning", {"warning_code": "OTHER"}, "acknowledgment_accepted")
            assert wrong["type"] == "error"
            done = await client.ask("acknowledge_warning", {"warning_code": code}, "acknowledgment_accepted")
            assert done["payload"] == {"warning_code": code, "ready": True, "session_timeout": "8h"}
            assert (await client.join("s"))["role"] == "controller"

    run(work)


def test_N0_5_an_unencrypted_connection_from_elsewhere_is_rejected() -> None:
    async def work() -> None:
        settings = limits(trusted_proxies=("127.0.0.1",))
        async with serving(limits=settings) as bridge, raw(bridge, **_through_proxy("192.168.1.7", "http")) as client:
            answer = await client.auth()
            assert (answer["type"], answer["payload"]["code"]) == ("connection_error", "CONN_MISCONFIGURED")
            assert await client.close_code() == 4503

    run(work)


def test_a_client_that_speaks_no_version_of_ours_is_sent_away() -> None:
    async def work() -> None:
        async with serving() as bridge, raw(bridge) as client:
            answer = await client.ask("auth", {"token": "token", "protocol": [7]}, "connection_ack")
            assert answer["payload"]["code"] == "PROTO_VERSION_INCOMPATIBLE"
            assert answer["payload"]["details"] == {"expected": [1, 2], "received": [7]}
            assert await client.close_code() == 4505

    run(work)


def test_B62_B63_a_client_that_does_not_read_is_cut_and_goes_on_where_it_was() -> None:
    async def work() -> None:
        settings = limits(send_timeout=0.1, ring_bytes=500_000)
        async with (
            serving(limits=settings) as bridge,
            raw(bridge) as fast,
            raw(bridge, max_queue=1, close_timeout=0.1) as slow,
        ):
            await fast.auth(client_id="fast")
            await fast.create("s")
            await slow.auth(client_id="slow")
            await slow.join("s")
            live = bridge.hub.sessions["s"]
            text = "word " * 40_000
            sent = 0
            while any(each.client_key == ("t-1", "slow") for each in bridge.hub.connections):
                await live.publish(("stream_chunk", {"stream_id": "a", "text": text}))
                sent += 1
                assert sent < 400, "the slow client was not cut"
                while offsets(fast.received[-1:]) != [sent]:
                    await fast.next()
                fast.received[:] = fast.received[-1:]
            assert (await fast.say("still here"))["status"] == "stored"
            async with raw(bridge) as again:
                await again.auth(client_id="slow")
                joined = await again.join("s", after={"epoch": live.epoch, "offset": sent - 3})
                assert joined["recovered"]
                await again.until("session_state")
                assert offsets(again.received) == [sent - 2, sent - 1, sent, sent + 1]

    run(work)


def test_frames_of_the_log_are_what_the_store_has_and_mask_secrets() -> None:
    async def work() -> None:
        async with serving() as bridge, raw(bridge) as client:
            await client.auth()
            await client.create("s")
            key = "sk-ant-api03-" + "A1b2C3d4E5f6G7h8" * 5
            await client.say(f"use {key}")
            message = next((m for m in client.received if m["type"] == "user_message"), None)
            message = message or await client.until("user_message")
            assert key not in json.dumps(message)
            (entry,) = await bridge.hub.store.read("s")
            assert key.encode() in bytes(entry.body)

    run(work)
