"""What each audience sees of a fault (S2-11, N2-1)."""

from __future__ import annotations

import json
import math
import re
from datetime import UTC, datetime

import msgspec
import pytest
from faults_strategies import faults
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.faults import CAP_BYTES, CATALOG, CODES, Attempt, Cause, Fault, ItemError, Partial, Redactor
from holdfast.faults.surfaces import clock_time, for_audit, for_model, for_user, spell_seconds

NOW = datetime(2026, 3, 20, 14, 2, 0, tzinfo=UTC).timestamp()
KEY = "sk-ant-api03-AbCdEfGhIjKlMnOpQrStUv"
TRACE = 'Traceback (most recent call last):\n  File "/srv/agent/run.py", line 7, in main\nValueError: no'
HOSTILE_WAITS = [1e-9, 1e18, 1e300, math.inf, math.nan]


# The person


@pytest.mark.parametrize("code", CODES)
def test_S2_11_a_person_reads_the_catalogs_sentences(code):
    fault = Fault.of(code, "raw text of the other side", retryable=True, maybe_executed=False)
    assert fault.for_user() == CATALOG[code].user


@pytest.mark.parametrize(
    ("context", "words"),
    [
        ({}, "The service is unavailable"),
        ({"provider": "hotel-search"}, "The service is unavailable"),
        ({"provider": "warehouse", "model": "claude-opus-4"}, "The AI service is unavailable"),
        ({"provider": "anthropic@127.0.0.1:8080"}, "The AI service is unavailable"),
        ({"provider": "Claude"}, "The AI service is unavailable"),
        ({"provider": None}, "The service is unavailable"),
    ],
)
def test_only_a_target_that_is_known_to_be_a_model_is_an_ai_service(context, words):
    assert Fault.of("PROVIDER_UNAVAILABLE", context=context).for_user().startswith(words)


def test_a_person_is_not_promised_a_retry_that_will_not_come():
    parked = Fault.of("PROVIDER_RATE_LIMITED", retryable=False, retry_after=7_200.0)
    assert "Waiting" not in parked.for_user()
    assert "handling" not in parked.for_model()["context"]["advice"]
    assert "Trying again" not in Fault.of("PROVIDER_OVERLOADED", retryable=False).for_user()


@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize("retryable", [False, True])
def test_XA6_a_model_is_not_promised_a_retry(code, retryable):
    """What it reads is the end of its call."""
    context = model_context(Fault.of(code, "m", retryable=retryable))
    for promise in ("Trying", "Asking again", "Waiting as", "handling this"):
        assert promise not in context["message"] + context["advice"]


@pytest.mark.parametrize("code", CODES)
def test_XA6_nor_is_a_person_after_the_last_attempt(code):
    attempt = Attempt(number=1, code="SYS_TIMEOUT", message="late", took=1.0)
    fault = msgspec.structs.replace(Fault.of(code), attempts=(attempt,))
    for promise in ("Trying", "Asking again", "Waiting as"):
        assert promise not in fault.for_user()


def test_S2_11_a_person_is_told_when_it_goes_on():
    fault = Fault.of("PROVIDER_RATE_LIMITED", retry_after=14.0)
    assert fault.for_user().endswith(" It can go on in 14 s.")
    assert Fault.of("CIRCUIT_OPEN", retry_after=3.96).for_user().endswith(" It can go on in 4 s.")
    assert Fault.of("CIRCUIT_OPEN", retry_after=0.2).for_user().endswith(" It can go on in 1 s.")
    assert fault.for_user(NOW).endswith(" It can go on at 2026-03-20 14:02:14 UTC.")


def test_a_person_is_warned_of_an_effect_that_may_have_happened():
    text = Fault.of("TOOL_TIMEOUT", maybe_executed=True).for_user()
    assert text.endswith("It may already have taken effect; please check before doing it again.")
    assert "may already" not in Fault.of("TOOL_TIMEOUT", maybe_executed=False).for_user()
    assert "may already" not in Fault.of("PROVIDER_INTERNAL_ERROR").for_user(), (
        "a model that answered twice harms nobody"
    )


def test_no_wait_is_not_told_as_one():
    assert Fault.of("PROVIDER_RATE_LIMITED", retry_after=0.0).for_user(NOW) == CATALOG["PROVIDER_RATE_LIMITED"].user


# The model


def model_context(fault: Fault, now: float | None = None) -> dict:
    return fault.for_model(now)["context"]


@pytest.mark.parametrize("code", CODES)
def test_N2_1_a_model_sees_class_code_and_context_and_nothing_beside(code):
    shape = Fault.of(code).for_model(NOW)
    assert list(shape) == ["class", "code", "context"]
    assert f"{shape['class']}/{shape['code']}" == CATALOG[code].classed
    assert shape["context"]["fault"] == code
    assert shape["context"]["advice"]


def test_S2_11_do_not_retry_before():
    fault = Fault.of("PROVIDER_RATE_LIMITED", retry_after=14.0)
    assert "Do not retry before 2026-03-20 14:02:14 UTC." in model_context(fault, NOW)["advice"]
    assert "Do not retry for 14 s." in model_context(fault)["advice"]


@pytest.mark.parametrize(
    ("fault", "advice"),
    [
        (
            Fault.of("PROVIDER_OVERLOADED"),
            "Nobody repeats it for you: call again later if it is still needed, or go on without it.",
        ),
        (
            Fault.of("AUTH_FAILED"),
            "Do not repeat the same call. You cannot fix this: tell the user, or go on without it.",
        ),
        (Fault.of("SESS_CLOSED"), "Do not repeat the same call. Tell the user and wait for them."),
        (
            Fault.of("TOOL_INPUT_INVALID"),
            "Do not repeat the same call. Correct the arguments that the error names.",
        ),
        (
            Fault.of("TOOL_TIMEOUT", maybe_executed=True),
            "The effect may have happened: check before calling again. Ask for less at once, or raise the tool's timeout.",
        ),
    ],
    ids=lambda value: value.code if isinstance(value, Fault) else "",
)
def test_a_model_is_told_what_to_do(fault, advice):
    assert model_context(fault)["advice"] == advice


def test_S2_11_a_providers_own_words_stay_with_the_operator():
    fault = Fault.of(
        "AUTH_FAILED",
        "key of org-acme refused by gateway.internal:8443",
        context={"host": "gateway.internal", "reason": "org-acme", "status": 401, "request_id": "req_1"},
        cause=Cause(type="httpx.HTTPStatusError", message="gateway.internal"),
    ).with_attempts((Attempt(number=1, message="gateway.internal"),))
    seen = json.dumps(fault.for_model(NOW))
    assert "gateway.internal" not in seen
    assert "org-acme" not in seen
    assert "httpx" not in seen


def test_a_model_that_must_act_is_shown_what_it_needs():
    context = model_context(
        Fault.of(
            "TOOL_INPUT_INVALID", context={"reason": "limit: expected int", "field": "limit", "host": "db.internal"}
        )
    )
    assert context["message"] == "Tool arguments are not valid: limit: expected int"
    assert context["field"] == "limit"
    assert "reason" not in context, "the message has it"
    assert "host" not in context


def test_S2_11_a_model_never_sees_a_stack():
    fault = Fault.of("TOOL_EXECUTION_FAILED", f"tool failed\n{TRACE}")
    assert model_context(fault)["message"] == "tool failed"


@pytest.mark.parametrize("fact", ["reason", "errors", "received", "violations"])
def test_S2_11_a_stack_in_a_fact_is_no_more_for_the_model_than_one_in_the_message(fact):
    seen = json.dumps(Fault.of("TOOL_EXECUTION_FAILED", "tool failed", context={fact: f"boom\n{TRACE}"}).for_model())
    assert "/srv/agent/run.py" not in seen


def test_a_models_message_is_short():
    message = model_context(Fault.of("TOOL_EXECUTION_FAILED", "x" * 100_000))["message"]
    assert len(message.encode()) <= 2_048
    assert "truncated]" in message


def test_S2_20_a_model_sees_the_partial_result_and_its_errors():
    partial = Partial(
        payload=["<a>", "<b>", "<c>"],
        errors=tuple(ItemError.of(url, Fault.of("TOOL_FORBIDDEN", f"no, {KEY}")) for url in ("d", "e")),
    )
    seen = model_context(Fault.of("TOOL_EXECUTION_FAILED", partial=partial))["partial"]
    assert len(seen["payload"]) == 3
    assert len(seen["errors"]) == 2
    assert KEY not in json.dumps(seen)


# The audit


def test_S2_11_the_audit_gets_everything():
    fault = Fault.of(
        "PROVIDER_TIMEOUT",
        "claude did not answer",
        retry_after=3.0,
        rule="network.by_class",
        maybe_executed=True,
        context={"provider": "claude", "request_id": "req_1"},
        partial=Partial(payload="The ans"),
        cause=Cause(type="httpx.ReadTimeout", message="timed out", chain=(Cause(type="TimeoutError"),)),
    ).with_attempts((Attempt(number=1, code="PROVIDER_TIMEOUT", took=30.0),))
    assert fault.for_audit(NOW) == {
        "class": "ProviderTransient",
        "code": "NetworkTimeout",
        "layer": "application",
        "kind": "transient",
        "severity": "error",
        "category": "timeout",
        "next_actor": "machine",
        "fault": {
            "code": "PROVIDER_TIMEOUT",
            "message": "claude did not answer",
            "retryable": True,
            "scope": "provider",
            "retry_after": 3.0,
            "maybe_executed": True,
            "rule": "network.by_class",
            "context": {"provider": "claude", "request_id": "req_1"},
            "partial": {"payload": "The ans"},
            "cause": {"type": "httpx.ReadTimeout", "message": "timed out", "chain": [{"type": "TimeoutError"}]},
            "attempts": [{"number": 1, "code": "PROVIDER_TIMEOUT", "took": 30.0}],
        },
        "at": "2026-03-20T14:02:00Z",
    }
    assert "at" not in fault.for_audit()


def test_N2_16_the_audit_cuts_a_long_text_and_marks_the_cut():
    body = Fault.of("SYS_UNKNOWN", context={"body": "é" * 100_000}).for_audit()["fault"]["context"]["body"]
    assert len(body.encode()) <= CAP_BYTES
    assert body.endswith(" bytes truncated]")


@pytest.mark.parametrize("value", [b"sk-ant-api03-AbCdEfGhIjKlMnOpQrStUv", bytearray(b"password=hunter2hunter2")])
def test_the_audit_does_not_write_bytes_down_in_another_alphabet(value):
    written = json.dumps(Fault.of("SYS_UNKNOWN", context={"body": value}).for_audit())
    assert msgspec.json.encode(bytes(value)).decode().strip('"') not in written, "base64 is no mask"
    assert f"[{len(value)} bytes]" in written


def _cycle() -> dict:
    node: dict = {"name": "a"}
    node["self"] = node
    return node


class Broken:
    def __repr__(self):
        raise RuntimeError("no repr")


@pytest.mark.parametrize(
    "fact",
    [
        object(),
        Broken(),
        _cycle(),
        {1: "a", 2: "b"},
        "\udce9",
        math.inf,
        {1, 2},
        2**80,
        datetime(2026, 1, 1, tzinfo=UTC),
    ],
    ids=["object", "broken", "cycle", "int keys", "surrogate", "inf", "set", "big int", "date"],
)
@pytest.mark.parametrize("surface", [for_user, for_model, for_audit])
def test_no_surface_fails_on_a_strange_fact(surface, fact):
    fault = Fault.of("TOOL_INPUT_INVALID", "m", context={"received": fact})
    json.dumps(surface(fault, NOW), allow_nan=False).encode()


# Every audience


@pytest.mark.parametrize("surface", [for_user, for_model, for_audit])
@pytest.mark.parametrize("code", ["TOOL_EXECUTION_FAILED", "AUTH_FAILED", "PROVIDER_OVERLOADED", "SESS_CLOSED"])
def test_S2_11_no_surface_shows_a_secret(surface, code):
    known = "correct-horse-battery"
    facts = {"reason": f"key {KEY}", "stderr": f"login {known}", "api_key": "x", "headers": {"Authorization": known}}
    fault = Fault.of(
        code,
        f"refused {KEY} {known}",
        context=facts,
        partial=Partial(payload=[KEY, known]),
        cause=Cause(type="E", message=f"{KEY} {known}", chain=(Cause(type="F", message=KEY),)),
    ).with_attempts((Attempt(number=1, message=f"{KEY} {known}"),))
    shown = json.dumps(surface(fault, NOW, Redactor.knowing([known])))
    assert KEY not in shown
    assert known not in shown


@pytest.mark.parametrize("wait", HOSTILE_WAITS)
@pytest.mark.parametrize("now", [None, NOW])
@pytest.mark.parametrize("surface", [for_user, for_model, for_audit])
def test_R30_no_surface_fails_on_a_strange_wait(surface, now, wait):
    shown = json.dumps(surface(Fault.of("PROVIDER_RATE_LIMITED", retry_after=wait), now), allow_nan=False)
    assert not re.search(r"\d{20}", shown), "a wait nobody lives to see is not spelled out digit by digit"


@given(faults, st.none() | st.floats(-1e12, 1e12))
@settings(max_examples=200, deadline=None)
def test_every_surface_is_total_and_json(fault, now):
    for surface in (for_user, for_model, for_audit):
        json.dumps(surface(fault, now), allow_nan=False).encode()


# Words for time


@pytest.mark.parametrize(
    ("seconds", "spoken"),
    [
        (0, "0 s"),
        (0.4, "0.4 s"),
        (9.99, "9.99 s"),
        (10, "10 s"),
        (26.4, "26 s"),
        (89.4, "89 s"),
        (90, "1 min 30 s"),
        (120, "2 min"),
        (432, "7 min 12 s"),
        (3_599, "59 min 59 s"),
        (3_600, "1 h"),
        (7_500, "2 h 5 min"),
        (172_799, "47 h 59 min"),
        (172_800, "2 days"),
        (300_000, "3 days"),
    ],
)
def test_a_duration_is_spoken(seconds, spoken):
    assert spell_seconds(seconds) == spoken


@given(st.floats(0, 1e9))
@settings(max_examples=100, deadline=None)
def test_every_duration_is_spoken_shortly(seconds):
    assert 2 < len(spell_seconds(seconds)) < 20


@pytest.mark.parametrize(
    ("at", "shown"),
    [
        (NOW, "2026-03-20 14:02:00 UTC"),
        (0.0, "1970-01-01 00:00:00 UTC"),
        (1e20, "later"),
        (math.inf, "later"),
        (math.nan, "later"),
    ],
)
def test_an_instant_is_shown_or_told_as_later(at, shown):
    assert clock_time(at) == shown
