"""The function of a step: its name and the hash of its arguments, by which the next run of the program finds the stored result.

Invariant: a function that the next run could mistake for another one is rejected the first time, unless the call has a key: a lambda, or an
unsafe method of an object that cannot be compared after a restart.
"""

from __future__ import annotations

import inspect
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING, Any

from holdfast.faults import InvalidError
from holdfast.sessions import codec

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.runtime.tool import ToolContract

__all__ = ["check_name", "hash_of", "name_of"]

_NAMED = (
    "a function with a name, because the next run finds the stored result by it, as in step(fetch, url); "
    "or a key, as in session.keyed(NAME).step(lambda: …)"
)
_OWNED = (
    "an unsafe method of an object that the next run can recognise, such as a dataclass, or a key, "
    "as in session.keyed('pay-ada').step(account.pay, 5)"
)


def name_of(fn: Callable[..., Any]) -> str:
    """Return the function's qualified name.

    The module is left out, because the same module is `__main__` or has its real name, depending on how the program is started.
    """
    # Most functions are plain: only a wrapper has one of these attributes.
    if hasattr(fn, "func") or hasattr(fn, "__wrapped__"):
        fn = inspect.unwrap(getattr(fn, "func", fn))
    return str(getattr(fn, "__qualname__", type(fn).__qualname__))


def check_name(name: str) -> None:
    """Raise `InvalidError` for a lambda: all lambdas of a function have the same name."""
    if name.endswith("<lambda>"):
        raise InvalidError.saying("session.step", _NAMED, "a lambda")


def hash_of(fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any], name: str, contract: ToolContract | None) -> str:
    """Return the hash of all arguments of a function, including those that a partial holds, and the object of an unsafe method."""
    # The arguments inside a partial affect the result too.
    while isinstance(fn, partial):
        fn, args, kwargs = fn.func, (*fn.args, *args), {**fn.keywords, **kwargs}
    given = codec.arguments_hash(args, kwargs, name)
    owner = getattr(fn, "__self__", None)
    if contract is None or contract.effect != "unsafe" or owner is None or isinstance(owner, (type, ModuleType)):
        return given
    # Two accounts that pay the same sum are two payments, and after a restart only their values tell them apart.
    try:
        return codec.arguments_hash((given, owner), {}, name)
    except InvalidError:
        raise InvalidError.saying("session.step", _OWNED, f"the method {name} of an object that is neither") from None
