"""`RedisState`: what a fleet knows, on Redis or Valkey: `redis://host:6379/0`, `rediss://…` with TLS, `unix://path`.

Each target is one key, `hf1:{namespace:target}`, so a script-free transaction of one key does it: WATCH, GET and TIME, then SET if nobody
else has written meanwhile. It needs no Lua, no SCRIPT and no publishing, and works where these are forbidden.

Invariant: a request waits for `TIMEOUT_S` at most, and nothing is retried in the client.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeVar

from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import RedisError, WatchError
from redis.retry import Retry

from holdfast.policies.fleet import KEPT_S, restored, stored
from holdfast.runtime.fleet.shared_state import SharedStateError
from holdfast.stores.address import shown

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.policies.fleet import FleetTarget

__all__ = ["RedisState", "open_state"]

T = TypeVar("T")

TIMEOUT_S = 0.05
CONNECT_S = 0.5
"""A connection takes several round trips with TLS. It is made before calls need it, and no call waits for it."""
MOST_TRIES = 20
"""So often a change is tried again because another process was quicker."""
_PREFIX: Final = "hf1"
"""Of every key. It changes when two versions could not read each other's targets."""


class RedisState:
    """An engine on Redis or Valkey.

    For example:
        state = RedisState("redis://localhost:6379/0", "shop")
    """

    def __init__(self, url: str, namespace: str = "holdfast") -> None:
        self.place = shown(url)
        self._namespace = namespace
        self._redis: Any = Redis.from_url(
            url,
            socket_timeout=TIMEOUT_S,
            socket_connect_timeout=CONNECT_S,
            # Its own retries would make the thread late, and hide that the engine is gone.
            retry=Retry(NoBackoff(), 0),
            max_connections=2,
        )

    def change(self, name: str, step: Callable[[FleetTarget, float], T]) -> T:
        """See `SharedState.change`."""
        key = self._key(name)
        try:
            with self._redis.pipeline() as transaction:
                for _ in range(MOST_TRIES):
                    transaction.watch(key)
                    raw = transaction.get(key)
                    seconds, micros = transaction.time()
                    target, now = restored(raw, seconds + micros / 1e6)
                    result = step(target, now)
                    transaction.multi()
                    transaction.set(key, stored(target, now), px=int(KEPT_S * 1000))
                    try:
                        transaction.execute()
                    except WatchError:  # another process was faster: begin anew with what it wrote
                        continue
                    return result
        except (RedisError, OSError) as error:
            raise SharedStateError(_said(error)) from error
        raise SharedStateError("too many processes change the same target at once")

    def targets(self) -> dict[str, FleetTarget]:
        """See `SharedState.targets`."""
        start, end = f"{_PREFIX}:{{{self._namespace}:", "}"
        try:
            seconds, _ = self._redis.time()
            keys = [key.decode() for key in self._redis.scan_iter(match=f"{start}*{end}", count=1000)]
            kept = {key: self._redis.get(key) for key in keys}
        except (RedisError, OSError) as error:
            raise SharedStateError(_said(error)) from error
        return {
            key.removeprefix(start).removesuffix(end): restored(raw, seconds)[0]
            for key, raw in kept.items()
            if raw is not None
        }

    def check(self) -> list[str]:
        """See `SharedState.check`."""
        try:
            memory = self._redis.info("memory")
            is_replica = self._redis.info("replication").get("role") != "master"
        except (RedisError, OSError) as error:
            raise SharedStateError(_said(error)) from error
        policy, most = str(memory.get("maxmemory_policy", "noeviction")), int(memory.get("maxmemory", 0))
        found = []
        if most and policy.startswith("allkeys"):
            found.append(
                f"maxmemory-policy is {policy}: it may forget what the fleet knows, which is then learned anew"
            )
        if is_replica:
            found.append("it is a replica, which cannot be written to")
        return found

    def close(self) -> None:
        """See `SharedState.close`."""
        self._redis.close()
        self._redis.connection_pool.disconnect()

    def _key(self, name: str) -> str:
        return f"{_PREFIX}:{{{self._namespace}:{name}}}"


def _said(error: Exception) -> str:
    # Not the text: some name the address, which may hold a password.
    return type(error).__name__


def open_state(url: str, namespace: str) -> RedisState:
    """Return the engine at an address."""
    return RedisState(url, namespace)
