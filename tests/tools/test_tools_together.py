"""Tools with everything else: sessions, budgets, threads, forks, many at once, and a process that is killed."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from living_processes import living

from holdfast import Budget, OutcomeUnknownError, Session, fault_of, recover, tool
from holdfast.tools import ProcessError, Toolbox, bash, process_tool, read_file, run

SEED = 7


def finish(coroutine, seconds=60):
    return asyncio.run(asyncio.wait_for(coroutine, seconds))


# --- sessions ---


def test_a_tool_is_a_step_that_happens_once(tmp_path: Path):
    shell = bash(tmp_path)

    async def main():
        async with Session.open("work", store=f"sqlite:{tmp_path}/work.db") as session:
            return await session.step(shell, command=f"echo x >> {tmp_path}/calls; echo done")

    assert (finish(main()), finish(main())) == ("done\n", "done\n")
    assert (tmp_path / "calls").read_text() == "x\n"


def test_an_unsafe_tool_that_was_cut_by_a_kill_is_outcome_unknown_after_the_restart(tmp_path: Path, token):
    """The process is killed with SIGKILL while its tool runs. The program is run again."""
    program = f"""
import asyncio
from holdfast import Session, OutcomeUnknownError
from holdfast.tools import bash

shell = bash({str(tmp_path)!r}, guarded=True)

async def main():
    async with Session.open("work", store="sqlite:{tmp_path}/work.db") as session:
        try:
            await session.step(shell, command="echo x >> {tmp_path}/calls; sleep 5")
        except OutcomeUnknownError as error:
            print("unknown", error.fault.code)

asyncio.run(main())
"""
    first = subprocess.Popen([sys.executable, "-c", program])
    until = time.monotonic() + 30
    while not (tmp_path / "calls").exists():
        assert time.monotonic() < until
        time.sleep(0.02)
    first.kill()
    first.wait()
    again = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert again.stdout == "unknown TOOL_OUTCOME_UNKNOWN\n"
    assert (tmp_path / "calls").read_text() == "x\n"


ESCAPES = "setsid sleep 60 & (env -i HOME=$HOLDFAST_LEAK_CHECK setsid sleep 60 &) ; sleep 60 & echo up; wait"
# Where the output is read to its end, it goes to that of the program itself.
ALOUD = ESCAPES.replace("echo up", "echo up >/proc/$PPID/fd/1")
STARTS = {
    "run": f"async with run(['bash', '-c', {ESCAPES!r}]) as process:\n        async for line in process.lines(): print(line, flush=True)",
    "bash": f"await Toolbox([bash()]).answer('bash', {{'command': {ALOUD!r}}})",
    "process tool": f"await Toolbox([process_tool('go', ['bash', '-c', {ALOUD!r}], effect='read')]).answer('go')",
    "actor": f"async with Supervisor() as team:\n        await (await team.start(Escaping)).ask(Escaping.go, {ESCAPES!r})",
    "a bash actor": "async with MessageSupervisor() as team:\n        await team.supervise(lambda: BashActor('b'))\n"
    f"        await team.send('b', Message(id='1', type='exec', payload={ALOUD!r}))",
}
IMPORTS = """
import asyncio, os, subprocess
from holdfast.actors import Actor, BashActor, Message, MessageSupervisor, Supervisor
from holdfast.tools import Toolbox, bash, process_tool, run

class Escaping(Actor, host="process", timeout=60):
    async def go(self, script: str) -> None:
        # It has no pipe to the program, and prints where the program does.
        with open(f"/proc/{os.getppid()}/fd/1", "w") as out:
            subprocess.Popen(["bash", "-c", script], stdout=out)
        await asyncio.sleep(60)

"""


@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSEGV], ids=["killed", "crashed"])
def test_all_that_a_program_has_started_ends_with_the_process_however_that_dies(token, how, start, tmp_path):
    (tmp_path / "program.py").write_text(
        f"{IMPORTS}async def main():\n    {STARTS[start]}\nif __name__ == '__main__':\n    asyncio.run(main())\n"
    )
    program = [sys.executable, str(tmp_path / "program.py")]
    parent = subprocess.Popen(program, stdout=subprocess.PIPE, text=True)
    assert parent.stdout.readline() == "up\n"
    assert len(living(token)) >= 4
    parent.send_signal(how)
    parent.wait()
    parent.stdout.close()
    until = time.monotonic() + 10
    while living(token) and time.monotonic() < until:
        time.sleep(0.05)
    assert living(token) == []


def _guards_of(owner: str) -> set[str]:
    """Return the guards of a process. Other tests may have some at the same time."""
    found = set()
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            words = path.read_bytes().split(b"\0")
            if b"holdfast-guard" in words and owner.encode() in words:
                found.add(path.parent.name)
    return found


def test_a_process_that_ends_in_order_has_no_guard_left_and_no_child_that_it_did_not_start(token):
    program = (
        "import asyncio, os\nfrom holdfast.tools import run\n"
        "print(asyncio.run(run(['echo', 'hi'])._whole()).stdout, end='')\n"
        "try:\n    os.wait()\nexcept ChildProcessError:\n    print('no children', flush=True)\n"
        "input()\n"
    )
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", program], **pipes) as process:
        assert process.stdout is not None
        assert [process.stdout.readline() for _ in range(2)] == ["hi\n", "no children\n"]
        owner = str(process.pid)
        assert _guards_of(owner)
        process.communicate("\n", timeout=60)
    until = time.monotonic() + 10
    while _guards_of(owner) and time.monotonic() < until:
        time.sleep(0.01)
    assert _guards_of(owner) == set()


def test_a_process_that_closes_all_its_files_keeps_its_programs():
    program = (
        "import asyncio, os\nfrom holdfast.tools import run\n"
        "async def main():\n"
        "    async with run(['true']): pass\n"
        "    kept = {int(name) for name in os.listdir('/proc/self/fd')}\n"
        "    async with run(['bash', '-c', 'echo up; sleep 2; echo done'], idle=10) as process:\n"
        "        async for line in process.lines():\n"
        "            print(line, flush=True)\n"
        "            for one in kept - {0, 1, 2}:\n"
        "                if os.path.exists(f'/proc/self/fd/{one}') and 'pipe' in os.readlink(f'/proc/self/fd/{one}'): os.close(one)\n"
        "asyncio.run(main())"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert ended.stdout == "up\ndone\n", ended.stderr


def test_a_program_that_may_be_left_stays_when_the_process_ends(token):
    program = (
        "import asyncio\nfrom holdfast.tools import run\n"
        "asyncio.run(run(['bash', '-c', 'sleep 60 >/dev/null 2>&1 &'], leftovers='leave')._whole())\n"
        "asyncio.run(run(['true'])._whole())\n"
        "import os, signal; os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=False, timeout=60)
    time.sleep(2)  # the guard's time
    (left,) = living(token)
    os.kill(int(left.split()[0]), signal.SIGKILL)


def test_a_forked_child_does_not_keep_the_guard_from_its_work(token):
    program = (
        "import asyncio, os, signal, time\nfrom holdfast.tools import run\n"
        "async def main():\n"
        f"    async with run(['bash', '-c', {ESCAPES!r}]) as process:\n"
        "        async for line in process.lines():\n"
        "            if os.fork() == 0: time.sleep(3); os._exit(0)\n"
        "            os.kill(os.getpid(), signal.SIGKILL)\n"
        "asyncio.run(main())"
    )
    began = time.monotonic()
    subprocess.run([sys.executable, "-c", program], check=False, timeout=60, env={**os.environ})
    until = began + 20
    while [each for each in living(token) if "sleep" in each] and time.monotonic() < until:
        time.sleep(0.02)
    assert not [each for each in living(token) if "sleep\\x0060" in each]
    while living(token) and time.monotonic() < until:
        time.sleep(0.02)


# --- budgets, recoveries, blocks ---


def test_a_budget_of_seconds_holds_for_programs_functions_and_threads(tmp_path: Path, token):
    release = threading.Event()

    @tool(effect="read")
    def blocks() -> None:
        release.wait(5)

    @tool(effect="read")
    async def waits() -> None:
        await asyncio.sleep(60)

    box = Toolbox([blocks, waits, process_tool("sleeps", ["sleep", "60"], effect="read")])

    async def main():
        codes = []
        for name in ("blocks", "waits", "sleeps"):
            began = time.monotonic()
            with Budget(seconds=0.5):
                ended = await box.outcome(name)
            assert time.monotonic() - began < 2
            codes.append(ended.fault.code)
        return codes

    codes = finish(main())
    release.set()
    assert set(codes) <= {"SYS_DEADLINE_EXCEEDED", "TOOL_TIMEOUT"}
    assert living(token) == []


def test_attempts_of_a_budget_are_charged_by_tool_calls():
    box = Toolbox([process_tool("ok", ["true"], effect="read")])

    async def main():
        with Budget(attempts=2):
            return [(await box.outcome("ok")).ok for _ in range(3)]

    assert finish(main()) == [True, True, False]


def test_a_recovery_around_a_toolbox_does_not_multiply_the_attempts(tmp_path: Path):
    script = f"echo x >> {tmp_path}/calls; echo 'Connection refused' >&2; exit 1"
    box = Toolbox([process_tool("net", ["bash", "-c", script], effect="read")])

    async def main():
        @recover("agent:outer", effect="read")
        async def outer():
            return await box.call("net")

        with pytest.raises(ProcessError):
            await outer()

    finish(main())
    assert (tmp_path / "calls").read_text().count("x") == 3


# --- threads and loops ---


def test_programs_run_in_loops_of_several_threads_at_once():
    results: list[str] = []

    def work(number: int) -> None:
        results.append(asyncio.run(_echo(number)))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert sorted(results) == ["0\n", "1\n", "2\n", "3\n"]


async def _echo(number: int) -> str:
    return (await run(["echo", str(number)])).stdout


def test_one_toolbox_serves_several_loops(tmp_path: Path):
    (tmp_path / "a").write_text("text")
    box = Toolbox([read_file(tmp_path)])
    assert [finish(box.call("read_file", {"path": "a"})) for _ in range(3)] == ["text"] * 3


def test_tools_work_in_a_forked_child(tmp_path: Path):
    program = (
        "import asyncio, os\nfrom holdfast.tools import run\n"
        "asyncio.run(run(['true'])._whole())\n"
        "pid = os.fork()\n"
        "if pid == 0:\n    ok = asyncio.run(run(['echo', 'hi'])._whole()).stdout == 'hi\\n'\n    os._exit(0 if ok else 9)\n"
        "assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0\n"
    )
    subprocess.run([sys.executable, "-W", "ignore", "-c", program], timeout=60, check=True)


def test_processes_of_others_are_never_touched(token):
    """A child of this process that was not started by us survives all our endings, and so do its pipes."""
    other = subprocess.Popen(["sleep", "30"], start_new_session=True)
    try:
        with pytest.raises(ProcessError):
            finish(_awaited(run(["bash", "-c", "sleep 30 & sleep 30"], timeout=0.2)))
        finish(_awaited(run(["bash", "-c", "setsid sleep 30 >/dev/null 2>&1 & sleep 0.1"])))
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()


async def _awaited(running):
    return await running


# --- chaos: many programs, cancelled and killed at random ---

SCRIPTS = (
    "echo hi",
    "sleep 0.2; echo hi",
    "trap '' TERM; sleep 0.5",
    "setsid sleep 20 >/dev/null 2>&1 & echo left",
    "sleep 20 & echo background",
    "(sleep 20 & sleep 20) & (sleep 20 & wait) & wait",
    "yes",
    "kill -KILL $$",
    "exit 3",
)


async def _storm(programs: int, rng: random.Random) -> dict[str, int]:
    gate = asyncio.Semaphore(12)
    ends: dict[str, int] = {}

    async def one() -> None:
        script, limit, cancel = rng.choice(SCRIPTS), rng.uniform(0.05, 0.6), rng.random() < 0.3
        async with gate:
            task = asyncio.create_task(
                _awaited(run(["bash", "-c", script], timeout=limit, grace=0.2, output_cap=200_000))
            )
            if cancel:
                await asyncio.sleep(rng.uniform(0, 0.3))
                task.cancel()
            try:
                await task
                end = "ok"
            except asyncio.CancelledError:
                end = "cancelled"
            except ProcessError as error:
                end = error.fault.code
        ends[end] = ends.get(end, 0) + 1

    async with asyncio.TaskGroup() as group:
        for _ in range(programs):
            group.create_task(one())
    return ends


@pytest.mark.parametrize(
    "programs", [40, pytest.param(2_000, marks=pytest.mark.soak)], ids=["a sample", "two thousand"]
)
def test_no_process_is_left_after_a_storm_of_programs(programs, token):
    ends = finish(_storm(programs, random.Random(SEED)), 600)
    assert sum(ends.values()) == programs
    assert {"ok", "TOOL_TIMEOUT"} <= set(ends)
    assert set(ends) <= {
        "ok",
        "cancelled",
        "TOOL_TIMEOUT",
        "TOOL_KILLED",
        "TOOL_EXECUTION_FAILED",
        "TOOL_OUTPUT_TOO_LARGE",
    }
    assert living(token) == []


def test_the_fault_of_an_unknown_outcome_is_kept_with_its_output(tmp_path: Path):
    box = Toolbox([bash(tmp_path, timeout=0.3)])

    async def main():
        with pytest.raises(OutcomeUnknownError) as raised:
            await box.call("bash", {"command": "echo half; sleep 30"})
        return fault_of(raised.value)

    fault = finish(main())
    assert fault.partial.payload == {"stdout": "half\n"}
    shown = fault.for_model()["context"]
    assert shown["partial"]["payload"] == {"stdout": "half\n"}
    assert "check before calling again" in shown["advice"]
