"""Your own SDK client, recovering: the same class and the same errors. It survives a rate limit, an overload and a cut."""

from __future__ import annotations

from anthropic import Anthropic, AuthenticationError

from holdfast import fault_of
from holdfast.anthropic import recovering
from holdfast.testing import no_waiting, serve_in_thread


def ask(client: Anthropic, question: str) -> str:
    message = client.messages.create(
        model="claude-haiku-4-5", max_tokens=99, messages=[{"role": "user", "content": question}]
    )
    return "".join(block.text for block in message.content if block.type == "text")


# The fault provider stands in for the service. no_waiting() skips the delays.
with serve_in_thread("429;retry-after=7, 529, cut, ok, 401") as provider, no_waiting():
    client = recovering(Anthropic(base_url=provider.url, api_key="any"))
    print(ask(client, "What is a holdfast?"))
    assert provider.counters.received == 4  # one attempt is one request

    try:
        ask(client, "And now?")
    except AuthenticationError as error:  # the SDK's own exception
        print("not retried:", fault_of(error).code, "· next to act:", fault_of(error).next_actor)
    assert provider.counters.received == 5
