"""Every fault of the provider against every form of the real SDKs' calls, through recovering clients.

The table below is what the recovering client does about each. A fault without a line in it fails the first test.
"""

from __future__ import annotations

from typing import NamedTuple

import pytest
from clients_forms import ANNOUNCED, ANSWER, FORMS, RAW, REPLACEABLE, STREAMED, bare_error, play

from holdfast import DeadlineError, Policy, StreamCutError, fault_of
from holdfast.events import Failed, Recovered
from holdfast.faults import HoldfastError
from holdfast.testing.provider.faults import ERRORS, FAULTS, STATUSES

BOTH = pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
EACH = pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
EACH_REPLACEABLE = pytest.mark.parametrize("form", REPLACEABLE.values(), ids=REPLACEABLE)
EACH_ANNOUNCED = pytest.mark.parametrize("form", ANNOUNCED.values(), ids=ANNOUNCED)


class Does(NamedTuple):
    """What the recovering client does: how it ends, in which code where it fails for good, after how many requests."""

    how: str
    code: str | None = None
    requests: int = 1


def recovers(code: str, gives_up_after: int = 3) -> Does:
    """The next attempt answers; if the fault stays, this code surfaces after so many requests."""
    return Does("recovers", code, gives_up_after)


def refuses(code: str) -> Does:
    """It is the SDK's own exception at once."""
    return Does("refuses", code)


def cuts(code: str) -> Does:
    """Content has been seen: StreamCutError, nothing is sent again."""
    return Does("cuts", code)


def hands_on(code: str) -> Does:
    """The caller sees the event that reports the failure, as without us. The operation counts as failed."""
    return Does("hands on", code)


PASSES = Does("passes")
"""No failure at all."""

ALIKE = {
    "auth": refuses("AUTH_FAILED"),
    "bad-request": refuses("PROVIDER_BAD_REQUEST"),
    "billing": refuses("PROVIDER_BILLING"),
    "content-type": PASSES,
    "disconnect": recovers("PROVIDER_STREAM_CUT"),
    "drip": PASSES,
    "error-200": recovers("PROVIDER_OVERLOADED"),
    "expired": refuses("AUTH_TOKEN_EXPIRED"),
    "forbidden": refuses("AUTH_REGION_BLOCKED"),
    "hang": recovers("PROVIDER_TIMEOUT", 2),  # a third would be beyond the deadline
    "html": recovers("PROVIDER_UNAVAILABLE"),
    "internal": recovers("PROVIDER_INTERNAL_ERROR"),
    "malformed-http": recovers("PROVIDER_STREAM_CUT"),
    "not-found": refuses("PROVIDER_MODEL_NOT_FOUND"),
    "overflow": refuses("PROVIDER_CONTEXT_OVERFLOW"),
    "overloaded": recovers("PROVIDER_OVERLOADED"),
    "oversize": PASSES,
    "quota": refuses("PROVIDER_BILLING"),
    "rate-limit": recovers("PROVIDER_RATE_LIMITED", 6),  # 5, 10, 20, 40 and 80 s
    "reset": recovers("CONN_RESET"),
    "slow": PASSES,
    "timeout": recovers("PROVIDER_GATEWAY_TIMEOUT"),
    "too-large": refuses("PROVIDER_REQUEST_TOO_LARGE"),
    "unavailable": recovers("PROVIDER_UNAVAILABLE"),
}
"""Whole or streamed, it is the same."""

APART = {
    "cut": (recovers("PROVIDER_STREAM_CUT"), cuts("PROVIDER_STREAM_CUT")),
    "cut-tool": (recovers("PROVIDER_STREAM_CUT"), cuts("PROVIDER_STREAM_CUT")),
    "empty": (recovers("PROVIDER_MALFORMED_RESPONSE", 2), recovers("PROVIDER_STREAM_CUT")),
    "failed": (recovers("PROVIDER_OVERLOADED"), cuts("PROVIDER_OVERLOADED")),
    "malformed-json": (recovers("PROVIDER_OUTPUT_INVALID", 2), cuts("PROVIDER_OUTPUT_INVALID")),
    "silence": (recovers("PROVIDER_TIMEOUT", 2), cuts("PROVIDER_STREAM_STALLED")),
    "sse-error": (recovers("PROVIDER_OVERLOADED"), cuts("PROVIDER_OVERLOADED")),
    "truncate": (recovers("PROVIDER_OUTPUT_INVALID", 2), cuts("PROVIDER_STREAM_CUT")),
}
"""Whole answers, and streams that have given content."""

WORDED = {("forbidden", "anthropic"): refuses("AUTH_FORBIDDEN")}
"""What one provider words in its own way."""

SMALLER = {"oversize": "oversize;bytes=100000"}
INVISIBLE = ["cut;after=0", "cut-tool;after=0", "silence;after=0", "truncate;after=0", "malformed-json;after=0", "sse-error;after=0", "failed;after=0", "reset"]  # fmt: skip
"""The same before the first content."""


def limits_for(step):
    """A policy with limits where the service falls silent: without them the client's own limit of ten minutes ends the wait."""
    return Policy(timeout=60.0, deadline=120.0) if step.partition(";")[0] in ("hang", "silence") else None


def expected(name, form):
    if name == "failed" and form == STREAMED["responses, streamed"]:
        return hands_on("PROVIDER_OVERLOADED")
    if name == "error-200" and form in ANNOUNCED.values():
        return cuts("PROVIDER_OVERLOADED")  # the error comes after the announcement
    worded = WORDED.get((name, form.host))
    return worded or ALIKE.get(name) or APART[name][form.stream]


def test_every_fault_has_an_expectation():
    assert sorted([*ALIKE, *APART]) == sorted([*FAULTS, *ERRORS])


def test_every_fault_that_can_come_before_the_first_content_is_tried_there():
    assert {step.partition(";")[0] for step in INVISIBLE} == {
        name for name, it in FAULTS.items() if "after" in it.options
    }


@BOTH
@EACH
@pytest.mark.parametrize("name", [*FAULTS, *ERRORS])
def test_one_fault_then_all_is_well(name, form, is_async):
    it = expected(name, form)
    result = play(SMALLER.get(name, name), form, is_async=is_async, policy=limits_for(name))
    assert result.attempts == result.provider.counters.received
    assert result.provider.counters.injected == {name: 1}
    if it.how == "recovers":
        assert (result.error, result.text, result.attempts) == (None, ANSWER, 2)
        assert [event.attempts for event in result.heard.of(Recovered)] == [2]
    elif it.how == "passes":
        assert (result.error, result.attempts, result.heard.of(Failed)) == (None, 1, [])
        assert result.text == ("x" * 100_000 if name == "oversize" else ANSWER)
    elif it.how == "hands on":
        assert (result.error, result.events[-1].type) == (None, "response.failed")
        assert [event.fault.code for event in result.heard.of(Failed)] == [it.code]
    else:
        assert fault_of(result.error).code == it.code
        assert result.attempts == 1


@BOTH
@EACH
@pytest.mark.parametrize("name", [name for name in [*FAULTS, *ERRORS] if ALIKE.get(name) != PASSES])
def test_a_fault_that_stays_is_given_up_with_every_attempt_on_it(name, form, is_async):
    it = expected(name, form)
    result = play(f"{SMALLER.get(name, name)}, loop", form, is_async=is_async, policy=limits_for(name))
    if it.how == "hands on":
        assert result.attempts == result.provider.counters.received == 1
        return
    fault = fault_of(result.error)
    # In a task, and in a stream, the deadline ends the last attempt; a blocking call ends by the HTTP client's own limit.
    is_cut_by_us = (is_async or form.stream) and it.code == "PROVIDER_TIMEOUT"
    code = "SYS_DEADLINE_EXCEEDED" if is_cut_by_us else it.code
    assert (fault.code, result.attempts) == (code, it.requests)
    assert result.attempts == result.provider.counters.received == len(fault.attempts)
    assert [event.fault.code for event in result.heard.of(Failed)] == [code]
    bare = bare_error(SMALLER.get(name, name), form, is_async=is_async)
    if it.how == "cuts":
        assert isinstance(result.error, StreamCutError)
    elif bare is None:  # the SDK takes it for an answer
        assert isinstance(result.error, (form.sdk.APIError, HoldfastError))
    elif code == "SYS_DEADLINE_EXCEEDED":
        assert isinstance(result.error, DeadlineError)
    else:
        assert type(result.error) is type(bare)


@BOTH
@EACH_REPLACEABLE
@pytest.mark.parametrize("step", INVISIBLE)
def test_before_the_first_content_nobody_sees_it(step, form, is_async):
    is_tool = step.startswith("cut-tool")
    # The next answer has a tool call, too: one that begins otherwise cannot take the place of the first.
    script = f'replies = "tools"\n[[rules]]\nsteps = "{step}"' if is_tool else step
    result = play(script, form, is_async=is_async, policy=limits_for(step))
    assert result.error is None
    assert result.arguments if is_tool else result.text == ANSWER
    assert result.attempts == result.provider.counters.received == 2


@BOTH
@EACH_ANNOUNCED
@pytest.mark.parametrize("step", [step for step in INVISIBLE if step != "reset"])
def test_a_response_that_was_announced_ends_as_without_us_unless_it_may_restart(step, form, is_async):
    result = play(step, form, is_async=is_async, policy=limits_for(step))
    assert result.attempts == result.provider.counters.received == 1
    if step == "failed;after=0":
        assert (result.error, result.events[-1].type) == (None, "response.failed")
        return
    assert isinstance(result.error, StreamCutError)
    assert isinstance(result.error, form.sdk.APIError)
    result = play(step, form, is_async=is_async, policy=limits_for(step), after_first="restart")
    assert (result.error, result.text, result.attempts) == (None, ANSWER, 2)


@BOTH
@EACH
def test_FI2_a_hang_ends_by_the_clients_own_limit(form, is_async):
    result = play("hang, loop", form, is_async=is_async)
    assert isinstance(result.error, form.sdk.APITimeoutError)
    # Each of the three attempts of the profile.
    assert (fault_of(result.error).code, result.attempts, result.seconds) == ("PROVIDER_TIMEOUT", 3, 1803)


@BOTH
@EACH
@pytest.mark.parametrize("status", STATUSES)
def test_a_bare_status_is_what_it_means(status, form, is_async):
    it = expected(STATUSES[status], form)
    result = play(str(status), form, is_async=is_async)
    assert result.attempts == result.provider.counters.received == (2 if it.how == "recovers" else 1)
    assert (None if result.error is None else fault_of(result.error).code) == (
        None if it.how == "recovers" else it.code
    )


@BOTH
@EACH
def test_a_page_with_status_200_is_no_answer(form, is_async):
    result = play("html;status=200", form, is_async=is_async)
    assert (result.error, result.text) == (None, ANSWER)
    assert result.attempts == result.provider.counters.received == 2


@BOTH
@pytest.mark.parametrize("form", RAW.values(), ids=RAW)
@pytest.mark.parametrize("step", ["error-200", "html;status=200", "malformed-json", "content-type"])
def test_a_raw_response_without_an_answer_in_it_is_retried(step, form, is_async):
    result = play(step, form, is_async=is_async)
    assert (result.error, result.text) == (None, ANSWER)
    assert result.attempts == result.provider.counters.received == (1 if step == "content-type" else 2)
