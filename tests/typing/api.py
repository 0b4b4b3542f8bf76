"""The public surface as a type checker sees it. Checked by mypy strict and basedpyright, never run."""

from __future__ import annotations

from typing import assert_type

from holdfast import (
    Code,
    Err,
    Fault,
    HoldfastError,
    InvalidError,
    Ok,
    Outcome,
    Runtime,
    StreamCutError,
    fault_of,
)
from holdfast.classify import CLASSIFIER, Evidence, Verdict, from_http
from holdfast.events import Event, Failed, Recovered, Retry, decode, encode


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


def on_retry(event: Retry) -> None: ...


def on_two(event: Retry | Failed) -> None: ...


def on_three(event: Retry | Failed | Recovered) -> None: ...


def on_any(event: Event) -> None: ...


def a_handler_has_the_type_of_its_kinds(runtime: Runtime, kinds: tuple[type[Event], ...]) -> None:
    runtime.on(on_retry, Retry)
    runtime.on(on_two, Retry, Failed)
    runtime.on(on_two, Retry)
    runtime.on(on_three, Retry, Failed, Recovered)
    runtime.on(on_any)
    runtime.on(on_any, Retry, Failed)
    runtime.on(on_any, *kinds)
    runtime.on(lambda event: event.delay, Retry)
    runtime.on(print, Retry)
    retries: list[Retry] = []
    with runtime.on(retries.append, Retry):
        pass
    runtime.on(on_retry)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    runtime.on(on_retry, Failed)  # type: ignore[arg-type]  # pyright: ignore[reportCallIssue, reportArgumentType]


async def events_have_the_type_of_their_kinds(runtime: Runtime) -> None:
    async for retry in runtime.events(Retry):
        assert_type(retry, Retry)
    async for event in runtime.events(Retry, Failed):
        assert_type(event, Retry | Failed)
    async with runtime.events() as events:
        async for any_event in events:
            assert_type(any_event, Event)
