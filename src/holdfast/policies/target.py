"""`Target`: what a call goes to. Its parts name the circuits that count the call.

Invariant: the first circuit is the main one. A failure whose scope has no circuit of its own is counted there.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, TypeAlias

from holdfast import options
from holdfast.faults import InvalidError, Scope

if TYPE_CHECKING:
    from collections.abc import Mapping

_KINDS = ("provider", "model", "credential", "tool", "agent", "service", "actor")
"""The words before the colon of a text that names a target; each is a part of `Target`."""


class Target(options.Options, frozen=True, kw_only=True, omit_defaults=True, repr_omit_defaults=True):
    """What a call goes to. Each part that is given has its own circuit; a part that is not a name raises `InvalidError`.

    With a circuit for each key, a revoked key does not stop calls with other keys of the provider:

        from holdfast import Target, recover

        recover(Target(provider="claude", model="opus", credential="team-a"))

    agent, actor, tool, service, provider, model: names of your choice. `recover("tool:bash")` means `Target(tool="bash")`.
    A service is anything else outside of the program, such as a file system or a database.
    credential: a name for the key, never the key itself.
    """

    agent: str = ""
    tool: str = ""
    provider: str = ""
    model: str = ""
    credential: str = ""
    """A name for the key, never the key itself."""
    service: str = ""
    actor: str = ""

    def __post_init__(self) -> None:
        for field in self.__struct_fields__:
            if not isinstance(getattr(self, field), str):
                raise InvalidError.at(f"target.{field}", "a name", getattr(self, field))

    @property
    def names(self) -> tuple[tuple[Scope, str], ...]:
        """The scopes and names of its circuits, the main one first: `(Scope.PROVIDER, "provider:claude")`."""
        of = f"{self.provider}/" if self.provider else ""
        named = (
            (Scope.AGENT, "agent", "", self.agent),
            (Scope.AGENT, "actor", "", self.actor),
            (Scope.TOOL, "tool", "", self.tool),
            (Scope.CONNECTION, "service", "", self.service),
            (Scope.PROVIDER, "provider", "", self.provider),
            (Scope.MODEL, "model", of, self.model),
            # Not "credential": a redactor would mask what follows that word.
            (Scope.CREDENTIAL, "key", of, self.credential),
        )
        return tuple((scope, f"{kind}:{of}{name}") for scope, kind, of, name in named if name)

    @property
    def operations(self) -> tuple[str, ...]:
        """What is called, the most specific first, as profiles name the time limits: `("bash", "tool-execution")`."""
        if self.agent or self.actor:
            return (self.agent or self.actor, "agent-spawn")
        if self.tool:
            return (self.tool, "tool-execution")
        if self.service:
            return (self.service,)
        return (self.provider, "llm-call") if self.provider or self.model else ()

    @property
    def narrowest(self) -> str:
        """The name of the circuit that a graded circuit counts failures on: the model as this key reaches it.

        A sick model, a limited key or a region that is down says nothing about the others:

            Target(provider="claude", model="opus", credential="team-a").narrowest    # deployment:claude/opus/team-a
            Target(provider="claude", model="opus").narrowest                         # model:claude/opus
        """
        if self.model and self.credential:
            return "deployment:" + "/".join(part for part in (self.provider, self.model, self.credential) if part)
        names = self.names
        return names[-1][1] if names else ""

    def __str__(self) -> str:
        """Return its name in events: the main circuit's, without `provider:`; a provider with its model is `claude/opus`."""
        names = self.names
        if not names:
            return ""
        scope, name = names[0]
        if scope is Scope.PROVIDER and self.model:
            return f"{self.provider}/{self.model}"
        return name.removeprefix("provider:")


TargetLike: TypeAlias = str | Target
"""`"claude"` (a provider), `"tool:bash"`, `"agent:builder"`, `"service:disk"`, `"model:…"`, or a `Target`."""


def target_of(target: TargetLike, path: str = "recover.target") -> Target:
    """Return the target itself, or the one that a text names. A name that is blank or mistyped raises `InvalidError`, which names `path`."""
    if isinstance(target, Target):
        return target
    given: object = target
    # A blank name would silently share one circuit with every other blank one.
    if not isinstance(given, str) or not given.strip():
        raise InvalidError.at(path, "a name such as 'claude' or 'tool:bash', or a Target", given)
    kind, colon, name = target.partition(":")
    if colon and kind in _KINDS:
        if not name:
            raise InvalidError.at(path, f"a name after '{target}'", target)
        return Target(**{kind: name})
    if colon and (meant := _nearly_a_kind(kind)):
        # A provider's name may hold a colon, but a word that is nearly one of ours is a typing mistake.
        raise InvalidError.at(path, f"a name such as '{meant}:{name}', or Target(provider=…)", target)
    return Target(provider=target)


_USUAL_HOSTS = {"anthropic": "api.anthropic.com", "openai": "api.openai.com", "xai": "api.x.ai"}
"""The hosts of the providers whose protocols others speak too."""

_USUAL_PATH = re.compile(r"(/openai)?(/v\d+\w*)?/*$")
"""The end of an address that says nothing about who answers there: the version, and Azure's name of the protocol."""


def endpoint_name(protocol: str, url: str, known: Mapping[str, str]) -> str:
    """Return the name of the provider that answers at `url`: the name in `known` of its host, or protocol and address.

    Two endpoints of one host are two providers, because one may fail while the other answers. They differ in the port, in the
    protocol, or in the path before the version, where a gateway serves several providers:

        known = {"api.openai.com": "openai"}
        endpoint_name("openai", "https://api.openai.com/v1", known)          # openai
        endpoint_name("openai", "http://localhost:4000/team-a/v1", known)    # openai@localhost:4000/team-a
    """
    # Only clients have endpoints, and every program would pay for the import.
    from urllib.parse import urlsplit  # noqa: PLC0415

    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        # The client itself raises for an address like this.
        return protocol
    if not host:
        return protocol
    if host in known:
        return known[host]
    usual = {"http": 80, "https": 443}.get(parts.scheme)
    address = f"[{host}]" if ":" in host else host
    return f"{protocol}@{address}{'' if port in (None, usual) else f':{port}'}{_USUAL_PATH.sub('', parts.path)}"


def provider_name(named: str, url: str) -> str:
    """Return the name of a provider that a framework names; with its address if it only speaks a known protocol.

    For example:
        provider_name("openai", "http://localhost:8000/v1")    # openai@localhost:8000
    """
    host = _USUAL_HOSTS.get(named)
    return named if host is None else endpoint_name(named, url, {host: named})


def _nearly_a_kind(word: str) -> str | None:
    # The import is slow and only a name with a colon needs it, so it stands here.
    from difflib import get_close_matches  # noqa: PLC0415

    return next(iter(get_close_matches(word, _KINDS, 1, 0.7)), None)
