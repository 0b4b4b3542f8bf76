"""Names that are imported when they are first used.

This keeps the package root and the pytest plugin cheap to import: a project that has Holdfast installed and does not use it pays
almost nothing.
"""

from __future__ import annotations

from importlib import import_module

# Type checkers take a variable of this name for true. Importing `typing` for it would be most of what `import holdfast` costs.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

__all__ = ["loader"]


def loader(package: str, namespace: dict[str, Any], homes: Mapping[str, str]) -> Callable[[str], Any]:
    """Return a `__getattr__` for `package` that imports a name from its home module once and keeps it in `namespace`."""

    def load(name: str) -> Any:
        home = homes.get(name)
        if home is None:
            message = f"module {package!r} has no attribute {name!r}"
            raise AttributeError(message)
        value = getattr(import_module(home), name)
        namespace[name] = value
        return value

    return load
