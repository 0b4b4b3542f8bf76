"""Who is on the other side of a connection, and what they may do.

Invariant: what an identity may do is decided here, from its token, and never from what a client says of itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias

import msgspec

from holdfast.faults import Fault, HoldfastError
from holdfast.wire.messages import Role

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Authenticator", "TokenHolder", "TokenKind"]

TokenKind: TypeAlias = Literal["device", "hook", "metrics", "admin"]
"""What a token is for: a person's client; sending hook events, and nothing else; reading metrics, and nothing else; everything."""


class TokenHolder(msgspec.Struct, frozen=True, kw_only=True):
    """The holder of a token."""

    token_id: str
    """The id of the token. It is not a secret."""
    kind: TokenKind
    name: str
    """What a person called it: "Ada's phone"."""
    role: Role = "controller"
    """The most that it may be in a session."""
    sessions: frozenset[str] | None = None
    """The sessions that it may see; None: all."""
    expires_at: float | None = None
    """Wall clock."""

    def may_see(self, session: str) -> bool:
        """Return whether it may see a session. One that it may not see does not exist for it."""
        return self.kind in {"device", "admin"} and (self.sessions is None or session in self.sessions)

    def require(self, *kinds: TokenKind) -> None:
        """Raise AUTH_INSUFFICIENT_SCOPE if its token is of none of these kinds. An admin may do everything.

        For example:
            identity.require("hook")
        """
        if self.kind != "admin" and self.kind not in kinds:
            expected = " or ".join(dict.fromkeys([*kinds, "admin"]))
            message = f"This needs a token of kind {expected}, and the token is of kind {self.kind}"
            context = {"scope": expected, "received": self.kind}
            raise HoldfastError(Fault.of("AUTH_INSUFFICIENT_SCOPE", message, context=context))


class Authenticator(Protocol):
    """Tells who holds a token. `peer` is the address that it came from: wrong tokens are counted by address."""

    def identify(self, token: str, *, peer: str) -> TokenHolder:
        """Return the holder, or raise `HoldfastError` with an AUTH_ code. After too many wrong ones of its address a wrong one waits."""
        ...

    def make_ticket(self, identity: TokenHolder) -> str:
        """Return a ticket that stands for the token once, and for half a minute: for browsers."""
        ...

    def redeem(self, ticket: str, *, peer: str) -> TokenHolder:
        """Return the holder of a ticket, or raise as `identify` does. A ticket is redeemed once."""
        ...

    def watch(self, revoked: Callable[[str], None]) -> None:
        """Call `revoked` with the id of each token that is revoked from now on, so that its connections are closed."""
        ...
