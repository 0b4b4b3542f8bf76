"""A script decides which request gets which fault. It is one line of steps, or a TOML or JSON file with rules and limits.

The provider goes through the rules in order. The first rule that applies to the request and has a step left decides. Without such
a rule the request gets a good answer.

Invariant: the same script, seed and requests in the same order give the same faults.
"""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from datetime import UTC, datetime
from email.utils import formatdate
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import msgspec

from holdfast import options as check
from holdfast.faults import InvalidError
from holdfast.testing.clock import seeded
from holdfast.testing.provider.faults import ERRORS, FAULTS, error_plan
from holdfast.testing.provider.limits import Limit, Limits, fits
from holdfast.testing.provider.replies import MODES, Turn
from holdfast.testing.scripts import read_option, read_step, split_steps

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.testing.provider.faults import ProtocolReply
    from holdfast.testing.provider.http import Headers, Plan, Request

T = TypeVar("T", "Rule", "Script", Limit, Turn)

_LOOP = "loop"
_EXPECTED = (
    f"ok, a status from 300 to 599 or one of {', '.join([*ERRORS, *FAULTS])}, "
    "each with optional ;OPTION=VALUE, %CHANCE and *TIMES (429;retry-after=7*2)"
)
_STATUS = re.compile(r"(?!304)[345][0-9][0-9]")  # 304 has no body, so no provider sends it as an error
_LATER = re.compile(r"(?P<form>date|rfc3339|epoch)\+(?P<seconds>[0-9]{1,9})")
_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9a-z-]+")
_HINT = "hint"
_FRAMING = frozenset({"content-length", "transfer-encoding", "connection"})
"""Headers that the server itself writes. To break them, use one of the named faults."""


class ScriptStep(NamedTuple):
    """What one request gets. `plan` is None for a good answer. `name` is the key in the counters."""

    name: str
    plan: Callable[[ProtocolReply], Plan] | None
    chance: float = 1.0


OK = ScriptStep("ok", None)


class Rule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename={"since": "from", "until": "to"}):  # fmt: skip
    """Steps, and the requests they apply to: between two moments, for some models and keys, by chance.

    For example:
        Rule(steps="503", loop=True, since=60, until=120, models=("claude-*",))  # an outage in the second minute
    """

    steps: str
    loop: bool = False
    share: float = 1.0
    since: float = 0.0
    """Seconds after the first request; `from` in TOML."""
    until: float | None = None
    """Seconds after the first request; `to` in TOML."""
    models: tuple[str, ...] = ("*",)
    """Patterns: `claude-*`."""
    keys: tuple[str, ...] = ("*",)
    paths: tuple[str, ...] = ("*",)
    """Patterns: `/v1/messages`. Other requests of a program, such as counting tokens, then take no step."""

    def applies_to(self, request: Request, at: float) -> bool:
        """Whether the rule applies to a request that came `at` seconds after the first request."""
        if at < self.since or (self.until is not None and at >= self.until):
            return False
        scopes = ((request.model, self.models), (request.key, self.keys), (request.path, self.paths))
        return all(fits(text, patterns) for text, patterns in scopes)


class Script(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What fails and when, and the replies to requests without a fault.

    For example:
        Script(rules=(Rule(steps="429;retry-after=7, 503"),), replies=("Hello.", "Goodbye."))
    """

    seed: int = 0
    replies: str | tuple[str | Turn, ...] = "echo"
    rules: tuple[Rule, ...] = ()
    limits: tuple[Limit, ...] = ()
    """Limits that depend on the load. They are checked before the rules; a request that is limited takes no step."""

    def __post_init__(self) -> None:
        if isinstance(self.replies, (list, tuple)):
            turns = tuple(_turn(f"replies[{place}]", turn) for place, turn in enumerate(self.replies))
            msgspec.structs.force_setattr(self, "replies", turns)


class Playback:
    """A script that is being played. It decides which step each request gets. Raises `InvalidError` for a wrong script."""

    def __init__(self, script: Script, *, seed: int | None = None) -> None:
        self.script = script
        _check(script)
        seed = script.seed if seed is None else seed
        # Each rule has its own random source, so that the draws of one rule do not change those of another.
        self._rules = [_PlayedRule(rule, place, seed + place) for place, rule in enumerate(script.rules)]

    def next(self, request: Request, at: float) -> ScriptStep:
        """Return the step for a request that came `at` seconds after the first request."""
        for rule in self._rules:
            if (step := rule.next(request, at)) is not None:
                return step
        return OK


class _PlayedRule:
    """A rule, and how many of its steps are played."""

    def __init__(self, rule: Rule, place: int, seed: int) -> None:
        self._rule = rule
        self._rng = seeded(seed)
        self._at = 0
        self._steps = [
            step
            for number, text in enumerate(split_steps(rule.steps))
            for step in _read_step(f"rules[{place}].steps[{number}]", text)
        ]

    def next(self, request: Request, at: float) -> ScriptStep | None:
        # If this rule has no step left, or does not apply, the next rule decides.
        if self._at == len(self._steps) or not self._rule.applies_to(request, at):
            return None
        # Draw before taking a step, because a request outside the share takes no step.
        if self._rule.share < 1 and self._rng.random() >= self._rule.share:
            return None
        step = self._steps[self._at]
        self._at += 1
        if self._rule.loop and self._at == len(self._steps):
            self._at = 0
        # If chance decides against the fault, the step is still used up, as in `holdfast.testing.script`.
        return step if step.chance == 1 or self._rng.random() < step.chance else OK


def read_script(text: str) -> Script:
    """Read a script. It is TOML, JSON, or steps separated by commas, of which the last may be `loop`.

    For example:
        read_script("429;retry-after=7, 503*2, loop")

    Raises `InvalidError`. It names the field, the line of a TOML text, what was expected and what was found.
    """
    if text.lstrip().startswith("{"):
        return _read_json(text)
    # In a line of steps, `=` occurs only in options, after a `;`. If there is a `=` before the first `;`, the text is TOML.
    if "=" in text.partition(";")[0] or "[[" in text:
        return _read_toml(text, "script")
    written = split_steps(text)
    loop = written[-1] == _LOOP
    script = (
        Script(rules=(Rule(steps=", ".join(written[: len(written) - loop]), loop=loop),)) if text.strip() else Script()
    )
    Playback(script)  # raises if a step cannot be read
    return script


def read_file(path: str | Path) -> Script:
    """Read a script from a TOML file: `read_file("storm.toml")`. Raises what `read_script` raises, and `OSError`."""
    return _read_toml(Path(path).read_text(encoding="utf-8"), str(path))


def _read_toml(text: str, source: str) -> Script:
    try:
        script = _convert(tomllib.loads(text))
        Playback(script)
    except tomllib.TOMLDecodeError as error:
        raise InvalidError.saying(source, "TOML", f"a syntax error: {error}") from error
    except InvalidError as error:
        raise _placed(error, text, source) from error
    return script


def _read_json(text: str) -> Script:
    try:
        tables = msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        raise InvalidError.saying("script", "JSON", str(error)) from error
    script = _convert(tables)
    Playback(script)
    return script


def _convert(tables: dict[str, Any]) -> Script:
    # Convert one table at a time, because the path in msgspec's error does not say which one is wrong.
    lists = {name: tables.pop(name, []) for name in ("rules", "limits")}
    for name, found in lists.items():
        if not isinstance(found, list):
            raise InvalidError.at(name, f"tables headed [[{name}]]", found)
    script = _read_as(Script, tables, "")
    rules = tuple(_read_as(Rule, rule, f"rules[{place}].") for place, rule in enumerate(lists["rules"]))
    limits = tuple(_read_as(Limit, limit, f"limits[{place}].") for place, limit in enumerate(lists["limits"]))
    return msgspec.structs.replace(script, rules=rules, limits=limits)


def _turn(path: str, given: Any) -> str | Turn:
    """Return a turn of a conversation. In code it may be written as in TOML, as a dict."""
    if isinstance(given, (str, Turn)):
        return given
    if not isinstance(given, dict):
        raise InvalidError.at(path, "a text, a Turn, or a dict such as {'tool': 'search', 'arguments': {}}", given)
    return _read_as(Turn, given, f"{path}.")


def _read_as(kind: type[T], table: Any, prefix: str) -> T:
    try:
        return msgspec.convert(table, kind)
    except msgspec.ValidationError as error:
        # msgspec does not list the known fields. Our message does, which helps against a typo.
        unknown = re.match(r"Object contains unknown field `(?P<field>[^`]*)`", str(error))
        if unknown:
            known = ", ".join(field.encode_name for field in msgspec.structs.fields(kind))
            raise InvalidError.saying(prefix + unknown["field"], f"one of {known}", "an unknown field") from error
        context: Any = InvalidError.from_msgspec(error).fault.context
        path = prefix + str(context["path"]).removeprefix("$").removeprefix(".")
        raise InvalidError.saying(path, str(context["expected"]), str(context["received"])) from error


def _placed(error: InvalidError, text: str, source: str) -> InvalidError:
    """Return the error with the file and line in front of the field."""
    context: Any = error.fault.context
    path = str(context["path"])
    return InvalidError.saying(
        f"{source}:{_line(text, path)}: {path}", str(context["expected"]), str(context["received"])
    )


def _line(text: str, path: str) -> int:
    """Return the line of a field, or of its table. It searches the text, because `tomllib` keeps no line numbers."""
    inside = re.match(r"(?P<list>rules|limits)\[(?P<place>\d+)\]\.?", path)
    field = re.match(r"\w+", path[inside.end() :] if inside else path)
    wanted = (inside["list"], int(inside["place"])) if inside else None
    current: tuple[str, int] | None = None
    tables: Counter[str] = Counter()
    header = 1
    for number, line in enumerate(text.splitlines(), 1):
        if heading := re.match(r"\s*\[\[\s*(?P<list>\w+)\s*\]\]", line):
            current = (heading["list"], tables[heading["list"]])
            tables[heading["list"]] += 1
            header = number if current == wanted else header
        if current == wanted and field and re.match(rf"\s*\"?{field[0]}\"?\s*=", line):
            return number
    return header


def _check(script: Script) -> None:
    check.count("seed", script.seed, least=0)
    if isinstance(script.replies, str):
        check.one_of("replies", script.replies, MODES)
    elif not script.replies:
        raise InvalidError.at("replies", "at least one turn", "none")
    Limits(script.limits)  # raises for a limit that makes no sense
    for place, rule in enumerate(script.rules):
        path = f"rules[{place}]"
        check.share(f"{path}.share", rule.share)
        check.seconds(f"{path}.from", rule.since, zero=True)
        check.seconds(f"{path}.to", rule.until, optional=True)
        # Such a time window is empty, and the rule would silently never apply.
        if rule.until is not None and rule.until <= rule.since:
            raise InvalidError.at(f"{path}.to", f"a moment after {rule.since:g} s, where the rule begins", rule.until)


def _read_step(path: str, text: str) -> list[ScriptStep]:
    """Read one step. With `*TIMES` it becomes several steps."""
    written = read_step(text)
    if written is None:
        raise InvalidError.at(path, _EXPECTED, text)
    name, *given = (part.strip() for part in written.what.split(";"))
    options = dict(read_option(path, option, "an option") for option in given)
    step = ScriptStep(name, _plan(path, name, options), written.chance)
    return [step] * written.times


def _plan(path: str, name: str, given: dict[str, str]) -> Callable[[ProtocolReply], Plan] | None:
    # `ok;…` raises the error below, because a good answer has no options.
    if name == OK.name and not given:
        return None
    if name in FAULTS:
        fault = FAULTS[name]
        options = {**fault.options, **{key: _option(path, name, key, value) for key, value in given.items()}}
        return lambda answer: fault.plan(answer, options)
    status = int(name) if _STATUS.fullmatch(name) else None
    if status is None and name not in ERRORS:
        raise InvalidError.at(path, _EXPECTED, name)
    # All other options of an error are headers.
    hint = given.pop(_HINT, "")
    return error_plan(None if status else name, status, _headers(path, given), hint)


def _option(path: str, name: str, key: str, value: str) -> Any:
    """Read an option's value as the type of its default."""
    defaults = FAULTS[name].options
    where = f"{path} {name};{key}"
    if key not in defaults:
        known = ", ".join(defaults) or "no option"
        raise InvalidError.at(where, f"an option of {name}: {known}", key)
    default = defaults[key]
    # The only option with a text is the name of an error.
    if isinstance(default, str):
        check.one_of(where, value, ERRORS)
        return value
    number = _number(where, value, type(default))
    if key == "status":
        check.count(where, number, least=200)
    elif isinstance(default, float):
        check.seconds(where, number)
    else:
        check.count(where, number, least=0)
    return number


def _number(where: str, value: str, kind: type[Any]) -> Any:
    try:
        return kind(value)
    except ValueError:
        raise InvalidError.at(where, "a whole number" if kind is int else "a number", value) from None


def _headers(path: str, given: dict[str, str]) -> Callable[[float], Headers]:
    for name, value in given.items():
        if "_" in name:
            raise InvalidError.at(path, f"a header such as {name.replace('_', '-')}", name)
        if name in _FRAMING:
            raise InvalidError.at(path, f"a header other than {', '.join(sorted(_FRAMING))}", name)
        if not _NAME.fullmatch(name) or not value.isprintable() or not value.isascii():
            raise InvalidError.at(path, "a header of printable ASCII as NAME=VALUE", f"{name}={value}")
    return lambda wall: tuple((name, _moment(value, wall)) for name, value in given.items())


def _moment(value: str, wall: float) -> str:
    """Replace `date+7`, `rfc3339+7` or `epoch+7` by the time seven seconds from now in that form."""
    later = _LATER.fullmatch(value)
    if later is None:
        return value
    at = wall + int(later["seconds"])
    if later["form"] == "date":
        return formatdate(at, usegmt=True)
    return str(int(at)) if later["form"] == "epoch" else datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
