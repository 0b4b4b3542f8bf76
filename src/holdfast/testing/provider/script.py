"""A script: which request meets which fault. One line of steps, or a TOML file with rules.

Rules are asked in order; the first that is for this request and has a step left decides, and without one all is well.
Invariant: the same script, seed and requests in the same order give the same faults.
"""

from __future__ import annotations

import re
import tomllib
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from holdfast import options as check
from holdfast.faults import InvalidError
from holdfast.testing.chance import seeded
from holdfast.testing.notation import split_steps
from holdfast.testing.provider import steps
from holdfast.testing.provider.replies import WAYS, Turn

if TYPE_CHECKING:
    from holdfast.testing.provider.requests import Request
    from holdfast.testing.provider.steps import Step

__all__ = ["Rule", "Script", "Scripted", "read_file", "read_script"]

T = TypeVar("T", "Rule", "Script")

_LOOP = "loop"


class Rule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename={"since": "from", "until": "to"}):  # fmt: skip
    """Steps, and the requests they are for: between two moments, for some models and keys, by chance."""

    steps: str
    loop: bool = False
    share: float = 1.0
    since: float = 0.0
    """Seconds since the first request."""
    until: float | None = None
    models: tuple[str, ...] = ("*",)
    """Patterns: `claude-*`."""
    keys: tuple[str, ...] = ("*",)

    def is_for(self, request: Request, at: float) -> bool:
        """Whether a request that came so many seconds after the first is one of those."""
        if at < self.since or (self.until is not None and at >= self.until):
            return False
        return _fits(request.model, self.models) and _fits(request.key, self.keys)


class Script(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What goes wrong and when, and what is answered otherwise."""

    seed: int = 0
    replies: str | tuple[str | Turn, ...] = "echo"
    rules: tuple[Rule, ...] = ()


class Scripted:
    """A script being played: says for each request what it meets."""

    def __init__(self, script: Script, *, seed: int | None = None) -> None:
        self.script = script
        _check(script)
        seed = script.seed if seed is None else seed
        # Chance of its own for each rule: one that is asked more often does not change what the others draw.
        self._lines = [_Line(rule, place, seed + place) for place, rule in enumerate(script.rules)]

    def next(self, request: Request, at: float) -> Step:
        """Return what a request meets that came so many seconds after the first."""
        for line in self._lines:
            if (step := line.next(request, at)) is not None:
                return step
        return steps.OK


class _Line:
    """A rule and how far it was played."""

    def __init__(self, rule: Rule, place: int, seed: int) -> None:
        self._rule = rule
        self._rng = seeded(seed)
        self._at = 0
        self._steps = [
            step
            for number, text in enumerate(split_steps(rule.steps))
            for step in steps.read(f"rules[{place}].steps[{number}]", text)
        ]

    def next(self, request: Request, at: float) -> Step | None:
        if self._at == len(self._steps) or not self._rule.is_for(request, at):
            return None
        if self._rule.share < 1 and self._rng.random() >= self._rule.share:
            return None
        step = self._steps[self._at]
        self._at += 1
        if self._rule.loop and self._at == len(self._steps):
            self._at = 0
        return step if step.chance == 1 or self._rng.random() < step.chance else steps.OK


def read_script(text: str) -> Script:
    """Read a script: steps between commas, the last of which may be `loop`, or TOML."""
    if "=" in text.partition(";")[0] or "[[" in text:
        return _read_toml(text, "script")
    written = split_steps(text)
    loop = written[-1] == _LOOP
    script = (
        Script(rules=(Rule(steps=", ".join(written[: len(written) - loop]), loop=loop),)) if text.strip() else Script()
    )
    Scripted(script)  # refuses what makes no sense
    return script


def read_file(path: str | Path) -> Script:
    """Read a script in TOML from a file."""
    return _read_toml(Path(path).read_text(encoding="utf-8"), str(path))


def _read_toml(text: str, source: str) -> Script:
    try:
        script = _convert(tomllib.loads(text))
        Scripted(script)
    except tomllib.TOMLDecodeError as error:
        raise InvalidError.saying(source, "TOML", str(error)) from error
    except InvalidError as error:
        raise _placed(error, text, source) from error
    return script


def _convert(tables: dict[str, Any]) -> Script:
    # One rule at a time: msgspec's own path does not say which one is wrong.
    rules = tables.pop("rules", [])
    if not isinstance(rules, list):
        raise InvalidError.at("rules", "tables headed [[rules]]", rules)
    script = _read_as(Script, tables, "")
    read = tuple(_read_as(Rule, rule, f"rules[{place}].") for place, rule in enumerate(rules))
    return msgspec.structs.replace(script, rules=read)


def _read_as(kind: type[T], table: Any, prefix: str) -> T:
    try:
        return msgspec.convert(table, kind)
    except msgspec.ValidationError as error:
        unknown = re.match(r"Object contains unknown field `(?P<field>[^`]*)`", str(error))
        if unknown:
            known = ", ".join(field.encode_name for field in msgspec.structs.fields(kind))
            raise InvalidError.saying(prefix + unknown["field"], f"one of {known}", "a field not known") from error
        said: Any = InvalidError.from_msgspec(error).fault.context
        path = prefix + str(said["path"]).removeprefix("$").removeprefix(".")
        raise InvalidError.saying(path, str(said["expected"]), str(said["received"])) from error


def _placed(error: InvalidError, text: str, source: str) -> InvalidError:
    """Return the error with the file and line in front of the field."""
    said: Any = error.fault.context
    path = str(said["path"])
    return InvalidError.saying(f"{source}:{_line(text, path)}: {path}", str(said["expected"]), str(said["received"]))


def _line(text: str, path: str) -> int:
    """Return the line a field is on, or its table's: TOML's reader keeps no lines."""
    inside = re.match(r"rules\[(?P<place>\d+)\]\.?", path)
    field = re.match(r"\w+", path[inside.end() :] if inside else path)
    table = -1
    header = 1
    for number, line in enumerate(text.splitlines(), 1):
        if re.match(r"\s*\[\[\s*rules\s*\]\]", line):
            table += 1
            header = number if inside and table == int(inside["place"]) else header
        here = table == (int(inside["place"]) if inside else -1)
        if here and field and re.match(rf"\s*\"?{field[0]}\"?\s*=", line):
            return number
    return header


def _check(script: Script) -> None:
    check.count("seed", script.seed, least=0)
    if isinstance(script.replies, str):
        check.one_of("replies", script.replies, WAYS)
    elif not script.replies:
        raise InvalidError.at("replies", "at least one turn", "none")
    for place, rule in enumerate(script.rules):
        path = f"rules[{place}]"
        check.share(f"{path}.share", rule.share)
        check.seconds(f"{path}.from", rule.since, zero=True)
        check.seconds(f"{path}.to", rule.until, optional=True)
        if rule.until is not None and rule.until <= rule.since:
            raise InvalidError.at(f"{path}.to", f"a moment after {rule.since:g} s, where the rule begins", rule.until)


def _fits(text: str, patterns: tuple[str, ...]) -> bool:
    return any(pattern == "*" or fnmatchcase(text, pattern) for pattern in patterns)
