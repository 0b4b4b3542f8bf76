"""`AccessAudit`: who came in, whose token was revoked, and who guessed, in the audit trail of the store (chain `bridge`).

Invariant: no secret is in it. A flood of wrong tokens writes one record for each lock, not one for each token; what cannot be written
in time is counted, and the count is written.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from holdfast.bridge.log import log_error
from holdfast.faults import HoldfastError
from holdfast.sessions.journal import audit
from holdfast.stores import Commit

if TYPE_CHECKING:
    from holdfast.bridge.access.identity import TokenHolder
    from holdfast.bridge.access.tokens import RejectedToken
    from holdfast.faults import Fault
    from holdfast.stores import NewAudit, Store

__all__ = ["CHAIN", "AccessAudit"]

CHAIN: Final = "bridge"
_MOST_WAITING = 1000
_AT_ONCE = 100


class AccessAudit:
    """Writes records in the background, so that nobody waits for them to get in. Use it in the loop in which the bridge runs."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._waiting: list[NewAudit] = []
        self._left_out = 0
        self._writing: asyncio.Task[None] | None = None
        self._is_closed = False
        self._is_store_down = False

    def admitted(self, identity: TokenHolder, *, peer: str, connection_id: str) -> None:
        """Somebody has authenticated."""
        facts = {"kind": identity.kind, "name": identity.name, "peer": peer, "connection": connection_id}
        self._add(identity.token_id, decision="admitted", **facts)

    def revoked(self, token_id: str) -> None:
        """A token was revoked."""
        self._add(token_id, decision="revoked")

    def rejected(self, rejected: RejectedToken) -> None:
        """A token was not accepted. Wrong ones are recorded when they lock their address."""
        if rejected.locks:
            self._add(rejected.peer or "unknown", decision="locked", peer=rejected.peer)
        elif rejected.code in {"AUTH_TOKEN_REVOKED", "AUTH_TOKEN_EXPIRED"}:
            self._add(rejected.token_id, decision="rejected", code=rejected.code, peer=rejected.peer)

    def forbidden(self, identity: TokenHolder, *, session: str, what: str) -> None:
        """Somebody wanted to do what their token does not allow."""
        self._add(identity.token_id, decision="forbidden", name=identity.name, session=session, what=what)

    def failed(self, fault: Fault) -> None:
        """Something of the bridge failed. If the store did, `check_commits` finds out whether it still does."""
        self._is_store_down = self._is_store_down or fault.code == "SESS_STORE_UNAVAILABLE"

    async def check_commits(self) -> None:
        """Raise SESS_STORE_UNAVAILABLE if a commit failed and the store still takes none. Nothing is written while all is well."""
        if self._is_store_down:
            found = audit("TrustDecision", CHAIN, decision="store takes commits again", count=self._left_out)
            await self._store.commit(Commit(chain=CHAIN, audit=(found,)))
            self._left_out, self._is_store_down = 0, False

    def _add(self, correlation: str, **facts: Any) -> None:
        if self._is_closed:
            return
        if len(self._waiting) >= _MOST_WAITING:
            self._left_out += 1
            return
        self._waiting.append(audit("TrustDecision", correlation, **facts))
        if self._writing is None:
            self._writing = asyncio.get_running_loop().create_task(self._write(), name="bridge: audit of access")

    async def _write(self) -> None:
        batch: list[NewAudit] = []
        try:
            while self._waiting:
                batch, self._waiting = self._waiting[:_AT_ONCE], self._waiting[_AT_ONCE:]
                if self._left_out:
                    batch.append(audit("TrustDecision", CHAIN, decision="left out", count=self._left_out))
                    self._left_out = 0
                await self._store.commit(Commit(chain=CHAIN, audit=tuple(batch)))
        except HoldfastError as error:
            self._left_out += len(batch)
            self.failed(error.fault)
            # Whoever has a right token gets in although the store does not answer.
            log_error("the audit of access was not written: %s", error)
        finally:
            self._writing = None

    async def close(self) -> None:
        """Wait until everything is written. What comes later is not: tokens may outlive the bridge."""
        self._is_closed = True
        while self._writing is not None:
            await asyncio.wait((self._writing,))
