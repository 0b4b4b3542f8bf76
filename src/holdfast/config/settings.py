"""`Config`: the settings as a value, and how it is read from the tables of a file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Protocol, get_args

import msgspec

from holdfast.config.problems import ConfigError, Problems, near
from holdfast.config.tables import lay_over
from holdfast.faults import InvalidError
from holdfast.policies import BATCH, INTERACTIVE, PATIENT, Policy
from holdfast.policies.alerts import Alerts
from holdfast.policies.policy import PHASES, policy_of
from holdfast.policies.profiles import PROFILES
from holdfast.policies.target import target_of

__all__ = ["BASES", "STARTS", "TOP", "Config", "read", "read_into"]

BaseName = Literal["interactive", "patient", "batch"]
BASES: Mapping[str, Policy] = dict(zip(get_args(BaseName), (INTERACTIVE, PATIENT, BATCH), strict=True))
STARTS = ("base", "profile", "phase")
"""What the default policy may start from: one of our three, a document's profile, or a phase of document 004."""
TOP = ("enabled", *STARTS, "policy", "targets", "alerts")
"""What may stand at the top of a file."""


class Configurable(Protocol):
    """What settings can be applied to. A `Runtime` is one; settings know nothing else about the runtime."""

    enabled: bool

    def configure(self, policy: Policy, by_name: Mapping[str, Policy]) -> None:
        """Set the default policy, and the policies of targets by circuit name."""
        ...


class Config(msgspec.Struct, frozen=True, kw_only=True, repr_omit_defaults=True):
    """Settings, complete and checked. Make one in code, or `load` it."""

    enabled: bool = True
    """False: every recovery is a plain call (S1-25)."""
    policy: Policy = INTERACTIVE
    """What holds where nothing else is said."""
    targets: Mapping[str, Policy] = {}
    """What holds for one target: `claude`, `tool:bash`, `agent:builder`."""
    alerts: Alerts = Alerts()
    """When somebody is called, and where (S0-33); for `holdfast.sinks.raise_alerts`."""
    supervision: bool = False
    """Document 004's phase 3 and up: actors are supervised."""
    source: str = "code"
    """Where it comes from, for people."""

    def __post_init__(self) -> None:
        if not isinstance(self.enabled, bool):
            raise InvalidError.at("config.enabled", "true or false", self.enabled)
        for path, policy in (
            ("policy", self.policy),
            *((f"targets.{name}", own) for name, own in self.targets.items()),
        ):
            if not isinstance(policy, Policy):
                raise InvalidError.at(f"config.{path}", "a Policy", policy)
        if not isinstance(self.alerts, Alerts):
            raise InvalidError.at("config.alerts", "an Alerts", self.alerts)
        for name in self.targets:
            if circuit_name(name) is None:
                raise InvalidError.at("config.targets", "names such as 'claude' or 'tool:bash'", name)

    def policy_of(self, target: str | None) -> Policy:
        """Return the policy of a target, or the default one."""
        return self.policy if target is None else self._by_name().get(circuit_name(target) or "", self.policy)

    def apply(self, runtime: Configurable) -> None:
        """Put the settings in force. Calls under way finish on the old ones, circuits keep their state (R85)."""
        runtime.configure(self.policy, self._by_name())
        runtime.enabled = self.enabled

    def _by_name(self) -> dict[str, Policy]:
        return {circuit_name(name) or "": policy for name, policy in self.targets.items()}


def read(tables: Mapping[str, Any], source: str = "configuration") -> Config:
    """Return the settings that these tables hold; raise one error for everything that is wrong with them."""
    problems = Problems()
    config = read_into(tables, source, problems)
    if config is None or problems.found:
        raise ConfigError.of(source, problems.found)
    return config


def read_into(tables: Mapping[str, Any], source: str, problems: Problems) -> Config | None:
    """Return the settings, and note what is wrong with them."""
    for name in tables:
        if name not in TOP:
            problems.add_saying(name, near(name, TOP), "a name that is not known here")
    enabled = tables.get("enabled", True)
    if not isinstance(enabled, bool):
        problems.add("enabled", "true or false", enabled)
    start, supervision = _start(tables, problems)
    policy = lay_over(Policy, start, tables.get("policy", {}), "policy", problems) or start
    targets = _targets(tables.get("targets", {}), policy, problems)
    alerts = lay_over(Alerts, Alerts(), tables.get("alerts", {}), "alerts", problems) or Alerts()
    if problems.found:
        return None
    return Config(
        enabled=enabled, policy=policy, targets=targets, alerts=alerts, supervision=supervision, source=source
    )


def _start(tables: Mapping[str, Any], problems: Problems) -> tuple[Policy, bool]:
    given = [name for name in STARTS if name in tables]
    if len(given) > 1:
        problems.add_saying(given[1], f"nothing beside {given[0]}: the policy starts from one of them", "both")
    if not given:
        return INTERACTIVE, False
    name, value = given[0], tables[given[0]]
    match name:
        case "base" if isinstance(value, str) and value in BASES:
            return BASES[value], False
        case "profile" if isinstance(value, str) and value in PROFILES:
            return policy_of(PROFILES[value]), False
        case "phase" if value in (1, 2, 3, 4) and not isinstance(value, bool):
            chosen = PHASES[value - 1]
            return chosen.policy, chosen.supervision
    words = {"base": BASES, "profile": PROFILES}.get(name)
    problems.add(name, near(str(value), tuple(words)) if words else "a number from 1 to 4", value)
    return INTERACTIVE, False


def _targets(tables: Any, base: Policy, problems: Problems) -> dict[str, Policy]:
    if not isinstance(tables, dict):
        problems.add("targets", "a table of targets", tables)
        return {}
    policies: dict[str, Policy] = {}
    for name, table in tables.items():
        path = f"targets.{name}"
        full = circuit_name(name)
        if full is None:
            problems.add("targets", "names such as 'claude' or 'tool:bash'", name)
            continue
        if full in policies:
            problems.add_saying(path, "each target once", f"another name of {full}")
        policies[full] = lay_over(Policy, base, table, path, problems) or base
    return policies


def circuit_name(target: str) -> str | None:
    """Return the name a target's circuit goes by; None where it names nothing."""
    names = target_of(target).names
    return names[0][1] if names else None
