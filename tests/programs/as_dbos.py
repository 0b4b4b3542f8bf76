"""DBOS under the names that the programs use: a step is a step, and the program a workflow that a SQLite file keeps."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from dbos import DBOS, SetWorkflowID  # type: ignore[import-not-found, unused-ignore] # it is in the peers' environment

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

__all__ = ["Session", "run", "tool"]


def tool(**_: Any) -> Callable[[Any], Any]:
    return lambda fn: fn


class Session:
    """What a program does once is a step."""

    @classmethod
    def open(cls, *_: Any, **__: Any) -> Session:
        return cls()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None: ...

    async def step(self, fn: Any, *args: Any, **kwargs: Any) -> Any:
        return await DBOS.run_step_async({"name": fn.__qualname__}, fn, *args, **kwargs)


def run(main: Callable[[], Awaitable[None]]) -> None:
    """Run the program, or go on with it, as `launch` does. One that has ended returns its result."""
    DBOS(
        config={
            "name": "programs",
            "application_version": "1",
            "system_database_url": f"sqlite:///{Path('dbos.sqlite').absolute()}",
            "run_admin_server": False,
            "log_level": "ERROR",
        }
    )

    @DBOS.workflow(name="program")  # type: ignore[untyped-decorator, unused-ignore]
    async def program() -> None:
        await main()

    async def whole() -> None:
        DBOS.launch()
        with SetWorkflowID("work"):
            handle = await DBOS.start_workflow_async(program)
        await handle.get_result()

    try:
        asyncio.run(whole())
    finally:
        DBOS.destroy()
