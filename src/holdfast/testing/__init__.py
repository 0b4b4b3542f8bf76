"""The tools Holdfast is tested with, for the tests of those who use it: time, chance, failures and events under control.

    from holdfast.testing import run, script

    calls = script("429;retry-after=7, 503, ok:hello")      # a callable that fails twice and then answers
    run(my_agent(calls.acall))                              # in virtual time: waiting takes none

pytest loads `holdfast.testing.plugin` by itself. Names are loaded when they are first used, so that this costs a project
that does not use them next to nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast._lazy import loader

if TYPE_CHECKING:
    from holdfast.runtime.runtime import use_runtime
    from holdfast.testing.capture import Capture
    from holdfast.testing.chance import Midpoint, Scripted, seeded
    from holdfast.testing.clock import VirtualClock
    from holdfast.testing.faults import Script, ScriptedHTTPError, ScriptEndedError, script
    from holdfast.testing.loop import VirtualLoop, loop_factory
    from holdfast.testing.provider import FaultProvider, serve_in_thread
    from holdfast.testing.proxy.proxy import FaultProxy
    from holdfast.testing.proxy.toxics import Toxic
    from holdfast.testing.running import run
    from holdfast.testing.selector import StuckError
    from holdfast.testing.waiting import no_waiting

__all__ = [
    "Capture",
    "FaultProvider",
    "FaultProxy",
    "Midpoint",
    "Script",
    "ScriptEndedError",
    "Scripted",
    "ScriptedHTTPError",
    "StuckError",
    "Toxic",
    "VirtualClock",
    "VirtualLoop",
    "loop_factory",
    "no_waiting",
    "run",
    "script",
    "seeded",
    "serve_in_thread",
    "use_runtime",
]

_HOMES = {
    "Capture": "holdfast.testing.capture",
    "FaultProvider": "holdfast.testing.provider",
    "FaultProxy": "holdfast.testing.proxy.proxy",
    "ScriptedHTTPError": "holdfast.testing.faults",
    "Midpoint": "holdfast.testing.chance",
    "Script": "holdfast.testing.faults",
    "ScriptEndedError": "holdfast.testing.faults",
    "Scripted": "holdfast.testing.chance",
    "StuckError": "holdfast.testing.selector",
    "Toxic": "holdfast.testing.proxy.toxics",
    "VirtualClock": "holdfast.testing.clock",
    "VirtualLoop": "holdfast.testing.loop",
    "loop_factory": "holdfast.testing.loop",
    "no_waiting": "holdfast.testing.waiting",
    "run": "holdfast.testing.running",
    "script": "holdfast.testing.faults",
    "seeded": "holdfast.testing.chance",
    "serve_in_thread": "holdfast.testing.provider",
    "use_runtime": "holdfast.runtime.runtime",
}

__getattr__ = loader(__name__, globals(), _HOMES)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
