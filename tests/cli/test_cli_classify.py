"""`holdfast classify`"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cli_runs import KEY, holdfast, holdfast_json

CORPUS = Path(__file__).parents[1] / "corpus"

# Each way to describe a failure, and its code.
WAYS = {
    "status": (("--status", "529"), "PROVIDER_OVERLOADED"),
    "body": (("--body", '{"error":{"code":"context_length_exceeded"}}'), "PROVIDER_CONTEXT_OVERFLOW"),
    "status and body": (("--status", "429", "--body", '{"error":{"code":"insufficient_quota"}}'), "PROVIDER_BILLING"),
    "provider": (
        ("--provider", "github_api", "--status", "403", "--body", "secondary rate limit"),
        "TOOL_RATE_LIMITED",
    ),
    "exception": (("--exception", "httpx.ConnectTimeout", "--message", "timed out"), "CONN_TIMEOUT"),
    "bare exception": (("--exception", "KeyError", "--message", "plan"), "SYS_PROGRAMMING_ERROR"),
    "exit code": (("--exit-code", "127", "--stderr", "rg: not found"), "TOOL_COMMAND_NOT_FOUND"),
    "signal": (("--exit-code", "-9"), "TOOL_KILLED"),
    "jsonrpc": (
        ("--jsonrpc", '{"jsonrpc":"2.0","id":1,"error":{"code":-32601,"message":"Method not found"}}'),
        "TOOL_NOT_FOUND",
    ),
    "sse": (("--sse", 'data: {"type":"error","error":{"type":"overloaded_error"}}'), "PROVIDER_OVERLOADED"),
    "sse of lines": (
        ("--sse", 'data: {"choices":[{"delta":{"content":"hi"}}]}\\n\\ndata: {"error":{"code":429}}\\n'),
        "PROVIDER_RATE_LIMITED",
    ),
    "grpc": (("--grpc", "UNAVAILABLE", "--message", "connection draining"), "PROVIDER_UNAVAILABLE"),
    "text": (("--text", "zsh: command not found: rg"), "TOOL_COMMAND_NOT_FOUND"),
}


@pytest.mark.parametrize(("arguments", "code"), WAYS.values(), ids=WAYS)
def test_each_way_to_describe_a_failure(arguments, code):
    result = holdfast("classify", *arguments)
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.split()[0] == code
    assert holdfast_json("classify", *arguments)["code"] == code


def test_people_see_what_to_do():
    result = holdfast("classify", "--status", "429", "--header", "Retry-After: 26", "--body", "Slow down")
    headline, *facts = result.stdout.splitlines()
    assert headline == "PROVIDER_RATE_LIMITED  Slow down"
    assert dict(line.split(maxsplit=1) for line in facts) == {
        "category": "rate_limit",
        "retryable": "yes, after 26 s as the server requested",
        "scope": "credential",
        "next": "machine must act",
        "do": "Wait: Holdfast sleeps exactly as long as the provider asks",
        "rule": "limits.rate_in_prose",
        "help": "holdfast explain PROVIDER_RATE_LIMITED",
    }


def test_an_effect_that_may_have_happened_is_shown():
    shown = holdfast("classify", "--exception", "httpx.ReadTimeout").stdout
    assert "may have happened: check before sending again" in shown


def test_json_holds_the_same():
    document = holdfast_json("classify", "--status", "429", "--header", "Retry-After: 26", "--body", "Slow down")
    assert document == {
        "schema": "holdfast.classify/1",
        "id": None,
        "code": "PROVIDER_RATE_LIMITED",
        "category": "rate_limit",
        "retryable": True,
        "retry_after_s": 26.0,
        "scope": "credential",
        "rule": "limits.rate_in_prose",
        "message": "Slow down",
    }


def test_a_headline_is_one_line_however_long_the_message():
    headline = holdfast("classify", "--status", "500", "--body", "a\nb\t" + "c" * 5_000).stdout.splitlines()[0]
    assert headline.startswith("PROVIDER_INTERNAL_ERROR  a b c")
    assert len(headline) <= 300


def test_R30_now_is_the_clock_that_dates_are_read_by():
    date = ("--status", "429", "--header", "retry-after: Fri, 20 Mar 2026 14:02:14 GMT")
    assert holdfast_json("classify", *date, "--now", "2026-03-20T14:02:00Z")["retry_after_s"] == 14.0
    assert holdfast_json("classify", *date, "--now", "2026-03-20T15:00:00Z")["retry_after_s"] is None


@pytest.mark.parametrize("now", ["noon", "", "2026-13-01T00:00:00Z", "1700000000x"])
def test_a_time_that_is_none_is_a_wrong_call(now):
    result = holdfast("classify", "--status", "429", "--now", now)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.splitlines()[0] == f"holdfast: --now: expected an RFC 3339 date and time, got {now!r}"


@pytest.mark.parametrize("header", ["retry-after", ": 5", " : x", ""])
def test_a_header_that_is_none_is_a_wrong_call(header):
    result = holdfast("classify", "--status", "429", "--header", header)
    assert (result.exit_code, result.stdout) == (2, "")
    assert "--header: expected 'name: value'" in result.stderr


def test_a_header_may_hold_colons_and_be_repeated():
    document = holdfast_json("classify", "--status", "429", "--header", "date: 14:02:14", "--header", "retry-after: 3")
    assert document["retry_after_s"] == 3.0


@pytest.mark.parametrize("arguments", [(), ("--header", "a: b"), ("--provider", "openai")])
def test_nothing_to_classify_is_a_wrong_call(arguments):
    result = holdfast("classify", *arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("holdfast: nothing to classify\n  help: give --status, ")


@pytest.mark.parametrize("arguments", [("connection reset by peer",), ("--message", "connection reset by peer")])
def test_a_text_alone_is_classified_like_text(arguments):
    assert holdfast_json("classify", *arguments) == holdfast_json("classify", "--text", "connection reset by peer")


def test_a_text_that_is_given_twice_is_a_wrong_call():
    result = holdfast("classify", "timed out", "--text", "reset")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "TEXT and --text" in result.stderr


@pytest.mark.parametrize("arguments", [("--status", "many"), ("--exit-code", "1.5"), ("--no-such-flag",)])
def test_an_option_that_makes_no_sense_is_a_wrong_call(arguments):
    assert holdfast("classify", *arguments).exit_code == 2


# Many at once

LINES = """{"id": "a", "status": 529}
not json
{"id": "b", "kind": "subprocess", "returncode": -9}

{"id": "c", "kind": "purple"}
{"id": 7, "status": "many"}
{"id": "d", "status": 429, "headers": {"retry-after": "Fri, 20 Mar 2026 14:02:14 GMT"}, "now": "2026-03-20T14:02:00Z"}
"""


def answers(*arguments: str, given: str = LINES) -> list[dict]:
    return [
        json.loads(line) for line in holdfast("classify", "--jsonl", "-", *arguments, given=given).stdout.splitlines()
    ]


def test_a_line_that_is_none_does_not_stop_the_rest():
    verdicts = answers()
    assert [answer.get("code") for answer in verdicts] == [
        "PROVIDER_OVERLOADED",
        None,
        "TOOL_KILLED",
        None,
        None,
        "PROVIDER_RATE_LIMITED",
    ]
    assert [answer["id"] for answer in verdicts if "id" in answer] == ["a", "b", "d"]
    assert verdicts[-1]["retry_after_s"] == 14.0


def test_a_bad_line_is_reported_by_its_number_in_the_file():
    bad = [answer for answer in answers() if "error" in answer]
    assert [answer["line"] for answer in bad] == [2, 5, 6]
    assert [answer["error"]["path"] for answer in bad] == ["$", "$.kind", "$.status"]
    for answer in bad:
        assert answer["error"]["code"] == "PROTO_INVALID_MESSAGE"
        assert answer["error"]["expected"]
        assert answer["error"]["received"]


def test_the_counts_are_narration():
    result = holdfast("classify", "--jsonl", "-", given=LINES)
    assert (result.exit_code, result.stderr) == (0, "3 classified, 3 could not be read\n")


@pytest.mark.parametrize(("given", "status"), [(LINES, 8), ('{"status": 529}\n', 0), ("", 0)])
def test_strict_shows_a_scheduler_that_lines_were_lost(given, status):
    assert holdfast("classify", "--jsonl", "-", "--strict", given=given).exit_code == status


def test_a_file_is_read(tmp_path):
    file = tmp_path / "failures.jsonl"
    file.write_text(LINES, encoding="utf-8")
    from_file = holdfast("classify", "--jsonl", str(file)).stdout
    assert from_file == holdfast("classify", "--jsonl", "-", given=LINES).stdout


def test_a_file_that_is_not_there_is_not_found(tmp_path):
    result = holdfast("classify", "--jsonl", str(tmp_path / "none.jsonl"))
    assert (result.exit_code, result.stdout) == (3, "")
    assert "cannot read" in result.stderr
    assert "No such file or directory" in result.stderr


def test_a_folder_cannot_be_read(tmp_path):
    result = holdfast("classify", "--jsonl", str(tmp_path))
    assert (result.exit_code, result.stdout) == (2, "")
    assert "Is a directory" in result.stderr
    assert "give a file" in result.stderr


def test_FC6_a_byte_order_mark_and_half_a_character_spoil_no_line():
    given = b'\xef\xbb\xbf{"id": "a", "status": 529}\n{"id": "b", "status": 503, "body": "cut \\ud83d"}\n'
    verdicts = [json.loads(line) for line in holdfast("classify", "--jsonl", "-", given=given).stdout.splitlines()]
    assert [verdict["code"] for verdict in verdicts] == ["PROVIDER_OVERLOADED", "PROVIDER_UNAVAILABLE"]


def test_FC6_an_unknown_failure_is_not_simply_retryable_and_no_cause_is_promised():
    assert "retryable no" in " ".join(holdfast("classify", "--text", "hello").stdout.split())
    shown = " ".join(holdfast("classify", "--exception", "Strange", "--message", "hello").stdout.split())
    assert "once, and only if repeating the call is safe" in shown
    assert "below" not in shown


def test_bytes_of_any_kind_are_a_bad_line_and_no_more():
    verdicts = holdfast("classify", "--jsonl", "-", given=b'\xff\xfe\x00\n{"status": 529}\n').stdout.splitlines()
    assert json.loads(verdicts[0])["line"] == 1
    assert json.loads(verdicts[1])["code"] == "PROVIDER_OVERLOADED"


@pytest.mark.parametrize("file", sorted(CORPUS.glob("*.jsonl")), ids=lambda file: file.name)
def test_the_whole_corpus_can_be_read(file):
    result = holdfast("classify", "--jsonl", str(file), "--strict")
    assert result.exit_code == 0
    assert len(result.stdout.splitlines()) == len(file.read_text(encoding="utf-8").splitlines())


# Secrets

SECRET_WAYS = {
    "body": ("--status", "401", "--body", f"Incorrect API key provided: {KEY}"),
    "message": ("--exception", "openai.AuthenticationError", "--message", f"bad key {KEY}"),
    "stderr": ("--exit-code", "1", "--stderr", f"login failed with {KEY}"),
    "jsonrpc": ("--jsonrpc", json.dumps({"error": {"code": -32000, "message": KEY}})),
    "sse": ("--sse", f'data: {{"error":{{"message":"{KEY}"}}}}'),
    "grpc": ("--grpc", "UNAUTHENTICATED", "--message", KEY),
    "text": ("--text", f"401 Unauthorized {KEY}"),
    "header": ("--status", "401", "--header", f"x-api-key {KEY}"),
    "request id": ("--status", "401", "--header", f"x-request-id: {KEY}"),
}


@pytest.mark.parametrize("arguments", SECRET_WAYS.values(), ids=SECRET_WAYS)
@pytest.mark.parametrize("form", [(), ("--json",)], ids=["table", "json"])
def test_a_secret_in_a_failure_is_not_repeated(arguments, form):
    result = holdfast("classify", *arguments, *form)
    assert result.output
    assert KEY not in result.output


@pytest.mark.parametrize(
    "record", [{"status": 401, "body": KEY}, {"id": 1, "kind": KEY}, {"now": KEY}, {KEY: 1, "status": "x"}]
)
def test_a_secret_in_a_record_is_not_repeated(record):
    result = holdfast("classify", "--jsonl", "-", given=json.dumps(record) + "\n")
    assert result.stdout
    assert KEY not in result.output


@pytest.mark.parametrize("form", [(), ("--json",)], ids=["table", "json"])
def test_a_secret_of_this_process_is_not_repeated(form):
    known = {"DB_PASSWORD": "correct-horse-battery"}
    result = holdfast("classify", "--status", "500", "--body", "login correct-horse-battery failed", *form, env=known)
    assert "PROVIDER_INTERNAL_ERROR" in result.stdout
    assert "correct-horse-battery" not in result.output
