"""What the tests of the documents share: a program in virtual time, failing functions, models and people."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2
from mcp import MCPError

from holdfast import Runtime
from holdfast.manager import ResilienceManager
from holdfast.providers import Offers, Reply
from holdfast.sessions import Answer
from holdfast.testing import Capture, Midpoint, VirtualClock

__all__ = ["Model", "Person", "Refusing", "World", "code_of", "failing", "http", "installed"]


class World:
    """A program in virtual time that keeps to a profile, its events and its manager."""

    def __init__(self, profile: Any = "spec016", **options: Any) -> None:
        self.clock = VirtualClock()
        self.runtime = Runtime(profile=profile, clock=self.clock, **{"rng": Midpoint(), **options})
        self.heard = Capture()
        self.runtime.on(self.heard)
        self.manager = ResilienceManager(self.runtime)

    def of(self, kind: type) -> list[Any]:
        return [event for event in self.heard.events if isinstance(event, kind)]

    @property
    def now(self) -> float:
        return self.clock.monotonic()

    def model(self, name: str, *replies: Any, offers: Offers = Offers()) -> Model:  # noqa: B008 - it never changes
        return Model(name, *replies, offers=offers)


class Model:
    """A model of the application's own, which gives these replies in turn, the last one for ever; an exception is raised."""

    def __init__(self, name: str = "own/model", *replies: Any, offers: Offers = Offers()) -> None:  # noqa: B008
        self.name, self.offers = name, offers
        self.replies = list(replies) or [Reply(text=f"by {name}")]
        self.requests: list[Any] = []

    @property
    def calls(self) -> int:
        return len(self.requests)

    async def exchange(self, request: Any) -> Reply:
        self.requests.append(request)
        reply = self.replies.pop(0) if len(self.replies) > 1 else self.replies[0]
        if isinstance(reply, Exception):
            raise reply
        return reply

    @asynccontextmanager
    async def stream(self, request: Any, *, after_first: str = "raise") -> AsyncIterator[AsyncIterator[Any]]:
        async def parts() -> AsyncIterator[Any]:
            yield await self.exchange(request)

        yield parts()


class Person:
    """Answers in turn, after so many seconds, and remembers what was shown and what was taken away."""

    def __init__(self, *answers: Any, after: float = 0.0) -> None:
        self.answers, self.after = list(answers), after
        self.shown: list[Any] = []
        self.dismissed: list[str] = []
        self.name = "ada"

    async def ask(self, question: Any) -> Answer:
        self.shown.append(question)
        try:
            await asyncio.sleep(self.after)
        except asyncio.CancelledError:
            self.dismissed.append(question.id)
            raise
        given = self.answers.pop(0)
        return given if isinstance(given, Answer) else Answer(given)


class Refusing:
    """An MCP server that answers once, dies, and then refuses so many connections."""

    def __init__(self, refusals: int) -> None:
        self.refusals, self.connections, self.dead = refusals, 0, False

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[Refusing]:
        if self.connections and self.refusals:
            self.refusals -= 1
            raise ConnectionRefusedError("refused")
        self.connections += 1
        self.dead = self.connections == 1
        yield self

    async def call_tool(self, name: str, arguments: Any) -> Any:
        if self.dead:
            raise MCPError(-32000, "Connection closed")
        return type("Result", (), {"content": [], "is_error": False})()


def failing(*errors: BaseException | None) -> Any:
    """A function that raises these errors in turn, the last one for ever; None answers."""
    left = list(errors)

    def ask() -> str:
        ask.calls += 1
        error = left.pop(0) if len(left) > 1 else left[0]
        if error is not None:
            raise error
        return "answer"

    ask.calls = 0
    return ask


def http(status: int, **headers: str) -> httpx2.HTTPStatusError:
    """The error of an HTTP client for this status."""
    request = httpx2.Request("POST", "http://provider.test/v1/messages")
    response = httpx2.Response(status, headers=headers, request=request)
    return httpx2.HTTPStatusError(f"HTTP {status}", request=request, response=response)


def code_of(error: Any) -> str:
    return str(error.fault.code)


def installed(folder: Any, monkeypatch: Any, name: str, source: str, attribute: str = "") -> None:
    """Install a package with an extension that is this module, or this attribute of it."""
    (folder / f"{name}_extension.py").write_text(source)
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        f"[holdfast.rules]\n{name} = {name}_extension{attribute and ':'}{attribute}\n"
    )
    monkeypatch.syspath_prepend(str(folder))
