"""`Retrying`, `AsyncRetrying` and the decorator `retry`: the settings of a retry as one object.

Call the object with a function, wrap a function, or loop over the object with a block.

Invariant: an object holds settings only. They may be changed between calls (`fetch.retry.wait = wait_none()`), and any
number of calls may run at once.
"""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING, Any, Concatenate, Generic, Never, NoReturn, ParamSpec, TypedDict, TypeVar, overload

from holdfast._steps import finish, finish_async
from holdfast.compat.tenacity import nap
from holdfast.compat.tenacity.after import after_nothing
from holdfast.compat.tenacity.attempts import AttemptManager, CallAttempts
from holdfast.compat.tenacity.before import Hook, before_nothing
from holdfast.compat.tenacity.retry import Condition, retry_base, retry_if_exception_type
from holdfast.compat.tenacity.state import RetryCallState, RetryError, RetryObject, Statistics
from holdfast.compat.tenacity.stop import Stop, stop_base, stop_never
from holdfast.compat.tenacity.wait import Wait, wait_base, wait_none
from holdfast.faults import InvalidError
from holdfast.policies import Policy
from holdfast.runtime.callables import is_async, reject_generator
from holdfast.runtime.operation.plan import Plan

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Generator
    from typing import Self, Unpack


__all__ = ["AsyncRetrying", "BaseRetrying", "Retried", "RetryOptions", "Retrying", "retry"]

P = ParamSpec("P")
Q = ParamSpec("Q")
S = TypeVar("S")
T_co = TypeVar("T_co", covariant=True)


class RetryOptions(TypedDict, total=False):
    """The arguments of `retry`, `Retrying`, `copy` and `retry_with`."""

    sleep: Callable[[float], Any] | None
    """The function that sleeps. None means `nap.sleep`, or `nap.sleep_async` in a task: the runtime's clock."""
    stop: Stop
    wait: Wait | None
    retry: Condition
    before: Hook | None
    after: Hook | None
    before_sleep: Hook | None
    reraise: bool
    """Raise the last attempt's own exception instead of `RetryError`."""
    retry_error_cls: type[BaseException]
    """What is raised in the end, called with the last outcome: `RetryError`, or any other class of exceptions."""
    retry_error_callback: Callable[..., Any] | None
    """A function of the state, called when no further attempt is made. Its result is returned instead of raising."""
    name: str | None
    enabled: bool


_FUNCTIONS = ("stop", "wait", "retry")
_OPTIONAL_FUNCTIONS = ("sleep", "before", "after", "before_sleep", "retry_error_callback")
# tenacity's arguments are the whole policy. Our policy must not add a limit that the user did not write.
_NO_LIMITS = Policy(timeout=None, deadline=None, patience=None, circuit=None)


class BaseRetrying(RetryObject):
    """The base of `Retrying` and `AsyncRetrying`, with the settings of a retry. Do not use it directly."""

    def __init__(self, *given: Never, **options: Unpack[RetryOptions]) -> None:
        if given:
            raise InvalidError.saying(
                type(self).__name__, "arguments by name, such as stop=…", f"{_kind(given[0])} by position"
            )
        # Only type checkers check a TypedDict. A typo must also raise at run time.
        unknown = set(options) - set(RetryOptions.__annotations__)
        if unknown:
            raise InvalidError.saying("retry", f"some of {', '.join(RetryOptions.__annotations__)}", ", ".join(unknown))
        self.sleep = options.get("sleep")
        self.stop = options.get("stop", stop_never)
        wait = options.get("wait")
        self.wait = wait_none() if wait is None else wait
        self.retry = options.get("retry", retry_if_exception_type())
        self.before = options.get("before", before_nothing)
        self.after = options.get("after", after_nothing)
        self.before_sleep = options.get("before_sleep")
        self.reraise = options.get("reraise", False)
        self.retry_error_cls = options.get("retry_error_cls", RetryError)
        self.retry_error_callback = options.get("retry_error_callback")
        self.name = options.get("name")
        self.enabled = options.get("enabled", True)
        self._check()
        # `retry` itself is the user's decision to repeat, so calls count as idempotent. A function that @tool marks as
        # unsafe stays unsafe.
        self._plan = Plan(None, _NO_LIMITS, effect="idempotent").acting()
        # There is no target, so such retries share no circuit and no limits with other calls.
        self._plan.name = self.name or ""
        self._statistics = Statistics()

    @property
    def statistics(self) -> dict[str, Any]:
        """The numbers of the call that began last; empty before the first."""
        return self._statistics.shown

    def copy(self, **changes: Unpack[RetryOptions]) -> Self:
        """Return a copy with some settings changed."""
        # The values come from the attributes, not from the constructor's arguments, because the user may have changed
        # them.
        settings: Any = {name: getattr(self, name) for name in RetryOptions.__annotations__}
        return type(self)(**{**settings, **changes})

    def _check(self) -> None:
        for name in (*_FUNCTIONS, *_OPTIONAL_FUNCTIONS):
            given = getattr(self, name)
            if not callable(given) and (given is not None or name in _FUNCTIONS):
                raise InvalidError.at(f"retry.{name}", "a function of the retry state", given)
        kind: Any = self.retry_error_cls
        if not (isinstance(kind, type) and issubclass(kind, BaseException)):
            raise InvalidError.at("retry.retry_error_cls", "a class of exceptions", kind)

    def _bound(self, fn: Callable[..., Any]) -> Plan:
        reject_generator(fn)
        return self._plan.copy_for(fn)

    def _off(self, plan: Plan) -> bool:
        return not self.enabled or plan.fresh().off

    def _decorated(self, wrapper: Any, fn: Callable[..., Any], statistics: Statistics) -> Any:
        functools.update_wrapper(wrapper, fn, (*functools.WRAPPER_ASSIGNMENTS, "__defaults__", "__kwdefaults__"))
        wrapper.retry = self
        wrapper.retry_with = lambda **changes: self.copy(**changes).wraps(fn)
        # This is the same dict, not a copy: `functools.wraps` in other decorators copies the reference, and all see
        # one dict.
        wrapper.statistics = statistics.shown
        return wrapper

    def wraps(self, fn: Callable[..., Any]) -> Any:
        """Return a function that calls `fn` with these retries. It is sync or async as `fn` is."""
        raise NotImplementedError

    def __reduce__(self) -> tuple[Any, ...]:
        # The plan belongs to this process, so another process makes its own.
        return _restored, (type(self), {name: getattr(self, name) for name in RetryOptions.__annotations__})

    def __str__(self) -> str:
        return self.name or "<unknown>"

    def __repr__(self) -> str:
        settings = (f"{name}={_shown(getattr(self, name))}" for name in ("stop", "wait", "retry", "reraise", "name"))
        return f"{type(self).__name__}({', '.join(settings)})"


class Retrying(BaseRetrying):
    """Retries for sync functions and blocks.

    For example:
        Retrying(stop=stop_after_attempt(3), reraise=True)(fetch, "https://…")

        for attempt in Retrying(stop=stop_after_attempt(3)):
            with attempt:
                fetch("https://…")

    Raises `RetryError` when no further attempt is made, or the last attempt's own error with `reraise=True`. Raises
    `InvalidError` for a setting that is async or is not a function.
    """

    def _check(self) -> None:
        super()._check()
        for name in (*_FUNCTIONS, *_OPTIONAL_FUNCTIONS):
            if is_async(getattr(self, name)):
                # Nobody would await the coroutine of an async function, and a coroutine object counts as true.
                raise InvalidError.saying(
                    f"retry.{name}", "a plain function; AsyncRetrying takes async ones", "an async one"
                )

    def rest(self, seconds: float) -> Any:
        """Sleep in this thread."""
        # `nap.sleep` is looked up now, so that a test may replace it there.
        return (self.sleep or nap.sleep)(seconds)

    def __call__(self, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call `fn` until no further attempt is needed or allowed."""
        return self._call(self._bound(fn), self._statistics, fn, args, kwargs)

    def wraps(self, fn: Callable[..., Any]) -> Any:
        """Return a function that calls `fn` with these retries."""
        plan, statistics = self._bound(fn), Statistics()

        def wrapper(*args: Any, **kwargs: Any) -> Any:
            return self._call(plan, statistics, fn, args, kwargs)

        return self._decorated(wrapper, fn, statistics)

    def _call(
        self,
        plan: Plan,
        statistics: Statistics,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        if self._off(plan):
            return fn(*args, **kwargs)
        # `statistics` on the object shows the last call, whichever function made it.
        self._statistics = statistics
        attempts = CallAttempts(self, plan, statistics, fn, args, kwargs)
        try:
            while True:
                finish(attempts.advance())
                if attempts.over:
                    return _result(attempts)
                with AttemptManager(attempts.state, attempts):
                    attempts.state.set_result(fn(*args, **kwargs))
        finally:
            # This frame is in the exception's traceback. If it also held the exception, both would live until the next
            # garbage collection.
            del attempts

    def __iter__(self) -> Generator[AttemptManager, None, None]:
        """Loop over attempts at a block: `for attempt in Retrying(…): with attempt: …`."""
        if self._off(self._plan):
            yield _plain_attempt(self)
            return
        attempts = CallAttempts(self, self._plan, self._statistics)
        try:
            while True:
                finish(attempts.advance())
                if attempts.over:
                    _result(attempts)
                    return
                yield AttemptManager(attempts.state, attempts)
        finally:
            attempts.leave()


class AsyncRetrying(BaseRetrying):
    """Retries for async functions and blocks. Hooks, `retry`, `stop`, `wait` and `sleep` may be async, too.

    For example:
        await AsyncRetrying(stop=stop_after_attempt(3))(fetch, "https://…")

        async for attempt in AsyncRetrying(stop=stop_after_attempt(3)):
            with attempt:
                await fetch("https://…")

    Raises the same errors as `Retrying`.
    """

    def rest(self, seconds: float) -> Any:
        """Return the awaitable that sleeps."""
        return (self.sleep or nap.sleep_async)(seconds)

    async def __call__(self, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call `fn` until no further attempt is needed or allowed. If `fn` returns an awaitable, it is awaited."""
        return await self._call(self._bound(fn), self._statistics, fn, args, kwargs)

    def wraps(self, fn: Callable[..., Any]) -> Any:
        """Return an async function that calls `fn` with these retries."""
        plan, statistics = self._bound(fn), Statistics()

        async def wrapper(*args: Any, **kwargs: Any) -> Any:
            return await self._call(plan, statistics, fn, args, kwargs)

        return self._decorated(wrapper, fn, statistics)

    async def _call(
        self,
        plan: Plan,
        statistics: Statistics,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        if self._off(plan):
            return await _awaited(fn(*args, **kwargs))
        self._statistics = statistics
        attempts = CallAttempts(self, plan, statistics, fn, args, kwargs)
        try:
            while True:
                await finish_async(attempts.advance())
                if attempts.over:
                    return _result(attempts)
                with AttemptManager(attempts.state, attempts, limited=True):
                    attempts.state.set_result(await _awaited(fn(*args, **kwargs)))
        finally:
            del attempts  # as in Retrying._call: the frame must not keep the exception alive

    def __iter__(self) -> NoReturn:
        raise InvalidError.saying("for attempt in AsyncRetrying", "async for", "for")

    def __aiter__(self) -> AsyncIterator[AttemptManager]:
        """Loop over attempts at a block: `async for attempt in AsyncRetrying(…): with attempt: …`."""
        return _AsyncLoop(self, None if self._off(self._plan) else CallAttempts(self, self._plan, self._statistics))


class _AsyncLoop:
    """The iterator of `async for attempt in …`.

    It is not an async generator: if a block is left by `return`, the event loop closes such a generator at some later
    time. An iterator is released at once, so the operation is settled at once.
    """

    def __init__(self, retrying: AsyncRetrying, attempts: CallAttempts | None) -> None:
        self._plain = _plain_attempt(retrying) if attempts is None else None
        self._attempts = attempts

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> AttemptManager:
        attempts = self._attempts
        if attempts is None:
            plain, self._plain = self._plain, None
            if plain is None:
                raise StopAsyncIteration
            return plain
        await finish_async(attempts.advance())
        if attempts.over:
            if isinstance(attempts.error, StopAsyncIteration):
                # If StopAsyncIteration were raised from here, the loop would end as if the block had succeeded.
                raise RuntimeError("the block raised StopAsyncIteration") from attempts.error
            _result(attempts)
            raise StopAsyncIteration
        return AttemptManager(attempts.state, attempts, limited=True)

    def __del__(self) -> None:
        if self._attempts is not None:
            self._attempts.leave()


class Retried(Generic[P, T_co]):
    """The type of a decorated function: a real function of the same kind, with its settings as attributes.

    For example:
        fetch.retry.wait = wait_none()
        fetch.retry_with(stop=stop_after_attempt(1))()
    """

    __name__: str
    __qualname__: str
    retry: BaseRetrying
    """The settings. They may be changed, for example in a test."""
    statistics: dict[str, Any]
    """The numbers of the call that began last."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> T_co:
        """Call the function, with retries."""
        raise NotImplementedError

    if TYPE_CHECKING:

        @overload
        def __get__(  # type: ignore[misc] # mypy does not see that `self` is such a callable where it binds a class
            self: Callable[Concatenate[type[S], Q], T_co], instance: S | None, owner: type[S], /
        ) -> Retried[Q, T_co]: ...
        @overload
        def __get__(self, instance: None, owner: type[Any], /) -> Retried[P, T_co]: ...
        @overload
        def __get__(
            self: Callable[Concatenate[S, Q], T_co], instance: S, owner: type[Any] | None = None, /
        ) -> Retried[Q, T_co]: ...
        @overload
        def __get__(self, instance: object, owner: type[Any] | None = None, /) -> Retried[P, T_co]: ...
        def __get__(self, instance: object, owner: type[Any] | None = None, /) -> Any:
            """Bind it to an object as a method, or to the class as a class method."""

    def retry_with(self, **changes: Unpack[RetryOptions]) -> Retried[P, T_co]:
        """Return the same function with other settings."""
        raise NotImplementedError


@overload
def retry(fn: Callable[P, T_co], /) -> Retried[P, T_co]: ...
@overload
def retry(**options: Unpack[RetryOptions]) -> Callable[[Callable[P, T_co]], Retried[P, T_co]]: ...
def retry(fn: Any = None, /, **options: Unpack[RetryOptions]) -> Any:
    """Decorate a sync or async function: repeat the call while `retry` wants it, after `wait`, until `stop`.

    For example:
        @retry(stop=stop_after_attempt(5), wait=wait_exponential(max=30), reraise=True)
        def fetch(): ...

    `@retry` and `@retry()` take tenacity's defaults: repeat after any `Exception`, at once, for ever. The decorated function
    raises `RetryError` when no further attempt is made, or the last attempt's own error with `reraise=True`. Raises
    `InvalidError` for unknown arguments, and for generator functions, whose body would run outside the attempt.
    """
    if fn is None:
        return lambda decorated: _wrapped(decorated, options)
    return _wrapped(fn, options)


def _wrapped(fn: Any, options: RetryOptions) -> Any:
    if not callable(fn):
        raise InvalidError.at("retry", "a function, and arguments by name", fn)
    # A strategy can be called too. As the function, it would be repeated in place of what is decorated.
    if isinstance(fn, (stop_base, wait_base, retry_base)):
        raise InvalidError.saying("retry", "arguments by name, such as stop=…", f"{_kind(fn)} by position")
    # Only a task can await an async `sleep`. So with an async `sleep`, the wrapper of a plain function is async, too.
    awaits = is_async(fn) or is_async(options.get("sleep"))
    return (AsyncRetrying if awaits else Retrying)(**options).wraps(fn)


def _kind(value: object) -> str:
    return type(value).__name__


def _result(attempts: CallAttempts) -> Any:
    try:
        if attempts.error is not None:
            raise attempts.error
        return attempts.answer
    finally:
        del attempts  # as in Retrying._call: the frame must not keep the exception alive


def _plain_attempt(retrying: BaseRetrying) -> AttemptManager:
    """Return the only attempt of a retry that is switched off."""
    return AttemptManager(RetryCallState(retrying, None, (), {}))


async def _awaited(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value


def _restored(kind: type[BaseRetrying], settings: Any) -> BaseRetrying:
    """Return the object that was pickled."""
    return kind(**settings)


def _shown(setting: Any) -> str:
    return type(setting).__name__ if hasattr(setting, "__dict__") and not isinstance(setting, type) else repr(setting)
