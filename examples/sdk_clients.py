"""The real SDKs against a failing provider: `recovering` clients, and a provider that fails on script and counts requests.

Run it with `.venv/bin/python examples/sdk_clients.py`. No keys and no network: the provider is on this machine, its answers and failures are those
of the real services, and waiting is switched off.
"""

from __future__ import annotations

import sys

import anthropic
import openai

from holdfast import StreamCutError, fault_of, recover
from holdfast.anthropic import recovering as recovering_claude
from holdfast.events import Event, Retry
from holdfast.openai import recovering as recovering_gpt
from holdfast.runtime.runtime import default_runtime
from holdfast.testing import FaultProvider, no_waiting, serve_in_thread


def show(title: str) -> None:
    print(f"\n\033[1m{title}\033[0m" if sys.stdout.isatty() else f"\n{title}\n{'-' * len(title)}")


def claude(provider: FaultProvider, key: str = "one") -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=provider.url, api_key=key)


def gpt(provider: FaultProvider) -> openai.OpenAI:
    return openai.OpenAI(base_url=provider.openai_url, api_key="one")


def ask_claude(client: anthropic.Anthropic, question: str) -> str:
    message = client.messages.create(
        model="claude-haiku-4-5", max_tokens=99, messages=[{"role": "user", "content": question}]
    )
    return "".join(block.text for block in message.content if block.type == "text")


def ask_gpt(client: openai.OpenAI, question: str) -> str:
    return client.responses.create(model="gpt-5", input=question).output_text


def a_storm() -> None:
    show("The same client, recovering: the caller does not notice a rate limit, an overload and a cut answer")
    with serve_in_thread("429;retry-after=7, 529, cut, ok") as provider, recovering_claude(claude(provider)) as client:
        print("  answer  ", ask_claude(client, "What is a holdfast?"))
        print("  provider", provider.counters)


def two_keys() -> None:
    show("Two keys: if one has no credit, the other one is used at once")
    with (
        serve_in_thread("quota, ok, ok") as provider,
        recovering_claude(claude(provider, "empty"), claude(provider, "full"), weights=(1, 0.001)) as client,
    ):
        for _ in range(2):
            print("  answer  ", ask_claude(client, "hello"))
        print("  provider", provider.counters)


def an_outage() -> None:
    show("One provider is down: the other one answers. The provider counts every request")
    with (
        serve_in_thread("529, loop") as down,
        serve_in_thread() as up,
        claude(down).with_options(max_retries=0) as primary,
        recovering_gpt(gpt(up)) as secondary,
    ):

        @recover("claude")
        def answer(question: str) -> str:
            return ask_claude(primary, question)

        @answer.fallback
        def by_gpt(question: str) -> str:
            return ask_gpt(secondary, question)

        for _ in range(4):
            print("  answer  ", answer("Are you there?"))
        print("  claude  ", down.counters)
        print("  gpt     ", up.counters)


def a_cut_stream() -> None:
    show("A stream that is cut after its first words: the error carries what arrived")
    with serve_in_thread("cut;after=6") as provider, recovering_claude(claude(provider)) as client:
        try:
            with client.messages.stream(
                model="claude-haiku-4-5", max_tokens=99, messages=[{"role": "user", "content": "Tell me of the sea."}]
            ) as stream:
                for _ in stream.text_stream:
                    pass
        except StreamCutError as cut:
            print("  arrived ", cut.partial.complete if cut.partial else 0, "events, then", cut.fault.code)


def a_wrong_key() -> None:
    show("A rejected key is not retried, and the SDK's own exception comes through")
    with serve_in_thread("401") as provider, recovering_gpt(gpt(provider)) as client:
        try:
            ask_gpt(client, "hello")
        except openai.AuthenticationError as error:
            print("  raised  ", type(error).__name__, "·", fault_of(error).code, "·", fault_of(error).next_actor)
        print("  provider", provider.counters)


def print_event(event: Event) -> None:
    if isinstance(event, Retry):
        print("          ⟳", event.text, event.fault.code)


def main() -> None:
    with default_runtime().on(print_event, Retry), no_waiting():
        a_storm()
        two_keys()
        an_outage()
        a_cut_stream()
        a_wrong_key()


if __name__ == "__main__":
    main()
