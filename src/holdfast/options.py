"""Checks of options.

A wrong option raises an error where it is written. The error names the option, the expected value and the received
value.

Invariant: zero means zero. A check either returns nothing or raises `InvalidError`; it never substitutes a default.
"""

from __future__ import annotations

import re
import sys
from functools import wraps
from types import CoroutineType
from typing import TYPE_CHECKING, Any, Self, TypeVar

import msgspec

from holdfast.faults import Fault, InvalidError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping

__all__ = [
    "Options",
    "above_zero",
    "an",
    "at_least",
    "count",
    "flag",
    "function",
    "listed",
    "listed_names",
    "name",
    "names",
    "one_of",
    "option_suggestion",
    "seconds",
    "share",
    "suggestion",
    "suggests",
    "tool_name",
    "unknown",
    "unknown_of",
]

_TOOL_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}", re.ASCII)


class _OptionsMeta(msgspec.StructMeta):
    """Turns msgspec's TypeError about an unknown option into an `InvalidError` that suggests the right one."""

    # msgspec builds a struct in C. There is no `__init__` or `__new__` in Python that could check the names.
    # Type checkers must not see this method. With it they would not use the struct's own signature.
    if not TYPE_CHECKING:

        def __call__(cls, *args: Any, **given: Any) -> Any:  # noqa: N805 - the instances of a metaclass are classes
            try:
                return _build(cls, *args, **given)
            except TypeError:
                for name, value in given.items():
                    if name not in cls.__struct_fields__:
                        raise unknown(cls, name, value) from None
                raise


# It is looked up once: options may be built for every call, and `super()` would look it up each time.
_build = msgspec.StructMeta.__call__


class Options(msgspec.Struct, metaclass=_OptionsMeta, frozen=True, kw_only=True):
    """The base of frozen values that hold a user's options, such as `Policy`."""

    def _replaced(self, changes: Mapping[str, Any]) -> Self:
        """Return a copy with some options changed, checked like a new value."""
        # `msgspec.structs.replace` is not used: it raises a bare TypeError for an unknown option.
        return type(self)(**{**msgspec.structs.asdict(self), **changes})


_CO_COROUTINE = 0x80
"""`inspect.CO_COROUTINE`, without its slow import."""

F = TypeVar("F", bound="Callable[..., Any]")


def suggests(function: F) -> F:
    """Decorate a function, or an `__init__`, that takes options: an unknown option raises `InvalidError`, which suggests the right one."""

    # Python binds the arguments before the body runs, so only a function around it can see the mistake.
    @wraps(function)
    def checked(*args: Any, **given: Any) -> Any:
        try:
            return function(*args, **given)
        except TypeError:
            known = _options_of(function)
            strange = [name for name in given if name not in known] if known else []
            if not strange:
                raise
        owner = function.__qualname__.removesuffix(".__init__")
        raise unknown_of(owner, strange[0], given[strange[0]], known)

    @wraps(function)
    async def checked_async(*args: Any, **given: Any) -> Any:
        return await checked(*args, **given)

    # An async function stays one for whoever looks: frameworks decide by it whether to await.
    is_async = bool(function.__code__.co_flags & _CO_COROUTINE)
    return checked_async if is_async else checked  # type: ignore[return-value] # it takes what the function takes


def _options_of(function: Callable[..., Any]) -> tuple[str, ...]:
    """Return the names that a function takes as keywords; none if it takes any name."""
    from inspect import Parameter, signature  # noqa: PLC0415 - slow, and only a mistyped name needs it

    parameters = signature(function).parameters.values()
    if any(each.kind is Parameter.VAR_KEYWORD for each in parameters):
        return ()
    named = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)
    return tuple(each.name for each in parameters if each.kind in named and each.name not in ("self", "cls"))


def unknown(kind: type[msgspec.Struct], name: str, value: Any) -> InvalidError:
    """Return the error for an option that `kind` does not have; it suggests the closest option of `kind`."""
    return unknown_of(kind.__name__, name, value, kind.__struct_fields__)


def unknown_of(owner: str, name: str, value: Any, known: Collection[str]) -> InvalidError:
    """Return the error for an option that `owner` does not have; it suggests the closest one of `known`."""
    context = {"path": f"{owner.lower()}.{name}", "expected": f"an option of {owner}", "received": name}
    message = f"unknown option `{name}` of {owner}; {option_suggestion(name, known, value)}"
    return InvalidError(Fault.of(InvalidError.code, message, context=context))


def an(noun: str) -> str:
    """Return a noun with its article: `an object`, `a Circuit`."""
    return f"{'an' if noun[:1].lower() in 'aeio' else 'a'} {noun}"


# --- what to write instead of an unknown name ---

_RETRIES = frozenset({"retries", "max_retries", "num_retries", "retry_count", "n_retries", "number_of_retries"})
"""Other libraries count the calls after the first; our `attempts` counts all calls."""

_OTHER_NAMES: dict[str, tuple[str, ...]] = {
    # tenacity, stamina, backoff, LangGraph, Temporal, DBOS, LiteLLM, the SDKs
    "attempts": ("stop", "stop_after_attempt", "max_attempts", "maximum_attempts", "max_tries", "tries"),
    "deadline": ("stop_after_delay", "max_time", "total_timeout", "schedule_to_close_timeout"),
    "timeout": (
        "request_timeout",
        "start_to_close_timeout",
        "total_timeout",
        "stream_timeout",
        "timeout_seconds",
        "timeout_s",
    ),
    "backoff": ("wait", "wait_exponential", "wait_random_exponential", "retry_delay", "delay"),
    "initial": (
        "wait_initial",
        "initial_interval",
        "initial_delay",
        "interval_seconds",
        "base",
        "base_delay",
        "min_delay",
    ),
    "factor": ("wait_exp_base", "backoff_factor", "backoff_coefficient", "backoff_rate", "exp_base", "multiplier"),
    "cap": ("wait_max", "max_interval", "maximum_interval", "max_delay", "max_wait", "max_value", "max_backoff"),
    "jitter": ("wait_jitter", "randomize"),
    "retry_on": ("on", "retry", "retry_if_exception_type", "retry_exceptions"),
    "never_retry": ("non_retryable_error_types", "giveup", "ignore_exceptions", "dont_retry_on"),
    # pybreaker and circuitbreaker; resilience4j; the cooldown of LiteLLM
    "failures": ("fail_max", "failure_threshold", "allowed_fails", "max_failures", "threshold"),
    "open_for": ("reset_timeout", "recovery_timeout", "timeout_duration", "cooldown", "cooldown_time", "open_duration"),
    "rate": ("failure_rate", "failure_rate_threshold", "failure_ratio"),
    "volume": ("minimum_number_of_calls", "minimum_throughput", "min_calls"),
    "concurrency": ("max_concurrency", "max_concurrent", "max_parallel_requests", "bulkhead"),
    "per_second": ("rps", "rate_limit", "requests_per_second"),
    # agents and budgets; supervisors; sessions and clients
    "max_turns": ("max_steps", "max_iterations", "recursion_limit"),
    "instructions": ("system", "system_prompt", "prompt"),
    "output": ("output_type", "result_type", "response_format", "output_schema", "output_model"),
    "turns": ("max_turns", "max_steps", "max_iterations"),
    "usd": ("max_usd", "cost", "max_cost", "max_budget", "dollars"),
    "tokens": ("max_tokens", "total_tokens_limit", "token_limit"),
    "seconds": ("max_seconds", "time_limit", "duration"),
    "max_restarts": ("intensity", "max_r", "restarts"),
    "window": ("period", "within", "max_t", "sliding_window_size"),
    "fallback": ("fallbacks", "context_window_fallbacks", "default_fallbacks"),
    "restart": ("restart_type", "restart_policy"),
    "shutdown": ("shutdown_timeout", "grace", "stop_timeout"),
    "store": ("db", "database", "checkpointer", "path", "storage"),
    "effect": ("idempotent", "idempotency", "side_effects", "read_only", "readonly"),
    "token": ("api_key", "auth", "password", "secret"),
    "idle": ("idle_timeout",),
    "start": ("start_timeout",),
    "total": ("timeout",),
    "cwd": ("working_dir", "workdir"),
    "provider": ("service_name",),
}
"""Our options, with the names that other libraries, and a first guess, have for them."""

_PARTS = {
    "policy": "Policy",
    "backoff": "Backoff",
    "circuit": "Circuit",
    "retry_quota": "Quota",
    "hedge": "Hedge",
    "retry": "Tries",
    "reconnect": "Schedule",
    "settings": "BridgeSettings",
}
"""The options that hold options themselves, with their classes."""


_ELSEWHERE = {
    "retry_on": "it is an option of `recover`",
    "never_retry": "it is an option of `recover`",
    "accept": "it is an option of `recover`",
    "effect": "it is an option of `recover` and of `tool`",
    "fallback": "a fallback is a function: decorate it with `@answer.fallback`",
    "attempts": "a policy has them: `Policy(attempts=…)`, which `recover` and agents take",
}
"""Options that belong to something else than they are given to."""


_Place = tuple[str, ...]
"""Where an option stands: its name, after the names of the parts around it."""


def suggestion(name: str, known: Collection[str]) -> str:
    """Return what to write instead of an unknown name: the closest known name, or a list of all of them."""
    # The import is slow and only a mistyped name needs it, so it stands here.
    from difflib import get_close_matches  # noqa: PLC0415

    if alike := get_close_matches(name, known, 1):
        return f"did you mean `{alike[0]}`?"
    return f"use {listed_names(known)}"


def listed_names(known: Collection[str]) -> str:
    """Return the names that may be given: `one of a, b`; a single one as it is."""
    return f"{'one of ' if len(known) > 1 else ''}{', '.join(known)}"


def option_suggestion(name: str, known: Collection[str], value: Any = None, *, toml: bool = False) -> str:
    """Return what to write instead of an unknown option. It knows what other libraries call our options.

    An option of a part is written with the part: `backoff=Backoff(cap=30)`, and in a TOML file `backoff.cap = 30`.
    """
    if name in _RETRIES and (found := _places("attempts", known)):
        return _meant(found, _attempts_for(value), toml=toml) + _counting(value)
    ours = [name, *(option for option, others in _OTHER_NAMES.items() if name in others)]
    ours = ["attempts"] if name in _RETRIES else ours
    # What stands here goes before what stands in a part.
    here: list[list[_Place]] = [[(option,)] for option in ours if option in known]
    if found := next(filter(None, [*here, *(_places(option, known) for option in ours)]), []):
        # Only a number is repeated: it means the same in other libraries, and a text may be a key.
        return _meant(found, _number(value), toml=toml)
    elsewhere = next((_ELSEWHERE[option] for option in ours if option in _ELSEWHERE), None)
    return elsewhere or suggestion(name, known)


def _places(option: str, known: Collection[str]) -> list[_Place]:
    """Return where an option stands: here, or in parts: `("policy", "backoff", "cap")`. The nearest places are returned."""
    level: list[tuple[_Place, Collection[str]]] = [((), known)]
    while level:
        if found := [(*path, option) for path, names in level if option in names]:
            return found
        kinds = {kind.__name__: kind.__struct_fields__ for kind in _subclasses(Options)}
        level = [
            ((*path, part), kinds[_PARTS[part]])
            for path, names in level
            for part in names
            # A part inside itself would never end.
            if part in _PARTS and part not in path and _PARTS[part] in kinds
        ]
    return []


def _subclasses(kind: type[msgspec.Struct]) -> Iterator[type[msgspec.Struct]]:
    for below in kind.__subclasses__():
        yield below
        yield from _subclasses(below)


def _meant(places: list[_Place], value: str, *, toml: bool) -> str:
    written = [_in_toml(place, value) if toml else _in_code(place, value) for place in places]
    return f"did you mean {' or '.join(f'`{each}`' for each in written)}?"


def _in_code(place: _Place, value: str) -> str:
    *parts, option = place
    text = f"{option}={value}" if value or parts else option
    for part in reversed(parts):
        text = f"{part}={_PARTS[part]}({text if value else f'{text}…'})"
    return text


def _in_toml(place: _Place, value: str) -> str:
    return ".".join(place) + (f" = {value}" if value else "")


def _number(value: Any) -> str:
    return f"{value!r}" if isinstance(value, (int, float)) and not isinstance(value, bool) else ""


def _attempts_for(retries: Any) -> str:
    return str(retries + 1) if _is_count(retries) else ""


def _counting(retries: Any) -> str:
    if not _is_count(retries):
        return " (attempts count calls: 3 retries are 4 attempts)"
    counted = "1 retry is" if retries == 1 else f"{retries} retries are"
    attempts = "1 attempt" if retries == 0 else f"{retries + 1} attempts"
    return f" (attempts count calls: {counted} {attempts})"


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


# --- checks of values ---


def seconds(path: str, value: Any, *, zero: bool = False, optional: bool = False) -> None:
    """Check a duration: a finite number of seconds, above zero unless `zero` has a meaning here."""
    if value is None and optional:
        return
    if not _is_number(value) or value < 0 or (value == 0 and not zero):
        raise InvalidError.at(path, f"a finite number of seconds {'≥' if zero else '>'} 0{_or_none(optional)}", value)


def function(path: str, value: Any, form: str, expected: str = "a function") -> None:
    """Check a function. A coroutine, which is what the call of an async function gives, is closed: nobody would await it.

    form: how the function and its arguments are passed: `step(f, …)`.
    """
    if callable(value):
        return
    if isinstance(value, CoroutineType):
        value.close()
        raise InvalidError.saying(
            path,
            f"{expected}; pass the function and its arguments: {form}",
            f"a call of {value.__qualname__}: a coroutine",
        )
    raise InvalidError.at(path, expected, value)


def count(path: str, value: Any, *, least: int = 1, optional: bool = False) -> None:
    """Check a count: a whole number, at least `least`."""
    if value is None and optional:
        return
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise InvalidError.at(path, f"a whole number ≥ {least}{_or_none(optional)}", value)


def share(path: str, value: Any, *, zero: bool = False, optional: bool = False) -> None:
    """Check a share of a whole: a number up to 1, above zero unless `zero` has a meaning here."""
    if value is None and optional:
        return
    if not _is_number(value) or not 0 <= value <= 1 or (value == 0 and not zero):
        raise InvalidError.at(path, f"a number {'from' if zero else 'above'} 0 to 1{_or_none(optional)}", value)


def at_least(path: str, value: Any, least: float, *, optional: bool = False) -> None:
    """Check a finite number with a lower bound."""
    if value is None and optional:
        return
    if not _is_number(value) or value < least:
        raise InvalidError.at(path, f"a finite number ≥ {least:g}{_or_none(optional)}", value)


def above_zero(path: str, value: Any, *, optional: bool = False) -> None:
    """Check a finite number above zero."""
    if value is None and optional:
        return
    if not _is_number(value) or value <= 0:
        raise InvalidError.at(path, f"a finite number > 0{_or_none(optional)}", value)


def one_of(path: str, value: Any, words: Collection[str]) -> None:
    """Check that a word is in a closed list."""
    if not isinstance(value, str) or value not in words:
        raise InvalidError.at(path, f"one of {', '.join(sorted(words))}", value)


def name(path: str, value: Any, *, optional: bool = False) -> None:
    """Check a name: a text that is not blank."""
    if value is None and optional:
        return
    if not isinstance(value, str) or not value.strip():
        raise InvalidError.at(path, f"a name{_or_none(optional)}", value)


def tool_name(path: str, value: Any) -> None:
    """Check a name that providers get as the name of a tool: they reject others."""
    if not isinstance(value, str) or not _TOOL_NAME.fullmatch(value):
        raise InvalidError.at(path, "1 to 64 ASCII letters, digits, `_` or `-`, as providers take them", value)


def listed(path: str, value: Any, expected: str) -> tuple[Any, ...]:
    """Return the values of a list. A single value, or a text, is not a list."""
    if isinstance(value, (str, bytes, dict)) or not hasattr(value, "__iter__"):
        raise InvalidError.at(path, f"a list of {expected}", value)
    return tuple(value)


def names(path: str, value: Any, *, optional: bool = False) -> None:
    """Check a set of names. A plain string is invalid, because Python would take it as the set of its letters."""
    if value is None and optional:
        return
    if not isinstance(value, (set, frozenset)) or not all(isinstance(name, str) for name in value):
        raise InvalidError.at(path, f"a set of names{_or_none(optional)}", value)


def flag(path: str, value: Any, *, optional: bool = False) -> None:
    """Check a switch: True or False. Other true values, such as 1 or "no", are invalid."""
    if value is None and optional:
        return
    if not isinstance(value, bool):
        raise InvalidError.at(path, f"True or False{_or_none(optional)}", value)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def _or_none(optional: bool) -> str:  # noqa: FBT001 - a private helper with one argument, and its name says what it means
    return " or None" if optional else ""
