"""What stands around a failure, and what stands inside it: notices, lists of likely causes, chains, nested numbers."""

from __future__ import annotations

import pytest

from holdfast.classify import from_http, from_jsonrpc, from_process, from_text
from holdfast.classify.notices import failing_lines, without_notices

LOST = "mysqldump: Error 2013: Lost connection to MySQL server during query"


@pytest.mark.parametrize(
    "notice",
    [
        "mysqldump: [Warning] Using a password on the command line interface can be insecure.\n",
        "Warning: Permanently added 'git.example.com' (ED25519) to the list of known hosts.\n",
        "warning: this feature is deprecated and unsupported\n",
        "If you want to go on without credentials, pass --frozen.\n",
        "The following exception probably indicates you have misconfigured DNS resolver(s)\n",
        "Please submit a full bug report.\n",
        "hint: permission denied means that you must sign in to the registry\n",
        "[notice] A new release is available, please install it\n",
    ],
)
def test_a_notice_does_not_hold_the_retry_of_a_failure_back(notice: str):
    assert from_process(3, LOST).retryable
    assert from_process(3, notice + LOST).retryable


@pytest.mark.parametrize(
    "notice",
    [
        "warning: the cache server is unavailable, connection reset\n",
        "hint: if the connection was reset, the network may be down\n",
        "note to readers\nhelp: the request timed out? see the guide\n",
    ],
)
def test_a_notice_does_not_cause_a_retry(notice: str):
    assert not from_process(1, notice + "error: cannot assign twice to immutable variable").retryable


def test_an_output_of_nothing_but_notices_is_read_whole():
    text = "warning: a: No such file or directory\n"
    assert without_notices(text) == text
    assert without_notices(text + "failed") == text + "failed"


def test_a_warning_that_names_why_it_retries_is_no_notice():
    text = (
        "WARNING: Retrying after connection broken by 'ReadTimeoutError'\nERROR: No matching distribution found for x"
    )
    assert without_notices(text) == text


def test_a_list_of_likely_causes_names_no_cause():
    text = "Error: the node did not answer\n\nMost common reasons for this are:\n * the password is wrong\n * it is not installed\n"
    assert "password" not in without_notices(text)
    assert "did not answer" in without_notices(text)


def test_only_lines_that_name_a_failure_hold_a_program_back_for_what_they_advise():
    assert failing_lines("lockfile is frozen\nerror: connection reset") == "error: connection reset"
    assert from_process(1, "Resolved with a frozen lockfile\nerror: connection reset by peer").retryable
    assert not from_process(1, "error: connection reset by peer: the lockfile is frozen").retryable


def test_the_leaf_of_a_tree_of_causes_decides():
    tree = (
        "  × Failed to fetch `numpy`\n  ├─▶ Failed to write to the cache\n  ╰─▶ {}\n  help: provide the `--frozen` flag"
    )
    assert from_process(1, tree.format("connection reset")).retryable
    assert not from_process(1, tree.format("No space left on device (os error 28)")).retryable


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("cURL error 28: Operation timed out after 30001 milliseconds", "CONN_TIMEOUT"),
        ("curl error 6 while downloading https://repo.example.com/p.json: x", "CONN_DNS_FAILED"),
        ('curl failed: "/usr/bin/curl -L" exited with code 7', "CONN_REFUSED"),
        ("error: RPC failed; curl 18 transfer closed", "ACTOR_CLI_NETWORK"),
    ],
)
def test_a_number_of_curl_means_the_same_in_the_text_of_another_program(text: str, code: str):
    assert from_process(1, text).code == code


@pytest.mark.parametrize(("inner", "code"), [(404, "not_found"), (403, "auth"), (502, "unavailable")])
def test_the_status_inside_the_sentence_of_a_500_decides(inner: int, code: str):
    fault = from_http(500, {}, f'{{"detail":"Failed to start the sandbox: {inner}: it said no"}}')
    assert (fault.category.value, fault.retryable) == (code, inner == 502)


def test_the_innermost_status_of_a_text_decides():
    text = "Code: 400. Errors:\n\n* failed to validate: acme: error: 500 :: POST :: https://acme.example.com/new :: x"
    assert from_process(2, text).retryable
    assert not from_process(2, "Code: 400. Errors:\n\n* missing client token").retryable


def test_a_number_of_json_rpc_inside_a_message_decides_if_the_outer_one_says_nothing():
    message = {"jsonrpc": "2.0", "id": 1, "error": {"code": -32603, "message": "MCP error -32602: Missing 'x'"}}
    assert from_jsonrpc(message).context["rpc_code"] == -32602


@pytest.mark.parametrize(
    "stderr",
    [
        "c++: internal compiler error: Killed (program cc1plus)",
        "g++: fatal error: Killed signal terminated program cc1plus",
        "collect2: fatal error: ld terminated with signal 9 [Killed]\nerror: could not compile `x`",
        "make[3]: *** [build.make:76: a.o] Killed",
        "/usr/bin/ld: final link failed: memory exhausted",
    ],
)
def test_a_build_tool_whose_program_was_killed_crashed(stderr: str):
    fault = from_process(1, stderr)
    assert (fault.category.value, fault.retryable) == ("agent_crash", True)


def test_a_client_that_is_too_old_is_told_so_with_any_status():
    body = '{"code":"resource_exhausted","message":"Please update to the latest version of the app to continue"}'
    assert not from_http(429, {}, body).retryable
    assert from_http(
        429, {}, '{"message":"Too many requests. Update to the latest version for less of them."}'
    ).retryable


def test_fewer_requests_are_a_rate_and_smaller_ones_are_not():
    assert from_process(1, "Failed to copy `a`. Please reduce your request").category.value == "rate_limit"
    assert not from_http(400, {}, '{"message":"Please reduce your request size"}').retryable


def test_an_absence_of_a_thing_is_not_an_absence_of_capacity():
    assert not from_http(503, {}, '{"error":{"message":"分组 default 下模型 gpt-x 无可用渠道"}}').retryable
    assert from_http(503, {}, '{"error":{"message":"No available capacity for this model right now"}}').retryable
    assert not from_http(500, {}, '{"error":"shard path already exists"}').retryable


def test_names_are_resolved_that_are_not_those_of_hosts():
    assert not from_process(125, "Error: short-name resolution enforced but cannot prompt without a TTY").retryable
    assert from_process(1, "error: Temporary failure in name resolution").retryable


def test_what_was_tried_is_not_read_as_what_is_wrong():
    assert from_text("Failed to sync workspace: The connection with the server was terminated abnormally").retryable
    assert not from_text("Failed to sync workspace: the schema is unknown").retryable


def test_somebody_elses_lock_is_waited_for_whatever_the_text_advises():
    assert from_process(7, "Locked by the application with pid 12 (zypper).\nClose it and try again.").retryable
    text = "Operation is not allowed: Another agentpool operation is in progress, please wait for it to finish"
    assert from_process(1, text).retryable


def test_a_subscription_of_azure_is_no_plan():
    asked = "A database operation failed in subscription x. Please retry later."
    assert from_process(1, asked).retryable
    assert not from_process(1, "Your subscription limit was exceeded, please retry later").retryable


@pytest.mark.parametrize(
    "stderr",
    [
        "usage: x [--timeout N]",
        "tar: Unexpected EOF in archive",
        "sh: -c: line 1: unexpected EOF while looking for matching `\"'",
    ],
)
def test_a_word_for_what_passes_is_not_enough_in_usage_archives_and_shells(stderr: str):
    assert not from_process(1, stderr).retryable
