"""Locks that stay usable whatever interrupts their holder.

The handler of a signal, such as an alarm or Ctrl-C, may raise between any two instructions of the main thread. `with` on a lock of the
interpreter is safe from that; a method of Python that takes a lock, or `acquire()` before `try`, is not.

Invariant: no exception leaves a lock held. A thread that waits for nothing never waits here either: the garbage collector may run our code while
this very thread holds the lock.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, TypeAlias, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["After", "Lock", "if_free", "new_lock"]

T = TypeVar("T")
Lock: TypeAlias = "threading.RLock"
"""A lock that knows its holder. Code that waits for it is never run by its holder, so nobody enters it twice on purpose."""

new_lock = threading.RLock


class After:
    """Calls a function after a `with` block, however that ends: `with after, lock:` calls it when the lock is free again."""

    __slots__ = ("_then",)

    def __init__(self, then: Callable[[], None]) -> None:
        self._then = then

    def __enter__(self) -> None:
        """Nothing is done before the block."""

    def __exit__(self, *_: object) -> None:
        self._then()


def if_free(lock: Lock, do: Callable[[], T]) -> T | None:
    """Return what `do` returns under the lock; None: somebody holds it, perhaps this very thread. Never waits."""
    if lock._is_owned():  # type: ignore[attr-defined] # noqa: SLF001 - `threading.Condition` asks the same
        return None
    try:
        if not lock.acquire(blocking=False):
            return None
        with lock:
            # From here on the statement around it releases the lock.
            lock.release()
            return do()
    except BaseException:
        if lock._is_owned():  # type: ignore[attr-defined] # noqa: SLF001 - as above
            lock.release()
        raise
