"""The models that are configured, and what to say when the chosen one will not do: which others would (S2-1).

Invariant: a choice is refused before its first request, and nobody is chosen in its place.
"""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING

from holdfast.faults import HoldfastError, InvalidError
from holdfast.policies.models.capabilities import able, lacking, negotiate
from holdfast.providers.model import check

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.policies.models.capabilities import Needs
    from holdfast.providers.model import Model
    from holdfast.runtime.runtime import Runtime

__all__ = ["choose"]


def choose(name: str, models: Sequence[Model], needs: Needs, *, runtime: Runtime | None = None) -> Model:
    """Return the model of that name if it can do what is needed; the refusal names those that would do."""
    named = {model.name: model for model in models}
    model = named.get(name)
    if model is None:
        near = get_close_matches(name, named) or sorted(named)
        raise InvalidError.at("model", f"a configured model ({', '.join(near) or 'there is none'})", name)
    found = negotiate(needs, model.offers)
    if not found.agreed:
        instead = able(needs, {other: named[other].offers for other in named})
        raise HoldfastError(lacking(name, found.hard, needs, model.offers, instead=instead))
    check(model, needs, runtime)
    return model
