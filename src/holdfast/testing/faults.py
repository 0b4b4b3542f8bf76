"""Failures on demand: a script of them, and a callable that plays it.

    script("429;retry-after=7, 503*2, timeout, ok:hello")

Invariant: a script is checked when it is written, every call plays exactly one step, and a call too many fails the test.
"""

from __future__ import annotations

import asyncio
import errno
import itertools
import re
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, TypeAlias

from holdfast.faults import Fault, HoldfastError, InvalidError, nearest, resolve
from holdfast.testing.chance import seeded
from holdfast.testing.notation import read_option, read_step, split_steps

if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.clock import Rng

__all__ = ["Received", "Script", "ScriptEndedError", "ScriptedHTTPError", "script"]

Step: TypeAlias = Callable[[], Any]
"""Returns a result or raises a failure, a new one each time."""

_STEPS = (
    "ok, ok:VALUE, a status from 400 to 599 with headers if need be (429;retry-after=7), "
    "timeout, reset, refused, hang or code:CODE, each perhaps %CHANCE and *TIMES (503%30*100)"
)
_STATUS = re.compile(r"[45][0-9][0-9]")


class ScriptedHTTPError(Exception):
    """An HTTP answer that is a failure, as clients raise it: `status_code`, `headers`, `body`."""

    def __init__(self, status_code: int, headers: Mapping[str, str] | None = None, body: Any = None) -> None:
        super().__init__(status_code, headers, body)
        self.status_code = status_code
        self.headers = dict(headers or {})
        self.body = body

    def __str__(self) -> str:
        return f"HTTP {self.status_code}"


class ScriptEndedError(AssertionError):
    """The script was called more often than it has steps."""


class Received(NamedTuple):
    """What one call was given."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]


class Script:
    """A callable that plays its steps, one per call. `calls()` is for blocking code, `await calls.acall()` for async."""

    def __init__(self, steps: Iterable[Step]) -> None:
        self._steps = tuple(steps)
        self._turn = itertools.count()  # taking a turn is atomic, so threads may share a script
        self.received: list[Received] = []
        """What each call was given, in order: to see that a request was changed before it was sent again."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Play the next step."""
        return self._next(args, kwargs)()

    async def acall(self, *args: Any, **kwargs: Any) -> Any:
        """Play the next step; `hang` waits until it is cancelled."""
        step = self._next(args, kwargs)
        if step is _hang:
            await asyncio.get_running_loop().create_future()
        return step()

    @property
    def calls(self) -> int:
        """How often it was called."""
        return len(self.received)

    @property
    def left(self) -> int:
        """How many steps were not played."""
        return max(0, len(self._steps) - self.calls)

    def assert_finished(self) -> None:
        """Fail where steps are left."""
        __tracebackhide__ = True
        if self.left:
            raise AssertionError(f"expected all {len(self._steps)} steps to be played, got {self.calls} calls")

    def _next(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Step:
        turn = next(self._turn)
        self.received.append(Received(args, kwargs))
        if turn >= len(self._steps):
            raise ScriptEndedError(f"expected at most {len(self._steps)} calls, got call {turn + 1}")
        return self._steps[turn]


def script(steps: str | Iterable[Any], *, seed: int = 0) -> Script:
    """Return a callable that plays these steps.

    In a text, steps stand between commas. In a list, a text is one such step, an exception is raised, and anything else is
    the result of its call. `503%30*100` is a hundred calls of which each fails with a chance of 30 % and is `ok` otherwise:
    the same ones in every run with the same seed.
    """
    rng = seeded(seed)
    if isinstance(steps, str):
        steps = split_steps(steps)
    elif not isinstance(steps, Iterable):
        raise InvalidError.at("script", "a text or a list of steps", steps)
    played = [play for place, step in enumerate(steps) for play in _read(f"script[{place}]", step, rng)]
    if not played:
        raise InvalidError.at("script", "at least one step", "none")
    return Script(played)


def _read(path: str, step: Any, rng: Rng) -> list[Step]:
    if isinstance(step, BaseException) or (isinstance(step, type) and issubclass(step, BaseException)):
        return [lambda: _raise(step)]
    if not isinstance(step, str):
        return [lambda: step]
    written = read_step(step)
    play = _read_word(path, written.what) if written else None
    if written is None or play is None:
        raise InvalidError.at(path, _STEPS, step)
    # Drawn here and not at the call: which call fails must not depend on which thread comes first.
    return [play if rng.random() < written.chance else _ok for _ in range(written.times)]


def _read_word(path: str, word: str) -> Step | None:
    if word in _WORDS:
        return _WORDS[word]
    kind, colon, rest = word.partition(":")
    if colon and kind == "ok":
        return lambda: rest
    if colon and kind == "code":
        return _read_code(path, rest)
    status, *headers = (part.strip() for part in word.split(";"))
    if not _STATUS.fullmatch(status):
        return None
    held = dict(read_option(path, header) for header in headers)
    return lambda: _raise(ScriptedHTTPError(int(status), held))


def _read_code(path: str, code: str) -> Step:
    entry = resolve(code)
    if entry is None or entry.code != code:
        raise InvalidError.at(path, f"a code of the catalog, perhaps {' or '.join(nearest(code))}", code)
    leaf = next((error for error in HoldfastError.__subclasses__() if error.code == code), HoldfastError)
    return lambda: _raise(leaf(Fault.of(entry.code)))


def _raise(error: BaseException | type[BaseException]) -> NoReturn:
    raise error


def _ok() -> None:
    pass


def _hang() -> NoReturn:
    raise InvalidError.at("script", "a step that blocking code can play; `hang` needs `await calls.acall()`", "hang")


_WORDS: dict[str, Step] = {
    "ok": _ok,
    "timeout": lambda: _raise(TimeoutError("timed out")),
    "reset": lambda: _raise(ConnectionResetError(errno.ECONNRESET, "Connection reset by peer")),
    "refused": lambda: _raise(ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")),
    "hang": _hang,
}
