"""The `holdfast` command, with one module per family of verbs. No other room prints.

Results go to stdout, all other messages go to stderr. Every verb has `--json`. Exit codes are in `exits.py`.

    app          the command, with the flags of most verbs; `verbs`: how a verb is declared; `flags`: those of several verbs
    failures/    what a failure is and what is done about it: explain, codes, classify, policy, doctor
    programs/    run a command, an agent, a workflow or a provider that fails; look at actors; crashtest
    store/       sessions and the audit trail of a store
    bridge/      serve an agent, let devices in, take part
    demo/        a rehearsal without keys
    start        what `holdfast` alone says; `init`: a holdfast.toml to start from; `completion`: the scripts of shells
    output       tables, JSON, messages; `exits`: exit codes, running a verb; `live`: live lines, for programs too

A verb is declared beside its flags, and done in the module that the declaration names, which is imported when it runs. This room may import
every other one. Only `holdfast.live` imports from it, so its modules list no names in `__all__`.
"""

from __future__ import annotations

import sys

__all__ = ["main"]


def main() -> None:
    """Run the command. If the `cli` extra is not installed, print one line and exit with 2."""
    # The import stands here, because `from holdfast.live import live` in a program must not load the command.
    from holdfast.extras import MissingExtraError, needs_extra

    try:
        with needs_extra("the holdfast command", "typer and rich", "cli"):
            from holdfast.cli.app import run
    except MissingExtraError as missing:
        print(f"holdfast: {missing.fault.message}", file=sys.stderr)
        sys.exit(2)
    run()
