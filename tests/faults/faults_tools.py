"""Failures of tools, made by real ones."""

from __future__ import annotations

import asyncio

from holdfast import CommandAgent, Fault, HoldfastError, tool
from holdfast.mcp import Servers
from holdfast.runtime import fault_of
from holdfast.tools import ProcessError, Toolbox, run


def answer_has_another_shape() -> Fault:
    @tool(effect="read", output=list[int])
    def numbers() -> object:
        return {"one": 1}

    return asyncio.run(Toolbox([numbers]).outcome("numbers")).fault


def program_is_stopped() -> Fault:
    async def main() -> Fault:
        async with run(["sleep", "30"]) as process:
            await process.stop()
            try:
                await process.finished()
            except ProcessError as error:
                return fault_of(error)
        raise AssertionError

    return asyncio.run(main())


def server_is_not_registered() -> Fault:
    try:
        Servers()["github"]
    except HoldfastError as error:
        return fault_of(error)
    raise AssertionError


def command_line_agent_fails() -> Fault:
    agent = CommandAgent(["bash", "-c", "echo 'it is odd' >&2; exit 3"])
    return asyncio.run(agent.outcome("hello")).fault
