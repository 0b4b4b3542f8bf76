"""`recovering(litellm.completion)` and `acompletion` with the real LiteLLM, on a provider that counts what reaches it."""

from __future__ import annotations

import asyncio
import inspect
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import litellm
import pytest
from litellm_kit import ASKED

from holdfast import Budget, InvalidError, Policy, fault_of
from holdfast.events import AttemptStarted, Cancelled, Fallback, Recovered, Retry
from holdfast.litellm import RecoveryWarning, recovering

pytest_plugins = ["litellm_kit"]


def address_of(provider):
    """Host and port of the provider, as circuits name an endpoint."""
    return provider.openai_url.removeprefix("http://").removesuffix("/v1")


def answered(call, **arguments):
    """Call it, sync or async, and return the text of its answer."""
    answer = call(**arguments)
    answer = asyncio.run(answer) if inspect.isawaitable(answer) else answer
    return answer.choices[0].message.content


each_function = pytest.mark.parametrize("fn", [litellm.completion, litellm.acompletion], ids=["sync", "async"])


@each_function
def test_failures_pass_unseen_and_one_attempt_is_one_request(fn, asking, stage, heard):
    provider = stage("429;retry-after=7, 503, disconnect, ok")
    call = recovering(fn, policy=Policy(attempts=6))
    assert answered(call, **asking(provider)) == "You said: hello"
    assert provider.counters.received == len(heard.of(AttemptStarted)) == 4
    assert heard.of(Retry)[0].delay == 7.0
    assert len(heard.of(Recovered)) == 1


OTHERS = [
    pytest.param(litellm.responses, {"input": "hello"}, ("hello", "openai/gpt-5"), id="responses"),
    pytest.param(litellm.aresponses, {"input": "hello"}, ("hello", "openai/gpt-5"), id="aresponses"),
    pytest.param(litellm.text_completion, {"prompt": "hello"}, ("hello", "openai/gpt-5"), id="text_completion"),
    pytest.param(litellm.atext_completion, {"prompt": "hello"}, ("hello", "openai/gpt-5"), id="atext_completion"),
]


def said(answer):
    answer = asyncio.run(answer) if inspect.isawaitable(answer) else answer
    return answer.output[0].content[0].text if hasattr(answer, "output") else answer.choices[0].text


@pytest.mark.parametrize(("fn", "asked", "by_position"), OTHERS)
def test_FI11_its_other_functions_recover_and_one_attempt_is_one_request(fn, asked, by_position, stage, heard):
    provider = stage("429;retry-after=7, 503, disconnect, ok, ok")
    call = recovering(fn, policy=Policy(attempts=6))
    where = {"api_base": provider.openai_url, "api_key": "test"}
    assert said(call(model="openai/gpt-5", **asked, **where)) == "You said: hello"
    assert provider.counters.received == len(heard.of(AttemptStarted)) == 4
    assert heard.of(Retry)[0].delay == 7.0
    # The model is not the first argument of these functions.
    assert said(call(*by_position, **where)) == "You said: hello"
    assert {event.operation for event in heard.of(AttemptStarted)} == {f"openai@{address_of(provider)}/gpt-5"}


@pytest.mark.parametrize(("fn", "asked", "by_position"), OTHERS)
def test_FI11_their_fallbacks_are_called_with_the_model_in_its_place(fn, asked, by_position, stage, heard):
    down, up = stage("529, loop"), stage("ok")
    spare = {"model": "openai/gpt-4.1", "api_base": up.openai_url}
    call = recovering(fn, policy=Policy(attempts=2), fallbacks=[spare])
    assert said(call(*by_position, api_base=down.openai_url, api_key="test")) == "You said: hello"
    assert (down.counters.received, up.counters.received) == (2, 1)


@pytest.fixture
def embeddings():
    """A server of embeddings that is overloaded once, and counts."""
    received = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            received.append(self.rfile.read(int(self.headers["content-length"])))
            status = 503 if len(received) == 1 else 200
            data = [{"object": "embedding", "index": 0, "embedding": [0.5]}]
            usage = {"prompt_tokens": 1, "total_tokens": 1}
            body = json.dumps({"object": "list", "model": "m", "data": data, "usage": usage}).encode()
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            """It prints nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    server.received = received
    yield server
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("fn", [litellm.embedding, litellm.aembedding], ids=["sync", "async"])
def test_FI11_embeddings_recover(fn, embeddings):
    where = {"api_base": f"http://127.0.0.1:{embeddings.server_port}/v1", "api_key": "test"}
    answer = recovering(fn)("openai/text-embedding-3-small", ["hello"], **where)
    answer = asyncio.run(answer) if inspect.isawaitable(answer) else answer
    assert answer.data[0]["embedding"] == [0.5]
    assert len(embeddings.received) == 2


@pytest.mark.parametrize("option", ["api_base", "base_url"])
def test_two_hosts_of_one_model_have_circuits_of_their_own(option, stage, heard):
    down, up = stage("401"), stage("ok")
    call = recovering(litellm.completion)
    with pytest.raises(litellm.AuthenticationError):
        call(model="openai/gpt-5", api_key="test", **{option: down.openai_url}, **ASKED)
    call(model="openai/gpt-5", api_key="test", **{option: up.openai_url}, **ASKED)
    assert len({event.operation for event in heard.of(AttemptStarted)}) == 2


FAILURES = {
    "401": (litellm.AuthenticationError, "AUTH_FAILED"),
    "404": (litellm.NotFoundError, "PROVIDER_MODEL_NOT_FOUND"),
    "quota": ((litellm.RateLimitError, litellm.BadRequestError), "PROVIDER_BILLING"),
    "overflow": (litellm.ContextWindowExceededError, "PROVIDER_CONTEXT_OVERFLOW"),
    "expired": (litellm.AuthenticationError, "AUTH_TOKEN_EXPIRED"),
}


@each_function
@pytest.mark.parametrize("step", FAILURES)
def test_litellms_own_exception_comes_through_and_a_permanent_failure_is_not_retried(fn, step, asking, stage):
    provider = stage(f"{step}, loop")
    kind, code = FAILURES[step]
    with pytest.raises(kind) as caught:
        answered(recovering(fn), **asking(provider))
    assert type(caught.value).__module__ == "litellm.exceptions"
    fault = fault_of(caught.value)
    assert (fault.code, len(fault.attempts), provider.counters.received) == (code, 1, 1)


@pytest.mark.parametrize(
    ("step", "code", "retry_after"),
    [
        ("429;retry-after=7", "PROVIDER_RATE_LIMITED", 7.0),
        ("529", "PROVIDER_OVERLOADED", None),
        ("500", "PROVIDER_INTERNAL_ERROR", None),
        ("503;retry-after=3", "PROVIDER_UNAVAILABLE", 3.0),
        ("disconnect", "PROVIDER_STREAM_CUT", None),
        ("reset", "CONN_RESET", None),
        ("hang", "PROVIDER_TIMEOUT", None),
        ("html", "PROVIDER_UNAVAILABLE", None),
    ],
)
def test_its_exceptions_are_recognised(step, code, retry_after, asking, stage):
    provider = stage(f"{step}, loop")
    with pytest.raises(Exception) as caught:
        litellm.completion(**asking(provider, num_retries=0, max_retries=0, timeout=0.2))
    fault = fault_of(caught.value)
    assert (fault.code, fault.retryable, fault.retry_after) == (code, True, retry_after)


@each_function
def test_a_hang_ends_with_the_limit_of_an_attempt(fn, stage, asking):
    provider = stage("hang, ok")
    assert answered(recovering(fn, policy=Policy(timeout=0.2)), **asking(provider)) == "You said: hello"
    assert provider.counters.received == 2


@each_function
def test_another_model_answers_when_the_first_has_failed_for_good(fn, stage, heard):
    down, up = stage("529, loop"), stage("ok")
    spare = {"model": "anthropic/claude-haiku-4-5", "api_base": up.url, "api_key": "other"}
    call = recovering(fn, policy=Policy(attempts=2), fallbacks=[spare])
    arguments = {"model": "openai/gpt-5", "api_base": down.openai_url, "api_key": "test", **ASKED}
    assert answered(call, **arguments) == "You said: hello"
    assert (down.counters.received, up.counters.received) == (2, 1)
    assert up.requests[0].key == "other"
    assert [event.to for event in heard.of(Fallback)] == ["anthropic/claude-haiku-4-5"]


def test_another_model_of_the_same_provider_has_its_key_and_address(stage):
    provider = stage("404, ok")
    call = recovering(litellm.completion, fallbacks=["openai/gpt-5-mini"])
    call("openai/gpt-5", api_base=provider.openai_url, api_key="test", **ASKED)
    assert [request.model for request in provider.requests] == ["gpt-5", "gpt-5-mini"]
    assert {request.key for request in provider.requests} == {"test"}


def test_circuits_know_provider_model_and_key_by_a_name_that_is_not_the_key(stage, runtime):
    provider = stage("ok")
    recovering(litellm.completion)(model="openai/gpt-5", api_base=provider.openai_url, api_key="secret", **ASKED)
    names = sorted(line.name for line in runtime.registry if not line.name.startswith("deployment:"))
    endpoint = address_of(provider)
    assert names[1:] == [f"model:openai@{endpoint}/gpt-5", f"provider:openai@{endpoint}"]
    assert names[0].startswith(f"key:openai@{endpoint}/key-")
    assert "secret" not in names[0]


@each_function
def test_what_a_call_used_is_charged_to_the_budget(fn, asking, stage):
    with Budget(tokens=10_000) as budget:
        answered(recovering(fn), **asking(stage("ok")))
    assert budget.left().tokens < 10_000


def test_a_call_that_is_cancelled_says_nothing_about_the_provider(asking, stage, runtime, heard):
    provider = stage("hang, loop")
    call = recovering(litellm.acompletion, name="it")

    async def cancelled():
        task = asyncio.create_task(call(**asking(provider)))
        while not provider.counters.received:  # noqa: ASYNC110 - the provider is in another thread
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancelled())
    breaker = runtime.registry.get("provider:it")._breaker
    assert (breaker.failures, breaker.cancelled, provider.counters.received) == (0, 1, 1)
    assert len(heard.of(Cancelled)) == 1


# Retries inside retries


@each_function
@pytest.mark.parametrize("option", ["num_retries", "max_retries"])
def test_retries_in_a_calls_options_are_off_with_a_warning(fn, option, asking, stage):
    provider = stage("503, loop")
    call = recovering(fn, policy=Policy(attempts=2))
    with (
        pytest.warns(RecoveryWarning, match=f"{option}=… has no effect"),
        pytest.raises(litellm.ServiceUnavailableError),
    ):
        answered(call, **asking(provider, **{option: 4}))
    assert provider.counters.received == 2


def test_retries_for_the_whole_process_cause_a_warning(asking, stage, monkeypatch):
    monkeypatch.setattr(litellm, "num_retries", 2)
    with pytest.warns(RecoveryWarning, match=r"litellm.num_retries=2"):
        recovering(litellm.completion)(**asking(stage("ok")))


def test_fallbacks_of_litellms_own_cause_a_warning(asking, stage):
    with pytest.warns(RecoveryWarning, match="fallbacks=… make an attempt more than one request"):
        recovering(litellm.completion)(**asking(stage("ok"), fallbacks=["openai/gpt-5-mini"]))


# What makes no sense


def test_what_is_not_litellms_is_invalid():
    with pytest.raises(InvalidError, match=r"litellm\.completion"):
        recovering(print)
    with pytest.raises(InvalidError, match="does not recover yet"):
        recovering(recovering(litellm.completion))
    with pytest.raises(InvalidError, match="fallbacks"):
        recovering(litellm.completion, fallbacks=[7])
    with pytest.raises(InvalidError, match="name"):
        recovering(litellm.completion, name="")


def test_it_stays_the_function_it_was():
    assert recovering(litellm.completion).__name__ == "completion"
    assert inspect.iscoroutinefunction(recovering(litellm.acompletion))
