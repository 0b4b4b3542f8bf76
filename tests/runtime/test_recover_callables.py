"""Every kind of callable recovers: functions, methods, partials, objects, and whatever they return."""

from __future__ import annotations

import asyncio
import functools
import gc
import inspect
import pickle
import sys
import types
from typing import Any

import pydantic
import pytest
from recover_kit import LOOSE, Always, Flaky, World, reset

from holdfast import (
    INTERACTIVE,
    PATIENT,
    Circuit,
    CircuitOpenError,
    DeadlineError,
    Hedge,
    InvalidError,
    Ok,
    Policy,
    Runtime,
    recover,
    tool,
)
from holdfast.events import (
    Recovered,
)
from holdfast.runtime.operation.recovery_warnings import RecoveryWarning


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


class Asker:
    """Its decorated methods are looked at from every side."""

    kind = "asker"

    def __init__(self, name: str) -> None:
        self.name = name

    @recover("asker")
    def ask(self, question: str, *, times: int = 1) -> str:
        """Ask."""
        return f"{self.name}: {question * times}"

    @recover("asker")
    async def ask_later(self, question: str = "hi") -> str:
        return f"{self.name}: {question}"

    @recover("asker")
    @classmethod
    def of_class(cls, question: str) -> str:
        return f"{cls.kind}: {question}"

    @classmethod
    @recover("asker")
    def inner(cls, question: str) -> str:
        return f"{cls.kind}: {question}"

    @recover("asker")
    @staticmethod
    def of_nobody(question: str) -> str:
        return question

    @staticmethod
    @recover("asker")
    def inner_static(question: str) -> str:
        return question

    @recover("asker", Policy(attempts=1, circuit=None))
    def fails(self, question: str) -> str:
        raise reset()

    @fails.fallback
    def other(self, question: str) -> str:
        return f"other {self.name}: {question}"


class Heir(Asker):
    kind = "heir"

    def ask(self, question: str, *, times: int = 1) -> str:
        return f"heir of {super().ask(question, times=times)}"


def test_FR6_outcome_is_bound_to_the_object_or_the_class() -> None:
    me = Asker("me")
    assert me.ask.outcome("hi", times=2) == Ok("me: hihi", attempts=me.ask.outcome("hi").attempts)
    assert asyncio.run(me.ask_later.outcome("x")).value == "me: x"
    assert Asker.ask.outcome(me, "hi").value == me.ask.outcome("hi").value == me.ask("hi") == "me: hi"
    assert Heir.of_class.outcome("a").value == Heir("me").of_class.outcome("a").value == Heir.of_class("a") == "heir: a"
    assert Asker.of_nobody.outcome("b").value == me.of_nobody.outcome("b").value == me.of_nobody("b") == "b"
    assert Asker.inner_static.outcome("b").value == me.inner_static.outcome("b").value == me.inner_static("b") == "b"
    assert Heir.inner("a") == "heir: a"
    if sys.version_info < (3, 13):
        assert Heir.inner.outcome("a").value == "heir: a"
    else:
        # From then on `@classmethod` on the outside binds by itself.
        with pytest.raises(InvalidError, match="above @classmethod"):
            Heir.inner.outcome("a")
    assert (me.fails("x"), me.fails.outcome("x").value, me.fails.outcome("x").via) == (
        "other me: x",
        "other me: x",
        "other",
    )
    assert Heir("me").ask("hi") == "heir of me: hi"
    assert Asker.fails.steps() == me.fails.steps() == ("other",)


def test_FR6_bare_recover_above_class_methods_and_static_methods() -> None:
    class Bare:
        @recover
        @classmethod
        def make(cls, name: str) -> str:
            return f"{cls.__name__}: {name}"

        @recover
        @staticmethod
        def cut(text: str) -> str:
            return text[1:]

    class Child(Bare):
        pass

    assert Child.make("a") == Child().make("a") == Child.make.outcome("a").value == "Child: a"
    assert Child.cut("ab") == Child().cut("ab") == Bare.cut.outcome("ab").value == "b"


def test_FR6_an_outcome_that_cannot_know_its_class_says_so() -> None:
    """On Python 3.13 and newer, `@classmethod` above `@recover` finds the method in the class's dict."""
    method = vars(Asker)["inner"].__func__
    assert method.outcome(Heir, "a").value == "heir: a"
    for given in ((), ("a",), (int, "a")):
        with pytest.raises(InvalidError, match="above @classmethod"):
            method.outcome(*given)


def test_FR6_a_decorated_method_looks_like_a_method() -> None:
    me = Asker("me")
    assert inspect.ismethod(me.ask)
    assert inspect.isfunction(Asker.ask)
    assert isinstance(vars(Asker)["ask"], types.FunctionType)
    assert me.ask.__self__ is me
    assert me.ask == me.ask != Asker("you").ask
    assert hash(me.ask) == hash(me.ask)
    assert inspect.iscoroutinefunction(me.ask_later)
    assert inspect.iscoroutinefunction(Asker.ask_later)
    assert not inspect.iscoroutinefunction(me.ask)
    assert (me.ask.__name__, me.ask.__doc__, me.ask.__module__) == ("ask", "Ask.", __name__)
    assert str(inspect.signature(me.ask)) == "(question: 'str', *, times: 'int' = 1) -> 'str'"
    assert pickle.loads(pickle.dumps(Asker.ask)) is Asker.ask
    assert pickle.loads(pickle.dumps(Asker.inner_static)) == Asker.inner_static
    assert pickle.loads(pickle.dumps(me.ask))("hi") == "me: hi"


def test_FR6_a_model_of_pydantic_may_have_decorated_methods() -> None:
    class Model(pydantic.BaseModel):
        name: str

        @recover("asker")
        def ask(self, question: str) -> str:
            return f"{self.name}: {question}"

        @recover("asker")
        @classmethod
        def make(cls, name: str) -> str:
            return cls(name=name).name

    assert Model(name="me").ask.outcome("hi").value == "me: hi"
    assert Model.make("me") == "me"


def test_FR6_defaults_are_kept() -> None:
    def fn(first: int, second: int = 2, *, third: int = 3) -> int:
        return first + second + third

    wrapped = recover("a")(fn)
    assert (wrapped.__defaults__, wrapped.__kwdefaults__) == ((2,), {"third": 3})  # type: ignore[attr-defined] # a function has them
    assert (wrapped(1), wrapped(1, 1), wrapped(1, third=1)) == (6, 5, 4)


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


# --- options that have no effect ---


def _plain() -> str:
    return "ok"


async def _later() -> str:
    return "ok"


@tool(effect="read", timeout=5)
def _limited_tool() -> str:
    return "ok"


HEDGED = Policy(hedge=Hedge(after=1))


@pytest.mark.parametrize(
    ("fn", "options", "warning"),
    [
        (_plain, {"policy": Policy(timeout=5)}, "`timeout` has no effect on a plain function"),
        (_limited_tool, {}, "`timeout` has no effect on a plain function"),
        (_later, {"policy": HEDGED}, "`hedge` has no effect without effect="),
        (_later, {"policy": HEDGED, "effect": "unsafe"}, "`hedge` has no effect without effect="),
        (_plain, {"policy": HEDGED, "effect": "read"}, "only async functions are hedged"),
    ],
)
def test_FR18_an_option_without_effect_warns_at_the_decorator(fn: Any, options: Any, warning: str) -> None:
    with pytest.warns(RecoveryWarning, match=warning) as caught:
        recover("a", runtime=Runtime(), **options)(fn)
    (only,) = caught
    assert only.filename == __file__
    assert str(only.message).startswith("a: `")


@pytest.mark.parametrize(
    ("fn", "options"),
    [
        (_plain, {}),
        (_plain, {"policy": INTERACTIVE}),
        (_plain, {"policy": PATIENT.replace(attempts=2)}),
        (_plain, {"policy": Policy(timeout=None)}),
        (_plain, {"policy": Policy(deadline=500)}),
        (_plain, {"policy": Policy(timeout=5), "threads": True}),
        (_later, {"policy": Policy(timeout=5)}),
        (lambda *_: _later(), {"policy": Policy(timeout=5)}),
        (_later, {"policy": HEDGED, "effect": "read"}),
        (_limited_tool, {"threads": True}),
    ],
)
def test_FR18_options_that_nobody_chose_or_that_work_do_not_warn(fn: Any, options: Any) -> None:
    # Warnings are errors in this suite.
    recover("a", runtime=Runtime(), **options)(fn)


def test_FR18_a_hedge_without_effect_warns_once_at_the_call() -> None:
    world = World()
    recovery = world.recover("a", HEDGED)
    with pytest.warns(RecoveryWarning, match="`hedge` has no effect") as caught:
        assert world.run(recovery.call(_later)) == "ok"
    assert caught[0].filename == __file__
    assert world.run(recovery.call(_later)) == "ok"
    assert world.run(recovery.outcome(_later)).value == "ok"


# --- plain functions inside an event loop ---


@pytest.mark.parametrize("form", ["call", "decorated", "block"])
def test_FR18_a_plain_call_that_must_wait_inside_an_event_loop_warns_once(
    form: str, caplog: pytest.LogCaptureFixture
) -> None:
    world = World()
    recovery = world.recover("a", Policy(circuit=LOOSE))

    async def main() -> None:
        for _ in range(2):
            if form == "block":
                flaky = Flaky(reset())
                for attempt in recovery:
                    with attempt:
                        flaky()
            else:
                flaky = Flaky(reset(), reset())
                assert (recovery.call(flaky) if form == "call" else decorated()) == "ok"

    decorated = recovery(Flaky(reset(), reset()))
    world.run(main())
    assert [record.levelname for record in caplog.records if "blocks the event loop" in record.message] == ["WARNING"]
    assert "asyncio.to_thread" in caplog.text


def test_FR18_a_plain_call_does_not_warn_outside_of_an_event_loop_or_without_a_wait(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = World()
    recovery = world.recover("a", Policy(circuit=LOOSE))
    assert recovery.call(Flaky(reset())) == "ok"

    async def main() -> None:
        assert recovery.call(Flaky()) == "ok"
        assert await asyncio.to_thread(recovery.call, Flaky(reset())) == "ok"

    world.run(main())
    assert "event loop" not in caplog.text
