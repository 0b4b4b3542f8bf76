"""Where settings come from: a `holdfast.toml` in this folder or above it, then `HOLDFAST_*` variables, which win.

Invariant: a variable that starts with `HOLDFAST_` and is not known is a mistake. If a mistyped name were ignored, its
user would believe that a setting has changed.
"""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin

import msgspec

from holdfast.config.problems import ConfigError, Problem, Problems
from holdfast.config.settings import NONE, STARTS, Config, options_of, read_into
from holdfast.policies import Policy
from holdfast.policies.policy import Counts

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["FILE_NAME", "find_file", "load", "read_text", "variables"]

FILE_NAME = "holdfast.toml"
_PREFIX = "HOLDFAST_"
_ENABLED = f"{_PREFIX}ENABLED"
_ENABLED_ALIAS = "RESILIENCE_ENABLED"
_NOT_SETTINGS = frozenset({"HOLDFAST_CONFIG", "HOLDFAST_SOAK", "HOLDFAST_STORE", "HOLDFAST_TOKEN"})
"""Variables that others read: the file's place, the length of our own tests, the store of sessions, a secret."""
_SCALARS = (int, float, str, bool)
_FLAGS = {"true": True, "1": True, "yes": True, "on": True, "false": False, "0": False, "no": False, "off": False}


def load(
    path: str | Path | None = None, *, environ: Mapping[str, str] | None = None, folder: Path | None = None
) -> Config:
    """Return the settings of a file and of the environment, `os.environ` by default.

    Without `path`, the file is the one that `HOLDFAST_CONFIG` names, or the nearest `holdfast.toml` in `folder` (by
    default the current one) and above. Having no file is fine. Raises `ConfigError`, which lists every mistake.

        from holdfast.config import load

        settings = load("docs/reference/holdfast.toml")
        print(settings.policy_of("claude"))
    """
    environ = os.environ if environ is None else environ
    problems = Problems()
    # A named file must exist; a file that is only looked for need not.
    named = path or environ.get("HOLDFAST_CONFIG")
    file = Path(named) if named else find_file(folder)
    source = "the environment" if file is None else str(file)
    tables = {} if file is None else _tables(file, problems)
    variable_of = _apply_environment(tables, environ, problems)
    config = read_into(tables, source if file is not None or variable_of else "defaults", problems)
    if config is None or problems.found:
        # A mistake is shown under the name its user wrote: the variable's, if the value came from one.
        found = [msgspec.structs.replace(each, path=variable_of.get(each.path, each.path)) for each in problems.found]
        raise ConfigError.of(source, found)
    return config


@cache
def variables() -> Mapping[str, Any]:
    """Return the variables that are settings, with their types. Only a process that has such a variable needs them."""
    # Options that are tables have no variable: one text could not hold them.
    plain = {
        name: kind
        for name, kind in options_of(Policy).items()
        if name not in STARTS and set(get_args(kind) or (kind,)) - {type(None)} <= {*_SCALARS, *get_args(Counts)}
    }
    return {
        _ENABLED: bool,
        f"{_PREFIX}LOG": bool,
        f"{_PREFIX}BASE": str,
        f"{_PREFIX}PROFILE": str,
        f"{_PREFIX}PHASE": int,
        **{f"{_PREFIX}{name.upper()}": kind for name, kind in plain.items()},
    }


def find_file(folder: Path | None = None) -> Path | None:
    """Return the nearest `holdfast.toml` in `folder` or above it; None if there is none.

    The default is the current folder:

        from holdfast.config import find_file

        print(find_file() or "no holdfast.toml here or above")
    """
    here = Path.cwd() if folder is None else folder
    return next((path for place in (here, *here.parents) if (path := place / FILE_NAME).exists()), None)


def read_text(text: str, source: str) -> dict[str, Any]:
    """Return the tables of a TOML text; raise `ConfigError` if it is not TOML."""
    # The import is slow and most processes have no file, so it stands here.
    import tomllib  # noqa: PLC0415

    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ConfigError.of(source, [Problem(path=source, expected="TOML", received=str(error))]) from error


def _tables(file: Path, problems: Problems) -> dict[str, Any]:
    if file.exists() and not file.is_file():
        # Reading a named pipe would block for ever.
        problems.add_text(str(file), "a file that can be read", "a folder or a pipe")
        return {}
    try:
        return read_text(file.read_text(encoding="utf-8"), str(file))
    except OSError as error:
        problems.add_text(str(file), "a file that can be read", error.strerror or str(error))
    except UnicodeDecodeError as error:
        problems.add_text(str(file), "text in UTF-8", str(error))
    except ConfigError as error:
        problems.found.extend(error.problems)
    return {}


def _apply_environment(tables: dict[str, Any], environ: Mapping[str, str], problems: Problems) -> dict[str, str]:
    """Put the values of the environment into the tables; return the variable that each changed path comes from."""
    variable_of: dict[str, str] = {}
    given = {name: value for name, value in environ.items() if name.startswith(_PREFIX) and name not in _NOT_SETTINGS}
    # Our own name wins if both are set.
    if _ENABLED_ALIAS in environ and _ENABLED not in given:
        given[_ENABLED_ALIAS] = environ[_ENABLED_ALIAS]
    for name, text in sorted(given.items()):
        meant = _ENABLED if name == _ENABLED_ALIAS else name
        if meant not in variables():
            problems.add_unknown(name, "variable", name, variables())
            continue
        kind = variables()[meant]
        try:
            value = _value(kind, text)
        except (msgspec.ValidationError, ValueError):
            problems.add(name, _expected(kind), text)
            continue
        variable_of[_set(tables, meant.removeprefix(_PREFIX).lower(), value)] = name
    return variable_of


def _set(tables: dict[str, Any], option: str, value: Any) -> str:
    """Set an option in the tables; return its path."""
    if option in STARTS:
        # Only one of them may be given, and the environment wins over the file.
        for other in STARTS:
            tables.pop(other, None)
    if option in STARTS or option in ("enabled", "log"):
        tables[option] = value
        return option
    policy = tables.get("policy", {})
    # A `policy` that is not a table stays as it is, so that reading the tables reports it.
    tables["policy"] = {**policy, option: value} if isinstance(policy, dict) else policy
    return f"policy.{option}"


def _value(kind: Any, text: str) -> Any:
    text = text.strip()
    if not text:
        raise ValueError(text)
    kinds = get_args(kind) or (kind,)
    if text.lower() == NONE and type(None) in kinds:
        return NONE
    if bool in kinds:
        # msgspec knows `true` and `1`, but not the other words people use for switches.
        if text.lower() not in _FLAGS:
            raise ValueError(text)
        return _FLAGS[text.lower()]
    return msgspec.convert(text, kind, strict=False)


def _expected(kind: Any) -> str:
    """Return the values that a variable of this type can have, in words."""
    kinds = get_args(kind) or (kind,)
    if get_origin(kind) is Literal:
        return f"one of {', '.join(kinds)}"
    words = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}
    expected = next(word for type_, word in words.items() if type_ in kinds)
    return f'{expected} or "{NONE}"' if type(None) in kinds else expected
