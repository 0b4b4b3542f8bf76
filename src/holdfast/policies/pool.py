"""The pool: which of several keys the next call uses, by weight, by the limits each key announces, and by failures.

A key that was limited or denied rests for a while, and one that is silent while others answer is passed over.

Invariant: while one key may be used, no call goes to a resting key. Over many calls each usable key gets the share of its weight. The
pool makes no call wait: one call's failure does not show that a key fails for all. The pace of each key decides about waits.
"""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Any

from holdfast import options
from holdfast.faults import InvalidError, Kind
from holdfast.policies.decide import Retry
from holdfast.policies.rate_limit import RateLimitMachine

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from holdfast.classify.hints import AnnouncedLimit
    from holdfast.faults import Fault

LIMITED_REST_S = 1.0
"""How long a rate-limited key rests if the service requested no delay. Each failure in a row doubles it."""
DENIED_REST_S = 60.0
"""How long a key rests that was denied, because it is revoked or has no credit. Each failure in a row doubles it."""
LONGEST_REST_S = 600.0
OVERTAKEN = 3
"""A key is silent if a request of it has no response, although so many that were sent later with other keys were answered."""


class _Key:
    """The state of one key."""

    __slots__ = (
        "credit",
        "denied",
        "doubted_until",
        "failed_at",
        "failures",
        "overtaken",
        "pace",
        "rests_until",
        "unheard",
        "weight",
    )

    def __init__(self, weight: float) -> None:
        self.weight = weight
        self.credit = 0.0
        """The counter of the smooth weighted round-robin."""
        self.pace = RateLimitMachine()
        self.rests_until = float("-inf")
        self.denied = False
        """Whether the service denied the key itself. A denied key does not become valid by waiting."""
        self.failures = 0
        """Failures in a row."""
        self.failed_at = float("-inf")
        self.unheard: dict[int, float] = {}
        """When the requests were sent that have no response yet, by their number; the oldest first."""
        self.overtaken = 0
        """Answers with other keys to requests that were sent after the oldest of these."""
        self.doubted_until = float("-inf")
        """Its latest request ended without a response. Until then another one would most likely do so, too."""

    def is_doubtful(self, now: float) -> bool:
        """Whether another key is better: it is or was silent, or it failed and one request finds out whether it still does."""
        return now < self.doubted_until or self.overtaken >= OVERTAKEN or bool(self.failures and self.unheard)

    def wait(self, now: float) -> float:
        return max(self.rests_until - now, self.pace.peek(now), 0.0)


class PoolMachine:
    """The state of a pool. It is not thread-safe: its owner holds a lock around each call."""

    __slots__ = ("_keys", "_numbers")

    def __init__(self, weights: Sequence[float]) -> None:
        check_weights(weights, len(weights))
        self._keys = [_Key(weight) for weight in weights]
        self._numbers = count()

    def choose(
        self,
        now: float,
        *,
        shut: Collection[int] = (),
        avoid: int | None = None,
        waits: Callable[[int], float] = lambda _: 0.0,
    ) -> int:
        """Return the key for a call that starts now, and count it as used.

        `shut` are the keys that cannot answer it. `avoid` failed a moment ago and is chosen only if no other key is ready. `waits` returns
        the seconds for which a call with a key would wait for its turn: such a key is not ready either.
        If no key is ready, it is the one that is ready first, and nothing is counted. If all keys were denied, one of them is chosen
        anyway, because its error tells the user what is wrong.
        """
        # A key with an open circuit is skipped here, because the call would be rejected anyway.
        usable = [index for index in range(len(self._keys)) if index not in shut]
        total = [max(key.wait(now), waits(index)) for index, key in enumerate(self._keys)]
        ready = [index for index in usable if total[index] <= 0.0]
        if ready:
            others = [index for index in ready if index != avoid] or ready
            return self._next_in_turn(
                [index for index in others if not self._keys[index].is_doubtful(now)] or others, now
            )
        waiting = [index for index in usable if not self._keys[index].denied]
        return min(waiting or usable or range(len(self._keys)), key=total.__getitem__)

    def soonest(self, now: float, *, shut: Collection[int] = ()) -> float | None:
        """Return the seconds until some key may be used; None: all keys were denied."""
        waits = (
            key.wait(now)
            for index, key in enumerate(self._keys)
            if index not in shut and not self._rests_denied(key, now)
        )
        return min(waits, default=None)

    def sent(self, index: int, now: float) -> int:
        """Record that a request is sent with the key; return its number."""
        number = next(self._numbers)
        self._keys[index].unheard[number] = now
        return number

    def heard(self, index: int, number: int, *, good: bool) -> None:
        """Record that the request has a response. A bad one may come sooner than any answer, so it says nothing about other keys."""
        key = self._keys[index]
        if key.unheard.pop(number, None) is None:
            return
        key.overtaken, key.doubted_until = 0, float("-inf")
        for other in self._keys if good else ():
            if other is not key and next(iter(other.unheard), number) < number:
                other.overtaken += 1

    def ended(self, index: int, number: int, now: float) -> None:
        """Record that the request has ended. A silent key rests, at first for as long as it was silent.

        If nobody knows whether it was the key, as where calls come one after the other, other keys are better for as long.
        """
        key = self._keys[index]
        since = key.unheard.pop(number, None)
        if since is None:
            return
        key.doubted_until = now + (now - since)
        if key.overtaken >= OVERTAKEN:
            self._rest(index, now, max(LIMITED_REST_S, now - since), None, denied=False)
        if not key.unheard:
            key.overtaken = 0

    def succeeded(self, index: int, since: float) -> None:
        """Record that the key answered a request that was sent at `since`: it rests no longer for what was before."""
        key = self._keys[index]
        key.failures = 0
        key.denied = False
        if since >= key.failed_at:
            key.rests_until = float("-inf")

    def limited(self, index: int, now: float, requested: float | None) -> None:
        """Record that a call hit the key's rate limit. `requested` is the delay that the service requested."""
        self._rest(index, now, LIMITED_REST_S, requested, denied=False)

    def denied(self, index: int, now: float) -> None:
        """Record that the service denied the key itself."""
        self._rest(index, now, DENIED_REST_S, None, denied=True)

    def failed(self, index: int, fault: Fault, now: float) -> None:
        """Record a failure of the key. A temporary failure counts as a rate limit; any other failure denies the key."""
        if fault.kind is Kind.TRANSIENT:
            self.limited(index, now, fault.retry_after)
        else:
            self.denied(index, now)

    def move_on(
        self,
        fault: Fault,
        now: float,
        *,
        shut: Collection[int],
        moves: int,
        at_once: int,
        attempts: int,
        allowed: int | None,
    ) -> Retry | None:
        """Decide whether a call that failed because of its key goes on with another one; None leaves it to the policy.

        `moves` counts the moves so far, `at_once` the calls that were repeated at once, `attempts` the calls so far, and `allowed` the calls that the failure's schedule
        allows, None for any number. A key that is ready is used at once. That is not a retry, because each other key gets one call.
        Otherwise the call waits for the first key to be ready, if that is sooner than the delay that the service
        requested for this key.
        """
        wait = self.soonest(now, shut=shut)
        if wait is None:
            return None
        if wait <= 0.0 and at_once < len(self._keys) - 1:
            return Retry(0.0, None if allowed is None else max(allowed, attempts + 1), "another-key")
        # Each key has rejected it just now. However soon one of them is ready, another round at once would be a flood.
        wait = max(wait, LIMITED_REST_S)
        sooner = fault.retryable and fault.retry_after is not None and wait < fault.retry_after
        may = allowed is None or attempts - moves < allowed
        return Retry(wait, allowed, "requested") if sooner and may else None

    def learn(self, index: int, announced: AnnouncedLimit, now: float) -> None:
        """Follow the limit that a response to this key announced."""
        self._keys[index].pace.learn(announced.limit, announced.remaining, announced.reset, now)

    def _rest(self, index: int, now: float, first: float, requested: float | None, *, denied: bool) -> None:
        key = self._keys[index]
        # The exponent has a limit of its own: after thousands of failures the power would not fit a float.
        rest = min(first * 2.0 ** min(key.failures, 10), LONGEST_REST_S) if requested is None else requested
        key.failures += 1
        key.failed_at = now
        key.denied = denied
        key.rests_until = max(key.rests_until, now + rest)

    def _next_in_turn(self, candidates: Sequence[int], now: float) -> int:
        """Smooth weighted round-robin: a heavier key comes more often, but its turns are spread out."""
        keys = self._keys
        for index in candidates:
            keys[index].credit += keys[index].weight
        chosen = max(candidates, key=lambda index: keys[index].credit)
        # Only the candidates take part in this round. A resting key must not collect turns, or it would get too many
        # calls afterwards.
        keys[chosen].credit -= sum(keys[index].weight for index in candidates)
        keys[chosen].pace.reserve(now)
        return chosen

    @staticmethod
    def _rests_denied(key: _Key, now: float) -> bool:
        return key.denied and key.rests_until > now


def check_weights(weights: Any, count: int) -> None:
    """Check that there is one weight above zero for each of `count` clients; raise `InvalidError`."""
    if not isinstance(weights, (list, tuple)) or len(weights) != count:
        shown = f"{len(weights)} of them" if isinstance(weights, (list, tuple)) else type(weights).__name__
        raise InvalidError.saying("pool.weights", f"{count} numbers, one for each client", shown)
    for index, weight in enumerate(weights):
        options.at_least(f"pool.weights[{index}]", weight, 0)
        if weight == 0:
            raise InvalidError.at(f"pool.weights[{index}]", "a number > 0", weight)
