"""`holdfast completion SHELL`: print the script that completes commands, options, codes and sessions in a shell."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Literal, TypeAlias

from typer.completion import get_completion_script  # type: ignore[attr-defined] # public, but not in an __all__

from holdfast.cli.exits import Exit
from holdfast.cli.output import narrate, show_json

if TYPE_CHECKING:
    from collections.abc import Mapping

Shell: TypeAlias = Literal["bash", "zsh", "fish", "powershell"]

SHELLS: Mapping[Shell, str] = {
    "bash": 'eval "$(holdfast completion bash)"    # in ~/.bashrc',
    "zsh": 'eval "$(holdfast completion zsh)"    # in ~/.zshrc, after compinit',
    "fish": "holdfast completion fish > ~/.config/fish/completions/holdfast.fish",
    "powershell": "holdfast completion powershell | Out-String | Invoke-Expression    # in $PROFILE",
}
"""The shells, with the line that switches completion on."""


def completion(*, shell: Shell, as_json: bool) -> Exit:
    """Print the script of a shell. On a terminal, say what to do with it."""
    script = get_completion_script(prog_name="holdfast", complete_var="_HOLDFAST_COMPLETE", shell=shell)
    if as_json:
        show_json({"schema": "holdfast.completion/1", "shell": shell, "use": SHELLS[shell], "script": script})
        return Exit.OK
    sys.stdout.write(f"{script}\n")
    # In a pipe the shell itself reads the script.
    if sys.stdout.isatty():
        narrate(f"to switch completion on: {SHELLS[shell]}")
    return Exit.OK
