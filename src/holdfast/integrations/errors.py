"""Our errors as errors of another library too, so that the `except` clauses its users have still catch them.

    except anthropic.APIError:          # catches an open circuit as well
    except CircuitOpenError:            # catches it too

Invariant: the error stays the same object, with its traceback, cause, notes and fault. Pickling keeps both classes, and
writes no header of a request, because a header may hold a key.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.faults import Fault, HoldfastError

__all__ = ["make_also"]


def make_also(error: HoldfastError, theirs: type[Exception], attributes: Mapping[str, Any]) -> None:
    """Make one of our errors an instance of `theirs` too, with the attributes that users of `theirs` read."""
    if isinstance(error, theirs):
        return
    # The class of the object changes, instead of a new object being raised: outer recoveries have left their account on this
    # one, and its traceback and cause are what a person needs to see.
    error.__class__ = _both(type(error), theirs)
    for name, value in attributes.items():
        error.__dict__.setdefault(name, value)


_classes: dict[tuple[type, type], type[Any]] = {}
"""The classes made so far: two errors of the same kind have the same class."""


def _both(ours: type[HoldfastError], theirs: type[Exception]) -> type[Any]:
    made = _classes.get((ours, theirs))
    if made is not None:
        return made
    # Ours comes first: `str` begins with the code, and `__init__` is never called on this class.
    names = {"__module__": ours.__module__, "__qualname__": ours.__qualname__, "__doc__": ours.__doc__}
    made = type(ours.__name__, (ours, theirs), {**names, "__reduce__": _reduce})
    # If two threads make the class at once, both use the one that was stored first.
    return _classes.setdefault((ours, theirs), made)


def _reduce(error: HoldfastError) -> tuple[Any, ...]:
    ours, theirs = type(error).__bases__
    return _rebuilt, (ours, theirs, error.fault), {name: _bare(value) for name, value in vars(error).items()}


def _rebuilt(ours: type[HoldfastError], theirs: type[Exception], fault: Fault) -> HoldfastError:
    error = ours(fault)
    make_also(error, theirs, {})
    return error


def _bare(value: Any) -> Any:
    """Return a request with only its method and URL, a response without its body, and any other value unchanged."""
    if hasattr(value, "method") and hasattr(value, "url"):
        return type(value)(value.method, value.url)
    if hasattr(value, "status_code") and hasattr(value, "headers"):
        return type(value)(value.status_code, headers=value.headers, request=_bare(value.request))
    return value
