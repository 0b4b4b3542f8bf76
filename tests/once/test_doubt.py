"""What is in doubt, in words: each error names the call, says what is known, and what can be done about it."""

from __future__ import annotations

import shlex
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from once_kit import ended, failed, identity, started

from holdfast.faults import Fault, HoldfastError, OutcomeUnknownError
from holdfast.once.doubt import (
    I_DO_NOT_KNOW,
    IT_DID_NOT_HAPPEN,
    IT_HAPPENED,
    OUTCOMES,
    UnsettledError,
    call_text,
    check_not_repeated,
    drift_error,
    failure_in,
    resolve_command,
    unknown_error,
    window,
)
from holdfast.once.identity import Identity, step_name
from holdfast.once.records import StepEnded

PAY = identity()
NAME = step_name(PAY, 1)
CUT = started(PAY, shown="(5)")
RESET = {"fault": {"code": "CONN_RESET", "message": "reset", "cause": {"type": "OSError", "message": "reset by peer"}}}


def test_a_person_may_say_yes_no_or_that_nobody_knows() -> None:
    assert OUTCOMES == {IT_HAPPENED: True, IT_DID_NOT_HAPPEN: False, I_DO_NOT_KNOW: None}
    assert next(iter(OUTCOMES)) == IT_HAPPENED


@pytest.mark.parametrize(
    ("entry", "text"),
    [
        (CUT, "pay(5)"),
        (started(PAY, 2, shown="(5)"), "pay(5) (use 2)"),
        (started(Identity("", "", "invoice 17"), shown="(5)"), "pay(5) with key 'invoice 17'"),
        (started(Identity("pay", "a" * 64), shown="(5)"), "pay(5)"),
        (StepEnded(turn=1, step="pay#1", args="x", ok=True, shown="(5)"), "pay(5)"),
        (started(PAY, shown=f"({'x' * 200})"), f"pay({'x' * 159}…"),
    ],
)
def test_a_step_is_named_as_a_person_knows_it(entry: Any, text: str) -> None:
    assert call_text(entry) == text


def test_the_error_of_a_doubt_has_the_key_and_all_ways_to_resolve_it() -> None:
    error = unknown_error("s", f"2/{NAME}", CUT, store_option=" --store a.db")
    assert isinstance(error, OutcomeUnknownError)
    assert error.key == f"s/2/{NAME}"
    assert error.fault.context == {"key": f"s/2/{NAME}", "step": NAME}
    message = error.fault.message
    assert message.startswith("pay(5) was started and its end is not known, so it is not repeated.")
    assert f"session.resolve('s/2/{NAME}', happened=True, result=…)" in message
    assert f"session.resolve('s/2/{NAME}', happened=False)" in message
    command = f"holdfast sessions resolve s 2/{NAME} --store a.db"
    assert f"{command} --happened --result JSON" in message
    assert f"{command} --not-happened" in message


@pytest.mark.parametrize(
    ("document", "how", "code"),
    [
        (RESET, "was started and failed (OSError: reset by peer), which does not show whether it took effect", "CONN_RESET"),
        ({"fault": {"code": "CONN_RESET", "message": "reset"}}, "failed (CONN_RESET: reset), which", "CONN_RESET"),
        # The store could keep nothing but the code.
        ({"code": "CONN_RESET"}, "was started and its end is not known", None),
    ],
)  # fmt: skip
def test_the_error_of_a_doubt_says_how_the_step_failed(document: Any, how: str, code: str | None) -> None:
    entry = failed(PAY, document)
    error = unknown_error("s", NAME, entry)
    assert how in error.fault.message
    assert error.fault.context.get("failed_with") == code
    failure = failure_in(entry)
    assert (failure is None) is (code is None)
    assert error.fault.cause == (None if failure is None else failure.cause)


def test_a_step_that_has_no_end_or_a_good_one_has_no_failure() -> None:
    assert failure_in(CUT) is None
    assert failure_in(ended(PAY, result=failed(PAY, RESET).result)) is None


@given(st.text("ab '\"$;#é", min_size=1, max_size=8))
def test_the_command_that_resolves_a_doubt_can_be_pasted_into_a_shell(key: str) -> None:
    words = shlex.split(resolve_command("s", f"key:{key}", " --store a.db"))
    assert words == ["holdfast", "sessions", "resolve", "s", f"key:{key}", "--store", "a.db"]


def test_the_error_of_a_drift_shows_both_calls_and_the_ways_on() -> None:
    error = drift_error("s", 2, ended(PAY, shown='("version 2", 1)'), '("version 3", 1)')
    assert error.fault.code == "SESS_STEP_DRIFT"
    message = error.fault.message
    assert 'Before: pay("version 2", 1). Now: pay("version 3", 1).' in message
    assert f"session.accept('s/2/{NAME}')" in message
    assert error.fault.context == {
        "session_id": "s",
        "step": NAME,
        "key": f"s/2/{NAME}",
        "before": '("version 2", 1)',
        "now": '("version 3", 1)',
    }


def test_the_error_of_a_drift_says_what_to_do_about_an_order_that_changes() -> None:
    assert "`sorted(…)`" in drift_error("s", 0, ended(PAY, shown="(1)"), "(2)").fault.message
    assert "`sorted(…)`" not in drift_error("s", 0, ended(PAY, shown="(1)"), "(1)").fault.message


def test_the_error_of_a_drift_outside_of_turns_has_a_key_without_one() -> None:
    assert drift_error("s", 0, ended(PAY), "(3)").fault.context["key"] == f"s/{NAME}"
    assert drift_error("s", 0, ended(PAY), "(3)").fault.context["before"] == "(arguments that were not kept)"
    # A step of version 1 has its turn in its name.
    stored = StepEnded(turn=3, step="pay#1", args="x", ok=True)
    assert drift_error("s", 0, stored, "(3)").fault.context["key"] == "s/3/pay#1"


@given(st.text("ab", min_size=400, max_size=420), st.integers(0, 399))
def test_the_error_of_a_drift_shows_the_first_difference_of_long_arguments(text: str, at: int) -> None:
    now = text[:at] + "!" + text[at + 1 :]
    context = drift_error("s", 0, ended(PAY, shown=text), now).fault.context
    assert "!" in context["now"]
    assert "!" not in context["before"]
    assert "!" in drift_error("s", 0, ended(PAY, shown=text), f"{text}!").fault.context["now"]
    assert max(len(context["now"]), len(context["before"])) <= 163


@given(st.integers(0, 400), st.integers(0, 400))
@example(160, 0)
@example(240, 159)
@example(240, 160)
def test_a_window_shows_its_place_and_says_where_it_was_cut(length: int, around: int) -> None:
    text = "".join(chr(0x4E00 + place) for place in range(length))
    shown = window(text, around)
    start = max(0, around - 80) if len(text) > 160 else 0
    inner = text[start : start + 160]
    assert shown == f"{'(…' if start else ''}{inner}{'…' if text[start + 160 :] else ''}"
    assert around >= len(text) or start <= around < start + len(inner)


@pytest.mark.parametrize(
    ("known", "anew", "raises"),
    [
        (ended(PAY, doubted=True), (), True),
        (ended(PAY, doubted=True), (f"2/{NAME}",), False),
        (ended(PAY, doubted=True), (NAME,), True),
        (ended(PAY, doubted=False), (), False),
        # Somebody found out that it did not happen: this call is the one that does it.
        (ended(PAY, ok=False, doubted=True), (), False),
    ],
)
def test_a_further_call_after_a_doubt_is_refused_until_somebody_says_that_it_is_meant(
    known: Any, anew: tuple[str, ...], *, raises: bool
) -> None:
    if not raises:
        check_not_repeated("s", 2, [(NAME, known)], anew)
        return
    with pytest.raises(HoldfastError) as caught:
        check_not_repeated("s", 2, [("other", ended(PAY)), (NAME, known)], anew)
    fault = caught.value.fault
    assert (fault.code, fault.context["key"]) == ("SESS_STEP_DRIFT", f"s/2/{NAME}")
    assert f"await session.accept('s/2/{NAME}', again=True)" in fault.message


def test_an_unsettled_call_has_the_result_for_the_case_that_it_did_not_happen() -> None:
    fault = Fault.of("TOOL_TIMEOUT", maybe_executed=True)
    error = UnsettledError(fault, {"holdfast.call": {}})
    assert (error.fault, error.result) == (fault, {"holdfast.call": {}})
    assert isinstance(error, OutcomeUnknownError)
