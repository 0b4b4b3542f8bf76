"""Actors in processes: what ends one of them ends nothing else."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import time
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from actors_in_processes import FailsToStart, Note, OddError, Pickled, Remembering, Tidy, Worker

import holdfast
from holdfast import Budget, Ok, Runtime
from holdfast.actors import Actor, Child, Error, Killed, Place, RemoteError, Shutdown, StartError
from holdfast.actors.host import host_for
from holdfast.events import MessageDropped, SuppressedError
from holdfast.faults import HoldfastError, InvalidError


def lives(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def hosted(kind, *args, **options):
    return host_for(Child(kind, *args, **options), Place("one", "team/one", Runtime()))


@asynccontextmanager
async def actor(kind, *args, **options):
    host = hosted(kind, *args, **options)
    running = await host.start(1, None)
    try:
        yield host, running
    finally:
        how = await running.stop(Shutdown(), 5)
        if how is None:
            running.kill()
            how = await running.exited
        host.close(how)


def test_what_the_sender_works_on_travels_with_the_message():
    async def main():
        async with actor(Worker, "w") as (host, _):
            with holdfast.request("req-1"):
                assert await host.ref.ask(Worker.request) == "req-1"
            assert not await host.ref.ask(Worker.request)

    asyncio.run(main())


def test_values_travel_by_the_annotations_and_the_state_is_kept():
    async def main():
        async with actor(Worker, "w") as (host, _):
            ref = host.ref
            assert await ref.ask(Worker.pid) != os.getpid()
            assert await ref.ask(Worker.add, 2) == 2
            assert await ref.outcome(Worker.add, 3) == Ok(value=5)
            notes = [Note("a", 1), Note("b", 2)]
            assert await ref.ask(Worker.review, notes) == tuple(notes)
            assert await ref.ask(Worker.review, notes, first=True) == (Note("a", 1),)
            with pytest.raises(InvalidError, match=r"argument `notes` of Worker\.review"):
                await ref.ask(Worker.review, [lambda: None])
            with pytest.raises((InvalidError, HoldfastError), match=r"result of Worker\.odd_result"):
                await ref.ask(Worker.odd_result)
            assert await ref.ask(Worker.add, 0) == 5

    asyncio.run(main())


@pytest.mark.parametrize(("how", "code"), [("exits", 7), ("raises", 1), ("returns", 0), ("writes", 9)])
def test_a_fork_of_an_actor_answers_nothing_in_its_name(how, code):
    async def main():
        async with actor(Worker) as (host, _):
            assert await host.ref.ask(Worker.add, 2) == 2
            assert await host.ref.using(timeout=20).ask(Worker.fork, how) == code
            assert await host.ref.ask(Worker.add, 3) == 5

    asyncio.run(main())


def test_a_told_message_that_fails_is_reported():
    events = []
    runtime = Runtime()
    runtime.on(events.append)

    async def main():
        host = host_for(Child(Worker), Place("one", "team/one", runtime))
        running = await host.start(1, None)
        host.ref.tell(Worker.review, [lambda: None])  # cannot be sent
        host.ref.tell(Worker.fail, "timeout")
        host.ref.tell(Worker.die, "exit")
        host.ref.tell(Worker.add, 1)
        await running.exited
        host.close(await running.stop(Shutdown(), 5))
        await asyncio.sleep(0.05)

    asyncio.run(main())
    reported = [event.code for event in events if isinstance(event, SuppressedError)]
    assert reported == ["CONFIG_OPTION_INVALID", "SYS_TIMEOUT", "ACTOR_CRASHED"]
    assert [event.message for event in events if isinstance(event, MessageDropped)] == ["Worker.add"]


def test_pickle_is_used_only_where_the_class_says_so():
    async def main():
        async with actor(Pickled) as (host, _):
            return await host.ref.ask(Pickled.odd_result)

    assert asyncio.run(main()) == {OddError}


@pytest.mark.parametrize(("how", "exit_"), [("kill", 9), ("segfault", 11), ("exit", None)])
def test_A73_a_process_that_dies_ends_its_ask_at_once_and_nothing_else(how, exit_):
    async def main():
        async with actor(Worker) as (other, _), actor(Worker) as (host, running):
            queued = asyncio.ensure_future(host.ref.outcome(Worker.wait, 0.01))
            began = time.monotonic()
            outcome = await host.ref.outcome(Worker.die, how)
            took = time.monotonic() - began
            ended = await running.exited
            again = await host.start(2, ended)
            assert (await queued).ok
            pid = await host.ref.ask(Worker.pid)
            assert await other.ref.ask(Worker.add, 1) == 1
            await again.stop(Shutdown(), 5)
            return outcome, took, ended, pid, running.pid, host.ref.restarts

    outcome, took, ended, pid, old, restarts = asyncio.run(main())
    assert (outcome.fault.code, outcome.fault.kind, outcome.fault.maybe_executed) == ("ACTOR_CRASHED", "fatal", True)
    assert outcome.fault.context["restart_count"] == 1
    assert took < 3
    assert ended == Killed(exit_) if exit_ else isinstance(ended, Error)
    assert pid != old
    assert not lives(old)
    assert restarts == 1


def test_A73_a_process_that_is_killed_while_it_waits_is_noticed_at_once():
    async def main():
        async with actor(Worker) as (_, running):
            os.kill(running.pid, signal.SIGKILL)
            return await asyncio.wait_for(running.exited, 3)

    assert asyncio.run(main()) == Killed(9)


def test_errors_cross_as_themselves_or_as_a_remote_error_and_the_directive_decides():
    async def main():
        async with actor(Worker, on={OddError: "resume"}) as (host, running):
            with pytest.raises(TimeoutError, match="the provider is slow"):
                await host.ref.ask(Worker.fail, "timeout")
            with pytest.raises(RemoteError) as odd:
                await host.ref.ask(Worker.fail, "odd")
            assert odd.value.__notes__[0].startswith("raised as actors_in_processes.OddError in the process")
            assert odd.value.fault.cause.type.endswith("OddError")
            outcome = await host.ref.outcome(Worker.fail, "key")
            return outcome, await running.exited

    outcome, ended = asyncio.run(main())
    assert outcome.fault.code == "ACTOR_CRASHED"
    assert isinstance(outcome.error.__cause__, KeyError)
    assert isinstance(ended, Error)
    assert (type(ended.error), ended.then) == (KeyError, "restart")


@pytest.mark.parametrize(
    ("what", "said"), [("group", "one"), ("object", "Worker"), ("large", "ValueError"), ("half", "ValueError")]
)
def test_an_error_with_arguments_that_cannot_be_sent_is_the_failure_of_its_message(what, said):
    async def main():
        async with actor(Worker, on={Exception: "resume"}) as (host, _):
            await host.ref.ask(Worker.add, 7)
            outcome = await host.ref.outcome(Worker.fail, what)
            return outcome, await host.ref.ask(Worker.add, 1)

    outcome, count = asyncio.run(main())
    assert said in repr(outcome.error)
    assert count == 8


def test_a_snapshot_survives_a_kill_and_without_one_the_state_is_fresh():
    async def main(kind):
        async with actor(kind) as (host, running):
            await host.ref.ask(Worker.add, 7)
            await host.ref.outcome(Worker.die, "kill")
            again = await host.start(2, await running.exited)
            count = await host.ref.ask(Worker.add, 0)
            await again.stop(Shutdown(), 5)
            return count

    assert asyncio.run(main(Remembering)) == 7
    assert asyncio.run(main(Worker)) == 0


def test_a_stop_cancels_the_message_runs_the_hook_and_leaves_no_process(tmp_path):
    async def main():
        async with actor(Tidy, str(tmp_path / "said")) as (host, running):
            slow = asyncio.ensure_future(host.ref.outcome(Worker.wait, 60))
            await asyncio.sleep(0.3)
            ended = await running.stop(Shutdown("closing time"), 5)
            return await slow, ended, running.pid

    outcome, ended, pid = asyncio.run(main())
    assert ended == Shutdown("closing time")
    assert outcome.fault.maybe_executed
    assert (tmp_path / "said").read_text() == "was stopped: closing time"
    assert not lives(pid)


def test_a_process_that_is_busy_ignores_the_stop_and_is_killed_with_what_it_started():
    async def main():
        async with actor(Worker) as (host, running):
            sleeper = await host.ref.ask(Worker.start_sleeper)
            busy = asyncio.ensure_future(host.ref.outcome(Worker.block, 60))
            await asyncio.sleep(0.3)
            assert await running.stop(Shutdown(), 0.2) is None
            running.kill()
            ended = await asyncio.wait_for(running.exited, 5)
            return ended, (await busy).fault.code, running.pid, sleeper

    ended, code, pid, sleeper = asyncio.run(main())
    assert ended == Killed(signal.SIGKILL)
    assert code == "ACTOR_STOPPED"
    assert not lives(pid)
    assert not lives(sleeper)


def test_an_actor_can_end_itself_and_a_budget_reaches_its_process():
    async def main():
        async with actor(Worker) as (host, running):
            with Budget(seconds=30):
                left = await host.ref.ask(Worker.seconds_left)
            assert await host.ref.ask(Worker.seconds_left) is None
            assert await host.ref.ask(Worker.finish) == "bye"
            return left, await asyncio.wait_for(running.exited, 5)

    left, ended = asyncio.run(main())
    assert 20 < left <= 30
    assert isinstance(ended, Shutdown)


def test_a_start_that_fails_raises_what_the_actor_raised_and_leaves_no_process():
    async def main():
        with pytest.raises(ValueError, match="no such model"):
            await hosted(FailsToStart, "x").start(1, None)
        with pytest.raises(StartError, match="while it was starting"):
            await hosted(FailsToStart, "exit").start(1, None)
        assert await hosted(FailsToStart, "ignore").start(1, None) is None
        host = hosted(Worker, "x")
        starting = asyncio.ensure_future(host.start(1, None))
        await asyncio.sleep(0.05)
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting
        await asyncio.sleep(0.3)

    asyncio.run(main())


def test_what_a_process_cannot_import_is_rejected_before_the_start():
    class Local(Actor, host="process"):
        pass

    class LocalError(Exception):
        pass

    async def main():
        with pytest.raises(InvalidError, match="at the top of a module"):
            hosted(Local)
        with pytest.raises(InvalidError, match="exception classes that a process can import"):
            hosted(Worker, on={LocalError: "resume"})

    asyncio.run(main())


def test_a_worker_dies_with_its_parent_even_while_it_is_busy(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(
        textwrap.dedent(
            f"""
            import asyncio, sys
            sys.path.insert(0, {str(Path(__file__).parent)!r})
            from holdfast import Runtime
            from holdfast.actors import Actor, Child, Place
            from holdfast.actors.host import host_for

            class Mine(Actor, host="process"):
                async def busy(self) -> None:
                    import time
                    time.sleep(60)

            async def main():
                host = host_for(Child(Mine), Place("one", "one", Runtime()))
                running = await host.start(1, None)
                print(running.pid, flush=True)
                await host.ref.ask(Mine.busy)

            if __name__ == "__main__":
                asyncio.run(main())
            """
        )
    )
    parent = subprocess.Popen([sys.executable, str(program)], stdout=subprocess.PIPE, text=True)
    try:
        pid = int(parent.stdout.readline())
        assert lives(pid)
        time.sleep(0.3)
    finally:
        parent.kill()
        parent.wait()
        parent.stdout.close()
    for _ in range(100):
        if not lives(pid):
            break
        time.sleep(0.05)
    assert not lives(pid)


def test_a_value_that_cannot_be_pickled_fails_its_ask_and_the_actor_goes_on():
    async def main():
        async with actor(Pickled) as (host, _):
            sent = await host.ref.outcome(Pickled.review, [lambda: None])
            got = await host.ref.outcome(Pickled.unpicklable)
            kept = await host.ref.outcome(Pickled.add, 2)
            return sent.ok, got.ok, kept, host.ref.restarts

    assert asyncio.run(main()) == (False, False, Ok(value=2), 0)


@pytest.mark.parametrize(
    ("args", "named", "message"),
    [
        ((5,), {}, "argument `text` of Worker.label: expected str, got int 5"),
        (
            ("a", {"1": "x"}),
            {},
            "argument `counts` of Worker.label: expected dict[int, str] | None, got dict {'1': 'x'}",
        ),
        (("a",), {"level": "mid"}, "argument `level` of Worker.label: expected one of 'low', 'high', got str 'mid'"),
        (("a",), {"share": "all"}, "argument `share` of Worker.label: expected float, got str 'all'"),
        (
            (lambda: None,),
            {},
            "argument `text` of Worker.label: expected str, got function <function",
        ),
    ],
)
def test_an_argument_that_does_not_fit_its_annotation_fails_its_ask_and_nothing_was_sent(args, named, message):
    async def main():
        async with actor(Worker) as (host, _):
            ended = await host.ref.outcome(Worker.label, *args, **named)
            return ended, await host.ref.ask(Worker.add, 1), host.ref.restarts

    ended, count, restarts = asyncio.run(main())
    assert isinstance(ended.error, InvalidError)
    assert ended.fault.message.startswith(message)
    assert (ended.fault.maybe_executed, count, restarts) == (False, 1, 0)


def test_what_a_type_checker_accepts_arrives_as_it_was_sent():
    async def main():
        async with actor(Worker) as (host, _):
            label = host.ref
            return (
                await label.ask(Worker.label, "a", {1: "x"}, level="high", share=3),
                await label.ask(Worker.label, "a", None, share=True),
            )

    assert asyncio.run(main()) == (("a", {1: "x"}, "high", 3), ("a", None, "low", True))


def test_an_argument_of_the_start_that_does_not_fit_is_found_where_it_is_written():
    async def main():
        with pytest.raises(InvalidError, match=r"argument `name` of Worker\.__init__: expected str, got int 3"):
            hosted(Worker, 3)

    asyncio.run(main())


def test_a_value_that_cannot_be_sent_says_so_and_what_to_do():
    async def main():
        async with actor(Worker) as (host, _):
            sent = await host.ref.outcome(Worker.anything, [print])
            got = await host.ref.outcome(Worker.odd_result)
            return sent.fault.message, got.fault.message

    advice = "send plain values, dataclasses or msgspec classes, or declare the actor with pickle=True"
    sent, got = asyncio.run(main())
    assert sent == (
        "argument `value` of Worker.anything: expected a value that can be sent to another process, "
        f"got builtin_function_or_method in it[0]: {advice}"
    )
    assert got.startswith(
        "result of Worker.odd_result: expected a value that can be sent to another process, got function"
    )
    assert got.endswith(advice)


def test_a_program_without_a_main_guard_is_told_to_have_one(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(
        textwrap.dedent(
            """
            import asyncio
            from holdfast.actors import Actor, Supervisor

            class Mine(Actor, host="process"):
                async def work(self) -> None: ...

            async def main():
                async with Supervisor("s") as team:
                    await team.start(Mine)

            asyncio.run(main())
            """
        )
    )
    ended = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, timeout=60, check=False)
    assert "ACTOR_START_FAILED" in ended.stderr
    assert f'put what starts {program} below `if __name__ == "__main__":`' in ended.stderr
