"""Settings from `holdfast.toml`, from `HOLDFAST_*` variables and from code.

    from holdfast.config import LiveConfig, load

    settings = load()                       # what a program started here would have
    live = LiveConfig()                     # in force in the default runtime
    live.reload()                           # and again; mistakes change nothing
    live.reload_on_signal()                 # or on SIGHUP

Recoveries that are given no runtime have them without a word: the default runtime loads them when it is first used.
"""

from __future__ import annotations

from holdfast.runtime.config import Config, ConfigError, Problem, find_file, load, read
from holdfast.runtime.config.live import LiveConfig
from holdfast.runtime.config.schema import json_schema

__all__ = ["Config", "ConfigError", "LiveConfig", "Problem", "find_file", "json_schema", "load", "read"]
