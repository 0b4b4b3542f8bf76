"""A step of a script, read: which fault, with which options."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from email.utils import formatdate
from typing import TYPE_CHECKING, Any, NamedTuple

from holdfast import options as check
from holdfast.faults import InvalidError
from holdfast.testing.notation import read_option, read_step
from holdfast.testing.provider.faults import FAULTS, REFUSALS, refusing

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.testing.provider.acts import Headers, Plan
    from holdfast.testing.provider.answers import Answer

__all__ = ["OK", "Step", "read"]

_EXPECTED = (
    f"ok, a status from 300 to 599 or one of {', '.join([*REFUSALS, *FAULTS])}, "
    "each perhaps ;OPTION=VALUE, %CHANCE and *TIMES (429;retry-after=7*2)"
)
_STATUS = re.compile(r"(?!304)[345][0-9][0-9]")  # 304 has no body, and so is no error anybody sends
_LATER = re.compile(r"(?P<form>date|rfc3339|epoch)\+(?P<seconds>[0-9]{1,9})")
_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9a-z-]+")
_HINT = "hint"
_FRAMING = frozenset({"content-length", "transfer-encoding", "connection"})
"""Headers that are the server's own; what breaks them is a fault by name."""


class Step(NamedTuple):
    """What one request meets: `plan` is None where it is answered well. `name` is what the counters call it."""

    name: str
    plan: Callable[[Answer], Plan] | None
    chance: float = 1.0


OK = Step("ok", None)


def read(path: str, text: str) -> list[Step]:
    """Read one step, which may be several of the same."""
    written = read_step(text)
    if written is None:
        raise InvalidError.at(path, _EXPECTED, text)
    name, *given = (part.strip() for part in written.what.split(";"))
    options = dict(read_option(path, option, "an option") for option in given)
    step = Step(name, _plan(path, name, options), written.chance)
    return [step] * written.times


def _plan(path: str, name: str, given: dict[str, str]) -> Callable[[Answer], Plan] | None:
    if name == OK.name and not given:
        return None
    if name in FAULTS:
        fault = FAULTS[name]
        options = {**fault.options, **{key: _option(path, name, key, value) for key, value in given.items()}}
        return lambda answer: fault.plan(answer, options)
    status = int(name) if _STATUS.fullmatch(name) else None
    if status is None and name not in REFUSALS:
        raise InvalidError.at(path, _EXPECTED, name)
    hint = given.pop(_HINT, "")
    return refusing(None if status else name, status, _headers(path, given), hint)


def _option(path: str, name: str, key: str, value: str) -> Any:
    """Read an option's value as the kind its default is of."""
    defaults = FAULTS[name].options
    where = f"{path} {name};{key}"
    if key not in defaults:
        known = ", ".join(defaults) or "no option"
        raise InvalidError.at(where, f"an option of {name}: {known}", key)
    default = defaults[key]
    if isinstance(default, str):
        check.one_of(where, value, REFUSALS)
        return value
    number = _number(where, value, type(default))
    if key == "status":
        check.count(where, number, least=200)
    elif isinstance(default, float):
        check.seconds(where, number)
    else:
        check.count(where, number, least=0)
    return number


def _number(where: str, value: str, kind: type[Any]) -> Any:
    try:
        return kind(value)
    except ValueError:
        raise InvalidError.at(where, "a whole number" if kind is int else "a number", value) from None


def _headers(path: str, given: dict[str, str]) -> Callable[[float], Headers]:
    for name, value in given.items():
        if name in _FRAMING:
            raise InvalidError.at(path, f"a header other than {', '.join(sorted(_FRAMING))}", name)
        if not _NAME.fullmatch(name) or not value.isprintable() or not value.isascii():
            raise InvalidError.at(path, "a header of printable ASCII as NAME=VALUE", f"{name}={value}")
    return lambda wall: tuple((name, _moment(value, wall)) for name, value in given.items())


def _moment(value: str, wall: float) -> str:
    """Write `date+7` as the HTTP date seven seconds from now, and the like."""
    later = _LATER.fullmatch(value)
    if later is None:
        return value
    at = wall + int(later["seconds"])
    if later["form"] == "date":
        return formatdate(at, usegmt=True)
    return str(int(at)) if later["form"] == "epoch" else datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
