"""`holdfast explain WORD|-`"""

from __future__ import annotations

import json

import pytest
from cli_runs import KEY, holdfast, holdfast_json

from holdfast.faults import CATALOG, CODES
from holdfast.runtime import page_of


@pytest.mark.parametrize("code", CODES)
def test_every_code_is_explained(code):
    result = holdfast("explain", code)
    assert result.exit_code == 0
    assert result.stderr == ""
    title, *rest = page_of(code).rstrip().splitlines()
    shown = result.stdout.splitlines()
    assert shown[0] == title
    assert set(rest) <= set(shown), "the whole page, word for word, in a pipe"


def test_the_facts_stand_above_the_page():
    shown = holdfast("explain", "PROVIDER_RATE_LIMITED").stdout
    facts, _, _ = shown.partition("## What happened")
    for fact in (
        "transient, retryable (schedule: rate_limit)",
        "machine must act",
        "credential",
        "in other formats  ProviderTransient/RateLimited · TASK_FAILURE/unexpected_error",
        "HTTP 429 · close 1013 · exit 4",
    ):
        assert fact in facts


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("provider_overloaded", "PROVIDER_OVERLOADED"),
        ("SESSION_NOT_FOUND", "SESS_NOT_FOUND"),
        ("ToolTerminal/Forbidden", "TOOL_FORBIDDEN"),
        ("RESOURCE_EXHAUSTION/turns", "TASK_TURNS_EXHAUSTED"),
        ("rate_limit", "PROVIDER_RATE_LIMITED"),
        ("OutcomeUnknownError", "TOOL_OUTCOME_UNKNOWN"),
        ("StreamCutError", "PROVIDER_STREAM_CUT"),
        ("GaveUpError", "ACTOR_MAX_RESTARTS"),
    ],
)
def test_any_name_will_do(name, code):
    assert holdfast("explain", name).stdout.startswith(f"# {code}: ")


@pytest.mark.parametrize(
    ("word", "code"),
    [
        ("529", "PROVIDER_OVERLOADED"),
        ("insufficient_quota", "PROVIDER_BILLING"),
        ("overloaded_error", "PROVIDER_OVERLOADED"),
        ("ECONNRESET", "CONN_RESET"),
        ("anthropic.OverloadedError", "PROVIDER_OVERLOADED"),
    ],
)
def test_FU9_a_word_of_somebody_else_leads_to_its_page(word, code):
    result = holdfast("explain", word)
    assert result.exit_code == 0
    assert result.stdout.startswith(f"# {code}: ")
    assert holdfast_json("explain", word)["code"] == code


@pytest.mark.parametrize("word", ["429", "RateLimitError", "openai.RateLimitError", "HTTP 429"])
def test_FU9_a_word_with_several_meanings_lists_them(word):
    result = holdfast("explain", word)
    assert result.exit_code == 0
    head, *rows = result.stdout.splitlines()
    assert head.split()[0] == "code"
    codes = [row.split()[0] for row in rows]
    assert codes[0] == "PROVIDER_RATE_LIMITED"
    assert {"PROVIDER_QUOTA_EXHAUSTED", "PROVIDER_BILLING"} < set(codes) < set(CODES)
    assert CATALOG["PROVIDER_BILLING"].user in result.stdout
    assert f"{word} can mean {len(codes)} things" in result.stderr
    assert "holdfast explain CODE" in result.stderr
    document = holdfast_json("explain", word)
    assert (document["schema"], document["word"]) == ("holdfast.explain/1", word)
    assert [entry["code"] for entry in document["codes"]] == codes


def test_a_sentence_is_classified_and_shows_the_rule_that_matched():
    result = holdfast("explain", "read ECONNRESET: connection reset by peer")
    assert result.exit_code == 0
    assert result.stdout == holdfast("explain", "-", given="read ECONNRESET: connection reset by peer").stdout
    assert "rule" in result.stdout
    document = holdfast_json("explain", "read ECONNRESET: connection reset by peer")
    assert document["fault"]["rule"]


def test_a_sentence_that_no_rule_knows_is_unknown():
    assert holdfast("explain", "the quick brown fox").exit_code == 3


def test_json_holds_the_entry_and_the_page():
    document = holdfast_json("explain", "AUTH_FAILED")
    entry = CATALOG["AUTH_FAILED"]
    assert document["schema"] == "holdfast.explain/1"
    assert (document["code"], document["message"], document["class_code"]) == (
        "AUTH_FAILED",
        entry.message,
        entry.classed,
    )
    assert document["suggestions"] == list(entry.suggestions)
    assert document["page"] == page_of("AUTH_FAILED")
    assert "fault" not in document


def test_an_unknown_code_gets_three_guesses_and_exit_3():
    result = holdfast("explain", "PROVIDER_OVERLOAD")
    assert result.exit_code == 3
    assert result.stdout == ""
    first, guesses, *_ = result.stderr.splitlines()
    assert (
        first == "holdfast: `PROVIDER_OVERLOAD` is not a code, status, provider error or exception that Holdfast knows"
    )
    assert guesses.startswith("  help: did you mean PROVIDER_OVERLOADED, ")
    assert guesses.count(",") == 2


@pytest.mark.parametrize(("typed", "meant"), [("4299", "429"), ("5003", "503"), ("8429", "429")])
def test_a_mistyped_number_gets_the_status_that_it_looks_like(typed, meant):
    result = holdfast("explain", typed)
    assert result.exit_code == 3
    [guess] = [line for line in result.stderr.splitlines() if "did you mean" in line]
    assert meant in guess


@pytest.mark.parametrize("text", ["the frobnicator is not blue", "NOPE"])
def test_an_unknown_text_is_quoted_and_the_way_to_paste_a_whole_error_is_named(text):
    result = holdfast("explain", text)
    assert f"`{text}` is not a code" in result.stderr
    assert "holdfast explain -" in result.stderr


def test_an_exception_that_wraps_another_says_where_the_failure_is():
    result = holdfast("explain", "tenacity.RetryError")
    assert result.exit_code == 3
    assert "last_attempt.exception()" in result.stderr


@pytest.mark.parametrize(
    ("pasted", "code"),
    [
        (
            "messages.3: tool_use ids were found without tool_result blocks immediately after: toolu_01A",
            "HISTORY_INVALID",
        ),
        ("messages.3:  ids were found without  blocks immediately after: toolu_01A", "HISTORY_INVALID"),
        ("GRAPH_RECURSION_LIMIT", "TASK_LOOP_BOUND"),
        ("INVALID_CHAT_HISTORY", "HISTORY_INVALID"),
    ],
)
def test_a_message_whose_backticks_the_shell_took_and_a_code_of_langgraph_are_known(pasted, code):
    result = holdfast("explain", pasted)
    assert result.exit_code == 0
    assert code in result.stdout.splitlines()[0]


def test_the_headline_of_an_sdk_error_has_its_message_once_and_ends_with_a_word():
    message = "messages.3: `tool_use` ids were found without `tool_result` blocks immediately after: toolu_01A. Each block needs one."
    pasted = f"anthropic.BadRequestError: Error code: 400 - {{'type': 'error', 'error': {{'message': '{message}'}}}}"
    headline = holdfast("explain", "-", given=pasted).stdout.splitlines()[0]
    assert headline == f"PROVIDER_HISTORY_INVALID  {message}"
    long = holdfast("explain", "-", given=f"openai.RateLimitError: slow down {'please ' * 80}").stdout.splitlines()[0]
    assert long.endswith(" please…")


@pytest.mark.parametrize("word", ["9999", "NOPE"])
def test_a_word_that_is_like_no_code_gets_no_guess(word):
    result = holdfast("explain", word)
    assert result.exit_code == 3
    assert "did you mean" not in result.stderr
    assert json.loads(holdfast("explain", word, "--json").stdout)["nearest"] == []


def test_an_unknown_code_in_json():
    result = holdfast("explain", "PROVIDER_OVERLOAD", "--json")
    document = json.loads(result.stdout)
    assert result.exit_code == 3
    assert document["schema"] == "holdfast.explain/1"
    assert len(document["nearest"]) == 3
    assert document["nearest"][0] == "PROVIDER_OVERLOADED"


TRACEBACK = """Traceback (most recent call last):
  File "agent.py", line 7, in main
    client.messages.create()
anthropic.APIStatusError: Error code: 529 - {'type': 'error', 'error': {'type': 'overloaded_error', 'message': 'Overloaded'}}
"""


def test_FU9_a_file_with_a_traceback_is_explained_like_standard_input(tmp_path, monkeypatch):
    (tmp_path / "agent.log").write_text("started\n" + TRACEBACK)
    by_file = holdfast("explain", str(tmp_path / "agent.log"))
    assert by_file.exit_code == 0
    assert by_file.stdout == holdfast("explain", "-", given=TRACEBACK).stdout
    (tmp_path / "empty").write_text("\n")
    empty = holdfast("explain", str(tmp_path / "empty"))
    assert (empty.exit_code, empty.stdout) == (2, "")
    # A code wins over a file of the same name.
    (tmp_path / "AUTH_FAILED").write_text(TRACEBACK)
    monkeypatch.chdir(tmp_path)
    assert holdfast("explain", "AUTH_FAILED").stdout.startswith("# AUTH_FAILED")


@pytest.mark.parametrize("pasted", ["x" * 5000, "a\0b", "/"])
def test_a_word_that_is_no_path_is_no_traceback_of_ours(pasted):
    assert holdfast("explain", pasted).exit_code == 3


@pytest.mark.parametrize(
    ("given", "code"),
    [
        (TRACEBACK, "PROVIDER_OVERLOADED"),
        ('{"error":{"code":"insufficient_quota","message":"You exceeded your current quota"}}', "PROVIDER_BILLING"),
        ("bash: rg: command not found\n", "TOOL_COMMAND_NOT_FOUND"),
    ],
    ids=["traceback", "json", "line"],
)
def test_a_failure_on_stdin_is_recognised_and_explained(given, code):
    result = holdfast("explain", "-", given=given)
    assert result.exit_code == 0
    assert result.stdout.split()[0] == code
    assert f"# {code}: " in result.stdout
    document = holdfast_json("explain", "-", given=given)
    assert document["fault"]["code"] == document["code"] == code
    assert document["fault"]["rule"]


@pytest.mark.parametrize("given", ["", "  \n\t\n"])
def test_nothing_on_stdin_is_a_wrong_call(given):
    result = holdfast("explain", "-", given=given)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.startswith("holdfast: nothing on standard input\n  help: pipe ")


def test_bytes_that_are_no_text_are_read_as_well_as_they_can_be():
    result = holdfast("explain", "-", given=b"\xff\xfe connection refused \x00")
    assert result.exit_code == 0
    assert result.stdout.startswith("CONN_REFUSED")


def test_a_secret_on_stdin_is_not_repeated():
    for more in ((), ("--json",)):
        result = holdfast("explain", "-", *more, given=f"AuthenticationError: Incorrect API key provided: {KEY}")
        assert "AUTH_FAILED" in result.stdout
        assert KEY not in result.output
