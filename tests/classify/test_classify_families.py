"""Families of programs and the words they share: what each rule recognises, and a near miss that it leaves alone."""

from __future__ import annotations

import ftplib
import json
from typing import Any

import pytest

from holdfast.classify import (
    CLASSIFIER,
    from_exception,
    from_http,
    from_jsonrpc,
    from_process,
    from_record,
    from_stream,
    from_text,
    read_record,
)
from holdfast.classify.phrases import find_phrases, phrases
from holdfast.faults import Fault


def recorded(name: str, message: str, module: str = "acme.client") -> Fault:
    exception = {"module": module, "type": name, "message": message}
    return from_record(read_record(json.dumps({"kind": "exception", "exception": exception})))


def over_rpc(number: int, message: str) -> Fault:
    return from_jsonrpc({"error": {"code": number, "message": message}})


@pytest.mark.parametrize(
    ("text", "code", "retryable"),
    [
        ("451 4.7.1 Greylisting in action, please come back later", "PROVIDER_UNAVAILABLE", True),
        ("421 Service not available, closing control connection.", "PROVIDER_UNAVAILABLE", True),
        ("550 5.1.1 <a@example.com>: Recipient address rejected", "PROVIDER_BAD_REQUEST", False),
        ("550 Failed to open file: No such file or directory.", "TOOL_FILE_NOT_FOUND", False),
        ("530 Login incorrect.", "AUTH_FAILED", False),
        ("552 5.3.4 Message size exceeds fixed limit", "PROVIDER_REQUEST_TOO_LARGE", False),
    ],
)
def test_a_reply_of_a_mail_or_file_server_means_the_opposite_of_a_status(text: str, code: str, retryable: bool):
    fault = from_text(text)
    assert (fault.code, fault.retryable) == (code, retryable)


def test_a_status_of_http_is_no_reply_of_a_mail_server():
    assert from_text("503 Service Unavailable").code == "PROVIDER_UNAVAILABLE"
    assert from_text("error 530: the origin is down").retryable
    assert from_http(550, body="550 Failed to open file").retryable


def test_ftplib_says_whether_a_reply_passes():
    assert from_exception(ftplib.error_temp("425 Can't build data connection")).retryable
    assert not from_exception(ftplib.error_perm("553 Could not create file.")).retryable


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({"errors": [{"message": "no", "extensions": {"code": "GRAPHQL_VALIDATION_FAILED"}}]}, "PROVIDER_BAD_REQUEST"),
        ({"errors": [{"message": 'Cannot query field "foo" on type "Query"'}]}, "PROVIDER_BAD_REQUEST"),
        ({"errors": [{"message": "Not Authorised!", "extensions": {"code": "UNAUTHENTICATED"}}]}, "AUTH_FAILED"),
        ({"errors": [{"message": "Throttled", "extensions": {"code": "THROTTLED"}}]}, "PROVIDER_RATE_LIMITED"),
        ({"errors": [{"message": "???"}]}, "PROVIDER_MALFORMED_RESPONSE"),
    ],
)
def test_graphql_sends_a_success_and_names_the_failure_inside(body: Any, code: str):
    fault = from_http(200, body=body)
    assert fault.code == code or (code == "AUTH_FAILED" and fault.code == "AUTH_FORBIDDEN")


def test_a_web_service_that_answers_no_did_not_accept_the_call():
    slack = "The request to the Slack API failed.\nThe server responded with: {'ok': False, 'error': 'no_text'}"
    assert recorded("SlackApiError", slack, "slack_sdk.errors").code == "PROVIDER_BAD_REQUEST"
    assert recorded("SlackApiError", slack.replace("no_text", "ratelimited"), "slack_sdk.errors").retryable


@pytest.mark.parametrize(
    ("message", "code"),
    [
        ("collection not loaded", "TOOL_EXECUTION_FAILED"),
        ("no graphql provider present, import a schema first!", "TOOL_EXECUTION_FAILED"),
        ("the field dim is 768, but the entities have 1024", "TOOL_EXECUTION_FAILED"),
        ("the gripper lost its grip on item 7", "SYS_UNKNOWN"),
        ("not", "SYS_UNKNOWN"),
    ],
)
def test_an_exception_that_says_what_is_not_so_is_not_retried(message: str, code: str):
    fault = recorded("WidgetError", message)
    assert (fault.code, fault.retryable) == (code, code == "SYS_UNKNOWN")


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (
            "LM Studio rate limit reached\nHTTP 429: Too Many Requests\nCheck the billing details",
            "PROVIDER_RATE_LIMITED",
        ),
        ("You exceeded your current quota, please check your plan and billing details", "PROVIDER_BILLING"),
        ("generation time budget exceeded", "PROVIDER_TIMEOUT"),
        ("Budget exceeded for this key", "PROVIDER_BILLING"),
        ("This request exceeds your quota. You have 2 characters remaining", "PROVIDER_QUOTA_EXHAUSTED"),
        ("Your account has run out of searches.", "PROVIDER_QUOTA_EXHAUSTED"),
        ("[error: Copilot error: text-too-long]", "PROVIDER_CONTEXT_OVERFLOW"),
        ("ERROR : connection failed: fe_sendauth: no password supplied", "AUTH_FAILED"),
        ("java.lang.OutOfMemoryError: Java heap space", "TOOL_OUT_OF_MEMORY"),
        ("thread 'main' panicked at 'called unwrap on a None value'", "SYS_PROGRAMMING_ERROR"),
        ("com.mysql.cj.jdbc.exceptions.CommunicationsException: Communications link failure", "CONN_RESET"),
        ("The certificate for this server is invalid.", "CONN_TLS_HANDSHAKE_FAILED"),
        ("Status code 403. This website is no longer supported", "AUTH_FORBIDDEN"),
    ],
)
def test_words_around_a_failure_do_not_mislead(text: str, code: str):
    assert from_text(text).code == code


@pytest.mark.parametrize(
    ("name", "message", "code"),
    [
        (
            "ServiceUnavailable",
            "503 Getting metadata from plugin failed with error: 'str' has no attribute",
            "AUTH_FAILED",
        ),
        ("ServiceUnavailable", "503 Getting metadata from plugin failed: timed out", "PROVIDER_UNAVAILABLE"),
        ("StaleElementReferenceException", "Message: stale element reference", "TOOL_RESOURCE_BUSY"),
        ("NoSuchElementException", "Message: Unable to locate element: #login", "TOOL_NOT_FOUND"),
        ("Error", "Page.evaluate: Execution context was destroyed, because of a navigation", "TOOL_RESOURCE_BUSY"),
        ("RequestError", "Error during request to server: Max retries exceeded", "CONN_RESET"),
        ("TwilioRestException", "HTTP 401 error: Unable to fetch record: Authenticate", "AUTH_FAILED"),
        (
            "StartUpError",
            "Acme did not start up in 5 seconds. Either the URL is wrong or it is slow",
            "PROVIDER_TIMEOUT",
        ),
        ("ServiceError", "failed (TypeError('Object of type X is not JSON serializable'))", "SYS_PROGRAMMING_ERROR"),
        (
            "ModelError",
            "NSFW content detected. Try running it again, or try a different prompt.",
            "PROVIDER_CONTENT_POLICY",
        ),
    ],
)
def test_the_text_of_a_library_is_read_by_its_meaning(name: str, message: str, code: str):
    assert recorded(name, message).code == code


def test_an_exception_of_aws_counts_before_the_status_around_it():
    message = "Bad response code: {'status_code': 400, 'headers': {':exception-type': 'internalServerException'}}"
    assert recorded("ValueError", message, "builtins").retryable


@pytest.mark.parametrize(
    ("stderr", "code"),
    [
        ("GraphQL: Something went wrong while executing your query.", "PROVIDER_UNAVAILABLE"),
        ("Oops! Something went wrong! ESLint could not find a configuration.", "TOOL_EXECUTION_FAILED"),
        ("Failed to connect to the host via ssh: ssh: illegal option -- -", "TOOL_EXECUTION_FAILED"),
        ("you've reached the limit of apps for your plan", "TOOL_QUOTA_EXHAUSTED"),
        ("the maximum line length of your code is 120", "TOOL_EXECUTION_FAILED"),
        ("mount: /mnt: /dev/sdb1 already mounted or mount point busy.", "TOOL_RESOURCE_BUSY"),
        ("remote: Repository not found.\nfatal: repository not found", "TOOL_FILE_NOT_FOUND"),
        ('returned http error: 400 and server response: {"error":"invalid_grant"}', "AUTH_TOKEN_EXPIRED"),
    ],
)
def test_stderr_is_read_by_its_meaning(stderr: str, code: str):
    assert from_process(1, stderr).code == code


@pytest.mark.parametrize(
    ("number", "message", "code", "retryable"),
    [
        (-32603, "workspace name cannot be empty", "TOOL_INPUT_INVALID", False),
        (-32600, "Working directory outside allowed paths", "TOOL_FORBIDDEN", False),
        (-32600, "Invalid Request", "PROVIDER_BAD_REQUEST", False),
        (-32005, "Node is behind by 206 slots", "PROVIDER_UNAVAILABLE", True),
        (-32603, "Conflict occurred while saving. Please try again.", "TOOL_RESOURCE_BUSY", True),
        (-32603, "Invalid page. Please try again.", "TOOL_INPUT_INVALID", False),
        (-32000, "Bad Request: No valid session ID provided", "TOOL_SESSION_EXPIRED", False),
        (-32000, "Session not found", "TOOL_SESSION_EXPIRED", True),
    ],
)
def test_a_server_of_tools_is_read_by_its_words(number: int, message: str, code: str, retryable: bool):
    fault = over_rpc(number, message)
    assert (fault.code, fault.retryable) == (code, retryable)


@pytest.mark.parametrize(
    "message",
    [
        "put local object: shard: store is read-only",
        "column users.foo does not exist",
        "Value is not callable: null at row 6",
    ],
)
def test_a_500_that_stays_is_not_retried(message: str):
    assert not from_http(500, body={"error": message}).retryable
    assert from_http(500, body={"error": "the session does not exist here"}).retryable


def test_an_error_that_is_printed_after_the_events_is_read():
    events = 'data: {"candidates": [{"content": {"parts": [{"text": "a"}]}}]}\n\n'
    error = json.dumps({"error": {"code": 503, "message": "high demand", "status": "UNAVAILABLE"}}, indent=2)
    assert from_stream(f"{events}{error}\n").category.value == "unavailable"
    assert from_stream(events).code == "PROVIDER_STREAM_CUT"


def test_phrases_that_are_declared_later_are_found_in_words_seen_before():
    text = "the zeppelin wants helium"
    assert find_phrases(text) == 0
    group = phrases("zeppelin wants")
    assert find_phrases(text) == group
    assert CLASSIFIER.rules


@pytest.mark.parametrize(
    ("stderr", "code"),
    [
        ("failed to push: unexpected response from registry: 502", "PROVIDER_UNAVAILABLE"),
        ("cannot perform the operation because the cluster is being updated", "TOOL_RESOURCE_BUSY"),
        ("The lockfile needs to be updated, but --locked was given", "TOOL_EXECUTION_FAILED"),
        ("Error: deployment did not become ready within 10m0s", "TOOL_TIMEOUT"),
        ("the registry is rebooting", "PROVIDER_UNAVAILABLE"),
        ("dependency failed to start: container db is unhealthy", "TOOL_EXECUTION_FAILED"),
        ("Port 8080 was already in use", "TOOL_EXECUTION_FAILED"),
        ("you have used 100% of included build minutes", "PROVIDER_QUOTA_EXHAUSTED"),
        ("token scope insufficient: needs repo:write", "AUTH_FAILED"),
        (
            "FAIL src/app.test.ts: connect ECONNREFUSED 127.0.0.1:3000\nTest Files  1 failed (1)",
            "TOOL_EXECUTION_FAILED",
        ),
    ],
)
def test_stderr_says_what_passes(stderr: str, code: str):
    assert from_process(1, stderr).code == code


@pytest.mark.parametrize(
    ("name", "message", "module", "code"),
    [
        (
            "ParserError",
            "Error tokenizing data. Expected 3 fields in line 5, saw 4",
            "pandas.errors",
            "TOOL_EXECUTION_FAILED",
        ),
        ("ParserError", "the model's answer has no action", "acme.agents", "PROVIDER_OUTPUT_INVALID"),
        ("ToolError", "Client failed to connect: All connection attempts failed", "fastmcp.exceptions", "CONN_RESET"),
        ("ToolError", "the widget is blue", "fastmcp.exceptions", "TOOL_EXECUTION_FAILED"),
        ("PipelineError", "Missing mandatory input 'prompt'", "acme", "TOOL_EXECUTION_FAILED"),
    ],
)
def test_where_an_exception_comes_from_counts(name: str, message: str, module: str, code: str):
    assert recorded(name, message, module).code == code


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("The model produced an invalid tool call and it could not be parsed.", "PROVIDER_OUTPUT_INVALID"),
        ("invalid tool: name is too short", "PROVIDER_TOOL_SCHEMA_INVALID"),
        ("Language server connection got disposed", "CONN_RESET"),
        ("Extension host terminated unexpectedly", "TOOL_CRASHED"),
        ("Daily request limit for this project has been reached", "PROVIDER_DAILY_LIMIT"),
        ("The limit of requests was reached", "PROVIDER_QUOTA_EXHAUSTED"),
        ("SAML assertion expired, go to your administrator", "AUTH_FORBIDDEN"),
    ],
)
def test_word_groups_keep_number_and_size_apart(text: str, code: str):
    assert from_text(text).code == code


@pytest.mark.parametrize(
    ("name", "message", "code"),
    [
        ("IpBlocked", "The site is blocking requests from your IP.", "AUTH_FORBIDDEN"),
        ("TaskLocked", "task 7", "TOOL_RESOURCE_BUSY"),
        ("APIError", "{'message': 'new row violates row-level security policy', 'code': '42501'}", "AUTH_FORBIDDEN"),
        ("APIError", "{'message': 'canceling statement', 'code': '57014'}", "TOOL_TIMEOUT"),
        ("StoreError", "Failed connecting to the metastore", "CONN_RESET"),
        ("QueryError", "Too many simultaneous queries. Maximum: 100.", "PROVIDER_RATE_LIMITED"),
    ],
)
def test_names_and_codes_of_databases_are_read(name: str, message: str, code: str):
    assert recorded(name, message).code == code


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("LLM returned invalid response: choices=None", "PROVIDER_MALFORMED_RESPONSE"),
        ("Unhandled status from server:,429,quota exceeded", "PROVIDER_QUOTA_EXHAUSTED"),
        ("quota exceeded for requests per minute", "PROVIDER_RATE_LIMITED"),
        ("Error R14 (Memory quota exceeded)", "TOOL_OUT_OF_MEMORY"),
        ("video generation request expired. Task ID: 7", "PROVIDER_TIMEOUT"),
        ("Streaming response failed", "PROVIDER_STREAM_CUT"),
        ("Model output did not satisfy the provided response schema.", "PROVIDER_MALFORMED_RESPONSE"),
        ("Parsing event source stream failed.", "PROVIDER_STREAM_CUT"),
    ],
)
def test_what_a_model_or_its_service_did_not_deliver(text: str, code: str):
    assert from_text(text).code == code


@pytest.mark.parametrize(
    ("name", "message", "module", "code"),
    [
        ("ClosedPoolError", "Pool is closed.", "urllib3.exceptions", "SYS_PROGRAMMING_ERROR"),
        ("TimeoutStateError", "Timeout timer has already been started.", "urllib3.exceptions", "SYS_PROGRAMMING_ERROR"),
        ("ValueError", "Model selected invalid tools: ['web_serach']", "builtins", "PROVIDER_OUTPUT_INVALID"),
        ("ValueError", "OAuth token response did not include an access_token", "builtins", "AUTH_FAILED"),
        ("ValueError", "unexpected token at 7", "builtins", "SYS_PROGRAMMING_ERROR"),
        ("ModelAbortError", "Model invocation was aborted.", "", "SYS_CANCELLED"),
    ],
)
def test_names_that_look_like_another_failure(name: str, message: str, module: str, code: str):
    assert recorded(name, message, module).code == code


@pytest.mark.parametrize(
    ("stderr", "code"),
    [
        ("timed out waiting for permissions to be accepted in the browser", "AUTH_REQUIRED"),
        ("Timed out waiting for browsers to install", "TOOL_TIMEOUT"),
        (
            "protocol error: expected old/new/ref, got 'shallow'\nThe remote end hung up unexpectedly",
            "TOOL_EXECUTION_FAILED",
        ),
        ("(error) NOREPLICAS Not enough good replicas to write.", "PROVIDER_UNAVAILABLE"),
        ("[tls] Error in the pull function.\nstream.m3u8: Input/output error", "ACTOR_CLI_NETWORK"),
        ("size of tarball did not match the one specified in 'Content-Length' header", "ACTOR_CLI_NETWORK"),
    ],
)
def test_stderr_names_the_reason_behind_its_last_line(stderr: str, code: str):
    assert from_process(1, stderr).code == code


def test_a_template_that_rejects_the_messages_rejects_them_again():
    body = {
        "error": {
            "code": 500,
            "message": "Cannot pass both. at row 2: {{- raise_exception('x') }}",
            "type": "server_error",
        }
    }
    assert not from_http(500, body=body).retryable
    assert (
        from_http(400, body={"error": {"message": "all messages is too long", "type": "x"}}).category.value
        == "overflow"
    )


def test_the_time_that_attempts_took_is_no_delay():
    assert from_process(1, "Request failed after 1 retry in 2.1s: network timeout").retry_after is None
    assert from_process(1, "network timeout, retry in 2.1s").retry_after == 2.1


@pytest.mark.parametrize(
    ("message", "code"),
    [
        (
            {"method": "notifications/message", "params": {"level": "error", "data": "Rate limit exceeded"}},
            "TOOL_RATE_LIMITED",
        ),
        ({"method": "notifications/cancelled", "params": {"requestId": 1, "reason": "stop"}}, "SYS_CANCELLED"),
        ({"result": {"isError": True, "structuredContent": {"error": "not authorized"}}}, "TOOL_FORBIDDEN"),
        ({"result": {"isError": True, "content": []}}, "TOOL_EXECUTION_FAILED"),
        ({"result": {"status": {"state": "auth-required"}}}, "AUTH_REQUIRED"),
        ({"result": {"status": {"state": "failed", "message": {"parts": [{"text": "it timed out"}]}}}}, "TOOL_TIMEOUT"),
        ({"error": {"code": 4001, "message": "no"}}, "TOOL_APPROVAL_DENIED"),
        ({"error": {"code": -28, "message": "Verifying blocks..."}}, "PROVIDER_UNAVAILABLE"),
        ({"error": "boom"}, "TOOL_EXECUTION_FAILED"),
    ],
)
def test_messages_of_other_agents_and_services_are_read(message: Any, code: str):
    assert from_jsonrpc({"jsonrpc": "2.0", "id": 1} | message).code == code


def test_an_error_of_a_stream_that_no_rule_knows_is_a_cut_stream():
    assert from_stream('data: {"error": "blorp"}\n\n').code == "PROVIDER_STREAM_CUT"
    assert from_stream('data: {"error": "the blorp must be blue"}\n\n').code != "PROVIDER_STREAM_CUT"


@pytest.mark.parametrize(
    ("stderr", "code"),
    [
        ("make: *** [deploy] Error 503", "TOOL_EXECUTION_FAILED"),
        ("the server sent Error 503", "PROVIDER_UNAVAILABLE"),
        ("exit status 429", "TOOL_EXECUTION_FAILED"),
        ("status 429", "PROVIDER_RATE_LIMITED"),
    ],
)
def test_the_exit_code_of_a_program_is_no_status(stderr: str, code: str):
    assert from_process(1, stderr).code == code


@pytest.mark.parametrize(
    ("name", "message", "code"),
    [
        ("UsageError", "No such option: --timeout", "PROVIDER_BAD_REQUEST"),
        ("SettingsError", "error parsing value for field ports", "PROVIDER_BAD_REQUEST"),
        ("QueueFull", "", "TOOL_RESOURCE_BUSY"),
        ("IndexError_", "Error in add: Error: 'd == this->d' failed", "TOOL_EXECUTION_FAILED"),
        ("WebhookError", "signature verification failed", "AUTH_FAILED"),
        ("ThreadError", "The thread was archived", "TOOL_FILE_NOT_FOUND"),
        ("WorkerError", "No heartbeat from the worker for 60 s", "PROVIDER_TIMEOUT"),
        ("QueueError", "Capacity reached, you are number 12", "PROVIDER_OVERLOADED"),
    ],
)
def test_an_option_or_a_setting_is_named_like_a_failure(name: str, message: str, code: str):
    assert recorded(name, message).code == code


@pytest.mark.parametrize(
    "message",
    [
        "image input is not supported",
        "duplicate key value violates unique constraint",
        "dimension mismatch: expected 768",
        "json: cannot unmarshal string into Go value",
    ],
)
def test_a_500_for_what_this_request_asks_is_not_retried(message: str):
    assert not from_http(500, body={"error": {"message": message}}).retryable
    assert from_http(503, body={"error": {"message": message}}).retryable


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("ContextOverflow", "PROVIDER_CONTEXT_OVERFLOW"),
        ("InsufficientBalanceError", "PROVIDER_BILLING"),
        ("LicenseError", "PROVIDER_ENTITLEMENT_MISSING"),
        ("AccountLocked", "AUTH_ACCOUNT_DISABLED"),
        ("RowLocked", "TOOL_RESOURCE_BUSY"),
        ("CaptchaRequired", "AUTH_REQUIRED"),
        ("SafetyRefusal", "PROVIDER_CONTENT_POLICY"),
        ("PoolExhausted", "PROVIDER_POOL_TIMEOUT"),
        ("MaintenanceMode", "PROVIDER_UNAVAILABLE"),
        ("ToolArgumentsError", "PROVIDER_OUTPUT_INVALID"),
        ("ChecksumError", "TOOL_EXECUTION_FAILED"),
        ("GripperError", "SYS_UNKNOWN"),
    ],
)
def test_the_words_in_the_name_of_a_class_count(name: str, code: str):
    assert recorded(name, "the request was refused").code == code


def test_tokens_of_a_prompt_are_no_login():
    assert from_text("prompt needs 9000 tokens, window is 8192").category.value != "auth"
    assert from_text("your token is stale").category.value == "auth"


@pytest.mark.parametrize(
    ("message", "code"),
    [
        ("Page.goto: Download is starting", "TOOL_EXECUTION_FAILED"),
        ("Keyboard.press: Unknown key: 'Foo'", "TOOL_EXECUTION_FAILED"),
        ("Page.screenshot: Clipped area is either empty or outside the resulting image", "TOOL_EXECUTION_FAILED"),
        ("Page.evaluate: SyntaxError: Unexpected token '}'", "TOOL_EXECUTION_FAILED"),
        ("Page.evaluate: ReferenceError: total is not defined", "TOOL_EXECUTION_FAILED"),
        ("Page.goto: net::ERR_FILE_NOT_FOUND at file:///srv/a.html", "TOOL_FILE_NOT_FOUND"),
        ("Page.evaluate: TypeError: Failed to fetch", "CONN_RESET"),
        ("Page.goto: net::ERR_EMPTY_RESPONSE at https://a.example.com/", "CONN_RESET"),
        ("Page.title: Execution context was destroyed, most likely because of a navigation", "TOOL_RESOURCE_BUSY"),
        ("Page.click: Target page, context or browser has been closed", "TOOL_CONNECTION_LOST"),
    ],
)
def test_a_driver_of_a_browser_fails_at_a_step_or_at_the_network(message: str, code: str):
    assert recorded("Error", message, "playwright._impl._errors").code == code


def test_a_script_that_throws_in_a_page_is_a_failed_tool_in_any_driver():
    for text in ("page.evaluate: ReferenceError: $ is not defined", "Evaluation failed: TypeError: x is null"):
        assert from_text(text).code == "TOOL_EXECUTION_FAILED"
    selenium = recorded("JavascriptException", "javascript error: x is not defined", "selenium.common.exceptions")
    assert selenium.code == "TOOL_EXECUTION_FAILED"


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("Google CAPTCHA triggered.", "AUTH_FORBIDDEN"),
        ("Our systems have detected unusual traffic from your network.", "AUTH_FORBIDDEN"),
        ("The captcha solver timed out after 30 s", "PROVIDER_TIMEOUT"),
    ],
)
def test_a_site_that_wants_a_person_turns_a_program_away(text: str, code: str):
    assert from_text(text).code == code


def test_a_page_that_wants_a_person_is_no_malformed_response():
    page = "<html><head><title>{}</title></head><body></body></html>"
    assert from_http(200, {}, page.format("Are you a robot?")).code == "AUTH_FORBIDDEN"
    assert from_http(200, {}, page.format("Welcome")).code == "PROVIDER_MALFORMED_RESPONSE"
    assert from_http(503, {}, page.format("Robot Check")).retryable


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("The requested VM size X1 is not available in the current region.", "PROVIDER_CAPABILITY_MISSING"),
        ("(SkuNotAvailable) X1 is currently not available in location 'north'", "PROVIDER_CAPABILITY_MISSING"),
        ("This service is blocked in this country", "AUTH_REGION_BLOCKED"),
    ],
)
def test_a_cloud_that_lacks_a_machine_in_a_place_turns_nobody_away(text: str, code: str):
    assert from_text(text).code == code


def test_a_429_that_counts_things_is_no_rate():
    issued = '{"detail": "too many certificates (5) already issued for this exact set of domains"}'
    assert (from_http(429, {}, issued).code, from_http(429, {}, issued).retryable) == (
        "PROVIDER_QUOTA_EXHAUSTED",
        False,
    )
    assert from_http(429, {"retry-after": "30"}, issued).retryable
    assert from_http(429, {}, '{"error": "Too many requests already in progress"}').code == "PROVIDER_RATE_LIMITED"


def test_an_identifier_of_a_session_that_is_not_written_as_one_is_a_wrong_request():
    wrong = over_rpc(-32600, "invalid session id: invalid length: expected length 32, found 3")
    assert (wrong.code, wrong.retryable) == ("PROVIDER_BAD_REQUEST", False)
    assert over_rpc(-32000, "Bad Request: Invalid session ID").code == "TOOL_SESSION_EXPIRED"


@pytest.mark.parametrize(
    ("exit_code", "stderr", "code"),
    [
        (126, "bash: line 1: ./a: cannot execute binary file: Exec format error", "TOOL_EXECUTION_FAILED"),
        (126, "bash: ./run.sh: Permission denied", "TOOL_FORBIDDEN"),
        (
            255,
            "Warning: key a not accessible: No such file or directory.\nConnection reset by peer",
            "ACTOR_CLI_NETWORK",
        ),
        (1, "Warning: Connection reset by peer\ncat: a: No such file or directory", "TOOL_FILE_NOT_FOUND"),
        (1, "Warning: a: No such file or directory\nfailed", "TOOL_FILE_NOT_FOUND"),
        (1, "TypeError: fetch failed {\n  [cause]: Error: unknown scheme\n}", "PROVIDER_BAD_REQUEST"),
        (1, "TypeError: fetch failed {\n  [cause]: SocketError: other side closed\n}", "CONN_RESET"),
        (1, "The model m-9 may not exist or you may not have access to it.", "PROVIDER_MODEL_NOT_FOUND"),
        (1, "error: model User does not exist in schema.prisma", "TOOL_EXECUTION_FAILED"),
    ],
)
def test_a_program_says_why_it_ended(exit_code: int, stderr: str, code: str):
    assert from_process(exit_code, stderr).code == code


def test_the_word_that_an_agent_prints_after_escape_is_a_cancellation():
    assert from_text("⎿  Interrupted · What should I do instead?").code == "SYS_CANCELLED"
    assert from_text("canceling statement due to user request").code == "SYS_CANCELLED"
    assert from_text("Interrupted system call").code != "SYS_CANCELLED"
