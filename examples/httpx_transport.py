"""Any HTTP client recovered: a transport around your own, for httpx and httpx2. No keys, no network.

Responses that report a failure are retried when they allow it; requests that must not be repeated are not. The caller gets an
ordinary response.
"""

from __future__ import annotations

import httpx

from holdfast.events import Event, Retry
from holdfast.httpx import RecoveringTransport
from holdfast.runtime.runtime import default_runtime
from holdfast.testing import no_waiting, serve_in_thread

KEY = {"x-api-key": "none is needed here"}
QUESTION = {
    "model": "claude-haiku-4-5",
    "max_tokens": 99,
    "messages": [{"role": "user", "content": "What is a holdfast?"}],
}


def tell(event: Event) -> None:
    if isinstance(event, Retry):
        print("          ⟳", event.text, event.fault.code)


def main() -> None:
    with serve_in_thread("529, reset, ok, 503") as provider, default_runtime().on(tell, Retry):
        transport = RecoveringTransport(httpx.HTTPTransport(), name="claude", methods=frozenset({"GET", "POST"}))
        with no_waiting(), httpx.Client(transport=transport, base_url=provider.url, headers=KEY) as client:
            print("An overload, then a reset connection, and an answer")
            answer = client.post("/v1/messages", json=QUESTION)
            print("  answered", answer.status_code, answer.json()["content"][0]["text"])
            print("  provider", provider.counters)
        plain = RecoveringTransport(httpx.HTTPTransport(), name="orders")
        with no_waiting(), httpx.Client(transport=plain, base_url=provider.url, headers=KEY) as client:
            print(
                "A request that may have been carried out is sent again only if you allow it (by methods, or by a key)"
            )
            answer = client.post("/v1/messages", json=QUESTION)
            print("  answered", answer.status_code)
            print("  provider", provider.counters)


if __name__ == "__main__":
    main()
