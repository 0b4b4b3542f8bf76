"""The OpenAI client under a model: no retries of its own, and a stream that ends without its last event is cut.

The SDK's Chat Completions model takes every end of a stream for the end of the answer, also in the middle of a tool call.
Only below it, on the client, the difference can be seen.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast.faults import Fault, HoldfastError
from holdfast.integrations.clients.openai import OPENAI

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from openai import AsyncOpenAI

__all__ = ["cut", "plain_client"]

_SOURCE = "_iterator"


def plain_client(client: AsyncOpenAI) -> AsyncOpenAI:
    """Return a client like `client` that makes one request for each call, and notices streams that end too early."""
    clone: Any = client.with_options(max_retries=0)
    send, copied = clone.request, clone.copy

    async def request(*args: Any, **kwargs: Any) -> Any:
        answer = await send(*args, **kwargs)
        source = getattr(answer, _SOURCE, None)
        if source is not None:
            setattr(answer, _SOURCE, _whole(source))
        return answer

    def copy(**changes: Any) -> Any:
        # The SDK asks for a copy without retries now and then: that is what this one is.
        return clone if changes == {"max_retries": 0} else plain_client(copied(**changes))

    clone.request = request
    clone.copy = clone.with_options = copy
    plain: AsyncOpenAI = clone
    return plain


def cut() -> HoldfastError:
    """Return the failure of a stream that ended without its last event."""
    return HoldfastError(Fault.of("PROVIDER_STREAM_CUT", "The stream ended before its last event"))


async def _whole(source: AsyncIterator[Any]) -> AsyncIterator[Any]:
    ended: bool | None = None
    async for event in source:
        ends = OPENAI.ends(event)
        ended = ended if ends is None else ended or ends
        yield event
    if ended is False:
        raise cut()
