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

from holdfast.integrations.calls import Calls
from holdfast.integrations.langchain.graph import PASSING
from holdfast.runtime.stream import Dialect

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Sequence

    from langchain_core.runnables import RunnableConfig
    from langchain_core.runnables.graph import Graph

    from holdfast.faults import Partial
    from holdfast.policies import Effect, Policy
    from holdfast.runtime.runtime import Runtime
    from holdfast.runtime.stream import AfterFirst

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
        self._calls = Calls(target, policy, passing=PASSING, effect=effect, runtime=runtime)

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
        answer: Output = self._calls.call(lambda: self.inside.invoke(input, config, **kwargs))
        return answer

    async def ainvoke(self, input: Input, config: RunnableConfig | None = None, **kwargs: Any) -> Output:  # noqa: A002 - LangChain's name
        async def attempt() -> Output:
            return await self.inside.ainvoke(input, config, **kwargs)

        answer: Output = await self._calls.acall(attempt)
        return answer

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


def _is_fragment(item: Any) -> bool:
    return isinstance(item, BaseMessageChunk) and bool(getattr(item, "tool_call_chunks", None))


_CHUNKS = Dialect(fragment=_is_fragment)
