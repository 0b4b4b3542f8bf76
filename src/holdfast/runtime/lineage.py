"""Where an event belongs: the request that the program works on, and the operations around it.

Invariant: an event names only operations that go on. What outlives an operation is no longer part of it.
"""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast import options
from holdfast.faults import InvalidError
from holdfast.runtime.ambient import AMBIENT, in_force
from holdfast.runtime.work import work_in_force

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

    from holdfast.events import Event
    from holdfast.runtime.work import Work

__all__ = ["REQUEST", "is_request_id", "named", "placed", "request"]

REQUEST: ContextVar[str] = ContextVar("holdfast_request", default="")
"""The id of the request that the program works on; empty: it has named none."""
LONGEST = 200
"""The most characters of a request's id: it stands in every event, and may come from a header that anybody can send."""


@options.suggests
@contextmanager
def request(request_id: str) -> Iterator[None]:
    """Name what the program works on: every event in this block carries the id, in steps, actors and resumed turns too.

        import holdfast

        with holdfast.request("req-30017"):
            answer = await ask("Where is my parcel?")

    request_id: 1 to 200 printable characters, such as the value of `X-Request-ID`. Anything else raises `InvalidError`. An inner block counts
    instead of the one around it.
    """
    if not is_request_id(request_id):
        raise InvalidError.at("request.id", f"1 to {LONGEST} printable characters", request_id)
    token = REQUEST.set(request_id)
    try:
        yield
    finally:
        REQUEST.reset(token)


def is_request_id(value: object) -> bool:
    """Whether a value can be the id of a request: it is shown in logs, so it has no control characters and is not long."""
    return isinstance(value, str) and 0 < len(value) <= LONGEST and value.isprintable()


def named(request_id: str) -> AbstractContextManager[None]:
    """Go on with a request whose id was passed on, and keep the one around if there is none."""
    return request(request_id) if request_id else nullcontext()


def placed(event: Event) -> tuple[Event, Work | None]:
    """Return the event with what is around its caller, and the durable work that it belongs to."""
    facts: dict[str, Any] = {}
    if (work := work_in_force()) is not None:
        facts.update(session=work.session, turn=work.turn, step=work.step)
    if named := REQUEST.get():
        facts["request"] = named
    if runs := _runs_around(event.run):
        facts.update(within=runs[0], root=runs[-1])
    return (msgspec.structs.replace(event, **facts) if facts else event), work


def _runs_around(run: str) -> list[str]:
    """Return the runs of the operations around the caller besides this one, the innermost first."""
    found: list[str] = []
    scope = in_force(AMBIENT.get())
    while scope is not None:
        # A budget has the run of the operation around it.
        if (around := scope.run) and around != run and around not in found[-1:]:
            found.append(around)
        scope = in_force(scope.around)
    return found
