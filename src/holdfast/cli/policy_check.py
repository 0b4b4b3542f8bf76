"""`holdfast policy check`: everything that is wrong with a file, then what is suspicious about what it says."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from holdfast.cli.exits import Exit
from holdfast.cli.output import fail, narrate, show_json, show_table
from holdfast.cli.policy_file import config_of, named_policies
from holdfast.policies.advice import Advice, advice
from holdfast.runtime.config import ConfigError

if TYPE_CHECKING:
    from holdfast.runtime.config import Config, Problem

__all__ = ["policy_check"]

_SCHEMA = "holdfast.policy.check/1"


def policy_check(file: str | None, *, strict: bool, as_json: bool) -> Exit:
    """Check a file. With `strict`, warnings give an exit code of their own."""
    try:
        config = config_of(file)
    except OSError as error:
        fail(f"cannot read {file}: {error.strerror}")
        return Exit.NOT_FOUND if isinstance(error, FileNotFoundError) else Exit.FAILED
    except ConfigError as error:
        return _wrong(str(error.fault.context["source"]), error.problems, as_json=as_json)
    found = _advice(config)
    warnings = sum(each.level == "warning" for _, each in found)
    if as_json:
        listed = [{"policy": name, **msgspec.to_builtins(each)} for name, each in found]
        show_json({"schema": _SCHEMA, "source": config.source, "valid": True, "problems": [], "advice": listed})
    else:
        if found:
            rows = [(each.level, name, each.about, each.text) for name, each in found]
            show_table(("level", "policy", "about", "what"), rows)
        narrate(f"{config.source} is valid, {warnings} warnings")
    return Exit.DEGRADED if strict and warnings else Exit.OK


def _wrong(source: str, problems: tuple[Problem, ...], *, as_json: bool) -> Exit:
    if as_json:
        listed = msgspec.to_builtins(problems)
        show_json({"schema": _SCHEMA, "source": source, "valid": False, "problems": listed, "advice": []})
    else:
        show_table(("path", "expected", "got"), [(each.path, each.expected, each.received) for each in problems])
        narrate(f"{source} is wrong, {len(problems)} mistakes; a program with it does not start")
    return Exit.USAGE


def _advice(config: Config) -> list[tuple[str, Advice]]:
    """Say what is suspicious: once, where several policies share it."""
    found = [(name, each) for name, policy in named_policies(config).items() for each in advice(policy)]
    if not config.enabled:
        off = Advice(
            level="warning", about="enabled", text="recovery is switched off: every call is made once, plainly"
        )
        found.insert(0, ("all", off))
    seen: dict[Advice, str] = {}
    for name, each in found:
        seen.setdefault(each, name)
    return [(name, each) for each, name in seen.items()]
