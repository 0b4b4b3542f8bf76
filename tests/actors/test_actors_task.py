"""A coroutine function as a child: how it starts, ends and is stopped."""

from __future__ import annotations

import asyncio

import pytest

from holdfast import InvalidError, Runtime
from holdfast.actors import Child, Error, IgnoreStart, Killed, Normal, Place, Shutdown, StartError, Supervisor, ready
from holdfast.actors.host import host_for
from holdfast.testing import run


def hosted(factory, *args, **options):
    return host_for(Child(factory, *args, **options), Place("child", "team/child", Runtime()))


async def forever():
    await asyncio.Event().wait()


def test_a_child_that_returns_ends_normally_with_its_value():
    async def main():
        async def add(a, b):
            return a + b

        running = await hosted(add, 1, 2).start(1, None)
        assert await running.exited == Normal(3)

    run(main())


@pytest.mark.parametrize(
    "error", [ValueError("x"), SystemExit(3), KeyboardInterrupt(), GeneratorExit(), BaseException()]
)
def test_whatever_a_child_raises_is_its_exit_and_stays_in_its_task(error):
    async def main():
        async def fail():
            raise error

        running = await hosted(fail).start(1, None)
        assert await running.exited == Error(error)

    run(main())


def test_a_cancellation_that_nobody_requested_is_an_error():
    async def main():
        running = await hosted(forever).start(1, None)
        await asyncio.sleep(0)
        running.task.cancel()
        how = await running.exited
        assert isinstance(how, Error)
        assert isinstance(how.error, asyncio.CancelledError)

    run(main())


@pytest.mark.parametrize("began", [True, False])
def test_a_requested_stop_is_a_shutdown_even_before_the_child_has_begun(began):
    async def main():
        running = await hosted(forever).start(1, None)
        if began:
            await asyncio.sleep(0)
        assert await running.stop(Shutdown("enough"), 1) == Shutdown("enough")

    run(main())


def test_a_kill_does_not_wait():
    async def main():
        running = await hosted(forever).start(1, None)
        await asyncio.sleep(0)
        running.kill()
        assert not running.exited.done()
        assert await running.exited == Killed()

    run(main())


def test_stopping_a_child_that_ignores_its_cancellation_ends_at_the_timeout():
    async def main():
        release = asyncio.Event()

        async def stubborn():
            while not release.is_set():
                try:
                    await release.wait()
                except asyncio.CancelledError:
                    continue

        running = await hosted(stubborn).start(1, None)
        await asyncio.sleep(0)
        loop = asyncio.get_running_loop()
        began = loop.time()
        assert await running.stop(Shutdown(), 0.3) is None
        assert loop.time() - began == pytest.approx(0.3)
        release.set()
        assert await running.exited == Normal(None)

    run(main())


def test_an_error_while_it_stops_is_its_exit():
    async def main():
        async def sore():
            try:
                await asyncio.Event().wait()
            finally:
                raise OSError("disk full")

        running = await hosted(sore).start(1, None)
        await asyncio.sleep(0)
        how = await running.stop(Shutdown(), 1)
        assert isinstance(how, Error)
        assert isinstance(how.error, OSError)

    run(main())


def test_start_waits_until_the_child_is_ready():
    async def main():
        async def slow():
            await asyncio.sleep(3)
            ready()
            ready()
            await forever()

        running = await hosted(slow, ready=True).start(1, None)
        assert asyncio.get_running_loop().time() == pytest.approx(3)
        await running.stop(Shutdown(), 1)

    run(main())


@pytest.mark.parametrize(
    ("error", "raised"), [(ValueError("bad key"), ValueError), (SystemExit(1), StartError), (None, StartError)]
)
def test_a_child_that_ends_before_it_is_ready_has_not_started(error, raised):
    async def main():
        async def early():
            if error is not None:
                raise error

        with pytest.raises(raised) as caught:
            await hosted(early, ready=True).start(1, None)
        if raised is StartError:
            assert caught.value.fault.code == "ACTOR_START_FAILED"
            assert caught.value.__cause__ is error

    run(main())


def test_a_child_that_is_not_needed_does_not_run():
    async def main():
        async def unneeded():
            raise IgnoreStart

        assert await hosted(unneeded, ready=True).start(1, None) is None

    run(main())


@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize("restart", ["permanent", "transient", "temporary"])
def test_a_child_that_finds_out_by_itself_that_it_is_not_needed_ends_alone(restart, waits, caplog):
    starts = []

    async def mirror():
        starts.append("mirror")
        if waits:
            await asyncio.sleep(1)
        raise IgnoreStart

    async def main():
        with caplog.at_level("DEBUG", "holdfast"):
            async with Supervisor("team", max_restarts=0) as team:
                await team.start(mirror, restart=restart)
                await team.start(forever)
                await asyncio.sleep(10)
                return [(child.id, child.state) for child in await team.which_children()]

    listed = [] if restart == "temporary" else [("mirror", "stopped")]
    assert run(main()) == [*listed, ("forever", "running")]
    assert starts == ["mirror"]
    assert "Traceback" not in caplog.text


def test_a_start_that_is_cancelled_leaves_nothing_of_the_child():
    async def main():
        ended = []

        async def never_ready():
            try:
                await forever()
            finally:
                ended.append(True)

        starting = asyncio.ensure_future(hosted(never_ready, ready=True).start(1, None))
        await asyncio.sleep(1)
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting
        assert ended == [True]

    run(main())


def test_ready_outside_of_a_child_starts_nobody_else():
    async def never_ready():
        await asyncio.Event().wait()

    async def main():
        starting = asyncio.ensure_future(hosted(never_ready, ready=True).start(1, None))
        await asyncio.sleep(1)
        ready()
        await asyncio.sleep(1)
        is_started = starting.done()
        starting.cancel()
        await asyncio.wait({starting})
        return is_started

    assert run(main()) is False


def test_a_handle_waits_for_the_end_for_good():
    async def main():
        host = hosted(forever)
        waiting = asyncio.ensure_future(host.ref.wait())
        other = asyncio.ensure_future(host.ref.wait())
        await asyncio.sleep(0)
        other.cancel()
        await asyncio.sleep(0)
        assert host.ref.exit is None
        host.close(Shutdown())
        assert await waiting == Shutdown() == host.ref.exit

    run(main())


# The spec as a value


def test_a_child_is_a_value_with_a_repr_that_can_be_read():
    child = Child(forever, restart="transient", shutdown=2)
    assert repr(child) == "Child(forever, restart='transient', shutdown=2)"
    assert child == Child(forever, restart="transient", shutdown=2)
    assert child != child.replace(restart="permanent")
    assert child.replace("a").args == ("a",)
    with pytest.raises(AttributeError, match="replace"):
        child.restart = "permanent"


@pytest.mark.parametrize(
    "options",
    [
        {"restart": "sometimes"},
        {"shutdown": -1},
        {"shutdown": "soft"},
        {"shutdown": True},
        {"significant": True},
        {"significant": True, "restart": "permanent"},
        {"significant": 1, "restart": "transient"},
        {"backoff": 3},
        {"reset_after": 0},
        {"start_timeout": 0},
        {"ready": "yes"},
        {"id": " "},
        {"on": {"AUTH_FAILD": "stop"}},
    ],
)
def test_A6_A38_a_wrong_option_is_rejected_where_it_is_written(options):
    with pytest.raises(ValueError):
        Child(forever, **options)


def test_an_instance_is_no_factory():
    with pytest.raises(InvalidError, match="never an instance"):
        Child(42)
