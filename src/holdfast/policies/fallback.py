"""The condition of a fallback step: which failures it answers. Whether a step is taken is decided in `decide`."""

from __future__ import annotations

from inspect import iscoroutine, iscoroutinefunction
from typing import TYPE_CHECKING, Literal, TypeAlias, cast

from holdfast.faults import CATALOG, Category, InvalidError
from holdfast.faults.catalog import suggested_codes

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from holdfast.faults import Fault

# Plain `str`: with the codes as literals, a type checker's message for one wrong argument lists all of them, twice. A wrong
# word raises when the step is added.
When: TypeAlias = "str | Collection[str] | Callable[[Fault, Fault], bool]"
"""One code or category, or several, met by the latest failure or the primary one; or a function of both, the latest
first."""

Consent: TypeAlias = Literal["configured", "ask"]
"""`configured`: the step in the code is the user's consent. `ask`: the user must agree each time."""


_WORDS = "a code, a category, several of them in a list, or a function"


def meets(when: When | None, latest: Fault, primary: Fault) -> bool:
    """Whether a step's condition holds for these failures. Raises what a condition of the user's own raises."""
    if when is None:
        return True
    if callable(when):
        verdict: object = when(latest, primary)
        if iscoroutine(verdict):
            # Nobody will await it, and Python warns about a coroutine that is neither awaited nor closed.
            verdict.close()
            raise InvalidError.saying("what when returned", "True or False", "a coroutine")
        return bool(verdict)
    words = (when,) if isinstance(when, str) else when
    # The primary failure counts too: a step for rate limits still answers after an earlier step has failed differently.
    return any(fault.code in words or fault.category in words for fault in (latest, primary))


def checked_when(path: str, when: When | None) -> When | None:
    """Return a condition as it is kept, several words as a tuple.

    Raises `InvalidError` for a condition that could never be met, or always: a coroutine is true.
    """
    if when is None:
        return None
    if callable(when):
        # An object with an async `__call__` is such a condition too.
        if iscoroutinefunction(when) or iscoroutinefunction(type(when).__call__):
            raise InvalidError.saying(path, "a plain function of the two faults", "an async function")
        return when
    # The annotation is not enforced at run time, so any object may arrive here.
    several = isinstance(when, (list, tuple, set, frozenset))
    words: tuple[object, ...] = tuple(when) if several else (when,)
    if not words:
        raise InvalidError.saying(path, f"{_WORDS}; leave `when` out to answer every failure", "none")
    for word in words:
        if not isinstance(word, str) or (word not in CATALOG and word not in set(Category)):
            raise InvalidError.at(path, f"{_WORDS} ({suggested_codes(word)})", word)
    return cast("tuple[str, ...]", words) if several else when
