"""What is left of a start that failed, and what the log and the events say of a crash."""

from __future__ import annotations

import asyncio
import functools
import logging

import pytest
from supervision_kit import settled

from holdfast import HoldfastError, InvalidError, Runtime
from holdfast.actors import Actor, Child, StartError, Supervisor, ready
from holdfast.actors.tree import tree_of
from holdfast.events import ChildExited, ChildRestarting, GaveUp
from holdfast.testing import run

KEY = "sk-ant-api03-" + "a1B2c3D4e5F6g7H8" * 3


class Desk(Actor):
    def __init__(self, name: str = "desk") -> None:
        self.name = name

    async def fail(self, error: Exception) -> None:
        raise error


async def serve() -> None:
    await asyncio.Event().wait()


async def read(inbox: str) -> None:
    await asyncio.Event().wait()


class StubbornDesk(Desk):
    async def started(self) -> None:
        raise ValueError("no desk")


class NoSupervisor(Supervisor):
    def __init__(self) -> None:
        raise ValueError("no team")


def no_host(child, place):
    raise ZeroDivisionError


async def never_ready() -> None:
    raise ValueError("not ready")


# A start that failed


@pytest.mark.parametrize(
    ("make", "error"),
    [
        pytest.param(lambda: Desk("front"), InvalidError, id="an instance"),
        pytest.param(lambda: 5, InvalidError, id="a number"),
        pytest.param(lambda: read, InvalidError, id="a missing argument"),
        pytest.param(lambda: Child(serve, host=no_host), StartError, id="a host that raises"),
        pytest.param(lambda: NoSupervisor, StartError, id="a factory that raises"),
        pytest.param(lambda: StubbornDesk, StartError, id="a hook that raises"),
        pytest.param(lambda: Child(never_ready, ready=True), StartError, id="it is never ready"),
        pytest.param(lambda: Supervisor("inner", children=[StubbornDesk]), StartError, id="an inner supervisor"),
    ],
)
def test_a_child_that_did_not_start_is_not_listed_and_the_supervisor_goes_on(make, error):
    async def main():
        async with Supervisor("team", children=[Desk]) as team:
            for _ in range(2):
                with pytest.raises(error):
                    await team.start(make())
                assert [info.id for info in await team.which_children()] == ["Desk"]
                assert (await team.count_children()).specs == 1
            # Its id is free again.
            named = await team.start(serve, id="next")
            assert named.path == "team/next"
            await team.terminate_child("next")
            await team.delete_child("next")
            assert [child.name for child in (await tree_of([team])).roots[0].children] == ["Desk"]

    run(main())


def test_a_start_whose_caller_is_cancelled_is_not_listed():
    async def slow() -> None:
        await asyncio.sleep(5)
        ready()
        await asyncio.Event().wait()

    async def main():
        async with Supervisor("team") as team:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(1):
                    await team.start(slow, ready=True, id="slow")
            assert await team.which_children() == []
            await team.start(serve, id="slow")
            assert [info.id for info in await team.which_children()] == ["slow"]

    run(main())


# Arguments that do not fit


async def with_keyword(inbox: str, *, limit: int) -> None: ...


def given_a_database(function):
    @functools.wraps(function)
    async def call(*args):
        return await function("database", *args)

    return call


@given_a_database
async def decorated(database: str, inbox: str) -> None:
    await asyncio.Event().wait()


async def with_default(inbox: str = KEY, *more: str) -> None:
    await asyncio.Event().wait()


@pytest.mark.parametrize(
    ("factory", "args", "text"),
    [
        (read, (), "child read: expected arguments that fit read(inbox), got none"),
        (read, ("a", "b"), "child read: expected arguments that fit read(inbox), got 2 arguments"),
        (Desk, (1, 2), "child Desk: expected arguments that fit Desk(name=…), got 2 arguments"),
        (with_keyword, ("a",), "child with_keyword: expected arguments that fit with_keyword(inbox, limit=…), got 1 argument"),
        (functools.partial(read, "a"), ("b",), "child read: expected arguments that fit read(), got 1 argument"),
    ],
)  # fmt: skip
def test_arguments_that_do_not_fit_are_rejected_at_once(factory, args, text):
    async def main():
        async with Supervisor("team") as team:
            with pytest.raises(InvalidError) as caught:
                await team.start(factory, *args)
            assert caught.value.fault.message == text
            assert await team.which_children() == []

    run(main())
    with pytest.raises(InvalidError) as caught:
        Supervisor("team", children=[Child(factory, *args)])
    assert caught.value.fault.message == text


def test_a_template_gets_its_arguments_from_spawn():
    async def main():
        async with Supervisor("team", strategy="simple_one_for_one", children=[Child(read)]) as team:
            await team.spawn("inbox")
            with pytest.raises(InvalidError, match=r"fit read\(inbox\), got none"):
                await team.spawn()
            assert (await team.count_children()).specs == 1

    run(main())


@pytest.mark.parametrize(
    ("factory", "args"),
    [
        (decorated, ("inbox",)),
        (with_default, ()),
        (with_default, ("a", "b", "c")),
        (Desk, ()),
        (functools.partial(Desk, name="front"), ()),
    ],
)
def test_arguments_that_fit_start(factory, args):
    async def main():
        async with Supervisor("team") as team:
            await team.start(factory, *args)
            await settled()
            assert [info.incarnation for info in await team.which_children()] == [1]

    run(main())


# What is said of a crash


def crash(error, caplog, *, level=logging.DEBUG, log=True, **options):
    """Return the events and the lines of an actor that crashes over a message that nobody waits for."""
    events = []

    async def main():
        runtime = Runtime(log=log)
        runtime.on(events.append, ChildExited, ChildRestarting, GaveUp)
        async with Supervisor("desk", runtime=runtime) as team:
            ref = await team.start(Desk, **options)
            ref.tell(Desk.fail, error)
            await settled()
            (node,) = (await tree_of([team])).roots[0].children
            return node.last_failure

    with caplog.at_level(level, "holdfast"):
        code = run(main())
    return (
        events,
        [(record.levelname, record.getMessage()) for record in caplog.records if record.name == "holdfast"],
        code,
    )


def test_the_line_of_a_restart_says_what_was_raised_and_the_traceback_is_logged_at_debug(caplog):
    _, lines, _ = crash(RuntimeError("boom"), caplog)
    (first, trace), second = lines
    assert second == ("WARNING", "desk restarts Desk, attempt 1 (ACTOR_CRASHED, RuntimeError: boom)")
    assert first == "DEBUG"
    assert trace.startswith("desk/Desk raised:\nTraceback (most recent call last):\n")
    assert ", in fail\n" in trace
    assert trace.endswith("\nRuntimeError: boom")


def test_the_traceback_is_not_logged_above_debug_nor_by_a_runtime_without_a_log(caplog):
    _, lines, _ = crash(RuntimeError("boom"), caplog, level=logging.INFO)
    assert [level for level, _ in lines] == ["WARNING"]
    caplog.clear()
    assert crash(RuntimeError("boom"), caplog, log=False)[1] == []


def test_the_line_and_the_traceback_are_masked_and_the_line_is_short(caplog):
    _, lines, _ = crash(RuntimeError(f"cannot use {KEY}\nfor\n" + "x" * 1000), caplog)
    assert len(lines) == 2
    assert all(KEY not in line for _, line in lines)
    assert "\n" not in lines[1][1]
    assert len(lines[1][1]) < 300
    assert "RuntimeError: cannot use " in lines[1][1]


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("boom"),
        RuntimeError("tool execution failed: invalid arguments"),
        RuntimeError("rate limit exceeded"),
        ValueError("not found"),
        KeyError("plan"),
    ],
    ids=repr,
)
def test_a_plain_exception_is_a_crash_whatever_its_words_say(error, caplog):
    events, _, code = crash(error, caplog)
    assert [type(event) for event in events] == [ChildExited, ChildRestarting]
    assert {event.fault.code for event in events} == {"ACTOR_CRASHED", code}
    assert events[0].fault.cause.type == type(error).__name__
    assert events[0].fault.message == f"Actor desk/Desk crashed: {type(error).__name__}: {error}"


def test_an_error_of_a_known_kind_keeps_its_code_and_its_text_is_not_on_the_line(caplog):
    error = ConnectionResetError("the server hung up")
    events, lines, code = crash(error, caplog, on={ConnectionResetError: "restart"})
    assert code == events[0].fault.code == "CONN_RESET"
    assert lines[-1] == ("WARNING", "desk restarts Desk, attempt 1 (CONN_RESET)")


def test_a_failure_after_which_the_actor_goes_on_has_its_traceback_at_debug_too(caplog):
    _, lines, _ = crash(ConnectionResetError("the server hung up"), caplog)
    assert [level for level, _ in lines] == ["DEBUG", "INFO"]
    assert lines[0][1].startswith("Desk.fail of desk/Desk raised:\nTraceback")


class Silent(Exception):
    def __str__(self) -> str:
        raise ValueError("no text")


def test_whoever_asked_hears_of_a_crash_whose_text_raises():
    async def main():
        async with Supervisor("desk") as team:
            ref = await team.start(Desk)
            with pytest.raises(HoldfastError, match="Actor desk/Desk crashed: Silent") as caught:
                await ref.ask(Desk.fail, Silent())
            assert isinstance(caught.value.__cause__, Silent)

    run(main())


def test_a_crash_whose_text_raises_is_logged_by_its_class(caplog):
    _, lines, code = crash(Silent(), caplog)
    assert code == "ACTOR_CRASHED"
    assert lines[-1][1].startswith("desk restarts Desk, attempt 1 (ACTOR_CRASHED, Silent")
