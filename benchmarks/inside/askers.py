"""How each contender asks the provider a question: the same SDK, the same question, and around it what it recovers with.

An asker is made inside the loop it runs in. It returns the answer's text, or raises what its user would see.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from holdfast import INTERACTIVE, PATIENT

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from benchmarks.inside.traces import Trace
    from holdfast import Policy

    Asker = Callable[[str], Awaitable[str]]
    Making = Callable[[Any, Trace], Asker]

MODEL = "gpt-5-mini"
LIMIT_S = 60.0
"""Seconds for one request, where a contender leaves that to its user: those that holdfast has by default."""
_URL = "http://provider.test/v1"
_A_HAIR = 1e-6
"""What the clairvoyant stays on the safe side of a moment that has no exact float."""


def _client(provider: Any, **options: Any) -> Any:
    import httpx2
    import openai

    http = httpx2.AsyncClient(transport=provider.transport())
    return openai.AsyncOpenAI(base_url=_URL, api_key="test", http_client=http, **options)


def _asking(client: Any) -> Asker:
    async def ask(question: str) -> str:
        answer = await client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": question}])
        return answer.choices[0].message.content

    return ask


async def ask_plainly(provider: Any, question: str) -> dict[str, int]:
    """Return the tokens that an answer counts."""
    client = _client(provider, max_retries=0)
    answer = await client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": question}])
    return {"input": answer.usage.prompt_tokens, "output": answer.usage.completion_tokens}


def clairvoyant(provider: Any, trace: Trace) -> Asker:
    """Knows the trace: asks once, at the first moment at which the answer will be good."""
    ask = _asking(_client(provider, max_retries=0))

    async def wait_and_ask(question: str) -> str:
        now = provider.now()
        if (wait := trace.next_good(now) - now) > 0:
            await asyncio.sleep(wait + _A_HAIR)
        return await ask(question)

    return wait_and_ask


def holdfast(policy: Policy = INTERACTIVE) -> Making:
    def make(provider: Any, _: Trace) -> Asker:
        from holdfast.openai import recovering

        return _asking(recovering(_client(provider), policy=policy))

    return make


def sdk(**options: Any) -> Making:
    def make(provider: Any, _: Trace) -> Asker:
        return _asking(_client(provider, **options))

    return make


def tenacity(attempts: int) -> Making:
    """The recipe of its documentation and of the SDK's cookbook: exponential waits with jitter, so many attempts."""

    def make(provider: Any, _: Trace) -> Asker:
        import tenacity

        retried = tenacity.retry(
            wait=tenacity.wait_random_exponential(min=1, max=60),
            stop=tenacity.stop_after_attempt(attempts),
            reraise=True,
        )
        asker: Asker = retried(_asking(_client(provider, max_retries=0, timeout=LIMIT_S)))
        return asker

    return make


_routers: list[Any] = []


def router(provider: Any, _: Trace) -> Asker:
    import httpx2
    import litellm

    litellm.suppress_debug_info = True
    # One of the trace before would go on listening, and its client on asking the provider of that trace.
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
ASKERS: dict[str, Making] = {
    BEST: clairvoyant,
    "holdfast": holdfast(),
    "holdfast, PATIENT": holdfast(PATIENT),
    "holdfast, refusing": holdfast(INTERACTIVE.replace(wait_for_circuit=False)),
    "SDK, as it comes": sdk(),
    "SDK, 5 retries": sdk(max_retries=5, timeout=LIMIT_S),
    "tenacity, 6 attempts": tenacity(6),
    "LiteLLM Router": router,
}
