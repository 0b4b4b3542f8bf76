"""Commands as children: real processes that are restarted, and end with their supervisor."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time

import pytest

from holdfast import Runtime
from holdfast.actors import Child, GaveUpError, Killed, Place, Shutdown, Supervisor
from holdfast.actors.host import host_for
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


IGNORES_TERM = """
import os, signal, sys, time
def note(*_): open(sys.argv[2], 'a').write('TERM')
signal.signal(signal.SIGTERM, note)
open(sys.argv[1], 'a').write(f'{os.getpid()}\\n')
while True: time.sleep(1)
"""


def test_A16_a_brutal_stop_kills_a_command_at_once_without_sigterm(tmp_path):
    async def main():
        program = [sys.executable, "-c", IGNORES_TERM, str(tmp_path / "pids"), str(tmp_path / "signals")]
        async with Supervisor("s", children=[Child(program, id="stubborn", shutdown="brutal")]) as supervisor:
            (pid,) = await pids(tmp_path / "pids", 1)
            (info,) = await supervisor.which_children()
            began = time.monotonic()
        took = time.monotonic() - began
        return pid, info.ref.exit, took

    pid, how, took = asyncio.run(main())
    assert took < 2
    assert not is_alive(pid)
    assert not (tmp_path / "signals").exists()
    assert isinstance(how, Shutdown)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV])
def test_a_command_that_a_signal_ended_was_killed(tmp_path, number):
    async def main():
        child = Child([*SLEEPS, str(tmp_path / "pids")], restart="temporary")
        async with Supervisor("s") as supervisor:
            handle = await supervisor.start(child)
            (pid,) = await pids(tmp_path / "pids", 1)
            os.kill(pid, number)
            return await handle.wait()

    assert asyncio.run(main()) == Killed(number)


def test_a_command_that_does_not_stop_in_time_is_killed(tmp_path):
    async def main():
        program = [sys.executable, "-c", IGNORES_TERM, str(tmp_path / "pids"), str(tmp_path / "signals")]
        host = host_for(Child(program, id="stubborn"), Place("stubborn", "s/stubborn", Runtime()))
        running = await host.start(1, None)
        (pid,) = await pids(tmp_path / "pids", 1)
        assert await running.stop(Shutdown(), 0.3) is None
        running.kill()
        return pid, await running.exited

    pid, how = asyncio.run(main())
    assert how == Killed(signal.SIGKILL)
    assert (tmp_path / "signals").read_text() == "TERM"
    assert not is_alive(pid)


def test_what_a_killed_command_printed_is_in_the_error_of_the_supervisor():
    async def main():
        fails = command(["bash", "-c", "echo no memory left >&2; kill -9 $$"])
        async with Supervisor("s", max_restarts=0, children=[Child(fails)]):
            await asyncio.sleep(60)

    with pytest.raises(GaveUpError, match="was killed by signal 9") as caught:
        asyncio.run(main())
    assert isinstance(caught.value.__cause__, ProcessError)
    assert "no memory left" in caught.value.__cause__.finished.stderr
