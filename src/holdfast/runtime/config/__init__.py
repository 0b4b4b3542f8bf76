"""Settings from `holdfast.toml`, from `HOLDFAST_*` variables and from code.

    problems   what is wrong, all of it at once: path, expected, got
    tables     a table laid over a policy
    value      `Config`, the settings as a value; `read`, from the tables of a file
    sources    the file and the environment: `load`
    live       a running program's settings: reload, on a signal if wanted
    schema     the JSON Schema, for editors

Invariant: settings that are wrong in any part are not used in any part.
"""

from __future__ import annotations

from holdfast.runtime.config.problems import ConfigError, Problem
from holdfast.runtime.config.sources import find_file, load
from holdfast.runtime.config.value import Config, read

__all__ = ["Config", "ConfigError", "Problem", "find_file", "load", "read"]
