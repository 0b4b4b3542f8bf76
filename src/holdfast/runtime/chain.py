"""The fallback chain of a decorated function as it is configured: other ways, the cache, a lesser answer, who to tell.

Invariant: a step that could never work where its function is called is refused where it is written.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from holdfast import options
from holdfast.events import AgentFallback, Fallback
from holdfast.faults import Fault, InvalidError
from holdfast.policies.fallback import Consent, When, check_when
from holdfast.runtime import reports
from holdfast.runtime.cache import CacheStore, MemoryCache, Missing, key_of
from holdfast.runtime.callables import is_async, name_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from holdfast.runtime.operation import Operation

__all__ = ["CacheStore", "Chain", "Consent", "Step", "When", "check_step"]


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """One other way of doing it."""

    name: str
    fn: Any
    when: Any = None
    offers: frozenset[str] | None = None
    consent: Any = "configured"


class Chain:
    """What to do when the primary has failed for good."""

    def __init__(self, fn: Callable[..., Any], name: str = "") -> None:
        self.configured = False
        """There is something to do when the primary has failed."""
        self.told_as: type[Fallback | AgentFallback] = Fallback
        self.begins_with = "primary"
        """What its events call the call itself."""
        self.fn = fn
        self._fn_name = name or name_of(fn)
        self.steps: tuple[Step, ...] = ()
        self.lesser: Callable[..., Any] | None = None
        self.tell: Callable[[Fault], object] | None = None
        self._ttl = 0.0
        self._store: CacheStore | None = None
        self._key: Callable[..., str] | None = None

    # --- building it: these stand on the decorated function ---

    def fallback(
        self,
        fn: Any = None,
        /,
        *,
        when: When | None = None,
        name: str = "",
        offers: frozenset[str] | None = None,
        consent: Consent = "configured",
    ) -> Any:
        """Add what to try when the call has failed for good; steps are tried in the order they are added."""
        if fn is None:
            return lambda later: self.fallback(later, when=when, name=name, offers=offers, consent=consent)
        check_step("fallback", fn, self.fn)
        check_when(f"fallback {name or name_of(fn)}: when", when)
        options.one_of("fallback.consent", consent, ("configured", "ask"))
        options.names("fallback.offers", offers, optional=True)
        if not isinstance(name, str):
            raise InvalidError.at("fallback.name", "a name", name)
        step = Step(name=name or name_of(fn).rpartition(".")[2], fn=fn, when=when, offers=offers, consent=consent)
        self.steps = (*self.steps, step)
        self.configured = True
        return fn

    def cached(self, *, ttl: float, key: Callable[..., str] | None = None, store: CacheStore | None = None) -> None:
        """When the ways have failed, answer with the last good answer to the same call, if it is younger than `ttl`."""
        options.seconds("cached.ttl", ttl)
        if key is not None and not callable(key):
            raise InvalidError.at("cached.key", "a function of the call's arguments that returns a text", key)
        if store is not None and not (callable(getattr(store, "get", None)) and callable(getattr(store, "put", None))):
            raise InvalidError.at("cached.store", "a CacheStore, with `get` and `put`", store)
        self._ttl, self._key = ttl, key
        self._store = MemoryCache() if store is None else store
        self.configured = True

    def degraded(self, fn: Any) -> Any:
        """Set the lesser answer for when everything has failed; it gets the fault, then the call's arguments."""
        check_step("degraded", fn, self.fn)
        self.lesser = fn
        self.configured = True
        return fn

    def notify(self, fn: Any) -> Any:
        """Tell somebody when every step has failed; the primary's error is raised afterwards."""
        check_step("notify", fn, self.fn)
        self.tell = fn
        self.configured = True
        return fn

    def names(self) -> tuple[str, ...]:
        """Return the names of the fallbacks, in order."""
        return tuple(step.name for step in self.steps)

    def ends_with(self, step: Step) -> bool:
        """Whether nothing behind this step could answer."""
        return step is self.steps[-1] and self.lesser is None and self._store is None

    # --- the cache ---

    def keep(self, op: Operation, value: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Keep a good answer for a worse day. A cache that fails is no cache; it does not fail the call (S2-10)."""
        if self._store is None:
            return
        try:
            key = key_of(self._key, self._fn_name, args, kwargs)
            if key is None:
                self._tell_no_key(op)
            else:
                self._store.put(key, value, op.plan.monotonic(), self._ttl)
        except Exception as error:  # noqa: BLE001 - whatever a store or key function of the user's raises
            reports.suppressed(op, error, "the cache of a fallback failed")

    def _tell_no_key(self, op: Operation) -> None:
        """A cache that can keep nothing must not look like one (methods: `self` is an argument, too)."""
        where = f"cached of {self._fn_name}"
        error = InvalidError.saying(where, "arguments that can be written as JSON, or key=", "others: nothing is kept")
        runtime = op.plan.runtime
        runtime.bus.hook_raised(self, where, error, at=runtime.clock.wall(), run=op.run)

    def recall(self, op: Operation, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Return the answer kept for this very call, or `Missing`."""
        if self._store is None:
            return Missing
        try:
            key = key_of(self._key, self._fn_name, args, kwargs)
            return Missing if key is None else self._store.get(key, op.plan.monotonic())
        except Exception as error:  # noqa: BLE001 - ditto
            reports.suppressed(op, error, "the cache of a fallback failed")
            return Missing


def check_step(what: str, step: Any, of: Any) -> None:
    """Refuse a step that could not be called where its function is."""
    if not callable(step):
        raise InvalidError.at(f"{what} of {name_of(of)}", "a function", step)
    if is_async(step) and not is_async(of):
        raise InvalidError.saying(
            f"{what} of {name_of(of)}", "a plain function, as the function itself is", "an async function"
        )
