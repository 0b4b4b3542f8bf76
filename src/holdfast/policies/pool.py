"""Which of several keys the next call goes to: by weight, past those that rest, at the pace each one's limits announce.

Invariant: while a key may be used, no call waits and none goes to a key that rests. Over many calls each usable key gets
its weight's share.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from holdfast import options
from holdfast.faults import InvalidError
from holdfast.policies.rate_limit import RateLimitMachine

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from holdfast.classify.hints import AnnouncedLimit

__all__ = ["LIMITED_REST_S", "LONGEST_REST_S", "REFUSED_REST_S", "Choice", "PoolMachine", "check_weights"]

LIMITED_REST_S = 1.0
"""How long a rate-limited key rests that was not told how long; doubled with each refusal in a row."""
REFUSED_REST_S = 60.0
"""How long a key rests that was refused as such: revoked, without credit. Doubled likewise."""
LONGEST_REST_S = 600.0


class Choice(msgspec.Struct, frozen=True):
    """Send the call to this key, after `wait` seconds. Where there is a wait, choose again when it is over."""

    index: int
    wait: float = 0.0


class _Key:
    """The state of one key."""

    __slots__ = ("credit", "failures", "pace", "refused", "rests_until", "weight")

    def __init__(self, weight: float) -> None:
        self.weight = weight
        self.credit = 0.0
        """What smooth weighted round-robin counts by."""
        self.pace = RateLimitMachine()
        self.rests_until = float("-inf")
        self.refused = False
        """Its rest is not for a limit that passes by itself."""
        self.failures = 0

    def wait(self, now: float) -> float:
        return max(self.rests_until - now, self.pace.peek(now), 0.0)


class PoolMachine:
    """The state of a pool. Not safe for threads by itself: whoever performs its choices holds a lock around each call."""

    __slots__ = ("_keys",)

    def __init__(self, weights: Sequence[float]) -> None:
        check_weights(weights, len(weights))
        self._keys = [_Key(weight) for weight in weights]

    def choose(self, now: float, *, shut: Collection[int] = (), avoid: int | None = None) -> Choice:
        """Return the key for a call that begins now, and count it as used.

        `shut` are keys whose circuits are open; `avoid` failed a moment ago and is taken only if no other can be.
        Where all wait, nothing is counted: wait and choose again. Where all were refused, one is chosen all the same, for
        its refusal says what is wrong.
        """
        usable = [index for index in range(len(self._keys)) if index not in shut]
        ready = [index for index in usable if self._keys[index].wait(now) <= 0.0]
        others = [index for index in ready if index != avoid]
        if ready:
            return Choice(self._next_in_turn(others or ready, now))
        waiting = [index for index in usable if not self._keys[index].refused]
        if waiting:
            soonest = min(waiting, key=lambda index: self._keys[index].wait(now))
            return Choice(soonest, self._keys[soonest].wait(now))
        return Choice(min(usable or range(len(self._keys)), key=lambda index: self._keys[index].rests_until))

    def soonest(self, now: float, *, shut: Collection[int] = ()) -> float | None:
        """Return the seconds until some key may be used; None where all were refused."""
        waits = (
            key.wait(now) for index, key in enumerate(self._keys) if index not in shut and not self._lies_low(key, now)
        )
        return min(waits, default=None)

    def succeeded(self, index: int) -> None:
        key = self._keys[index]
        key.failures = 0
        key.refused = False

    def limited(self, index: int, now: float, asked: float | None) -> None:
        """A call ran into the key's limit; `asked` is how long the other side wants to be left alone."""
        self._rest(index, now, LIMITED_REST_S, asked, refused=False)

    def refused(self, index: int, now: float) -> None:
        """The key itself was refused."""
        self._rest(index, now, REFUSED_REST_S, None, refused=True)

    def learn(self, index: int, told: AnnouncedLimit, now: float) -> None:
        """Follow what an answer to this key says about its limit."""
        self._keys[index].pace.learn(told.limit, told.remaining, told.reset, now)

    def _rest(self, index: int, now: float, first: float, asked: float | None, *, refused: bool) -> None:
        key = self._keys[index]
        rest = min(first * 2.0 ** min(key.failures, 10), LONGEST_REST_S) if asked is None else asked
        key.failures += 1
        key.refused = refused
        key.rests_until = max(key.rests_until, now + rest)

    def _next_in_turn(self, candidates: Sequence[int], now: float) -> int:
        """Smooth weighted round-robin: the heavier comes more often, never in one block."""
        keys = self._keys
        for index in candidates:
            keys[index].credit += keys[index].weight
        chosen = max(candidates, key=lambda index: keys[index].credit)
        keys[chosen].credit -= sum(keys[index].weight for index in candidates)
        keys[chosen].pace.reserve(now)
        return chosen

    @staticmethod
    def _lies_low(key: _Key, now: float) -> bool:
        return key.refused and key.rests_until > now


def check_weights(weights: Any, count: int) -> None:
    """Check that there is one weight above zero for each of `count` clients."""
    if not isinstance(weights, (list, tuple)) or len(weights) != count:
        shown = f"{len(weights)} of them" if isinstance(weights, (list, tuple)) else type(weights).__name__
        raise InvalidError.saying("pool.weights", f"{count} numbers, one for each client", shown)
    for index, weight in enumerate(weights):
        options.at_least(f"pool.weights[{index}]", weight, 0)
        if weight == 0:
            raise InvalidError.at(f"pool.weights[{index}]", "a number > 0", weight)
