"""`holdfast faults serve|list|proxy`: providers and networks that fail on script, from a shell."""

from __future__ import annotations

import asyncio
import sys
import threading
from typing import TYPE_CHECKING

import msgspec

from holdfast import options
from holdfast.cli.exits import Exit, open_input
from holdfast.cli.output import fail, narrate, show_facts, show_json, show_table
from holdfast.runtime.runtime import SystemClock
from holdfast.testing.provider import FaultProvider, Limit, Script, read_file, read_script
from holdfast.testing.provider.faults import ERRORS, FAULTS
from holdfast.testing.provider.routes import ROUTES
from holdfast.testing.proxy import FaultProxy, toxic_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

_MAX_STDIN = 1_048_576


def faults_serve(
    *, script: str | None, steps: str, limit: Sequence[str] | None, seed: int | None, port: int, as_json: bool
) -> Exit:
    """Serve until Ctrl-C, then print the counters."""
    # If both were allowed, one of them would be ignored silently.
    if script is not None and steps:
        fail("expected --script or --steps, got both")
        return Exit.USAGE
    played = read_script(steps) if script is None else _script_of(script)
    # The machine's clock is used, not the default runtime's, because a broken configuration must not stop the server.
    provider = FaultProvider(played, seed=seed, clock=SystemClock(), limits=limit or (), port=port)
    try:
        asyncio.run(_serve(provider, as_json=as_json))
    except OSError as error:
        fail(f"cannot listen on port {port}: {error.strerror or error}", "--port 0 takes a free one")
        return Exit.FAILED
    except KeyboardInterrupt:
        # Ctrl-C is the normal end of a server, so its counters are shown. The exit code still means interrupted.
        narrate(f"holdfast: {provider.counters!r}")
        return Exit.INTERRUPTED
    return Exit.OK


def faults_list(*, as_json: bool) -> Exit:
    """Show every fault with its options, the options of limits, and the paths."""
    errors = [(name, "any header, hint", summary) for name, summary in ERRORS.items()]
    broken = [(name, _options(fault.options), fault.summary) for name, fault in FAULTS.items()]
    rows = [("ok", "", "a normal answer"), ("300 … 599", "any header, hint", "a status"), *errors, *broken]
    if as_json:
        listed = [{"fault": name, "options": options, "what": what} for name, options, what in rows]
        limits = [{"option": name, "default": default} for name, default in _limit_options()]
        paths = [{"method": route.method, "path": route.path, "protocol": route.dialect.name} for route in ROUTES]
        show_json({"schema": "holdfast.faults/1", "faults": listed, "limits": limits, "paths": paths})
    else:
        show_table(("fault", "options", "what"), rows)
        narrate(
            "a step is FAULT;option=value%CHANCE*TIMES, such as 429;retry-after=7%50*3; all but FAULT may be left out"
        )
        show_table(("limit's option", "default"), _limit_options())
        narrate(
            "a limit is KIND=NUMBER;option=value, such as requests=60;burst=5;headers=no, with requests, tokens or concurrency"
        )
        show_table(("method", "path", "protocol"), [(route.method, route.path, route.dialect.name) for route in ROUTES])
    return Exit.OK


def _limit_options() -> list[tuple[str, str]]:
    """Return the options of a limit with their defaults, as they are written in a script."""
    defaults = msgspec.to_builtins(Limit())
    return [(name, "" if value is None else _written(value)) for name, value in defaults.items()]


def _written(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:g}"
    return "|".join(value) if isinstance(value, (list, tuple)) else str(value)


def _script_of(file: str) -> Script:
    with open_input(file, "give a file with a script, or - for stdin") as opened:
        if file == "-":
            return read_script(opened.read(_MAX_STDIN).decode("utf-8", "replace"))
    return read_file(file)


async def _serve(provider: FaultProvider, *, as_json: bool) -> None:
    async with provider:
        _announce(provider, as_json=as_json)
        narrate(f"counters: {provider.url}/_holdfast/counters; Ctrl-C ends it")
        # Nobody completes this future, so the server runs until the loop is interrupted.
        await asyncio.get_running_loop().create_future()


def _announce(provider: FaultProvider, *, as_json: bool) -> None:
    if as_json:
        # The document has no export lines, because JSON output masks values of names such as ANTHROPIC_API_KEY.
        show_json({"schema": "holdfast.faults.serve/1", "url": provider.url, "openai_url": provider.openai_url})
    else:
        print(provider.url)
        for name, value in provider.environment.items():
            print(f"export {name}={value}")
    # A script that started this server may wait for the address in a pipe.
    sys.stdout.flush()


def _options(options: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in options.items())


# --- proxy ---


def faults_proxy(
    *, to: str, listen: str, toxic: Sequence[str] | None, seed: int, seconds: float | None, as_json: bool
) -> Exit:
    """Run the TCP proxy for `seconds`, or until Ctrl-C; then show its counters."""
    options.seconds("--seconds", seconds, optional=True)
    running = FaultProxy(to, *map(toxic_of, toxic or ()), listen=listen, seed=seed)
    with running:
        address = running.address
        faults = "toxics: " + ", ".join(map(repr, running.toxics)) if running.toxics else "no toxics"
        narrate(f"{address} passes to {to}; {faults}; Ctrl-C ends it")
        try:
            # Nobody sets this event. It is only a wait that Ctrl-C can interrupt.
            threading.Event().wait(seconds)
        finally:
            _show_proxy(running, address, to, as_json=as_json)
    return Exit.OK


def _show_proxy(running: FaultProxy, address: str, to: str, *, as_json: bool) -> None:
    counters = msgspec.to_builtins(running.counters)
    if as_json:
        toxics = msgspec.to_builtins(running.toxics)
        show_json(
            {"schema": "holdfast.faults.proxy/1", "listen": address, "to": to, "toxics": toxics, "counters": counters}
        )
    else:
        show_facts(f"{address} → {to}", [(name.replace("_", " "), str(count)) for name, count in counters.items()])
