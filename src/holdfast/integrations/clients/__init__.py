"""The code for both the Anthropic and the OpenAI SDK. One generator wrote both SDKs, so the same hook works in each.

    client      `recover_clients`: copies of clients whose `request`, the method of all API calls, recovers;
                `checked_client`: a copy that does not recover, but raises for responses that are failures
    pool        the clients behind one name, which key the next attempt uses, and what is known about each key
    exchange    one request and its response: what may be repeated, which responses are failures
    streams     an SDK's own stream object on the stream machine: returned when the service has answered
    sdk         what differs between the SDKs; anthropic, openai: the values for each

Invariant: the returned client has the same type as the given one, and nothing changes on the given one.
"""

from __future__ import annotations

from holdfast.integrations.clients.client import checked_client, recover_clients

__all__ = ["checked_client", "recover_clients"]
