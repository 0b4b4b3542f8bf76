"""Poison: whether a service fails because of single requests, or fails altogether.

    requests.answered(began, now)         the first attempt of an operation was answered; it began then
    requests.failed(began)                it failed
    requests.failed_again(began, failed)  a retry failed; the first attempt of its operation began and failed then
    requests.helped()                     a retry was answered
    requests.gave_up(now, attempts)       an operation gave up after so many attempts
    requests.are_poison(…)                whether an operation fails because of its own request

Where a service fails at random, or for a while, retries are answered as often as first attempts at the same time. Where single requests
are at fault, first attempts of others are answered, and no retry is. So failed retries are counted until one is answered. A retry counts
if another operation began no sooner than its own, and was answered after its own had failed: the service worked then. Where calls
come one after the other, nobody else is there to compare with. Then the retries of an operation that gave up count if the next first
attempt is answered.

Only first attempts are the measure. The retries of a request that always fails would make a service look ill that is well.
"""

from __future__ import annotations

from collections import deque

RECENT = 64
"""So many answers and failures are remembered."""
BY_CHANCE = 0.0001
"""So many failures of one operation in a row are no accident if they are no likelier than this."""
ALL_BY_CHANCE = 0.0003
"""The same for the retries of all operations. A larger number loses good calls in brownouts, a smaller one holds workers for longer."""
FEWEST_ANSWERED = 3
"""So many others must be answered before the failures of one operation show something by themselves."""
MOST = 0.5
"""A service works for others if no larger share of their first attempts fails. One that is full may reject more."""
FEW_IN_VAIN = 4
"""So many retries in vain make requests at fault likelier than a failing service, as long as no retry was ever answered."""
MOST_COUNTED = 20.0
"""The share that fails is that of so many first attempts; older ones weigh less."""
ROW = 0.0001
"""As many first attempts in a row fail by chance as are likelier than this, by the share that failed before. More of them are an outage."""


class Requests:
    """What became of the latest requests to one target. It is not thread-safe: its owner holds a lock around each call."""

    __slots__ = (
        "_answered",
        "_counted",
        "_failed",
        "_gave_up",
        "_has_helped",
        "_in_vain",
        "_row",
        "_share",
        "_vain_share",
        "_watched",
    )

    def __init__(self) -> None:
        self._answered: deque[tuple[float, float]] = deque(maxlen=RECENT)
        """When first attempts began and were answered."""
        self._failed: deque[float] = deque(maxlen=RECENT)
        self._share = 0.5
        """The share of the first attempts that failed, without those of the present row."""
        self._counted = 2.0
        self._row: deque[float] = deque(maxlen=RECENT)
        """When the first attempts began that failed after the latest one that was answered."""
        self._in_vain = 0
        """Retries that failed while the service worked, since one was answered."""
        self._vain_share = 0.0
        """The share of the retries that failed while the service worked. A service that is full answers one of many."""
        self._has_helped = False
        """A retry was answered lately, so that failures pass. As long as none was, a service that answers others works."""
        self._gave_up: tuple[float, int] | None = None
        """When the latest operation gave up, and its retries."""
        self._watched = 0

    @property
    def is_watched(self) -> bool:
        """Whether answers count: a first attempt failed not long ago."""
        return self._watched > 0

    def answered(self, began: float, now: float) -> None:
        """The first attempt of an operation was answered."""
        self._answered.append((began, now))
        # An answer that began before an outage and comes in the middle of it does not end the outage.
        over = [since for since in self._row if since <= began]
        for since in over:
            self._count(failed=True)
            self._row.remove(since)
        self._count(failed=False)
        self._watched = max(0, self._watched - 1)
        self._has_helped = self._has_helped and self._watched > 0
        if self._gave_up is not None and began >= self._gave_up[0]:
            self._in_vain += self._gave_up[1]
            self._gave_up = None

    def _count(self, *, failed: bool) -> None:
        self._counted = min(MOST_COUNTED, self._counted + 1)
        self._share += (failed - self._share) / self._counted

    def failed(self, began: float) -> None:
        """The first attempt of an operation failed."""
        self._failed.append(began)
        self._row.append(began)
        self._watched = RECENT

    def failed_again(self, began: float, failed: float) -> None:
        """A retry failed. The first attempt of its operation began and failed then."""
        if self._others(began, failed)[0]:
            self._in_vain += 1
            self._vain_share += (1 - self._vain_share) / MOST_COUNTED

    def helped(self) -> None:
        """A retry was answered: failures pass."""
        self._in_vain, self._gave_up, self._has_helped = 0, None, True
        self._vain_share -= self._vain_share / MOST_COUNTED

    def gave_up(self, now: float, attempts: int) -> None:
        """An operation gave up, because the service had failed on its request again and again."""
        self._gave_up = now, attempts - 1

    def are_poison(self, began: float, failed: float, attempts: int) -> bool:
        """Return whether an operation fails because of its own request. Its first attempt began and failed then."""
        answered, others_failed = self._others(began, failed)
        if not answered:
            # A service that fails altogether looks the same, but then all first attempts fail.
            is_known = max(self._share, 0.5) ** self._in_vain < ALL_BY_CHANCE
            is_known = is_known or (not self._has_helped and self._in_vain >= FEW_IN_VAIN)
            return is_known and self._share ** len(self._row) >= ROW
        # The rule of succession: of no failure among ten others follows a share of 1 in 12.
        share = max(self._share, (others_failed + 1) / (answered + others_failed + 2))
        if not self._has_helped and share <= MOST:
            # Nobody knows whether a further retry would help, and the plain client makes none.
            return True
        # Where half of all requests fail at random, one may fail ten times, and the eleventh attempt is worth it.
        by_chance = max(share, self._vain_share) if self._has_helped else share
        return by_chance**self._in_vain < ALL_BY_CHANCE or (answered >= FEWEST_ANSWERED and share**attempts < BY_CHANCE)

    def _others(self, began: float, failed: float) -> tuple[int, int]:
        """Return how many first attempts of others that began no sooner were answered after `failed`, and how many failed."""
        answered = sum(since >= began and until >= failed for since, until in self._answered)
        return answered, max(0, sum(since >= began for since in self._failed) - 1)
