"""`RoleSettings`: which agents stand behind a role, and when the next one takes over. The agents themselves are in code."""

from __future__ import annotations

from typing import get_args

from holdfast import options
from holdfast.faults import InvalidError
from holdfast.policies.backoff import Tries
from holdfast.policies.circuit import Circuit
from holdfast.policies.fallback import Consent


class RoleSettings(options.Options, frozen=True, kw_only=True, omit_defaults=True, repr_omit_defaults=True):
    """Which agents stand behind a role, by name. `holdfast.toml` has them under `[roles.NAME]`.

    Wrong or unknown options raise `InvalidError`, which names the option.

        from holdfast.profiles import RoleSettings

        RoleSettings(agent="coder", understudies=("coder-simple", "manual"), timeout=300)
    """

    agent: str = ""
    """The agent that has the role. Empty: the agent with the role's own name."""
    understudies: tuple[str, ...] = ()
    """The agents that take over from it, in order."""
    circuit: Circuit | None = None
    """When to go to the understudies at once. None: after five runs in a row that failed; a probe follows after 30 s."""
    timeout: float | None = None
    """Seconds for one attempt, and for each understudy. None: no limit."""
    retry: Tries | None = None
    """How often and when the agent itself is retried. None: by the failure, three attempts for those that pass by themselves."""
    consent: Consent = "configured"
    """`configured`: these settings are the consent to every understudy. `ask`: a person must agree each time."""

    def __post_init__(self) -> None:
        if not isinstance(self.agent, str):
            raise InvalidError.at("role.agent", "the name of an agent", self.agent)
        given: object = self.understudies
        if not isinstance(given, tuple) or not all(isinstance(name, str) and name.strip() for name in given):
            raise InvalidError.at("role.understudies", "a tuple of names of agents", given)
        if len(set(self.understudies)) != len(self.understudies):
            raise InvalidError.at("role.understudies", "each name once", self.understudies)
        options.seconds("role.timeout", self.timeout, optional=True)
        options.one_of("role.consent", self.consent, get_args(Consent))
        for name, kind in (("circuit", Circuit), ("retry", Tries)):
            if not isinstance(getattr(self, name), kind | None):
                raise InvalidError.at(f"role.{name}", f"{options.an(kind.__name__)} or None", getattr(self, name))
