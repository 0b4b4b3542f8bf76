"""The JavaScript client: over real sockets in Node, its types, and the package that npm makes of it."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from bridge_kit import serving
from machine_scripts import node
from test_bridge_agents import Model

import holdfast.bridge
from holdfast import Agent, __version__, tool
from holdfast.bridge import Turn
from holdfast.bridge.http.static import PAGE_PATHS, page_file
from holdfast.providers.messages import Reply, ToolCall

PAGE = Path(holdfast.bridge.__file__).parent / "page"
TESTS = Path(__file__).parent / "javascript"


def run_node(*arguments: str, agent: Any = None) -> tuple[int | None, str]:
    """Run Node beside a bridge. Node 20 has a WebSocket behind an option; later ones have it without."""
    program = node()

    async def work() -> tuple[int | None, str]:
        async with serving(agent) as bridge:
            process = await asyncio.create_subprocess_exec(
                *(program, "--experimental-websocket"),
                *(each.replace("ws://127.0.0.1:3000/ws", bridge.ws_url) for each in arguments),
                env={**os.environ, "BRIDGE_URL": bridge.ws_url, "NODE_NO_WARNINGS": "1"},
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
            )
            try:
                output, _ = await asyncio.wait_for(process.communicate(), 60)
            except TimeoutError:
                process.kill()
                raise
            return process.returncode, output.decode()

    return asyncio.run(work())


def test_the_client_in_node_loses_and_doubles_nothing(caplog: pytest.LogCaptureFixture) -> None:
    code, output = run_node("--test", "--test-reporter=tap", str(TESTS / "client.test.mjs"))
    assert code == 0, output
    assert re.search(r"^# pass 1[0-9]$", output, re.MULTILINE), output
    assert [record.getMessage() for record in caplog.records if record.name == "asyncio"] == []


def test_the_example_of_the_how_to_page_runs() -> None:
    page = Path(__file__).parents[2] / "docs" / "how-to" / "drive-from-a-browser.md"
    (example,) = re.findall(r"```js\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    program = example.replace('"holdfast-client"', f'"{PAGE / "holdfast.js"}"').replace('"…"', '"token"')

    async def agent(turn: Turn) -> str:
        return "All tests pass." if await turn.approve("Run the tests?") else "Then not."

    code, output = run_node("--input-type=module", "--eval", program, agent=agent)
    assert (code, output) == (0, "All tests pass.\n")


def test_XB4_approve_answers_the_question_that_is_open_and_not_an_old_one() -> None:
    ran = list[str]()

    @tool(effect="unsafe")
    async def deploy(version: str) -> str:
        ran.append(version)
        return "live"

    # The provider gives each first call the same id.
    calls = [ToolCall(id="call_0", name="deploy", arguments={"version": each}) for each in ("1", "2")]
    replies = [each for call in calls for each in (Reply(calls=(call,), stop="tools"), Reply(text="done"))]
    program = f"""
        import {{ Client }} from "{PAGE / "holdfast.js"}";
        const client = new Client("ws://127.0.0.1:3000/ws", {{ token: "token" }});
        const session = client.join("s", {{ create: true }});
        const decisions = [true, false];
        for (const isApproved of decisions) {{
          session.send("go");
          for await (const {{ type, payload }} of session) {{
            if (type === "approval_required") await session.approve(payload.tool_call_id, isApproved);
            if (type === "tool_result" || type === "tool_error") console.log(type);
            if (type === "session_event" && payload.event === "turn_ended") break;
          }}
        }}
        client.close();
    """
    code, output = run_node("--input-type=module", "--eval", program, agent=Agent("d", Model(*replies), [deploy]))
    assert (code, output) == (0, "tool_result\ntool_error\n")
    assert ran == ["1"]


def test_npm_packs_the_module_its_types_and_nothing_of_the_page() -> None:
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip(
            "npm is missing: the package of the JavaScript client is not made, SKIPPED (Debian: apt-get install npm)"
        )
    command = [npm, "pack", "--dry-run", "--json", "--offline"]
    done = subprocess.run(command, cwd=PAGE, capture_output=True, text=True, timeout=60, check=True)
    (packed,) = json.loads(done.stdout)
    assert {each["path"] for each in packed["files"]} == {
        "README.md",
        "holdfast.d.ts",
        "holdfast.js",
        "machine.js",
        "package.json",
    }
    assert packed["version"] == __version__.replace(".dev", "-dev.")


def test_the_module_has_no_dependency() -> None:
    for name, needs in (("holdfast.js", {"./machine.js"}), ("machine.js", set[str]())):
        text = (PAGE / name).read_text(encoding="utf-8")
        assert set(re.findall(r'^(?:import|export) .*from "([^"]+)"', text, re.MULTILINE)) == needs
        assert "require(" not in text


def test_the_types_name_everything_that_is_exported() -> None:
    program = f'import * as m from "{PAGE / "holdfast.js"}"; console.log(JSON.stringify(Object.keys(m)))'
    done = subprocess.run(
        [node(), "--input-type=module", "--eval", program], capture_output=True, text=True, timeout=30, check=True
    )
    types = (PAGE / "holdfast.d.ts").read_text(encoding="utf-8")
    for name in json.loads(done.stdout):
        assert re.search(rf"export (?:class|const|function) {name}\b", types), f"{name} has no type"


def test_every_file_of_the_page_is_served_with_a_policy_that_allows_no_inline_code() -> None:
    for path in PAGE_PATHS:
        found = page_file(path, "bridge.example:3000")
        assert found is not None
        policy = found.headers["content-security-policy"]
        assert "unsafe" not in policy
        assert "require-trusted-types-for 'script'" in policy
        assert "connect-src 'self' ws://bridge.example:3000 wss://bridge.example:3000;" in policy
        assert found.headers["x-content-type-options"] == "nosniff"
        assert found.headers["cache-control"] == "no-store"


@pytest.mark.parametrize("host", ["evil.example; script-src *", "a b", "", "x\r\ny", "[::1", "'unsafe-inline'"])
def test_a_host_header_cannot_change_the_policy(host: str) -> None:
    found = page_file("/", host)
    assert found is not None
    assert "connect-src 'self';" in found.headers["content-security-policy"]


@pytest.mark.parametrize(
    "path", ["/../server.py", "/page.js/", "/README.md", "/package.json", "//page.js", "/%2e%2e/tokens.py", ""]
)
def test_nothing_else_is_served(path: str) -> None:
    assert page_file(path) is None


def test_the_page_has_no_inline_script_or_style() -> None:
    html = (PAGE / "index.html").read_text(encoding="utf-8")
    assert re.search(r"<script(?![^>]*\bsrc=)|<style|\sstyle=|\son[a-z]+=|javascript:", html) is None
    for name in ("page.js", "log_view.js", "markdown.js", "question_view.js"):
        assert (
            re.search(
                r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(",
                (PAGE / name).read_text(encoding="utf-8"),
            )
            is None
        )


def _luminance(colour: str) -> float:
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
@pytest.mark.parametrize(
    ("front", "back"),
    [
        *((front, back) for front in ("ink", "quiet", "accent") for back in ("paper", "surface")),
        *(("ink", back) for back in ("mine", "sunken")),
        *(("quiet", "sunken"), ("accent-ink", "accent"), ("warn", "warn-paper"), ("bad", "bad-paper"), ("bad", "paper"), ("warn", "surface")),
    ],
)  # fmt: skip
def test_text_can_be_read_on_its_background(scheme: int, front: str, back: str) -> None:
    """A contrast of 4.5, as WCAG AA wants it for small text."""
    css = (PAGE / "page.css").read_text(encoding="utf-8")
    blocks = re.findall(r":root \{(.*?)\n\s*\}", css, re.DOTALL)
    colours = dict(re.findall(r"--([a-z-]+): (#[0-9a-f]{6});", blocks[scheme]))
    lighter, darker = sorted((_luminance(colours[front]), _luminance(colours[back])), reverse=True)
    assert (lighter + 0.05) / (darker + 0.05) >= 4.5
