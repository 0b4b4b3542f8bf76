"""Resume tokens: with one a client shows that it was in a session before. A machine; the time goes in.

    token = resume_tokens.issue(holder, "phone-1", "release-42")        # at each join; the client keeps it
    resume_tokens.check(token, holder, "phone-1", "release-42", now)    # "ok", "expired" or "unknown"

A resume token names a place and grants nothing: the client authenticates first, each time. What the client has missed follows from its
position. The tokens are in memory, so after a restart of the server they are "unknown" and joins work as before.

Invariant: a token holds for one holder, client and session. The token that a client is known to have stays valid until the client shows that
it has the next one: a lost `session_joined` locks nobody out.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections import OrderedDict
from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    from holdfast.wire.messages import Role

__all__ = ["ResumeTokens", "Resumed", "role_of"]

Resumed: TypeAlias = Literal["ok", "expired", "unknown"]
"""What a resume token is worth. `expired`: the client was there, and was away for too long."""

_MOST = 20_000
_CONTROLLER, _OBSERVER = "hf_resume_", "hf_resume_observer_"
"""The token says what its client joined as, so that it comes back as the same, also to a server that has restarted."""
_Place: TypeAlias = tuple[str, str, str]


class _Issued:
    """The tokens of one client in one session, as digests."""

    __slots__ = ("held", "newest", "until")

    def __init__(self) -> None:
        self.newest = b""
        self.held = b""
        """The one that the client is known to have."""
        self.until: float | None = None
        """When they expire; None: the client is here."""


class ResumeTokens:
    """The resume tokens of a server.

    lifetime: seconds that a client may be away.
    """

    def __init__(self, lifetime: float) -> None:
        self.lifetime = lifetime
        self._issued: OrderedDict[_Place, _Issued] = OrderedDict()

    def issue(self, token_id: str, client_id: str, session: str, role: Role = "controller") -> str:
        """Return a new resume token for a client that joins a session. `token_id` is the id of the token that it authenticated with."""
        token = f"{_OBSERVER if role == 'observer' else _CONTROLLER}{secrets.token_urlsafe(32)}"
        place = (token_id, client_id, session)
        issued = self._issued.setdefault(place, _Issued())
        issued.newest, issued.until = _digest(token), None
        self._issued.move_to_end(place)
        if len(self._issued) > _MOST:
            self._issued.popitem(last=False)
        return token

    def check(self, token: str, token_id: str, client_id: str, session: str, now: float) -> Resumed:
        """Return what a token is worth for this holder, client and session."""
        issued = self._issued.get((token_id, client_id, session))
        digest = _digest(token)
        if issued is None or not (_same(digest, issued.newest) or _same(digest, issued.held)):
            return "unknown"
        if issued.until is not None and now >= issued.until:
            return "expired"
        issued.held = digest
        return "ok"

    def confirm(self, token_id: str, client_id: str, session: str) -> None:
        """The client has acknowledged something on its new connection, so it has the newest token. The one before ends."""
        issued = self._issued.get((token_id, client_id, session))
        if issued is not None:
            issued.held = issued.newest

    def depart(self, token_id: str, client_id: str, session: str, now: float) -> None:
        """The client is gone. Its tokens expire after the lifetime."""
        issued = self._issued.get((token_id, client_id, session))
        if issued is not None:
            issued.until = now + self.lifetime

    def revoke(self, token_id: str) -> None:
        """End every resume token of whoever held a token that is revoked."""
        for place in [place for place in self._issued if place[0] == token_id]:
            del self._issued[place]


def role_of(token: str) -> Role:
    """Return what the client with this resume token joined as."""
    return "observer" if token.startswith(_OBSERVER) else "controller"


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()


def _same(one: bytes, other: bytes) -> bool:
    return hmac.compare_digest(one, other)
