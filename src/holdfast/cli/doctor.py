"""`holdfast doctor`: what is installed, what is configured, and what to do about what is not."""

from __future__ import annotations

import os
import platform
import sys
import time
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from holdfast import __version__
from holdfast.cli.exits import Exit
from holdfast.cli.output import narrate, show_json, show_table
from holdfast.config import ConfigError, Problem, load
from holdfast.extensions import Extensions
from holdfast.faults import CODES
from holdfast.runtime import page_of
from holdfast.runtime.runtime import Runtime

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Finding", "doctor"]

_OPTIONAL = (
    ("anthropic", "calls to Claude with the official SDK"),
    ("openai", "calls to OpenAI and xAI with the official SDK"),
    ("httpx", "answers of httpx clients"),
    ("httpx2", "answers of httpx2 clients"),
)
_FILE = "holdfast.toml"
_VARIABLES = "HOLDFAST_*"
_SWITCHES = ("HOLDFAST_ENABLED", "RESILIENCE_ENABLED")
_BOOLEANS = frozenset({"0", "1", "true", "false", "yes", "no", "on", "off"})
_OLDEST_SANE_CLOCK = datetime(2025, 1, 1, tzinfo=UTC).timestamp()
_KEYS = ("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "XAI_API_KEY")


class Finding(msgspec.Struct, frozen=True):
    """One thing that was looked at."""

    what: str
    state: str
    """`ok`, `info`, `warning` or `failed`."""
    found: str
    fix: str = ""


def doctor(*, as_json: bool) -> Exit:
    """Look at everything, show it, and say whether anything is broken."""
    findings = [
        *_versions(),
        *_optional_parts(),
        *_clock(),
        *_config(Path(), dict(os.environ)),
        *_pages(),
        *_extensions(),
    ]
    broken = [finding for finding in findings if finding.state == "failed"]
    if as_json:
        show_json({"schema": "holdfast.doctor/1", "healthy": not broken, "findings": msgspec.to_builtins(findings)})
    else:
        show_table(("what", "state", "found", "fix"), [(f.what, f.state, f.found, f.fix) for f in findings])
        narrate("something is broken: see `failed` above" if broken else "nothing is broken")
    return Exit.FAILED if broken else Exit.OK


def _versions() -> Iterator[Finding]:
    yield Finding("holdfast", "ok", __version__)
    supported = sys.version_info >= (3, 11)
    yield Finding(
        "python",
        "ok" if supported else "failed",
        f"{platform.python_version()} on {platform.system()}",
        "" if supported else "install Python 3.11 or newer",
    )
    yield Finding("msgspec", "ok", metadata.version("msgspec"))


def _optional_parts() -> Iterator[Finding]:
    for package, use in _OPTIONAL:
        try:
            yield Finding(package, "ok", metadata.version(package))
        except metadata.PackageNotFoundError:
            yield Finding(package, "info", f"not installed; only needed for {use}", f"pip install {package}")


def _clock() -> Iterator[Finding]:
    now = time.time()
    shown = datetime.fromtimestamp(now, UTC).isoformat(timespec="seconds")
    sane = now >= _OLDEST_SANE_CLOCK
    yield Finding(
        "clock", "ok" if sane else "failed", shown, "" if sane else "set the clock (NTP): signed requests are refused"
    )


def _config(folder: Path, environment: dict[str, str]) -> Iterator[Finding]:
    yield from _settings(folder, environment)
    for name in _SWITCHES:
        value = environment.get(name)
        if value is None:
            continue
        known = value.strip().lower() in _BOOLEANS
        fix = "" if known else "use true or false"
        yield Finding(name, "ok" if known else "failed", value, fix)
    present = [name for name in _KEYS if environment.get(name)]
    yield Finding(
        "keys", "info", ", ".join(f"{name} is set" for name in present) or "no provider key in the environment"
    )


def _settings(folder: Path, environment: dict[str, str]) -> Iterator[Finding]:
    try:
        config = load(environ=environment, folder=folder)
    except ConfigError as error:
        for what in (_FILE, _VARIABLES):
            told = [str(problem) for problem in error.problems if _place(problem) == what]
            if told:
                yield Finding(what, "failed", "; ".join(told), "fix what is named; `holdfast policy check` tells more")
        return
    if config.source == "defaults":
        yield Finding(_FILE, "info", "none here or above; defaults hold")
    else:
        yield Finding(_FILE, "ok", f"{config.source}, {len(config.targets)} targets")


def _place(problem: Problem) -> str:
    if problem.path in _SWITCHES:
        return problem.path
    return _VARIABLES if problem.path.startswith("HOLDFAST_") else _FILE


def _pages() -> Iterator[Finding]:
    missing: list[str] = []
    for code in CODES:
        try:
            page_of(code)
        except OSError:
            missing.append(code)
    found = f"{len(CODES) - len(missing)} of {len(CODES)} pages"
    yield Finding(
        "catalog",
        "failed" if missing else "ok",
        found,
        "reinstall holdfast: the wheel is incomplete" if missing else "",
    )


def _extensions() -> Iterator[Finding]:
    """Start what is installed, in a runtime of its own, to see whether it starts; and stop it again."""
    with Extensions(runtime=Runtime()) as extensions:
        found = [*extensions.started], [*extensions.skipped]
    for described in found[0]:
        yield Finding(f"extension {described.id}", "ok", f"{described.group}, contract {described.contract}")
    for skipped in found[1]:
        advice = "; ".join(skipped.fault.entry.suggestions)
        yield Finding(f"extension {skipped.id}", "warning", f"left out: {skipped.fault.message}", advice)
