"""What is wrong with a configuration: every fault of it in one error."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

import msgspec

from holdfast.faults import REDACTOR, Code, Fault, InvalidError

if TYPE_CHECKING:
    from collections.abc import Collection

__all__ = ["ConfigError", "Problem", "Problems", "near"]

_LIMITS = frozenset({"timeout", "deadline"})


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that is wrong."""

    path: str
    expected: str
    received: str
    code: Code = "CONFIG_INVALID"

    def __str__(self) -> str:
        return f"{self.path}: expected {self.expected}, got {self.received}"


class ConfigError(InvalidError):
    """The configuration is wrong and none of it was used. `problems` lists everything that is."""

    code = "CONFIG_INVALID"

    @classmethod
    def of(cls, source: str, problems: Collection[Problem]) -> Self:
        """Return the error for everything that is wrong with `source`."""
        told = [msgspec.structs.replace(each, received=REDACTOR.text(each.received)) for each in problems]
        first = told[0]
        codes = {each.code for each in told}
        context: dict[str, Any] = {
            "source": source,
            "path": first.path,
            "expected": first.expected,
            "received": first.received,
            "problems": msgspec.to_builtins(told),
        }
        count = "" if len(told) == 1 else f"{len(told)} mistakes. "
        message = f"{source}: {count}{'; '.join(map(str, told))}"
        return cls(Fault.of(codes.pop() if len(codes) == 1 else cls.code, message, context=context))

    @property
    def problems(self) -> tuple[Problem, ...]:
        return msgspec.convert(self.fault.context["problems"], tuple[Problem, ...])


class Problems:
    """Collects what is wrong while a configuration is read."""

    def __init__(self) -> None:
        self.found: list[Problem] = []

    def add(self, path: str, expected: str, received: Any, code: Code | None = None) -> None:
        """Note that a value is wrong; of one that is no plain value, only its kind shows."""
        shown = repr(received) if isinstance(received, (str, int, float)) else _KINDS.get(type(received), "a value")
        self.add_saying(path, expected, shown, code)

    def add_saying(self, path: str, expected: str, received: str, code: Code | None = None) -> None:
        """Note the same in these very words."""
        if code is None:
            code = "CONFIG_TIMEOUT_INVALID" if path.rpartition(".")[2] in _LIMITS else "CONFIG_INVALID"
        self.found.append(Problem(path=path, expected=expected, received=received, code=code))


_KINDS: dict[type, str] = {dict: "a table", list: "a list"}


def near(name: str, known: Collection[str]) -> str:
    """Return what to write instead of a name that is not known."""
    # Loaded here: only somebody who mistyped pays for it.
    from difflib import get_close_matches  # noqa: PLC0415

    alike = get_close_matches(name, known, n=2, cutoff=0.6)
    return f"a known name ({' or '.join(alike)}?)" if alike else f"one of {', '.join(sorted(known))}"
