"""Limits that depend on the load: requests and tokens a minute, and answers at the same time.

Requests and tokens are token buckets: a bucket holds `burst`, refills at the limit's rate, and a request that finds too little in it is
limited. Each API key has its own bucket, unless the limit is shared. A limit may begin and end at a moment, and may rise or fall between
two moments. Nothing here waits or reads a clock: the time is a parameter.

Invariant: a request is charged by every limit that applies to it, or by none.
"""

from __future__ import annotations

import math
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import msgspec

from holdfast import options as check
from holdfast.faults import InvalidError
from holdfast.testing.provider.faults import ERRORS

if TYPE_CHECKING:
    from collections.abc import Iterable

Kind = Literal["requests", "tokens", "concurrency"]

_MINUTE = 60.0
# Without a tolerance, a client that waits exactly as long as it must would find 0.9999999999 of a request.
_ROUNDING = 1e-6
_RATE_LIMIT = "rate-limit"
_KINDS: tuple[Kind, ...] = ("requests", "tokens", "concurrency")
_FLAGS = frozenset({"shared", "retry_after", "headers", "charge_rejected"})
_PATTERNS = frozenset({"models", "keys"})


class Limit(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename={"since": "from", "until": "to"}):  # fmt: skip
    """One limit. Give one of `requests`, `tokens` and `concurrency`.

    For example:
        Limit(requests=60, burst=5)  # one request a second, five at once
        Limit(tokens=30_000, headers=False)  # nobody learns of it before it is reached
        Limit(concurrency=4, shared=True)  # for all keys together
        Limit(requests=600, since=120, ramp=300)  # returns slowly: from second 120 to 420 it rises from 0 to 600
    """

    requests: float | None = None
    """Requests a minute."""
    tokens: float | None = None
    """Tokens a minute: the estimate of the prompt and the answer's tokens. They are charged when the request comes."""
    concurrency: int | None = None
    """Answers at the same time. A request holds its place until its answer ends or its client leaves."""
    burst: float | None = None
    """How much the bucket holds. The default is the limit of one minute."""
    shared: bool = False
    """Whether all keys share the limit. Otherwise each key has its own."""
    since: float = 0.0
    """Seconds after the first request; `from` in TOML. Before that moment the limit does not apply."""
    until: float | None = None
    """Seconds after the first request; `to` in TOML."""
    ramp: float = 0.0
    """Seconds in which the limit changes, linearly from `ramp_from` to its number. They begin at `since`."""
    ramp_from: float = 0.0
    """The limit at the beginning of the ramp."""
    models: tuple[str, ...] = ("*",)
    """Patterns of the models that it counts: `claude-*`."""
    keys: tuple[str, ...] = ("*",)
    """Patterns of the keys that it counts."""
    retry_after: bool = True
    """Whether a 429 announces when to come back, in each protocol's own way."""
    headers: bool = True
    """Whether every answer carries the rate limit headers."""
    lie: float = 1.0
    """Every announced time is this many times the true one: 0.1 is too short, 10 is too long."""
    charge_rejected: bool = False
    """Whether a request that is limited is charged too, so that repeating it at once makes it worse."""
    error: str = "rate-limit"
    """The error of a request that is limited. With another one, such as `overloaded`, nothing is announced, as in reality."""

    @property
    def kind(self) -> Kind:
        """What is limited."""
        return "requests" if self.requests is not None else "tokens" if self.tokens is not None else "concurrency"

    @property
    def most(self) -> float:
        """The limit's number, at the end of a ramp."""
        return float(self.requests or self.tokens or self.concurrency or 0)

    @property
    def capacity(self) -> float:
        """How much a bucket holds."""
        return self.most if self.burst is None else self.burst

    @property
    def announces(self) -> bool:
        """Whether answers carry headers about this limit."""
        return self.headers and self.error == _RATE_LIMIT

    def applies_to(self, key: str, model: str, at: float) -> bool:
        """Whether the limit counts a request that came `at` seconds after the first request."""
        if at < self.since or (self.until is not None and at >= self.until):
            return False
        return fits(model, self.models) and fits(key, self.keys)

    def now(self, at: float) -> float:
        """Return the limit at a moment."""
        if at >= self.since + self.ramp:
            return self.most
        return self.ramp_from + (self.most - self.ramp_from) * (at - self.since) / self.ramp

    def gained(self, start: float, end: float) -> float:
        """Return what flows into a bucket between two moments."""
        peak = self.since + self.ramp
        risen, steady = min(end, peak), max(start, peak)
        inside = (self.now(start) + self.now(risen)) / 2 * (risen - start) if risen > start else 0.0
        return (inside + (self.most * (end - steady) if end > steady else 0.0)) / _MINUTE

    def seconds_until(self, needed: float, at: float) -> float:
        """Return how long a bucket needs to gain this much."""
        # When the limit ends, the request is not limited any more.
        end = math.inf if self.until is None else max(0.0, self.until - at)
        return min(end, self._seconds_to_gain(needed, at))

    def _seconds_to_gain(self, needed: float, at: float) -> float:
        left = max(0.0, self.since + self.ramp - at)
        during = self.gained(at, at + left)
        if needed > during:
            return left + (needed - during) * _MINUTE / self.most
        slope = (self.most - self.ramp_from) / self.ramp if left else 0.0
        rate = self.now(at)
        if not slope:
            return needed * _MINUTE / rate
        # The gain in a ramp is a quadratic function of the time. This is its positive root.
        return (math.sqrt(max(0.0, rate * rate + 2 * slope * needed * _MINUTE)) - rate) / slope

    def check(self, path: str) -> None:
        """Raise `InvalidError` for values that make no sense."""
        given = [kind for kind in _KINDS if getattr(self, kind) is not None]
        if len(given) != 1:
            raise InvalidError.at(path, f"one of {', '.join(_KINDS)}", " and ".join(given) or "none")
        check.at_least(f"{path}.{self.kind}", self.most, 1)
        check.at_least(f"{path}.burst", self.burst, 1, optional=True)
        if self.burst is not None and self.concurrency is not None:
            raise InvalidError.at(f"{path}.burst", "no burst, because concurrency has no bucket", self.burst)
        check.seconds(f"{path}.from", self.since, zero=True)
        check.seconds(f"{path}.to", self.until, optional=True)
        if self.until is not None and self.until <= self.since:
            raise InvalidError.at(f"{path}.to", f"a moment after {self.since:g} s, where the limit begins", self.until)
        check.seconds(f"{path}.ramp", self.ramp, zero=True)
        check.at_least(f"{path}.ramp_from", self.ramp_from, 0)
        check.at_least(f"{path}.lie", self.lie, 0)
        check.one_of(f"{path}.error", self.error, ERRORS)


class Standing(NamedTuple):
    """What the rate limit headers announce about a limit."""

    kind: Kind
    limit: int
    remaining: int
    seconds: float
    """Until it is whole again, as announced."""


class LimitReason(NamedTuple):
    """Why a request is limited."""

    kind: Kind
    limit: int
    used: int
    requested: int
    too_large: bool
    """Whether the request needs more than the bucket ever holds."""
    seconds: float | None
    """When to come back, as announced. None if the limit does not announce it."""
    error: str = "rate-limit"


class LimitVerdict(NamedTuple):
    """The verdict about one request. Call `Limits.release` with it when its answer has ended."""

    rejection: LimitReason | None
    standings: tuple[Standing, ...]
    held: tuple[_Slots, ...] = ()


class Limits:
    """The limits of a provider, and how much of each is used. It is not thread-safe.

    For example:
        limits = Limits([Limit(requests=60, burst=1)])
        assert limits.admit("key", "model", tokens=10, at=0.0).rejection is None
        assert limits.admit("key", "model", tokens=10, at=0.5).rejection.seconds == 0.5

    Raises `InvalidError` for a limit whose values make no sense.
    """

    def __init__(self, limits: Iterable[Limit] = ()) -> None:
        self.limits = tuple(limits)
        for place, limit in enumerate(self.limits):
            limit.check(f"limits[{place}]")
        self._counts: dict[tuple[int, str], _Bucket | _Slots] = {}

    def admit(self, key: str, model: str, *, tokens: int, at: float) -> LimitVerdict:
        """Admit a request that came `at` seconds after the first request, or reject it."""
        counts = [count for count in self._of(key) if count.limit.applies_to(key, model, at)]
        for count in counts:
            count.refill(at)
        rejected = [count for count in counts if not count.has(tokens, at)]
        for count in counts:
            if not rejected or (count.limit.charge_rejected and isinstance(count, _Bucket)):
                count.take(tokens)
        standings = _standings([count for count in counts if isinstance(count, _Bucket) and count.limit.announces])
        if rejected:
            # The longest wait is announced, because before it ends the request would only be limited again.
            return LimitVerdict(max((count.rejection(tokens, at) for count in rejected), key=_wait), standings)
        return LimitVerdict(None, standings, tuple(count for count in counts if isinstance(count, _Slots)))

    @staticmethod
    def release(admission: LimitVerdict) -> None:
        """Free the places that a request held. Call it once."""
        for slots in admission.held:
            slots.used -= 1

    def _of(self, key: str) -> list[_Bucket | _Slots]:
        found = []
        for place, limit in enumerate(self.limits):
            owner = (place, "" if limit.shared else key)
            if owner not in self._counts:
                self._counts[owner] = _Slots(limit) if limit.concurrency is not None else _Bucket(limit)
            found.append(self._counts[owner])
        return found


class _Bucket:
    """The requests or tokens that are left of a limit."""

    def __init__(self, limit: Limit) -> None:
        self.limit = limit
        self._counts_tokens = limit.kind == "tokens"
        # A limit that rises begins with the same share of its burst, or the first seconds of a slow return would be a burst.
        self._level = limit.capacity * min(1.0, limit.now(limit.since) / limit.most)
        self._at = limit.since

    def refill(self, at: float) -> None:
        if at > self._at:
            self._level = min(self.limit.capacity, self._level + self.limit.gained(self._at, at))
            self._at = at

    def has(self, tokens: int, _at: float) -> bool:
        return self._level + _ROUNDING >= self._cost(tokens)

    def take(self, tokens: int) -> None:
        self._level = max(0.0, self._level - self._cost(tokens))

    def rejection(self, tokens: int, at: float) -> LimitReason:
        limit, cost = self.limit, self._cost(tokens)
        too_large = cost > limit.capacity
        most = int(limit.now(at))
        known = limit.retry_after and limit.error == _RATE_LIMIT and not too_large
        seconds = limit.seconds_until(cost - self._level, at) * limit.lie if known else None
        used = max(0, most - int(self._level))
        return LimitReason(limit.kind, most, used, cost, too_large, seconds, limit.error)

    def standing(self) -> Standing:
        limit = self.limit
        # The small difference keeps 4.9999999 from being announced as 4.
        left = int(self._level + _ROUNDING)
        seconds = limit.seconds_until(limit.capacity - self._level, self._at) * limit.lie
        return Standing(limit.kind, int(limit.now(self._at)), left, seconds)

    def _cost(self, tokens: int) -> int:
        return tokens if self._counts_tokens else 1


class _Slots:
    """The places of a limit for answers at the same time."""

    def __init__(self, limit: Limit) -> None:
        self.limit = limit
        self.used = 0

    def refill(self, at: float) -> None:
        """Do nothing: places come back when answers end."""

    def has(self, _tokens: int, at: float) -> bool:
        return self.used + 1 <= self.limit.now(at) + _ROUNDING

    def take(self, _tokens: int) -> None:
        self.used += 1

    def rejection(self, _tokens: int, at: float) -> LimitReason:
        # Nobody knows when another answer ends, so no time is announced.
        most, error = int(self.limit.now(at)), self.limit.error
        return LimitReason("concurrency", most, self.used, 1, too_large=False, seconds=None, error=error)


def read_limit(text: str) -> Limit:
    """Read a limit in one line: `read_limit("requests=60;burst=5;shared")`.

    The options are the fields of `Limit`. A flag is `shared` or `headers=no`; patterns are separated by `|`. Raises `InvalidError`.
    """
    given: dict[str, Any] = {}
    for part in text.split(";"):
        name, equals, value = (each.strip() for each in part.partition("="))
        name = name.lower().replace("-", "_")
        if not equals and name not in _FLAGS:
            raise InvalidError.at("limit", "KIND=NUMBER;OPTION=VALUE, such as requests=60;burst=5;headers=no", text)
        given[name] = _value(name, value, equals=bool(equals))
    known = [field.encode_name for field in msgspec.structs.fields(Limit)]
    if unknown := [name for name in given if name not in known]:
        raise InvalidError.saying("limit", f"one of {', '.join(known)}", f"an unknown option `{unknown[0]}`")
    try:
        limit = msgspec.convert(given, Limit, strict=False)
    except msgspec.ValidationError as error:
        context: Any = InvalidError.from_msgspec(error).fault.context
        path = str(context["path"]).replace("$", "limit", 1)
        raise InvalidError.saying(path, str(context["expected"]), str(context["received"])) from error
    limit.check("limit")
    return limit


def fits(text: str, patterns: tuple[str, ...]) -> bool:
    """Whether a text fits one of the patterns."""
    # Check the usual case first, because fnmatch is much slower.
    return any(pattern == "*" or fnmatchcase(text, pattern) for pattern in patterns)


def _value(name: str, value: str, *, equals: bool) -> Any:
    if name in _FLAGS:
        words = {"yes": True, "true": True, "no": False, "false": False}
        return words.get(value.lower(), value) if equals else True
    return tuple(value.split("|")) if name in _PATTERNS else value


def _standings(buckets: list[_Bucket]) -> tuple[Standing, ...]:
    """Return one standing of each kind: of several limits, the one with the least left."""
    least: dict[Kind, Standing] = {}
    for bucket in buckets:
        standing = bucket.standing()
        if standing.kind not in least or standing.remaining < least[standing.kind].remaining:
            least[standing.kind] = standing
    return tuple(least.values())


def _wait(rejection: LimitReason) -> tuple[bool, float]:
    return rejection.too_large, rejection.seconds or 0.0
