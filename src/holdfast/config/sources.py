"""Where settings are looked for: `holdfast.toml` here or above, then `HOLDFAST_*` variables, which win.

Invariant: a variable that starts with `HOLDFAST_` and means nothing is a mistake, not a comment.
"""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import msgspec

from holdfast.config.problems import ConfigError, Problem, Problems, near
from holdfast.config.settings import STARTS, Config, read_into
from holdfast.config.tables import NONE, options_of
from holdfast.policies import Policy
from holdfast.policies.policy import Counts

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["FILE_NAME", "find_file", "load", "read_text", "variables"]

FILE_NAME = "holdfast.toml"
_PREFIX = "HOLDFAST_"
_ALIAS = "RESILIENCE_ENABLED"
_ELSEWHERE = frozenset({"HOLDFAST_CONFIG", "HOLDFAST_SOAK", "HOLDFAST_STORE", "HOLDFAST_TOKEN"})
"""Read by others: where the file is, how long our own tests run, where sessions are stored, a secret."""
_SCALARS = (int, float, str, bool)
_WORDS = {"true": True, "1": True, "yes": True, "on": True, "false": False, "0": False, "no": False, "off": False}


def load(
    path: str | Path | None = None, *, environ: Mapping[str, str] | None = None, folder: Path | None = None
) -> Config:
    """Return the settings of a file and the environment; raise one error for everything that is wrong with them.

    Without `path`, `HOLDFAST_CONFIG` names the file, or it is looked for in `folder` (the current one) and above.
    """
    environ = os.environ if environ is None else environ
    problems = Problems()
    file = _file(path, environ, folder)
    source = "the environment" if file is None else str(file)
    tables = {} if file is None else _tables(file, problems)
    origins = _lay_environment_over(tables, environ, problems)
    config = read_into(tables, source if file is not None or origins else "defaults", problems)
    if config is None or problems.found:
        raise ConfigError.of(source, [_as_written(problem, origins) for problem in problems.found])
    return config


@cache
def variables() -> Mapping[str, Any]:
    """Return the variables that are settings, and what they hold. Most processes have none and never ask."""
    plain = {
        name: kind
        for name, kind in options_of(Policy).items()
        if name not in STARTS and set(get_args(kind) or (kind,)) - {type(None)} <= {*_SCALARS, *get_args(Counts)}
    }
    return {
        f"{_PREFIX}ENABLED": bool,
        f"{_PREFIX}BASE": str,
        f"{_PREFIX}PROFILE": str,
        f"{_PREFIX}PHASE": int,
        **{f"{_PREFIX}{name.upper()}": kind for name, kind in plain.items()},
    }


def find_file(folder: Path | None = None) -> Path | None:
    """Return the nearest `holdfast.toml`, here or above."""
    here = Path.cwd() if folder is None else folder
    return next((path for place in (here, *here.parents) if (path := place / FILE_NAME).exists()), None)


def read_text(text: str, source: str) -> dict[str, Any]:
    """Return the tables of a TOML text."""
    # Loaded here: most processes have no file.
    import tomllib  # noqa: PLC0415

    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ConfigError.of(source, [Problem(path=source, expected="TOML", received=str(error))]) from error


def _file(path: str | Path | None, environ: Mapping[str, str], folder: Path | None) -> Path | None:
    named = path or environ.get("HOLDFAST_CONFIG")
    return Path(named) if named else find_file(folder)


def _tables(file: Path, problems: Problems) -> dict[str, Any]:
    if file.exists() and not file.is_file():
        # A pipe of that name would be waited for, for ever.
        problems.add_saying(str(file), "a file that can be read", "something else of that name")
        return {}
    try:
        return read_text(file.read_text(encoding="utf-8"), str(file))
    except OSError as error:
        problems.add_saying(str(file), "a file that can be read", error.strerror or str(error))
    except UnicodeDecodeError as error:
        problems.add_saying(str(file), "text in UTF-8", str(error))
    except ConfigError as error:
        problems.found.extend(error.problems)
    return {}


def _lay_environment_over(tables: dict[str, Any], environ: Mapping[str, str], problems: Problems) -> dict[str, str]:
    """Change the tables by what the environment says; return which variable each path comes from."""
    origins: dict[str, str] = {}
    given = {name: value for name, value in environ.items() if name.startswith(_PREFIX) and name not in _ELSEWHERE}
    if _ALIAS in environ and f"{_PREFIX}ENABLED" not in given:
        given[_ALIAS] = environ[_ALIAS]
    for name, text in sorted(given.items()):
        if name != _ALIAS and name not in variables():
            problems.add_saying(name, near(name, tuple(variables())), "a variable that is not known")
            continue
        option = "enabled" if name == _ALIAS else name.removeprefix(_PREFIX).lower()
        try:
            value = _value(variables().get(name, bool), text)
        except (msgspec.ValidationError, ValueError):
            problems.add(name, _expected(variables().get(name, bool)), text)
            continue
        origins[_set(tables, option, value)] = name
    return origins


def _set(tables: dict[str, Any], option: str, value: Any) -> str:
    if option in STARTS:
        for other in STARTS:
            tables.pop(other, None)
    if option in STARTS or option == "enabled":
        tables[option] = value
        return option
    policy = tables.get("policy", {})
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
        if text.lower() not in _WORDS:
            raise ValueError(text)
        return _WORDS[text.lower()]
    return msgspec.convert(text, kind, strict=False)


def _expected(kind: Any) -> str:
    kinds = get_args(kind) or (kind,)
    word = (
        "true or false"
        if bool in kinds
        else "a whole number"
        if int in kinds
        else "a number"
        if float in kinds
        else "a word"
    )
    return f'{word} or "{NONE}"' if type(None) in kinds else word


def _as_written(problem: Problem, origins: Mapping[str, str]) -> Problem:
    return msgspec.structs.replace(problem, path=origins.get(problem.path, problem.path))
