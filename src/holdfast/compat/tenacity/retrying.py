"""`Retrying` and `AsyncRetrying`: how to try again, as one object. Call it with a function, wrap one, or loop over it.

Invariant: an object holds settings only. They may be changed between calls (`fetch.retry.wait = wait_none()`), and any
number of calls may run at once.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
from typing import TYPE_CHECKING, Any, NoReturn, TypedDict

from holdfast.compat.tenacity.conditions import Condition, retry_if_exception_type
from holdfast.compat.tenacity.hooks import Hook, after_nothing, before_nothing
from holdfast.compat.tenacity.rounds import AttemptManager, Rounds, run, run_async
from holdfast.compat.tenacity.state import Board, RetryCallState, RetryError
from holdfast.compat.tenacity.stops import Stop, stop_never
from holdfast.compat.tenacity.waits import Wait, wait_none
from holdfast.faults import InvalidError
from holdfast.policies import Policy
from holdfast.runtime.callables import is_async, refuse_generator
from holdfast.runtime.plan import Plan

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Generator
    from typing import Self, Unpack

    from holdfast.runtime.runtime import Runtime

__all__ = ["AsyncRetrying", "BaseRetrying", "Options", "Retrying"]


class Options(TypedDict, total=False):
    """The arguments of `retry`, `Retrying`, `copy` and `retry_with`."""

    sleep: Callable[[float], Any] | None
    """How to wait; None: as the runtime does."""
    stop: Stop
    wait: Wait | None
    retry: Condition
    before: Hook | None
    after: Hook | None
    before_sleep: Hook | None
    reraise: bool
    """Raise the last attempt's own exception instead of `RetryError`."""
    retry_error_cls: type[RetryError]
    retry_error_callback: Callable[..., Any] | None
    """What to return in the end instead of raising."""
    name: str | None
    enabled: bool


_FUNCTIONS = ("stop", "wait", "retry")
_OPTIONAL_FUNCTIONS = ("sleep", "before", "after", "before_sleep", "retry_error_callback")
_NO_LIMITS = Policy(timeout=None, deadline=None, circuit=None)


class BaseRetrying:
    """The settings of a retry, and what both worlds do with them."""

    sleep: Callable[[float], Any] | None
    stop: Stop
    wait: Wait
    retry: Condition
    before: Hook | None
    after: Hook | None
    before_sleep: Hook | None
    reraise: bool
    retry_error_cls: type[RetryError]
    retry_error_callback: Callable[..., Any] | None
    name: str | None
    enabled: bool

    def __init__(self, **options: Unpack[Options]) -> None:
        unknown = set(options) - set(Options.__annotations__)
        if unknown:
            raise InvalidError.saying("retry", f"some of {', '.join(Options.__annotations__)}", ", ".join(unknown))
        self.sleep = options.get("sleep")
        self.stop = options.get("stop", stop_never)
        self.wait = options.get("wait") or wait_none()
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
        # Repeating is what was asked for; a function that declares itself unsafe with @tool still is.
        self._plan = Plan(None, _NO_LIMITS, effect="idempotent")
        self._plan.name = self.name or ""
        self._board = Board()

    @property
    def statistics(self) -> dict[str, Any]:
        """The numbers of the call that began last; empty before the first."""
        return self._board.shown

    def copy(self, **changes: Unpack[Options]) -> Self:
        """Return another one with some settings changed."""
        settings: Any = {name: getattr(self, name) for name in Options.__annotations__}
        return type(self)(**{**settings, **changes})

    def rest(self, runtime: Runtime, seconds: float) -> Any:
        """Wait, or return what to await."""
        raise NotImplementedError

    def _check(self) -> None:
        for name in (*_FUNCTIONS, *_OPTIONAL_FUNCTIONS):
            given = getattr(self, name)
            if not callable(given) and (given is not None or name in _FUNCTIONS):
                raise InvalidError.at(f"retry.{name}", "a function of the retry state", given)
        kind: Any = self.retry_error_cls
        if not (isinstance(kind, type) and issubclass(kind, RetryError)):
            raise InvalidError.at("retry.retry_error_cls", "a class below RetryError", kind)

    def _bound(self, fn: Callable[..., Any]) -> Plan:
        refuse_generator(fn)
        return self._plan.copy_for(fn)

    def _off(self, plan: Plan) -> bool:
        return not self.enabled or plan.fresh().off

    def _dressed(self, wrapper: Any, fn: Callable[..., Any], board: Board) -> Any:
        functools.update_wrapper(wrapper, fn)
        wrapper.retry = self
        wrapper.retry_with = lambda **changes: self.copy(**changes).wraps(fn)
        wrapper.statistics = board.shown
        return wrapper

    def wraps(self, fn: Callable[..., Any]) -> Any:
        """Return `fn` with this around it, as a function of the same kind."""
        raise NotImplementedError

    def __str__(self) -> str:
        return self.name or "<unknown>"

    def __repr__(self) -> str:
        said = (f"{name}={_shown(getattr(self, name))}" for name in ("stop", "wait", "retry", "reraise", "name"))
        return f"{type(self).__name__}({', '.join(said)})"


class Retrying(BaseRetrying):
    """For functions and blocks in a thread."""

    def _check(self) -> None:
        super()._check()
        for name in (*_FUNCTIONS, *_OPTIONAL_FUNCTIONS):
            if is_async(getattr(self, name)):
                # Its coroutine would never run, and a coroutine is always true.
                raise InvalidError.saying(
                    f"retry.{name}", "a plain function; AsyncRetrying takes async ones", "an async one"
                )

    def rest(self, runtime: Runtime, seconds: float) -> Any:
        """Wait."""
        return (self.sleep or runtime.sleep)(seconds)

    def __call__(self, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call `fn` until it needs no further attempt."""
        return self._call(self._bound(fn), self._board, fn, args, kwargs)

    def wraps(self, fn: Callable[..., Any]) -> Any:
        """Return `fn` with this around it."""
        plan, board = self._bound(fn), Board()

        def wrapper(*args: Any, **kwargs: Any) -> Any:
            return self._call(plan, board, fn, args, kwargs)

        return self._dressed(wrapper, fn, board)

    def _call(
        self, plan: Plan, board: Board, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        if self._off(plan):
            return fn(*args, **kwargs)
        self._board = board
        rounds = Rounds(self, plan, board, fn, args, kwargs)
        try:
            while True:
                run(rounds.advance())
                if rounds.over:
                    return _answer(rounds)
                with AttemptManager(rounds.state, rounds):
                    rounds.state.set_result(fn(*args, **kwargs))
        finally:
            # An exception that can be reached from a frame it passes through keeps itself alive.
            del rounds

    def __iter__(self) -> Generator[AttemptManager, None, None]:
        """Loop over attempts at a block: `for attempt in Retrying(…): with attempt: …`."""
        if self._off(self._plan):
            yield _plain_attempt(self)
            return
        rounds = Rounds(self, self._plan, self._board)
        try:
            while True:
                run(rounds.advance())
                if rounds.over:
                    _answer(rounds)
                    return
                yield AttemptManager(rounds.state, rounds)
        finally:
            rounds.leave()


class AsyncRetrying(BaseRetrying):
    """For functions and blocks in a task. Hooks, conditions, `stop`, `wait` and `sleep` may be async too."""

    def rest(self, runtime: Runtime, seconds: float) -> Any:
        """Return what to await."""
        return asyncio.sleep(seconds if runtime.waits else 0) if self.sleep is None else self.sleep(seconds)

    async def __call__(self, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call `fn` until it needs no further attempt; what it returns is awaited where it can be."""
        return await self._call(self._bound(fn), self._board, fn, args, kwargs)

    def wraps(self, fn: Callable[..., Any]) -> Any:
        """Return `fn` with this around it, as an async function."""
        plan, board = self._bound(fn), Board()

        async def wrapper(*args: Any, **kwargs: Any) -> Any:
            return await self._call(plan, board, fn, args, kwargs)

        return self._dressed(wrapper, fn, board)

    async def _call(
        self, plan: Plan, board: Board, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        if self._off(plan):
            return await _awaited(fn(*args, **kwargs))
        self._board = board
        rounds = Rounds(self, plan, board, fn, args, kwargs)
        try:
            while True:
                await run_async(rounds.advance())
                if rounds.over:
                    return _answer(rounds)
                with AttemptManager(rounds.state, rounds, limited=True):
                    rounds.state.set_result(await _awaited(fn(*args, **kwargs)))
        finally:
            del rounds  # ditto

    def __iter__(self) -> NoReturn:
        raise InvalidError.saying("for attempt in AsyncRetrying", "async for", "for")

    def __aiter__(self) -> AsyncIterator[AttemptManager]:
        """Loop over attempts at a block: `async for attempt in AsyncRetrying(…): with attempt: …`."""
        return _AsyncLoop(self, None if self._off(self._plan) else Rounds(self, self._plan, self._board))


class _AsyncLoop:
    """An iterator and no generator: a block that is left by `return` ends the rounds at once, not when the loop gets to it."""

    def __init__(self, retrying: AsyncRetrying, rounds: Rounds | None) -> None:
        self._plain = _plain_attempt(retrying) if rounds is None else None
        self._rounds = rounds

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> AttemptManager:
        rounds = self._rounds
        if rounds is None:
            plain, self._plain = self._plain, None
            if plain is None:
                raise StopAsyncIteration
            return plain
        await run_async(rounds.advance())
        if rounds.over:
            if isinstance(rounds.error, StopAsyncIteration):
                # Raised as it is, it would end the loop as if all had gone well.
                raise RuntimeError("the block raised StopAsyncIteration") from rounds.error
            _answer(rounds)
            raise StopAsyncIteration
        return AttemptManager(rounds.state, rounds, limited=True)

    def __del__(self) -> None:
        if self._rounds is not None:
            self._rounds.leave()


def _answer(rounds: Rounds) -> Any:
    try:
        if rounds.error is not None:
            raise rounds.error
        return rounds.answer
    finally:
        del rounds  # ditto


def _plain_attempt(retrying: BaseRetrying) -> AttemptManager:
    """Return the one attempt of a retry that is switched off."""
    return AttemptManager(RetryCallState(retrying, None, (), {}))


async def _awaited(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value


def _shown(setting: Any) -> str:
    return type(setting).__name__ if hasattr(setting, "__dict__") and not isinstance(setting, type) else repr(setting)
