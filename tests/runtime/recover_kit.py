"""What the tests of `recover` share: a runtime in virtual time whose events are recorded, and a way to cancel at every await."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Generator
from typing import Any

from holdfast import INTERACTIVE, Circuit, Policy, Runtime, recover
from holdfast.events import AttemptEnded, AttemptStarted, Cancelled, CircuitState, Event
from holdfast.policies.circuit import GRADED, PROVIDER
from holdfast.runtime.ambient import AMBIENT
from holdfast.runtime.recover import Recovery
from holdfast.runtime.targets.target_state import TargetState
from holdfast.testing import Capture, Midpoint, VirtualClock, run

THREE = Policy(profile="stud", circuit=PROVIDER, timeout=60.0, deadline=120.0, wait_for_circuit=False)
"""Three attempts, six for rate limits, and a circuit that opens and closes: the numbers of the specifications."""


def exact(policy: Policy) -> Policy:
    """Return the policy with the numbers of `THREE` for what it leaves open, so that a test can count attempts and seconds."""
    return policy.replace(
        profile="stud" if policy.profile == "holdfast" else policy.profile,
        circuit=PROVIDER if policy.circuit is GRADED else policy.circuit,
        deadline=max(120.0, policy.timeout or 0.0) if policy.window == INTERACTIVE.window else policy.deadline,
        wait_for_circuit=bool(policy.wait_for_circuit),
    )


LOOSE = Circuit(failures=10_000, rate=None)
"""A circuit that counts calls and never opens by itself in a test."""


class World:
    """One runtime in virtual time. Jitter is pinned to the middle, so waits are the curve's own numbers.

    What a policy leaves open has exact numbers, unless the world is to have Holdfast's own defaults.
    """

    def __init__(self, *, defaults: bool = False, **options: Any) -> None:
        self.clock = VirtualClock()
        options.setdefault("rng", Midpoint())
        self.runtime = Runtime(clock=self.clock, **options)
        self.defaults = defaults
        if not defaults:
            self.runtime.configure(THREE, {})
        self.events = Capture()
        self.runtime.on(self.events)

    def recover(self, target: Any = None, policy: Policy | None = None, **options: Any) -> Recovery:
        if policy is not None and not self.defaults:
            policy = exact(policy)
        return recover(target, policy, runtime=self.runtime, **options)

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return run(coroutine, clock=self.clock)

    @property
    def now(self) -> float:
        return self.clock.monotonic()

    def state(self, name: str) -> TargetState:
        state = self.runtime.registry.known(name)
        assert state is not None, f"no target {name!r}; there are {[state.name for state in self.runtime.registry]}"
        return state

    def circuit_state(self, name: str) -> CircuitState:
        return self.state(name)._breaker.state(self.now)

    def of(self, kind: type[Any]) -> list[Any]:
        return self.events.of(kind)

    def waits(self) -> list[float]:
        """The seconds between the end of each attempt and the next, according to the events."""
        return [event.delay for event in self.events if type(event).__name__ == "Retry"]


def settled(state: TargetState) -> int:
    """The number of permits that came back, with whatever result."""
    breaker = state._breaker
    return breaker.successes + breaker.failures + breaker.ignored + breaker.cancelled


def probes_out(state: TargetState) -> int:
    return len(state._breaker._probes_out or ())


def assert_places_free(state: TargetState) -> None:
    limiter = state.limiter
    if limiter is not None:
        assert limiter._wakers == {}
        if limiter._places is not None:
            assert (limiter._places.running, limiter._places.waiting) == (0, 0)


class Flaky:
    """A callable that raises the given failures in turn, then answers; sync by calling, async by `acall`. It counts its calls."""

    def __init__(self, *failures: BaseException | type[BaseException], value: Any = "ok", takes: float = 0.0) -> None:
        self.failures = list(failures)
        self.value = value
        self.takes = takes
        self.calls = 0

    def __call__(self, *_: Any, **__: Any) -> Any:
        self.calls += 1
        if self.calls <= len(self.failures):
            raise self.failures[self.calls - 1]
        return self.value

    async def acall(self, *args: Any, **kwargs: Any) -> Any:
        await asyncio.sleep(self.takes)
        return self(*args, **kwargs)


class Always:
    """A callable that always fails, with a new exception each time; it keeps them."""

    def __init__(self, make: Callable[[], BaseException], *, takes: float = 0.0) -> None:
        self.make = make
        self.takes = takes
        self.raised: list[BaseException] = []

    @property
    def calls(self) -> int:
        return len(self.raised)

    def __call__(self, *_: Any, **__: Any) -> Any:
        error = self.make()
        self.raised.append(error)
        raise error

    async def acall(self, *args: Any, **kwargs: Any) -> Any:
        await asyncio.sleep(self.takes)
        return self(*args, **kwargs)


def reset() -> ConnectionResetError:
    return ConnectionResetError(104, "Connection reset by peer")


class _CancelledAt:
    """Awaits something and has the task cancelled at its n-th suspension."""

    def __init__(self, inner: Awaitable[Any], nth: int, cancel: Callable[[], None]) -> None:
        self._inner = inner
        self._nth = nth
        self._cancel = cancel
        self.suspensions = 0

    def __await__(self) -> Generator[Any, Any, Any]:
        steps = self._inner.__await__()
        send: Callable[[], Any] = lambda: next(steps)  # noqa: E731
        while True:
            try:
                waits_for = send()
            except StopIteration as end:
                return end.value
            self.suspensions += 1
            if self.suspensions == self._nth:
                asyncio.get_running_loop().call_soon(self._cancel)
            try:
                value = yield waits_for
            except BaseException as error:
                thrown = error
                send = lambda: steps.throw(thrown)  # noqa: B023, E731
            else:
                send = lambda: steps.send(value)  # type: ignore[attr-defined] # noqa: B023, E731


def cancel_everywhere(
    scenario: Callable[[World], Awaitable[Any]], *, names: tuple[str, ...], most: int = 60
) -> list[list[Event]]:
    """Run `scenario` once for each of its suspensions, cancelled there; check that nothing is left behind.

    Return the events of each cancelled run. `names` are the targets whose permits and places must have come back.
    """
    runs: list[list[Event]] = []
    for nth in range(1, most):
        world = World()
        if not world.run(_cancelled_run(world, scenario, nth, names)):
            assert runs, "the scenario never suspended"
            return runs
        runs.append(list(world.events))
    raise AssertionError(f"the scenario suspends more than {most} times")


async def _cancelled_run(
    world: World, scenario: Callable[[World], Awaitable[Any]], nth: int, names: tuple[str, ...]
) -> bool:
    """Return whether the scenario got as far as its n-th suspension."""
    seen: dict[str, Any] = {}

    async def victim() -> None:
        task = asyncio.current_task()
        assert task is not None

        def cancel() -> None:
            seen["before"] = len(world.events)
            task.cancel()

        watched = _CancelledAt(scenario(world), nth, cancel)
        try:
            await watched
        except asyncio.CancelledError:
            seen["cancelled"] = True
            assert task.cancelling() == 1, "the cancellation of the caller was taken back or requested twice"
            task.uncancel()
        seen["suspensions"] = watched.suspensions
        assert AMBIENT.get() is None
        # A limit that was not ended would cancel this.
        await asyncio.sleep(10_000)

    task = asyncio.create_task(victim())
    await asyncio.wait([task])
    task.result()
    if "before" not in seen:
        return False
    assert seen.get("cancelled"), f"cancelled at suspension {nth}, but no CancelledError came out"
    after = [type(event) for event in list(world.events)[seen["before"] :]]
    assert after in ([Cancelled], []), f"cancelled at suspension {nth}: {after}"
    assert asyncio.all_tasks() == {asyncio.current_task()}
    for name in names:
        state = world.runtime.registry.known(name)
        if state is not None:
            begun = len([event for event in world.of(AttemptStarted) if event.via == "primary"])
            outs = min(begun, 1) if getattr(scenario, "per_operation", False) else begun
            assert settled(state) == outs, f"cancelled at suspension {nth}: {outs} permits, {settled(state)} settled"
            failed = [event for event in world.of(AttemptEnded) if event.fault is not None]
            assert state._breaker.failures <= len(failed)
            assert probes_out(state) == 0
            assert_places_free(state)
    return True
