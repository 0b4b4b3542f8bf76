"""`holdfast doctor`: show what is installed and configured, and what to do about problems."""

from __future__ import annotations

import asyncio
import os
import platform
import sqlite3
import sys
import time
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from holdfast import __version__
from holdfast.bridge.access.private_files import read_private, state_folder
from holdfast.bridge.access.tokens import Tokens
from holdfast.cli.exits import Exit
from holdfast.cli.failures.sdk_checks import needed_version, own_retries
from holdfast.cli.output import counted, narrate, show_json, show_table
from holdfast.cli.start import KEYS
from holdfast.config import ConfigError, Problem, load
from holdfast.config.sources import ignored
from holdfast.extensions import Extensions
from holdfast.extras import install_command
from holdfast.faults import CODES, HoldfastError
from holdfast.runtime import page_of
from holdfast.runtime.fleet.engines import opener_of
from holdfast.runtime.fleet.shared_state import SharedStateError
from holdfast.runtime.runtime import Runtime
from holdfast.stores import EncryptedStore, SqliteStore, default_url, open_store
from holdfast.stores.address import shown
from holdfast.stores.sql.schema import VERSION
from holdfast.stores.sqlite import files

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.stores import Store

_OPTIONAL = (
    # package, its extra if it has one, what it is for
    ("anthropic", "anthropic", "Claude with Anthropic's SDK"),
    ("openai", "openai", "OpenAI and xAI with OpenAI's SDK"),
    ("httpx", "httpx", "httpx clients"),
    ("httpx2", "", "httpx2 clients"),
    ("langchain", "langchain", "LangChain and LangGraph"),
    ("litellm", "litellm", "LiteLLM"),
    ("claude-agent-sdk", "claude-agent", "the Claude Agent SDK"),
    ("openai-agents", "openai-agents", "the OpenAI Agents SDK"),
    ("pydantic-ai-slim", "pydantic-ai", "pydantic-ai"),
    ("opentelemetry-api", "otel", "OpenTelemetry traces"),
    ("prometheus-client", "prometheus", "Prometheus metrics"),
    ("structlog", "structlog", "logs through structlog"),
    ("psycopg", "postgres", "a store on PostgreSQL"),
    ("redis", "redis", "shared state on Redis"),
    ("cryptography", "encryption", "an encrypted store"),
)
_FILE = "holdfast.toml"
_VARIABLES = "HOLDFAST_*"
_FIRST = {"failed": 0, "warning": 1}
"""What a person must look at comes before the rest."""
_SWITCHES = ("HOLDFAST_ENABLED", "RESILIENCE_ENABLED")
_BOOLEANS = frozenset({"0", "1", "true", "false", "yes", "no", "on", "off"})
_OLDEST_SANE_CLOCK = datetime(2025, 1, 1, tzinfo=UTC).timestamp()
_SOON_S = 14 * 86_400.0
"""A token or certificate that ends within this time is worth a warning."""


class CheckResult(msgspec.Struct, frozen=True):
    """One thing that was checked."""

    what: str
    state: str
    """`ok`, `info`, `warning` or `failed`."""
    found: str
    fix: str = ""


def doctor(*, as_json: bool) -> Exit:
    """Check everything, show the results, and say whether anything is broken."""
    # The checks that concern every program come first, so that the first failed line is the line to fix first.
    findings = [
        *_versions(),
        *_optional_parts(),
        *_sdk_retries(dict(os.environ)),
        *_clock(),
        *_config(Path(), dict(os.environ)),
        *_sqlite(),
        _store(),
        *_shared(Path(), dict(os.environ)),
        *_bridge(state_folder()),
        *_pages(),
        *_extensions(),
    ]
    # The sort is stable: within a state the order above holds.
    findings.sort(key=lambda finding: _FIRST.get(finding.state, len(_FIRST)))
    broken = [finding for finding in findings if finding.state == "failed"]
    if as_json:
        show_json({"schema": "holdfast.doctor/1", "healthy": not broken, "findings": msgspec.to_builtins(findings)})
    else:
        show_table(("what", "state", "found"), [(each.what, each.state, each.found) for each in findings])
        if fixes := [(each.what, each.fix) for each in findings if each.fix]:
            # The commands are in a table of their own. In a column beside the others they would wrap and could not be
            # copied.
            sys.stdout.write("\n")
            show_table(("what", "what to do"), fixes)
        narrate(_summary(findings))
    return Exit.FAILED if broken else Exit.OK


def _summary(findings: list[CheckResult]) -> str:
    states = [finding.state for finding in findings]
    if "failed" in states:
        return "something is broken: see `failed` above"
    return "nothing is broken; what to do about a warning can wait" if "warning" in states else "nothing is broken"


def _versions() -> Iterator[CheckResult]:
    yield CheckResult("holdfast", "ok", __version__)
    # pip does not install on an older Python. This check is for copies of the source that were put on a path.
    supported = sys.version_info >= (3, 11)
    yield CheckResult(
        "python",
        "ok" if supported else "failed",
        f"{platform.python_version()} on {platform.system()}",
        "" if supported else "install Python 3.11 or newer",
    )
    yield CheckResult("msgspec", "ok", metadata.version("msgspec"))


def _optional_parts() -> Iterator[CheckResult]:
    for package, extra, use in _OPTIONAL:
        try:
            version = metadata.version(package)
        except metadata.PackageNotFoundError:
            # Nobody has to install it, so there is nothing to do.
            by_extra = f" (the extra `{extra}`)" if extra else ""
            yield CheckResult(package, "info", f"not installed; only needed for {use}{by_extra}")
            continue
        if needed := needed_version(package, version):
            found = f"{version} is older than {needed}, which Holdfast needs for {use}"
            yield CheckResult(package, "warning", found, _upgrade(package, extra))
        else:
            yield CheckResult(package, "ok", version)


def _upgrade(package: str, extra: str) -> str:
    return install_command(extra, upgrade=True) if extra else f"pip install --upgrade {package}"


def _sdk_retries(environment: dict[str, str]) -> Iterator[CheckResult]:
    # Which clients the programs here make cannot be known, so this is no warning.
    if sentences := own_retries(environment):
        fix = "use recovering(client), which switches them off; around other calls, give the client max_retries=0"
        yield CheckResult("sdk retries", "info", "; ".join(sentences), fix)


def _clock() -> Iterator[CheckResult]:
    # Providers sign requests with the time, and Retry-After dates are compared with it.
    now = time.time()
    shown = datetime.fromtimestamp(now, UTC).isoformat(timespec="seconds")
    sane = now >= _OLDEST_SANE_CLOCK
    yield CheckResult(
        "clock",
        "ok" if sane else "failed",
        shown,
        "" if sane else "set the clock (NTP): servers reject signed requests",
    )


def _config(folder: Path, environment: dict[str, str]) -> Iterator[CheckResult]:
    yield from _settings(folder, environment)
    for name in _SWITCHES:
        value = environment.get(name)
        if value is None:
            continue
        known = value.strip().lower() in _BOOLEANS
        fix = "" if known else "use true or false"
        yield CheckResult(name, "ok" if known else "failed", value, fix)
    # Only the names are shown. A key must never be printed, not even in part.
    present = [name for name in KEYS if environment.get(name)]
    yield CheckResult(
        "keys", "info", ", ".join(f"{name} is set" for name in present) or "no provider key in the environment"
    )


def _settings(folder: Path, environment: dict[str, str]) -> Iterator[CheckResult]:
    if left_out := ignored(environment, None if environment.get("HOLDFAST_CONFIG") else folder):
        yield CheckResult(
            "ignored", "warning", "; ".join(left_out), "fix the name, or remove what is not meant for Holdfast"
        )
    try:
        config = load(environ=environment, folder=folder)
    except ConfigError as error:
        # Problems are grouped by the place to fix. The on/off switch has its own check below.
        for what in (_FILE, _VARIABLES):
            problems = [str(problem).removeprefix(f"{what}: ") for problem in error.problems if _place(problem) == what]
            if problems:
                fix = "fix what is named; `holdfast policy check` shows it as a table"
                yield CheckResult(what, "failed", "; ".join(problems), fix)
        return
    if config.source == "defaults":
        yield CheckResult(_FILE, "info", "none here; the defaults apply")
    else:
        yield CheckResult(_FILE, "ok", f"{config.source}, {counted(len(config.targets), 'target')}")


def _shared(folder: Path, environment: dict[str, str]) -> Iterator[CheckResult]:
    """Ask the engine of shared state, where there is one."""
    try:
        options = load(environ=environment, folder=folder).shared
    except ConfigError:
        return  # said already
    if not options.url:
        return
    try:
        engine = opener_of(options)()
    except HoldfastError as error:
        yield CheckResult("shared state", "failed", str(error), "fix what is named")
        return
    try:
        engine.targets()
        began = time.perf_counter()
        known = len(engine.targets())
        took = 1000 * (time.perf_counter() - began)
        wrong = engine.check()
    except SharedStateError as error:
        yield CheckResult(
            "shared state", "failed", f"{engine.place}: {error}", "start it, or fix the address in [shared]"
        )
        return
    finally:
        engine.close()
    found = f"{engine.place}, {counted(known, 'target')}, {took:.1f} ms"
    fix = "give it memory of its own, and a server that can be written to" if wrong else ""
    yield CheckResult("shared state", "warning" if wrong else "ok", "; ".join([found, *wrong]), fix)


def _place(problem: Problem) -> str:
    if problem.path in _SWITCHES:
        return problem.path
    return _VARIABLES if problem.path.startswith("HOLDFAST_") else _FILE


def _sqlite() -> Iterator[CheckResult]:
    version = sqlite3.sqlite_version
    if files.is_affected(sqlite3.sqlite_version_info):
        found = f"{version} has the WAL-reset bug: another program that writes to a store's file may lose data"
        fix = "use SQLite 3.51.3 or newer, or let only Holdfast write to the file"
        yield CheckResult("sqlite", "warning", found, fix)
    else:
        yield CheckResult("sqlite", "ok", version)


def _store() -> CheckResult:
    """Open the store that programs here use. A file that does not exist is not created."""
    url = default_url()
    fix = "fix what is named, or set HOLDFAST_STORE to another store"
    try:
        store = open_store(url)
        kept = store.inner if isinstance(store, EncryptedStore) else store
        if isinstance(kept, SqliteStore) and not kept.path.exists():
            return _missing_store(kept.path, fix)
        asyncio.run(_open(store))
    except HoldfastError as error:
        advice = error.fault.entry.suggestions
        return CheckResult("store", "failed", f"{shown(url)}: {error.fault.message}", advice[0] if advice else fix)
    return CheckResult("store", "ok", f"{shown(url)}: opens for writing, schema version {VERSION}")


async def _open(store: Store) -> None:
    # Opening the store is a complete test: it connects, checks that the data is ours and of a known version, and
    # writes.
    async with store:
        pass


def _missing_store(path: Path, fix: str) -> CheckResult:
    folder = next(folder for folder in path.absolute().parents if folder.exists())
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        return CheckResult("store", "failed", f"{path} does not exist, and {folder} cannot be written to", fix)
    return CheckResult("store", "info", f"{path} does not exist yet; it is created when something is first saved")


def _bridge(home: Path) -> Iterator[CheckResult]:
    """Check what a bridge keeps in this folder: its tokens and its certificate, if it has any."""
    if (home / "tokens.json").exists():
        yield _tokens(home / "tokens.json")
    if (home / "tls" / "cert.pem").exists():
        yield _certificate(home / "tls")


def _tokens(path: Path) -> CheckResult:
    try:
        records = Tokens(path).all()
    except HoldfastError as error:
        return CheckResult("tokens", "failed", error.fault.message, "holdfast tokens list")
    now = time.time()
    valid = [record for record in records if record.state(now) == "valid"]
    ending = [
        f"{record.name} until {_day(record.expires_at)}"
        for record in valid
        if record.expires_at is not None and record.expires_at < now + _SOON_S
    ]
    found = f"{path}: {len(valid)} of {counted(len(records), 'token')} valid"
    if ending:
        return CheckResult("tokens", "warning", f"{found}; {', '.join(ending)}", "holdfast tokens create NAME")
    return CheckResult("tokens", "ok", found)


def _certificate(folder: Path) -> CheckResult:
    # Imported here, because it needs an extra that may be missing.
    try:
        from holdfast.bridge.access.tls import TlsFiles
    except ImportError as error:
        return CheckResult("certificate", "info", f"{folder} was not checked: {error}")
    files_ = TlsFiles(folder)
    try:
        # A key that others can read is rejected here, and not when the server starts at night.
        read_private(files_.key)
        until = files_.facts().not_after.timestamp()
    except HoldfastError as error:
        return CheckResult("certificate", "failed", error.fault.message, "fix what is named, or: holdfast tls rotate")
    now = time.time()
    state = "failed" if until <= now else "warning" if until < now + _SOON_S else "ok"
    found = f"{files_.cert}: {'expired' if until <= now else 'valid until'} {_day(until)}"
    return CheckResult("certificate", state, found, "" if state == "ok" else "holdfast tls rotate")


def _day(at: float) -> str:
    return f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d}"


def _pages() -> Iterator[CheckResult]:
    # The pages are read, not only listed: a wheel built without its data has the folder but no pages.
    missing: list[str] = []
    for code in CODES:
        try:
            page_of(code)
        except OSError:
            missing.append(code)
    found = f"{len(CODES) - len(missing)} of {len(CODES)} pages"
    yield CheckResult(
        "catalog",
        "failed" if missing else "ok",
        found,
        "reinstall holdfast: the wheel is incomplete" if missing else "",
    )


def _extensions() -> Iterator[CheckResult]:
    """Start every installed extension in a separate runtime, and stop it again."""
    # The runtime is separate, because an extension may subscribe to events and must not leave anything behind.
    with Extensions(runtime=Runtime()) as extensions:
        found = [*extensions.started], [*extensions.skipped]
    for described in found[0]:
        yield CheckResult(f"extension {described.id}", "ok", f"{described.group}, contract {described.contract}")
    for skipped in found[1]:
        advice = "; ".join(skipped.fault.entry.suggestions)
        yield CheckResult(f"extension {skipped.id}", "warning", f"left out: {skipped.fault.message}", advice)
