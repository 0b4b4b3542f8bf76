"""The clients that are compared: each sends the same question with the same SDK, and recovers in its own way.

A client is a function, made inside the event loop it runs in. It returns the answer's text, or raises the error that a
user would see.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from benchmarks.inside.algorithms import aws_adaptive, gradient, sre_throttle
from holdfast import INTERACTIVE, PATIENT

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from holdfast import Policy

    Client = Callable[["Question"], Awaitable[str]]
    Factory = Callable[[Any], Client]

MODEL = "gpt-5-mini"
LIMIT_S = 60.0
"""Seconds for one request where a client has no limit of its own and all answers are short."""
SDK_LIMIT_S = 600.0
"""The same where some answers are long: the default of the SDK, so that no client loses an answer by a limit that we chose."""
_URL = "http://provider.test/v1"


class Question(NamedTuple):
    text: str
    model: str = MODEL
    limit_s: float | None = None
    """The caller's own time limit for one request; None: that of the client."""


def _sdk_client(provider: Any, **options: Any) -> Any:
    import httpx2
    import openai

    http = httpx2.AsyncClient(transport=provider.transport())
    return openai.AsyncOpenAI(base_url=_URL, api_key="test", http_client=http, **options)


def _client_of(client: Any) -> Client:
    from openai.types.chat import ChatCompletion

    async def ask(question: Question) -> str:
        # As `chat.completions.create` sends it, without the checks of its arguments, which take a third of the time.
        body = {"model": question.model, "messages": [{"role": "user", "content": question.text}]}
        options = {} if question.limit_s is None else {"options": {"timeout": question.limit_s}}
        answer = await client.post("/chat/completions", cast_to=ChatCompletion, body=body, **options)
        return answer.choices[0].message.content

    return ask


async def usage_of_answer(provider: Any, question: str) -> dict[str, int]:
    """Return the tokens of one answer, without any recovery."""
    client = _sdk_client(provider, max_retries=0)
    answer = await client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": question}])
    return {"input": answer.usage.prompt_tokens, "output": answer.usage.completion_tokens}


def holdfast(policy: Policy = INTERACTIVE) -> Factory:
    def make(provider: Any) -> Client:
        from holdfast.openai import recovering

        return _client_of(recovering(_sdk_client(provider), policy=policy))

    return make


def sdk(**options: Any) -> Factory:
    def make(provider: Any) -> Client:
        return _client_of(_sdk_client(provider, **options))

    return make


def sdk_with_retries(retries: int) -> Factory:
    def make(provider: Any) -> Client:
        return _client_of(_sdk_client(provider, max_retries=retries, timeout=_limit_of(provider)))

    return make


def _limit_of(provider: Any) -> float:
    return SDK_LIMIT_S if getattr(provider, "has_long_answers", False) else LIMIT_S


def tenacity(attempts: int) -> Factory:
    """The recipe of its documentation and of the SDK's cookbook: exponential delays with jitter."""

    def make(provider: Any) -> Client:
        return repeated(bare(provider), attempts)

    return make


def repeated(client: Client, attempts: int = 6) -> Client:
    import tenacity

    wait, stop = tenacity.wait_random_exponential(min=1, max=60), tenacity.stop_after_attempt(attempts)
    again: Client = tenacity.retry(wait=wait, stop=stop, reraise=True)(client)
    return again


def stamina(**options: Any) -> Factory:
    """Its decorator, for the SDK's errors that may pass."""

    def make(provider: Any) -> Client:
        import httpx2
        import openai
        import stamina

        # A response that is cut in its body surfaces as the error of the HTTP library.
        passing = (openai.APIConnectionError, openai.RateLimitError, openai.InternalServerError, httpx2.HTTPError)
        retried = stamina.retry(on=passing, **options)
        client: Client = retried(bare(provider))
        return client

    return make


def bare(provider: Any) -> Client:
    """The SDK without its retries, for those who bring their own."""
    return _client_of(_sdk_client(provider, max_retries=0, timeout=_limit_of(provider)))


_routers: list[Any] = []


def router(provider: Any) -> Client:
    import httpx2
    import litellm

    litellm.suppress_debug_info = True
    # A router of the trace before would keep its client, and send requests to the provider of that trace.
    while _routers:
        _routers.pop().discard()
    litellm.in_memory_llm_clients_cache.flush_cache()
    litellm.aclient_session = httpx2.AsyncClient(transport=provider.transport())
    models = getattr(provider, "models", (MODEL,))
    deployments = [{"model": f"openai/{model}", "api_key": "test", "api_base": _URL} for model in models]
    named = [{"model_name": model, "litellm_params": one} for model, one in zip(models, deployments, strict=True)]
    routing = litellm.Router(model_list=named, timeout=_limit_of(provider))
    _routers.append(routing)

    async def ask(question: Question) -> str:
        options = {} if question.limit_s is None else {"timeout": question.limit_s}
        messages = [{"role": "user", "content": question.text}]
        answer = await routing.acompletion(question.model, messages=messages, **options)
        return answer.choices[0].message.content

    return ask


OURS = "holdfast"
TENACITY = "tenacity, 6 attempts"
ROUTER = "LiteLLM Router"
DEADLINE_S = INTERACTIVE.window or 120.0
"""The deadline of the default policy, for the clairvoyant that has one and for the peer that is given one."""
_LAST_S = 6.0
"""Before the deadline of stamina: its last delay of up to 5 s, and an answer of 1 s."""
VARIANTS: dict[str, Factory] = {
    OURS: holdfast(),
    "holdfast, PATIENT": holdfast(PATIENT),
    "holdfast, rejecting": holdfast(INTERACTIVE.replace(wait_for_circuit=False)),
}
PEERS: dict[str, Factory] = {
    "SDK, as it comes": sdk(),
    "SDK, 5 retries": sdk_with_retries(5),
    TENACITY: tenacity(6),
    "stamina, as it comes": stamina(),
    ROUTER: router,
}
FURTHER: dict[str, Factory] = {f"stamina, {DEADLINE_S:g} s": stamina(attempts=None, timeout=DEADLINE_S - _LAST_S)}
"""Peers that somebody tuned: as many attempts as fit into our own deadline, never more than 5 s apart."""
ALGORITHMS: dict[str, Factory] = {
    "AWS adaptive": aws_adaptive(bare),
    "SRE throttle": sre_throttle(bare, repeated),
    "gradient": gradient(bare, repeated),
}
CLIENTS: dict[str, Factory] = {**VARIANTS, **ALGORITHMS, **FURTHER, **PEERS}
