"""Observe mode: every form of a recovery is a plain call, and one event says what would have been done about it."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from recover_kit import Always, Flaky, World, reset

from holdfast import Budget, Circuit, Err, InvalidError, Ok, Policy, Runtime, recover
from holdfast.config import Config, ConfigError, load, read
from holdfast.events import Observed, SuppressedError
from holdfast.runtime import use_runtime
from holdfast.runtime.operation.observation import Observation
from holdfast.testing import VirtualClock, run, script


def observing(**options: Any) -> World:
    return World(mode="observe", **options)


def observed(world: World) -> list[Observed]:
    return [event for event in world.events if isinstance(event, Observed)]


# --- the plain call ---


def test_a_failure_passes_as_the_same_object_with_nothing_on_it() -> None:
    world, error = observing(), reset()
    work = Flaky(error)
    with pytest.raises(ConnectionResetError) as failed:
        world.recover("a").call(work)
    assert failed.value is error
    assert not vars(error)
    assert (work.calls, world.now) == (1, 0.0)
    (event,) = world.events
    assert isinstance(event, Observed)
    assert (event.outcome, event.would, event.operation) == ("failed", "retry", "a")
    assert event.delay > 0
    assert event.fault is not None
    assert event.fault.code == "CONN_RESET"


def test_every_form_is_a_plain_call_and_is_observed() -> None:
    world = observing()
    policy = Policy(timeout=1, concurrency=1, circuit=Circuit(failures=1))
    recovery = world.recover("a", policy, accept=lambda _: False)

    async def main() -> None:
        decorated = recovery(Always(reset, takes=5).acall)
        decorated.fallback(Flaky(value="other").acall)
        with pytest.raises(ConnectionResetError):
            await decorated()
        assert isinstance(await decorated.outcome(), Err)
        assert isinstance(await recovery(Flaky(takes=5).acall).outcome(), Ok)
        with pytest.raises(ConnectionResetError):
            async for attempt in world.recover("a", policy):
                async with attempt:
                    await asyncio.sleep(5)
                    raise reset()

        async def numbers() -> Any:
            await asyncio.sleep(5)
            yield 1
            raise reset()

        got = []
        with pytest.raises(ConnectionResetError):
            async with recovery.stream(numbers, first=1, idle=1, total=1)() as stream:
                async for number in stream:
                    got.append(number)  # noqa: PERF401 - it must be there when the rest fails
        assert got == [1]

    world.run(main())
    with pytest.raises(ConnectionResetError):
        for attempt in world.recover("a", policy):
            with attempt:
                raise reset()
    assert recovery.outcome(Flaky(value=3)).unwrap() == 3
    assert world.now == 25.0
    assert [event.outcome for event in observed(world)] == [*["failed"] * 2, "answered", *["failed"] * 3, "answered"]
    assert len(world.events) == 7


def test_a_method_and_a_lambda_of_a_coroutine_are_observed() -> None:
    world = observing()

    class Agent:
        @world.recover("a")
        async def ask(self, question: str) -> str:
            return question

    async def main() -> None:
        assert await Agent().ask("hi") == "hi"
        assert await world.recover("a").call(lambda: Agent().ask("ho")) == "ho"

    world.run(main())
    assert len(observed(world)) == 3  # the lambda's call, and the method's inside


def test_a_task_that_a_plain_function_returns_is_handed_on_as_it_is() -> None:
    world = observing()

    async def main() -> None:
        task = asyncio.ensure_future(asyncio.sleep(1, "x"))
        assert world.recover("a").call(lambda: task) is task
        assert await task == "x"

    world.run(main())


def test_a_cancelled_call_is_left() -> None:
    world = observing()

    async def main() -> None:
        task = asyncio.ensure_future(world.recover("a").call(Flaky(takes=9).acall))
        await asyncio.sleep(1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    world.run(main())
    assert [(event.outcome, event.took) for event in observed(world)] == [("left", 1.0)]


def test_a_budget_neither_limits_nor_counts_an_observed_call_and_holds_inside_for_others() -> None:
    world = observing()
    inner = recover("b", runtime=Runtime(clock=world.clock, mode="recover"))
    with Budget(attempts=9) as budget:
        for _ in range(3):
            assert world.recover("a").call(lambda: "x") == "x"
        assert budget.spend().attempts == 0
        # A plain call is no scope of its own: the call that recovers inside it is charged to the budget around.
        assert world.recover("a").call(lambda: inner.call(lambda: "y")) == "y"
        assert budget.spend().attempts == 1


def test_the_real_circuit_learns_nothing() -> None:
    world = observing()
    recovery = world.recover("a", Policy(circuit=Circuit(failures=1)))
    for _ in range(5):
        with pytest.raises(ConnectionResetError):
            recovery.call(Always(reset))
    assert world.runtime.registry.get("provider:a").is_closed
    world.runtime.mode = "recover"
    assert recovery.call(Flaky()) == "ok"


# --- what would have been done ---


def test_an_open_circuit_in_the_shadow_is_a_harm_for_the_calls_that_are_answered() -> None:
    world = observing()
    recovery = world.recover("a", Policy(circuit=Circuit(failures=2, open_for=30), wait_for_circuit=False))
    for _ in range(2):
        with pytest.raises(ConnectionResetError):
            recovery.call(Always(reset))
    assert recovery.call(Flaky()) == "ok"
    last = observed(world)[-1]
    assert (last.outcome, last.would, last.reason) == ("answered", "reject", "CIRCUIT_OPEN")
    world.clock.sleep(31)
    assert recovery.call(Flaky()) == "ok"  # the probe
    assert recovery.call(Flaky()) == "ok"
    assert [event.would for event in observed(world)[-2:]] == ["nothing", "nothing"]


def test_a_slow_answer_would_have_been_stopped() -> None:
    world = observing()
    recovery = world.recover("a", Policy(timeout=3))
    assert world.run(recovery.call(Flaky(takes=9).acall)) == "ok"
    assert world.run(recovery.call(Flaky(takes=2).acall)) == "ok"
    assert recovery.call(Flaky(takes=9)) == "ok"  # nothing stops a plain function
    assert [(event.outcome, event.stops) for event in observed(world)] == [
        ("answered", 3.0),
        ("answered", None),
        ("answered", None),
    ]


@pytest.mark.parametrize(
    ("steps", "would", "reason"),
    [("401", "give-up", "permanent"), ("429;retry-after=7", "retry", ""), ("503", "retry", "")],
)
def test_what_would_have_been_done_about_a_failure(steps: str, would: str, reason: str) -> None:
    world = observing()
    with pytest.raises(Exception, match="HTTP"):
        world.recover("a").call(script(steps))
    (event,) = observed(world)
    assert (event.would, event.reason) == (would, reason)


def test_a_fallback_is_named_and_not_called() -> None:
    world = observing()
    other = Flaky(value="other")
    ask = world.recover("a")(Always(lambda: PermissionError("401 unauthorized")))
    ask.fallback(other)
    with pytest.raises(PermissionError):
        ask()
    assert observed(world)[-1].would in {"fall-back", "give-up"}
    assert other.calls == 0


def test_a_defect_in_the_shadow_is_reported_once_and_never_breaks_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    world = observing()
    monkeypatch.setattr(Observation, "_end", lambda self, outcome: 1 / 0)
    assert [world.recover("a").call(abs, n) for n in range(3)] == [0, 1, 2]
    with pytest.raises(ConnectionResetError):
        world.recover("a").call(Always(reset))
    assert [type(event) for event in world.events] == [SuppressedError]


@settings(max_examples=60, deadline=None)
@given(
    outcomes=st.lists(
        st.sampled_from(["ok", "429;retry-after=7", "429", "529", "401", "503", "400", "reset"]), max_size=30
    ),
    pauses=st.lists(st.sampled_from([0.0, 0.1, 5.0, 70.0]), min_size=30, max_size=30),
    is_async=st.booleans(),
)
def test_random_outcomes_come_as_they_do_without_it(outcomes: list[str], pauses: list[float], is_async: bool) -> None:
    def play(*, wrapped: bool) -> list[tuple[str, float]]:
        clock = VirtualClock()
        service = script(", ".join([*outcomes, "ok"]))
        runtime = Runtime(clock=clock, mode="observe")
        call: Any = service.acall if is_async else service
        if wrapped:
            call = recover("claude", runtime=runtime)(call)
        seen = []
        for pause in pauses[: len(outcomes)]:
            try:
                value = run(call(), clock=clock) if is_async else call()
                seen.append((repr(value), clock.monotonic()))
            except Exception as error:
                seen.append((f"{error!r} {vars(error)}", clock.monotonic()))
            clock.sleep(pause)
        return seen

    assert play(wrapped=True) == play(wrapped=False)


# --- where the mode comes from ---


def test_an_unknown_mode_raises_and_lists_the_modes() -> None:
    with pytest.raises(InvalidError, match=r"runtime.mode: expected one of observe, off, recover, got 'watch'"):
        Runtime(mode="watch")  # type: ignore[arg-type]
    with pytest.raises(InvalidError, match="nothing beside mode='observe'"):
        Runtime(mode="observe", enabled=False)
    with pytest.raises(InvalidError, match=r"config.mode: expected one of observe, off, recover"):
        Config(mode="watch")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"targets.claude.mode: expected one of recover, observe, off, got 'on'"):
        read({"targets": {"claude": {"mode": "on"}}})


def test_the_environment_names_the_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_MODE", "observe")
    assert Runtime().mode == "observe"
    monkeypatch.setenv("HOLDFAST_ENABLED", "false")
    assert Runtime().mode == "off"
    monkeypatch.setenv("HOLDFAST_ENABLED", "")
    monkeypatch.setenv("HOLDFAST_MODE", "")
    assert Runtime().mode == "recover"
    monkeypatch.delenv("HOLDFAST_ENABLED")
    monkeypatch.setenv("HOLDFAST_MODE", "loud")
    with pytest.raises(InvalidError, match="HOLDFAST_MODE: expected one of observe, off, recover"):
        Runtime()
    with pytest.raises(ConfigError, match="HOLDFAST_MODE: expected one of recover, observe, off"):
        load()


def test_the_environment_wins_over_the_modes_of_the_file(tmp_path: Any) -> None:
    file = tmp_path / "holdfast.toml"
    file.write_text('mode = "recover"\n[targets.claude]\nmode = "recover"\nattempts = 2\n')
    loaded = load(file, environ={"HOLDFAST_MODE": "observe"})
    assert (loaded.mode, dict(loaded.modes), loaded.policy_of("claude").attempts) == ("observe", {}, 2)


def test_a_target_has_a_mode_of_its_own_and_off_is_off_for_all() -> None:
    world = observing()
    settings = read({"mode": "observe", "targets": {"claude": {"mode": "recover"}}})
    assert (settings.mode_of("claude"), settings.mode_of("gpt")) == ("recover", "observe")
    settings.apply(world.runtime)
    # Also with a policy in code: the mode is no option of a policy.
    claude = recover("claude", Policy(circuit=None), runtime=world.runtime)
    gpt = recover("gpt", Policy(circuit=None), runtime=world.runtime)
    assert claude.call(Flaky(reset())) == "ok"
    with pytest.raises(ConnectionResetError):
        gpt.call(Flaky(reset()))
    world.runtime.enabled = False
    with pytest.raises(ConnectionResetError):
        claude.call(Flaky(reset()))
    world.runtime.enabled = True
    assert world.runtime.mode == "observe"
    assert claude.call(Flaky(reset())) == "ok"


def test_settings_that_name_no_mode_leave_the_one_of_the_code_and_a_reload_changes_it() -> None:
    runtime = Runtime(mode="observe")
    read({}).apply(runtime)
    assert runtime.mode == "observe"
    read({"mode": "recover"}).apply(runtime)
    assert runtime.mode == "recover"
    read({}).apply(runtime)
    assert runtime.mode == "observe"
    read({"enabled": False, "mode": "observe"}).apply(runtime)
    assert runtime.mode == "off"


def test_a_reload_reaches_functions_that_are_decorated_already() -> None:
    runtime = Runtime(clock=VirtualClock())
    with use_runtime(runtime):
        ask = recover("claude")(Flaky(reset(), reset()))
        read({"mode": "observe"}).apply(runtime)
        with pytest.raises(ConnectionResetError):
            ask()
        read({"mode": "recover"}).apply(runtime)
        assert ask() == "ok"


def test_one_target_may_be_observed_alone() -> None:
    """Its shadow recovers, and is not observed itself."""
    world = World()
    world.runtime.set_modes(None, {"provider:a": "observe"})
    assert world.recover("a").call(Flaky()) == "ok"
    assert [event.outcome for event in observed(world)] == ["answered"]


# --- the user's own limits, accept and budgets ---


async def _many(recovery: Any, calls: int, takes: float = 1.0) -> None:
    await asyncio.gather(*(recovery.call(Flaky(takes=takes).acall) for _ in range(calls)))


def test_a_call_that_waiting_0_would_have_rejected() -> None:
    world = observing(defaults=True)
    world.run(_many(world.recover("a", Policy(concurrency=4, waiting=0)), 10))
    assert world.now == 1
    assert sorted(event.would for event in observed(world)) == ["nothing"] * 4 + ["reject"] * 6
    assert {event.reason for event in observed(world) if event.would == "reject"} == {"SYS_BULKHEAD_FULL"}


def test_calls_that_would_have_waited_for_a_start() -> None:
    world = observing(defaults=True)
    world.run(_many(world.recover("a", Policy(per_second=2)), 5))
    assert sorted(event.waits for event in observed(world)) == pytest.approx([0, 0.5, 1, 1.5, 2])


def test_calls_that_would_have_waited_for_a_place_as_far_as_it_is_known_by_then() -> None:
    world = observing(defaults=True)
    world.run(_many(world.recover("a", Policy(concurrency=2)), 6))
    assert sorted(event.waits for event in observed(world)) == pytest.approx([0, 0, 1, 1, 1, 1])


def test_a_wait_that_the_user_ends_would_have_been_a_rejection() -> None:
    world = observing(defaults=True)
    world.run(_many(world.recover("a", Policy(concurrency=1, patience=3.0)), 3, takes=5.0))
    assert [event.would for event in observed(world)] == ["nothing", "reject", "reject"]


@pytest.mark.parametrize("seed", range(30))
def test_what_would_have_waited_is_what_waits_when_it_is_switched_on(seed: int) -> None:
    rng = random.Random(seed)
    policy = Policy(concurrency=rng.choice([None, 1, 2, 3]), per_second=rng.choice([None, 0.5, 2.0]))
    calls = [(rng.uniform(0, 20), rng.uniform(0.1, 5)) for _ in range(25)]

    def waits(mode: Any) -> tuple[list[float], list[float]]:
        world = World(defaults=True, mode=mode)
        # Without a circuit there is no pace of its own that waits.
        recovery = world.recover("a", policy.replace(circuit=None))
        took: list[float] = []

        async def one(at: float, seconds: float) -> float:
            await asyncio.sleep(at)
            began = world.now
            await recovery.call(Flaky(takes=seconds).acall)
            return world.now - began - seconds

        async def main() -> list[float]:
            return await asyncio.gather(*(one(at, seconds) for at, seconds in calls))

        waited = world.run(main())
        ends = sorted((event.at - event.took, event.waits) for event in observed(world))
        took = [wait for _, wait in ends]
        return waited, took

    in_order = sorted(range(len(calls)), key=lambda number: calls[number][0])
    waited, _ = waits("recover")
    _, would = waits("observe")
    for number, guess in zip(in_order, would, strict=True):
        real, seconds = waited[number], calls[number][1]
        assert min(real, seconds) - 1e-6 <= guess <= real + 1e-6


@pytest.mark.parametrize("form", ["sync", "async"])
def test_accept_looks_at_the_answer_and_changes_nothing(form: str) -> None:
    def raises(answer: str) -> bool:
        raise LookupError(answer)

    for accept, is_accepted in ((lambda _: True, True), (lambda _: False, False), (raises, False)):
        world = observing(defaults=True)
        recovery = world.recover("a", accept=accept)
        if form == "sync":
            assert recovery.call(Flaky()) == "ok"
        else:
            assert world.run(recovery.call(Flaky().acall)) == "ok"
        (event,) = observed(world)
        assert (event.outcome, event.accepted) == ("answered", is_accepted)
        assert list(world.events) == [event]


def test_what_cannot_be_judged_is_named() -> None:
    world = observing(defaults=True)

    async def items() -> Any:
        yield 1

    async def main() -> None:
        with Budget(usd=0.02, runtime=world.runtime):
            await world.recover("a").call(Flaky().acall)
        await world.recover("b").call(Flaky().acall)
        async with world.recover("c").stream(items, idle=5.0)() as stream:
            assert [item async for item in stream] == [1]
        async with world.recover("d").stream(items)() as stream:
            assert [item async for item in stream] == [1]

    world.run(main())
    assert {event.operation: event.unjudged for event in observed(world)} == {
        "a": ("budget",),
        "b": (),
        "c": ("time limits of streams",),
        "d": (),
    }
