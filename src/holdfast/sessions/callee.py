"""The function of a step: its name and the hash of its arguments, by which the next run of the program finds the stored result.

Invariant: a function that the next run could mistake for another one is rejected the first time, unless the call has a key: a lambda, or an
unsafe method of an object that cannot be compared after a restart. A program is known by the same names whether it is started as a file or
with `-m`, or is imported.
"""

from __future__ import annotations

import copy
import inspect
import sys
import weakref
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

from holdfast.faults import InvalidError
from holdfast.once.identity import function_name
from holdfast.runtime.tool import calls_named_tool
from holdfast.sessions import codec

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from holdfast.runtime.tool import ToolContract

__all__ = ["MAIN", "check_name", "given_hash", "hash_of", "imported_name", "known_by", "module_of", "name_of"]

_NAMED = (
    "a function with a name, because the next run finds the stored result by it, as in step(fetch, url); "
    "or a key, as in session.keyed(NAME).step(lambda: …)"
)
_OWNED = (
    "an unsafe method of an object that the next run can recognise, such as a dataclass, or a key, "
    "as in session.keyed('pay-ada').step(account.pay, 5)"
)
MAIN = ("__main__", "__mp_main__")
"""What the module that was started is called while it runs, also in a process that `multiprocessing` spawned."""


def name_of(fn: Callable[..., Any]) -> str:
    """Return the function's qualified name, without its module."""
    fn = _innermost(fn)
    return str(getattr(fn, "__qualname__", type(fn).__qualname__))


def known_by(fn: Callable[..., Any], name: str, contract: ToolContract | None) -> str:
    """Return what the function is known by in the log: the name that its tool was given, or its module and qualified name."""
    if contract is not None and contract.name:
        return function_name("", contract.name)
    fn = _innermost(fn)
    if _was_renamed(fn):
        return function_name("", name)
    return function_name(module_of(fn if hasattr(fn, "__qualname__") else type(fn)), name)


def _was_renamed(fn: Any) -> bool:
    """Whether somebody gave the function another name than its code has. A name that was copied with its module is not meant."""
    if type(fn) is not FunctionType or fn.__code__.co_qualname == fn.__qualname__:
        return False
    return bool(fn.__module__ == fn.__globals__.get("__name__"))


def _innermost(fn: Any) -> Any:
    # Most functions are plain: only a wrapper has one of these attributes.
    if type(fn) is FunctionType and not fn.__dict__:
        return fn
    if hasattr(fn, "func") or hasattr(fn, "__wrapped__"):
        return inspect.unwrap(getattr(fn, "func", fn))
    return fn


def module_of(fn: Any) -> str:
    """Return the name of a function's module as it is when it is imported, also if it is the program that was started."""
    module = getattr(fn, "__module__", None) or ""
    if module not in MAIN:
        return str(module)
    return imported_name(getattr(fn, "__globals__", None) or vars(sys.modules.get(module, ModuleType(module))))


def imported_name(namespace: Mapping[str, Any]) -> str:
    """Return the name under which the program with these globals is imported.

    A program that was started with `-m` knows it. A file has its own name, after those of the packages that it lies in.
    """
    spec, file = namespace.get("__spec__"), namespace.get("__file__")
    if spec is not None and spec.name not in MAIN:
        return str(spec.name)
    if not file:
        # Typed at a prompt, or given with `-c`.
        return MAIN[0]
    return _name_of_file(str(file))


@cache
def _name_of_file(file: str) -> str:
    path = Path(file).absolute()
    names, folder = [path.name.partition(".")[0]], path.parent
    while (folder / "__init__.py").is_file():
        names.append(folder.name)
        folder = folder.parent
    return ".".join(reversed(names))


def check_name(name: str) -> None:
    """Raise `InvalidError` for a lambda: all lambdas of a function have the same name."""
    if name.endswith("<lambda>"):
        raise InvalidError.saying("session.step", _NAMED, "a lambda")


def hash_of(fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any], name: str, contract: ToolContract | None) -> str:
    """Return the hash of all arguments of a function, as it takes them: those that a partial holds and its defaults too.

    The object of an unsafe method counts as one.
    """
    fn, args, kwargs = _whole(fn, args, kwargs)
    return _with_owner(fn, _bound_hash(fn, args, kwargs, name), name, contract)


def given_hash(fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any], name: str, contract: ToolContract | None) -> str:
    """Return the hash of the arguments as they are given, as earlier versions wrote it."""
    fn, args, kwargs = _whole(fn, args, kwargs)
    return _with_owner(fn, codec.arguments_hash(args, kwargs, name), name, contract)


def _whole(fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """Return a call with the arguments that a partial holds: they affect the result too."""
    while isinstance(fn, partial):
        fn, args, kwargs = fn.func, (*fn.args, *args), {**fn.keywords, **kwargs}
    return fn, args, kwargs


def _with_owner(fn: Any, given: str, name: str, contract: ToolContract | None) -> str:
    """Return the hash of a call: of an unsafe method with its object."""
    if contract is None or contract.effect != "unsafe" or calls_named_tool(fn):
        return given
    owner = getattr(fn, "__self__", None)
    if owner is None or isinstance(owner, (type, ModuleType)):
        return given
    # Two accounts that pay the same sum are two payments, and after a restart only their values tell them apart.
    try:
        return codec.arguments_hash((given, owner), {}, name)
    except InvalidError:
        raise InvalidError.saying("session.step", _OWNED, f"the method {name} of an object that is neither") from None


# --- the arguments as the function takes them ---


class _Parameters(NamedTuple):
    signature: inspect.Signature
    positional: tuple[str, ...]
    """The names that arguments without a name have; empty if only the signature can tell."""
    names: frozenset[str]
    defaults: dict[str, Any]
    """Those that can be compared after a restart."""


def _bound_hash(fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any], name: str) -> str:
    """Return the hash of the arguments by the names of the parameters, with defaults: however a call is written, it is one call."""
    parameters = _parameters(fn)
    bound = None if parameters is None else _bound(parameters, args, kwargs)
    # Arguments that the function does not take are an error of the program, which the call itself raises.
    return codec.arguments_hash(args, kwargs, name) if bound is None else codec.arguments_hash((), bound, name)


def _bound(parameters: _Parameters, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any] | None:
    if not parameters.names:
        try:
            return {**parameters.defaults, **parameters.signature.bind(*args, **kwargs).arguments}
        except TypeError:
            return None
    given = dict(zip(parameters.positional, args, strict=False))
    if not kwargs and len(given) == len(args):
        return {**parameters.defaults, **given}
    if (
        len(args) > len(parameters.positional)
        or not parameters.names.issuperset(kwargs)
        or not given.keys().isdisjoint(kwargs)
    ):
        return None
    return {**parameters.defaults, **given, **kwargs}


def _parameters(fn: Any) -> _Parameters | None:
    """Return the parameters of a function; None if it does not say which it has."""
    # A method is made anew at each access; its function is not.
    function = fn if type(fn) is FunctionType else getattr(fn, "__func__", fn)
    cache = _OF_FUNCTIONS if function is fn else _OF_METHODS
    # Not `suppress`: each step comes here.
    try:
        return cache[function]
    except (TypeError, KeyError):  # not in the cache, or not hashable: it is read below
        pass
    try:
        found = _read_parameters(inspect.signature(fn))
    except (TypeError, ValueError):
        return None
    # A callable object may be one that cannot be hashed or weakly referenced.
    with suppress(TypeError):
        cache[function] = found
    return found


def _read_parameters(signature: inspect.Signature) -> _Parameters:
    found = list(signature.parameters.values())
    positional = tuple(one.name for one in found if one.kind is one.POSITIONAL_OR_KEYWORD)
    is_simple = all(one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY) for one in found)
    names = frozenset(one.name for one in found) if is_simple else frozenset[str]()
    defaults = {one.name: copy.deepcopy(one.default) for one in found if _is_comparable(one)}
    return _Parameters(signature, positional, names, defaults)


def _is_comparable(parameter: inspect.Parameter) -> bool:
    """Whether a parameter has a default that is the same after a restart: a marker such as `object()` is not."""
    if parameter.default is parameter.empty:
        return False
    try:
        codec.arguments_hash((parameter.default,), {}, parameter.name)
    except InvalidError:
        return False
    return True


_OF_FUNCTIONS: weakref.WeakKeyDictionary[Any, _Parameters] = weakref.WeakKeyDictionary()
_OF_METHODS: weakref.WeakKeyDictionary[Any, _Parameters] = weakref.WeakKeyDictionary()
