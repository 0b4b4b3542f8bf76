"""A fork of a program that ends, however it ends, leaves the programs of its parent alone."""

from __future__ import annotations

import subprocess
import sys

import pytest

TOOL = """
import asyncio, os, sys
from holdfast.tools import run

async def main():
    {enter}
        await asyncio.sleep(0.3)
        child = os.fork()
        if child == 0:
            {leave}
        os.waitpid(child, 0)
        await asyncio.sleep(0.2)
        print({result}, flush=True)

asyncio.run(main())
"""
BLOCK = 'async with run(["bash", "-c", "sleep 1.5; echo done"]) as process:'


@pytest.mark.parametrize(
    "leave", ["sys.exit(0)", "raise KeyError('x')", "return", "await process.stop()", "process.kill()"]
)
def test_a_fork_that_leaves_the_block_of_a_program_does_not_end_the_program(leave):
    leaving = leave if leave.startswith(("sys", "raise", "return")) else f"{leave}; os._exit(0)"
    code = TOOL.format(enter=BLOCK, leave=leaving, result="(await process.finished()).stdout.strip()")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=False)
    assert done.stdout == "done\n", done.stderr
