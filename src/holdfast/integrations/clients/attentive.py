"""Clients that frameworks hold: not recovered here, but what is no answer is an error, where the SDKs take it for one.

Frameworks read every end of a stream as the end of the answer, also in the middle of a tool call, and an error with status
200 as an answer without content. Only below them, on the client, the difference can be seen.

Invariant: one call is one request.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from holdfast.faults import Fault, HoldfastError
from holdfast.integrations.clients.answers import Asked

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from holdfast.integrations.clients.dialect import Dialect

__all__ = ["End", "attentive"]

C = TypeVar("C")

_SOURCE = "_iterator"


def attentive(client: C, dialect: Dialect) -> C:
    """Return a client like `client` without retries of its own, which raises where the answer is none."""
    clone: Any = client.with_options(max_retries=0)  # type: ignore[attr-defined] # every client of either SDK has it
    copied = clone.copy

    def copy(**changes: Any) -> Any:
        # Frameworks ask for a copy without retries now and then: that is what this one is.
        return clone if changes == {"max_retries": 0} else attentive(copied(**changes), dialect)

    is_sync = isinstance(clone, dialect.sync)
    clone.request = _request(clone, dialect) if is_sync else _request_async(clone, dialect)
    clone.copy = clone.with_options = copy
    attending: C = clone
    return attending


def _request(client: Any, dialect: Dialect) -> Any:
    send = client.request

    def request(cast_to: Any, options: Any, **how: Any) -> Any:
        answer = send(cast_to, options, **how)
        if hasattr(answer, _SOURCE):
            setattr(answer, _SOURCE, _whole(getattr(answer, _SOURCE), End(dialect)))
            return answer
        return Asked(dialect, client, cast_to, options).checked(answer)

    return request


def _request_async(client: Any, dialect: Dialect) -> Any:
    send = client.request

    async def request(cast_to: Any, options: Any, **how: Any) -> Any:
        answer = await send(cast_to, options, **how)
        if hasattr(answer, _SOURCE):
            setattr(answer, _SOURCE, _whole_async(getattr(answer, _SOURCE), End(dialect)))
            return answer
        return await Asked(dialect, client, cast_to, options).checked_async(answer)

    return request


class End:
    """Whether a stream came to its end; one without any event is no stream."""

    def __init__(self, dialect: Dialect) -> None:
        self._ends = dialect.ends
        self._any = False
        self._ended: bool | None = None
        """None: no event was of a kind that has a last one."""

    def note(self, event: Any) -> None:
        self._any = True
        ends = self._ends(event)
        if ends is not None:
            self._ended = self._ended or ends

    def check(self) -> None:
        """Raise where the stream that has no more was cut."""
        if self._ended is False or not self._any:
            raise HoldfastError(Fault.of("PROVIDER_STREAM_CUT", "The stream ended before its last event"))


def _whole(source: Iterator[Any], end: End) -> Iterator[Any]:
    for event in source:
        end.note(event)
        yield event
    end.check()


async def _whole_async(source: AsyncIterator[Any], end: End) -> AsyncIterator[Any]:
    async for event in source:
        end.note(event)
        yield event
    end.check()
