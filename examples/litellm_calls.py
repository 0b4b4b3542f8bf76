"""LiteLLM against a failing provider: `recovering` calls and a Router. The provider counts every request.

It needs LiteLLM, which has an environment of its own here: `make .venv-litellm/.ready`, then
`.venv-litellm/bin/python examples/litellm_calls.py`. No keys and no network: the provider is on this machine.
"""

from __future__ import annotations

import os

# Without these, importing LiteLLM downloads a price list, and it logs errors that its callers get anyway.
os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
os.environ.setdefault("LITELLM_LOG", "CRITICAL")

import warnings

warnings.simplefilter("ignore")

import litellm  # pyright: ignore[reportMissingImports]

from holdfast import Policy, StreamCutError, fault_of
from holdfast.events import Event, Fallback, Retry
from holdfast.litellm import recovering
from holdfast.runtime.runtime import default_runtime
from holdfast.testing import FaultProvider, no_waiting, serve_in_thread

litellm.suppress_debug_info = True

QUESTION = [{"role": "user", "content": "What is a holdfast?"}]


def gpt(provider: FaultProvider) -> dict[str, str]:
    return {"model": "openai/gpt-5", "api_base": provider.openai_url, "api_key": "test"}


def claude(provider: FaultProvider) -> dict[str, str]:
    return {"model": "anthropic/claude-haiku-4-5", "api_base": provider.url, "api_key": "test"}


def a_storm() -> None:
    print("\nThe caller does not notice a rate limit, an overload and a lost connection")
    with serve_in_thread("429;retry-after=7, 529, disconnect, ok") as provider:
        answer = recovering(litellm.completion, policy=Policy(attempts=5))(messages=QUESTION, **gpt(provider))
        print("  answer  ", answer.choices[0].message.content)
        print("  provider", provider.counters)


def an_outage() -> None:
    print("\nOne provider is down: another one answers")
    with serve_in_thread("503, loop") as down, serve_in_thread() as up:
        completion = recovering(litellm.completion, fallbacks=[claude(up)])
        for _ in range(2):
            print("  answer  ", completion(messages=QUESTION, **gpt(down)).choices[0].message.content)
        print("  gpt     ", down.counters)
        print("  claude  ", up.counters)


def a_router() -> None:
    print("\nA Router: its own retries are off, so one attempt is one request")
    with serve_in_thread("500, 500, ok") as provider:
        router = recovering(litellm.Router(model_list=[{"model_name": "chat", "litellm_params": gpt(provider)}]))
        print("  answer  ", router.completion(model="chat", messages=QUESTION).choices[0].message.content)
        print("  provider", provider.counters)


def an_end_that_nobody_gave() -> None:
    print("\nA stream that stops in the middle; LiteLLM alone treats this as its end")
    with serve_in_thread("truncate;after=3") as provider:
        try:
            for _ in recovering(litellm.completion, name="cut")(messages=QUESTION, stream=True, **gpt(provider)):
                pass
        except StreamCutError as cut:
            print("  arrived ", cut.partial.complete if cut.partial else 0, "chunks, then", fault_of(cut).code)


def print_event(event: Event) -> None:
    if isinstance(event, Retry):
        print("          ⟳", event.text, event.fault.code)
    elif isinstance(event, Fallback):
        print("          ↳", event.to)


def main() -> None:
    with default_runtime().on(print_event, Retry, Fallback), no_waiting():
        a_storm()
        an_outage()
        a_router()
        an_end_that_nobody_gave()


if __name__ == "__main__":
    main()
