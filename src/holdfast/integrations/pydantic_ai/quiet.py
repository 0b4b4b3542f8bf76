"""Retries below a model: those of its SDK are switched off by a setting of the request, others are told."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast.integrations.inner import warn, warn_of_transport

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pydantic_ai.models import Model
    from pydantic_ai.settings import ModelSettings

__all__ = ["Quiet"]

_SETTING = "max_retries"


class Quiet:
    """What keeps a model from retrying by itself."""

    def __init__(self, model: Model, *, above: int = 0) -> None:
        leaves = list(_leaves(model, 8))
        # A model that does not know the setting warns of it with every request.
        self._heeded = all(_SETTING not in leaf.unsupported_settings for leaf in leaves)
        self._told = False
        for leaf in leaves:
            _warn_of_client(getattr(leaf, "client", None), heeded=self._heeded, above=above + 1)

    def settings(self, given: ModelSettings | None) -> ModelSettings | None:
        """Return the settings to send a request with."""
        if given and given.get(_SETTING) and not self._told:
            self._told = True
            warn("retries are the policy's here, so max_retries stays 0: give RecoveringModel a policy with attempts=…")
        return {**(given or {}), "max_retries": 0} if self._heeded else given


def _warn_of_client(client: Any, *, heeded: bool, above: int) -> None:
    retries = getattr(client, "max_retries", 0)
    if not heeded and isinstance(retries, int) and retries:
        warn(f"the model's client retries by itself (max_retries={retries}): give it max_retries=0", above=above + 1)
    transport = getattr(getattr(client, "_client", None), "_transport", None)
    if type(transport).__name__.endswith("TenacityTransport"):
        warn("the client's transport retries by itself, so attempts multiply: use one of both", above=above + 1)
    warn_of_transport(transport, above=above + 1)


def _leaves(model: Any, depth: int) -> Iterator[Any]:
    """The models that make requests: those inside wrappers and fallbacks."""
    inner = [vars(model)["wrapped"]] if "wrapped" in vars(model) else vars(model).get("models", [])
    if not inner or not depth:
        yield model
        return
    for one in inner:
        yield from _leaves(one, depth - 1)
