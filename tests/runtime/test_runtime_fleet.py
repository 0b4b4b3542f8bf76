"""Several runtimes that share what they learn: in virtual time, and with a real Redis that is killed, paused, flushed and back."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
from benchmarks.fleet import play, share_in_virtual_time

from holdfast import InvalidError, Policy, Runtime, recover
from holdfast.events import CircuitState, SharedStateBack, SharedStateLost
from holdfast.policies.circuit import BRIDGE
from holdfast.policies.fleet import FleetTarget
from holdfast.policies.fleet_options import SharedOptions
from holdfast.runtime.fleet.link import FleetLink
from holdfast.runtime.fleet.shared_state import SharedStateError
from holdfast.stores.shared_state.local import LocalState
from holdfast.stores.shared_state.redis import RedisState
from holdfast.testing import ScriptedHTTPError, VirtualClock, run
from holdfast.testing.redis import PrivateRedis

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SOAK = bool(os.environ.get("HOLDFAST_SOAK"))


def until(condition: Callable[[], Any], seconds: float = 20.0) -> None:
    """Wait for something that another thread does."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it never happened"
        time.sleep(0.005)


def limited() -> None:
    raise ScriptedHTTPError(429)


def meet_limits(runtime: Runtime, count: int = 6) -> None:
    for _ in range(count):
        with pytest.raises(ScriptedHTTPError):
            recover("claude", Policy(attempts=1), runtime=runtime).call(limited)


def known(engine: RedisState) -> FleetTarget:
    """Return what the engine has; nothing where a loaded machine was too slow for the engine's time limit."""
    try:
        return engine.targets().get("provider:claude", FleetTarget(epoch=0))
    except SharedStateError:
        return FleetTarget(epoch=0)


# --- virtual time ---


@pytest.mark.parametrize("processes", [1, 4])
def test_a_fleet_uses_a_limit_that_nobody_told_it(processes: int) -> None:
    shared = play("shared", processes, seconds=900 if SOAK else 200)
    assert shared.used >= 0.88
    assert shared.jain >= 0.98
    assert shared.rejected <= (0.05 if SOAK else 0.15)


def test_without_sharing_most_requests_of_a_fleet_are_in_vain() -> None:
    shared, unshared = play("shared", 4, seconds=150), play("unshared", 4, seconds=150)
    assert shared.rejected < 0.3 * unshared.rejected
    assert sum(shared.service.answered) >= 0.85 * sum(unshared.service.answered)  # type: ignore[union-attr]


def test_nothing_is_sent_per_call_while_all_is_well() -> None:
    busy = play("shared", 4, per_s=1000.0, burst=1000.0, offered=0.02, seconds=60)
    assert sum(busy.service.sent) > 1000  # type: ignore[union-attr]
    assert busy.messages < 3
    assert busy.rejected < 0.02


def test_one_process_looks_for_all_and_all_come_back_at_once() -> None:
    together = play("shared", 4, per_s=20.0, burst=20.0, offered=0.2, seconds=60, down=(10.0, 40.0))
    alone = play("unshared", 4, per_s=20.0, burst=20.0, offered=0.2, seconds=60, down=(10.0, 40.0))
    assert together.service is not None
    assert alone.service is not None
    assert together.service.first_answer <= 43.0
    assert together.service.requests_while_down <= alone.service.requests_while_down * 1.05


def test_what_an_engine_loses_for_a_minute_costs_no_more_than_not_sharing() -> None:
    class Away(LocalState):
        def change(self, name: str, step: Any) -> Any:
            if 60 <= clock.monotonic() < 120:
                raise SharedStateError("away")
            return super().change(name, step)

    clock = VirtualClock()
    engine = Away(clock=clock.monotonic)
    answered: list[float] = []
    sent: list[float] = []

    async def whole() -> None:
        left, at = 4.0, 0.0

        async def call() -> None:
            nonlocal left, at
            now = clock.monotonic()
            left, at = min(4.0, left + 2.0 * (now - at)), now
            sent.append(now)
            if left < 1:
                raise ScriptedHTTPError(429)
            left -= 1
            await asyncio.sleep(0.2)
            answered.append(now)

        async def worker(runtime: Runtime) -> None:
            while True:
                try:
                    await recover("claude", runtime=runtime).call(call)
                except ScriptedHTTPError:
                    await asyncio.sleep(1)

        runtimes = [Runtime(clock=clock) for _ in range(4)]
        tasks: list[asyncio.Task[Any]] = [share_in_virtual_time(runtime, engine) for runtime in runtimes]
        tasks += [asyncio.create_task(worker(runtime)) for runtime in runtimes for _ in range(5)]
        await asyncio.sleep(200)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    run(whole(), clock=clock)
    before, away, after = (
        (sum(low <= at < high for at in answered), sum(low <= at < high for at in sent))
        for low, high in ((30, 60), (65, 115), (130, 190))
    )
    assert away[0] >= 0.75 * 100
    assert away[1] - away[0] <= 0.15 * away[1]
    assert after[0] >= 0.75 * 120
    assert before[0] >= 0.9 * 60


# --- real Redis ---


@pytest.fixture
def server() -> Iterator[PrivateRedis]:
    with PrivateRedis() as server:
        yield server


def test_what_one_process_learns_another_knows(server: PrivateRedis) -> None:
    one, other = Runtime(shared=server.url), Runtime(shared=server.url)
    engine = RedisState(server.url)
    meet_limits(one)
    # A process that is not used asks no further: the other one comes when there is something to learn.
    until(lambda: known(engine).rejected == 6)
    meet_limits(other, 1)
    state = other.registry.get("provider:claude")
    until(lambda: state.share is not None and state.share.is_held)
    until(lambda: known(engine).rejected == 7 and len(known(engine).members) == 2)
    engine.close()


def test_no_call_waits_for_an_engine_that_is_paused(server: PrivateRedis) -> None:
    heard: list[Any] = []
    runtime = Runtime(shared=server.url)
    runtime.on(heard.append, SharedStateLost, SharedStateBack)
    meet_limits(runtime)
    state = runtime.registry.get("provider:claude")
    until(lambda: state.share is not None and state.share.has_pace)
    server.pause()
    meet_limits(runtime, 1)
    until(lambda: any(isinstance(event, SharedStateLost) for event in heard))
    # The engine answers nothing, and calls go on.
    began = time.monotonic()
    assert recover("other", runtime=runtime).call(lambda: "fine") == "fine"
    assert time.monotonic() - began < 1.0
    server.resume()
    meet_limits(runtime, 1)
    until(lambda: any(isinstance(event, SharedStateBack) for event in heard))
    assert [type(event) for event in heard] == [SharedStateLost, SharedStateBack]
    assert "socket" in heard[0].place


def test_an_engine_that_was_restarted_is_seeded_by_what_its_processes_knew(server: PrivateRedis) -> None:
    runtime = Runtime(shared=server.url)
    meet_limits(runtime)
    state = runtime.registry.get("provider:claude")
    until(lambda: state.share is not None and state.share.is_held)
    server.kill()
    server.start()
    engine = RedisState(server.url)

    def is_seeded() -> bool:
        meet_limits(runtime, 1)
        target = known(engine)
        return target.pace is not None and target.gate.is_held

    until(is_seeded)
    engine.close()


def test_a_process_that_is_killed_leaves_no_probe_and_no_turn_behind(server: PrivateRedis) -> None:
    child = multiprocessing.get_context("spawn").Process(target=_member, args=(server.url,))
    child.start()
    engine = RedisState(server.url)
    until(lambda: known(engine).rejected)
    assert child.pid is not None
    os.kill(child.pid, signal.SIGKILL)
    child.join(10)
    runtime = Runtime(shared=server.url)
    meet_limits(runtime)
    state = runtime.registry.get("provider:claude")
    until(lambda: state.share is not None and state.share.is_held)
    policy = Policy(deadline=20)
    assert recover("claude", policy, runtime=runtime).call(lambda: "answered") == "answered"
    engine.close()


def _member(url: str) -> None:
    runtime = Runtime(shared=url)
    meet_limits(runtime)
    time.sleep(60)


def linked(engine: Any) -> tuple[Runtime, list[str | None]]:
    heard: list[str | None] = []
    runtime = Runtime()
    runtime.link = FleetLink(lambda: engine, time.monotonic, heard.append, SharedOptions())
    runtime.registry.share(runtime.link)
    return runtime, heard


def test_an_engine_that_answers_nothing_holds_no_call_up() -> None:
    class Stuck(LocalState):
        def change(self, name: str, step: Any) -> Any:
            if is_stuck.is_set():
                goes_on.wait(30)
            return super().change(name, step)

    is_stuck, goes_on = threading.Event(), threading.Event()
    runtime, _ = linked(Stuck())
    meet_limits(runtime)
    state = runtime.registry.get("provider:claude")
    share = state.share
    assert share is not None
    until(lambda: share.is_held)
    is_stuck.set()
    meet_limits(runtime, 1)
    until(lambda: share.is_alone(time.monotonic()))
    began = time.monotonic()
    assert recover("claude", Policy(deadline=20), runtime=runtime).call(lambda: "fine") == "fine"
    assert time.monotonic() - began < 15
    goes_on.set()
    is_stuck.clear()
    until(lambda: not share.is_alone(time.monotonic()))


def test_whatever_an_engine_raises_calls_go_on_and_the_thread_too() -> None:
    class Broken(LocalState):
        is_broken = True

        def change(self, name: str, step: Any) -> Any:
            if self.is_broken:
                raise ValueError("not what a client should raise")
            return super().change(name, step)

    engine = Broken()
    runtime, heard = linked(engine)
    meet_limits(runtime)
    until(lambda: heard)
    assert heard == ["ValueError"]
    engine.is_broken = False
    until(lambda: len(heard) > 1)
    assert heard == ["ValueError", None]
    # What was not told in between is told now.
    assert engine.targets()["provider:claude"].rejected == 6


def test_targets_may_be_made_while_the_link_reports() -> None:
    runtime, heard = linked(LocalState())
    meet_limits(runtime)
    share = runtime.registry.get("provider:claude").share
    assert share is not None
    for number in range(3000):
        runtime.registry.get(f"provider:p{number}")
        share.report_due(time.monotonic())
    state = runtime.registry.get("provider:claude")
    until(lambda: state.share is not None and state.share.is_held)
    assert heard == []


def test_a_fork_is_another_process(server: PrivateRedis) -> None:
    runtime = Runtime(shared=server.url)
    meet_limits(runtime)
    engine = RedisState(server.url)
    until(lambda: len(known(engine).members) == 1)
    pid = os.fork()
    if pid == 0:
        try:
            meet_limits(runtime, 1)
            link = runtime.link
            assert link is not None
            time.sleep(1.0)
            os._exit(0)
        finally:
            os._exit(1)
    until(lambda: len(known(engine).members) == 2)
    assert os.waitpid(pid, 0)[1] == 0
    # The parent's connection still works.
    rejected = known(engine).rejected
    meet_limits(runtime, 1)
    until(lambda: known(engine).rejected > rejected)
    engine.close()


def test_a_runtime_that_nobody_uses_ends_its_thread() -> None:
    before = set(threading.enumerate())
    runtimes = [Runtime(shared="local:ends")]
    meet_limits(runtimes[0])
    until(lambda: _links() - before)
    mine = _links() - before
    runtimes.clear()
    until(lambda: not any(thread.is_alive() for thread in mine), 30)


def _links() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "holdfast-shared"}


# --- what is shared, and what is not ---


def test_nothing_is_shared_unless_somebody_says_so() -> None:
    runtime = Runtime()
    meet_limits(runtime)
    assert runtime.registry.get("provider:claude").share is None
    assert runtime.link is None


def test_tools_and_agents_are_a_process_s_own() -> None:
    runtime = Runtime(shared="local:own")
    for name in ("tool:bash", "agent:coder", "service:disk"):
        assert runtime.registry.get(name).share is None
    for name in ("provider:claude", "model:claude/opus", "key:claude/team-a", "quota:org"):
        assert runtime.registry.get(name).share is not None


def test_circuits_may_stay_apart() -> None:
    runtime = Runtime(shared=SharedOptions(url="local:apart", circuits=False))
    for _ in range(5):
        with pytest.raises(ConnectionError):
            recover("claude", Policy(attempts=1, circuit=BRIDGE), runtime=runtime).call(_refused)
    state = runtime.registry.get("provider:claude")
    assert state.share is not None
    report = state.report_shared(state.share, "a", 0.0)
    assert (state.circuit_state(runtime.clock.monotonic()) is CircuitState.OPEN, report.is_away) == (True, False)


def _refused() -> None:
    raise ConnectionRefusedError


@pytest.mark.parametrize("url", ["", "memcached://x", "redis", "http://user:secret@x"])
def test_an_address_of_another_kind_is_refused_without_showing_it(url: str) -> None:
    if not url:
        assert Runtime(shared=url).link is None
        return
    with pytest.raises(InvalidError) as raised:
        Runtime(shared=url)
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize("options", [{"namespace": "a b"}, {"namespace": ""}, {"limits": 1}, {"url": 3}])
def test_wrong_options_are_refused(options: Any) -> None:
    with pytest.raises(InvalidError, match=next(iter(options))):
        SharedOptions(**options)
