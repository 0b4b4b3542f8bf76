"""Recovers any runnable as a whole: a chain, a retriever, a compiled graph.

Invariant: the result is a runnable like the one inside. Every call to it is one operation. A batch is one operation for each
input.
"""

from __future__ import annotations

import copy
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, TypeVar

from langchain_core.messages import BaseMessageChunk
from langchain_core.runnables import Runnable
from langgraph.pregel import Pregel

from holdfast.integrations.calls import Calls
from holdfast.integrations.langchain.graph import PASSING
from holdfast.runtime.streams.stream import StreamDialect

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Sequence

    from langchain_core.runnables import RunnableConfig
    from langchain_core.runnables.graph import Graph

    from holdfast.faults import Partial
    from holdfast.integrations.calls import Repeats
    from holdfast.policies import Effect, Policy
    from holdfast.runtime.runtime import Runtime
    from holdfast.runtime.streams.stream import AfterFirst

__all__ = ["RecoveringRunnable"]

Input = TypeVar("Input")
Output = TypeVar("Output")


class RecoveringRunnable(Runnable[Input, Output]):
    """A runnable whose calls recover."""

    def __init__(
        self,
        inside: Runnable[Input, Output],
        *,
        policy: Policy | None,
        name: str | None,
        effect: Effect | None,
        after_first: AfterFirst,
        resume: Callable[[Any, Any], Any] | None,
        runtime: Runtime | None,
    ) -> None:
        self.inside = inside
        self.name = name or inside.get_name()
        self._after_first: AfterFirst = after_first
        self._resume = resume
        target = f"agent:{self.name}" if name is None else name
        # A graph that is run again from its start runs the nodes again that have finished.
        repeats: Repeats = "never" if isinstance(inside, Pregel) else "always"
        self._calls = Calls(target, policy, passing=PASSING, effect=effect, repeats=repeats, runtime=runtime)
        self._resuming = self._calls.repeated("on-evidence")

    @property
    def InputType(self) -> type[Input]:  # noqa: N802 - LangChain's name
        return self.inside.InputType

    @property
    def OutputType(self) -> type[Output]:  # noqa: N802 - LangChain's name
        return self.inside.OutputType

    def with_fallbacks(self, fallbacks: Sequence[Runnable[Input, Output]], **options: Any) -> Any:
        """Return LangChain's own runnable with fallbacks. Because of these, a call of this runnable fails sooner."""
        before = copy.copy(self)
        before._calls = self._calls.before_fallback()  # noqa: SLF001 - its own class
        return Runnable.with_fallbacks(before, fallbacks, **options)

    def get_graph(self, config: RunnableConfig | None = None) -> Graph:
        return self.inside.get_graph(config)

    def invoke(self, input: Input, config: RunnableConfig | None = None, **kwargs: Any) -> Output:  # noqa: A002 - LangChain's name
        if not self._resumes(config):
            answer: Output = self._calls.call(lambda: self.inside.invoke(input, config, **kwargs))
            return answer
        given: list[Any] = [input]
        return self._resuming.call(lambda: self.inside.invoke(_first_or_none(given), config, **kwargs))  # type: ignore[no-any-return]

    async def ainvoke(self, input: Input, config: RunnableConfig | None = None, **kwargs: Any) -> Output:  # noqa: A002 - LangChain's name
        resumes = self._resumes(config)
        given: list[Any] = [input]

        async def attempt() -> Output:
            return await self.inside.ainvoke(_first_or_none(given) if resumes else input, config, **kwargs)

        calls = self._resuming if resumes else self._calls
        answer: Output = await calls.acall(attempt)
        return answer

    def _resumes(self, config: RunnableConfig | None) -> bool:
        """Whether another attempt goes on where the first one failed: a graph with a checkpointer does, in a thread of its own."""
        graph: Any = self.inside
        is_kept = isinstance(graph, Pregel) and hasattr(graph.checkpointer, "put")
        has_thread = bool(((config or {}).get("configurable") or {}).get("thread_id"))
        return is_kept and has_thread and self._calls.plan.effect is None

    def stream(
        self,
        input: Input,  # noqa: A002 - LangChain's name
        config: RunnableConfig | None = None,
        **kwargs: Any | None,
    ) -> Iterator[Output]:
        def attempt(given: Input) -> Iterator[Output]:
            return self.inside.stream(given, config, **kwargs)

        rest = self._rest_of(input)
        yield from self._calls.read(_CHUNKS, attempt, input, after_first=self._after_first, resume=rest)

    async def astream(
        self,
        input: Input,  # noqa: A002 - LangChain's name
        config: RunnableConfig | None = None,
        **kwargs: Any | None,
    ) -> AsyncIterator[Output]:
        def attempt(given: Input) -> AsyncIterator[Output]:
            return self.inside.astream(given, config, **kwargs)

        rest = self._rest_of(input)
        source = self._calls.aread(_CHUNKS, attempt, input, after_first=self._after_first, resume=rest)
        async with aclosing(source) as stream:
            async for item in stream:
                yield item

    def _rest_of(self, given: Input) -> Callable[[Partial], tuple[Any, ...]] | None:
        resume = self._resume
        return None if resume is None else lambda partial: (resume(partial.payload, given),)


def _first_or_none(given: list[Any]) -> Any:
    """Return the input for the first attempt. Later ones have none: LangGraph goes on at its last checkpoint then."""
    return given.pop() if given else None


def _is_fragment(item: Any) -> bool:
    return isinstance(item, BaseMessageChunk) and bool(getattr(item, "tool_call_chunks", None))


_CHUNKS = StreamDialect(fragment=_is_fragment)
