"""What an agent stores of answers and results that hold a secret of the program: a mask stands in the secret's place.

A store rejects known secrets. An answer that was paid for must be stored nevertheless, or it would be paid for again with every start.

Invariant: what is stored is what the run goes on with, so a run that is repeated goes the same way. A call whose arguments held a secret is
never run: with the mask in them it would be another call than the one that the model made.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from holdfast.agents.call_result import CallResult

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.providers.messages import Reply

__all__ = ["Storable", "masked_reply", "masked_result"]

Storable: TypeAlias = Callable[[Any], Any]
"""Returns a JSON value with its secrets masked; a value without secrets itself. `Session.storable` is one."""


def masked_reply(reply: Reply, storable: Storable) -> tuple[Reply, tuple[int, ...]]:
    """Return a reply without secrets, and the places of the calls whose arguments held one."""
    places = tuple(at for at, call in enumerate(reply.calls) if storable(call.arguments) is not call.arguments)
    calls = tuple(msgspec.structs.replace(call, arguments=storable(call.arguments)) for call in reply.calls)
    masked = msgspec.structs.replace(
        reply,
        text=storable(reply.text),
        data=storable(reply.data),
        calls=calls,
        blocks=_masked_blocks(reply.blocks, storable),
    )
    return (reply, ()) if masked == reply else (masked, places)


def _masked_blocks(blocks: Sequence[dict[str, Any]], storable: Storable) -> tuple[dict[str, Any], ...]:
    masked = [(block, storable(block)) for block in blocks]
    if any(kept is not block and "encrypted_content" in block for block, kept in masked):
        # Reasoning cannot be changed, and what it led to is rejected without it. Text and calls are enough.
        return ()
    # A provider rejects a block whose content does not fit its signature.
    return tuple(kept for block, kept in masked if kept is block or "signature" not in block)


def masked_result(result: CallResult, storable: Storable) -> CallResult:
    """Return the result of a tool call without secrets."""
    plain = msgspec.to_builtins(result)
    masked = storable(plain)
    return result if masked is plain else msgspec.convert(masked, CallResult)
