"""The parameters of the functions beside a recovered one: fallbacks, degraded answers, repairs, notifications, cache keys.

They get the arguments of the call, and some of them the fault. Beside a method they get the object first, as methods do.

Invariant: a function that can never be called with these arguments is rejected when it is added.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from holdfast.faults import Fault, InvalidError
from holdfast.runtime.callables import is_async, name_of

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["check_parameters", "check_step", "notification_takes_self", "place_of_fault", "takes_nothing", "with_fault"]


def check_step(what: str, step: Any, of: Any) -> None:
    """Raise `InvalidError` for a step that cannot be called: no function, or an async fallback of a plain function."""
    if not callable(step):
        raise InvalidError.at(f"{what} of {name_of(of)}", "a function", step)
    if is_async(step) and not is_async(of):
        raise InvalidError.saying(
            f"{what} of {name_of(of)}", "a plain function, as the function itself is", "an async function"
        )


def check_parameters(what: str, step: Any, of: Any) -> None:
    """Raise `InvalidError` if a function cannot be called with the arguments of the recovered one."""
    own, theirs = _parameters(step), _parameters(of)
    if own is not None and theirs is not None and not _fits(own, theirs):
        raise _unfit(what, step, of, own, [parameter.name for parameter in theirs])


def place_of_fault(what: str, step: Any, of: Any, *, of_method: bool) -> int:
    """Return where a function takes the fault: 1 after the object of a method, else 0.

    Raises `InvalidError` if it cannot be called with the fault and the arguments of the recovered function.
    """
    own, theirs = _parameters(step), _parameters(of)
    if own is None or theirs is None:
        return int(of_method)
    place = int(of_method and not (own and _is_fault(own[0])))
    takes_it_elsewhere = any(map(_is_fault, own)) and not any(map(_is_fault, [*own[place : place + 1], *theirs]))
    if takes_it_elsewhere or not _fits(own, theirs, extra=1):
        expected = [parameter.name for parameter in theirs]
        expected.insert(place, "fault")
        raise _unfit(what, step, of, own, expected)
    return place


def with_fault(place: int, fault: Fault, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the arguments of a function that takes the fault at this place."""
    return (*args[:place], fault, *args[place:])


def notification_takes_self(step: Any, of: Any, *, of_method: bool) -> bool:
    """Return whether a notification takes the object of the method, then the fault. Most take the fault alone.

    Raises `InvalidError` if it takes neither.
    """
    own = _parameters(step)
    if own is None or _binds(own, 1):
        return False
    if of_method and _binds(own, 2) and not _is_fault(own[0]):
        return True
    raise _unfit("notify", step, of, own, ["self", "fault"] if of_method else ["fault"])


def takes_nothing(step: Any) -> bool:
    """Whether a function has no parameters at all."""
    return _parameters(step) == []


def _unfit(what: str, step: Any, of: Any, own: Sequence[inspect.Parameter], expected: Sequence[str]) -> InvalidError:
    return InvalidError.saying(
        f"{what} of {name_of(of)}",
        f"a function with the parameters ({', '.join(expected)})",
        f"{name_of(step)}({', '.join(parameter.name for parameter in own)})",
    )


def _parameters(fn: Any) -> list[inspect.Parameter] | None:
    try:
        return list(inspect.signature(fn).parameters.values())
    except (TypeError, ValueError):  # functions written in C may have no signature
        return None


def _is_fault(parameter: inspect.Parameter) -> bool:
    return parameter.name == "fault" or parameter.annotation in (Fault, "Fault")


def _fits(own: list[inspect.Parameter], theirs: list[inspect.Parameter], *, extra: int = 0) -> bool:
    """Whether a function can be called with the arguments that the other one gets, and some `extra` ones before them."""
    # One call that fits is enough: optional arguments may never be given, and any may be given by name.
    required = [parameter for parameter in theirs if parameter.default is parameter.empty]
    return any(_accepts(own, given, extra) for given in (required, theirs))


def _accepts(own: list[inspect.Parameter], given: list[inspect.Parameter], extra: int) -> bool:
    if any(parameter.kind is parameter.VAR_POSITIONAL for parameter in given):
        return not extra or (bool(own) and own[0].kind is not inspect.Parameter.KEYWORD_ONLY)
    by_name = [parameter.name for parameter in given if parameter.kind is parameter.KEYWORD_ONLY]
    by_either = [parameter.name for parameter in given if parameter.kind is parameter.POSITIONAL_OR_KEYWORD]
    by_place = sum(parameter.kind is parameter.POSITIONAL_ONLY for parameter in given) + extra
    return _binds(own, by_place + len(by_either), by_name) or _binds(own, by_place, [*by_either, *by_name])


def _binds(own: list[inspect.Parameter], by_place: int, by_name: Sequence[str] = ()) -> bool:
    try:
        inspect.Signature(own).bind(*[None] * by_place, **dict.fromkeys(by_name))
    except TypeError:
        return False
    return True
