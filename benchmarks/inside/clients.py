"""The clients that are compared: each sends the same question with the same SDK, and recovers in its own way.

A client is a function, made inside the event loop it runs in. It returns the answer's text, or raises the error that a
user would see.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from holdfast import INTERACTIVE, PATIENT

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from benchmarks.inside.traces import Trace
    from holdfast import Policy

    Client = Callable[[str], Awaitable[str]]
    Factory = Callable[[Any, Trace], Client]

MODEL = "gpt-5-mini"
LIMIT_S = 60.0
"""Seconds for one request where a client has no limit of its own: the default of holdfast."""
_URL = "http://provider.test/v1"
_MARGIN = 1e-6
"""Seconds that the clairvoyant client waits longer, because a float does not hold every moment exactly."""


def _sdk_client(provider: Any, **options: Any) -> Any:
    import httpx2
    import openai

    http = httpx2.AsyncClient(transport=provider.transport())
    return openai.AsyncOpenAI(base_url=_URL, api_key="test", http_client=http, **options)


def _client_of(client: Any) -> Client:
    async def ask(question: str) -> str:
        answer = await client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": question}])
        return answer.choices[0].message.content

    return ask


async def usage_of_answer(provider: Any, question: str) -> dict[str, int]:
    """Return the tokens of one answer, without any recovery."""
    client = _sdk_client(provider, max_retries=0)
    answer = await client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": question}])
    return {"input": answer.usage.prompt_tokens, "output": answer.usage.completion_tokens}


def clairvoyant(provider: Any, trace: Trace) -> Client:
    """A client that knows the trace: it sends one request, at the first moment when the provider answers."""
    ask = _client_of(_sdk_client(provider, max_retries=0))

    async def wait_and_ask(question: str) -> str:
        now = provider.now()
        if (wait := trace.next_good(now) - now) > 0:
            await asyncio.sleep(wait + _MARGIN)
        return await ask(question)

    return wait_and_ask


def holdfast(policy: Policy = INTERACTIVE) -> Factory:
    def make(provider: Any, _: Trace) -> Client:
        from holdfast.openai import recovering

        return _client_of(recovering(_sdk_client(provider), policy=policy))

    return make


def sdk(**options: Any) -> Factory:
    def make(provider: Any, _: Trace) -> Client:
        return _client_of(_sdk_client(provider, **options))

    return make


def tenacity(attempts: int) -> Factory:
    """The recipe of its documentation and of the SDK's cookbook: exponential delays with jitter."""

    def make(provider: Any, _: Trace) -> Client:
        import tenacity

        retried = tenacity.retry(
            wait=tenacity.wait_random_exponential(min=1, max=60),
            stop=tenacity.stop_after_attempt(attempts),
            reraise=True,
        )
        client: Client = retried(_client_of(_sdk_client(provider, max_retries=0, timeout=LIMIT_S)))
        return client

    return make


_routers: list[Any] = []


def router(provider: Any, _: Trace) -> Client:
    import httpx2
    import litellm

    litellm.suppress_debug_info = True
    # A router of the trace before would keep its client, and send requests to the provider of that trace.
    while _routers:
        _routers.pop().discard()
    litellm.in_memory_llm_clients_cache.flush_cache()
    litellm.aclient_session = httpx2.AsyncClient(transport=provider.transport())
    deployment = {"model": f"openai/{MODEL}", "api_key": "test", "api_base": _URL}
    routing = litellm.Router(model_list=[{"model_name": "it", "litellm_params": deployment}], timeout=LIMIT_S)
    _routers.append(routing)

    async def ask(question: str) -> str:
        answer = await routing.acompletion("it", messages=[{"role": "user", "content": question}])
        return answer.choices[0].message.content

    return ask


BEST = "clairvoyant"
CLIENTS: dict[str, Factory] = {
    BEST: clairvoyant,
    "holdfast": holdfast(),
    "holdfast, PATIENT": holdfast(PATIENT),
    "holdfast, rejecting": holdfast(INTERACTIVE.replace(wait_for_circuit=False)),
    "SDK, as it comes": sdk(),
    "SDK, 5 retries": sdk(max_retries=5, timeout=LIMIT_S),
    "tenacity, 6 attempts": tenacity(6),
    "LiteLLM Router": router,
}
