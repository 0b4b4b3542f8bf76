"""`process_tool`: a program as a tool, and the end of a process as the end of a call.

Invariant: a program that ended by itself has an exit code. If it must not run twice, its failure is not retried, whatever its code is.
"""

from __future__ import annotations

import functools
import inspect
import string
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast import options
from holdfast.faults import Fault, HoldfastError, InvalidError, Kind, Scope
from holdfast.policies.decide import is_repeatable
from holdfast.runtime.callables import name_of
from holdfast.runtime.tool import ToolContract, call_key, takes_arguments
from holdfast.tools.command import Command
from holdfast.tools.process import Run
from holdfast.tools.process_error import ProcessError
from holdfast.tools.toolbox import TIME_LIMIT, Tool

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Collection, Mapping, Sequence

    from holdfast.faults import Code
    from holdfast.policies import Effect, Tries
    from holdfast.tools.command import RunOptions
    from holdfast.tools.process_error import Finished

__all__ = ["process_tool", "run_for_tool"]

_OF_A_CALL_THAT_WAS_STOPPED = frozenset({"SYS_CANCELLED", "TOOL_CRASHED", "TOOL_KILLED", "TOOL_TIMEOUT"})
CALL_KEY = "HOLDFAST_CALL_KEY"
"""The environment variable with the idempotency key of the call. It is the same for every attempt."""


@options.suggests
def process_tool(
    name: str,
    command: Sequence[str] | Callable[..., Sequence[str]],
    *,
    effect: Effect,
    description: str = "",
    input: Any = None,  # noqa: A002 - the word of every tool API
    timeout: float | None = None,
    idle: float | None = None,
    cwd: str | os.PathLike[str] | None = None,
    env: Mapping[str, str] | None = None,
    pass_secrets: Collection[str] = (),
    retry: Tries | None = None,
    codes: Mapping[Code, bool] | None = None,
    verify: Callable[..., Any] | None = None,
    check: Callable[..., Any] | None = None,
    output_cap: int | None = None,
    grace: float = 5.0,
    guarded: bool | None = None,
    service: str = "",
) -> Tool:
    """Return a tool that runs a program, and whose result is what the program prints to stdout.

        from holdfast.tools import Toolbox, process_tool

        count_lines = process_tool("count_lines", ["wc", "-l", "--", "{path}"], effect="read")
        toolbox = Toolbox([count_lines])

    command: the program and its arguments; `{path}` stands for the argument `path` of the tool, which is a text. Or a function with
        typed parameters that returns the command. There is no shell, so an argument cannot become a second command. It can be an option of
        the program: put `"--"` before it.
    effect, retry, codes, verify, check, output_cap: as for `@tool`. With `effect="keyed"` the program finds the key of the call
        in HOLDFAST_CALL_KEY.
    timeout, idle, grace, guarded, cwd, env, pass_secrets: as for `run`.
    service: what the program depends on, such as `agent-sdk`. It has a circuit of its own, `service:agent-sdk`, which opens for a minute
        after five failures in a row, and all tools with this service share it.

    A failed call raises `ProcessError` with all output so far. Wrong options raise `InvalidError`.
    """
    build, fields = (command, None) if callable(command) else _template(name, command)
    contract = ToolContract(
        effect=effect,
        name=name,
        description=description or (inspect.getdoc(build) if callable(command) else None) or f"Run {name}.",
        input=fields if input is None else input,
        timeout=timeout,
        retry=retry,
        codes={str(code): wanted for code, wanted in (codes or {}).items()},
        verify=verify,
        check=check,
        checks_arguments=takes_arguments(check),
        output_cap=output_cap,
        service=service,
    )
    limits: RunOptions = {"idle": idle, "grace": grace, "guarded": guarded}
    return _tool(build, contract, {"cwd": cwd, "env": env, "pass_secrets": pass_secrets, **limits})


def _tool(build: Callable[..., Sequence[str]], contract: ToolContract, given: RunOptions) -> Tool:
    """Return the tool that runs the commands that `build` returns."""

    async def call(**arguments: Any) -> str:
        return (await run_for_tool(build(**arguments), contract, given)).stdout

    call.__name__ = call.__qualname__ = contract.name
    # The schema is that of the function that builds the command.
    functools.update_wrapper(call, build, assigned=(), updated=())
    return Tool(call, contract, ends_itself=given.get("grace", 5.0) + 3.0)


async def run_for_tool(
    argv: Sequence[str], contract: ToolContract, options: RunOptions, *, waits_for_mark: bool = False
) -> Finished:
    """Run a program for a call of a tool. Its time limit is that of the call."""
    if any("\0" in part for part in argv):
        reason = "a program's arguments can hold no NUL character; leave it out, or pass it through a file"
        raise HoldfastError(Fault.of("TOOL_INPUT_INVALID", reason, context={"reason": reason}, maybe_executed=False))
    env = {**(options.get("env") or {}), **({CALL_KEY: key} if (key := call_key()) else {})}
    command = Command.of(argv, {**options, "env": env, "timeout": TIME_LIMIT.get() or contract.timeout})
    command = msgspec.structs.replace(command, waits_for_mark=waits_for_mark)
    try:
        return await Run(command)
    except ProcessError as error:
        error.fault = _final(error, contract)
        raise


def _final(error: ProcessError, contract: ToolContract) -> Fault:
    """Return the fault of a program. If it ended by itself and must not run twice, it is not retried, and its exit code is its answer."""
    fault = error.fault
    if contract.service and fault.kind is Kind.TRANSIENT:
        # The circuit of the service counts it, not the one of this tool alone.
        fault = msgspec.structs.replace(fault, scope=Scope.CONNECTION)
    if not error.ended_itself or is_repeatable(contract.effect):
        return fault
    # 124, 130 and 137 say how its last command ended. The call itself was neither stopped nor cancelled.
    code = "TOOL_EXECUTION_FAILED" if fault.code in _OF_A_CALL_THAT_WAS_STOPPED else fault.code
    return msgspec.structs.replace(fault, code=code, retryable=False, context={**fault.context, "ended": "itself"})


def _template(name: str, command: Sequence[str]) -> tuple[Callable[..., list[str]], dict[str, Any]]:
    """Return a function that fills a command with arguments, and the schema of these arguments."""
    if isinstance(command, str) or not command or not all(isinstance(part, str) for part in command):
        raise InvalidError.at(
            f"process_tool {name}.command", "a list of texts, or a function that returns one", command
        )
    try:
        found = [field for part in command for _, field, _, _ in string.Formatter().parse(part) if field is not None]
    except ValueError as error:
        raise InvalidError.saying(
            f"process_tool {name}.command", "{name} for an argument, {{ for a brace", str(error)
        ) from None
    for field in found:
        if not field.isidentifier():
            raise InvalidError.saying(
                f"process_tool {name}.command", "{name} with the name of an argument", f"{{{field}}}"
            )
    fields = list(dict.fromkeys(found))

    def build(**arguments: Any) -> list[str]:
        return [part.format(**arguments) for part in command]

    build.__qualname__ = f"{name} of {name_of(process_tool)}"
    properties = {field: {"type": "string"} for field in fields}
    return build, {"type": "object", "properties": properties, "required": fields, "additionalProperties": False}
