"""Every code has a failure that is recognised as it; codes whose room is not built yet stand in not_built_yet.txt.

The failures are real where a machine can make them: sockets on loopback, processes, files, the SDKs answered over a
transport in memory. The rest are the words providers, tool servers and frameworks send, as the corpus has them.
"""

from __future__ import annotations

import asyncio
import json
import socket
import sqlite3
import ssl
import subprocess
import sys
import tempfile
import threading
import tomllib
from collections.abc import Callable
from pathlib import Path

import faults_actors
import faults_agents
import faults_bridge
import faults_bridge_client
import faults_http
import faults_recoveries
import faults_server
import faults_sessions
import faults_stages
import faults_stores
import faults_supervisors
import faults_tasks
import faults_tools
import faults_workflows
import httpx
import msgspec
import pydantic
import pytest
import requests
import websockets.sync.client
import websockets.sync.server
from faults_extensions import left_out
from faults_failures import (
    anthropic_answers,
    backlog_full,
    ended,
    openai_answers,
    python_exit,
    raised_by,
    reset,
    serving,
    silent,
    unused_port,
)
from typer.testing import CliRunner

from holdfast._platform import need_selector_loop
from holdfast.classify import from_exception, from_grpc, from_http, from_jsonrpc, from_process, from_stream, from_text
from holdfast.cli.app import app
from holdfast.config import read
from holdfast.events import decode
from holdfast.faults import CODES, Fault, resolve
from holdfast.runtime import fault_of
from holdfast.stores import Commit, MemoryStore, NewAudit, verify_store

_WAITING = Path(__file__).with_name("not_built_yet.txt").read_text(encoding="utf-8").splitlines()
NOT_BUILT_YET = [line.partition(":")[0].strip() for line in _WAITING if line.strip()]


def system_lacks_a_part() -> Fault:
    loop = type("ProactorEventLoop", (asyncio.SelectorEventLoop,), {})()
    try:
        return raised_by(lambda: need_selector_loop("The store", loop))
    finally:
        loop.close()


# The way to the other side


def nobody_listens() -> Fault:
    return raised_by(lambda: httpx.get(f"http://127.0.0.1:{unused_port()}", trust_env=False))


def nobody_listens_to_requests() -> Fault:
    return raised_by(lambda: requests.get(f"http://127.0.0.1:{unused_port()}", timeout=5))


def connection_is_reset() -> Fault:
    with serving(reset) as port:
        return raised_by(lambda: httpx.get(f"http://127.0.0.1:{port}", trust_env=False))


def connection_is_never_taken() -> Fault:
    with backlog_full() as port:
        return raised_by(lambda: httpx.get(f"http://127.0.0.1:{port}", timeout=0.05, trust_env=False))


def name_is_none() -> Fault:
    return raised_by(lambda: socket.getaddrinfo("no.such.host.invalid", 443, flags=socket.AI_NUMERICHOST))


def plain_server_is_spoken_to_in_tls() -> Fault:
    def answer_in_the_clear(client: socket.socket) -> None:
        client.recv(65_536)
        client.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        silent(client)

    with serving(answer_in_the_clear) as port:

        def handshake() -> None:
            with (
                socket.create_connection(("127.0.0.1", port), timeout=5) as plain,
                ssl.create_default_context().wrap_socket(plain, server_hostname="localhost"),
            ):
                pass

        return raised_by(handshake)


def websocket_is_dropped() -> Fault:
    def drop(connection: websockets.sync.server.ServerConnection) -> None:
        connection.socket.shutdown(socket.SHUT_RDWR)

    with websockets.sync.server.serve(drop, "127.0.0.1", 0) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        port = server.socket.getsockname()[1]
        with websockets.sync.client.connect(f"ws://127.0.0.1:{port}", proxy=None, open_timeout=5) as client:
            fault = raised_by(lambda: client.recv(timeout=5))
        server.shutdown()
        thread.join(5)
        return fault


# Providers, over the wire and through their SDKs


def answer_never_comes() -> Fault:
    with serving(silent) as port:
        return raised_by(lambda: httpx.get(f"http://127.0.0.1:{port}", timeout=0.05, trust_env=False))


def pool_is_full() -> Fault:
    def begin(client: socket.socket) -> None:
        client.recv(65_536)
        client.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nhalf")
        silent(client)

    one = httpx.Limits(max_connections=1)
    with (
        serving(begin) as port,
        httpx.Client(limits=one, timeout=httpx.Timeout(5, pool=0.05), trust_env=False) as http,
        http.stream("GET", f"http://127.0.0.1:{port}"),
    ):
        return raised_by(lambda: http.get(f"http://127.0.0.1:{port}"))


def body_is_cut() -> Fault:
    def half(client: socket.socket) -> None:
        client.recv(65_536)
        client.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nhalf")

    with serving(half) as port:
        return raised_by(lambda: httpx.get(f"http://127.0.0.1:{port}", trust_env=False))


def answer_is_no_json() -> Fault:
    return raised_by(lambda: httpx.Response(200, text="").json())


def output_does_not_validate() -> Fault:
    class Answer(pydantic.BaseModel):
        severity: int

    return raised_by(lambda: Answer.model_validate_json('{"severity": "High"}'))


# Tools


def tool_takes_too_long() -> Fault:
    return raised_by(lambda: subprocess.run(["sleep", "60"], timeout=0.05, check=True))


def file_may_not_be_run() -> Fault:
    """Refused to root as well, unlike reading and writing."""
    with tempfile.NamedTemporaryFile() as plain:
        return raised_by(lambda: subprocess.run([plain.name], check=True))


def database_is_locked() -> Fault:
    name = "file:locked?mode=memory&cache=shared"
    first = sqlite3.connect(name, uri=True, isolation_level=None)
    second = sqlite3.connect(name, uri=True, isolation_level=None, timeout=0)
    try:
        first.execute("create table t (x)")
        first.execute("begin immediate")
        return raised_by(lambda: second.execute("begin immediate"))
    finally:
        first.close()
        second.close()


def line_is_too_long() -> Fault:
    async def read() -> None:
        reader = asyncio.StreamReader(limit=16)
        reader.feed_data(b"x" * 100 + b"\n")
        await reader.readline()

    return raised_by(lambda: asyncio.run(read()))


def arguments_are_invented() -> Fault:
    def search(query: str) -> str:
        return query

    arguments = {"query": "kelp", "limit": 5}
    return raised_by(lambda: search(**arguments))


# This process


def disk_is_full() -> Fault:
    def write() -> None:
        with Path("/dev/full").open("w") as full:
            full.write("x")

    return raised_by(write)


def task_is_cancelled() -> Fault:
    async def cancelled() -> None:
        task = asyncio.ensure_future(asyncio.sleep(60))
        await asyncio.sleep(0)
        task.cancel()
        await task

    return raised_by(lambda: asyncio.run(cancelled()))


def time_is_up() -> Fault:
    async def slow() -> None:
        async with asyncio.timeout(0):
            await asyncio.sleep(60)

    return raised_by(lambda: asyncio.run(slow()))


def recursion_never_ends() -> Fault:
    def again(n: int) -> int:
        return again(n + 1)

    return raised_by(lambda: again(0))


# What is given to us


def event_has_no_time() -> Fault:
    return raised_by(lambda: decode(b'{"type":"cancelled"}'))


def header_has_no_colon() -> Fault:
    result = CliRunner().invoke(app, ["classify", "--status", "429", "--header", "retry-after"])
    code, _, message = result.stderr.removeprefix("holdfast: ").partition("  ")
    assert message.startswith("--header: expected 'name: value'")
    return Fault.of(resolve(code).code)


def settings_are(text: str) -> Fault:
    return raised_by(lambda: read(tomllib.loads(text)))


def audit_record_is(kind: str, correlation: str) -> Fault:
    return raised_by(lambda: NewAudit(kind=kind, correlation=correlation, payload=b"{}"))


def audit_trail_was_edited() -> Fault:
    class Edited(MemoryStore):
        async def audit(self, chain, **page):
            return [msgspec.structs.replace(record, kind="Turn") for record in await super().audit(chain, **page)]

    async def verify() -> None:
        store = Edited()
        await store.commit(Commit(chain="c", audit=(NewAudit(kind="Approval", correlation="t", payload=b"{}"),)))
        (await verify_store(store)).check()

    return raised_by(lambda: asyncio.run(verify()))


def tool_result(text: str) -> Fault:
    return from_jsonrpc(
        {"jsonrpc": "2.0", "id": 1, "result": {"isError": True, "content": [{"type": "text", "text": text}]}}
    )


def rpc_error(number: int, message: str) -> Fault:
    return from_jsonrpc(json.dumps({"jsonrpc": "2.0", "id": 1, "error": {"code": number, "message": message}}))


CASES: tuple[tuple[str, Callable[[], Fault]], ...] = (
    ("CONN_WEBSOCKET_CLOSED", websocket_is_dropped),
    ("CONN_TLS_HANDSHAKE_FAILED", plain_server_is_spoken_to_in_tls),
    ("CONN_TIMEOUT", connection_is_never_taken),
    ("CONN_REFUSED", nobody_listens),
    ("CONN_REFUSED", nobody_listens_to_requests),
    ("CONN_RESET", connection_is_reset),
    ("CONN_UNREACHABLE", lambda: from_exception(OSError(101, "Network is unreachable"))),
    ("CONN_DNS_FAILED", name_is_none),
    ("AUTH_FAILED", lambda: anthropic_answers(401, {"type": "authentication_error", "message": "invalid x-api-key"})),
    ("AUTH_TOKEN_EXPIRED", lambda: anthropic_answers(401, {"type": "authentication_error", "message": "OAuth token has expired. Please obtain a new token or refresh your existing token."})),
    ("AUTH_TOKEN_REVOKED", lambda: openai_answers(401, {"code": "token_revoked", "message": "Encountered invalidated oauth token for user", "type": None})),
    ("AUTH_INVALID_TOKEN", faults_bridge.token_is_wrong),
    ("AUTH_INSUFFICIENT_SCOPE", faults_bridge.token_is_of_another_kind),
    ("CONN_RECONNECT_EXHAUSTED", faults_bridge_client.every_attempt_failed),
    ("CONN_UPGRADE_REQUIRED", faults_bridge_client.there_is_no_bridge),
    ("CONN_HEARTBEAT_LOST", faults_bridge_client.the_bridge_is_silent),
    ("CONN_RATE_LIMITED", faults_bridge.too_many_tokens_were_wrong),
    ("AUTH_REQUIRED", lambda: rpc_error(-32042, "This request requires more information.")),
    ("AUTH_FORBIDDEN", lambda: anthropic_answers(403, {"type": "permission_error", "message": "Your API key does not have permission to use the specified resource."})),
    ("AUTH_REGION_BLOCKED", lambda: openai_answers(403, {"code": "unsupported_country_region_territory", "message": "Country, region, or territory not supported", "type": "request_forbidden"})),
    ("AUTH_ACCOUNT_DISABLED", lambda: openai_answers(401, {"code": "account_deactivated", "message": "The OpenAI account associated with this API key has been deactivated.", "type": "invalid_request_error"})),
    ("AUTH_CLOCK_SKEW", lambda: from_http(403, {"x-amzn-ErrorType": "RequestTimeTooSkewed"}, '{"message":"The difference between the request time and the current time is too large."}')),
    ("PROTO_INVALID_MESSAGE", event_has_no_time),
    ("TOOL_EXECUTION_FAILED", lambda: fault_of(python_exit("raise SystemExit(3)"))),
    ("TOOL_EXECUTION_FAILED", lambda: raised_by(lambda: subprocess.run(["false"], check=True))),
    ("TOOL_TIMEOUT", tool_takes_too_long),
    ("TOOL_RESOURCE_BUSY", database_is_locked),
    ("TOOL_RATE_LIMITED", lambda: from_http(403, None, '{"message":"You have exceeded a secondary rate limit."}', provider="github_api")),
    ("TOOL_QUOTA_EXHAUSTED", lambda: tool_result("You have exceeded your monthly search quota.")),
    ("TOOL_QUOTA_EXHAUSTED", lambda: from_http(403, {"x-ratelimit-remaining": "0", "x-ratelimit-reset": "1671200472"}, '{"message":"API rate limit exceeded for installation ID 5425010."}', provider="github_api", now=1671199007)),
    ("TOOL_CONNECTION_LOST", lambda: rpc_error(-32000, "Connection closed")),
    ("TOOL_SESSION_EXPIRED", lambda: rpc_error(-32001, "Session not found")),
    ("TOOL_CRASHED", lambda: fault_of(python_exit("import os; os.kill(os.getpid(), 11)"))),
    ("TOOL_KILLED", lambda: fault_of(python_exit("import os; os.kill(os.getpid(), 9)"))),
    ("TOOL_OUT_OF_MEMORY", lambda: fault_of(python_exit("x = [0] * (1 << 60)"))),
    ("TOOL_OUT_OF_MEMORY", lambda: from_process(1, 'Exception in thread "main" java.lang.OutOfMemoryError: Java heap space')),
    ("TOOL_INPUT_INVALID", arguments_are_invented),
    ("TOOL_INPUT_INVALID", lambda: rpc_error(-32602, "Invalid request parameters")),
    ("TOOL_INPUT_TOO_LARGE", lambda: raised_by(lambda: subprocess.run(["true", "x" * 4_000_000], check=True))),
    ("TOOL_OUTPUT_TOO_LARGE", line_is_too_long),
    ("TOOL_OUTPUT_MALFORMED", faults_tools.answer_has_another_shape),
    ("TOOL_CANCELLED", faults_tools.program_is_stopped),
    ("TOOL_SERVER_NOT_REGISTERED", faults_tools.server_is_not_registered),
    ("TOOL_FORBIDDEN", file_may_not_be_run),
    ("TOOL_FORBIDDEN", lambda: fault_of(ended("sh", "-c", "exec /etc/passwd"))),
    ("TOOL_APPROVAL_DENIED", lambda: tool_result("The user rejected this tool call.")),
    ("TOOL_NOT_FOUND", lambda: rpc_error(-32601, "Method not found")),
    ("TOOL_FILE_NOT_FOUND", lambda: raised_by(lambda: Path("/no/such/file").read_text())),
    ("TOOL_COMMAND_NOT_FOUND", lambda: fault_of(ended("sh", "-c", "no-such-command-here"))),
    ("SYS_UNKNOWN", lambda: from_text("the gripper and item 7")),
    ("SYS_PROGRAMMING_ERROR", lambda: raised_by(lambda: {}["plan"])),
    ("SYS_TIMEOUT", time_is_up),
    ("SYS_BUDGET_EXHAUSTED", lambda: from_text("pydantic_ai.exceptions.UsageLimitExceeded: The next request would exceed the request_limit of 50")),
    ("SYS_CANCELLED", task_is_cancelled),
    ("SYS_PROCESS_EXIT", lambda: raised_by(lambda: sys.exit(3))),
    ("SYS_RECURSION", recursion_never_ends),
    ("SYS_OUT_OF_MEMORY", lambda: raised_by(lambda: [0] * (1 << 60))),
    ("SYS_RESOURCE_EXHAUSTED", disk_is_full),
    ("PROVIDER_RATE_LIMITED", lambda: anthropic_answers(429, {"type": "rate_limit_error", "message": "This request would exceed your organization's rate limit of 30,000 input tokens per minute."}, retry_after="12")),
    ("PROVIDER_DAILY_LIMIT", lambda: from_http(429, None, '{"message":"Too many tokens per day, please wait before trying again."}')),
    ("PROVIDER_QUOTA_EXHAUSTED", lambda: from_http(429, None, '{"error":{"type":"usage_limit_reached","message":"The usage limit has been reached","resets_in_seconds":7200}}')),
    ("PROVIDER_BILLING", lambda: openai_answers(429, {"code": "insufficient_quota", "type": "insufficient_quota", "message": "You exceeded your current quota, please check your plan and billing details."})),
    ("PROVIDER_ENTITLEMENT_MISSING", lambda: anthropic_answers(429, {"type": "rate_limit_error", "message": "Extra usage is required for long context requests."})),
    ("PROVIDER_OVERLOADED", lambda: anthropic_answers(529, {"type": "overloaded_error", "message": "Overloaded"})),
    ("PROVIDER_UNAVAILABLE", lambda: from_http(503, None, "upstream connect error or disconnect/reset before headers")),
    ("PROVIDER_INTERNAL_ERROR", lambda: anthropic_answers(500, {"type": "api_error", "message": "Internal server error"})),
    ("PROVIDER_MODEL_LOADING", lambda: from_http(503, None, '{"error":"Model bigscience/bloom is currently loading","estimated_time":20.0}')),
    ("PROVIDER_GATEWAY_TIMEOUT", lambda: from_http(524, {"server": "cloudflare"}, "<title>524: A timeout occurred</title>")),
    ("PROVIDER_TIMEOUT", answer_never_comes),
    ("PROVIDER_POOL_TIMEOUT", pool_is_full),
    ("PROVIDER_STREAM_CUT", body_is_cut),
    ("PROVIDER_MALFORMED_RESPONSE", answer_is_no_json),
    ("PROVIDER_OUTPUT_INVALID", output_does_not_validate),
    ("PROVIDER_EMPTY_RESPONSE", lambda: from_stream('data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}')),
    ("PROVIDER_BAD_REQUEST", lambda: from_grpc("INVALID_ARGUMENT", "Request contains a field that is not known")),
    ("PROVIDER_CONTEXT_OVERFLOW", lambda: anthropic_answers(400, {"type": "invalid_request_error", "message": "prompt is too long: 201928 tokens > 200000 maximum"})),
    ("PROVIDER_REQUEST_TOO_LARGE", lambda: anthropic_answers(413, {"type": "request_too_large", "message": "Request exceeds the maximum size"})),
    ("PROVIDER_CONTENT_POLICY", lambda: anthropic_answers(400, {"type": "invalid_request_error", "message": "Output blocked by content filtering policy"})),
    ("PROVIDER_HISTORY_INVALID", lambda: openai_answers(400, {"message": "An assistant message with 'tool_calls' must be followed by tool messages responding to each 'tool_call_id'.", "type": "invalid_request_error"})),
    ("PROVIDER_TOOL_SCHEMA_INVALID", lambda: openai_answers(400, {"message": "Invalid schema for function 'search': In context=(), 'required' is missing.", "code": "invalid_function_parameters", "type": "invalid_request_error"})),
    ("PROVIDER_REMOTE_FETCH_FAILED", lambda: openai_answers(400, {"message": "Error while downloading https://example.test/cat.png.", "code": "invalid_image_url", "type": "invalid_request_error"})),
    ("PROVIDER_CAPABILITY_MISSING", lambda: from_http(501, None, '{"error":{"message":"This server does not support embeddings."}}')),
    ("PROVIDER_MISSING_STREAMING", lambda: from_exception(ValueError("Streaming is required for operations that may take longer than 10 minutes."))),
    ("PROVIDER_MISSING_TOOL_CALLING", lambda: from_http(400, None, '{"error":"registry.ollama.ai/library/gemma:2b does not support tools"}')),
    ("PROVIDER_MODEL_NOT_FOUND", lambda: openai_answers(404, {"message": "The model `gpt-9` does not exist or you do not have access to it.", "code": "model_not_found", "type": "invalid_request_error"})),
    ("PROVIDER_ENDPOINT_NOT_FOUND", lambda: from_http(404, None, '{"error":{"code":"404","message":"Resource not found"}}')),
    ("PROVIDER_OUT_OF_MEMORY", lambda: from_http(500, None, '{"error":"model requires more system memory (4.1 GiB) than is available (3.1 GiB)"}')),
    ("TASK_TURNS_EXHAUSTED", lambda: from_text("agents.exceptions.MaxTurnsExceeded: Max turns (10) exceeded")),
    ("ACTOR_ERROR", faults_agents.agent_ends_without_an_answer),
    ("SYS_STACK_INVARIANT", faults_workflows.workflow_is_driven_twice),
    ("SYS_NOT_IMPLEMENTED", system_lacks_a_part),
    ("TASK_LOOP_BOUND", faults_agents.agent_never_ends),
    ("TASK_HALTED", faults_agents.agent_makes_no_progress),
    ("TASK_OUTPUT_EXHAUSTED", faults_agents.answer_is_cut),
    ("TASK_SUBTASK_FAILED", faults_agents.subagent_fails),
    ("TASK_SYNTAX_ERROR", faults_workflows.list_is_not_closed),
    ("TASK_UNBOUND_SYMBOL", faults_workflows.name_is_not_bound),
    ("TASK_EVALUATION_FAILED", faults_workflows.task_fails),
    ("TASK_DEPTH_EXCEEDED", faults_workflows.calls_without_end),
    ("TASK_TIMEOUT", faults_workflows.budget_of_seconds_is_used),
    ("TASK_TEMPLATE_NOT_FOUND", faults_workflows.task_is_not_registered),
    ("TASK_TURN_CAP_TOO_LOW", faults_stages.turn_cap_is_zero),
    ("TASK_COMPLETION_SCHEMA_INVALID", faults_stages.schema_has_an_unknown_type),
    ("TASK_CONTEXT_MUTATION", faults_stages.context_is_changed_in_assert),
    ("TASK_STAGE_CONTEXT_UNRESOLVED", faults_stages.body_names_what_nobody_set),
    ("TASK_STAGE_FAILED", faults_stages.stage_fails),
    ("TASK_PARALLEL_INVALID", faults_stages.fan_out_of_one),
    ("TASK_SIBLING_FAILED", faults_stages.sibling_fails),
    ("TASK_JOIN_VIOLATED", faults_stages.branch_goes_to_the_join),
    ("TASK_JOIN_DANGLING", faults_stages.join_without_branches),
    ("TASK_STAGE_CANCELLED", faults_stages.stage_is_cancelled),
    ("TASK_GRANT_INVALID", faults_stages.grant_is_of_nobody),
    ("TASK_GRANT_CONSUMED", faults_stages.grant_is_used_twice),
    ("TASK_GRANT_EXPIRED", faults_stages.grant_is_of_an_earlier_attempt),
    ("TASK_LOOP_BOUND", lambda: from_text("langgraph.errors.GraphRecursionError: Recursion limit of 25 reached without hitting a stop condition.")),
    ("ACTOR_CLI_NETWORK", lambda: from_process(1, "API Error: Connection error. (fetch failed)")),
    ("ACTOR_CLI_ERROR", faults_tools.command_line_agent_fails),
    ("CIRCUIT_OPEN", faults_recoveries.circuit_is_open),
    ("SYS_DEADLINE_EXCEEDED", faults_recoveries.deadline_passes),
    ("PROVIDER_STREAM_STALLED", faults_recoveries.stream_falls_silent),
    ("TOOL_OUTCOME_UNKNOWN", faults_recoveries.unsafe_call_may_have_happened),
    ("SYS_BULKHEAD_FULL", faults_recoveries.places_are_taken),
    ("SYS_RATE_LIMITED", faults_recoveries.pace_is_reached),
    ("SYS_RETRY_QUOTA_SPENT", faults_recoveries.retries_have_used_their_share),
    ("SYS_FALLBACKS_EXHAUSTED", faults_recoveries.every_way_fails),
    ("CONFIG_OPTION_INVALID", header_has_no_colon),
    ("SYS_AUDIT_CLASS_UNKNOWN", lambda: audit_record_is("Rumour", "turn-7")),
    ("SYS_AUDIT_UNCORRELATED", lambda: audit_record_is("Approval", "")),
    ("SYS_AUDIT_TAMPERED", audit_trail_was_edited),
    ("CONFIG_INVALID", lambda: settings_are("[policy]\nattempts = '300'")),
    ("CONFIG_TIMEOUT_INVALID", lambda: settings_are("[policy]\ntimeout = 0")),
    ("CONFIG_SHAPE_INVALID", lambda: left_out(contract="one")),
    ("CONFIG_CONTRACT_MISMATCH", lambda: left_out(contract=2)),
    ("SYS_DEPENDENCY_CYCLE", lambda: left_out(requires=["guest"])),
    ("SYS_DEPENDENCY_MISSING", lambda: left_out(requires=["host"])),
    ("SYS_LIFECYCLE_FAILURE", left_out),
    ("CONFIG_CODE_UNKNOWN", lambda: settings_are("[policy.per_code.PROVIDER_OVERLOAD]")),
    *faults_stores.CASES,
    *faults_actors.CASES,
    *faults_supervisors.CASES,
    *faults_tasks.CASES,
    *faults_http.CASES,
    *faults_server.CASES,
    ("SESS_ALREADY_ANSWERED", faults_sessions.question_is_answered_twice),
    ("SESS_CANCELLED", faults_sessions.session_is_cancelled),
    ("SESS_INTERACTION_EXPIRED", faults_sessions.question_expires),
    ("SESS_INTERACTION_MISMATCH", faults_sessions.answer_does_not_fit),
    ("SESS_INTERACTION_UNKNOWN_KIND", faults_sessions.question_is_of_no_known_kind),
    ("SESS_KEY_WRONG", faults_sessions.key_is_another),
    ("SESS_MANIFEST_DRIFT", faults_sessions.tools_are_others),
    ("SESS_NOT_RESUMABLE", faults_sessions.session_may_not_be_resumed),
    ("SESS_NO_INTERACTOR", faults_sessions.nobody_is_there_to_answer),
    ("SESS_NO_SNAPSHOT", faults_sessions.nothing_was_saved),
    ("SESS_RESUME_MISMATCH", faults_sessions.session_is_another_stores),
    ("SESS_STEP_DRIFT", faults_sessions.step_has_other_arguments),
    ("SESS_TURN_CANCELLED", faults_sessions.turn_is_cancelled),
    ("SESS_TURN_CONCURRENT", faults_sessions.turn_is_begun_inside_another),
    ("SESS_WAITING", faults_sessions.session_waits),
)  # fmt: skip


@pytest.mark.parametrize(("code", "fails"), CASES, ids=[f"{code}-{index}" for index, (code, _) in enumerate(CASES)])
def test_a_real_failure_is_recognised_as_its_code(code, fails):
    fault = fails()
    assert fault.code == code, fault


def test_every_code_is_raised_by_a_test_or_waits_for_its_room():
    raised = {code for code, _ in CASES}
    assert len(set(NOT_BUILT_YET)) == len(NOT_BUILT_YET)
    assert raised & set(NOT_BUILT_YET) == set(), "raised now: strike it off the list"
    assert raised | set(NOT_BUILT_YET) == set(CODES)
