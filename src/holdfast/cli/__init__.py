"""The `holdfast` command: one file per verb. The only room that prints.

Results go to stdout, narration to stderr; every verb speaks `--json`; exit codes are in `exits.py`.
"""

from __future__ import annotations

import sys

__all__ = ["main"]

_INSTALL = "holdfast: the command line needs two more packages; run: pip install 'holdfast[cli]'"


def main() -> None:
    """Run the command. Without the `cli` extra, say the one line that helps."""
    try:
        from holdfast.cli.app import run
    except ModuleNotFoundError as missing:
        if missing.name not in ("typer", "rich", "click"):
            raise
        print(_INSTALL, file=sys.stderr)
        sys.exit(2)
    run()
