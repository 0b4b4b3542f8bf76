"""Streams of pydantic-ai on the stream machine.

The caller gets pydantic-ai's own response object of the last attempt. Only the iterator that it reads from is ours.

Invariant: a stream is closed in the task that opened it, and its operation is settled once.
"""

from __future__ import annotations

from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any

from pydantic_ai.messages import FinalResultEvent, PartStartEvent, ThinkingPart, ToolCallPart

from holdfast.faults import Fault, HoldfastError
from holdfast.policies.models.quote import tokens_of
from holdfast.runtime.streams.stream import Stream, StreamDialect

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection
    from contextlib import AbstractAsyncContextManager

    from pydantic_ai.messages import ModelResponse, ModelResponseStreamEvent
    from pydantic_ai.models import StreamedResponse

    from holdfast.integrations.calls import Calls
    from holdfast.policies.decide import AfterFirst

__all__ = ["check_complete", "open_stream"]

_REPORT_THE_END = frozenset({"anthropic", "openai"})
"""Providers whose complete answers have a reason why they ended."""


@asynccontextmanager
async def open_stream(
    calls: Calls,
    request: Callable[[], AbstractAsyncContextManager[StreamedResponse]],
    asked: tuple[Any, dict[str, Any]],
    after_first: AfterFirst = "raise",
) -> AsyncGenerator[StreamedResponse]:
    """Make requests until the first content of an answer arrives, and yield that response.

    `asked` is what the requests ask, and their settings, for a budget.
    """
    live: Stream[Any]
    given: StreamedResponse | None = None
    latest: _Events | None = None

    async def opened(*_: Any) -> _Events:
        nonlocal latest
        stack = AsyncExitStack()
        response = await stack.enter_async_context(request())
        latest = _Events(response, stack, live, restarts=after_first == "restart")
        if given is not None:
            _become(given, response)
        return latest

    live = Stream(calls.stream(_EVENTS, opened, after_first=after_first), asked)
    events: _Events = await live.start()
    async with events.hand_out():
        try:
            given = events.response
            yield given
        finally:
            live.abandon()
            if latest is not None and latest is not events:
                # A consumer that leaves early has not closed the answer that began again.
                await latest.aclose()


def _become(given: Any, response: Any) -> None:
    """Make the response that the caller has the same as another one, which is read from now on.

    The parts of the two answers must not be mixed: the parts, the usage and the reason of the end all come from the new one.
    """
    given.__class__ = response.__class__
    given.__dict__ = response.__dict__


def check_complete(response: StreamedResponse | ModelResponse, providers: Collection[str]) -> None:
    """Raise if an answer of one of these providers was cut. Their complete answers always have a reason why they ended."""
    details = response.provider_details or {}
    # `response.finish_reason` is no proof: pydantic-ai sets it even if the provider gave no reason. For a refusal it keeps
    # only the text.
    reason = details.get("finish_reason") or details.get("refusal")
    if not reason and response.provider_name in providers and not getattr(response, "cancelled", False):
        raise HoldfastError(Fault.of("PROVIDER_STREAM_CUT", "The stream ended before its last event"))


def _opens(event: ModelResponseStreamEvent) -> bool:
    """Return whether an event only announces a part, without content.

    A part of text counts as content as soon as it begins. At that moment pydantic-ai gives its caller the text so far, and
    later only the events that follow.
    """
    # pydantic-ai itself adds the event that a part begins the final result.
    return isinstance(event, FinalResultEvent) or (
        isinstance(event, PartStartEvent)
        and isinstance(event.part, ThinkingPart | ToolCallPart)
        and not event.part.has_content()
    )


def _said(event: ModelResponseStreamEvent) -> int:
    """Return about how many tokens an event adds to the answer."""
    part = event.part if isinstance(event, PartStartEvent) else getattr(event, "delta", None)
    names = ("content", "content_delta", "args", "args_delta")
    return tokens_of([getattr(part, name, None) for name in names])


_EVENTS = StreamDialect(opens=_opens, said=_said)


def _take_deadline(response: Any, live: Stream[Any]) -> None:
    """Let the caller's deadline hold for our stream. pydantic-ai refuses to set one on a response that is read already."""

    def enforce(deadline: Any) -> None:
        response._event_iterator = deadline.iterate(live)  # noqa: SLF001 - pydantic-ai has no public name for it

    response._enforce_request_deadline = enforce  # noqa: SLF001 - pydantic-ai has no public name for it


class _Events:
    """The events of one attempt's response."""

    def __init__(self, response: StreamedResponse, stack: AsyncExitStack, live: Stream[Any], *, restarts: bool) -> None:
        if restarts:
            # Each answer has its own ends of parts and its own final result, so these are added below our stream.
            aiter(response)
            _take_deadline(response, live)
        self.response = response
        self._stack = stack
        self._live = live
        self._events = self._take_over(response)
        self._error: BaseException | None = None
        self._handed_out = False

    def _take_over(self, response: Any) -> AsyncIterator[ModelResponseStreamEvent]:
        """Make the response read from our stream; return the iterator that it read from before."""
        if response._event_iterator is not None:  # noqa: SLF001 - it has begun already: a FallbackModel reads ahead
            begun: AsyncIterator[ModelResponseStreamEvent] = response._event_iterator  # noqa: SLF001 - pydantic-ai has no public name for it
            response._event_iterator = self._live  # noqa: SLF001 - pydantic-ai has no public name for it
            return begun
        # pydantic-ai adds final results, ends of parts and a deadline above this method, beginning with the first item.
        own: AsyncIterator[ModelResponseStreamEvent] = response._get_event_iterator()  # noqa: SLF001 - what models implement
        response._get_event_iterator = lambda: self._live  # noqa: SLF001 - what models implement
        return own

    def hand_out(self) -> AsyncExitStack:
        """Return the exit stack that closes the stream. From now on only the task that opened the stream may close it."""
        self._handed_out = True
        return self._stack

    def __aiter__(self) -> _Events:
        return self

    async def __anext__(self) -> ModelResponseStreamEvent:
        try:
            return await anext(self._events)
        except StopAsyncIteration:
            # The consumer cancelled the response, so it ends early. This is neither an answer nor a failure.
            if self.response.cancelled:
                self._live.abandon()
            check_complete(self.response, _REPORT_THE_END)
            raise
        except BaseException as error:
            self._error = error
            if self.response.cancelled and isinstance(error, Exception):
                self._live.abandon()
            raise

    async def aclose(self) -> None:
        """Close an attempt that failed before its first content."""
        # The context manager of the request must see the error, as if its body had raised it.
        error, self._error = self._error, None
        if not self._handed_out:
            await self._stack.__aexit__(None if error is None else type(error), error, None)
