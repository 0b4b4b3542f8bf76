"""`holdfast doctor`: what is installed, what is configured, and what to do about what is not."""

from __future__ import annotations

import errno
import os
import platform
import sys
import time
import tomllib
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast import __version__
from holdfast.cli.exits import Exit
from holdfast.cli.output import narrate, show_json, show_table
from holdfast.faults import CODES
from holdfast.runtime import page_of

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Finding", "doctor"]

_OPTIONAL = (
    ("anthropic", "calls to Claude with the official SDK"),
    ("openai", "calls to OpenAI and xAI with the official SDK"),
    ("httpx", "answers of httpx clients"),
    ("httpx2", "answers of httpx2 clients"),
)
_BOOLEANS = frozenset({"", "0", "1", "true", "false", "yes", "no", "on", "off"})
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
    findings = [*_versions(), *_optional_parts(), *_clock(), *_config(Path(), dict(os.environ)), *_pages()]
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
    path = folder / "holdfast.toml"
    try:
        yield Finding("holdfast.toml", "ok", f"{len(_tables(path))} tables")
    except FileNotFoundError:
        yield Finding("holdfast.toml", "info", "none here; defaults hold")
    except (OSError, ValueError, RecursionError) as error:
        yield Finding("holdfast.toml", "failed", str(error), "fix the file at the named line")
    for name in ("HOLDFAST_ENABLED", "RESILIENCE_ENABLED"):
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


def _tables(path: Path) -> dict[str, Any]:
    if path.exists() and not path.is_file():
        # A pipe of that name would be waited for, for ever.
        raise OSError(errno.EINVAL, "not a file", str(path))
    return tomllib.loads(path.read_text(encoding="utf-8"))


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
