"""Slows down whoever guesses tokens: by address, by the id in the token, and over all addresses. A machine; the time goes in.

    wait = lockout.wait(peer, "1f3a…", now)     # seconds to wait; 0: the token may be compared
    lockout.wrong(peer, "1f3a…", now)           # it was wrong

Invariant: a loopback address is treated as any other. While an address is locked its pairing codes and passwords are not even compared, so
that a right guess looks like a wrong one. Tokens of 256 bits cannot be guessed, and are compared always: the lock delays the wrong ones.
Whoever guesses from one address never locks out another.
"""

from __future__ import annotations

import ipaddress
from collections import OrderedDict
from typing import TYPE_CHECKING

from holdfast import options

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Lockout", "LockoutLimits", "address_group"]

_V6_PREFIX = 64
"""One customer of a provider gets at least this much of the IPv6 space, so it counts as one address."""


class LockoutLimits(options.Options, frozen=True, kw_only=True, omit_defaults=True, repr_omit_defaults=True):
    """How many wrong tokens are allowed: `LockoutLimits(attempts=3)`. Wrong options raise `InvalidError`."""

    attempts: int = 10
    """Wrong tokens of one address in a row."""
    refill: float = 60.0
    """Seconds until one more is allowed."""
    per_token: int = 20
    """Wrong secrets for the id of one token, from addresses that never had the right one."""
    overall: int = 200
    """Wrong tokens of all addresses together, each minute. Above it, only addresses that had a right token before go on."""
    first: float = 1.0
    """Seconds of the first lock; each further one lasts twice as long."""
    longest: float = 900.0
    forget: float = 3600.0
    """Seconds without a wrong token after which the next lock is a first one again."""
    remembered: int = 10_000
    """Addresses and ids that are remembered at most."""

    def __post_init__(self) -> None:
        for name in ("attempts", "per_token", "overall", "remembered"):
            options.count(f"lockout.{name}", getattr(self, name))
        for name in ("refill", "first", "longest", "forget"):
            options.seconds(f"lockout.{name}", getattr(self, name))


class _Bucket:
    """How many wrong tokens are left to an address, and until when it is locked."""

    __slots__ = ("at", "left", "locked_until", "locks")

    def __init__(self, size: int, now: float) -> None:
        self.left = float(size)
        self.at = now
        self.locks = 0
        self.locked_until = float("-inf")

    def wrong(self, now: float, size: int, refill: float, limits: LockoutLimits) -> bool:
        """Count a wrong token; return whether it locks."""
        passed = max(0.0, now - self.at)
        if passed >= limits.forget:
            self.locks = 0
        self.left = min(float(size), self.left + passed / refill) - 1
        self.at = now
        if self.left >= 0:
            return False
        self.left = 0.0
        # Nothing is refilled while it is locked: after a lock one more wrong token locks it again.
        self.at = self.locked_until = now + min(limits.longest, limits.first * 2.0 ** min(self.locks, 64))
        self.locks += 1
        return True


class Lockout:
    """Counts wrong tokens, and says who has to wait.

    >>> lockout = Lockout(LockoutLimits(attempts=1))
    >>> lockout.wrong("192.0.2.7", "", 0.0), lockout.wrong("192.0.2.7", "", 0.0), lockout.wait("192.0.2.7", "", 0.5)
    (False, True, 0.5)
    """

    def __init__(self, limits: LockoutLimits = LockoutLimits()) -> None:  # noqa: B008 - a frozen value
        self.limits = limits
        self.wrong_count = 0
        """Wrong tokens so far, for the metrics."""
        self.lock_count = 0
        """Locks so far."""
        self._addresses: OrderedDict[str, _Bucket] = OrderedDict()
        self._tokens: OrderedDict[str, _Bucket] = OrderedDict()
        self._known: OrderedDict[str, None] = OrderedDict()
        """The addresses that had a right token, and each of them with the id of it."""
        self._all = _Bucket(limits.overall, 0.0)

    def wait(self, peer: str, token_id: str, now: float) -> float:
        """Return how many seconds this address has to wait until a token of it is compared; 0: none."""
        address = address_group(peer)
        return max(0.0, *(bucket.locked_until - now for bucket in self._locks(address, token_id)))

    def _locks(self, address: str, token_id: str) -> Iterator[_Bucket]:
        yield self._addresses.get(address, _UNLOCKED)
        # A lock that others have caused does not hold for whoever was right before.
        yield _UNLOCKED if address in self._known else self._all
        yield _UNLOCKED if _pair(address, token_id) in self._known else self._tokens.get(token_id, _UNLOCKED)

    def wrong(self, peer: str, token_id: str, now: float) -> bool:
        """Count a wrong token. `token_id` is the id in it, or empty. Return whether it locks its address."""
        limits, address = self.limits, address_group(peer)
        self.wrong_count += 1
        locked = self._bucket(self._addresses, address, limits.attempts, now).wrong(
            now, limits.attempts, limits.refill, limits
        )
        if token_id:
            bucket = self._bucket(self._tokens, token_id, limits.per_token, now)
            bucket.wrong(now, limits.per_token, limits.refill, limits)
        self._all.wrong(now, limits.overall, 60.0 / limits.overall, limits)
        self.lock_count += locked
        return locked

    def right(self, peer: str, token_id: str) -> None:
        """Remember that an address had a right token. What it may still guess does not change."""
        # Otherwise somebody on the same address as a real client, such as loopback, could guess without end.
        address = address_group(peer)
        for known in (address, _pair(address, token_id)):
            self._known[known] = None
            self._known.move_to_end(known)
        while len(self._known) > 2 * self.limits.remembered:
            self._known.popitem(last=False)

    def _bucket(self, buckets: OrderedDict[str, _Bucket], key: str, size: int, now: float) -> _Bucket:
        bucket = buckets.get(key)
        if bucket is None:
            bucket = buckets[key] = _Bucket(size, now)
            # Whoever has more addresses than are remembered meets the limit over all of them.
            if len(buckets) > self.limits.remembered:
                buckets.popitem(last=False)
        buckets.move_to_end(key)
        return bucket


_UNLOCKED = _Bucket(1, 0.0)


def _pair(address: str, token_id: str) -> str:
    return f"{address} {token_id}"


def address_group(peer: str) -> str:
    """Return what counts as one address: an IPv4 address, or the /64 network of an IPv6 address.

    >>> address_group("::ffff:192.0.2.7"), address_group("2001:db8:1:2:3::4")
    ('192.0.2.7', '2001:db8:1:2::/64')
    """
    try:
        address = ipaddress.ip_address(peer.partition("%")[0])
    except ValueError:  # a Unix socket, or a test without a network
        return peer
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.ip_network((address, _V6_PREFIX), strict=False))
