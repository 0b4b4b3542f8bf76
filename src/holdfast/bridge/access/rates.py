"""How often one address may ask: a limit for each group of addresses on the server, as a pure machine.

Invariant: an address gets at most `per_minute` requests at once, and then one more each `60 / per_minute` seconds. The memory is bounded:
beyond `most` addresses the newest ones share one limit.
"""

from __future__ import annotations

from holdfast import options
from holdfast.bridge.access.lockout import address_group

__all__ = ["AddressRates"]

_SHARED = "*"


class AddressRates:
    """Counts requests by group and address. `now` is the monotonic clock.

    >>> rates = AddressRates({"hooks": 2})
    >>> [rates.wait("hooks", "10.0.0.1", now) for now in (0.0, 0.0, 0.0, 30.0)]
    [0.0, 0.0, 30.0, 0.0]
    """

    def __init__(self, per_minute: dict[str, int], *, most: int = 10_000) -> None:
        for group, rate in per_minute.items():
            options.count(f"rates.{group}", rate)
        options.count("rates.most", most)
        self._per_minute = per_minute
        self._most = most
        self._next: dict[tuple[str, str], float] = {}
        """When the next request is due if they came evenly. GCRA calls it the theoretical arrival time."""

    def wait(self, group: str, address: str, now: float) -> float:
        """Count a request and return 0, or return the seconds that its sender has to wait. Unknown groups have no limit."""
        rate = self._per_minute.get(group)
        if rate is None:
            return 0.0
        key = self._key(group, address_group(address), now)
        interval = 60.0 / rate
        due = max(self._next.get(key, now), now)
        wait = due - (rate - 1) * interval - now
        # Sums of the interval differ a little from what they stand for.
        if wait > 1e-9:
            return wait
        self._next[key] = due + interval
        return 0.0

    def _key(self, group: str, place: str, now: float) -> tuple[str, str]:
        key = (group, place)
        if key in self._next or len(self._next) < self._most:
            return key
        # Addresses that may ask at once again need not be remembered.
        self._next = {known: due for known, due in self._next.items() if due > now}
        return key if len(self._next) < self._most else (group, _SHARED)
