"""What a call is aimed at, and so which circuits watch it.

Invariant: the first scope is the main one: a failure that belongs to none of the others is counted there.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from holdfast.faults import InvalidError, Scope

__all__ = ["Aim", "Target", "target_of"]

_SCOPES = {str(scope): scope for scope in (Scope.PROVIDER, Scope.MODEL, Scope.CREDENTIAL, Scope.TOOL, Scope.AGENT)}


_WORDS = {Scope.CREDENTIAL: "key"}
"""What stands before a circuit's name. Behind the word "credential" every reader of texts expects a secret, and masks it."""


class Target(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, repr_omit_defaults=True):
    """What is called, as precisely as you know it: each part given gets a circuit of its own.

    `Target(provider="claude", model="opus", credential="team-a")` keeps a broken key from closing off the provider.
    """

    agent: str = ""
    tool: str = ""
    provider: str = ""
    model: str = ""
    credential: str = ""
    """A name for the key, never the key."""

    def __post_init__(self) -> None:
        for field in self.__struct_fields__:
            if not isinstance(getattr(self, field), str):
                raise InvalidError.at(f"target.{field}", "a name", getattr(self, field))

    @property
    def names(self) -> tuple[tuple[Scope, str], ...]:
        """The circuits of a call, main one first: `(Scope.PROVIDER, "provider:claude")` (N1-6)."""
        named = [
            (Scope.AGENT, self.agent),
            (Scope.TOOL, self.tool),
            (Scope.PROVIDER, self.provider),
            (Scope.MODEL, f"{self.provider}/{self.model}" if self.model and self.provider else self.model),
            (Scope.CREDENTIAL, f"{self.provider}/{self.credential}" if self.credential and self.provider else self.credential),
        ]  # fmt: skip
        return tuple((scope, f"{_WORDS.get(scope, scope)}:{name}") for scope, name in named if name)

    def __str__(self) -> str:
        """What events and people call it: the most telling part; a provider with its model, `claude/opus`."""
        names = self.names
        if not names:
            return ""
        scope, name = names[0]
        if scope is Scope.PROVIDER and self.model:
            return f"{self.provider}/{self.model}"
        return name.removeprefix("provider:")


Aim: TypeAlias = str | Target
"""`"claude"` (a provider), `"tool:bash"`, `"agent:builder"`, `"model:…"`, or a `Target`."""


def target_of(aim: Aim, path: str = "recover.target") -> Target:
    """Return the target that `aim` names. A name that is blank or mistyped raises `InvalidError`, which names `path`."""
    if isinstance(aim, Target):
        return aim
    given: object = aim
    # A blank name would silently share one circuit with every other blank one.
    if not isinstance(given, str) or not given.strip():
        raise InvalidError.at(path, "a name such as 'claude' or 'tool:bash', or a Target", given)
    kind, colon, name = aim.partition(":")
    if colon and kind in _SCOPES:
        if not name:
            raise InvalidError.at(path, f"a name after '{aim}'", aim)
        return Target(**{kind: name})
    if colon and (meant := _nearly_a_scope(kind)):
        # A provider's name may hold a colon, but a word that is nearly one of our scopes is a typing mistake.
        raise InvalidError.at(path, f"a name such as '{meant}:{name}', or Target(provider=…)", aim)
    return Target(provider=aim)


def _nearly_a_scope(word: str) -> str | None:
    # Loaded here: only a name with a colon pays for it.
    from difflib import get_close_matches  # noqa: PLC0415

    return next(iter(get_close_matches(word, _SCOPES, 1, 0.7)), None)
