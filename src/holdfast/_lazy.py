"""Names that are imported when they are first used.

This keeps the package root and the pytest plugin cheap to import. A project that has Holdfast installed but does not
use it loses almost no time.
"""

from __future__ import annotations

from importlib import import_module

# Type checkers assume that a variable of this name is true. It is not imported from `typing`, because that import would
# take most of the time of `import holdfast`.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

__all__ = ["lazy_module", "loader"]


def loader(package: str, namespace: dict[str, Any], homes: Mapping[str, str]) -> Callable[[str], Any]:
    """Return a `__getattr__` for `package` that imports a name from its home module once and keeps it in `namespace`.

    A home `module:name` gives the name that it has there.
    """

    def load(name: str) -> Any:
        home = homes.get(name)
        if home is None:
            message = f"module {package!r} has no attribute {name!r}"
            raise AttributeError(message)
        module, _, there = home.partition(":")
        value = getattr(import_module(module), there or name)
        namespace[name] = value
        return value

    return load


def lazy_module(name: str, namespace: dict[str, Any]) -> Any:
    """Return a stand-in for the module `name`. Its first use imports the module, which then replaces the stand-in.

        if TYPE_CHECKING:
            import asyncio
        else:
            asyncio = lazy_module("asyncio", globals())

    Use it for modules that only some programs need. asyncio takes half of the import time, and a blocking program
    never uses it. After the first use the name in `namespace` is the module itself, so it costs nothing more and can
    be patched in tests.
    """
    return _StandIn(name, namespace)


class _StandIn:
    """Stands for a module until its first attribute is used."""

    def __init__(self, name: str, namespace: dict[str, Any]) -> None:
        self._name = name
        self._namespace = namespace

    def __getattr__(self, attribute: str) -> Any:
        module = self._namespace[self._name] = import_module(self._name)
        return getattr(module, attribute)
