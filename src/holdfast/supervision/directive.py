"""What an actor does after a message failed: resume, restart, stop or escalate.

Invariant: the answer follows from the failure and the map alone. The more exact key wins: a code before an exception class, the
nearest class before its bases, a class before a kind, and the actor's own map before the default. The words of an ordinary
exception, such as a RuntimeError, never choose.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

from holdfast import classify, options
from holdfast.faults import CODES, InvalidError, Kind

if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.faults import Fault

__all__ = ["BY_KIND", "DEFAULT", "Directive", "On", "check_on", "directive_for", "is_plain"]

Directive: TypeAlias = Literal["resume", "restart", "stop", "escalate"]
"""`resume`: keep the state and take the next message. `restart`: a fresh instance. `stop`: end the actor for good.
`escalate`: the supervisor fails, with this failure as its cause."""

On: TypeAlias = "Mapping[str | type[BaseException], Directive]"
"""Directives by code (`"AUTH_FAILED"`), kind (`"fatal"`) or exception class."""

DEFAULT: On = {
    # Nobody recognised the failure, or it is a defect: the actor's state may be damaged.
    "SYS_UNKNOWN": "restart",
    "fatal": "restart",
    # A cancellation that nobody requested is a defect of the actor.
    "SYS_CANCELLED": "restart",
    # The failure is that of one message: of what it asked for, or of a service that was called for it. The actor itself is well.
    "recoverable": "resume",
    "transient": "resume",
    "permanent": "resume",
    "cancelled": "resume",
    "ACTOR_CRASHED": "resume",
    "TASK_STAGE_FAILED": "resume",
    # Each further message and each fresh instance would fail the same way.
    **{code: "escalate" for code in CODES if code.startswith("CONFIG_")},
    "ACTOR_START_FAILED": "escalate",
    "ACTOR_MAX_RESTARTS": "escalate",
}
"""What happens where the actor's own map does not say."""

BY_KIND: On = {
    "SYS_UNKNOWN": "restart",
    "SYS_DEADLINE_EXCEEDED": "resume",
    "SYS_BUDGET_EXHAUSTED": "resume",
    "recoverable": "resume",
    "transient": "resume",
    "fatal": "restart",
    "permanent": "escalate",
    "cancelled": "restart",
}
"""Directives by the kind of a failure alone: `await team.start(Coder, on=BY_KIND)`. What no retry can cure, such as a PermissionError or
an AUTH_FAILED, ends the supervisor."""

_VALIDATION = "validation"
"""The word that messages use for the kind `recoverable`."""
_KINDS = frozenset({*Kind, _VALIDATION})


def directive_for(fault: Fault, error: BaseException | None = None, on: On | None = None) -> Directive:
    """Return what to do about `fault`, which was read from `error`.

    >>> directive_for(Fault.of("AUTH_FAILED"), on={"AUTH_FAILED": "stop"})
    'stop'
    """
    own = _find(on, fault, error) if on else None
    if own is not None:
        return own
    if isinstance(error, Exception):
        if not classify.is_ordinary(error):
            # What a library or the system reports is the failure of one call, also where nobody knows which.
            return "resume" if fault.code == "SYS_UNKNOWN" else _find(DEFAULT, fault, error) or "restart"
        if fault.rule in _our_rules():
            # A programmer's own sentence may hold any word that a rule knows, and nothing else says that the state is unharmed.
            return "resume" if _passes_by_itself(error) else "restart"
    return _find(DEFAULT, fault, error) or "restart"


def is_plain(fault: Fault, error: BaseException) -> bool:
    """Whether nothing but the words of an ordinary exception could name a code: it is a crash of the program's own code.

    >>> error = RuntimeError("rate limit exceeded")
    >>> is_plain(fault_of(error), error)
    True
    """
    is_ours = fault.code == "SYS_UNKNOWN" or fault.rule in _our_rules()
    return is_ours and classify.is_ordinary(error) and not _passes_by_itself(error)


@lru_cache(maxsize=1)
def _our_rules() -> frozenset[str]:
    """The names of our own rules. A rule of the user may know a class that ours do not, and is followed."""
    return frozenset(classify.CLASSIFIER.rules)


_BY_CLASS: dict[type[BaseException], Fault] = {}
"""What the name of each class says. To read it takes longer than a restart."""
_MOST_CLASSES = 1_000


def _passes_by_itself(error: BaseException) -> bool:
    """Whether the name of its class says so: `PoolTimeout`, `RateLimited`."""
    fault = _by_class(error)
    return fault.kind is Kind.TRANSIENT and fault.code != "SYS_UNKNOWN"


def _by_class(error: BaseException) -> Fault:
    found = _BY_CLASS.get(type(error))
    if found is None:
        if len(_BY_CLASS) >= _MOST_CLASSES:
            _BY_CLASS.clear()
        found = _BY_CLASS[type(error)] = classify.from_class(error)
    return found


def _find(on: On, fault: Fault, error: BaseException | None) -> Directive | None:
    if fault.code in on:
        return on[fault.code]
    for kind in type(error).__mro__ if error is not None else ():
        if kind in on:
            return on[kind]
    if error is not None and fault.rule in _our_rules() and classify.is_ordinary(error):
        # The words of an ordinary exception choose no kind either.
        fault = _by_class(error)
        if fault.code in on:
            return on[fault.code]
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
