"""`Config`: the settings as a value, and `read`, which makes one from the tables of a file.

A table changes the options that it names in a policy; the other options keep their values. TOML has no null, so `"none"`
stands for None where an option may be None.

Invariant: a mistake is noted and its option is left out, so that the rest is still checked. A reader must look at the
problems before it uses the result.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping
from typing import Any, Protocol, TypeVar, get_args

import msgspec

from holdfast import options
from holdfast.config.problems import ConfigError, Problems
from holdfast.faults import CATALOG, InvalidError
from holdfast.policies import BATCH, INTERACTIVE, PATIENT, Backoff, Circuit, Hedge, Policy, Quota, Tries
from holdfast.policies.alerts import Alerts, Threshold
from holdfast.policies.circuit import ACTOR, BRIDGE, GRADED, PROVIDER, SPEC016
from holdfast.policies.fleet_options import SharedOptions
from holdfast.policies.policy import DEFAULT_CIRCUIT, MODES, PHASES, Mode, policy_at, policy_of
from holdfast.policies.profiles import PROFILES
from holdfast.policies.role import RoleSettings
from holdfast.policies.target import target_of
from holdfast.wire.bridge_options import BridgeOptions, ServerLimits

__all__ = ["BASES", "CIRCUITS", "NONE", "STARTS", "Config", "options_of", "read", "read_into"]

S = TypeVar("S", bound=msgspec.Struct)
V = TypeVar("V")

NONE = "none"
CIRCUITS = {"graded": GRADED, "provider": PROVIDER, "bridge": BRIDGE, "spec016": SPEC016, "actor": ACTOR}
"""The circuits that a file can name instead of describing one."""
BASES: Mapping[str, Policy] = {"interactive": INTERACTIVE, "patient": PATIENT, "batch": BATCH}
STARTS = ("base", "profile", "phase")
"""The options that choose what the default policy starts from. Only one of them may be given."""
_SWITCHES = ("enabled", "log")
_TOP = (*_SWITCHES, "mode", *STARTS, "policy", "targets", "roles", "alerts", "bridge", "shared")

_INVALID = object()
_PARTS: tuple[type[msgspec.Struct], ...] = (Backoff, Circuit, Hedge, Quota, ServerLimits, Threshold, Tries)
"""The options that are tables themselves."""


_WITHOUT_EFFECT: Mapping[type[msgspec.Struct], frozenset[str]] = {Circuit: frozenset({"persist"})}
"""Options that were removed because they did nothing. A file that still has one works as before, with a warning."""


class Configurable(Protocol):
    """What settings can be applied to: a `Runtime`. Settings know nothing else about the runtime."""

    log: bool
    supervises: bool

    def share(self, shared: SharedOptions) -> None:
        """Share with other processes what is learned of limits and outages."""
        ...

    def set_modes(self, mode: Mode | None, by_name: Mapping[str, Mode]) -> None:
        """Set the mode, and the modes of targets by the names of their circuits. None: as the runtime was made."""
        ...

    def configure(self, policy: Policy, by_name: Mapping[str, Policy], source: str = "") -> None:
        """Set the default policy, and the policies of targets by the names of their circuits. `source`: where they come from."""
        ...


class Config(options.Options, frozen=True, kw_only=True, repr_omit_defaults=True):
    """Settings, complete and checked. A wrong value raises `InvalidError`.

    `load` makes one from a file and the environment, `read` from tables. In code:

        from holdfast import Policy, Runtime
        from holdfast.config import Config

        runtime = Runtime()
        Config(policy=Policy(attempts=4), targets={"claude": Policy(deadline=90)}).apply(runtime)
    """

    enabled: bool = True
    """False: every recovery is a plain call, as with `mode="off"`."""
    mode: Mode | None = None
    """What recoveries do: `recover`, `observe` or `off`. None: as the runtime was made."""
    modes: Mapping[str, Mode] = {}
    """The mode of one target by its name. `off` above is off for every target."""
    log: bool | None = None
    """Whether the runtime logs retries, fallbacks, circuit changes and give-ups by itself. None: as the runtime was made."""
    policy: Policy = INTERACTIVE
    """The policy of every target that has none of its own."""
    targets: Mapping[str, Policy] = {}
    """The policy of one target by its name: `claude`, `tool:bash`, `agent:builder`."""
    roles: Mapping[str, RoleSettings] = {}
    """Which agents stand behind a role, by the role's name; used by `holdfast.agents.Roles`."""
    alerts: Alerts = Alerts()
    """When to alert a person, and where to; used by `holdfast.sinks.raise_alerts`."""
    bridge: BridgeOptions = BridgeOptions()
    """Where a bridge listens, and its limits; used by `holdfast serve`."""
    shared: SharedOptions = SharedOptions()
    """Where several processes share what they learn of limits and outages."""
    supervision: bool = True
    """Whether supervisors restart what crashed. Phases 1 and 2 say no."""
    source: str = "code"
    """Where the settings come from, for people: a file's name, `the environment`, `code` …"""

    def __post_init__(self) -> None:
        for name in _SWITCHES:
            value = getattr(self, name)
            if not isinstance(value, bool) and (value is not None or name != "log"):
                raise InvalidError.at(f"config.{name}", "true or false", value)
        self._check_modes()
        targets = {f"targets.{name}": policy for name, policy in self.targets.items()}
        for path, policy in {"policy": self.policy, **targets}.items():
            if not isinstance(policy, Policy):
                raise InvalidError.at(f"config.{path}", "a Policy", policy)
        for name, settings in self.roles.items():
            if not isinstance(settings, RoleSettings):
                raise InvalidError.at(f"config.roles.{name}", "a RoleSettings", settings)
        if not isinstance(self.alerts, Alerts):
            raise InvalidError.at("config.alerts", "an Alerts", self.alerts)
        if not isinstance(self.bridge, BridgeOptions):
            raise InvalidError.at("config.bridge", "a BridgeOptions", self.bridge)
        if not isinstance(self.shared, SharedOptions):
            raise InvalidError.at("config.shared", "a SharedOptions", self.shared)
        # Mistyped names are reported now, not when the settings are applied.
        _by_name(self.targets, "config.targets")

    def _check_modes(self) -> None:
        if self.mode is not None:
            options.one_of("config.mode", self.mode, MODES)
        for name, mode in _by_name(self.modes, "config.modes").items():
            options.one_of(f"config.modes.{name}", mode, MODES)

    def policy_of(self, target: str | None) -> Policy:
        """Return the policy of a target, or the default policy if the target has none or is None."""
        if target is None:
            return self.policy
        return _by_name(self.targets, "config.targets").get(_circuit_name(target, "target"), self.policy)

    def mode_of(self, target: str | None) -> Mode:
        """Return the mode of a target, or the general one if the target has none or is None."""
        general: Mode = (self.mode or "recover") if self.enabled else "off"
        if general == "off" or target is None:
            return general
        return _by_name(self.modes, "config.modes").get(_circuit_name(target, "target"), general)

    def apply(self, runtime: Configurable) -> None:
        """Make a runtime use these settings. Running calls finish on the old ones, and circuits keep their state."""
        runtime.configure(self.policy, _by_name(self.targets, "config.targets"), self.source)
        runtime.set_modes(self.mode if self.enabled else "off", _by_name(self.modes, "config.modes"))
        runtime.supervises = self.supervision
        if self.log is not None:
            runtime.log = self.log
        if self.shared.url:
            runtime.share(self.shared)


def _by_name(given: Mapping[str, V], path: str) -> dict[str, V]:
    """Return values of targets by the names of their circuits."""
    return {_circuit_name(name, path): value for name, value in given.items()}


def read(tables: Mapping[str, Any], source: str = "configuration") -> Config:
    """Return the settings in these tables, which are those of a `holdfast.toml`. `source` names them in errors.

    Raises `ConfigError`, which lists every mistake.

        from holdfast.config import read

        assert read({"policy": {"attempts": 4}}).policy.attempts == 4
    """
    problems = Problems()
    config = read_into(tables, source, problems)
    if config is None or problems.found:
        raise ConfigError.of(source, problems.found)
    return config


def read_into(tables: Mapping[str, Any], source: str, problems: Problems) -> Config | None:
    """Return the settings in these tables, or None if there are problems; add the mistakes to `problems`."""
    for name in tables:
        if name not in _TOP:
            problems.add_unknown(name, "option", name, _TOP)
    switches = {name: tables[name] for name in _SWITCHES if name in tables}
    for name, value in switches.items():
        if not isinstance(value, bool):
            problems.add(name, "true or false", value)
    mode = _mode(tables, "mode", problems)
    start, supervision = _start(tables, problems)
    policy = _overlay(Policy, start, tables.get("policy", {}), "policy", problems) or start
    targets, modes = _targets(tables.get("targets", {}), policy, problems)
    roles = _roles(tables.get("roles", {}), problems)
    alerts = _overlay(Alerts, Alerts(), tables.get("alerts", {}), "alerts", problems) or Alerts()
    bridge = _overlay(BridgeOptions, BridgeOptions(), tables.get("bridge", {}), "bridge", problems) or BridgeOptions()
    shared = _overlay(SharedOptions, SharedOptions(), tables.get("shared", {}), "shared", problems) or SharedOptions()
    if problems.found:
        return None
    return Config(
        **switches,
        mode=mode,
        modes=modes,
        policy=policy,
        targets=targets,
        roles=roles,
        alerts=alerts,
        bridge=bridge,
        shared=shared,
        supervision=supervision,
        source=source,
    )


def options_of(kind: type[msgspec.Struct]) -> dict[str, Any]:
    """Return the options of a policy, or of a part of one, with their types."""
    return {field.name: field.type for field in msgspec.structs.fields(kind)}


def _start(tables: Mapping[str, Any], problems: Problems) -> tuple[Policy, bool]:
    """Return the policy that `[policy]` changes, and whether actors are supervised."""
    given = [name for name in STARTS if name in tables]
    if len(given) > 1:
        problems.add_text(given[1], f"only one of {', '.join(STARTS)}", f"{' and '.join(given)} together")
    if not given:
        return INTERACTIVE, True
    name, value = given[0], tables[given[0]]
    if name == "phase":
        # True is 1 for Python, so `phase = true` would be phase 1.
        if value in range(1, len(PHASES) + 1) and not isinstance(value, bool):
            return PHASES[value - 1].policy, PHASES[value - 1].supervision
        problems.add(name, f"a number from 1 to {len(PHASES)}", value)
        return INTERACTIVE, True
    known: Mapping[str, Any] = BASES if name == "base" else PROFILES
    if not isinstance(value, str):
        problems.add(name, f"one of {', '.join(sorted(known))}", value)
    elif value not in known:
        problems.add_unknown(name, name, value, known)
    else:
        return (BASES[value] if name == "base" else policy_of(PROFILES[value])), True
    return INTERACTIVE, True


def _mode(table: Mapping[str, Any], path: str, problems: Problems) -> Mode | None:
    """Return the mode in a table, or None if it has no `mode`. An unknown word is a mistake."""
    given = table.get("mode")
    if given is None or given in MODES:
        return given
    problems.add(path, f"one of {', '.join(MODES)}", given)
    return None


def _targets(tables: Any, base: Policy, problems: Problems) -> tuple[dict[str, Policy], dict[str, Mode]]:
    """Return the policies of targets, and their modes. The mode is no option of a policy: it also holds for policies in code."""
    policies: dict[str, Policy] = {}
    modes: dict[str, Mode] = {}
    if not isinstance(tables, dict):
        problems.add("targets", "a table of targets", tables)
        return policies, modes
    for name, table in tables.items():
        path = f"targets.{name}"
        try:
            full = _circuit_name(name, "targets")
        except InvalidError as error:
            problems.add("targets", str(error.fault.context["expected"]), name)
            continue
        # `claude` and `provider:claude` are two names of one circuit, which cannot have two policies.
        if full in policies:
            problems.add_text(path, "each target once", f"another name of {full}")
        if isinstance(table, dict) and "mode" in table:
            if (mode := _mode(table, f"{path}.mode", problems)) is not None:
                modes[full] = mode
            table = {name: value for name, value in table.items() if name != "mode"}  # noqa: PLW2901 - without the mode
        # A target that names no time limit has the one that the profile gives for what is called there.
        start = policy_at(base, target_of(name, path))
        policies[full] = _overlay(Policy, start, table, path, problems) or start
    return policies, modes


def _roles(tables: Any, problems: Problems) -> dict[str, RoleSettings]:
    if not isinstance(tables, dict):
        problems.add("roles", "a table of roles", tables)
        return {}
    found = {
        name: _overlay(RoleSettings, RoleSettings(), table, f"roles.{name}", problems) for name, table in tables.items()
    }
    return {name: settings for name, settings in found.items() if settings is not None}


def _circuit_name(target: str, path: str) -> str:
    """Return the name of a target's main circuit, such as `provider:claude`."""
    return target_of(target, path).names[0][1]


# --- a table over a policy, or over a part of one ---


def _overlay(kind: type[S], base: S | None, table: Any, path: str, problems: Problems) -> S | None:
    """Return `base` with the options of the table; None if there is no base and the table makes no valid value."""
    if not isinstance(table, dict):
        problems.add(path, "a table", table)
        return base
    if not table and base is not None:
        return base
    known = options_of(kind)
    changes: dict[str, Any] = {}
    for name, given in table.items():
        if name in _WITHOUT_EFFECT.get(kind, ()):
            # FutureWarning is the one that Python shows to people who run a program, not only to its authors.
            warnings.warn(f"{path}.{name} has no effect and is ignored: remove it", FutureWarning, stacklevel=2)
            continue
        if name not in known:
            problems.add_unknown(f"{path}.{name}", "option", name, known, given)
            continue
        value = _value(known[name], getattr(base, name, None), given, f"{path}.{name}", problems)
        if value is not _INVALID:
            changes[name] = value
    return _build(kind, base, changes, path, problems)


def _value(kind: Any, base: Any, given: Any, path: str, problems: Problems) -> Any:
    """Return an option's value, or `_INVALID` after adding the mistake."""
    kinds = get_args(kind) or (kind,)
    if given == NONE and type(None) in kinds:
        return None
    # The only option whose table has keys of its own: codes.
    if path.endswith(".per_code"):
        return _per_code(base, given, path, problems)
    part = next((part for part in _PARTS if part in kinds), None)
    if part is Circuit and isinstance(given, str):
        if given in CIRCUITS:
            return CIRCUITS[given]
        problems.add_unknown(path, "circuit", given, CIRCUITS)
        return _INVALID
    if part is Circuit and base is DEFAULT_CIRCUIT:
        # As `Circuit(…)` in code: two options of one's own do not fit the other numbers of the graded circuit.
        base = Circuit()
    if part is not None:
        return _overlay(part, base, given, path, problems) or _INVALID
    try:
        return msgspec.convert(given, kind)
    except msgspec.ValidationError as error:
        context = InvalidError.from_msgspec(error).fault.context
        place = context["path"].removeprefix("$")
        # Of a list with one wrong item, show the item.
        item = re.fullmatch(r"\[(\d+)\]", place)
        problems.add(path + place, _expected(kind, context["expected"]), given[int(item[1])] if item else given)
        return _INVALID


def _per_code(base: Any, given: Any, path: str, problems: Problems) -> Any:
    if not isinstance(given, dict):
        problems.add(path, "a table of codes", given)
        return _INVALID
    tries = dict(base)
    for code, table in given.items():
        if code not in CATALOG:
            problems.add_unknown(path, "code", code, CATALOG)
            continue
        changed = _overlay(Tries, tries.get(code, Tries()), table, f"{path}.{code}", problems)
        if changed is not None:
            tries[code] = changed
    return tries


def _build(kind: type[S], base: S | None, changes: dict[str, Any], path: str, problems: Problems) -> S | None:
    """Make the value. If it rejects an option, note it, drop it and try again, so that each mistake is noted."""
    kept = {} if base is None else {name: getattr(base, name) for name in options_of(kind)}
    while True:
        try:
            return kind(**{**kept, **changes})
        except InvalidError as error:
            context = error.fault.context
            place = str(context["path"]).partition(".")[2]
            expected = str(context["expected"]).replace("or None", f'or "{NONE}"')
            received = f'"{NONE}"' if context["received"] == "NoneType" else context["received"]
            problems.add_text(f"{path}.{place}", expected, received)
            # The mistake may be in an option that the table does not change; dropping more would change nothing.
            if changes.pop(place.partition("[")[0], None) is None:
                return base
        except TypeError:
            # A part that the base does not have, such as a hedge, lacks an option without a default.
            for field in msgspec.structs.fields(kind):
                if field.required and field.name not in changes:
                    problems.add_text(f"{path}.{field.name}", "a value", "nothing")
            return base


def _expected(kind: Any, expected: str) -> str:
    """Return msgspec's words for a type in the words of a TOML file."""
    literals = [word for part in (kind, *get_args(kind)) for word in get_args(part) if isinstance(word, str)]
    if literals:
        return f"one of {', '.join(literals)}"
    words = {"bool | null": f'true, false or "{NONE}"', " | null": f' or "{NONE}"', "int": "a whole number"}
    for ours, theirs in {**words, "float": "a number", "bool": "true or false", "str": "text"}.items():
        expected = expected.replace(ours, theirs)
    return expected
