"""`Roles`: the roles of a program by name. Agents are made in code; who stands behind whom may be in `holdfast.toml`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from holdfast import options
from holdfast.agents.kind import check_agent
from holdfast.agents.role import Role
from holdfast.config.problems import ConfigError, Problems
from holdfast.config.sources import load
from holdfast.faults import InvalidError
from holdfast.runtime.runtime import default_runtime

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

    from holdfast.agents.kind import AnyAgent
    from holdfast.faults import Fault
    from holdfast.policies.role import RoleSettings
    from holdfast.runtime.runtime import Runtime

__all__ = ["Roles"]


class Roles:
    """The roles of a program by name: `roles["builder"]`. Agents are made in code; who stands behind whom may be in `holdfast.toml`.

        from holdfast.agents import Roles

        roles = Roles([coder, simple, by_hand])             # as [roles.…] in holdfast.toml says
        reply = await roles["builder"].run("paint the door")

    agents: every agent that a role may name.
    roles: settings by name of the role. By default those of `holdfast.toml`, as `holdfast.config.load` finds it. Where the program keeps to
        the profile `spec016`, its roles come first, with those of their understudies that the program has.
    notify: called with the fault when a role and all its understudies have failed.
    runtime: by default the default runtime.

    An understudy may also be the name of another role. A name without settings has no role. Names that nothing has, and roles that wait
    for each other, raise `ConfigError`, which lists every mistake.
    """

    @options.suggests
    def __init__(
        self,
        agents: Iterable[AnyAgent],
        roles: Mapping[str, RoleSettings] | None = None,
        *,
        notify: Callable[[Fault], object] | None = None,
        runtime: Runtime | None = None,
    ) -> None:
        self._agents = _by_name(agents)
        config = load() if roles is None else None
        usual = (runtime or default_runtime()).profile.roles
        self._settings = {
            **_of_these_agents(usual, self._agents),
            **(config.roles if config is not None else roles or {}),
        }
        self._notify = notify
        self._runtime = runtime
        self._roles: dict[str, Role] = {}
        problems = Problems()
        for name in self._settings:
            self._find_mistakes(name, problems)
        if problems.found:
            raise ConfigError.of("roles" if config is None else config.source, problems.found)
        for name in self._settings:
            self._roles[name] = self._role(name)

    def __getitem__(self, name: str) -> Role:
        if name not in self._roles:
            raise InvalidError.at(
                "roles", f"a role of this program ({', '.join(self._roles) or 'there is none'})", name
            )
        return self._roles[name]

    def __contains__(self, name: object) -> bool:
        return name in self._roles

    def __iter__(self) -> Iterator[str]:
        return iter(self._roles)

    def __len__(self) -> int:
        return len(self._roles)

    def __repr__(self) -> str:
        return f"Roles({', '.join(self._roles)})"

    def _find_mistakes(self, name: str, problems: Problems) -> None:
        settings = self._settings[name]
        agent = settings.agent or name
        if agent not in self._agents:
            problems.add_unknown(f"roles.{name}.agent", "agent", agent, self._agents)
        for understudy in settings.understudies:
            path = f"roles.{name}.understudies"
            if understudy == name or (understudy not in self._agents and name in self._behind(understudy)):
                problems.add_text(path, "agents that do not stand behind themselves", understudy)
            elif understudy not in self._agents and understudy not in self._settings:
                problems.add_unknown(path, "agent", understudy, {**self._agents, **self._settings})

    def _behind(self, name: str) -> set[str]:
        """Return the names of all roles that stand behind a role, directly or not."""
        found: set[str] = set()
        waiting = [name]
        while waiting:
            settings = self._settings.get(waiting.pop())
            others = set(settings.understudies if settings is not None else ()) - set(self._agents) - found
            found |= others
            waiting += others
        return found

    def _role(self, name: str) -> Role:
        if name in self._roles:
            return self._roles[name]
        settings = self._settings[name]
        return Role(
            name,
            self._agents[settings.agent or name],
            understudies=[self._agents.get(one) or self._role(one) for one in settings.understudies],
            circuit=settings.circuit,
            timeout=settings.timeout,
            retry=settings.retry,
            consent=settings.consent,
            notify=self._notify,
            runtime=self._runtime,
        )


def _of_these_agents(roles: Mapping[str, RoleSettings], agents: Collection[str]) -> dict[str, RoleSettings]:
    """Return the roles whose agent the program has, with those of their understudies that it has."""
    return {
        name: msgspec.structs.replace(
            settings, understudies=tuple(one for one in settings.understudies if one in agents)
        )
        for name, settings in roles.items()
        if (settings.agent or name) in agents
    }


def _by_name(agents: Iterable[AnyAgent]) -> dict[str, AnyAgent]:
    found: dict[str, AnyAgent] = {}
    for agent in agents:
        check_agent("roles.agents", agent)
        if agent.name in found:
            raise InvalidError.saying("roles.agents", "a name of its own for each agent", f"{agent.name!r} twice")
        found[agent.name] = agent
    return found
