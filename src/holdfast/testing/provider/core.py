"""The provider without a network: a request in, a plan out.

After calling `Provider.plan` you must perform the plan. Nothing in here waits, and no socket is touched.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING

from holdfast import options
from holdfast.runtime.runtime import default_runtime
from holdfast.testing.provider.acts import Data, Ending, Head, Plan
from holdfast.testing.provider.answers import JSON, Answer, give, refuse
from holdfast.testing.provider.control import PREFIX, control
from holdfast.testing.provider.counters import Counters
from holdfast.testing.provider.protocols import dialect_of
from holdfast.testing.provider.replies import reply_to
from holdfast.testing.provider.script import Script, Scripted, read_script

if TYPE_CHECKING:
    from holdfast.clock import Clock
    from holdfast.testing.provider.protocols.base import Dialect
    from holdfast.testing.provider.requests import Request

__all__ = ["Provider"]

_KEPT = 10_000
_NOWHERE = b'{"error":{"message":"there is no such path here","type":"invalid_request_error","code":null,"param":null}}'
_MINUTE = 60.0


class Provider:
    """Answers requests in the providers' protocols, and misbehaves on script.

    Time is the clock's that was given, else the default runtime's: virtual where the test's time is. `limit` is what
    its headers announce as requests a minute; it is not enforced.
    """

    def __init__(
        self,
        script: str | Script = "",
        *,
        seed: int | None = None,
        clock: Clock | None = None,
        limit: int = 4_000,
    ) -> None:
        options.count("limit", limit)
        options.count("seed", seed, least=0, optional=True)
        self._seed = seed
        self._clock = clock
        self._limit = limit
        self._lock = threading.Lock()
        self.set_script(script)

    def set_script(self, script: str | Script) -> None:
        """Play another script from its beginning, and count anew. One that makes no sense changes nothing."""
        scripted = Scripted(read_script(script) if isinstance(script, str) else script, seed=self._seed)
        with self._lock:
            self._scripted = scripted
            self._restart()

    def reset(self) -> None:
        """Play the script from its beginning, and count anew."""
        self.set_script(self._scripted.script)

    def _restart(self) -> None:
        self.counters = Counters()
        """What came and what became of it."""
        self.requests: deque[Request] = deque(maxlen=_KEPT)
        """The last requests, whole."""
        self._first: float | None = None
        self._minute = (0.0, 0)

    def plan(self, request: Request) -> Plan:
        """Return what to do with the connection a request came by."""
        if request.path.startswith(PREFIX):
            return control(self, request)
        with self._lock:
            return self._decide(request)

    def _decide(self, request: Request) -> Plan:
        self.counters.received += 1
        self.requests.append(request)
        dialect = dialect_of(request)
        if dialect is None:
            self.counters.refused += 1
            return _nowhere()
        answer = self._answer(request, dialect)
        if (wrong := _wrong(request)) is not None:
            self.counters.refused += 1
            return refuse(answer, dialect.refusals[wrong], dialect.refusals[wrong].status)
        step = self._scripted.next(request, self._seconds_since_first())
        if step.plan is None:
            self.counters.answered += 1
            return give(answer)
        self.counters.injected[step.name] += 1
        return step.plan(answer)

    def _answer(self, request: Request, dialect: Dialect) -> Answer:
        reply = reply_to(dialect.asked(request), self._scripted.script.replies)
        wall = self.clock.wall()
        minute, used = self._minute
        if wall - minute >= _MINUTE:
            minute, used = wall, 0
        self._minute = (minute, used + 1)
        # Never told to be empty: a limit that is announced as used up is a reason to wait, and none was scripted.
        left = max(1, self._limit - used - 1)
        limits = dialect.limits(self._limit, left, minute + _MINUTE)
        return Answer(request, dialect, reply, number=self.counters.received, limits=limits, wall=wall)

    def _seconds_since_first(self) -> float:
        now = self.clock.monotonic()
        if self._first is None:
            self._first = now
        return now - self._first

    @property
    def clock(self) -> Clock:
        """The clock it was given, else the default runtime's."""
        return default_runtime().clock if self._clock is None else self._clock

    @property
    def script(self) -> Script:
        """The script being played."""
        return self._scripted.script


def _wrong(request: Request) -> str | None:
    if not request.key:
        return "auth"
    if request.path == "/v1/models":
        return None if request.method == "GET" else "bad-request"
    return None if request.method == "POST" and request.model else "bad-request"


def _nowhere() -> Plan:
    yield Head(404, (("content-type", JSON),), len(_NOWHERE))
    yield Data(_NOWHERE)
    yield Ending.END
