"""`StoreRelay`: a store that two processes use, each of which tells the other when it has written.

Invariant: a wake-up is only a hint. Who waits reads the log after it, and also without one every few seconds: the other process may have died
after it wrote and before it sent one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast.stores.wakeups import Wakeups

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.stores import Commit, Receipt, Store

__all__ = ["StoreRelay"]

_LOOK_S = 5.0
"""How often a log is read of which nobody tells anything."""


class StoreRelay:
    """The store `inner`, whose waits also end when `wake` says that another process has written.

    `wrote` gets the session of each commit of this process.
    """

    def __init__(self, inner: Store) -> None:
        self.wrote: Callable[[str], None] = lambda _: None
        self._inner = inner
        self._wakeups = Wakeups()

    def __getattr__(self, name: str) -> Any:
        # Everything else is the inner store's, also what only some stores have.
        return getattr(self._inner, name)

    def wake(self, session: str = "") -> None:
        """Another process has written to a session; by default to any."""
        if session:
            self._wakeups.wake((session,))
        else:
            self._wakeups.wake_all()

    async def commit(self, commit: Commit) -> Receipt:
        """Write a commit, and tell it."""
        receipt = await self._inner.commit(commit)
        if commit.session is not None:
            self._wakeups.wake((commit.session,))
            self.wrote(commit.session)
        return receipt

    async def changed(self, session: str, after: int, seconds: float) -> bool:
        """Wait until the session's log goes beyond `after`, for at most `seconds`; return whether it did."""
        return await self._wakeups.beyond(session, after, seconds, self._inner.session, look=_LOOK_S)
