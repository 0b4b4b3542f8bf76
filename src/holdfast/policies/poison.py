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
NEWER = 0.05
"""The weight of the latest first attempt in the share that fails."""
ROW = 0.01
"""As many first attempts in a row fail by chance as are likelier than this, by the share that failed before. More of them are an outage."""


class Requests:
    """What became of the latest requests to one target. It is not thread-safe: its owner holds a lock around each call."""

    __slots__ = ("_answered", "_failed", "_gave_up", "_in_vain", "_row", "_share", "_watched")

    def __init__(self) -> None:
        self._answered: deque[tuple[float, float]] = deque(maxlen=RECENT)
        """When first attempts began and were answered."""
        self._failed: deque[float] = deque(maxlen=RECENT)
        self._share = 0.0
        """The share of the first attempts that failed, without those of the present row."""
        self._row: deque[float] = deque(maxlen=RECENT)
        """When the first attempts began that failed after the latest one that was answered."""
        self._in_vain = 0
        """Retries that failed while the service worked, since one was answered."""
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
            self._share += NEWER * (1 - self._share)
            self._row.remove(since)
        self._share -= NEWER * self._share
        self._watched = max(0, self._watched - 1)
        if self._gave_up is not None and began >= self._gave_up[0]:
            self._in_vain += self._gave_up[1]
            self._gave_up = None

    def failed(self, began: float) -> None:
        """The first attempt of an operation failed."""
        self._failed.append(began)
        self._row.append(began)
        self._watched = RECENT

    def failed_again(self, began: float, failed: float) -> None:
        """A retry failed. The first attempt of its operation began and failed then."""
        self._in_vain += self._others(began, failed)[0] > 0

    def helped(self) -> None:
        """A retry was answered: failures pass."""
        self._in_vain, self._gave_up = 0, None

    def gave_up(self, now: float, attempts: int) -> None:
        """An operation gave up, because the service had failed on its request again and again."""
        self._gave_up = now, attempts - 1

    def are_poison(self, began: float, failed: float, attempts: int) -> bool:
        """Return whether an operation fails because of its own request. Its first attempt began and failed then."""
        answered, others_failed = self._others(began, failed)
        if not answered:
            # A service that fails altogether looks the same, but then all first attempts fail.
            return max(self._share, 0.5) ** self._in_vain < ALL_BY_CHANCE and self._share ** len(self._row) >= ROW
        # The rule of succession: of no failure among ten others follows a share of 1 in 12.
        share = max(self._share, (others_failed + 1) / (answered + others_failed + 2))
        # Where half of all requests fail at random, one may fail ten times, and the eleventh attempt is worth it.
        return share**self._in_vain < ALL_BY_CHANCE or (answered >= FEWEST_ANSWERED and share**attempts < BY_CHANCE)

    def _others(self, began: float, failed: float) -> tuple[int, int]:
        """Return how many first attempts of others that began no sooner were answered after `failed`, and how many failed."""
        answered = sum(since >= began and until >= failed for since, until in self._answered)
        return answered, max(0, sum(since >= began for since in self._failed) - 1)
