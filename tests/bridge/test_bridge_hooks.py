"""Hook events over HTTP: their three forms, what is wrong with them, one event for each key, and a store that is down."""

from __future__ import annotations

import asyncio
import json
import time

import msgspec
import prometheus_client
import pytest
from http_kit import http_side, run

from holdfast import Runtime
from holdfast.bridge.error_reports import ErrorReports
from holdfast.bridge.http.hooks import EVENTS, HookRules, read_hook
from holdfast.faults import CATALOG, Fault, HoldfastError
from holdfast.policies.alerts import Alerts
from holdfast.sinks import raise_alerts
from holdfast.sinks.prometheus import count_errors
from holdfast.stores import MemoryStore
from holdfast.testing import VirtualClock
from holdfast.views import wire

SEED = {
    "event": "PreToolUse",
    "timestamp": "2026-03-20T14:32:00Z",
    "session_id": "sess-abc123",
    "payload": {"tool": "bash", "params": {"command": "ls"}},
}
NATIVE = {
    "session_id": "0f5e3a7c-91b1-4d0e-8a52-3f1a2b3c4d5e",
    "transcript_path": "/home/ada/.claude/projects/x/0f5e.jsonl",
    "cwd": "/home/ada/project",
    "permission_mode": "default",
    "hook_event_name": "PostToolUse",
    "tool_name": "Write",
    "tool_input": {"file_path": "/home/ada/project/a.txt", "content": "hello"},
    "tool_response": {"filePath": "/home/ada/project/a.txt", "success": True},
    "tool_use_id": "toolu_01ABC",
}


async def events_of(http, session):
    page = (await http.get(f"/sessions/{session}/events")).json()
    return [event for event in page["events"] if event["type"] == "claude_event"]


def test_B71_the_form_of_document_000_is_received_and_becomes_a_claude_event_with_an_offset():
    async def scenario():
        async with http_side() as http:
            answer = await http.post("/hooks/event", SEED, "hook")
            reply = answer.json()
            assert answer.status_code == 200
            assert (reply["received"], reply["broadcast_count"], reply["offset"]) == (True, 0, 1)
            ((event),) = await events_of(http, "sess-abc123")
            assert event["payload"]["event"] == "PreToolUse"
            assert event["payload"]["data"] == {"timestamp": SEED["timestamp"], **SEED["payload"]}
            assert event["payload"]["event_id"] == reply["event_id"]
            assert event["offset"] == 1

    run(scenario())


def test_N0_16_the_reply_has_the_id_of_the_event_how_many_get_it_and_the_time():
    async def scenario():
        async with http_side() as http:
            reply = (await http.post("/api/v1/hooks/event", SEED, "hook")).json()
            assert {"received", "event_id", "broadcast_count", "timestamp"} <= set(reply)

    run(scenario())


def test_N0_17_the_older_key_event_type_is_accepted():
    older = {("event_type" if name == "event" else name): value for name, value in SEED.items()}

    async def scenario():
        async with http_side() as http:
            assert (await http.post("/hooks/event", older, "hook")).json()["received"] is True
            assert (await events_of(http, "sess-abc123"))[0]["payload"]["event"] == "PreToolUse"
            wrong = (await http.post("/hooks/event", older | {"event_type": "Nope"}, "hook")).json()
            assert wrong["errors"][0]["field"] == "event_type"

    run(scenario())


def test_B73_the_body_of_claude_code_itself_is_accepted_under_the_same_names():
    async def scenario():
        async with http_side() as http:
            before = time.time()
            assert (await http.post("/hooks/event", NATIVE, "hook")).status_code == 200
            (event,) = await events_of(http, NATIVE["session_id"])
            data = event["payload"]["data"]
            assert event["payload"]["event"] == "PostToolUse"
            assert (data["tool"], data["params"]["content"], data["success"]) == ("Write", "hello", True)
            assert data["working_directory"] == "/home/ada/project"
            assert data["result"] == NATIVE["tool_response"]
            assert not {"tool_name", "tool_input", "session_id", "hook_event_name"} & set(data)
            # The server stamps it: the body has no time.
            assert event["timestamp"][:19] >= time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(before))

    run(scenario())


@pytest.mark.parametrize("name", ["PermissionRequest", "SubagentStart", "TeammateIdle", "SomethingOfNextYear"])
def test_B73_an_event_that_only_a_newer_claude_code_knows_is_accepted_in_its_own_form(name):
    event = read_hook({"hook_event_name": name, "session_id": "s"}, now=0)
    assert event.event == name


def test_S0_24_the_seven_events_of_document_000_and_two_more_are_known():
    assert EVENTS[:7] == (
        "SessionStart",
        "SessionEnd",
        "PreToolUse",
        "PostToolUse",
        "UserPromptSubmit",
        "Stop",
        "SubagentStop",
    )
    for name in EVENTS:
        assert read_hook(SEED | {"event": name, "payload": {}}, now=0).event == name


def test_S0_25_the_reply_to_an_unknown_event_is_the_one_of_document_000():
    async def scenario():
        async with http_side() as http:
            answer = await http.post("/hooks/event", SEED | {"event": "Explode"}, "hook")
            reply = answer.json()
            assert answer.status_code == 400
            assert (reply["received"], reply["code"]) == (False, "HOOK_VALIDATION_FAILED")
            ((error),) = reply["errors"]
            assert set(error) == {"field", "message"}
            assert error["field"] == "event"
            assert error["message"].startswith("Invalid enum value. Expected one of: SessionStart, SessionEnd")
            assert wire.read({name: reply[name] for name in ("received", "code", "errors")}).code == reply["code"]

    run(scenario())


def test_B74_each_field_that_is_wrong_is_listed():
    async def scenario():
        async with http_side() as http:
            wrong = {"event": "Stop", "timestamp": "2026-03-20 14:32:00", "session_id": "", "payload": []}
            answer = await http.post("/hooks/event", wrong, "hook")
            assert [error["field"] for error in answer.json()["errors"]] == ["timestamp", "session_id", "payload"]
            assert [error["code"] for error in answer.json()["validation_errors"]] == [
                "HOOK_INVALID_TIMESTAMP",
                "HOOK_INVALID_SESSION_ID",
                "HOOK_INVALID_PAYLOAD",
            ]
            empty = (await http.post("/hooks/event", {}, "hook")).json()
            assert [error["field"] for error in empty["errors"]] == ["event", "timestamp", "session_id", "payload"]
            listed = (await http.post("/hooks/event", [SEED], "hook")).json()
            assert listed["errors"] == [{"field": "$", "message": "Expected an object"}]
            for name in ("../../etc", "a b", "x" * 129, 7, None):
                reply = (await http.post("/hooks/event", SEED | {"session_id": name}, "hook")).json()
                assert [error["field"] for error in reply["errors"]] == ["session_id"]
            assert (await http.get("/sessions")).json()["sessions"] == []

    run(scenario())


@pytest.mark.parametrize(
    "code", [code for code in CATALOG if code.startswith("HOOK_INVALID") or code == "HOOK_STALE_TIMESTAMP"]
)
def test_N0_17_every_code_of_a_field_is_raised(code):
    wrong = {
        "HOOK_INVALID_EVENT_TYPE": {"event": "Explode"},
        "HOOK_INVALID_TIMESTAMP": {"timestamp": "yesterday"},
        "HOOK_STALE_TIMESTAMP": {"timestamp": "2026-03-20T14:26:59Z"},
        "HOOK_INVALID_SESSION_ID": {"session_id": ""},
        "HOOK_INVALID_PAYLOAD": {"payload": "text"},
    }[code]
    at = 1774017120.0  # 2026-03-20T14:32:00Z
    (error,) = read_hook(SEED | wrong, now=at, rules=HookRules(skew=300))
    assert (error.code, error.fault.code) == (code, code)


@pytest.mark.parametrize(("away", "is_right"), [(-301, False), (-300, True), (300, True), (301, False)])
def test_N0_17_a_time_more_than_five_minutes_away_is_stale_where_that_is_checked(away, is_right):
    at = 1774017120.0
    assert isinstance(read_hook(SEED, now=at + away, rules=HookRules(skew=300)), list) != is_right
    # Without the rule an event may have waited as long as it likes.
    assert not isinstance(read_hook(SEED, now=at + 86_400), list)


@pytest.mark.parametrize(
    ("event", "payload", "fields"),
    [
        ("SessionStart", {}, ["working_directory"]),
        ("PreToolUse", {}, ["tool", "params", "risk_level", "requires_approval"]),
        ("PreToolUse", {"tool": "b", "params": {}, "risk_level": "huge", "requires_approval": 1}, ["risk_level", "requires_approval"]),
        ("PostToolUse", {"tool": "b", "params": {}, "result": None}, ["success"]),
        ("UserPromptSubmit", {"prompt": 7}, ["prompt"]),
        ("Stop", {"reason": "bored"}, ["reason"]),
        ("Stop", {"reason": "max_tokens"}, []),
    ],
)  # fmt: skip
def test_N0_17_a_strict_bridge_requires_the_fields_of_each_event(event, payload, fields):
    body = SEED | {"event": event, "payload": payload}
    read = read_hook(body, now=0, rules=HookRules(strict=True))
    found = [error.field for error in read] if isinstance(read, list) else []
    assert found == [f"payload.{field}" for field in fields]
    assert not isinstance(read_hook(body, now=0), list)


def test_B75_the_same_tool_call_or_key_again_is_one_event():
    async def scenario():
        async with http_side() as http:
            first = (await http.post("/hooks/event", NATIVE, "hook")).json()
            again = (await http.post("/hooks/event", NATIVE | {"permission_mode": "plan"}, "hook")).json()
            assert (again["event_id"], again["offset"], again["duplicate"]) == (first["event_id"], 1, True)
            pre = await http.post("/hooks/event", NATIVE | {"hook_event_name": "PreToolUse"}, "hook")
            assert pre.json()["duplicate"] is False
            assert len(await events_of(http, NATIVE["session_id"])) == 2
            key = {"idempotency-key": "key/1"}
            one = await http.post("/hooks/event", SEED, "hook", headers=key)
            two = await http.post("/hooks/event", SEED, "hook", headers=key)
            assert one.json()["event_id"] == two.json()["event_id"]
            other = await http.post("/hooks/event", SEED | {"event": "Stop"}, "hook", headers=key)
            assert (other.status_code, other.json()["code"]) == (409, "PROTO_DUPLICATE_ID")
            # Without a key nothing says that two events are one.
            await http.post("/hooks/event", SEED, "hook")
            await http.post("/hooks/event", SEED, "hook")
            assert len(await events_of(http, "sess-abc123")) == 3

    run(scenario())


def test_B75_a_key_is_that_of_its_token_and_a_tool_call_is_one_event_whoever_posts_it():
    async def scenario():
        async with http_side() as http:
            key = {"idempotency-key": "1"}
            one = (await http.post("/hooks/event", SEED, "hook", headers=key)).json()
            two = await http.post("/hooks/event", SEED | {"event": "Stop"}, "root", headers=key)
            assert (two.status_code, two.json()["duplicate"]) == (200, False)
            assert two.json()["event_id"] != one["event_id"]
            await http.post("/hooks/event", NATIVE, "hook")
            assert (await http.post("/hooks/event", NATIVE, "root")).json()["duplicate"] is True

    run(scenario())


def test_B75_first_events_that_come_at_once_make_one_session_and_all_are_stored():
    async def scenario():
        async with http_side() as http:
            bodies = [NATIVE | {"tool_use_id": f"t-{number}"} for number in range(8)]
            answers = await asyncio.gather(*(http.post("/hooks/event", body, "hook") for body in bodies))
            assert [answer.status_code for answer in answers] == [200] * 8
            assert sorted(answer.json()["offset"] for answer in answers) == list(range(1, 9))

    run(scenario())


def test_N0_16_a_batch_stores_what_is_right_and_says_what_is_not():
    async def scenario():
        async with http_side() as http:
            batch = {"events": [SEED, SEED | {"event": "Nope"}, NATIVE, "text"]}
            answer = await http.post("/hooks/batch", batch, "hook")
            reply = answer.json()
            assert answer.status_code == 200
            assert (reply["received"], reply["count"], reply["accepted"], reply["rejected"]) == (True, 4, 2, 2)
            assert len(reply["event_ids"]) == 2
            assert [(each["index"], each["errors"][0]["field"]) for each in reply["errors"]] == [(1, "event"), (3, "$")]
            none = await http.post("/hooks/batch", [SEED | {"event": "Nope"}], "hook")
            assert (none.status_code, none.json()["received"], none.json()["rejected"]) == (400, False, 1)
            for wrong in ({}, {"events": []}, {"events": "x"}, {"events": [SEED] * 1_001}):
                bad = await http.post("/hooks/batch", wrong, "hook")
                assert (bad.status_code, bad.json()["violations"][0]["field"]) == (400, "events")

    run(scenario())


class Failing(MemoryStore):
    """Fails one commit: the one after `works` that work."""

    works = -1

    async def commit(self, commit):
        self.works -= 1
        if self.works == -1:
            raise HoldfastError(Fault.of("SESS_STORE_UNAVAILABLE"))
        return await super().commit(commit)


def test_B75_a_batch_with_a_key_is_stored_once_although_the_store_failed_in_the_middle():
    async def scenario():
        async with Failing() as store, http_side(store=store) as http:
            await http.post("/hooks/event", NATIVE, "hook")
            plain = {"hook_event_name": "Notification", "session_id": NATIVE["session_id"], "message": "same"}
            batch = {"events": [plain, plain, NATIVE | {"tool_use_id": "call-7"}, plain | {"message": "last"}]}
            store.works = 2
            headers = {"idempotency-key": "batch-1"}
            failed = await http.post("/hooks/batch", batch, "hook", headers=headers)
            assert (failed.status_code, failed.headers["retry-after"]) == (503, "2")
            again = await http.post("/hooks/batch", batch, "hook", headers=headers)
            assert (again.status_code, again.json()["accepted"]) == (200, 4)
            assert len(set(again.json()["event_ids"])) == 4
            assert (await store.session(NATIVE["session_id"])).top == 1 + 4
            other = await http.post("/hooks/batch", {"events": [plain | {"message": "x"}]}, "hook", headers=headers)
            assert other.json()["errors"][0]["code"] == "PROTO_DUPLICATE_ID"

    run(scenario())


def test_B78_a_batch_without_a_key_says_what_is_not_stored_so_that_nothing_is_posted_twice():
    async def scenario():
        async with Failing() as store, http_side(store=store) as http:
            await http.post("/hooks/event", NATIVE, "hook")
            plain = {"hook_event_name": "Notification", "session_id": NATIVE["session_id"]}
            batch = {"events": [plain | {"message": str(number)} for number in range(4)]}
            store.works = 2
            reply = await http.post("/hooks/batch", batch, "hook")
            assert (reply.status_code, reply.json()["accepted"], reply.json()["rejected"]) == (200, 2, 2)
            assert [(each["index"], each["code"]) for each in reply.json()["errors"]] == [
                (2, "SESS_STORE_UNAVAILABLE"),
                (3, "SESS_STORE_UNAVAILABLE"),
            ]
            store.works = 0
            assert (await http.post("/hooks/batch", batch, "hook")).status_code == 503
            assert (await store.session(NATIVE["session_id"])).top == 1 + 2

    run(scenario())


def test_B77_a_body_that_is_not_declared_as_json_is_a_415():
    async def scenario():
        async with http_side() as http:
            for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", ""):
                headers = {"content-type": kind} if kind else {}
                answer = await http.ask("POST", "/hooks/event", "hook", content=json.dumps(SEED), headers=headers)
                assert (answer.status_code, answer.json()["error"]) == (415, "UnsupportedMediaType")
            headers = {"content-type": "application/json; charset=utf-8"}
            answer = await http.ask("POST", "/hooks/event", "hook", content=json.dumps(SEED), headers=headers)
            assert answer.status_code == 200
            for content in (b"{", b"\xff\xfe", b"[" * 200_000, b'{"a":NaN}', b"1" * 400):
                bad = await http.ask("POST", "/hooks/event", "hook", content=content, headers=headers)
                assert (bad.status_code, bad.json()["code"]) == (400, "PROTO_INVALID_MESSAGE")
                assert bad.json()["violations"][0]["constraint"] == "json"

    run(scenario())


def test_B78_a_store_that_is_down_or_hangs_is_a_503_within_a_second():
    class Hanging(MemoryStore):
        async def commit(self, commit):
            await asyncio.Event().wait()

    async def scenario():
        async with Hanging() as store, http_side(store=store) as http:
            http.api._hooks._timeout = 0.05
            started = time.monotonic()
            answer = await http.post("/hooks/event", SEED, "hook")
            assert time.monotonic() - started < 1
            assert (answer.status_code, answer.json()["code"]) == (503, "SESS_STORE_UNAVAILABLE")
            assert answer.headers["retry-after"] == "2"

    run(scenario())


def test_B78_the_time_that_a_hook_may_take_by_default_is_below_a_second():
    async def scenario():
        async with http_side() as http:
            assert http.api._hooks._timeout < 1

    run(scenario())


def test_a_hook_token_sees_nothing_and_a_device_token_sends_no_hooks():
    async def scenario():
        async with http_side() as http:
            assert (await http.get("/sessions", "hook")).status_code == 403
            denied = await http.post("/hooks/event", SEED, "ada")
            # B76: a token of another kind is as wrong here as one that nobody knows.
            assert (denied.status_code, denied.json()["code"]) == (401, "HOOK_AUTH_FAILED")
            wrong = await http.post("/hooks/event", SEED, "guess")
            assert (wrong.status_code, wrong.json()["code"], wrong.json()["error"]) == (
                401,
                "HOOK_AUTH_FAILED",
                "Unauthorized",
            )

    run(scenario())


def test_B105_a_secret_in_a_hook_event_is_masked_before_it_is_stored(monkeypatch):
    secret = "sk-ant-api03-" + "a1B2" * 12
    body = SEED | {"payload": {"tool": "bash", "params": {"command": f"curl -H 'x-api-key: {secret}'"}}}

    async def scenario():
        async with http_side() as http:
            assert (await http.post("/hooks/event", body, "hook")).status_code == 200
            (entry,) = await http.store.read("sess-abc123")
            assert secret.encode() not in bytes(entry.body)
            assert b"redacted" in bytes(entry.body)

    run(scenario())


def test_an_event_of_a_closed_session_is_a_409():
    async def scenario():
        async with http_side() as http:
            await http.post("/hooks/event", SEED, "hook")
            await http.post("/admin/sessions/sess-abc123/close", {}, "root")
            answer = await http.post("/hooks/event", SEED, "hook")
            assert (answer.status_code, answer.json()["code"]) == (409, "SESS_CLOSED")
            batch = (await http.post("/hooks/batch", [SEED, NATIVE], "hook")).json()
            assert (batch["accepted"], batch["errors"][0]["code"]) == (1, "SESS_CLOSED")

    run(scenario())


def test_an_admin_reloads_the_rules_for_hooks():
    rules = [HookRules(strict=True, skew=300)]

    async def scenario():
        async with http_side(reload_hooks=lambda: rules[0]) as http:
            assert (await http.post("/hooks/event", SEED, "hook")).status_code == 200
            reply = (await http.post("/admin/reload-hooks", None, "root")).json()
            assert reply == {"reloaded": True, "strict": True, "skew_seconds": 300.0}
            codes = {
                error["code"] for error in (await http.post("/hooks/event", SEED, "hook")).json()["validation_errors"]
            }
            assert codes == {"HOOK_STALE_TIMESTAMP", "HOOK_INVALID_PAYLOAD"}

    run(scenario())


def test_S0_32_errors_of_hooks_and_clients_become_metrics_with_their_source_and_user_agent():
    seen = []

    async def scenario():
        async with http_side(reports=ErrorReports(seen.append)) as http:
            await http.post("/hooks/event", SEED | {"event": "Nope"}, "hook", headers={"user-agent": b"claude/2\x85.1"})
            await http.post("/hooks/event", SEED, "guess", headers={"user-agent": "curl/8"})
            await http.post(
                "/errors", {"code": "CONN_RECONNECT_EXHAUSTED", "session_id": "s"}, headers={"user-agent": "page"}
            )

    run(scenario())
    assert [msgspec.to_builtins(metric) for metric in seen] == [
        {"category": "HOOK_", "code": "HOOK_VALIDATION_FAILED", "severity": "warning", "source": "hook", "user_agent": "claude/2.1"},
        {"category": "HOOK_", "code": "HOOK_AUTH_FAILED", "severity": "error", "source": "hook", "user_agent": "curl/8"},
        {"category": "CONN_", "code": "CONN_RECONNECT_EXHAUSTED", "severity": "error", "source": "client", "session_id": "s", "user_agent": "page"},
    ]  # fmt: skip


def test_S0_33_more_than_20_hook_failures_10_reconnections_and_5_drops_a_minute_raise_alerts():
    raised = []
    with raise_alerts(Runtime(clock=VirtualClock()), Alerts(), tell=raised.append) as alerts:
        reports = ErrorReports(alerts=alerts)

        async def scenario():
            async with http_side(reports=reports) as http:
                await http.post("/hooks/batch", [SEED | {"event": "Nope"}] * 20, "hook")
                assert raised == []
                await http.post("/hooks/event", {}, "hook")

        run(scenario())
        for number in range(11):
            assert len(raised) == 1
            reports.reconnection_failed(f"s-{number}")
        for number in range(6):
            assert len(raised) == 2
            reports.session_dropped(f"s-{number}")
    assert [(alert.signal, alert.level) for alert in raised] == [
        ("hook_failures", "warning"),
        ("reconnection_failures", "warning"),
        ("session_drops", "warning"),
    ]


def test_a_reader_of_metrics_that_raises_does_not_disturb_the_bridge():
    seen = []

    def broken(_):
        raise RuntimeError("no disk")

    async def scenario():
        async with http_side(reports=ErrorReports(broken, seen.append)) as http:
            assert (await http.post("/hooks/event", {}, "hook")).status_code == 400

    run(scenario())
    assert len(seen) == 1


def test_B107_the_error_counter_has_no_session_as_a_label():
    registry = prometheus_client.CollectorRegistry()

    async def scenario():
        reports = ErrorReports(count_errors(registry))
        async with http_side(reports=reports, metrics=lambda: prometheus_client.generate_latest(registry)) as http:
            await http.post("/hooks/event", SEED | {"event": "Nope", "session_id": "s-secret"}, "hook")
            text = (await http.get("/metrics", "metrics")).text
            assert (
                'holdfast_errors_total{category="HOOK_",code="HOOK_VALIDATION_FAILED",severity="warning",source="hook"} 1.0'
                in text
            )
            assert "s-secret" not in text

    run(scenario())
