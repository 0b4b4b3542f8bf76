"""Where settings come from: the `holdfast.toml` of the current folder, then `HOLDFAST_*` variables, which win.

Invariant: a file that another user can write is never obeyed unless `HOLDFAST_CONFIG` names it. What is left out is logged
as a warning: unknown variables, a file that cannot be trusted, a file in a folder above.
"""

from __future__ import annotations

import os
import stat
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin

import msgspec

from holdfast import options
from holdfast.config.lines import line_of
from holdfast.config.problems import ConfigError, Problem, Problems
from holdfast.config.settings import NONE, STARTS, Config, options_of, read_into
from holdfast.faults import REDACTOR
from holdfast.policies import Policy
from holdfast.policies.policy import Counts, Mode
from holdfast.policies.queue import PRIORITIES

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["FILE_NAME", "find_file", "ignored", "load", "read_text", "variables"]

FILE_NAME = "holdfast.toml"
_PREFIX = "HOLDFAST_"
_ENABLED = f"{_PREFIX}ENABLED"
_ENABLED_ALIAS = "RESILIENCE_ENABLED"
_FILE_VARIABLE = f"{_PREFIX}CONFIG"
_SHARED_URL = f"{_PREFIX}SHARED_URL"
_BRIDGE = ("HOST", "PORT", "BRIDGE_HOME", "BRIDGE_TOKEN", "HOOK_TOKEN", "METRICS_TOKEN", "ADMIN_TOKEN", "ALLOWED_PROJECT_ROOT", "TLS_CERT", "TLS_KEY")  # fmt: skip
"""Read by `holdfast serve`."""
_NOT_SETTINGS = frozenset({
    _FILE_VARIABLE, "HOLDFAST_PROCESS", "HOLDFAST_SOAK", "HOLDFAST_STORE", "HOLDFAST_TOKEN",
    *(f"HOLDFAST_{name}" for name in _BRIDGE),
})  # fmt: skip
"""Variables that others read: the file's place, the mark of a process that we have started, the length of our own tests, the store
of sessions, a secret."""
_SCALARS = (int, float, str, bool)
_FLAGS = {"true": True, "1": True, "yes": True, "on": True, "false": False, "0": False, "no": False, "off": False}


@options.suggests
def load(
    path: str | Path | None = None, *, environ: Mapping[str, str] | None = None, folder: Path | None = None
) -> Config:
    """Return the settings of a file and of the environment, `os.environ` by default.

    Without `path`, the file is the one that `HOLDFAST_CONFIG` names (`none`: no file), or the `holdfast.toml` in `folder`,
    by default the current one. It must belong to the current user or to root, and only they and its group may write it.
    Having no file is fine. Raises `ConfigError`, which lists every mistake. Unknown variables and files that are left out
    are logged as a warning.

        from holdfast.config import load

        settings = load("docs/reference/holdfast.toml")
        print(settings.policy_of("claude"))
    """
    environ = os.environ if environ is None else environ
    problems = Problems()
    # A named file must exist; a file that is only looked for need not.
    named = path or environ.get(_FILE_VARIABLE)
    is_off = path is None and named == NONE
    file = None if is_off else Path(named) if named else find_file(folder)
    if left_out := ignored(environ, None if named else folder or _current_folder()):
        _warn("; ".join(left_out))
    source = "the environment" if file is None else str(file)
    text = "" if file is None else _text(file, problems)
    tables = _tables(text, source, problems)
    variable_of = _apply_environment(tables, environ, problems)
    # A variable wins over the file, so both are named where a setting of the two has an effect.
    both = f"{source} and the environment" if file is not None and variable_of else source
    config = read_into(tables, both if file is not None or variable_of else "defaults", problems)
    if config is None or problems.found:
        raise ConfigError.of(source, [_placed(each, text, variable_of) for each in problems.found])
    return config


@cache
def _warn(left_out: str) -> None:
    """Log what is left out, once: a program loads its settings several times."""
    # Not `warnings.warn`: with `-W error` a variable that Kubernetes sets would stop the program.
    import logging  # noqa: PLC0415 - most processes have nothing to warn about

    logging.getLogger("holdfast").warning("%s", REDACTOR.text(left_out))


def read_text(text: str, source: str) -> Config:
    """Return the settings in the text of a `holdfast.toml`; `source` names it in errors. The environment does not count.

    Raises `ConfigError`, which lists every mistake with its line.
    """
    problems = Problems()
    config = read_into(_tables(text, source, problems), source, problems)
    if config is None or problems.found:
        raise ConfigError.of(source, [_placed(each, text, {}) for each in problems.found])
    return config


@cache
def variables() -> Mapping[str, Any]:
    """Return the variables that are settings, with their types. Only a process that has such a variable needs them."""
    # Options that are tables have no variable: one text could not hold them.
    plain = {
        name: kind
        for name, kind in options_of(Policy).items()
        if name not in STARTS
        and set(get_args(kind) or (kind,)) - {type(None)} <= {*_SCALARS, *get_args(Counts), *PRIORITIES}
    }
    return {
        _ENABLED: bool,
        f"{_PREFIX}MODE": Mode,
        f"{_PREFIX}LOG": bool,
        f"{_PREFIX}BASE": str,
        f"{_PREFIX}PROFILE": str,
        f"{_PREFIX}PHASE": int,
        _SHARED_URL: str,
        **{f"{_PREFIX}{name.upper()}": kind for name, kind in plain.items()},
    }


def find_file(folder: Path | None = None) -> Path | None:
    """Return the `holdfast.toml` in `folder`, by default the current one; None if no such file can be trusted.

    Folders above are not searched. The file must belong to the current user or to root, and not everybody may write it.

        from holdfast.config import find_file

        print(find_file() or "no holdfast.toml here")
    """
    here = _current_folder() if folder is None else folder
    if here is None:
        return None
    file = here / FILE_NAME
    return file if file.exists() and not _distrust(file) else None


def ignored(environ: Mapping[str, str], folder: Path | None) -> list[str]:
    """Return a sentence for each thing that looks like a setting and is left out.

    These are unknown `HOLDFAST_*` variables and the file that an older version would have used. `folder` is None if no
    file is looked for.
    """
    unknown = sorted(
        name for name in environ if name.startswith(_PREFIX) and name not in _NOT_SETTINGS and name not in variables()
    )
    sentences = [f"{name} is not a setting and is ignored{_meant(name)}" for name in unknown]
    if folder is not None:
        sentences += _ignored_file(folder)
    return sentences


def _ignored_file(folder: Path) -> list[str]:
    here = _current_folder()
    places = [folder] if here is None else [folder := here / folder, *folder.parents]
    for place in places:
        file = place / FILE_NAME
        # Unlike `Path.exists`, this does not raise for a folder that may not be read.
        if not os.path.exists(file):  # noqa: PTH110
            continue
        reason = _distrust(file) if place == folder else "only the current folder is searched"
        return [f"{file} is ignored: {reason}; to use it, set {_FILE_VARIABLE}={file}"] if reason else []
    return []


def _meant(name: str) -> str:
    """Return the question that names a similar variable; empty if none is similar."""
    from difflib import get_close_matches  # noqa: PLC0415 - slow, and only an unknown variable needs it

    # Without the prefix, which makes any two variables similar: `HOLDFAST_PORT` is no misspelling.
    known = [each.removeprefix(_PREFIX) for each in variables()]
    alike = get_close_matches(name.removeprefix(_PREFIX), known, 1, cutoff=0.7)
    return f" (did you mean `{_PREFIX}{alike[0]}`?)" if alike else ""


def _current_folder() -> Path | None:
    try:
        return Path.cwd()
    except FileNotFoundError:
        # The current folder was deleted.
        return None


def _distrust(file: Path) -> str:
    """Return why a file that was found by its name is not obeyed; empty if it is.

    Settings can turn recovery off and name an address for alerts, so nobody else may slip a file in.
    """
    if not hasattr(os, "geteuid"):
        # Windows has neither such owners nor such modes.
        return ""
    # Root owns the files of most container images and can change any program anyway.
    trusted = {os.geteuid(), 0}
    # In a shared folder, others can also leave a link to a file of ours.
    if file.lstat().st_uid not in trusted or file.stat().st_uid not in trusted:
        return "it belongs to another user"
    return "everybody may write it" if file.stat().st_mode & stat.S_IWOTH else ""


def _placed(problem: Problem, text: str, variable_of: Mapping[str, str]) -> Problem:
    """Return a mistake with its line, or under the name that its user wrote: the variable's, if it came from one."""
    if variable := variable_of.get(problem.path):
        return msgspec.structs.replace(problem, path=variable)
    return msgspec.structs.replace(problem, line=line_of(text, problem.path))


def _text(file: Path, problems: Problems) -> str:
    if file.exists() and not file.is_file():
        # Reading a named pipe would block for ever.
        problems.add_text(str(file), "a file that can be read", "a folder or a pipe")
        return ""
    try:
        return file.read_text(encoding="utf-8")
    except OSError as error:
        problems.add_text(str(file), "a file that can be read", error.strerror or str(error))
    except UnicodeDecodeError as error:
        problems.add_text(str(file), "text in UTF-8", str(error))
    return ""


def _tables(text: str, source: str, problems: Problems) -> dict[str, Any]:
    if not text:
        return {}
    # The import is slow and most processes have no file, so it stands here.
    import tomllib  # noqa: PLC0415

    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        problems.add_text(source, "TOML", f"a syntax error: {error}")
        return {}


def _apply_environment(tables: dict[str, Any], environ: Mapping[str, str], problems: Problems) -> dict[str, str]:
    """Put the values of the environment into the tables; return the variable that each changed path comes from."""
    variable_of: dict[str, str] = {}
    # A variable that is set and empty counts as not set: many shells and container files cannot remove one.
    given = {
        name: value
        for name, value in environ.items()
        if value.strip() and name.startswith(_PREFIX) and name not in _NOT_SETTINGS
    }
    # Our own name wins if both are set.
    if environ.get(_ENABLED_ALIAS, "").strip() and _ENABLED not in given:
        given[_ENABLED_ALIAS] = environ[_ENABLED_ALIAS]
    for name, text in sorted(given.items()):
        meant = _ENABLED if name == _ENABLED_ALIAS else name
        if meant not in variables():
            # Not a mistake: Kubernetes sets `HOLDFAST_PORT` for a service of that name. `ignored` reports it.
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
    if option == "mode" and isinstance(targets := tables.get("targets"), dict):
        # A mode for the whole process means every target, whatever the file has for one of them.
        tables["targets"] = {name: _without_mode(table) for name, table in targets.items()}
    if option in STARTS or option in ("enabled", "mode", "log"):
        tables[option] = value
        return option
    if option == "shared_url":
        shared = tables.get("shared", {})
        tables["shared"] = {**shared, "url": value} if isinstance(shared, dict) else shared
        return "shared.url"
    policy = tables.get("policy", {})
    # A `policy` that is not a table stays as it is, so that reading the tables reports it.
    tables["policy"] = {**policy, option: value} if isinstance(policy, dict) else policy
    return f"policy.{option}"


def _without_mode(table: Any) -> Any:
    return {name: value for name, value in table.items() if name != "mode"} if isinstance(table, dict) else table


def _value(kind: Any, text: str) -> Any:
    text = text.strip()
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
