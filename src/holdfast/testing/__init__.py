"""Test tools: the test controls time, chance, failures and events. Holdfast itself is tested with them.

    from holdfast.testing import run, script

    calls = script("429;retry-after=7, 503, ok:hello")      # a callable that fails twice and then returns
    run(my_agent(calls.acall))                              # in virtual time: waiting takes no time

pytest loads `holdfast.testing.plugin` automatically. It forgets all circuits, quotas and limits before each test, so that no
test is rejected because of the failures of another; `holdfast_isolate = false` in the settings of pytest turns that off. Names are imported when they are first used, so the plugin costs almost no
time in a project that does not use it.

clock      VirtualClock and random sources      provider   a provider that misbehaves on script
loop       run, VirtualLoop, no_waiting         proxy      a TCP proxy that misbehaves
scripts    script: failures on demand           stores     conformance suite for stores
capture    events and assertions on them        postgres   a PostgreSQL server for tests
plugin     pytest fixtures                      load       limits on the load, played under a policy
crashtest  kills a program at each of its points
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast._lazy import loader

if TYPE_CHECKING:
    from holdfast.runtime.runtime import default_runtime, forget_targets, use_runtime
    from holdfast.testing.capture import Capture
    from holdfast.testing.clock import Midpoint, Scripted, VirtualClock, seeded
    from holdfast.testing.crashtest import CrashTest
    from holdfast.testing.loop import StuckError, VirtualLoop, loop_factory, no_waiting, run
    from holdfast.testing.plugin import OpenProxy, RunCrashTest, VirtualRun
    from holdfast.testing.provider import FaultProvider, serve_in_thread
    from holdfast.testing.proxy.proxy import FaultProxy
    from holdfast.testing.proxy.toxics import Toxic
    from holdfast.testing.scripts import Script, ScriptedHTTPError, ScriptEndedError, script

__all__ = [
    "Capture",
    "CrashTest",
    "FaultProvider",
    "FaultProxy",
    "Midpoint",
    "OpenProxy",
    "RunCrashTest",
    "Script",
    "ScriptEndedError",
    "Scripted",
    "ScriptedHTTPError",
    "StuckError",
    "Toxic",
    "VirtualClock",
    "VirtualLoop",
    "VirtualRun",
    "default_runtime",
    "forget_targets",
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
    "CrashTest": "holdfast.testing.crashtest",
    "FaultProvider": "holdfast.testing.provider",
    "FaultProxy": "holdfast.testing.proxy.proxy",
    "ScriptedHTTPError": "holdfast.testing.scripts",
    "Midpoint": "holdfast.testing.clock",
    "OpenProxy": "holdfast.testing.plugin",
    "RunCrashTest": "holdfast.testing.plugin",
    "Script": "holdfast.testing.scripts",
    "ScriptEndedError": "holdfast.testing.scripts",
    "Scripted": "holdfast.testing.clock",
    "StuckError": "holdfast.testing.loop",
    "Toxic": "holdfast.testing.proxy.toxics",
    "VirtualClock": "holdfast.testing.clock",
    "VirtualLoop": "holdfast.testing.loop",
    "VirtualRun": "holdfast.testing.plugin",
    "default_runtime": "holdfast.runtime.runtime",
    "forget_targets": "holdfast.runtime.runtime",
    "loop_factory": "holdfast.testing.loop",
    "no_waiting": "holdfast.testing.loop",
    "run": "holdfast.testing.loop",
    "script": "holdfast.testing.scripts",
    "seeded": "holdfast.testing.clock",
    "serve_in_thread": "holdfast.testing.provider",
    "use_runtime": "holdfast.runtime.runtime",
}

__getattr__ = loader(__name__, globals(), _HOMES)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
