"""What the tests of roles share: agents that fail on script, a person, a runtime in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from holdfast import Runtime
from holdfast.agents import FunctionAgent, Role
from holdfast.manager import ResilienceManager
from holdfast.sessions import Answer, Notice, Question
from holdfast.testing import Capture, Midpoint, VirtualClock, run


class Scripted:
    """An agent whose calls end as listed: a text is the answer, an exception is raised, a number is seconds to sleep first."""

    def __init__(self, name: str, *ends: Any) -> None:
        self.name = name
        self.ends = list(ends)
        self.calls = 0
        self.agent = FunctionAgent(name, self)

    async def __call__(self, prompt: str) -> str:
        self.calls += 1
        # The last end repeats.
        end = self.ends.pop(0) if len(self.ends) > 1 else self.ends[0]
        if isinstance(end, (int, float)):
            await asyncio.sleep(end)
            return f"{self.name}: late"
        if isinstance(end, BaseException):
            raise end
        return f"{self.name}: {end}"


class Person:
    """Answers questions and remembers notices."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.asked: list[str] = []
        self.notices: list[Notice] = []

    async def ask(self, question: Question) -> Answer:
        self.asked.append(question.prompt)
        return Answer(self.answers.pop(0))

    async def notify(self, notice: Notice) -> None:
        self.notices.append(notice)


class World:
    """A runtime in virtual time, its events, and its circuits."""

    def __init__(self, **options: Any) -> None:
        self.clock = VirtualClock()
        self.runtime = Runtime(clock=self.clock, rng=Midpoint(), enabled=True, **options)
        self.events = Capture()
        self.runtime.on(self.events)
        self.manager = ResilienceManager(self.runtime)

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return run(work, clock=self.clock)

    def role(self, first: Scripted, *others: Scripted, **options: Any) -> Role:
        understudies = [other.agent for other in others]
        return Role(first.name, first.agent, understudies=understudies, runtime=self.runtime, **options)

    def counted(self, *names: str) -> list[int]:
        """Return the failures that the circuits of these agents have counted."""
        return [self.manager.get_circuit(f"agent:{name}").failures for name in names]


def refused(text: str = "gone") -> ConnectionResetError:
    return ConnectionResetError(text)


def raising(make: Callable[[], Exception]) -> Any:
    async def work(prompt: str) -> str:
        raise make()

    return work
