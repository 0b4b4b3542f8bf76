"""The page of the bridge in a real browser: it loses nothing, shows two people the same, and makes no markup of what an agent writes.

`python scripts/page_pictures.py folder` makes pictures of it to look at.
"""

from __future__ import annotations

import asyncio
import json
import re
from concurrent.futures import Future
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from bridge_kit import Model
from page_kit import Served, chunk, opened, say, show
from playwright.sync_api import Browser, BrowserContext, Page, expect

from holdfast import Agent, tool
from holdfast.agents import Hooks, Validator
from holdfast.bridge.access.pairing import Pairing, pair_link
from holdfast.bridge.access.tokens import Tokens
from holdfast.bridge.sessions.frames import exact
from holdfast.events import Correction
from holdfast.providers import Reply, ToolCall
from holdfast.sessions import Session


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


def approvals(served: Served, session: str, *calls: tuple[str, dict[str, Any]]) -> Future[list[str]]:
    """Ask for these calls, one after another."""

    async def ask() -> list[str]:
        async with Session.open(session, store=served.bridge.hub.store) as opened:
            outcomes = []
            for tool, params in calls:
                details = {"tool": tool, "arguments": json.dumps(params)}
                found = await opened.approval(f"Run {tool}(…)?", details=details, expires=60, call=f"c-{tool}")
                outcomes.append(found.outcome)
            return outcomes

    return asyncio.run_coroutine_threadsafe(ask(), served.loop)


def test_a_click_is_no_answer_to_the_question_that_came_just_before_it(served: Served, context: BrowserContext) -> None:
    """A double click, or a finger on its way while somebody else answers, must not approve what nobody has read."""
    tab = opened(context, served.session("double"))
    asked = approvals(served, "double", ("read", {"path": "a"}), ("delete", {"path": "/srv"}))
    expect(tab.locator(".question h2")).to_contain_text("Approve read?")
    button = tab.get_by_role("button", name="Approve")
    expect(button).to_be_enabled()
    place = button.bounding_box()
    assert place is not None
    tab.mouse.click(place["x"] + 20, place["y"] + 10, click_count=1)
    expect(tab.locator(".question h2")).to_contain_text("Approve delete?")
    tab.mouse.click(place["x"] + 20, place["y"] + 10, click_count=2)
    # It has come too soon. A moment later the button can be used.
    expect(button).to_be_enabled()
    tab.get_by_role("button", name="Reject").click()
    assert asked.result(10) == ["accepted", "rejected"]


def test_a_number_is_shown_as_it_runs_and_not_as_javascript_rounds_it(served: Served, context: BrowserContext) -> None:
    tab = opened(context, served.session("numbers"))
    params = {"account": 12345678901234567, "ids": [9007199254740993, -9007199254740993], "note": "a\u202eb"}
    asked = approvals(served, "numbers", ("pay", params))
    shown = tab.locator(".question pre code")
    for number in ("12345678901234567", "9007199254740993", "-9007199254740993"):
        expect(shown).to_contain_text(number)
    expect(shown).to_contain_text("a⟨U+202E⟩b")
    tab.get_by_role("button", name="Approve").click()
    assert asked.result(10) == ["accepted"]
    call = {"tool_call_id": "c-pay", "tool": "pay", "params": params}
    served.publish("numbers", ("tool_call", call | exact(params)))
    expect(tab.locator("details.tool .brief")).to_contain_text("a")
    tab.locator("details.tool summary").click()
    expect(tab.locator("details.tool pre code")).to_contain_text("12345678901234567")


def test_whoever_approves_comes_past_all_that_is_asked(served: Served, context: BrowserContext) -> None:
    """The buttons stand at the end of the arguments, which do not scroll by themselves."""
    tab = opened(context, served.session("long"))
    lines = [f"echo step {number}" for number in range(60)]
    asked = approvals(served, "long", ("bash", {"command": "\n".join([*lines, "rm -rf /srv"])}))
    approve = tab.get_by_role("button", name="Approve")
    expect(approve).to_be_enabled()
    expect(approve).not_to_be_in_viewport()
    assert tab.locator(".question pre").evaluate("pre => pre.scrollHeight - pre.clientHeight") < 2
    approve.click()
    assert asked.result(10) == ["accepted"]


def test_what_waits_is_not_sent_by_whoever_signs_in_next(served: Served, context: BrowserContext) -> None:
    tab = opened(context, served.session("shared"))
    context.set_offline(True)
    # An open socket may still carry the message while the browser goes offline.
    expect(tab.locator("#status-text")).to_have_text("Offline")
    say(tab, "for Ada's eyes")
    expect(tab.locator("#pending")).to_contain_text("for Ada's eyes")
    tab.locator("#forget").click()
    # It is asked for once more, and kept until then.
    expect(tab.locator("#forget")).to_have_text("Forget, and discard what is not sent (1)")
    assert tab.evaluate("Object.keys(localStorage).some((key) => key.startsWith('holdfast.outbox.'))")
    tab.locator("#forget").click()
    expect(tab.locator("#sign-in")).to_be_visible()
    expect(tab.locator("#forget")).to_have_text("Forget this device")
    assert not tab.evaluate("Object.keys(localStorage).some((key) => key.startsWith('holdfast.outbox.'))")
    context.set_offline(False)
    next_person = opened(context, f"{served.bridge.url}/#token=token&session=shared")
    say(next_person, "hello")
    expect(next_person.locator("#log")).to_contain_text("hello")
    assert served.stored("shared") == ["hello"]


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
    expect(tab.locator(".recovery .line")).to_have_text(["Retrying... (2/3) "])
    assert tab.locator(".recovery button").all_text_contents() == ["Retry now", "Use the fallback", "Cancel"]
    served.publish("recovery", ("recovery", {"event": {}, "line": "Recovered after 2 retries", "run": "r", "can": []}))
    expect(tab.locator(".recovery button")).to_have_count(0)


def in_seconds(seconds: float) -> str:
    return (datetime.now(UTC) + timedelta(seconds=seconds)).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def test_XB11_a_retry_shows_its_reason_and_counts_down(served: Served, tab: Page) -> None:
    show(tab, served.session("countdown"))
    retry = {"event": {}, "line": "Retrying... (2/3)", "reason": "The AI service is overloaded.", "run": "r"}
    served.publish("countdown", ("recovery", retry | {"can": ["retry_now"], "until": in_seconds(40)}))
    shown = tab.locator(".recovery")
    expect(shown.locator(".reason")).to_have_text("The AI service is overloaded.")
    expect(shown.locator(".countdown")).to_have_text(re.compile(r"^Next attempt in (39|40|41) s\.$"))
    first = shown.locator(".countdown").inner_text()
    expect(shown.locator(".countdown")).not_to_have_text(first)
    # The next one replaces it; and one that is over counts nothing.
    served.publish("countdown", ("recovery", {"event": {}, "line": "Recovered after 1 retry", "run": "r", "can": []}))
    expect(shown).to_have_text("Recovered after 1 retry ")
    assert tab.locator(".recovery button").count() == 0


def test_XB11_commands_are_gone_when_the_session_is_idle_again(served: Served, context: BrowserContext) -> None:
    address = served.session("stale")
    retry = {"event": {}, "line": "Retrying... (2/3)", "run": "r", "can": ["retry_now"], "until": in_seconds(-60)}
    served.publish("stale", ("recovery", retry))
    tab = opened(context, address)
    expect(tab.locator("#log[data-loaded]")).to_be_attached()
    expect(tab.locator(".recovery .what")).to_have_text("Retrying... (2/3)")
    expect(tab.locator(".recovery button")).to_have_count(0)


def test_XB11_answers_show_when_they_ended_and_what_they_cost(served: Served, tab: Page) -> None:
    show(tab, served.session("cost"))
    say(tab, "hello")
    usage = {"input": 1200, "cached": 34, "output": 56}
    served.publish(
        "cost",
        ("stream_start", {"stream_id": "a"}),
        chunk("Hi."),
        ("stream_end", {"stream_id": "a", "usage": usage, "usd": 0.0123}),
    )
    expect(tab.locator(".agent .meta")).to_have_text(re.compile(r"\d\d.* · 1,234 tokens in, 56 out · \$0\.01"))
    assert tab.locator(".agent .meta time").get_attribute("datetime")
    expect(tab.locator(".meta.mine time")).to_be_visible()


def test_what_is_not_known_of_an_answer_and_a_title_that_is_a_sentence_are_shown_as_they_are(
    served: Served, tab: Page
) -> None:
    show(tab, served.session("plain"))
    note = {"notification_id": "n", "notification_type": "agent"}
    served.publish(
        "plain",
        *(("stream_start", {"stream_id": "a"}), chunk("Hi.")),
        ("stream_end", {"stream_id": "a", "usage": {"requests": 1}}),
        ("notification", note | {"title": "The agent failed.", "body": "Look at line 3."}),
        ("notification", note | {"title": "Tests", "body": "214 passed"}),
    )
    expect(tab.locator(".agent .meta")).to_have_text(re.compile(r"^[\d: APM]+$"))
    expect(tab.locator("#log .note")).to_have_text(["The agent failed. Look at line 3.", "Tests: 214 passed"])


def test_XB11_what_waits_for_a_person_is_first_in_the_list(served: Served, context: BrowserContext) -> None:
    for name in ("list-a", "list-b", "list-c"):
        served.session(name)
    tab = opened(context, f"{served.bridge.url}/#token=token&session=list-a")
    entry = tab.locator("#sessions button")
    other = opened(context, f"{served.bridge.url}/#token=token&session=list-b")
    say(other, "work for ever")
    expect(entry.filter(has_text="list-b").locator(".state")).to_have_text("Working")
    expect(entry.first).to_contain_text("list-b")
    tab.evaluate("document.querySelector('#sessions button').focus()")

    async def ask() -> bool:
        async with Session.open("list-c", store=served.bridge.hub.store) as session:
            return await session.approve("Deploy?", expires=60)

    third = opened(context, f"{served.bridge.url}/#token=token&session=list-c")
    asked = asyncio.run_coroutine_threadsafe(ask(), served.loop)
    expect(entry.first).to_contain_text("list-c")
    expect(entry.first.locator(".state")).to_have_text("Needs you")
    # The order changes, and the focus stays on its session.
    assert "list-b" in tab.evaluate("document.activeElement.textContent")
    third.get_by_role("button", name="Approve").click()
    assert asked.result(10) is True
    expect(entry.filter(has_text="list-c").locator(".state")).not_to_have_text("Needs you")
    other.locator("#stop").click()


def test_XB11_a_session_is_renamed_for_everybody(served: Served, context: BrowserContext) -> None:
    address = served.session("rename")
    tabs = [opened(context, address), opened(context, address)]
    tabs[0].get_by_label("More about this session").click()
    tabs[0].get_by_role("button", name="Rename…").click()
    tabs[0].get_by_label("Title").fill("Release <42>")
    tabs[0].get_by_role("button", name="Rename", exact=True).click()
    for tab in tabs:
        expect(tab.locator("#title")).to_have_text("Release <42>")
        expect(tab.locator("#log .note")).to_have_text("Renamed to “Release <42>” by Ada")
        expect(tab.locator("#sessions button", has_text="Release <42>")).to_be_visible()
    # It is stored, not only shown.
    tabs[0].reload()
    expect(tabs[0].locator("#title")).to_have_text("Release <42>")


def test_XB11_sessions_are_found_by_title_and_id(served: Served, context: BrowserContext) -> None:
    for name in ("search-one", "search-two"):
        served.session(name)
    served.rename("search-two", "Quarterly figures")
    tab = opened(context, f"{served.bridge.url}/#token=token")
    entry = tab.locator("#sessions button")
    for wanted, found in (
        ("QUARTERLY", "Quarterly figures"),
        ("search-t", "Quarterly figures"),
        ("search-o", "search-one"),
    ):
        tab.get_by_label("Search in the sessions").fill(wanted)
        expect(entry).to_have_count(1)
        expect(entry.locator(".name")).to_have_text(found)
    tab.get_by_label("Search in the sessions").fill("no such")
    expect(tab.locator("#no-sessions")).to_have_text("No session fits.")


def test_XB11_a_session_is_closed_by_a_person(served: Served, context: BrowserContext) -> None:
    address = served.session("ending")
    tabs = [opened(context, address), opened(context, address)]
    tabs[0].get_by_label("More about this session").click()
    tabs[0].get_by_role("button", name="Close…").click()
    tabs[0].get_by_role("button", name="Close the session").click()
    for tab in tabs:
        expect(tab.locator("#log .note")).to_have_text(["The session is closed."])
        expect(tab.locator("#composer")).to_be_hidden()
    tabs[1].goto(f"{served.bridge.url}/#")
    expect(tabs[1].locator("#sessions button", has_text="ending")).to_have_count(0)
    tabs[1].get_by_label("Search in the sessions").fill("ending")
    expect(tabs[1].locator("#sessions button .state")).to_have_text("Closed")


def test_S0_4_a_session_that_ends_with_an_error_says_so(served: Served, tab: Page) -> None:
    show(tab, served.session("failing"))
    expect(tab.locator("#composer")).to_be_visible()

    async def fail() -> None:
        async with Session.open("failing", store=served.bridge.hub.store) as session:
            await session.fail("failed: ACTOR_MAX_RESTARTS")

    served.do(fail)
    expect(tab.locator("#log .note")).to_have_text(["The session has ended with an error."])
    expect(tab.locator("#composer")).to_be_hidden()


def test_XB11_hooks_name_their_tool(served: Served, tab: Page) -> None:
    show(tab, served.session("hooks"))
    served.publish(
        "hooks",
        ("claude_event", {"event": "PreToolUse", "data": {"tool": "Bash", "params": {"command": "make test"}}}),
        ("claude_event", {"event": "PostToolUse", "data": {"tool_name": "Read", "tool_input": {"path": "a.py"}}}),
        ("claude_event", {"event": "Notification", "data": {"message": "Waiting for you"}}),
    )
    expect(tab.locator("#log .hook")).to_have_text(
        ["PreToolUse Bash make test", "PostToolUse Read a.py", "Notification Waiting for you"]
    )


def test_N1_10_a_call_has_the_badges_of_its_validators(context: BrowserContext) -> None:
    def style(checked: Any) -> Any:
        before = checked.call.arguments
        if before["text"] == "bad":
            return "it cannot be mended"
        return Correction(before=before, after=before | {"text": "x = 1"})

    @tool(effect="idempotent")
    def write_text(path: str, text: str) -> str:
        return "written"

    calls = [ToolCall(id=text, name="write_text", arguments={"path": "a.py", "text": text}) for text in ("x=1", "bad")]
    checks = [
        Validator(name="style", check=style, on="PreToolUse"),
        Validator(name="late", check=lambda _: None, on="PreToolUse"),
        Validator(name="length", check=lambda _: None, on="Stop"),
    ]
    model, hooks = Model(Reply(calls=tuple(calls)), Reply(text="Done.")), Hooks(validators=checks)
    served = Served(agent=lambda runtime: Agent("writer", model, [write_text], hooks=hooks, runtime=runtime))
    try:
        tab = opened(context, served.session("validated"))
        say(tab, "write two files")
        for is_later in (False, True):
            if is_later:
                # Whoever comes later sees the same.
                tab.reload()
            expect(tab.locator("#log .agent .text").last).to_have_text("Done.")
            call = tab.locator("#log li", has=tab.locator("details.tool"))
            expect(call.nth(0).locator(".check")).to_have_text(["✎ style corrected", "✓ late passed"])
            expect(call.nth(1).locator(".check")).to_have_text(
                ["✗ style failed: it cannot be mended", "– late skipped"]
            )
            expect(tab.locator("#log li:not(:has(details)) .check")).to_have_text(["✓ length passed"])
            expect(tab.locator("#log .recovery")).to_have_count(0)
    finally:
        served.close()


def test_XB11_a_call_shows_its_arguments_once_and_who_approved_it(served: Served, tab: Page) -> None:
    show(tab, served.session("decided"))
    call = {"tool_call_id": "c1", "tool": "bash", "params": {"command": "git push"}}
    served.publish("decided", ("tool_call", call), ("approval_required", call | {"question_id": "q1"}))
    expect(tab.locator(".question pre")).to_have_text("git push")
    assert tab.locator(".question").inner_text().count("git push") == 1
    served.publish(
        "decided",
        ("approval_resolved", {"tool_call_id": "c1", "question_id": "q1", "decision": "approved", "by": "Ada"}),
    )
    expect(tab.locator("#log .decided")).to_have_text("Approved by Ada")
    assert tab.locator("#log").inner_text().count("git push") == 1


def test_a_retry_of_a_real_agent_is_made_now_on_command(served: Served, tab: Page) -> None:
    show(tab, served.session("retry"))
    say(tab, "fail once")
    expect(tab.locator(".recovery .what")).to_have_text("Retrying... (2/3)")
    expect(tab.locator(".recovery .reason")).to_have_text("The connection broke off. Trying again.")
    # The agent waits for 600 s. Then the time of day says more than a number.
    expect(tab.locator(".recovery .countdown")).to_have_text(re.compile(r"Next attempt at \d"))
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
    assert page.evaluate("document.documentElement.scrollWidth") == width
    unnamed = "[...document.querySelectorAll('button,input,textarea')].filter(e => e.checkVisibility() && !(e.innerText?.trim() || e.ariaLabel || e.labels?.length))"
    assert page.evaluate(f"{unnamed}.map(e => e.outerHTML)") == []
    small = "[...document.querySelectorAll('.tray button, .tray textarea, .bar button, .bar summary')].filter(e => e.checkVisibility() && e.offsetHeight < 44)"
    assert page.evaluate(f"{small}.map(e => e.outerHTML)") == []
    context.close()
