"""Environments: what the names of a workflow are bound to, and what is kept of them when it fails.

Invariant: an environment belongs to one strand. No other strand that runs at the same time may change it, so the result of a workflow does
not depend on which of them is faster.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.faults import Partial
from holdfast.workflow.values import Closure, plain, show, size_of

if TYPE_CHECKING:
    from holdfast.faults import Redactor
    from holdfast.workflow.values import Value

MISSING: Any = object()
MOST_BYTES = 65_536
"""Bytes of an environment that a failure carries."""
_ONE_VALUE = 16_384
"""Bytes of one value in it."""
_DEEPEST = 100


class Env:
    """Bindings of names, inside of other bindings."""

    __slots__ = ("closure", "known", "names", "outer", "owner")

    def __init__(
        self, names: dict[str, Value], outer: Env | None = None, owner: str = "", closure: Closure | None = None
    ) -> None:
        self.names = names
        self.outer = outer
        self.owner = owner
        """The path of the strand that it belongs to."""
        self.closure = closure
        """The function whose arguments these are; None for other bindings."""
        # Most names are those of primitives, which nothing binds. Looking for them outwards would cost more the deeper a program is nested.
        self.known: set[str] = set() if outer is None else outer.known
        """Every name that was ever bound in the program, here or elsewhere."""
        self.known.update(names)

    def bind(self, name: str, value: Value) -> None:
        """Bind a name here."""
        self.names[name] = value
        self.known.add(name)

    def find(self, name: str) -> Value:
        """Return what a name is bound to, or `MISSING`."""
        if name not in self.known:
            return MISSING
        env: Env | None = self
        while env is not None:
            value = env.names.get(name, MISSING)
            if value is not MISSING:
                return value
            env = env.outer
        return MISSING

    def holder(self, name: str) -> Env | None:
        """Return the environment that binds a name; None if there is none."""
        env: Env | None = self
        while env is not None and name not in env.names:
            env = env.outer
        return env

    def function(self) -> Closure | None:
        """Return the function whose body this is."""
        env: Env | None = self
        while env is not None:
            if env.closure is not None:
                return env.closure
            env = env.outer
        return None

    def bound(self) -> dict[str, Value]:
        """Return all bindings, older ones first; of two bindings of a name the inner one."""
        chain: list[Env] = []
        env: Env | None = self
        while env is not None:
            chain.append(env)
            env = env.outer
        found: dict[str, Value] = {}
        for part in reversed(chain):
            for name, value in part.names.items():
                found.pop(name, None)
                found[name] = value
        return found


def partial_of(env: Env, redactor: Redactor) -> Partial:
    """Return what is bound as a partial result: masked, and cut to `MOST_BYTES`. Older bindings are left out first."""
    kept: dict[str, Any] = {}
    left, is_cut = MOST_BYTES, False
    for name, value in reversed(env.bound().items()):
        # A name alone may say that its value is a secret.
        shown, is_short = _short(redactor.value({name: _bounded(value)})[name])
        size = len(msgspec.json.encode((name, shown)))
        is_cut = is_cut or not is_short or size > left
        if size > left:
            break
        left -= size
        kept[name] = shown
    return Partial(payload=dict(reversed(kept.items())), truncated=is_cut)


def _bounded(value: Value) -> Any:
    """Return a value as JSON, or as text if it is nested too deep for JSON, or too large because of what stands in several places."""
    size = size_of(value)
    is_too_large = size.shared > 0 and size.cells > _ONE_VALUE
    return show(value, _ONE_VALUE) if is_too_large or size.depth > _DEEPEST else plain(value)


def _short(shown: Any) -> tuple[Any, bool]:
    """Return a value, or the beginning of its text if it is long; and whether it is whole."""
    written = shown.encode() if isinstance(shown, str) else msgspec.json.encode(shown)
    if len(written) <= _ONE_VALUE:
        return shown, True
    gone = len(written) - _ONE_VALUE
    return f"{written[:_ONE_VALUE].decode(errors='ignore')}… ({gone} bytes left out)", False
