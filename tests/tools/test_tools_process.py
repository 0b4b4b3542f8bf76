"""Programs: they end with all they have started, their output is bounded, and their failures are classified."""

from __future__ import annotations

import asyncio
import gc
import os
import random
import shutil
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
from living_processes import living

from holdfast import Budget, InvalidError, Kind, OutcomeUnknownError, Policy, fault_of, recover
from holdfast.runtime import secrets
from holdfast.testing import VirtualClock
from holdfast.testing import run as run_virtual
from holdfast.tools import (
    Chunk,
    Finished,
    ProcessError,
    ProcessTimeoutError,
    Toolbox,
    bash,
    process_mark,
    process_tree,
    run,
)
from holdfast.tools import process as process_module
from holdfast.views import response, wire


def finish(coroutine):
    """Run in real time, and fail if a task is left behind."""

    async def main():
        value = await asyncio.wait_for(coroutine, 20)
        assert asyncio.all_tasks() == {asyncio.current_task()}
        return value

    return asyncio.run(main())


def failed(*args, **kwargs) -> ProcessError:
    with pytest.raises(ProcessError) as raised:
        finish(_awaited(run(*args, **kwargs)))
    return raised.value


async def _awaited(running) -> Finished:
    return await running


def python(text: str) -> list[str]:
    return [sys.executable, "-c", text]


def wait_for(condition) -> None:
    until = time.monotonic() + 5
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.01)


# --- the plain case ---


def test_a_program_runs_and_its_output_is_returned():
    finished = finish(_awaited(run(["bash", "-c", "echo out; echo err >&2"])))
    assert (finished.exit_code, finished.stdout, finished.stderr) == (0, "out\n", "err\n")
    assert (finished.truncated, finished.leftovers, finished.signal) == (False, (), "")
    assert finished.took > 0


def test_one_run_object_may_be_awaited_twice_also_at_once():
    async def main():
        running = run(["bash", "-c", "echo $$"])
        first, second = await asyncio.gather(_awaited(running), _awaited(running))
        return first.stdout, second.stdout

    first, second = finish(main())
    assert first != second


def test_input_of_any_size_is_written_and_then_ends():
    finished = finish(_awaited(run(["cat"], input="x" * 500_000)))
    assert len(finished.stdout) == 500_000


def test_a_program_that_does_not_read_its_input_is_no_failure():
    assert finish(_awaited(run(["true"], input="x" * 500_000))).exit_code == 0


def test_standard_input_is_empty_unless_something_is_given():
    assert finish(_awaited(run(["cat"]))).stdout == ""


def test_a_conversation_over_pipes():
    async def main():
        answers = []
        async with run(["cat"], stdin="pipe") as process:
            lines = process.lines()
            for word in ("one\n", "two\n", "x" * 300_000 + "\n"):
                await process.write(word)
                answers.append(await anext(lines))
            process.close_input()
            return answers + [line async for line in lines]

    assert finish(main()) == ["one", "two", "x" * 300_000]


def test_several_writers_wait_and_none_is_forgotten():
    async def main():
        async with run(["bash", "-c", "sleep 0.3; cat | wc -c"], stdin="pipe") as process:
            writers = [asyncio.create_task(process.write("x" * 200_000)) for _ in range(3)]
            await asyncio.sleep(0.05)
            writers[0].cancel()
            await asyncio.gather(*writers[1:])
            process.close_input()
            return (await process.finished()).stdout

    assert finish(main()).strip() == "600000"


def test_what_is_written_without_waiting_is_held_for_the_program_and_counted():
    async def main():
        async with run(["bash", "-c", "read -r _; sleep 0.1; wc -c"], stdin="pipe") as process:
            held = [process.write_soon(b"x" * 200_000) for _ in range(3)]
            assert held[0] < held[1] < held[2] <= 600_000
            process.write_soon("\n12345")
            process.close_input()
            return await process.finished()

    assert finish(main()).stdout.strip() == "5"


def test_input_that_is_closed_while_it_is_written_still_arrives():
    async def main():
        async with run(["bash", "-c", "sleep 0.2; wc -c"], stdin="pipe") as process:
            writing = asyncio.create_task(process.write("x" * 300_000))
            await asyncio.sleep(0.05)
            process.close_input()
            await writing
            return (await process.finished()).stdout

    assert finish(main()).strip() == "300000"


def test_a_writer_does_not_wait_for_a_program_that_has_ended():
    async def main():
        async with run(["sleep", "0.2"], stdin="pipe") as process:
            await process.write("x" * 300_000)
            await process.finished()
            await process.write("more")

    finish(main())


def test_a_second_reader_is_told_so():
    async def main():
        async with run(["sleep", "5"]) as process:
            first = asyncio.create_task(anext(process))
            await asyncio.sleep(0.05)
            with pytest.raises(InvalidError, match="one reader"):
                await anext(process)
            first.cancel()
            await asyncio.gather(first, return_exceptions=True)

    finish(main())


def test_it_runs_in_the_given_directory(tmp_path: Path):
    assert finish(_awaited(run(["pwd"], cwd=tmp_path))).stdout.strip() == str(tmp_path)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"command": "git status"}, "run.command"),
        ({"command": []}, "run.command"),
        ({"command": ["echo", "a\0b"]}, r"run.command\[1\]"),
        ({"command": ["x"], "timeout": 0}, "run.timeout"),
        ({"command": ["x"], "grace": -1}, "run.grace"),
        ({"command": ["x"], "keep": 0}, "run.keep"),
        ({"command": ["x"], "stdin": "tty"}, "run.stdin"),
        ({"command": ["x"], "leftovers": "adopt"}, "run.leftovers"),
        ({"command": ["x"], "input": "y", "stdin": "pipe"}, "run.input"),
        ({"command": ["x"], "time_out": 3}, "did you mean `timeout`"),
    ],
)
def test_wrong_options_are_named(options, named):
    with pytest.raises(InvalidError, match=named):
        run(**options)


# --- it ends as a tree ---


def test_A74_a_program_over_its_time_is_stopped_and_no_process_of_its_group_lives(token):
    error = failed(["bash", "-c", "sleep 30 & sleep 30"], timeout=0.1)
    assert living(token) == []
    fault = error.fault
    assert (fault.code, fault.kind, fault.retryable, fault.maybe_executed) == (
        "TOOL_TIMEOUT",
        Kind.TRANSIENT,
        True,
        True,
    )
    assert isinstance(error, TimeoutError)


def test_FM2_the_timeout_of_a_command_is_transient_and_retryable_in_the_response_view():
    shown = response.write(failed(["sleep", "30"], timeout=0.1).fault)["error"]
    assert (shown["type"], shown["code"], shown["retryable"]) == ("transient", "TIMEOUT", True)


def test_A75_a_background_job_that_holds_the_pipe_does_not_keep_the_result_waiting(token):
    began = time.monotonic()
    finished = finish(_awaited(run(["bash", "-c", "sleep 30 & echo hi; exit 0"])))
    assert time.monotonic() - began < 3
    assert (finished.stdout, len(finished.leftovers)) == ("hi\n", 1)
    assert living(token) == []


def test_A75_a_background_job_may_finish_its_output_in_the_moment_after_the_end():
    finished = finish(_awaited(run(["bash", "-c", "(sleep 0.1; echo late) & echo early"])))
    assert finished.stdout == "early\nlate\n"
    assert finished.leftovers == ()


@pytest.mark.parametrize("ignores", ["", "trap '' TERM;"], ids=["gives in", "ignores SIGTERM"])
def test_a_daemon_that_left_the_group_and_lost_its_parent_is_ended_too(token, ignores):
    script = f'setsid bash -c "{ignores} sleep 30; sleep 30" >/dev/null 2>&1 & sleep 0.2'
    finished = finish(_awaited(run(["bash", "-c", script])))
    assert len(finished.leftovers) >= 1
    assert living(token) == []


def test_a_daemon_with_an_empty_environment_is_found_by_its_parent():
    # Nothing but its command line tells it apart, and other tests sleep at the same time.
    length = f"30.{random.randrange(10**9):09}"
    error = failed(["bash", "-c", f"env -i setsid sleep {length} & wait"], timeout=0.5)
    assert error.fault.code == "TOOL_TIMEOUT"
    wait_for(lambda: not any(length.encode() in line for line in _command_lines()))


def _sleeps(length: str) -> bool:
    return f"sleep\0{length}\0".encode() in _command_lines()


_ESCAPES = "sleep 0.3; env -i setsid sleep {length} >/dev/null 2>&1 &"
"""After a moment, because the mark is set on a program that runs already: a background job with a session of its own, an empty environment and, when its shell ends, no parent."""


def test_a_daemon_that_left_the_group_its_environment_and_its_parent_is_ended_too():
    length = f"30.{random.randrange(10**9):09}"
    finished = finish(_awaited(run(["bash", "-c", f"{_ESCAPES.format(length=length)} sleep 0.3"])))
    assert len(finished.leftovers) == 1
    assert not _sleeps(length)


def test_a_daemon_that_escapes_from_a_command_that_is_stopped_is_ended_too():
    length = f"30.{random.randrange(10**9):09}"
    error = failed(["bash", "-c", f"({_ESCAPES.format(length=length)}) ; exec sleep 30"], timeout=2)
    assert error.fault.code == "TOOL_TIMEOUT"
    assert not _sleeps(length)


def test_a_daemon_that_escapes_from_a_command_inside_a_command_is_ended_with_the_outer_one():
    length = f"30.{random.randrange(10**9):09}"
    inner = (
        "import asyncio\nfrom holdfast.tools import run\n"
        f"command = ['bash', '-c', '({_ESCAPES.format(length=length)}) ; exec sleep 30']\n"
        "async def main():\n    async with run(command) as p: await asyncio.sleep(30)\n"
        "asyncio.run(main())"
    )

    async def main():
        async with run([sys.executable, "-c", inner], grace=0) as process:
            await _until(lambda: _sleeps(length))
            # Without SIGTERM, so that the inner program cannot clean up.
            await process.stop(grace=0)

    finish(main())
    assert not _sleeps(length)


def test_two_commands_at_once_are_told_apart_by_their_marks():
    lengths = [f"30.{random.randrange(10**9):09}" for _ in range(2)]

    async def main():
        first, second = (run(["bash", "-c", f"({_ESCAPES.format(length=one)}) ; exec sleep 30"]) for one in lengths)
        async with first as one, second:
            await _until(lambda: all(_sleeps(length) for length in lengths))
            await one.stop()
            return [_sleeps(length) for length in lengths]

    assert finish(main()) == [False, True]
    assert not _sleeps(lengths[1])


async def _until(condition):
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 - another program does it
            await asyncio.sleep(0.05)


def _command_lines() -> list[bytes]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and entry.name != str(os.getpid()):
            with suppress(OSError):
                found.append((entry / "cmdline").read_bytes())
    return found


def test_where_the_kernel_does_not_tell_the_last_id_all_processes_are_looked_at(monkeypatch, token):
    monkeypatch.setattr(process_tree, "last_pid", lambda: 0)
    monkeypatch.setattr(process_mark, "last_pid", lambda: 0)
    assert finish(_awaited(run(["echo", "hi"]))).stdout == "hi\n"
    finished = finish(_awaited(run(["bash", "-c", "setsid sleep 30 >/dev/null 2>&1 & sleep 0.1"])))
    assert len(finished.leftovers) == 1
    assert living(token) == []


def test_processes_left_on_purpose_are_listed(token):
    finished = finish(_awaited(run(["bash", "-c", "sleep 30 >/dev/null 2>&1 & exit 0"], leftovers="leave")))
    (left,) = finished.leftovers
    assert Path(f"/proc/{left}/comm").read_text() == "sleep\n"
    os.kill(left, signal.SIGKILL)


def test_a_run_that_is_no_coroutine_says_what_to_do_with_it():
    with pytest.raises((ValueError, TypeError), match="await it in an async function"):
        asyncio.run(run(["echo", "hi"]))


INNER = """
import asyncio, sys
from holdfast.tools import run

async def main():
    await run(["bash", "-c", f"env -i setsid sleep {sys.argv[1]} >/dev/null 2>&1 & sleep 0.1"], leftovers="leave")

asyncio.run(main())
"""


@pytest.mark.skipif(
    sys.platform != "linux", reason="only Linux shows what has left the group and cleared its environment"
)
def test_what_a_program_leaves_that_uses_holdfast_itself_is_found_by_the_outer_command():
    seconds = str(random.randrange(10_000, 1_000_000))
    finished = finish(_awaited(run([sys.executable, "-c", INNER, seconds])))
    sleeping = [each for each in Path("/proc").glob("[0-9]*/cmdline") if _is_sleep(each, seconds)]
    for each in sleeping:
        os.kill(int(each.parent.name), signal.SIGKILL)
    assert (sleeping, len(finished.leftovers)) == ([], 1)


def _is_sleep(cmdline: Path, seconds: str) -> bool:
    with suppress(OSError):
        return cmdline.read_bytes() == f"sleep\0{seconds}\0".encode()
    return False


def test_A79_a_program_that_ignores_sigterm_is_killed_after_the_grace_and_reaped(token):
    error = failed(["bash", "-c", "trap '' TERM; echo up; while true; do sleep 1; done"], timeout=0.3, grace=0.3)
    assert (error.fault.code, error.finished.signal) == ("TOOL_TIMEOUT", "SIGKILL")
    assert error.finished.stdout == "up\n"
    assert living(token) == []


def test_A79_a_stopped_program_gets_its_sigterm(token):
    error = failed(["bash", "-c", "kill -STOP $$"], timeout=0.3, grace=5)
    assert error.finished.signal == "SIGTERM"
    assert error.finished.took < 3


def test_a_program_may_clean_up_within_the_grace():
    error = failed(["bash", "-c", "trap 'echo clean; exit 3' TERM; echo up; sleep 30 & wait"], timeout=0.3)
    assert error.finished.stdout == "up\nclean\n"
    assert error.fault.code == "TOOL_TIMEOUT"


def test_a_program_that_forks_while_it_is_killed_leaves_nobody(token):
    script = "trap '' TERM; while true; do (trap '' TERM; sleep 20) & sleep 0.01; done"
    failed(["bash", "-c", script], timeout=0.3, grace=0.2)
    assert living(token) == []


def test_a_command_inside_a_command_belongs_to_both(token):
    inner = (
        "import asyncio\nfrom holdfast.tools import run\n"
        "async def main():\n    async with run(['setsid', 'sleep', '30']) as p: await asyncio.sleep(30)\n"
        "asyncio.run(main())"
    )
    error = failed(["bash", "-c", f'{sys.executable} -c "$0"', inner], timeout=1.5, grace=0)
    assert error.fault.code == "TOOL_TIMEOUT"
    assert living(token) == []


# --- cancellation, deadlines, the end of the loop ---


def test_A81_a_reader_that_breaks_off_leaves_no_process(token):
    async def main():
        async with run(["yes"]) as process:
            async for chunk in process:
                assert isinstance(chunk, Chunk)
                break
        assert living(token) == []
        return process.running

    assert finish(main()) is False


def test_A81_a_reader_that_is_cancelled_leaves_no_process(token):
    async def main():
        async def read():
            async with run(["bash", "-c", "echo up; sleep 30"]) as process:
                async for _ in process:
                    up.set()

        up = asyncio.Event()
        task = asyncio.create_task(read())
        await up.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert living(token) == []

    finish(main())


def test_a_second_cancellation_kills_at_once(token):
    async def main():
        task = asyncio.create_task(_awaited(run(["bash", "-c", "trap '' TERM; sleep 30; sleep 30"], grace=60)))
        await asyncio.sleep(0.2)
        began = time.monotonic()
        task.cancel()
        await asyncio.sleep(0.1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert time.monotonic() - began < 3

    finish(main())
    assert living(token) == []


def test_a_second_cancellation_waits_until_the_last_of_many_processes_has_ended(token):
    async def main():
        many = "trap '' TERM; for i in $(seq 100); do while :; do :; done & done; echo up; wait"
        async with run(["bash", "-c", many], grace=60) as process:
            async for _ in process:
                break
            task = asyncio.create_task(process.stop())
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert living(token) == []

    finish(main())


def test_a_task_group_whose_sibling_fails_ends_the_program(token):
    async def fails():
        await asyncio.sleep(0.1)
        raise ValueError

    async def main():
        with pytest.raises(ExceptionGroup):
            async with asyncio.TaskGroup() as group:
                group.create_task(_awaited(run(["sleep", "30"])))
                group.create_task(fails())

    finish(main())
    assert living(token) == []


def test_a_loop_that_is_closed_midway_leaves_no_process(token):
    async def main():
        await run(["bash", "-c", "trap '' TERM; sleep 30; sleep 30"], grace=60).__aenter__()

    asyncio.run(main())
    gc.collect()
    assert living(token) == []


def test_the_budget_around_stops_the_program_before_its_time_is_over(token):
    async def main():
        with Budget(seconds=1.0):
            began = time.monotonic()
            with pytest.raises(ProcessTimeoutError) as raised:
                await run(["bash", "-c", "echo part; sleep 30"])
            assert time.monotonic() - began < 3
        return raised.value

    error = finish(main())
    assert error.fault.code == "SYS_DEADLINE_EXCEEDED"
    assert error.fault.partial.payload == {"stdout": "part\n"}
    assert living(token) == []


def test_the_limit_of_a_recovery_ends_the_program(token):
    async def main():
        with pytest.raises(TimeoutError):
            await recover("tool:x", Policy(timeout=0.3, attempts=1), effect="read").call(_sleep)

    async def _sleep():
        return await run(["sleep", "30"])

    finish(main())
    assert living(token) == []


# --- limits, each with a timer of its own, in virtual time ---


def virtual(*args, **kwargs) -> tuple[ProcessError, float]:
    clock = VirtualClock()

    async def main():
        began = clock.monotonic()
        with pytest.raises(ProcessError) as raised:
            await run(*args, **kwargs)
        return raised.value, clock.monotonic() - began

    return run_virtual(main(), clock=clock)


def test_S4_13_a_silent_program_is_stopped_by_a_timer_and_not_by_its_next_output():
    error, took = virtual(["bash", "-c", "echo begun; sleep 600"], idle=30)
    assert error.fault.context["limit"] == "idle"
    assert 30 <= took < 32
    assert error.fault.message.startswith("bash -c 'echo begun; sleep 600' printed nothing for 30 s")


def test_the_start_limit_ends_with_the_first_output():
    error, took = virtual(["sleep", "600"], start=5, idle=60)
    assert (error.fault.context["limit"], 5 <= took < 7) == ("start", True)
    error, took = virtual(["bash", "-c", "echo up; sleep 600"], start=5, idle=60)
    assert (error.fault.context["limit"], 60 <= took < 62) == ("idle", True)


def test_output_does_not_move_the_limit_of_the_whole():
    error = failed(["bash", "-c", "while true; do echo x; sleep 0.01; done"], idle=60, timeout=0.3)
    assert error.fault.context["limit"] == "timeout"


def test_a_program_may_be_called_alive_although_it_is_silent():
    clock = VirtualClock()

    async def main():
        async with run(["sleep", "600"], idle=10) as process:
            for _ in range(5):
                await asyncio.sleep(8)
                process.alive()
            with pytest.raises(ProcessTimeoutError):
                await process.finished()
        return clock.monotonic()

    assert run_virtual(main(), clock=clock) >= 50


@pytest.mark.parametrize("limit", ["idle", "timeout"])
def test_the_time_in_which_limits_are_paused_does_not_count(limit: str):
    clock = VirtualClock()

    async def main():
        began = clock.monotonic()
        async with run(["sleep", "6000"], **{limit: 10}) as process:
            await asyncio.sleep(4)
            with process.limits_paused():
                await asyncio.sleep(50)
            await asyncio.sleep(4)
            assert process.running
            with process.limits_paused():
                await asyncio.sleep(30)
            with pytest.raises(ProcessTimeoutError) as raised:
                await process.finished()
        assert raised.value.fault.context["limit"] == limit
        return clock.monotonic() - began

    # A pause is life, so the silence begins anew after it; the whole is 10 s of the program's own.
    assert run_virtual(main(), clock=clock) == pytest.approx({"idle": 98, "timeout": 90}[limit], abs=3)


# --- output ---


def test_A77_a_line_of_200_KiB_is_delivered_whole():
    async def main():
        async with run(python("print('x' * 204_800); print('é' * 70_000); print('end', end='')")) as process:
            return [line async for line in process.lines()]

    assert finish(main()) == ["x" * 204_800, "é" * 70_000, "end"]


def test_A82_endless_output_ends_at_the_cap_with_bounded_memory():
    error = failed(["yes"], output_cap=1 << 20, keep=1 << 16)
    assert (error.fault.code, error.fault.partial.truncated) == ("TOOL_OUTPUT_TOO_LARGE", True)
    assert error.finished.truncated
    assert len(error.finished.stdout) < (1 << 16) + 100


def test_the_beginning_and_the_end_are_kept_and_the_cut_is_marked():
    finished = finish(_awaited(run(["bash", "-c", "echo begin; seq 100000; echo end"], keep=1_000)))
    head, mark, tail = finished.stdout.split("…")[0], finished.stdout.split("…")[1], finished.stdout.split("…")[2]
    assert head.startswith("begin\n")
    assert tail.endswith("end\n")
    assert mark == f"[{588_895 + 10 - 1_000} bytes cut]"
    assert finished.truncated


def test_a_cut_never_splits_a_character():
    finished = finish(_awaited(run(python("print('é' * 10_000)"), keep=999)))
    assert "\N{REPLACEMENT CHARACTER}" not in finished.stdout
    assert finished.truncated


def test_a_slow_reader_slows_the_program_down_and_is_not_called_idle():
    async def main():
        read = 0
        async with run(["bash", "-c", "head -c 8000000 /dev/zero"], idle=0.4) as process:
            async for chunk in process:
                if not read:
                    await asyncio.sleep(0.8)
                    assert process._queued < 2_000_000
                read += len(chunk.data)
        return read

    assert finish(main()) == 8_000_000


def test_a_reader_may_stop_reading_and_wait_for_the_end():
    async def main():
        async with run(["bash", "-c", "head -c 8000000 /dev/zero; exit 3"], check=False) as process:
            async for _ in process:
                break
            return await process.finished()

    assert finish(main()).exit_code == 3


def test_reading_in_pieces_raises_after_the_last_piece():
    async def main():
        seen = []
        async with run(["bash", "-c", "echo a; echo 'no such file or directory: x' >&2; exit 2"]) as process:
            with pytest.raises(ProcessError) as raised:
                async for line in process.lines():
                    seen.append(line)  # noqa: PERF401 - it raises midway
        return seen, raised.value.fault.code

    assert finish(main()) == (["a"], "TOOL_FILE_NOT_FOUND")


# --- failures ---


def test_A78_a_missing_program_fails_at_once_and_for_good():
    error = failed(["no-such-program-here"])
    assert (error.fault.code, error.fault.kind, error.fault.retryable) == (
        "TOOL_COMMAND_NOT_FOUND",
        Kind.PERMANENT,
        False,
    )
    assert error.fault.maybe_executed is False
    assert isinstance(error.__cause__, FileNotFoundError)


def test_a_missing_directory_is_not_a_missing_program(tmp_path: Path):
    assert failed(["true"], cwd=tmp_path / "gone").fault.code == "TOOL_FILE_NOT_FOUND"


def test_arguments_that_are_too_long_are_named():
    assert failed(["true", "x" * 3_000_000]).fault.code == "TOOL_INPUT_TOO_LARGE"


@pytest.mark.parametrize(
    ("script", "code", "retryable"),
    [
        ("exit 1", "TOOL_EXECUTION_FAILED", False),
        ("exit 127", "TOOL_COMMAND_NOT_FOUND", False),
        ("kill -KILL $$", "TOOL_KILLED", True),
        ("kill -SEGV $$", "TOOL_CRASHED", True),
        ("echo 'fatal: Out of memory, malloc failed' >&2; exit 128", "TOOL_OUT_OF_MEMORY", True),
        ("echo 'connect: Connection refused' >&2; exit 7", "CONN_REFUSED", True),
        ("echo 'connect: Connection timed out' >&2; exit 28", "CONN_TIMEOUT", True),
        ("echo 'permission denied' >&2; exit 1", "TOOL_FORBIDDEN", False),
    ],
)
def test_S0_22_exit_codes_and_signals_are_classified(script, code, retryable):
    fault = failed(["bash", "-c", script]).fault
    assert (fault.code, fault.retryable) == (code, retryable)


def test_S0_22_out_of_memory_is_retried_once(tmp_path: Path):
    async def main():
        async def attempt():
            return await run(["bash", "-c", f"echo x >> {tmp_path}/calls; echo 'out of memory' >&2; exit 1"])

        with pytest.raises(ProcessError):
            await recover("tool:x", Policy(timeout=30), effect="idempotent").call(attempt)

    finish(main())
    assert (tmp_path / "calls").read_text() == "x\nx\n"


def test_S0_21_the_fault_has_all_that_a_tool_error_message_needs():
    fault = failed(["bash", "-c", "echo out; echo err >&2; exit 1"]).fault
    message = wire.tool_error(fault, literal=True)
    details = message["payload"]["details"]
    assert message["payload"]["message"] == "Command exited with code 1"
    assert (details["exit_code"], details["stdout"], details["stderr"]) == (1, "out\n", "err\n")
    assert details["execution_time_ms"] >= 0


def test_check_may_be_left_to_the_caller():
    assert finish(_awaited(run(["bash", "-c", "exit 9"], check=False))).exit_code == 9


def test_somebody_else_may_have_reaped_the_process(monkeypatch):
    def stolen(*_):
        raise ChildProcessError

    monkeypatch.setattr(process_module.os, "waitid", stolen)
    assert finish(_awaited(run(["true"], check=False))).exit_code == 255


def test_without_descriptors_of_processes_a_thread_waits(monkeypatch, token):
    monkeypatch.delattr(os, "pidfd_open")
    monkeypatch.setattr(process_module.ProcessTree, "sees_all", False)
    assert finish(_awaited(run(["bash", "-c", "echo hi"]))).stdout == "hi\n"
    assert failed(["bash", "-c", "sleep 30 & sleep 30"], timeout=0.1).fault.code == "TOOL_TIMEOUT"
    assert living(token) == []


# --- secrets ---


def test_variables_with_secrets_are_not_passed_on(monkeypatch):
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-ant-abcdefghijklmnop1234")
    monkeypatch.setenv("COPY_OF_IT", "sk-ant-abcdefghijklmnop1234")
    monkeypatch.setenv("DATABASE_URL", "postgres://me:hunter2secret@db/x")
    monkeypatch.setenv("GITHUB_TOKEN", "a-token-that-is-named")
    monkeypatch.setenv("PLAIN", "yes")
    secrets.process_redactor.cache_clear()
    printed = finish(_awaited(run(["env"], env={"ADDED": "1"}, pass_secrets=["GITHUB_TOKEN"]))).stdout
    names = {line.partition("=")[0] for line in printed.splitlines()}
    assert {"PLAIN", "ADDED", "GITHUB_TOKEN", "PATH"} <= names
    assert names & {"ANTHROPIC_API_KEY", "COPY_OF_IT", "DATABASE_URL"} == set()
    secrets.process_redactor.cache_clear()


def test_without_our_environment_only_the_path_is_passed_on():
    printed = finish(_awaited(run(["/usr/bin/env"], inherit_env=False, env={"LEAK": "1"}))).stdout
    assert {line.partition("=")[0] for line in printed.splitlines()} == {"PATH", "LEAK", "HOLDFAST_PROCESS"}


def test_a_secret_that_a_program_prints_is_masked_in_its_fault(monkeypatch):
    monkeypatch.setenv("MY_TOKEN", "quite-a-long-secret")
    secrets.process_redactor.cache_clear()
    error = failed(["bash", "-c", "echo quite-a-long-secret; exit 1"])
    assert "quite-a-long-secret" not in repr(error.fault.for_audit())
    assert "quite-a-long-secret" not in str(error.fault.partial)
    assert fault_of(error).code == "TOOL_EXECUTION_FAILED"
    secrets.process_redactor.cache_clear()


def test_wait_leaves_the_output_to_its_reader_and_a_signal_reaches_the_whole_tree():
    child = "(trap 'echo child; exit' USR1; echo up; while :; do sleep 0.05; done)"
    script = f"trap 'echo parent; exit 3' USR1; {child} & wait; wait"

    async def signalling() -> list[str]:
        async with run(["bash", "-c", script], check=False) as process:
            assert (await anext(process)).text == "up\n"
            assert not await process.wait(0.05)
            process.send_signal(signal.SIGUSR1)
            assert await process.wait(10)
            process.send_signal(signal.SIGUSR1)  # nobody is there any more
            return "".join([chunk.text async for chunk in process]).split()

    assert {"child", "parent"} <= set(asyncio.run(signalling()))


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("exit 3", "bash exited with code 3"),
        ("echo no such table >&2; exit 3", "bash exited with code 3: no such table"),
        ("kill -9 $$", "bash was ended by SIGKILL"),
        ("echo dial tcp: connection refused >&2; exit 1", "bash exited with code 1: dial tcp: connection refused"),
    ],
)
def test_the_error_of_a_program_names_the_program_and_how_it_ended(script, message):
    error = failed(["/bin/bash", "-c", script])
    assert error.fault.message == message
    assert message in str(error)


@pytest.mark.parametrize(
    ("name", "hint"),
    [("idle_timeout", "idle"), ("start_timeout", "start"), ("time_out", "timeout"), ("working_dir", "cwd")],
)
def test_an_unknown_option_of_run_names_the_right_one(name, hint):
    with pytest.raises(InvalidError, match=f"unknown option `{name}` of run; did you mean `{hint}\\b"):
        run(["true"], **{name: 3})


_AT_ONCE = "(env -i setsid sleep {length} >/dev/null 2>&1 &) ; exec sleep 30"
_SLOW_MARK = 0.3


@pytest.fixture
def _busy(monkeypatch):
    """A busy machine: a program that was started runs, and we do not."""
    put_on = process_mark.ProcessMark.put_on

    def late(self, pid):
        time.sleep(_SLOW_MARK)
        put_on(self, pid)

    monkeypatch.setattr(process_mark.ProcessMark, "put_on", late)


_DAEMON = """
import os
if os.fork() == 0:
    os.setsid()
    if os.fork():
        os._exit(0)
    os.closerange(0, 64)
    os.execve({sleep!r}, ["sleep", {length!r}], {env})
os.wait()
"""
"""In its first moment: two forks, a session of its own, no pipes, no parent."""


@pytest.mark.usefixtures("_busy")
@pytest.mark.parametrize("env", ["os.environ", "{}"], ids=["our environment", "an empty environment"])
def test_a_daemon_that_escapes_before_we_had_a_turn_is_ended_with_any_program(env):
    length = f"30.{random.randrange(10**9):09}"
    daemon = _DAEMON.format(sleep=shutil.which("sleep"), length=length, env=env)
    finished = finish(_awaited(run([sys.executable, "-S", "-I", "-c", daemon])))
    assert len(finished.leftovers) == 1
    assert not _sleeps(length)


@pytest.mark.usefixtures("_busy")
@pytest.mark.parametrize("how", ["guarded", "bash"])
def test_a_daemon_that_escapes_before_we_had_a_turn_is_ended_also_without_prlimit_if_the_program_waits(
    monkeypatch, how
):
    length = f"30.{random.randrange(10**9):09}"
    monkeypatch.setattr(process_mark, "_prlimit", lambda: None)
    script = _AT_ONCE.format(length=length)

    async def main():
        if how == "guarded":
            await run(["bash", "-c", script], guarded=True, timeout=2)
        else:
            await Toolbox([bash(timeout=2)]).call("bash", {"command": script})

    with pytest.raises((ProcessError, OutcomeUnknownError)):
        finish(main())
    assert not _sleeps(length)


def test_a_program_whose_interpreter_is_missing_is_named_as_not_found(tmp_path):
    script = tmp_path / "tool"
    script.write_text("#!/no/such/interpreter")
    script.chmod(0o755)
    error = failed([str(script)])
    assert error.fault.code == "TOOL_COMMAND_NOT_FOUND"
    assert "tool" in error.fault.message


@pytest.mark.parametrize("argv", [["no-such-program"], ["./no-such-program"], ["/etc/passwd"]])
def test_a_guarded_program_that_cannot_be_started_is_told_as_any_other(argv, tmp_path):
    plain, guarded = failed(argv, cwd=tmp_path), failed(argv, cwd=tmp_path, guarded=True)
    assert (guarded.fault.code, guarded.fault.message) == (plain.fault.code, plain.fault.message)
    assert plain.fault.code == "TOOL_COMMAND_NOT_FOUND"


def test_a_guarded_program_has_its_own_arguments_input_directory_and_exit_code(tmp_path):
    script = "import os, sys; print(sys.argv[1:], os.getcwd(), sys.stdin.read()); sys.exit(7)"
    argv = [sys.executable, "-c", script, "a b", "$HOME", "'x'"]
    finished = finish(_awaited(run(argv, guarded=True, cwd=tmp_path, input="in", check=False)))
    assert finished.stdout == f"{['a b', '$HOME', chr(39) + 'x' + chr(39)]} {tmp_path} in\n"
    assert finished.exit_code == 7
    assert finished.command == tuple(argv)


def test_a_flood_of_lines_leaves_the_event_loop_to_others():
    async def main() -> tuple[int, int]:
        beats, most, since = 0, 0, 0

        async def beat() -> None:
            nonlocal beats, since
            while True:
                beats, since = beats + 1, 0
                await asyncio.sleep(0)

        other = asyncio.ensure_future(beat())
        lines = 0
        async with run(["bash", "-c", "yes | head -n 200000"]) as process:
            async for _ in process.lines():
                lines, since = lines + 1, since + 1
                most = max(most, since)
        other.cancel()
        return lines, most

    lines, most = asyncio.run(main())
    assert (lines, most < 1_500) == (200_000, True), most
