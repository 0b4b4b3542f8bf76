"""The bundled tool `bash`: a shell for an agent. It is not a sandbox.

Invariant: with an allow-list there is no shell, so nothing but the listed programs is started by the command itself.
"""

from __future__ import annotations

import shlex
from pathlib import PurePath
from typing import TYPE_CHECKING, Annotated

import msgspec

from holdfast import options
from holdfast.faults import Fault, HoldfastError, InvalidError
from holdfast.runtime.tool import ToolContract
from holdfast.tools.confined import Root
from holdfast.tools.program_tool import run_for_tool
from holdfast.tools.toolbox import Tool

if TYPE_CHECKING:
    import os
    from collections.abc import Collection, Mapping

    from holdfast.tools.command import RunOptions

__all__ = ["bash"]

_OPERATORS = frozenset("|&;<>()$`\n*?")
"""What only a shell understands."""


@options.suggests
def bash(
    root: str | os.PathLike[str] = ".",
    *,
    allow: Collection[str] | None = None,
    env: Mapping[str, str] | None = None,
    pass_secrets: Collection[str] = (),
    timeout: float | None = None,
    idle: float | None = None,
    grace: float = 5.0,
    guarded: bool | None = None,
) -> Tool:
    """Return the tool `bash`: it runs a command in a shell that starts in `root`. It is unsafe: Holdfast never repeats it.

        from holdfast.tools import Toolbox, bash

        toolbox = Toolbox([bash("project", allow=["git", "ls", "pytest"])])
        text = await toolbox.call("bash", {"command": "git status"})

    This is not a sandbox: a command can read and write everything that this process can, and use the network. `root` is only where it
    starts. Run the whole agent in a container if you do not trust its commands.

    allow: names of the only programs that may be started. Then there is no shell: pipes, redirections, variables and wildcards are
        rejected, because each could start another program. This keeps a model to its tools and is no protection: `git`, `find`, `make`,
        `pytest` and most other programs start whatever their arguments or files name (`git -c alias.x='!sh -c …' x`).
    env, pass_secrets: variables to add, and variables with secrets to pass on. All others that hold secrets are left out.
    timeout, idle, grace, guarded: as for `run`. By default a call may take 300 s. Background jobs end with the command.
    """
    confined = Root(root)
    listed = None if allow is None else frozenset(allow)
    if listed is not None:
        options.names("bash.allow", listed)

    async def shell(
        command: Annotated[str, msgspec.Meta(description="The command, as it would be typed.", min_length=1)],
    ) -> str:
        argv = ["bash", "-c", command] if listed is None else _plain(command, listed)
        given: RunOptions = {
            "cwd": confined.path,
            "env": env,
            "pass_secrets": pass_secrets,
            "idle": idle,
            "grace": grace,
            "guarded": guarded,
        }
        # What a model writes may start anything at once, so the shell begins with its mark.
        finished = await run_for_tool(argv, contract, given, waits_for_mark=True)
        return finished.stdout + (f"\n[stderr]\n{finished.stderr}" if finished.stderr.strip() else "")

    described = "Run a command in a shell. Background jobs end with the command."
    if listed is not None:
        described = f"Run one program, without a shell: no pipes, no redirection. Allowed: {', '.join(sorted(listed))}."
    contract = ToolContract(effect="unsafe", name="bash", description=described, timeout=timeout)
    return Tool(shell, contract, ends_itself=grace + 3.0)


def _plain(command: str, allow: frozenset[str]) -> list[str]:
    """Return the parts of a command without a shell. Raises `HoldfastError` if it needs one, or is not allowed."""
    try:
        argv = shlex.split(command)
    except ValueError as error:
        raise InvalidError.saying("command", "quotes in pairs", str(error), "TOOL_INPUT_INVALID") from None
    found = sorted({sign for sign in _OPERATORS if sign in _outside_quotes(command)})
    if found or not argv:
        reason = f"the command may hold no shell syntax here, found {' '.join(found) or 'nothing to run'}"
        raise HoldfastError(Fault.of("TOOL_FORBIDDEN", reason, context={"reason": reason}, maybe_executed=False))
    name = argv[0]
    # A path would start another program of the same name.
    if name not in allow or PurePath(name).name != name:
        reason = f"`{name}` is not allowed here; allowed are {', '.join(sorted(allow))}"
        context = {"reason": reason, "supported": sorted(allow)}
        raise HoldfastError(Fault.of("TOOL_FORBIDDEN", reason, context=context, maybe_executed=False))
    return argv


def _outside_quotes(command: str) -> str:
    """Return what stands outside of quotes, and what a shell would still expand inside of double quotes."""
    kept: list[str] = []
    quote = ""
    for sign in command:
        if quote:
            if sign == quote:
                quote = ""
            elif quote == '"' and sign in "$`\\":
                kept.append(sign)
        elif sign in "'\"":
            quote = sign
        else:
            kept.append(sign)
    return "".join(kept)
