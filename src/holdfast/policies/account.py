"""One budget's own account: its limits, what was used of them, and what an attempt usually uses.

Invariant: an account knows nothing of the budgets around it. Money is whole nano-dollars, so that ten times 0.1 is 1.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeAlias

import msgspec

from holdfast import options

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["NANO", "Account", "Counted", "Limits", "Reached", "Unit", "Usual"]

Counted: TypeAlias = Literal["usd", "tokens", "turns", "attempts"]
Unit: TypeAlias = Literal["seconds", "usd", "tokens", "turns", "attempts"]

NANO = 1_000_000_000


class Limits(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, repr_omit_defaults=True):
    """What may be spent. None: no limit. 0: nothing."""

    seconds: float | None = None
    usd: float | None = None
    tokens: int | None = None
    turns: int | None = None
    attempts: int | None = None
    warn_at: float = 0.8
    """The share of a limit at which a warning is due, once (N3-6)."""
    estimate_usd: float | None = None
    """What an attempt of unknown cost is charged. None: the mean of the known ones."""
    estimate_tokens: int | None = None
    """The same for tokens."""

    def __post_init__(self) -> None:
        options.seconds("budget.seconds", self.seconds, zero=True, optional=True)
        options.at_least("budget.usd", self.usd, 0, optional=True)
        options.count("budget.tokens", self.tokens, least=0, optional=True)
        options.count("budget.turns", self.turns, least=0, optional=True)
        options.count("budget.attempts", self.attempts, least=0, optional=True)
        options.share("budget.warn_at", self.warn_at)
        options.at_least("budget.estimate_usd", self.estimate_usd, 0, optional=True)
        options.count("budget.estimate_tokens", self.estimate_tokens, least=0, optional=True)


class Reached(msgspec.Struct, frozen=True):
    """A line of a budget that is spent, or nearly so."""

    unit: Unit
    used: float
    limit: float


class Account:
    """What one budget allows and what was used of it, its children's use included."""

    __slots__ = ("_counted", "_warn_at", "_warned", "ends", "recovery", "seconds", "unknown", "used", "usual")

    def __init__(self, limits: Limits, now: float) -> None:
        self.seconds = limits.seconds
        self.ends = None if limits.seconds is None else now + limits.seconds
        """When the seconds run out."""
        self.used: dict[Counted, int] = {"usd": 0, "tokens": 0, "turns": 0, "attempts": 0}
        self.recovery: dict[Counted, int] = {"usd": 0, "tokens": 0, "turns": 0, "attempts": 0}
        """How much of `used` went into recovering."""
        self.unknown = 0
        """Attempts whose usage nobody knows."""
        self.usual: dict[Counted, Usual] = {
            "usd": Usual(_nano(limits.estimate_usd)),
            "tokens": Usual(limits.estimate_tokens),
        }
        """What an attempt uses, as far as this budget has seen."""
        self._counted = _counted(limits)
        self._warn_at = limits.warn_at
        self._warned: set[Unit] = set()

    def rest(self, now: float) -> Iterator[tuple[Unit, float]]:
        """Yield what is left of each limit, not below 0; money in nano-dollars."""
        if self.ends is not None:
            yield "seconds", max(0.0, self.ends - now)
        for unit, limit in self._counted:
            yield unit, max(0, limit - self.used[unit])

    def spent(self, now: float) -> Reached | None:
        """Return the first limit of which nothing is left."""
        if self.ends is not None and now >= self.ends:
            return self._seconds(now)
        used = self.used
        for unit, limit in self._counted:
            if used[unit] >= limit:
                return self._line(unit, limit)
        return None

    def nearly_spent(self, now: float) -> Iterator[Reached]:
        """Yield each limit that has come near its end, once. A limit of 0 has nothing to warn of."""
        if self.ends is not None and self.seconds and "seconds" not in self._warned:
            line = self._seconds(now)
            if line.used >= line.limit * self._warn_at:
                self._warned.add("seconds")
                yield line
        for unit, limit in self._counted:
            if limit and unit not in self._warned and self.used[unit] >= limit * self._warn_at:
                self._warned.add(unit)
                yield self._line(unit, limit)

    def _seconds(self, now: float) -> Reached:
        assert self.ends is not None
        assert self.seconds is not None
        return Reached("seconds", self.seconds - (self.ends - now), self.seconds)

    def _line(self, unit: Counted, limit: int) -> Reached:
        scale = NANO if unit == "usd" else 1
        return Reached(unit, self.used[unit] / scale, limit / scale)


class Usual:
    """What attempts of known usage used, and how many of unknown usage are still to be charged."""

    __slots__ = ("_attempts", "_fixed", "_total", "owed", "owed_recovery")

    def __init__(self, fixed: int | None) -> None:
        self._fixed = fixed
        self._total = 0
        self._attempts = 0
        self.owed = 0
        """Attempts that wait for an estimate; those that were recovering are counted apart."""
        self.owed_recovery = 0

    def learn(self, amount: int, attempts: int) -> None:
        """Take note of what some attempts used."""
        self._total += amount
        self._attempts += attempts

    def guess(self) -> int | None:
        """Return what one attempt uses, None while nothing is known."""
        if self._fixed is not None:
            return self._fixed
        # Rounded up: next to nothing is still not zero.
        return -(-self._total // self._attempts) if self._attempts else None


def _counted(limits: Limits) -> tuple[tuple[Counted, int], ...]:
    """The limits that are set, seconds aside."""
    lines: tuple[tuple[Counted, int | None], ...] = (
        ("usd", _nano(limits.usd)),
        ("tokens", limits.tokens),
        ("turns", limits.turns),
        ("attempts", limits.attempts),
    )
    return tuple((unit, limit) for unit, limit in lines if limit is not None)


def _nano(usd: float | None) -> int | None:
    return None if usd is None else round(usd * NANO)
