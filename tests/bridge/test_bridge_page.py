"""The page of the bridge in a real browser: it loses nothing, shows two people the same, and makes no markup of what an agent writes.

`HOLDFAST_SCREENSHOTS=folder` keeps pictures of it at 1280 and 360 pixels, light and dark.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import threading
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar
from uuid import uuid4

import pytest
from bridge_kit import serving
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

from holdfast import Backoff, Policy, Runtime, recover
from holdfast.bridge.pairing import Pairing, pair_link
from holdfast.bridge.server import Bridge
from holdfast.bridge.tokens import Tokens
from holdfast.bridge.turn import Turn
from holdfast.sessions import Session
from holdfast.stores import MemoryStore

T = TypeVar("T")
LIMIT_MS = 8000
PICTURES = os.environ.get("HOLDFAST_SCREENSHOTS")
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

    def __init__(self, tokens: Tokens | None = None) -> None:
        self._tokens = tokens
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
            agent_with(runtime), runtime=runtime, store=self._store, port=self._port, tokens=self._tokens
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


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    made = Served()
    yield made
    made.close()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if found is None:
        pytest.skip(
            "Chromium is missing: the tests of the bridge's page are SKIPPED (Debian: apt-get install chromium)"
        )
    with sync_playwright() as playwright:
        # A container has no user namespaces for the sandbox, and only our own page is opened.
        opened = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture
def context(browser: Browser) -> Iterator[BrowserContext]:
    made = browser.new_context(viewport={"width": 1280, "height": 800})
    made.set_default_timeout(LIMIT_MS)
    yield made
    made.close()


@pytest.fixture(scope="module")
def tab(browser: Browser, served: Served) -> Iterator[Page]:
    """A tab that stays open over several tests: opening one takes longer than most of them."""
    context = browser.new_context(viewport={"width": 1280, "height": 800})
    context.set_default_timeout(LIMIT_MS)
    yield opened(context, f"{served.bridge.url}/#token=token")
    context.close()


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


def test_offline_and_back_without_a_loss(served: Served, context: BrowserContext) -> None:
    """What happens while the device is offline arrives once; what is written meanwhile is stored once."""
    page = opened(context, served.session("offline"))
    say(page, "before")
    expect(page.locator("#log .user")).to_have_text(["You: before"])
    served.publish("offline", ("stream_start", {"stream_id": "a"}), chunk("one "))
    # A message that is still on its way would be a sign of life.
    expect(page.locator("#log .agent .text")).to_have_text("one")
    context.set_offline(True)
    say(page, "while offline")
    expect(page.locator("#status-text")).to_have_text("Offline")
    expect(page.locator("#pending .user")).to_contain_text(["while offline"])
    served.publish("offline", *[chunk(f"{number} ") for number in range(50)], ("stream_end", {"stream_id": "a"}))
    context.set_offline(False)
    expect(page.locator("#pending .user")).to_have_count(0)
    expect(page.locator("#log .user")).to_have_text(["You: before", "You: while offline"])
    expect(page.locator("#log .agent .text")).to_have_text("one " + " ".join(map(str, range(50))))
    assert served.stored("offline") == ["before", "while offline"]


def test_a_reload_in_the_middle_of_a_stream_shows_all_of_it(served: Served, context: BrowserContext) -> None:
    page = opened(context, served.session("reload"))
    served.publish("reload", ("stream_start", {"stream_id": "a"}), chunk("Hello, "))
    expect(page.locator("#log .agent .text")).to_have_text("Hello,")
    page.reload()
    served.publish("reload", chunk("world"), ("stream_end", {"stream_id": "a"}))
    expect(page.locator("#log .agent .text")).to_have_text("Hello, world")
    assert "token" not in page.url


def test_an_approval_answered_in_one_tab_is_closed_in_the_other(served: Served, context: BrowserContext) -> None:
    address = served.session("approval")
    tabs = [opened(context, address), opened(context, address)]

    async def ask() -> bool:
        async with Session.open("approval", store=served.bridge.hub.store) as session:
            return await session.approve("Deploy to production?", expires=60)

    asked = asyncio.run_coroutine_threadsafe(ask(), served.loop)
    for tab in tabs:
        expect(tab.locator(".question .prompt")).to_have_text("Deploy to production?")
    tabs[0].get_by_role("button", name="Approve").click()
    for tab in tabs:
        expect(tab.locator(".question")).to_have_count(0)
        expect(tab.locator("#log .note")).to_have_text("Answered by Ada: Deploy to production?")
    assert asked.result(10) is True


def test_XB5_a_call_is_shown_as_it_runs_and_opened_before_it_can_be_approved(
    served: Served, context: BrowserContext
) -> None:
    tab = opened(context, served.session("hostile"))
    calls = {"short": "rm -rf / \u202egpj.x", "long": "x" * 3000 + "; rm -rf / \u202egpj.x"}

    async def ask(name: str) -> str:
        details = {"tool": name, "arguments": json.dumps({"command": calls[name]})}
        async with Session.open("hostile", store=served.bridge.hub.store) as session:
            return (await session.approval(f"Run {name}(…)?", details=details, expires=60, call=f"c-{name}")).outcome

    asked = asyncio.run_coroutine_threadsafe(ask("short"), served.loop)
    card = tab.locator(".question")
    expect(card.locator("pre code")).to_have_text("rm -rf / ⟨U+202E⟩gpj.x")
    card.get_by_role("button", name="Approve").click()
    assert asked.result(10) == "accepted"
    expect(card).to_have_count(0)
    asked = asyncio.run_coroutine_threadsafe(ask("long"), served.loop)
    approve = card.get_by_role("button", name="Approve")
    expect(approve).to_be_disabled()
    card.locator("summary").click()
    expect(card.locator("pre code")).to_contain_text("; rm -rf / ⟨U+202E⟩gpj.x")
    approve.click()
    assert asked.result(10) == "accepted"


def test_what_an_agent_writes_is_text_and_never_markup(served: Served, tab: Page) -> None:
    show(tab, served.session("markup"))
    evil = '<img src=x onerror="document.title=1"><script>document.title=2</script>'
    served.publish(
        "markup",
        ("stream_start", {"stream_id": "a"}),
        chunk(f"{evil}\n```html\n{evil}\n```\n**{evil}** `{evil}`\n"),
        ("stream_end", {"stream_id": "a"}),
        ("tool_call", {"tool_call_id": "t", "tool": evil, "params": {"x": evil}}),
        ("tool_result", {"tool_call_id": "t", "tool": evil, "success": True, "content": evil}),
        ("recovery", {"event": {}, "line": evil, "run": "r", "can": []}),
        ("question", {"question_id": "q", "kind": "Select", "prompt": evil, "choices": [evil]}),
        ("question", {"question_id": "d", "kind": "Auth.DeviceCode", "prompt": evil, "url": "javascript:document.title=3", "user_code": evil}),
        ("notification", {"notification_id": "n", "notification_type": "x", "title": evil, "body": evil}),
    )  # fmt: skip
    expect(tab.locator("#log .note")).to_have_text(f"{evil}: {evil}")
    assert tab.locator("#log img, #log script, .questions img, .questions script, .questions a").count() == 0
    assert tab.locator("#log pre code").first.text_content() == evil + "\n"
    assert tab.title() == "markup · Holdfast"


def test_the_token_is_never_sent_over_the_socket(served: Served, context: BrowserContext) -> None:
    """A ticket stands for it, once for each connection. Whoever records the frames has nothing to sign in with."""
    frames = list[str]()
    page = context.new_page()
    page.on("websocket", lambda socket: socket.on("framesent", lambda frame: frames.append(str(frame))))
    page.goto(f"{served.bridge.url}/#token=token")
    expect(page.locator("#status-text")).to_have_text("Connected")
    auths = [json.loads(frame)["payload"] for frame in frames if '"auth"' in frame]
    assert [set(auth) & {"token", "ticket"} for auth in auths] == [{"ticket"}]


def test_a_wrong_token_is_told_and_asked_for_again(served: Served, context: BrowserContext) -> None:
    page = context.new_page()
    page.goto(f"{served.bridge.url}/#token=wrong")
    expect(page.locator("#sign-in-why")).to_be_visible()
    assert "wrong" not in page.url
    page.fill("#token", "token")
    page.get_by_role("button", name="Connect", exact=True).click()
    expect(page.locator("#status-text")).to_have_text("Connected")


def test_a_device_is_paired_by_a_link_and_signed_out_when_its_token_is_revoked(
    context: BrowserContext, tmp_path: Path
) -> None:
    tokens = Tokens(tmp_path / "tokens.json")
    served = Served(tokens)
    try:
        page = context.new_page()
        page.goto(pair_link(served.bridge.url, Pairing(tokens).offer().code, ["sha256/aGk="]))
        page.get_by_label("Name of this device").fill("Ada's phone")
        page.get_by_role("button", name="Connect").last.click()
        expect(page.locator("#status-text")).to_have_text("Connected")
        assert "pair" not in page.url
        served.loop.call_soon_threadsafe(tokens.revoke, "Ada's phone")
        expect(page.locator("#sign-in-why")).to_contain_text("revoked")
        assert page.evaluate("Object.keys(localStorage).includes('holdfast.token')") is False
    finally:
        served.close()


def test_a_message_of_a_tab_that_was_closed_is_sent_by_the_next_one(served: Served, context: BrowserContext) -> None:
    address = served.session("closed-tab")
    first = opened(context, address)
    context.set_offline(True)
    # An open socket may still carry the message while the browser goes offline.
    expect(first.locator("#status-text")).to_have_text("Offline")
    say(first, "typed and closed")
    expect(first.locator("#pending .user")).to_have_count(1)
    first.close()
    context.set_offline(False)
    second = opened(context, f"{served.bridge.url}/#token=token")
    expect(second.locator("#sessions .waiting")).to_have_text("1 not sent")
    second.get_by_role("button", name="closed-tab").click()
    expect(second.locator("#sessions .waiting")).to_have_count(0)
    expect(second.locator("#log .user")).to_have_text(["You: typed and closed"])
    assert served.stored("closed-tab") == ["typed and closed"]


def test_a_password_is_answered_and_kept_nowhere_in_the_browser(served: Served, tab: Page) -> None:
    show(tab, served.session("password"))
    served.publish(
        "password", ("question", {"question_id": "p", "kind": "Auth.Password", "prompt": "Password of deploy"})
    )
    expect(tab.locator(".question input")).to_be_visible()
    tab.context.set_offline(True)
    tab.locator(".question input").fill("hunter2-canary")
    tab.locator(".question button").click()
    kept = tab.evaluate("JSON.stringify([{...localStorage}, {...sessionStorage}])")
    assert "canary" not in kept
    assert tab.locator(".question input").input_value() == ""
    tab.context.set_offline(False)


def test_recovery_lines_replace_each_other_and_offer_what_can_be_done(served: Served, tab: Page) -> None:
    show(tab, served.session("recovery"))
    can = ["retry_now", "fall_back", "cancel"]
    served.publish("recovery", ("recovery", {"event": {}, "line": "Retrying... (1/3)", "run": "r", "can": can}))
    served.publish("recovery", ("recovery", {"event": {}, "line": "Retrying... (2/3)", "run": "r", "can": can}))
    expect(tab.locator(".recovery .line")).to_have_text(["Retrying... (2/3)"])
    assert tab.locator(".recovery button").all_text_contents() == ["Retry now", "Use the fallback", "Cancel"]
    served.publish("recovery", ("recovery", {"event": {}, "line": "Recovered after 2 retries", "run": "r", "can": []}))
    expect(tab.locator(".recovery button")).to_have_count(0)


def test_a_retry_of_a_real_agent_is_made_now_on_command(served: Served, tab: Page) -> None:
    show(tab, served.session("retry"))
    say(tab, "fail once")
    expect(tab.locator(".recovery .line")).to_have_text("Retrying... (2/3)")
    tab.get_by_role("button", name="Retry now").click()
    expect(tab.locator("#log .agent .text")).to_have_text("At last.")
    expect(tab.locator(".recovery button")).to_have_count(0)
    expect(tab.locator("#working")).to_be_hidden()


def test_a_turn_is_stopped(served: Served, tab: Page) -> None:
    show(tab, served.session("stop"))
    say(tab, "work for ever")
    expect(tab.locator("#working")).to_have_text(re.compile("The agent is working"))
    tab.locator("#stop").click()
    expect(tab.locator("#working")).to_be_hidden()


def test_a_tab_that_was_frozen_catches_up(served: Served, tab: Page) -> None:
    show(tab, served.session("frozen"))
    served.publish("frozen", ("stream_start", {"stream_id": "a"}), chunk("awake "))
    expect(tab.locator("#log .agent .text")).to_have_text("awake")
    browser_side = tab.context.new_cdp_session(tab)
    browser_side.send("Page.setWebLifecycleState", {"state": "frozen"})
    served.publish("frozen", *[chunk(f"{number} ") for number in range(100)], ("stream_end", {"stream_id": "a"}))
    browser_side.send("Page.setWebLifecycleState", {"state": "active"})
    expect(tab.locator("#log .agent .text")).to_have_text("awake " + " ".join(map(str, range(100))))


def test_the_page_comes_back_by_itself_after_the_server_was_restarted(served: Served, tab: Page) -> None:
    show(tab, served.session("restart"))
    say(tab, "before")
    expect(tab.locator("#log .user")).to_have_text(["You: before"])
    served.restart()
    say(tab, "after")
    expect(tab.locator("#log .user")).to_have_text(["You: before", "You: after"])
    assert served.stored("restart") == ["before", "after"]


def test_the_end_is_followed_until_somebody_scrolls_up(served: Served, tab: Page) -> None:
    show(tab, served.session("scroll"))
    served.publish("scroll", ("stream_start", {"stream_id": "a"}), chunk("line\n" * 300))
    from_end = "main.scrollHeight - main.scrollTop - main.clientHeight"
    expect(tab.locator("#log .agent")).to_be_visible()
    tab.locator("#main").evaluate("main => new Promise(done => requestAnimationFrame(() => setTimeout(done, 50)))")
    assert tab.locator("#main").evaluate(f"main => {from_end}") < 5
    tab.locator("#main").hover()
    tab.mouse.wheel(0, -2000)
    expect(tab.locator("#jump")).to_be_hidden()
    before = tab.locator("#main").evaluate("main => new Promise(done => setTimeout(() => done(main.scrollTop), 300))")
    served.publish("scroll", chunk("more\n" * 300))
    expect(tab.locator("#jump")).to_be_visible()
    assert tab.locator("#main").evaluate("main => main.scrollTop") == before
    tab.locator("#jump").click()
    expect(tab.locator("#jump")).to_be_hidden()
    assert tab.locator("#main").evaluate(f"main => {from_end}") < 5


@pytest.mark.parametrize("width", [1280, 360])
def test_it_fits_the_screen_and_everything_has_a_name(served: Served, browser: Browser, width: int) -> None:
    is_phone = width < 500
    name = f"screen-{width}"
    context = browser.new_context(
        viewport={"width": width, "height": 740}, is_mobile=is_phone, has_touch=is_phone, device_scale_factor=2
    )
    page = opened(context, served.session(name))
    served.publish(
        name,
        ("stream_start", {"stream_id": "a"}),
        chunk("The parser drops empty fields. The fix is one word:\n\n```python\nreturn line.split(',')\n```\n" + "x" * 300),
        ("stream_end", {"stream_id": "a"}),
        ("tool_call", {"tool_call_id": "t", "tool": "bash", "params": {"command": "pytest " + "tests/very_long_name " * 20}}),
        ("tool_result", {"tool_call_id": "t", "tool": "bash", "success": False, "content": "1 failed", "duration_ms": 1800}),
        ("recovery", {"event": {}, "line": "Retrying... (2/3)", "run": "r", "can": ["retry_now", "fall_back", "cancel"]}),
        ("approval_required", {"tool_call_id": str(uuid4()), "tool": "bash", "params": {"command": "git push --force"}, "risk_level": "high"}),
    )  # fmt: skip
    expect(page.get_by_role("button", name="Approve")).to_be_visible()
    for scheme in ("light", "dark") if PICTURES else ():
        page.emulate_media(color_scheme=scheme)
        page.screenshot(path=Path(PICTURES or "") / f"{name}-{scheme}.png")
    assert page.evaluate("document.documentElement.scrollWidth") == width
    unnamed = "[...document.querySelectorAll('button,input,textarea')].filter(e => e.offsetParent && !(e.innerText?.trim() || e.ariaLabel || e.labels?.length))"
    assert page.evaluate(f"{unnamed}.map(e => e.outerHTML)") == []
    small = "[...document.querySelectorAll('.tray button, .tray textarea, .bar button')].filter(e => e.offsetParent && e.offsetHeight < 44)"
    assert page.evaluate(f"{small}.map(e => e.outerHTML)") == []
    context.close()
