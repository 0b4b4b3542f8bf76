"""Which engine an address means. The engines stand in a room below this one, so they are found by name, as extensions are."""

from __future__ import annotations

from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

from holdfast.extras import needs_extra
from holdfast.faults import InvalidError

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.policies.fleet_options import SharedOptions
    from holdfast.runtime.fleet.shared_state import SharedState

__all__ = ["opener_of"]

_ENGINES = {
    "redis": ("redis", "redis"),
    "rediss": ("redis", "redis"),
    "unix": ("redis", "redis"),
    "postgresql": ("postgres", "psycopg"),
    "postgres": ("postgres", "psycopg"),
    "local": ("local", ""),
}
"""By scheme: the module, which is also the extra, and the package that it needs."""


def opener_of(options: SharedOptions) -> Callable[[], SharedState]:
    """Return what opens the engine at an address. Nothing is connected yet.

    Raises `InvalidError` for an unknown kind of address, and `MissingExtraError` without the engine's package.
    """
    scheme = options.url.partition(":")[0].lower()
    if scheme not in _ENGINES:
        raise InvalidError.saying("shared.url", "redis://…, rediss://…, unix://… or postgresql://…", repr(scheme))
    name, package = _ENGINES[scheme]
    with needs_extra("shared state", package, name):
        if package:
            import_module(package)
        module: Any = import_module(f"holdfast.stores.shared_state.{name}")
    try:
        first = module.open_state(options.url, options.namespace)
    except ValueError:
        # Without the cause, because its message repeats the address, which may hold a password.
        raise InvalidError.saying("shared.url", "an address that can be read", "one that cannot") from None
    first.close()
    return partial(module.open_state, options.url, options.namespace)
