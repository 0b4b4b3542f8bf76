"""Every kind of callable recovers: functions, methods, partials, objects, and whatever they return."""

from __future__ import annotations

import asyncio
import functools
import gc
import inspect
import pickle
from typing import Any

import pytest
from recover_kit import LOOSE, Always, World, reset

from holdfast import (
    Circuit,
    CircuitOpenError,
    DeadlineError,
    InvalidError,
    Policy,
    recover,
    tool,
)
from holdfast.events import (
    Recovered,
)


class AsyncCallable:
    def __init__(self) -> None:
        self.calls = 0

    async def __call__(self, value: str, *, twice: bool = False) -> str:
        self.calls += 1
        await asyncio.sleep(0)
        if self.calls == 1:
            raise reset()
        return value * (1 + twice)

    async def method(self, value: str, *, twice: bool = False) -> str:
        return await self(value, twice=twice)

    def gives_coroutine(self, value: str, *, twice: bool = False) -> Any:
        return self(value, twice=twice)

    def gives_future(self, value: str, *, twice: bool = False) -> Any:
        return asyncio.ensure_future(self(value, twice=twice))

    def gives_awaitable(self, value: str, *, twice: bool = False) -> Any:
        return Awaitable(self, value, twice=twice)


class Awaitable:
    def __init__(self, fn: Any, *args: Any, **kwargs: Any) -> None:
        self._made = functools.partial(fn, *args, **kwargs)

    def __await__(self) -> Any:
        return self._made().__await__()


CALLABLES = {
    "partial of an async function": lambda thing: functools.partial(AsyncCallable.method, thing),
    "partial of an async callable": lambda thing: functools.partial(thing),  # noqa: PLW0108 - as all the others
    "callable object": lambda thing: thing,
    "bound async method": lambda thing: thing.method,
    "sync function that returns a coroutine": lambda thing: thing.gives_coroutine,
    "sync function that returns a future": lambda thing: thing.gives_future,
    "sync function that returns an awaitable": lambda thing: thing.gives_awaitable,
    "lambda": lambda thing: lambda value, twice=False: thing(value, twice=twice),
}


@pytest.mark.parametrize("kind", CALLABLES)
@pytest.mark.parametrize("form", ["call", "decorated", "outcome"])
def test_R23_every_kind_of_async_callable_is_awaited_and_leaks_no_coroutine(kind: str, form: str) -> None:
    world = World()
    thing = AsyncCallable()
    fn = CALLABLES[kind](thing)
    recovery = world.recover("a", Policy(circuit=LOOSE))

    async def main() -> Any:
        match form:
            case "call":
                return await recovery.call(fn, "hi", twice=True)
            case "decorated":
                return await recovery(fn)("hi", twice=True)
            case _:
                outcome = await recovery.outcome(fn, "hi", twice=True)
                assert [attempt.code for attempt in outcome.attempts] == ["CONN_RESET", None]
                return outcome.unwrap()

    assert world.run(main()) == "hihi"
    gc.collect()  # a coroutine that was never awaited would warn here, and warnings are errors
    assert thing.calls == 2
    assert world.waits() == [1]
    state = world.state("provider:a")
    assert (state._breaker.successes, state._breaker.failures) == (1, 1)


def test_R23_an_awaitable_result_has_the_time_limit_and_the_limiter_too() -> None:
    world = World()
    running = most = 0

    async def slow() -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        try:
            await asyncio.sleep(3)
        finally:
            running -= 1

    async def main() -> None:
        recovery = world.recover("a", Policy(timeout=5, concurrency=2))
        await asyncio.gather(*(recovery.call(lambda: slow()) for _ in range(6)))  # noqa: PLW0108 - it must look sync
        assert world.now == 9
        with pytest.raises(DeadlineError):
            await world.recover("b", Policy(timeout=1, attempts=1)).call(lambda: slow())  # noqa: PLW0108 - a lambda is a plain function that returns an awaitable, which is tested here

    world.run(main())
    assert most == 2


def test_R23_an_awaitable_result_falls_back() -> None:
    world = World()
    decorated = world.recover("a")(lambda: Always(reset).acall())
    decorated.fallback(lambda: "other")

    async def main() -> Any:
        return await decorated(), (await decorated.outcome()).via

    assert world.run(main()) == ("other", "<lambda>")


def test_R23_an_open_circuit_raises_before_there_is_an_awaitable() -> None:
    world = World()
    thing = AsyncCallable()
    recovery = world.recover("a", Policy(circuit=Circuit(mode="forced-open")))
    with pytest.raises(CircuitOpenError):
        recovery.call(thing.gives_coroutine, "hi")
    assert thing.calls == 0


@recover("pickled")
async def an_async_function(first: int, *, second: str = "x") -> str:
    """What it does."""
    return f"{first}{second}"


@recover("pickled")
def a_function(first: int, *, second: str = "x") -> str:
    """What it does."""
    return f"{first}{second}"


@recover
def bare(first: int) -> int:
    return first


@pytest.mark.parametrize("fn", [a_function, an_async_function, bare])
def test_API_decorated_functions_stay_real_functions(fn: Any) -> None:
    assert inspect.isfunction(fn)
    assert inspect.iscoroutinefunction(fn) == (fn is an_async_function)
    assert fn.__module__ == __name__
    assert pickle.loads(pickle.dumps(fn)) is fn
    assert next(iter(inspect.signature(fn).parameters)) == "first"
    if fn is not bare:
        assert fn.__doc__ == "What it does."
        assert str(inspect.signature(fn)) == "(first: 'int', *, second: 'str' = 'x') -> 'str'"


def test_API_methods_static_methods_and_class_methods_recover() -> None:
    world = World()
    failing = iter([True, False] * 3)

    def failures() -> None:
        if next(failing):
            raise reset()

    class Agent:
        kind = "agent"

        def __init__(self, name: str) -> None:
            self.name = name

        @world.recover("a")
        def plain(self) -> str:
            failures()
            return self.name

        @classmethod
        @world.recover("a")
        def of_class(cls) -> str:
            failures()
            return cls.kind

        @staticmethod
        @world.recover("a")
        def of_nobody(value: str) -> str:
            failures()
            return value

        @world.recover("a")
        @staticmethod
        def outermost(value: str) -> str:
            return value

        @world.recover("a")
        @classmethod
        def outermost_of_class(cls) -> str:
            raise reset()

        @outermost_of_class.fallback
        def other(cls) -> str:  # noqa: N805 - it gets what the class method gets
            return f"other {cls.kind}"

        @recover
        @classmethod
        def bare(cls) -> str:
            return cls.kind

    agent = Agent("me")
    assert (agent.outermost("z"), agent.bare(), agent.outermost_of_class()) == ("z", "agent", "other agent")
    assert (agent.plain(), Agent.of_class(), agent.of_nobody("x")) == ("me", "agent", "x")
    assert Agent.outermost("y") == "y"
    assert len(world.of(Recovered)) == 4


def test_API_decorating_a_generator_function_is_an_error() -> None:
    async def stream() -> Any:
        yield 1

    def plain() -> Any:
        yield 1

    for fn in (stream, plain, functools.partial(stream)):
        for use in (recover("a"), recover("a").call, recover("a").outcome):
            with pytest.raises(InvalidError, match="stream"):
                use(fn)  # type: ignore[operator] # three shapes of one thing


@pytest.mark.parametrize("form", ["call", "outcome"])
@pytest.mark.parametrize("contract", [None, tool(effect="read")])
def test_a_recovery_without_a_target_has_one_circuit_for_all_its_calls(form: str, contract: Any) -> None:
    recovery = World().recover(policy=Policy(attempts=1, circuit=Circuit(failures=2, rate=None)))

    def fails() -> None:
        raise reset()

    fn = fails if contract is None else contract(fails)
    errors: list[Any] = []
    for _ in range(3):
        if form == "outcome":
            errors.append(recovery.outcome(fn).error)  # type: ignore[union-attr] # it always fails
        else:
            with pytest.raises((ConnectionResetError, CircuitOpenError)) as failed:
                recovery.call(fn)
            errors.append(failed.value)
    assert [type(error) for error in errors] == [ConnectionResetError, ConnectionResetError, CircuitOpenError]
