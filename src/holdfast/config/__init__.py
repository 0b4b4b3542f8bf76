"""Settings from `holdfast.toml`, from `HOLDFAST_*` variables and from code.

    from holdfast.config import LiveConfig, load

    settings = load()                       # what a program started here would have
    live = LiveConfig()                     # loads the settings and applies them to the default runtime
    live.reload()                           # reads them again; a mistake changes nothing
    live.reload_on_signal()                 # or reloads on SIGHUP

A recovery without an explicit runtime uses these settings: the default runtime loads them when it is first used.

    problems   every mistake in a configuration, listed at once: path, expected, got
    settings   `Config`, the settings as a value; `read`, which makes one from the tables of a file
    lines      in which line of the file a mistake is
    sources    the file and the environment: `load`
    schema     the JSON Schema, for editors
    live       the settings of a running program: reload, on a signal if wanted

Invariant: settings with a mistake in any part are not used in any part. All but `live` stand before runtime, and may import policies.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast._lazy import loader

if TYPE_CHECKING:
    from holdfast.config.live import LiveConfig
    from holdfast.config.problems import ConfigError, Problem
    from holdfast.config.schema import json_schema
    from holdfast.config.settings import Config, read
    from holdfast.config.sources import find_file, load

__all__ = ["Config", "ConfigError", "LiveConfig", "Problem", "find_file", "json_schema", "load", "read"]

# Every name is loaded at its first use. The runtime imports this package and `live` imports the runtime. If the names
# were loaded here, the two would import each other. And a program that makes its own runtime reads no settings, so it
# must not pay for them.
_HOMES = {
    "Config": "holdfast.config.settings",
    "ConfigError": "holdfast.config.problems",
    "LiveConfig": "holdfast.config.live",
    "Problem": "holdfast.config.problems",
    "find_file": "holdfast.config.sources",
    "json_schema": "holdfast.config.schema",
    "load": "holdfast.config.sources",
    "read": "holdfast.config.settings",
}
__getattr__ = loader(__name__, globals(), _HOMES)
