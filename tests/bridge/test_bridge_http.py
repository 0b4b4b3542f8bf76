"""The bridge over HTTP, on real sockets: who may ask for what, sessions and their events, streams, files, admin commands."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import sqlite3

import pytest
from http_kit import http_side, run

from holdfast.bridge.http import checks
from holdfast.bridge.http.checks import checks_of
from holdfast.bridge.settings import PROFILE_BRIDGE, BridgeSettings
from holdfast.faults import Fault, HoldfastError, Redactor
from holdfast.sessions import Session
from holdfast.stores import MemoryStore, SqliteStore
from holdfast.stores.failpoints import FAILPOINTS
from holdfast.testing import VirtualClock


def test_B79_S0_17_a_missing_session_is_the_body_of_document_000_to_the_letter():
    async def scenario():
        async with http_side() as http:
            answer = await http.get("/sessions/sess-abc123")
            body = answer.json()
            assert answer.status_code == 404
            own = {"request_id": answer.headers["x-request-id"], "timestamp": body["timestamp"]}
            # It is a page of this bridge.
            own["documentation_url"] = "/errors/SESS_NOT_FOUND"
            assert body == own | {
                "error": "NotFound",
                "code": "SESS_NOT_FOUND",
                "message": "Session 'sess-abc123' not found",
                "suggestions": [
                    "Check session ID spelling",
                    "Session may have expired",
                    "Use GET /sessions to list active sessions",
                ],
            }
            for path in ("", "/events", "/snapshot", "/stream"):
                for name in ("nope", "..%2f..%2fetc", "%00", "x" * 200):
                    assert (await http.get(f"/sessions/{name}{path}")).json()["code"] in {
                        "SESS_NOT_FOUND",
                        "PROTO_UNKNOWN_TYPE",
                    }

    run(scenario())


def test_a_session_that_a_token_may_not_see_is_as_missing_as_one_that_is_not_there():
    async def scenario():
        async with http_side() as http:
            await http.make("s-ada", "hello")
            await http.make("s-eve")
            for path in ("", "/events", "/snapshot", "/stream"):
                foreign = await http.get(f"/sessions/s-ada{path}", "eve")
                missing = await http.get(f"/sessions/s-xyz{path}", "eve")
                assert foreign.status_code == missing.status_code == 404
                assert foreign.json()["message"].replace("s-ada", "s-xyz") == missing.json()["message"]
            assert (
                await http.post("/sessions/s-ada/events", {"type": "message", "content": "x"}, "eve")
            ).status_code == 404
            listed = (await http.get("/sessions", "eve")).json()["sessions"]
            assert [each["session_id"] for each in listed] == ["s-eve"]

    run(scenario())


ROUTES = [
    ("GET", "/info", "device"),
    ("GET", "/sessions", "device"),
    ("GET", "/sessions/s", "device"),
    ("GET", "/sessions/s/events", "device"),
    ("POST", "/sessions/s/events", "device"),
    ("GET", "/sessions/s/snapshot", "device"),
    ("GET", "/sessions/s/stream", "device"),
    ("GET", "/files", "device"),
    ("GET", "/files/x", "device"),
    ("POST", "/tickets", "device"),
    ("POST", "/errors", "device"),
    ("POST", "/hooks/event", "hook"),
    ("POST", "/hooks/batch", "hook"),
    ("GET", "/metrics", "metrics"),
    ("GET", "/admin/waiting", "admin"),
    ("POST", "/admin/commands", "admin"),
    ("POST", "/admin/reload-hooks", "admin"),
    ("POST", "/admin/sessions/s/close", "admin"),
]


def test_every_route_needs_a_token_of_its_kind_in_the_header():
    holders = {"device": "ada", "hook": "hook", "metrics": "metrics", "admin": "root"}

    async def scenario():
        async with http_side() as http:
            for method, path, kind in ROUTES:
                for base in ("", "/api/v1"):
                    bare = await http.ask(method, f"{base}{path}?token=ada&access_token=ada", None)
                    expected = "HOOK_AUTH_FAILED" if kind == "hook" else "AUTH_REQUIRED"
                    assert (bare.status_code, bare.json()["code"], bare.headers["www-authenticate"]) == (
                        401,
                        expected,
                        "Bearer",
                    )
                wrong = await http.ask(method, path, "guess")
                assert wrong.status_code == 401, path
                for other, token in holders.items():
                    answer = await http.ask(method, path, token)
                    code = answer.json()["code"] if answer.status_code in (401, 403) else ""
                    refusal = "HOOK_AUTH_FAILED" if kind == "hook" else "AUTH_INSUFFICIENT_SCOPE"
                    allowed = other in {kind, "admin"}
                    assert (code != refusal) == allowed, (method, path, other)

    run(scenario())


def test_N0_12_health_is_open_on_loopback_and_shows_its_checks_to_tokens_only():
    async def scenario():
        well = {"agent_sdk": True, "disk_space": True}
        async with http_side(checks={name: lambda name=name: well[name] for name in well}) as http:
            bare = await http.get("/health", None)
            assert (bare.status_code, bare.json()["status"], set(bare.json())) == (
                200,
                "healthy",
                {"status", "timestamp"},
            )
            known = (await http.get("/api/v1/health", "metrics")).json()
            assert known["checks"] == dict.fromkeys(
                ("websocket_server", "hook_endpoint", "store", "agent_sdk", "disk_space"), True
            )
            well["disk_space"] = False
            ill = await http.get("/health")
            assert (ill.status_code, ill.json()["status"], ill.json()["checks"]["disk_space"]) == (
                503,
                "degraded",
                False,
            )
            assert (await http.get("/health", "guess")).status_code == 401
        proxied = BridgeSettings(trusted_proxies=("127.0.0.1",))
        async with http_side(proxied) as http:
            far = await http.get("/health", None, headers={"x-forwarded-for": "203.0.113.9"})
            assert (far.status_code, far.json()["code"]) == (401, "AUTH_REQUIRED")

    run(scenario())


def test_N0_5_a_token_that_came_unencrypted_from_another_machine_is_not_even_looked_at():
    async def scenario():
        async with http_side(BridgeSettings(trusted_proxies=("127.0.0.1",))) as http:
            far = {"x-forwarded-for": "203.0.113.9"}
            plain = await http.get("/info", headers=far | {"x-forwarded-proto": "http"})
            assert (plain.status_code, plain.json()["code"]) == (403, "CONN_INSECURE_TRANSPORT")
            modes = {"8.8.8.8": "direct_public", "192.168.1.7": "private_network", "100.100.1.2": "secure_remote"}
            for address, mode in modes.items():
                seen = await http.get("/info", headers={"x-forwarded-for": address, "x-forwarded-proto": "https"})
                assert seen.json()["connection_mode"] == mode
            assert (await http.get("/info")).json()["connection_mode"] == "local_only"

    run(scenario())


def full_disk(reason):
    """Fail commits as SQLite does on a full disk, until the returned function is called."""

    def reach(name):
        if name == "written":
            error = sqlite3.OperationalError(reason)
            error.sqlite_errorcode, error.sqlite_errorname = sqlite3.SQLITE_FULL, "SQLITE_FULL"
            raise error

    FAILPOINTS.hook = reach


@pytest.mark.parametrize("how", ["message", "hook", "login"])
def test_health_says_that_the_disk_is_full_until_a_commit_works_again(tmp_path, how):
    """A full disk can be read, so a store that answers is no proof. Whatever was tried last says it, and then `/health` tries itself."""

    async def scenario():
        async with SqliteStore(tmp_path / "work.db") as store, http_side(store=store) as http:
            await http.make("s")
            before = await store.chains()
            assert (await http.get("/health")).status_code == 200
            assert await store.chains() == before, "nothing is written while all is well"
            full_disk("database or disk is full")
            try:
                if how == "message":
                    reply = await http.post("/sessions/s/events", {"type": "message", "content": "hi"})
                    assert reply.status_code == 503
                elif how == "hook":
                    event = {"session_id": "s", "hook_event_name": "Stop"}
                    assert (await http.post("/hooks/event", event, "hook")).status_code == 503
                else:
                    http.api.hub.access.revoked("phone")
                    await asyncio.wait((http.api.hub.access._writing,))
                ill = await http.get("/health")
                assert (ill.status_code, ill.json()["checks"]["store"]) == (503, False)
                assert "the disk is full" in ill.json()["problems"]["store"]
                assert "Check disk space" in ill.json()["problems"]["store"]
                assert "problems" not in (await http.get("/health", None)).json()
            finally:
                FAILPOINTS.hook = None
            assert (await http.get("/health")).status_code == 200
            (last,) = (await store.audit("bridge"))[-1:]
            assert b"store takes commits again" in bytes(last.payload)

    run(scenario())


def test_health_says_that_the_disk_of_the_store_takes_no_file(tmp_path):
    """The store may lie on another disk than the bridge's own folder, and a quota may be used up while the disk has space."""
    (home := tmp_path / "home").mkdir()

    async def scenario():
        async with SqliteStore(tmp_path / "data" / "work.db") as store, http_side(store=store) as http:
            http.api._checks = checks_of(http.api.hub, home)
            http.api.hub.clock = clock = VirtualClock()
            assert (await http.get("/health")).json()["checks"]["disk_space"] is True
            clock.advance(60)
            soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
            resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
            try:
                ill = await http.get("/health")
            finally:
                resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
            assert (ill.status_code, ill.json()["checks"]["disk_space"]) == (503, False)
            assert "The disk cannot be written to: File too large" in ill.json()["problems"]["disk_space"]
            assert (await http.get("/health")).status_code == 200
            assert [each.name for each in home.iterdir()] == []

    run(scenario())


def test_a_disk_with_next_to_no_space_is_ill(tmp_path, monkeypatch):
    monkeypatch.setattr(checks, "LEAST_FREE", 10**18)

    async def scenario():
        async with http_side() as http:
            http.api._checks = checks_of(http.api.hub, tmp_path)
            ill = (await http.get("/health")).json()
            assert ill["checks"]["disk_space"] is False
            assert "is the least" in ill["problems"]["disk_space"]

    run(scenario())


def test_a_store_that_is_down_makes_the_bridge_degraded():
    class Down(MemoryStore):
        async def sessions(self, **_):
            raise HoldfastError(Fault.of("SESS_STORE_UNAVAILABLE"))

    async def scenario():
        async with Down() as store, http_side(store=store) as http:
            assert (await http.get("/health")).json()["checks"]["store"] is False
            answer = await http.get("/sessions")
            assert (answer.status_code, answer.json()["error"]) == (503, "ServiceUnavailable")

    run(scenario())


def test_N0_13_the_limits_in_info_and_those_of_profile_bridge():
    async def scenario():
        async with http_side(BridgeSettings(**PROFILE_BRIDGE), agents=("coder",)) as http:
            info = (await http.get("/info")).json()
            assert {
                "max_sessions": 10,
                "max_websocket_connections": 5,
                "max_message_size_mb": 10.0,
                "hook_timeout_seconds": 30.0,
            }.items() <= info["limits"].items()
            assert info["supported_agents"] == ["coder"]
            assert info["limits"]["requests_per_minute"]["/hooks/event"] == 120

    run(scenario())


def test_a_plain_request_to_the_websocket_says_what_it_expects():
    async def scenario():
        async with http_side() as http:
            answer = await http.get("/ws", None)
            assert (answer.status_code, answer.json()["code"]) == (400, "CONN_UPGRADE_REQUIRED")

    run(scenario())


def test_sessions_are_listed_in_pages_by_state_and_described():
    async def scenario():
        async with http_side() as http:
            for number in range(5):
                await http.make(f"s-{number}", "hello")
            async with Session.open("s-9", store=http.store) as session:
                await session.keyed("one").step(lambda: 1)
            seen, after = [], ""
            while True:
                page = (await http.get(f"/sessions?limit=2&after={after}")).json()
                seen += [each["session_id"] for each in page["sessions"]]
                if page["next"] is None:
                    break
                after = page["next"]
            assert seen == ["s-0", "s-1", "s-2", "s-3", "s-4", "s-9"]
            paused = (await http.get("/sessions?state=paused")).json()["sessions"]
            assert [(each["session_id"], each["resumable"]) for each in paused] == [("s-9", True)]
            one = (await http.get("/sessions/s-1")).json()
            assert (one["state"], one["agent"], one["top_offset"], one["in_use"]) == ("created", "coder", 1, False)
            assert one["checkpoint"] is None
            assert (await http.get("/sessions/s-9")).json()["checkpoint"]["message_count"] == 0
            for query in ("limit=0", "limit=x", "state=lost", "limit=99999999999999999999999"):
                answer = await http.get(f"/sessions?{query}")
                assert (answer.status_code, answer.json()["code"]) == (400, "PROTO_INVALID_MESSAGE")
                assert answer.json()["violations"][0]["field"] == query.partition("=")[0]

    run(scenario())


def test_events_are_paged_without_loss_and_a_position_of_another_log_is_a_409():
    async def scenario():
        async with http_side() as http:
            await http.make("s", *map(str, range(12)))
            texts, after, epoch = [], 0, None
            while True:
                query = f"after={after}&limit=5" + (f"&epoch={epoch}" if epoch else "")
                page = (await http.get(f"/sessions/s/events?{query}")).json()
                texts += [event["payload"]["text"] for event in page["events"]]
                after, epoch = page["next_after"], page["epoch"]
                if not page["has_more"]:
                    break
            assert texts == list(map(str, range(12)))
            assert page["events"][-1]["offset"] == after == 12
            for query, reason in (("after=3&epoch=other", "epoch"), ("after=99", "ahead")):
                answer = await http.get(f"/sessions/s/events?{query}")
                assert (answer.status_code, answer.json()["code"]) == (409, "SESS_GAP")
                assert answer.json()["gap"]["reason"] == reason
                assert answer.json()["gap"]["recoverable_via"] == ["snapshot", "events_api"]
                assert "events" not in answer.json()

    run(scenario())


def test_reading_starts_no_grace_and_leaves_no_session_in_use():
    async def scenario():
        async with http_side() as http:
            await http.make("s", "hello")
            for path in ("", "/events", "/snapshot"):
                assert (await http.get(f"/sessions/s{path}")).status_code == 200
            assert http.api.hub.sessions == {}
            assert (await http.get("/sessions/s")).json()["state"] == "created"

    run(scenario())


def test_a_snapshot_has_the_position_at_which_its_log_goes_on():
    async def scenario():
        async with http_side() as http:
            await http.make("s", "a", "b")
            snapshot = (await http.get("/sessions/s/snapshot")).json()
            assert (snapshot["offset"], snapshot["state"]["in_flight"]) == (2, False)
            await http.publish("s", "c")
            position = f"epoch={snapshot['epoch']}&after={snapshot['offset']}"
            assert [
                event["payload"]["text"]
                for event in (await http.get(f"/sessions/s/events?{position}")).json()["events"]
            ] == ["c"]

    run(scenario())


def test_a_message_is_stored_once_by_its_key_and_an_observer_may_not_send():
    async def scenario():
        async with http_side() as http:
            await http.make("s")
            send = {"type": "message", "content": "fix the tests"}
            key = {"idempotency-key": "k-1"}
            first = await http.post("/sessions/s/events", send, headers=key)
            assert (first.status_code, first.json()["offset"], first.json()["duplicate"]) == (202, 1, False)
            again = await http.post("/sessions/s/events", send, headers=key)
            assert (again.status_code, again.json()["offset"], again.json()["duplicate"]) == (202, 1, True)
            other = await http.post("/sessions/s/events", {**send, "content": "else"}, headers=key)
            assert (other.status_code, other.json()["code"]) == (409, "PROTO_DUPLICATE_ID")
            events = (await http.get("/sessions/s/events")).json()["events"]
            assert [(each["type"], each["payload"]["content"]) for each in events] == [
                ("user_message", "fix the tests")
            ]
            denied = await http.post("/sessions/s/events", send, "olaf")
            assert (denied.status_code, denied.json()["code"]) == (403, "AUTH_FORBIDDEN")
            for body, field in (
                ({"type": "message"}, "content"),
                ({"type": "answer"}, "question_id"),
                ({"type": "x"}, "type"),
            ):
                answer = await http.post("/sessions/s/events", body)
                assert (answer.status_code, answer.json()["violations"][0]["field"]) == (400, field)

    run(scenario())


def test_a_question_is_answered_over_http_once():
    async def scenario():
        async with http_side() as http, Session.open("s", store=http.store) as session:
            asked = asyncio.create_task(session.approve("Deploy?", expires=60))
            events = []
            while not events:
                page = (await http.get("/sessions/s/events")).json()
                events = [each for each in page["events"] if each["type"] == "question"]
            question = events[0]["payload"]["question_id"]
            body = {"type": "answer", "question_id": question, "value": True}
            assert (await http.post("/sessions/s/events", body)).status_code == 202
            assert await asked is True
            late = await http.post("/sessions/s/events", {**body, "value": False})
            assert (late.status_code, late.json()["code"]) == (409, "SESS_ALREADY_ANSWERED")

    run(scenario())


def test_B93_an_operation_on_a_closed_session_is_SESS_CLOSED():
    async def scenario():
        async with http_side() as http:
            await http.make("s", "hello")
            closed = await http.post("/admin/sessions/s/close", {"reason": "done"}, "root")
            assert (closed.status_code, closed.json()["state"]) == (200, "closed")
            send = await http.post("/sessions/s/events", {"type": "message", "content": "x"})
            assert (send.status_code, send.json()["code"], send.json()["error"]) == (409, "SESS_CLOSED", "Conflict")
            assert (await http.post("/admin/sessions/s/close", {}, "root")).json()["code"] == "SESS_CLOSED"
            assert (await http.get("/sessions/s/events")).status_code == 200

    run(scenario())


async def parts(response):
    """Yield the events of a stream as id, name and data."""
    fields = {}
    async for line in response.aiter_lines():
        if line:
            name, _, value = line.partition(": ")
            fields[name] = value
        elif fields:
            yield fields.get("id"), fields.get("event", "message"), json.loads(fields.get("data", "null"))
            fields = {}


async def take(events, count):
    found = []
    async for event in events:
        if event[2] is not None:
            found.append(event)
        if len(found) == count:
            break
    return found


def test_a_stream_sends_what_was_and_what_comes_and_goes_on_after_its_last_event():
    async def scenario():
        async with http_side() as http:
            await http.make("s", "a", "b")
            auth = {"authorization": "Bearer ada"}
            async with http.client.stream("GET", "/sessions/s/stream", headers=auth) as response:
                assert response.headers["content-type"].startswith("text/event-stream")
                assert response.headers["cache-control"] == "no-store"
                events = parts(response)
                assert [data["payload"]["text"] for _, _, data in await take(events, 2)] == ["a", "b"]
                await http.publish("s", "c")
                ((last, _, data),) = await take(events, 1)
                assert data["payload"]["text"] == "c"
                assert last == f"{data['epoch']}:3"
            await http.publish("s", "d", "e")
            async with http.client.stream(
                "GET", "/sessions/s/stream", headers=auth | {"last-event-id": last}
            ) as response:
                assert [data["payload"]["text"] for _, _, data in await take(parts(response), 2)] == ["d", "e"]

    run(scenario())


def test_an_event_id_that_cannot_be_used_is_a_409_with_the_gap():
    async def scenario():
        async with http_side() as http:
            await http.make("s", "a")
            epoch = (await http.get("/sessions/s")).json()["epoch"]
            for given, reason in ((f"{epoch}:7", "ahead"), ("other:1", "epoch")):
                answer = await http.get("/sessions/s/stream", headers={"last-event-id": given})
                assert (answer.status_code, answer.json()["gap"]["reason"]) == (409, reason)
            for given in ("1", "x:y", f"{epoch}:-1", f"{epoch}:99999999999999999"):
                assert (await http.get("/sessions/s/stream", headers={"last-event-id": given})).status_code == 400
            assert (await http.get("/sessions/s/stream?history=all")).status_code == 400

    run(scenario())


def test_a_quiet_stream_has_heartbeats_that_are_events():
    async def scenario():
        async with http_side(heartbeat=0.02) as http:
            await http.make("s")
            auth = {"authorization": "Bearer ada"}
            async with http.client.stream("GET", "/sessions/s/stream", headers=auth) as response:
                beats = await take(parts(response), 2)
                assert [(id_, name) for id_, name, _ in beats] == [(None, "heartbeat")] * 2

    run(scenario())


def test_a_stream_ends_when_its_token_is_revoked_and_when_the_server_stops():
    async def scenario():
        async with http_side() as http:
            await http.make("s", "a")
            for end in (lambda: http.tokens.revoke("ada"), http.api.close):
                auth = {"authorization": f"Bearer {'ada' if 'ada' in http.tokens.known else 'root'}"}
                async with http.client.stream("GET", "/sessions/s/stream", headers=auth) as response:
                    events = parts(response)
                    await take(events, 1)
                    end()
                    assert [event async for event in events] == []
            assert http.api.sessions.streams == set()

    run(scenario())


def test_a_client_that_leaves_its_stream_leaves_nothing_behind():
    async def scenario():
        async with http_side() as http:
            await http.make("s", "a")
            auth = {"authorization": "Bearer ada"}
            before = len(asyncio.all_tasks())
            async with http.client.stream("GET", "/sessions/s/stream", headers=auth) as response:
                await take(parts(response), 1)
            async with asyncio.timeout(5):
                while http.api.sessions.streams or len(asyncio.all_tasks()) > before:  # noqa: ASYNC110 - the server's own state
                    await asyncio.sleep(0.005)

    run(scenario())


def test_the_stream_of_a_closed_session_ends_and_then_is_a_204():
    async def scenario():
        async with http_side() as http:
            await http.make("s", "a")
            await http.post("/admin/sessions/s/close", {}, "root")
            auth = {"authorization": "Bearer ada"}
            async with http.client.stream("GET", "/sessions/s/stream", headers=auth) as response:
                events = [event async for event in parts(response) if event[2] is not None]
            assert events[-1][2]["payload"]["event"] == "session_closed"
            again = await http.get("/sessions/s/stream", headers={"last-event-id": events[-1][0]})
            assert again.status_code == 204

    run(scenario())


@pytest.mark.parametrize("limit", ["max_connections", "max_connections_per_address", "max_clients"])
def test_no_more_streams_than_sockets_are_allowed_for_all_for_an_address_and_in_a_session(limit):
    async def scenario():
        async with http_side(BridgeSettings(**{limit: 1})) as http:
            await http.make("s", "a")
            await http.make("other", "a")
            auth = {"authorization": "Bearer ada"}
            async with http.client.stream("GET", "/sessions/s/stream", headers=auth) as response:
                await take(parts(response), 1)
                answer = await http.get("/sessions/s/stream")
                assert (answer.status_code, answer.json()["code"]) == (503, "CONN_LIMIT")
                async with http.client.stream("GET", "/sessions/other/stream", headers=auth) as other:
                    assert other.status_code == (200 if limit == "max_clients" else 503)
            async with asyncio.timeout(5):
                while http.api.sessions.streams:  # noqa: ASYNC110 - the server's own state
                    await asyncio.sleep(0.005)
            async with http.client.stream("GET", "/sessions/s/stream", headers=auth) as again:
                assert again.status_code == 200

    run(scenario())


def test_a_ticket_stands_for_the_token_once():
    async def scenario():
        async with http_side() as http:
            body = (await http.post("/tickets")).json()
            assert body["expires_in_ms"] == 30_000
            assert http.tokens.redeem(body["ticket"], peer="").name == "Ada"
            with pytest.raises(HoldfastError):
                http.tokens.redeem(body["ticket"], peer="")

    run(scenario())


def test_an_admin_lists_what_waits_and_commands_it():
    async def scenario():
        async with http_side() as http:
            assert (await http.get("/admin/waiting", "root")).json() == {"waiting": []}
            command = {"run": "r-1", "command": "retry_now"}
            assert (await http.post("/admin/commands", command, "root")).json() == {"done": False}
            wrong = await http.post("/admin/commands", {"run": "r-1", "command": "explode"}, "root")
            assert (wrong.status_code, wrong.json()["violations"][0]["field"]) == (400, "command")

    run(scenario())


@pytest.fixture
def project(tmp_path):
    root = tmp_path / "project"
    (root / "src").mkdir(parents=True)
    (root / "src" / "main.py").write_text("print(1)\n")
    (root / ".env").write_text("KEY=secret")
    (root / "page.html").write_text("<script>alert(1)</script>")
    (tmp_path / "project-evil").mkdir()
    (tmp_path / "project-evil" / "x").write_text("outside")
    (root / "escape").symlink_to(tmp_path / "project-evil" / "x")
    (root / "inside").symlink_to(root / "src" / "main.py")
    (root / "loop").symlink_to(root / "loop")
    (root / "secret-link").symlink_to(root / ".env")
    os.mkfifo(root / "pipe")
    return root


def test_files_are_read_and_folders_listed(project):
    async def scenario():
        async with http_side(BridgeSettings(project_root=project)) as http:
            file = await http.get("/files/src/main.py")
            assert (file.text, file.headers["content-type"]) == ("print(1)\n", "application/octet-stream")
            assert (await http.get("/files/inside")).text == "print(1)\n"
            html = await http.get("/files/page.html")
            assert html.headers["content-disposition"] == "attachment"
            listed = (await http.get("/files")).json()["entries"]
            assert [each["name"] for each in listed] == ["page.html", "src"]

    run(scenario())


@pytest.mark.parametrize(
    "path",
    [
        *(".aws/credentials", ".AWS/config", ".npmrc", "web/.npmrc", "credentials.json", "gcp-credentials.json", "prod.env", ".envrc"),
        *(".pypirc", ".kube/config", ".docker/config.json", ".git-credentials", "app.sqlite", "app.sqlite3", "app.sqlite-wal", "id_ecdsa"),
        *("store.p12", "service-account-1.json", "client_secret_7.json", "terraform.tfstate", ".pgpass", "secrets.yaml"),
    ],
)  # fmt: skip
def test_files_that_usually_hold_secrets_do_not_exist(project, path):
    (project / path).parent.mkdir(parents=True, exist_ok=True)
    (project / path).write_text("secret")

    async def scenario():
        async with http_side(BridgeSettings(project_root=project)) as http:
            assert (await http.get(f"/files/{path}")).status_code == 404
            assert path.split("/")[0] not in [
                each["name"] for each in (await http.get("/files")).json()["entries"] if each["name"] != "web"
            ]

    run(scenario())


def test_a_token_that_is_limited_to_sessions_reads_no_files(project):
    async def scenario():
        async with http_side(BridgeSettings(project_root=project)) as http:
            for path in ("/files", "/files/src/main.py", "/files/nope"):
                answer = await http.get(path, token="eve")
                assert (answer.status_code, answer.json()["code"]) == (403, "AUTH_INSUFFICIENT_SCOPE"), path

    run(scenario())


def test_files_outside_of_the_root_links_devices_and_secrets_do_not_exist(project):
    async def scenario():
        async with http_side(BridgeSettings(project_root=project)) as http:
            for path in (
                "../project-evil/x",
                "%2e%2e/project-evil/x",
                "..%2fproject-evil%2fx",
                "src/../../project-evil/x",
                "%2fetc%2fpasswd",
                "/etc/passwd",
                "escape",
                "loop",
                "pipe",
                ".env",
                "secret-link",
                "src%00main.py",
                "..%5cproject-evil%5cx",
                "nope",
                "a" * 5_000,
            ):
                raw = f"GET /files/{path} HTTP/1.1\r\nHost: {http.served.host}\r\nAuthorization: Bearer ada\r\nConnection: close\r\n\r\n"
                answer = await http.served.exchange(raw.encode())
                assert (answer.status, answer.json()["code"]) == (404, "TOOL_FILE_NOT_FOUND"), path

    run(scenario())


def test_B81_thousands_of_ranges_are_ignored_and_quick(project):
    async def scenario():
        async with http_side(BridgeSettings(project_root=project)) as http:
            ranges = ",".join(f"{n}-{n}" for n in range(3_000))
            answer = await http.get("/files/src/main.py", headers={"range": f"bytes={ranges}"})
            assert (answer.status_code, answer.text, answer.headers["accept-ranges"]) == (200, "print(1)\n", "none")

    run(scenario())


def test_B106_a_page_of_events_of_a_stored_session_after_a_restart(tmp_path):
    async def scenario():
        path = tmp_path / "work.db"
        async with SqliteStore(path) as store, http_side(store=store) as http:
            await http.make("s", *map(str, range(20)))
            epoch = (await http.get("/sessions/s")).json()["epoch"]
        async with SqliteStore(path) as store, http_side(store=store) as http:
            answer = await http.get(f"/sessions/s/events?after=17&epoch={epoch}")
            assert [each["payload"]["text"] for each in answer.json()["events"]] == ["17", "18", "19"]

    run(scenario())


def test_an_error_says_what_to_do_over_http():
    async def scenario():
        async with http_side() as http:
            await http.make("s")
            unknown = (await http.post("/sessions/s/events", {"type": "answer", "question_id": "q-1"})).json()
            assert (unknown["code"], unknown["message"]) == ("SESS_NOT_FOUND", "Session 's' has no question 'q-1'")
            assert unknown["suggestions"] == ["GET /sessions/s/snapshot lists the questions that wait"]
            word = (await http.post("/sessions/s/events", {"type": "msg"})).json()["violations"][0]
            assert word["field"] == "type"
            assert "'msg'" in word["constraint"]
            assert all(each in word["constraint"] for each in ("message", "session_message", "answer"))
            plain = await http.ask(
                "POST", "/sessions/s/events", "ada", content=b"x", headers={"content-type": "text/plain"}
            )
            assert (plain.status_code, plain.json()["message"]) == (
                415,
                "Expected a body of application/json, received text/plain",
            )
            assert plain.json()["suggestions"] == ["Send the header Content-Type: application/json"]
            event = await http.ask("GET", "/sessions/s/stream", "ada", headers={"last-event-id": "nope"})
            assert event.json()["violations"][0]["field"] == "Last-Event-ID"
            assert "openapi.json" in (await http.get("/nope")).json()["suggestions"][0]
            method = (await http.post("/info", {})).json()
            assert (method["error"], method["suggestions"]) == ("MethodNotAllowed", ["Use one of GET, HEAD"])
            bare = (await http.ask("GET", "/info", None)).json()
            assert "Authorization: Bearer" in bare["suggestions"][0]

    run(scenario())


def test_B105_a_message_with_a_secret_of_the_server_is_the_clients_mistake():
    """It was a 500 about `entry.body`, which says nobody what to do."""
    secret = "sk-canary-0123456789abcdef"

    async def scenario():
        async with MemoryStore(redactor=Redactor.knowing([secret])) as store, http_side(store=store) as http:
            await http.make("s")
            answer = await http.post("/sessions/s/events", {"type": "message", "content": f"use {secret}"})
            assert (answer.status_code, answer.json()["code"]) == (400, "PROTO_INVALID_MESSAGE")
            assert "leave it out" in answer.json()["violations"][0]["constraint"]
            assert secret not in answer.text
            assert (await http.get("/sessions/s/events")).json()["events"] == []

    run(scenario())
