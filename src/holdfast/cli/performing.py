"""Running a verb, and what becomes of its failure."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, NoReturn

import typer

from holdfast.cli.exits import Exit
from holdfast.cli.output import fail
from holdfast.cli.streams import give_up
from holdfast.faults import HoldfastError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["perform"]


def perform(verb: Callable[[], Exit]) -> NoReturn:
    """Run a verb and leave with its exit code, also when it is interrupted or fails in a way of ours."""
    try:
        status = verb()
        sys.stdout.flush()
    except KeyboardInterrupt:
        status = Exit.INTERRUPTED
    except BrokenPipeError:
        # The reader went away (`| head`): there is nobody to tell.
        give_up(sys.stdout)
        status = Exit.OK
    except OSError as error:
        give_up(sys.stdout)
        fail(f"cannot read the input or write the result: {error.strerror or error}")
        status = Exit.FAILED
    except HoldfastError as error:
        fail(str(error), f"holdfast explain {error.fault.code}")
        status = Exit(error.fault.entry.exit_code)
    raise typer.Exit(status)
