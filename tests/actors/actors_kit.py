"""What the tests of actors share: one actor on its host, without a supervisor."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from holdfast import Runtime
from holdfast.actors import Child, Place, Shutdown
from holdfast.actors.host import host_for
from holdfast.testing import VirtualClock, VirtualLoop
from holdfast.testing import run as run_virtually

if TYPE_CHECKING:
    from collections.abc import Coroutine


class Stage:
    """A runtime on virtual time, and the events that it emitted."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.runtime = Runtime(clock=self.clock)
        self.events: list[Any] = []
        self.runtime.on(self.events.append)

    def run(self, main: Coroutine[Any, Any, Any]) -> Any:
        return run_virtually(main, clock=self.clock)

    def of(self, kind: type) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]

    @asynccontextmanager
    async def actor(self, kind: Any, *args: Any, **options: Any):
        """Yield the ref of an actor that nobody restarts."""
        host = host_for(Child(kind, *args, **options), Place("one", "team/one", self.runtime))
        running = await host.start(1, None)
        try:
            yield host.ref
        finally:
            how = await running.stop(Shutdown(), 5)
            host.close(how or Shutdown("leaked"))


__all__ = ["Stage", "VirtualLoop"]
