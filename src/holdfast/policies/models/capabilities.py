"""Capability negotiation: what a request needs against what a model offers, before anything is sent (S2-1, N2-18).

It stands among the policies because it is one: values in, a decision out. Whoever asks it must not send a request that was
refused.

Invariant: only what is known to be missing is refused. What nobody knows is left to the model itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

import msgspec

from holdfast import options
from holdfast.faults import Code, Fault, InvalidError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["CAPABILITIES", "Capability", "Found", "Level", "Needs", "Offers", "able", "lacking", "negotiate"]

Capability: TypeAlias = Literal[
    "streaming", "toolCalling", "structuredOutput", "multimodal", "reasoning", "contextWindow", "promptCaching"
]
"""What a model may be able to do, in document 002's words."""

Level: TypeAlias = Literal["hard", "preferred", "probed", "absent"]
"""How much it is needed: refuse without it, warn, do without in silence, not wanted."""

CAPABILITIES: tuple[Capability, ...] = get_args(Capability)

_CODES: dict[Capability, Code] = {
    "streaming": "PROVIDER_MISSING_STREAMING",
    "toolCalling": "PROVIDER_MISSING_TOOL_CALLING",
    "contextWindow": "PROVIDER_CONTEXT_OVERFLOW",
}
"""All others are PROVIDER_CAPABILITY_MISSING."""


class Offers(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, repr_omit_defaults=True, rename="camel"):
    """What a model can do. None: nobody knows."""

    streaming: bool | None = None
    tool_calling: bool | None = None
    structured_output: bool | None = None
    multimodal: bool | None = None
    reasoning: bool | None = None
    prompt_caching: bool | None = None
    context_window: int | None = None
    """Tokens it can read and write in one exchange."""

    def __post_init__(self) -> None:
        options.count("offers.contextWindow", self.context_window, optional=True)

    def has(self, capability: Capability, window: int) -> bool | None:
        """Whether it can do that, with at least `window` tokens; None: nobody knows."""
        if capability == "contextWindow":
            return None if self.context_window is None else self.context_window >= window
        known: bool | None = getattr(self, _FIELDS[capability])
        return known


_FIELDS = dict(zip(Offers.__struct_encode_fields__, Offers.__struct_fields__, strict=True))


class Needs(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, repr_omit_defaults=True, rename="camel"):
    """What a request needs, and how much."""

    levels: dict[Capability, Level] = {}
    """A capability that is not named here is `absent`."""
    window: int = 0
    """The least context window, in tokens; above 0 it is needed `hard` unless `levels` says otherwise."""

    def __post_init__(self) -> None:
        options.count("needs.window", self.window, least=0)
        for capability, level in self.levels.items():
            options.one_of("needs", capability, CAPABILITIES)
            options.one_of(f"needs.{capability}", level, get_args(Level))
        if self.level("contextWindow") != "absent" and not self.window:
            raise InvalidError.saying("needs.contextWindow", "needs.window beside it", "no window")

    def level(self, capability: Capability) -> Level:
        """Return how much a capability is needed."""
        usual: Level = "hard" if capability == "contextWindow" and self.window else "absent"
        return self.levels.get(capability, usual)

    def hardly(self, *capabilities: Capability) -> Needs:
        """Return these needs with some capabilities needed `hard`."""
        return msgspec.structs.replace(self, levels={**self.levels, **dict.fromkeys(capabilities, "hard")})


class Found(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What became of a negotiation: what a model is known to lack, by how much it was needed."""

    hard: tuple[Capability, ...] = ()
    preferred: tuple[Capability, ...] = ()
    probed: tuple[Capability, ...] = ()

    @property
    def agreed(self) -> bool:
        """Whether the request may be sent."""
        return not self.hard


def negotiate(needs: Needs, offers: Offers) -> Found:
    """Return what is missing. After calling this you must not send the request unless it is `agreed`."""
    missing: dict[Level, list[Capability]] = {"hard": [], "preferred": [], "probed": []}
    for capability in CAPABILITIES:
        level = needs.level(capability)
        if level != "absent" and offers.has(capability, needs.window) is False:
            missing[level].append(capability)
    return Found(hard=tuple(missing["hard"]), preferred=tuple(missing["preferred"]), probed=tuple(missing["probed"]))


def able(needs: Needs, models: Mapping[str, Offers]) -> tuple[str, ...]:
    """Return the names of the models that would do, in their order."""
    return tuple(name for name, offers in models.items() if negotiate(needs, offers).agreed)


def lacking(
    model: str, missing: Iterable[Capability], needs: Needs, offers: Offers, *, instead: Iterable[str] = ()
) -> Fault:
    """Return the fault of a model that lacks something; `instead` names those that would do."""
    names, others = tuple(missing), tuple(instead)
    told = [_told(name, needs, offers) for name in names]
    message = f"{model} lacks {', '.join(told)}"
    if others:
        message += f"; {', '.join(others)} would do"
    context = {"model": model, "missing": list(names), "instead": list(others)}
    return Fault.of(_CODES.get(names[0], "PROVIDER_CAPABILITY_MISSING"), message, context=context)


def _told(capability: Capability, needs: Needs, offers: Offers) -> str:
    if capability != "contextWindow":
        return capability
    return f"contextWindow (needs {needs.window} tokens, has {offers.context_window})"
