"""LangGraph under the names that the programs use: a step is a task, and the program an entrypoint whose tasks a SQLite file keeps."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Self

from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.func import entrypoint, task

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

__all__ = ["Session", "run", "tool"]


def tool(**_: Any) -> Callable[[Any], Any]:
    return lambda fn: fn


class Session:
    """What a program does once is a task."""

    @classmethod
    def open(cls, *_: Any, **__: Any) -> Session:
        return cls()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None: ...

    def step(self, fn: Any, *args: Any, **kwargs: Any) -> Any:
        return asyncio.ensure_future(task(fn)(*args, **kwargs))


def run(main: Callable[[], Awaitable[None]]) -> None:
    """Run the program, or go on with it. One that has ended is not run again."""

    async def whole() -> None:
        async with AsyncSqliteSaver.from_conn_string("langgraph.db") as saver:

            @entrypoint(checkpointer=saver)
            async def program(_: dict[str, Any]) -> str:
                await main()
                return "ended"

            config: Any = {"configurable": {"thread_id": "work"}}
            state = await program.aget_state(config)
            if state.values == "ended":
                return
            await program.ainvoke(None if state.next else {}, config, durability="sync")

    asyncio.run(whole())
