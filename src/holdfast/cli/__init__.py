"""The `holdfast` command, with one module per family of verbs. No other room prints.

Results go to stdout, all other messages go to stderr. Every verb has `--json`. Exit codes are in `exits.py`.

    app         the command itself and the flags of most verbs; store_app: the flags of `audit` and `sessions`
    start       what `holdfast` alone says                       init        a holdfast.toml to start from
    completion  the scripts of shells
    explain     what a code, a status or a traceback means       codes       the catalog as a table
    classify    what a failure is                                policy      show, check and simulate a policy
    audit       the audit trail of a store                       sessions    the sessions of a store
    faults      providers and networks that fail on script       demo/       a rehearsal without keys
    doctor      what is installed and what is configured         agent       run an agent at the terminal
    live        live lines with keys on a terminal; a program may use it too
    output      tables, JSON, messages                           exits       exit codes, running a verb
    store       opening the store of a verb
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
