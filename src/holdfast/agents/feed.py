"""`Feed`: the way of an agent's parts to the one who reads them.

Invariant: a slow reader slows the agent down, and parts are neither lost nor reordered. The parts about retries and fallbacks come from
the events that the runtime emits anyway.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import asynccontextmanager, contextmanager, nullcontext
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Self

import msgspec

from holdfast.agents.parts import Asking, Done, FellBack, Retrying, Text, ToolCalled, ToolReturned
from holdfast.events import AgentFallback, Fallback, Retry
from holdfast.faults.redaction import PieceMask
from holdfast.runtime.shield import wait_to_end

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

    from holdfast.agents.masks import Storable
    from holdfast.agents.parts import AgentPart
    from holdfast.runtime.bus import Subscription
    from holdfast.runtime.runtime import Runtime
    from holdfast.sessions.questions.question import Question
    from holdfast.sessions.session import Session

__all__ = ["Feed", "Followed", "parts_of"]

_MOST_WAITING = 256
"""The most parts that wait for their reader before the agent waits, too."""


@asynccontextmanager
async def parts_of(
    runtime: Runtime, work: Callable[[Feed], Awaitable[None]], session: Session | None = None
) -> AsyncIterator[Feed]:
    """Let an agent work and yield its parts: what `stream` of every agent does. Leaving the block early cancels the work."""
    feed = Feed(runtime, session)

    async def followed() -> None:
        feed.follow()
        with nullcontext() if session is None else session.watching(feed.put_question):
            await work(feed)

    task = asyncio.ensure_future(followed())
    feed.read_from(task)
    try:
        yield feed
    finally:
        feed.close()
        task.cancel()
        # Until its tools and programs have ended: the next run must not meet them.
        await wait_to_end(_ended(task))


async def _ended(task: asyncio.Task[None]) -> None:
    await asyncio.wait((task,))
    if not task.cancelled():
        # Look at the error, or asyncio would report that nobody has seen it. Who reads the parts has got it, or has left.
        task.exception()


class Feed:
    """Takes the parts of one run, and yields them to one reader."""

    def __init__(self, runtime: Runtime, session: Session | None = None) -> None:
        self._session = session
        self._pieces = PieceMask() if session is None else session.storable_pieces()
        """Masks the text. What a session stores has masks in place of secrets, so what is shown has them too."""
        self._parts: deque[AgentPart] = deque()
        self._ready = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()
        self._runtime = runtime
        self._subscription: Subscription | None = None
        self._task: asyncio.Task[Any] | None = None
        self._has_text = False
        """Whether the request under way has brought text that its reader has."""

    def masked(self, part: AgentPart) -> Iterator[AgentPart]:
        """Yield a part without the secrets that the session's store knows, as `put` takes it. Text may come later, or with the next part."""
        if isinstance(part, Text):
            if text := self._pieces.add(part.text):
                yield Text(text=text)
            return
        if rest := self._pieces.end():
            yield Text(text=rest)
        yield part if self._session is None else _masked(part, self._session.storable)

    async def put(self, part: AgentPart) -> None:
        """Add a part. Wait while many parts wait for their reader."""
        self._has_text = isinstance(part, Text)
        self._put(part)
        if len(self._parts) >= _MOST_WAITING:
            self._room.clear()
            await self._room.wait()

    def begin_request(self) -> None:
        """Note that the text of another request follows."""
        self._has_text = False

    def _put(self, part: AgentPart) -> None:
        self._parts.append(part)
        self._ready.set()

    def follow(self) -> None:
        """Take the events of this run, from the task that calls this and those that it starts."""
        _FEED.set(self)
        self._subscription = self._runtime.bus.subscribe(self._on_event, _KINDS)

    def _on_event(self, event: Any) -> None:
        # The handler is called in the context of the call that reports, so it knows whose call that is.
        if _FEED.get() is not self:
            return
        # What was held back belongs to the attempt that failed.
        self._pieces.drop()
        self._put(_part_about(event, restarts_text=self._has_text))
        if isinstance(event, Retry):
            self._has_text = False

    def put_question(self, question: Question) -> None:
        """Add the part about a question of this run."""
        if _FEED.get() is self:
            if rest := self._pieces.end():
                self._put(Text(text=rest))
            self._put(Asking(id=question.id, kind=question.kind, prompt=question.prompt, choices=question.choices))

    def read_from(self, task: asyncio.Task[Any]) -> None:
        """Yield parts until this task ends."""
        self._task = task
        task.add_done_callback(lambda _: self._ready.set())

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> AgentPart:
        assert self._task is not None
        while not self._parts:
            if self._task.done():
                # Raises what the run raised.
                self._task.result()
                raise StopAsyncIteration
            self._ready.clear()
            await self._ready.wait()
        part = self._parts.popleft()
        if len(self._parts) < _MOST_WAITING // 2:
            self._room.set()
        if isinstance(part, Done):
            # The turn and its session are saved before the reader learns that the run is over.
            await asyncio.wait((self._task,))
            self._task.result()
        return part

    async def stop(self) -> None:
        """Cancel the run, and wait until it has ended. Its reader then gets the cancellation."""
        assert self._task is not None
        self._task.cancel()
        await _ended(self._task)

    def close(self) -> None:
        """Take no further events."""
        if self._subscription is not None:
            self._subscription.cancel()


class Followed:
    """The parts about retries and fallbacks of one run that its observers have not seen yet. An observer may be async; a handler of events is not."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._parts: deque[AgentPart] = deque()
        self._has_text = False
        """Whether the request under way has brought text that the observers have."""

    @contextmanager
    def following(self) -> Iterator[None]:
        """Take the events of this run, from the task that enters this and those that it starts."""
        token = _FOLLOWED.set(self)
        subscription = self._runtime.bus.subscribe(self._on_event, _KINDS)
        try:
            yield
        finally:
            subscription.cancel()
            _FOLLOWED.reset(token)

    def take(self) -> Iterator[AgentPart]:
        """Yield the parts that were not taken yet."""
        while self._parts:
            yield self._parts.popleft()

    def begin_request(self) -> None:
        """Note that the text of another request follows."""
        self._has_text = False

    def note(self, part: AgentPart) -> None:
        """Note what the observers see."""
        self._has_text = isinstance(part, Text)

    def _on_event(self, event: Any) -> None:
        if _FOLLOWED.get() is self:
            self._parts.append(_part_about(event, restarts_text=self._has_text))
            if isinstance(event, Retry):
                self._has_text = False


_KINDS = (Retry, Fallback, AgentFallback)


def _part_about(event: Any, *, restarts_text: bool) -> AgentPart:
    if isinstance(event, Retry):
        return Retrying(
            line=event.text,
            attempt=event.attempt,
            delay=event.delay,
            fault=event.fault,
            restarts_text=restarts_text,
        )
    who = getattr(event, "failed", "") or event.from_
    return FellBack(from_=who, to=event.to, fault=event.fault, usd=event.usd)


def _masked(part: AgentPart, storable: Storable) -> AgentPart:
    match part:
        case ToolCalled(arguments=arguments):
            return msgspec.structs.replace(part, arguments=storable(arguments))
        case ToolReturned(content=content):
            return msgspec.structs.replace(part, content=storable(content))
    return part


_FEED: ContextVar[Feed | None] = ContextVar("holdfast_agent_feed", default=None)
"""The feed that the running code belongs to."""
_FOLLOWED: ContextVar[Followed | None] = ContextVar("holdfast_agent_followed", default=None)
"""What the observers of the running code's agent have not seen yet."""
