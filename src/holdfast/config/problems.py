"""What is wrong with a configuration: every mistake, in one error."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

import msgspec

from holdfast import options
from holdfast.faults import REDACTOR, Code, Fault, InvalidError

if TYPE_CHECKING:
    from collections.abc import Collection

__all__ = ["ConfigError", "Problem", "Problems"]

_LISTED = 30
"""More names than this are not listed: the catalog has hundreds of codes."""
_LIMITS = frozenset({"timeout", "deadline"})
_KINDS: dict[type, str] = {dict: "a table", list: "a list"}


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """One mistake in a configuration: where it is, what was expected and what is there.

    `str()` of it is one line of text:

        from holdfast.config import ConfigError, read

        try:
            read({"policy": {"atempts": 3}})
        except ConfigError as error:
            print(error.problems[0])  # policy.atempts: unknown option `atempts`; did you mean `attempts`?
    """

    path: str
    """Where it is: an option such as `policy.attempts`, a variable, or a file."""
    expected: str
    """What is valid there."""
    received: str
    """What is there. Secrets are masked."""
    code: Code = "CONFIG_INVALID"
    """The kind of mistake: `CONFIG_INVALID`, `CONFIG_TIMEOUT_INVALID` or `CONFIG_CODE_UNKNOWN`."""
    line: int = 0
    """The line of the file; 0: it is not known, or the value came from a variable."""
    hint: str = ""
    """What to write instead of an unknown name: "did you mean `attempts`?"; otherwise empty."""

    def __str__(self) -> str:
        if self.hint:
            return f"{self.path}: {self.received}; {self.hint}"
        return f"{self.path}: expected {self.expected}, got {self.received}"


class ConfigError(InvalidError):
    """The configuration has mistakes, and nothing of it is used.

    `problems` lists all of them:

        from holdfast.config import ConfigError, load

        try:
            settings = load("holdfast.toml")
        except ConfigError as error:
            for problem in error.problems:
                print(problem)
    """

    code = "CONFIG_INVALID"

    @classmethod
    def of(cls, source: str, problems: Collection[Problem]) -> Self:
        """Return the error for all mistakes found in `source`, a file's name or `the environment`."""
        # A mistyped value may be an API key in the wrong place.
        masked = [msgspec.structs.replace(each, received=REDACTOR.text(each.received)) for each in problems]
        first = masked[0]
        codes = {each.code for each in masked}
        context: dict[str, Any] = {
            "source": source,
            "path": first.path,
            "expected": first.expected,
            "received": first.received,
            "problems": msgspec.to_builtins(masked),
        }
        message = _message(source, masked)
        return cls(Fault.of(codes.pop() if len(codes) == 1 else cls.code, message, context=context))

    @property
    def problems(self) -> tuple[Problem, ...]:
        """Every mistake, in the order of the file."""
        # They travel as plain data in the fault's context, so that the error can be pickled and audited.
        return msgspec.convert(self.fault.context["problems"], tuple[Problem, ...])


def _message(source: str, problems: Collection[Problem]) -> str:
    # A mistake of the whole file has the file as its path, which the message begins with already.
    lines = [
        f"{f'line {each.line}: ' if each.line else ''}{str(each).removeprefix(f'{source}: ')}" for each in problems
    ]
    return f"{source}: {lines[0]}" if len(lines) == 1 else "\n  ".join((f"{source}: {len(lines)} mistakes", *lines))


class Problems:
    """Collects mistakes while a configuration is read, so that the user sees all of them at once."""

    def __init__(self) -> None:
        self.found: list[Problem] = []

    def add(self, path: str, expected: str, value: Any) -> None:
        """Add a wrong value. A table or a list is shown by its kind only."""
        if isinstance(value, bool):
            # As TOML writes it, not as Python does.
            shown = "true" if value else "false"
        else:
            shown = repr(value) if isinstance(value, (str, int, float)) else _KINDS.get(type(value), "a value")
        self.add_text(path, expected, shown)

    def add_text(self, path: str, expected: str, received: str) -> None:
        """Add a mistake; `received` is shown as it is."""
        code: Code = "CONFIG_TIMEOUT_INVALID" if path.rpartition(".")[2] in _LIMITS else "CONFIG_INVALID"
        self.found.append(Problem(path=path, expected=expected, received=received, code=code))

    def add_unknown(self, path: str, kind: str, name: str, known: Collection[str], value: Any = None) -> None:
        """Add a name that is not among the `known` ones; `kind` says what it should name: an option, a code."""
        expected = f"one of {', '.join(sorted(known))}" if len(known) <= _LISTED else f"a known {kind}"
        code: Code = "CONFIG_CODE_UNKNOWN" if kind == "code" else "CONFIG_INVALID"
        is_option = kind == "option"
        hint = (
            options.option_suggestion(name, known, value, toml=True) if is_option else options.suggestion(name, known)
        )
        received = f"unknown {kind} `{name}`"
        self.found.append(Problem(path=path, expected=expected, received=received, code=code, hint=hint))
