"""Settings from `holdfast.toml`, from `HOLDFAST_*` variables and from code.

    from holdfast.config import LiveConfig, load

    settings = load()                       # what a program started here would have
    live = LiveConfig()                     # loads the settings and applies them to the default runtime
    live.reload()                           # reads them again; a mistake changes nothing
    live.reload_on_signal()                 # or reloads on SIGHUP

A recovery without an explicit runtime uses these settings: the default runtime loads them when it is first used.

    problems   what is wrong with a configuration, all of it at once: path, expected, got
    settings   `Config`, the settings as a value; `read`, which makes one from the tables of a file
    sources    the file and the environment: `load`
    schema     the JSON Schema, for editors
    live       the settings of a running program: reload, on a signal if wanted

Invariant: settings with a mistake in any part are not used in any part.
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

# The runtime imports `config.sources`, and `config.live` imports the runtime. Names are loaded on first use, so that
# importing this page from inside the runtime does not close a circle.
__getattr__ = loader(
    __name__,
    globals(),
    {
        "Config": "holdfast.config.settings",
        "ConfigError": "holdfast.config.problems",
        "LiveConfig": "holdfast.config.live",
        "Problem": "holdfast.config.problems",
        "find_file": "holdfast.config.sources",
        "json_schema": "holdfast.config.schema",
        "load": "holdfast.config.sources",
        "read": "holdfast.config.settings",
    },
)
