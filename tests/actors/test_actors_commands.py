"""Commands as children: real processes that are restarted, and end with their supervisor."""

from __future__ import annotations

import asyncio
import os
import signal
import sys

import pytest

from holdfast.actors import Child, GaveUpError, Supervisor
from holdfast.tools import run as command
from holdfast.tools.process_error import ProcessError

SLEEPS = [
    sys.executable,
    "-c",
    "import os, sys, time; open(sys.argv[1], 'a').write(f'{os.getpid()}\\n'); time.sleep(60)",
]


async def pids(path, count):
    """Wait until the program was started `count` times, and return the ids of its processes."""
    for _ in range(1_000):
        found = path.read_text().split() if path.exists() else []
        if len(found) >= count:
            return [int(pid) for pid in found]
        await asyncio.sleep(0.01)
    raise AssertionError(f"{path} has {found}")


def is_alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_command_that_is_killed_is_restarted_and_ends_with_its_supervisor(tmp_path):
    async def main():
        async with Supervisor("s", children=[Child([*SLEEPS, str(tmp_path / "pids")], id="sleeper")]) as supervisor:
            (first,) = await pids(tmp_path / "pids", 1)
            os.kill(first, signal.SIGKILL)
            _, second = await pids(tmp_path / "pids", 2)
            (info,) = await supervisor.which_children()
            assert (info.id, info.incarnation) == ("sleeper", 2)
        assert not is_alive(second)

    asyncio.run(main())


def test_a_command_that_fails_too_often_is_given_up_with_its_output():
    async def main():
        fails = command([sys.executable, "-c", "import sys; sys.exit('no such table')"])
        async with Supervisor("s", max_restarts=1, children=[Child(fails)]):
            await asyncio.sleep(60)

    with pytest.raises(GaveUpError) as caught:
        asyncio.run(main())
    cause = caught.value.__cause__
    assert isinstance(cause, ProcessError)
    assert "no such table" in str(cause.fault.context) + cause.fault.message


def test_a_command_that_is_not_there_is_given_up():
    async def main():
        async with Supervisor("s", max_restarts=1, children=[Child(["holdfast-no-such-program"])]):
            await asyncio.sleep(60)

    with pytest.raises(GaveUpError, match="s/holdfast-no-such-program"):
        asyncio.run(main())
