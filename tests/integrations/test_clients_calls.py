"""Clients of the real SDKs, recovered: whole answers."""

from __future__ import annotations

import asyncio
import threading

import anthropic
import httpx2
import openai
import pytest
from clients_kit import (
    DENIED,
    LIMITED,
    OVERLOADED,
    REQUEST,
    Wire,
    anthropic_on,
    async_anthropic_on,
    async_openai_on,
    completion,
    failing,
    in_time,
    message,
    openai_on,
    world,
)

import holdfast.anthropic
import holdfast.openai
from holdfast import BATCH, CircuitOpenError, Policy, fault_of
from holdfast.anthropic import RecoveryWarning
from holdfast.events import AttemptStarted, CircuitState, Failed, Recovered
from holdfast.faults import InvalidError

CHAT = {"model": "gpt-test", "messages": [{"role": "user", "content": "hi"}]}


def test_a_call_recovers_and_one_attempt_is_one_request():
    wire, (runtime, heard) = Wire(OVERLOADED, LIMITED, message("hi")), world()
    claude = holdfast.anthropic.recovering(anthropic_on(wire, max_retries=5), runtime=runtime)
    answer = claude.messages.create(**REQUEST)
    assert answer.content[0].text == "hi"
    assert len(wire.requests) == len(heard.of(AttemptStarted)) == 3
    assert [event.attempts for event in heard.of(Recovered)] == [3]
    assert runtime.clock.monotonic() == pytest.approx(31.0)  # 1 s of backoff, 30 as requested


def test_an_async_call_recovers_and_one_attempt_is_one_request():
    wire, (runtime, heard) = Wire(OVERLOADED, LIMITED, message("hi")), world()
    claude = holdfast.anthropic.recovering(async_anthropic_on(wire, max_retries=5), runtime=runtime)
    answer = in_time(runtime, claude.messages.create(**REQUEST))
    assert answer.content[0].text == "hi"
    assert len(wire.requests) == len(heard.of(AttemptStarted)) == 3


def test_openai_recovers_in_both_worlds():
    (runtime, _), wires = world(), [Wire(OVERLOADED, completion()), Wire(httpx2.ConnectError("refused"), completion())]
    gpt = holdfast.openai.recovering(openai_on(wires[0]), runtime=runtime)
    assert gpt.chat.completions.create(**CHAT).choices[0].message.content == "hi"
    other = holdfast.openai.recovering(async_openai_on(wires[1]), runtime=runtime)
    assert in_time(runtime, other.chat.completions.create(**CHAT)).choices[0].message.content == "hi"
    assert [len(wire.requests) for wire in wires] == [2, 2]


@pytest.mark.parametrize("make", [anthropic_on, async_anthropic_on])
def test_the_same_type_comes_back_and_the_given_client_is_left_alone(make):
    given = make(Wire(message()), max_retries=4)
    back = holdfast.anthropic.recovering(given, runtime=world()[0])
    assert type(back) is type(given)
    assert (back.max_retries, given.max_retries) == (0, 4)
    assert set(vars(given)) & {"request", "copy", "with_options", "close"} == set()


def test_what_surfaces_is_the_sdks_own_error_with_the_history_on_it():
    wire, (runtime, heard) = Wire(OVERLOADED), world()
    claude = holdfast.anthropic.recovering(anthropic_on(wire), runtime=runtime)
    with pytest.raises(anthropic.APIStatusError) as caught:
        claude.messages.create(**REQUEST)
    fault = fault_of(caught.value)
    assert (fault.code, len(fault.attempts), fault.retryable) == ("PROVIDER_OVERLOADED", len(wire.requests), False)
    assert [event.fault.code for event in heard.of(Failed)] == ["PROVIDER_OVERLOADED"]


def test_a_mistake_in_the_request_is_sent_once():
    wire = Wire(failing(400, "invalid_request_error", "max_tokens: field required"))
    claude = holdfast.anthropic.recovering(anthropic_on(wire), runtime=world()[0])
    with pytest.raises(anthropic.BadRequestError):
        claude.messages.create(**REQUEST)
    assert len(wire.requests) == 1


def test_provider_model_and_key_have_circuits_and_the_key_is_shown_to_nobody():
    wire, (runtime, _) = Wire(message()), world()
    claude = holdfast.anthropic.recovering(anthropic_on(wire, "sk-ant-secret-1"), runtime=runtime)
    claude.messages.create(**REQUEST)
    names = sorted(line.name for line in runtime.registry)
    assert names[-2:] == ["model:anthropic/claude-test", "provider:anthropic"]
    assert [name for name in names if name.startswith("key:anthropic/key-")]
    assert "secret" not in "".join(names)


def test_another_host_is_another_provider():
    runtime, _ = world()
    grok = holdfast.openai.recovering(openai_on(Wire(completion()), base_url="https://api.x.ai/v1"), runtime=runtime)
    local = holdfast.openai.recovering(openai_on(Wire(completion()), base_url="http://box:8000/v1"), runtime=runtime)
    named = holdfast.openai.recovering(openai_on(Wire(completion())), runtime=runtime, name="mine")
    for client in (grok, local, named):
        client.chat.completions.create(**CHAT)
    providers = {line.name for line in runtime.registry if line.name.startswith("provider:")}
    assert providers == {"provider:xai", "provider:openai@box:8000", "provider:mine"}


def test_azure_is_recovered_like_the_rest():
    wire, (runtime, _) = Wire(OVERLOADED, completion()), world()
    given = openai.AzureOpenAI(
        api_key="a",
        api_version="2025-01-01",
        azure_endpoint="https://mine.openai.azure.com",
        http_client=httpx2.Client(transport=httpx2.MockTransport(wire)),
    )
    azure = holdfast.openai.recovering(given, runtime=runtime)
    assert type(azure) is openai.AzureOpenAI
    assert azure.chat.completions.create(**CHAT).choices[0].message.content == "hi"
    assert len(wire.requests) == 2
    assert "provider:openai@mine.openai.azure.com" in {line.name for line in runtime.registry}


def test_an_open_circuit_sends_nothing():
    wire, (runtime, _) = Wire(OVERLOADED), world()
    claude = holdfast.anthropic.recovering(
        anthropic_on(wire), runtime=runtime, policy=Policy(attempts=1, wait_for_circuit=False)
    )
    while runtime.registry.get("provider:anthropic")._breaker.recorded_state is CircuitState.CLOSED:
        with pytest.raises(anthropic.APIStatusError):
            claude.messages.create(**REQUEST)
    sent = len(wire.requests)
    with pytest.raises(CircuitOpenError):
        claude.messages.create(**REQUEST)
    assert len(wire.requests) == sent


def test_copies_recover_too_and_share_what_is_known():
    wire, (runtime, _) = Wire(OVERLOADED, message()), world()
    claude = holdfast.anthropic.recovering(anthropic_on(wire), runtime=runtime)
    claude.with_options(timeout=5).messages.create(**REQUEST)
    assert len(wire.requests) == 2
    assert wire.requests[0].extensions["timeout"]["read"] == 5


def test_a_copy_with_another_key_is_that_keys_client():
    wire, (runtime, _) = Wire(message()), world()
    pool = holdfast.anthropic.recovering(anthropic_on(wire, "a"), anthropic_on(wire, "b"), runtime=runtime)
    other = pool.copy(api_key="c")
    for _ in range(3):
        other.messages.create(**REQUEST)
    assert wire.keys == ["c", "c", "c"]


def test_pages_are_fetched_with_recovery():
    def page(*names, more):
        return httpx2.Response(
            200,
            json={
                "data": [{"id": n, "type": "model", "display_name": n, "created_at": "2025-01-01T00:00:00Z"} for n in names],
                "has_more": more,
                "first_id": names[0],
                "last_id": names[-1],
            },
        )  # fmt: skip

    wire, (runtime, _) = Wire(page("m1", more=True), OVERLOADED, page("m2", more=False)), world()
    claude = holdfast.anthropic.recovering(anthropic_on(wire), runtime=runtime)
    assert [model.id for model in claude.models.list()] == ["m1", "m2"]
    assert len(wire.requests) == 3


def test_a_raw_response_recovers_and_says_what_it_is():
    wire, (runtime, _) = Wire(OVERLOADED, message("hi", request_id="req_9")), world()
    claude = holdfast.anthropic.recovering(anthropic_on(wire), runtime=runtime)
    raw = claude.messages.with_raw_response.create(**REQUEST)
    assert (raw.status_code, raw.parse().content[0].text, raw.headers["request-id"]) == (200, "hi", "req_9")


def test_a_body_that_can_be_read_once_is_sent_once():
    wire, (runtime, _) = Wire(OVERLOADED, message()), world()
    claude = holdfast.anthropic.recovering(anthropic_on(wire), runtime=runtime)
    once = iter([{"role": "user", "content": "hi"}])
    with pytest.raises(anthropic.APIStatusError):
        claude.messages.create(model="claude-test", max_tokens=1, messages=once)
    assert len(wire.requests) == 1


def test_an_attempt_in_a_thread_has_the_policys_limit():
    wire, (runtime, _) = Wire(message()), world()
    claude = holdfast.anthropic.recovering(anthropic_on(wire), runtime=runtime, policy=Policy(timeout=7, deadline=20))
    claude.messages.create(**REQUEST)
    assert set(wire.requests[0].extensions["timeout"].values()) <= {5.0, 7.0}
    assert wire.requests[0].extensions["timeout"]["read"] == 7.0


def test_an_async_attempt_that_hangs_is_cut_and_made_again():
    runtime, _ = world()
    sent = []

    async def hang_once(request):
        sent.append(request)
        if len(sent) == 1:
            await asyncio.sleep(10_000)
        return message("late")()

    given = anthropic.AsyncAnthropic(
        api_key="a", http_client=httpx2.AsyncClient(transport=httpx2.MockTransport(hang_once))
    )
    claude = holdfast.anthropic.recovering(given, runtime=runtime, policy=Policy(timeout=10))
    assert in_time(runtime, claude.messages.create(**REQUEST)).content[0].text == "late"
    assert len(sent) == 2


@pytest.mark.parametrize("retries", [0, 1])
def test_switched_off_it_is_the_sdk_with_the_retries_it_was_given(monkeypatch, retries):
    monkeypatch.setenv("HOLDFAST_ENABLED", "false")
    monkeypatch.setattr(anthropic._base_client.time, "sleep", lambda _: None)
    wire, (runtime, _) = Wire(OVERLOADED), world()
    claude = holdfast.anthropic.recovering(anthropic_on(wire, max_retries=retries), runtime=runtime)
    with pytest.raises(anthropic.APIStatusError):
        claude.messages.create(**REQUEST)
    with pytest.raises(anthropic.APIStatusError):
        claude.with_options(timeout=5).messages.create(**REQUEST)
    assert len(wire.requests) == 2 * (1 + retries)


def test_fifty_threads_share_one_client():
    wire, (runtime, _) = Wire(message()), world()
    claude = holdfast.anthropic.recovering(anthropic_on(wire), runtime=runtime)
    threads = [threading.Thread(target=claude.messages.create, kwargs=REQUEST) for _ in range(50)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(wire.requests) == 50
    assert runtime.registry.get("provider:anthropic")._breaker.successes == 50


# --- retries of others ---


def test_it_warns_of_retries_the_user_asks_the_sdk_for():
    wire, (runtime, _) = Wire(OVERLOADED, OVERLOADED, message()), world()
    claude = holdfast.anthropic.recovering(anthropic_on(wire), runtime=runtime)
    with pytest.warns(RecoveryWarning, match="max_retries stays 0") as caught:
        copy = claude.with_options(max_retries=3)
    assert caught[0].filename == __file__
    copy.messages.create(**REQUEST)
    assert len(wire.requests) == 3


def test_it_warns_of_a_transport_that_connects_again_by_itself():
    http = httpx2.Client(transport=httpx2.HTTPTransport(retries=2))
    with pytest.warns(RecoveryWarning, match="retries=2") as caught:
        holdfast.openai.recovering(openai.OpenAI(api_key="a", http_client=http))
    assert caught[0].filename == __file__


# --- what cannot be ---


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ((object(),), "a client such as Anthropic"),
        ((anthropic_on(Wire()), async_anthropic_on(Wire())), "sync or async"),
    ],
)
def test_what_is_no_client_is_invalid(given, expected):
    with pytest.raises(InvalidError, match=expected):
        holdfast.anthropic.recovering(*given)


def test_a_client_that_recovers_is_not_wrapped_again():
    claude = holdfast.anthropic.recovering(anthropic_on(Wire()))
    with pytest.raises(InvalidError, match="does not recover yet"):
        holdfast.anthropic.recovering(claude)


@pytest.mark.parametrize("weights", [(1,), (1, 0), (1, -1), (1, float("nan")), "ab", (1, True)])
def test_weights_that_make_no_sense_are_invalid(weights):
    with pytest.raises(InvalidError, match=r"pool\.weights"):
        holdfast.anthropic.recovering(anthropic_on(Wire()), anthropic_on(Wire()), weights=weights)


def test_a_policy_is_checked_at_once():
    with pytest.raises(InvalidError, match="a Policy"):
        holdfast.anthropic.recovering(anthropic_on(Wire()), policy="BATCH")
    assert holdfast.anthropic.recovering(anthropic_on(Wire()), policy=BATCH, name="batch").max_retries == 0


def test_a_denied_key_alone_is_an_error_at_once():
    wire, (runtime, _) = Wire(DENIED), world()
    claude = holdfast.anthropic.recovering(anthropic_on(wire), runtime=runtime)
    with pytest.raises(anthropic.AuthenticationError):
        claude.messages.create(**REQUEST)
    assert len(wire.requests) == 1


def test_FI11_the_client_of_bedrocks_newer_endpoint_recovers():
    wires, (runtime, _) = [Wire(OVERLOADED, message()), Wire(OVERLOADED, message())], world()
    options = {"api_key": "k", "base_url": "http://mantle.test", "max_retries": 5}
    http = httpx2.Client(transport=httpx2.MockTransport(wires[0]))
    claude = holdfast.anthropic.recovering(
        anthropic.AnthropicBedrockMantle(**options, http_client=http), runtime=runtime
    )
    assert type(claude) is anthropic.AnthropicBedrockMantle
    assert claude.messages.create(**REQUEST).content[0].text == "hi"
    http_async = httpx2.AsyncClient(transport=httpx2.MockTransport(wires[1].asynchronously))
    later = holdfast.anthropic.recovering(
        anthropic.AsyncAnthropicBedrockMantle(**options, http_client=http_async), runtime=runtime
    )
    assert in_time(runtime, later.messages.create(**REQUEST)).content[0].text == "hi"
    assert [len(wire.requests) for wire in wires] == [2, 2]


# --- what the service says about retries ---


SDKS = [
    (anthropic_on, holdfast.anthropic.recovering, lambda client: client.messages.create(**REQUEST)),
    (openai_on, holdfast.openai.recovering, lambda client: client.chat.completions.create(**CHAT)),
]


@pytest.mark.parametrize(("client", "recover_client", "call"), SDKS, ids=["anthropic", "openai"])
@pytest.mark.parametrize(
    ("answer", "requests"),
    [
        (failing(409, "conflict", "Another request holds the lock"), 2),
        (failing(400, "invalid_request_error", x_should_retry="true"), 2),
        (failing(529, "overloaded_error", x_should_retry="true"), 2),
        (failing(529, "overloaded_error", x_should_retry="false"), 1),
        (failing(409, "conflict", x_should_retry="false"), 1),
        (failing(429, "rate_limit_error", x_should_retry="false", retry_after="3"), 1),
        (failing(400, "invalid_request_error"), 1),
        (failing(400, "invalid_request_error", x_should_retry="maybe"), 1),
    ],
)
def test_FI5_a_conflict_and_the_header_for_retries_are_obeyed(client, recover_client, call, answer, requests):
    wire, (runtime, heard) = Wire(answer, message("hi") if client is anthropic_on else completion("hi")), world()
    recovered = recover_client(client(wire), runtime=runtime)
    if requests == 1:
        with pytest.raises((anthropic.APIStatusError, openai.APIStatusError)):
            call(recovered)
    else:
        call(recovered)
    assert len(wire.requests) == len(heard.of(AttemptStarted)) == requests


def test_FI5_a_conflict_that_lasts_is_given_up_after_the_usual_attempts():
    wire, (runtime, _) = Wire(failing(409, "conflict")), world()
    with pytest.raises(anthropic.ConflictError):
        holdfast.anthropic.recovering(anthropic_on(wire), runtime=runtime).messages.create(**REQUEST)
    assert len(wire.requests) == 3


def test_FI5_a_key_that_must_not_be_retried_makes_way_for_another():
    denied = failing(429, "rate_limit_error", x_should_retry="false")
    wire, (runtime, _) = Wire(by_key={"key-a": [denied], "key-b": [message("hi")]}), world()
    pool = holdfast.anthropic.recovering(anthropic_on(wire), anthropic_on(wire, "key-b"), runtime=runtime)
    assert pool.messages.create(**REQUEST).content[0].text == "hi"
    assert wire.keys == ["key-a", "key-b"]


def test_FI5_a_caller_that_wants_no_retries_is_not_overruled():
    wire, (runtime, _) = Wire(failing(529, "overloaded_error", x_should_retry="true")), world()
    with pytest.raises(anthropic.APIStatusError):
        holdfast.anthropic.recovering(anthropic_on(wire), policy=Policy(attempts=1), runtime=runtime).messages.create(
            **REQUEST
        )
    assert len(wire.requests) == 1
