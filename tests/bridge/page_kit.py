"""A bridge beside a real browser, for the tests of its page."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import pytest
from bridge_kit import serving
from playwright.sync_api import BrowserContext, Page, expect

from holdfast import Backoff, Policy, Runtime, recover
from holdfast.bridge.access.tokens import Tokens
from holdfast.bridge.server import Bridge
from holdfast.bridge.sessions.turn import Turn
from holdfast.sessions import admin
from holdfast.stores import MemoryStore

T = TypeVar("T")
LIMIT_MS = 8000
expect.set_options(timeout=LIMIT_MS)


def agent_with(runtime: Runtime) -> Callable[[Turn], Coroutine[Any, Any, str | None]]:
    """An agent that fails once, or works for ever, if it is told to. To everything else it says nothing."""
    calls = set[str]()

    @recover("flaky", policy=Policy(attempts=3, backoff=Backoff(initial=600, cap=600), patience=None), runtime=runtime)
    async def flaky(session: str) -> str:
        if session not in calls:
            calls.add(session)
            raise ConnectionResetError
        return "At last."

    async def agent(turn: Turn) -> str | None:
        if turn.text == "fail once":
            return await flaky(turn.session.id)
        if turn.text == "work for ever":
            await asyncio.Event().wait()
        return None

    return agent


class Served:
    """A bridge in a thread of its own, because playwright's plain interface needs this one."""

    def __init__(self, tokens: Tokens | None = None, agent: Callable[[Runtime], Any] | None = None) -> None:
        self._tokens, self._agent = tokens, agent or agent_with
        self.loop = asyncio.new_event_loop()
        self.bridge: Bridge
        self._store = MemoryStore()
        self._port = 0
        self._thread = threading.Thread(target=self.loop.run_forever)
        self._thread.start()
        self.do(self._store.__aenter__)
        self.do(self._start)

    async def _start(self) -> None:
        runtime = Runtime()
        self._serving = serving(
            self._agent(runtime), runtime=runtime, store=self._store, port=self._port, tokens=self._tokens
        )
        self.bridge = await self._serving.__aenter__()
        self._port = int(self.bridge.url.rpartition(":")[2])

    async def _end(self) -> None:
        await self._serving.__aexit__(None, None, None)

    def restart(self) -> None:
        """End the server and start another one at the same address, with the same store."""
        self.do(self._end)
        self.do(self._start)

    def close(self) -> None:
        self.do(self._end)
        self.do(lambda: self._store.__aexit__(None, None, None))
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(10)
        self.loop.close()

    def do(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        return asyncio.run_coroutine_threadsafe(work(), self.loop).result(10)

    def session(self, name: str) -> str:
        """Make a session; return its address on the page."""

        async def make() -> None:
            await self.bridge.hub.create(name)

        self.do(make)
        return f"{self.bridge.url}/#token=token&session={name}"

    def rename(self, session: str, title: str) -> None:
        self.do(lambda: admin.rename(self.bridge.hub.store, session, title, by="Ada"))

    def publish(self, session: str, *messages: tuple[str, dict[str, Any]]) -> None:
        async def publish() -> None:
            await (await self.bridge.hub.live(session)).publish(*messages)

        self.do(publish)

    def stored(self, session: str) -> list[str]:
        """Return the messages of users in the log."""

        async def read() -> list[str]:
            live = await self.bridge.hub.live(session)
            await live.catch_up()
            held, _ = live.held_since(None)
            return [found for each in held for found in re.findall(rb'"user_message".*?"content":"(.*?)"', each.frame)]

        return [text.decode() for text in self.do(read)]


def show(tab: Page, address: str) -> None:
    """Show another session in the tab."""
    tab.goto(address)
    expect(tab.locator("#title")).to_have_text(address.rpartition("=")[2])
    expect(tab.locator("#status-text")).to_have_text("Connected")
    expect(tab.locator("#log[data-loaded]")).to_be_attached()


def opened(context: BrowserContext, address: str) -> Page:
    """Open the page, and fail on any error in it."""
    page = context.new_page()
    page.on("pageerror", lambda error: pytest.fail(f"an error on the page: {error}"))
    page.goto(address)
    expect(page.locator("#status-text")).to_have_text("Connected")
    return page


def chunk(text: str, stream: str = "a") -> tuple[str, dict[str, Any]]:
    return "stream_chunk", {"stream_id": stream, "text": text}


def say(page: Page, text: str) -> None:
    page.fill("#text", text)
    page.click("#send")
