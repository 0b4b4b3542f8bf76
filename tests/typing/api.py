"""The public surface as a type checker sees it. Checked by mypy strict and basedpyright, never run."""

from __future__ import annotations

from typing import assert_type

from holdfast import Code, Err, Fault, HoldfastError, InvalidError, Ok, Outcome, StreamCutError, fault_of
from holdfast.classify import CLASSIFIER, Evidence, Verdict, from_http
from holdfast.events import Event, Retry, decode, encode


def the_fault_of_anything(error: Exception) -> Code:
    fault = fault_of(error)
    assert_type(fault, Fault)
    assert_type(fault.retryable, bool)
    assert_type(fault.retry_after, float | None)
    assert_type(fault.for_user(), str)
    assert_type(fault.code, Code)
    return fault.code


def a_code_that_does_not_exist_is_a_type_error() -> Fault:
    return Fault.of("NO_SUCH_CODE")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def outcomes_match(outcome: Outcome[int]) -> str:
    match outcome:
        case Ok(value=value):
            assert_type(value, int)
            return str(value)
        case Err(fault=fault):
            assert_type(fault, Fault)
            return fault.for_user()


def outcomes_are_covariant(outcome: Ok[bool]) -> Outcome[int]:
    return outcome


def ours_are_exceptions() -> None:
    try:
        raise StreamCutError.because()
    except HoldfastError as error:
        assert_type(error.fault, Fault)
    try:
        raise InvalidError.at("policy.attempts", "a number above 0", -1)
    except ValueError:
        pass


def my_rule(evidence: Evidence) -> Verdict | None:
    return Verdict(code="PROVIDER_OVERLOADED") if evidence.status == 599 else None


def a_rule_of_mine_goes_in_front() -> Fault:
    return from_http(599, classifier=CLASSIFIER.with_rules(my_rule))


def events_are_a_union(event: Event) -> float:
    if isinstance(event, Retry):
        assert_type(event.delay, float)
    return decode(encode(event)).at
