"""The classifier: rules run in order, the first verdict decides and is named, and nothing ever raises."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import msgspec
import pytest

from holdfast.classify import (
    CLASSIFIER,
    PATIENCE_S,
    Classifier,
    Evidence,
    Source,
    Verdict,
    from_exception,
    from_grpc,
    from_http,
    from_jsonrpc,
    from_process,
    from_record,
    from_stream,
    from_text,
    read_record,
)
from holdfast.classify.classifier import name_of
from holdfast.classify.rules import RULES
from holdfast.faults import CATALOG, CODES, Fault, Scope


def refuse_mondays(evidence: Evidence) -> Verdict | None:
    """A user's rule."""
    return Verdict(code="TOOL_FORBIDDEN") if "monday" in evidence.text else None


def raising(_: Evidence) -> Verdict | None:
    raise ZeroDivisionError("a defect of a user's rule, with password=hunter2hunter2 in it")


DOORS: dict[str, Any] = {
    "http": lambda classifier: from_http(429, {"retry-after": "7"}, "on monday", classifier=classifier),
    "stream": lambda classifier: from_stream('data: {"error":{"message":"on monday"}}', classifier=classifier),
    "jsonrpc": lambda classifier: from_jsonrpc(
        {"error": {"code": -32603, "message": "on monday"}}, classifier=classifier
    ),
    "process": lambda classifier: from_process(1, "on monday", classifier=classifier),
    "grpc": lambda classifier: from_grpc("UNAVAILABLE", "on monday", classifier=classifier),
    "text": lambda classifier: from_text("on monday", classifier=classifier),
    "exception": lambda classifier: from_exception(ConnectionResetError("on monday"), classifier=classifier),
    "group": lambda classifier: from_exception(ExceptionGroup("g", [OSError("on monday")]), classifier=classifier),
    "record": lambda classifier: from_record(read_record('{"body": "on monday"}'), classifier=classifier),
    "record of an exception": lambda classifier: from_record(
        read_record('{"kind": "exception", "exception": {"message": "on monday"}}'), classifier=classifier
    ),
}
every_door = pytest.mark.parametrize("door", DOORS.values(), ids=DOORS.keys())


# Order and names


def test_every_rule_has_a_name_of_its_own_and_says_what_it_recognises():
    names = [name_of(rule) for rule in RULES]
    assert [name for name, count in Counter(names).items() if count > 1] == []
    assert CLASSIFIER.rules == tuple(names)
    for rule in RULES:
        assert re.fullmatch(r"[a-z]+\.[a-z_0-9]+", name_of(rule))
        assert rule.__doc__


def test_the_order_is_cancellation_then_machine_codes_then_prose_then_status_then_wrappers():
    order = CLASSIFIER.rules
    assert order[0] == "cancelled.cancelled_here"
    for earlier, later in [
        ("limits.no_money", "limits.rate_in_prose"),
        ("codes.exact_code", "limits.rate_in_prose"),
        ("codes.exact_code", "status.bare_status"),
        ("overflow.context", "status.bare_status"),
        ("access.in_prose", "status.bare_status"),
        ("status.bare_status", "python.sdk_class"),
        ("network.by_class", "network.by_wrapper"),
    ]:
        assert order.index(earlier) < order.index(later), (earlier, later)
    assert order[-12:] == (
        "concepts.by_word_groups",
        "concepts.by_parts_of_words",
        "plain.answered_no",
        "guesses.none_found",
        "guesses.stays",
        "guesses.heals",
        "guesses.obliged",
        "plain.failed_here",
        "plain.cautious",
        "plain.told",
        "plain.explained",
        "server.stream_failed",
    )


def test_the_first_rule_that_recognises_decides_and_is_named():
    def first(_: Evidence) -> Verdict | None:
        return None

    def second(_: Evidence) -> Verdict | None:
        return Verdict(code="TOOL_TIMEOUT")

    def third(_: Evidence) -> Verdict | None:
        raise AssertionError("must not run")

    verdict = Classifier([first, second, third]).judge(Evidence(source=Source.TEXT))
    assert verdict == Verdict(code="TOOL_TIMEOUT", rule="test_classify_classifier.second")


def test_a_rule_may_name_itself():
    classifier = Classifier([lambda _: Verdict(code="TOOL_TIMEOUT", rule="mine")])
    assert classifier.judge(Evidence(source=Source.TEXT)).rule == "mine"


class CallableRule:
    def __call__(self, evidence: Evidence) -> Verdict | None:
        return Verdict(code="TOOL_TIMEOUT")


def test_a_rule_may_be_any_callable():
    assert (
        from_text("x", classifier=CLASSIFIER.with_rules(CallableRule())).rule == "test_classify_classifier.CallableRule"
    )


def test_nothing_recognised_is_unknown():
    fault = from_text("xyzzy")
    assert (fault.code, fault.rule) == ("SYS_UNKNOWN", "nothing-matched")
    assert from_text("xyzzy", classifier=Classifier([])).code == "SYS_UNKNOWN"


# The user's rules


@every_door
def test_with_rules_puts_the_users_rules_in_front_of_every_door(door: Any):
    fault = door(CLASSIFIER.with_rules(refuse_mondays))
    assert (fault.code, fault.rule) == ("TOOL_FORBIDDEN", "test_classify_classifier.refuse_mondays")
    assert door(CLASSIFIER).code != "TOOL_FORBIDDEN"


def test_with_rules_changes_nothing_on_the_classifier_it_is_called_on():
    before = CLASSIFIER.rules
    mine = CLASSIFIER.with_rules(raising, refuse_mondays)
    assert CLASSIFIER.rules == before
    assert mine.rules == ("test_classify_classifier.raising", "test_classify_classifier.refuse_mondays", *before)


@every_door
def test_a_raising_user_rule_is_reported_and_never_raises(door: Any):
    fault = door(CLASSIFIER.with_rules(raising))
    assert fault.code == "SYS_UNKNOWN"
    assert fault.rule == "classifier-failed.ZeroDivisionError"
    assert fault.retryable is False
    assert fault.cause is not None, "the defect of the rule, or the group whose leaf it failed on"
    assert b"hunter2" not in msgspec.json.encode(fault)


@pytest.mark.parametrize("answer", [Verdict(code="NO_SUCH_CODE"), "TOOL_TIMEOUT", 7, object()])  # type: ignore[arg-type]
def test_a_user_rule_that_answers_nonsense_is_reported_and_never_raises(answer: Any):
    fault = from_http(429, classifier=CLASSIFIER.with_rules(lambda _: answer))
    assert fault.code == "SYS_UNKNOWN"
    assert fault.rule.startswith("classifier-failed.")


# Conclusions


@pytest.mark.parametrize("code", CODES)
def test_a_verdict_takes_the_catalogs_defaults(code: Any):
    evidence = Evidence(source=Source.TEXT, message="what happened")
    fault = CLASSIFIER.conclude(evidence, Verdict(code=code, rule="r"))
    entry = CATALOG[code]
    assert (fault.code, fault.retryable, fault.scope, fault.rule) == (code, entry.retryable, entry.scope, "r")
    assert fault.message == "what happened"


def test_a_failure_without_words_gets_the_catalogs_with_nothing_left_to_fill_in():
    concluded = {code: CLASSIFIER.conclude(Evidence(source=Source.TEXT), Verdict(code=code)).message for code in CODES}
    assert concluded == {code: Fault.of(code).message for code in CODES}


@pytest.mark.parametrize("fault", [from_process(2), from_process(None), from_jsonrpc({"error": {"code": -32603}})])
def test_no_message_shows_the_braces_of_its_template(fault: Fault):
    assert "{" not in fault.message


def test_a_rule_may_know_better_than_the_catalog():
    verdict = Verdict(code="PROVIDER_RATE_LIMITED", retryable=False, scope=Scope.MODEL)
    fault = CLASSIFIER.conclude(Evidence(source=Source.HTTP), verdict)
    assert (fault.retryable, fault.scope) == (False, Scope.MODEL)


@pytest.mark.parametrize(
    ("seconds", "retryable"),
    [("0", True), ("900", True), ("900.0", True), ("900.1", False), ("901", False), ("86400", False)],
)
def test_PATIENCE_a_wait_of_more_than_900_s_is_parked_and_still_told(seconds: str, retryable: bool):
    assert PATIENCE_S == 900
    fault = from_http(429, {"retry-after": seconds})
    assert (fault.retryable, fault.retry_after) == (retryable, float(seconds))


@pytest.mark.parametrize("status", [408, 429, 500, 503, 529])
def test_x_should_retry_false_is_obeyed(status: int):
    assert from_http(status).retryable
    assert not from_http(status, {"X-Should-Retry": "false"}).retryable


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (402, ""),
        (429, '{"error": {"code": "insufficient_quota"}}'),
        (400, '{"error": {"message": "Your credit balance is too low"}}'),
        (401, ""),
        (403, ""),
        (400, '{"error": {"code": "context_length_exceeded"}}'),
        (400, '{"error": {"code": "content_filter"}}'),
        (413, ""),
    ],
)
def test_x_should_retry_true_never_overrides_money_keys_policy_or_size(status: int, body: str):
    assert not from_http(status, {"x-should-retry": "true"}, body).retryable


def test_x_should_retry_true_tells_a_contended_409_from_a_plain_one():
    assert from_http(409, {"x-should-retry": "true"}).retryable
    assert not from_http(409).retryable


def test_only_with_delay_a_used_up_window_is_retried_only_with_a_delay_that_is_worth_waiting_for():
    body = (
        '{"error": {"message": "Rate limit reached for gpt-x on tokens per day (TPD): Limit 9, Used 9, Requested 1."}}'
    )
    silent, soon, late = (
        from_http(429, headers, body) for headers in ({}, {"retry-after": "30"}, {"retry-after": "3600"})
    )
    assert {silent.code, soon.code, late.code} == {"PROVIDER_DAILY_LIMIT"}
    assert (silent.retryable, silent.retry_after) == (False, None)
    assert (soon.retryable, soon.retry_after) == (True, 30)
    assert (late.retryable, late.retry_after) == (False, 3600)


def test_only_with_delay_holds_for_the_verdict_of_any_rule():
    verdict = Verdict(code="PROVIDER_QUOTA_EXHAUSTED", only_with_delay=True)
    assert not CLASSIFIER.conclude(Evidence(source=Source.HTTP), verdict).retryable
    delayed = Evidence(source=Source.HTTP, headers={"retry-after": "5"})
    assert CLASSIFIER.conclude(delayed, verdict).retryable


# Conformance


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (429, {"error": {"code": "insufficient_quota", "message": "You exceeded your current quota"}}),
        (429, {"error": {"message": "Your credit balance is too low to access the API"}}),
        (400, {"error": {"message": "Your credit balance is too low to access the API"}}),
        (403, {"error": "Your team has used all available credits"}),
        (412, {"error": "Account is suspended, possibly due to unpaid invoices"}),
        (402, {}),
        (500, {"error": {"message": "insufficient account balance"}}),
    ],
)
def test_R82_no_money_is_never_retried_in_whatever_status_it_hides(status: int, body: Any):
    fault = from_http(status, {"retry-after": "1"}, body)
    assert (fault.code, fault.retryable, fault.retry_after) == ("PROVIDER_BILLING", False, None)


@pytest.mark.parametrize(
    "body",
    [
        {"error": {"message": "Quota exceeded for requests per minute. Please retry in 26s."}},
        {
            "error": {
                "message": "Rate limit reached for gpt-4o: tokens per min (TPM). Please try again in 6s. Visit billing."
            }
        },
        {"error": {"type": "rate_limit_error", "message": "Number of request tokens has exceeded your rate limit"}},
    ],
)
def test_R82_a_rate_that_says_quota_or_billing_stays_a_rate(body: Any):
    fault = from_http(429, {}, body)
    assert (fault.code, fault.retryable) == ("PROVIDER_RATE_LIMITED", True)


@pytest.mark.parametrize("status", [400, 413, 422, 429, 500, 503])
def test_R83_overflow_by_code_is_overflow_whatever_the_status(status: int):
    fault = from_http(status, {}, {"error": {"code": "context_length_exceeded", "message": "too long"}})
    assert (fault.code, fault.retryable) == ("PROVIDER_CONTEXT_OVERFLOW", False)


def test_R83_a_request_larger_than_the_whole_limit_can_never_fit():
    text = "Request too large for gpt-4 on tokens per min (TPM): Limit 10000, Requested 12345."
    assert from_http(429, {}, {"error": {"message": text}}).code == "PROVIDER_REQUEST_TOO_LARGE"


@pytest.mark.parametrize(
    ("status", "code", "retryable"),
    [
        (400, "PROVIDER_BAD_REQUEST", False),
        (401, "AUTH_FAILED", False),
        (402, "PROVIDER_BILLING", False),
        (403, "AUTH_FORBIDDEN", False),
        (404, "PROVIDER_ENDPOINT_NOT_FOUND", False),
        (408, "PROVIDER_TIMEOUT", True),
        (413, "PROVIDER_REQUEST_TOO_LARGE", False),
        (418, "PROVIDER_BAD_REQUEST", False),
        (429, "PROVIDER_RATE_LIMITED", True),
        (498, "PROVIDER_OVERLOADED", True),
        (499, "SYS_CANCELLED", False),
        (500, "PROVIDER_INTERNAL_ERROR", True),
        (501, "PROVIDER_CAPABILITY_MISSING", False),
        (502, "PROVIDER_UNAVAILABLE", True),
        (503, "PROVIDER_UNAVAILABLE", True),
        (504, "PROVIDER_GATEWAY_TIMEOUT", True),
        (520, "PROVIDER_UNAVAILABLE", True),
        (524, "PROVIDER_GATEWAY_TIMEOUT", True),
        (529, "PROVIDER_OVERLOADED", True),
        (555, "PROVIDER_INTERNAL_ERROR", True),
    ],
)
def test_a_bare_status_is_the_last_word(status: int, code: str, retryable: bool):
    fault = from_http(status)
    assert (fault.code, fault.retryable) == (code, retryable)


@pytest.mark.parametrize(
    ("status", "body", "code"),
    [
        (429, "Please retry in 18.403470473s. Quota exceeded for requests per minute", "PROVIDER_RATE_LIMITED"),
        (429, "Service tier capacity exceeded for this model.", "PROVIDER_OVERLOADED"),
        (400, "`tool_use` ids were found without `tool_result` blocks", "PROVIDER_HISTORY_INVALID"),
        (400, "max_tokens: 64000 > 8192, which is the maximum allowed number of output tokens", "PROVIDER_BAD_REQUEST"),
        (400, "prompt is too long: 212000 tokens > 200000 maximum", "PROVIDER_CONTEXT_OVERFLOW"),
        (400, "Too many tokens, please wait before trying again.", None),
        (200, "<html><title>Login</title></html>", "PROVIDER_MALFORMED_RESPONSE"),
        (
            429,
            {"error": {"type": "credit_limit", "message": "You reached the rate limit of 60 rpm"}},
            "PROVIDER_RATE_LIMITED",
        ),
        (429, {"error": {"type": "invalid_request_error", "code": "rate_limit_error"}}, "PROVIDER_RATE_LIMITED"),
        (400, {"code": "Client specified an invalid argument", "error": "string"}, "PROVIDER_BAD_REQUEST"),
    ],
)
def test_known_misclassifications_of_others_are_ours_no_more(status: int, body: Any, code: str | None):
    """The README's list of cited mistakes: digits in text, capacity as rate, parameters as overflow, and so on."""
    fault = from_http(status, {}, {"error": {"message": body}} if isinstance(body, str) and body[0] != "<" else body)
    if code is None:
        assert fault.code != "PROVIDER_CONTEXT_OVERFLOW"
    else:
        assert fault.code == code, fault.rule


def test_the_same_evidence_gives_the_same_fault():
    faults = [from_http(429, {"retry-after": "3"}, '{"error": {"message": "slow down"}}', now=5.0) for _ in range(3)]
    assert faults[0] == faults[1] == faults[2]


def test_evidence_keeps_its_earlier_names():
    evidence = Evidence(source=Source.TEXT, delays=(3.0,), matched=5)
    assert (evidence.waits, evidence.heard) == ((3.0,), 5)
    assert evidence.hears(4)
    assert not evidence.hears(2)
    assert evidence.first_heard((("PROVIDER_OVERLOADED", 2), ("PROVIDER_TIMEOUT", 1))) == "PROVIDER_TIMEOUT"
