"""`suppress`: ignore a failure on purpose, and report it (S2-10).

Invariant: no failure is ignored in silence. Each one is a `SuppressedError` event with the reason.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from holdfast import options
from holdfast.events import SuppressedError
from holdfast.faults import InvalidError
from holdfast.runtime.ambient import AMBIENT, in_force
from holdfast.runtime.runtime import Runtime, default_runtime

if TYPE_CHECKING:
    from types import TracebackType

    from holdfast.faults import Fault

__all__ = ["Suppression", "suppress", "suppressed"]


class Suppression:
    """The block in which failures are ignored; `suppress` makes one.

    with suppress(OSError, reason="the cache is optional") as ignored:
        cache.write(answer)
    if ignored.fault is not None:
        print(ignored.fault.code)
    """

    __slots__ = ("_kinds", "_reason", "_runtime", "fault")

    def __init__(self, kinds: tuple[type[Exception], ...], reason: str, runtime: Runtime | None) -> None:
        self._kinds = kinds
        self._reason = reason
        self._runtime = runtime
        self.fault: Fault | None = None
        """The fault of the failure that was ignored; None if the block succeeded."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        if not isinstance(error, self._kinds):
            return False
        # The default runtime is looked up here: a block that succeeds needs none.
        self.fault = suppressed(error, self._reason, runtime=self._runtime)
        return True


def suppressed(error: Exception, reason: str, *, runtime: Runtime | None = None) -> Fault:
    """Report a failure that was caught and is ignored on purpose. Return its fault.

    from holdfast.runtime import suppressed

    try:
        cache.write(answer)
    except OSError as error:
        suppressed(error, "the cache is optional")
    """
    runtime = runtime or default_runtime()
    fault = runtime.fault_of(error)
    around = in_force(AMBIENT.get())
    run = "" if around is None else around.run
    runtime.bus.emit(SuppressedError.of(fault, reason, at=runtime.clock.wall(), run=run))
    return fault


@options.suggests
def suppress(*kinds: type[Exception], reason: str, runtime: Runtime | None = None) -> Suppression:
    """Ignore exceptions of these classes in a `with` block, and emit a `SuppressedError` event with the reason.

    It is `contextlib.suppress` for failures that somebody may look for later. It works in async functions too.
    `runtime` gets the event; by default the default runtime. No class, a class that is not an `Exception`, such as
    `asyncio.CancelledError`, and a blank reason raise `InvalidError`.

        from holdfast import suppress

        with suppress(OSError, reason="the cache is optional"):
            cache.write(answer)
    """
    if not kinds:
        raise InvalidError.saying("suppress", "classes of exceptions to ignore", "none")
    # Callers without a type checker may pass anything.
    given: tuple[object, ...] = kinds
    for kind in given:
        if not (isinstance(kind, type) and issubclass(kind, Exception)):
            raise InvalidError.at("suppress", "classes of exceptions, such as OSError", kind)
    why: object = reason
    if not isinstance(why, str) or not why.strip():
        raise InvalidError.at("suppress.reason", "why the failure does not matter", reason)
    if runtime is not None and not isinstance(runtime, Runtime):
        raise InvalidError.at("suppress.runtime", "a Runtime or None", runtime)
    return Suppression(kinds, reason, runtime)
