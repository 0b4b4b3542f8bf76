"""`program`: a function of a session that any worker can run, known by its name and version.

Invariant: a worker runs an item only if it knows the item's program by name and version. A program is a workflow with rules for workers, so a
`@workflow` is registered as it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from holdfast import options
from holdfast.faults import InvalidError
from holdfast.policies.backoff import Backoff, Tries
from holdfast.tasks.workflows.function import WorkflowFunction

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from holdfast.sessions.later import Resumable
    from holdfast.sessions.session import Session

__all__ = ["RETRY", "Program", "known_programs", "program", "queue_of", "retry_of", "version_of", "versions_of"]

P = ParamSpec("P")
T = TypeVar("T")

RETRY = Tries(attempts=5, backoff=Backoff(initial=1, factor=4, cap=300))
"""How often a program is tried that fails with a fault that may pass."""


class Program(WorkflowFunction[P, T]):
    """A function of a session that workers run. The decorator `program` makes it; `await refund(session, order)` is still the plain call."""

    @options.suggests
    def __init__(
        self,
        name: str,
        fn: Callable[Concatenate[Session, P], Awaitable[T]],
        *,
        version: str = "",
        accepts: Iterable[str] = (),
        queue: str = "default",
        retry: Tries = RETRY,
    ) -> None:
        options.name("program.name", name)
        options.name("program.queue", queue)
        if not isinstance(version, str):
            raise InvalidError.at("program.version", "a text", version)
        if isinstance(accepts, str):
            # Python would take it as the list of its letters.
            raise InvalidError.at("program.accepts", "a list of versions", accepts)
        if getattr(retry, "attempts", None) is None:
            raise InvalidError.at("program.retry", "Tries with a number of attempts", retry)
        super().__init__(fn, name)
        self.version = version
        self.accepts = tuple(accepts)
        self.queue = queue
        self.retry = retry

    def __repr__(self) -> str:
        return f"<program {self.name}{f' {self.version}' if self.version else ''}>"

    @property
    def run_name(self) -> str:
        """What its runs are called in every process: `program refund`."""
        return f"program {self.name}"


def program(
    name: str,
    *,
    version: str = "",
    accepts: Iterable[str] = (),
    queue: str = "default",
    retry: Tries = RETRY,
) -> Callable[[Callable[Concatenate[Session, P], Awaitable[T]]], Program[P, T]]:
    """Make a program of an `async def` with a session as its first parameter, for `submit` and for workers.

        @program("refund")
        async def refund(session: Session, order: str) -> str:
            return await session.step(pay_back, order)

        handle = await submit(refund, "o-7", key="o-7")

    `name` is what its items are known by in the store, and must stay the same. Change `version` when the code changes so that a run that was
    begun with the old code cannot go on with the new one; `accepts` are older versions with which it can. What no worker knows waits for a
    worker with that code. `queue` is where its items go unless `submit` says otherwise. `retry` says how often a run is tried again that
    failed with a fault that may pass, and after which delays; then it is a dead letter, as it is at once after any other failure.

    Raises `InvalidError` for another kind of function, and for parameters that JSON cannot hold.
    """

    def made(fn: Callable[Concatenate[Session, P], Awaitable[T]]) -> Program[P, T]:
        return Program(name, fn, version=version, accepts=accepts, queue=queue, retry=retry)

    return made


def version_of(runnable: Resumable) -> str:
    """Return the version with which items of a program are submitted."""
    return str(getattr(runnable, "version", ""))


def versions_of(runnable: Resumable) -> tuple[str, ...]:
    """Return the versions of which a program can go on with items."""
    return (version_of(runnable), *getattr(runnable, "accepts", ()))


def queue_of(runnable: Resumable) -> str:
    """Return the queue of a program's items."""
    return str(getattr(runnable, "queue", "default"))


def retry_of(runnable: Resumable) -> Tries:
    """Return how often a program is tried."""
    found = getattr(runnable, "retry", RETRY)
    return found if isinstance(found, Tries) else RETRY


def known_programs(given: Any) -> dict[str, Resumable]:
    """Return programs by the name of their runs: one program, several, or a table of them. Raise `InvalidError` for anything else."""
    found: dict[str, Resumable] = {}
    many: Any = given.values() if isinstance(given, Mapping) else given
    if _is_runnable(many) or not isinstance(many, Iterable):
        many = (many,)
    for each in many:
        if not _is_runnable(each):
            raise InvalidError.at("worker.programs", "programs, which @program or @workflow makes", each)
        if found.setdefault(each.run_name, each) is not each:
            raise InvalidError.saying(
                "worker.programs", "programs with different names", f"two that are {each.run_name!r}"
            )
    if not found:
        raise InvalidError.saying("worker.programs", "at least one program", "none")
    return found


def _is_runnable(value: Any) -> bool:
    return isinstance(getattr(value, "run_name", None), str) and callable(getattr(value, "resume", None))
