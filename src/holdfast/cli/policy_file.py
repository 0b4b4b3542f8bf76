"""The settings the `policy` verbs are about: a file, stdin, or what a program started here would have."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.cli.exits import Exit
from holdfast.cli.output import fail
from holdfast.runtime.config import Config, ConfigError, load, read
from holdfast.runtime.config.sources import read_text

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.policies import Policy

__all__ = ["config_of", "named_policies", "with_config"]

MAX_STDIN = 1_048_576


def config_of(file: str | None) -> Config:
    """Read the settings; raise `ConfigError` where they are wrong, `OSError` where there is no such file."""
    if file is None:
        return load()
    if file == "-":
        return read(read_text(sys.stdin.buffer.read(MAX_STDIN).decode("utf-8", "replace"), "stdin"), "stdin")
    return read(read_text(Path(file).read_text(encoding="utf-8", errors="replace"), file), file)


def with_config(file: str | None, verb: Callable[[Config], Exit]) -> Exit:
    """Run a verb on the settings, or say everything that is wrong with them."""
    try:
        config = config_of(file)
    except OSError as error:
        fail(f"cannot read {file}: {error.strerror}")
        return Exit.NOT_FOUND if isinstance(error, FileNotFoundError) else Exit.FAILED
    except ConfigError as error:
        for problem in error.problems:
            fail(f"{error.fault.context['source']}: {problem}")
        return Exit.USAGE
    return verb(config)


def named_policies(config: Config, target: str | None = None) -> dict[str, Policy]:
    """Return the policies to speak of: the one of a target, or the default one and every target's."""
    if target is not None:
        return {target: config.policy_of(target)}
    return {"default": config.policy, **config.targets}
