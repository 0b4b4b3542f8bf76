"""Who gets in and stays in, over real sockets: tokens of a file, tickets, expiry, revocation, guesses, TLS and its exchange."""

from __future__ import annotations

import asyncio
import json
import logging
import ssl
import subprocess
import sys
import time
from contextlib import AsyncExitStack, asynccontextmanager
from functools import wraps

import pytest
from bridge_kit import LIMIT, raw, serving

from holdfast.bridge import BridgeConnectionError, Client
from holdfast.bridge.access.lockout import Lockout, LockoutLimits
from holdfast.bridge.access.tls import TlsFiles, pin_of
from holdfast.bridge.access.tokens import Tokens
from holdfast.bridge.settings import BridgeSettings
from holdfast.faults import Fault, HoldfastError
from holdfast.stores import Commit, MemoryStore, Receipt, SqliteStore
from holdfast.wire.reconnect import Schedule


def limited(test):
    """Run an async test in at most four times the limit."""

    @wraps(test)
    def run(**fixtures) -> None:
        asyncio.run(asyncio.wait_for(test(**fixtures), 4 * LIMIT))

    return run


@pytest.fixture
def tokens(tmp_path) -> Tokens:
    return Tokens(tmp_path / "state" / "tokens.json")


@pytest.fixture(scope="module")
def pair(tmp_path_factory) -> TlsFiles:
    files = TlsFiles(tmp_path_factory.mktemp("tls") / "tls")
    files.create()
    return files


async def eventually(holds) -> None:
    """Wait until a condition holds."""
    async with asyncio.timeout(LIMIT):
        while not holds():  # noqa: ASYNC110 - what it waits for sets no event
            await asyncio.sleep(0.01)


@asynccontextmanager
async def joined(bridge, token: str, session: str = "s", **payload):
    async with raw(bridge) as client:
        await client.auth(token, **payload)
        await client.ask("session_start", {"session_id": session}, "session_ready")
        yield client


# Revocation


@limited
async def test_B49_a_token_that_another_process_revokes_ends_its_sockets_and_its_resume_token(tokens):
    phone, tablet = tokens.create("phone").text, tokens.create("tablet").text
    async with serving(tokens=tokens) as bridge, joined(bridge, tablet) as other, raw(bridge) as client:
        await client.auth(phone, client_id="phone-1")
        place = await client.join("s")

        program = f"import pathlib; from holdfast.bridge.access.tokens import Tokens; Tokens(pathlib.Path({str(tokens.path)!r})).revoke('phone')"
        await asyncio.to_thread(subprocess.run, [sys.executable, "-c", program], check=True, timeout=60)

        error = await client.until("connection_error")
        assert error["payload"]["code"] == "AUTH_TOKEN_REVOKED"
        assert await client.close_code() == 4509

        # The resume token is still good, the token is not.
        resume = [{"session_id": "s", "resume_token": place["resume_token"]}]
        async with raw(bridge) as again:
            answer = await again.auth(phone, client_id="phone-1", resume=resume)
            assert (answer["type"], answer["payload"]["code"]) == ("connection_error", "AUTH_TOKEN_REVOKED")
            assert await again.close_code() == 4509
        # Others notice nothing.
        assert (await other.say("still here"))["status"] == "stored"


@limited
async def test_B49_a_file_that_others_can_read_lets_nobody_in_and_is_logged_once(tokens, caplog):
    text = tokens.create("phone").text
    async with serving(tokens=tokens) as bridge, joined(bridge, text) as client:
        with caplog.at_level(logging.ERROR, logger="holdfast"):
            tokens.create("tablet")
            tokens.path.chmod(0o644)
            async with raw(bridge) as stranger:
                answer = await stranger.auth(text)
                assert answer["payload"]["code"] == "CONN_MISCONFIGURED"
                # Where the file is, and what is wrong with it, is not for a stranger.
                assert "tokens.json" not in json.dumps(answer)
            await eventually(lambda: "chmod 600" in caplog.text)
            assert (await client.say("a connection that is open goes on"))["status"] == "stored"
        assert caplog.text.count("what was read before stays in use") == 1


# Other people's sessions


@limited
async def test_B50_a_stolen_place_in_another_persons_session_is_like_one_that_does_not_exist(tokens):
    ada = tokens.create("ada").text
    bob = tokens.create("bob", sessions=("bobs",)).text
    async with serving(tokens=tokens) as bridge, raw(bridge) as first:
        await first.auth(ada, client_id="c")
        place = await first.create("adas")
        await first.say("a secret plan")
        after = {"epoch": place["epoch"], "offset": 0}
        async with raw(bridge) as second:
            ack = await second.auth(
                bob,
                client_id="c",
                resume=[{"session_id": "adas", "resume_token": place["resume_token"], "after": after}],
            )
            assert ack["payload"].get("resumed", []) == []
            stolen = await second.ask(
                "session_join", {"session_id": "adas", "after": after, "resume_token": place["resume_token"]}
            )
            missing = await second.ask("session_join", {"session_id": "nope", "after": after, "resume_token": "x"})
            told = [
                json.dumps(each["payload"]).replace(name, "…") for each, name in ((stolen, "adas"), (missing, "nope"))
            ]
            assert told[0] == told[1]
            assert stolen["payload"]["code"] == "SESS_NOT_FOUND"
            listed = await second.ask("session_list", {}, "sessions")
            assert listed["payload"]["sessions"] == []
            assert "secret plan" not in json.dumps(second.received)


@limited
async def test_the_same_client_id_of_another_person_does_not_take_over(tokens):
    ada, bob = tokens.create("ada").text, tokens.create("bob").text
    async with serving(tokens=tokens) as bridge, raw(bridge) as first, raw(bridge) as second:
        await first.auth(ada, client_id="phone")
        await first.create("s")
        await second.auth(bob, client_id="phone")
        await second.join("s")
        assert (await first.say("still here"))["status"] == "stored"


# Guesses


@limited
async def test_B85_a_thousand_wrong_tokens_over_sockets_lock_loopback_and_leave_others_alone(tokens):
    right = tokens.create("phone").text
    rejected = []
    tokens.watch_rejected(rejected.append)
    async with serving(tokens=tokens) as bridge, joined(bridge, right) as client:
        codes = []
        for number in range(40):  # the machine itself takes a thousand in test_bridge_tokens
            async with raw(bridge) as guesser:
                answer = await guesser.auth(f"guess {number}")
                codes.append((answer["payload"]["code"], await guesser.close_code()))
        assert codes[:11] == [("AUTH_INVALID_TOKEN", 4500)] * 11
        # A locked address is told to come back later, so a real client on it does not give up.
        assert codes[11] == ("CONN_RATE_LIMITED", 1013)
        assert sum(code == "AUTH_INVALID_TOKEN" for code, _ in codes) < 20
        async with raw(bridge) as known:
            # A token of 256 bits cannot be guessed, so the wrong ones of others do not keep its holder out.
            assert (await known.auth(right))["type"] == "connection_ack"
        assert (await client.say("a connection that is open goes on"))["status"] == "stored"
    assert {each.peer for each in rejected} == {"127.0.0.1"}
    assert sum(each.locks for each in rejected) >= 1


@limited
async def test_B85_the_lock_ends_and_the_right_token_works_again(tmp_path):
    tokens = Tokens(lockout=Lockout(LockoutLimits(attempts=1, first=0.2)))
    right = tokens.create("phone").text
    async with serving(tokens=tokens) as bridge:
        for code in ("AUTH_INVALID_TOKEN", "AUTH_INVALID_TOKEN", "CONN_RATE_LIMITED"):
            async with raw(bridge) as guesser:
                assert (await guesser.auth("guess"))["payload"]["code"] == code
        await asyncio.sleep(0.2)
        async with raw(bridge) as client:
            assert (await client.auth(right))["type"] == "connection_ack"


@limited
async def test_B86_a_token_is_in_no_frame_log_entry_or_error(tokens, caplog):
    text, hook = tokens.create("phone").text, tokens.create("CI", kind="hook").text
    with caplog.at_level(logging.DEBUG):
        async with serving(tokens=tokens) as bridge, joined(bridge, text) as client:
            await client.say(f"my token is {text}")
            await client.until("user_message")
            async with raw(bridge) as other:
                await other.auth(hook)
                await other.close_code()
            frames = json.dumps([*client.received, *other.received])
    for secret in (text, hook):
        assert secret[-43:] not in frames
        assert secret[-43:] not in caplog.text


@limited
async def test_who_came_in_was_revoked_or_guessed_is_in_the_audit_trail_without_a_secret(tokens, tmp_path):
    phone, text = tokens.create("phone"), tokens.create("Ada's phone").text
    async with SqliteStore(tmp_path / "work.db") as store:
        async with serving(tokens=tokens, store=store) as bridge:
            async with raw(bridge) as client:
                await client.auth(text)
            tokens.revoke("phone")
            async with raw(bridge) as client:
                await client.auth(phone.text)
            for _ in range(30):
                async with raw(bridge) as client:
                    await client.auth("guess")
        records = await store.audit("bridge")
        facts = [json.loads(bytes(record.payload)) for record in records]
        assert [each["decision"] for each in facts][:3] == ["admitted", "revoked", "rejected"]
        assert {each["decision"] for each in facts[3:]} == {"locked"}
        assert len(facts) < 10
        assert (facts[0]["name"], facts[0]["peer"]) == ("Ada's phone", "127.0.0.1")
        assert records[1].correlation == records[2].correlation == phone.record.id
        assert text[-43:] not in json.dumps(facts)
        # A bridge that has ended writes no more, although its tokens live on.
        tokens.revoke("Ada's phone")
        assert len(await store.audit("bridge")) == len(facts)


@limited
async def test_a_store_that_does_not_take_the_audit_keeps_nobody_out(tokens, caplog):
    class FullStore(MemoryStore):
        async def commit(self, commit: Commit) -> Receipt:
            if commit.chain == "bridge":
                raise HoldfastError(Fault.of("SESS_STORE_UNAVAILABLE"))
            return await super().commit(commit)

    text = tokens.create("phone").text
    async with FullStore() as store, serving(tokens=tokens, store=store) as bridge, joined(bridge, text) as client:
        assert (await client.say("hello"))["status"] == "stored"
        await eventually(lambda: "audit of access was not written" in caplog.text)


# Kinds, expiry, refresh, tickets


@pytest.mark.parametrize("kind", ["hook", "metrics"])
def test_a_token_for_hooks_or_metrics_does_not_connect(tokens, kind):
    @limited
    async def test() -> None:
        text = tokens.create("x", kind=kind).text
        async with serving(tokens=tokens) as bridge, raw(bridge) as client:
            answer = await client.auth(text)
            assert answer["type"] == "connection_error"
            assert await client.close_code() == 4503

    test()


@limited
async def test_B87_a_token_that_expires_ends_the_connection_so_that_the_client_comes_back(tokens):
    text = tokens.create("phone", expires_in=0.3).text
    async with serving(tokens=tokens) as bridge, joined(bridge, text) as client:
        started = time.monotonic()
        error = await client.until("connection_error")
        assert error["payload"]["code"] == "AUTH_TOKEN_EXPIRED"
        assert await client.close_code() == 4005
        assert time.monotonic() - started < 2
        async with raw(bridge) as again:
            assert (await again.auth(text))["payload"]["code"] == "AUTH_TOKEN_EXPIRED"


@limited
async def test_B87_a_new_token_on_the_open_connection_takes_the_place_of_the_old_one(tokens):
    old, new = tokens.create("phone", expires_in=0.4).text, tokens.create("phone", expires_in=60).text
    other = tokens.create("wall", role="observer").text
    async with serving(tokens=tokens) as bridge, joined(bridge, old) as client:
        more = await client.ask("refresh_token", {"token": other}, "ack")
        assert more["payload"]["code"] == "AUTH_FORBIDDEN"
        assert (await client.ask("refresh_token", {"token": new}, "ack"))["type"] == "ack"
        await asyncio.sleep(0.5)
        assert (await client.say("still here"))["status"] == "stored"
        # From now on it is the new token that counts.
        tokens.revoke(new.split("_")[2])
        assert await client.close_code() == 4509


@limited
async def test_a_ticket_opens_one_connection(tokens):
    holder = tokens.identify(tokens.create("page").text, peer="127.0.0.1")
    ticket = tokens.make_ticket(holder)
    async with serving(tokens=tokens) as bridge:
        async with raw(bridge) as client:
            assert (await client.ask("auth", {"ticket": ticket}, "connection_ack"))["type"] == "connection_ack"
        async with raw(bridge) as second:
            assert (await second.ask("auth", {"ticket": ticket}, "connection_ack"))["payload"][
                "code"
            ] == "AUTH_INVALID_TOKEN"


# Room


@limited
async def test_a_websocket_that_is_silent_outlives_the_deadline_for_headers(tokens):
    text = tokens.create("phone").text
    settings = BridgeSettings(header_timeout=0.2)
    async with serving(tokens=tokens, settings=settings) as bridge, joined(bridge, text) as client:
        await asyncio.sleep(0.4)
        assert (await client.say("still here"))["status"] == "stored"


@limited
async def test_sockets_that_never_authenticate_make_room_for_one_that_does(tokens):
    text = tokens.create("phone").text
    settings = BridgeSettings(max_unauthenticated_per_address=3)
    async with AsyncExitStack() as stack:
        bridge = await stack.enter_async_context(serving(tokens=tokens, settings=settings))
        client = await stack.enter_async_context(joined(bridge, text))
        silent = [await stack.enter_async_context(raw(bridge)) for _ in range(4)]
        assert await silent[0].close_code() == 1013
        async with raw(bridge) as newest:
            assert (await newest.auth(text))["type"] == "connection_ack"
        assert (await client.say("still here"))["status"] == "stored"


@limited
async def test_B70_too_many_connections_of_one_address_are_refused_and_a_client_that_comes_back_is_not(tokens):
    text = tokens.create("phone").text
    settings = BridgeSettings(max_connections_per_address=2, max_connections=2)
    async with serving(tokens=tokens, settings=settings) as bridge, raw(bridge) as first, raw(bridge) as second:
        await first.auth(text, client_id="one")
        await second.auth(text, client_id="two")
        async with raw(bridge) as third:
            assert (await third.auth(text, client_id="three"))["payload"]["code"] == "CONN_LIMIT"
            assert await third.close_code() == 4504
        async with raw(bridge) as again:
            assert (await again.auth(text, client_id="one"))["type"] == "connection_ack"
            assert await first.close_code() == 4507


@limited
async def test_a_client_that_sends_too_fast_is_slowed_down_and_loses_nothing(tokens):
    text = tokens.create("phone").text
    settings = BridgeSettings(messages_per_minute=600)
    async with serving(tokens=tokens, settings=settings) as bridge, raw(bridge) as client:
        await client.auth(text)
        started = time.monotonic()
        for _ in range(605):
            await client.send("heartbeat_ping")
        pongs = [await client.until("heartbeat_pong") for _ in range(605)]
        assert len(pongs) == 605
        # 600 at once, and then ten each second.
        assert time.monotonic() - started > 0.4


# TLS


def trusting(files: TlsFiles) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=files.cert)


def pin_in_use(client) -> str:
    return pin_of(client.socket.transport.get_extra_info("ssl_object").getpeercert(True))


@limited
async def test_B89_a_bridge_with_its_own_certificate_serves_encrypted_and_not_in_the_clear(tokens, pair):
    text = tokens.create("phone").text
    settings = BridgeSettings(tls_cert=pair.cert, tls_key=pair.key)
    async with serving(tokens=tokens, settings=settings) as bridge:
        assert bridge.url.startswith("https://127.0.0.1:")
        async with raw(bridge, ssl=trusting(pair)) as client:
            assert pin_in_use(client) == pair.pins()[0]
            ack = await client.auth(text)
            assert ack["payload"]["connection_mode"] == "local_only"
        with pytest.raises(ssl.SSLCertVerificationError, match="self-signed"):
            async with raw(bridge, ssl=ssl.create_default_context()):
                pass
        port = int(bridge.url.rpartition(":")[2])
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /ws HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        assert b"HTTP" not in await reader.read(100)
        writer.close()


@limited
async def test_B89_a_certificate_is_exchanged_while_clients_are_connected(tokens, tmp_path):
    files = TlsFiles(tmp_path / "tls")
    files.create()
    known = files.pins()
    text = tokens.create("phone").text
    settings = BridgeSettings(tls_cert=files.cert, tls_key=files.key)
    anyone = ssl.create_default_context()
    anyone.check_hostname, anyone.verify_mode = False, ssl.CERT_NONE
    async with serving(tokens=tokens, settings=settings) as bridge, raw(bridge, ssl=anyone) as before:
        await before.auth(text)
        await before.create("s")
        files.rotate()

        async def pin_of_new_connection() -> str:
            async with raw(bridge, ssl=anyone) as after:
                return pin_in_use(after)

        async with asyncio.timeout(LIMIT):
            while await pin_of_new_connection() == known[0]:  # noqa: ASYNC110 - the server takes it when it looks
                await asyncio.sleep(0.05)
        assert await pin_of_new_connection() == known[1]
        assert (await before.say("an open connection goes on"))["status"] == "stored"


@limited
async def test_N0_19_clients_are_told_of_a_rotation_and_it_is_made_at_its_time(tokens, tmp_path):
    files = TlsFiles(tmp_path / "tls")
    files.create()
    following = files.pins()[1]
    text = tokens.create("phone").text
    settings = BridgeSettings(tls_cert=files.cert, tls_key=files.key)
    anyone = ssl.create_default_context()
    anyone.check_hostname, anyone.verify_mode = False, ssl.CERT_NONE
    async with serving(tokens=tokens, settings=settings) as bridge, raw(bridge, ssl=anyone) as client:
        await client.auth(text)
        await asyncio.to_thread(files.schedule, time.time() + 86_400)
        told = await client.until("certificate_rotation_scheduled")
        assert told["payload"]["new_fingerprint"] == following
        async with raw(bridge, ssl=anyone) as later:
            await later.auth(text)
            assert (await later.until("certificate_rotation_scheduled"))["payload"] == told["payload"]
        await asyncio.to_thread(files.schedule, time.time())
        await eventually(lambda: files.pins()[0] == following and bridge.hub.rotation is None)
        async with raw(bridge, ssl=anyone) as after:
            await eventually(lambda: bridge._tls.pins() == [following])
            assert pin_in_use(after) in (following, files.pins()[0])


@limited
async def test_B89_a_client_with_both_pins_survives_a_rotation_and_one_with_an_old_pin_is_refused_for_good(
    tokens, tmp_path
):
    files = TlsFiles(tmp_path / "tls")
    files.create()
    known = files.pins()
    text = tokens.create("phone").text
    settings = BridgeSettings(tls_cert=files.cert, tls_key=files.key)
    eager = Schedule(delays=(0.05,))
    async with serving(tokens=tokens, settings=settings) as bridge:
        async with (
            Client(bridge.ws_url, token=text, pins=known, reconnect=eager) as client,
            client.create("s") as session,
        ):
            await session.send("before")
            files.rotate()
            await eventually(lambda: bridge._tls.reload() or bridge._tls.pins() == known[1:])
            for connection in tuple(bridge.hub.connections):
                connection._abort()
            await session.send("after")
        files.rotate()
        bridge._tls.reload()
        with pytest.raises(BridgeConnectionError) as caught:
            async with Client(bridge.ws_url, token=text, pins=known, reconnect=eager):
                pass
        assert caught.value.fault.code == "CONN_TLS_HANDSHAKE_FAILED"
        assert caught.value.fault.context["reason"] == "PIN_MISMATCH"


@limited
async def test_a_bridge_whose_key_is_missing_or_open_to_others_does_not_start(tokens, pair, tmp_path):
    key = tmp_path / "key.pem"
    for mode in (None, 0o644):
        if mode is not None:
            key.write_bytes(pair.key.read_bytes())
            key.chmod(mode)
        with pytest.raises(HoldfastError) as caught:
            async with serving(tokens=tokens, settings=BridgeSettings(tls_cert=pair.cert, tls_key=key)):
                pass
        assert caught.value.fault.code == "CONFIG_INVALID"
