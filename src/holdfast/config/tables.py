"""A table laid over a policy: what it names is changed, everything else stays.

TOML has no null: `"none"` stands for None where an option may be None. Invariant: a mistake is noted and left out, so that
the rest is still checked; whoever reads must look at the problems before using what came of it.
"""

from __future__ import annotations

from typing import Any, TypeVar, get_args

import msgspec

from holdfast.config.problems import Problems, near
from holdfast.faults import CATALOG, InvalidError, nearest
from holdfast.policies import Backoff, Circuit, Hedge, Quota, Tries
from holdfast.policies.alerts import Threshold
from holdfast.policies.circuit import ACTOR, BRIDGE, PROVIDER, SPEC016

__all__ = ["CIRCUITS", "NONE", "lay_over", "options_of"]

S = TypeVar("S", bound=msgspec.Struct)

NONE = "none"
CIRCUITS = {"provider": PROVIDER, "bridge": BRIDGE, "spec016": SPEC016, "actor": ACTOR}
"""Circuits that have a name."""

_WRONG = object()
_PARTS: tuple[type[msgspec.Struct], ...] = (Backoff, Circuit, Hedge, Quota, Threshold, Tries)


def options_of(kind: type[msgspec.Struct]) -> dict[str, Any]:
    """Return the options of a policy or of a part of one, with their types."""
    return {field.name: field.type for field in msgspec.structs.fields(kind)}


def lay_over(kind: type[S], base: S | None, table: Any, path: str, problems: Problems) -> S | None:
    """Return `base` with what the table says, or None where that makes nothing usable. Mistakes are noted."""
    if not isinstance(table, dict):
        problems.add(path, "a table", table)
        return base
    if not table and base is not None:
        return base
    known = options_of(kind)
    changes: dict[str, Any] = {}
    for name, given in table.items():
        place = f"{path}.{name}"
        if name not in known:
            problems.add_saying(place, near(name, known), "a name that is not known here")
            continue
        value = _value(known[name], getattr(base, name, None), given, place, problems)
        if value is not _WRONG:
            changes[name] = value
    return _built(kind, base, changes, path, problems)


def _value(kind: Any, base: Any, given: Any, path: str, problems: Problems) -> Any:
    """Return an option's value, or `_WRONG` after noting why it is."""
    kinds = get_args(kind) or (kind,)
    if given == NONE and type(None) in kinds:
        return None
    if path.endswith(".per_code"):
        return _per_code(base, given, path, problems)
    part = next((part for part in _PARTS if part in kinds), None)
    if part is Circuit and isinstance(given, str):
        if given in CIRCUITS:
            return CIRCUITS[given]
        problems.add(path, f"a table, {NONE!r} or {near(given, CIRCUITS)}", given)
        return _WRONG
    if part is not None:
        return lay_over(part, base, given, path, problems) or _WRONG
    try:
        return msgspec.convert(given, kind)
    except msgspec.ValidationError as error:
        told = InvalidError.from_msgspec(error).fault.context
        place = path + told["path"].removeprefix("$")
        problems.add(place, _in_toml(kind, told["expected"]), given)
        return _WRONG


def _per_code(base: Any, given: Any, path: str, problems: Problems) -> Any:
    if not isinstance(given, dict):
        problems.add(path, "a table of codes", given)
        return _WRONG
    tries = dict(base)
    for code, table in given.items():
        if code not in CATALOG:
            problems.add(path, f"a code of the catalog ({', '.join(nearest(code))}?)", code, "CONFIG_CODE_UNKNOWN")
            continue
        laid = lay_over(Tries, tries.get(code, Tries()), table, f"{path}.{code}", problems)
        if laid is not None:
            tries[code] = laid
    return tries


def _built(kind: type[S], base: S | None, changes: dict[str, Any], path: str, problems: Problems) -> S | None:
    """Make the value; leave out what is refused and try again, so that each mistake is noted."""
    kept = {} if base is None else {name: getattr(base, name) for name in options_of(kind)}
    while True:
        try:
            return kind(**{**kept, **changes})
        except InvalidError as error:
            told = error.fault.context
            place = str(told["path"]).partition(".")[2]
            expected = str(told["expected"]).replace("or None", f'or "{NONE}"')
            problems.add_saying(f"{path}.{place}", expected, told["received"])
            if changes.pop(place.partition("[")[0], None) is None:
                return base
        except TypeError:
            for field in msgspec.structs.fields(kind):
                if field.required and field.name not in changes:
                    problems.add_saying(f"{path}.{field.name}", "a value", "nothing")
            return base


def _in_toml(kind: Any, expected: str) -> str:
    """Say what msgspec expected in the words of a file."""
    words = expected.replace(" | null", f' or "{NONE}"').replace("int", "a whole number").replace("float", "a number")
    literals = [word for part in (kind, *get_args(kind)) for word in get_args(part) if isinstance(word, str)]
    return (
        f"one of {', '.join(literals)}" if literals else words.replace("bool", "true or false").replace("str", "text")
    )
