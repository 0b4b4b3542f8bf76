"""How a verb is declared: its flags here, what it does in a module that is imported when it runs.

    @verb(policy, "show", "policy")
    def policy_show(file: FileArgument = None, as_json: JsonOption = False) -> None:
        '''Show the delays …'''                     # `holdfast.cli.failures.policy.policy_show(file=…, as_json=…)` does it

Invariant: `--help` and shell completion import no implementation. A wrong flag is reported as every error of ours is.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from difflib import get_close_matches
from importlib import import_module
from inspect import Parameter, Signature, signature
from typing import Any, NamedTuple, TypeVar

import msgspec
import typer
from typer.core import TyperGroup

from holdfast.cli.exits import perform
from holdfast.cli.flags import StoreOption

F = TypeVar("F", bound=Callable[..., None])
_STORE = Parameter("store", Parameter.KEYWORD_ONLY, default=None, annotation=StoreOption)

CLOSE = 0.75
"""How similar a command must be to be suggested: better no suggestion than a far one."""


class Implementation(NamedTuple):
    """Where the function stands that does what a verb declares."""

    module: str
    name: str
    arguments: frozenset[str]
    """The names of the arguments that it is called with, without the store."""

    def load(self) -> Callable[..., Any]:
        """Return the function."""
        found: Callable[..., Any] = getattr(import_module(f"holdfast.cli.{self.module}"), self.name)
        return found


def verb(group: typer.Typer, name: str, module: str, **settings: Any) -> Callable[[F], F]:
    """Declare a verb. A parameter whose type is a struct stands for the struct's fields, each of which is a flag."""

    def declare(flags: F) -> F:
        implementation = Implementation(module, flags.__name__, frozenset(signature(flags).parameters))
        return _register(group, name, flags, implementation, lambda given: implementation.load()(**given), settings)

    return declare


def store_verb(group: typer.Typer, name: str, module: str, *, names_store: bool = False) -> Callable[[F], F]:
    """Declare a verb on a store. It also has the flag `--store`, and gets the open store first.

    With `names_store` it gets the address as `url`, too, for the commands that it shows.
    """

    def declare(flags: F) -> F:
        arguments = signature(flags).parameters.keys() | ({"url"} if names_store else set())
        implementation = Implementation(module, flags.__name__, frozenset(arguments))

        def run(given: dict[str, Any]) -> int:
            from holdfast.cli.store.access import with_store

            url = given.pop("store")
            named = {"url": url} if names_store else {}
            return with_store(url, lambda store: implementation.load()(store, **given, **named))

        return _register(group, name, flags, implementation, run, {}, _STORE)

    return declare


def _register(
    group: typer.Typer,
    name: str,
    flags: F,
    implementation: Implementation,
    run: Callable[[dict[str, Any]], int],
    settings: dict[str, Any],
    *more: Parameter,
) -> F:
    structs = {
        each.name: each.annotation
        for each in signature(flags).parameters.values()
        if isinstance(each.annotation, type) and issubclass(each.annotation, msgspec.Struct)
    }

    def command(**given: Any) -> None:
        for parameter, struct in structs.items():
            given[parameter] = struct(**{field: given.pop(field) for field in struct.__struct_fields__})
        perform(lambda: run(given))

    # Typer reads the flags from these.
    command.__name__, command.__doc__ = flags.__name__, flags.__doc__
    command.__signature__ = Signature([*_flags_of(flags), *more])  # type: ignore[attr-defined]
    command.implementation = implementation  # type: ignore[attr-defined] # a test compares it with the flags
    group.command(name, **settings)(command)
    return flags


def _flags_of(flags: Callable[..., Any]) -> Iterator[Parameter]:
    for each in signature(flags).parameters.values():
        is_struct = isinstance(each.annotation, type) and issubclass(each.annotation, msgspec.Struct)
        for flag in signature(each.annotation).parameters.values() if is_struct else (each,):
            yield flag.replace(kind=Parameter.KEYWORD_ONLY)


def group_of(text: str) -> typer.Typer:
    """Return a group of verbs with its description."""
    return typer.Typer(cls=CommandGroup, help=text, no_args_is_help=True)


class CommandGroup(TyperGroup):
    """A group of commands. Alone it shows its help, with each description in full."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not args and self.no_args_is_help and not ctx.resilient_parsing:
            # Typer would write the help to stderr and exit with 2. But nothing is wrong: it is what people want to read.
            sys.stdout.write(f"{ctx.get_help()}\n")
            ctx.exit()
        return super().parse_args(ctx, args)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name = args[0]
        if not (name.startswith("-") or ctx.resilient_parsing or self.get_command(ctx, name)):
            options = [option for parameter in self.params for option in parameter.opts]
            # `version` is no misspelling of a command.
            near = (
                [f"--{name}"] if f"--{name}" in options else get_close_matches(name, self.list_commands(ctx), 1, CLOSE)
            )
            ctx.fail(f"No such command {name!r}.{''.join(f' Did you mean {each!r}?' for each in near)}")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except typer.BadParameter as wrong:
            # The prefix is that of the validator inside Typer.
            wrong.message = wrong.message.removeprefix("Value error, ")
            raise

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        # Typer cuts the descriptions to one line of at most 80 columns. Here they wrap.
        named = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl([(name, command.get_short_help_str(limit=1_000)) for name, command in named if command])
