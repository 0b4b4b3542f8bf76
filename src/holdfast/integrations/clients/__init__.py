"""What the Anthropic and the OpenAI SDK have in common: one generator wrote both, so one hook serves both.

    wrapping    `recover_clients`: clones of the clients whose `request`, the one door of all API calls, recovers
    pool        the clients behind one name, and what is known about each key
    operation   one API call: each attempt is one request, with the key that is next
    requests    reading a request: its model, its limit, whether it can be sent again
    flowing     an API call whose answer is a stream
    answers     whole answers: whether one is an answer at all
    streams     streams: held until their first content, watched from there to the end
    attentive   clients that frameworks hold: what is no answer is an error there as well
    dialect     what differs between the SDKs; anthropic, openai: those of each, which frameworks on them speak as well

Invariant: a client comes back as its own type, and nothing is set on the one that was given.
"""

from __future__ import annotations

from holdfast.integrations.clients.wrapping import recover_clients

__all__ = ["recover_clients"]
