"""Known algorithms beside ours, written from their descriptions: what a careful user could build around the SDK without its retries.

    AWS adaptive     the AWS SDKs' adaptive retry mode: a token bucket on the client whose rate follows CUBIC, and a quota of retries
    SRE throttle     the client throttle of Google's SRE book: reject locally what the service would reject
    gradient         Netflix's Gradient2: as many calls at a time as keep the latency as it is over the long term

The last two bring no retries of their own, so they repeat as tenacity does, six attempts. Time is read from the event loop.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections import deque
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from benchmarks.inside.clients import Question

    Ask = Callable[[Question], Awaitable[str]]

ATTEMPTS = 6


class LocalRejectionError(Exception):
    """The client's own limiter did not send the request."""


def _now() -> float:
    return asyncio.get_running_loop().time()


def _status(error: BaseException) -> int | None:
    return getattr(error, "status_code", None)


# --- AWS SDKs, adaptive mode ---

_BETA, _SCALE, _SMOOTH = 0.7, 0.4, 0.8
_LEAST_RATE = 0.5
_QUOTA, _RETRY_COST = 500, 5
_LONGEST_S = 20.0
_ROUNDING = 1e-6


class AdaptiveRate:
    """A bucket that is full until the first 429. From then on its rate falls by a third at each 429 and rises along CUBIC."""

    def __init__(self) -> None:
        self.limits = False
        self._turn = asyncio.Lock()
        self._rate = _LEAST_RATE
        self._level = 0.0
        self._filled = 0.0
        self._most = 0.0
        """The rate at the last 429."""
        self._throttled = 0.0
        self._measured = 0.0
        self._sent = 0
        self._slot = 0.0

    async def acquire(self) -> None:
        if not self.limits:
            return
        # One at a time, so that those who come later wait behind the earlier ones, at the rate of their own turn.
        async with self._turn:
            self._fill()
            while self._level < 1.0 - _ROUNDING:
                await asyncio.sleep((1.0 - self._level) / self._rate)
                self._fill()
            self._level -= 1.0

    def ended(self, *, throttled: bool) -> None:
        """Count a request and its outcome."""
        now = _now()
        self._measure(now)
        if throttled:
            self._most = min(self._measured, self._rate) if self.limits else self._measured
            self._throttled = now
            self._set(self._most * _BETA)
            self.limits = True
        else:
            plateau = (self._most * (1 - _BETA) / _SCALE) ** (1 / 3)
            self._set(_SCALE * (now - self._throttled - plateau) ** 3 + self._most)

    def _fill(self) -> None:
        now = _now()
        self._level = min(max(1.0, self._rate), self._level + (now - self._filled) * self._rate)
        self._filled = now

    def _set(self, rate: float) -> None:
        self._fill()
        self._rate = max(_LEAST_RATE, min(rate, 2 * self._measured))

    def _measure(self, now: float) -> None:
        """Keep the rate at which requests are sent, smoothed over half seconds."""
        self._sent += 1
        slot = math.floor(now * 2) / 2
        if slot > self._slot:
            self._measured = self._sent / (slot - self._slot) * _SMOOTH + self._measured * (1 - _SMOOTH)
            self._sent = 0
            self._slot = slot


def aws_adaptive(bare: Callable[[Any], Ask]) -> Callable[[Any], Ask]:
    def make(provider: Any) -> Ask:
        send, rate = bare(provider), AdaptiveRate()
        quota = [_QUOTA]

        async def attempt(question: Question) -> str:
            await rate.acquire()
            try:
                answer = await send(question)
            except Exception as error:
                rate.ended(throttled=_status(error) == 429)
                raise
            rate.ended(throttled=False)
            return answer

        async def ask(question: Question) -> str:
            for number in range(ATTEMPTS):
                try:
                    answer = await attempt(question)
                except Exception:
                    if number + 1 == ATTEMPTS or quota[0] < _RETRY_COST:
                        raise
                    quota[0] -= _RETRY_COST
                    await asyncio.sleep(min(_LONGEST_S, random.random() * 2**number))
                else:
                    quota[0] = min(_QUOTA, quota[0] + (_RETRY_COST if number else 1))
                    return answer
            raise AssertionError("the last attempt returns or raises")

        return ask

    return make


# --- the client throttle of the SRE book ---


def sre_throttle(bare: Callable[[Any], Ask], retried: Callable[[Ask], Ask]) -> Callable[[Any], Ask]:
    def make(provider: Any) -> Ask:
        from benchmarks.inside.throttle import Throttle, ThrottleMachine

        send, machine = bare(provider), ThrottleMachine(Throttle())

        async def attempt(question: Question) -> str:
            if not machine.admit(_now(), random):
                raise LocalRejectionError
            try:
                answer = await send(question)
            except Exception:
                machine.rejected(_now())
                raise
            machine.accepted(_now())
            return answer

        return retried(attempt)

    return make


# --- Gradient2 ---

_LONG = 600
"""Samples over which the long-term latency is smoothed."""
_TOLERANCE, _QUEUE, _STEP = 1.5, 4.0, 0.2
_LEAST, _FIRST, _MOST = 1.0, 20.0, 200.0


class Gradient:
    """How many calls may run at a time: fewer when answers take longer than usual, or fail."""

    def __init__(self) -> None:
        self.limit = _FIRST
        self.running = 0
        self._usual = 0.0
        self._samples = 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def acquire(self) -> None:
        while self.running >= self.limit:
            turn = asyncio.get_running_loop().create_future()
            self._waiting.append(turn)
            await turn
        self.running += 1

    def release(self, seconds: float | None) -> None:
        """End a call that took so long; None if it failed."""
        busy = self.running
        self.running -= 1
        if seconds is None:
            self.limit = max(_LEAST, self.limit * 0.9)
        else:
            self._learn(seconds, busy)
        while self._waiting and self.running + 1 <= self.limit:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                break

    def _learn(self, seconds: float, busy: int) -> None:
        self._samples += 1
        weight = 2 / (min(self._samples, _LONG) + 1)
        self._usual += (seconds - self._usual) * weight
        # Too few calls to say anything about the limit.
        if busy < self.limit / 2:
            return
        gradient = max(0.5, min(1.0, _TOLERANCE * self._usual / seconds))
        wanted = self.limit * gradient + _QUEUE
        self.limit = max(_LEAST, min(_MOST, self.limit * (1 - _STEP) + wanted * _STEP))


def gradient(bare: Callable[[Any], Ask], retried: Callable[[Ask], Ask]) -> Callable[[Any], Ask]:
    def make(provider: Any) -> Ask:
        send, limiter = bare(provider), Gradient()

        async def attempt(question: Question) -> str:
            await limiter.acquire()
            began, took = _now(), None
            try:
                answer = await send(question)
                took = _now() - began
            finally:
                limiter.release(took)
            return answer

        return retried(attempt)

    return make
