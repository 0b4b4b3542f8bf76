"""Which addresses are a model's: a POST to one of them asks the model and changes nothing.

Invariant: an address that another kind of service may have too, such as `/v1/messages` of a service for text messages, counts as a
model's only at a host that is known.
"""

from __future__ import annotations

import re

_ANYWHERE = re.compile(
    r"/chat/completions$|/embeddings$|/rerank$|/moderations$|/messages/count_tokens$|/responses/input_tokens$"
    r"|:(?:stream)?(?:generate|count|embed|batchEmbed|raw)\w*$"
    r"|/model/[^/]+/(?:invoke|invoke-with-response-stream|converse|converse-stream)$"
    r"|/api/(?:generate|chat|embed)$",
    re.IGNORECASE,
)
_AT_PROVIDERS = re.compile(r"(?:^|/)(?:messages|responses|completions|complete|chat)$")
_PROVIDERS = re.compile(
    r"^localhost$|^127\.|^::1$|^provider\.test$|(?:^|\.)(?:anthropic\.com|openai\.com|openai\.azure\.com|x\.ai|googleapis\.com|mistral\.ai|cohere\.com|cohere\.ai|groq\.com"
    r"|deepseek\.com|together\.xyz|together\.ai|fireworks\.ai|openrouter\.ai|perplexity\.ai|amazonaws\.com)$"
)


def is_model_endpoint(path: str, host: str | None = None) -> bool:
    """Whether a request to this address asks a model. `host` is None for a path of a model's client.

    >>> is_model_endpoint("/v1/messages", "api.anthropic.com"), is_model_endpoint("/v1/messages", "sms.example")
    (True, False)
    """
    path = path.partition("?")[0].rstrip("/")
    if _ANYWHERE.search(path):
        return True
    return (host is None or bool(_PROVIDERS.search(host))) and bool(_AT_PROVIDERS.search(path))
