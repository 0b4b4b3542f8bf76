"""What an actor does after a message failed: resume, restart, stop or escalate.

Invariant: the answer follows from the failure and the map alone. The more exact key wins: a code before an exception class, the
nearest class before its bases, a class before a kind, and the actor's own map before the default.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

from holdfast import options
from holdfast.faults import CODES, InvalidError, Kind

if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.faults import Fault

__all__ = ["DEFAULT", "Directive", "On", "check_on", "directive_for"]

Directive: TypeAlias = Literal["resume", "restart", "stop", "escalate"]
"""`resume`: keep the state and take the next message. `restart`: a fresh instance. `stop`: end the actor for good.
`escalate`: the supervisor fails, with this failure as its cause."""

On: TypeAlias = "Mapping[str | type[BaseException], Directive]"
"""Directives by code (`"AUTH_FAILED"`), kind (`"fatal"`) or exception class."""

DEFAULT: On = {
    # Nobody recognised the failure, so the actor's state may be damaged.
    "SYS_UNKNOWN": "restart",
    # A limit of the sender, or of one call, was reached. The actor itself is well.
    "SYS_DEADLINE_EXCEEDED": "resume",
    "SYS_BUDGET_EXHAUSTED": "resume",
    "recoverable": "resume",
    "transient": "resume",
    "fatal": "restart",
    "permanent": "escalate",
    # A cancellation that nobody requested is a defect of the actor.
    "cancelled": "restart",
}
"""What happens where the actor's own map does not say."""

_VALIDATION = "validation"
"""The word that messages use for the kind `recoverable`."""
_KINDS = frozenset({*Kind, _VALIDATION})


def directive_for(fault: Fault, error: BaseException | None = None, on: On | None = None) -> Directive:
    """Return what to do about `fault`, which was read from `error`.

    >>> directive_for(Fault.of("AUTH_FAILED"), on={"AUTH_FAILED": "stop"})
    'stop'
    """
    return (_find(on, fault, error) if on else None) or _find(DEFAULT, fault, error) or "restart"


def _find(on: On, fault: Fault, error: BaseException | None) -> Directive | None:
    if fault.code in on:
        return on[fault.code]
    for kind in type(error).__mro__ if error is not None else ():
        if kind in on:
            return on[kind]
    if fault.kind is Kind.RECOVERABLE and _VALIDATION in on:
        return on[_VALIDATION]
    return on.get(fault.kind)


def check_on(path: str, on: Any) -> None:
    """Check a map of directives. A key that can never match raises `InvalidError`, which suggests the right one."""
    if on is None:
        return
    if not hasattr(on, "items"):
        raise InvalidError.at(path, "a map of codes, kinds or exception classes to directives", on)
    for key, directive in on.items():
        _check_key(path, key)
        options.one_of(f"{path}[{key if isinstance(key, str) else key.__name__!r}]", directive, get_args(Directive))


def _check_key(path: str, key: Any) -> None:
    if isinstance(key, type) and issubclass(key, BaseException):
        return
    if not isinstance(key, str):
        raise InvalidError.at(path, "keys that are codes, kinds or exception classes", key)
    if key in CODES or key in _KINDS:
        return
    known = CODES if key.isupper() else sorted(_KINDS)
    hint = options.suggestion(key, known) if not key.isupper() else _code_like(key)
    raise InvalidError.saying(path, f"a code, a kind or an exception class; {hint}", repr(key))


def _code_like(key: str) -> str:
    from difflib import get_close_matches  # noqa: PLC0415 - slow to import, and only a mistyped code needs it

    alike = get_close_matches(key, CODES, 1)
    return f"did you mean `{alike[0]}`?" if alike else "`holdfast codes` lists the codes"
