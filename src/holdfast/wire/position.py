"""Where a client is in a session's log, and whether it can go on there.

Invariant: never a part. Either everything after the position is sent, or a gap says why not and nothing is sent.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

import msgspec

from holdfast.faults import Fault
from holdfast.wire.envelope import MAX_OFFSET

GapReason: TypeAlias = Literal["evicted", "expired", "ahead", "epoch", "diverged", "reset"]
"""Why messages are missing: too many or too old to be held; the client knows more than the log; another log; another message at that
place; the log began anew while the client was connected."""


class Position(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A place in a session's log: the last message that the application has taken. It is replaced as one value."""

    epoch: Annotated[str, msgspec.Meta(max_length=256)]
    offset: int
    id: Annotated[str, msgspec.Meta(max_length=256)] = ""
    """The id of that message; empty: not known."""


class Reach(msgspec.Struct, frozen=True, kw_only=True):
    """What of a session's log can be sent."""

    epoch: str
    oldest: int
    """The oldest offset that can be sent; `top + 1` if there is none."""
    top: int
    """The newest offset; 0: the log is empty."""
    has_expired: bool = False
    """Whether what is older than `oldest` was dropped for its age, and not for its size."""


class GoOn(msgspec.Struct, frozen=True):
    """The client can go on: send everything after this offset."""

    after: int


class Gap(msgspec.Struct, frozen=True, kw_only=True):
    """Messages are missing between the client and the log. It takes a snapshot, and goes on at the snapshot's position."""

    reason: GapReason
    requested: int
    oldest: int
    top: int

    def payload(self, *, snapshot: int | None = None) -> dict[str, Any]:
        """Return the payload of the message `gap`. `snapshot` is the offset of the newest snapshot."""
        return {
            "reason": self.reason,
            "requested": self.requested,
            "oldest_offset": self.oldest,
            "top_offset": self.top,
            "snapshot_offset": snapshot,
            "recoverable_via": ["snapshot", "events_api"],
        }

    @property
    def fault(self) -> Fault:
        """The fault for HTTP answers and for clients: SESS_GAP."""
        context = {"reason": self.reason, "requested": self.requested, "oldest": self.oldest, "top": self.top}
        return Fault.of("SESS_GAP", context=context)


Resumption: TypeAlias = GoOn | Gap


def resume(after: Position, reach: Reach, id_there: str | None = None) -> Resumption:
    """Return whether a client can go on at its position. `id_there` is the id of the log's message at that offset, if it is known.

    >>> resume(Position(epoch="k", offset=8), Reach(epoch="k", oldest=1, top=10))
    GoOn(8)
    """

    def gap(reason: GapReason) -> Gap:
        return Gap(reason=reason, requested=after.offset, oldest=reach.oldest, top=reach.top)

    if after.epoch != reach.epoch:
        return gap("epoch")
    # A client that knows more than the log has seen messages that were lost. "Nothing to send" would hide that.
    if after.offset > reach.top or not 0 <= after.offset <= MAX_OFFSET:
        return gap("ahead")
    if after.id and id_there is not None and after.id != id_there:
        return gap("diverged")
    # At the top nothing is missing, however old the last message is.
    if after.offset < reach.top and after.offset < reach.oldest - 1:
        return gap("expired" if reach.has_expired else "evicted")
    return GoOn(after.offset)
