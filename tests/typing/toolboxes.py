"""Programs, tools and toolboxes keep their types. Checked, never run."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, assert_type

from holdfast import Outcome, Partial, Tries, tool
from holdfast.tools import (
    Answer,
    Chunk,
    Finished,
    Process,
    Tool,
    Toolbox,
    bash,
    collect,
    http_tool,
    process_tool,
    read_file,
    run,
    web_fetch,
)


@tool(effect="read", timeout=3, retry=Tries(attempts=2), codes={"TOOL_TIMEOUT": True}, output_cap=1_000)
async def weather(city: str, days: int = 1) -> str:
    return f"{city} {days}"


async def main() -> None:
    assert_type(await run(["git", "status"], timeout=3), Finished)
    async with run(["git", "log"], idle=3, stdin="pipe") as process:
        assert_type(process, Process)
        async for chunk in process:
            assert_type(chunk, Chunk)
        assert_type(process.lines(), AsyncIterator[str])
    # A declared function keeps its type.
    assert_type(await weather("Oslo", days=2), str)
    box = Toolbox([weather, bash("."), read_file("."), web_fetch(["*"]), http_tool("x", "https://example.org")])
    assert_type(process_tool("ls", ["ls"], effect="read"), Tool)
    assert_type(await box.answer("weather", {"city": "Oslo"}), Answer)
    assert_type(await box.outcome("weather"), Outcome[Any])
    assert_type(await collect(weather, ["Oslo"]), list[Any] | Partial)
    run("git status")  # a text is a sequence of texts for the type checker; `run` itself says what is wrong
    run(["x"], timeout="3")  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
    run(["x"], time_out=3)  # type: ignore[call-arg] # pyright: ignore[reportCallIssue]
    process_tool("ls", ["ls"])  # type: ignore[call-arg] # pyright: ignore[reportCallIssue]
    tool(effect="rad")  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
    tool(effect="read", codes={"TOOL_TIMEOU": True})  # type: ignore[dict-item] # pyright: ignore[reportArgumentType]
