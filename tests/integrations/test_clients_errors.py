"""What surfaces through a recovering client is always an error of the SDK too, whoever raised it."""

from __future__ import annotations

import asyncio
import copy
import pickle

import anthropic
import openai
import pytest
from clients_forms import CLAUDE, FORMS, STREAMED, WHOLE, client_for, collect, collect_async, play, recovering, text_of
from clients_kit import OVERLOADED, REQUEST, Wire, async_anthropic_on, world

from holdfast import (
    Budget,
    BudgetError,
    Circuit,
    CircuitOpenError,
    DeadlineError,
    HoldfastError,
    Policy,
    Runtime,
    StreamCutError,
    fault_of,
    recover,
)
from holdfast.anthropic import recovering as recovering_anthropic
from holdfast.faults import AbortedError
from holdfast.testing import FaultProvider, Midpoint, VirtualClock, run

BOTH = pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
EACH = pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
EACH_STREAM = pytest.mark.parametrize("form", STREAMED.values(), ids=STREAMED)
EACH_WHOLE = pytest.mark.parametrize("form", WHOLE.values(), ids=WHOLE)


def error_of(form, client, runtime, *, is_async):
    with pytest.raises(HoldfastError) as caught:
        if is_async:
            run(collect_async(form, client, []), clock=runtime.clock)
        else:
            collect(form, client, [])
    return caught.value


def client_of(form, script="ok", *, is_async, **options):
    runtime = Runtime(clock=VirtualClock(), rng=Midpoint())
    provider = FaultProvider(script, clock=runtime.clock)
    client = client_for(form, provider.transport(), is_async=is_async)
    return recovering(form, client, runtime=runtime, **options), runtime


def check_attributes(error):
    assert error.message
    assert error.request.method == "POST"
    assert str(error.request.url).startswith("https://api.")
    assert str(error).startswith(error.fault.code)


@BOTH
@EACH_STREAM
def test_FR25_an_overload_in_the_middle_is_the_error_of_the_sdk_with_the_partial(form, is_async):
    result = play("sse-error;after=3;error=overloaded", form, is_async=is_async)
    error = result.error
    assert isinstance(error, form.sdk.APIError)
    assert isinstance(error, StreamCutError)
    assert fault_of(error).partial.payload == error.partial.payload == result.events
    assert error.body
    assert "verload" in error.message
    if form.sdk is anthropic:
        assert isinstance(error, anthropic.APIStatusError)
        assert error.response.request.url == error.request.url
        assert isinstance(error.status_code, int)


@BOTH
@EACH_STREAM
def test_FR25_a_cut_stream_is_a_connection_error_of_the_sdk(form, is_async):
    error = play("cut;after=3", form, is_async=is_async).error
    assert isinstance(error, form.sdk.APIConnectionError)
    assert isinstance(error, StreamCutError)
    assert not isinstance(error, form.sdk.APITimeoutError)
    check_attributes(error)


@EACH_STREAM
def test_FR25_a_stream_that_stalls_is_a_timeout_of_the_sdk(form):
    error = play("silence;after=2", form, is_async=True, policy=Policy(timeout=15)).error
    assert isinstance(error, form.sdk.APITimeoutError)
    assert error.fault.code == "PROVIDER_STREAM_STALLED"
    check_attributes(error)


@BOTH
@EACH
def test_FR25_an_open_circuit_is_a_connection_error_of_the_sdk(form, is_async):
    policy = Policy(circuit=Circuit(failures=3), wait_for_circuit=False)
    client, runtime = client_of(form, "529, loop", is_async=is_async, policy=policy)
    for _ in range(10):
        with pytest.raises(form.sdk.APIError) as caught:
            run(collect_async(form, client, []), clock=runtime.clock) if is_async else collect(form, client, [])
        if isinstance(error := caught.value, CircuitOpenError):
            break
    assert isinstance(error, CircuitOpenError)
    assert isinstance(error, form.sdk.APIConnectionError)
    assert form.host in error.circuit
    assert error.body is None
    check_attributes(error)


@EACH
def test_FR25_a_deadline_is_a_timeout_of_the_sdk(form):
    client, runtime = client_of(form, "hang, loop", is_async=True, policy=Policy(timeout=10, deadline=10))
    error = error_of(form, client, runtime, is_async=True)
    assert isinstance(error, DeadlineError)
    assert isinstance(error, TimeoutError)
    assert isinstance(error, form.sdk.APITimeoutError)
    check_attributes(error)


@BOTH
@EACH
def test_FR25_a_spent_budget_is_an_error_of_the_sdk(form, is_async):
    client, runtime = client_of(form, is_async=is_async)
    with Budget(attempts=1, runtime=runtime):
        run(collect_async(form, client, []), clock=runtime.clock) if is_async else collect(form, client, [])
        error = error_of(form, client, runtime, is_async=is_async)
    assert isinstance(error, BudgetError)
    assert isinstance(error, form.sdk.APIError)
    assert not isinstance(error, form.sdk.APIConnectionError)
    check_attributes(error)


@BOTH
@EACH
def test_FR25_a_call_that_a_rate_limit_holds_back_is_a_rate_limit_error_of_the_sdk(form, is_async):
    """It was not sent. `except RateLimitError` catches it like the 429 that the service would have sent."""
    client, runtime = client_of(form, is_async=is_async, policy=Policy(per_second=0.01, burst=1, deadline=20))
    run(collect_async(form, client, []), clock=runtime.clock) if is_async else collect(form, client, [])
    error = error_of(form, client, runtime, is_async=is_async)
    assert error.fault.code == "SYS_RATE_LIMITED"
    assert isinstance(error, form.sdk.RateLimitError)
    assert (error.status_code, error.response.status_code, error.request_id, error.body) == (429, 429, None, None)
    assert int(error.response.headers["retry-after"]) == pytest.approx(error.fault.retry_after, abs=1)
    check_attributes(error)
    twin = pickle.loads(pickle.dumps(error))
    assert (type(twin), twin.status_code, twin.response.headers) == (type(error), 429, error.response.headers)


@EACH
def test_FR25_a_full_waiting_room_is_an_error_of_the_sdk(form):
    policy = Policy(concurrency=1, waiting=0, attempts=1, timeout=5)
    client, runtime = client_of(form, "hang, loop", is_async=True, policy=policy)

    async def crowd():
        calls = [asyncio.create_task(collect_async(form, client, [])) for _ in range(2)]
        done = await asyncio.gather(*calls, return_exceptions=True)
        return next(error for error in done if fault_of(error).code == "SYS_BULKHEAD_FULL")

    error = run(crowd(), clock=runtime.clock)
    assert isinstance(error, form.sdk.APIError)
    check_attributes(error)


@EACH_WHOLE
def test_FR25_a_page_in_place_of_an_answer_is_an_error_of_the_sdk(form):
    client, runtime = client_of(form, "html;status=200, loop", is_async=False)
    error = error_of(form, client, runtime, is_async=False)
    assert isinstance(error, form.sdk.APIError)
    assert error.fault.code == "PROVIDER_MALFORMED_RESPONSE"
    assert len(error.fault.attempts) > 1


def test_FR25_a_cancellation_is_no_error_of_the_api():
    runtime, _ = world()
    claude = recovering_anthropic(async_anthropic_on(Wire(OVERLOADED)), runtime=runtime)

    async def cancelled():
        call = asyncio.create_task(claude.messages.create(**REQUEST))
        await asyncio.sleep(0.01)
        (wait,) = runtime.commands.waiting()
        assert runtime.commands.cancel(wait.run)
        return (await asyncio.gather(call, return_exceptions=True))[0]

    error = run(cancelled(), clock=runtime.clock)
    assert isinstance(error, AbortedError)
    assert not isinstance(error, anthropic.APIError)


@pytest.mark.parametrize("copied", [lambda error: pickle.loads(pickle.dumps(error)), copy.copy, copy.deepcopy])
@pytest.mark.parametrize("form", ["messages, streamed", "responses, streamed"])
@pytest.mark.parametrize("step", ["sse-error;after=3;error=overloaded", "cut;after=3"])
def test_FR25_it_can_be_pickled_and_keeps_both_classes(step, form, copied):
    form = FORMS[form]
    error = play(step, form, is_async=False).error
    twin = copied(error)
    assert type(twin) is type(error)
    assert isinstance(twin, form.sdk.APIError)
    assert isinstance(twin, StreamCutError)
    assert (str(twin), twin.message, twin.body) == (str(error), error.message, error.body)
    assert twin.fault.code == error.fault.code
    assert (twin.request.method, twin.request.url) == ("POST", error.request.url)
    assert getattr(twin, "status_code", None) == getattr(error, "status_code", None)


@pytest.mark.parametrize("step", ["sse-error;after=3;error=overloaded", "cut;after=3"])
def test_FR25_a_pickled_error_holds_no_key(step):
    form = FORMS["messages, streamed"]
    runtime = Runtime(clock=VirtualClock(), rng=Midpoint())
    provider = FaultProvider(step, clock=runtime.clock)
    client = client_for(form, provider.transport(), is_async=False).with_options(api_key="sk-quite-secret")
    error = error_of(form, recovering(form, client, runtime=runtime), runtime, is_async=False)
    assert b"sk-quite-secret" not in pickle.dumps(error)


def test_FR25_an_outer_recovery_still_knows_what_the_client_gave_up():
    """The attempts do not multiply, and a fallback outside answers what is ours like what is the SDK's."""
    form = FORMS["messages"]
    client, runtime = client_of(form, "529, loop", is_async=False, policy=Policy(wait_for_circuit=False))

    @recover("assistant", Policy(circuit=None), runtime=runtime)
    def answer():
        return text_of(client.messages.create(model=CLAUDE, max_tokens=9, messages=[{"role": "user", "content": "hi"}]))

    answer.fallback(lambda: "another")
    assert [answer() for _ in range(4)] == ["another"] * 4


def test_FR25_code_of_an_openai_error_is_the_code_of_the_fault():
    form = FORMS["responses"]
    client, runtime = client_of(form, is_async=False)
    with Budget(attempts=0, runtime=runtime):
        error = error_of(form, client, runtime, is_async=False)
    assert isinstance(error, openai.APIError)
    assert (error.code, error.type, error.param) == ("SYS_BUDGET_EXHAUSTED", None, None)
