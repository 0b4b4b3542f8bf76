"""An exception known only by name and text, as a log or a traceback shows it."""

from __future__ import annotations

import traceback

import pytest

from holdfast.classify import Source, from_text
from holdfast.classify.readers.text import read_named, read_text, split_traceback

TRACE = """Traceback (most recent call last):
  File "/app/agent.py", line 12, in run
    raise ValueError("inner")
ValueError: inner

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "/app/agent.py", line 14, in run
    client.create()
anthropic.RateLimitError: Error code: 429 - {'type': 'error', 'error': {'type': 'rate_limit_error'}}
"""


@pytest.mark.parametrize(
    ("text", "module", "name", "message"),
    [
        ("ConnectionResetError: [Errno 104] reset", "builtins", "ConnectionResetError", "[Errno 104] reset"),
        ("httpx.ReadTimeout", "httpx", "ReadTimeout", ""),
        ("openai.APIError: first\nsecond", "openai", "APIError", "first\nsecond"),
        ("a.b.c.CustomException: x: y", "a.b.c", "CustomException", "x: y"),
        ("KeyboardInterrupt", "builtins", "KeyboardInterrupt", ""),
        (
            TRACE,
            "anthropic",
            "RateLimitError",
            "Error code: 429 - {'type': 'error', 'error': {'type': 'rate_limit_error'}}",
        ),
        ("just a line of a log", "", "", "just a line of a log"),
        ('{"error": {"message": "x"}}', "", "", '{"error": {"message": "x"}}'),
        ("", "", "", ""),
        ("  \n ", "", "", ""),
    ],
)
def test_a_traceback_is_split_into_module_class_and_message(text: str, module: str, name: str, message: str):
    assert split_traceback(text) == (module, name, message)


def test_a_traceback_that_python_itself_prints_is_read():
    try:
        try:
            {}["missing"]
        except KeyError as error:
            raise ConnectionRefusedError(111, "Connection refused\nover two lines") from error
    except ConnectionRefusedError as error:
        printed = "".join(traceback.format_exception(error))
    module, name, message = split_traceback(printed)
    assert (module, name) == ("builtins", "ConnectionRefusedError")
    assert message == "[Errno 111] Connection refused\nover two lines"
    assert from_text(printed).code == "CONN_REFUSED"


def test_a_traceback_with_notes_keeps_them_in_the_message():
    error = TimeoutError("too slow")
    error.add_note("while asking claude")
    module, name, message = split_traceback(
        "Traceback (most recent call last):\n" + "".join(traceback.format_exception_only(error))
    )
    assert (module, name) == ("builtins", "TimeoutError")
    assert "while asking claude" in message


@pytest.mark.parametrize(
    ("text", "status"),
    [
        ("Error code: 429 - slow", 429),
        ("HTTP 503", 503),
        ("HTTP/1.1 502 Bad Gateway", 502),
        ("status code: 401", 401),
        ("status_code=404", 404),
        ("Client error '403 Forbidden' for url", 403),
        ("too many 500 error responses", 500),
        ("API Error (529 overloaded)", 529),
        ("504 Gateway Timeout", 504),
        # bare digits mean anything (litellm#34954)
        ("Please retry in 18.403470473s", None),
        ("used 429 tokens", None),
        ("took 500 ms", None),
        ("error 429 tokens over", None),
        ("line 404 of file", None),
        ("model-503b", None),
    ],
)
def test_a_status_is_read_only_where_a_word_says_it_is_one(text: str, status: int | None):
    assert read_named("", "", text).status == status


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("[Errno 104] Connection reset", 104),
        ("[WinError 10061] nope", 10061),
        ("(os error 111)", 111),
        ("errno 5", None),
    ],
)
def test_an_errno_is_read_from_its_brackets(text: str, number: int | None):
    raised = read_named("builtins", "OSError", text).raised
    assert raised is not None
    assert raised.errno == number


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("MCP error -32602: bad", -32602),
        ("code: -32000", -32000),
        ("Error (-32601)", -32601),
        ("it is -32 degrees", None),
    ],
)
def test_a_jsonrpc_number_is_read_from_a_text(text: str, number: int | None):
    assert read_named("", "", text).rpc_code == number


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("An error occurred (ThrottlingException) when calling the Converse operation: slow", "throttlingexception"),
        ("StatusCode.UNAVAILABLE", "unavailable"),
        ("status = RESOURCE_EXHAUSTED", "resource_exhausted"),
        ("grpc_status:14", "unavailable"),
        ('{"error": {"code": "insufficient_quota"}}', "insufficient_quota"),
    ],
)
def test_machine_codes_are_read_from_a_text(text: str, code: str):
    assert code in read_named("", "", text).codes


def test_pythons_own_classes_bring_their_bases():
    raised = read_named("builtins", "ConnectionResetError", "").raised
    assert raised is not None
    assert raised.names == ("ConnectionResetError", "ConnectionError", "OSError", "Exception", "BaseException")
    foreign = read_named("x", "ConnectionResetError", "").raised
    assert foreign is not None
    assert foreign.names == ("ConnectionResetError",)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("asyncio.exceptions.CancelledError", "SYS_CANCELLED"),
        ("KeyboardInterrupt", "SYS_CANCELLED"),
        ("requests.exceptions.ConnectTimeout: HTTPSConnectionPool", "CONN_TIMEOUT"),
        ("TypeError: unsupported operand type(s)", "SYS_PROGRAMMING_ERROR"),
        ("json.decoder.JSONDecodeError: Expecting value: line 1 column 1 (char 0)", "PROVIDER_MALFORMED_RESPONSE"),
        ("json.decoder.JSONDecodeError: Expecting ',' delimiter: line 3 column 9 (char 41)", "PROVIDER_OUTPUT_INVALID"),
        ("Error: connect ECONNREFUSED 127.0.0.1:443", "CONN_REFUSED"),
        ("sqlite3.OperationalError: database is locked", "TOOL_RESOURCE_BUSY"),
        ("urllib3.exceptions.MaxRetryError: Max retries exceeded with url: /", "CONN_RESET"),
    ],
)
def test_a_line_of_a_log_is_classified(text: str, code: str):
    assert from_text(text).code == code


def test_a_text_has_a_text_source():
    assert [one.source for one in read_text("Overloaded")] == [Source.TEXT]


def test_the_end_of_a_long_log_tells():
    """Only the end of a long text is kept, so that is where the failure is looked for."""
    assert from_text("info: still working\n" * 10_000 + "API Error: Overloaded").code == "PROVIDER_OVERLOADED"
