"""One attempt at a stream of a model: its opening events are held until the first content, its end must be whole.

Invariant: a failure before the first content is seen by nobody but the recovery around it.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from agents import AgentsException

from holdfast.faults import AbortedError, Fault
from holdfast.integrations.clients.attentive import End
from holdfast.integrations.clients.openai import OPENAI
from holdfast.runtime.answers import close_answer_async

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

__all__ = ["Events", "PassingError"]


class PassingError(AbortedError):
    """Carries an exception of the Agents SDK past a recovery, which takes it for a signal to stop: nothing is counted."""

    def __init__(self, error: AgentsException) -> None:
        super().__init__(Fault.of("SYS_CANCELLED", f"The Agents SDK raised {type(error).__name__}"))
        self.error = error


class Events:
    """The events of one attempt."""

    def __init__(self, source: AsyncIterator[Any], passing: list[AgentsException]) -> None:
        self._source = source
        self._passing = passing
        """Where an exception of the SDK's own goes that comes after the first content."""
        self._held: deque[Any] = deque()
        self._opening = True
        self._end = End(OPENAI)
        self.model: str | None = None
        """Who answered, and `usage` what it used: read when the stream has ended."""
        self.usage: Mapping[str, Any] | None = None

    def __aiter__(self) -> Events:
        return self

    async def __anext__(self) -> Any:
        while self._opening:
            try:
                event = await self._next()
            except StopAsyncIteration:
                self._opening = False
                break
            self._held.append(event)
            self._opening = OPENAI.opens(event)
        return self._held.popleft() if self._held else await self._next()

    async def aclose(self) -> None:
        await close_answer_async(self._source)

    async def _next(self) -> Any:
        try:
            event = await anext(self._source)
        except StopAsyncIteration:
            self._end.check()
            raise
        except AgentsException as error:
            if self._opening:
                raise PassingError(error) from error
            # The provider has answered; what the SDK makes of the answer is raised when this stream has ended.
            self._passing.append(error)
            raise StopAsyncIteration from None
        self._read(event)
        return event

    def _read(self, event: Any) -> None:
        failure = OPENAI.failure(event, None)
        if failure is not None:
            raise failure
        self._end.note(event)
        used = OPENAI.used(event)
        if used is not None:
            self.model, self.usage = used.model, used.usage
