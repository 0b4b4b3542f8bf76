"""The one ledger of seconds, money, tokens, turns and attempts. It nests: what is charged here is charged above too.

Invariant: what a ledger has spent is what it was charged itself plus what its children were, to the nano-dollar. Usage
that nobody knows is counted and estimated: it is not zero, and it blocks nothing (R90).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from holdfast import options
from holdfast.policies.account import NANO, Account, Limits, Reached, Unit

if TYPE_CHECKING:
    from holdfast.policies.account import Counted

__all__ = ["Ledger", "Left", "Limits", "Reached", "Spend", "Unit"]


class Left(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, repr_omit_defaults=True):
    """What may still be spent, by the tightest line of all budgets around. None: no limit."""

    seconds: float | None = None
    usd: float | None = None
    tokens: int | None = None
    turns: int | None = None
    attempts: int | None = None


class Spend(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, repr_omit_defaults=True):
    """What was spent, and how much of it on recovering: retries, hedges and fallbacks."""

    usd: float = 0.0
    tokens: int = 0
    turns: int = 0
    attempts: int = 0
    recovery_usd: float = 0.0
    recovery_tokens: int = 0
    recovery_attempts: int = 0
    unknown: int = 0
    """Attempts whose usage nobody knows; `usd` and `tokens` hold an estimate for them, once there is one."""


class Ledger:
    """A budget's account together with those of the budgets around it. One lock must guard the whole tree."""

    __slots__ = ("accounts",)

    def __init__(self, limits: Limits, *, now: float, parent: Ledger | None = None) -> None:
        self.accounts: tuple[Account, ...] = (Account(limits, now), *(parent.accounts if parent is not None else ()))
        """Its own first, the outermost last."""

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
        """Charge what was used, here and in every budget around. Failed and hedged attempts are charged like others.

        `settled` says of how many attempts, charged when they began, this is the usage.
        `unknown` says of how many attempts the usage is not known: `usd` and `tokens` that are None are then estimated.
        `recovery` marks what would not have been spent if the first attempt had succeeded.
        """
        _check(usd, tokens, turns, attempts, unknown)
        nano = None if usd is None else round(usd * NANO)
        self._charge_attempts("usd", nano, attempts + settled, unknown, recovery=recovery)
        self._charge_attempts("tokens", tokens, attempts + settled, unknown, recovery=recovery)
        _book(self.accounts, "turns", turns, recovery=recovery)
        _book(self.accounts, "attempts", attempts, recovery=recovery)
        if unknown:
            for account in self.accounts:
                account.unknown += unknown

    def take_back_attempt(self, *, recovery: bool) -> None:
        """Take back one attempt, charged when it began, that turned out to be none."""
        _book(self.accounts, "attempts", -1, recovery=recovery)

    def check(self, now: float) -> Reached | None:
        """Return a line that is spent, the innermost budget's first; None where there is something left of all."""
        for account in self.accounts:
            if (reached := account.spent(now)) is not None:
                return reached
        return None

    def warnings(self, now: float) -> list[Reached]:
        """Return the lines that came near their limit since this was last asked: each is told once."""
        return [line for account in self.accounts for line in account.nearly_spent(now)]

    def left(self, now: float) -> Left:
        """Return what may still be spent; of a line that is overdrawn 0 is left."""
        least: dict[Unit, float] = {}
        for account in self.accounts:
            for unit, rest in account.rest(now):
                least[unit] = min(least.get(unit, rest), rest)
        if "usd" in least:
            least["usd"] /= NANO
        return Left(**least)  # type: ignore[arg-type]

    def spend(self) -> Spend:
        """Return what was spent, by this budget and those inside it."""
        account = self.accounts[0]
        used, recovery = account.used, account.recovery
        return Spend(
            usd=used["usd"] / NANO,
            tokens=used["tokens"],
            turns=used["turns"],
            attempts=used["attempts"],
            recovery_usd=recovery["usd"] / NANO,
            recovery_tokens=recovery["tokens"],
            recovery_attempts=recovery["attempts"],
            unknown=account.unknown,
        )

    @property
    def deadline(self) -> float | None:
        """When the seconds run out, by the tightest budget around; None: never."""
        return min((account.ends for account in self.accounts if account.ends is not None), default=None)

    def _charge_attempts(
        self, unit: Counted, given: int | None, attempts: int, unknown: int, *, recovery: bool
    ) -> None:
        """Charge money or tokens: as given, else by estimate, else later when there is one."""
        if given is not None:
            _book(self.accounts, unit, given, recovery=recovery)
            if attempts:
                for account in self.accounts:
                    account.usual[unit].learn(given, attempts)
                self._pay_what_is_owed(unit)
        elif unknown:
            guess = _guess(self.accounts, unit)
            usual = self.accounts[0].usual[unit]
            if guess is not None:
                _book(self.accounts, unit, guess * unknown, recovery=recovery)
            elif recovery:
                usual.owed_recovery += unknown
            else:
                usual.owed += unknown

    def _pay_what_is_owed(self, unit: Counted) -> None:
        """Charge attempts that waited for an estimate, each to the budget that made it and those around that one."""
        for index, account in enumerate(self.accounts):
            usual = account.usual[unit]
            if usual.owed or usual.owed_recovery:
                chain = self.accounts[index:]
                guess = _guess(chain, unit) or 0
                _book(chain, unit, usual.owed * guess, recovery=False)
                _book(chain, unit, usual.owed_recovery * guess, recovery=True)
                usual.owed = usual.owed_recovery = 0


def _guess(accounts: tuple[Account, ...], unit: Counted) -> int | None:
    """Return what one attempt uses, by the nearest budget that knows."""
    guesses = (account.usual[unit].guess() for account in accounts)
    return next((guess for guess in guesses if guess is not None), None)


def _book(accounts: tuple[Account, ...], unit: Counted, amount: int, *, recovery: bool) -> None:
    if amount:
        for account in accounts:
            account.used[unit] += amount
            if recovery:
                account.recovery[unit] += amount


def _check(usd: float | None, tokens: int | None, turns: int, attempts: int, unknown: int) -> None:
    # Every attempt comes through here, and most of them charge one or two of these.
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
