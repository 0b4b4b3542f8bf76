"""Repairs: the request is changed before it is sent again (C15, C16, R83)."""

from __future__ import annotations

import asyncio

import pytest

from holdfast import Budget, Changed, Fault, HoldfastError, InvalidError, Policy, Runtime, fault_of, recover
from holdfast.events import Failed, Recovered, Repaired, Retry, SuppressedError
from holdfast.policies import Tries
from holdfast.runtime.runtime import use_runtime


@pytest.fixture
def events():
    seen = []
    runtime = Runtime(waits=False)
    runtime.on(seen.append)
    with use_runtime(runtime):
        yield seen


def overflow() -> HoldfastError:
    return HoldfastError(Fault.of("PROVIDER_CONTEXT_OVERFLOW"))


def of(kind, events):
    return [event for event in events if isinstance(event, kind)]


class Model:
    """A model with room for ten characters. It keeps the requests that reach it."""

    def __init__(self):
        self.requests = []

    def __call__(self, question: str) -> str:
        self.requests.append(question)
        if len(question) > 10:
            raise overflow()
        return question.upper()


def test_C15_an_overflow_is_compacted_and_sent_changed(events):
    model = Model()
    ask = recover("claude")(model)

    @ask.repair("compact", times=3)
    def halve(fault: Fault, question: str) -> Changed:
        assert fault.code == "PROVIDER_CONTEXT_OVERFLOW"
        return Changed(question[: len(question) // 2])

    assert ask("x" * 40) == "X" * 10
    assert [len(question) for question in model.requests] == [40, 20, 10]
    assert [event.action for event in of(Repaired, events)] == ["halve", "halve"]
    assert [event.attempts for event in of(Recovered, events)] == [3]


def test_async_functions_have_async_repairs(events):
    model = Model()

    @recover("claude")
    async def ask(question: str) -> str:
        return model(question)

    @ask.repair("compact")
    async def cut(fault, question):
        await asyncio.sleep(0)
        return Changed(question[:10])

    assert asyncio.run(ask("y" * 30)) == "Y" * 10


def test_R83_without_a_repair_an_overflow_is_sent_once(events):
    model = Model()
    ask = recover("claude")(model)
    with pytest.raises(HoldfastError):
        ask("x" * 40)
    assert len(model.requests) == 1
    assert of(Retry, events) == []


def test_the_identical_request_is_never_sent_again(events):
    model = Model()
    ask = recover("claude")(model)
    ask.repair("compact", times=5)(lambda fault, question: Changed(question))
    with pytest.raises(HoldfastError) as raised:
        ask("x" * 40)
    assert len(model.requests) == 1
    assert "the repair for it did not help" in raised.value.__notes__[0]
    assert [event.fault.code for event in of(Failed, events)] == ["PROVIDER_CONTEXT_OVERFLOW"]


def test_a_repair_back_to_an_earlier_request_is_rejected(events):
    model = Model()
    ask = recover("claude")(model)
    ask.repair("compact", times=5)(lambda fault, question: Changed("y" * 30 if question[0] == "x" else "x" * 40))
    with pytest.raises(HoldfastError):
        ask("x" * 40)
    assert model.requests == ["x" * 40, "y" * 30]


def test_a_repair_runs_at_most_its_times_and_the_last_error_surfaces(events):
    model = Model()
    ask = recover("claude")(model)
    ask.repair("compact", times=2)(lambda fault, question: Changed(question[:-1]))
    with pytest.raises(HoldfastError) as raised:
        ask("x" * 40)
    assert [len(question) for question in model.requests] == [40, 39, 38]
    assert [attempt.number for attempt in fault_of(raised.value).attempts] == [1, 2, 3]


def test_C16_a_refreshed_credential_sends_the_same_request_once_more(events):
    keys = ["old"]
    calls = []

    @recover("claude")
    def ask(question):
        calls.append(keys[-1])
        if keys[-1] == "old":
            raise HoldfastError(Fault.of("AUTH_TOKEN_EXPIRED"))
        return question

    @ask.repair("refresh")
    def sign_in(fault, question):
        keys.append("new")
        return True

    assert ask("hi") == "hi"
    assert calls == ["old", "new"]


def test_C16_a_second_401_is_not_answered_by_signing_in_again(events):
    calls = []

    @recover("claude")
    def ask():
        calls.append(1)
        raise HoldfastError(Fault.of("AUTH_TOKEN_EXPIRED"))

    ask.repair("refresh")(lambda fault: True)
    with pytest.raises(HoldfastError):
        ask()
    assert len(calls) == 2


def test_a_repair_that_changes_nothing_lets_the_error_through(events):
    for nothing in (None, True, "text"):
        model = Model()
        ask = recover(f"claude-{nothing}")(lambda question, model=model: model(question))
        ask.repair("compact")(lambda fault, question, nothing=nothing: nothing)
        with pytest.raises(HoldfastError):
            ask("x" * 40)
        assert len(model.requests) == 1


def test_R25_a_repair_that_raises_is_reported_and_the_original_error_surfaces(events):
    original = overflow()

    @recover("claude")
    def ask():
        raise original

    @ask.repair("compact")
    def broken(fault):
        raise KeyError("oops")

    with pytest.raises(HoldfastError) as raised:
        ask()
    assert raised.value is original
    assert [event.reason for event in of(SuppressedError, events)] == ["the repair broken raised"]


def test_a_repair_wins_over_a_retry(events):
    """An answer that does not fit is requested again with the reason, never with the identical request."""
    questions = []

    @recover("claude", Policy(per_code={"PROVIDER_OUTPUT_INVALID": Tries(attempts=3)}))
    def ask(question):
        questions.append(question)
        if "JSON" not in question:
            raise HoldfastError(Fault.of("PROVIDER_OUTPUT_INVALID"))
        return "{}"

    ask.repair("reask")(lambda fault, question: Changed(f"{question} Answer in JSON."))
    assert ask("Name three fish.") == "{}"
    assert questions == ["Name three fish.", "Name three fish. Answer in JSON."]


def test_a_spent_budget_makes_no_repairs(events):
    model = Model()
    ask = recover("claude")(model)
    ask.repair("compact")(lambda fault, question: Changed(question[:5]))
    with Budget(attempts=1), pytest.raises(HoldfastError):
        ask("x" * 40)
    assert len(model.requests) == 1


def test_an_unsafe_call_that_may_have_happened_is_not_repaired(events):
    mended = []

    @recover("tool:deploy", effect="unsafe")
    def deploy():
        raise ConnectionResetError("mid-way")

    deploy.repair("CONN_RESET")(lambda fault: mended.append(fault) or Changed())
    with pytest.raises(HoldfastError) as raised:
        deploy()
    assert raised.value.fault.code == "TOOL_OUTCOME_UNKNOWN"
    assert mended == []


def test_an_async_repair_of_a_plain_function_is_an_error():
    @recover("claude")
    def ask():
        return 1

    async def mend(fault):
        return None

    with pytest.raises(InvalidError, match="a plain function"):
        ask.repair("compact")(mend)
    with pytest.raises(InvalidError, match="a function"):
        ask.repair("compact")("no function")
