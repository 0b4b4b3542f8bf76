"""The ledger of a budget: seconds, money, tokens, turns and attempts. A charge counts in every outer budget too.

Invariant: a ledger's spend is what it was charged itself plus what its inner budgets were charged, to the nano-dollar.
What a call may cost at most is reserved before it is sent: spent and reserved together stay within every limit, as long as no call costs
more than its reservation. Usage that nobody knows is counted and estimated. It is not zero, and it blocks nothing. A model without a price does block: a
limit of money that does not know what calls cost would never be reached.
"""

from __future__ import annotations

from itertools import repeat
from typing import TYPE_CHECKING, Literal, TypeAlias

import msgspec

from holdfast import options
from holdfast.policies.profiles import TASK

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.faults import Fault

__all__ = [
    "NANO",
    "Account",
    "Ledger",
    "Left",
    "Limits",
    "Reached",
    "Reservation",
    "Short",
    "Spend",
    "Unit",
    "costs_nothing",
]

Counted: TypeAlias = Literal["usd", "tokens", "turns", "attempts"]
Unit: TypeAlias = Literal["seconds", "usd", "tokens", "turns", "attempts"]

NANO = 1_000_000_000
"""Money is counted in whole nano-dollars: with floats, ten charges of 0.1 dollars would not add up to 1."""

_RESERVED: tuple[Counted, ...] = ("usd", "tokens")

_FIRST_ERROR_STATUS = 400

_REMEMBERED = 10_000
"""Answers whose ids a budget remembers."""

_UNKNOWN = "unknown"

Owed: TypeAlias = "tuple[tuple[Account, ...], Reservation]"
"""The accounts that were charged for an answer that is not complete, and how much."""

_NEVER_SENT = frozenset({"CIRCUIT_OPEN", "SYS_BUDGET_EXHAUSTED", "SYS_BULKHEAD_FULL", "SYS_RATE_LIMITED"})
"""Codes of our own rejections. Nothing was sent."""


class Limits(options.Options, frozen=True, kw_only=True, omit_defaults=True, repr_omit_defaults=True):
    """What may be spent. None: no limit. 0: nothing."""

    seconds: float | None = None
    usd: float | None = None
    tokens: int | None = None
    turns: int | None = None
    attempts: int | None = None
    warn_at: float = TASK.limits["resource_warning"]
    """The share of a limit at which one warning is due (N3-6)."""
    estimate_usd: float | None = None
    """What an attempt of unknown cost is charged. None: the mean of the attempts whose cost is known."""
    estimate_tokens: int | None = None
    """What an attempt of unknown usage is charged in tokens. None: the mean of the attempts whose usage is known."""

    def __post_init__(self) -> None:
        options.seconds("budget.seconds", self.seconds, zero=True, optional=True)
        options.at_least("budget.usd", self.usd, 0, optional=True)
        options.count("budget.tokens", self.tokens, least=0, optional=True)
        options.count("budget.turns", self.turns, least=0, optional=True)
        options.count("budget.attempts", self.attempts, least=0, optional=True)
        options.share("budget.warn_at", self.warn_at)
        options.at_least("budget.estimate_usd", self.estimate_usd, 0, optional=True)
        options.count("budget.estimate_tokens", self.estimate_tokens, least=0, optional=True)


class Left(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, repr_omit_defaults=True):
    """What may still be spent, by the tightest limit of this budget and the outer ones. None: no limit."""

    seconds: float | None = None
    usd: float | None = None
    tokens: int | None = None
    turns: int | None = None
    attempts: int | None = None


class Spend(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, repr_omit_defaults=True):
    """What was spent. The `recovery_` fields are the part that went into retries, hedges and fallbacks."""

    usd: float = 0.0
    tokens: int = 0
    turns: int = 0
    attempts: int = 0
    recovery_usd: float = 0.0
    recovery_tokens: int = 0
    recovery_attempts: int = 0
    unknown: int = 0
    """Attempts of unknown usage. `usd` and `tokens` include an estimate for them as soon as there is one."""


class Reached(msgspec.Struct, frozen=True):
    """A limit that is spent, or nearly spent."""

    unit: Unit
    used: float
    limit: float
    level: int = 0
    """Whose limit it is: 0 for the budget itself, 1 for the budget around it, and so on."""


class Reservation(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, repr_omit_defaults=True):
    """What one call may use of a budget until it is settled."""

    usd: int = 0
    """In nano-dollars."""
    tokens: int = 0
    firm: bool = False
    """It is the most that the call can cost, so the call is rejected if it never fits. False: an estimate, for which a call only waits."""


class Short(msgspec.Struct, frozen=True, kw_only=True):
    """The limit that a reservation does not fit into."""

    unit: Unit
    price: float
    """What the call may cost."""
    left: float
    """What is left beside other reservations."""
    limit: float
    account: Account
    """Whose limit it is."""
    is_final: bool
    """Waiting does not help: nothing else is in flight, or too much is spent already."""


class Ledger:
    """The account of one budget together with those of the outer budgets. One lock must guard the whole tree.

    Outer budgets may run on other clocks. Then `outer` holds the readings of their clocks, the nearest budget's first.
    """

    __slots__ = ("accounts",)

    def __init__(self, limits: Limits, *, now: float, parent: Ledger | None = None) -> None:
        # A flat tuple instead of a chain of parents: each attempt is charged to all accounts, and a loop is cheap.
        self.accounts: tuple[Account, ...] = (Account(limits, now), *(parent.accounts if parent is not None else ()))
        """The budget's own account first, the outermost last."""

    @classmethod
    def of(cls, account: Account, parent: Ledger | None) -> Ledger:
        """Return the ledger of an account that exists, inside of other budgets. Inside of itself a budget is charged once."""
        outer = () if parent is None else parent.accounts
        ledger = cls.__new__(cls)
        ledger.accounts = outer if account in outer else (account, *outer)
        return ledger

    def charge(
        self,
        *,
        usd: float | None = None,
        tokens: int | None = None,
        turns: int = 0,
        attempts: int = 0,
        settled: int = 0,
        unknown: int = 0,
        recovery: bool = False,
    ) -> None:
        """Charge what was used to this budget and every outer one.

        An attempt is charged when it starts; `settled` is the number of started attempts whose usage this is.
        `unknown` is the number of attempts whose usage is not known. If `usd` or `tokens` is None, it is estimated.
        `recovery` marks what would not have been spent if the first attempt had succeeded.
        """
        _check(usd, tokens, turns, attempts, unknown)
        self._charge_attempts("usd", _nano(usd), attempts + settled, unknown, recovery=recovery)
        self._charge_attempts("tokens", tokens, attempts + settled, unknown, recovery=recovery)
        _book(self.accounts, "turns", turns, recovery=recovery)
        _book(self.accounts, "attempts", attempts, recovery=recovery)
        if unknown:
            for account in self.accounts:
                account.unknown += unknown

    def reserve_turn(self) -> Reached | None:
        """Reserve a turn in this budget and every outer one; return the limit that has none left, the innermost budget's first."""
        for account in self.accounts:
            if (reached := account.turns_taken()) is not None:
                return reached
        for account in self.accounts:
            account.reserved += 1
        return None

    def settle_turn(self, *, used: bool) -> None:
        """Charge a turn that was reserved, or give it back."""
        for account in self.accounts:
            account.reserved -= 1
        _book(self.accounts, "turns", int(used), recovery=False)

    def short_of(self, reservation: Reservation, owner: object = None) -> Short | None:
        """Return the limit that a reservation does not fit into, the innermost budget's first; None: it fits."""
        shorts = [short for account in self.accounts if (short := account.short_of(reservation, owner)) is not None]
        # A call that one limit rejects for good need not wait for another. One that is not rejected waits for all of them.
        decisive = (short for short in shorts if short.is_final == reservation.firm)
        return next(decisive, shorts[0] if shorts else None)

    def reserve(self, reservation: Reservation, owner: object = None) -> None:
        """Reserve an amount in this budget and every outer one. `release` gives it back."""
        for account in self.accounts:
            account.hold(reservation, owner, 1)

    def release(self, reservation: Reservation, owner: object = None) -> None:
        """Give a reservation back."""
        for account in self.accounts:
            account.hold(reservation, owner, -1)

    def usual(self) -> Reservation:
        """Return what an attempt uses as far as these budgets know, for a call that nobody can price before it is made."""
        usd, tokens = (_estimate(self.accounts, unit) or 0 for unit in _RESERVED)
        return Reservation(usd=usd, tokens=tokens)

    def charge_guess(
        self, *, usd: float | None, tokens: int, most: Reservation, whole: bool, recovery: bool = False
    ) -> None:
        """Charge an attempt of unknown usage of which a part is known: its input, and the output that was seen.

        `whole`: its output was seen as it came. Otherwise it counts as much as other attempts, but no more than its reservation.
        The user's own estimates win.
        """
        guesses: tuple[tuple[Counted, int | None, int], ...] = (
            ("usd", _nano(usd), most.usd),
            ("tokens", tokens, most.tokens),
        )
        for unit, guess, limit in guesses:
            fixed = next((a.usual[unit].fixed for a in self.accounts if a.usual[unit].fixed is not None), None)
            if fixed is not None or guess is None:
                self._charge_attempts(unit, None, 0, 1, recovery=recovery)
            else:
                usual = 0 if whole else _estimate(self.accounts, unit) or 0
                _book(self.accounts, unit, max(guess, min(usual, limit)), recovery=recovery)
        for account in self.accounts:
            account.unknown += 1

    @property
    def limits_usage(self) -> bool:
        """Whether a limit of money or tokens holds here."""
        return any(account.limits_usage for account in self.accounts)

    def note_unpriced(self, model: str) -> None:
        """Remember that `model` was used and has no price, so that the money of this budget and the outer ones is not known."""
        for account in self.accounts:
            account.unpriced = account.unpriced or model

    @property
    def limits_money(self) -> bool:
        """Whether a limit of money holds here, and no estimate says what a call of unknown cost counts."""
        return any(account.limits_money for account in self.accounts) and all(
            account.usual["usd"].fixed is None for account in self.accounts
        )

    @property
    def unpriced(self) -> str | None:
        """The model without a price that was used although a limit of money holds; None if there is none."""
        if not self.limits_money:
            return None
        return next((a.unpriced for a in self.accounts if a.limits_money and a.unpriced is not None), None)

    def take_back_attempt(self, *, recovery: bool) -> None:
        """Take back one attempt that was charged at its start but made no call of its own."""
        _book(self.accounts, "attempts", -1, recovery=recovery)

    def check(self, now: float, outer: tuple[float, ...] = (), *, free: bool = False) -> Reached | None:
        """Return a limit that is spent, the innermost budget's first; None if something is left of every limit.

        `free`: the call asks no model, so only seconds and attempts count.
        """
        # The innermost budget is the most specific reason to stop, so its limit is reported.
        for account, at in self._at(now, outer):
            if (reached := account.spent(at, free=free)) is not None:
                return reached
        return None

    def remember_answer(self, name: str, owed: Reservation | None = None) -> None:
        """Remember that an answer was charged. `owed`: it is not complete, and this much was charged for it so far."""
        for account in self.accounts:
            account.remember_answer(name, None if owed is None else (self.accounts, owed))

    def charge_retrieved(self, name: str, *, usd: float | None, tokens: int) -> None:
        """Charge an answer that was read again: nothing if it was charged before, else what it has used."""
        known = next((account.answers[name] for account in self.accounts if name in account.answers), _UNKNOWN)
        if known is None:
            return
        if isinstance(known, tuple):
            # Charged as if it were as long as it could be. Now its usage is known.
            accounts, owed = known
            _book(accounts, "usd", (_nano(usd) or 0) - owed.usd, recovery=False)
            _book(accounts, "tokens", tokens - owed.tokens, recovery=False)
            for account in accounts:
                account.unknown -= 1
                account.remember_answer(name, None)
        else:
            self.charge(usd=usd, tokens=tokens, settled=1, unknown=int(usd is None))
        self.remember_answer(name)

    def warnings(self, now: float, outer: tuple[float, ...] = ()) -> list[Reached]:
        """Return the limits that are nearly spent. Each is returned by one call only."""
        return [
            msgspec.structs.replace(reached, level=level)
            for level, (account, at) in enumerate(self._at(now, outer))
            for reached in account.nearly_spent(at)
        ]

    def left(self, now: float, outer: tuple[float, ...] = ()) -> Left:
        """Return what may still be spent. An overdrawn limit has 0 left."""
        least: dict[Unit, float] = {}
        for account, at in self._at(now, outer):
            for unit, rest in account.rest(at):
                least[unit] = min(least.get(unit, rest), rest)
        # Divided last, so that the comparisons above are exact.
        if "usd" in least:
            least["usd"] /= NANO
        return Left(**least)  # type: ignore[arg-type]

    def spend(self) -> Spend:
        """Return what this budget and its inner budgets spent."""
        return self.accounts[0].spend()

    @property
    def deadline(self) -> float | None:
        """When the seconds of this budget run out, whatever the outer ones have left; None: never."""
        return self.accounts[0].ends

    def _at(self, now: float, outer: tuple[float, ...]) -> Iterator[tuple[Account, float]]:
        return zip(self.accounts, (now, *outer) if outer else repeat(now), strict=False)

    def _charge_attempts(
        self, unit: Counted, given: int | None, attempts: int, unknown: int, *, recovery: bool
    ) -> None:
        """Charge money or tokens: the given amount, else an estimate, else later when an estimate exists."""
        if given is not None:
            _book(self.accounts, unit, given, recovery=recovery)
            # A charge without attempts, such as a fee of your own, says nothing about what an attempt costs.
            if attempts:
                for account in self.accounts:
                    account.usual[unit].learn(given, attempts)
                self._charge_owed(unit)
        elif unknown:
            estimate = _estimate(self.accounts, unit)
            usual = self.accounts[0].usual[unit]
            if estimate is not None:
                _book(self.accounts, unit, estimate * unknown, recovery=recovery)
            # No attempt of known usage yet. Only the innermost account keeps the debt: paying it charges the outer ones too.
            elif recovery:
                usual.owed_recovery += unknown
            else:
                usual.owed += unknown

    def _charge_owed(self, unit: Counted) -> None:
        """Charge the attempts that waited for an estimate: to the budget that made them and its outer budgets."""
        for index, account in enumerate(self.accounts):
            usual = account.usual[unit]
            if usual.owed or usual.owed_recovery:
                chain = self.accounts[index:]
                estimate = _estimate(chain, unit) or 0
                _book(chain, unit, usual.owed * estimate, recovery=False)
                _book(chain, unit, usual.owed_recovery * estimate, recovery=True)
                usual.owed = usual.owed_recovery = 0


class Account:
    """What one budget allows and what was used of it, inner budgets included. It knows nothing of outer budgets."""

    __slots__ = (
        "_counted",
        "_seconds_left",
        "_warn_at",
        "_warned",
        "answers",
        "ends",
        "held",
        "limits_money",
        "limits_usage",
        "owners",
        "recovery",
        "reserved",
        "seconds",
        "unknown",
        "unpriced",
        "used",
        "usual",
    )

    def __init__(self, limits: Limits, now: float) -> None:
        self.seconds = limits.seconds
        self.ends = None if limits.seconds is None else now + limits.seconds
        """When the seconds run out; None if there is no such limit, or no block of the budget is open."""
        self._seconds_left: float | None = None
        """What was left of the seconds when the last block ended."""
        self.used: dict[Counted, int] = {"usd": 0, "tokens": 0, "turns": 0, "attempts": 0}
        self.recovery: dict[Counted, int] = {"usd": 0, "tokens": 0, "turns": 0, "attempts": 0}
        """The part of `used` that went into recovery."""
        self.reserved = 0
        """Turns of requests that are on their way. They are nobody else's, and are not used yet."""
        self.held: dict[Counted, int] = {"usd": 0, "tokens": 0}
        """What calls that are under way may still use."""
        self.owners: dict[object, int] = {}
        """How many calls of each owner have a reservation."""
        self.unknown = 0
        """Attempts of unknown usage."""
        self.answers: dict[str, Owed | None] = {}
        """The latest answers that were charged, by their ids; None: to the end."""
        self.limits_money = limits.usd is not None
        self.limits_usage = limits.usd is not None or limits.tokens is not None
        self.unpriced: str | None = None
        """A model that was used and has no price."""
        self.usual: dict[Counted, UsualUse] = {
            "usd": UsualUse(_nano(limits.estimate_usd)),
            "tokens": UsualUse(limits.estimate_tokens),
        }
        """What an attempt uses, as far as this budget has seen."""
        self._counted = _counted(limits)
        self._warn_at = limits.warn_at
        # There is one warning per limit. A warning for each further attempt would hide the first one.
        self._warned: set[Unit] = set()

    def spend(self) -> Spend:
        """Return what this budget and its inner budgets spent."""
        used, recovery = self.used, self.recovery
        return Spend(
            usd=used["usd"] / NANO,
            tokens=used["tokens"],
            turns=used["turns"],
            attempts=used["attempts"],
            recovery_usd=recovery["usd"] / NANO,
            recovery_tokens=recovery["tokens"],
            recovery_attempts=recovery["attempts"],
            unknown=self.unknown,
        )

    def start_clock(self, now: float) -> None:
        """Go on with what was left of the seconds when the clock was stopped."""
        if self._seconds_left is not None:
            self.ends, self._seconds_left = now + self._seconds_left, None

    def stop_clock(self, now: float) -> None:
        """Take back the limit of seconds: no block of the budget is open. `rest` goes on to show what was left of it."""
        if self.ends is not None:
            self._seconds_left, self.ends = max(0.0, self.ends - now), None

    def rest(self, now: float) -> Iterator[tuple[Unit, float]]:
        """Yield what is left of each limit, not below 0; money in nano-dollars."""
        if self.ends is not None:
            yield "seconds", max(0.0, self.ends - now)
        elif self._seconds_left is not None:
            yield "seconds", self._seconds_left
        for unit, limit in self._counted:
            reserved = self.reserved if unit == "turns" else self.held.get(unit, 0)
            yield unit, max(0, limit - self.used[unit] - reserved)

    def spent(self, now: float, *, free: bool = False) -> Reached | None:
        """Return the first limit of which nothing is left. `free`: for a call that asks no model."""
        if self.ends is not None and now >= self.ends:
            return self._seconds(now)
        used = self.used
        for unit, limit in self._counted:
            if used[unit] >= limit and not (free and unit != "attempts"):
                return self._reached(unit, limit)
        return None

    def remember_answer(self, name: str, owed: Owed | None) -> None:
        """Remember an answer that was charged, and how much of that is only an estimate."""
        self.answers.pop(name, None)
        self.answers[name] = owed
        if len(self.answers) > _REMEMBERED:
            del self.answers[next(iter(self.answers))]

    def turns_taken(self) -> Reached | None:
        """Return the limit of turns if all are used or reserved."""
        taken = self.used["turns"] + self.reserved
        limit = dict(self._counted).get("turns")
        return None if limit is None or taken < limit else Reached("turns", taken, limit)

    def hold(self, reservation: Reservation, owner: object, sign: int) -> None:
        """Add a reservation (sign 1), or take it away again (sign -1)."""
        self.held["usd"] += sign * reservation.usd
        self.held["tokens"] += sign * reservation.tokens
        count = self.owners.get(owner, 0) + sign
        if count:
            self.owners[owner] = count
        else:
            del self.owners[owner]

    def short_of(self, reservation: Reservation, owner: object) -> Short | None:
        """Return the limit that a reservation of `owner` does not fit into; None: it fits."""
        for unit, limit in self._counted:
            if unit not in self.held:
                continue
            price = reservation.usd if unit == "usd" else reservation.tokens
            used, held = self.used[unit], self.held[unit]
            if not price or used + held + price <= limit:
                continue
            scale = NANO if unit == "usd" else 1
            return Short(
                unit=unit,
                price=price / scale,
                left=max(0, limit - used - held) / scale,
                limit=limit / scale,
                account=self,
                # What is spent never comes back. An estimate may be wrong, so its call waits for all others. A stream that
                # the caller itself has open does not end while the caller waits.
                is_final=held == 0 or not self._others_go_on(owner) or (reservation.firm and used + price > limit),
            )
        return None

    def _others_go_on(self, owner: object) -> bool:
        """Whether somebody else has a reservation, and has not ended. Nobody reads a stream that was left open by a task that has ended."""
        return any(other != owner and not _has_ended(other) for other in self.owners)

    def nearly_spent(self, now: float) -> Iterator[Reached]:
        """Yield each limit that is nearly spent, once."""
        # A limit of 0 is spent from the start, so there is nothing to warn of.
        if self.ends is not None and self.seconds and "seconds" not in self._warned:
            reached = self._seconds(now)
            if reached.used >= reached.limit * self._warn_at:
                self._warned.add("seconds")
                yield reached
        for unit, limit in self._counted:
            if limit and unit not in self._warned and self.used[unit] >= limit * self._warn_at:
                self._warned.add(unit)
                yield self._reached(unit, limit)

    def _seconds(self, now: float) -> Reached:
        assert self.ends is not None
        assert self.seconds is not None
        return Reached("seconds", self.seconds - (self.ends - now), self.seconds)

    def _reached(self, unit: Counted, limit: int) -> Reached:
        scale = NANO if unit == "usd" else 1
        return Reached(unit, self.used[unit] / scale, limit / scale)


class UsualUse:
    """What an attempt usually uses, and how many attempts of unknown usage are still to be charged."""

    __slots__ = ("_attempts", "_total", "fixed", "owed", "owed_recovery")

    def __init__(self, fixed: int | None) -> None:
        self.fixed = fixed
        """The user's own estimate."""
        self._total = 0
        self._attempts = 0
        self.owed = 0
        """First attempts that wait for an estimate."""
        self.owed_recovery = 0
        """Retries, hedges and fallbacks that wait for an estimate."""

    def learn(self, amount: int, attempts: int) -> None:
        """Take note of what some attempts used."""
        self._total += amount
        self._attempts += attempts

    def estimate(self) -> int | None:
        """Return what one attempt uses; None while nothing is known."""
        # The user's own estimate wins, even if measured usage differs.
        if self.fixed is not None:
            return self.fixed
        # Rounded up, so that a small usage never becomes an estimate of zero.
        return -(-self._total // self._attempts) if self._attempts else None


def costs_nothing(fault: Fault) -> bool:
    """Whether an attempt with this failure used nothing: it never reached the service, or was rejected with an error status."""
    if fault.maybe_executed:
        return False
    status = fault.context.get("status")
    if fault.code in _NEVER_SENT:
        return True
    return fault.code.startswith("CONN_") or (isinstance(status, int) and status >= _FIRST_ERROR_STATUS)


def _estimate(accounts: tuple[Account, ...], unit: Counted) -> int | None:
    """Return what one attempt uses, by the innermost budget that knows."""
    estimates = (account.usual[unit].estimate() for account in accounts)
    return next((estimate for estimate in estimates if estimate is not None), None)


def _book(accounts: tuple[Account, ...], unit: Counted, amount: int, *, recovery: bool) -> None:
    if amount:
        for account in accounts:
            account.used[unit] += amount
            if recovery:
                account.recovery[unit] += amount


def _has_ended(owner: object) -> bool:
    done = getattr(owner, "done", None)
    return done is not None and bool(done())


def _counted(limits: Limits) -> tuple[tuple[Counted, int], ...]:
    """Return the limits that are set, apart from the seconds: those follow from the time and are not counted."""
    amounts: tuple[tuple[Counted, int | None], ...] = (
        ("usd", _nano(limits.usd)),
        ("tokens", limits.tokens),
        ("turns", limits.turns),
        ("attempts", limits.attempts),
    )
    return tuple((unit, limit) for unit, limit in amounts if limit is not None)


def _nano(usd: float | None) -> int | None:
    return None if usd is None else round(usd * NANO)


def _check(usd: float | None, tokens: int | None, turns: int, attempts: int, unknown: int) -> None:
    # Every attempt is charged here and most charge one or two amounts, so an absent amount costs one comparison only.
    if usd is not None:
        options.at_least("charge.usd", usd, 0)
    if tokens is not None:
        options.count("charge.tokens", tokens, least=0)
    if turns != 0:
        options.count("charge.turns", turns)
    if attempts != 0:
        options.count("charge.attempts", attempts)
    if unknown != 0:
        options.count("charge.unknown", unknown)
