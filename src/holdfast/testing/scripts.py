"""Failures on demand: a script of steps, a callable that plays it, and the notation that the fault provider shares.

    script("429;retry-after=7, 503*2, timeout, ok:hello")

A step is written WHAT;option=value%CHANCE*TIMES, and commas separate the steps.

Invariant: a script is checked when it is made. Every call plays exactly one step. A call after the last step fails the test.
"""

from __future__ import annotations

import asyncio
import errno
import itertools
import re
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, TypeAlias

from holdfast import options
from holdfast.faults import Fault, HoldfastError, InvalidError, resolve
from holdfast.faults.catalog import suggested_codes
from holdfast.testing.clock import seeded

if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.clock import Rng

Step: TypeAlias = Callable[[], Any]
"""A function that returns a result or raises a failure. Each call makes a new failure."""

_EXPECTED = (
    "ok, ok:VALUE, a status from 400 to 599 with optional headers (429;retry-after=7), "
    "timeout, reset, refused, hang or code:CODE, each with optional %CHANCE and *TIMES (503%30*100)"
)
_STATUS = re.compile(r"[45][0-9][0-9]")
# `what` is not greedy: a `%` or `*` inside a value belongs to the value unless it ends the step.
_STEP = re.compile(r"(?P<what>.+?)(?:%(?P<chance>100|[0-9]{1,2}))?(?:\*(?P<times>[1-9][0-9]{0,5}))?", re.DOTALL)


class ScriptedHTTPError(Exception):
    """An HTTP response with an error status. It has the attributes of a client's exception: `status_code`, `headers`, `body`.

    For example:
        script([ScriptedHTTPError(429, {"retry-after": "7"}), "ok"])
    """

    def __init__(self, status_code: int, headers: Mapping[str, str] | None = None, body: Any = None) -> None:
        super().__init__(status_code, headers, body)
        self.status_code = status_code
        self.headers = dict(headers or {})
        self.body = body

    def __str__(self) -> str:
        return f"HTTP {self.status_code}"


class ScriptEndedError(AssertionError):
    """Raised by a `Script` that is called more often than it has steps. It is an `AssertionError`, so it fails the test.

    For example:
        calls = script("ok")
        calls()
        with pytest.raises(ScriptEndedError):
            calls()
    """


class Received(NamedTuple):
    """The arguments of one call of a `Script`."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]


class Script:
    """A callable that plays its steps, one per call. `script` makes one.

    For example:
        calls = script("503, ok:hello")
        calls()               # in blocking code
        await calls.acall()   # in async code

    Calls raise the failure of their step, and `ScriptEndedError` after the last step.
    """

    def __init__(self, steps: Iterable[Step]) -> None:
        self._steps = tuple(steps)
        self._turn = itertools.count()  # next() on it is atomic, so threads may share a script
        self.received: list[Received] = []
        """The arguments of each call, in order. A test can check that a request was changed before it was sent again."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Play the next step: return its value or raise its failure."""
        return self._next(args, kwargs)()

    async def acall(self, *args: Any, **kwargs: Any) -> Any:
        """Play the next step as a coroutine; `hang` waits until it is cancelled."""
        step = self._next(args, kwargs)
        # In blocking code `hang` raises instead, because a thread that waits for ever would block the test run.
        if step is _hang:
            await asyncio.get_running_loop().create_future()
        return step()

    @property
    def calls(self) -> int:
        """How often the script was called."""
        return len(self.received)

    @property
    def left(self) -> int:
        """How many steps are not played yet."""
        return max(0, len(self._steps) - self.calls)

    def assert_finished(self) -> None:
        """Raise `AssertionError` if steps are left."""
        __tracebackhide__ = True
        if self.left:
            raise AssertionError(f"expected all {len(self._steps)} steps to be played, got {self.calls} calls")

    def _next(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Step:
        turn = next(self._turn)
        # Record the call before the check, so that `received` also shows a call after the last step.
        self.received.append(Received(args, kwargs))
        if turn >= len(self._steps):
            raise ScriptEndedError(f"expected at most {len(self._steps)} calls, got call {turn + 1}")
        return self._steps[turn]


@options.suggests
def script(steps: str | Iterable[Any], *, seed: int = 0) -> Script:
    """Return a callable that plays these steps.

    For example:
        calls = script("429;retry-after=7, 503*2, timeout, ok:hello")

    In a text, commas separate the steps. In a list, a text is one step, an exception is raised, and any other value is the result
    of its call. `503%30*100` means a hundred calls. Each of them fails with a chance of 30 % and is `ok` otherwise.
    The same seed makes the same calls fail in every run.

    Raises `InvalidError` for a step that it cannot read, and for no steps at all.
    """
    rng = seeded(seed)
    # Split a single text into steps. The texts in a list are steps already and may contain commas.
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
        raise InvalidError.at(path, _EXPECTED, step)
    # Draw the chance here and not at the call, because the order of threads must not decide which call fails.
    return [play if rng.random() < written.chance else _ok for _ in range(written.times)]


def _read_word(path: str, word: str) -> Step | None:
    if word in _WORDS:
        return _WORDS[word]
    kind, colon, rest = word.partition(":")
    if colon and kind == "ok":
        return lambda: rest
    if colon and kind == "code":
        return _read_code(path, rest)
    status, *options = (part.strip() for part in word.split(";"))
    if not _STATUS.fullmatch(status):
        return None
    headers = dict(read_option(path, option) for option in options)
    return lambda: _raise(ScriptedHTTPError(int(status), headers))


def _read_code(path: str, code: str) -> Step:
    entry = resolve(code)
    # `resolve` also knows aliases. A script must use the code itself, because events and messages show the code.
    if entry is None or entry.code != code:
        raise InvalidError.at(path, f"a code of the catalog ({suggested_codes(code)})", code)
    # Raise the most specific class of the code, so that `except CircuitOpenError` works as with a real circuit.
    # An integration's class that declares no code of its own inherits one, and must not be taken for it.
    leaves = (error for error in HoldfastError.__subclasses__() if error.__dict__.get("code") == code)
    leaf = next(leaves, HoldfastError)
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


class WrittenStep(NamedTuple):
    """The parts of a step: what happens, with which chance, how often."""

    what: str
    chance: float
    times: int


def split_steps(text: str) -> list[str]:
    """Return the steps of a text."""
    return [step.strip() for step in text.split(",")]


def read_step(text: str) -> WrittenStep | None:
    """Return the parts of a step, or None if the text is not a step."""
    parts = _STEP.fullmatch(text.strip())
    return parts and WrittenStep(parts["what"], int(parts["chance"] or 100) / 100, int(parts["times"] or 1))


def read_option(path: str, text: str, what: str = "a header") -> tuple[str, str]:
    """Return name and value of NAME=VALUE. Raises `InvalidError` for anything else."""
    name, equals, value = text.partition("=")
    if not (name.strip() and equals):
        raise InvalidError.at(path, f"{what} as NAME=VALUE", text)
    if what == "a header" and "_" in name:
        # `retry_after` would be sent as it is, and nobody reads a header of that name.
        raise InvalidError.at(path, f"{what} as NAME=VALUE, such as {name.strip().replace('_', '-')}=…", text)
    # Header names are not case-sensitive. Our code looks them up in lower case.
    return name.strip().lower(), value.strip()
