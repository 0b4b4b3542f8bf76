"""`Command`: a program to run and how, as a value that is checked when it is made.

Invariant: a command that exists can be tried. Whether its program exists is found out when it is started.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypedDict

import msgspec

from holdfast import options
from holdfast.faults import InvalidError
from holdfast.tools.environment import filtered_environment

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

__all__ = ["Command", "RunOptions"]

StdinMode: TypeAlias = Literal["closed", "pipe", "inherit"]
Leftovers: TypeAlias = Literal["kill", "leave"]


class Command(msgspec.Struct, frozen=True, kw_only=True):
    """A program to run, and how. `run` makes one of its arguments; wrong ones raise `InvalidError`."""

    argv: tuple[str, ...]
    input: bytes | None = None
    stdin: StdinMode = "closed"
    cwd: str | None = None
    env: dict[str, str] = {}
    start: float | None = None
    idle: float | None = None
    timeout: float | None = None
    grace: float = 5.0
    keep: int = 1_048_576
    output_cap: int | None = 67_108_864
    check: bool = True
    leftovers: Leftovers = "kill"
    guarded: bool | None = None
    waits_for_mark: bool = False
    """Where the program is not born with its mark, it waits for it, so that nothing that it starts can escape. It costs the start of a shell."""

    @classmethod
    def of(cls, command: Sequence[str | os.PathLike[str]], given: RunOptions) -> Command:
        """Return the command of these options of `run`."""
        argv = _argv(command)
        known: dict[str, Any] = {**given}
        env = filtered_environment(
            known.pop("env", None),
            inherit=known.pop("inherit_env", True),
            secrets=known.pop("pass_secrets", ()),
        )
        for name, value in known.items():
            if name not in RunOptions.__annotations__:
                raise options.unknown_of("run", name, value, tuple(RunOptions.__annotations__))
        if isinstance(text := known.get("input"), str):
            known["input"] = text.encode()
        if (cwd := known.get("cwd")) is not None:
            known["cwd"] = os.fspath(cwd)
        return cls(argv=argv, env=env, **known)

    def __post_init__(self) -> None:
        if not self.argv:
            raise InvalidError.saying(
                "run.command", "the program and its arguments, such as ['git', 'status']", "nothing"
            )
        for index, part in enumerate(self.argv):
            if "\0" in part:
                raise InvalidError.saying(f"run.command[{index}]", "a text without NUL", "a NUL character")
        for name in ("start", "idle", "timeout"):
            options.seconds(f"run.{name}", getattr(self, name), optional=True)
        options.seconds("run.grace", self.grace, zero=True)
        options.count("run.keep", self.keep)
        options.count("run.output_cap", self.output_cap, optional=True)
        options.one_of("run.stdin", self.stdin, ("closed", "pipe", "inherit"))
        options.one_of("run.leftovers", self.leftovers, ("kill", "leave"))
        if self.guarded is not None:
            options.flag("run.guarded", self.guarded)
        if self.input is not None and self.stdin != "closed":
            raise InvalidError.saying("run.input", 'stdin="closed" beside it', f'stdin="{self.stdin}"')


class RunOptions(TypedDict, total=False):
    """The options of `run`."""

    input: bytes | str | None
    stdin: StdinMode
    cwd: str | os.PathLike[str] | None
    env: Mapping[str, str] | None
    inherit_env: bool
    pass_secrets: Collection[str]
    start: float | None
    idle: float | None
    timeout: float | None
    grace: float
    keep: int
    output_cap: int | None
    check: bool
    leftovers: Leftovers
    guarded: bool | None


def _argv(command: Any) -> tuple[str, ...]:
    # A text would be taken as a list of letters. Splitting it would guess at quotes.
    if isinstance(command, (str, bytes)) or not all(isinstance(part, (str, os.PathLike)) for part in command):
        raise InvalidError.at("run.command", "a list such as ['git', 'status'], or ['bash', '-c', text]", command)
    return tuple(os.fspath(part) for part in command)
