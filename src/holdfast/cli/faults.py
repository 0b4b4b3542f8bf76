"""`holdfast faults serve` and `list`: the fault provider on a port, and what its scripts may hold."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING

from holdfast.cli.exits import Exit
from holdfast.cli.output import fail, narrate, show_json, show_table
from holdfast.runtime.runtime import SystemClock
from holdfast.testing.provider import FaultProvider, Script, read_file, read_script
from holdfast.testing.provider.faults import FAULTS, REFUSALS

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

__all__ = ["list_faults", "serve"]

_MAX_STDIN = 1_048_576


def serve(file: str | None, steps: str, *, seed: int | None, port: int, as_json: bool) -> Exit:
    """Serve until Ctrl-C, then tell what came."""
    if file is not None and steps:
        fail("expected --script or --steps, got both")
        return Exit.USAGE
    try:
        script = read_script(steps) if file is None else _script_of(file)
    except OSError as error:
        fail(f"cannot read {file}: {error.strerror}")
        return Exit.NOT_FOUND if isinstance(error, FileNotFoundError) else Exit.FAILED
    # The machine's clock and not the default runtime's: no settings are read, so none can be wrong.
    provider = FaultProvider(script, seed=seed, clock=SystemClock(), port=port)
    try:
        asyncio.run(_serve(provider, as_json=as_json))
    except OSError as error:
        fail(f"cannot listen on port {port}: {error.strerror or error}", "--port 0 takes a free one")
        return Exit.FAILED
    except KeyboardInterrupt:
        narrate(f"holdfast: {provider.counters!r}")
        return Exit.INTERRUPTED
    return Exit.OK


def list_faults(*, as_json: bool) -> Exit:
    """Show every fault with its options."""
    refusals = [(name, "any header, hint", summary) for name, summary in REFUSALS.items()]
    broken = [(name, _options(fault.options), fault.summary) for name, fault in FAULTS.items()]
    rows = [("ok", "", "a good answer"), ("300 … 599", "any header, hint", "a status"), *refusals, *broken]
    if as_json:
        listed = [{"fault": name, "options": options, "what": what} for name, options, what in rows]
        show_json({"schema": "holdfast.faults/1", "faults": listed})
    else:
        show_table(("fault", "options", "what"), rows)
        narrate("a step: FAULT;option=value, perhaps %CHANCE and *TIMES: 429;retry-after=7%50*3")
    return Exit.OK


def _script_of(file: str) -> Script:
    if file == "-":
        return read_script(sys.stdin.buffer.read(_MAX_STDIN).decode("utf-8", "replace"))
    return read_file(file)


async def _serve(provider: FaultProvider, *, as_json: bool) -> None:
    async with provider:
        _announce(provider, as_json=as_json)
        narrate(f"counters: {provider.url}/_holdfast/counters; Ctrl-C ends it")
        await asyncio.get_running_loop().create_future()


def _announce(provider: FaultProvider, *, as_json: bool) -> None:
    if as_json:
        # Without the variables: a document's keys are masked, and these take any.
        show_json({"schema": "holdfast.faults.serve/1", "url": provider.url, "openai_url": provider.openai_url})
    else:
        print(provider.url)
        for name, value in provider.environment.items():
            print(f"export {name}={value}")
    sys.stdout.flush()


def _options(options: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in options.items())
