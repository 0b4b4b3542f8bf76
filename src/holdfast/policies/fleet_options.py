"""`SharedOptions`: where a fleet shares what it knows, and what of it."""

from __future__ import annotations

import re

from holdfast import options
from holdfast.faults import InvalidError

__all__ = ["SharedOptions"]

_NAMESPACE = re.compile(r"[A-Za-z0-9_.-]{1,64}")


class SharedOptions(options.Options, frozen=True, kw_only=True, omit_defaults=True, repr_omit_defaults=True):
    """The table `[shared]` of `holdfast.toml`. Wrong options raise `InvalidError`.

    For example:
        SharedOptions(url="redis://cache:6379/0", namespace="shop")
    """

    url: str = ""
    """The engine: `redis://…`, `rediss://…` (TLS), `unix://…` or `postgresql://…`. Empty: nothing is shared."""
    namespace: str = "holdfast"
    """Processes with one namespace share what they know. Applications with different keys need different ones."""
    limits: bool = True
    """Whether the pace of limits is shared."""
    circuits: bool = True
    """Whether it is shared that a target is away, and that it is back."""

    def __post_init__(self) -> None:
        if not isinstance(self.url, str):
            raise InvalidError.at("shared.url", "an address", self.url)
        namespace: object = self.namespace
        if not isinstance(namespace, str) or not _NAMESPACE.fullmatch(namespace):
            raise InvalidError.at(
                "shared.namespace", "up to 64 letters, digits, dots, dashes and underscores", self.namespace
            )
        options.flag("shared.limits", self.limits)
        options.flag("shared.circuits", self.circuits)
