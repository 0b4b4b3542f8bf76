"""Capabilities: compare what a request needs with what a model offers, before anything is sent (S2-1, N2-18).

Invariant: a request is rejected only if a capability is known to be missing. If it is unknown, the model itself decides.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

import msgspec

from holdfast import options
from holdfast.faults import Code, Fault, InvalidError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

Capability: TypeAlias = Literal[
    "streaming", "toolCalling", "structuredOutput", "multimodal", "reasoning", "contextWindow", "promptCaching"
]
"""What a model may be able to do. The names are those of document 002."""

Level: TypeAlias = Literal["hard", "preferred", "probed", "absent"]
"""How much a capability is needed.

If it is missing: `hard` rejects the request, `preferred` warns, `probed` continues silently. `absent`: it is not
needed.
"""

CAPABILITIES: tuple[Capability, ...] = get_args(Capability)

# The codes of missing capabilities. Capabilities that are not listed have PROVIDER_CAPABILITY_MISSING.
_CODES: dict[Capability, Code] = {
    "streaming": "PROVIDER_MISSING_STREAMING",
    "toolCalling": "PROVIDER_MISSING_TOOL_CALLING",
    "contextWindow": "PROVIDER_CONTEXT_OVERFLOW",
}


class Offers(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, repr_omit_defaults=True, rename="camel"):
    """What a model can do. None: unknown."""

    streaming: bool | None = None
    tool_calling: bool | None = None
    structured_output: bool | None = None
    multimodal: bool | None = None
    reasoning: bool | None = None
    prompt_caching: bool | None = None
    context_window: int | None = None
    """Tokens that it can read and write in one call."""

    def __post_init__(self) -> None:
        options.count("offers.contextWindow", self.context_window, optional=True)

    def has(self, capability: Capability, window: int) -> bool | None:
        """Return whether the model has a capability; `window` is the context window it needs. None: unknown."""
        if capability == "contextWindow":
            return None if self.context_window is None else self.context_window >= window
        known: bool | None = getattr(self, _FIELDS[capability])
        return known


# Capabilities have document 002's camelCase names, fields have Python's.
_FIELDS = dict(zip(Offers.__struct_encode_fields__, Offers.__struct_fields__, strict=True))


class Needs(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, repr_omit_defaults=True, rename="camel"):
    """What a request needs, and how much."""

    levels: dict[Capability, Level] = {}
    """A capability that is not named here is `absent`."""
    window: int = 0
    """The smallest sufficient context window in tokens. Above 0 it is needed `hard`, unless `levels` differs."""

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

    def requiring(self, *capabilities: Capability) -> Needs:
        """Return a copy that needs these capabilities `hard`."""
        # Each request of an agent needs the same, so it is checked once.
        return _requiring(tuple(self.levels.items()), self.window, capabilities)


@lru_cache(maxsize=256)
def _requiring(
    levels: tuple[tuple[Capability, Level], ...], window: int, capabilities: tuple[Capability, ...]
) -> Needs:
    hard: dict[Capability, Level] = dict.fromkeys(capabilities, "hard")
    return Needs(levels={**dict(levels), **hard}, window=window)


class Negotiated(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The result of a negotiation: the capabilities that the model is known to lack, by how much they are needed."""

    hard: tuple[Capability, ...] = ()
    preferred: tuple[Capability, ...] = ()
    probed: tuple[Capability, ...] = ()

    @property
    def agreed(self) -> bool:
        """Whether the request may be sent: no `hard` capability is missing."""
        return not self.hard


def negotiate(needs: Needs, offers: Offers) -> Negotiated:
    """Return what is missing. The caller must not send the request unless the result is `agreed`."""
    missing: dict[Level, list[Capability]] = {"hard": [], "preferred": [], "probed": []}
    for capability in CAPABILITIES:
        if capability not in needs.levels and not needs.window:
            continue
        level = needs.level(capability)
        # `is False`, because None means unknown, and unknown is not missing.
        if level != "absent" and offers.has(capability, needs.window) is False:
            missing[level].append(capability)
    return Negotiated(
        hard=tuple(missing["hard"]), preferred=tuple(missing["preferred"]), probed=tuple(missing["probed"])
    )


def able(needs: Needs, models: Mapping[str, Offers]) -> tuple[str, ...]:
    """Return the names of the models that meet the needs, in the order given."""
    return tuple(name for name, offers in models.items() if negotiate(needs, offers).agreed)


def lacking(
    model: str, missing: Iterable[Capability], needs: Needs, offers: Offers, *, instead: Iterable[str] = ()
) -> Fault:
    """Return the fault for a model that lacks capabilities. `instead` names models that have them."""
    names, others = tuple(missing), tuple(instead)
    described = [_described(name, needs, offers) for name in names]
    message = f"{model} lacks {', '.join(described)}"
    if others:
        message += f"; use {' or '.join(others)} instead"
    # The first missing capability decides the code: a fault has one code, and the message names all of them.
    context = {"model": model, "missing": list(names), "instead": list(others)}
    return Fault.of(_CODES.get(names[0], "PROVIDER_CAPABILITY_MISSING"), message, context=context)


def _described(capability: Capability, needs: Needs, offers: Offers) -> str:
    if capability != "contextWindow":
        return capability
    return f"contextWindow (needs {needs.window} tokens, has {offers.context_window})"
