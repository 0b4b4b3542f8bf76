"""Secrets: which values of the environment are masked, and that no output shows a masked value."""

from __future__ import annotations

import json
import subprocess
from types import SimpleNamespace

import msgspec
import pytest

from holdfast.events import (
    AgentFallback,
    AttemptEnded,
    CircuitState,
    CircuitStateChange,
    Degraded,
    Failed,
    Fallback,
    Retry,
    RetryDenied,
    SuppressedError,
    decode,
    encode,
    encode_lines,
    write_document,
)
from holdfast.faults import (
    Attempt,
    Cause,
    CircuitOpenError,
    Err,
    Fault,
    HoldfastError,
    InvalidError,
    ItemError,
    Partial,
    Redactor,
    Scope,
    StreamCutError,
)
from holdfast.runtime import fault_of, process_redactor, redactor_for
from holdfast.views import category, classed, response, task, wire

# --- the secrets in the environment ---


@pytest.mark.parametrize(
    "name",
    [
        "ANTHROPIC_API_KEY",
        "OPENAI_APIKEY",
        "GITHUB_TOKEN",
        "TOKEN",
        "DB_PASSWORD",
        "PGPASSWORD",
        "MYSQL_PWD",
        "AWS_SECRET_ACCESS_KEY",
        "CLIENT_SECRET",
        "SSH_PASSPHRASE",
        "GOOGLE_CREDENTIALS",
        "BASIC_AUTH",
        "stripe_secret_key",
        "KEY_OF_LIFE",
    ],
)
def test_the_value_of_a_variable_named_like_a_secret_is_masked(name):
    assert redactor_for({name: "correct-horse"}).text("with correct-horse") == "with [redacted]"


@pytest.mark.parametrize(
    "name", ["PATH", "HOME", "KEYBOARD", "MONKEY", "TOKENIZERS_PARALLELISM", "AUTHOR", "SECRETARY", "PWD"]
)
def test_other_variables_are_not_masked(name):
    assert redactor_for({name: "correct-horse"}).text("with correct-horse") == "with correct-horse"


def test_a_value_too_short_to_be_a_secret_is_not_looked_for():
    assert redactor_for({"API_KEY": "dev", "TOKEN": ""}).text("dev mode") == "dev mode"


def test_by_default_the_environment_of_the_process_is_read(monkeypatch):
    monkeypatch.setenv("MY_SERVICE_TOKEN", "correct-horse")
    assert redactor_for().text("with correct-horse") == "with [redacted]"
    monkeypatch.delenv("MY_SERVICE_TOKEN")
    assert redactor_for().text("with correct-horse") == "with correct-horse"


def test_values_shaped_like_keys_are_masked_too():
    assert redactor_for({}).text("sk-ant-api03-AbCdEfGhIjKl") == "[redacted]"


# --- a known secret in every field that may hold foreign text ---

CANARY = 'correct horse/battery "staple" é'
"""A secret without the shape of a key: a redactor masks it only if it was given this very value."""
KNOWS = Redactor.knowing([CANARY])
LONG = "x" * 480 + CANARY + "y" * 600


@pytest.fixture
def configured(monkeypatch):
    monkeypatch.setenv("HOLDFAST_TOKEN", CANARY)
    process_redactor.cache_clear()
    yield
    monkeypatch.undo()
    process_redactor.cache_clear()


def shows(shown: object) -> bool:
    """Whether the canary, or enough of its beginning, can be read in what is shown."""
    text = shown if isinstance(shown, str) else json.dumps(shown, ensure_ascii=False, default=repr)
    return any(head in text for head in (CANARY[:8], json.dumps(CANARY, ensure_ascii=False)[1:9]))


CAUSE = Cause(type=CANARY, message=f"a {CANARY}", chain=(Cause(type="E", message=LONG),))
FULL = Fault(
    code="TOOL_EXECUTION_FAILED",
    message=f"login as {CANARY} failed",
    retryable=False,
    scope=Scope.TOOL,
    context={"reason": CANARY, CANARY: 1, "deep": [{"er": (CANARY,)}], "stderr": LONG, "violations": [{"at": CANARY}]},
    partial=Partial(
        payload={"stdout": CANARY}, errors=(ItemError(item=CANARY, code=CANARY, message=CANARY, classed=CANARY),)
    ),
    cause=CAUSE,
    attempts=(Attempt(number=1, code="TOOL_TIMEOUT", message=LONG, cause=CAUSE),),
)
"""Every field of a fault that may hold foreign text holds it."""

MODELS = msgspec.structs.replace(FULL, code="TOOL_INPUT_INVALID")


WRITERS = {
    "wire.connection_error": wire.connection_error,
    "wire.error_reply": wire.error_reply,
    "wire.tool_error": wire.tool_error,
    "wire.http_body": wire.http_body,
    "wire.hook_reply": wire.hook_reply,
    "category": category.write,
    "classed": classed.write,
    "task": task.write,
    "task.result": task.write_result,
    "response": response.write,
}
SURFACES = {"user": Fault.for_user, "model": Fault.for_model, "audit": Fault.for_audit}


def test_without_a_redactor_the_secret_is_visible():
    assert shows(FULL.message)
    assert shows(FULL.for_audit()), "only a redactor that knows the value masks it"
    assert all(shows(write(FULL)) for write in WRITERS.values())


# --- with a redactor passed in ---


@pytest.mark.parametrize("fault", [FULL, MODELS], ids=["for anyone", "for the model"])
@pytest.mark.parametrize("surface", SURFACES.values(), ids=SURFACES)
def test_no_surface_shows_a_secret(surface, fault):
    assert not shows(surface(fault, redactor=KNOWS))
    assert not shows(surface(fault, 1_773_860_656.0, redactor=KNOWS))


@pytest.mark.parametrize("carried", [False, True], ids=["view", "with the fault"])
@pytest.mark.parametrize("write", WRITERS.values(), ids=WRITERS)
def test_no_view_shows_a_secret(write, carried):
    assert not shows(write(FULL, redactor=KNOWS, with_fault=carried))


def test_no_response_shows_a_secret():
    error = response.Errors.fatal(CANARY, CANARY, {"a": CANARY})
    assert not shows(response.failed(error, metadata={"b": CANARY}, redactor=KNOWS))
    assert not shows(response.from_outcome(Err(FULL), metadata={"b": CANARY}, redactor=KNOWS))


EVENTS = [
    Retry(at=1.0, attempt=1, max_attempts=3, delay=1.0, fault=FULL, run=CANARY, operation=CANARY),
    Failed(at=1.0, fault=FULL, exhausted=True),
    Fallback(at=1.0, from_=CANARY, to=CANARY, fault=FULL),
    AgentFallback(at=1.0, from_=CANARY, to=CANARY),
    Degraded(at=1.0, reason=CANARY),
    CircuitStateChange(at=1.0, circuit=CANARY, from_=CircuitState.CLOSED, to=CircuitState.OPEN),
]
MORE_EVENTS = [
    AttemptEnded(at=1.0, attempt=1, took=1.0, fault=FULL),
    RetryDenied(at=1.0, attempt=1, because="SYS_BUDGET_EXHAUSTED", fault=FULL),
    SuppressedError.of(FULL, "on purpose", at=1.0, redactor=KNOWS),
    decode(json.dumps({"type": "from-the-future", "at": 1.0, "v": 9, "text": CANARY})),
]


@pytest.mark.parametrize("event", [*EVENTS, *MORE_EVENTS], ids=lambda event: type(event).__name__)
def test_no_event_shows_a_secret(event):
    encoded = encode(event, redactor=KNOWS)
    assert not shows(encoded.decode())
    assert type(decode(encoded)) is type(event)
    assert [encoded + b"\n"] == list(encode_lines([event], redactor=KNOWS))


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
def test_no_event_in_document_001s_shape_shows_a_secret(event):
    assert not shows(write_document(event, redactor=KNOWS))


# --- masked by `fault_of`: whatever is made of the fault afterwards needs no redactor ---


def test_a_masked_fault_keeps_its_verdict():
    masked = FULL.masked(KNOWS)
    assert (masked.code, masked.retryable, masked.scope, masked.rule) == (FULL.code, False, Scope.TOOL, FULL.rule)
    assert masked.attempts[0].code == "TOOL_TIMEOUT"
    assert masked.message == "login as [redacted] failed"
    assert masked.masked(KNOWS) == masked


def test_a_fault_without_secrets_is_the_same_object():
    fault = Fault.of("TOOL_EXECUTION_FAILED", "x" * 5_000, context={"a": (1, 2)})
    assert fault.masked(KNOWS) is fault
    assert FULL.masked(Redactor()) is FULL


@pytest.mark.parametrize("word", ["provider", "PROVIDER", "retryable"])
def test_a_secret_that_is_one_of_our_own_words_changes_no_verdict(word):
    fault = Fault.of("PROVIDER_TIMEOUT", f"{word} is slow").with_attempts((Attempt(number=1, code="PROVIDER_TIMEOUT"),))
    masked = fault.masked(Redactor.knowing([word]))
    assert masked == msgspec.structs.replace(fault, message="[redacted] is slow")


def test_a_context_that_json_cannot_hold_is_masked_too():
    ring: dict[str, object] = {"text": CANARY}
    ring["self"] = ring
    for context in (ring, {"object": object(), "text": CANARY}):
        masked = Fault.of("SYS_UNKNOWN", context=context).masked(KNOWS)
        assert not shows(repr(masked.context))


def failed_with(text: str) -> Exception:
    try:
        try:
            raise OSError(13, text, text)
        except OSError as inner:
            raise RuntimeError(f"tool failed: {text}") from inner
    except RuntimeError as error:
        return error


FAILURES = {
    "exception": failed_with(CANARY),
    "long exception": failed_with(LONG),
    "cut exception": failed_with("z" * (500 - len("tool failed: ") - 12) + CANARY),
    "cut cause": failed_with("z" * (4_096 - len("tool failed: ") - 12) + CANARY),
    "group": ExceptionGroup(CANARY, [failed_with(CANARY), ValueError(CANARY)]),
    "text": f"Error: {CANARY}",
    "bytes": CANARY.encode(),
    "process": subprocess.CompletedProcess([CANARY], 1, stdout=CANARY, stderr=f"fatal: {CANARY}"),
    "response": SimpleNamespace(
        status_code=401, headers={"x-request-id": CANARY}, body={"error": {"message": CANARY, "code": CANARY}}
    ),
    "document": {"error": {"message": CANARY, "type": CANARY}},
    "ours": HoldfastError(FULL),
    "value": Err(FULL),
    "fault": FULL,
    "not a failure": SimpleNamespace(secret=CANARY),
}


@pytest.mark.parametrize("failure", FAILURES.values(), ids=FAILURES)
@pytest.mark.usefixtures("configured")
def test_a_fault_from_fault_of_shows_a_secret_nowhere(failure):
    fault = fault_of(failure)
    error = HoldfastError(fault)
    shown = [
        fault,
        repr(fault),
        repr(fault.cause),
        str(error),
        repr(error),
        repr(error.args),
        repr(Err(fault, error)),
        repr(StreamCutError(fault)),
        *(surface(fault) for surface in SURFACES.values()),
        *(write(fault, with_fault=True) for write in WRITERS.values()),
        encode(Failed(at=1.0, fault=fault, exhausted=True)).decode(),
        repr(Failed(at=1.0, fault=fault, exhausted=True)),
        repr(SuppressedError.of(fault, "r", at=1.0)),
        str(CircuitOpenError.because(circuit="c", reason=fault.message)),
    ]
    assert [one for one in shown if shows(one)] == []


@pytest.mark.usefixtures("configured")
def test_faults_made_by_hand_are_printed_without_the_secret():
    for value in (
        HoldfastError(FULL),
        CircuitOpenError.because(circuit=CANARY),
        InvalidError.at(CANARY, "a number", CANARY),
        Err(FULL),
        FULL,
        FULL.cause,
        FULL.partial,
        FULL.attempts,
        Failed(at=1.0, fault=FULL, exhausted=True),
    ):
        assert not shows(str(value))
        assert not shows(repr(value))


def test_fault_of_takes_another_redactor():
    assert not shows(repr(fault_of(failed_with(CANARY), redactor=KNOWS)))
    assert shows(fault_of(failed_with(CANARY), redactor=Redactor()).message)


def test_the_environment_is_read_once_until_the_cache_is_cleared(monkeypatch):
    process_redactor.cache_clear()
    try:
        assert process_redactor() is process_redactor()
        monkeypatch.setenv("LATE_API_KEY", CANARY)
        process_redactor.cache_clear()
        assert process_redactor().text(CANARY) == "[redacted]"
    finally:
        monkeypatch.undo()
        process_redactor.cache_clear()


# --- values shaped like keys need no configuration ---


def test_no_value_prints_a_key():
    key = "sk-ant-api03-AbCdEfGhIjKlMnOpQrStUv"
    cause = Cause(type="E", message=key)
    partial = Partial(payload={"stdout": key}, errors=(ItemError(item=key, code="c", message=key),))
    fault = Fault.of("AUTH_FAILED", key, context={"api_key": "hunter22", "a": key}, cause=cause, partial=partial)
    attempt = Attempt(number=1, message=key, cause=cause)
    for value in (cause, partial, partial.errors[0], fault, attempt, fault.with_attempts((attempt,))):
        assert key not in repr(value)
        assert repr(value).startswith(f"{type(value).__name__}(")
    assert "hunter22" not in repr(fault)


@pytest.mark.parametrize("position", range(2_020, 2_060, 4))
def test_a_key_is_masked_before_a_text_is_cut_for_the_model(position):
    key = "sk-ant-api03-AbCdEfGhIjKlMnOpQrStUv"
    fault = Fault.of("TOOL_INPUT_INVALID", "x" * position + " " + key + " y" * 100)
    assert "sk-ant" not in fault.for_model()["context"]["message"]


@pytest.mark.parametrize("position", range(440, 512, 8))
def test_a_key_is_masked_before_a_fact_is_cut_for_a_message(position):
    key = "sk-ant-api03-AbCdEfGhIjKlMnOpQrStUv"
    assert "sk-ant" not in Fault.of("TOOL_INPUT_INVALID", context={"reason": "x" * position + " " + key * 9}).message
