"""Streams of pydantic-ai: held until their first content, so that a failure before it stays unseen; then watched.

The response handed out is pydantic-ai's own object. Only where its events come from is ours: they pass one by one, and a tool
call is never put together from two answers.

Invariant: a stream that was opened is closed in the task that opened it, and its operation is settled once.
"""

from __future__ import annotations

import asyncio
import sys
from collections import deque
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any, NoReturn

from pydantic_ai.messages import PartStartEvent, ThinkingPart, ToolCallPart

from holdfast.faults import Fault, HoldfastError, StreamCutError
from holdfast.integrations.passing import PassingOperation, Signal
from holdfast.runtime.drivers import drive_async
from holdfast.runtime.fault_of import fault_of
from holdfast.runtime.limits import Wheels
from holdfast.runtime.partials import Delivered
from holdfast.runtime.surroundings import Surroundings

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection
    from contextlib import AbstractAsyncContextManager

    from pydantic_ai.messages import ModelResponse, ModelResponseStreamEvent
    from pydantic_ai.models import StreamedResponse

    from holdfast.integrations.passing import Calls
    from holdfast.runtime.surroundings import Tokens

__all__ = ["check_whole", "flowing"]

_SAYS_WHEN_WHOLE = frozenset({"anthropic", "openai"})
"""Providers whose whole answers have a reason why they ended."""


@asynccontextmanager
async def flowing(
    calls: Calls, opened: Callable[[], AbstractAsyncContextManager[StreamedResponse]]
) -> AsyncGenerator[StreamedResponse]:
    """Open a stream, as often as it takes until its first content is there."""
    op = _StreamOperation(calls.plan)
    op.calls = calls
    op.told = calls.told
    kept: list[AsyncExitStack] = []

    async def attempt() -> _Events:
        stack = AsyncExitStack()
        inside = op.surround()
        try:
            response = await stack.enter_async_context(opened())
            events = _Events(op, response)
            await events.open()
        except BaseException as error:
            await stack.__aexit__(*sys.exc_info())
            if isinstance(error, calls.passing):
                raise Signal(error) from None
            raise
        finally:
            Surroundings.leave(inside)
        kept.append(stack)
        op.flowing = True
        return events

    try:
        events: _Events = await drive_async(op, attempt, (), {})
    except Signal as signal:
        raised = signal.raised
    else:
        async with kept[0]:
            try:
                yield events.response
            finally:
                events.left()
        return
    try:
        raise raised
    finally:
        del raised  # an exception in a frame that it passes through keeps itself alive


def check_whole(response: StreamedResponse | ModelResponse, sayers: Collection[str]) -> None:
    """Refuse an answer that was cut: it has no reason why it ended, where its provider, one of `sayers`, always gives one."""
    details = response.provider_details or {}
    # Not `finish_reason`: pydantic-ai supplies one where a provider gave none. Of a refusal it keeps the words only.
    told = details.get("finish_reason") or details.get("refusal")
    if not told and response.provider_name in sayers and not getattr(response, "cancelled", False):
        raise HoldfastError(Fault.of("PROVIDER_STREAM_CUT", "The stream ended before its last event"))


def _opens(event: ModelResponseStreamEvent) -> bool:
    """Whether an event only says that something begins, so that nobody misses it if the stream begins again.

    Not of text: pydantic-ai hands out what the response holds when its text begins, and then the events behind that.
    """
    return (
        isinstance(event, PartStartEvent)
        and isinstance(event.part, ThinkingPart | ToolCallPart)
        and not event.part.has_content()
    )


class _StreamOperation(PassingOperation):
    """A request whose answer is a stream: it is over when the stream is."""

    surroundings: Surroundings | None = None
    """What the attempt's beginning put into the context, for its own steps only: the consumer runs in between."""
    flowing = False
    """The stream was handed out; whoever watches it settles this operation."""

    def surround(self) -> Tokens:
        return () if self.surroundings is None else self.surroundings.enter()

    def admit(self) -> None:
        if self.plan.watched:
            self.surroundings = Surroundings(super().admit)
        else:
            super().admit()

    def succeeded(self, value: object = None) -> None:
        if not self.flowing:
            super().succeeded(value)

    def ended_well(self, response: StreamedResponse) -> None:
        """The stream that was handed out came to its end; the budget is charged what it says it used."""
        self.flowing = False
        self.succeeded(response)


class _Events:
    """The events of one response; silence has the limit of an attempt."""

    def __init__(self, op: _StreamOperation, response: StreamedResponse) -> None:
        self._op = op
        self.response = response
        self._source = self._take_over(response)
        self._held: deque[ModelResponseStreamEvent] = deque()
        self._delivered = Delivered()
        self._over = False
        seconds = op.plan.timeout
        self._idle = None if seconds is None else Wheels(seconds, op.plan.runtime.clock)

    def _take_over(self, response: Any) -> AsyncIterator[ModelResponseStreamEvent]:
        """Put this in the place where the response's events come from; return where they came from."""
        if response._event_iterator is not None:  # noqa: SLF001 - somebody inside has looked at it, as a FallbackModel does
            source: AsyncIterator[ModelResponseStreamEvent] = response._event_iterator  # noqa: SLF001 - ditto
            response._event_iterator = self  # noqa: SLF001 - ditto
            return source
        # Below what pydantic-ai adds (final results, ends of parts, its own deadline): that begins at the first look.
        own: AsyncIterator[ModelResponseStreamEvent] = response._get_event_iterator()  # noqa: SLF001 - what models implement
        response._get_event_iterator = lambda: self  # noqa: SLF001 - ditto
        return own

    async def open(self) -> None:
        """Read up to the first content. Not further: what was received by then is what the response says it holds."""
        try:
            while not self._held or _opens(self._held[-1]):
                self._held.append(await anext(self._source))
        except StopAsyncIteration:
            check_whole(self.response, _SAYS_WHEN_WHOLE)

    def left(self) -> None:
        """The consumer is gone; where the stream was not over, nothing is known about it."""
        if not self._over:
            self._over = True
            self._op.abandoned(None)

    def __aiter__(self) -> _Events:
        return self

    async def __anext__(self) -> ModelResponseStreamEvent:
        if self._held:
            return self._deliver(self._held.popleft())
        if self._over:
            raise StopAsyncIteration
        try:
            event = await self._next()
        except StopAsyncIteration:
            self._finish()
            raise
        except Exception as error:
            if self.response.cancelled:
                self.left()
                raise
            self._break(error)
        except BaseException as stop:
            self._over = True
            self._op.stopped(stop)
            raise
        return self._deliver(event)

    async def _next(self) -> ModelResponseStreamEvent:
        limit = None if self._idle is None else self._idle.begin(self._op.plan.monotonic())
        inside = self._op.surround()
        try:
            return await anext(self._source)
        except asyncio.CancelledError as error:
            if limit is not None and limit.end():
                limit = None
                raise self._silent() from error
            raise
        finally:
            Surroundings.leave(inside)
            if limit is not None:
                limit.end()

    def _deliver(self, event: ModelResponseStreamEvent) -> ModelResponseStreamEvent:
        self._delivered.add(event)
        return event

    def _finish(self) -> None:
        if self.response.cancelled:
            self.left()
            return
        try:
            check_whole(self.response, _SAYS_WHEN_WHOLE)
        except HoldfastError as cut:
            self._break(cut)
        self._over = True
        self._op.ended_well(self.response)

    def _break(self, error: Exception) -> NoReturn:
        """Settle the failure and raise the cut, with what was delivered on it."""
        self._over = True
        self._op.cut_off(error)
        fault = fault_of(error)
        if fault.code == "SYS_PROGRAMMING_ERROR":
            raise error
        raise StreamCutError(self._delivered.on(fault)) from error

    def _silent(self) -> HoldfastError:
        seconds = self._op.plan.timeout or 0.0
        message = f"{self._op.plan.name} sent nothing for {seconds:g} s"
        return HoldfastError(Fault.of("PROVIDER_STREAM_STALLED", message, context={"idle_s": seconds}))
